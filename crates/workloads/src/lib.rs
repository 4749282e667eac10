// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loops that touch memory: no printing, no argument parsing.
//!
//! A workload is one file with its [`Descriptor`] at the end; the command line,
//! its help and its limits come from there. Each has a `Config`, and a
//! `run(&Config, &Stop, ...) -> Result<Outcome>` that can be called in-process.
//! The [`automotive`] applications have no settings: a caller prepares them once and
//! times any number of runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memwarden_platform::{affinity, sched};
use serde::Serialize;

pub mod automotive;
pub mod bandwidth;
mod buffer;
pub mod competitor;
pub mod in_use;
pub mod latency;
pub mod mapped;
pub mod periodic;
pub mod remarks;
mod splitmix;

pub use buffer::BufferConfig;
pub use memwarden_platform::Error;
/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The memory that moves between a cache and what is behind it: 64 bytes on
/// every x86-64 and on every Arm core that this project knows of.
pub const LINE_BYTES: usize = 64;

/// A workload's description of itself.
#[derive(Debug)]
pub struct Descriptor {
    /// What a person types.
    pub name: &'static str,
    /// One sentence for the help.
    pub help: &'static str,
    /// The options that belong to it, and what they may be.
    pub limits: &'static [Limit],
}

impl Descriptor {
    /// The limits of `option`.
    ///
    /// # Panics
    /// If the workload has no such option: a slip in the program, not in its input.
    #[must_use]
    pub fn limit(&self, option: &str) -> std::ops::RangeInclusive<u64> {
        let limit = self.limits.iter().find(|limit| limit.option == option);
        let limit = limit.unwrap_or_else(|| panic!("{} has no option {option}", self.name));
        limit.least..=limit.most
    }
}

/// What an option may be.
#[derive(Debug)]
pub struct Limit {
    /// The option as typed.
    pub option: &'static str,
    /// The smallest value.
    pub least: u64,
    /// The largest value.
    pub most: u64,
}

/// Asks a running workload to end; clones ask the same workload.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Not stopped yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One that a flag elsewhere sets.
    #[must_use]
    pub fn on(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }

    /// Asks the workload to end. It checks every few microseconds to milliseconds of
    /// its work.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true once [`Stop::request`] was called.
    #[must_use]
    #[inline]
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag itself, for a signal handler.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

/// Where and how a workload's thread runs.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    /// The CPU to pin to.
    pub cpu: Option<usize>,
    /// The nice value.
    pub nice: Option<i32>,
    /// The SCHED_FIFO priority.
    pub fifo_priority: Option<i32>,
}

impl Placement {
    /// Moves the calling thread there.
    pub fn apply(&self) -> Result<()> {
        if let Some(cpu) = self.cpu {
            affinity::pin(cpu)?;
        }
        if let Some(nice) = self.nice {
            sched::set_nice(nice)?;
        }
        if let Some(priority) = self.fifo_priority {
            sched::set_fifo(priority)?;
        }
        Ok(())
    }
}

/// What happens while a workload runs.
pub trait Observer {
    /// Called once, when the buffer is ready and the first lines have been touched.
    fn started(&mut self) -> Result<()> {
        Ok(())
    }

    /// Called before the start with how long the run will take, where that is known.
    fn expected(&mut self, _time: Duration) -> Result<()> {
        Ok(())
    }

    /// Called now and then with the share of the run that is done, 0 to 1.
    fn done(&mut self, _share: f64) -> Result<()> {
        Ok(())
    }

    /// Called after every interval that was asked for.
    fn progress(&mut self, _progress: &Progress) -> Result<()> {
        Ok(())
    }
}

/// Ignores progress.
impl Observer for () {}

/// One interval of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Progress {
    /// From the start of the run to the end of this interval.
    pub t_ns: u64,
    /// How long the interval turned out.
    pub elapsed_ns: u64,
    /// Bytes moved in it.
    pub bytes: u64,
    /// Their rate.
    pub mib_s: f64,
}

/// What measuring itself costs, measured before the run on the same CPU.
#[derive(Debug, Clone, Serialize)]
pub struct MeasuringCost {
    /// One reading of the clock.
    pub clock_read_ns: f64,
    /// How many readings the run took.
    pub clock_reads: u64,
    /// The same loop on data in the innermost cache, each line (for a screen,
    /// each row of pixels; for fresh pages, mapping and unmapping without
    /// touching, each page): the least that a figure can be.
    pub loop_ns_per_touch: f64,
    /// The clock's share of the run.
    pub clock_share: f64,
}

impl MeasuringCost {
    fn new(clock_reads: u64, loop_ns_per_touch: f64, elapsed_ns: u64) -> Self {
        let clock_read_ns = memwarden_platform::clock::cost();
        let clock_share = ratio(clock_reads, elapsed_ns) * clock_read_ns;
        Self {
            clock_read_ns,
            clock_reads,
            loop_ns_per_touch,
            clock_share,
        }
    }
}

/// `a / b`; both are far below 2^53, where a float is no longer exact.
#[allow(clippy::cast_precision_loss)]
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

/// MiB (2^20 bytes) a second.
fn mib_s(bytes: u64, elapsed_ns: u64) -> f64 {
    ratio(bytes, elapsed_ns) * 1e9 / f64::from(1 << 20)
}
