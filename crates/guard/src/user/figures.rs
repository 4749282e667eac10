// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a core thread counts, and how other threads read it.

use std::sync::Mutex;

use memwarden_policy::{Account, Resource, UNLIMITED};

use crate::statistics::{CoreStatistics, LastSecond, ResourceLastSecond, ResourceStatistics};

/// Length of the interval that `last_second` covers.
const SECOND_NS: u64 = 1_000_000_000;

/// A second may end up to this much early. Otherwise, a boundary that is handled slightly earlier than the one before
/// would extend the second by a whole period.
const EARLY_NS: u64 = 1_000_000;

/// Buckets of the overshoot histogram: zero, and powers of two up to 2^30.
const BUCKETS: usize = 32;

/// Figures of one resource.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ResourceFigures {
    pub account: Account,
    pub used_max: u64,
    pub over_periods: u64,
    pub last_second: ResourceLastSecond,
    pub overshoot_max: u64,
    pub overshoot: [u64; BUCKETS],
}

impl ResourceFigures {
    /// Records the events of a throttled period beyond what was assigned.
    fn overshot(&mut self, events: u64) {
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
            used_max: self.used_max,
            over_periods: self.over_periods,
            last_second: self.last_second,
            stop_events: account.stop,
            owed: account.owed,
            overshoot_max: self.overshoot_max,
            overshoot_hist: self.overshoot[..used_buckets.map_or(0, |last| last + 1)].to_vec(),
        }
    }
}

/// An ended period. On a core without limits, several periods that were checked together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub at_ns: u64,
    pub periods: u64,
    pub used: [u64; 2],
    /// [`UNLIMITED`] if the core has no budget.
    pub assigned: [u64; 2],
    /// If the core was throttled at the period's end: the resource whose overflow throttled it.
    pub stopped_by: Option<Resource>,
    /// The core was allowed more than what was assigned: best effort, or a real-time core.
    pub exempt: bool,
    /// All counters counted throughout.
    pub counted: bool,
}

impl Ended {
    fn limited(&self) -> bool {
        self.assigned.iter().any(|assigned| *assigned < UNLIMITED)
    }
}

/// The current second.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Second {
    begun_ns: u64,
    /// The core's value at the beginning of this second.
    throttled_ns: u64,
    limited: bool,
    periods: u64,
    resource: [ResourceLastSecond; 2],
}

impl Second {
    pub fn begin(now_ns: u64, figures: &Figures) -> Self {
        Self {
            begun_ns: now_ns,
            throttled_ns: figures.throttled_ns,
            ..Self::default()
        }
    }
}

/// A core's figures since the last reset.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Figures {
    pub regulated: bool,
    /// Nothing is limited, so the thread wakes rarely.
    pub quiet: bool,
    /// Number of the last kick that these figures include.
    pub kicks: u64,
    pub active: bool,
    pub throttled: bool,
    pub periods: u64,
    pub missed_periods: u64,
    /// Time up to the end of the last ended period.
    pub elapsed_ns: u64,
    /// When these figures began.
    since_ns: u64,
    /// Length of the current period.
    period_ns: u64,
    pub late_ns_max: u64,
    pub late_ns_sum: u64,
    pub overflows: u64,
    pub throttled_periods: u64,
    pub throttled_ns: u64,
    pub best_effort_periods: u64,
    pub best_effort_ns: u64,
    pub throttle_latency_ns_max: u64,
    pub release_latency_ns_max: u64,
    pub unregulated_periods: u64,
    pub last_second: LastSecond,
    pub resource: [ResourceFigures; 2],
}

