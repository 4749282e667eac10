// SPDX-License-Identifier: MIT OR Apache-2.0
//! The proof that every core kept its budget in every period, from the module's tracepoints.

use std::collections::BTreeMap;

use memwarden_guard::trace::{Recording, What};
use serde::Serialize;

const SECOND_NS: u64 = 1_000_000_000;

/// One core over all recorded periods.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CoreProof {
    /// The core.
    pub cpu: usize,
    /// Events in each period, in order; a time in which the core had no timer is one entry for several periods.
    #[serde(skip)]
    pub used: Vec<u64>,
    /// Number of periods of each entry; if empty, 1 each.
    #[serde(skip)]
    pub spans: Vec<u64>,
    /// End of each entry, nanoseconds of CLOCK_MONOTONIC.
    #[serde(skip)]
    pub t_ns: Vec<u64>,
    /// Events that the core was entitled to in each entry.
    #[serde(skip)]
    pub assigned: Vec<u64>,
    /// Time throttled in each entry.
    #[serde(skip)]
    pub held_ns: Vec<u64>,
    /// Whether a throttle took effect in each entry. It may come too late for that: the overflow stops the core until
    /// the end of the period, but the throttle thread runs only then.
    #[serde(skip)]
    pub stopped: Vec<bool>,
    /// Delay of the begin of each following period.
    #[serde(skip)]
    pub late_ns: Vec<u64>,
    /// Events past the budget when a throttle took effect, for each throttle.
    #[serde(skip)]
    pub overshoot: Vec<u64>,
    /// Events between a throttle and the end of its period, while only interrupts ran on the core, for each throttle.
    #[serde(skip)]
    pub while_held: Vec<u64>,
    /// Time from the overflow until the throttle thread ran, for each throttle.
    #[serde(skip)]
    pub throttle_latency_ns: Vec<u64>,
    /// Time from the release until the throttle thread saw it, for each throttle.
    #[serde(skip)]
    pub release_latency_ns: Vec<u64>,
    /// Periods recorded.
    pub periods: u64,
    /// The most events in any period.
    pub events_per_period_max: u64,
    /// Mean events per period.
    pub events_per_period_mean: f64,
    /// Largest excess over what the core was entitled to in a period.
    pub overshoot_events_max: u64,
    /// Time throttled in all periods.
    pub throttled_ns: u64,
}

/// All cores.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Proof {
    /// By CPU.
    pub cores: BTreeMap<usize, CoreProof>,
    /// Events that the trace had no room for; if not 0, the proof does not cover every period.
    pub lost: u64,
}

impl CoreProof {
    /// Events in each whole second of the recording.
    pub fn seconds(&self) -> Vec<u64> {
        let (Some(&first), Some(&last)) = (self.t_ns.first(), self.t_ns.last()) else {
            return Vec::new();
        };
        let mut seconds = vec![0; usize::try_from((last - first) / SECOND_NS).unwrap_or(0)];
        // The first entry is of the period before the recorded time.
        for (t_ns, used) in self.t_ns.iter().zip(&self.used).skip(1) {
            let second = usize::try_from(t_ns.saturating_sub(first + 1) / SECOND_NS);
            if let Some(sum) = second.ok().and_then(|second| seconds.get_mut(second)) {
                *sum += used;
            }
        }
        seconds
    }

    /// Events per period for each entry of `used`. An entry of several periods means that the core was nearly idle: its
    /// counter then interrupts once all these periods together have used one budget. Such an entry gives its mean.
    pub fn in_a_period(&self) -> impl Iterator<Item = u64> + '_ {
        let spans = self.spans.iter().copied().chain(std::iter::repeat(1));
        self.used
            .iter()
            .zip(spans)
            .map(|(used, span)| used.div_ceil(span.max(1)))
    }

    /// True if every throttle worked: no period has more events than its budget, the largest overshoot of a throttle,
    /// and those of interrupts on a throttled core, at most another budget. The last two are known only from throttles
    /// that took effect. An entry without one may have a 32nd of the budget (one event at least) more, for the delay of
    /// an overflow's interrupt: its period may have ended before the throttle took effect, or the recording may have
    /// begun after. All events of an entry of several periods may belong to one of them.
    pub fn every_throttle_worked(&self, budget: u64) -> bool {
        let most = |values: &[u64]| values.iter().max().copied().unwrap_or(0);
        let most = budget + most(&self.overshoot) + most(&self.while_held).min(budget);
        let delay = budget.div_ceil(32);
        self.used.iter().enumerate().all(|(entry, used)| {
            let stopped = self.stopped.get(entry) == Some(&true);
            *used <= most + if stopped { 0 } else { delay }
        })
    }

    /// Events of the periods in which the core exhausted its budget. In other periods it demanded less, or the machine
    /// gave it no time.
    pub fn exhausted(&self) -> impl Iterator<Item = u64> + '_ {
        self.used
            .iter()
            .zip(&self.held_ns)
            .filter(|(_, held)| **held > 0)
            .map(|(used, _)| *used)
    }
}

