// SPDX-License-Identifier: MIT OR Apache-2.0
//! Published figures of a machine, case by case, and the same cases in the model.
//!
//! A facts file is TOML: a `source`, and one `[[case]]` for each setting with the figures
//! measured there. Cases without a guard may be fitted to; of a guarded case, only the figures
//! that it names in its `fit`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use memwarden_platform::settings_file;
use memwarden_policy::{BestEffort, UNLIMITED};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dram::{Activity, Controller};
use crate::machine::{CoreCounts, Machine};
use crate::platform::{Platform, PlatformError};
use crate::regulator::Guard;
use crate::workload::{Idle, Periodic, Workload};

/// The facts that come with the program: platform and file.
const BUILT_IN: [(&str, &str); 2] = [
    (
        "raspberry-pi-3",
        include_str!("../facts/raspberry-pi-3.toml"),
    ),
    ("xeon-w3530", include_str!("../facts/xeon-w3530.toml")),
];

/// Time before the measurement: long enough to fill the caches.
const SETTLE_PS: u64 = 5_000_000_000;
/// The measured time of a case without a task.
const WINDOW_PS: u64 = 10_000_000_000;
/// The kernel's accounting tick: 1000 per second, beginning with the guard's first period.
const TICK_PS: u64 = 1_000_000_000;
const MS_PS: f64 = 1e9;
/// The largest buffer.
const MAX_BYTES: u64 = 1 << 30;
/// The longest period.
const MAX_PERIOD_US: u64 = 1_000_000;
const MAX_JOBS: u64 = 100_000;
/// The largest budget: more than any memory can move.
const MAX_MIB_S: u64 = 1_000_000;

/// The published figures of a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// Their source.
    pub source: String,
    /// The cases.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// A workload for each core, from the first core on: `idle`, `latency`, `bandwidth:KIND`,
    /// `xserver`, or `task`.
    pub workloads: Vec<String>,
    /// The workloads' buffers, bytes.
    #[serde(default = "sixteen_mib")]
    pub memory_bytes: u64,
    /// The periodic task, if one of the workloads is `task`.
    #[serde(default)]
    pub task: Option<Task>,
    /// The guard, if there was one.
    #[serde(default)]
    pub guard: Option<Budgets>,
    /// The measured figures; empty if nothing was published.
    #[serde(default)]
    pub published: BTreeMap<Measure, f64>,
    /// Published figures of a guarded case to which a platform may be fitted nevertheless.
    #[serde(default)]
    pub fit: BTreeSet<Measure>,
}

fn sixteen_mib() -> u64 {
    16 << 20
}

/// A periodic task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// The bytes that a job reads.
    pub frame_bytes: u64,
    /// From one release to the next, us.
    pub period_us: u64,
    /// From a release to the deadline of its job, us.
    pub deadline_us: u64,
    /// Releases.
    pub jobs: u64,
}

impl Task {
    /// From one release to the next, ps.
    #[must_use]
    pub fn period_ps(&self) -> u64 {
        self.period_us * 1_000_000
    }

    /// The shortest period, not below the task's, with which its jobs are released at as many
    /// points of a guard's period, evenly spread; ps.
    ///
    /// A machine's guard and task have one clock, so a run has one phase between them, and
    /// which one is not known. A run of the model has them all.
    #[must_use]
    pub fn spread_ps(&self, guard_ps: u64) -> u64 {
        let jobs = u128::from(self.jobs);
        let (period_ps, guard_ps) = (u128::from(self.period_ps()), u128::from(guard_ps));
        let into_ps = period_ps % guard_ps;
        // Points from one release to the next. Without a common divisor, none comes twice.
        let mut step = (into_ps * jobs).div_ceil(guard_ps);
        while greatest_common_divisor(step, jobs) != 1 {
            step += 1;
        }
        let spread_ps = period_ps - into_ps + guard_ps * step / jobs;
        u64::try_from(spread_ps).unwrap_or(u64::MAX)
    }
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// When a case's jobs are released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Releases {
    /// Each period, from the guard's first period on.
    EachPeriod,
    /// Spread over the guard's period.
    Spread,
}

