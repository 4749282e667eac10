// SPDX-License-Identifier: MIT OR Apache-2.0
//! The emulated machine: its settings, one boot, and its outcome.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use schemars::JsonSchema;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::board::Board;
use crate::cache::Cache;
use crate::console::{self, Progress, Step};
use crate::device_tree;
use crate::emulator::Emulator;
use crate::error::{Error, OnFile, Result};
use crate::frame;
use crate::guest::{self, Carry, GuestProgram, Job};
use crate::kernel::Kernel;
use crate::memory::ModelledMemory;
use crate::own::Flavour;
use crate::program::{self, Scheduled};
use crate::source::Source;
use crate::stock::Stock;

/// The kernel's command line. An oops panics, since it may leave locks held and the
/// guest hanging. The self-tests of ciphers are off: they would run for 0.2 s of guest
/// time after the boot, beside a measurement. The last line makes page faults cheaper
/// (with the next constant, 3900 instructions instead of 4500), so that a core can make
/// more of them in a period.
const KERNEL_PARAMETERS: &str = "panic=-1 oops=panic nokaslr \
     cryptomgr.notests=1 \
     mitigations=off init_on_alloc=0";

/// Further parameters of Debian's kernel, on which budgets are measured. Our kernels need memory limits of groups.
const STOCK_PARAMETERS: &str = " cgroup_disable=memory";

/// The same on a platform's memory. Buffers have pages of 4 KiB, as the simulator's workloads have and as the fit of the
/// platforms assumes, unless a program asks for huge ones.
const PLATFORM_PARAMETERS: &str = " transparent_hugepage=madvise";

/// Instructions of each CPU in a round of the counted clock; at a round's end all CPUs have the same time.
const QUANTUM: u64 = 1000;

/// On the counted clock every run begins on this day.
const COUNTED_DATE: &str = "2026-01-01T00:00:00";

/// Interval of reading the guest's output, shorter than a user notices.
const POLL: Duration = Duration::from_millis(20);

/// Time in which a command must end after a signal, its results' way to the host included: on a platform, a second of the
/// guest can take ten seconds or more of the host.
const END_WITHIN: Duration = Duration::from_secs(60);

/// Lines of the console in an error, enough to show its cause.
const TAIL_LINES: usize = 25;

/// Debian's kernel with its initial file system needs this much to boot.
const MIN_MEMORY_MIB: u64 = 256;

/// More than any emulated experiment has needed, and little enough for most hosts.
const MAX_MEMORY_MIB: u64 = 64 * 1024;

/// With all checkers on, on a busy host with two cores, an emulated CPU may stall for half a minute.
const DEBUG_PARAMETERS: &str =
    " rcupdate.rcu_cpu_stall_timeout=120 sysctl.kernel.hung_task_timeout_secs=600";

/// How time passes in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// One nanosecond for each CPU's instruction, on all CPUs concurrently; idle time is skipped. Two runs of a command
    /// are identical. Needs the lab's own emulator.
    Counted,
    /// The host's time; the CPUs run concurrently on the host's cores. Runs on Debian's emulator.
    Free,
}

/// Which kernel is booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelChoice {
    /// One of Debian's, newest version of its series.
    Stock(&'static Stock),
    /// The lab's own, with our patches and Rust.
    Own(Flavour),
    /// A build tree.
    Tree(PathBuf),
}

impl Default for KernelChoice {
    fn default() -> Self {
        Self::Stock(Stock::usual())
    }
}

impl FromStr for KernelChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(name) = text.strip_prefix("stock:") {
            return Stock::named(name).map(Self::Stock).ok_or_else(|| {
                Error::BadInput(format!(
                    "--kernel {text}: no such kernel of Debian's; there are stock: with {}",
                    Stock::names()
                ))
            });
        }
        match text {
            "stock" => Ok(Self::default()),
            "own" => Ok(Self::Own(Flavour::Plain)),
            "own-debug" => Ok(Self::Own(Flavour::Debug)),
            "own-raspberry-pi-3" => Ok(Self::Own(Flavour::RaspberryPi3)),
            "" => Err(Error::BadInput(
                "--kernel is empty: give `stock`, `stock:NAME`, `own`, `own-debug`, `own-raspberry-pi-3` or the path of a kernel build tree".to_owned(),
            )),
            path => Ok(Self::Tree(PathBuf::from(path))),
        }
    }
}

/// A machine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Memory {
    mib: u64,
}

impl Memory {
    /// In MiB.
    #[must_use]
    pub fn mib(self) -> u64 {
        self.mib
    }
}

