// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard's benchmark: accuracy, reaction time and overhead.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Metric;

/// The value of `experiment` in run.json and summary.json.
pub const NAME: &str = "bench-guard";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Settings of a run of one or several parts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Settings {
    /// The parts: `alone`, `together`, `hold`, ...
    pub parts: Vec<String>,
    /// The regulators.
    pub backends: Vec<String>,
    /// The event that the guard counts.
    pub event: String,
    /// True if the kernel's own events are not counted.
    pub user_only: bool,
    /// Budgets of the part `alone`, the machine's pages a millisecond.
    pub faults: Vec<u64>,
    /// Length of each run of the part `hold`.
    pub hold_s: f64,
    /// The module's file; null is the installed one.
    pub module: Option<String>,
}

/// Figures of the whole run: none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Whole {}

impl crate::Whole for Whole {
    type Case = Case;
}

/// One case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Always null: the guard itself is measured, and its settings are figures.
    pub guard: (),
    /// The figures; none for a part that failed.
    #[serde(flatten, deserialize_with = "Figure::if_there")]
    pub figure: Option<Figure>,
    /// The kernel module's target, in words; `-` if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Result of the comparison with the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reached: Option<Reached>,
    /// The regulator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The lab's clock: `counted` or `free-running`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<String>,
}

impl Case {
    /// A case without a verdict.
    pub fn new(name: impl Into<String>, figure: Figure) -> Self {
        Self {
            name: name.into(),
            figure: Some(figure),
            ..Self::default()
        }
    }
}

impl Figure {
    fn if_there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        super::if_there("figure", deserializer)
    }
}

/// Result of the comparison with a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Reached {
    /// Reached.
    #[serde(rename = "yes")]
    Yes,
    /// Missed.
    #[serde(rename = "NO")]
    No,
    /// Missed, by a regulator to which the target does not apply.
    #[serde(rename = "no (compared)")]
    Compared,
    /// The interval of the figure contains the target.
    #[serde(rename = "unclear")]
    Unclear,
    /// There is no target.
    #[serde(rename = "-")]
    NoTarget,
}

/// The kind of case, with its figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "figure", rename_all = "lowercase")]
// A run has a few dozen cases, so their size does not matter.
#[allow(clippy::large_enum_variant)]
pub enum Figure {
    /// Used events against the budget.
    Accuracy(Accuracy),
    /// Long runs.
    Hold(Hold),
    /// Events past the budget before the throttle takes effect.
    Overshoot(Overshoot),
    /// Time to throttle and to release.
    Reaction(Reaction),
    /// Overhead of an armed guard that never throttles.
    Overhead(Overhead),
    /// Periods that began late or were missed.
    Boundaries(Boundaries),
    /// Reaction by number of CPUs.
    Scaling(Scaling),
    /// Best effort and reclaim.
    Sharing(Sharing),
    /// Overflow interrupts of a hardware counter.
    Pmu(Pmu),
}

/// Used events against the budget.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Accuracy {
    /// The event that the guard counts.
    pub event: String,
    /// Regulated cores.
    pub cpus: u64,
    /// The guard's period.
    pub period_us: u64,
    /// The budget of each core, events a period.
    pub budget_events: u64,
    /// Periods watched, over all cores.
    pub periods: u64,
    /// Periods in which a core used up its budget.
    pub exhausted_periods: u64,
    /// Events of the fullest period.
    pub largest_period_events: Option<u64>,
    /// Largest overshoot: events past the budget when a throttle took effect.
    pub overshoot_events_max: u64,
    /// Events that the trace had no room for.
    pub lost_trace_events: u64,
    /// The worst core's mean over the budget, less 1.
    pub error_share: Option<f64>,
    /// The target's limit.
    pub limit_share: Option<f64>,
    /// Events in a period.
    pub achieved_events: Option<Metric>,
}

/// A long run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Hold {
    /// The event that the guard counts.
    pub event: String,
    /// Regulated cores.
    pub cpus: u64,
    /// The guard's period.
    pub period_us: u64,
    /// The budget of each core, events a period.
    pub budget_events: u64,
    /// Duration.
    pub seconds: Option<f64>,
    /// Periods watched, over all cores.
    pub periods: u64,
    /// Periods that began too late to be regulated.
    pub missed_periods: u64,
    /// Periods in which a counter was lost.
    pub unregulated_periods: u64,
    /// The largest mean of a core, events a period.
    pub mean_events: Option<f64>,
    /// The worst core's mean over the budget, less 1.
    pub error_share: Option<f64>,
    /// The target's limit.
    pub limit_share: Option<f64>,
    /// Events of the fullest period.
    pub largest_period_events: Option<u64>,
    /// Events a period in the second with the most.
    pub worst_second_events: Option<f64>,
    /// Events a period by the loads' own count.
    pub load_events: Option<f64>,
    /// Largest overshoot: events past the budget when a throttle took effect.
    pub overshoot_events_max: Option<u64>,
    /// Events that the trace had no room for.
    pub lost_trace_events: u64,
    /// Events a period in each second.
    pub second_events: Option<Metric>,
    /// Events in a period.
    pub achieved_events: Option<Metric>,
}

