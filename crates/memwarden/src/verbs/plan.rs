// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden plan`: from a deadline to budgets, in the model of a platform.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::ValueEnum;
use memwarden_experiments::loads::LoadSpec;
use memwarden_experiments::plan::{self, Config, More, NO_GUARD, Planned, TaskSpec};
use memwarden_experiments::{Interrupt, RunRequest, Settings};
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::units::{Size, Time};
use memwarden_run::Existing;
use memwarden_run::studies::plan::{Case, Outcome, Summary, Verified};
use memwarden_run::studies::realtime;
use memwarden_sim::Platform;
use memwarden_sim::cases::Mode;
use memwarden_sim::plan::{Problem, Setting};
use serde::Serialize;

use super::experiment::parsed;
use super::foreign::Interrupted;
use super::terminal::Bar;
use super::{outcome, output};
use crate::verbs::numbers::count;

/// Find budgets with which a task meets its deadline while the load beside it keeps as much bandwidth as possible
#[derive(clap::Args, Serialize)]
#[command(
    after_help = "A task is NAME:frame=BYTES,period=TIME,deadline=TIME@CORE; each job reads the frame once. A load is a\n\
    workload of `memwarden interfere` and `realtime`, with its cores. Budgets are MB/s (2^20 bytes).\n\
    Each of the model's numbers that is in no datasheet is lowered and raised by at least 10 %: the setting is robust if it\n\
    reaches the goal with all changes. If the best setting is fragile, the best robust one is shown, too.\n\
    A goal that allows late jobs is shown with --confidence: --miss-ratio 0.01 needs 368 jobs, all in time.\n\
    Ctrl-C leaves the settings that were tried in DIR.partial.\n\
    --verify runs the deadline case without a guard and with the recommended setting: natively, or in the lab on\n\
    the platform's caches and memory, behind a real kernel.\n\
    Examples:\n  memwarden plan --platform raspberry-pi-3 --load bandwidth:write@1-3 \\\n      --task hrt:frame=8294400,period=20ms,deadline=13ms@0\n  \
    memwarden plan --platform my-board.toml --load screen@1 --maximise margin \\\n      --task cam:frame=2M,period=10ms,deadline=5ms@0"
)]
pub struct Args {
    /// A platform's name (`memwarden sim platforms`) or TOML file
    #[arg(long, value_name = "PLATFORM", required_unless_present_any = ["config", "print_config"])]
    platform: Option<String>,
    /// The task: NAME:frame=BYTES,period=TIME,deadline=TIME@CORE
    #[arg(long, value_name = "TASK", required_unless_present_any = ["config", "print_config"])]
    task: Option<TaskSpec>,
    /// Loads beside the task: WORKLOAD@CORES (repeatable)
    #[arg(long, value_name = "LOAD", required_unless_present_any = ["config", "print_config"])]
    load: Option<Vec<LoadSpec>>,
    /// The loads' buffers [default: 16M]
    #[arg(long, value_name = "SIZE")]
    load_memory: Option<Size>,
    /// The goal
    #[arg(long, value_enum)]
    #[serde(skip)]
    goal: Option<GoalArg>,
    /// Largest allowed share of late jobs, from 0 to 1 [default: 0; with --goal p99: 0.01]
    #[arg(long, value_name = "SHARE", default_value_ifs([("goal", "p99", "0.01"), ("goal", "deadline", "0")]))]
    miss_ratio: Option<f64>,
    /// Confidence with which the recommended setting's jobs must show the miss ratio, from 0 to 1 [default: 0.95]
    #[arg(long, value_name = "SHARE")]
    confidence: Option<f64>,
    /// A job counts as late if it ends less than this before its deadline [default: 0us]
    #[arg(long, value_name = "TIME")]
    margin: Option<Time>,
    /// What to maximise within the goal [default: load]
    #[arg(long, value_enum)]
    maximise: Option<MaximiseArg>,
    /// Jobs of each run; the recommended setting runs four times as many, or as many as --confidence needs [default: 5]
    #[arg(long, value_name = "N", value_parser = count::<u64>)]
    jobs: Option<u64>,
    /// Seed for the placement of the workloads' pages [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Run the recommended setting, too, and report predicted against measured
    #[arg(long, value_enum, value_name = "PLACE")]
    #[serde(skip)]
    verify: Option<Verify>,
    /// Read settings from a TOML file; options on the command line override it
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Print the settings as TOML and exit
    #[arg(long)]
    #[serde(skip)]
    print_config: bool,
    /// The run folder [default: out/plan-TIME]
    #[arg(long, value_name = "DIR")]
    #[serde(skip)]
    out: Option<PathBuf>,
    /// Replace the run folder if it exists
    #[arg(long)]
    #[serde(skip)]
    replace: bool,
    /// Print the summary as JSON instead of tables
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// The goal.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum GoalArg {
    /// Each job in time, except for the --miss-ratio
    Deadline,
    /// 99 of 100 jobs in time
    P99,
}