impl FromStr for Memory {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::BadInput(format!(
                "give a size from {MIN_MEMORY_MIB}M to {}G, such as 512M or 1G",
                MAX_MEMORY_MIB / 1024
            ))
        };
        let (digits, factor) = match text.strip_suffix(['G', 'g']) {
            Some(digits) => (digits, 1024),
            None => (text.strip_suffix(['M', 'm']).ok_or_else(bad)?, 1),
        };
        let mib = digits
            .parse::<u64>()
            .ok()
            .and_then(|count| count.checked_mul(factor))
            .filter(|mib| (MIN_MEMORY_MIB..=MAX_MEMORY_MIB).contains(mib))
            .ok_or_else(bad)?;
        Ok(Self { mib })
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}M", self.mib)
    }
}

/// An emulated machine, ready to be booted any number of times.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Which machine is emulated.
    pub board: Board,
    /// The kernel.
    pub kernel: KernelChoice,
    /// How time passes.
    pub clock: Clock,
    /// CPUs, 1 to 32; a board may have fewer.
    pub cpus: u32,
    /// Memory.
    pub memory: Memory,
    /// The platform whose caches, memory and PMU it has; without one, an access takes no time.
    pub modelled: Option<ModelledMemory>,
    /// Whether its CPUs have memory with tags (Arm's MTE).
    pub mte: bool,
    /// Limit of a run, from the emulator's start, without the time in which the emulator waits for a core of a busy host.
    pub timeout: Duration,
    /// Further parameters, at the end of the kernel's command line.
    pub append: String,
    /// Which memwarden the guest has.
    pub guest: GuestProgram,
    /// Files and folders of the host that the guest finds in /host.
    pub with: Vec<PathBuf>,
    /// Packages of Debian's archive that the guest has, with what they depend on.
    pub packages: BTreeSet<String>,
    /// Whether the command's output is passed on while it runs.
    pub live: bool,
    /// Print the lab's steps on standard error.
    pub talkative: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            board: Board::Virt,
            kernel: KernelChoice::default(),
            clock: Clock::Counted,
            cpus: 4,
            memory: Memory { mib: 1024 },
            modelled: None,
            mte: false,
            timeout: Duration::from_secs(1800),
            append: String::new(),
            guest: GuestProgram::Build,
            with: Vec::new(),
            packages: BTreeSet::new(),
            live: true,
            talkative: std::io::stderr().is_terminal(),
        }
    }
}

impl Clock {
    /// The date at the guest's start, fixed for repeatable runs.
    fn date(self) -> String {
        match self {
            Self::Counted => COUNTED_DATE.replace('T', " "),
            Self::Free => {
                let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
                format!("@{}", since_1970.as_secs())
            }
        }
    }
}

/// The machine of a run, for a run folder's `run.json`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct LabFacts {
    /// The emulated machine.
    pub machine: &'static str,
    /// The emulated CPU.
    pub cpu: String,
    /// The platform whose caches and memory it had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// The guest kernel's release.
    pub kernel: String,
    /// The kernel's package and version, or its build tree.
    pub kernel_origin: String,
    /// The emulator's own words.
    pub qemu: String,
    /// How time passed.
    pub clock: Clock,
    /// Emulated CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// The further parameters at the end of the kernel's command line.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub append: String,
}

/// The outcome of a run.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct LabOutcome {
    /// The command's exit code; `None` if the guest died before the command ended.
    pub exit_code: Option<u8>,
    /// Warnings and errors of the guest's kernel. Each of them fails the run.
    pub kernel_faults: Vec<String>,
    /// The machine.
    pub lab: LabFacts,
    /// A signal came while the command ran.
    #[serde(skip)]
    pub interrupted: bool,
    /// Where the command's files are, if there are any.
    pub results: Option<PathBuf>,
    /// The console's log.
    pub console: PathBuf,
    /// Wall-clock seconds from the emulator's start until the command started.
    pub boot_s: f64,
    /// Wall-clock seconds from the emulator's start to its end.
    pub total_s: f64,
    /// What the command printed.
    pub stdout: String,
    /// What the command printed as errors.
    pub stderr: String,
}

impl LabOutcome {
    /// Whether the command succeeded and the kernel had no complaint.
    #[must_use]
    pub fn success(&self) -> bool {
        self.exit_code == Some(0) && self.kernel_faults.is_empty()
    }
}

impl Machine {
    /// The machine that has a platform's caches and memory, on its CPUs.
    #[must_use]
    pub fn modelled(memory: ModelledMemory) -> Self {
        Self {
            cpus: memory.cpus(),
            modelled: Some(memory),
            ..Self::default()
        }
    }

    /// The emulated CPU.
    fn cpu(&self) -> &str {
        self.modelled
            .as_ref()
            .map_or(self.board.cpu(), ModelledMemory::cpu)
    }

