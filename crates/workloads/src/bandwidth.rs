// SPDX-License-Identifier: MIT OR Apache-2.0
//! `bandwidth`: touches one word of every line, in order, at full speed or at
//! a given pace.
//!
//! The [`Kind`] defines the access; each kind has its own file.

#![allow(unsafe_code)]

use std::time::Duration;

use memwarden_platform::{affinity, clock, faults, sched};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    BufferConfig, Descriptor, Error, LINE_BYTES, Limit, MeasuringCost, Observer, Placement,
    Progress, Result, Stop, mib_s, ratio,
};

mod arrays;
mod compare;
mod copy;
mod fresh_pages;
mod ntwrite;
mod read;
mod readwrite;
mod screen;
mod triad;
mod write;

/// All kinds of access, as `-a` names them.
pub static KINDS: [&Kind; 7] = [
    &read::KIND,
    &compare::KIND,
    &write::KIND,
    &copy::KIND,
    &triad::KIND,
    &ntwrite::KIND,
    &readwrite::KIND,
];

/// One kind of access to arrays.
#[derive(Debug)]
pub struct Kind {
    /// Name and help.
    pub descriptor: Descriptor,
    /// Traffic between cache and memory for each counted line.
    pub traffic: &'static str,
    /// Number of arrays that the buffer is divided into.
    arrays: usize,
    /// The hot loop: touches `lines` lines of each array, `stride` words apart;
    /// returns the sum of the words that it read, if it sums. The caller guarantees
    /// that the arrays in use have that many lines.
    touch: unsafe fn(arrays: [*mut u64; 3], lines: usize, stride: usize) -> u64,
    /// What each line adds to that sum.
    sum_per_line: u64,
    /// The word of a line in the first array after that many touches.
    word_after: fn(touches: u64) -> u64,
}

/// The first word of a line in each array before the first touch.
const INITIAL: [u64; 3] = [1, 2, 3];

/// What to touch.
#[derive(Debug, Clone)]
pub enum Access {
    /// One buffer, repeatedly.
    Buffer(&'static Kind),
    /// New pages, each touched once: every page costs a page fault.
    FreshPages,
    /// A frame buffer that scrolls.
    Screen,
}

impl Access {
    /// Its description for the command line.
    #[must_use]
    pub fn descriptor(&self) -> &'static Descriptor {
        match self {
            Self::Buffer(kind) => &kind.descriptor,
            Self::FreshPages => &fresh_pages::DESCRIPTOR,
            Self::Screen => &screen::DESCRIPTOR,
        }
    }

    /// The name in results: `read`, ..., `fresh-pages`, `screen`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.descriptor().name
    }

    /// The access with that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|access| access.name() == name)
    }

    /// All kinds of access.
    pub fn all() -> impl Iterator<Item = Self> {
        let buffers = KINDS.into_iter().map(Self::Buffer);
        buffers.chain([Self::FreshPages, Self::Screen])
    }

    /// Traffic between cache and memory for each counted line.
    #[must_use]
    pub fn traffic(&self) -> &'static str {
        match self {
            Self::Buffer(kind) => kind.traffic,
            Self::FreshPages => fresh_pages::TRAFFIC,
            Self::Screen => screen::TRAFFIC,
        }
    }
}

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// What to touch.
    pub access: Access,
    /// The memory; for fresh pages, the size of one iteration.
    pub buffer: BufferConfig,
    /// CPU and priority of the thread.
    pub placement: Placement,
    /// Duration; `None` runs until stopped.
    pub duration: Option<Duration>,
    /// Passes over the buffer; `None` runs until the time is over.
    pub iterations: Option<u64>,
    /// The pace in MiB/s; `None` runs at full speed.
    pub rate_mib_s: Option<f64>,
    /// Interval between progress reports.
    pub interval: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            access: Access::Buffer(&read::KIND),
            buffer: BufferConfig::default(),
            placement: Placement::default(),
            duration: Some(Duration::from_secs(5)),
            iterations: None,
            rate_mib_s: None,
            interval: None,
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Outcome {
    /// The kind of access.
    pub access: &'static str,
    /// The CPU on which the thread ended.
    pub cpu: usize,
    /// Bytes of the lines that are touched repeatedly; for fresh pages, of one
    /// iteration's pages.
    pub footprint_bytes: u64,
    /// Bytes of the lines touched, in all arrays; for fresh pages, of the pages.
    pub bytes: u64,
    /// Total time.
    pub elapsed_ns: u64,
    /// `bytes` a second, in MiB.
    pub mib_s: f64,
    /// Time for each line of 64 bytes.
    pub ns_per_line: f64,
    /// Fresh pages touched; `null` for the other kinds.
    pub pages: Option<u64>,
    /// Minor page faults in the run, as the kernel counted them.
    pub page_faults: u64,
    /// Share of the buffer on other NUMA nodes than the CPU's; `null` on a machine with one node, and
    /// for fresh pages.
    pub remote_share: Option<f64>,
    /// The requested pace.
    pub rate_mib_s: Option<f64>,
    /// Cost of the measurement itself.
    pub measuring_cost: MeasuringCost,
}

