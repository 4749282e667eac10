// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a deadline to budgets: the model tries settings of the regulator; the plan is the best
//! of those with which the task is in time.
//!
//! The search has several stages. First come all sharing modes, with budgets for the load a
//! factor of four apart. Then the gap between the largest budget with which the task is in time
//! and the smallest with which it isn't is halved repeatedly. Then the best of these settings
//! run with other periods. More budget need not always be worse for the task, so each figure is
//! a separate run. Finally the best settings run again with four times the jobs, or as many as
//! the goal's confidence requires, and with pages spread by another seed, until one still
//! reaches the goal: that one is recommended. If a wrong number of the platform would break it,
//! the plan also has the best setting that none of them breaks.
//!
//! The jobs of each run with a regulator are released at points spread evenly over its period:
//! on a machine the phase between the two is constant, but unknown.

use std::cmp::Ordering;
use std::fmt;

use serde::Serialize;

use crate::cases::{Budgets, Case, Measure, Mode, Task};
use crate::platform::{Platform, PlatformError};
use crate::sweep::sweep;

/// The smallest budget to try for a core of the load, MB/s (2^20 bytes).
const SMALLEST: u64 = 25;
/// The factor from each budget to the next, up to the memory's peak.
const APART: u64 = 4;
/// Periods to try with the best setting, us.
const PERIODS_US: [u64; 3] = [500, 2000, 5000];
/// The period of all other settings, us.
const PERIOD_US: u64 = 1000;
/// Halvings between a budget that reaches the goal and one that doesn't.
const HALVINGS: usize = 3;
/// The recommended setting is tested with this many times the jobs of the search's runs.
const CONFIRMED_BY: u64 = 4;
/// Assumed error of the uncertain numbers, percent, rounded up to a whole number.
const WRONG_BY: u64 = 10;

/// The goal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goal {
    /// The allowed share of missed releases, from 0 to 1.
    pub miss_ratio: f64,
    /// A job that ends less than this before its deadline counts as late, us; less than the
    /// deadline.
    pub margin_us: u64,
    /// The confidence with which the recommended setting's jobs must show this share, above 0
    /// and below 1.
    pub confidence: f64,
}

impl Goal {
    /// The smallest number of jobs, all in time, that shows the miss ratio with the confidence
    /// for the first candidate. No number of jobs shows that none is ever late.
    #[must_use]
    pub fn jobs_needed(&self) -> Option<u64> {
        jobs_that_show(self.miss_ratio, self.confidence_of(1))
    }

    /// The confidence of the test of this candidate, counted from 1. Candidates are tested
    /// until one passes, and each test may pass a wrong one. So the k-th test gets 1/(k (k +
    /// 1)) of the probability of error that the confidence allows; these parts add up to at
    /// most the whole.
    #[must_use]
    pub fn confidence_of(&self, candidate: u64) -> f64 {
        1.0 - (1.0 - self.confidence) / (candidate * (candidate + 1)) as f64
    }
}

/// The smallest number of jobs, all in time, that shows with this confidence that at most this
/// share is late: if more are late, `n` jobs are all in time with a probability of at most
/// `(1 - ratio)^n`.
#[must_use]
pub fn jobs_that_show(miss_ratio: f64, confidence: f64) -> Option<u64> {
    let jobs = ((1.0 - confidence).ln() / (-miss_ratio).ln_1p()).ceil();
    (miss_ratio > 0.0).then_some(jobs as u64)
}

/// The largest share of late jobs that is still possible with this confidence when `late` of
/// `jobs` are late (Clopper and Pearson's upper limit: with a larger share, so few late jobs
/// have a probability below 1 - confidence). Jobs are treated as independent.
#[must_use]
pub fn most_late(late: u64, jobs: u64, confidence: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    if late >= jobs {
        return high;
    }
    for _ in 0..50 {
        let middle = f64::midpoint(low, high);
        if so_few_late(late, jobs, middle) > 1.0 - confidence {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The probability that at most `late` of `jobs` are late, given the share of late jobs.
fn so_few_late(late: u64, jobs: u64, share: f64) -> f64 {
    let mut log = jobs as f64 * (-share).ln_1p();
    let mut sum = log.exp();
    for k in 0..late {
        log += ((jobs - k) as f64 / (k + 1) as f64).ln() + (share / (1.0 - share)).ln();
        sum += log.exp();
    }
    sum
}

/// The quantity to maximise within the goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Maximise {
    /// The load's traffic.
    Load,
    /// The time from the end of the longest job to its deadline.
    Margin,
}

/// A task, the load beside it, and the goal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Problem {
    /// The task.
    pub task: Task,
    /// Its core.
    pub task_core: usize,
    /// Other workloads, by the names of [`Platform::workload`], each with its core.
    pub loads: Vec<(String, usize)>,
    /// The loads' buffers, bytes each.
    pub load_bytes: u64,
    /// The goal.
    pub goal: Goal,
    /// The quantity to maximise.
    pub maximise: Maximise,
    /// Spreads the workloads' pages.
    pub seed: u64,
}

/// The regulator's setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The budget of the task's core, MB/s (2^20 bytes); `None` means no limit.
    pub task_mib_s: Option<u64>,
    /// The budget of each core of the load.
    pub load_mib_s: u64,
    /// What happens when all cores have used their budgets.
    pub best_effort: Mode,
    /// The period, us.
    pub period_us: u64,
}

