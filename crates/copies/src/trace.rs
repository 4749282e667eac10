// SPDX-License-Identifier: MIT OR Apache-2.0
//! `/dev/copytrace`: records of copies between user and kernel memory.
//!
//! A trace uses a [`Tracer`], which opens the rings of one CPU: a [`Reader`] for the thread that reads them, and a
//! [`Control`] for the thread that starts and stops them. The tracer is the kernel's [`Devices`], or [`Null`], which
//! generates records to test readers without the module.

mod devices;
mod null;
mod statistics;

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use memwarden_platform::copytrace as raw;
use memwarden_platform::names::unknown;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantArray};

use crate::Result;

pub use devices::Devices;
pub use memwarden_platform::copytrace::{Counts, Record, Waits};
pub use null::Null;
pub use statistics::{Caller, FunctionStatistics, Sampled, SizeStatistics};

/// The folder of the devices.
pub const DEVICES: &str = "/dev/copytrace";

/// The option's value for [`Null`], instead of a path.
pub const NULL: &str = "null";

/// A function that copies.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    EnumString,
    VariantArray,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown::<Self>)]
pub enum Function {
    /// copy_from_user()
    From,
    /// copy_to_user()
    To,
    /// __copy_from_user()
    #[serde(rename = "__from")]
    #[strum(serialize = "__from")]
    UnderscoreFrom,
    /// __copy_to_user()
    #[serde(rename = "__to")]
    #[strum(serialize = "__to")]
    UnderscoreTo,
}

impl Function {
    /// Its device in [`DEVICES`].
    #[must_use]
    pub fn device(self) -> &'static str {
        match self {
            Self::From => "from_user",
            Self::To => "to_user",
            Self::UnderscoreFrom => "__from_user",
            Self::UnderscoreTo => "__to_user",
        }
    }
}

/// The source of the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Hooks in the functions themselves, inlined ones too, of a patched kernel.
    Hooks,
    /// Probes on the functions that they call.
    Probes,
}

impl Source {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hooks => "hooks",
            Self::Probes => "probes",
        }
    }
}

/// The tracer's properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// The source of its records.
    pub source: Source,
    /// The `__` forms, and those for callers that must not sleep, are counted with the other forms.
    pub merged: bool,
    /// Records have callers; without CAP_PERFMON callers are 0.
    pub addresses: bool,
    /// Size of each ring in records.
    pub records: u32,
    /// Steps of the clock in a second.
    pub ticks_hz: u64,
}

impl Info {
    /// The clock's step, ns.
    #[must_use]
    pub fn clock_step_ns(&self) -> f64 {
        1e9 / self.ticks_hz as f64
    }

    /// `None` if the module was built with another header.
    fn of(record: &raw::Info) -> Option<Self> {
        let source = match record.source {
            0 => Source::Hooks,
            raw::PROBES => Source::Probes,
            _ => return None,
        };
        (record.version == raw::VERSION).then_some(Self {
            source,
            merged: record.flags & raw::MERGED != 0,
            addresses: record.flags & raw::NO_ADDRESSES == 0,
            records: record.records,
            ticks_hz: record.ticks_hz,
        })
    }
}

/// A source of traces.
pub trait Tracer {
    /// Its properties.
    fn info(&self) -> Info;

    /// Claims the rings of these functions on one CPU; they are empty and not started. Waits of the reader end when `end`
    /// can be read or its other end is closed; it must stay open as long as the reader.
    ///
    /// # Errors
    /// When the kernel refuses, or another process has claimed them.
    fn open(&self, cpu: usize, functions: &[Function], end: BorrowedFd<'_>) -> Result<Opened>;
}

/// The rings of one CPU, in the order of the requested functions.
pub struct Opened {
    /// For the reading thread.
    pub reader: Box<dyn Reader>,
    /// For the thread that starts and stops them.
    pub control: Box<dyn Control>,
}

/// Reads rings.
pub trait Reader: Send {
    /// Waits until a ring is a quarter full, `timeout` has passed, or the trace ends. A signal ends the wait, too.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn wait(&mut self, timeout: Duration) -> Result<()>;

    /// Takes complete records from the ring of the `nth` function. Returns their number.
    fn read(&mut self, nth: usize, each: &mut dyn FnMut(&Record)) -> usize;
}

/// Starts and stops rings, while another thread reads them.
pub trait Control: Sync {
    /// Starts recording.
    ///
    /// # Errors
    /// When the kernel refuses, or another module traces.
    fn start(&self) -> Result<()>;

    /// Stops recording copies that end from now on. It is quick, so that the rings of all CPUs end together.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn close(&self) -> Result<()>;

    /// Ends recording; afterwards the rings' contents are complete.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn stop(&self) -> Result<()>;

    /// Records taken and dropped by the ring of the `nth` function.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn counts(&self, nth: usize) -> Result<Counts>;
}

/// The devices in the folder `path`, or [`Null`] for `null`.
///
/// # Errors
/// When they are missing, refuse, or belong to another module.
pub fn open(path: &Path) -> Result<Box<dyn Tracer>> {
    if path == Path::new(NULL) {
        return Ok(Box::new(Null));
    }
    Ok(Box::new(Devices::open(path)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_options() {
        for &function in Function::VARIANTS {
            assert_eq!(function.to_string().parse(), Ok(function));
        }
        assert_eq!(
            "at".parse::<Function>(),
            Err("give one of from, to, __from, __to".into())
        );
    }

    #[test]
    fn another_module_s_answer_is_not_taken() {
        let record = raw::Info {
            version: 1,
            source: 1,
            records: 64,
            flags: 1,
            ticks_hz: 62_500_000,
            ..raw::Info::default()
        };
        let expected = Info {
            source: Source::Probes,
            merged: true,
            addresses: true,
            records: 64,
            ticks_hz: 62_500_000,
        };
        assert_eq!(Info::of(&record), Some(expected));
        let withheld = raw::Info { flags: 3, ..record };
        assert!(!Info::of(&withheld).unwrap().addresses);
        assert_eq!(
            Info::of(&raw::Info {
                version: 2,
                ..record
            }),
            None
        );
        assert_eq!(
            Info::of(&raw::Info {
                source: 2,
                ..record
            }),
            None
        );
    }
}
