// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a deadline to budgets: the regulator settings that the model tries, and the recommended setting. The search is
//! in [`memwarden_sim::plan`].

use std::cell::Cell;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use memwarden_platform::as_text;
use memwarden_platform::units::{Size, Time, parse_size};
use memwarden_run::studies::plan::{self as study, Case, NAME, Summary, Verdict, Verified};
use memwarden_run::{GuardSettings, RunFolder, Sample};
use memwarden_sim::Platform;
use memwarden_sim::cases::{Mode, Task};
use memwarden_sim::plan::{self, Choice, Found, Goal, Maximise, Outcome, Plan, Problem, Setting};
use memwarden_sim::platform::PlatformError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::loads::{self, LoadSpec};
use crate::settings::check_within;
use crate::{Error, RunRequest, Settings, Simulated};

/// A task in the form of the command line: `NAME:frame=BYTES,period=TIME,deadline=TIME@CORE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSpec {
    /// Its name.
    pub name: String,
    /// Bytes that a job reads.
    pub frame_bytes: u64,
    /// Time between two releases.
    pub period_us: u64,
    /// Time from a release to its deadline.
    pub deadline_us: u64,
    /// Its core.
    pub core: usize,
}

impl fmt::Display for TaskSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:frame={},period={}us,deadline={}us@{}",
            self.name, self.frame_bytes, self.period_us, self.deadline_us, self.core
        )
    }
}

as_text!(TaskSpec);

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
                Ok(time.map_err(|error| format!("{key}: {error}"))?.as_us())
            };
            match key {
                // Without a unit the number is bytes, as a frame is seldom whole KiB.
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

/// The quantity to maximise within the goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum More {
    /// The loads' traffic.
    Load,
    /// Time between the end of the longest job and its deadline.
    Margin,
}

/// The settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// A platform's name, or its file.
    pub platform: String,
    /// The task: `NAME:frame=BYTES,period=TIME,deadline=TIME@CORE`.
    #[schemars(with = "String")]
    pub task: TaskSpec,
    /// Loads beside the task: `WORKLOAD@CORES`.
    #[schemars(with = "Vec<String>")]
    pub load: Vec<LoadSpec>,
    /// Each load's buffer.
    #[schemars(with = "String")]
    pub load_memory: Size,
    /// Largest share of late jobs.
    pub miss_ratio: f64,
    /// A job counts as late if it ends less than this before its deadline.
    #[schemars(with = "String")]
    pub margin: Time,
    /// Confidence with which the recommended setting's jobs must show the miss ratio.
    pub confidence: f64,
    /// The quantity to maximise within the goal.
    pub maximise: More,
    /// Jobs of each run.
    pub jobs: u64,
    /// Seed for the placement of the workloads' pages.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            platform: "raspberry-pi-3".into(),
            task: TaskSpec {
                name: "hrt".into(),
                frame_bytes: 8_294_400,
                period_us: 20_000,
                deadline_us: 13_000,
                core: 0,
            },
            load: "bandwidth:write@1-3".parse().into_iter().collect(),
            load_memory: Size::kib(16 << 10),
            miss_ratio: 0.0,
            margin: Time::ZERO,
            confidence: 0.95,
            maximise: More::Load,
            jobs: 5,
            seed: 1,
        }
    }
}

/// Most jobs of a run.
const MAX_JOBS: u64 = 100_000;

impl Settings for Config {
    type Whole = study::Whole;

    const COMMAND: &str = "plan";

    fn check(&self) -> Result<(), Error> {
        let refused = |why: String| Err(Error::BadInput(why));
        if !(0.0..1.0).contains(&self.miss_ratio) {
            return refused(format!(
                "--miss-ratio {}: give a share from 0 to below 1",
                self.miss_ratio
            ));
        }
        if !(self.confidence > 0.0 && self.confidence < 1.0) {
            return refused(format!(
                "--confidence {}: give a share above 0 and below 1, such as 0.95",
                self.confidence
            ));
        }
        check_within("--jobs", self.jobs, 1..=MAX_JOBS)?;
        if self.margin.as_us() >= self.task.deadline_us {
            return refused(format!(
                "--margin {}: give less than the deadline",
                self.margin
            ));
        }
        if let Some(needed) = self.goal().jobs_needed().filter(|jobs| *jobs > MAX_JOBS) {
            return refused(format!(
                "--miss-ratio {} with --confidence {}: this needs {needed} jobs, and a run has at most {MAX_JOBS}",
                self.miss_ratio, self.confidence
            ));
        }
        Ok(())
    }
}