/// The outcome of a setting.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The setting; `None` means no regulator.
    pub setting: Option<Setting>,
    /// The share of releases whose job was late ([`Goal::margin_us`]) or skipped.
    pub miss_share: f64,
    /// 99th percentile (nearest rank), ms.
    pub p99_ms: f64,
    /// The longest job, ms.
    pub worst_ms: f64,
    /// From its end to the deadline, ms; negative if it was late.
    pub margin_ms: f64,
    /// Traffic of all loads together, MB/s (2^20 bytes).
    pub load_mib_s: f64,
    /// Traffic of the memory in all, GB/s (10^9 bytes).
    pub memory_gb_s: f64,
    /// The same as a share of the memory's peak.
    pub memory_peak_share: f64,
    /// Mean power of the memory's chips, mW, if their currents are known.
    pub memory_power_mw: Option<f64>,
    /// Whether the goal is reached.
    pub reached: bool,
}

/// An uncertain number of the platform, and the outcome of the recommended setting with another
/// value of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sensitivity {
    /// Its path in the platform file.
    pub path: String,
    /// The platform's value.
    pub value: u64,
    /// The assumed value.
    pub changed: u64,
    /// The outcome.
    pub outcome: Outcome,
}

/// A setting that was in time in a long run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    /// The long run's outcome.
    pub outcome: Outcome,
    /// The number of its jobs.
    pub jobs: u64,
    /// The number of late jobs.
    pub late: u64,
    /// Its place among the tested candidates, from 1.
    pub candidate: u64,
    /// The share of late jobs that is still possible ([`most_late`], [`Goal::confidence_of`]).
    pub most_late: f64,
    /// Its outcomes with other numbers in the platform, with as many jobs.
    pub sensitivity: Vec<Sensitivity>,
    /// The uncertain numbers, or changes of them, that were not tried, with the reason.
    pub untried: Vec<String>,
}

/// Whether a wrong number of the platform breaks a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// None of the tried changes breaks it.
    Robust,
    /// At least one of them breaks it.
    Fragile,
    /// No uncertain number of the platform was tried.
    Unknown,
}

impl Choice {
    /// By its sensitivity.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self.sensitivity.as_slice() {
            [] => Verdict::Unknown,
            all if all.iter().all(|one| one.outcome.reached) => Verdict::Robust,
            _ => Verdict::Fragile,
        }
    }
}

/// The result of the search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The outcome with the loads and without the regulator.
    pub unguarded: Outcome,
    /// The outcome of the task alone, without the regulator.
    pub alone: Outcome,
    /// All settings that were tried.
    pub tried: Vec<Outcome>,
    /// The Pareto front: those settings, and no regulator, for which no other has both more
    /// load and an earlier longest job; by load.
    pub front: Vec<Outcome>,
    /// The recommended setting; `None` if none reaches the goal.
    pub recommended: Option<Choice>,
    /// If that is fragile, the best robust one, if there is one.
    pub robust: Option<Choice>,
}

/// The budget of a task that reads this many bytes within this time, and a tenth more, MB/s
/// (2^20 bytes).
#[must_use]
pub fn needed_mib_s(frame_bytes: u64, within_us: u64) -> u64 {
    let bytes_per_s = frame_bytes * 1_000_000 / within_us.max(1);
    (bytes_per_s * 11 / 10).div_ceil(1 << 20).max(1)
}

impl Problem {
    fn case(&self, platform: &Platform, setting: Option<&Setting>, loads: bool) -> Case {
        let cores = platform.machine.cores;
        let mut workloads = vec!["idle".to_owned(); cores];
        if loads {
            for (name, core) in &self.loads {
                workloads[*core].clone_from(name);
            }
        }
        workloads[self.task_core] = "task".into();
        let guard = setting.map(|setting| Budgets {
            mib_s: setting.budgets(self, cores),
            best_effort: setting.best_effort,
            reclaim: false,
            period_us: setting.period_us,
            per_bank: false,
        });
        Case {
            name: String::new(),
            workloads,
            memory_bytes: self.load_bytes,
            task: Some(Task {
                deadline_us: self.task.deadline_us - self.goal.margin_us,
                ..self.task
            }),
            guard,
            published: Default::default(),
            fit: Default::default(),
        }
    }