/// A load that moves bytes in steps.
trait Load {
    /// Name of the unit that steps consist of.
    const UNIT: &'static str;
    /// Bytes of a unit.
    fn unit_bytes(&self) -> u64;
    /// Most units in a step.
    fn most(&self) -> u64;
    /// Units of one iteration.
    fn pass(&self) -> u64;
    /// Touches exactly `units` units, at most [`Load::most`].
    fn step(&mut self, units: u64) -> Result<()>;
    /// Share of the buffer on other NUMA nodes than the CPU's; none if there is one node, or no lasting buffer.
    fn remote_share(&self) -> Option<f64>;
    /// Checks that memory has the expected contents.
    fn verify(&self) -> Result<()>;
    /// Time of a unit without memory traffic, nanoseconds.
    fn floor(&mut self) -> Result<f64>;
}

/// A load of any kind, run one pass at a time.
pub trait Pass {
    /// Makes one pass.
    ///
    /// # Errors
    /// When the kernel refuses new pages.
    fn once(&mut self) -> Result<()>;
    /// Bytes of a pass.
    fn bytes(&self) -> u64;
    /// Minimum page faults of a pass.
    fn faults(&self) -> u64;
    /// Share of the buffer on other NUMA nodes than the CPU's; none if there is one node, or no lasting buffer.
    fn remote_share(&self) -> Option<f64>;
    /// Checks that memory has the expected contents.
    ///
    /// # Errors
    /// When it has not.
    fn check(&self) -> Result<()>;
}