impl Config {
    fn goal(&self) -> Goal {
        Goal {
            miss_ratio: self.miss_ratio,
            margin_us: self.margin.as_us(),
            confidence: self.confidence,
        }
    }

    /// The problem, if it is valid on the platform.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn problem(&self, platform: &Platform) -> Result<Problem, Error> {
        self.check()?;
        let bytes = self.load_memory.bytes();
        let last = platform.machine.cores - 1;
        if self.task.core > last {
            return Err(Error::BadInput(format!(
                "--task: core {} is not one of {}'s 0-{last}",
                self.task.core, platform.name
            )));
        }
        Ok(Problem {
            task: Task {
                frame_bytes: self.task.frame_bytes,
                period_us: self.task.period_us,
                deadline_us: self.task.deadline_us,
                jobs: self.jobs,
            },
            task_core: self.task.core,
            loads: loads::spread("--load", &self.load, platform, bytes, Some(self.task.core))?,
            load_bytes: bytes,
            goal: self.goal(),
            maximise: match self.maximise {
                More::Load => Maximise::Load,
                More::Margin => Maximise::Margin,
            },
            seed: self.seed,
        })
    }
}

/// A plan with its run folder.
#[derive(Debug)]
pub struct Planned<E> {
    /// The run folder.
    pub folder: PathBuf,
    /// The result.
    pub summary: Summary,
    /// Reason why a requested verification failed.
    pub unverified: Option<E>,
}

/// Plans, and writes a run folder. `verify` measures the recommended setting; it receives the budgets as `guard set --mb`
/// takes them, or none if nothing needs regulation. The plan is kept if `verify` fails.
///
/// # Errors
/// When a setting is invalid on the platform, or on Ctrl-C before there is a plan; the settings that were tried are then in
/// `DIR.partial`.
pub fn run<E: fmt::Display>(
    config: &Config,
    request: RunRequest,
    verify: impl FnOnce(&Summary, Option<&Setting>, &Problem) -> Result<Option<Verified>, E>,
) -> Result<Planned<E>, Error> {
    let simulated = Simulated::find(&config.platform)?;
    let platform = &simulated.platform;
    let problem = config.problem(platform)?;
    let mut folder = simulated.begin(NAME, config, &request)?;
    // An estimate: the results decide how often budgets are halved.
    let most = 25 + 2 * platform.fit.len();
    let mut written = Ok(());
    let failed = Cell::new(false);
    let plan = plan::plan(
        platform,
        &problem,
        |done| {
            request
                .progress
                .step(done.min(most - 1), most, "simulating");
            !request.interrupt.came() && !failed.get()
        },
        |found| {
            if written.is_ok() {
                written = samples(&found_case(found, &problem, platform), &mut folder);
                failed.set(written.is_err());
            }
        },
    )?;
    written?;
    request.progress.step(most, most, "done");
    let plan = plan.ok_or(Error::Interrupted)?;
    let mut summary = summary(config, &simulated, &problem, &plan)?;
    let mut unverified = None;
    if let Some(choice) = &plan.recommended {
        match verify(&summary, choice.outcome.setting.as_ref(), &problem) {
            Ok(verified) => summary.whole.verified = verified,
            Err(error) => {
                summary.note(format!("The setting is not verified: {error:#}"));
                unverified = Some(error);
            }
        }
    }
    Ok(Planned {
        folder: folder.finish(&summary)?,
        summary,
        unverified,
    })
}

