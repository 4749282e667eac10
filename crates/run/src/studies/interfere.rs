// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interference: a victim alone and beside aggressors, without and with a guard.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Traffic;
use crate::{Aggressor, GuardSettings, Metric};

/// The value of `experiment` in run.json and summary.json.
pub const NAME: &str = "interfere";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {
    /// Result of the guard's self-test on each core, if it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_test: Option<Value>,
    /// True if the last-level cache holds a good part of the victim's buffer, so that the figures are not the memory's;
    /// absent if the caches are unknown.
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
    /// Minimum duration of the long case, seconds; absent in other cases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub long_s: Option<f64>,
    /// Traffic of a simulated memory.
    #[serde(flatten, deserialize_with = "Traffic::if_there")]
    pub traffic: Option<Traffic>,
    /// The victim's median over its median alone; for a bandwidth, the inverse.
    pub slowdown: Option<f64>,
    /// 95 % confidence interval of the slowdown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown_ci95: Option<[f64; 2]>,
    /// The aggressors beside the victim.
    pub aggressors: Vec<Aggressor>,
}

impl Case {
    /// True for the long case, whose budgets are not those that are compared.
    pub fn is_long(&self) -> bool {
        self.long_s.is_some()
    }
}

/// One core's budget and use, over every period of every repeat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Core {
    /// The core.
    pub cpu: u32,
    /// Its budget; null means no limit.
    pub budget_events: Option<u64>,
    /// Periods that were recorded.
    pub periods: Option<u64>,
    /// Periods that the regulator counted in the same time.
    pub counted_periods: Option<u64>,
    /// Events of the fullest period; with budgets per bank, of the fullest bank, as all counts of events here.
    pub largest_period_events: Option<u64>,
    /// Mean events of a period.
    pub mean_period_events: Option<f64>,
    /// Events a period in the second with the most; null if no run lasted a second.
    pub worst_second_events: Option<f64>,
    /// Periods with more events than the budget.
    pub periods_over_budget: Option<u64>,
    /// Periods in which the core's counter was lost.
    pub unregulated_periods: Option<u64>,
    /// Largest overshoot of all throttles: events past the budget when the throttle took effect.
    pub overshoot_max: Option<u64>,
    /// Throttled share of the time, 0 to 1; null with budgets per bank, which stop no core.
    pub throttled_share: Option<f64>,
    /// Share of the time for which requests of the core were held back, 0 to 1; with budgets per bank only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_back_share: Option<f64>,
    /// True if the budget held; null if not judged, without data, or if periods are missing in the recording.
    pub held: Option<bool>,
}

impl Core {
    /// False if the recording has clearly fewer periods than the regulator counted.
    #[must_use]
    pub fn recorded_whole(&self) -> bool {
        let (Some(recorded), Some(counted)) = (self.periods, self.counted_periods) else {
            return true;
        };
        // At the begin and the end of each run, a period may end between the two readings.
        recorded * 100 >= counted * 99 || recorded + 20 >= counted
    }
}
