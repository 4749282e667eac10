// SPDX-License-Identifier: MIT OR Apache-2.0
//! Resource usage of the calling thread, or of the ended children, from getrusage.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Fields of a rusage that Linux always leaves at 0 (getrusage(2)): they are not measured.
pub const NOT_MAINTAINED: [&str; 7] = [
    "ru_ixrss",
    "ru_idrss",
    "ru_isrss",
    "ru_nswap",
    "ru_msgsnd",
    "ru_msgrcv",
    "ru_nsignals",
];

/// The fields of a rusage that Linux maintains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// CPU time in user mode, microseconds.
    pub user_us: u64,
    /// CPU time in the kernel, microseconds.
    pub system_us: u64,
    /// Page faults that needed no disk.
    pub minor_faults: u64,
    /// Page faults that needed a disk.
    pub major_faults: u64,
    /// Context switches because the thread waited.
    pub voluntary_switches: u64,
    /// Context switches because another thread took its CPU.
    pub involuntary_switches: u64,
    /// Blocks of 512 bytes read from a disk.
    pub blocks_in: u64,
    /// Blocks of 512 bytes made dirty, to be written to a disk.
    pub blocks_out: u64,
    /// Peak resident memory of the whole process, KiB; not a difference.
    pub max_rss_kib: u64,
}

impl Usage {
    /// The usage of the calling thread so far.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn of_thread() -> Result<Self> {
        Self::of(libc::RUSAGE_THREAD, "ask what this thread has used")
    }

    /// The usage of all children that have ended and been waited for.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn of_children() -> Result<Self> {
        Self::of(libc::RUSAGE_CHILDREN, "ask what the children have used")
    }

    fn of(whom: libc::c_int, what: &str) -> Result<Self> {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: a valid pointer to a rusage, zeroed before.
        let (rc, usage) = unsafe {
            let rc = libc::getrusage(whom, usage.as_mut_ptr());
            (rc, usage.assume_init())
        };
        if rc != 0 {
            return Err(Error::last(what));
        }
        // None of them is negative.
        let count = |value: libc::c_long| u64::try_from(value).unwrap_or(0);
        let micros = |time: libc::timeval| {
            u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000
                + u64::try_from(time.tv_usec).unwrap_or(0)
        };
        Ok(Self {
            user_us: micros(usage.ru_utime),
            system_us: micros(usage.ru_stime),
            minor_faults: count(usage.ru_minflt),
            major_faults: count(usage.ru_majflt),
            voluntary_switches: count(usage.ru_nvcsw),
            involuntary_switches: count(usage.ru_nivcsw),
            blocks_in: count(usage.ru_inblock),
            blocks_out: count(usage.ru_oublock),
            max_rss_kib: count(usage.ru_maxrss),
        })
    }

    /// The usage since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            user_us: self.user_us.saturating_sub(before.user_us),
            system_us: self.system_us.saturating_sub(before.system_us),
            minor_faults: self.minor_faults - before.minor_faults,
            major_faults: self.major_faults - before.major_faults,
            voluntary_switches: self.voluntary_switches - before.voluntary_switches,
            involuntary_switches: self.involuntary_switches - before.involuntary_switches,
            blocks_in: self.blocks_in - before.blocks_in,
            blocks_out: self.blocks_out - before.blocks_out,
            max_rss_kib: self.max_rss_kib,
        }
    }

    /// Each field: its name (with the unit), the unit, and the value.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &'static str, u64); 9] {
        [
            ("user_us", "us", self.user_us),
            ("system_us", "us", self.system_us),
            ("minor_faults", "faults", self.minor_faults),
            ("major_faults", "faults", self.major_faults),
            ("voluntary_switches", "switches", self.voluntary_switches),
            (
                "involuntary_switches",
                "switches",
                self.involuntary_switches,
            ),
            ("blocks_in", "blocks", self.blocks_in),
            ("blocks_out", "blocks", self.blocks_out),
            ("max_rss_kib", "KiB", self.max_rss_kib),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Mapping, page_bytes};

    #[test]
    fn new_pages_are_faults_and_the_peak_is_no_difference() {
        const PAGES: usize = 300;
        let before = Usage::of_thread().unwrap();
        let mapping = Mapping::anonymous(PAGES * page_bytes()).unwrap();
        for page in 0..PAGES {
            // SAFETY: within the mapping, which is ours and writable.
            unsafe { mapping.start().add(page * page_bytes()).write_volatile(1) };
        }
        let after = Usage::of_thread().unwrap();
        let used = after.since(&before);
        // With large folios one fault brings several pages.
        assert!(used.minor_faults >= 1, "{used:?}");
        assert_eq!(used.max_rss_kib, after.max_rss_kib);
        assert!(used.max_rss_kib as usize * 1024 >= PAGES * page_bytes());
    }
}
