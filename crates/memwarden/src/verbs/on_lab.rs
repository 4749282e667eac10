// SPDX-License-Identifier: MIT OR Apache-2.0
//! An experiment on the emulated machine: runs the same command in the guest, and fetches its run folder.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use memwarden_experiments::{Error, Interrupt, Progress};
use memwarden_lab::{
    Board, Cache, Clock, Flavour, Kernel, KernelChoice, LabOutcome, Machine, ModelledMemory, Source,
};
use memwarden_platform::units::{Time, parse_seconds};
use memwarden_run::{Existing, LabFacts, Partial, Recorded, Run};

use super::experiment::{Found, Target};
use super::output::errln;
use super::terminal::Bar;

/// The run folder in the guest, below the directory that is copied back.
const GUEST_FOLDER: &str = "run";

/// The file of an experiment's settings, in the guest's /host, beside the user's files.
const SETTINGS: &str = "memwarden-settings.toml";

/// Options that choose the emulated machine.
#[derive(clap::Args)]
pub struct MachineArgs {
    /// The lab's kernel: own[-FLAVOUR], stock[:NAME], or the path of a build tree [default: own if it is built, otherwise
    /// stock; on lab:PLATFORM stock, unless our patches are measured]
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<KernelChoice>,
    /// The lab's clock: counted (one ns for each instruction of each CPU, repeatable) or free [default: counted; not with
    /// lab:PLATFORM, which is always counted]
    #[arg(long, value_name = "CLOCK", value_parser = parse_clock)]
    clock: Option<Clock>,
    /// The lab's CPUs [default: 4; on lab:PLATFORM the platform's]
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
}

impl MachineArgs {
    /// The machine with these options.
    pub fn lab(&self) -> anyhow::Result<Lab> {
        let clock = self.clock.unwrap_or(Clock::Counted);
        let (kernel, wish) = match &self.kernel {
            Some(kernel) => (kernel.clone(), Wish::Named),
            None => (KernelChoice::Own(Flavour::Plain), Wish::Any),
        };
        let lab = Lab::new(Machine {
            kernel,
            clock,
            cpus: self.cpus.unwrap_or(4),
            ..machine()
        });
        Ok(Lab { wish, ..lab })
    }

    /// Refuses options of the emulated machine for another target.
    pub fn check(&self, on: &Target) -> anyhow::Result<()> {
        if let Target::Lab(Some(platform)) = on {
            if self.clock.is_some() || self.cpus.is_some() {
                bail!(
                    "--on lab:{platform}: the platform sets the clock and the CPUs: leave --clock and --cpus out"
                );
            }
        }
        not_native(on, "--kernel", self.kernel.is_some())?;
        not_native(on, "--clock", self.clock.is_some())?;
        not_native(on, "--cpus", self.cpus.is_some())
    }
}

/// Refuses an option that chooses the lab's machine if the target is this machine.
pub fn not_native(on: &Target, option: &str, given: bool) -> anyhow::Result<()> {
    if !on.is_lab() && given {
        bail!("{option}: this chooses the lab's machine; add --on lab");
    }
    Ok(())
}

/// Parses the time limit of an emulated machine's run.
pub fn parse_limit(text: &str) -> Result<Duration, String> {
    let time = parse_seconds(text).map_err(|error| error.to_string())?;
    if time < Time::ms(1000) {
        return Err("give a time of at least 1s, such as 90s or 30m".into());
    }
    Ok(time.duration())
}

fn parse_clock(text: &str) -> Result<Clock, String> {
    match text {
        "counted" => Ok(Clock::Counted),
        "free" => Ok(Clock::Free),
        _ => Err("give counted or free".into()),
    }
}

/// A machine for an experiment. The output of its command is hidden, as the host prints the same.
pub fn machine() -> Machine {
    Machine {
        live: false,
        ..Machine::default()
    }
}

/// The kernel that an experiment needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// The machine's default.
    Named,
    /// Debian's on a platform, otherwise as [`Self::Patched`].
    Any,
    /// The lab's own with our patches; Debian's until that is built.
    Patched,
    /// The lab's own, built first if necessary.
    PatchedOnly,
}

/// The emulated machine for an experiment, with the notes for its report.
pub struct Lab {
    machine: Machine,
    notes: Vec<String>,
    wish: Wish,
    prefetcher: bool,
}

impl Lab {
    fn new(machine: Machine) -> Self {
        Self {
            machine,
            notes: Vec::new(),
            wish: Wish::Named,
            prefetcher: true,
        }
    }

    /// The default machine.
    pub fn usual() -> Self {
        Self::new(machine())
    }

    pub fn on_board(mut self, board: Board) -> Self {
        self.machine.board = board;
        self
    }