impl Figures {
    /// The figures of a core that is regulated from now on, or of which they were reset.
    pub fn begin(now_ns: u64, period_ns: u64) -> Self {
        Self {
            regulated: true,
            since_ns: now_ns,
            period_ns,
            ..Self::default()
        }
    }

    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Adds an ended period to the totals and to the current second. `period_ns` is the length of the next one.
    pub fn ended(&mut self, ended: &Ended, period_ns: u64, second: &mut Second) {
        self.periods += ended.periods;
        self.elapsed_ns = ended.at_ns.saturating_sub(self.since_ns);
        if !ended.counted {
            self.unregulated_periods += ended.periods;
        }
        // A second covers a core either with a budget or without: earlier events have no assignment to compare with.
        // The same holds for the largest period.
        if second.periods > 0 && second.limited != ended.limited() {
            *second = Second {
                begun_ns: ended
                    .at_ns
                    .saturating_sub(period_ns.saturating_mul(ended.periods)),
                ..Second::begin(ended.at_ns, self)
            };
            for resource in &mut self.resource {
                resource.used_max = 0;
            }
        }
        second.limited = ended.limited();
        second.periods += ended.periods;
        for (index, resource) in self.resource.iter_mut().enumerate() {
            let (used, assigned) = (ended.used[index], ended.assigned[index]);
            // Of several periods, only the mean is known.
            let each = used.div_ceil(ended.periods.max(1));
            let of_second = &mut second.resource[index];
            resource.used_max = resource.used_max.max(each);
            of_second.used_max = of_second.used_max.max(each);
            of_second.used += used;
            if assigned >= UNLIMITED {
                continue;
            }
            of_second.assigned += assigned;
            if used > assigned && !ended.exempt {
                resource.over_periods += 1;
            }
            if ended.stopped_by.is_some_and(|by| by as usize == index) {
                resource.overshot(used.saturating_sub(assigned));
            }
        }
        if std::mem::replace(&mut self.period_ns, period_ns) != period_ns {
            // What a period of another length used says nothing about the next ones.
            for resource in &mut self.resource {
                resource.used_max = 0;
                resource.last_second = ResourceLastSecond::default();
            }
            self.last_second = LastSecond::default();
            *second = Second::begin(ended.at_ns, self);
            return;
        }
        let early_ns = EARLY_NS.min(period_ns / 8);
        let ns = ended.at_ns.saturating_sub(second.begun_ns);
        if ns + early_ns < SECOND_NS {
            return;
        }
        self.last_second = LastSecond {
            ns,
            periods: second.periods,
            throttled_ns: self.throttled_ns - second.throttled_ns,
        };
        for (resource, of_second) in self.resource.iter_mut().zip(second.resource) {
            resource.last_second = of_second;
        }
        *second = Second::begin(ended.at_ns, self);
    }

    /// The statistics in the form of the module's `stats` file.
    pub fn statistics(&self, cpu: usize, rt: bool, writes: bool) -> CoreStatistics {
        CoreStatistics {
            cpu,
            online: self.regulated,
            rt,
            periods: self.periods,
            missed_periods: self.missed_periods,
            elapsed_ns: self.elapsed_ns,
            late_ns_max: self.late_ns_max,
            late_ns_sum: self.late_ns_sum,
            overflows: self.overflows,
            throttled_periods: self.throttled_periods,
            throttled_ns: self.throttled_ns,
            best_effort_periods: self.best_effort_periods,
            best_effort_ns: self.best_effort_ns,
            throttle_latency_ns_max: self.throttle_latency_ns_max,
            release_latency_ns_max: self.release_latency_ns_max,
            unregulated_periods: self.unregulated_periods,
            last_second: self.last_second,
            read: self.resource[0].statistics(),
            write: writes.then(|| self.resource[1].statistics()),
        }
    }
}

/// The latest figures of a core. Its thread updates them unless another thread is reading them.
#[derive(Debug, Default)]
pub(super) struct Board(Mutex<Figures>);

