// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden plan`: from a deadline to budgets, in the model of a platform.

use std::process::{Command, ExitCode, Stdio};
use std::str::FromStr;

use anyhow::{Context, bail};
use clap::ValueEnum;
use memwarden_experiments::{Interrupt, Progress};
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::units::{Size, Time, parse_size};
use memwarden_run::studies::realtime;
use memwarden_sim::Platform;
use memwarden_sim::cases::{Mode, Task};
use memwarden_sim::plan::{self, Goal, Maximise, Outcome, Plan, Problem, Setting};
use serde_json::{Value, json};

use super::loads::{self, LoadSpec};
use super::terminal::{Bar, lines, number, table};
use crate::verbs::foreign::Interrupted;
use crate::verbs::output::outln;

/// Find the budgets with which a task meets its deadline beside a load that keeps as much as possible
#[derive(clap::Args)]
#[command(
    after_help = "A task is NAME:frame=BYTES,period=TIME,deadline=TIME@CORE; each job reads the frame once. A load is what\n\
    `memwarden interfere` and `realtime` take, and its cores. Budgets are MB/s (2^20 bytes).\n\
    The model's numbers that no datasheet gives are each taken to be 10 % less and more: the last table says what would\n\
    change. --verify runs the deadline case without a guard and with the recommended setting: natively, or in the lab on\n\
    the platform's caches and memory, behind a real kernel.\n\
    Examples:\n  memwarden plan --platform raspberry-pi-3 --task hrt:frame=8294400,period=20ms,deadline=13ms@0 --load bandwidth:write@1-3\n  \
    memwarden plan --platform my-board.toml --task cam:frame=2M,period=10ms,deadline=5ms@0 --load screen@1 --maximise margin"
)]
pub struct Args {
    /// A platform's name (`memwarden sim platforms`) or TOML file
    #[arg(long, value_name = "PLATFORM")]
    platform: String,
    /// The task: NAME:frame=BYTES,period=TIME,deadline=TIME@CORE
    #[arg(long, value_name = "TASK")]
    task: TaskSpec,
    /// What runs beside it: WORKLOAD@CORES (repeatable)
    #[arg(long, value_name = "LOAD", required = true)]
    load: Vec<LoadSpec>,
    /// The loads' buffers
    #[arg(long, value_name = "SIZE", default_value = "16M")]
    load_memory: Size,
    /// What is wanted
    #[arg(long, value_enum, default_value = "deadline")]
    goal: GoalArg,
    /// The share of jobs that may be late, from 0 to 1 (p99: 0.01)
    #[arg(
        long,
        value_name = "SHARE",
        default_value_if("goal", "p99", "0.01"),
        default_value = "0"
    )]
    miss_ratio: f64,
    /// A job is late when it ends less than this before its deadline
    #[arg(long, value_name = "TIME", default_value = "0us")]
    margin: Time,
    /// What is to be had as much of as the goal allows
    #[arg(long, value_enum, default_value = "load")]
    maximise: MaximiseArg,
    /// Jobs of each run; what is recommended is run with four times as many
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    jobs: u64,
    /// Where the workloads' pages are in memory
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Run the recommended setting, too, and report predicted against measured
    #[arg(long, value_enum, value_name = "PLACE")]
    verify: Option<Verify>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// What is wanted.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum GoalArg {
    /// Each job in time, but for --miss-ratio
    Deadline,
    /// 99 of 100 jobs in time
    P99,
}

/// And then.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum MaximiseArg {
    /// What the load moves
    Load,
    /// The time from the longest job's end to its deadline
    Margin,
}

/// Seconds that the lab takes for one of a platform's time, at most, on a slow host.
const LAB_SLOWER: u64 = 60;

/// Where the setting is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Verify {
    /// This machine
    Native,
    /// The emulated machine, with the platform's caches and memory
    Lab,
}

/// A task as it is typed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TaskSpec {
    name: String,
    frame_bytes: u64,
    period_us: u64,
    deadline_us: u64,
    core: usize,
}

