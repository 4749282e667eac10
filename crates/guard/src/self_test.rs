// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests on every core that the guard counts and throttles, before a run relies on it.
//!
//! Each property is measured by two independent sources: the traffic reports the bytes that it moved, and the regulator
//! the events that it counted.

use std::time::Duration;

use memwarden_platform::Root;
use memwarden_platform::holders::{self, Holder};
use memwarden_policy::events;
use serde::Serialize;

use crate::budget::Request;
use crate::event_list::of_cpu;
use crate::{Control, Error, Regulator, Resource};

/// How far counted bytes may differ from moved bytes. Prefetchers and cache hits change a correct count by a few
/// percent; a wrong event is off by factors.
pub const TOLERANCE: f64 = 0.2;

/// Length of the throttle test's traffic, in periods: long enough to tell a budget's effect from the start-up.
const THROTTLED_PERIODS: u64 = 20;

/// The throttle test's budget is the core's unthrottled traffic divided by this.
const BUDGET_PART: u64 = 10;

/// The counting test compares at least this many bytes, since other work on the core is counted too.
pub const KNOWN_BYTES: u64 = 64 << 20;

/// The longer run moves at least this many times the shorter run's bytes in addition to them.
const LONGER: u64 = 2;

/// Largest allowed share of the bytes served by the last cache level that an event may count. An event for memory
/// traffic counts almost none: other work on the core moves a few percent. An inner cache's event counts all. The
/// limit also applies to read bytes that a write event counts.
const OF_LAST_LEVEL: f64 = 0.5;

/// Counts for each written line, of an event that counts it when it is fetched. One that does not count it is near 0,
/// and one that also counts its write-back near 2.
const ONCE: std::ops::Range<f64> = 0.5..1.5;

/// Attempts of the counting test before a deviation is a failure.
const ATTEMPTS: u32 = 3;

/// Makes traffic with a known number of bytes.
pub trait Traffic {
    /// Gets ready to run on `cpu`, so that no count includes a start.
    ///
    /// # Errors
    /// When it can't run on that CPU.
    fn prepare(&mut self, _cpu: usize) -> Result<(), Error> {
        Ok(())
    }

    /// Moves at least `bytes` on `cpu` as fast as possible, and returns the number of bytes moved and the time taken.
    /// The lines are read from memory and, with [`Resource::Write`], also written back. `None` if the counted event has
    /// no such traffic.
    ///
    /// # Errors
    /// When it can't run on that CPU.
    fn run(&mut self, cpu: usize, resource: Resource, bytes: u64) -> Result<Option<Moved>, Error>;

    /// Whether the counted event has such traffic.
    fn has(&self, resource: Resource) -> bool;

    /// The same with data that fits the last cache before memory but not the caches before it. Also `None` if the sizes
    /// of the caches are unknown.
    ///
    /// # Errors
    /// As for [`Traffic::run`].
    fn run_in_last_level(
        &mut self,
        _cpu: usize,
        _resource: Resource,
        _bytes: u64,
    ) -> Result<Option<Moved>, Error> {
        Ok(None)
    }
}

/// The result of a run of [`Traffic`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Bytes moved.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// The event counts bytes, so that both numbers can be compared.
    pub comparable: bool,
}

/// The result of one core's test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// The core.
    pub cpu: usize,
    /// The event that counts its reads.
    pub event: String,
    /// Bytes that the traffic moved.
    pub moved_bytes: u64,
    /// Bytes that the regulator counted during that.
    pub counted_bytes: u64,
    /// Counted share of the bytes served by the last cache before memory; `None` if not tested.
    pub of_last_level: Option<f64>,
    /// What the event of reads counted of bytes that were written, as a share of them: about 1 if it counts lines when
    /// they are fetched, as it should; 2 if it also counts their write-backs. `None` if not tested: an earlier core has
    /// the same event, or writes are counted, too (see [`Finding::written`]).
    pub of_written: Option<f64>,
    /// Budget of the throttle test, in events a period.
    pub budget_events: u64,
    /// Bytes a period moved under this budget, divided by the budget.
    pub through: f64,
    /// Periods in which the core was throttled.
    pub throttled_periods: u64,
    /// The results for write-backs; `None` if they are not counted or are [refused](Self::writes_refused). With a
    /// combined budget, the results for written lines, each of which counts twice.
    pub written: Option<Written>,
    /// Why write-backs must have no budget: the event that counts them is wrong.
    pub writes_refused: Option<String>,
}