/// A guard's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Budgets {
    /// MB/s (2^20 bytes) for each core; 0 means no budget.
    pub mib_s: Vec<u64>,
    /// `none`, `spare` or `proportional`.
    #[serde(default)]
    pub best_effort: Mode,
    /// Donation and reclaim.
    #[serde(default)]
    pub reclaim: bool,
    /// The period, us.
    #[serde(default = "one_ms")]
    pub period_us: u64,
    /// Whether each core has its budget in each bank of the memory.
    #[serde(default)]
    pub per_bank: bool,
}

fn one_ms() -> u64 {
    1000
}

/// What happens when all cores have used their budgets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // The names are the regulator's.
pub enum Mode {
    #[default]
    None,
    Spare,
    Proportional,
}

/// A figure of a case: of its first workload that is not idle, or of the other workloads, its
/// load.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Time from one access to the next, ns.
    LatencyNs,
    /// The workload's traffic, MB/s (2^20 bytes), each line counted once.
    MibS,
    /// The task's 99th percentile (nearest rank), ms.
    P99Ms,
    /// The task's longest job, ms.
    WorstMs,
    /// The share of releases whose job was late or skipped.
    MissShare,
    /// The share of time for which the other workloads' cores were neither idle nor throttled,
    /// on average.
    LoadCpuShare,
    /// The same as seen by a kernel that accounts CPU time by its tick: the share of ticks that
    /// found these workloads running.
    LoadTickShare,
    /// Traffic of all other workloads together, MB/s (2^20 bytes), each line counted once.
    LoadMibS,
    /// Traffic of the memory in all, GB/s (10^9 bytes).
    MemoryGbS,
    /// The same as a share of the memory's peak.
    MemoryPeakShare,
    /// The mean power of the memory's chips, mW, if their currents are known.
    MemoryPowerMw,
}

impl Measure {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::LatencyNs,
        Self::MibS,
        Self::P99Ms,
        Self::WorstMs,
        Self::MissShare,
        Self::LoadCpuShare,
        Self::LoadTickShare,
        Self::LoadMibS,
        Self::MemoryGbS,
        Self::MemoryPeakShare,
        Self::MemoryPowerMw,
    ];

    /// Its name in a facts file.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::LatencyNs => "latency_ns",
            Self::MibS => "mib_s",
            Self::P99Ms => "p99_ms",
            Self::WorstMs => "worst_ms",
            Self::MissShare => "miss_share",
            Self::LoadCpuShare => "load_cpu_share",
            Self::LoadTickShare => "load_tick_share",
            Self::LoadMibS => "load_mib_s",
            Self::MemoryGbS => "memory_gb_s",
            Self::MemoryPeakShare => "memory_peak_share",
            Self::MemoryPowerMw => "memory_power_mw",
        }
    }

    /// Whether it is a share, from 0 to 1.
    #[must_use]
    pub fn is_share(self) -> bool {
        matches!(
            self,
            Self::MissShare | Self::LoadCpuShare | Self::LoadTickShare | Self::MemoryPeakShare
        )
    }

    /// The difference of two values: relative, but absolute for shares.
    #[must_use]
    pub fn difference(self, found: f64, published: f64) -> f64 {
        if self.is_share() {
            found - published
        } else {
            found / published - 1.0
        }
    }
}

/// Why the facts cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// The file cannot be read.
    #[error("reading {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file has an invalid value.
    #[error("{path} line {line}: {why}")]
    Fault {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The error, and the allowed values.
        why: String,
    },
    /// The program knows no published figures of this name.
    #[error(
        "no facts of \"{name}\" come with the program (there are {}): give a file",
        known()
    )]
    Unknown {
        /// The requested name.
        name: String,
    },
}

fn known() -> String {
    names().collect::<Vec<_>>().join(", ")
}

/// The names of the platforms whose facts come with the program.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|facts| facts.0)
}

