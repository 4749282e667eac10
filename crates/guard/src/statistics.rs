// SPDX-License-Identifier: MIT OR Apache-2.0
//! The module's `stats` file: one line of JSON per core.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Error;

/// What one core did since the last reset.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CoreStatistics {
    /// The core.
    pub cpu: usize,
    /// It is online and regulated.
    pub online: bool,
    /// It is never throttled.
    pub rt: bool,
    /// Periods begun.
    pub periods: u64,
    /// Period boundaries that passed without a period beginning.
    pub missed_periods: u64,
    /// Time that these figures cover, up to the end of the last period; 0 from an older module.
    pub elapsed_ns: u64,
    /// Longest delay between a period's boundary and its beginning.
    pub late_ns_max: u64,
    /// Sum of these delays, for the mean.
    pub late_ns_sum: u64,
    /// Number of times that the counter exceeded the assigned events.
    pub overflows: u64,
    /// Periods in which the core was throttled.
    pub throttled_periods: u64,
    /// Time that it was throttled.
    pub throttled_ns: u64,
    /// Periods that it ended in best-effort sharing.
    pub best_effort_periods: u64,
    /// Time that it ran in best-effort sharing.
    pub best_effort_ns: u64,
    /// Longest time from the overflow interrupt until the throttle thread runs.
    pub throttle_latency_ns_max: u64,
    /// Longest time from the release until the throttle thread sees it.
    pub release_latency_ns_max: u64,
    /// Periods in which a counter did not count, so that the core ran unregulated: another user or a PMU error took it.
    pub unregulated_periods: u64,
    /// The last whole second of this core.
    pub last_second: LastSecond,
    /// Refills.
    pub read: ResourceStatistics,
    /// Write-backs, where they are counted.
    pub write: Option<ResourceStatistics>,
}

/// One core's events of one kind since the last reset.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ResourceStatistics {
    /// Events a period; `None` means unlimited.
    pub budget: Option<u64>,
    /// Events counted.
    pub used: u64,
    /// Events that the core was entitled to, less donated and plus reclaimed ones.
    pub assigned: u64,
    /// Events given to the pool.
    pub donated: u64,
    /// Events taken from the pool.
    pub reclaimed: u64,
    /// Periods in which the core was throttled before it had used its own reservation.
    pub reclaim_errors: u64,
    /// Most events of one period, since the core last gained or lost its limit, the period changed, or the last reset.
    pub used_max: u64,
    /// Limited periods with more events than assigned, except best-effort periods.
    pub over_periods: u64,
    /// The last whole second of this resource.
    pub last_second: ResourceLastSecond,
    /// Expected events of a stop, between the overflow and the period's end, as learnt from earlier stops. They are
    /// charged with the overflow, up to half of the budget.
    pub stop_events: u64,
    /// Events that tasks took beyond the budget before the throttle stopped the core. Later periods repay them: tasks
    /// then get fewer events, down to the run that is always granted.
    pub owed: u64,
    /// Most events of a throttled period beyond the assigned ones, including those counted during the throttle.
    pub overshoot_max: u64,
    /// Histogram of that overshoot: bucket 0 counts periods without any, bucket k those with 2^(k-1) to 2^k - 1 events.
    pub overshoot_hist: Vec<u64>,
}

/// One core over the last whole second, or over the last period if that is longer; all 0 before the first, also after a
/// change of the period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LastSecond {
    /// Its length in nanoseconds.
    pub ns: u64,
    /// Periods that ended in it.
    pub periods: u64,
    /// Time that the core was throttled.
    pub throttled_ns: u64,
}

/// One core's events of one kind over the last whole second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ResourceLastSecond {
    /// Events counted.
    pub used: u64,
    /// Events that the core was entitled to.
    pub assigned: u64,
    /// Most events of one period.
    pub used_max: u64,
}

impl CoreStatistics {
    /// The time that these figures cover, in nanoseconds; `None` before the first period. The present period tells it if
    /// the regulator doesn't.
    pub fn time_ns(&self, period_us: u64) -> Option<u64> {
        let known = Some(self.elapsed_ns).filter(|ns| *ns > 0);
        known
            .or_else(|| {
                let periods = self.periods.checked_add(self.missed_periods)?;
                periods.checked_mul(period_us)?.checked_mul(1000)
            })
            .filter(|ns| *ns > 0)
    }

    /// Share of the time that the core was throttled, 0 to 1; `None` before the first period.
    pub fn throttled_share(&self, period_us: u64) -> Option<f64> {
        // A release in the middle of a period precedes the end of its time.
        let share = self.throttled_ns as f64 / self.time_ns(period_us)? as f64;
        Some(share.min(1.0))
    }

    /// Mean of `events` of these figures over a period of this length; `None` before the first period.
    pub fn per_period(&self, events: u64, period_us: u64) -> Option<f64> {
        let time_ns = self.time_ns(period_us)? as f64;
        Some(events as f64 * (period_us as f64 * 1000.0) / time_ns)
    }