impl Finding {
    /// What the event does with written lines, if it isn't to count each once.
    pub fn note_of_written(&self) -> Option<String> {
        let share = self.of_written.filter(|share| !ONCE.contains(share))?;
        let event = &self.event;
        if share < ONCE.start {
            return Some(format!(
                "event {event} counted {:.0} % of the bytes written: lines that are fetched in order to be written to use no \
                 budget",
                share * 100.0
            ));
        }
        // A name with --combined stands for other codes.
        let advice = if event.starts_with("0x") {
            "; with --combined one budget covers both"
        } else {
            ""
        };
        Some(format!(
            "event {event} counted {share:.1} times the bytes written: it counts write-backs, too{advice}"
        ))
    }
}

/// The result of the test of write-backs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Written {
    /// Bytes that the traffic wrote.
    pub moved_bytes: u64,
    /// Bytes that the regulator counted during that.
    pub counted_bytes: u64,
    /// Counted share of bytes that were only read.
    pub of_reads: f64,
    /// Counted share of bytes written into the last cache before memory; `None` if not tested.
    pub of_last_level: Option<f64>,
    /// Periods in which the core was throttled, with a tenth of its unthrottled traffic as its budget.
    pub throttled_periods: u64,
}

/// Tests every core in `cpus`, one after another, and restores the settings.
///
/// # Errors
/// The first core on which the counter doesn't count or is off by more than [`TOLERANCE`], or on which traffic exceeds
/// its budget. The message names the event, the core and a remedy.
pub fn run(
    guard: &mut dyn Regulator,
    cpus: &[usize],
    traffic: &mut dyn Traffic,
) -> Result<Vec<Finding>, Error> {
    let before = guard.settings()?;
    let events = before.control.event.clone();
    let mut tested = Vec::new();
    let outcome = cpus
        .iter()
        .map(|&cpu| {
            let event = of_cpu(&events, cpu);
            let first = !tested.contains(&event);
            tested.push(event);
            test_core(guard, cpu, traffic, first)
        })
        .collect();
    guard.restore(&before)?;
    guard.reset_statistics()?;
    outcome
}

/// Moves at least the given number of bytes on a core.
type Run<'a> = dyn FnMut(&mut dyn Traffic, usize, u64) -> Result<Option<Moved>, Error> + 'a;

/// One core's test.
struct Test<'a> {
    guard: &'a mut dyn Regulator,
    traffic: &'a mut dyn Traffic,
    cpu: usize,
    control: Control,
    period: Duration,
}

fn test_core(
    guard: &mut dyn Regulator,
    cpu: usize,
    traffic: &mut dyn Traffic,
    first_of_its_event: bool,
) -> Result<Finding, Error> {
    traffic.prepare(cpu)?;
    let control = guard.settings()?.control;
    let period = Duration::from_micros(control.period_us);
    let mut test = Test {
        guard,
        traffic,
        cpu,
        control,
        period,
    };
    let (found, of_last_level) = test.counts(Resource::Read, Resource::Read)?;
    let throttled = test.throttles(Resource::Read, Resource::Read, &found)?;
    let of_written = match first_of_its_event {
        true => test.of_written()?,
        false => None,
    };
    let (mut written, mut writes_refused) = (None, None);
    if test.control.combined && test.traffic.has(Resource::Write) {
        written = Some(test.both(&found)?);
    } else if test.control.has_write_budgets() && test.traffic.has(Resource::Write) {
        match test.written() {
            Ok(found) => written = Some(found),
            Err(Error::SelfTest(why)) => writes_refused = Some(why),
            Err(error) => return Err(error),
        }
    }
    Ok(Finding {
        cpu,
        event: of_cpu(&test.control.event, cpu),
        moved_bytes: found.bytes,
        counted_bytes: test.in_bytes(found.used),
        of_last_level,
        of_written,
        budget_events: throttled.budget_events,
        through: throttled.through,
        throttled_periods: throttled.periods,
        written,
        writes_refused,
    })
}