impl FromStr for TaskSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "give NAME:frame=BYTES,period=TIME,deadline=TIME@CORE";
        let (rest, core) = text.rsplit_once('@').ok_or(FORM)?;
        let core = core.parse().map_err(|_| format!("core `{core}`: {FORM}"))?;
        let (name, fields) = rest.split_once(':').ok_or(FORM)?;
        let (mut frame, mut period, mut deadline) = (None, None, None);
        for field in fields.split(',') {
            let (key, value) = field
                .split_once('=')
                .ok_or_else(|| format!("`{field}`: {FORM}"))?;
            let time = || -> Result<u64, String> {
                let time: Result<Time, _> = value.parse();
                let time = time.map_err(|error| format!("{key}: {error}"))?;
                Ok(time.as_us())
            };
            match key {
                // A plain number is bytes here: a frame is seldom whole KiB.
                "frame" => {
                    frame = Some(match value.parse() {
                        Ok(bytes) => bytes,
                        Err(_) => {
                            parse_size(value).map_err(|error| format!("frame: {error}"))? as u64
                        }
                    });
                }
                "period" => period = Some(time()?),
                "deadline" => deadline = Some(time()?),
                _ => return Err(format!("`{key}` is not known: {FORM}")),
            }
        }
        let missing = |field: &str| format!("{field} is missing: {FORM}");
        let task = Self {
            name: name.into(),
            frame_bytes: frame.ok_or_else(|| missing("frame"))?,
            period_us: period.ok_or_else(|| missing("period"))?,
            deadline_us: deadline.ok_or_else(|| missing("deadline"))?,
            core,
        };
        if !(64..=1 << 30).contains(&task.frame_bytes) {
            return Err(format!(
                "frame {}: give 64 bytes to 1 GiB",
                task.frame_bytes
            ));
        }
        if task.deadline_us == 0 || task.deadline_us > task.period_us || task.period_us > 60_000_000
        {
            return Err(
                "give a deadline above 0 and not above the period, and a period of at most 60s"
                    .into(),
            );
        }
        Ok(task)
    }
}

impl Args {
    fn goal(&self) -> anyhow::Result<Goal> {
        let (miss_ratio, margin) = (self.miss_ratio, self.margin);
        if !(0.0..1.0).contains(&miss_ratio) {
            bail!("--miss-ratio {miss_ratio}: give a share from 0 to below 1");
        }
        let margin_us = margin.as_us();
        if margin_us >= self.task.deadline_us {
            bail!("--margin {margin}: give less than the deadline");
        }
        Ok(Goal {
            miss_ratio,
            margin_us,
        })
    }

    /// The problem, when it makes sense on the platform.
    fn problem(&self, platform: &Platform) -> anyhow::Result<Problem> {
        let cores = platform.machine.cores;
        let last = cores - 1;
        let bytes = self.load_memory.bytes();
        if self.task.core > last {
            bail!(
                "--task: core {} is not one of {}'s 0-{last}",
                self.task.core,
                platform.name
            );
        }
        let loads = loads::spread("--load", &self.load, platform, bytes, Some(self.task.core))?;
        Ok(Problem {
            task: Task {
                frame_bytes: self.task.frame_bytes,
                period_us: self.task.period_us,
                deadline_us: self.task.deadline_us,
                jobs: self.jobs,
            },
            task_core: self.task.core,
            loads,
            load_bytes: bytes,
            goal: self.goal()?,
            maximise: match self.maximise {
                MaximiseArg::Load => Maximise::Load,
                MaximiseArg::Margin => Maximise::Margin,
            },
            seed: self.seed,
        })
    }
}

