// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden lab`: the emulated machine on which the kernel modules are tested.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use anyhow::bail;
use clap::{Parser, Subcommand, ValueEnum};
use memwarden_experiments::Interrupt;
use memwarden_lab::{
    Architecture, Board, BuiltEmulator, Cache, Check, Clock, Emulator, Flavour, GuestProgram,
    Headers, Kernel, KernelChoice, LabOutcome, Machine, Memory, ModelledMemory, STOCK, Source,
    Stock,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::interfere;
use super::on_lab::parse_limit;
use crate::verbs::output::{errln, outln};

/// Boot an emulated 4-core machine, arm64 or amd64, with a real Linux kernel and our modules
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  memwarden lab shell\n  memwarden lab run --platform raspberry-pi-3 -- memwarden doctor"
)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Boot, run one command as root in /results, and bring back the files that it writes there
    #[command(
        after_help = "The exit code is the command's; 1 with a message when the guest's \
        kernel logged a warning, an oops, a stall or the like.\n\
        In the guest: memwarden, latency, bandwidth, busybox; modules memguard, mymem, swdma, cftu, copytrace, and with\n\
        an own kernel mymem_rust, mymem_test and dmatest.\n\
        Examples:\n  memwarden lab run -- memwarden doctor\n  memwarden lab run --clock free -- sh -c 'modprobe memguard && dmesg | tail'\n  \
        memwarden lab run --machine amd64 -- uname -rm"
    )]
    Run(RunArgs),
    /// Fetch and build everything that such a run needs, and boot nothing
    #[command(
        after_help = "Later runs with the same options then need no network and no long build. A first preparation\n\
        takes up to ten minutes, most of them for the emulator.\n\
        Examples:\n  memwarden lab prepare\n  memwarden lab prepare --platform raspberry-pi-3 --json"
    )]
    Prepare(PrepareArgs),
    /// Boot to a shell on this terminal (leave it with exit, or kill it with Ctrl-A X)
    #[command(after_help = "Examples:\n  memwarden lab shell\n  \
        memwarden lab shell --platform raspberry-pi-3")]
    Shell(ShellArgs),
    /// The same as `memwarden interfere --on lab`
    #[command(disable_help_flag = true)]
    Interfere {
        /// Options of interfere
        #[arg(
            allow_hyphen_values = true,
            trailing_var_arg = true,
            value_name = "OPTIONS"
        )]
        options: Vec<OsString>,
    },
    /// Build the kernel modules against Debian's headers and our own kernel; every warning is an error
    #[command(after_help = "Examples:\n  memwarden lab modules\n  \
        memwarden lab modules --only arm64")]
    Modules(ModulesArgs),
    /// Build the lab's own kernel: Linux 6.12 with Rust and our patches (cached)
    #[command(
        after_help = "Then: memwarden lab run --kernel own -- COMMAND (own-debug: the debug flavour).\n\
        The flavour raspberry-pi-3 is own-raspberry-pi-3 there. With --linux the source tree is not changed, our\n\
        patches are not applied, and --kernel takes the path of the build tree that is printed.\n\
        Examples:\n  memwarden lab kernel\n  memwarden lab kernel --flavour debug"
    )]
    Kernel(KernelArgs),
    /// Build the lab's own emulator: QEMU with our patches (cached)
    #[command(
        after_help = "The counted clock needs it; memwarden lab run also builds it if it is missing.\n\
        Examples:\n  memwarden lab qemu\n  memwarden lab qemu --json"
    )]
    Qemu {
        /// Print the outcome as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the cached files and their size
    #[command(after_help = "Examples:\n  memwarden lab status\n  \
        memwarden lab status --json")]
    Status {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove all cached files, unless a run fetches or builds some
    #[command(after_help = "Examples:\n  memwarden lab clean\n  \
        memwarden lab status && memwarden lab clean")]
    Clean,
}

#[derive(clap::Args)]
struct MachineArgs {
    /// Emulated machine
    #[arg(long, value_enum, default_value = "virt")]
    machine: MachineName,
    #[arg(long, value_name = "stock[:NAME]|own[-FLAVOUR]|PATH", help = kernel_help())]
    kernel: Option<KernelChoice>,
    /// The guest's clock
    #[arg(long, value_enum, default_value = "counted")]
    clock: ClockName,
    /// CPUs (1 to 32; zcu102: 1 to 4) [default: 4; with --platform as many as it has]
    #[arg(long, allow_negative_numbers = true)]
    cpus: Option<u32>,
    /// Use the caches, the memory and the PMU of a modelled platform, such as raspberry-pi-3 (see sim platforms)
    #[arg(long, value_name = "PLATFORM", value_parser = parse_platform)]
    platform: Option<Box<ModelledMemory>>,
    /// Memory (256M to 64G; zcu102: up to 2G)
    #[arg(long, default_value = "1G")]
    memory: Memory,
    /// CPUs with MTE, memory with tags (virt without a platform)
    #[arg(long)]
    mte: bool,
    /// Kernel parameters in addition to the lab's, such as `usercopy.dma=shared usercopy_region=32M`
    #[arg(
        long,
        value_name = "PARAMETERS",
        default_value = "",
        hide_default_value = true
    )]
    append: String,
    /// Copy this file or folder into the guest, below /host (repeatable)
    #[arg(long, value_name = "PATH")]
    with: Vec<PathBuf>,
    /// Install this Debian package in the guest, with its dependencies (repeatable), such as linux-perf
    #[arg(long, value_name = "NAME", value_parser = parse_package)]
    package: Vec<String>,
    /// The guest's memwarden: compile it, none, or the path of a static program of the machine's architecture
    #[arg(long, value_name = "build|none|PATH", default_value = "build", value_parser = parse_guest)]
    guest: GuestProgram,
}