/// The effect of a budget.
struct Throttled {
    budget_events: u64,
    through: f64,
    periods: u64,
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
impl Test<'_> {
    fn in_bytes(&self, events: u64) -> u64 {
        events.saturating_mul(self.control.bytes_per_event)
    }

    fn event(&self, resource: Resource) -> String {
        match (resource, &self.control.write_event) {
            (Resource::Write, Some(event)) => format!("write event {event}"),
            (Resource::Read, Some(event)) if self.control.combined => format!(
                "event {} with {}",
                of_cpu(&self.control.event, self.cpu),
                of_cpu(event, self.cpu)
            ),
            _ => format!("event {}", of_cpu(&self.control.event, self.cpu)),
        }
    }

    fn fail(&self, resource: Resource, what: &str) -> Error {
        let (cpu, bytes) = (self.cpu, self.control.bytes_per_event);
        let others = held_by(&holders::others(&Root::system()));
        Error::SelfTest(match resource {
            Resource::Read => format!(
                "the guard does not regulate CPU {cpu}: {what}{others}; try another --event (`memwarden guard events` lists what \
                 is known, `memwarden doctor` what this machine counts), --bytes-per-event if an event is not {bytes} bytes, or \
                 --no-self-test to skip this test (in a budget file: event, bytes_per_event, self_test = false)"
            ),
            Resource::Write => format!(
                "the guard does not regulate the write-backs of CPU {cpu}: {what}{others}; try another --write-event, give \
                 --event as a raw code to regulate reads alone, or --no-self-test to skip this test (in a budget file: write_event, event, \
                 self_test = false)"
            ),
        })
    }

    /// Runs one kind of memory traffic until the counted bytes agree with the moved bytes. Also returns the counted
    /// share of traffic that the last cache level serves. With a combined budget a written line counts twice: it is
    /// fetched and written back.
    fn counts(
        &mut self,
        resource: Resource,
        moved: Resource,
    ) -> Result<(Measured, Option<f64>), Error> {
        let each = if moved == resource { 1.0 } else { 2.0 };
        self.guard
            .set_budgets(resource, &Request::events_for_cpu(self.cpu, None))?;
        let event = self.event(resource);
        let mut attempt = 1;
        // Other work on the core is counted too, but it varies; a wrong event is wrong in every attempt.
        let found = loop {
            let Some(found) = self.measure(resource, moved)? else {
                return Err(self.fail(resource, "there was no traffic"));
            };
            if found.used == 0 && attempt == ATTEMPTS {
                let what = format!("{event} stayed at 0 while {} bytes were moved", found.bytes);
                return Err(self.fail(resource, &what));
            }
            let ratio = found.share(self.control.bytes_per_event) / each;
            let agrees = !found.whole.comparable || (ratio - 1.0).abs() <= TOLERANCE;
            if agrees && found.used > 0 {
                break found;
            }
            if attempt == ATTEMPTS {
                let what = if moved == resource {
                    format!(
                        "{event} counted {} bytes while {} were moved ({:+.0} %)",
                        self.in_bytes(found.used),
                        found.bytes,
                        (ratio - 1.0) * 100.0
                    )
                } else {
                    format!(
                        "{event} counted {} bytes while {} were written, each of which is fetched and written back \
                         ({:+.0} %): a combined budget covers both, so give a --write-event that counts \
                         write-backs",
                        self.in_bytes(found.used),
                        found.bytes,
                        (ratio - 1.0) * 100.0
                    )
                };
                return Err(self.fail(resource, &what));
            }
            attempt += 1;
        };
        let of_last_level = self.least(|test| test.measure_in_last_level(resource, moved))?;
        // Some processors have no better event; the table marks those.
        let known = events::named(&of_cpu(&self.control.event, self.cpu));
        let expected =
            resource == Resource::Read && known.is_some_and(|event| event.includes.shared_hits);
        if let Some(share) = of_last_level.filter(|share| *share > OF_LAST_LEVEL && !expected) {
            let what = format!(
                "{event} counts what the last level of cache answers ({:.0} % of it), not what reaches memory: it is an \
                 inner cache's",
                share * 100.0
            );
            return Err(self.fail(resource, &what));
        }
        Ok((found, of_last_level))
    }