impl Facts {
    /// Facts that come with the program, or from a file.
    ///
    /// # Errors
    /// When there are none of that name, or the file is invalid.
    pub fn find(name: &str) -> Result<Self, FactsError> {
        if name.contains('/') || name.ends_with(".toml") {
            let path = Path::new(name);
            let text = settings_file::read(path).map_err(|source| FactsError::Read {
                path: path.to_owned(),
                source,
            })?;
            return Self::parse(path, &text);
        }
        let known = BUILT_IN.iter().find(|facts| facts.0 == name);
        let (name, text) = known.ok_or_else(|| FactsError::Unknown { name: name.into() })?;
        Self::parse(Path::new(name), text)
    }

    /// Facts from the text of the file `path`.
    ///
    /// # Errors
    /// The first error in the text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FactsError> {
        let fault = |at: usize, why: String| FactsError::Fault {
            path: path.to_owned(),
            line: text[..at.min(text.len())].matches('\n').count() + 1,
            why,
        };
        let facts: Self = toml::from_str(text).map_err(|error| {
            let message = error.message().lines().collect::<Vec<_>>().join(" ");
            fault(error.span().map_or(0, |span| span.start), message)
        })?;
        for (index, case) in facts.cases.iter().enumerate() {
            if let Some(why) = case.wrong() {
                let at = text.match_indices("[[case]]").nth(index);
                let at = at.map_or(0, |found| found.0);
                return Err(fault(at, format!("case \"{}\": {why}", case.name)));
            }
        }
        Ok(facts)
    }
}

impl Case {
    /// A figure that is neither a time nor a rate must be a share.
    fn wrong(&self) -> Option<String> {
        let subject = self.workloads.iter().position(|name| name != "idle");
        if subject.is_none() {
            return Some("workloads: one at least has to do something".into());
        }
        if !(4096..=MAX_BYTES).contains(&self.memory_bytes) {
            return Some(format!("memory_bytes has to be from 4096 to {MAX_BYTES}"));
        }
        let tasks = self.workloads.iter().filter(|name| *name == "task").count();
        if tasks != usize::from(self.task.is_some()) {
            return Some(
                "has to have a [case.task] if one of its workloads is task, and only then".into(),
            );
        }
        if let Some(task) = &self.task {
            let whole = [
                ("frame_bytes", task.frame_bytes, 64, MAX_BYTES),
                ("period_us", task.period_us, 1, MAX_PERIOD_US),
                ("deadline_us", task.deadline_us, 1, task.period_us),
                ("jobs", task.jobs, 1, MAX_JOBS),
            ];
            for (name, value, least, most) in whole {
                if !(least..=most).contains(&value) {
                    return Some(format!("task.{name} has to be from {least} to {most}"));
                }
            }
        }
        if let Some(guard) = &self.guard {
            if !(1..=MAX_PERIOD_US).contains(&guard.period_us)
                || guard.mib_s.is_empty()
                || guard.mib_s.iter().any(|mib_s| *mib_s > MAX_MIB_S)
            {
                return Some(format!(
                    "guard: mib_s for a core or more, each up to {MAX_MIB_S}; period_us from 1 to {MAX_PERIOD_US}"
                ));
            }
        }
        let banked = self.guard.as_ref().filter(|guard| guard.per_bank);
        if banked.is_some_and(|guard| guard.best_effort == Mode::Proportional) {
            return Some("guard: per_bank has no proportional sharing: give spare or none".into());
        }
        if let Some(measure) = self
            .fit
            .iter()
            .find(|fit| !self.published.contains_key(fit))
        {
            return Some(format!("fit: {} has to be published", measure.word()));
        }
        for (measure, value) in &self.published {
            let share = measure.is_share();
            let allowed = if share {
                (0.0..=1.0).contains(value)
            } else {
                *value > 0.0 && value.is_finite()
            };
            if !allowed {
                let what = if share { "from 0 to 1" } else { "above 0" };
                return Some(format!("{} is {value}: has to be {what}", measure.word()));
            }
        }
        None
    }

