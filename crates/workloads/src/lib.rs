// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loops that touch memory: no printing, no argument parsing.
//!
//! A workload is one file with its [`Descriptor`] at the end, from which the command
//! line takes its help and limits. Each has a `Config` and a
//! `run(&Config, &Stop, ...) -> Result<Outcome>` that can be called in-process.
//! The [`automotive`] applications have no settings: a caller prepares them once and
//! times any number of runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memwarden_platform::{affinity, sched};
use schemars::JsonSchema;
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

/// Bytes that move between a cache and the next level: 64 on every x86-64 and on
/// every Arm core that this project supports.
pub const LINE_BYTES: usize = 64;

/// A workload's description for the command line.
#[derive(Debug)]
pub struct Descriptor {
    /// The name on the command line.
    pub name: &'static str,
    /// One sentence for the help.
    pub help: &'static str,
    /// Its options with their limits.
    pub limits: &'static [Limit],
}

impl Descriptor {
    /// The limits of `option`.
    ///
    /// # Panics
    /// If the workload has no such option: a bug in the program.
    #[must_use]
    pub fn limit(&self, option: &str) -> std::ops::RangeInclusive<u64> {
        let limit = self.limits.iter().find(|limit| limit.option == option);
        let limit = limit.unwrap_or_else(|| panic!("{} has no option {option}", self.name));
        limit.least..=limit.most
    }
}

/// Limits of an option.
#[derive(Debug)]
pub struct Limit {
    /// The option as typed.
    pub option: &'static str,
    /// The smallest value.
    pub least: u64,
    /// The largest value.
    pub most: u64,
}

/// Asks a running workload to end; clones address the same workload.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A stop that is not requested.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A stop that an external flag requests.
    #[must_use]
    pub fn on(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }

    /// Asks the workload to end. The workload checks every few microseconds to
    /// milliseconds.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The error of a workload that was asked to end before it could measure.
    pub(crate) fn check_before(&self, what: &str) -> Result<()> {
        if self.requested() {
            return Err(Error::Invalid(format!(
                "stopped before {what}: nothing was measured"
            )));
        }
        Ok(())
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

/// CPU and priority of a workload's thread.
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
    /// Applies the placement to the calling thread.
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

/// Receives events of a running workload.
pub trait Observer {
    /// Called first: the workload will map and fill this number of bytes.
    fn preparing(&mut self, _bytes: u64) -> Result<()> {
        Ok(())
    }

    /// Called once, when the buffer is ready and the first lines have been touched.
    fn started(&mut self) -> Result<()> {
        Ok(())
    }

    /// Called before the start with the duration of the run, if it is known.
    fn expected(&mut self, _time: Duration) -> Result<()> {
        Ok(())
    }

    /// Called occasionally with the completed share of the run, 0 to 1.
    fn done(&mut self, _share: f64) -> Result<()> {
        Ok(())
    }

    /// Called after every requested interval.
    fn progress(&mut self, _progress: &Progress) -> Result<()> {
        Ok(())
    }
}

/// Ignores progress.
impl Observer for () {}

/// One interval of a run.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Progress {
    /// Time from the start of the run to the end of this interval.
    pub t_ns: u64,
    /// Actual length of the interval.
    pub elapsed_ns: u64,
    /// Bytes moved in the interval.
    pub bytes: u64,
    /// Their rate, MiB a second.
    pub mib_s: f64,
}

/// Cost of the measurement itself, measured before the run on the same CPU.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct MeasuringCost {
    /// One reading of the clock.
    pub clock_read_ns: f64,
    /// Number of readings in the run.
    pub clock_reads: u64,
    /// Time of the same loop on data in the first-level cache, for each line (screen:
    /// each row of pixels; fresh pages: mapping and unmapping without touching, each
    /// page). It is a lower bound of every figure.
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

/// `a / b`; both are far below 2^53, from which a float is no longer exact.
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

/// MiB (2^20 bytes) a second.
fn mib_s(bytes: u64, elapsed_ns: u64) -> f64 {
    ratio(bytes, elapsed_ns) * 1e9 / f64::from(1 << 20)
}