    /// A budget of a tenth of the core's unthrottled traffic must throttle the core.
    fn throttles(
        &mut self,
        resource: Resource,
        moved: Resource,
        found: &Measured,
    ) -> Result<Throttled, Error> {
        let period_s = self.period.as_secs_f64();
        let in_periods = |time: Duration| time.as_secs_f64() / period_s;
        let free = found.whole.bytes as f64 / in_periods(found.whole.elapsed).max(1.0);
        let free_events = (free * found.used as f64 / found.bytes as f64) as u64;
        let budget_events = (free_events / BUDGET_PART).max(1);
        let budget_bytes = (free as u64 / BUDGET_PART).max(1);
        self.guard.set_budgets(
            resource,
            &Request::events_for_cpu(self.cpu, Some(budget_events)),
        )?;
        let bytes = self.throttled_bytes(moved, budget_bytes);
        let counted = bytes.and_then(|bytes| {
            self.counted_while(resource, |traffic, cpu| traffic.run(cpu, moved, bytes))
        });
        self.guard
            .set_budgets(resource, &Request::events_for_cpu(self.cpu, None))?;
        let counted = counted?;
        let (Some(moved), throttled) = counted else {
            return Err(self.fail(resource, "there was no traffic"));
        };
        if throttled.throttled_periods == 0 {
            let what = format!(
                "with a budget of {budget_events} events a period it was never throttled ({} counted {})",
                self.event(resource),
                throttled.used
            );
            return Err(self.fail(resource, &what));
        }
        let periods = in_periods(moved.elapsed);
        // The traffic may begin and end within a period, and then touches one period more than it lasts.
        let through = moved.bytes as f64 / ((periods + 1.0) * budget_bytes as f64);
        if through > 1.0 + TOLERANCE {
            let what = format!(
                "traffic went on past its budget: {:.0} bytes a period where {budget_bytes} were allowed",
                moved.bytes as f64 / periods
            );
            return Err(self.fail(resource, &what));
        }
        Ok(Throttled {
            budget_events,
            through,
            periods: throttled.throttled_periods,
        })
    }

    /// Bytes of the throttle test's traffic. Of a writer, caches take the first lines, and the regulator learns from its
    /// first stops how many it evicts there. So a buffer is written before, under the budget, and at least two are after.
    fn throttled_bytes(&mut self, moved: Resource, budget_bytes: u64) -> Result<u64, Error> {
        let bytes = budget_bytes * THROTTLED_PERIODS;
        if moved == Resource::Read {
            return Ok(bytes);
        }
        let buffer = self.traffic.run(self.cpu, moved, 1)?;
        Ok(buffer.map_or(bytes, |buffer| bytes.max(2 * buffer.bytes)))
    }

    /// The counted share of written bytes, for an event of reads alone: of several attempts the one that is closest to
    /// a count for each line, since other work is counted, too.
    fn of_written(&mut self) -> Result<Option<f64>, Error> {
        if self.control.write_event.is_some()
            || self.control.combined
            || !self.traffic.has(Resource::Write)
        {
            return Ok(None);
        }
        let mut best: Option<f64> = None;
        for _ in 0..ATTEMPTS {
            let found = self.measure(Resource::Read, Resource::Write)?;
            let Some(found) = found.filter(|found| found.whole.comparable) else {
                return Ok(None);
            };
            let share = found.share(self.control.bytes_per_event);
            if best.is_none_or(|best| (share - 1.0).abs() < (best - 1.0).abs()) {
                best = Some(share);
            }
            if ONCE.contains(&share) {
                break;
            }
        }
        Ok(best)
    }

    /// Tests a combined budget: a written line must count when it is fetched and when it is written back, and the
    /// budget must limit both.
    fn both(&mut self, read: &Measured) -> Result<Written, Error> {
        let of_reads = read.share(self.control.bytes_per_event);
        let (found, of_last_level) = self.counts(Resource::Read, Resource::Write)?;
        let throttled = self.throttles(Resource::Read, Resource::Write, &found)?;
        Ok(Written {
            moved_bytes: found.bytes,
            counted_bytes: self.in_bytes(found.used),
            of_reads,
            of_last_level,
            throttled_periods: throttled.periods,
        })
    }

