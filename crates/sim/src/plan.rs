// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a deadline to budgets: the model tries settings of the regulator, and the best
//! of those with which the task is in time is the plan.
//!
//! The search goes in stages. First all sharing modes with budgets for the load a factor
//! of four apart; then between the largest budget with which the task is in time and the
//! smallest with which it isn't, by halves; then other periods with the best of these.
//! Nothing says that more budget is always worse for the task, so each figure is a run
//! of its own; and the best are run again with four times the jobs, or as many as the
//! goal's confidence takes, and with pages spread by another seed, until one keeps its
//! word: that is recommended. Where a wrong number of the platform would spoil it, the best
//! that none of them spoils stands beside it.

use std::cmp::Ordering;
use std::fmt;

use serde::Serialize;

use crate::cases::{Budgets, Case, Measure, Mode, Task};
use crate::platform::{Platform, PlatformError};
use crate::sweep::sweep;

/// The smallest budget that is tried for a core of the load, MB/s (2^20 bytes).
const SMALLEST: u64 = 25;
/// Each next one is as many times as large, up to what the memory can move at its peak.
const APART: u64 = 4;
/// Periods that are tried with the best setting, us.
const PERIODS_US: [u64; 3] = [500, 2000, 5000];
/// The period of all others, us.
const PERIOD_US: u64 = 1000;
/// Halvings between a budget that will do and one that won't.
const HALVINGS: usize = 3;
/// What is recommended was in time in so many times the jobs of the others' runs.
const CONFIRMED_BY: u64 = 4;
/// The uncertain numbers are taken to be wrong by as much, percent, but at least by 1.
const WRONG_BY: u64 = 10;

/// What is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goal {
    /// At most such a share of the releases is missed, from 0 to 1.
    pub miss_ratio: f64,
    /// A job that ends later than so long before its deadline counts as late, us; less than
    /// the deadline.
    pub margin_us: u64,
    /// How sure the recommended setting's jobs make that, above 0 and below 1.
    pub confidence: f64,
}

impl Goal {
    /// The fewest jobs that show the miss ratio with the confidence for the first candidate, all
    /// in time. No number of jobs shows that none is ever late.
    #[must_use]
    pub fn jobs_needed(&self) -> Option<u64> {
        jobs_that_show(self.miss_ratio, self.confidence_of(1))
    }

    /// The confidence of the test of this candidate, counted from 1. Candidates are tested until
    /// one passes, and each test is a chance for a wrong one: of what the confidence leaves to
    /// chance, the k-th gets 1/(k (k + 1)), and all of them together at most the whole.
    #[must_use]
    pub fn confidence_of(&self, candidate: u64) -> f64 {
        1.0 - (1.0 - self.confidence) / (candidate * (candidate + 1)) as f64
    }
}

/// The fewest jobs, all in time, that show with this confidence that at most such a share is
/// late: `n` of them are in time by chance with a probability of at most `(1 - ratio)^n`.
#[must_use]
pub fn jobs_that_show(miss_ratio: f64, confidence: f64) -> Option<u64> {
    let jobs = ((1.0 - confidence).ln() / (-miss_ratio).ln_1p()).ceil();
    (miss_ratio > 0.0).then_some(jobs as u64)
}

/// The largest share of late jobs that `late` of `jobs` leave possible with this confidence
/// (Clopper and Pearson's upper limit: beyond it so few are late with a probability below
/// 1 - confidence). Jobs count as independent.
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

/// The probability that at most `late` of `jobs` are late where a share of them is.
fn so_few_late(late: u64, jobs: u64, share: f64) -> f64 {
    let mut log = jobs as f64 * (-share).ln_1p();
    let mut sum = log.exp();
    for k in 0..late {
        log += ((jobs - k) as f64 / (k + 1) as f64).ln() + (share / (1.0 - share)).ln();
        sum += log.exp();
    }
    sum
}

/// What is to be had as much of as the goal allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Maximise {
    /// What the load moves.
    Load,
    /// The time from the longest job's end to its deadline.
    Margin,
}

