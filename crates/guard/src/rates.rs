// SPDX-License-Identifier: MIT OR Apache-2.0
//! Current rates of each core, from two readings of a regulator and the time between them.
//!
//! Only [`Sample::take`] accesses the regulator; the rest is arithmetic.

use std::time::{Duration, Instant};

use memwarden_platform::cpus::{self, CpuSet};
use schemars::JsonSchema;
use serde::Serialize;

use crate::held::failings;
use crate::statistics::{CoreStatistics, ResourceStatistics};
use crate::units::{MIB, mib_s};
use crate::{Error, Regulator, Resource, Settings};

/// One reading of a regulator.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Every setting.
    pub settings: Settings,
    /// Statistics of every core since the last reset.
    pub cores: Vec<CoreStatistics>,
    /// When the statistics were read.
    pub at: Instant,
    /// The CPUs that the kernel had online after that.
    pub online: CpuSet,
}

impl Sample {
    /// Reads a regulator now.
    ///
    /// # Errors
    /// When it isn't running, or can't be read.
    pub fn take(guard: &dyn Regulator) -> Result<Self, Error> {
        let settings = guard.settings()?;
        let at = Instant::now();
        let cores = guard.statistics()?;
        Ok(Self {
            settings,
            cores,
            at,
            online: cpus::online().map_err(Error::platform)?,
        })
    }

    /// The failures to regulate any of the cores, one sentence each.
    #[must_use]
    pub fn failings(&self) -> Vec<String> {
        let of = |core| failings(&self.settings, core, &self.online);
        self.cores.iter().flat_map(of).collect()
    }
}

/// One core's traffic of one kind over an interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct ResourceRates {
    /// The budget in MiB/s; `None` is unlimited.
    pub budget_mib_s: Option<f64>,
    /// Traffic of the core, in MiB/s; `None` if unknown.
    pub achieved_mib_s: Option<f64>,
    /// Achieved bandwidth divided by the budget; above 1 with best effort, reclaim or overshoot.
    pub budget_ratio: Option<f64>,
    /// Bandwidth of the busiest period in the last whole second, in MiB/s; `None` before the first second.
    pub worst_mib_s: Option<f64>,
    /// That bandwidth divided by the budget.
    pub worst_ratio: Option<f64>,
    /// Limited periods with more events than were assigned, since the last reset.
    pub over_periods: u64,
    /// The whole time since the last reset.
    pub whole: WholeRates,
}

/// One core's traffic of one kind since the last reset of the statistics.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct WholeRates {
    /// Mean bandwidth in MiB/s; `None` before the first period.
    pub achieved_mib_s: Option<f64>,
    /// Mean bandwidth divided by the present budget.
    pub budget_ratio: Option<f64>,
    /// Bandwidth of the busiest period since the core last gained or lost its limit or the period changed, in MiB/s;
    /// `None` if unknown.
    pub worst_mib_s: Option<f64>,
    /// That bandwidth divided by the present budget.
    pub worst_ratio: Option<f64>,
}

/// One core over an interval. A rate is `None` if within the interval the core came online, its statistics were reset,
/// or the counted events changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct CoreRates {
    /// The core.
    pub cpu: usize,
    /// It is online and regulated.
    pub online: bool,
    /// It is never throttled.
    pub rt: bool,
    /// It is throttled at this moment.
    pub throttled: bool,
    /// Refills.
    pub read: ResourceRates,
    /// Write-backs, where they are counted.
    pub write: Option<ResourceRates>,
    /// Share of the time that it was throttled, 0 to 1.
    pub throttled_ratio: Option<f64>,
    /// Share of the time that it ran in best-effort sharing, 0 to 1.
    pub best_effort_ratio: Option<f64>,
    /// Overflows a second.
    pub overflows_per_s: Option<f64>,
    /// Periods in which a counter did not count, since the last reset.
    pub unregulated_periods: u64,
    /// Failures to regulate the core, one sentence each; empty if it was held to its budget.
    pub failings: Vec<String>,
}

impl CoreRates {
    /// The traffic of one kind, where it is counted.
    pub fn of(&self, resource: Resource) -> Option<&ResourceRates> {
        match resource {
            Resource::Read => Some(&self.read),
            Resource::Write => self.write.as_ref(),
        }
    }
}