    /// The model's figures for this case. `seed` spreads pages over memory. The task's releases
    /// are multiples of its period, from the guard's first period on.
    ///
    /// # Errors
    /// When the platform cannot run this case.
    pub fn run(
        &self,
        platform: &Platform,
        seed: u64,
    ) -> Result<BTreeMap<Measure, f64>, PlatformError> {
        self.run_with(platform, seed, Releases::EachPeriod)
    }

    /// The same with the task's releases spread over the guard's period
    /// ([`Task::spread_ps`]).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_spread(
        &self,
        platform: &Platform,
        seed: u64,
    ) -> Result<BTreeMap<Measure, f64>, PlatformError> {
        self.run_with(platform, seed, Releases::Spread)
    }

    fn run_with(
        &self,
        platform: &Platform,
        seed: u64,
        releases: Releases,
    ) -> Result<BTreeMap<Measure, f64>, PlatformError> {
        let guard = self.guard.as_ref().map(|guard| guard.for_cores(platform));
        let spread = guard.as_ref().filter(|_| releases == Releases::Spread);
        let mut workloads: Vec<Box<dyn Workload>> = Vec::new();
        for (core, name) in (1..).zip(&self.workloads) {
            workloads.push(match (name.as_str(), &self.task) {
                ("idle", _) => Box::new(Idle),
                ("task", Some(task)) => platform.task(task, spread),
                (name, _) => platform.workload(name, self.memory_bytes, seed ^ core)?,
            });
        }
        let mut machine = platform.machine(workloads, guard.as_ref(), seed)?;
        let busy = |core: &usize| self.workloads[*core] != "idle";
        let cores = 0..self.workloads.len();
        let is_task = |core: &usize| self.workloads[*core] == "task";
        let subject = cores.clone().find(is_task);
        let subject = subject.or(cores.clone().find(busy)).unwrap_or(0);
        let loads: Vec<usize> = cores
            .filter(|core| busy(core) && *core != subject)
            .collect();
        let counts = |machine: &Machine<_>| -> Vec<CoreCounts> {
            let all = 0..self.workloads.len();
            all.map(|core| machine.counts(core)).collect()
        };
        let activity = |machine: &Machine<Controller>| {
            Activity::until(&machine.memory().statistics(), machine.now_ps())
        };
        let mut ticks = Ticks::new(&loads);
        let ((before, active_before), window_ps) = if let Some(task) = &self.task {
            while !machine.has_ended(subject) {
                let until_ps = machine.now_ps() + task.period_ps();
                ticks.run_until(&mut machine, until_ps);
            }
            let none = vec![CoreCounts::default(); self.workloads.len()];
            ((none, Activity::default()), machine.now_ps())
        } else {
            machine.run_until(SETTLE_PS);
            let before = (counts(&machine), activity(&machine));
            ticks.run_until(&mut machine, SETTLE_PS + WINDOW_PS);
            (before, WINDOW_PS)
        };
        let after = counts(&machine);
        let since: Vec<CoreCounts> = after
            .iter()
            .zip(&before)
            .map(|(after, before)| after.since(before))
            .collect();
        let passed_ps = window_ps as f64;
        let line = platform.machine.line_bytes as f64;
        let mib_s = |touches: u64| touches as f64 * line / f64::from(1 << 20) / (passed_ps / 1e12);
        let mut figures = BTreeMap::new();
        let memory = platform.memory()?;
        let active = activity(&machine).since(&active_before);
        let moved = (active.reads + active.writes) * memory.organisation.burst_bytes();
        let bytes_per_s = moved as f64 / (passed_ps / 1e12);
        figures.insert(Measure::MemoryGbS, bytes_per_s / 1e9);
        let share = bytes_per_s / memory.peak_bytes_per_s();
        figures.insert(Measure::MemoryPeakShare, share);
        if let Some(energy) = memory.energy(&active, window_ps) {
            figures.insert(Measure::MemoryPowerMw, energy.mean_mw(window_ps));
        }
        if !loads.is_empty() {
            let of_loads = || loads.iter().map(|core| since[*core]);
            let away: u64 = of_loads().map(|one| one.idle_ps + one.throttled_ps).sum();
            let share = 1.0 - away as f64 / (passed_ps * loads.len() as f64);
            figures.insert(Measure::LoadCpuShare, share);
            figures.insert(Measure::LoadTickShare, ticks.share());
            figures.insert(
                Measure::LoadMibS,
                mib_s(of_loads().map(|one| one.touches).sum()),
            );
        }
        if let Some(task) = &self.task {
            let jobs = machine.jobs(subject);
            let mut times: Vec<f64> = jobs
                .iter()
                .map(|job| (job.done_ps - job.released_ps) as f64 / MS_PS)
                .collect();
            times.sort_by(f64::total_cmp);
            let rank = (times.len() * 99).div_ceil(100).max(1) - 1;
            let deadline_ms = task.deadline_us as f64 / 1e3;
            let in_time = times.iter().filter(|time| **time <= deadline_ms).count();
            figures.insert(Measure::P99Ms, times[rank]);
            figures.insert(Measure::WorstMs, times[times.len() - 1]);
            figures.insert(Measure::MissShare, 1.0 - in_time as f64 / task.jobs as f64);
        } else {
            let touches = since[subject].touches;
            if touches > 0 {
                figures.insert(Measure::LatencyNs, passed_ps / touches as f64 / 1e3);
            }
            figures.insert(Measure::MibS, mib_s(touches));
        }
        Ok(figures)
    }
}