    fn run(
        &self,
        platform: &Platform,
        setting: Option<Setting>,
        loads: bool,
    ) -> Result<Outcome, PlatformError> {
        let figures = self
            .case(platform, setting.as_ref(), loads)
            .run_spread(platform, self.seed)?;
        let figure = |measure| figures.get(&measure).copied().unwrap_or(0.0);
        let deadline_ms = self.task.deadline_us as f64 / 1e3;
        let (p99_ms, worst_ms) = (figure(Measure::P99Ms), figure(Measure::WorstMs));
        let miss_share = figure(Measure::MissShare);
        Ok(Outcome {
            setting,
            miss_share,
            p99_ms,
            worst_ms,
            margin_ms: deadline_ms - worst_ms,
            load_mib_s: figure(Measure::LoadMibS),
            memory_gb_s: figure(Measure::MemoryGbS),
            memory_peak_share: figure(Measure::MemoryPeakShare),
            memory_power_mw: figures.get(&Measure::MemoryPowerMw).copied(),
            reached: miss_share <= self.goal.miss_ratio,
        })
    }

    /// Compares two outcomes that both reach the goal: the greater is better.
    fn order(&self, one: &Outcome, other: &Outcome) -> Ordering {
        let load = one.load_mib_s.total_cmp(&other.load_mib_s);
        let margin = one.margin_ms.total_cmp(&other.margin_ms);
        match self.maximise {
            Maximise::Load => load.then(margin),
            Maximise::Margin => margin.then(load),
        }
    }

    /// The same problem with the jobs that the test of this candidate (counted from 1)
    /// requires. Another seed spreads the pages, since the search chose the candidate by its
    /// own jobs.
    fn test(&self, candidate: u64) -> Self {
        let mut test = self.clone();
        let confidence = self.goal.confidence_of(candidate);
        let needed = jobs_that_show(self.goal.miss_ratio, confidence);
        test.task.jobs = (self.task.jobs * CONFIRMED_BY).max(needed.unwrap_or(0));
        // Each core's workload has the seed XOR the core's number: the next seed would give one
        // core the pages of another.
        test.seed = !self.seed;
        test
    }

    fn needed_mib_s(&self) -> u64 {
        needed_mib_s(
            self.task.frame_bytes,
            self.task.deadline_us - self.goal.margin_us,
        )
    }

    fn first_settings(&self, peak_mib_s: u64) -> Vec<Setting> {
        let mut all = Vec::new();
        for best_effort in [Mode::None, Mode::Spare, Mode::Proportional] {
            // Best effort begins when every core has used its budget, so the task must get a
            // budget that it uses up.
            let task_mib_s = match best_effort {
                Mode::None => None,
                Mode::Spare | Mode::Proportional => Some(self.needed_mib_s()),
            };
            let each_most = peak_mib_s / self.loads.len().max(1) as u64;
            let mut load_mib_s = SMALLEST;
            while load_mib_s <= each_most {
                all.push(Setting {
                    task_mib_s,
                    load_mib_s,
                    best_effort,
                    period_us: PERIOD_US,
                });
                load_mib_s *= APART;
            }
        }
        all
    }
}

impl Setting {
    /// MB/s (2^20 bytes) for every core in order; 0 means no limit.
    #[must_use]
    pub fn budgets(&self, problem: &Problem, cores: usize) -> Vec<u64> {
        let mut budgets = vec![0; cores];
        for (_, core) in &problem.loads {
            budgets[*core] = self.load_mib_s;
        }
        budgets[problem.task_core] = self.task_mib_s.unwrap_or(0);
        budgets
    }
}

/// The outcomes for which no other has both more load and an earlier longest job.
fn front(all: &[&Outcome]) -> Vec<Outcome> {
    let mut sorted = all.to_vec();
    sorted.sort_by(|a, b| {
        let load = b.load_mib_s.total_cmp(&a.load_mib_s);
        load.then(a.worst_ms.total_cmp(&b.worst_ms))
    });
    let mut least_ms = f64::INFINITY;
    let mut front = Vec::new();
    for outcome in sorted {
        if outcome.worst_ms < least_ms {
            least_ms = outcome.worst_ms;
            front.push(outcome.clone());
        }
    }
    front
}

/// An outcome of the search, passed on as soon as its stage is over.
#[derive(Debug, Clone, Copy)]
pub enum Found<'a> {
    /// Of the task alone, without the regulator.
    Alone(&'a Outcome),
    /// Of the task beside its loads.
    Beside(&'a Outcome),
}

impl<'a> Found<'a> {
    /// The outcome.
    #[must_use]
    pub fn outcome(&self) -> &'a Outcome {
        match self {
            Self::Alone(outcome) | Self::Beside(outcome) => outcome,
        }
    }
}

/// Why there is no plan.
enum Stop {
    /// `told` ended the search.
    Ended,
    /// The platform cannot run the problem.
    Fault(PlatformError),
}

impl From<PlatformError> for Stop {
    fn from(error: PlatformError) -> Self {
        Self::Fault(error)
    }
}

/// Runs the stages.
struct Stages<'a, F, K> {
    platform: &'a Platform,
    problem: &'a Problem,
    told: F,
    found: K,
    done: usize,
    /// Number of candidates whose tests count against the confidence.
    tested: u64,
}

