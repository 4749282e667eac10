// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `stats` file: one line of JSON a core.

use serde::{Deserialize, Serialize};

use crate::Error;

/// What one core did since the last reset.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
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
    /// The latest that a period began after its boundary.
    pub late_ns_max: u64,
    /// Sum of these, for the mean.
    pub late_ns_sum: u64,
    /// Times that the counter passed what had been assigned.
    pub overflows: u64,
    /// Periods in which the core was throttled.
    pub throttled_periods: u64,
    /// Time that it was throttled.
    pub throttled_ns: u64,
    /// Periods that it ended in best-effort sharing.
    pub best_effort_periods: u64,
    /// Time that it ran so.
    pub best_effort_ns: u64,
    /// The longest from the overflow interrupt to the throttle thread running.
    pub throttle_latency_ns_max: u64,
    /// The longest from the release to the throttle thread seeing it.
    pub release_latency_ns_max: u64,
    /// Periods in which a counter did not count (another user or an error of the PMU took it): the core ran unregulated.
    pub unregulated_periods: u64,
    /// The last whole second, of this core.
    pub last_second: LastSecond,
    /// Refills.
    pub read: ResourceStatistics,
    /// Write-backs, where they are counted.
    pub write: Option<ResourceStatistics>,
}

/// One core's events of one kind since the last reset.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceStatistics {
    /// Events a period; `None` means unlimited.
    pub budget: Option<u64>,
    /// Events counted.
    pub used: u64,
    /// Events that the core was entitled to, donations taken off and reclaimed ones added.
    pub assigned: u64,
    /// Events given to the pool.
    pub donated: u64,
    /// Events taken from it.
    pub reclaimed: u64,
    /// Periods throttled before the core's own reservation was used.
    pub reclaim_errors: u64,
    /// The most events that one period had, since the core has had a budget (or none).
    pub used_max: u64,
    /// Limited periods that had more events than were assigned, best-effort ones aside.
    pub over_periods: u64,
    /// The last whole second, of this resource.
    pub last_second: ResourceLastSecond,
    /// What a stop takes of the budget, as the last ones have shown: events from the overflow to the period's end. They
    /// are charged with the overflow, half of the budget at most.
    pub stop_events: u64,
    /// Events that tasks took past the budget before a throttle had the core, and that later periods make up for. Each
    /// leaves its tasks that much less, down to nothing but the run that is always granted.
    pub owed: u64,
    /// The most events that a throttled period had past what was assigned, those counted during the throttle included.
    pub overshoot_max: u64,
    /// How often; bucket 0 is exactly none, bucket k from 2^(k-1) to 2^k - 1 events.
    pub overshoot_hist: Vec<u64>,
}

/// One core over the last whole second, or the last period where that is longer; all 0 before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LastSecond {
    /// How long it was, in nanoseconds.
    pub ns: u64,
    /// Periods that ended in it.
    pub periods: u64,
    /// Time that the core was throttled.
    pub throttled_ns: u64,
}

/// One core's events of one kind over the last whole second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceLastSecond {
    /// Events counted.
    pub used: u64,
    /// Events that the core was entitled to.
    pub assigned: u64,
    /// The most events that one period had.
    pub used_max: u64,
}

impl CoreStatistics {
    /// Share of the time that the core was throttled, 0 to 1; `None` before the first period.
    #[allow(clippy::cast_precision_loss)]
    pub fn throttled_share(&self, period_us: u64) -> Option<f64> {
        let elapsed_ns = (self.periods + self.missed_periods)
            .checked_mul(period_us)?
            .checked_mul(1000)?;
        (elapsed_ns > 0).then(|| self.throttled_ns as f64 / elapsed_ns as f64)
    }

    /// What happened since `earlier`, in counts and times; the largest values and histograms stay those since the
    /// last reset.
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

/// Reads the file.
///
/// # Errors
/// When a line is no JSON object of the known shape.
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