    /// Refuses settings that no machine can have.
    ///
    /// # Errors
    /// One line for the first bad setting.
    pub fn check(&self) -> Result<()> {
        self.board.check(self)?;
        if let Some(memory) = &self.modelled {
            self.check_modelled(memory)?;
        }
        for path in &self.with {
            if !path.exists() {
                return Err(Error::BadInput(format!(
                    "--with {}: no such file or folder",
                    path.display()
                )));
            }
        }
        if let GuestProgram::File(path) = &self.guest {
            if !path.is_file() {
                return Err(Error::BadInput(format!(
                    "--guest {}: no such file; give a static {} program, `build` or `none`",
                    path.display(),
                    self.board.architecture()
                )));
            }
        }
        if let KernelChoice::Tree(tree) = &self.kernel {
            Kernel::built(tree, self.board.architecture())?;
        }
        Ok(())
    }

    /// The emulator's arguments for the guest's devices.
    fn hardware(&self) -> Vec<String> {
        let mut arguments: Vec<String> = self
            .board
            .qemu()
            .iter()
            .map(|word| (*word).into())
            .collect();
        if let Some(memory) = &self.modelled {
            arguments.extend(["-cpu".into(), memory.cpu().into()]);
            arguments.extend(memory.engine().iter().map(|word| (*word).into()));
        }
        if self.mte {
            arguments.extend(["-M".into(), "mte=on".into()]);
        }
        arguments.extend(["-smp".into(), self.cpus.to_string()]);
        arguments.extend(["-m".into(), self.memory.to_string()]);
        arguments
    }

    fn check_modelled(&self, memory: &ModelledMemory) -> Result<()> {
        let (name, cpus) = (memory.name(), memory.cpus());
        if self.board != Board::Virt {
            return Err(Error::BadInput(format!(
                "--platform {name}: a modelled memory is on the machine virt: leave --machine out"
            )));
        }
        if self.clock != Clock::Counted {
            return Err(Error::BadInput(format!(
                "--platform {name}: a modelled memory is on the counted clock: leave --clock out"
            )));
        }
        if self.mte {
            return Err(Error::BadInput(format!(
                "--mte: the CPUs of the platform {name} have no MTE: leave --platform out"
            )));
        }
        if self.cpus > cpus {
            return Err(Error::BadInput(format!(
                "--cpus {}: the platform {name} has {cpus}",
                self.cpus
            )));
        }
        Ok(())
    }

    /// Boots, runs `command` in the guest's /results, and brings back what it left
    /// there: to `results`, or when that is `None` to a new folder below `out/` if
    /// there is anything.
    ///
    /// # Errors
    /// When the guest cannot be built, does not boot, or goes away without a word
    /// of its kernel. A command that fails, or a kernel that complains, is an outcome.
    pub fn run(&self, command: &[OsString], results: Option<&Path>) -> Result<LabOutcome> {
        self.boot(command, results, &mut |_| {}, None)
    }

    /// Like [`Self::run`], for an experiment: calls `tell` for each step that a memwarden in the guest begins. A signal
    /// ends the command with SIGTERM, and its files are brought back; a second signal ends the machine at once.
    ///
    /// # Errors
    /// As for [`Self::run`]. [`Error::Interrupted`] if the command does not end in time, has not begun, or runs on a
    /// board whose results return over its serial line.
    pub fn run_with_steps(
        &self,
        command: &[OsString],
        results: Option<&Path>,
        tell: &mut dyn FnMut(&Step),
    ) -> Result<LabOutcome> {
        self.boot(command, results, tell, Some(END_WITHIN))
    }

    fn boot(
        &self,
        command: &[OsString],
        results: Option<&Path>,
        tell: &mut dyn FnMut(&Step),
        patience: Option<Duration>,
    ) -> Result<LabOutcome> {
        if command.is_empty() {
            return Err(Error::BadInput("no command to run in the guest".to_owned()));
        }
        self.check()?;
        let stop = interrupt_flag();
        self.prepared(command, &stop)?
            .run(results, Stop::on(&stop, patience), tell)
    }