/// Carries out `memwarden plan`. The exit code is 1 when no setting reaches the goal.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let platform = Platform::find(&args.platform)?;
    let problem = args.problem(&platform)?;
    let verification = args
        .verify
        .map(|place| verification(place, args, &platform, &problem))
        .transpose()?;
    let interrupt = Interrupt::catch()?;
    let mut bar = Bar::new();
    // About: how often budgets are halved depends on what comes out.
    let most = 25 + 2 * platform.fit.len();
    let plan = plan::plan(&platform, &problem, |done| {
        bar.step(done.min(most - 1), most, "simulating");
        !interrupt.came()
    })?;
    bar.step(most, most, "done");
    let Some(plan) = plan else {
        return Err(Interrupted("nothing was planned").into());
    };
    let recommended = plan.recommended.as_ref();
    let commands =
        recommended.map(|outcome| commands(outcome.setting.as_ref(), &problem, &platform));
    if !args.json {
        tell(args, &platform, &problem, &plan, commands.as_deref())?;
    }
    let verified = match (verification, recommended) {
        (Some(options), Some(outcome)) => {
            Some(verify(options, &platform, &problem, &plan, outcome)?)
        }
        _ => None,
    };
    if args.json {
        let all = json!({
            "platform": platform,
            "memory": platform.memory()?,
            "task": args.task.name,
            "problem": problem,
            "plan": plan,
            "commands": commands,
            "verified": verified,
        });
        outln!("{}", serde_json::to_string_pretty(&all)?)?;
    } else if let Some(verified) = &verified {
        tell_verified(verified)?;
    }
    Ok(ExitCode::from(u8::from(recommended.is_none())))
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::None => "none",
        Mode::Spare => "spare",
        Mode::Proportional => "proportional",
    }
}

/// The budgets of all cores, as `guard set --mb` takes them.
fn budgets(setting: &Setting, problem: &Problem, platform: &Platform) -> String {
    let budgets = setting.budgets(problem, platform.machine.cores);
    let words = budgets.iter().map(|budget| match budget {
        0 => "max".to_owned(),
        budget => budget.to_string(),
    });
    words.collect::<Vec<_>>().join(",")
}

/// What to type on the board.
fn commands(setting: Option<&Setting>, problem: &Problem, platform: &Platform) -> Vec<String> {
    let Some(setting) = setting else {
        return Vec::new();
    };
    let mut all = vec![format!(
        "memwarden guard start --period {}us",
        setting.period_us
    )];
    all.push(format!(
        "memwarden guard set --mb {}",
        budgets(setting, problem, platform)
    ));
    if setting.best_effort != Mode::None {
        all.push(format!(
            "memwarden guard mode --best-effort {}",
            mode(setting.best_effort)
        ));
    }
    all
}

fn row(
    outcome: &Outcome,
    problem: &Problem,
    platform: &Platform,
    unguarded: &Outcome,
) -> Vec<String> {
    let setting = outcome.setting.as_ref();
    vec![
        setting.map_or("no guard".into(), |setting| {
            budgets(setting, problem, platform)
        }),
        setting
            .map_or("-", |setting| mode(setting.best_effort))
            .into(),
        setting.map_or("-".into(), |setting| setting.period_us.to_string()),
        number(100.0 * outcome.miss_share, 1),
        number(outcome.p99_ms, 2),
        number(outcome.margin_ms, 2),
        number(outcome.load_mib_s, 0),
        number(100.0 * outcome.load_mib_s / unguarded.load_mib_s, 1),
        number(outcome.memory_gb_s, 2),
        number(100.0 * outcome.memory_peak_share, 1),
    ]
}

const HEADINGS: [&str; 10] = [
    "budgets MB/s",
    "best effort",
    "period us",
    "missed %",
    "p99 ms",
    "margin ms",
    "load MB/s",
    "of unguarded %",
    "memory GB/s",
    "of peak %",
];

