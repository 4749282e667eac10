// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is it really regulating? Proved on every core before anybody relies on it.
//!
//! Each property is measured twice, by sources that know nothing of each other: the traffic tells how many bytes
//! it moved, and the regulator how many events it counted.

use std::time::Duration;

use memwarden_platform::Root;
use memwarden_platform::holders::{self, Holder};
use serde::Serialize;

use crate::budget::Request;
use crate::{Error, Regulator, Resource};

/// How far counted and moved bytes may be apart. Refills that prefetchers cause, or that a cache keeps, move a
/// real counter by some percent; a wrong event is off by factors.
pub const TOLERANCE: f64 = 0.2;

/// Traffic of the throttle test lasts this many periods: enough to tell a budget from a start-up.
const THROTTLED_PERIODS: u64 = 20;

/// The throttle test's budget is this part of what the core can do.
const BUDGET_PART: u64 = 10;

/// Bytes that the counting test compares at least. What else runs on the core is counted too.
pub const KNOWN_BYTES: u64 = 64 << 20;

/// How many times as much as the shorter run the longer one moves on top, at least.
const LONGER: u64 = 4;

/// Of the bytes that the last cache answers, an event of memory's counts next to none: starting the traffic's process moves
/// some percent. One of an inner cache's counts all.
const OF_LAST_LEVEL: f64 = 0.5;

/// How often the counting test is tried before a figure that is off counts as one.
const ATTEMPTS: u32 = 3;

/// Makes traffic whose bytes are known.
pub trait Traffic {
    /// Moves at least `bytes` on `cpu` as fast as it can and returns how many it moved and how long that took.
    ///
    /// # Errors
    /// When it can't run on that CPU.
    fn run(&mut self, cpu: usize, bytes: u64) -> Result<Moved, Error>;

    /// The same with data that the last cache before memory has and the ones before it have not. `None` where there
    /// is no such thing for what the event counts, or it isn't known how large the caches are.
    ///
    /// # Errors
    /// As there.
    fn run_in_last_level(&mut self, _cpu: usize, _bytes: u64) -> Result<Option<Moved>, Error> {
        Ok(None)
    }
}

/// What [`Traffic`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Bytes moved.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// The event counts bytes, so that the two can be compared.
    pub comparable: bool,
}

/// What was found on one core.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// The core.
    pub cpu: usize,
    /// Bytes that the traffic moved.
    pub moved_bytes: u64,
    /// Bytes that the regulator counted meanwhile.
    pub counted_bytes: u64,
    /// Of the bytes that the last cache before memory answered, the share that was counted; `None` where that was not tried.
    pub of_last_level: Option<f64>,
    /// Budget of the throttle test, events a period.
    pub budget_events: u64,
    /// Bytes a period that got through under it, over the budget.
    pub through: f64,
    /// Periods in which the core was throttled.
    pub throttled_periods: u64,
}

/// Tests every core in `cpus`, one after another, and puts the settings back.
///
/// # Errors
/// The first core on which the counter doesn't count, is off by more than [`TOLERANCE`], or on which traffic goes
/// on past its budget: the message names event, core and what to try.
pub fn run(
    guard: &mut dyn Regulator,
    cpus: &[usize],
    traffic: &mut dyn Traffic,
) -> Result<Vec<Finding>, Error> {
    let before = guard.settings()?;
    let outcome = cpus
        .iter()
        .map(|&cpu| test_core(guard, cpu, traffic))
        .collect();
    guard.restore(&before)?;
    guard.reset_statistics()?;
    outcome
}

