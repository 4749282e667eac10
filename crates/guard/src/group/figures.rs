// SPDX-License-Identifier: MIT OR Apache-2.0
//! How well a group's budget was kept.

use std::collections::VecDeque;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::StopWith;

/// Number of stops whose figures are kept: those of four minutes at a period of 1 ms, of 43 minutes at 10 ms.
const ROOM: usize = 1 << 18;

const SECOND_US: u64 = 1_000_000;

/// How far the mean over a second may exceed the budget of a group that was held: in percent of it, at periods of
/// [`LONG_US`] or more and at shorter ones. docs/guard.md guarantees them at 10 ms and at 1 ms.
const WITHIN_PERCENT: [u64; 2] = [5, 10];
const LONG_US: u64 = 10_000;

/// A distribution.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Half of the values are not above it.
    pub median: u64,
    /// 99 of 100 values are not above it.
    pub p99: u64,
    /// The largest value.
    pub max: u64,
}

impl Spread {
    /// The distribution of these values, in any order; `None` if there are none.
    fn of(mut values: Vec<u64>) -> Option<Self> {
        values.sort_unstable();
        let last = values.len().checked_sub(1)?;
        let sum: u128 = values.iter().copied().map(u128::from).sum();
        Some(Self {
            mean: sum as f64 / values.len() as f64,
            median: values[last / 2],
            p99: values[last * 99 / 100],
            max: values[last],
        })
    }
}

/// What was requested, and what it amounts to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Terms {
    /// The group's folder; in JSON an array of its bytes if they are not UTF-8.
    #[serde(with = "memwarden_platform::text_or_bytes")]
    #[schemars(with = "memwarden_platform::text_or_bytes::Form")]
    pub cgroup: PathBuf,
    /// The counted event.
    pub event: String,
    /// Bytes that one event stands for.
    pub bytes_per_event: u64,
    /// Length of a period in microseconds.
    pub period_us: u64,
    /// How the group is stopped.
    pub stop_with: StopWith,
    /// Events per period; `None` if there is no limit.
    pub budget_events: Option<u64>,
    /// The budget in MiB/s.
    pub budget_mib_s: Option<f64>,
}

/// Summary of a group's regulation, from the first period to the last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// What was requested; in JSON, its fields are beside the others.
    #[serde(flatten)]
    pub terms: Terms,
    /// True if the group was held to its budget, or had none.
    pub held: bool,
    /// Reason why it was not held, or why that is unknown.
    pub not_held: Option<String>,
    /// Duration of the regulation, in seconds.
    pub duration_s: f64,
    /// Periods that began.
    pub periods: u64,
    /// Periods that passed before the regulator noticed.
    pub missed_periods: u64,
    /// Events counted.
    pub used_events: u64,
    /// Mean bandwidth over the whole time, in MiB/s.
    pub achieved_mib_s: f64,
    /// Highest bandwidth over a second that begins with any period, in MiB/s; `None` if there was no whole second.
    pub worst_second_mib_s: Option<f64>,
    /// Lowest bandwidth over such a second, in MiB/s, among those that begin and end with a period
    /// in which the group was stopped.
    pub least_second_mib_s: Option<f64>,
    /// Most events in a period. A period and the missed ones after it count with their mean.
    pub worst_period_events: u64,
    /// Periods in which the group was stopped.
    pub stopped_periods: u64,
    /// Those of the stopped periods through which the group stayed stopped because of its debt.
    pub held_periods: u64,
    /// Mean number of events in a period in which the group was stopped.
    pub used_events_per_stopped_period: Option<f64>,
    /// Share of the time for which the group was stopped, 0 to 1.
    pub stopped_share: f64,
    /// Events beyond what a stopped period was handed (its budget, less the debt, plus savings).
    pub overshoot_events: Option<Spread>,
    /// Time from the alarm that showed the budget to be used up to the end of the write that
    /// stops the group, in nanoseconds.
    pub reaction_ns: Option<Spread>,
    /// Time from the same alarm to the group's last event, or to the end of that write if later, in nanoseconds.
    pub stop_ns: Option<Spread>,
    /// Number of times that the counters were read and the alarms set, per period.
    pub looks_per_period: f64,
}

