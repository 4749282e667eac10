// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard bench`: accuracy, reaction time and overhead of the guard.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use memwarden_experiments::guard_bench::{self, Event, Part, Subject};
use memwarden_experiments::{Backend, Interrupt, RunRequest};
use memwarden_platform::units::{Time, parse_seconds};
use memwarden_run::Existing;
use memwarden_run::studies::guard_bench::{Reached, Summary};

use crate::verbs::experiment::{NO_LAB_TO_END, Target, parse_machine};
use crate::verbs::numbers::count_in;
use crate::verbs::on_lab::parse_limit;
use crate::verbs::outcome;
use crate::verbs::output::errln;
use crate::verbs::terminal::Bar;

#[derive(clap::Args)]
#[command(
    after_help = "Each figure is shown with the kernel module's target; the regulator in user space is judged only by \
                  its accuracy (5 %).\n\
                  The exit code is 1 when a figure that is judged misses its target.\n\
                  Examples:\n  memwarden guard bench --backend user\n  memwarden guard bench --on lab:raspberry-pi-3"
)]
pub(super) struct Args {
    /// Target: native (this machine), lab (emulated machines, as many as the parts need) or lab:PLATFORM (the parts
    /// with real traffic, on a platform's caches, memory and PMU)
    #[arg(long, value_name = "PLACE", default_value = "native", value_parser = parse_machine)]
    on: Target,
    /// Run only this part: alone, together, hold, overhead, scaling, sharing or pmu
    #[arg(long, value_name = "PART", required_if_eq("on", "native"))]
    part: Option<Part>,
    /// The regulator (in the lab, several to compare): module, user
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "module"
    )]
    backend: Vec<Backend>,
    /// Event that the guard counts: page-faults, or an event of the PMU that counts traffic, as guard start takes it
    /// (parts alone, together, hold and sharing) [default: page-faults; lab:PLATFORM: refills of its last-level cache]
    #[arg(long, value_name = "EVENT")]
    event: Option<String>,
    /// Don't count the kernel's own events
    #[arg(long)]
    user_only: bool,
    /// Budgets of the part `alone`, faults a millisecond; with another event, its count for as many pages
    /// [default: 5,10,25,50,100,200]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = count_in::<u64>(1..=10_000))]
    faults: Vec<u64>,
    /// Length of each run of the part `hold` [default: 60s; lab:PLATFORM: 5s]
    #[arg(long, value_name = "TIME", value_parser = parse_hold)]
    hold: Option<Duration>,
    /// The kernel module's file [default: the installed one]
    #[arg(long, value_name = "PATH")]
    module: Option<PathBuf>,
    /// The run folder [default: out/bench-guard-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Replace the run folder if it exists
    #[arg(long)]
    replace: bool,
    /// Limit of each of the lab's machines, boot included; time in which it waits for a core of a busy host does not count [default: 30m]
    #[arg(long, value_name = "TIME", value_parser = parse_limit)]
    timeout: Option<Duration>,
    /// Print the summary as JSON instead of tables
    #[arg(long)]
    json: bool,
    /// The clock counts instructions, so that runs repeat: the lab says so to its machine
    #[arg(long, hide = true)]
    counted_clock: bool,
}

/// Long enough that everything the kernel does once a second happens at least twice.
fn parse_hold(text: &str) -> Result<Duration, String> {
    let hold = parse_seconds(text).map_err(|error| error.to_string())?;
    if hold < Time::ms(2000) {
        return Err("give 2s or more: shorter runs miss what the kernel does once a second".into());
    }
    Ok(hold.duration())
}

/// Default length of a run of the part `hold`.
const HOLD: Duration = Duration::from_secs(60);

impl Args {
    /// The event that the guard counts; `otherwise` is the default.
    fn event(&self, otherwise: Option<&str>) -> anyhow::Result<Event> {
        Ok(match self.event.as_deref().or(otherwise) {
            Some(name) => Event::named(name, self.user_only)?,
            None if self.user_only => anyhow::bail!(
                "--user-only: page faults have no kernel part; name an event of the PMU with --event"
            ),
            None => Event::page_faults(),
        })
    }