/// All cores over an interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Rates {
    /// Length of the interval in seconds; `None` for the first reading.
    pub interval_s: Option<f64>,
    /// By core number.
    pub cores: Vec<CoreRates>,
}

impl Rates {
    /// The failures to regulate any of the cores, one sentence each.
    pub fn failings(&self) -> impl Iterator<Item = &str> {
        let failings = self.cores.iter().flat_map(|core| &core.failings);
        failings.map(String::as_str)
    }
}

/// Turns readings into rates.
#[derive(Debug, Clone, Default)]
pub struct Sampler {
    last: Option<Sample>,
}

impl Sampler {
    /// The rates since the previous reading; without one, only the budgets.
    pub fn next(&mut self, sample: Sample) -> Rates {
        let last = self.last.take();
        let interval = last
            .as_ref()
            .map(|last| sample.at.saturating_duration_since(last.at))
            .filter(|interval| !interval.is_zero());
        // Counts of another event, or of an event that stands for another number of bytes, can't be compared.
        let last = last.filter(|last| {
            let (then, now) = (&last.settings.control, &sample.settings.control);
            then.event == now.event
                && then.write_event == now.write_event
                && then.combined == now.combined
                && then.bytes_per_event == now.bytes_per_event
        });
        let mut cores: Vec<CoreRates> = sample
            .cores
            .iter()
            .map(|core| {
                let before = last
                    .as_ref()
                    .and_then(|last| last.cores.iter().find(|before| before.cpu == core.cpu));
                let span = before
                    .zip(interval)
                    .filter(|(before, _)| continues(before, core));
                rates(&sample, core, span)
            })
            .collect();
        cores.sort_by_key(|core| core.cpu);
        self.last = Some(sample);
        Rates {
            interval_s: interval.map(|interval| interval.as_secs_f64()),
            cores,
        }
    }

    /// Makes the next reading the first one again, as after a reset of the statistics.
    pub fn forget(&mut self) {
        self.last = None;
    }
}

/// Whether no reset lies between both readings: the core is online in both, and no count fell.
fn continues(before: &CoreStatistics, now: &CoreStatistics) -> bool {
    let grown = |before: &ResourceStatistics, now: &ResourceStatistics| now.used >= before.used;
    before.online
        && now.online
        && now.periods >= before.periods
        && now.overflows >= before.overflows
        && now.throttled_ns >= before.throttled_ns
        && now.best_effort_ns >= before.best_effort_ns
        && grown(&before.read, &now.read)
        && match (&before.write, &now.write) {
            (Some(before), Some(now)) => grown(before, now),
            _ => true,
        }
}