fn tell(
    args: &Args,
    platform: &Platform,
    problem: &Problem,
    plan: &Plan,
    commands: Option<&[String]>,
) -> anyhow::Result<()> {
    let memory = platform.memory()?;
    outln!(
        "{} on {}, {} ({:.2} GB/s peak): {} bytes each {} us, in time within {} us; {} jobs a run, {} settings tried\n",
        args.task.name,
        platform.name,
        memory.name,
        memory.peak_bytes_per_s() / 1e9,
        problem.task.frame_bytes,
        problem.task.period_us,
        problem.task.deadline_us,
        problem.task.jobs,
        plan.tried.len()
    )?;
    outln!(
        "alone      {:.1} % missed, p99 {:.2} ms, margin {:.2} ms\nno guard   {:.1} % missed, p99 {:.2} ms, margin {:.2} ms, \
         the load moves {:.0} MB/s\n",
        100.0 * plan.alone.miss_share,
        plan.alone.p99_ms,
        plan.alone.margin_ms,
        100.0 * plan.unguarded.miss_share,
        plan.unguarded.p99_ms,
        plan.unguarded.margin_ms,
        plan.unguarded.load_mib_s
    )?;
    outln!(
        "None of the settings that were tried has both more load and an earlier longest job than one of these:"
    )?;
    let mut front = table(&HEADINGS);
    for outcome in &plan.front {
        front.add_row(row(outcome, problem, platform, &plan.unguarded));
    }
    outln!("{}", lines(front, 2..HEADINGS.len()))?;
    let Some(recommended) = &plan.recommended else {
        outln!(
            "\nNo setting reaches the goal. Alone, the longest job leaves {:.2} ms.",
            plan.alone.margin_ms
        )?;
        return Ok(());
    };
    outln!("\nRecommended:")?;
    let mut one = table(&HEADINGS);
    one.add_row(row(recommended, problem, platform, &plan.unguarded));
    outln!("{}", lines(one, 2..HEADINGS.len()))?;
    match commands {
        Some([]) | None => outln!("\nNothing has to be regulated.")?,
        Some(commands) => commands
            .iter()
            .try_for_each(|command| outln!("    {command}"))?,
    }
    if plan.sensitivity.is_empty() {
        outln!(
            "\nThe platform's file names no uncertain number ([fit]): what would change the plan is not known."
        )?;
        return Ok(());
    }
    outln!("\nThe same setting, were the platform's uncertain numbers 10 % less or more:")?;
    let mut all = table(&[
        "number",
        "is",
        "were",
        "missed %",
        "p99 ms",
        "margin ms",
        "load MB/s",
        "goal",
    ]);
    for one in &plan.sensitivity {
        let outcome = &one.outcome;
        all.add_row(vec![
            one.path.clone(),
            one.value.to_string(),
            one.changed.to_string(),
            number(100.0 * outcome.miss_share, 1),
            number(outcome.p99_ms, 2),
            number(outcome.margin_ms, 2),
            number(outcome.load_mib_s, 0),
            if outcome.reached { "reached" } else { "MISSED" }.into(),
        ]);
    }
    outln!("{}", lines(all, 1..7))?;
    Ok(())
}

/// What was measured of the task beside its loads.
struct Measured {
    case: String,
    miss_share: f64,
    p99_ms: Option<f64>,
    load_mib_s: f64,
}