    fn prepared(&self, command: &[OsString], stop: &AtomicBool) -> Result<Boot<'_>> {
        let prepared = Boot::prepare(self, command);
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        prepared
    }

    /// Fetches and builds everything that [`Self::run`] needs, and boots nothing.
    ///
    /// # Errors
    /// When something cannot be fetched or built.
    pub fn prepare(&self) -> Result<LabFacts> {
        self.check()?;
        self.prepared(&[], &interrupt_flag())?.facts()
    }

    /// Boots to a shell on this terminal. Returns where the files that it left in
    /// /results are, if any.
    ///
    /// # Errors
    /// When the guest cannot be built or started.
    pub fn shell(&self, results: Option<&Path>) -> Result<Option<PathBuf>> {
        self.check()?;
        self.board.check_shell()?;
        let stop = interrupt_flag();
        let boot = self.prepared(&[], &stop)?;
        let mut emulator = boot
            .qemu(&["-serial", "mon:stdio"])
            .stdin(Stdio::inherit())
            .spawn()
            .map_err(|source| boot.not_started(&source))?;
        let status = loop {
            if let Some(status) = emulator
                .try_wait()
                .map_err(|source| boot.not_started(&source))?
            {
                break status;
            }
            if stop.load(Ordering::Relaxed) {
                // It puts the terminal back in its state before it ends.
                program::terminate(&emulator);
                let _ = emulator.wait();
                return Err(Error::Interrupted);
            }
            std::thread::sleep(POLL);
        };
        if !status.success() {
            return Err(Error::Boot {
                reason: format!("the emulator ended with {status}"),
                tail: String::new(),
            });
        }
        boot.fetch_results(results)
    }

    fn say(&self, what: &str) {
        if self.talkative {
            let _ = writeln!(std::io::stderr(), "lab: {what}");
        }
    }
}

/// The emulator's own words.
fn version(program: &Path) -> Result<String> {
    let said = program::run(
        "ask the emulator for its version",
        program::command(&program.to_string_lossy()).arg("--version"),
    )?;
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}

/// The files of one boot.
struct Boot<'a> {
    machine: &'a Machine,
    /// The emulator.
    program: PathBuf,
    kernel: Kernel,
    /// The device tree, where it is not the one that QEMU makes.
    device_tree: Option<PathBuf>,
    /// The emulator's arguments for the modelled memory.
    memory: Option<[String; 2]>,
    source: Source,
    /// Removed with all that is in it when the boot is over.
    folder: tempfile::TempDir,
    started: Instant,
}

impl<'a> Boot<'a> {
    fn prepare(machine: &'a Machine, command: &[OsString]) -> Result<Self> {
        let source = Source::find()?;
        let cache = Cache::of_user()?;
        source.check(&cache)?;
        let say = |what: &str| machine.say(what);
        let architecture = machine.board.architecture();
        let installed = match machine.clock {
            Clock::Counted if machine.board.has_quantum() => None,
            Clock::Counted | Clock::Free => Some(PathBuf::from(architecture.qemu())),
        };
        if let Some(program) = &installed {
            version(program)?;
        }
        // Downloads come first: they leave the cores to builds beside this one.
        let kernel = match &machine.kernel {
            KernelChoice::Stock(stock) => Kernel::stock(&cache, stock, architecture, &say)?,
            KernelChoice::Own(flavour) => Kernel::own(&cache, &source, *flavour, &say)?.0,
            KernelChoice::Tree(tree) => Kernel::built(tree, architecture)?,
        };
        let program = match installed {
            Some(program) => program,
            None => Emulator::own(&cache, &source, &say)?.program,
        };
        let jobs = source.built("jobs")?;
        let folder = tempfile::tempdir_in(&jobs).on("create a folder in", &jobs)?;
        let device_tree = match machine.board {
            Board::Virt => match &machine.modelled {
                Some(memory) => Some(memory.device_tree(
                    &program,
                    &machine.hardware(),
                    machine.cpus,
                    folder.path(),
                )?),
                None => None,
            },
            Board::Raspi3b => Some(
                Kernel::stock(&cache, Stock::usual(), architecture, &say)?
                    .device_tree("broadcom/bcm2837-rpi-3-b.dtb"),
            ),
            Board::Zcu102 => {
                let tree = source.root().join("lab/zcu102.dts");
                Some(device_tree::compile(&tree, machine.cpus, folder.path())?)
            }
            Board::Amd64 => None,
        };
        let memory = match &machine.modelled {
            Some(memory) => {
                let library = ModelledMemory::library(&source, &say)?;
                Some(memory.qemu(&library, folder.path())?)
            }
            None => None,
        };
        let job = Job {
            architecture,
            command,
            carry: machine.board.carry(),
            ports: machine.board.ports(),
            date: (!machine.board.has_clock()).then(|| machine.clock.date()),
            with: &machine.with,
            packages: &machine.packages,
        };
        guest::assemble(
            folder.path(),
            &source,
            &cache,
            &kernel,
            &machine.guest,
            &job,
            &say,
        )?;
        for name in ["carried", "carried/files"] {
            let path = folder.path().join(name);
            fs::create_dir(&path).on("create", &path)?;
        }
        Ok(Self {
            machine,
            program,
            kernel,
            device_tree,
            memory,
            source,
            folder,
            // The limit starts here, after builds, which may include a kernel.
            started: Instant::now(),
        })
    }

