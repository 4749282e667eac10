// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard's benchmark: how exactly, how quickly and at what cost it regulates.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Metric;

/// `experiment` in run.json and summary.json.
pub const NAME: &str = "bench-guard";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// What a part was run with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Settings {
    /// The part: `alone`, `together`, `hold`, ...
    pub part: String,
    /// The regulator.
    pub backend: String,
    /// What it counts.
    pub event: String,
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
    /// The guard is what is measured: its settings are figures.
    pub guard: (),
    /// What was measured; none of a part that failed.
    #[serde(flatten, deserialize_with = "Figure::if_there")]
    pub figure: Option<Figure>,
    /// The kernel module's target, in words; `-` where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Whether it was reached.
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
    /// A case that is not judged.
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

/// Whether a target was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Reached {
    /// It was.
    #[serde(rename = "yes")]
    Yes,
    /// It was not.
    #[serde(rename = "NO")]
    No,
    /// It was not, by a regulator that is not judged by it.
    #[serde(rename = "no (compared)")]
    Compared,
    /// There is no target.
    #[serde(rename = "-")]
    NoTarget,
}

/// What a case is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "figure", rename_all = "lowercase")]
// A run has some dozens of cases.
#[allow(clippy::large_enum_variant)]
pub enum Figure {
    /// Events achieved against the budget.
    Accuracy(Accuracy),
    /// Long runs.
    Hold(Hold),
    /// Events past the budget before the throttle holds.
    Overshoot(Overshoot),
    /// Time to the throttle and back.
    Reaction(Reaction),
    /// What an armed guard that never throttles costs.
    Overhead(Overhead),
    /// Periods begun late or missed.
    Boundaries(Boundaries),
    /// Reaction by number of CPUs.
    Scaling(Scaling),
    /// Best effort and reclaim.
    Sharing(Sharing),
    /// Overflow interrupts of a hardware counter.
    Pmu(Pmu),
}

/// Events achieved against the budget.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Accuracy {
    /// What the guard counts.
    pub event: String,
    /// Regulated cores.
    pub cpus: u64,
    /// The guard's period.
    pub period_us: u64,
    /// The budget of each, events a period.
    pub budget_events: u64,
    /// Periods watched, of all cores.
    pub periods: u64,
    /// Periods in which a core used up its budget.
    pub exhausted_periods: u64,
    /// The most events in one period.
    pub largest_period_events: Option<u64>,
    /// The most events past the budget when a throttle took hold.
    pub overshoot_events_max: u64,
    /// Events that the trace had no room for.
    pub lost_trace_events: u64,
    /// The worst core's mean over the budget, less 1.
    pub error_share: Option<f64>,
    /// What the target allows.
    pub limit_share: Option<f64>,
    /// Events in a period.
    pub achieved_events: Option<Metric>,
}

/// A long run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Hold {
    /// What the guard counts.
    pub event: String,
    /// Regulated cores.
    pub cpus: u64,
    /// The guard's period.
    pub period_us: u64,
    /// The budget of each, events a period.
    pub budget_events: u64,
    /// How long.
    pub seconds: Option<f64>,
    /// Periods watched, of all cores.
    pub periods: u64,
    /// Periods that began too late to be regulated.
    pub missed_periods: u64,
    /// Periods in which a counter was lost.
    pub unregulated_periods: u64,
    /// The largest mean of a core, events a period.
    pub mean_events: Option<f64>,
    /// The worst core's mean over the budget, less 1.
    pub error_share: Option<f64>,
    /// What the target allows.
    pub limit_share: Option<f64>,
    /// The most events in one period.
    pub largest_period_events: Option<u64>,
    /// Events a period in the fullest second.
    pub worst_second_events: Option<f64>,
    /// What the loads count of themselves, events a period.
    pub load_events: Option<f64>,
    /// The most events past the budget when a throttle took hold.
    pub overshoot_events_max: Option<u64>,
    /// Events that the trace had no room for.
    pub lost_trace_events: u64,
    /// Events a period in each second.
    pub second_events: Option<Metric>,
    /// Events in a period.
    pub achieved_events: Option<Metric>,
}

/// Past the budget.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Overshoot {
    /// What the guard counts.
    pub event: String,
    /// Events past the budget when the throttle took hold.
    pub overshoot_events: Option<Metric>,
    /// The time that it took.
    pub overshoot_ns: Option<Metric>,
}

/// Time to the throttle and back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Reaction {
    /// What the guard counts.
    pub event: String,
    /// From an overflow to the throttle.
    pub throttle_latency_ns: Option<Metric>,
    /// From the release to the task running.
    pub release_latency_ns: Option<Metric>,
}

/// The cost of an armed guard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Overhead {
    /// What the guard counts.
    pub event: String,
    /// The guard's period.
    pub period_us: u64,
    /// Time with the guard over that without, less 1.
    pub overhead_share: Option<f64>,
    /// The same for one period.
    pub overhead_per_period_ns: Option<f64>,
    /// Periods in which it throttled; none should.
    pub throttled_periods: u64,
    /// Times of the work with the guard.
    pub with_guard: Option<Metric>,
    /// Times without.
    pub without_guard: Option<Metric>,
    /// What the target allows, where there is one.
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
    /// The budget of each, events a period.
    pub budget_events: u64,
    /// Periods watched, of all cores.
    pub periods: u64,
    /// Periods that began too late to be regulated.
    pub missed_periods: u64,
    /// Their share.
    pub missed_share: Option<f64>,
    /// What the target allows.
    pub limit_share: Option<f64>,
    /// How late periods began.
    pub late_ns: Option<Metric>,
}

/// Reaction by number of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Scaling {
    /// What the guard counts.
    pub event: String,
    /// Regulated cores.
    pub cpus: u64,
    /// The one hungry core's budget.
    pub budget_events: u64,
    /// Each budget where all cores are hungry.
    pub budget_together_events: u64,
    /// Overflows of all cores.
    pub overflows: u64,
    /// Events reclaimed.
    pub reclaimed_events: u64,
    /// Periods that began too late to be regulated.
    pub missed_periods: u64,
    /// From an overflow to the throttle, one core hungry.
    pub throttle_latency_ns: Option<Metric>,
    /// The same, all cores hungry.
    pub throttle_latency_all_ns: Option<Metric>,
}

/// What sharing hands out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sharing {
    /// What the guard counts.
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
    /// Events that it used in a period.
    pub used_events: Option<f64>,
    /// Events that it donated.
    pub donated_events: Option<u64>,
    /// Events that it reclaimed.
    pub reclaimed_events: Option<u64>,
    /// Periods in which it shared what was left.
    pub best_effort_periods: Option<u64>,
    /// Share of the time that it was throttled.
    pub throttled_share: Option<f64>,
}

/// Through the PMU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Pmu {
    /// What the guard counts.
    pub event: String,
    /// Regulated cores.
    pub cpus: u64,
    /// The guard's period.
    pub period_us: u64,
    /// The budget of each, events a period.
    pub budget_events: u64,
    /// Periods watched, of all cores.
    pub periods: u64,
    /// Periods that began too late to be regulated.
    pub missed_periods: u64,
    /// Periods in which a core was throttled.
    pub throttled_periods: u64,
    /// Events that the trace had no room for.
    pub lost_trace_events: u64,
    /// Events past the budget when the throttle took hold.
    pub overshoot_events: Option<Metric>,
    /// From an overflow to the throttle.
    pub throttle_latency_ns: Option<Metric>,
    /// From the release to the task running.
    pub release_latency_ns: Option<Metric>,
    /// From the overflow to its interrupt.
    pub interrupt_latency_ns: Option<Metric>,
}