    /// Our patches measure better than modules alone, also on a platform.
    pub fn with_our_patches(mut self) -> Self {
        if self.wish == Wish::Any {
            self.wish = Wish::Patched;
        }
        self
    }

    /// Our patches are required, as they are what is measured.
    pub fn with_our_patches_only(mut self) -> Self {
        if self.wish == Wish::Any {
            self.wish = Wish::PatchedOnly;
        }
        self
    }

    /// If it gets a platform's caches, switches their prefetcher off.
    pub fn without_prefetcher(mut self) -> Self {
        self.prefetcher = false;
        self
    }

    /// With the caches, the memory and the CPUs of a modelled platform, if one is named.
    pub fn on_platform(mut self, platform: Option<&str>) -> anyhow::Result<Self> {
        if let Some(name) = platform {
            let mut memory = ModelledMemory::find(name)?;
            if !self.prefetcher {
                memory = memory.without_prefetcher();
                self.notes
                    .push(format!("The prefetcher of the platform {name} is off."));
            }
            let modelled = Machine::modelled(memory);
            let kernel = if self.wish == Wish::Any {
                self.wish = Wish::Named;
                modelled.kernel
            } else {
                self.machine.kernel
            };
            self.machine = Machine {
                kernel,
                clock: modelled.clock,
                cpus: modelled.cpus,
                modelled: modelled.modelled,
                ..self.machine
            };
        }
        Ok(self)
    }

    /// With files and folders of this machine, which appear in the guest below /host.
    pub fn with(mut self, files: &[PathBuf]) -> Self {
        self.machine.with.extend_from_slice(files);
        self
    }

    /// With another wall-clock limit.
    pub fn within(mut self, limit: Option<Duration>) -> Self {
        self.machine.timeout = limit.unwrap_or(self.machine.timeout);
        self
    }

