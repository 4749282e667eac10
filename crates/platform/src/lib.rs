// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface to the machine: CPUs, caches, clocks, scheduling, mappings,
//! counters.
//!
//! Everything that reads a file takes a [`Root`], so that tests read a saved
//! tree instead of the machine that they run on.

pub mod affinity;
#[cfg(test)]
mod c_layout;
pub mod cache;
pub mod cftu;
pub mod clock;
pub mod copytrace;
pub mod counters;
pub mod cpus;
pub mod data_cache;
pub mod descriptor;
mod detached;
pub mod doctor;
pub mod fair_server;
pub mod faults;
pub mod file_limit;
pub mod forked;
pub mod free_memory;
pub mod holders;
pub mod hugepage;
pub mod lockdown;
pub mod machine;
pub mod mapping;
pub mod maps;
pub mod memory_group;
pub mod mymem;
pub mod names;
pub mod oom;
pub mod overflow;
pub mod pagemap;
pub mod pmu;
pub mod process;
pub mod processor;
pub mod ranges;
mod root;
pub mod runtime_folder;
pub mod sched;
pub mod settings_file;
pub mod shared;
pub mod spin;
pub mod swap;
pub mod symbols;
pub mod task;
pub mod text;
pub mod text_or_bytes;
pub mod throttle_thread;
pub mod topology;
pub mod units;
pub mod usage;

use std::fmt;

pub use root::Root;

/// An error of a request to the machine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call or a file access failed; the source has the reason.
    #[error("cannot {attempt}")]
    System {
        /// What was attempted on what, and the remedy, as in
        /// `pin to CPU 3 (is it in this cgroup's cpuset?)`.
        attempt: String,
        /// The errno, in words.
        #[source]
        source: std::io::Error,
    },
    /// An invalid value; the message says what, where and what to do.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// A failed system call or file access, with what was attempted.
    pub fn system(attempt: impl fmt::Display, source: impl Into<std::io::Error>) -> Self {
        Self::System {
            attempt: attempt.to_string(),
            source: source.into(),
        }
    }

    /// True if a device is not there (ENODEV), such as the counters of a CPU that is offline.
    #[must_use]
    pub fn is_no_device(&self) -> bool {
        let Self::System { source, .. } = self else {
            return false;
        };
        source.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
    }

    /// The last errno, with what was attempted.
    #[must_use]
    pub fn last(attempt: impl fmt::Display) -> Self {
        Self::system(attempt, std::io::Error::last_os_error())
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_is_told_from_other_errors() {
        let of = |errno: rustix::io::Errno| Error::system("open a counter", errno);
        assert!(of(rustix::io::Errno::NODEV).is_no_device());
        assert!(!of(rustix::io::Errno::ACCESS).is_no_device());
        assert!(!Error::Invalid("CPU 9".into()).is_no_device());
    }
}
