// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard`: starts, sets, shows and stops the regulator.

mod bench;
pub mod budgets;
mod calibrate;
mod check;
mod enter;
mod events;
mod group;
pub mod serve;
pub mod show;
mod summary;
mod supervise;

/// What the verbs print with `--json`.
#[cfg(feature = "host")]
pub mod printed {
    pub use super::calibrate::Printed as Calibrated;
    pub use super::events::Printed as Events;
    pub use super::supervise::Printed as Run;
}

use crate::verbs::output::{errln, outln};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Subcommand, ValueEnum};
use memwarden_experiments::{Interrupt, KnownTraffic};
use memwarden_guard::units::parse_period_us;
use memwarden_guard::{
    Backend, BestEffort, Error, FairServersOn, Meaning, ModuleSource, Regulator, StartOptions,
    meaning, running, running_has, self_test, throttle_class,
};

use memwarden_platform::Root;
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::units::parse_whole_rate;

use crate::verbs::numbers::bytes_in;
use budgets::Budgets;

/// Give each core a budget of memory traffic, and throttle cores that exceed it
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  memwarden guard start && memwarden guard set --mb 1000,100,100,100\n  memwarden guard run --cpus 2-3 --mb 200 -- make"
)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Load the regulator; nothing is throttled before budgets are set
    #[command(after_help = "Examples:\n  memwarden guard start\n  \
        memwarden guard start --backend user --event cache-misses --cpus 1-3")]
    Start(Start),
    /// Set budgets: MB/s (2^20 bytes) a core, in core order
    #[command(
        after_help = "Examples:\n  memwarden guard set --mb 1000,100,100,100\n  \
        memwarden guard set --mb max,200"
    )]
    Set(Budgets),
    /// Set what happens when all budgets are used, and whether cores donate unused budget
    #[command(
        after_help = "Examples:\n  memwarden guard mode --best-effort spare\n  \
        memwarden guard mode --best-effort proportional --reclaim on"
    )]
    Mode(Mode),
    /// Settings and statistics
    #[command(after_help = "Examples:\n  memwarden guard show\n  \
        memwarden guard show --json")]
    Show {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Unload the regulator; every core runs free
    #[command(after_help = "Examples:\n  memwarden guard stop\n  \
        memwarden guard show && memwarden guard stop")]
    Stop,
    /// Run a command under these budgets and restore everything afterwards; returns the command's exit code, summary on
    /// standard error
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<Run>),
    #[command(hide = true)]
    UserRegulator { arguments: Vec<String> },
    #[command(hide = true)]
    Enter(enter::Args),
    /// Measure the memory's worst-case bandwidth, and set it in the running guard
    #[command(after_help = "Examples:\n  memwarden guard calibrate\n  \
        memwarden guard calibrate --json")]
    Calibrate(calibrate::Args),
    /// Serve the guard's figures over HTTP, for Prometheus and for browsers, and keep a budget file applied
    Serve(serve::Args),
    /// Check a budget file and exit
    #[command(
        after_help = "Examples:\n  memwarden guard check /etc/memwarden/guard.toml\n  \
        memwarden guard check guard.toml && memwarden guard serve --config guard.toml"
    )]
    Check(check::Args),
    /// List the known events that count memory traffic, by processor
    #[command(after_help = "Examples:\n  memwarden guard events\n  \
        memwarden guard events cortex-a76")]
    Events(events::Args),
    /// Measure the guard's accuracy, reaction time and overhead
    Bench(bench::Args),
}

#[derive(clap::Args)]
struct Start {
    /// Regulate only these CPUs, such as 1-3; the others get no counter, no thread and no timer [default: all]
    #[arg(long, value_name = "LIST", value_parser = some_cpus)]
    cpus: Option<CpuSet>,
    #[command(flatten)]
    options: Options,
}