impl<L: Load> Pass for L {
    fn once(&mut self) -> Result<()> {
        let mut left = self.pass();
        while left > 0 {
            let step = left.min(self.most());
            self.step(step)?;
            left -= step;
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.pass() * self.unit_bytes()
    }

    fn faults(&self) -> u64 {
        if L::UNIT == "page" { self.pass() } else { 0 }
    }

    fn remote_share(&self) -> Option<f64> {
        Load::remote_share(self)
    }

    fn check(&self) -> Result<()> {
        self.verify()
    }
}

/// `access` on a buffer, one pass at a time. Fails once `stop` is requested before the buffer is ready.
///
/// # Errors
/// When there is no such buffer.
pub fn passes(access: &Access, buffer: &BufferConfig, stop: &Stop) -> Result<Box<dyn Pass>> {
    Ok(match access {
        Access::Buffer(kind) => Box::new(arrays::Arrays::new(kind, buffer, stop)?),
        Access::FreshPages => Box::new(fresh_pages::FreshPages::new(buffer)?),
        Access::Screen => Box::new(screen::Screen::new(buffer, stop)?),
    })
}

/// Runs until the time or the iterations are over, or `stop` is requested.
pub fn run(config: &Config, stop: &Stop, observer: &mut dyn Observer) -> Result<Outcome> {
    if let Some(rate) = config.rate_mib_s {
        if !(rate.is_finite() && rate > 0.0) {
            return Err(Error::Invalid(format!(
                "a pace of {rate} MB/s cannot be kept: it must be above 0"
            )));
        }
    }
    if config.iterations == Some(0) {
        return Err(Error::Invalid("0 iterations would measure nothing".into()));
    }
    config.placement.apply()?;
    if !matches!(config.access, Access::FreshPages) {
        observer.preparing(config.buffer.bytes as u64)?;
    }
    match &config.access {
        Access::Buffer(kind) => drive(
            config,
            arrays::Arrays::new(kind, &config.buffer, stop)?,
            stop,
            observer,
        ),
        Access::FreshPages => drive(
            config,
            fresh_pages::FreshPages::new(&config.buffer)?,
            stop,
            observer,
        ),
        Access::Screen => drive(
            config,
            screen::Screen::new(&config.buffer, stop)?,
            stop,
            observer,
        ),
    }
}

/// Bytes between clock readings: tens of microseconds from the first-level cache, so that reading the clock costs less
/// than a thousandth; and 10 ms on a core throttled to 100 MB/s.
const BYTES_A_LOOK: u64 = 1 << 20;

/// Runs steps; between steps checks the clock, the pace and `stop`.
fn drive<L: Load>(
    config: &Config,
    mut load: L,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Outcome> {
    let loop_ns_per_touch = load.floor()?;
    let unit_bytes = load.unit_bytes();
    let total = config
        .iterations
        .map_or(u64::MAX, |passes| passes.saturating_mul(load.pass()));
    let duration = config.duration.map_or(u64::MAX, nanoseconds);
    let interval = config.interval.map_or(u64::MAX, nanoseconds);
    let mut pace = config
        .rate_mib_s
        .map(|rate| Pace::new(rate, unit_bytes))
        .transpose()?;
    let most = load
        .most()
        .min(pace.as_ref().map_or(u64::MAX, |pace| pace.units_a_step));
    // With a pace, each step has its own due time.
    let units_a_look = match pace {
        Some(_) => most,
        None => most.max(BYTES_A_LOOK / unit_bytes),
    };

    let faults_before = faults::minor()?;
    let begin = clock::now_ns();
    let end_ns = clock::monotonic_ns().saturating_add(duration);
    let (mut units, mut elapsed_ns, mut looks) = (0, 0, 1);
    let (mut units_reported, mut reported_ns) = (0, 0);
    let mut over = false;
    while units < total && elapsed_ns < duration && !over && !stop.requested() {
        let look_at = units + units_a_look.min(total - units);
        while units < look_at && !stop.requested() {
            let step = most.min(look_at - units);
            load.step(step)?;
            if units == 0 {
                observer.started()?;
            }
            units += step;
        }
        if let Some(pace) = &mut pace {
            // The clock on which it sleeps may run a little slower or faster than that of `elapsed_ns`.
            over = pace.wait(units, end_ns, stop)?;
        }
        elapsed_ns = clock::now_ns() - begin;
        looks += 1;
        if elapsed_ns - reported_ns >= interval {
            let (bytes, interval_ns) = (
                (units - units_reported) * unit_bytes,
                elapsed_ns - reported_ns,
            );
            let mib_s = mib_s(bytes, interval_ns);
            observer.progress(&Progress {
                t_ns: elapsed_ns,
                elapsed_ns: interval_ns,
                bytes,
                mib_s,
            })?;
            (units_reported, reported_ns) = (units, elapsed_ns);
        }
    }
    let page_faults = faults::minor()? - faults_before;

    if units == 0 {
        return Err(Error::Invalid(
            "stopped before anything was touched: nothing was measured".into(),
        ));
    }
    load.verify()?;
    let pages = (L::UNIT == "page").then_some(units);
    if let Some(pages) = pages {
        if page_faults < pages {
            return Err(Error::Invalid(format!(
                "{pages} pages cost only {page_faults} faults: the kernel maps several pages a fault, figures withheld"
            )));
        }
    }
    let bytes = units * unit_bytes;
    Ok(Outcome {
        access: config.access.name(),
        cpu: affinity::current()?,
        footprint_bytes: load.pass() * unit_bytes,
        bytes,
        elapsed_ns,
        mib_s: mib_s(bytes, elapsed_ns),
        ns_per_line: ratio(elapsed_ns, bytes) * f64::from(u32::try_from(LINE_BYTES).expect("64")),
        pages,
        page_faults,
        remote_share: Load::remote_share(&load),
        rate_mib_s: config.rate_mib_s,
        measuring_cost: MeasuringCost::new(looks, loop_ns_per_touch, elapsed_ns),
    })
}

/// Time that a late load may make up for: a few ticks of the scheduler. A longer stall, such as that of a stopped process,
/// would be followed by a burst far above the pace.
const MAKES_UP_NS: u64 = 10_000_000;

/// Longest sleep without a look at `stop`: an acceptable delay for Ctrl-C.
const SLEEP_NS_MOST: u64 = 100_000_000;

/// Due times of the units.
struct Pace {
    units_a_step: u64,
    ns_per_unit: f64,
    begin_ns: u64,
}

impl Pace {
    fn new(rate_mib_s: f64, unit_bytes: u64) -> Result<Self> {
        sched::no_timer_slack()?;
        let ns_per_unit = ratio(unit_bytes, 1 << 20) * 1e9 / rate_mib_s;
        // A step every 1/4 ms: fine compared with the guard's period of 1 ms, while
        // a sleep of about 5 us is still a small part of it.
        // The conversion saturates, as intended.
        let units_a_step = ((250_000.0 / ns_per_unit) as u64).max(1);
        Ok(Self {
            units_a_step,
            ns_per_unit,
            begin_ns: clock::monotonic_ns(),
        })
    }

    /// Sleeps until `units` are due; at most until `end_ns` or a stop. True at `end_ns`.
    fn wait(&mut self, units: u64, end_ns: u64, stop: &Stop) -> Result<bool> {
        let mut now = clock::monotonic_ns();
        let until = self.due(units, now).min(end_ns);
        while now < until && !stop.requested() {
            // A signal may come between the look at `stop` and the sleep.
            clock::sleep_until(until.min(now + SLEEP_NS_MOST))?;
            now = clock::monotonic_ns();
        }
        Ok(now >= end_ns)
    }

    /// When `units` are due. A load that is a little late catches up; one that is later goes on from `now`.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    fn due(&mut self, units: u64, now: u64) -> u64 {
        // At an extremely low rate the conversion saturates, too.
        let due = self
            .begin_ns
            .saturating_add((units as f64 * self.ns_per_unit) as u64);
        if now <= due.saturating_add(MAKES_UP_NS) {
            return due;
        }
        self.begin_ns += now - due;
        now
    }
}

/// 64 bits of nanoseconds last for 584 years.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Its description for the command line.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "bandwidth",
    help: "Moves memory: touches one word of every line, and reports the bandwidth",
    limits: &[Limit {
        option: "-i",
        least: 0,
        most: u32::MAX as u64,
    }],
};

