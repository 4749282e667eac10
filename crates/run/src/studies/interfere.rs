// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interference: a victim alone and beside aggressors, without and with a guard.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Traffic;
use crate::{Aggressor, GuardSettings, Metric};

/// `experiment` in run.json and summary.json.
pub const NAME: &str = "interfere";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {
    /// What the guard's self-test found on each core, where it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_test: Option<Value>,
    /// Whether the last-level cache keeps a good part of the victim's buffer, so that the figures are not memory's; not
    /// there where the caches are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub victim_in_cache: Option<bool>,
}

impl crate::Whole for Whole {
    type Case = Case;
}

/// One case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// The regulator's settings; null without a guard.
    pub guard: Option<GuardSettings>,
    /// The victim's `latency_ns` or `mib_s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub victim: Option<Metric>,
    /// The regulated cores, with a guard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<Vec<Core>>,
    /// Events that the regulator's trace had no room for, with a guard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_trace_events: Option<u64>,
    /// The least time of the long case, seconds; no other case has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub long_s: Option<f64>,
    /// What a simulated memory moved.
    #[serde(flatten, deserialize_with = "Traffic::if_there")]
    pub traffic: Option<Traffic>,
    /// The victim's median over its median alone; of a bandwidth the other way round.
    pub slowdown: Option<f64>,
    /// 95 % confidence interval of the slowdown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown_ci95: Option<[f64; 2]>,
    /// The aggressors beside the victim.
    pub aggressors: Vec<Aggressor>,
}

impl Case {
    /// Whether this case is there for its length: its budgets are not those that are compared.
    pub fn is_long(&self) -> bool {
        self.long_s.is_some()
    }
}

/// One core's budget against what it used, over every period of every repeat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Core {
    /// The core.
    pub cpu: u32,
    /// Its budget; null is no limit.
    pub budget_events: Option<u64>,
    /// Periods that were recorded.
    pub periods: Option<u64>,
    /// Periods that the regulator counted in the same time.
    pub counted_periods: Option<u64>,
    /// The most events in one period.
    pub largest_period_events: Option<u64>,
    /// Events a period, on average.
    pub mean_period_events: Option<f64>,
    /// Events a period in the fullest second; null where no run lasted a second.
    pub worst_second_events: Option<f64>,
    /// Periods with more events than the budget.
    pub periods_over_budget: Option<u64>,
    /// Periods in which the core's counter was lost.
    pub unregulated_periods: Option<u64>,
    /// Events past the budget when a throttle took hold, the most of all throttles.
    pub overshoot_max: Option<u64>,
    /// Share of the time that it was throttled, 0 to 1.
    pub throttled_share: Option<f64>,
    /// Whether the budget held; null: not judged, or nothing to judge by.
    pub held: Option<bool>,
}