    fn not_started(&self, source: &std::io::Error) -> Error {
        program::not_started("boot the guest", &self.program.to_string_lossy(), source)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The emulator's command line. `console` says where the console goes.
    fn qemu(&self, console: &[&str]) -> Command {
        let machine = self.machine;
        // The kernel kills the emulator when this process ends, however it ends.
        let mut qemu = program::command("setpriv");
        qemu.args(["--pdeathsig", "KILL"]).arg(&self.program);
        qemu.args(machine.hardware());
        if let Some(device_tree) = &self.device_tree {
            qemu.arg("-dtb").arg(device_tree);
        }
        qemu.args(self.memory.iter().flatten());
        qemu.args(["-nodefaults", "-nographic", "-no-reboot"]);
        match machine.clock {
            Clock::Counted => {
                let mut icount = "shift=0,sleep=off,align=off".to_owned();
                if machine.board.has_quantum() {
                    icount += &format!(",quantum={QUANTUM}");
                }
                qemu.args(["-icount", &icount]);
                qemu.args(["-rtc", &format!("base={COUNTED_DATE},clock=vm")]);
                qemu.args(["-seed", "1"]);
            }
            Clock::Free => {
                qemu.args(["-accel", "tcg,thread=multi"]);
            }
        }
        qemu.args(console);
        if machine.board.carry() == Carry::Ninep {
            let carried = self.file("carried");
            qemu.arg("-fsdev").arg(format!(
                "local,id=results,security_model=none,path={}",
                carried.display()
            ));
            qemu.args(["-device", "virtio-9p-pci,fsdev=results,mount_tag=results"]);
        }
        qemu.arg("-kernel").arg(&self.kernel.image);
        qemu.arg("-initrd").arg(self.file("initramfs"));
        let more = match machine.kernel {
            KernelChoice::Stock(_) => STOCK_PARAMETERS,
            KernelChoice::Own(Flavour::Debug) => DEBUG_PARAMETERS,
            KernelChoice::Own(_) | KernelChoice::Tree(_) => "",
        };
        let platform = match machine.modelled {
            Some(_) => PLATFORM_PARAMETERS,
            None => "",
        };
        qemu.arg("-append").arg(format!(
            "{} {KERNEL_PARAMETERS}{more}{platform} {}",
            machine.board.console(),
            machine.append
        ));
        qemu
    }

    fn run(
        &self,
        results: Option<&Path>,
        mut stop: Stop<ChildStdin>,
        tell: &mut dyn FnMut(&Step),
    ) -> Result<LabOutcome> {
        self.machine.say("booting");
        let out = format!("file,id=out,path={}", self.file("stdout").display());
        // The guest reads the emulator's standard input from this port.
        let err = format!(
            "stdio,id=err,signal=off,logfile={}",
            self.file("stderr").display()
        );
        let console = format!("file:{}", self.file("console").display());
        let mut qemu = self.qemu(&["-monitor", "none", "-serial", &console]);
        if self.machine.board.carry() == Carry::Ninep {
            qemu.args(["-chardev", &out, "-chardev", &err]);
            qemu.args(["-device", "pci-serial-2x,chardev1=out,chardev2=err"]);
        }
        let said = File::create(self.file("qemu")).on("create", &self.file("qemu"))?;
        qemu.stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(said);
        // A process group of its own, so that Ctrl-C reaches only this process, which cleans up.
        std::os::unix::process::CommandExt::process_group(&mut qemu, 0);
        let child = qemu.spawn().map_err(|source| self.not_started(&source))?;
        let mut guest = Running(child);
        if self.machine.board.carry() == Carry::Ninep {
            stop.input = guest.0.stdin.take();
        }
        let watched = self.watch(&mut guest.0, &mut stop, tell);
        let interrupted = stop.asked.is_some();
        drop(guest);

        let console = self.keep_console();
        let boot_s = watched?;
        let log = fs::read(&console).on("read", &console)?;
        let log = String::from_utf8_lossy(&log).into_owned();
        let progress = Progress::read(&log);
        if self.machine.board.carry() == Carry::Serial && progress.carried {
            self.unpack_frame(&log)?;
        }
        let mut kernel_faults = console::faults(&log);
        let guest_log = fs::read(self.file("carried/kernel.log")).unwrap_or_default();
        for fault in console::faults(&String::from_utf8_lossy(&guest_log)) {
            if !kernel_faults.contains(&fault) {
                kernel_faults.push(fault);
            }
        }
        if kernel_faults.is_empty() {
            self.explain_end(&progress, &log)?;
        }
        let results = self.fetch_results(results)?;
        if let Some(folder) = &results {
            let copy = folder.join("console.log");
            fs::copy(&console, &copy).on("write", &copy)?;
        }
        Ok(LabOutcome {
            exit_code: progress.exit_code,
            kernel_faults,
            interrupted,
            lab: self.facts()?,
            results,
            console,
            boot_s,
            total_s: self.started.elapsed().as_secs_f64(),
            stdout: self.text("stdout"),
            stderr: self.text("stderr"),
        })
    }

    /// Passes the command's output on until the emulator ends. Returns the seconds
    /// that booting took.
    fn watch(
        &self,
        guest: &mut Child,
        stop: &mut Stop<ChildStdin>,
        tell: &mut dyn FnMut(&Step),
    ) -> Result<f64> {
        let mut out = Tail::new(self.file("stdout"));
        let mut err = Tail::new(self.file("stderr"));
        let mut console = Tail::new(self.file("console"));
        let mut log = String::new();
        let mut end = String::new();
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        let mut scheduled = Scheduled::default();
        let mut last_word = Duration::ZERO;
        let mut boot_s = None;
        loop {
            let ended = guest.try_wait().on("wait for", &self.program)?.is_some();
            scheduled = Scheduled::of(guest).max(scheduled);
            let ran = scheduled.ran(self.started.elapsed(), cores);
            let news = console.read();
            if !news.is_empty() && boot_s.is_none() {
                last_word = ran;
                log += &String::from_utf8_lossy(&news);
                if Progress::read(&log).ready {
                    boot_s = Some(self.started.elapsed().as_secs_f64());
                    self.machine.say("running the command");
                }
            }
            // A Raspberry Pi never powers itself off.
            end += &String::from_utf8_lossy(&news);
            let over = [
                "memwarden-lab: carried",
                "memwarden-lab: failed",
                "Kernel panic",
            ]
            .iter()
            .any(|word| end.contains(word));
            let (complete, begun) = end.rsplit_once('\n').unwrap_or(("", &end));
            complete
                .lines()
                .filter_map(Step::read)
                .for_each(|s| tell(&s));
            end = begun.to_owned();
            if over && !self.machine.board.powers_off() {
                // The line's rest, and what a panic prints behind it.
                std::thread::sleep(Duration::from_secs(1));
                return Ok(boot_s.unwrap_or_else(|| self.started.elapsed().as_secs_f64()));
            }
            for (tail, error) in [(&mut out, false), (&mut err, true)] {
                let news = tail.read();
                if self.machine.live {
                    pass_on(&news, error);
                }
            }
            if ended {
                return Ok(boot_s.unwrap_or_else(|| self.started.elapsed().as_secs_f64()));
            }
            if stop.look(boot_s.is_some())? {
                self.machine
                    .say("ending the command; a second Ctrl-C ends the machine at once");
            }
            let silence = self.machine.board.boot_silence();
            if boot_s.is_none() && ran.saturating_sub(last_word) > silence {
                return Err(Error::Boot {
                    reason: format!("its console was silent for {} s", silence.as_secs()),
                    tail: program::last_lines(&log, TAIL_LINES),
                });
            }
            if stop.asked.is_none() && ran > self.machine.timeout {
                return Err(Error::TimedOut {
                    seconds: self.machine.timeout.as_secs(),
                    tail: program::last_lines(&self.text("console"), TAIL_LINES),
                });
            }
            std::thread::sleep(POLL);
        }
    }

    /// Returns an error unless the guest shut down properly.
    fn explain_end(&self, progress: &Progress, log: &str) -> Result<()> {
        let tail = || program::last_lines(log, TAIL_LINES);
        if progress.carried {
            return Ok(());
        }
        let said = self.text("qemu");
        let reason = match (&progress.failed, said.trim()) {
            (Some(reason), _) => reason.clone(),
            (None, "") => "it powered off or reset by itself".to_owned(),
            (None, said) => said.to_owned(),
        };
        if progress.ready {
            Err(Error::Lost {
                reason,
                tail: tail(),
            })
        } else {
            Err(Error::Boot {
                reason,
                tail: tail(),
            })
        }
    }

    /// What came over the serial line, to where 9p would have put it; the command's output is passed on.
    fn unpack_frame(&self, log: &str) -> Result<()> {
        let archive = frame::unpack(log, self.folder.path())?;
        program::run(
            "unpack the results from the serial line",
            program::command("tar")
                .arg("-xzf")
                .arg(&archive)
                .arg("-C")
                .arg(self.file("carried")),
        )?;
        for (name, error) in [("stdout", false), ("stderr", true)] {
            let from = self.file("carried").join(name);
            let to = self.file(name);
            fs::rename(&from, &to).on("rename", &from)?;
            if self.machine.live {
                pass_on(&fs::read(&to).on("read", &to)?, error);
            }
        }
        Ok(())
    }

    /// Copies what came back to its place; the place's path, if there was anything.
    fn fetch_results(&self, wanted: Option<&Path>) -> Result<Option<PathBuf>> {
        let carried = self.file("carried/files");
        let empty = fs::read_dir(&carried)
            .on("read", &carried)?
            .next()
            .is_none();
        let folder = match wanted {
            Some(folder) => folder.to_owned(),
            None if empty => return Ok(None),
            None => fresh_results_folder(),
        };
        fs::create_dir_all(&folder).on("create", &folder)?;
        program::run(
            &format!("bring the results to {}", folder.display()),
            program::command("cp")
                .arg("-r")
                .arg(carried.join("."))
                .arg(&folder),
        )?;
        Ok(Some(folder))
    }

    /// Keeps the console of this checkout's last run, after its other files are gone.
    fn keep_console(&self) -> PathBuf {
        let kept = self.source.root().join("target/lab/console.log");
        let text = self.text("console").replace('\r', "");
        match fs::write(&kept, text) {
            Ok(()) => kept,
            Err(_) => self.file("console"),
        }
    }

    fn text(&self, name: &str) -> String {
        let bytes = fs::read(self.file(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn facts(&self) -> Result<LabFacts> {
        let version = version(&self.program)?;
        Ok(LabFacts {
            machine: self.machine.board.name(),
            cpu: match self.machine.mte {
                true => format!("{} with MTE", self.machine.cpu()),
                false => self.machine.cpu().to_owned(),
            },
            platform: self
                .machine
                .modelled
                .as_ref()
                .map(|memory| memory.name().to_owned()),
            kernel: self.kernel.release.clone(),
            kernel_origin: self.kernel.origin.clone(),
            qemu: version.lines().next().unwrap_or_default().to_owned(),
            clock: self.machine.clock,
            cpus: self.machine.cpus,
            memory_mib: self.machine.memory.mib,
            append: self.machine.append.clone(),
        })
    }
}

/// The end of a run by a signal.
struct Stop<'a, W> {
    /// Set by a signal.
    came: &'a AtomicBool,
    /// Time for the command to end in order; without it the machine ends at once.
    patience: Option<Duration>,
    /// The emulator's standard input, which the guest reads from a serial port.
    input: Option<W>,
    /// When the command was asked to end.
    asked: Option<Instant>,
    /// How often.
    requests: u32,
}

impl<'a, W: Write> Stop<'a, W> {
    fn on(came: &'a AtomicBool, patience: Option<Duration>) -> Self {
        Self {
            came,
            patience,
            input: None,
            asked: None,
            requests: 0,
        }
    }

    /// After the first signal, asks the command to end if it runs, and returns true.
    ///
    /// # Errors
    /// [`Error::Interrupted`] when the machine must end now.
    fn look(&mut self, runs: bool) -> Result<bool> {
        if let (Some(asked), Some(patience)) = (self.asked, self.patience) {
            if asked.elapsed() > patience {
                return Err(Error::Interrupted);
            }
            // The guest may not have opened the port at the first request.
            if asked.elapsed().as_secs() >= u64::from(self.requests) {
                self.ask();
            }
        }
        if !self.came.swap(false, Ordering::Relaxed) {
            return Ok(false);
        }
        let may_ask = runs && self.patience.is_some() && self.asked.is_none();
        if may_ask && self.ask() {
            self.asked = Some(Instant::now());
            return Ok(true);
        }
        Err(Error::Interrupted)
    }

    fn ask(&mut self) -> bool {
        self.requests += 1;
        let input = self.input.as_mut();
        input.is_some_and(|input| input.write_all(b"end\n").is_ok())
    }
}

/// The running emulator. Dropping it kills the emulator.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The emulator has nothing to save, and ignores gentler signals while it is stuck
        // in a device.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Follows a growing file.
struct Tail {
    path: PathBuf,
    read: u64,
}

impl Tail {
    fn new(path: PathBuf) -> Self {
        Self { path, read: 0 }
    }

    /// What was added since the last call; nothing while there is no such file.
    fn read(&mut self) -> Vec<u8> {
        let mut news = Vec::new();
        if let Ok(mut file) = File::open(&self.path) {
            if file.seek(SeekFrom::Start(self.read)).is_ok() {
                if let Ok(count) = file.read_to_end(&mut news) {
                    self.read += count as u64;
                }
            }
        }
        news
    }
}

fn pass_on(bytes: &[u8], error: bool) {
    if bytes.is_empty() {
        return;
    }
    // A reader that went away (`| head`) does not stop the run: its results count.
    if error {
        let _ = std::io::stderr().write_all(bytes);
    } else {
        let mut out = std::io::stdout();
        let _ = out.write_all(bytes).and_then(|()| out.flush());
    }
}

struct Interrupt {
    stop: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

static INTERRUPT: OnceLock<Interrupt> = OnceLock::new();

/// Set when the user or a supervisor asks to stop. All parts of a run share it: a signal during a download also stops
/// the build that would come next.
pub(crate) fn interrupt_flag() -> Arc<AtomicBool> {
    let interrupt = INTERRUPT.get_or_init(|| {
        let interrupt = Interrupt {
            stop: Arc::default(),
            signal: Arc::default(),
        };
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
            // Without the handlers the default action ends this process, and the emulator with it. The signal's number
            // is there before the flag: handlers run in the order of their registration.
            let number = usize::try_from(signal).unwrap_or(0);
            let _ =
                signal_hook::flag::register_usize(signal, Arc::clone(&interrupt.signal), number);
            let _ = signal_hook::flag::register(signal, Arc::clone(&interrupt.stop));
        }
        interrupt
    });
    Arc::clone(&interrupt.stop)
}

/// The last signal behind an [`Error::Interrupted`]; `None` before the first.
pub fn interrupted_by() -> Option<i32> {
    let signal = INTERRUPT.get()?.signal.load(Ordering::Relaxed);
    i32::try_from(signal).ok().filter(|signal| *signal != 0)
}

/// `out/lab-N`, the first that is free.
fn fresh_results_folder() -> PathBuf {
    (1..)
        .map(|number| PathBuf::from(format!("out/lab-{number}")))
        .find(|path| !path.exists())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_size_with_a_unit() {
        for (text, mib) in [("1G", 1024), ("512M", 512), ("64g", 65536), ("256m", 256)] {
            assert_eq!(text.parse::<Memory>().unwrap().mib(), mib, "{text}");
        }
        for text in [
            "",
            "G",
            "1",
            "0G",
            "-1G",
            "1.5G",
            "1T",
            "255M",
            "65G",
            "99999999999999999999G",
            "1 G",
        ] {
            let said = text.parse::<Memory>().unwrap_err().to_string();
            assert!(said.starts_with("give a size from 256M to 64G"), "{said}");
            assert!(!said.contains('\n'));
        }
    }

    #[test]
    fn impossible_machines_are_refused_in_one_line() {
        let with = |change: fn(&mut Machine)| {
            let mut machine = Machine::default();
            change(&mut machine);
            machine.check().unwrap_err().to_string()
        };
        for (said, expected) in [
            (
                with(|m| m.cpus = 0),
                "--cpus 0: the emulated machine has 1 to 32 CPUs",
            ),
            (
                with(|m| m.cpus = 99),
                "--cpus 99: the emulated machine has 1 to 32 CPUs",
            ),
            (
                with(|m| m.with = vec!["/no/such".into()]),
                "--with /no/such: no such file or folder",
            ),
            (
                with(|m| m.guest = GuestProgram::File("/no/such".into())),
                "--guest /no/such: no such file; give a static arm64 program, `build` or `none`",
            ),
            (
                with(|m| m.kernel = KernelChoice::Tree("/no/such".into())),
                "--kernel /no/such: no such folder; give the build tree of an arm64 kernel (built with `make Image modules`), `stock`, `stock:NAME`, `own`, `own-debug` or `own-raspberry-pi-3`",
            ),
        ] {
            assert_eq!(said, expected);
        }
        Machine::default().check().unwrap();
    }

    #[test]
    fn the_first_signal_asks_a_command_to_end_and_the_second_ends_the_machine() {
        let came = AtomicBool::new(false);
        let signal = || came.store(true, Ordering::Relaxed);
        let interrupted = |looked| matches!(looked, Err(Error::Interrupted));
        let minute = Some(Duration::from_secs(60));

        let mut stop = Stop::on(&came, minute);
        stop.input = Some(Vec::new());
        assert!(!stop.look(true).unwrap());
        signal();
        assert!(stop.look(true).unwrap());
        assert!(!stop.look(true).unwrap());
        signal();
        assert!(interrupted(stop.look(true)));
        assert_eq!(stop.input.unwrap(), b"end\n");

        // A command that has not begun, a machine without a way to ask, a command that runs on, and no patience.
        for (runs, has_input, patience) in [
            (false, true, minute),
            (true, false, minute),
            (true, true, Some(Duration::ZERO)),
            (true, true, None),
        ] {
            came.store(false, Ordering::Relaxed);
            let mut stop = Stop::on(&came, patience);
            stop.input = has_input.then(Vec::new);
            assert!(!stop.look(runs).unwrap());
            signal();
            let ended = (0..2).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                interrupted(stop.look(runs))
            });
            assert!(ended, "{runs} {has_input} {patience:?}");
        }
    }

    #[test]
    fn a_tail_gives_each_byte_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let mut tail = Tail::new(path.clone());
        assert!(tail.read().is_empty());
        fs::write(&path, "ab").unwrap();
        assert_eq!(tail.read(), b"ab");
        assert!(tail.read().is_empty());
        fs::write(&path, "abc").unwrap();
        assert_eq!(tail.read(), b"c");
    }
}
