// SPDX-License-Identifier: MIT OR Apache-2.0
//! A group's account over several periods.
//!
//! A stop takes time, and the group's events meanwhile exceed its budget. Two mechanisms still keep the mean at
//! the budget. The alarm is set earlier by the events that recent stops let through ([`Ledger::alarm_at`]).
//! Events beyond a period's budget are owed and deducted from the next periods; unused budget is saved and
//! handed out gradually ([`Ledger::settle`]). Periods that the regulator missed, because the host or other
//! threads had its CPU, add their budgets.
//!
//! With a budget of B, one period is handed at most 2 B, and at most 1.25 B if it lasts 10 ms or longer. Over any N
//! consecutive periods the group uses at most N * B, the largest savings, and its debt at their end. That holds as long
//! as the debt never exceeds one second's budget: debt beyond that is dropped.

/// One part in this many of a second's budget is saved at most: 2.5 %, so that the mean over a second stays within 5 %
/// of the budget even when the savings are spent.
const SAVED_PART: u64 = 40;

/// From the savings, a period gets the budget of this many microseconds, but at least a quarter of its budget and at
/// most all of it. A released group waits for a CPU that other threads use until the scheduler's next tick, up to 4 ms.
/// If its periods are that short, it loses every second one.
const EXTRA_US: u64 = 2500;

/// The debt is at most the budget of this many microseconds, so no group stays stopped for longer than a second.
const OWED_US: u64 = 1_000_000;

/// Weight of the last stop in the average of events: one part in this many.
const WEIGHT_PART: i64 = 8;
/// Unit of the average: one part in this many of an event.
const FRACTION: i64 = 256;

/// The account of a group with a budget.
#[derive(Debug)]
pub(super) struct Ledger {
    budget: u64,
    most_extra: u64,
    most_saved: u64,
    most_owed: u64,
    /// Savings if positive, debt if negative, in events.
    balance: i128,
    /// Mean number of events after the alarm in recent stops, in units of 1/[`FRACTION`] event.
    ahead: i64,
}

impl Ledger {
    /// `budget` is in events per period of `period_us`.
    pub fn new(budget: u64, period_us: u64) -> Self {
        let over = |us: u64| u128::from(budget) * u128::from(us) / u128::from(period_us.max(1));
        let events = |events| u64::try_from(events).unwrap_or(u64::MAX);
        Self {
            budget,
            most_extra: events(over(EXTRA_US)).clamp(budget.div_ceil(4), budget),
            most_saved: events(over(1_000_000 / SAVED_PART)),
            most_owed: events(over(OWED_US)).max(budget),
            balance: 0,
            ahead: 0,
        }
    }

    /// Events that the period beginning now may use; 0 if the group owes them all and stays stopped throughout.
    pub fn handed(&self) -> u64 {
        let handed = i128::from(self.budget) + self.balance.min(self.most_extra.into());
        u64::try_from(handed.max(0)).unwrap_or(u64::MAX)
    }

    /// The event at which the alarm must ring so that the group stops when it has used what it is handed; at least 1.
    pub fn alarm_at(&self) -> u64 {
        let ahead = u64::try_from(self.ahead / FRACTION).unwrap_or(0);
        self.handed().saturating_sub(ahead).max(1)
    }

    /// Adds `periods` periods (all but the first were missed), in which the group used this many events.
    pub fn settle(&mut self, periods: u64, used: u64) {
        let given = i128::from(self.budget) * i128::from(periods);
        self.balance = (self.balance + given - i128::from(used))
            .clamp(-i128::from(self.most_owed), self.most_saved.into());
    }