/// The kernel's accounting by its tick: the task that runs at a tick is charged with the whole
/// time since the previous tick.
struct Ticks<'c> {
    loads: &'c [usize],
    ticks: u64,
    running: u64,
}

impl<'c> Ticks<'c> {
    fn new(loads: &'c [usize]) -> Self {
        Self {
            loads,
            ticks: 0,
            running: 0,
        }
    }

    /// Advances the machine, and checks the loads at each tick on the way. A tick at the same
    /// time as a period's beginning comes first: the throttle thread still runs then.
    fn run_until(&mut self, machine: &mut Machine<Controller>, until_ps: u64) {
        let mut tick_ps = (machine.now_ps() / TICK_PS + 1) * TICK_PS;
        while tick_ps <= until_ps {
            machine.run_until(tick_ps - 1);
            let running = self.loads.iter().filter(|load| machine.is_running(**load));
            self.running += running.count() as u64;
            self.ticks += self.loads.len() as u64;
            tick_ps += TICK_PS;
        }
        machine.run_until(until_ps);
    }

    fn share(&self) -> f64 {
        self.running as f64 / self.ticks.max(1) as f64
    }
}

impl Budgets {
    /// The budgets in the regulator's unit: events per period, for every core of the platform.
    #[must_use]
    pub fn for_cores(&self, platform: &Platform) -> Guard {
        let line = platform.machine.line_bytes;
        let events = |mib_s: u64| match mib_s {
            0 => UNLIMITED,
            _ => ((mib_s << 20) * self.period_us / 1_000_000 / line).max(1),
        };
        let given = self.mib_s.iter().copied().chain(std::iter::repeat(0));
        Guard {
            budgets: given
                .take(platform.machine.cores)
                .map(|mib_s| [events(mib_s), UNLIMITED])
                .collect(),
            combined: false,
            best_effort: match self.best_effort {
                Mode::None => BestEffort::None,
                Mode::Spare => BestEffort::Spare,
                Mode::Proportional => BestEffort::Proportional,
            },
            reclaim: self.reclaim,
            period_ps: self.period_us * 1_000_000,
            per_bank: self.per_bank,
        }
    }
}

impl Platform {
    /// The periodic task on this platform, its releases spread over the period of a guard
    /// ([`Task::spread_ps`]) if there is one.
    #[must_use]
    pub fn task(&self, task: &Task, guard: Option<&Guard>) -> Box<dyn Workload> {
        let period_ps = guard.map_or(task.period_ps(), |guard| task.spread_ps(guard.period_ps));
        Box::new(Periodic::new(
            task.frame_bytes,
            self.machine.line_bytes,
            self.work.frame_ps,
            self.work.frame_depends,
            period_ps,
            task.jobs,
        ))
    }
}