impl Board {
    /// Never waits: a thread that is reading at this moment sees the previous figures, and these are not kept. Returns
    /// whether they are.
    #[must_use]
    pub fn leave(&self, figures: &Figures) -> bool {
        match self.0.try_lock() {
            Ok(mut board) => {
                *board = *figures;
                true
            }
            Err(_) => false,
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

    const MS: u64 = 1_000_000;

    fn ended(at_ns: u64, used: u64, assigned: u64) -> Ended {
        Ended {
            at_ns,
            periods: 1,
            used: [used, 0],
            assigned: [assigned, UNLIMITED],
            stopped_by: (used >= assigned).then_some(Resource::Read),
            exempt: false,
            counted: true,
        }
    }

    #[test]
    fn events_counted_during_a_throttle_are_overshoot() {
        let (mut figures, mut second) = (Figures::begin(0, MS), Second::default());
        figures.ended(&ended(MS, 5, 5), MS, &mut second);
        figures.ended(&ended(2 * MS, 250, 5), MS, &mut second);
        // Best effort permits it: this period does not count as over its budget, but as the largest.
        let free = Ended {
            stopped_by: None,
            exempt: true,
            ..ended(3 * MS, 300, 5)
        };
        figures.ended(&free, MS, &mut second);
        let read = figures.statistics(0, false, false).read;
        assert_eq!(read.overshoot_max, 245);
        assert_eq!(read.overshoot_hist.iter().sum::<u64>(), 2);
        assert_eq!((read.used_max, read.over_periods), (300, 1));
    }

    #[test]
    fn a_second_is_a_thousand_periods_and_the_next_begins_where_it_ended() {
        let mut figures = Figures::begin(0, MS);
        let mut second = Second::begin(0, &figures);
        let mut run = |from: u64, to: u64, used: fn(u64) -> u64| {
            for period in from..to {
                figures.throttled_ns += MS / 2;
                // Handled 20 us and 10 us late in turn.
                let late_ns = 10_000 + 10_000 * (period % 2);
                figures.ended(
                    &ended(period * MS + late_ns, used(period), 5),
                    MS,
                    &mut second,
                );
            }
            figures.statistics(0, false, false)
        };
        let statistics = run(1, 1000, |_| 5);
        assert_eq!(statistics.last_second, LastSecond::default());
        let statistics = run(1000, 1001, |_| 5);
        assert_eq!(statistics.last_second.periods, 1000);
        assert_eq!(statistics.last_second.throttled_ns, 500 * MS);
        let read = statistics.read.last_second;
        assert_eq!((read.used, read.assigned, read.used_max), (5000, 5000, 5));
        // Only the second that contains the leak shows it.
        let leaking = run(1001, 2001, |period| if period < 1025 { 250 } else { 5 });
        let read = leaking.read.last_second;
        assert_eq!(leaking.last_second.periods, 1000);
        assert_eq!((read.used, read.used_max), (24 * 250 + 976 * 5, 250));
        let later = run(2001, 3001, |_| 5);
        assert_eq!(
            (later.read.last_second.used, later.read.last_second.used_max),
            (5000, 5)
        );
        assert_eq!((later.read.used_max, later.read.over_periods), (250, 24));
    }

    #[test]
    fn a_second_does_not_mix_a_budget_with_none() {
        let mut figures = Figures::begin(0, MS);
        let mut second = Second::begin(0, &figures);
        // Quiet: 100 periods per check, and only their mean is known.
        for look in 1..=5 {
            let quiet = Ended {
                periods: 100,
                stopped_by: None,
                ..ended(look * 100 * MS, 20_000, UNLIMITED)
            };
            figures.ended(&quiet, MS, &mut second);
        }
        assert_eq!(figures.resource[0].used_max, 200);
        for period in 501..=1500 {
            figures.ended(&ended(period * MS, 5, 5), MS, &mut second);
        }
        let read = figures.resource[0].last_second;
        assert_eq!((read.used, read.assigned), (5000, 5000));
        assert_eq!(figures.resource[0].used_max, 5);
    }

    #[test]
    fn totals_of_periods_of_two_lengths_have_their_time() {
        let (mut figures, mut second) = (Figures::begin(0, MS), Second::default());
        let mut now_ns = 0;
        let mut run = |periods: u64, length: u64, next: u64| {
            for period in 1..=periods {
                now_ns += length;
                figures.throttled_ns += length / 10 * 9;
                let next = if period == periods { next } else { length };
                let events = 5 * length / MS;
                figures.ended(&ended(now_ns, events, events), next, &mut second);
                figures.resource[0].account.total_used += events;
            }
            figures.statistics(0, false, false)
        };
        let before = run(2000, MS, 10 * MS);
        assert_eq!(before.elapsed_ns, 2000 * MS);
        assert_eq!(before.throttled_share(10_000), Some(0.9));
        // Nothing of the shorter periods is compared with the budget of the longer ones.
        assert_eq!(before.read.used_max, 0);
        assert_eq!(before.last_second, LastSecond::default());
        let after = run(200, 10 * MS, MS);
        assert_eq!((after.periods, after.elapsed_ns), (2200, 4000 * MS));
        assert_eq!(after.read.used, 20_000);
        assert_eq!(after.throttled_share(1000), Some(0.9));
        let again = run(2000, MS, MS);
        assert_eq!((again.elapsed_ns, again.read.used_max), (6000 * MS, 5));
        assert_eq!(again.last_second.periods, 1000);
        assert_eq!(again.read.last_second.used_max, 5);
    }

    #[test]
    fn a_period_without_a_counter_is_told() {
        let (mut figures, mut second) = (Figures::begin(0, MS), Second::default());
        let blind = Ended {
            counted: false,
            ..ended(MS, 0, 5)
        };
        figures.ended(&blind, MS, &mut second);
        assert_eq!(figures.statistics(0, false, false).unregulated_periods, 1);
    }

    #[test]
    fn a_reader_keeps_no_regulator_waiting() {
        let board = Board::default();
        let looking = board.0.lock().unwrap();
        let kept = board.leave(&Figures {
            periods: 1,
            ..Figures::default()
        });
        assert!(!kept);
        drop(looking);
        assert_eq!(board.look().periods, 0);
        let kept = board.leave(&Figures {
            periods: 2,
            ..Figures::default()
        });
        assert!(kept);
        assert_eq!(board.look().periods, 2);
    }
}