#[cfg(test)]
mod tests {
    use super::*;

    fn config(access: Access, kib: usize, iterations: u64) -> Config {
        Config {
            access,
            buffer: BufferConfig {
                bytes: kib << 10,
                ..Default::default()
            },
            duration: None,
            iterations: Some(iterations),
            ..Default::default()
        }
    }

    #[test]
    fn every_kind_counts_every_line_of_every_iteration_once() {
        for kind in KINDS {
            for (kib, iterations) in [(3, 1), (48, 7), (999, 3), (3000, 2)] {
                let outcome = run(
                    &config(Access::Buffer(kind), kib, iterations),
                    &Stop::new(),
                    &mut (),
                )
                .unwrap();
                let lines = (kib << 10) / kind.arrays / LINE_BYTES;
                let bytes = (lines * LINE_BYTES * kind.arrays) as u64 * iterations;
                assert_eq!(outcome.bytes, bytes, "{} {kib} KiB", kind.descriptor.name);
                assert_eq!(outcome.access, kind.descriptor.name);
            }
        }
    }

    #[test]
    fn a_stride_leaves_lines_out() {
        for kind in KINDS {
            let mut config = config(Access::Buffer(kind), 768, 5);
            config.buffer.stride = 256;
            let outcome = run(&config, &Stop::new(), &mut ()).unwrap();
            assert_eq!(
                outcome.bytes,
                5 * (768 << 10) / 4,
                "{}",
                kind.descriptor.name
            );
        }
    }

    #[test]
    fn a_fresh_page_costs_one_fault() {
        let outcome = run(&config(Access::FreshPages, 4000, 5), &Stop::new(), &mut ()).unwrap();
        let page = memwarden_platform::mapping::page_bytes() as u64;
        let pages = (4000 << 10) / page * 5;
        assert_eq!(outcome.pages, Some(pages));
        assert_eq!(outcome.bytes, pages * page);
        // An independent source: getrusage. A few faults are the program's own.
        assert!(
            (pages..pages + 64).contains(&outcome.page_faults),
            "{} faults",
            outcome.page_faults
        );
    }