/// A task, its company, and what is wanted of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Problem {
    /// The task.
    pub task: Task,
    /// Its core.
    pub task_core: usize,
    /// Other workloads, as [`Platform::workload`] names them, each with its core.
    pub loads: Vec<(String, usize)>,
    /// The loads' buffers, bytes each.
    pub load_bytes: u64,
    /// What is wanted.
    pub goal: Goal,
    /// And then.
    pub maximise: Maximise,
    /// Spreads pages.
    pub seed: u64,
}

/// How the regulator is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// For the task's core, MB/s (2^20 bytes); nothing is no limit.
    pub task_mib_s: Option<u64>,
    /// For each core of the load.
    pub load_mib_s: u64,
    /// What happens once all have used theirs.
    pub best_effort: Mode,
    /// The period, us.
    pub period_us: u64,
}

/// What comes of a setting.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The setting; nothing is no regulator.
    pub setting: Option<Setting>,
    /// Releases whose job came too late ([`Goal::margin_us`]) or was skipped, of all.
    pub miss_share: f64,
    /// 99th percentile (nearest rank), ms.
    pub p99_ms: f64,
    /// The longest job, ms.
    pub worst_ms: f64,
    /// From that to the deadline, ms; below 0 it came too late.
    pub margin_ms: f64,
    /// What the loads moved together, MB/s (2^20 bytes).
    pub load_mib_s: f64,
    /// What memory moved in all, GB/s (10^9 bytes).
    pub memory_gb_s: f64,
    /// And which part of its peak that is.
    pub memory_peak_share: f64,
    /// Mean power of its chips, mW, where their currents are known.
    pub memory_power_mw: Option<f64>,
    /// The goal is reached.
    pub reached: bool,
}

/// An uncertain number of the platform, and what comes of the recommended setting when
/// it is something else.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sensitivity {
    /// Its path in the platform file.
    pub path: String,
    /// What the platform says.
    pub value: u64,
    /// What it was taken to be.
    pub changed: u64,
    /// What came of it.
    pub outcome: Outcome,
}

/// A setting that was in time in a long run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    /// The long run's outcome.
    pub outcome: Outcome,
    /// Its jobs.
    pub jobs: u64,
    /// Of those, the late ones.
    pub late: u64,
    /// Which of the tested candidates it is, from 1.
    pub candidate: u64,
    /// The share of late jobs that this leaves possible ([`most_late`], [`Goal::confidence_of`]).
    pub most_late: f64,
    /// What becomes of it with other numbers in the platform, in as many jobs.
    pub sensitivity: Vec<Sensitivity>,
    /// The uncertain numbers, or their changes, that were not tried, with the reason.
    pub untried: Vec<String>,
}

/// Whether a wrong number of the platform would spoil a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// None of those that were tried.
    Robust,
    /// One of them at least.
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

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Without the regulator: with the loads, and alone.
    pub unguarded: Outcome,
    /// The task with nothing beside it.
    pub alone: Outcome,
    /// All settings that were tried.
    pub tried: Vec<Outcome>,
    /// Those of them, and no regulator, than which none has both more load and an
    /// earlier longest job; by load.
    pub front: Vec<Outcome>,
    /// The setting to be used; nothing when none reaches the goal.
    pub recommended: Option<Choice>,
    /// Where that is fragile, the best one that isn't, if there is one.
    pub robust: Option<Choice>,
}