#[derive(clap::Args)]
struct RunArgs {
    #[command(flatten)]
    machine: MachineArgs,
    /// Directory for the files that the command writes to /results [default: out/lab-N if there are any]
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Limit of the whole run; time in which the emulator waits for a core of a busy host does not count
    #[arg(long, default_value = "30m", value_parser = parse_limit)]
    timeout: Duration,
    /// Print the outcome as JSON (including the command's output) instead of the command's output
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(clap::Args)]
struct PrepareArgs {
    #[command(flatten)]
    machine: MachineArgs,
    /// Print the machine as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct ShellArgs {
    #[command(flatten)]
    machine: MachineArgs,
    /// Directory for the files that the shell leaves in /results [default: out/lab-N if there are any]
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
}

#[derive(clap::Args)]
struct ModulesArgs {
    /// Only the combinations whose name contains this, such as `arm64`, `6.1`, `rt`
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
    /// Build also what was built cleanly before from the same sources
    #[arg(long)]
    again: bool,
}

#[derive(clap::Args)]
struct KernelArgs {
    /// Purpose of the kernel
    #[arg(long, value_enum, default_value = "plain")]
    flavour: FlavourName,
    /// Build this Linux source tree instead of Debian's source
    #[arg(long, value_name = "DIR")]
    linux: Option<PathBuf>,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum FlavourName {
    /// For speed
    Plain,
    /// With checkers of memory, arithmetic and locks: KASAN, kmemleak, UBSAN, lockdep
    Debug,
    /// For a real Raspberry Pi 3 (docs/boards/raspberry-pi-3.md)
    #[value(name = "raspberry-pi-3")]
    RaspberryPi3,
}

#[derive(Clone, Copy, ValueEnum)]
enum MachineName {
    /// QEMU's own machine, with a PMU; any number of CPUs
    Virt,
    /// A Raspberry Pi 3 (free clock, 4 CPUs, 1G)
    Raspi3b,
    /// A Xilinx ZCU102, with 16 DMA channels (1 to 4 CPUs, up to 2G)
    Zcu102,
    /// A PC with amd64 CPUs, without a PMU; any number of CPUs; Debian's kernels
    Amd64,
}

impl MachineName {
    fn board(self) -> Board {
        match self {
            Self::Virt => Board::Virt,
            Self::Raspi3b => Board::Raspi3b,
            Self::Zcu102 => Board::Zcu102,
            Self::Amd64 => Board::Amd64,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum ClockName {
    /// One ns for each instruction, on all CPUs in parallel; repeatable; builds the lab's own emulator (lab qemu), except
    /// for amd64, where CPUs take turns on Debian's
    Counted,
    /// The host's clock; faster, and on Debian's emulator
    Free,
}

/// Help of --kernel, with the names of Debian's kernels from their common list.
fn kernel_help() -> String {
    format!(
        "`stock` (Debian's 6.12), `stock:NAME` (another of Debian's: {}), `own`, `own-debug` or `own-raspberry-pi-3` \
         (see lab kernel), or the path of a kernel build tree [default: stock; for zcu102, whose DMA channels Debian's \
         cannot drive, own]",
        Stock::names()
    )
}

fn parse_platform(name: &str) -> Result<Box<ModelledMemory>, String> {
    ModelledMemory::find(name)
        .map(Box::new)
        .map_err(|error| error.to_string())
}

fn parse_package(name: &str) -> Result<String, String> {
    if memwarden_lab::is_package_name(name) {
        Ok(name.to_owned())
    } else {
        Err("give the name of a package of Debian's, such as linux-perf".into())
    }
}

fn parse_guest(text: &str) -> Result<GuestProgram, String> {
    match text {
        "build" => Ok(GuestProgram::Build),
        "none" => Ok(GuestProgram::None),
        "" => Err("give `build`, `none` or the path of a static program".to_owned()),
        path => Ok(GuestProgram::File(PathBuf::from(path))),
    }
}

impl MachineArgs {
    fn machine(&self) -> Machine {
        let usual = match &self.platform {
            Some(platform) => Machine::modelled((**platform).clone()),
            None => Machine::default(),
        };
        let clock = match self.clock {
            ClockName::Counted => Clock::Counted,
            ClockName::Free => Clock::Free,
        };
        let board = self.machine.board();
        Machine {
            board,
            kernel: self
                .kernel
                .clone()
                .unwrap_or_else(|| board.default_kernel()),
            clock,
            cpus: self.cpus.unwrap_or(usual.cpus),
            memory: self.memory,
            mte: self.mte,
            with: self.with.clone(),
            packages: self.package.iter().cloned().collect(),
            append: self.append.clone(),
            guest: self.guest.clone(),
            ..usual
        }
    }
}

/// Runs `memwarden lab ...`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Run(args) => run_command(&args),
        Verb::Prepare(args) => prepare(&args),
        Verb::Shell(args) => shell(&args),
        Verb::Interfere { options } => interfere(options),
        Verb::Modules(args) => modules(&args),
        Verb::Kernel(args) => kernel(&args),
        Verb::Qemu { json } => qemu(json),
        Verb::Status { json } => status(json),
        Verb::Clean => clean(),
    }
}

fn run_command(args: &RunArgs) -> anyhow::Result<ExitCode> {
    // For the exit code; the machine ends in order.
    Interrupt::catch()?;
    let mut machine = args.machine.machine();
    machine.timeout = args.timeout;
    machine.live = !args.json;
    let outcome = machine.run(&args.command, args.results.as_deref())?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&outcome)?)?;
    }
    exit_code(&outcome, machine.talkative && !args.json)
}