fn rates(
    sample: &Sample,
    core: &CoreStatistics,
    span: Option<(&CoreStatistics, Duration)>,
) -> CoreRates {
    let settings = &sample.settings;
    let control = &settings.control;
    // A throttle may have begun before the interval; limit its time to the interval's length.
    let share = |ns: fn(&CoreStatistics) -> u64| {
        span.map(|(before, interval)| {
            let part = (ns(core) - ns(before)) as f64 / interval.as_nanos() as f64;
            part.min(1.0)
        })
    };
    let traffic = |resource: Resource| {
        let (budgets, now): (_, Option<&ResourceStatistics>) = match resource {
            Resource::Read => (&settings.read_budget_events, Some(&core.read)),
            Resource::Write => (&settings.write_budget_events, core.write.as_ref()),
        };
        let budget_mib_s = budgets
            .get(&core.cpu)
            .copied()
            .flatten()
            .map(|events| mib_s(events as f64, control.period_us, control.bytes_per_event));
        let of_a_period = |events: f64| mib_s(events, control.period_us, control.bytes_per_event);
        let worst_mib_s = now
            .filter(|_| core.last_second.ns > 0)
            .map(|now| of_a_period(now.last_second.used_max as f64));
        let whole = now.filter(|_| core.time_ns(control.period_us).is_some());
        let mean_mib_s = whole
            .and_then(|whole| core.per_period(whole.used, control.period_us))
            .map(of_a_period);
        // Not known from a guard that counts neither the worst period nor the last second, as older modules.
        let whole_worst_mib_s = whole
            .filter(|whole| whole.used_max > 0 || core.last_second.ns > 0)
            .map(|whole| of_a_period(whole.used_max as f64));
        let of_budget = |achieved: Option<f64>| {
            achieved
                .zip(budget_mib_s)
                .filter(|(_, budget)| *budget > 0.0)
                .map(|(achieved, budget)| achieved / budget)
        };
        let achieved_mib_s = span.and_then(|(before, interval)| {
            let before = match resource {
                Resource::Read => Some(&before.read),
                Resource::Write => before.write.as_ref(),
            }?;
            let bytes = (now?.used - before.used) as f64 * control.bytes_per_event as f64;
            Some(bytes / interval.as_secs_f64() / MIB as f64)
        });
        ResourceRates {
            budget_mib_s,
            achieved_mib_s,
            budget_ratio: of_budget(achieved_mib_s),
            worst_mib_s,
            worst_ratio: of_budget(worst_mib_s),
            over_periods: now.map_or(0, |now| now.over_periods),
            whole: WholeRates {
                achieved_mib_s: mean_mib_s,
                budget_ratio: of_budget(mean_mib_s),
                worst_mib_s: whole_worst_mib_s,
                worst_ratio: of_budget(whole_worst_mib_s),
            },
        }
    };
    CoreRates {
        cpu: core.cpu,
        online: core.online,
        rt: core.rt,
        throttled: control.throttled.contains(core.cpu),
        read: traffic(Resource::Read),
        write: core.write.as_ref().map(|_| traffic(Resource::Write)),
        throttled_ratio: share(|core| core.throttled_ns),
        best_effort_ratio: share(|core| core.best_effort_ns),
        overflows_per_s: span.map(|(before, interval)| {
            (core.overflows - before.overflows) as f64 / interval.as_secs_f64()
        }),
        unregulated_periods: core.unregulated_periods,
        failings: failings(settings, core, &sample.online),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Request, Unit};
    use crate::statistics::ResourceLastSecond;
    use crate::{Null, StartOptions};
    use proptest::prelude::*;

    /// Two cores, 4096 bytes an event, 256 events (1000 MiB/s) for the first.
    fn settings() -> Settings {
        let mut guard = Null::new((0..2).collect());
        guard
            .start(&StartOptions {
                bytes_per_event: Some(4096),
                ..StartOptions::default()
            })
            .unwrap();
        guard
            .set_budgets(
                Resource::Read,
                &Request::parse(Unit::Events, "256").unwrap(),
            )
            .unwrap();
        guard.settings().unwrap()
    }

    fn core(cpu: usize, periods: u64, used: u64) -> CoreStatistics {
        CoreStatistics {
            cpu,
            online: true,
            periods,
            read: ResourceStatistics {
                used,
                ..ResourceStatistics::default()
            },
            ..CoreStatistics::default()
        }
    }

    struct Readings {
        sampler: Sampler,
        start: Instant,
    }

    impl Readings {
        fn new() -> Self {
            Self {
                sampler: Sampler::default(),
                start: Instant::now(),
            }
        }

        fn at(&mut self, ms: u64, settings: &Settings, cores: &[CoreStatistics]) -> Rates {
            self.sampler.next(Sample {
                settings: settings.clone(),
                cores: cores.to_vec(),
                at: self.start + Duration::from_millis(ms),
                online: (0..2).collect(),
            })
        }
    }

    #[test]
    fn two_readings_make_rates() {
        let mut readings = Readings::new();
        let settings = settings();
        let first = readings.at(0, &settings, &[core(0, 100, 1000), core(1, 100, 7)]);
        assert_eq!(first.interval_s, None);
        assert_eq!(first.cores[0].read.achieved_mib_s, None);
        assert_eq!(first.cores[0].read.budget_mib_s, Some(1000.0));
        assert_eq!(first.cores[1].read.budget_mib_s, None);

        let mut busy = core(0, 600, 1000 + 64_000);
        busy.throttled_ns = 250_000_000;
        busy.best_effort_ns = 50_000_000;
        busy.overflows = 500;
        let rates = readings.at(500, &settings, &[busy, core(1, 600, 7)]);
        assert_eq!(rates.interval_s, Some(0.5));
        let core = &rates.cores[0];
        assert_eq!(core.read.achieved_mib_s, Some(500.0));
        assert_eq!(core.read.budget_ratio, Some(0.5));
        assert_eq!(core.throttled_ratio, Some(0.5));
        assert_eq!(core.best_effort_ratio, Some(0.1));
        assert_eq!(core.overflows_per_s, Some(1000.0));
        // Without a budget there is no ratio to it. A core without traffic has rate 0, not an unknown one.
        assert_eq!(rates.cores[1].read.achieved_mib_s, Some(0.0));
        assert_eq!(rates.cores[1].read.budget_ratio, None);
    }

    #[test]
    fn the_worst_period_is_that_of_the_last_second() {
        let mut readings = Readings::new();
        let settings = settings();
        let mut leaking = core(0, 100, 1000);
        assert_eq!(
            readings.at(0, &settings, &[leaking.clone()]).cores[0]
                .read
                .worst_mib_s,
            None
        );
        leaking.last_second.ns = 1_000_000_000;
        leaking.read.over_periods = 24;
        leaking.read.last_second = ResourceLastSecond {
            used: 300_000,
            assigned: 256_000,
            used_max: 512,
        };
        let rates = readings.at(1000, &settings, &[leaking]);
        let read = &rates.cores[0].read;
        assert_eq!(
            (read.worst_mib_s, read.worst_ratio),
            (Some(2000.0), Some(2.0))
        );
        assert_eq!(read.over_periods, 24);
        assert_eq!(rates.cores[0].failings.len(), 1);
    }

    #[test]
    fn the_whole_is_known_from_one_reading() {
        let mut readings = Readings::new();
        let settings = settings();
        let whole = |core: &CoreRates| core.read.whole.clone();
        assert_eq!(
            whole(&readings.at(0, &settings, &[core(0, 0, 0)]).cores[0]),
            WholeRates::default()
        );
        // 128 events in each of 100 periods, one of which was missed; at most 512 in one.
        let mut leaking = core(0, 99, 12_800);
        leaking.missed_periods = 1;
        leaking.read.used_max = 512;
        let mut unlimited = leaking.clone();
        unlimited.cpu = 1;
        let mut old = leaking.clone();
        old.read.used_max = 0;
        let rates = readings.at(100, &settings, &[leaking, unlimited]);
        assert_eq!(
            whole(&rates.cores[0]),
            WholeRates {
                achieved_mib_s: Some(500.0),
                budget_ratio: Some(0.5),
                worst_mib_s: Some(2000.0),
                worst_ratio: Some(2.0),
            }
        );
        assert_eq!(
            whole(&rates.cores[1]),
            WholeRates {
                budget_ratio: None,
                worst_ratio: None,
                ..whole(&rates.cores[0])
            }
        );
        let mut worst = |core: &CoreStatistics| {
            let rates = readings.at(200, &settings, std::slice::from_ref(core));
            rates.cores[0].read.whole.worst_mib_s
        };
        assert_eq!(worst(&old), None);
        old.last_second.ns = 1_000_000_000;
        assert_eq!(worst(&old), Some(0.0));
    }

    #[test]
    fn the_whole_is_the_same_at_another_period() {
        let mut readings = Readings::new();
        let mut settings = settings();
        let mut busy = core(0, 100, 12_800);
        busy.elapsed_ns = 100_000_000;
        for period_us in [1000, 10_000, 100] {
            settings.control.period_us = period_us;
            let rates = readings.at(100, &settings, std::slice::from_ref(&busy));
            let mib_s = rates.cores[0].read.whole.achieved_mib_s.unwrap();
            assert!((mib_s - 500.0).abs() < 1e-9, "{mib_s}");
        }
    }

    #[test]
    fn a_reset_costs_one_interval() {
        let mut readings = Readings::new();
        let settings = settings();
        readings.at(0, &settings, &[core(0, 100, 1000)]);
        let after = readings.at(1000, &settings, &[core(0, 50, 400)]);
        assert_eq!(after.cores[0].read.achieved_mib_s, None);
        assert_eq!(after.cores[0].throttled_ratio, None);
        let next = readings.at(2000, &settings, &[core(0, 150, 400 + 256)]);
        assert_eq!(next.cores[0].read.achieved_mib_s, Some(1.0));
    }

    #[test]
    fn one_count_that_falls_is_a_reset_though_periods_grew() {
        let mut readings = Readings::new();
        let settings = settings();
        readings.at(0, &settings, &[core(0, 10, 1000)]);
        let after = readings.at(1000, &settings, &[core(0, 900, 400)]);
        assert_eq!(after.cores[0].read.achieved_mib_s, None);
    }

    #[test]
    fn cores_come_and_go() {
        let mut readings = Readings::new();
        let settings = settings();
        readings.at(0, &settings, &[core(0, 1, 0)]);
        let both = readings.at(1000, &settings, &[core(1, 5, 900), core(0, 2, 256)]);
        let cpus: Vec<_> = both.cores.iter().map(|core| core.cpu).collect();
        assert_eq!(cpus, [0, 1]);
        assert_eq!(both.cores[1].read.achieved_mib_s, None);
        let mut away = core(0, 2, 256);
        away.online = false;
        let gone = readings.at(2000, &settings, &[away.clone(), core(1, 6, 900)]);
        assert_eq!(gone.cores[0].read.achieved_mib_s, None);
        // The kernel has it online: it is named.
        assert_eq!(gone.cores[0].failings.len(), 1);
        assert_eq!(gone.cores[1].read.achieved_mib_s, Some(0.0));
        // Back online: events from before it went offline make no rate.
        let back = readings.at(3000, &settings, &[core(0, 9, 999)]);
        assert_eq!(back.cores.len(), 1);
        assert_eq!(back.cores[0].read.achieved_mib_s, None);
    }

    #[test]
    fn another_event_begins_anew() {
        let mut readings = Readings::new();
        let mut settings = settings();
        readings.at(0, &settings, &[core(0, 1, 0)]);
        settings.control.bytes_per_event = 64;
        let rates = readings.at(1000, &settings, &[core(0, 2, 16384)]);
        assert_eq!(rates.cores[0].read.achieved_mib_s, None);
        readings.sampler.forget();
        let rates = readings.at(2000, &settings, &[core(0, 3, 16384 * 2)]);
        assert_eq!((rates.interval_s, rates.cores.len()), (None, 1));
    }

    #[test]
    fn writes_have_rates_where_they_are_counted() {
        let mut readings = Readings::new();
        let mut settings = settings();
        settings.write_budget_events.insert(0, Some(256));
        let writing = |used| CoreStatistics {
            write: Some(ResourceStatistics {
                used,
                ..ResourceStatistics::default()
            }),
            ..core(0, used, 0)
        };
        readings.at(0, &settings, &[writing(1)]);
        let rates = readings.at(1000, &settings, &[writing(1 + 25_600)]);
        let write = rates.cores[0].of(Resource::Write).unwrap();
        assert_eq!(write.achieved_mib_s, Some(100.0));
        assert_eq!(write.budget_ratio, Some(0.1));
    }

    proptest! {
        #[test]
        fn any_two_readings_make_finite_rates(
            then in (0u64.., 0u64.., 0u64.., 0u64..), now in (0u64.., 0u64.., 0u64.., 0u64..), ms in 0u64..10_000
        ) {
            let make = |(periods, used, throttled_ns, overflows): (u64, u64, u64, u64)| CoreStatistics {
                throttled_ns,
                overflows,
                ..core(0, periods, used)
            };
            let mut readings = Readings::new();
            let settings = settings();
            readings.at(0, &settings, &[make(then)]);
            let rates = readings.at(ms, &settings, &[make(now)]);
            let core = &rates.cores[0];
            for rate in [core.read.achieved_mib_s, core.read.budget_ratio, core.overflows_per_s].into_iter().flatten() {
                prop_assert!(rate.is_finite() && rate >= 0.0);
            }
            for share in [core.throttled_ratio, core.best_effort_ratio].into_iter().flatten() {
                prop_assert!((0.0..=1.0).contains(&share));
            }
        }
    }
}
