// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard bench`: how exactly, how quickly and at what cost the guard regulates.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use memwarden_experiments::Interrupt;
use memwarden_experiments::guard_bench::{self, Part};
use memwarden_run::{Existing, Summary};

use crate::verbs::interfere::Target;
use crate::verbs::outcome;
use crate::verbs::terminal::Bar;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Where: native (this machine) or lab (emulated ones, as many as the parts need)
    #[arg(long, value_enum, default_value = "native")]
    on: Target,
    /// This part alone: alone, together, overhead, scaling, sharing or pmu
    #[arg(long, value_name = "PART", required_if_eq("on", "native"))]
    part: Option<Part>,
    /// The kernel module's file [default: the installed one]
    #[arg(long, value_name = "PATH")]
    module: Option<PathBuf>,
    /// The run folder [default: out/bench-guard-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Replace the run folder if it is there
    #[arg(long)]
    replace: bool,
    /// Print the summary as JSON instead of tables
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let existing = Existing::replace_if(args.replace);
    let (folder, summary) = match (args.on, args.part) {
        (Target::Native, Some(part)) => {
            let interrupt = Interrupt::catch()?;
            let mut bar = Bar::new();
            guard_bench::run(
                part,
                args.module.clone(),
                args.out.as_deref(),
                existing,
                &interrupt,
                &mut bar,
            )?
        }
        (Target::Native, None) => anyhow::bail!("guard bench on this machine: give --part"),
        (Target::Lab, part) => on_lab(part, args.out.as_deref(), existing)?,
    };
    outcome::tell(&folder, &summary, args.json)?;
    let missed = summary
        .cases
        .iter()
        .filter(|case| case.text("reached") == Some("NO"))
        .count();
    if missed > 0 {
        eprintln!("memwarden: {missed} figures did not reach their target");
    }
    Ok(ExitCode::from(u8::from(missed > 0)))
}

#[cfg(not(feature = "host"))]
fn on_lab(_: Option<Part>, _: Option<&Path>, _: Existing) -> anyhow::Result<(PathBuf, Summary)> {
    anyhow::bail!("--on lab: this memwarden was built without the lab (feature `host`)")
}

/// Every part on the machine that it needs, put together in one run folder.
#[cfg(feature = "host")]
fn on_lab(
    part: Option<Part>,
    out: Option<&Path>,
    existing: Existing,
) -> anyhow::Result<(PathBuf, Summary)> {
    use memwarden_experiments::Progress;
    use memwarden_lab::{Clock, Machine};
    use memwarden_run::{Run, RunFolder};

    use crate::verbs::on_lab;

    let boots: Vec<_> = Part::ALL
        .into_iter()
        .filter(|boot| part.is_none_or(|part| part == boot.part))
        .collect();
    let mut folder = RunFolder::create(out, Run::new(guard_bench::EXPERIMENT, "lab"), existing)?;
    let mut summary = Summary::new(guard_bench::EXPERIMENT, "lab");
    let mut bar = Bar::new();
    let mut machines = Vec::new();
    for (done, boot) in boots.iter().enumerate() {
        let clock = if boot.counted {
            Clock::Counted
        } else {
            Clock::Free
        };
        bar.step(
            done,
            boots.len(),
            &format!("{}, {} CPUs", boot.part, boot.cpus),
        );
        let machine = Machine {
            cpus: boot.cpus,
            clock,
            tick_us: if boot.tick {
                clock.default_tick_us()
            } else {
                0
            },
            talkative: false,
            ..on_lab::machine()
        };
        let command = [
            "memwarden",
            "guard",
            "bench",
            "--part",
            &boot.part.to_string(),
        ]
        .map(str::to_owned)
        .to_vec();
        let home = on_lab::run(&machine, command)?;
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