    fn subject(&self, backend: Backend, event: Event, hold: Duration) -> Subject {
        Subject {
            backend,
            module: self.module.clone(),
            event,
            pages: self.faults.clone(),
            hold: self.hold.unwrap_or(hold),
            counted_clock: self.counted_clock,
        }
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if !args.on.is_lab() && args.timeout.is_some() {
        anyhow::bail!(NO_LAB_TO_END);
    }
    if args.on.is_lab() && args.module.is_some() {
        anyhow::bail!("--module: the lab's machines have a module of their own; leave it out");
    }
    let existing = Existing::replace_if(args.replace);
    let (folder, summary) = match (&args.on, args.part) {
        (Target::Native, Some(part)) => {
            let [backend] = args.backend.as_slice() else {
                anyhow::bail!("guard bench on this machine: give one --backend at a time");
            };
            let subject = args.subject(*backend, args.event(None)?, HOLD);
            let interrupt = Interrupt::catch()?;
            let (out, mut bar) = (args.out.as_deref(), Bar::new());
            guard_bench::run(
                part,
                &subject,
                RunRequest::new(out, existing, &interrupt, &mut bar),
            )?
        }
        (Target::Sim(_), _) => {
            anyhow::bail!("guard bench measures a regulator: --on native or lab")
        }
        (Target::Native, None) => anyhow::bail!("guard bench on this machine: give --part"),
        (Target::Lab(platform), part) => on_lab(platform.as_deref(), part, args, existing)?,
    };
    outcome::tell(&folder, &summary.untyped(), args.json)?;
    let missed = summary
        .cases
        .iter()
        .filter(|case| case.reached == Some(Reached::No))
        .count();
    if missed > 0 {
        errln!("memwarden: {missed} figures did not reach their target");
    }
    Ok(ExitCode::from(u8::from(missed > 0)))
}

#[cfg(not(feature = "host"))]
fn on_lab(
    _: Option<&str>,
    _: Option<Part>,
    _: &Args,
    _: Existing,
) -> anyhow::Result<(PathBuf, Summary)> {
    anyhow::bail!(crate::verbs::on_lab::MISSING)
}

#[cfg(feature = "host")]
use in_lab::on_lab;

#[cfg(feature = "host")]
mod in_lab {
    use anyhow::bail;
    use memwarden_experiments::guard_bench::Boot;
    use memwarden_experiments::{Error, Progress, Simulated};
    use memwarden_lab::{Clock, Error as LabError, Machine, ModelledMemory};
    use memwarden_run::studies::guard_bench::{Case, NAME};
    use memwarden_run::{Run, RunFolder};

    use super::*;
    use crate::verbs::on_lab;

    /// The emulator takes about 10 s for a second of a platform's memory.
    const HOLD_ON_PLATFORM: Duration = Duration::from_secs(5);

    /// One part with one regulator, on its machine.
    struct Stage {
        part: Part,
        machine: Machine,
        subject: Subject,
    }

    impl Stage {
        fn name(&self) -> String {
            let Self { part, machine, .. } = self;
            format!("{}: {part}, {} CPUs", self.subject.backend, machine.cpus)
        }

        fn command(&self) -> Vec<String> {
            let Subject {
                backend,
                event,
                pages,
                hold,
                ..
            } = &self.subject;
            let mut command: Vec<String> =
                ["memwarden", "guard", "bench"].map(str::to_owned).into();
            let mut option = |name: &str, value: String| command.extend([name.to_owned(), value]);
            option("--part", self.part.to_string());
            option("--backend", backend.to_string());
            option("--event", event.name().to_owned());
            option("--hold", format!("{}ms", hold.as_millis()));
            if !pages.is_empty() {
                let pages: Vec<_> = pages.iter().map(u64::to_string).collect();
                option("--faults", pages.join(","));
            }
            if event.is_user_only() {
                command.push("--user-only".into());
            }
            if self.machine.clock == Clock::Counted {
                command.push("--counted-clock".into());
            }
            command
        }
    }

    /// The parts that count page faults, on machines without modelled memory.
    fn of_faults(part: Option<Part>, args: &Args) -> anyhow::Result<Vec<Stage>> {
        let event = args.event(None)?;
        if event.name() != Event::page_faults().name() {
            bail!(
                "--on lab --event {}: that machine's PMU counts no memory traffic; give --on lab:PLATFORM",
                event.name()
            );
        }
        let wanted = |boot: &Boot, backend: Backend| {
            part.is_none_or(|part| part == boot.part)
                && (backend != Backend::User || part.is_some() || boot.part.compares_backends())
        };
        let stages = args.backend.iter().flat_map(|&backend| {
            let boots = Part::ALL
                .into_iter()
                .filter(move |boot| wanted(boot, backend));
            let subject = args.subject(backend, event.clone(), HOLD);
            boots.map(move |boot| Stage {
                part: boot.part,
                machine: Machine {
                    cpus: boot.cpus,
                    ..on_lab::machine()
                },
                subject: subject.clone(),
            })
        });
        Ok(stages.collect())
    }

    /// The parts that count refills of the last-level cache, on a platform's memory.
    fn of_platform(name: &str, part: Option<Part>, args: &Args) -> anyhow::Result<Vec<Stage>> {
        let simulated = Simulated::find(name)?;
        let event = args.event(Some(simulated.platform.memory_event()))?;
        if let Some(part) = part.filter(|part| !Part::OF_ANY_EVENT.contains(part)) {
            bail!(
                "--on lab:{name}: the part {part} makes no memory traffic; give lab, or one of {}",
                Part::OF_ANY_EVENT.map(|part| part.to_string()).join(", ")
            );
        }
        let machine = Machine {
            live: false,
            ..Machine::modelled(ModelledMemory::find(name)?)
        };
        let parts = || {
            Part::OF_ANY_EVENT
                .into_iter()
                .filter(move |one| part.is_none_or(|part| part == *one))
        };
        let stages = args.backend.iter().flat_map(|&backend| {
            let subject = args.subject(backend, event.clone(), HOLD_ON_PLATFORM);
            let machine = machine.clone();
            parts().map(move |part| Stage {
                part,
                machine: machine.clone(),
                subject: subject.clone(),
            })
        });
        Ok(stages.collect())
    }

