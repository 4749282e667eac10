// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a core thread counts, and how others get to see it.

use std::sync::Mutex;

use memwarden_policy::{Account, UNLIMITED};

use crate::statistics::{CoreStatistics, ResourceStatistics};

/// Buckets of the overshoot histogram: none, and powers of two up to 2^30.
const BUCKETS: usize = 32;

/// One resource.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ResourceFigures {
    pub account: Account,
    pub overshoot_max: u64,
    pub overshoot: [u64; BUCKETS],
}

impl ResourceFigures {
    /// Notes how far past what it was given the core got.
    pub fn overshot(&mut self, events: u64) {
        let bucket = events.checked_ilog2().map_or(0, |power| power as usize + 1);
        self.overshoot[bucket.min(BUCKETS - 1)] += 1;
        self.overshoot_max = self.overshoot_max.max(events);
    }

    fn statistics(&self) -> ResourceStatistics {
        let account = &self.account;
        let used_buckets = self.overshoot.iter().rposition(|count| *count > 0);
        ResourceStatistics {
            budget: (account.budget != UNLIMITED).then_some(account.budget),
            used: account.total_used,
            assigned: account.total_assigned,
            donated: account.total_donated,
            reclaimed: account.total_reclaimed,
            reclaim_errors: account.reclaim_errors,
            overshoot_max: self.overshoot_max,
            overshoot_hist: self.overshoot[..used_buckets.map_or(0, |last| last + 1)].to_vec(),
            ..ResourceStatistics::default()
        }
    }
}

/// A core's figures since the last reset.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Figures {
    pub regulated: bool,
    /// Nothing is limited: the thread looks up rarely.
    pub quiet: bool,
    /// The last kick that these figures are younger than.
    pub kicks: u64,
    pub active: bool,
    pub throttled: bool,
    pub periods: u64,
    pub missed_periods: u64,
    pub late_ns_max: u64,
    pub late_ns_sum: u64,
    pub overflows: u64,
    pub throttled_periods: u64,
    pub throttled_ns: u64,
    pub best_effort_periods: u64,
    pub best_effort_ns: u64,
    pub throttle_latency_ns_max: u64,
    pub release_latency_ns_max: u64,
    pub resource: [ResourceFigures; 2],
}

impl Figures {
    /// As the `stats` file would have it.
    pub fn statistics(&self, cpu: usize, rt: bool, writes: bool) -> CoreStatistics {
        CoreStatistics {
            cpu,
            online: self.regulated,
            rt,
            periods: self.periods,
            missed_periods: self.missed_periods,
            late_ns_max: self.late_ns_max,
            late_ns_sum: self.late_ns_sum,
            overflows: self.overflows,
            throttled_periods: self.throttled_periods,
            throttled_ns: self.throttled_ns,
            best_effort_periods: self.best_effort_periods,
            best_effort_ns: self.best_effort_ns,
            throttle_latency_ns_max: self.throttle_latency_ns_max,
            release_latency_ns_max: self.release_latency_ns_max,
            read: self.resource[0].statistics(),
            write: writes.then(|| self.resource[1].statistics()),
            ..CoreStatistics::default()
        }
    }
}

/// The latest figures of a core, left by its thread whenever nobody is looking.
#[derive(Debug, Default)]
pub(super) struct Board(Mutex<Figures>);

impl Board {
    /// Never waits: who looks at this moment sees the figures before these.
    pub fn leave(&self, figures: &Figures) {
        if let Ok(mut board) = self.0.try_lock() {
            *board = *figures;
        }
    }

    pub fn look(&self) -> Figures {
        *self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overshoot_falls_in_the_buckets_of_the_stats_file() {
        let mut figures = ResourceFigures::default();
        assert!(figures.statistics().overshoot_hist.is_empty());
        for events in [0, 0, 1, 2, 3, 4, u64::MAX] {
            figures.overshot(events);
        }
        let statistics = figures.statistics();
        assert_eq!(statistics.overshoot_hist[..4], [2, 1, 2, 1]);
        assert_eq!(statistics.overshoot_hist.len(), BUCKETS);
        assert_eq!(statistics.overshoot_max, u64::MAX);
    }

    #[test]
    fn who_looks_keeps_nobody_waiting() {
        let board = Board::default();
        let looking = board.0.lock().unwrap();
        board.leave(&Figures {
            periods: 1,
            ..Figures::default()
        });
        drop(looking);
        assert_eq!(board.look().periods, 0);
        board.leave(&Figures {
            periods: 2,
            ..Figures::default()
        });
        assert_eq!(board.look().periods, 2);
    }
}