/// All intervals of one second, measured in periods and beginning with any period.
#[derive(Debug)]
struct Seconds {
    periods: usize,
    /// For each period: its events, and whether the group was stopped.
    last: VecDeque<(u64, bool)>,
    sum: u64,
    most: Option<u64>,
    least: Option<u64>,
}

impl Seconds {
    fn of(period_us: u64) -> Self {
        let periods = usize::try_from((SECOND_US / period_us.max(1)).max(1)).unwrap_or(usize::MAX);
        Self {
            periods,
            last: VecDeque::with_capacity(periods + 1),
            sum: 0,
            most: None,
            least: None,
        }
    }

    /// Adds `periods` periods with `used` events in total, spread evenly: the counters tell no more.
    fn passed(&mut self, periods: u64, used: u64, stopped: bool) {
        let each = used / periods;
        let mut rest = used % periods;
        // All seconds within these periods are alike, so two seconds' worth of periods is enough.
        for _ in 0..periods.min(2 * self.periods as u64) {
            let one = u64::from(rest > 0);
            rest -= one;
            self.push(each + one, stopped);
        }
    }

    /// Adds the events of a period that has not ended, if a whole second came before: that cannot be a least second.
    fn rest(&mut self, used: u64) {
        if self.most.is_some() {
            self.push(used, false);
        }
    }

    fn push(&mut self, events: u64, stopped: bool) {
        self.sum += events;
        self.last.push_back((events, stopped));
        if self.last.len() > self.periods {
            if let Some((gone, _)) = self.last.pop_front() {
                self.sum -= gone;
            }
        }
        if self.last.len() == self.periods {
            self.most = self.most.max(Some(self.sum));
            let began_stopped = self.last.front().is_some_and(|(_, stopped)| *stopped);
            if began_stopped && stopped {
                self.least = Some(self.least.map_or(self.sum, |least| least.min(self.sum)));
            }
        }
    }
}

/// Figures collected during the regulation.
#[derive(Debug)]
pub(super) struct Figures {
    pub periods: u64,
    pub looks: u64,
    missed: u64,
    used: u64,
    worst_period: u64,
    seconds: Seconds,
    stopped: u64,
    held: u64,
    used_in_stopped: u64,
    stopped_ns: u64,
    overshoot: Vec<u64>,
    reaction_ns: Vec<u64>,
    stop_ns: Vec<u64>,
    uncounted: Vec<String>,
}

/// A period in which the group was stopped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    pub overshoot: u64,
    pub reaction_ns: u64,
    pub stop_ns: u64,
}

impl Figures {
    pub fn new(period_us: u64) -> Self {
        Self {
            periods: 0,
            looks: 0,
            missed: 0,
            used: 0,
            worst_period: 0,
            seconds: Seconds::of(period_us),
            stopped: 0,
            held: 0,
            used_in_stopped: 0,
            stopped_ns: 0,
            overshoot: Vec::with_capacity(ROOM),
            reaction_ns: Vec::with_capacity(ROOM),
            stop_ns: Vec::with_capacity(ROOM),
            uncounted: Vec::new(),
        }
    }

    /// Adds the events of the last period, which has not ended.
    pub fn rest(&mut self, used: u64) {
        self.used += used;
        self.worst_period = self.worst_period.max(used);
        self.seconds.rest(used);
    }

    /// Records why some of the group's events were not counted.
    pub fn uncounted(&mut self, why: String) {
        if !self.uncounted.contains(&why) {
            self.uncounted.push(why);
        }
    }

