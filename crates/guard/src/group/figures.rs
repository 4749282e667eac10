// SPDX-License-Identifier: MIT OR Apache-2.0
//! What became of a group's budget.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::StopWith;

/// Stops whose figures are kept one by one: half an hour of the shortest periods that make sense.
const ROOM: usize = 1 << 18;

/// A distribution.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Half are below.
    pub median: u64,
    /// 99 of 100 are below.
    pub p99: u64,
    /// None is above.
    pub max: u64,
}

impl Spread {
    /// Of these, in any order; `None` of none.
    #[allow(clippy::cast_precision_loss)]
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

/// What was asked for, and what it came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// The group's folder.
    pub cgroup: PathBuf,
    /// What is counted.
    pub event: String,
    /// Bytes that one event stands for.
    pub bytes_per_event: u64,
    /// Length of a period in microseconds.
    pub period_us: u64,
    /// How the group is stopped.
    pub stop_with: StopWith,
    /// Events a period; `None` is no limit.
    pub budget_events: Option<u64>,
    /// The same in MiB/s.
    pub budget_mib_s: Option<f64>,
}

/// A group's regulation, from the first period to the last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// On which terms; in JSON beside the rest.
    #[serde(flatten)]
    pub terms: Terms,
    /// How long it was regulated, in seconds.
    pub duration_s: f64,
    /// Periods that were begun.
    pub periods: u64,
    /// Periods that passed before it was noticed.
    pub missed_periods: u64,
    /// Events counted.
    pub used_events: u64,
    /// The same in MiB/s, over all of the time.
    pub achieved_mib_s: f64,
    /// Periods in which the group was stopped.
    pub stopped_periods: u64,
    /// Events in those periods, each.
    pub used_events_per_stopped_period: Option<f64>,
    /// Share of the time that the group was stopped, 0 to 1.
    pub stopped_share: f64,
    /// Events past the budget in a period in which it was stopped.
    pub overshoot_events: Option<Spread>,
    /// From the alarm that showed the budget to be used to the end of the write that stops the group, in nanoseconds.
    pub reaction_ns: Option<Spread>,
    /// From the same alarm to the last event that came all the same (or the end of that write), in nanoseconds.
    pub stop_ns: Option<Spread>,
    /// How often alarms rang and were set anew, a period.
    pub looks_per_period: f64,
}

/// What is counted on the way.
#[derive(Debug)]
pub(super) struct Figures {
    pub periods: u64,
    pub missed: u64,
    pub used: u64,
    pub looks: u64,
    stopped: u64,
    used_in_stopped: u64,
    stopped_ns: u64,
    overshoot: Vec<u64>,
    reaction_ns: Vec<u64>,
    stop_ns: Vec<u64>,
}

/// A period in which the group was stopped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    pub used: u64,
    pub overshoot: u64,
    pub reaction_ns: u64,
    pub stop_ns: u64,
    /// How long the group stood still.
    pub stood_ns: u64,
}

impl Figures {
    pub fn new() -> Self {
        Self {
            periods: 0,
            missed: 0,
            used: 0,
            looks: 0,
            stopped: 0,
            used_in_stopped: 0,
            stopped_ns: 0,
            overshoot: Vec::with_capacity(ROOM),
            reaction_ns: Vec::with_capacity(ROOM),
            stop_ns: Vec::with_capacity(ROOM),
        }
    }

    /// Books one.
    pub fn stopped(&mut self, stop: &Stop) {
        self.stopped += 1;
        self.used_in_stopped += stop.used;
        self.stopped_ns += stop.stood_ns;
        if self.overshoot.len() < ROOM {
            self.overshoot.push(stop.overshoot);
            self.reaction_ns.push(stop.reaction_ns);
            self.stop_ns.push(stop.stop_ns);
        }
    }

    /// What they come to.
    #[allow(clippy::cast_precision_loss)]
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
        let bytes = self.used as f64 * terms.bytes_per_event as f64;
        Summary {
            terms,
            duration_s,
            periods: self.periods,
            missed_periods: self.missed,
            used_events: self.used,
            achieved_mib_s: per_s(bytes / crate::units::MIB as f64),
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
        let mut figures = Figures::new();
        for period in 0..100 {
            figures.periods += 1;
            figures.used += 26;
            figures.looks += 3;
            figures.stopped(&Stop {
                used: 26,
                overshoot: 1 + period / 99,
                reaction_ns: 500 * (period + 1),
                stop_ns: 1000 * (period + 1),
                stood_ns: 500_000,
            });
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
    }

    #[test]
    fn without_a_stop_there_is_nothing_to_say_of_stops() {
        let summary = Figures::new().finish(0, terms());
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