type Results = Vec<Result<Outcome, PlatformError>>;

impl<F: FnMut(usize) -> bool, K: FnMut(Found)> Stages<'_, F, K> {
    /// Runs all of them, on all CPUs.
    fn all<T: Sync>(
        &mut self,
        all: &[T],
        run: impl Fn(&T) -> Result<Outcome, PlatformError> + Sync,
    ) -> Result<Results, Stop> {
        self.until_ended(all, run).map_err(|_| Stop::Ended)
    }

    /// Runs all of them, on all CPUs. If the search is ended, the error has the first results.
    fn until_ended<T: Sync>(
        &mut self,
        all: &[T],
        run: impl Fn(&T) -> Result<Outcome, PlatformError> + Sync,
    ) -> Result<Results, Results> {
        let (before, told) = (self.done, &mut self.told);
        let outcomes = sweep(all, run, |done| told(before + done));
        self.done += all.len();
        outcomes
    }

    /// Runs settings, with the loads or without, and passes their outcomes on.
    fn run(&mut self, all: &[(Option<Setting>, bool)]) -> Result<Vec<Outcome>, Stop> {
        let (platform, problem) = (self.platform, self.problem);
        let outcomes = self.until_ended(all, |(setting, loads)| {
            problem.run(platform, *setting, *loads)
        });
        let ended = outcomes.is_err();
        let (Ok(outcomes) | Err(outcomes)) = outcomes;
        let outcomes: Vec<Outcome> = outcomes.into_iter().collect::<Result<_, _>>()?;
        for (outcome, (_, loads)) in outcomes.iter().zip(all) {
            (self.found)(match loads {
                true => Found::Beside(outcome),
                false => Found::Alone(outcome),
            });
        }
        if ended {
            Err(Stop::Ended)
        } else {
            Ok(outcomes)
        }
    }

    /// Runs the candidates for longer, best first, until one still reaches the goal.
    fn confirm(&mut self, candidates: &[Outcome]) -> Result<Option<Choice>, Stop> {
        let goal = self.problem.goal;
        let platform = self.platform;
        let together = std::thread::available_parallelism().map_or(1, usize::from);
        for some in candidates.chunks(together) {
            let tests: Vec<_> = (self.tested + 1..)
                .zip(some)
                .map(|(candidate, one)| (candidate, self.problem.test(candidate), one.setting))
                .collect();
            let outcomes = self.all(&tests, |(_, test, setting)| {
                test.run(platform, *setting, true)
            })?;
            for ((candidate, test, _), outcome) in tests.into_iter().zip(outcomes) {
                let outcome = outcome?;
                self.tested = candidate;
                let jobs = test.task.jobs;
                let late = (outcome.miss_share * jobs as f64).round() as u64;
                let most_late = most_late(late, jobs, goal.confidence_of(candidate));
                if outcome.reached && (goal.miss_ratio == 0.0 || most_late <= goal.miss_ratio) {
                    return Ok(Some(Choice {
                        outcome,
                        jobs,
                        late,
                        candidate,
                        most_late,
                        sensitivity: Vec::new(),
                        untried: Vec::new(),
                    }));
                }
            }
        }
        Ok(None)
    }

    /// The setting with each of these numbers of the platform at another value, and the changes
    /// without a run. The seed is the search's: a test of the setting uses other jobs.
    fn changed(
        &mut self,
        setting: Option<Setting>,
        jobs: u64,
        changes: &[Change],
    ) -> Result<(Vec<Sensitivity>, Vec<String>), Stop> {
        let platform = self.platform;
        let mut problem = self.problem.clone();
        problem.task.jobs = jobs;
        let outcomes = self.all(changes, |change| {
            problem.run(&platform.with(&change.path, change.to), setting, true)
        })?;
        let (mut all, mut untried) = (Vec::new(), Vec::new());
        for (change, outcome) in changes.iter().zip(outcomes) {
            match outcome {
                Ok(outcome) => all.push(Sensitivity {
                    path: change.path.clone(),
                    value: change.from,
                    changed: change.to,
                    outcome,
                }),
                Err(error) => untried.push(format!("{change} ({error})")),
            }
        }
        Ok((all, untried))
    }

    /// The best candidate that no change breaks, with as many jobs as its own test will have.
    /// Changes that broke other candidates are tried first.
    fn robust(
        &mut self,
        candidates: &[Outcome],
        fragile: &Choice,
        changes: &[Change],
    ) -> Result<Option<Choice>, Stop> {
        let spoiled = |all: &[Sensitivity]| -> Vec<String> {
            let missed = all.iter().filter(|one| !one.outcome.reached);
            missed
                .map(|one| format!("{} {}", one.path, one.changed))
                .collect()
        };
        let mut spoilers = spoiled(&fragile.sensitivity);
        for candidate in candidates {
            if candidate.setting == fragile.outcome.setting {
                continue;
            }
            let (first, others): (Vec<Change>, Vec<Change>) = changes
                .iter()
                .cloned()
                .partition(|one| spoilers.contains(&format!("{} {}", one.path, one.to)));
            let jobs = self.problem.test(self.tested + 1).task.jobs;
            let (mut sensitivity, _) = self.changed(candidate.setting, jobs, &first)?;
            if !spoiled(&sensitivity).is_empty() {
                continue;
            }
            sensitivity.extend(self.changed(candidate.setting, jobs, &others)?.0);
            let more = spoiled(&sensitivity);
            if !more.is_empty() {
                spoilers.extend(more);
                continue;
            }
            if let Some(choice) = self.confirm(std::slice::from_ref(candidate))? {
                sensitivity.sort_by(|a, b| (&a.path, a.changed).cmp(&(&b.path, b.changed)));
                return Ok(Some(Choice {
                    sensitivity,
                    untried: fragile.untried.clone(),
                    ..choice
                }));
            }
        }
        Ok(None)
    }

    fn plan(&mut self) -> Result<Plan, Stop> {
        let (platform, problem) = (self.platform, self.problem);
        let memory = platform.memory().map_err(PlatformError::from)?;
        let peak_mib_s = (memory.peak_bytes_per_s() / f64::from(1 << 20)) as u64;
        let mut outcomes = self.run(&[(None, false), (None, true)])?;
        let (unguarded, alone) = (outcomes.remove(1), outcomes.remove(0));
        let loaded = |settings: Vec<Setting>| -> Vec<(Option<Setting>, bool)> {
            settings.into_iter().map(|one| (Some(one), true)).collect()
        };
        let mut tried = self.run(&loaded(problem.first_settings(peak_mib_s)))?;

        for _ in 0..HALVINGS {
            let modes = [Mode::None, Mode::Spare, Mode::Proportional].into_iter();
            let between: Vec<Setting> = modes.filter_map(|mode| between(&tried, mode)).collect();
            tried.extend(self.run(&loaded(between))?);
        }

        let reached = tried.iter().filter(|outcome| outcome.reached);
        let best = reached.max_by(|a, b| problem.order(a, b));
        if let Some(setting) = best.and_then(|best| best.setting) {
            let periods = PERIODS_US
                .into_iter()
                .filter(|period_us| *period_us < problem.task.period_us)
                .map(|period_us| Setting {
                    period_us,
                    ..setting
                });
            tried.extend(self.run(&loaded(periods.collect()))?);
        }
        // If nothing has to be regulated, nothing should be.
        let mut candidates: Vec<Outcome> =
            tried.iter().filter(|one| one.reached).cloned().collect();
        candidates.sort_by(|a, b| problem.order(b, a));
        if unguarded.reached && problem.maximise == Maximise::Load {
            candidates.insert(0, unguarded.clone());
        }
        let mut recommended = self.confirm(&candidates)?;
        let mut robust = None;
        if let Some(choice) = &mut recommended {
            let (changes, unchanged) = changes(platform);
            (choice.sensitivity, choice.untried) =
                self.changed(choice.outcome.setting, choice.jobs, &changes)?;
            choice.untried.extend(unchanged);
            if choice.verdict() == Verdict::Fragile {
                robust = self.robust(&candidates, choice, &changes)?;
            }
        }
        let all: Vec<&Outcome> = std::iter::once(&unguarded).chain(&tried).collect();
        Ok(Plan {
            front: front(&all),
            unguarded,
            alone,
            tried,
            recommended,
            robust,
        })
    }
}