fn summary(
    config: &Config,
    simulated: &Simulated,
    problem: &Problem,
    plan: &Plan,
) -> Result<Summary, Error> {
    let platform = &simulated.platform;
    let memory = platform.memory().map_err(PlatformError::from)?;
    let case = |outcome: &Outcome| case(outcome, problem, platform);
    let choice = |choice: &Choice| chosen(choice, problem, platform);
    let mut summary = Summary::new(NAME, simulated.target());
    summary
        .cases
        .push(found_case(Found::Alone(&plan.alone), problem, platform));
    summary.cases.push(case(&plan.unguarded));
    summary.cases.extend(plan.tried.iter().map(case));
    summary.whole = study::Whole {
        platform: platform.name.clone(),
        memory: memory.name.clone(),
        memory_peak_gb_s: memory.peak_bytes_per_s() / 1e9,
        task: config.task.name.clone(),
        frame_bytes: problem.task.frame_bytes,
        period_us: problem.task.period_us,
        deadline_us: problem.task.deadline_us,
        margin_us: problem.goal.margin_us,
        miss_ratio: problem.goal.miss_ratio,
        confidence: problem.goal.confidence,
        jobs_needed: problem.goal.jobs_needed(),
        jobs: problem.task.jobs,
        front: plan.front.iter().map(|one| case(one).name).collect(),
        recommended: plan.recommended.as_ref().map(choice),
        robust: plan.robust.as_ref().map(choice),
        verified: None,
    };
    summary.note(format!(
        "Simulated: {}, the regulator is the real policy over modelled cores. Interrupts, the kernel's own traffic and the \
         cost of throttling are not modelled: verify a setting whose margin is small (--verify lab, --verify native).",
        platform.name
    ));
    Ok(summary)
}

/// The case of the task without its loads.
pub const ALONE: &str = "alone";
/// The case of the task and its loads without a guard.
pub const NO_GUARD: &str = "no guard";

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::None => "none",
        Mode::Spare => "spare",
        Mode::Proportional => "proportional",
    }
}

/// The budgets of all cores, as `guard set --mb` takes them.
#[must_use]
pub fn budgets(setting: &Setting, problem: &Problem, cores: usize) -> String {
    let budgets = setting.budgets(problem, cores);
    let words = budgets.iter().map(|budget| match budget {
        0 => "max".to_owned(),
        budget => budget.to_string(),
    });
    words.collect::<Vec<_>>().join(",")
}

fn case(outcome: &Outcome, problem: &Problem, platform: &Platform) -> Case {
    let cores = platform.machine.cores;
    let guard = outcome.setting.map(|setting| GuardSettings {
        backend: "sim".into(),
        budget_mib_s: setting
            .budgets(problem, cores)
            .iter()
            .map(|budget| (*budget > 0).then_some(*budget as f64))
            .collect(),
        best_effort: mode(setting.best_effort).into(),
        period_us: Some(setting.period_us),
        ..GuardSettings::default()
    });
    let name = outcome.setting.map_or_else(
        || NO_GUARD.to_owned(),
        |setting| {
            let sharing = match setting.best_effort {
                Mode::None => String::new(),
                shared => format!(" {}", mode(shared)),
            };
            let budgets = budgets(&setting, problem, cores);
            format!("{budgets}{sharing}, {} us", setting.period_us)
        },
    );
    Case {
        name,
        guard,
        miss_share: outcome.miss_share,
        p99_ms: outcome.p99_ms,
        worst_ms: outcome.worst_ms,
        margin_ms: outcome.margin_ms,
        load_mib_s: outcome.load_mib_s,
        traffic: memwarden_run::studies::Traffic {
            memory_gb_s: outcome.memory_gb_s,
            memory_peak_share: outcome.memory_peak_share,
            memory_power_mw: outcome.memory_power_mw,
        },
        reached: outcome.reached,
    }
}

/// The case of an outcome of the search.
fn found_case(found: Found, problem: &Problem, platform: &Platform) -> Case {
    let case = case(found.outcome(), problem, platform);
    match found {
        Found::Alone(_) => Case {
            name: ALONE.into(),
            ..case
        },
        Found::Beside(_) => case,
    }
}

fn chosen(choice: &Choice, problem: &Problem, platform: &Platform) -> study::Choice {
    let case = |outcome: &Outcome| case(outcome, problem, platform);
    let sensitivity = choice.sensitivity.iter().map(|one| study::Sensitivity {
        number: one.path.clone(),
        is: one.value,
        were: one.changed,
        case: case(&one.outcome),
    });
    study::Choice {
        case: case(&choice.outcome),
        jobs: choice.jobs,
        late: choice.late,
        candidate: choice.candidate,
        most_late: choice.most_late,
        verdict: match choice.verdict() {
            plan::Verdict::Robust => Verdict::Robust,
            plan::Verdict::Fragile => Verdict::Fragile,
            plan::Verdict::Unknown => Verdict::Unknown,
        },
        commands: commands(choice.outcome.setting.as_ref(), problem, platform),
        sensitivity: sensitivity.collect(),
        untried: choice.untried.clone(),
    }
}