    /// Tests write-backs: they count when lines are written, not when lines are read, and a budget limits them.
    fn written(&mut self) -> Result<Written, Error> {
        let (found, of_last_level) = self.counts(Resource::Write, Resource::Write)?;
        let of_reads = self
            .least(|test| test.measure(Resource::Write, Resource::Read))?
            .unwrap_or(0.0);
        if of_reads > OF_LAST_LEVEL {
            let what = format!(
                "{} counts what is only read ({:.0} % of it)",
                self.event(Resource::Write),
                of_reads * 100.0
            );
            return Err(self.fail(Resource::Write, &what));
        }
        let throttled = self.throttles(Resource::Write, Resource::Write, &found)?;
        Ok(Written {
            moved_bytes: found.bytes,
            counted_bytes: self.in_bytes(found.used),
            of_reads,
            of_last_level,
            throttled_periods: throttled.periods,
        })
    }

    /// The smallest counted share of the moved bytes in several attempts. Other work evicts lines from the cache, but
    /// it varies; a wrong event is wrong in every attempt.
    fn least(
        &mut self,
        mut measure: impl FnMut(&mut Self) -> Result<Option<Measured>, Error>,
    ) -> Result<Option<f64>, Error> {
        let mut least = f64::INFINITY;
        for _ in 0..ATTEMPTS {
            let Some(found) = measure(self)? else {
                return Ok(None);
            };
            least = least.min(found.share(self.control.bytes_per_event));
            if least <= OF_LAST_LEVEL {
                break;
            }
        }
        Ok(Some(least))
    }

    /// Measures the count of one resource while traffic of the same or the other kind runs.
    fn measure(&mut self, counted: Resource, moved: Resource) -> Result<Option<Measured>, Error> {
        self.measure_by(counted, &mut |traffic, cpu, bytes| {
            traffic.run(cpu, moved, bytes)
        })
    }

    fn measure_in_last_level(
        &mut self,
        counted: Resource,
        moved: Resource,
    ) -> Result<Option<Measured>, Error> {
        self.measure_by(counted, &mut |traffic, cpu, bytes| {
            traffic.run_in_last_level(cpu, moved, bytes)
        })
    }

    /// Runs traffic twice, short and long, and returns the difference, which excludes what both runs have in common. A
    /// first run, which is not counted, fills the buffer: with a large cache that is as much as the traffic itself.
    fn measure_by(
        &mut self,
        resource: Resource,
        run: &mut Run<'_>,
    ) -> Result<Option<Measured>, Error> {
        if run(self.traffic, self.cpu, 1)?.is_none() {
            return Ok(None);
        }
        let short = self.counted_while(resource, |traffic, cpu| run(traffic, cpu, 1))?;
        let (Some(short), before) = short else {
            return Ok(None);
        };
        let bytes = short.bytes + KNOWN_BYTES.max(LONGER * short.bytes);
        let whole = self.counted_while(resource, |traffic, cpu| run(traffic, cpu, bytes))?;
        let (Some(whole), counted) = whole else {
            return Ok(None);
        };
        Ok(Some(Measured {
            bytes: whole.bytes.saturating_sub(short.bytes),
            used: counted.used.saturating_sub(before.used),
            whole,
        }))
    }

    /// Runs `work`, and returns its result with the regulator's counts during it.
    fn counted_while<T>(
        &mut self,
        resource: Resource,
        work: impl FnOnce(&mut dyn Traffic, usize) -> Result<T, Error>,
    ) -> Result<(T, Counted), Error> {
        // Totals are updated at the end of a period: after two periods they include all events until now.
        let period = self.period;
        let settle = || std::thread::sleep(2 * period);
        settle();
        let before = totals(self.guard, self.cpu, resource)?;
        let result = work(self.traffic, self.cpu)?;
        settle();
        let after = totals(self.guard, self.cpu, resource)?;
        let counted = Counted {
            used: after.used.saturating_sub(before.used),
            throttled_periods: after
                .throttled_periods
                .saturating_sub(before.throttled_periods),
        };
        Ok((result, counted))
    }
}

/// Traffic and the regulator's count of it.
struct Measured {
    /// The longer run.
    whole: Moved,
    /// Bytes moved by the longer run minus those of the shorter one.
    bytes: u64,
    /// Events counted in the longer run minus those of the shorter one.
    used: u64,
}