    /// Reason why the group was not held to its budget, or why that is unknown; `None` if it was or had no budget.
    fn not_held(&self, terms: &Terms) -> Option<String> {
        let budget = u128::from(terms.budget_events?);
        let mut reasons = self.uncounted.clone();
        if self.used == 0 {
            reasons.push("nothing was counted".into());
        }
        let within = WITHIN_PERCENT[usize::from(terms.period_us < LONG_US)];
        let second = budget * self.seconds.periods as u128;
        let extra = second * u128::from(within) / 100;
        let periods = self.periods + self.missed;
        let percent = |events: u64, of: u128| 100.0 * events as f64 / of.max(1) as f64;
        let excess = match self.seconds.most {
            Some(most) if u128::from(most) > second + extra => Some(format!(
                "its worst second had {:.1} % of the budget, and {} % are allowed",
                percent(most, second),
                100 + within
            )),
            // As if the group used its budget for the rest of the second.
            None if u128::from(self.used) > budget * u128::from(periods) + extra => Some(format!(
                "it used {:.1} % of its budget in a run shorter than a second",
                percent(self.used, budget * u128::from(periods))
            )),
            _ => None,
        };
        if let Some(mut excess) = excess {
            if self.missed > 0 {
                excess += &format!("; {} of {periods} periods were missed", self.missed);
            }
            reasons.push(excess);
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// Adds `periods` periods (all but the first were missed) and their events. `stood_ns` is the time for which the
    /// group was stopped in them, if it was.
    pub fn passed(&mut self, periods: u64, used: u64, stood_ns: Option<u64>) {
        self.missed += periods - 1;
        self.used += used;
        self.worst_period = self.worst_period.max(used.div_ceil(periods));
        self.seconds.passed(periods, used, stood_ns.is_some());
        if let Some(stood_ns) = stood_ns {
            self.stopped += 1;
            self.used_in_stopped += used;
            self.stopped_ns += stood_ns;
        }
    }

    /// Records how the group was stopped in a period; `None` if it was stopped from the beginning.
    pub fn stopped(&mut self, stop: Option<Stop>) {
        let Some(stop) = stop else {
            self.held += 1;
            return;
        };
        if self.overshoot.len() < ROOM {
            self.overshoot.push(stop.overshoot);
            self.reaction_ns.push(stop.reaction_ns);
            self.stop_ns.push(stop.stop_ns);
        }
    }

    /// Computes the summary.
    pub fn finish(self, duration_ns: u64, terms: Terms) -> Summary {
        let duration_s = duration_ns as f64 / 1e9;
        let per_s = |value: f64| {
            if duration_ns == 0 {
                0.0
            } else {
                value / duration_s
            }
        };
        let each = |value: u64, of: u64| value as f64 / of as f64;
        let mib =
            |events: u64| events as f64 * terms.bytes_per_event as f64 / crate::units::MIB as f64;
        let not_held = self.not_held(&terms);
        let second_s = self.seconds.periods as f64 * terms.period_us as f64 / 1e6;
        let over_second = |events: Option<u64>| events.map(|events| mib(events) / second_s);
        Summary {
            held: not_held.is_none(),
            not_held,
            achieved_mib_s: per_s(mib(self.used)),
            worst_second_mib_s: over_second(self.seconds.most),
            least_second_mib_s: over_second(self.seconds.least),
            worst_period_events: self.worst_period,
            held_periods: self.held,
            terms,
            duration_s,
            periods: self.periods,
            missed_periods: self.missed,
            used_events: self.used,
            stopped_periods: self.stopped,
            used_events_per_stopped_period: (self.stopped > 0)
                .then(|| each(self.used_in_stopped, self.stopped)),
            stopped_share: per_s(self.stopped_ns as f64 / 1e9),
            overshoot_events: Spread::of(self.overshoot),
            reaction_ns: Spread::of(self.reaction_ns),
            stop_ns: Spread::of(self.stop_ns),
            looks_per_period: each(self.looks, self.periods.max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        Terms {
            cgroup: "/sys/fs/cgroup/a".into(),
            event: "page-faults".into(),
            bytes_per_event: 4096,
            period_us: 1000,
            stop_with: StopWith::Freezer,
            budget_events: Some(25),
            budget_mib_s: Some(97.65625),
        }
    }

    #[test]
    fn figures_come_to_what_they_say() {
        let mut figures = Figures::new(1000);
        for period in 0..100 {
            figures.periods += 1;
            figures.looks += 3;
            figures.passed(1, 26, Some(500_000));
            figures.stopped(Some(Stop {
                overshoot: 1 + period / 99,
                reaction_ns: 500 * (period + 1),
                stop_ns: 1000 * (period + 1),
            }));
        }
        let summary = figures.finish(100_000_000, terms());
        assert!((summary.achieved_mib_s - 101.5625).abs() < 1e-9);
        assert!((summary.stopped_share - 0.5).abs() < 1e-9);
        assert!((summary.looks_per_period - 3.0).abs() < 1e-9);
        assert_eq!(summary.used_events_per_stopped_period, Some(26.0));
        let over = summary.overshoot_events.unwrap();
        assert_eq!((over.median, over.p99, over.max), (1, 1, 2));
        assert_eq!(summary.reaction_ns.unwrap().median, 25_000);
        assert_eq!(summary.stop_ns.unwrap().median, 50_000);
        assert_eq!((summary.worst_period_events, summary.held_periods), (26, 0));
        // Regulation lasted less than a second.
        let seconds = (summary.worst_second_mib_s, summary.least_second_mib_s);
        assert_eq!(seconds, (None, None));
    }

    #[test]
    fn the_worst_second_is_found_wherever_it_begins() {
        let mut figures = Figures::new(1000);
        // Low demand, then half a second above and half a second below the budget between stretches at
        // the budget, and low demand again.
        for (periods, events, stopped) in [
            (500, 10, false),
            (700, 25, true),
            (500, 30, true),
            (500, 20, true),
            (700, 25, true),
            (300, 1, false),
        ] {
            for _ in 0..periods {
                figures.periods += 1;
                figures.passed(1, events, stopped.then_some(500_000));
            }
        }
        let summary = figures.finish(3_200_000_000, terms());
        let of = |events: f64| Some(events * 4096.0 / f64::from(1 << 20));
        assert_eq!(summary.worst_second_mib_s, of(27_500.0));
        // A lack of demand does not count as a shortfall.
        assert_eq!(summary.least_second_mib_s, of(22_500.0));
        assert_eq!(summary.worst_period_events, 30);
    }

    /// The verdict on these periods, each with its events, at a budget of 25 events per ms.
    fn verdict(periods: impl IntoIterator<Item = (u64, u64)>) -> Option<String> {
        let mut figures = Figures::new(1000);
        let mut passed = 0;
        for (periods, used) in periods {
            figures.periods += 1;
            figures.passed(periods, used, Some(500_000));
            passed += periods;
        }
        let summary = figures.finish(passed * 1_000_000, terms());
        assert_eq!(summary.held, summary.not_held.is_none());
        summary.not_held
    }

    #[test]
    fn a_group_is_held_if_no_second_exceeds_the_guarantee() {
        assert_eq!(verdict([(1, 27); 1500]), None);
        assert_eq!(
            verdict([(1, 28); 1500]).unwrap(),
            "its worst second had 112.0 % of the budget, and 110 % are allowed"
        );
        // One bad second among many, and a single period far beyond the budget.
        let mut seconds = vec![(1, 10); 5000];
        seconds[2000..3000].fill((1, 50));
        assert!(verdict(seconds).is_some());
        let mut one = vec![(1, 23); 1500];
        one[700] = (1, 2500);
        assert_eq!(verdict(one), None);
        // Missed periods alone are no failure.
        assert_eq!(verdict([(10, 250); 200]), None);
        assert_eq!(
            verdict([(10, 300); 200]).unwrap(),
            "its worst second had 120.0 % of the budget, and 110 % are allowed; 1800 of 2000 periods were missed"
        );
    }

    #[test]
    fn longer_periods_are_held_more_closely() {
        let verdict = |each| {
            let mut figures = Figures::new(10_000);
            for _ in 0..150 {
                figures.periods += 1;
                figures.passed(1, each, None);
            }
            let mut terms = terms();
            (terms.period_us, terms.budget_events) = (10_000, Some(100));
            figures.finish(1_500_000_000, terms).not_held
        };
        assert_eq!(verdict(105), None);
        assert!(verdict(106).unwrap().contains("105 % are allowed"));
    }

    #[test]
    fn a_run_shorter_than_a_second_may_end_with_a_tenth_of_its_budget_in_debt() {
        assert_eq!(verdict([(1, 300); 9]), None);
        assert_eq!(
            verdict([(1, 350); 9]).unwrap(),
            "it used 1400.0 % of its budget in a run shorter than a second"
        );
    }

    #[test]
    fn events_that_were_not_counted_are_not_held() {
        assert_eq!(verdict([(1, 0); 1500]).unwrap(), "nothing was counted");
        let mut figures = Figures::new(1000);
        figures.periods += 1;
        figures.passed(1, 5, None);
        for _ in 0..2 {
            figures.uncounted("CPU4 has no event".into());
        }
        let summary = figures.finish(1_000_000, terms());
        assert_eq!(summary.not_held.unwrap(), "CPU4 has no event");
    }

    #[test]
    fn the_last_period_counts_although_it_has_not_ended() {
        let mut figures = Figures::new(1000);
        figures.periods += 1;
        figures.rest(7);
        let summary = figures.finish(500_000, terms());
        assert_eq!((summary.used_events, summary.worst_second_mib_s), (7, None));
        assert!(summary.held);

        let mut figures = Figures::new(1000);
        for _ in 0..1000 {
            figures.periods += 1;
            figures.passed(1, 25, Some(500_000));
        }
        figures.rest(5000);
        let summary = figures.finish(1_000_500_000, terms());
        assert!(!summary.held);
        assert_eq!(summary.worst_period_events, 5000);
        // It is no lack of demand either.
        assert_eq!(
            summary.least_second_mib_s,
            Some(25_000.0 * 4096.0 / f64::from(1 << 20))
        );
    }

    #[test]
    fn a_group_without_a_budget_is_not_judged() {
        let mut figures = Figures::new(1000);
        figures.passed(1, 1 << 40, None);
        let mut terms = terms();
        (terms.budget_events, terms.budget_mib_s) = (None, None);
        assert!(figures.finish(1_000_000, terms).held);
    }

    #[test]
    fn missed_periods_are_part_of_their_second() {
        let mut figures = Figures::new(1000);
        for _ in 0..100 {
            figures.periods += 1;
            figures.passed(10, 255, Some(5_000_000));
            figures.stopped(None);
        }
        let summary = figures.finish(1_000_000_000, terms());
        assert_eq!((summary.missed_periods, summary.periods), (900, 100));
        assert_eq!(summary.held_periods, 100);
        assert_eq!(summary.worst_second_mib_s, Some(summary.achieved_mib_s));
        assert_eq!(summary.worst_period_events, 26);
    }

    #[test]
    fn a_second_of_longer_periods_is_one_of_them() {
        let mut figures = Figures::new(5_000_000);
        figures.passed(1, 100, None);
        let mut terms = terms();
        terms.period_us = 5_000_000;
        let summary = figures.finish(5_000_000_000, terms);
        assert_eq!(
            summary.worst_second_mib_s,
            Some(100.0 * 4096.0 / 5.0 / f64::from(1 << 20))
        );
        assert_eq!(summary.least_second_mib_s, None);
    }

    #[test]
    fn without_a_stop_there_is_nothing_to_say_of_stops() {
        let summary = Figures::new(1000).finish(0, terms());
        assert_eq!(
            (
                summary.overshoot_events,
                summary.stop_ns,
                summary.used_events_per_stopped_period
            ),
            (None, None, None)
        );
        let text = serde_json::to_string(&summary).unwrap();
        assert_eq!(serde_json::from_str::<Summary>(&text).unwrap(), summary);
    }
}