/// The budget of a task that reads so many bytes within so long: a tenth more than what
/// that takes, MB/s (2^20 bytes).
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
            .run(platform, self.seed)?;
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

    /// Which of two outcomes is the better, both reaching the goal: the greater.
    fn order(&self, one: &Outcome, other: &Outcome) -> Ordering {
        let load = one.load_mib_s.total_cmp(&other.load_mib_s);
        let margin = one.margin_ms.total_cmp(&other.margin_ms);
        match self.maximise {
            Maximise::Load => load.then(margin),
            Maximise::Margin => margin.then(load),
        }
    }

    /// The same with the jobs that a test of this candidate takes, counted from 1. Another seed
    /// spreads their pages: by the jobs of the search's own, the candidate was chosen.
    fn test(&self, candidate: u64) -> Self {
        let mut test = self.clone();
        let confidence = self.goal.confidence_of(candidate);
        let needed = jobs_that_show(self.goal.miss_ratio, confidence);
        test.task.jobs = (self.task.jobs * CONFIRMED_BY).max(needed.unwrap_or(0));
        // Each core's workload has the seed exclusive or the core's number: the next number would
        // give one core the pages of another.
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
            // Best effort begins when every core has used its budget: the task's must
            // be one that it uses up.
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
    /// For every core in its order, MB/s (2^20 bytes); 0 is no limit.
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

/// Outcomes than which none of the others has more load and an earlier longest job.
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

/// Why there is no plan.
enum Stop {
    /// `told` ended it.
    Ended,
    /// The platform is none for the problem.
    Fault(PlatformError),
}

impl From<PlatformError> for Stop {
    fn from(error: PlatformError) -> Self {
        Self::Fault(error)
    }
}

/// Runs stage after stage.
struct Stages<'a, F> {
    platform: &'a Platform,
    problem: &'a Problem,
    told: F,
    done: usize,
    /// Candidates whose tests count against the confidence.
    tested: u64,
}