fn prepare(args: &PrepareArgs) -> anyhow::Result<ExitCode> {
    Interrupt::catch()?;
    let facts = args.machine.machine().prepare()?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&facts)?)?;
    } else {
        outln!("ready: {}, {}", facts.kernel_origin, facts.qemu)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn exit_code(outcome: &LabOutcome, talkative: bool) -> anyhow::Result<ExitCode> {
    if talkative {
        if let Some(folder) = &outcome.results {
            errln!("lab: results in {}", folder.display());
        }
    }
    if let Some(first) = outcome.kernel_faults.first() {
        let more = match outcome.kernel_faults.len() - 1 {
            0 => String::new(),
            count => format!(" (and {count} more)"),
        };
        bail!(
            "the guest's kernel complained: {first}{more}; its log is in {}",
            outcome.console.display()
        );
    }
    match outcome.exit_code {
        Some(code) => Ok(ExitCode::from(code)),
        None => bail!(
            "the guest did not report how the command ended; its log is in {}",
            outcome.console.display()
        ),
    }
}

fn shell(args: &ShellArgs) -> anyhow::Result<ExitCode> {
    use std::io::IsTerminal;
    if !std::io::stdin().is_terminal() {
        bail!("lab shell needs a terminal: for a script use `memwarden lab run -- COMMAND`");
    }
    let results = args.machine.machine().shell(args.results.as_deref())?;
    if let Some(folder) = results {
        errln!("lab: results in {}", folder.display());
    }
    Ok(ExitCode::SUCCESS)
}

// `interfere`'s own command line, with the target preset.
#[derive(Parser)]
#[command(name = "memwarden lab interfere")]
struct InterfereLine {
    #[command(flatten)]
    args: interfere::Args,
}

fn interfere(options: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let words = ["memwarden lab interfere", "--on", "lab"].map(OsString::from);
    interfere::run(InterfereLine::parse_from(words.into_iter().chain(options)).args)
}

/// Name for --only of the one kernel that is no package: it has Rust and KUnit, and so additional modules.
const OWN: &str = "6.12-own-debug";

/// A kernel to build the modules against.
enum Target {
    Debian(&'static Stock, Architecture),
    Own,
}

impl Target {
    fn all() -> Vec<Self> {
        let debian = STOCK.iter().flat_map(|stock| {
            [Architecture::Amd64, Architecture::Arm64]
                .map(|architecture| Self::Debian(stock, architecture))
        });
        debian.chain([Self::Own]).collect()
    }

    fn name(&self) -> String {
        match self {
            Self::Debian(stock, architecture) => format!("{}-{architecture}", stock.name),
            Self::Own => OWN.to_owned(),
        }
    }

    /// Fetches or builds the headers if they are not cached.
    fn headers(&self, cache: &Cache, source: &Source) -> memwarden_lab::Result<Headers> {
        let say = |what: &str| errln!("lab: {what}");
        match self {
            Self::Debian(stock, architecture) => Headers::debian(cache, stock, *architecture, &say),
            Self::Own => {
                let (kernel, _) = Kernel::own(cache, source, Flavour::Debug, &say)?;
                Ok(kernel.headers().clone())
            }
        }
    }
}

/// Prints the result of a kernel's check; true if there was no problem.
fn print_check(target: &Target, check: memwarden_lab::Result<Check>) -> anyhow::Result<bool> {
    let (release, complaints, log, kept) = match check {
        Ok(check) => (check.release, check.complaints, Some(check.log), check.kept),
        Err(error) => (String::new(), vec![error.to_string()], None, false),
    };
    let verdict = match (complaints.len(), log) {
        (0, _) if kept => "ok (the same sources were built before; --again builds them)".to_owned(),
        (0, _) => "ok".to_owned(),
        (count, Some(log)) => format!("{count} complaints, see {}", log.display()),
        (_, None) => "not built".to_owned(),
    };
    outln!("{:<15} {release:<26} {verdict}", target.name())?;
    for complaint in &complaints {
        outln!("    {complaint}")?;
    }
    Ok(complaints.is_empty())
}

fn modules(args: &ModulesArgs) -> anyhow::Result<ExitCode> {
    let wanted = args.only.as_deref().unwrap_or_default();
    let (chosen, others): (Vec<_>, Vec<_>) = Target::all()
        .into_iter()
        .partition(|target| target.name().contains(wanted));
    if chosen.is_empty() {
        let names: Vec<_> = others.iter().map(Target::name).collect();
        bail!(
            "--only {wanted}: no such kernel; there are {}",
            names.join(", ")
        );
    }
    let source = Source::find()?;
    let cache = Cache::of_user()?;
    source.check(&cache)?;
    // A module has few files, so several kernels are checked in parallel; headers come one
    // by one, and results in the order of the kernels.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut failed = 0;
    std::thread::scope(|scope| {
        let mut under_way = VecDeque::new();
        let mut finish = |(target, check): (_, ScopedJoinHandle<_>)| {
            let check = check
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            failed += usize::from(!print_check(target, check)?);
            anyhow::Ok(())
        };
        for target in &chosen {
            if under_way.len() == cores {
                if let Some(first) = under_way.pop_front() {
                    finish(first)?;
                }
            }
            let headers = target.headers(&cache, &source);
            let (source, cache, again) = (&source, &cache, args.again);
            let check =
                scope.spawn(move || memwarden_lab::check_modules(source, &headers?, cache, again));
            under_way.push_back((target, check));
        }
        under_way.into_iter().try_for_each(finish)
    })?;
    outln!("{} built, {failed} failed", chosen.len() - failed)?;
    Ok(ExitCode::from(u8::from(failed > 0)))
}

/// The output of `lab kernel --json`.
#[derive(Serialize, JsonSchema)]
pub struct KernelOutcome {
    release: String,
    /// The path for `--kernel`.
    tree: PathBuf,
    bytes: u64,
    /// True if it was already cached.
    cached: bool,
    /// Its sources; none for a tree given by --linux.
    built: Option<memwarden_lab::Built>,
    /// Options that a tree given by --linux does not support.
    options_not_taken: Vec<String>,
}

fn kernel(args: &KernelArgs) -> anyhow::Result<ExitCode> {
    let flavour = match args.flavour {
        FlavourName::Plain => Flavour::Plain,
        FlavourName::Debug => Flavour::Debug,
        FlavourName::RaspberryPi3 => Flavour::RaspberryPi3,
    };
    let source = Source::find()?;
    let cache = Cache::of_user()?;
    source.check(&cache)?;
    let built = std::cell::Cell::new(false);
    let say = |what: &str| {
        built.set(true);
        errln!("lab: {what}");
    };
    let outcome = match &args.linux {
        None => Kernel::own(&cache, &source, flavour, &say).map(|(kernel, facts)| KernelOutcome {
            release: kernel.release.clone(),
            tree: kernel.headers().path().to_owned(),
            bytes: memwarden_lab::size_on_disk(kernel.headers().path()),
            cached: !built.get(),
            built: Some(facts),
            options_not_taken: Vec::new(),
        }),
        Some(linux) => memwarden_lab::build_tree(&cache, &source, linux, flavour, &say).and_then(
            |(tree, options_not_taken)| {
                Ok(KernelOutcome {
                    release: Kernel::built(&tree, Architecture::Arm64)?.release,
                    bytes: memwarden_lab::size_on_disk(&tree),
                    tree,
                    cached: false,
                    built: None,
                    options_not_taken,
                })
            },
        ),
    };
    let outcome = outcome?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&outcome)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    outln!("kernel {} in {}", outcome.release, outcome.tree.display())?;
    if let Some(built) = &outcome.built {
        outln!(
            "{}, {}; image {} MB, in all {} MB; {} objects in {:.0} s{}",
            built.source,
            patches(&built.patches),
            megabytes(built.image_bytes),
            megabytes(outcome.bytes),
            built.objects,
            built.build_s,
            if outcome.cached { ", cached" } else { "" }
        )?;
    }
    for option in &outcome.options_not_taken {
        errln!("memwarden: this tree does not take {option}");
    }
    Ok(ExitCode::SUCCESS)
}

/// The output of `lab qemu --json`.
#[derive(Serialize, JsonSchema)]
pub struct QemuOutcome {
    program: PathBuf,
    /// True if it was already cached.
    cached: bool,
    built: BuiltEmulator,
}

fn qemu(json: bool) -> anyhow::Result<ExitCode> {
    let source = Source::find()?;
    let cache = Cache::of_user()?;
    source.check(&cache)?;
    let was_built = std::cell::Cell::new(false);
    let say = |what: &str| {
        was_built.set(true);
        errln!("lab: {what}");
    };
    let Emulator { program, built } = Emulator::own(&cache, &source, &say)?;
    let outcome = QemuOutcome {
        program,
        cached: !was_built.get(),
        built,
    };
    if json {
        outln!("{}", serde_json::to_string_pretty(&outcome)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let built = &outcome.built;
    outln!("emulator {}", outcome.program.display())?;
    outln!(
        "{}, {}; {} MB; {} objects in {:.0} s{}",
        built.source,
        patches(&built.patches),
        megabytes(built.program_bytes),
        built.objects,
        built.build_s,
        if outcome.cached { ", cached" } else { "" }
    )?;
    Ok(ExitCode::SUCCESS)
}

fn patches(names: &[String]) -> String {
    if names.is_empty() {
        "no patches".to_owned()
    } else {
        names.join(", ")
    }
}

#[derive(Serialize, JsonSchema)]
/// A kernel of Debian.
pub struct StockStatus {
    kernel: String,
    /// The release for arm64; none if it was not fetched.
    release: Option<String>,
    /// The release for amd64.
    release_amd64: Option<String>,
}

#[derive(Serialize, JsonSchema)]
/// The cached files.
pub struct Status {
    cache: PathBuf,
    bytes: u64,
    /// Debian's kernels, by their names for --kernel.
    kernels: Vec<StockStatus>,
    entries: Vec<memwarden_lab::Entry>,
}

fn status(json: bool) -> anyhow::Result<ExitCode> {
    let cache = Cache::of_user()?;
    let entries = cache.entries();
    let status = Status {
        cache: cache.root().to_owned(),
        bytes: entries.iter().map(|entry| entry.bytes).sum(),
        kernels: STOCK
            .iter()
            .map(|stock| StockStatus {
                kernel: format!("stock:{}", stock.name),
                release: Kernel::cached_release(&cache, stock, Architecture::Arm64),
                release_amd64: Kernel::cached_release(&cache, stock, Architecture::Amd64),
            })
            .collect(),
        entries,
    };
    if json {
        outln!("{}", serde_json::to_string_pretty(&status)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if status.entries.is_empty() {
        outln!("nothing cached in {}", status.cache.display())?;
        return Ok(ExitCode::SUCCESS);
    }
    outln!("cached in {}:", status.cache.display())?;
    for entry in &status.entries {
        outln!(
            "{:>6} MB  {:<8}  {}",
            megabytes(entry.bytes),
            entry.kind,
            entry.name
        )?;
    }
    outln!("{:>6} MB  in all", megabytes(status.bytes))?;
    outln!("kernels of Debian:")?;
    for stock in &status.kernels {
        let releases: Vec<&str> = [&stock.release, &stock.release_amd64]
            .into_iter()
            .filter_map(Option::as_deref)
            .collect();
        let releases = match releases.as_slice() {
            [] => "not fetched".to_owned(),
            all => all.join(", "),
        };
        outln!("{:<15} {releases}", stock.kernel)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn clean() -> anyhow::Result<ExitCode> {
    let cache = Cache::of_user()?;
    let freed = cache.clean()?;
    outln!(
        "emptied {} ({} MB)",
        cache.root().display(),
        megabytes(freed)
    )?;
    Ok(ExitCode::SUCCESS)
}

/// MB are 10^6 bytes here, rounded up.
fn megabytes(bytes: u64) -> u64 {
    bytes.div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn bad_command_lines_get_one_clear_message() {
        for (words, expected) in [
            ("run", "required arguments were not provided"),
            ("run --", "required arguments were not provided"),
            (
                "run --machine zx81 -- true",
                "invalid value 'zx81' for '--machine <MACHINE>'",
            ),
            (
                "run --clock sun -- true",
                "invalid value 'sun' for '--clock <CLOCK>'",
            ),
            (
                "run --cpus four -- true",
                "invalid value 'four' for '--cpus <CPUS>'",
            ),
            (
                "run --cpus -1 -- true",
                "invalid value '-1' for '--cpus <CPUS>'",
            ),
            ("run --memory 3 -- true", "give a size from 256M to 64G"),
            ("run --memory=-1G -- true", "give a size from 256M to 64G"),
            (
                "run --kernel stock:2.4 -- true",
                "--kernel stock:2.4: no such kernel of Debian's; there are stock: with 6.1, 6.1-rt, 6.12, 6.12-rt, \
                 testing, testing-rt, newest, newest-rt",
            ),
            ("run --timeout 0s -- true", "give a time of at least 1s"),
            (
                "run --timeout soon -- true",
                "unknown unit (a time is seconds, or has a unit",
            ),
            ("shell --timeout 3s", "unexpected argument '--timeout'"),
            ("status extra", "unexpected argument 'extra'"),
            ("boot", "unrecognized subcommand 'boot'"),
            (
                "kernel --flavour sweet",
                "invalid value 'sweet' for '--flavour <FLAVOUR>'",
            ),
        ] {
            let Err(error) = Line::try_parse_from(["lab"].into_iter().chain(words.split(' ')))
            else {
                panic!("accepted: {words}");
            };
            assert!(error.to_string().contains(expected), "{words}: {error}");
        }
    }

    #[test]
    fn settings_that_clap_cannot_judge_are_refused_before_anything_starts() {
        for (words, expected) in [
            (
                "run --cpus 0 -- true",
                "--cpus 0: the emulated machine has 1 to 32 CPUs",
            ),
            (
                "run --cpus 99 -- true",
                "--cpus 99: the emulated machine has 1 to 32 CPUs",
            ),
            (
                "run --kernel /no/such -- true",
                "--kernel /no/such: no such folder",
            ),
            (
                "run --with /no/such -- true",
                "--with /no/such: no such file or folder",
            ),
            (
                "run --guest /no/such -- true",
                "--guest /no/such: no such file",
            ),
            (
                "run --machine raspi3b -- true",
                "--machine raspi3b: it has the free clock, 4 CPUs and 1G of memory",
            ),
            (
                "run --machine zcu102 --cpus 5 -- true",
                "--cpus 5: a zcu102 has 1 to 4 CPUs",
            ),
            (
                "run --machine zcu102 --memory 3G -- true",
                "--memory 3072M: a zcu102 has up to 2G here",
            ),
            (
                "run --machine amd64 --kernel own -- true",
                "--machine amd64: the lab's own kernels are for arm64",
            ),
            (
                "run --machine amd64 --platform raspberry-pi-3 -- true",
                "--platform raspberry-pi-3: a modelled memory is on the machine virt: leave --machine out",
            ),
            (
                "run --clock free --platform raspberry-pi-3 -- true",
                "--platform raspberry-pi-3: a modelled memory is on the counted clock: leave --clock out",
            ),
            (
                "run --mte --platform raspberry-pi-3 -- true",
                "--mte: the CPUs of the platform raspberry-pi-3 have no MTE: leave --platform out",
            ),
            (
                "run --mte --machine amd64 -- true",
                "--mte: the CPUs of the machine amd64 have no MTE: leave --machine out",
            ),
            (
                "kernel --linux /no/such",
                "--linux /no/such: no such folder",
            ),
            (
                "modules --only 5.10",
                "--only 5.10: no such kernel; there are 6.1-amd64",
            ),
        ] {
            let line = Line::try_parse_from(["lab"].into_iter().chain(words.split(' '))).unwrap();
            let said = format!("{:#}", run(line.args).unwrap_err());
            assert!(said.starts_with(expected), "{words}: {said}");
            assert!(!said.contains('\n'), "{words}: {said}");
        }
    }

    #[test]
    fn the_kernel_follows_the_machine_unless_given() {
        for (words, kernel) in [
            ("run -- true", "stock"),
            ("run --machine raspi3b -- true", "stock"),
            ("run --machine zcu102 -- true", "own"),
            ("run --machine amd64 -- true", "stock"),
            ("run --machine zcu102 --kernel stock -- true", "stock"),
            ("run --kernel own-debug -- true", "own-debug"),
            ("run --kernel stock:6.12 -- true", "stock"),
        ] {
            let line = Line::try_parse_from(["lab"].into_iter().chain(words.split(' '))).unwrap();
            let Verb::Run(args) = line.args.verb else {
                panic!("not run: {words}");
            };
            assert_eq!(
                args.machine.machine().kernel,
                kernel.parse().unwrap(),
                "{words}"
            );
        }
    }
}