    /// Takes Debian's kernel if ours would have to be built first, and reports that.
    fn choose_kernel(&mut self) -> anyhow::Result<()> {
        let either = matches!(self.wish, Wish::Any | Wish::Patched);
        if !either || self.machine.board != Board::Virt {
            return Ok(());
        }
        let (cache, source) = (Cache::of_user()?, Source::find()?);
        if !Kernel::own_is_built(&cache, &source, Flavour::Plain) {
            self.machine.kernel = KernelChoice::default();
            errln!(
                "lab: taking Debian's kernel, without mymem_rust and the hooks of our patches; `memwarden lab kernel` builds \
                 one with them, in 6 to 20 minutes"
            );
            self.notes.push(
                "This ran on Debian's kernel, because the lab's own (`memwarden lab kernel`) was not built: mymem_rust \
                 and the hooks of our patches are missing."
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Runs `command` there with these settings, and moves the run folder to its place here.
    pub fn carry_out(
        mut self,
        command: &str,
        settings: &str,
        out: Option<&Path>,
        existing: Existing,
    ) -> anyhow::Result<Found> {
        // Refused now, not after the measurement.
        memwarden_run::check_place(out, existing)?;
        self.choose_kernel()?;
        let carried = tempfile::tempdir().context("making a folder for the settings")?;
        let file = carried.path().join(SETTINGS);
        std::fs::write(&file, settings)
            .with_context(|| format!("writing the settings to {}", file.display()))?;
        self.machine.with.push(file);
        let mut words = vec!["memwarden".to_owned()];
        words.extend(command.split(' ').map(str::to_owned));
        words.extend(["--config".into(), format!("/host/{SETTINGS}")]);
        let mut home = run(&self.machine, words).map_err(|failed| {
            if let Some(left) = failed.left {
                left.keep(out, existing);
            }
            failed.error
        })?;
        let Recorded { run, summary, .. } = &mut home.recorded;
        for note in self.notes {
            summary.note(note);
        }
        for note in memwarden_report::notes::of_lab(run) {
            summary.note(note);
        }
        let folder = home.keep(out, existing)?;
        Ok((folder, home.recorded.summary))
    }
}

/// Boots `machine`, runs `command` with a run folder to write to, and returns the run. A signal ends the command, as it
/// would here.
pub fn run(machine: &Machine, command: Vec<String>) -> Result<Home, Failed> {
    // For the exit code.
    Interrupt::catch().map_err(anyhow::Error::from)?;
    let carried = tempfile::tempdir().context("making a folder for the results")?;
    let results = carried.path().join("results");
    let mut command: Vec<OsString> = command.into_iter().map(Into::into).collect();
    command.extend(["--out", GUEST_FOLDER].map(Into::into));
    let mut bar = Bar::new();
    let outcome = machine
        .run_with_steps(&command, Some(&results), &mut |step| {
            if machine.talkative {
                bar.step(step.done, step.total, &step.what);
            }
        })
        .map_err(anyhow::Error::from)?;
    let folder = results.join(GUEST_FOLDER);
    let complete = folder.is_dir();
    let checked = match outcome.interrupted && !complete && outcome.kernel_faults.is_empty() {
        true => Err(Error::Interrupted.into()),
        false => check(&outcome, &command, complete),
    };
    let of_this_machine = |run: &mut Run| {
        run.command_line = memwarden_run::command_line();
        run.target = "lab".into();
        run.lab = Some(facts(&outcome));
    };
    if let Err(error) = checked {
        let partial = Partial::read(&folder.with_extension("partial"));
        let partial = partial.unwrap_or_else(|error| {
            errln!("memwarden: what was measured until then cannot be kept: {error}");
            None
        });
        let left = partial.map(|mut partial| {
            of_this_machine(&mut partial.run);
            Box::new(Left { partial, carried })
        });
        return Err(Failed { error, left });
    }
    let mut recorded = Recorded::read(&folder).map_err(anyhow::Error::from)?;
    of_this_machine(&mut recorded.run);
    recorded.summary.target = "lab".into();
    Ok(Home {
        recorded,
        outcome,
        _carried: carried,
    })
}

/// Why there is no complete run.
#[derive(Debug)]
pub struct Failed {
    pub error: anyhow::Error,
    /// What was measured until then.
    pub left: Option<Box<Left>>,
}

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Self {
        Self { error, left: None }
    }
}

/// An incomplete run fetched from the guest.
#[derive(Debug)]
pub struct Left {
    pub partial: Partial,
    carried: tempfile::TempDir,
}

impl Left {
    /// Keeps it as the `DIR.partial` of `out`; if that fails, says where it is instead.
    fn keep(self, out: Option<&Path>, existing: Existing) {
        if let Err(error) = self.partial.adopt(out, existing) {
            let _ = self.carried.keep();
            errln!(
                "memwarden: {error}: the incomplete run is in {}",
                self.partial.directory.display()
            );
        }
    }
}

/// A run fetched from the guest.
pub struct Home {
    /// The run; it can be extended.
    pub recorded: Recorded,
    /// The boot in which it was made.
    pub outcome: LabOutcome,
    _carried: tempfile::TempDir,
}

impl Home {
    /// Moves the run folder to its place.
    pub fn keep(&self, out: Option<&Path>, existing: Existing) -> anyhow::Result<PathBuf> {
        let folder = self.recorded.adopt(out, existing)?;
        // The guest's log is part of the evidence: it has the kernel's messages.
        let _ = std::fs::copy(&self.outcome.console, folder.join("console.log"));
        Ok(folder)
    }
}

/// Checks the guest's outcome. A run folder gets its final name when the command has run to its end; an exit code other
/// than 0 is then its verdict on the figures, which the host repeats.
fn check(outcome: &LabOutcome, command: &[OsString], complete: bool) -> anyhow::Result<()> {
    if let Some(fault) = outcome.kernel_faults.first() {
        bail!(
            "the guest's kernel complained: {fault}; its log is in {}",
            outcome.console.display()
        );
    }
    match outcome.exit_code {
        Some(0) => Ok(()),
        Some(_) if complete => Ok(()),
        Some(code) => {
            let said = outcome
                .stderr
                .lines()
                .rev()
                .find(|line| !line.trim().is_empty());
            let said = said
                .unwrap_or("it said nothing")
                .trim_start_matches("memwarden: ");
            bail!(
                "in the guest: {said} (exit code {code} of `{}`)",
                command.join(OsStr::new(" ")).to_string_lossy()
            )
        }
        None => bail!(
            "the guest did not report how the command ended; its log is in {}",
            outcome.console.display()
        ),
    }
}

fn facts(outcome: &LabOutcome) -> LabFacts {
    let lab = &outcome.lab;
    let mut facts = LabFacts {
        kernel: lab.kernel.clone(),
        machine: lab.machine.to_owned(),
        qemu_version: lab.qemu.clone(),
        clock: serde_json::to_value(lab.clock)
            .ok()
            .and_then(|clock| Some(clock.as_str()?.to_owned()))
            .unwrap_or_default(),
        ..LabFacts::default()
    };
    if let Ok(serde_json::Value::Object(all)) = serde_json::to_value(lab) {
        let known = ["kernel", "machine", "qemu", "clock"];
        facts.more = all
            .into_iter()
            .filter(|(key, _)| !known.contains(&key.as_str()))
            .collect();
    }
    facts.more.insert("boot_s".into(), outcome.boot_s.into());
    facts
}