impl Measured {
    /// Counted bytes divided by moved bytes.
    fn share(&self, bytes_per_event: u64) -> f64 {
        self.used.saturating_mul(bytes_per_event) as f64 / self.bytes.max(1) as f64
    }
}

/// Names the other users of counters: they may hold the counter that is missing here.
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

fn totals(guard: &dyn Regulator, cpu: usize, resource: Resource) -> Result<Counted, Error> {
    guard
        .statistics()?
        .into_iter()
        .find(|core| core.cpu == cpu)
        .map(|core| Counted {
            used: match (resource, &core.write) {
                (Resource::Write, Some(write)) => write.used,
                (Resource::Write, None) => 0,
                (Resource::Read, _) => core.read.used,
            },
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

    /// A regulator of one core, whose counts come from [`Cores`].
    struct Board {
        null: Null,
        combined: bool,
        used: Rc<Cell<u64>>,
        written: Option<Rc<Cell<u64>>>,
        throttled: Rc<Cell<u64>>,
        budgets: Budgets,
    }

    /// Budgets of reads and of writes.
    type Budgets = [Rc<Cell<Option<u64>>>; 2];

    struct Cores {
        /// The read event's count for each line read, and for each line written.
        count_per_event: f64,
        count_per_written: f64,
        /// Counted share of the lines that the last cache serves, if known.
        of_last_level: Option<f64>,
        throttles: bool,
        throttles_writes: bool,
        combined: bool,
        writes: Writes,
        used: Rc<Cell<u64>>,
        written: Rc<Cell<u64>>,
        throttled: Rc<Cell<u64>>,
        budgets: Budgets,
    }

    /// The write event's count for each written line, each line only read, and each line that the last cache takes.
    #[derive(Clone, Copy, Default)]
    struct Writes {
        written: f64,
        read: f64,
        of_last_level: f64,
    }

    const FREE: u64 = 200;

    /// Events at the beginning of a run, which fills a buffer as large as the traffic.
    const BEGINNING: u64 = KNOWN_BYTES / 64;

    impl Traffic for Cores {
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss
        )]
        fn run(
            &mut self,
            _: usize,
            resource: Resource,
            bytes: u64,
        ) -> Result<Option<Moved>, Error> {
            let events = bytes.div_ceil(64);
            let of_each = match resource {
                Resource::Read => self.writes.read,
                Resource::Write => self.writes.written,
            };
            let written = self.written.get() + (events as f64 * of_each) as u64;
            self.written.set(written);
            let bytes = 64 * events;
            let each = match resource {
                Resource::Read => self.count_per_event,
                Resource::Write => self.count_per_written,
            };
            let counted = BEGINNING as f64 + events as f64 * each;
            self.used.set(self.used.get() + counted as u64);
            // Each kind of traffic is throttled or not by itself.
            let throttles = match resource {
                Resource::Read => self.throttles,
                Resource::Write => self.throttles_writes,
            };
            // A combined budget covers both; a written line takes two events of it.
            let budget = if self.combined {
                let each = if resource == Resource::Write { 2 } else { 1 };
                self.budgets[0].get().map(|budget| budget / each)
            } else {
                self.budgets[resource as usize].get()
            };
            let rate = match budget {
                Some(budget) if throttles => {
                    self.throttled.set(self.throttled.get() + events / budget);
                    budget
                }
                _ => FREE,
            };
            Ok(Some(Moved {
                bytes,
                elapsed: Duration::from_millis(events / rate),
                comparable: true,
            }))
        }

        fn has(&self, _: Resource) -> bool {
            true
        }

        fn run_in_last_level(
            &mut self,
            _: usize,
            resource: Resource,
            bytes: u64,
        ) -> Result<Option<Moved>, Error> {
            let Some(share) = self.of_last_level else {
                return Ok(None);
            };
            if resource == Resource::Write {
                let written = events(bytes, self.writes.of_last_level);
                self.written.set(self.written.get() + written);
            }
            self.used
                .set(self.used.get() + BEGINNING + events(bytes, share));
            Ok(Some(Moved {
                bytes,
                elapsed: Duration::from_millis(1),
                comparable: true,
            }))
        }
    }

    /// Events of 64 bytes each.
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
            let mut settings = self.null.settings()?;
            settings.control.write_event = self.written.as_ref().map(|_| "0x18".into());
            settings.control.combined = self.combined;
            Ok(settings)
        }
        fn set_budgets(&mut self, resource: Resource, request: &Request) -> Result<(), Error> {
            self.budgets[resource as usize].set(match request.amounts[0] {
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
            if self.combined {
                let written = self.written.as_ref().map_or(0, |written| written.get());
                cores[0].read.used += written;
            }
            cores[0].write = self.written.as_ref().map(|written| {
                let mut account = cores[0].read.clone();
                account.used = written.get();
                account
            });
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
        test_writes(count_per_event, throttles, of_last_level, None, true)
    }

    fn test_writes(
        count_per_event: f64,
        throttles: bool,
        of_last_level: Option<f64>,
        writes: Option<Writes>,
        throttles_writes: bool,
    ) -> Result<Vec<Finding>, String> {
        test_board(
            [count_per_event; 2],
            throttles,
            of_last_level,
            writes,
            throttles_writes,
            false,
        )
    }

    fn rig(
        [count_per_event, count_per_written]: [f64; 2],
        throttles: bool,
        of_last_level: Option<f64>,
        writes: Option<Writes>,
        throttles_writes: bool,
        combined: bool,
    ) -> (Board, Cores) {
        let (used, throttled, budgets) = (Rc::default(), Rc::default(), Budgets::default());
        let written: Rc<Cell<u64>> = Rc::default();
        let cores = Cores {
            count_per_event,
            count_per_written,
            of_last_level,
            throttles,
            throttles_writes,
            combined,
            writes: writes.unwrap_or_default(),
            used: Rc::clone(&used),
            written: Rc::clone(&written),
            throttled: Rc::clone(&throttled),
            budgets: budgets.clone(),
        };
        let board = Board {
            null: Null::new([0].into_iter().collect()),
            combined,
            used,
            written: writes.map(|_| written),
            throttled,
            budgets,
        };
        (board, cores)
    }

    fn test_board(
        counts: [f64; 2],
        throttles: bool,
        of_last_level: Option<f64>,
        writes: Option<Writes>,
        throttles_writes: bool,
        combined: bool,
    ) -> Result<Vec<Finding>, String> {
        let (mut board, mut cores) = rig(
            counts,
            throttles,
            of_last_level,
            writes,
            throttles_writes,
            combined,
        );
        let budgets = board.budgets.clone();
        board.start(&StartOptions::default()).unwrap();
        let before = board.settings().unwrap();
        let findings = run(&mut board, &[0], &mut cores).map_err(|error| error.to_string());
        assert_eq!(
            board.settings().unwrap().read_budget_events,
            before.read_budget_events
        );
        // No budget of either kind stays in force, whatever the test found.
        assert_eq!(budgets.each_ref().map(|budget| budget.get()), [None, None]);
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
    fn an_event_of_reads_says_how_often_it_counts_a_written_line() {
        for per_written in [0.0, 1.0, 2.0] {
            let mut findings =
                test_board([1.0, per_written], true, None, None, true, false).unwrap();
            let finding = findings.remove(0);
            let of_written = finding.of_written.unwrap();
            assert!((of_written - per_written).abs() < 0.001, "{of_written}");
            let note = finding.note_of_written();
            assert_eq!(note.is_none(), per_written == 1.0, "{note:?}");
            let of = |event: &str| Finding {
                event: event.into(),
                ..finding.clone()
            };
            let raw = of("0x19").note_of_written().unwrap_or_default();
            match per_written {
                0.0 => assert!(
                    raw.contains("event 0x19 counted 0 % of the bytes written"),
                    "{raw}"
                ),
                2.0 => assert!(
                    raw.contains("2.0 times the bytes written") && raw.contains("--combined"),
                    "{raw}"
                ),
                _ => assert_eq!(raw, ""),
            }
            let named = of("armv8").note_of_written().unwrap_or_default();
            assert!(!named.contains("--combined"), "{named}");
        }
        let both = Writes {
            written: 1.0,
            ..Writes::default()
        };
        let findings = test_board([1.0; 2], true, None, Some(both), true, true).unwrap();
        assert_eq!(findings[0].of_written, None);
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

    /// Traffic whose second run is not in the counts until the third begins.
    struct Late {
        cores: Cores,
        runs: u32,
        kept: u64,
    }

    impl Traffic for Late {
        fn run(
            &mut self,
            cpu: usize,
            resource: Resource,
            bytes: u64,
        ) -> Result<Option<Moved>, Error> {
            let before = self.cores.used.get();
            let moved = self.cores.run(cpu, resource, bytes)?;
            self.runs += 1;
            let used = self.cores.used.get() + std::mem::take(&mut self.kept);
            self.cores.used.set(used);
            if self.runs == 2 {
                self.kept = used - before;
                self.cores.used.set(before);
            }
            Ok(moved)
        }

        fn has(&self, resource: Resource) -> bool {
            self.cores.has(resource)
        }
    }

    #[test]
    fn counts_that_come_late_once_are_measured_again() {
        let (mut board, cores) = rig([1.0; 2], true, None, None, true, false);
        board.start(&StartOptions::default()).unwrap();
        let mut late = Late {
            cores,
            runs: 0,
            kept: 0,
        };
        let findings = run(&mut board, &[0], &mut late).unwrap();
        assert_eq!(findings[0].counted_bytes, findings[0].moved_bytes);
        assert!(late.runs > 4, "{} runs", late.runs);
    }

    #[test]
    fn other_holders_of_counters_are_named() {
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
    fn a_write_event_is_proved_as_well_or_refused_for_what_it_counts() {
        let good = Writes {
            written: 1.0,
            read: 0.01,
            of_last_level: 0.02,
        };
        let tested = |writes, throttles| {
            let mut findings = test_writes(1.0, true, Some(0.05), Some(writes), throttles).unwrap();
            findings.remove(0)
        };
        let finding = tested(good, true);
        assert_eq!(finding.writes_refused, None);
        let written = finding.written.unwrap();
        assert_eq!(written.counted_bytes, written.moved_bytes);
        assert!(written.of_reads < 0.02 && written.throttled_periods > 0);
        assert!(written.of_last_level.unwrap() < 0.03, "{written:?}");
        for (writes, why) in [
            (
                Writes {
                    written: 0.0,
                    ..good
                },
                "write event 0x18 stayed at 0",
            ),
            (
                Writes {
                    written: 2.0,
                    ..good
                },
                "(+100 %)",
            ),
            (
                Writes { read: 1.0, ..good },
                "counts what is only read (100 % of it)",
            ),
            (
                Writes {
                    of_last_level: 1.0,
                    ..good
                },
                "inner cache's",
            ),
        ] {
            let finding = tested(writes, true);
            let said = finding.writes_refused.unwrap();
            assert!(said.contains(why), "{why}: {said}");
            assert!(said.contains("write-backs of CPU 0") && said.contains("--write-event"));
            assert_eq!(finding.written, None);
        }
        let said = tested(good, false).writes_refused.unwrap();
        assert!(said.contains("never throttled"), "{said}");
        assert_eq!(test(1.0, true).unwrap()[0].written, None);
    }

    #[test]
    fn one_budget_over_both_counts_a_written_line_twice_or_is_refused() {
        let good = Writes {
            written: 1.0,
            read: 0.0,
            of_last_level: 0.0,
        };
        let tested = |writes, throttles_writes| {
            test_board(
                [1.0; 2],
                true,
                Some(0.05),
                Some(writes),
                throttles_writes,
                true,
            )
        };
        let finding = tested(good, true).unwrap().remove(0);
        let written = finding.written.unwrap();
        assert_eq!(written.counted_bytes, 2 * written.moved_bytes);
        assert!(written.throttled_periods > 0 && finding.throttled_periods > 0);
        let none = Writes {
            written: 0.0,
            ..good
        };
        let said = tested(none, true).unwrap_err();
        assert!(said.contains("event null with 0x18 counted"), "{said}");
        assert!(said.contains("written back (-50 %)"), "{said}");
        assert!(tested(good, false).unwrap_err().contains("never throttled"));
    }

    #[test]
    fn a_throttle_that_does_not_hold_is_refused() {
        assert!(test(1.0, false).unwrap_err().contains("never throttled"));
    }
}