/// An uncertain number of the platform at another value.
#[derive(Debug, Clone)]
struct Change {
    path: String,
    from: u64,
    to: u64,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -> {}", self.path, self.from, self.to)
    }
}

/// Each of them at least a tenth less and more; and those that are not possible: a tenth of
/// nothing is nothing, and some values are invalid in a platform.
fn changes(platform: &Platform) -> (Vec<Change>, Vec<String>) {
    let (mut all, mut unchanged) = (Vec::new(), Vec::new());
    for path in platform.fit.keys() {
        let from = platform.get(path).unwrap_or(0);
        if from == 0 {
            unchanged.push(format!("{path} (it is 0)"));
            continue;
        }
        let by = (from * WRONG_BY).div_ceil(100);
        for to in [from - by, from + by] {
            let change = Change {
                path: path.clone(),
                from,
                to,
            };
            match memwarden_machines::refuses(path, to) {
                Some(why) => unchanged.push(format!("{change} ({why})")),
                None => all.push(change),
            }
        }
    }
    (all, unchanged)
}

/// Searches for the setting. `told` gets the number of finished runs, and ends the search by
/// returning false; the result is then `None`. `found` gets the outcome of the task alone, beside
/// its loads, and with each setting, in the order of the plan.
///
/// # Errors
/// When the platform cannot run the problem.
pub fn plan(
    platform: &Platform,
    problem: &Problem,
    told: impl FnMut(usize) -> bool,
    found: impl FnMut(Found),
) -> Result<Option<Plan>, PlatformError> {
    let mut stages = Stages {
        platform,
        problem,
        told,
        found,
        done: 0,
        tested: 0,
    };
    match stages.plan() {
        Ok(plan) => Ok(Some(plan)),
        Err(Stop::Ended) => Ok(None),
        Err(Stop::Fault(error)) => Err(error),
    }
}