/// The commands to type on the board.
fn commands(setting: Option<&Setting>, problem: &Problem, platform: &Platform) -> Vec<String> {
    let Some(setting) = setting else {
        return Vec::new();
    };
    let budgets = budgets(setting, problem, platform.machine.cores);
    let mut all = vec![
        format!(
            "memwarden guard start --period {}",
            Time::us(setting.period_us)
        ),
        format!("memwarden guard set --mb {budgets}"),
    ];
    if setting.best_effort != Mode::None {
        all.push(format!(
            "memwarden guard mode --best-effort {}",
            mode(setting.best_effort)
        ));
    }
    all
}

/// Writes a case's figures as rows at once; each figure covers all jobs of one run.
fn samples(case: &Case, folder: &mut RunFolder) -> Result<(), Error> {
    for (role, metric, unit, value) in [
        ("victim", "miss_share", "", case.miss_share),
        ("victim", "p99_ms", "ms", case.p99_ms),
        ("victim", "worst_ms", "ms", case.worst_ms),
        ("aggressor", "load_mib_s", "MiB/s", case.load_mib_s),
    ] {
        folder.append(&Sample::new(&case.name, 0, role, metric, unit, value))?;
    }
    Ok(folder.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Interrupt;
    use memwarden_run::Existing;

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
        assert_eq!(small.to_string().parse::<TaskSpec>(), Ok(small));
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

    /// A plan that takes about a second.
    fn small() -> Config {
        Config {
            task: "t:frame=16K,period=200us,deadline=200us@0".parse().unwrap(),
            load: "bandwidth:read@1".parse().into_iter().collect(),
            load_memory: Size::kib(1 << 10),
            jobs: 1,
            ..Config::default()
        }
    }

    #[test]
    fn a_plan_outlives_a_verification_that_fails() {
        let scratch = tempfile::tempdir().unwrap();
        let out = scratch.path().join("plan");
        let planned = run(
            &small(),
            RunRequest::to(&out, &Interrupt::default(), &mut ()),
            |_, _, _| Err("no guard here"),
        )
        .unwrap();
        assert_eq!(planned.unverified, Some("no guard here"));
        let text = std::fs::read_to_string(planned.folder.join("summary.json")).unwrap();
        let kept: Summary = serde_json::from_str(&text).unwrap();
        assert!(kept.whole.recommended.is_some() && kept.whole.verified.is_none());
        let note = "The setting is not verified: no guard here";
        assert!(kept.notes.iter().any(|one| one == note), "{text}");
    }

    #[test]
    fn a_search_that_is_interrupted_keeps_the_settings_that_were_tried() {
        let scratch = tempfile::tempdir().unwrap();
        let out = scratch.path().join("plan");
        // Two runs without a guard; then each sharing mode has at least one setting.
        for after in [1, 3] {
            let interrupt = Interrupt::default();
            let ended = run(
                &small(),
                RunRequest::new(
                    Some(&out),
                    Existing::Replace,
                    &interrupt,
                    &mut interrupt.after(after),
                ),
                |_, _, _| -> Result<_, Error> { unreachable!("there is no plan") },
            );
            assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
            assert!(!out.exists());
            let partial = out.with_extension("partial");
            let rows = memwarden_run::read_samples(&partial.join("samples.csv")).unwrap();
            let cases: Vec<_> = rows.chunks(4).map(|rows| &rows[0].case).collect();
            assert!(cases.len() >= after, "{cases:?}");
            let first = [ALONE, NO_GUARD];
            let count = cases.len().min(2);
            assert_eq!(cases[..count], first[..count]);
            assert!(!partial.join("summary.json").exists());
        }
    }

    #[test]
    fn a_miss_ratio_too_small_to_show_is_refused() {
        for miss_ratio in [1e-5, 1e-17, f64::MIN_POSITIVE] {
            let config = Config {
                miss_ratio,
                ..Config::default()
            };
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains("a run has at most 100000"), "{error}");
        }
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
                confidence: 0.95,
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
                "memwarden guard start --period 1ms",
                "memwarden guard set --mb 700,50,max,50",
                "memwarden guard mode --best-effort proportional",
            ]
        );
        assert!(commands(None, &problem, &pi).is_empty());
    }
}