/// Overshoot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Overshoot {
    /// The event that the guard counts.
    pub event: String,
    /// Events past the budget when the throttle took effect.
    pub overshoot_events: Option<Metric>,
    /// Time past the budget.
    pub overshoot_ns: Option<Metric>,
}

/// Time to throttle and to release.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Reaction {
    /// The event that the guard counts.
    pub event: String,
    /// Time from an overflow to the throttle.
    pub throttle_latency_ns: Option<Metric>,
    /// Time from the release until the task runs.
    pub release_latency_ns: Option<Metric>,
}

/// Overhead of an armed guard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Overhead {
    /// The event that the guard counts.
    pub event: String,
    /// The guard's period.
    pub period_us: u64,
    /// Time with the guard over that without, less 1.
    pub overhead_share: Option<f64>,
    /// Its 95 % confidence interval; missing with fewer than 5 runs on a side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead_share_ci95: Option<[f64; 2]>,
    /// The same, as time for each period.
    pub overhead_per_period_ns: Option<f64>,
    /// Periods in which it throttled; none should.
    pub throttled_periods: u64,
    /// Times of the work with the guard.
    pub with_guard: Option<Metric>,
    /// Times without.
    pub without_guard: Option<Metric>,
    /// The target's limit, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_share: Option<f64>,
}

/// Period boundaries.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Boundaries {
    /// The guard's period.
    pub period_us: u64,
    /// Regulated cores.
    pub cpus: u64,
    /// The budget of each core, events a period.
    pub budget_events: u64,
    /// Periods watched, over all cores.
    pub periods: u64,
    /// Periods that began too late to be regulated.
    pub missed_periods: u64,
    /// Their share.
    pub missed_share: Option<f64>,
    /// The target's limit.
    pub limit_share: Option<f64>,
    /// Delay of the periods' begin.
    pub late_ns: Option<Metric>,
}

/// Reaction by number of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Scaling {
    /// The event that the guard counts.
    pub event: String,
    /// Regulated cores.
    pub cpus: u64,
    /// Budget of the single hungry core.
    pub budget_events: u64,
    /// Budget of each core when all are hungry.
    pub budget_together_events: u64,
    /// Overflows of all cores.
    pub overflows: u64,
    /// Events reclaimed.
    pub reclaimed_events: u64,
    /// Periods that began too late to be regulated.
    pub missed_periods: u64,
    /// Time from an overflow to the throttle, with one hungry core.
    pub throttle_latency_ns: Option<Metric>,
    /// The same with all cores hungry.
    pub throttle_latency_all_ns: Option<Metric>,
}

/// Events that sharing grants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sharing {
    /// The event that the guard counts.
    pub event: String,
    /// The mode and the loads.
    pub mode: String,
    /// The cores.
    pub cores: Vec<SharingCore>,
}

/// One core that shares.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SharingCore {
    /// The core.
    pub cpu: u32,
    /// Its budget.
    pub budget_events: Option<u64>,
    /// Events a period that it used.
    pub used_events: Option<f64>,
    /// Events that it donated.
    pub donated_events: Option<u64>,
    /// Events that it reclaimed.
    pub reclaimed_events: Option<u64>,
    /// Periods in which it used best-effort sharing.
    pub best_effort_periods: Option<u64>,
    /// Throttled share of the time.
    pub throttled_share: Option<f64>,
}

/// Regulation through the PMU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Pmu {
    /// The event that the guard counts.
    pub event: String,
    /// Regulated cores.
    pub cpus: u64,
    /// The guard's period.
    pub period_us: u64,
    /// Cycles of a busy core in a nanosecond, measured before; of the first core, if they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycles_per_ns: Option<f64>,
    /// The budget of each core, events a period: half a period's cycles; of the first core, if they differ.
    pub budget_events: u64,
    /// Periods watched, over all cores.
    pub periods: u64,
    /// Periods that began too late to be regulated.
    pub missed_periods: u64,
    /// Periods in which a core was throttled.
    pub throttled_periods: u64,
    /// Events that the trace had no room for.
    pub lost_trace_events: u64,
    /// Events past the budget when the throttle took effect.
    pub overshoot_events: Option<Metric>,
    /// Time from an overflow to the throttle.
    pub throttle_latency_ns: Option<Metric>,
    /// Time from the release until the task runs.
    pub release_latency_ns: Option<Metric>,
    /// Time from the overflow to its interrupt: the overshoot as time, less the throttle latency.
    pub interrupt_latency_ns: Option<Metric>,
}