    /// The counts and times since `earlier`. The largest values and the histograms remain those since the last reset.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let read = self.read.since(&earlier.read);
        let write = self.write.as_ref().map(|write| {
            earlier
                .write
                .as_ref()
                .map_or_else(|| write.clone(), |earlier| write.since(earlier))
        });
        Self {
            periods: self.periods.saturating_sub(earlier.periods),
            missed_periods: self.missed_periods.saturating_sub(earlier.missed_periods),
            elapsed_ns: self.elapsed_ns.saturating_sub(earlier.elapsed_ns),
            late_ns_sum: self.late_ns_sum.saturating_sub(earlier.late_ns_sum),
            overflows: self.overflows.saturating_sub(earlier.overflows),
            throttled_periods: self
                .throttled_periods
                .saturating_sub(earlier.throttled_periods),
            throttled_ns: self.throttled_ns.saturating_sub(earlier.throttled_ns),
            best_effort_periods: self
                .best_effort_periods
                .saturating_sub(earlier.best_effort_periods),
            best_effort_ns: self.best_effort_ns.saturating_sub(earlier.best_effort_ns),
            unregulated_periods: self
                .unregulated_periods
                .saturating_sub(earlier.unregulated_periods),
            read,
            write,
            ..self.clone()
        }
    }
}

impl ResourceStatistics {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            used: self.used.saturating_sub(earlier.used),
            assigned: self.assigned.saturating_sub(earlier.assigned),
            donated: self.donated.saturating_sub(earlier.donated),
            reclaimed: self.reclaimed.saturating_sub(earlier.reclaimed),
            reclaim_errors: self.reclaim_errors.saturating_sub(earlier.reclaim_errors),
            over_periods: self.over_periods.saturating_sub(earlier.over_periods),
            ..self.clone()
        }
    }
}

/// Parses the file.
///
/// # Errors
/// When a line is not a JSON object of the known form.
pub fn parse(text: &str) -> Result<Vec<CoreStatistics>, Error> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            serde_json::from_str(line).map_err(|_| Error::Unreadable {
                file: "stats",
                line: line.to_owned(),
            })
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the module prints for two cores.
    pub(crate) const SAMPLE: &str = concat!(
        r#"{"cpu":0,"online":true,"rt":false,"periods":1000,"missed_periods":0,"late_ns_max":3000,"late_ns_sum":90000,"overflows":1000,"throttled_periods":1000,"throttled_ns":250000000,"best_effort_periods":0,"best_effort_ns":0,"throttle_latency_ns_max":2400,"release_latency_ns_max":1800,"read":{"budget":25,"used":25000,"assigned":25000,"donated":0,"reclaimed":0,"reclaim_errors":0,"overshoot_max":0,"overshoot_hist":[1000]},"write":null}"#,
        "\n",
        r#"{"cpu":1,"online":true,"rt":true,"periods":1000,"missed_periods":0,"read":{"budget":null,"used":7},"new_in_a_later_version":1}"#,
        "\n"
    );

    #[test]
    fn both_lines_are_read() {
        let cores = parse(SAMPLE).unwrap();
        assert_eq!(cores.len(), 2);
        assert_eq!(cores[0].read.budget, Some(25));
        assert_eq!(cores[0].throttled_share(1000), Some(0.25));
        assert_eq!(cores[1].read.budget, None);
        assert_eq!(cores[1].read.used, 7);
        assert_eq!(CoreStatistics::default().throttled_share(1000), None);
    }

    #[test]
    fn totals_are_of_their_time_at_any_period() {
        let mut core = parse(SAMPLE).unwrap().remove(0);
        core.elapsed_ns = 500_000_000;
        for period_us in [100, 1000, 10_000] {
            assert_eq!(core.throttled_share(period_us), Some(0.5));
            let events = core.per_period(core.read.used, period_us).unwrap();
            let per_ms = events * 1000.0 / period_us as f64;
            assert!((per_ms - 50.0).abs() < 1e-9, "{per_ms}");
        }
        core.throttled_ns = 501_000_000;
        assert_eq!(core.throttled_share(1000), Some(1.0));
        let mut later = core.clone();
        later.elapsed_ns += 10_000_000;
        later.throttled_ns += 5_000_000;
        assert_eq!(later.since(&core).throttled_share(1000), Some(0.5));
    }

    #[test]
    fn differences_are_of_counts() {
        let cores = parse(SAMPLE).unwrap();
        let mut later = cores[0].clone();
        later.periods += 10;
        later.read.used += 250;
        let since = later.since(&cores[0]);
        assert_eq!(
            (since.periods, since.read.used, since.throttled_ns),
            (10, 250, 0)
        );
        assert_eq!(since.throttle_latency_ns_max, 2400);
    }

    proptest! {
        #[test]
        fn a_core_round_trips(cpu in 0usize..64, used: u64, budget: Option<u64>, hist in prop::collection::vec(0u64.., 0..20)) {
            let core = CoreStatistics {
                cpu,
                read: ResourceStatistics { used, budget, overshoot_hist: hist, ..Default::default() },
                ..Default::default()
            };
            let text = serde_json::to_string(&core).unwrap();
            prop_assert_eq!(parse(&text).unwrap(), vec![core]);
        }

        #[test]
        fn garbage_never_panics(text in "\\PC*", at in 0usize..SAMPLE.len(), with in "\\PC{0,5}") {
            let _ = parse(&text);
            let mut damaged = SAMPLE.to_owned();
            damaged.replace_range(at..=at, &with);
            let _ = parse(&damaged);
        }
    }
}
