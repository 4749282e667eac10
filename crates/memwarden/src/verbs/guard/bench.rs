// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard bench`: how exactly, how quickly and at what cost the guard regulates.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use memwarden_experiments::guard_bench::{self, Part, Subject};
use memwarden_experiments::{Backend, Interrupt};
use memwarden_run::{Existing, Summary};

use crate::verbs::experiment::{NO_LAB_TO_END, Target};
use crate::verbs::on_lab::parse_limit;
use crate::verbs::outcome;
use crate::verbs::output::errln;
use crate::verbs::terminal::Bar;

#[derive(clap::Args)]
#[command(
    after_help = "Each figure stands beside the kernel module's target; user space is judged by its accuracy alone (5 %).\n\
                  The exit code is 1 when a figure that is judged misses its target."
)]
pub(super) struct Args {
    /// Where: native (this machine) or lab (emulated ones, as many as the parts need)
    #[arg(long, value_name = "PLACE", default_value = "native")]
    on: Target,
    /// This part alone: alone, together, hold, overhead, scaling, sharing or pmu
    #[arg(long, value_name = "PART", required_if_eq("on", "native"))]
    part: Option<Part>,
    /// The regulator, or in the lab several to be compared: module, user
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "module"
    )]
    backend: Vec<Backend>,
    /// Faults a millisecond of the part `alone` [default: 5,10,25,50,100,200]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=10_000))]
    faults: Vec<u64>,
    /// Length of each run of the part `hold`
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_hold)]
    hold: Duration,
    /// The kernel module's file [default: the installed one]
    #[arg(long, value_name = "PATH")]
    module: Option<PathBuf>,
    /// The run folder [default: out/bench-guard-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Replace the run folder if it is there
    #[arg(long)]
    replace: bool,
    /// Wall-clock limit of each of the lab's machines, boot included [default: 30m]
    #[arg(long, value_name = "TIME", value_parser = parse_limit)]
    timeout: Option<Duration>,
    /// Print the summary as JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// At least as long as the slowest thing that a kernel does once a second, twice.
fn parse_hold(text: &str) -> Result<Duration, String> {
    let hold = memwarden_guard::units::parse_duration(text).map_err(|error| error.to_string())?;
    if hold < Duration::from_secs(2) {
        return Err("give 2s or more: shorter runs miss what the kernel does once a second".into());
    }
    Ok(hold)
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if !args.on.is_lab() && args.timeout.is_some() {
        anyhow::bail!(NO_LAB_TO_END);
    }
    let existing = Existing::replace_if(args.replace);
    let (folder, summary) = match (&args.on, args.part) {
        (Target::Native, Some(part)) => {
            let [backend] = args.backend.as_slice() else {
                anyhow::bail!("guard bench on this machine: give one --backend at a time");
            };
            let subject = Subject {
                backend: *backend,
                module: args.module.clone(),
                faults: args.faults.clone(),
                hold: args.hold,
            };
            let interrupt = Interrupt::catch()?;
            let mut bar = Bar::new();
            guard_bench::run(
                part,
                &subject,
                args.out.as_deref(),
                existing,
                &interrupt,
                &mut bar,
            )?
        }
        (Target::Sim(_), _) => {
            anyhow::bail!("guard bench measures a regulator: --on native or lab")
        }
        (Target::Native, None) => anyhow::bail!("guard bench on this machine: give --part"),
        (Target::Lab(Some(platform)), _) => {
            anyhow::bail!("--on lab:{platform}: the benchmark has machines of its own: give lab")
        }
        (Target::Lab(None), part) => on_lab(part, args, existing)?,
    };
    outcome::tell(&folder, &summary, args.json)?;
    let missed = summary
        .cases
        .iter()
        .filter(|case| case.text("reached") == Some("NO"))
        .count();
    if missed > 0 {
        errln!("memwarden: {missed} figures did not reach their target");
    }
    Ok(ExitCode::from(u8::from(missed > 0)))
}

#[cfg(not(feature = "host"))]
fn on_lab(_: Option<Part>, _: &Args, _: Existing) -> anyhow::Result<(PathBuf, Summary)> {
    anyhow::bail!(crate::verbs::on_lab::MISSING)
}

/// Every part on the machine that it needs, put together in one run folder.
#[cfg(feature = "host")]
fn on_lab(
    part: Option<Part>,
    args: &Args,
    existing: Existing,
) -> anyhow::Result<(PathBuf, Summary)> {
    use memwarden_experiments::Progress;
    use memwarden_experiments::guard_bench::Boot;
    use memwarden_lab::{Clock, Machine};
    use memwarden_run::{Run, RunFolder};

    use crate::verbs::on_lab;

    let wanted = |boot: &Boot, backend: Backend| {
        part.is_none_or(|part| part == boot.part)
            && (backend != Backend::User || part.is_some() || boot.part.compares_backends())
    };
    let boots: Vec<(Boot, Backend)> = args
        .backend
        .iter()
        .flat_map(|backend| Part::ALL.map(|boot| (boot, *backend)))
        .filter(|(boot, backend)| wanted(boot, *backend))
        .collect();
    let mut folder = RunFolder::create(
        args.out.as_deref(),
        Run::new(guard_bench::EXPERIMENT, "lab"),
        existing,
    )?;
    let mut summary = Summary::new(guard_bench::EXPERIMENT, "lab");
    let mut bar = Bar::new();
    let mut machines = Vec::new();
    for (done, (boot, backend)) in boots.iter().enumerate() {
        let clock = if boot.counted {
            Clock::Counted
        } else {
            Clock::Free
        };
        bar.step(
            done,
            boots.len(),
            &format!("{backend}: {}, {} CPUs", boot.part, boot.cpus),
        );
        let usual = on_lab::machine();
        let machine = Machine {
            cpus: boot.cpus,
            clock,
            tick_us: if boot.tick {
                clock.default_tick_us()
            } else {
                0
            },
            talkative: false,
            timeout: args.timeout.unwrap_or(usual.timeout),
            ..usual
        };
        let (part, backend) = (boot.part.to_string(), backend.to_string());
        let mut command = [
            "memwarden",
            "guard",
            "bench",
            "--part",
            &part,
            "--backend",
            &backend,
        ]
        .map(str::to_owned)
        .to_vec();
        if !args.faults.is_empty() {
            let faults: Vec<_> = args.faults.iter().map(u64::to_string).collect();
            command.extend(["--faults".into(), faults.join(",")]);
        }
        command.extend(["--hold".into(), format!("{}ms", args.hold.as_millis())]);
        let home = on_lab::run(&machine, command, &[])?;
        folder.append_all(&home.recorded.samples)?;
        folder.flush()?;
        for note in &home.recorded.summary.notes {
            summary.note(note.clone());
        }
        for mut case in home.recorded.summary.cases {
            case.set(
                "clock",
                if boot.counted {
                    "counted"
                } else {
                    "free-running"
                },
            );
            summary.cases.push(case);
        }
        machines.push(serde_json::to_value(&home.outcome.lab)?);
        let run = folder.run_mut();
        if done == 0 {
            run.host = home.recorded.run.host;
            run.lab = home.recorded.run.lab;
        }
    }
    bar.step(boots.len(), boots.len(), "done");
    folder
        .run_mut()
        .more
        .insert("machines".into(), machines.into());
    guard_bench::judge_scaling(&mut summary);
    summary.note(
        "An event is a page fault of 4096 bytes. With the counted clock a nanosecond is an instruction, of all CPUs \
         together: the figures are exact and the same on every run, and are not times of any board.",
    );
    let path = folder.finish(&summary)?;
    Ok((path, summary))
}