#[derive(Clone, Copy, ValueEnum)]
enum BackendName {
    /// The module if it is loaded or can be loaded, otherwise user space
    Auto,
    /// The kernel module memguard
    Module,
    /// User space: no module, one real-time thread for each core
    User,
}

#[derive(clap::Args)]
struct Options {
    /// The regulator; auto uses the best available one
    #[arg(long, value_enum, default_value = "auto")]
    backend: BackendName,
    /// Event to count: a name (armv8, nehalem, cache-misses, page-faults, ...; see guard events), or a raw code such as
    /// 0x17 or 0x1b7:config1=0x10800, or the sum of two (0x4843+0xff72); if CPUs differ, EVENT@FIRST-LAST,...; auto is each
    /// processor's own event for memory traffic [default: auto]
    #[arg(long, value_name = "EVENT")]
    event: Option<String>,
    /// Event that counts write-backs: a name, or a raw code such as 0x18; if CPUs differ, EVENT@FIRST-LAST,...
    #[arg(long, value_name = "CODE")]
    write_event: Option<String>,
    /// One budget for reads and write-backs together, as a DRAM channel sees them: each budget limits their sum
    #[arg(long)]
    combined: bool,
    /// Fail if the event isn't memory traffic (such as page-faults and cycles)
    #[arg(long)]
    require_memory_event: bool,
    /// Length of a period, such as 1ms or 500us [default: 1ms]
    #[arg(long, value_name = "TIME", value_parser = period)]
    period: Option<u64>,
    /// Bytes that one event stands for: bytes, or with a unit (4K) [default: a cache line; for page-faults a page]
    #[arg(long, value_name = "N", value_parser = bytes_in(1..=1 << 20), allow_negative_numbers = true)]
    bytes_per_event: Option<u64>,
    /// Worst-case bandwidth of the memory: MB/s (2^20 bytes a second), or with a unit (1G); see guard calibrate
    #[arg(long, value_name = "RATE", value_parser = parse_whole_rate, allow_negative_numbers = true)]
    maxbw: Option<u64>,
    /// Don't count the kernel's own traffic
    #[arg(long)]
    user_only: bool,
    /// The kernel module's file [default: the installed one]
    #[arg(long, value_name = "PATH")]
    module: Option<PathBuf>,
    /// Skip the self-test, which proves that every core is counted and throttled
    #[arg(long)]
    no_self_test: bool,
}

#[derive(clap::Args)]
struct Mode {
    /// When all active cores have used their budgets: wait, run unthrottled, or begin a new period
    #[arg(long, value_enum, required_unless_present = "reclaim")]
    best_effort: Option<BestEffortName>,
    /// Cores donate budget that they won't need, and other cores reclaim it
    #[arg(long, value_enum)]
    reclaim: Option<Switch>,
}

#[derive(Clone, Copy, ValueEnum)]
enum BestEffortName {
    /// Every core waits for the next period
    None,
    /// All cores run unthrottled until the period ends
    Spare,
    /// A new period begins at once
    Proportional,
}

#[derive(Clone, Copy, ValueEnum)]
enum Switch {
    On,
    Off,
}

const RUN_EXAMPLES: &str = "Examples:
  memwarden guard run --mb 1000,100 -- make             budgets of CPU0 and CPU1
  memwarden guard run --cpus 2-3 --mb 200 -- make       on CPU2 and CPU3
  memwarden guard run --cgroup batch --mb 200 -- make   in a group, with a total";