#[allow(clippy::cast_precision_loss)]
fn test_core(
    guard: &mut dyn Regulator,
    cpu: usize,
    traffic: &mut dyn Traffic,
) -> Result<Finding, Error> {
    let control = guard.settings()?.control;
    let period = Duration::from_micros(control.period_us);
    let fail = |what: String| {
        Error::SelfTest(format!(
            "the guard does not regulate CPU {cpu}: {what}{}; try another --event (`memwarden doctor` lists what this \
             machine counts), --bytes-per-event if an event is not {} bytes, or --no-self-test to go without the proof",
            held_by(&holders::others(&Root::system())),
            control.bytes_per_event
        ))
    };

    guard.set_budgets(Resource::Read, &Request::events_for_cpu(cpu, None))?;
    let event = &control.event;
    let mut attempt = 1;
    // What else runs on the core is counted too, and comes and goes; a wrong event stays wrong.
    let found = loop {
        let mut run = |bytes| traffic.run(cpu, bytes).map(Some);
        let Some(found) = measure(guard, cpu, period, &mut run)? else {
            return Err(fail("there was no traffic".into()));
        };
        if found.used == 0 {
            return Err(fail(format!(
                "event {event} stayed at 0 while {} bytes were moved",
                found.bytes
            )));
        }
        let ratio = found.share(control.bytes_per_event);
        if !found.whole.comparable || (ratio - 1.0).abs() <= TOLERANCE {
            break found;
        }
        if attempt == ATTEMPTS {
            return Err(fail(format!(
                "event {event} counted {} bytes while {} were moved ({:+.0} %)",
                found.used.saturating_mul(control.bytes_per_event),
                found.bytes,
                (ratio - 1.0) * 100.0
            )));
        }
        attempt += 1;
    };

    let of_last_level = last_level(guard, cpu, traffic)?;
    if let Some(share) = of_last_level.filter(|share| *share > OF_LAST_LEVEL) {
        return Err(fail(format!(
            "event {event} counts what the last level of cache answers ({:.0} % of it), not what reaches memory: it is an \
             inner cache's",
            share * 100.0
        )));
    }

    // From the free run: what the core does in a period when nobody stops it.
    let periods = (found.whole.elapsed.as_secs_f64() / period.as_secs_f64()).max(1.0);
    let free = found.whole.bytes as f64 / periods;
    let free_bytes = free as u64;
    let free_events = (free * found.used as f64 / found.bytes as f64) as u64;
    let budget_events = (free_events / BUDGET_PART).max(1);
    let budget_bytes = (free_bytes / BUDGET_PART).max(1);
    guard.set_budgets(
        Resource::Read,
        &Request::events_for_cpu(cpu, Some(budget_events)),
    )?;
    let bytes = budget_bytes * THROTTLED_PERIODS;
    let (moved_throttled, throttled) =
        counted_while(guard, cpu, period, || traffic.run(cpu, bytes))?;
    guard.set_budgets(Resource::Read, &Request::events_for_cpu(cpu, None))?;
    if throttled.throttled_periods == 0 {
        return Err(fail(format!(
            "with a budget of {budget_events} events a period it was never throttled ({event} counted {})",
            throttled.used
        )));
    }
    let periods = moved_throttled.elapsed.as_secs_f64() / period.as_secs_f64();
    // The first period may have begun before the traffic, and the last ends after it: one budget more.
    let through = moved_throttled.bytes as f64 / ((periods + 1.0) * budget_bytes as f64);
    if through > 1.0 + TOLERANCE {
        return Err(fail(format!(
            "traffic went on past its budget: {:.0} bytes a period where {budget_bytes} were allowed",
            moved_throttled.bytes as f64 / periods
        )));
    }
    Ok(Finding {
        cpu,
        moved_bytes: found.bytes,
        counted_bytes: found.used.saturating_mul(control.bytes_per_event),
        of_last_level,
        budget_events,
        through,
        throttled_periods: throttled.throttled_periods,
    })
}

/// Of the bytes that the last cache answers, the share that the event counts.
#[allow(clippy::cast_precision_loss)]
fn last_level(
    guard: &dyn Regulator,
    cpu: usize,
    traffic: &mut dyn Traffic,
) -> Result<Option<f64>, Error> {
    let control = guard.settings()?.control;
    let period = Duration::from_micros(control.period_us);
    let mut least = f64::INFINITY;
    // What else runs takes lines from the cache, and comes and goes; a wrong event stays wrong.
    for _ in 0..ATTEMPTS {
        let mut run = |bytes| traffic.run_in_last_level(cpu, bytes);
        let Some(found) = measure(guard, cpu, period, &mut run)? else {
            return Ok(None);
        };
        least = least.min(found.share(control.bytes_per_event));
        if least <= OF_LAST_LEVEL {
            break;
        }
    }
    Ok(Some(least))
}

/// Traffic, and what the regulator counted of it.
struct Measured {
    /// The longer run.
    whole: Moved,
    /// Bytes that it moved more than the shorter one.
    bytes: u64,
    /// Events that were counted more.
    used: u64,
}

impl Measured {
    /// Counted bytes of those moved.
    #[allow(clippy::cast_precision_loss)]
    fn share(&self, bytes_per_event: u64) -> f64 {
        self.used.saturating_mul(bytes_per_event) as f64 / self.bytes.max(1) as f64
    }
}