impl Measured {
    /// Of the case that has loads, and a guard or none.
    fn of(summary: &realtime::Summary, guarded: bool) -> anyhow::Result<Self> {
        let loaded = |case: &&realtime::Case| !case.aggressors.is_empty();
        let case = summary
            .cases
            .iter()
            .filter(loaded)
            .find(|case| case.guard.is_some() == guarded)
            .context("--verify: memwarden realtime measured no such case")?;
        Ok(Self {
            case: case.name.clone(),
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

/// `memwarden realtime` with these options.
fn measure(options: &[String]) -> anyhow::Result<realtime::Summary> {
    let own = std::env::current_exe().context("finding this program")?;
    let result = Command::new(own)
        .args(["realtime", "--json"])
        .args(options)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("running memwarden realtime")?;
    if !result.status.success() {
        bail!("--verify: memwarden realtime ended with {}", result.status);
    }
    serde_json::from_slice(&result.stdout).context("reading what memwarden realtime printed")
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

/// What `memwarden realtime` is given to run the deadline case without a guard. Whether it can is known before anything is
/// planned.
fn verification(
    place: Verify,
    args: &Args,
    platform: &Platform,
    problem: &Problem,
) -> anyhow::Result<Vec<String>> {
    let [(workload, _), rest @ ..] = problem.loads.as_slice() else {
        bail!("--verify: no load");
    };
    if rest.iter().any(|(other, _)| other != workload) {
        bail!("--verify: `memwarden realtime` runs one kind of load at a time");
    }
    let task = &args.task;
    let mut options = Vec::new();
    let mut option = |name: &str, value: String| options.extend([name.to_owned(), value]);
    let jobs = match place {
        Verify::Native => {
            option("--on", "native".into());
            args.jobs.max(100)
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
                bail!("--verify lab: there is no X server in the lab: give a load such as screen");
            }
            let jobs = args.jobs.max(20);
            // Alone and beside the load, without a guard and with it.
            let guest_s = 4 * jobs * task.period_us / 1_000_000;
            option("--on", format!("lab:{}", args.platform));
            option("--timeout", format!("{}s", 1800 + guest_s * LAB_SLOWER));
            jobs
        }
    };
    // The model's task, where what it does with a line needs the line before it can ask for the next.
    let kind = if platform.work.frame_depends {
        "compare"
    } else {
        "read"
    };
    let cores: CpuSet = problem.loads.iter().map(|(_, core)| *core).collect();
    option("--victim", format!("bandwidth:{kind}"));
    option("--victim-cpu", task.core.to_string());
    option("--frame", format!("{}K", task.frame_bytes.div_ceil(1024)));
    option("--period", format!("{}us", task.period_us));
    option("--deadline", format!("{}us", task.deadline_us));
    option("--load", workload.clone());
    option("--cpus", cores.to_string());
    option("--load-memory", args.load_memory.to_string());
    option("--jobs", jobs.to_string());
    option("--guard", "none".into());
    Ok(options)
}

/// Runs the deadline case without a guard, and with the setting if there is one.
fn verify(
    mut options: Vec<String>,
    platform: &Platform,
    problem: &Problem,
    plan: &Plan,
    recommended: &Outcome,
) -> anyhow::Result<Value> {
    let place = options[1].clone();
    if let Some(setting) = &recommended.setting {
        let budgets = budgets(setting, problem, platform);
        options.extend(guard_options(setting, &budgets));
    }
    let summary = measure(&options)?;
    let unguarded = Measured::of(&summary, false)?;
    let guarded = recommended.setting.map(|_| Measured::of(&summary, true));
    let guarded = guarded.transpose()?;
    let share_of = |load: f64, all: f64| if all > 0.0 { load / all } else { 0.0 };
    let told = |measured: &Measured| {
        json!({
            "case": measured.case,
            "miss_share": measured.miss_share,
            "p99_ms": measured.p99_ms,
            "load_mib_s": measured.load_mib_s,
            "load_share": share_of(measured.load_mib_s, unguarded.load_mib_s),
        })
    };
    Ok(json!({
        "place": place,
        "predicted": {
            "miss_share": recommended.miss_share,
            "p99_ms": recommended.p99_ms,
            "load_mib_s": recommended.load_mib_s,
            "load_share": share_of(recommended.load_mib_s, plan.unguarded.load_mib_s),
        },
        "predicted_unguarded": {
            "miss_share": plan.unguarded.miss_share,
            "p99_ms": plan.unguarded.p99_ms,
            "load_mib_s": plan.unguarded.load_mib_s,
            "load_share": 1.0,
        },
        "unguarded": told(&unguarded),
        "guarded": guarded.as_ref().map(told),
    }))
}

fn tell_verified(verified: &Value) -> anyhow::Result<()> {
    let place = verified["place"].as_str().unwrap_or_default();
    outln!("\nPredicted against measured ({place}):")?;
    let mut all = table(&["", "missed %", "p99 ms", "load MB/s", "of unguarded %"]);
    for (name, key) in [
        ("predicted, no guard", "predicted_unguarded"),
        ("measured, no guard", "unguarded"),
        ("predicted, with the setting", "predicted"),
        ("measured, with the setting", "guarded"),
    ] {
        let figure = |name: &str, by: f64, digits: usize| {
            let value = verified[key][name].as_f64();
            value.map_or("-".into(), |value| number(by * value, digits))
        };
        all.add_row(vec![
            name.into(),
            figure("miss_share", 100.0, 1),
            figure("p99_ms", 1.0, 2),
            figure("load_mib_s", 1.0, 0),
            figure("load_share", 100.0, 1),
        ]);
    }
    outln!("{}", lines(all, 1..5))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_read_as_it_is_typed() {
        let task: TaskSpec = "hrt:frame=8294400,period=20ms,deadline=13ms@0"
            .parse()
            .unwrap();
        assert_eq!(
            task,
            TaskSpec {
                name: "hrt".into(),
                frame_bytes: 8_294_400,
                period_us: 20_000,
                deadline_us: 13_000,
                core: 0,
            }
        );
        let small: TaskSpec = "t:deadline=500us,frame=64K,period=1ms@3".parse().unwrap();
        assert_eq!((small.frame_bytes, small.core), (65_536, 3));
    }

    #[test]
    fn a_task_or_load_that_makes_no_sense_is_refused() {
        for (text, why) in [
            ("hrt", "NAME:frame"),
            ("hrt:frame=1M,period=20ms,deadline=13ms", "NAME:frame"),
            ("hrt:frame=1M,period=20ms,deadline=13ms@x", "core `x`"),
            ("hrt:frame=1M,period=20ms@0", "deadline is missing"),
            ("hrt:frame=1Q,period=20ms,deadline=1ms@0", "frame"),
            ("hrt:frame=1M,period=20,deadline=1ms@0", "period"),
            (
                "hrt:frame=1M,period=20ms,deadline=21ms@0",
                "not above the period",
            ),
            (
                "hrt:frame=1M,period=20ms,deadline=1ms,jobs=3@0",
                "`jobs` is not known",
            ),
            (
                "hrt:frame=1,period=20ms,deadline=1ms@0",
                "64 bytes to 1 GiB",
            ),
        ] {
            let error = text.parse::<TaskSpec>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(
            "bandwidth:write"
                .parse::<LoadSpec>()
                .unwrap_err()
                .contains("@CORES")
        );
        assert!(
            "bandwidth:write@3-1"
                .parse::<LoadSpec>()
                .unwrap_err()
                .contains("cores `3-1`")
        );
    }

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    /// What `memwarden realtime` would be given.
    fn verification_of(words: &str) -> anyhow::Result<String> {
        let line = std::iter::once("plan").chain(words.split(' '));
        let args = <Cli as clap::Parser>::try_parse_from(line)?.args;
        let platform = Platform::find(&args.platform)?;
        let problem = args.problem(&platform)?;
        let place = args.verify.expect("--verify is given");
        Ok(verification(place, &args, &platform, &problem)?.join(" "))
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

    #[test]
    fn a_setting_becomes_the_commands_that_make_it() {
        let pi = Platform::find("raspberry-pi-3").unwrap();
        let problem = Problem {
            task: Task {
                frame_bytes: 64,
                period_us: 2,
                deadline_us: 1,
                jobs: 1,
            },
            task_core: 0,
            loads: vec![("bandwidth:read".into(), 1), ("bandwidth:read".into(), 3)],
            load_bytes: 64,
            goal: Goal {
                miss_ratio: 0.0,
                margin_us: 0,
            },
            maximise: Maximise::Load,
            seed: 1,
        };
        let setting = Setting {
            task_mib_s: Some(700),
            load_mib_s: 50,
            best_effort: Mode::Proportional,
            period_us: 1000,
        };
        assert_eq!(
            commands(Some(&setting), &problem, &pi),
            [
                "memwarden guard start --period 1000us",
                "memwarden guard set --mb 700,50,max,50",
                "memwarden guard mode --best-effort proportional",
            ]
        );
        assert!(commands(None, &problem, &pi).is_empty());
    }
}