/// The quantity to maximise.
#[derive(Debug, Clone, Copy, ValueEnum, Serialize)]
#[serde(into = "More")]
enum MaximiseArg {
    /// The load's traffic
    Load,
    /// The time between the end of the longest job and its deadline
    Margin,
}

impl From<MaximiseArg> for More {
    fn from(given: MaximiseArg) -> Self {
        match given {
            MaximiseArg::Load => Self::Load,
            MaximiseArg::Margin => Self::Margin,
        }
    }
}

/// Upper limit of the lab's slowdown on a slow host: seconds for each second of a platform's time.
const LAB_SLOWER: u64 = 60;

/// Target of the verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Verify {
    /// This machine
    Native,
    /// The emulated machine, with the platform's caches and memory
    Lab,
}

impl Args {
    fn settings(&self) -> anyhow::Result<Config> {
        Ok(Config::default().under(self.config.as_deref(), self)?)
    }
}

/// Runs `memwarden plan`. The exit code is 1 when no setting reaches the goal, or `--verify` fails.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.settings()?;
    if args.print_config {
        output::write(&config.to_toml()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let platform = Platform::find(&config.platform)?;
    let problem = config.problem(&platform)?;
    let verification = args
        .verify
        .map(|place| verification(place, &config, &platform, &problem))
        .transpose()?;
    let interrupt = Interrupt::catch()?;
    let planned = plan::run(
        &config,
        RunRequest::new(
            args.out.as_deref(),
            Existing::replace_if(args.replace),
            &interrupt,
            &mut Bar::new(),
        ),
        |summary, setting, problem| {
            let Some(options) = verification else {
                return Ok(None);
            };
            let verified = verify(options, summary, setting, problem, platform.machine.cores);
            verified.map(Some).map_err(|error| match interrupt.came() {
                true => Interrupted("the plan is kept, but its setting is not verified").into(),
                false => error,
            })
        },
    );
    let Planned {
        folder,
        summary,
        unverified,
    } = planned?;
    outcome::tell(&folder, &summary.untyped(), args.json)?;
    match unverified {
        Some(error) => Err(error),
        None => Ok(ExitCode::from(u8::from(
            summary.whole.recommended.is_none(),
        ))),
    }
}

/// Measured figures of the task beside its loads.
struct Measured {
    miss_share: f64,
    p99_ms: Option<f64>,
    load_mib_s: f64,
}

impl Measured {
    /// The figures of the case with loads, with a guard or without.
    fn of(summary: &realtime::Summary, guarded: bool) -> anyhow::Result<Self> {
        let loaded = |case: &&realtime::Case| !case.aggressors.is_empty();
        let case = summary
            .cases
            .iter()
            .filter(loaded)
            .find(|case| case.guard.is_some() == guarded)
            .context("--verify: memwarden realtime did not measure the case")?;
        Ok(Self {
            miss_share: case
                .miss_share
                .context("--verify: no misses were counted")?,
            p99_ms: case
                .victim
                .as_ref()
                .and_then(|times| Some(times.p99? / 1e6)),
            load_mib_s: case.aggressors.iter().filter_map(|load| load.mib_s).sum(),
        })
    }
}

/// The options that set the regulator.
fn guard_options(setting: &Setting, budgets: &str) -> Vec<String> {
    let sharing = match setting.best_effort {
        Mode::None => "",
        Mode::Spare => "+spare",
        Mode::Proportional => "+ps",
    };
    vec![
        "--guard".into(),
        format!("{budgets}{sharing}"),
        "--guard-period".into(),
        format!("{}us", setting.period_us),
    ]
}

/// The options of `memwarden realtime` for the deadline case without a guard. Checked before the plan is made, so that
/// an impossible verification fails early.
fn verification(
    place: Verify,
    config: &Config,
    platform: &Platform,
    problem: &Problem,
) -> anyhow::Result<Vec<String>> {
    let [(workload, _), rest @ ..] = problem.loads.as_slice() else {
        bail!("--verify: no load");
    };
    if rest.iter().any(|(other, _)| other != workload) {
        bail!("--verify: `memwarden realtime` runs one kind of load at a time");
    }
    let task = &config.task;
    if task.frame_bytes % 1024 != 0 {
        bail!(
            "--verify: frame={}: `memwarden realtime` takes whole KiB: give frame={}K",
            task.frame_bytes,
            task.frame_bytes.div_ceil(1024)
        );
    }
    // The model's jobs are late by the same rule.
    let in_time_us = task.deadline_us - config.margin.as_us();
    let mut options = Vec::new();
    let mut option = |name: &str, value: String| options.extend([name.to_owned(), value]);
    let jobs = match place {
        Verify::Native => {
            option("--on", "native".into());
            config.jobs.max(100)
        }
        Verify::Lab => {
            if platform.emulated_as.is_none() {
                bail!(
                    "--verify lab: the platform {} names no CPU that executes in the lab (`emulated_as`): give native, or a \
                     platform that has one, such as raspberry-pi-3",
                    platform.name
                );
            }
            if workload == "xserver" {
                bail!("--verify lab: the lab has no X server: give a load such as screen");
            }
            let jobs = config.jobs.max(20);
            // Four runs: alone and beside the load, without a guard and with it.
            let guest_s = 4 * jobs * task.period_us / 1_000_000;
            option("--on", format!("lab:{}", config.platform));
            option("--timeout", format!("{}s", 1800 + guest_s * LAB_SLOWER));
            jobs
        }
    };
    // The closest match to the model's task: if its work on a line must end before the next line can be requested.
    let kind = if platform.work.frame_depends {
        "compare"
    } else {
        "read"
    };
    let cores: CpuSet = problem.loads.iter().map(|(_, core)| *core).collect();
    option("--victim", format!("bandwidth:{kind}"));
    option("--victim-cpu", task.core.to_string());
    option("--frame", format!("{}K", task.frame_bytes / 1024));
    option("--period", format!("{}us", task.period_us));
    option("--deadline", format!("{in_time_us}us"));
    option("--load", workload.clone());
    option("--cpus", cores.to_string());
    option("--load-memory", config.load_memory.to_string());
    option("--jobs", jobs.to_string());
    option("--guard", "none".into());
    Ok(options)
}

/// Runs the deadline case without a guard, and with the setting if there is one.
fn verify(
    mut options: Vec<String>,
    summary: &Summary,
    setting: Option<&Setting>,
    problem: &Problem,
    cores: usize,
) -> anyhow::Result<Verified> {
    let place = options[1].clone();
    if let Some(setting) = setting {
        let budgets = plan::budgets(setting, problem, cores);
        options.extend(guard_options(setting, &budgets));
    }
    let found = parsed(&options).and_then(|options| super::realtime::measure(&options));
    let found = found.context("--verify")?;
    let (_, measured) = found.context("--verify: nothing was measured")?;
    let share_of = |load: f64, all: f64| if all > 0.0 { load / all } else { 0.0 };
    let alone = |case: &&Case| case.name == NO_GUARD;
    let predicted_unguarded = summary
        .cases
        .iter()
        .find(alone)
        .cloned()
        .unwrap_or_default();
    let predicted = |case: &Case| Outcome {
        miss_share: case.miss_share,
        p99_ms: Some(case.p99_ms),
        load_mib_s: case.load_mib_s,
        load_share: share_of(case.load_mib_s, predicted_unguarded.load_mib_s),
    };
    let unguarded = Measured::of(&measured, false)?;
    let found = |measured: &Measured| Outcome {
        miss_share: measured.miss_share,
        p99_ms: measured.p99_ms,
        load_mib_s: measured.load_mib_s,
        load_share: share_of(measured.load_mib_s, unguarded.load_mib_s),
    };
    let guarded = setting.map(|_| Measured::of(&measured, true)).transpose()?;
    let recommended = summary.whole.recommended.as_ref();
    Ok(Verified {
        place,
        predicted_unguarded: predicted(&predicted_unguarded),
        unguarded: found(&unguarded),
        predicted: recommended
            .map(|one| predicted(&one.case))
            .unwrap_or_default(),
        guarded: guarded.as_ref().map(found),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    /// The arguments that `memwarden realtime` would get.
    fn verification_of(words: &str) -> anyhow::Result<String> {
        let line = std::iter::once("plan").chain(words.split(' '));
        let args = <Cli as clap::Parser>::try_parse_from(line)?.args;
        let config = args.settings()?;
        let platform = Platform::find(&config.platform)?;
        let problem = config.problem(&platform)?;
        let place = args.verify.expect("--verify is given");
        Ok(verification(place, &config, &platform, &problem)?.join(" "))
    }

    #[test]
    fn a_plan_is_verified_with_its_own_task_and_load() {
        let task = "--task hrt:frame=8294400,period=20ms,deadline=13ms@0";
        let lab = |platform, load| {
            let words = format!("--platform {platform} {task} --load {load} --verify lab");
            verification_of(&words).map_err(|error| error.to_string())
        };
        assert_eq!(
            lab("raspberry-pi-3", "bandwidth:write@1-3").unwrap(),
            "--on lab:raspberry-pi-3 --timeout 1860s --victim bandwidth:read --victim-cpu 0 --frame 8100K --period 20000us \
             --deadline 13000us --load bandwidth:write --cpus 1-3 --load-memory 16M --jobs 20 --guard none"
        );
        let xeon = lab("xeon-w3530", "screen@1").unwrap();
        assert!(xeon.contains("--victim bandwidth:compare"), "{xeon}");
        for (platform, load, why) in [
            ("xeon-6426y", "screen@1", "`emulated_as`"),
            ("xeon-w3530", "xserver@1", "no X server"),
        ] {
            let said = lab(platform, load).unwrap_err();
            assert!(said.contains(why) && !said.contains('\n'), "{said}");
        }
        let words = format!(
            "--platform raspberry-pi-3 {task} --load screen@1 --margin 500us --verify native"
        );
        let measured = verification_of(&words).unwrap();
        assert!(measured.contains("--deadline 12500us"), "{measured}");
        let odd = words.replace("frame=8294400", "frame=8294464");
        assert_eq!(
            verification_of(&odd).unwrap_err().to_string(),
            "--verify: frame=8294464: `memwarden realtime` takes whole KiB: give frame=8101K"
        );
        let two = format!(
            "--platform raspberry-pi-3 {task} --load screen@1 --load latency@2 --verify native"
        );
        assert!(
            verification_of(&two)
                .unwrap_err()
                .to_string()
                .contains("one kind")
        );
    }
}