impl<F: FnMut(usize) -> bool> Stages<'_, F> {
    /// Runs them all, on all CPUs.
    fn all<T: Sync>(
        &mut self,
        all: &[T],
        run: impl Fn(&T) -> Result<Outcome, PlatformError> + Sync,
    ) -> Result<Vec<Result<Outcome, PlatformError>>, Stop> {
        let (before, told) = (self.done, &mut self.told);
        let outcomes = sweep(all, run, |done| told(before + done));
        self.done += all.len();
        outcomes.ok_or(Stop::Ended)
    }

    fn run(&mut self, all: &[(Option<Setting>, bool)]) -> Result<Vec<Outcome>, Stop> {
        let (platform, problem) = (self.platform, self.problem);
        let outcomes = self.all(all, |(setting, loads)| {
            problem.run(platform, *setting, *loads)
        })?;
        Ok(outcomes.into_iter().collect::<Result<_, _>>()?)
    }

    /// Runs the candidates, best first, for longer, until one shows there that it reaches the goal.
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
    /// with which there is no run. The search's seed: a test of the setting is of other jobs.
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

    /// The best of the candidates that no change spoils. What spoiled others is tried first.
    fn robust(
        &mut self,
        candidates: &[Outcome],
        fragile: &Choice,
        changes: &[Change],
    ) -> Result<Option<Choice>, Stop> {
        let jobs = fragile.jobs;
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
        let mut outcomes = self.run(&[(None, true), (None, false)])?;
        let (alone, unguarded) = (outcomes.remove(1), outcomes.remove(0));
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
        // Where nothing has to be regulated, nothing should be.
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

/// Each of them a tenth less and a tenth more, at least 1; and those that can't be: a tenth of
/// nothing is nothing, and some values no platform has.
fn changes(platform: &Platform) -> (Vec<Change>, Vec<String>) {
    let (mut all, mut unchanged) = (Vec::new(), Vec::new());
    for path in platform.fit.keys() {
        let from = platform.get(path).unwrap_or(0);
        if from == 0 {
            unchanged.push(format!("{path} (it is 0)"));
            continue;
        }
        let by = (from * WRONG_BY / 100).max(1);
        for to in [from - by, from + by] {
            let change = Change {
                path: path.clone(),
                from,
                to,
            };
            match Platform::refuses(path, to) {
                Some(why) => unchanged.push(format!("{change} ({why})")),
                None => all.push(change),
            }
        }
    }
    (all, unchanged)
}

/// Looks for the setting. `told` hears how many runs are done, and ends it by saying
/// false: the answer is then `None`.
///
/// # Errors
/// When the platform is none for the problem.
pub fn plan(
    platform: &Platform,
    problem: &Problem,
    told: impl FnMut(usize) -> bool,
) -> Result<Option<Plan>, PlatformError> {
    let mut stages = Stages {
        platform,
        problem,
        told,
        done: 0,
        tested: 0,
    };
    match stages.plan() {
        Ok(plan) => Ok(Some(plan)),
        Err(Stop::Ended) => Ok(None),
        Err(Stop::Fault(error)) => Err(error),
    }
}

/// Between the largest budget with which the goal is reached, below all with which it
/// isn't, and the next larger one.
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

    /// What spoils the best is wrong by a tenth; the alternative bears that, at the price of load.
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
        problem.task.deadline_us = (alone.worst_ms * 1.08 * 1e3) as u64;
        let found = plan(&xeon, &problem, |_| true).unwrap().unwrap();
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

    /// A small task: the model has to find that the readers hurt it, and a budget that
    /// helps, and what it recommends has to be in time when it is run again.
    #[test]
    fn a_task_that_is_late_unguarded_gets_budgets_with_which_it_is_in_time() {
        let pi = Platform::find("raspberry-pi-3").unwrap();
        let mut problem = Problem {
            task: Task {
                frame_bytes: 256 << 10,
                period_us: 2000,
                deadline_us: 500,
                jobs: 2,
            },
            task_core: 0,
            loads: (1..4)
                .map(|core| ("bandwidth:write".into(), core))
                .collect(),
            load_bytes: 2 << 20,
            goal: GOAL,
            maximise: Maximise::Load,
            seed: 1,
        };
        let mut runs = 0;
        let plan = plan(&pi, &problem, |done| {
            runs = done;
            true
        });
        let plan = plan.unwrap().unwrap();
        assert!(plan.alone.reached, "{:?}", plan.alone);
        assert!(!plan.unguarded.reached, "{:?}", plan.unguarded);
        let choice = plan.recommended.unwrap();
        assert_eq!((choice.jobs, choice.late), (8, 0));
        assert_eq!(choice.sensitivity.len(), 2 * pi.fit.len());
        assert!(choice.untried.is_empty(), "{:?}", choice.untried);
        // As many jobs as the setting itself, whose own are spread by another seed.
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
        // With time to spare, and only just.
        problem.goal.margin_us = 500 - (again.worst_ms * 1e3) as u64;
        let spared = problem.run(&pi, recommended.setting, true).unwrap();
        assert!(!spared.reached && spared.worst_ms == again.worst_ms);
        problem.goal.miss_ratio = spared.miss_share;
        let excused = problem.run(&pi, recommended.setting, true).unwrap();
        assert!(excused.reached);
        problem.goal = GOAL;
        // A deadline that it misses alone has no plan.
        problem.task.deadline_us = 100;
        let none = super::plan(&pi, &problem, |_| true).unwrap().unwrap();
        assert!(none.recommended.is_none() && none.robust.is_none());
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
        // So little that 1 less it is 1.
        let many = jobs_that_show(1e-17, 0.95).unwrap() as f64;
        assert!((many / 2.995_732e17 - 1.0).abs() < 1e-6, "{many}");
    }

    /// However many candidates are tested, all the chances for a wrong one stay within the goal's.
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

    #[test]
    fn small_numbers_change_by_one_and_what_is_not_tried_is_named() {
        let pi = Platform::find("raspberry-pi-3").unwrap();
        let (all, unchanged) = changes(&pi);
        assert!(unchanged.is_empty(), "{unchanged:?}");
        let of = |path: &str| -> Vec<u64> {
            let all = all.iter().filter(|one| one.path == path);
            all.map(|one| one.to).collect()
        };
        assert_eq!(of("machine.core.mshrs"), [2, 4]);
        assert_eq!(of("machine.shared.port_ps"), [27_450, 33_550]);
        let none = pi.with("machine.shared.port_ps", 0);
        assert_eq!(changes(&none).1, ["machine.shared.port_ps (it is 0)"]);
        // With no place for a miss, the core would wait for ever.
        let (all, untried) = changes(&pi.with("machine.core.mshrs", 1));
        assert!(all.iter().all(|one| one.to > 0), "{all:?}");
        assert_eq!(
            untried,
            ["machine.core.mshrs 1 -> 0 (has to be a whole number from 1 to 64)"]
        );
    }
}