#[derive(clap::Args)]
struct Run {
    #[command(flatten)]
    budgets: Budgets,
    /// Run the command on these cores, such as 2-3; the budgets apply to them in order, or one budget to each of them
    #[arg(long, value_name = "LIST", conflicts_with = "cpu", value_parser = some_cpus)]
    cpus: Option<CpuSet>,
    /// Give the budget to a control group (cgroup v2), and run the command in it: a directory, absolute or below the
    /// mount point of cgroup2; created if missing, and then removed at the end
    #[arg(long, value_name = "PATH", conflicts_with_all = ["cpu", "weights", "percent", "write_mb", "write_event", "combined", "maxbw", "module"])]
    cgroup: Option<PathBuf>,
    /// How the group is stopped when it has used its budget
    #[arg(long, value_enum, default_value = "freezer", requires = "cgroup")]
    stop_with: group::StopWithName,
    /// Print the summary as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    options: Options,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn some_cpus(text: &str) -> Result<CpuSet, String> {
    let cpus: CpuSet = text
        .parse()
        .map_err(|error: memwarden_platform::Error| error.to_string())?;
    if cpus.is_empty() {
        return Err("name at least one CPU, such as 2-3".into());
    }
    Ok(cpus)
}

fn period(text: &str) -> Result<u64, String> {
    parse_period_us(text).map_err(|error| error.to_string())
}

/// Runs `memwarden guard`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::Start(args) => start(&args),
        Action::Set(args) => args.set(running()?.as_mut()),
        Action::Mode(args) => mode(&args),
        Action::Show { json } => show::show(running()?.as_ref(), json),
        Action::Stop => stop(),
        Action::UserRegulator { arguments } => {
            memwarden_guard::user::run_hidden_verb(&arguments)?;
            Ok(ExitCode::SUCCESS)
        }
        Action::Enter(args) => enter::run(&args),
        Action::Run(args) => supervise::run(&args),
        Action::Calibrate(args) => calibrate::run(&args),
        Action::Serve(args) => serve::run(&args),
        Action::Check(args) => check::run(&args),
        Action::Events(args) => events::run(&args),
        Action::Bench(args) => bench::run(&args),
    }
}

/// What the scheduler lets through a throttle of this guard, if it does.
fn class_warning(guard: &dyn Regulator) -> Option<String> {
    let root = Root::system();
    match guard.name() {
        "module" => throttle_class::warning(&root),
        "user" => FairServersOn::find(&root).map(|on| on.to_string()),
        _ => None,
    }
}

/// Prints that warning.
fn say_class(guard: &dyn Regulator) {
    if let Some(warning) = class_warning(guard) {
        errln!("memwarden: {warning}");
    }
}