impl Proof {
    /// Summarises a recording.
    pub fn of(recording: &Recording) -> Self {
        let mut cores: BTreeMap<usize, CoreProof> = BTreeMap::new();
        let mut held_at: BTreeMap<usize, u64> = BTreeMap::new();
        for event in &recording.events {
            let core = cores.entry(event.cpu).or_insert_with(|| CoreProof {
                cpu: event.cpu,
                ..Default::default()
            });
            match event.what {
                What::Period {
                    periods,
                    late_ns,
                    used_read,
                    assigned_read,
                    throttled_ns,
                    ..
                } => {
                    core.periods += periods;
                    core.used.push(used_read);
                    core.spans.push(periods);
                    core.assigned.push(assigned_read);
                    core.late_ns.push(late_ns);
                    core.t_ns.push(event.t_ns);
                    core.held_ns.push(throttled_ns);
                    core.throttled_ns += throttled_ns;
                    let held_at = held_at.remove(&event.cpu);
                    core.stopped.push(held_at.is_some());
                    if let Some(held_at) = held_at {
                        core.while_held.push(used_read.saturating_sub(held_at));
                    }
                }
                What::Throttle {
                    used,
                    overshoot,
                    latency_ns,
                    ..
                } => {
                    held_at.insert(event.cpu, used);
                    core.overshoot.push(overshoot);
                    core.throttle_latency_ns.push(latency_ns);
                }
                What::Unthrottle { latency_ns, .. } => core.release_latency_ns.push(latency_ns),
                _ => {}
            }
        }
        for core in cores.values_mut() {
            core.events_per_period_max = core.in_a_period().max().unwrap_or(0);
            if core.periods > 0 {
                core.events_per_period_mean =
                    core.used.iter().sum::<u64>() as f64 / core.periods as f64;
            }
            core.overshoot_events_max = core
                .in_a_period()
                .zip(&core.assigned)
                .map(|(used, assigned)| used.saturating_sub(*assigned))
                .max()
                .unwrap_or(0);
        }
        Self {
            cores,
            lost: recording.lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwarden_guard::trace::TraceEvent;

    #[test]
    fn the_worst_period_counts() {
        let period = |cpu, used_read, assigned_read, periods| TraceEvent {
            cpu,
            t_ns: 0,
            what: What::Period {
                epoch: 0,
                periods,
                late_ns: 7,
                used_read,
                assigned_read,
                used_write: 0,
                assigned_write: 0,
                throttled_ns: 5,
            },
        };
        let throttle = TraceEvent {
            cpu: 1,
            t_ns: 0,
            what: What::Throttle {
                epoch: 0,
                used: 27,
                assigned: 25,
                overshoot: 2,
                latency_ns: 900,
            },
        };
        let events = vec![
            period(1, 25, 25, 1),
            throttle,
            period(1, 28, 25, 1),
            period(2, 3, u64::MAX, 60),
        ];
        let proof = Proof::of(&Recording { events, lost: 4 });
        assert_eq!(proof.lost, 4);
        let core = &proof.cores[&1];
        assert_eq!(
            (
                core.periods,
                core.events_per_period_max,
                core.overshoot_events_max
            ),
            (2, 28, 3)
        );
        assert_eq!(
            (
                core.throttled_ns,
                core.overshoot.as_slice(),
                core.throttle_latency_ns.as_slice()
            ),
            (10, &[2][..], &[900][..])
        );
        assert!((core.events_per_period_mean - 26.5).abs() < 1e-9);
        assert_eq!(core.while_held, [1]);
        assert!(core.every_throttle_worked(25));
        let idle = &proof.cores[&2];
        assert_eq!((idle.overshoot_events_max, idle.periods), (0, 60));
        assert!((idle.events_per_period_mean - 0.05).abs() < 1e-9);
        // An idle core's counter interrupts once all its periods together have used one budget.
        let events = vec![period(3, 1642, 1638, 58)];
        let idle = &Proof::of(&Recording { events, lost: 0 }).cores[&3];
        assert_eq!(
            (idle.events_per_period_max, idle.overshoot_events_max),
            (29, 0)
        );
    }

    #[test]
    fn a_period_may_end_before_its_throttle_but_no_throttle_may_leak() {
        let period = |used_read, periods, throttled_ns| What::Period {
            epoch: 0,
            periods,
            late_ns: 0,
            used_read,
            assigned_read: 1638,
            used_write: 0,
            assigned_write: 0,
            throttled_ns,
        };
        let throttle = What::Throttle {
            epoch: 0,
            used: 1640,
            assigned: 1638,
            overshoot: 2,
            latency_ns: 900,
        };
        let worked = |recorded: &[What]| {
            let event = |what: &What| TraceEvent {
                cpu: 1,
                t_ns: 0,
                what: what.clone(),
            };
            let events = recorded.iter().map(event).collect();
            Proof::of(&Recording { events, lost: 0 }).cores[&1].every_throttle_worked(1638)
        };
        // The budget, an overshoot of 2, and one event on the held core.
        let first = [throttle.clone(), period(1641, 1, 100_000)];
        let then = |last: &[What]| worked(&[&first, last].concat());
        // Interrupts on the held core, at most another budget.
        assert!(then(&[throttle.clone(), period(3278, 1, 100_000)]));
        assert!(!then(&[throttle, period(3279, 1, 100_000)]));
        // Without a throttle, or with one that came too late, and in many periods of an idle core: 52 more.
        for (periods, throttled_ns) in [(1, 0), (1, 4_000), (58, 0)] {
            assert!(then(&[period(1693, periods, throttled_ns)]));
            assert!(!then(&[period(1694, periods, throttled_ns)]));
        }
        // The recording began between the throttle and the end of its period.
        assert!(worked(&[period(1690, 1, 100_000)]));
        assert!(!worked(&[period(1691, 1, 100_000)]));
        // All throttles came too late.
        assert!(worked(&[period(1500, 1, 0), period(1642, 1, 4_000)]));
    }
}