    #[test]
    fn progress_adds_up() {
        struct Sum(u64, bool);
        impl Observer for Sum {
            fn started(&mut self) -> Result<()> {
                assert!(!self.1, "started twice");
                self.1 = true;
                Ok(())
            }
            fn progress(&mut self, progress: &Progress) -> Result<()> {
                assert!(self.1, "progress before the start");
                self.0 += progress.bytes;
                Ok(())
            }
        }
        let mut sum = Sum(0, false);
        let mut config = config(Access::Buffer(&read::KIND), 1024, 3);
        config.interval = Some(Duration::ZERO);
        let outcome = run(&config, &Stop::new(), &mut sum).unwrap();
        assert_eq!(sum.0, outcome.bytes);
    }

    #[test]
    fn a_pace_is_never_exceeded() {
        let mut config = config(Access::Buffer(&write::KIND), 256, 4);
        config.rate_mib_s = Some(20.0);
        let outcome = run(&config, &Stop::new(), &mut ()).unwrap();
        // The clocks for sleeping and measuring differ by some parts in 10^4.
        assert!(outcome.mib_s < 20.1, "{}", outcome.mib_s);
    }

    #[test]
    fn a_sleep_ends_with_the_run() {
        let stop = Stop::new();
        let mut pace = Pace {
            units_a_step: 1,
            // A unit is due in 30 years.
            ns_per_unit: 1e18,
            begin_ns: clock::monotonic_ns(),
        };
        assert!(pace.wait(1, clock::monotonic_ns(), &stop).unwrap());
        stop.request();
        assert!(!pace.wait(1, u64::MAX, &stop).unwrap());

        let mut config = config(Access::named("read").unwrap(), 64, 1000);
        config.duration = Some(Duration::from_millis(1));
        // At the second rate, no number of nanoseconds is the time of a unit.
        for rate in [1e-9, 1e-15] {
            config.rate_mib_s = Some(rate);
            let outcome = run(&config, &Stop::new(), &mut ()).unwrap();
            assert_eq!(
                outcome.bytes, LINE_BYTES as u64,
                "the first step, and no more"
            );
        }
    }

    #[test]
    fn a_load_makes_up_for_a_short_delay_and_not_for_a_stall() {
        // 1000 units a second.
        let mut pace = Pace {
            units_a_step: 1,
            ns_per_unit: 1e6,
            begin_ns: 0,
        };
        let ms = 1_000_000;
        assert_eq!(pace.due(1, ms / 2), ms);
        // 8 ms late: the next units are due at once.
        assert_eq!(pace.due(2, 10 * ms), 2 * ms);
        assert_eq!(pace.due(10, 10 * ms), 10 * ms);
        // 3 s late: the next unit is due 1 ms from then, not all of the missed ones at once.
        let later = 3011 * ms;
        assert_eq!(pace.due(11, later), later);
        assert_eq!(pace.due(12, later), later + ms);
        assert_eq!(pace.due(1011, later), later + 1000 * ms);
    }

    #[test]
    fn impossible_runs_are_refused() {
        let masked = BufferConfig {
            bank_mask: Some(0x40),
            ..Default::default()
        };
        let read = || Access::Buffer(&read::KIND);
        for (config, why) in [
            (
                Config {
                    rate_mib_s: Some(0.0),
                    ..config(read(), 64, 1)
                },
                "above 0",
            ),
            (
                Config {
                    rate_mib_s: Some(f64::NAN),
                    ..config(read(), 64, 1)
                },
                "above 0",
            ),
            (config(read(), 64, 0), "measure nothing"),
            (config(Access::Buffer(&triad::KIND), 0, 1), "smaller"),
            (
                Config {
                    buffer: masked.clone(),
                    ..config(Access::Buffer(&copy::KIND), 64, 1)
                },
                "several arrays",
            ),
            (
                Config {
                    buffer: masked,
                    ..config(Access::FreshPages, 64, 1)
                },
                "fresh pages",
            ),
        ] {
            let message = run(&config, &Stop::new(), &mut ()).unwrap_err().to_string();
            assert!(message.contains(why), "{message}");
        }
    }
}