/// Between the largest budget that reaches the goal, below all that don't, and the next larger
/// one.
fn between(tried: &[Outcome], mode: Mode) -> Option<Setting> {
    let mut of_mode: Vec<(Setting, bool)> = tried
        .iter()
        .filter_map(|outcome| Some((outcome.setting?, outcome.reached)))
        .filter(|(setting, _)| setting.best_effort == mode)
        .collect();
    of_mode.sort_by_key(|(setting, _)| setting.load_mib_s);
    let first_not = of_mode.iter().position(|(_, reached)| !reached)?;
    let (above, _) = of_mode[first_not];
    let below = of_mode[..first_not]
        .last()
        .map_or(0, |(setting, _)| setting.load_mib_s);
    let middle = below.midpoint(above.load_mib_s);
    (middle > below).then_some(Setting {
        load_mib_s: middle,
        ..above
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(load_mib_s: f64, worst_ms: f64) -> Outcome {
        Outcome {
            setting: None,
            miss_share: 0.0,
            p99_ms: worst_ms,
            worst_ms,
            margin_ms: 10.0 - worst_ms,
            load_mib_s,
            memory_gb_s: 0.0,
            memory_peak_share: 0.0,
            memory_power_mw: None,
            reached: true,
        }
    }

    #[test]
    fn the_front_has_none_that_another_beats_in_both() {
        let all = [
            outcome(100.0, 5.0),
            outcome(200.0, 4.0),
            outcome(300.0, 9.0),
            outcome(300.0, 8.0),
            outcome(50.0, 3.0),
        ];
        let front = front(&all.iter().collect::<Vec<_>>());
        let loads: Vec<_> = front.iter().map(|one| one.load_mib_s).collect();
        assert_eq!(loads, [300.0, 200.0, 50.0]);
        assert!((front[0].worst_ms - 8.0).abs() < 1e-9);
    }

    const GOAL: Goal = Goal {
        miss_ratio: 0.0,
        margin_us: 0,
        confidence: 0.95,
    };

    /// An error of a tenth breaks the best setting; the alternative still reaches the goal,
    /// with less load.
    #[test]
    fn a_fragile_setting_has_a_robust_one_beside_it() {
        let xeon = Platform::find("xeon-w3530").unwrap();
        let mut problem = Problem {
            task: Task {
                frame_bytes: 256 << 10,
                period_us: 1000,
                deadline_us: 1000,
                jobs: 2,
            },
            task_core: 0,
            loads: vec![("bandwidth:write".into(), 1)],
            load_bytes: 8 << 20,
            goal: GOAL,
            maximise: Maximise::Load,
            seed: 1,
        };
        let alone = problem.run(&xeon, None, false).unwrap();
        problem.task.deadline_us = (alone.worst_ms * 1.06 * 1e3) as u64;
        let found = plan(&xeon, &problem, |_| true, |_| ()).unwrap().unwrap();
        let best = found.recommended.unwrap();
        assert_eq!(best.verdict(), Verdict::Fragile);
        let robust = found.robust.unwrap();
        assert_eq!(robust.verdict(), Verdict::Robust);
        assert_eq!(robust.sensitivity.len(), best.sensitivity.len());
        assert!(robust.outcome.load_mib_s < best.outcome.load_mib_s);
        let paths = |choice: &Choice| -> Vec<(String, u64)> {
            let all = choice.sensitivity.iter();
            all.map(|one| (one.path.clone(), one.changed)).collect()
        };
        assert_eq!(paths(&robust), paths(&best));
    }

    /// A small task on the first core.
    fn beside_three_writers(deadline_us: u64, jobs: u64) -> Problem {
        Problem {
            task: Task {
                frame_bytes: 256 << 10,
                period_us: 2000,
                deadline_us,
                jobs,
            },
            task_core: 0,
            loads: (1..4)
                .map(|core| ("bandwidth:write".into(), core))
                .collect(),
            load_bytes: 2 << 20,
            goal: GOAL,
            maximise: Maximise::Load,
            seed: 1,
        }
    }

    /// A small task: the model must find that the readers delay it, and a budget that helps;
    /// the recommended setting must be in time when it is run again.
    #[test]
    fn a_task_that_is_late_unguarded_gets_budgets_with_which_it_is_in_time() {
        let pi = Platform::find("raspberry-pi-3").unwrap();
        let mut problem = beside_three_writers(500, 2);
        let mut runs = 0;
        let mut cases = Vec::new();
        let plan = plan(
            &pi,
            &problem,
            |done| {
                runs = done;
                true
            },
            |found| cases.push(found.outcome().clone()),
        );
        let plan = plan.unwrap().unwrap();
        assert_eq!(cases[..2], [plan.alone.clone(), plan.unguarded.clone()]);
        assert_eq!(cases[2..], plan.tried);
        assert!(plan.alone.reached, "{:?}", plan.alone);
        assert!(!plan.unguarded.reached, "{:?}", plan.unguarded);
        let choice = plan.recommended.unwrap();
        assert_eq!((choice.jobs, choice.late), (8, 0));
        assert_eq!(choice.sensitivity.len(), 2 * pi.fit.len());
        assert!(choice.untried.is_empty(), "{:?}", choice.untried);
        // As many jobs as the setting itself, whose jobs use other pages.
        problem.task.jobs = choice.jobs;
        let one = &choice.sensitivity[0];
        let changed = pi.with(&one.path, one.changed);
        let setting = choice.outcome.setting;
        assert_eq!(problem.run(&changed, setting, true).unwrap(), one.outcome);
        assert_ne!(problem.run(&pi, setting, true).unwrap(), choice.outcome);
        problem.seed = !problem.seed;
        assert_eq!(problem.run(&pi, setting, true).unwrap(), choice.outcome);
        (problem.seed, problem.task.jobs) = (1, 2);
        let recommended = &choice.outcome;
        assert!(recommended.margin_ms >= 0.0 && recommended.load_mib_s > 0.0);
        assert!(recommended.load_mib_s < plan.unguarded.load_mib_s);
        let again = problem.run(&pi, recommended.setting, true).unwrap();
        assert!(again.reached && plan.tried.contains(&again), "{again:?}");
        // With time to spare, and with almost none.
        problem.goal.margin_us = 500 - (again.worst_ms * 1e3) as u64;
        let spared = problem.run(&pi, recommended.setting, true).unwrap();
        assert!(!spared.reached && spared.worst_ms == again.worst_ms);
        problem.goal.miss_ratio = spared.miss_share;
        let excused = problem.run(&pi, recommended.setting, true).unwrap();
        assert!(excused.reached);
        problem.goal = GOAL;
        // A deadline that the task misses alone has no plan.
        problem.task.deadline_us = 100;
        let none = super::plan(&pi, &problem, |_| true, |_| ())
            .unwrap()
            .unwrap();
        assert!(none.recommended.is_none() && none.robust.is_none());
    }

    /// Released when the guard's periods begin, no job is late; released at other points of
    /// them, every other one.
    #[test]
    fn jobs_that_are_late_only_at_some_points_of_the_guard_s_period_are_found() {
        let pi = Platform::find("raspberry-pi-3").unwrap();
        let problem = beside_three_writers(600, 20);
        let setting = Setting {
            task_mib_s: Some(459),
            load_mib_s: 175,
            best_effort: Mode::Spare,
            period_us: 1000,
        };
        let outcome = problem.run(&pi, Some(setting), true).unwrap();
        assert!(outcome.miss_share > 0.2, "{outcome:?}");
        let in_phase = problem.case(&pi, Some(&setting), true).run(&pi, 1).unwrap();
        assert_eq!(in_phase[&Measure::MissShare], 0.0);
    }

    #[test]
    fn the_releases_are_evenly_spread_over_the_guard_s_period() {
        for (period_us, guard_us, jobs) in [
            (20_000, 1000, 5),
            (20_000, 1000, 20),
            (16_667, 1000, 20),
            (20_000, 997, 200),
            (500, 1000, 30),
            (100, 5000, 7),
            (1000, 1000, 1),
        ] {
            let task = Task {
                frame_bytes: 64,
                period_us,
                deadline_us: period_us,
                jobs,
            };
            let guard_ps = guard_us * 1_000_000;
            let spread_ps = task.spread_ps(guard_ps);
            assert!(spread_ps >= task.period_ps());
            // The next number without a common divisor is never far.
            let most_ps = guard_ps * 7 / jobs;
            assert!(spread_ps - task.period_ps() <= most_ps, "{task:?}");
            let mut points: Vec<u64> = (0..jobs).map(|k| k * spread_ps % guard_ps).collect();
            points.sort_unstable();
            for (point, k) in points.into_iter().zip(0..) {
                // A job's point is a ps too early for each rounded release.
                let off = (point + jobs).abs_diff(guard_ps * k / jobs + jobs);
                assert!(off <= jobs, "{task:?} {guard_ps}: {point}");
            }
        }
    }

    #[test]
    fn a_confidence_takes_so_many_jobs() {
        // The rule of three, and the table of zero-failure tests.
        for (ratio, confidence, jobs) in [
            (0.01, 0.95, 299),
            (0.001, 0.95, 2995),
            (0.05, 0.95, 59),
            (0.01, 0.99, 459),
            (0.5, 0.5, 1),
        ] {
            assert_eq!(jobs_that_show(ratio, confidence), Some(jobs));
            assert!(most_late(0, jobs, confidence) <= ratio);
            assert!(most_late(0, jobs - 1, confidence) > ratio);
        }
        assert_eq!(jobs_that_show(0.0, 0.95), None);
        // So small that 1 minus it is 1.
        let many = jobs_that_show(1e-17, 0.95).unwrap() as f64;
        assert!((many / 2.995_732e17 - 1.0).abs() < 1e-6, "{many}");
    }

    /// However many candidates are tested, the errors of all tests together stay within the
    /// goal's.
    #[test]
    fn the_tests_of_all_candidates_share_one_confidence() {
        let goal = Goal {
            miss_ratio: 0.01,
            ..GOAL
        };
        let chance: f64 = (1..1000).map(|k| 1.0 - goal.confidence_of(k)).sum();
        assert!(chance < 0.05 && chance > 0.049, "{chance}");
        // ln(0.05 / 2) and ln(0.05 / 6), over ln(0.99).
        assert_eq!(goal.jobs_needed(), Some(368));
        let pi = Platform::find("raspberry-pi-3").unwrap();
        let problem = Problem {
            task: Task {
                frame_bytes: 16 << 10,
                period_us: 100,
                deadline_us: 100,
                jobs: 2,
            },
            task_core: 0,
            loads: vec![("bandwidth:write".into(), 1)],
            load_bytes: 1 << 20,
            goal,
            maximise: Maximise::Load,
            seed: 1,
        };
        assert_eq!(problem.test(2).task.jobs, 477);
        let mut stages = Stages {
            platform: &pi,
            problem: &problem,
            told: |_| true,
            found: |_: Found| (),
            done: 0,
            tested: 0,
        };
        let candidate = problem.run(&pi, None, true).unwrap();
        for (number, jobs) in [(1, 368), (2, 477)] {
            let choice = stages
                .confirm(std::slice::from_ref(&candidate))
                .ok()
                .flatten()
                .unwrap();
            assert_eq!((choice.candidate, choice.jobs), (number, jobs));
            assert!(choice.most_late <= 0.01, "{choice:?}");
        }
    }

    /// The second candidate's test has more jobs than the first's, and so have its changes.
    #[test]
    fn the_changes_of_a_robust_alternative_run_as_many_jobs_as_it() {
        let pi = Platform::find("raspberry-pi-3").unwrap();
        let mut problem = Problem {
            task: Task {
                frame_bytes: 16 << 10,
                period_us: 100,
                deadline_us: 100,
                jobs: 1,
            },
            task_core: 0,
            loads: vec![("bandwidth:write".into(), 1)],
            load_bytes: 1 << 20,
            goal: Goal {
                miss_ratio: 0.3,
                confidence: 0.5,
                ..GOAL
            },
            maximise: Maximise::Load,
            seed: 1,
        };
        let candidate = problem.run(&pi, None, true).unwrap();
        let mut stages = Stages {
            platform: &pi,
            problem: &problem.clone(),
            told: |_| true,
            found: |_: Found| (),
            done: 0,
            tested: 0,
        };
        let candidates = [candidate];
        let mut fragile = stages.confirm(&candidates).ok().flatten().unwrap();
        fragile.outcome.setting = problem.first_settings(100).first().copied();
        let (changes, _) = changes(&pi);
        let robust = stages.robust(&candidates, &fragile, &changes).ok();
        let robust = robust.flatten().unwrap();
        assert_eq!((fragile.jobs, robust.jobs), (4, 7));
        problem.task.jobs = robust.jobs;
        assert_eq!(robust.sensitivity.len(), changes.len());
        for one in &robust.sensitivity {
            let changed = pi.with(&one.path, one.changed);
            let again = problem.run(&changed, None, true).unwrap();
            assert_eq!(again, one.outcome, "{}", one.path);
        }
    }

    #[test]
    fn numbers_change_by_a_tenth_or_more_and_what_is_not_tried_is_named() {
        let pi = Platform::find("raspberry-pi-3").unwrap();
        let (all, unchanged) = changes(&pi);
        assert!(unchanged.is_empty(), "{unchanged:?}");
        let of = |path: &str| -> Vec<u64> {
            let all = all.iter().filter(|one| one.path == path);
            all.map(|one| one.to).collect()
        };
        assert_eq!(of("machine.core.mshrs"), [2, 4]);
        assert_eq!(of("machine.shared.write_backs"), [18, 24]);
        for one in &all {
            assert!(10 * one.from.abs_diff(one.to) >= one.from, "{one}");
        }
        assert_eq!(of("machine.shared.port_ps"), [19_800, 24_200]);
        let none = pi.with("machine.shared.port_ps", 0);
        assert_eq!(changes(&none).1, ["machine.shared.port_ps (it is 0)"]);
        // With no room for a miss, the core would wait forever.
        let (all, untried) = changes(&pi.with("machine.core.mshrs", 1));
        assert!(all.iter().all(|one| one.to > 0), "{all:?}");
        assert_eq!(
            untried,
            ["machine.core.mshrs 1 -> 0 (has to be a whole number from 1 to 64)"]
        );
    }
}