    /// The beginning of run.json.
    fn record(stages: &[Stage]) -> Run {
        let parts = stages.iter().map(|stage| (stage.part, &stage.subject));
        Run::new(NAME, "lab").with_settings(&guard_bench::settings(parts))
    }

    fn was_interrupted(error: &anyhow::Error) -> bool {
        matches!(error.downcast_ref(), Some(LabError::Interrupted))
            || matches!(error.downcast_ref(), Some(Error::Interrupted))
    }

    /// Runs every part on the machine that it needs, and merges the results in one run folder. A part that fails is
    /// reported, and the other parts still run.
    pub(super) fn on_lab(
        platform: Option<&str>,
        part: Option<Part>,
        args: &Args,
        existing: Existing,
    ) -> anyhow::Result<(PathBuf, Summary)> {
        let stages = match platform {
            Some(name) => of_platform(name, part, args)?,
            None => of_faults(part, args)?,
        };
        let mut folder = RunFolder::create(args.out.as_deref(), record(&stages), existing)?;
        let mut summary = Summary::new(NAME, "lab");
        let mut bar = Bar::new();
        let mut machines = Vec::new();
        let mut first_failure = None;
        for (done, stage) in stages.iter().enumerate() {
            // A signal after the last stage's command had ended.
            if Interrupt::last().is_some() {
                return Err(Error::Interrupted.into());
            }
            bar.step(done, stages.len(), &stage.name());
            let mut machine = Machine {
                talkative: false,
                ..stage.machine.clone()
            };
            machine.timeout = args.timeout.unwrap_or(machine.timeout);
            let home = match on_lab::run(&machine, stage.command()) {
                Ok(home) => home,
                Err(on_lab::Failed { error, left })
                    if stages.len() == 1 || was_interrupted(&error) =>
                {
                    if let Some(left) = left {
                        if let Err(failed) = folder.append_all(&left.partial.samples) {
                            errln!("memwarden: {failed}");
                        }
                    }
                    return Err(error);
                }
                // With several stages, a failure does not stop the others.
                Err(on_lab::Failed { error, .. }) => {
                    let name = stage.name();
                    summary.note(format!("NOT MEASURED: {name}: {error:#}"));
                    summary.cases.push(Case {
                        name: format!("part: {name}"),
                        backend: Some(stage.subject.backend.to_string()),
                        target: Some("to be measured".into()),
                        reached: Some(Reached::No),
                        ..Case::default()
                    });
                    first_failure.get_or_insert(error);
                    continue;
                }
            };
            folder.append_all(&home.recorded.samples)?;
            folder.flush()?;
            for note in &home.recorded.summary.notes {
                summary.note(note.clone());
            }
            let clock = match machine.clock {
                Clock::Counted => "counted",
                Clock::Free => "free-running",
            };
            let part: Summary = home.recorded.summary.typed()?;
            summary
                .cases
                .extend(part.cases.into_iter().map(|case| Case {
                    clock: Some(clock.into()),
                    ..case
                }));
            machines.push(serde_json::to_value(&home.outcome.lab)?);
            let run = folder.run_mut();
            if machines.len() == 1 {
                run.host = home.recorded.run.host;
                run.lab = home.recorded.run.lab;
            }
        }
        if let Some(error) = first_failure.filter(|_| machines.is_empty()) {
            return Err(error);
        }
        bar.step(stages.len(), stages.len(), "done");
        folder
            .run_mut()
            .more
            .insert("machines".into(), machines.into());
        guard_bench::judge_scaling(&mut summary);
        match platform {
            Some(_) => {
                for note in memwarden_report::notes::of_lab(folder.run_mut()) {
                    summary.note(note);
                }
            }
            None => summary.note(
                "An event is a page fault of 4096 bytes. A nanosecond is an instruction of each CPU (the counted clock): \
                 the figures are exact and the same on every run, and are not times of any board.",
            ),
        }
        let path = folder.finish(&summary)?;
        Ok((path, summary))
    }

    #[cfg(test)]
    mod tests {
        use clap::Parser;

        use super::*;

        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }

        #[test]
        fn the_settings_are_those_of_every_stage() {
            let line = "bench --on lab --backend module,user --hold 10s --faults 25,100";
            let Line { args } = Line::parse_from(line.split(' '));
            let stages = of_faults(None, &args).unwrap();
            for stage in &stages {
                assert_eq!(stage.command().last().unwrap(), "--counted-clock");
            }
            let settings = record(&stages).configuration;
            let text = |name: &str| settings[name].to_string();
            assert_eq!(text("backends"), r#"["module","user"]"#);
            let parts = r#"["alone","together","hold","overhead","scaling","sharing","pmu"]"#;
            assert_eq!(text("parts"), parts);
            assert_eq!(
                (text("faults"), text("hold_s")),
                ("[25,100]".into(), "10.0".into())
            );
            assert_eq!(
                (text("event"), text("user_only")),
                (r#""page-faults""#.into(), "false".into())
            );
        }
    }
}