/// Stops the running guard and those of groups. Also restores what a killed regulator in user space left behind.
fn stop() -> anyhow::Result<ExitCode> {
    let groups = memwarden_guard::group::put_back_all()?;
    let mut guard = running().or_else(|error| match error {
        Error::NotRunning | Error::Regulator(_) => Backend::User.regulator(None, false),
        error => Err(error),
    })?;
    match guard.stop() {
        // Only groups had a regulator.
        Err(Error::NotRunning | Error::Regulator(_)) if groups > 0 => {}
        outcome => outcome?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Options {
    /// The regulator; with `tied` it ends with this process.
    fn guard(&self, tied: bool) -> Result<Box<dyn Regulator>, Error> {
        let backend = match self.backend {
            BackendName::Auto => Backend::Auto,
            BackendName::Module => Backend::Module,
            BackendName::User => Backend::User,
        };
        let module = self.module.clone().map(ModuleSource::Path);
        backend.regulator(module, tied)
    }

    fn start_options(&self) -> StartOptions {
        StartOptions {
            event: self.event.clone(),
            write_event: self.write_event.clone(),
            combined: self.combined,
            bytes_per_event: self.bytes_per_event,
            maxbw_mib_s: self.maxbw,
            user_only: self.user_only,
            period_us: self.period.unwrap_or(StartOptions::default().period_us),
            cpus: None,
        }
    }

    /// Refuses an event that isn't memory traffic, if requested.
    fn check(&self, meaning: &Meaning) -> Result<(), Error> {
        if self.require_memory_event {
            meaning.require_memory_traffic()?;
        }
        Ok(())
    }

    /// Refuses such an event before `guard` is started with `options`, if the event is known by then.
    fn check_start(&self, guard: &dyn Regulator, options: &StartOptions) -> Result<(), Error> {
        if !self.require_memory_event {
            return Ok(());
        }
        let meaning = guard.foretell(options);
        meaning.map_or(Ok(()), |meaning| meaning.require_memory_traffic())
    }

    /// Prints what is counted and what cannot be held, before any other output.
    fn say(&self, meaning: &Meaning) -> anyhow::Result<()> {
        self.check(meaning)?;
        errln!("memwarden: {}", meaning.text);
        Ok(())
    }

    /// Checks the options against a guard that is already running, which keeps its event.
    fn suit(&self, guard: &dyn Regulator) -> anyhow::Result<()> {
        let control = guard.settings()?.control;
        let backend = match self.backend {
            BackendName::Auto => None,
            BackendName::Module => Some("module".to_owned()),
            BackendName::User => Some("user".to_owned()),
        };
        running_has("--backend", backend, guard.name())?;
        self.start_options().suit(&control)?;
        let period = self.period.map(|period_us| period_us.to_string());
        running_has("--period (us)", period, &control.period_us.to_string())?;
        Ok(())
    }
}

fn start(args: &Start) -> anyhow::Result<ExitCode> {
    let mut guard = args.options.guard(false)?;
    if let Ok(other) = running() {
        let control = other.settings()?.control;
        let (event, period_us) = (control.event, control.period_us);
        return Err(Error::AlreadyRunning { event, period_us }.into());
    }
    if let Some(cpus) = &args.cpus {
        let present = memwarden_platform::cpus::present()?;
        if let Some(cpu) = cpus.iter().find(|cpu| !present.contains(*cpu)) {
            bail!("--cpus {cpus}: there is no CPU {cpu} on this machine (it has {present})");
        }
        let online = memwarden_platform::cpus::online()?;
        if !cpus.iter().any(|cpu| online.contains(cpu)) {
            bail!("--cpus {cpus}: none of these CPUs is online (online: {online})");
        }
    }
    let options = StartOptions {
        cpus: args.cpus.clone(),
        ..args.options.start_options()
    };
    args.options.check_start(guard.as_ref(), &options)?;
    // Caught from here on, so that the guard is stopped again after any signal.
    let interrupt = Interrupt::catch()?;
    guard.start(&options)?;
    let said = guard
        .settings()
        .map_err(anyhow::Error::from)
        .and_then(|settings| args.options.say(&meaning(&settings.control)))
        .inspect(|()| say_class(guard.as_ref()));
    let proven = said.and_then(|()| {
        if args.options.no_self_test {
            return Ok(());
        }
        let writes = args.options.write_event.is_some();
        prove(guard.as_mut(), writes, &interrupt)
    });
    let proven = proven.and_then(|()| Ok(interrupt.check()?));
    if let Err(error) = proven {
        guard.stop()?;
        return Err(error);
    }
    let control = guard.settings()?.control;
    let both = if control.combined {
        ", reads and write-backs together"
    } else {
        ""
    };
    outln!(
        "guard: {}, event {} ({} bytes{both}), period {} us, cores {}; no budgets yet: memwarden guard set --mb ...",
        guard.name(),
        control.event,
        control.bytes_per_event,
        control.period_us,
        control.online
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Proves that every core is regulated; with `writes`, also its write-backs. Fails if a signal comes meanwhile.
fn prove(guard: &mut dyn Regulator, writes: bool, interrupt: &Interrupt) -> anyhow::Result<()> {
    let control = guard.settings()?.control;
    let mut traffic = KnownTraffic::for_event(&control.event, interrupt);
    let cpus: Vec<usize> = control.online.iter().collect();
    let findings = self_test::run(guard, &cpus, &mut traffic)?;
    for finding in findings {
        let of_last_level = finding.of_last_level.map_or(String::new(), |share| {
            format!(" and {:.0} % of what the last level had", share * 100.0)
        });
        errln!(
            "CPU{}: {} bytes moved, {} counted{of_last_level}; over a budget of {} events a period it stopped in {} periods",
            finding.cpu,
            finding.moved_bytes,
            finding.counted_bytes,
            finding.budget_events,
            finding.throttled_periods
        );
        if let Some(note) = finding.note_of_written() {
            errln!("CPU{}: {note}", finding.cpu);
        }
        if let Some(why) = finding.writes_refused {
            if writes {
                bail!("{why}");
            }
            errln!("memwarden: {why}; reads are regulated: give write-backs no budget");
        }
        if let Some(written) = &finding.written {
            errln!(
                "CPU{}: {} bytes written, {} counted as {}; over a budget of a tenth it stopped in {} periods",
                finding.cpu,
                written.moved_bytes,
                written.counted_bytes,
                if control.combined {
                    "lines that are fetched and written back"
                } else {
                    "write-backs"
                },
                written.throttled_periods
            );
        }
    }
    Ok(())
}

fn mode(args: &Mode) -> anyhow::Result<ExitCode> {
    let best_effort = args.best_effort.map(|name| match name {
        BestEffortName::None => BestEffort::None,
        BestEffortName::Spare => BestEffort::Spare,
        BestEffortName::Proportional => BestEffort::Proportional,
    });
    let reclaim = args.reclaim.map(|switch| matches!(switch, Switch::On));
    if best_effort.is_none() && reclaim.is_none() {
        bail!("guard mode: give --best-effort, --reclaim or both");
    }
    running()?.set_mode(best_effort, reclaim)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn bad_input_is_refused_before_anything_is_touched() {
        for (line, expected) in [
            ("start --period 5", "no unit"),
            ("start --period 1s1", "no unit"),
            ("start --period 10us", "between 50us and 1000ms"),
            ("start --period 2s", "between 50us and 1000ms"),
            ("start --bytes-per-event 0", "a size cannot be 0"),
            ("start --bytes-per-event -1", "-1"),
            ("start --maxbw 0", "a rate cannot be 0"),
            ("start --backend kernel", "kernel"),
            ("set", "required"),
            ("set --mb 0", "budget `0`"),
            ("set --mb 100,,1", "budget ``"),
            ("set --mb 1e3", "budget `1e3`"),
            ("set --mb 100 --weights 1", "cannot be used with"),
            ("set --cpu x --mb 1", "--cpu"),
            ("set --cpu 1", "required"),
            ("mode", "required"),
            ("mode --best-effort fair", "fair"),
            ("mode --reclaim yes", "yes"),
            ("run --mb 100", "COMMAND"),
            ("run -- true", "required"),
            ("run --cpus 3-2 --mb 1 -- true", "runs backwards"),
            ("run --cpus x --mb 1 -- true", "not a CPU number"),
            ("run --cpus  --mb 1 -- true", "at least one CPU"),
            ("run --cpus 1 --cpu 1 --mb 1 -- true", "cannot be used with"),
            ("run --cgroup a --weights 1 -- true", "cannot be used with"),
            ("run --cgroup a --write-mb 1 -- true", "cannot be used with"),
            (
                "run --cgroup a --mb 1 --module m -- true",
                "cannot be used with",
            ),
            ("run --cgroup a --mb 1 --stop-with signal -- true", "signal"),
            ("run --stop-with freezer --mb 1 -- true", "--cgroup"),
            ("run --cgroup a --mb 1", "COMMAND"),
            ("show --xml", "--xml"),
            ("stop now", "now"),
            ("serve --listen here", "here"),
            ("serve --listen 127.0.0.1", "127.0.0.1"),
            ("check", "FILE"),
        ] {
            let words = std::iter::once("guard").chain(line.split(' '));
            let message = match Cli::try_parse_from(words) {
                Ok(_) => panic!("`{line}` was taken"),
                Err(error) => error.to_string(),
            };
            assert!(message.contains(expected), "`{line}`: {message}");
        }
    }
}