    /// Learns how many events came after the alarm before the group stopped. At most half a budget counts: one very
    /// slow stop says little about the next.
    pub fn learn(&mut self, after_alarm: u64) {
        let most = i64::try_from(self.budget).unwrap_or(i64::MAX) / 2;
        let last = i64::try_from(after_alarm).unwrap_or(i64::MAX).min(most);
        self.ahead += (last.saturating_mul(FRACTION) - self.ahead) / WEIGHT_PART;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_used_past_the_budget_is_taken_off_the_next_periods() {
        let mut ledger = Ledger::new(25, 1000);
        assert_eq!(ledger.handed(), 25);
        ledger.settle(1, 38);
        assert_eq!(ledger.handed(), 12);
        ledger.settle(1, 70);
        assert_eq!(ledger.handed(), 0);
        ledger.settle(1, 0);
        assert_eq!(ledger.handed(), 0);
        ledger.settle(1, 0);
        assert_eq!(ledger.handed(), 17);
        ledger.settle(1, 17);
        assert_eq!(ledger.handed(), 25);
    }

    #[test]
    fn what_was_left_is_handed_out_by_and_by() {
        let mut ledger = Ledger::new(100, 10_000);
        ledger.settle(1, 10);
        assert_eq!(ledger.handed(), 125);
        ledger.settle(1, 125);
        assert_eq!(ledger.handed(), 125);
        // However long the group was idle.
        ledger.settle(1000, 0);
        let mut extra = 0;
        while ledger.handed() > 100 {
            extra += ledger.handed() - 100;
            ledger.settle(1, ledger.handed());
        }
        assert_eq!(extra, ledger.most_saved);
        assert_eq!(ledger.most_saved, 250);
    }

    #[test]
    fn shorter_periods_are_handed_more_on_top() {
        for (period_us, handed) in [
            (100_000, 125),
            (10_000, 125),
            (5000, 150),
            (2500, 200),
            (100, 200),
        ] {
            let mut ledger = Ledger::new(100, period_us);
            ledger.balance = 1 << 20;
            assert_eq!(ledger.handed(), handed, "{period_us} us");
        }
    }

    #[test]
    fn missed_periods_count_with_their_budgets() {
        let mut ledger = Ledger::new(25, 1000);
        // Nine periods were missed, and the group ran in them.
        ledger.settle(10, 260);
        assert_eq!(ledger.handed(), 15);
        ledger.settle(1, 15);
        // Nine periods were missed, and the group was stopped in them.
        ledger.settle(10, 25);
        assert_eq!(ledger.handed(), 50);
    }

    #[test]
    fn no_debt_lasts_longer_than_a_second() {
        let mut ledger = Ledger::new(25, 1000);
        ledger.settle(1, u64::MAX);
        let mut stood = 0;
        while ledger.handed() == 0 {
            ledger.settle(1, 0);
            stood += 1;
        }
        assert_eq!((stood, ledger.most_owed), (1000, 25_000));
        // If a period is longer than a second, the debt is at most one period's budget.
        assert_eq!(Ledger::new(25, 5_000_000).most_owed, 25);
    }

    #[test]
    fn the_alarm_is_set_ahead_by_what_stops_take() {
        let mut ledger = Ledger::new(50, 1000);
        assert_eq!(ledger.alarm_at(), 50);
        for _ in 0..100 {
            ledger.learn(13);
        }
        assert!((37..=38).contains(&ledger.alarm_at()));
        // One slow stop holds the group back neither forever nor without bound.
        ledger.learn(100_000);
        assert!(ledger.alarm_at() >= 35);
        for _ in 0..100 {
            ledger.learn(0);
        }
        assert_eq!(ledger.alarm_at(), 50);
        ledger.settle(1, 99);
        for _ in 0..100 {
            ledger.learn(13);
        }
        assert_eq!((ledger.handed(), ledger.alarm_at()), (1, 1));
    }

    /// Periods that passed, events that the group wanted, and events that still came before it stopped.
    fn steps() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
        prop::collection::vec((1u64..20, 0u64..3000, 0u64..300), 1..200)
    }

    proptest! {
        /// A group that stops at once uses at most N budgets and a bounded burst over any N
        /// periods, however it idles and wakes.
        #[test]
        fn any_window_is_handed_its_budgets_and_a_bounded_burst(
            budget in 1u64..1000, period_us in 100u64..100_000, steps in steps(),
        ) {
            let mut ledger = Ledger::new(budget, period_us);
            let mut used = Vec::new();
            for (periods, wanted, _) in steps {
                let allowed = ledger.handed();
                prop_assert!(allowed <= 2 * budget);
                used.push((periods, allowed.min(wanted)));
                ledger.settle(periods, allowed.min(wanted));
            }
            for begin in 0..used.len() {
                let (mut given, mut sum) = (0, 0);
                for (periods, events) in &used[begin..] {
                    given += budget * periods;
                    sum += events;
                    prop_assert!(sum <= given + ledger.most_saved);
                }
            }
        }

        /// Over any N periods a group uses at most N budgets, the largest savings, and its debt at their end.
        #[test]
        fn any_window_uses_its_budgets_a_bounded_burst_and_what_it_then_owes(
            budget in 1u64..1000, period_us in 100u64..100_000, steps in steps(),
        ) {
            let mut ledger = Ledger::new(budget, period_us);
            let (mut given, mut used) = (0_i128, 0_i128);
            // The minimum of `used - given` so far: the worst window that ends here begins there.
            let mut least = 0_i128;
            for (periods, wanted, late) in steps {
                let took = ledger.handed().min(wanted) + late;
                given += i128::from(budget * periods);
                used += i128::from(took);
                ledger.settle(periods, took);
                let owed = (-ledger.balance).max(0);
                // No debt was dropped.
                prop_assume!(owed < i128::from(ledger.most_owed));
                prop_assert!(used - given - least <= i128::from(ledger.most_saved) + owed);
                least = least.min(used - given);
            }
        }

        /// A group with unlimited demand gets its budget, whatever events a stop lets through and however many periods
        /// are missed, as long as the savings can hold the missed ones.
        #[test]
        fn a_hungry_group_comes_to_its_budget(
            budget in 10u64..1000, late in prop::collection::vec(0u64..2000, 1..20), missed in 0u64..2,
        ) {
            let mut ledger = Ledger::new(budget, 1000);
            let (mut used, mut periods) = (0, 0);
            for step in 0..20_000 {
                let past = 1 + if step % 16 == 0 { missed } else { 0 };
                let took = match ledger.handed() {
                    0 => 0,
                    _ => {
                        let late = late[step % late.len()];
                        ledger.learn(late);
                        ledger.alarm_at() + late
                    }
                };
                ledger.settle(past, took);
                used += took;
                periods += past;
            }
            let fair = budget * periods;
            let slack = ledger.most_saved + 2001;
            prop_assert!(used <= fair + slack, "{used} of {fair}");
            prop_assert!(used + slack >= fair, "{used} of {fair}");
        }
    }
}