/// Runs traffic twice, short and long. What both have alike, the start of a process and a buffer that is filled, is in
/// neither figure: beside a large cache that is as much as the traffic itself.
fn measure(
    guard: &dyn Regulator,
    cpu: usize,
    period: Duration,
    run: &mut dyn FnMut(u64) -> Result<Option<Moved>, Error>,
) -> Result<Option<Measured>, Error> {
    let (Some(short), before) = counted_while(guard, cpu, period, || run(1))? else {
        return Ok(None);
    };
    let bytes = short.bytes + KNOWN_BYTES.max(LONGER * short.bytes);
    let (Some(whole), counted) = counted_while(guard, cpu, period, || run(bytes))? else {
        return Ok(None);
    };
    Ok(Some(Measured {
        bytes: whole.bytes.saturating_sub(short.bytes),
        used: counted.used.saturating_sub(before.used),
        whole,
    }))
}

/// Counters that others have may be what is missing here.
fn held_by(others: &[Holder]) -> String {
    if others.is_empty() {
        return String::new();
    }
    let names: Vec<String> = others.iter().map(ToString::to_string).collect();
    format!(" (counters are also held by {})", names.join(", "))
}

struct Counted {
    used: u64,
    throttled_periods: u64,
}

/// Runs `work` and returns with it what the regulator counted on `cpu` meanwhile.
fn counted_while<T>(
    guard: &dyn Regulator,
    cpu: usize,
    period: Duration,
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<(T, Counted), Error> {
    // Totals are taken at the end of a period: two periods on, everything until now is in them.
    let settle = || std::thread::sleep(2 * period);
    settle();
    let before = totals(guard, cpu)?;
    let result = work()?;
    settle();
    let after = totals(guard, cpu)?;
    let counted = Counted {
        used: after.used.saturating_sub(before.used),
        throttled_periods: after
            .throttled_periods
            .saturating_sub(before.throttled_periods),
    };
    Ok((result, counted))
}

fn totals(guard: &dyn Regulator, cpu: usize) -> Result<Counted, Error> {
    guard
        .statistics()?
        .into_iter()
        .find(|core| core.cpu == cpu)
        .map(|core| Counted {
            used: core.read.used,
            throttled_periods: core.throttled_periods,
        })
        .ok_or_else(|| Error::SelfTest(format!("the guard does not know CPU {cpu}: is it online?")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Amount;
    use crate::{BestEffort, CoreStatistics, Null, Settings, StartOptions};
    use std::cell::Cell;
    use std::rc::Rc;

    /// A regulator whose core moves `free` events a period, counted with a factor, throttled or not.
    struct Board {
        null: Null,
        used: Rc<Cell<u64>>,
        throttled: Rc<Cell<u64>>,
        budget: Rc<Cell<Option<u64>>>,
    }

    struct Cores {
        count_per_event: f64,
        /// What the event counts of the last cache's answers, where that is known.
        of_last_level: Option<f64>,
        throttles: bool,
        used: Rc<Cell<u64>>,
        throttled: Rc<Cell<u64>>,
        budget: Rc<Cell<Option<u64>>>,
    }

    const FREE: u64 = 200;

    /// A run begins with as many events again: its buffer is as large as the traffic.
    const BEGINNING: u64 = KNOWN_BYTES / 64;

    impl Traffic for Cores {
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss
        )]
        fn run(&mut self, _: usize, bytes: u64) -> Result<Moved, Error> {
            let events = bytes.div_ceil(64);
            let bytes = 64 * events;
            let counted = BEGINNING as f64 + events as f64 * self.count_per_event;
            self.used.set(self.used.get() + counted as u64);
            let rate = match self.budget.get() {
                Some(budget) if self.throttles => {
                    self.throttled.set(self.throttled.get() + events / budget);
                    budget
                }
                _ => FREE,
            };
            Ok(Moved {
                bytes,
                elapsed: Duration::from_millis(events / rate),
                comparable: true,
            })
        }

        fn run_in_last_level(&mut self, _: usize, bytes: u64) -> Result<Option<Moved>, Error> {
            let Some(share) = self.of_last_level else {
                return Ok(None);
            };
            self.used
                .set(self.used.get() + BEGINNING + events(bytes, share));
            Ok(Some(Moved {
                bytes,
                elapsed: Duration::from_millis(1),
                comparable: true,
            }))
        }
    }

    /// Of 64 bytes each.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    fn events(bytes: u64, share: f64) -> u64 {
        (bytes as f64 / 64.0 * share) as u64
    }

    impl Regulator for Board {
        fn name(&self) -> &'static str {
            "board"
        }
        fn start(&mut self, options: &StartOptions) -> Result<(), Error> {
            self.null.start(options)
        }
        fn is_running(&self) -> bool {
            self.null.is_running()
        }
        fn settings(&self) -> Result<Settings, Error> {
            self.null.settings()
        }
        fn set_budgets(&mut self, resource: Resource, request: &Request) -> Result<(), Error> {
            self.budget.set(match request.amounts[0] {
                Amount::Limited(events) => Some(events),
                Amount::Max => None,
            });
            self.null.set_budgets(resource, request)
        }
        fn set_mode(
            &mut self,
            best_effort: Option<BestEffort>,
            reclaim: Option<bool>,
        ) -> Result<(), Error> {
            self.null.set_mode(best_effort, reclaim)
        }
        fn set_maxbw(&mut self, maxbw_mib_s: u64) -> Result<(), Error> {
            self.null.set_maxbw(maxbw_mib_s)
        }
        fn set_period(&mut self, period_us: u64) -> Result<(), Error> {
            self.null.set_period(period_us)
        }
        fn set_rt(&mut self, cpu: usize, rt: bool) -> Result<(), Error> {
            self.null.set_rt(cpu, rt)
        }
        fn statistics(&self) -> Result<Vec<CoreStatistics>, Error> {
            let mut cores = self.null.statistics()?;
            cores[0].read.used = self.used.get();
            cores[0].throttled_periods = self.throttled.get();
            Ok(cores)
        }
        fn reset_statistics(&mut self) -> Result<(), Error> {
            self.null.reset_statistics()
        }
        fn stop(&mut self) -> Result<(), Error> {
            self.null.stop()
        }
    }

    fn test(count_per_event: f64, throttles: bool) -> Result<Vec<Finding>, String> {
        test_with(count_per_event, throttles, None)
    }

    fn test_with(
        count_per_event: f64,
        throttles: bool,
        of_last_level: Option<f64>,
    ) -> Result<Vec<Finding>, String> {
        let (used, throttled, budget) = (Rc::default(), Rc::default(), Rc::default());
        let mut cores = Cores {
            count_per_event,
            of_last_level,
            throttles,
            used: Rc::clone(&used),
            throttled: Rc::clone(&throttled),
            budget: Rc::clone(&budget),
        };
        let mut board = Board {
            null: Null::new([0].into_iter().collect()),
            used,
            throttled,
            budget,
        };
        board.start(&StartOptions::default()).unwrap();
        let before = board.settings().unwrap();
        let findings = run(&mut board, &[0], &mut cores).map_err(|error| error.to_string());
        assert_eq!(
            board.settings().unwrap().read_budget_events,
            before.read_budget_events
        );
        findings
    }

    #[test]
    fn a_good_counter_passes() {
        let findings = test(1.0, true).unwrap();
        assert_eq!(findings[0].counted_bytes, KNOWN_BYTES);
        assert!(findings[0].through <= 1.0 + TOLERANCE, "{findings:?}");
        assert!(test(1.15, true).is_ok());
        assert!(test(0.85, true).is_ok());
    }

    #[test]
    fn a_counter_that_stays_at_0_is_refused_with_event_core_and_remedy() {
        let message = test(0.0, true).unwrap_err();
        for word in [
            "CPU 0",
            "event null",
            "stayed at 0",
            "--event",
            "--no-self-test",
        ] {
            assert!(message.contains(word), "{word}: {message}");
        }
    }

    #[test]
    fn who_else_holds_counters_is_named() {
        assert_eq!(held_by(&[]), "");
        let perf = Holder::Process {
            pid: 7,
            name: "perf".into(),
            events: 2,
        };
        assert!(held_by(&[perf, Holder::NmiWatchdog]).starts_with(
            " (counters are also held by perf (pid 7) with 2 perf events, the NMI watchdog"
        ));
    }

    #[test]
    fn a_counter_that_is_off_is_refused() {
        assert!(test(1.3, true).unwrap_err().contains("+30 %"));
        assert!(test(0.5, true).unwrap_err().contains("-50 %"));
    }

    #[test]
    fn an_inner_caches_event_is_refused() {
        let message = test_with(1.0, true, Some(1.05)).unwrap_err();
        assert!(
            message
                .contains("event null counts what the last level of cache answers (105 % of it)"),
            "{message}"
        );
        let findings = test_with(1.0, true, Some(0.08)).unwrap();
        assert!((findings[0].of_last_level.unwrap() - 0.08).abs() < 0.001);
        assert_eq!(test(1.0, true).unwrap()[0].of_last_level, None);
    }

    #[test]
    fn a_throttle_that_does_not_hold_is_refused() {
        assert!(test(1.0, false).unwrap_err().contains("never throttled"));
    }
}
