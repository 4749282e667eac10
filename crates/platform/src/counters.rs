// SPDX-License-Identifier: MIT OR Apache-2.0
//! The perf events that this machine counts, found by opening and trying each.

#![allow(unsafe_code)]

pub mod groups;

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};

use perf_event_open_sys as perf;
use perf_event_open_sys::bindings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::groups::{Group, Reading};
use crate::mapping::{Mapping, page_bytes};
use crate::{Error, Result, Root};

/// The source of an event's count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The CPU's performance monitoring unit.
    Hardware,
    /// The kernel.
    Software,
}

/// An event that the guard or a report may want.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// perf's name for it.
    pub name: &'static str,
    /// The source of its count.
    pub source: Source,
    kind: u32,
    config: u64,
}

/// Config of a cache event: the cache, the operation and the result.
const fn cache(which: u32, operation: u32, result: u32) -> u64 {
    which as u64 | (operation as u64) << 8 | (result as u64) << 16
}

/// The events to try, in the order of display.
pub const EVENTS: [Event; 9] = {
    const fn hardware(name: &'static str, config: u32) -> Event {
        Event {
            name,
            source: Source::Hardware,
            kind: bindings::PERF_TYPE_HARDWARE,
            config: config as u64,
        }
    }
    const fn cached(name: &'static str, config: u64) -> Event {
        Event {
            name,
            source: Source::Hardware,
            kind: bindings::PERF_TYPE_HW_CACHE,
            config,
        }
    }
    const fn software(name: &'static str, config: u32) -> Event {
        Event {
            name,
            source: Source::Software,
            kind: bindings::PERF_TYPE_SOFTWARE,
            config: config as u64,
        }
    }
    use bindings as b;
    [
        hardware("cycles", b::PERF_COUNT_HW_CPU_CYCLES),
        hardware("instructions", b::PERF_COUNT_HW_INSTRUCTIONS),
        hardware("cache-references", b::PERF_COUNT_HW_CACHE_REFERENCES),
        hardware("cache-misses", b::PERF_COUNT_HW_CACHE_MISSES),
        cached(
            "LLC-load-misses",
            cache(
                b::PERF_COUNT_HW_CACHE_LL,
                b::PERF_COUNT_HW_CACHE_OP_READ,
                b::PERF_COUNT_HW_CACHE_RESULT_MISS,
            ),
        ),
        cached(
            "LLC-store-misses",
            cache(
                b::PERF_COUNT_HW_CACHE_LL,
                b::PERF_COUNT_HW_CACHE_OP_WRITE,
                b::PERF_COUNT_HW_CACHE_RESULT_MISS,
            ),
        ),
        cached(
            "dTLB-load-misses",
            cache(
                b::PERF_COUNT_HW_CACHE_DTLB,
                b::PERF_COUNT_HW_CACHE_OP_READ,
                b::PERF_COUNT_HW_CACHE_RESULT_MISS,
            ),
        ),
        software("page-faults", b::PERF_COUNT_SW_PAGE_FAULTS),
        software("context-switches", b::PERF_COUNT_SW_CONTEXT_SWITCHES),
    ]
};

/// Arm's own events that perf's generic names do not cover (Arm Architecture Reference Manual, D11.11).
pub const OF_ARM: [Event; 4] = {
    const fn raw(name: &'static str, config: u64) -> Event {
        Event {
            name,
            source: Source::Hardware,
            kind: bindings::PERF_TYPE_RAW,
            config,
        }
    }
    [
        raw("l2d_cache", 0x16),
        raw("l2d_cache_refill", 0x17),
        raw("ll_cache_rd", 0x36),
        raw("ll_cache_miss_rd", 0x37),
    ]
};

/// The events for references to and misses of the cache that `cpu` shares with others. On Arm, perf's cache-references
/// and cache-misses are those of the L1D.
#[must_use]
pub fn of_last_level(root: &Root, cpu: usize) -> [&'static str; 2] {
    if !cfg!(target_arch = "aarch64") {
        return ["cache-references", "cache-misses"];
    }
    match crate::cache::last_level(root, cpu).map(|cache| cache.level) {
        Some(3..) => ["ll_cache_rd", "ll_cache_miss_rd"],
        _ => ["l2d_cache", "l2d_cache_refill"],
    }
}

/// Result of trying an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Trial {
    /// It counted the work of a short trial.
    Counts {
        /// Events counted in the trial.
        count: u64,
        /// Only user space can be counted (see perf_event_paranoid).
        user_only: bool,
    },
    /// It opened and stayed at 0. For cycles, instructions and page faults the
    /// counter is broken; other events may just not have occurred.
    CountsNothing,
    /// The kernel refused it.
    NotSupported {
        /// The errno, in words.
        reason: String,
    },
}

/// An event and the result of trying it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Found {
    /// perf's name for the event.
    pub event: String,
    /// The source of its count.
    pub source: Source,
    /// The result.
    #[serde(flatten)]
    pub trial: Trial,
}

impl Found {
    /// True if the event counted in its trial.
    #[must_use]
    pub fn counts(&self) -> bool {
        matches!(self.trial, Trial::Counts { .. })
    }
}

/// The counters of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counters {
    /// All PMUs with a driver, by perf's name.
    pub pmus: Vec<String>,
    /// The events of [`EVENTS`] with their results.
    pub events: Vec<Found>,
    /// Cycle counters that can run at once: the PMU's general-purpose counters that no other user holds; `None` without
    /// a PMU.
    pub hardware_counters: Option<usize>,
}

impl Counters {
    /// The event with that name, if it was tried.
    #[must_use]
    pub fn event(&self, name: &str) -> Option<&Found> {
        self.events.iter().find(|found| found.event == name)
    }
}

/// Tries every event of [`EVENTS`] on the calling thread.
#[must_use]
pub fn probe() -> Counters {
    let events: Vec<Found> = EVENTS
        .iter()
        .map(|event| Found {
            event: event.name.to_owned(),
            source: event.source,
            trial: attempt(event),
        })
        .collect();
    let cycles = &events[0];
    Counters {
        pmus: Root::system().names("/sys/bus/event_source/devices"),
        hardware_counters: cycles.counts().then(|| at_once(&EVENTS[0])),
        events,
    }
}

/// Opens an event on the calling thread, stopped; `group` is a leader's file
/// descriptor or -1.
fn open(event: &Event, user_only: bool, group: i32) -> std::io::Result<File> {
    open_with(event, user_only, group, 0)
}

/// The same with a read format.
fn open_with(
    event: &Event,
    user_only: bool,
    group: i32,
    read_format: u64,
) -> std::io::Result<File> {
    let mut attributes = bindings::perf_event_attr {
        type_: event.kind,
        size: u32::try_from(size_of::<bindings::perf_event_attr>()).expect("some hundred bytes"),
        config: event.config,
        read_format,
        ..Default::default()
    };
    attributes.set_disabled(u64::from(group == -1));
    attributes.set_exclude_kernel(u64::from(user_only));
    attributes.set_exclude_hv(u64::from(user_only));
    let flags = bindings::PERF_FLAG_FD_CLOEXEC.into();
    // SAFETY: the attributes are valid for their stated size; 0 and -1 mean this
    // thread on any CPU.
    let fd = unsafe { perf::perf_event_open(&raw mut attributes, 0, -1, group, flags) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the kernel just created for us.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn attempt(event: &Event) -> Trial {
    let denied = |error: &std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    let (opened, user_only) = match open(event, false, -1) {
        Err(error) if denied(&error) => (open(event, true, -1), true),
        opened => (opened, false),
    };
    match opened.and_then(|mut file| count(&mut file)) {
        Ok(0) => Trial::CountsNothing,
        Ok(count) => Trial::Counts { count, user_only },
        Err(error) => Trial::NotSupported {
            reason: error.to_string(),
        },
    }
}

/// Counts the event over a mix of work: new pages, and a walk over them.
fn count(file: &mut File) -> std::io::Result<u64> {
    let check = |rc: i32| {
        if rc == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    };
    // SAFETY: the ioctl takes a plain number.
    check(unsafe { perf::ioctls::ENABLE(file.as_raw_fd(), 0) })?;
    // 8 MiB: larger than most L2 caches, a few milliseconds, and thousands of faults.
    if let Ok(mapping) = Mapping::anonymous(8 << 20) {
        for _ in 0..2 {
            for offset in (0..mapping.bytes()).step_by(page_bytes().min(64)) {
                // SAFETY: within the mapping, which is ours and writable.
                unsafe { mapping.start().add(offset).write_volatile(1) };
            }
        }
    }
    // SAFETY: as above.
    check(unsafe { perf::ioctls::DISABLE(file.as_raw_fd(), 0) })?;
    let mut value = [0; 8];
    file.read_exact(&mut value)?;
    Ok(u64::from_ne_bytes(value))
}

/// Counters of this event that fit into one group and so run at once.
fn at_once(event: &Event) -> usize {
    // The kernel checks that a group fits the PMU when a member is added. No PMU
    // has more than 32 (Arm's 31 and the cycle counter).
    const MOST: usize = 32;
    let user_only = open(event, false, -1).is_err();
    let Ok(leader) = open(event, user_only, -1) else {
        return 0;
    };
    let mut group = vec![leader];
    while group.len() < MOST {
        match open(event, user_only, group[0].as_raw_fd()) {
            Ok(member) => group.push(member),
            Err(_) => break,
        }
    }
    group.len()
}

/// Events counted together on the calling thread, whatever CPU it runs on.
///
/// If other users of the PMU leave too few counters, the kernel counts for a part of the time: see [`Reading`].
#[derive(Debug)]
pub struct Counting {
    group: Group,
    user_only: bool,
    /// The group's times before the start.
    before: [u64; 2],
}

impl Counting {
    /// Opens events of [`EVENTS`] or [`OF_ARM`] by name, stopped; all of them or none.
    ///
    /// # Errors
    /// The first event that this machine does not count, and the reason.
    pub fn open(names: &[&str]) -> Result<Self> {
        Self::of(names, false).or_else(|_| Self::of(names, true))
    }

    fn of(names: &[&str], user_only: bool) -> Result<Self> {
        let mut group = Group::default();
        for name in names {
            let mut known = EVENTS.iter().chain(&OF_ARM);
            let event = known.find(|event| event.name == *name);
            let event = event.ok_or_else(|| Error::Invalid(format!("event {name}: not known")))?;
            let leader = group.files.first().map_or(-1, AsRawFd::as_raw_fd);
            let opened = open_with(event, user_only, leader, groups::FORMAT);
            let file = opened.map_err(|source| Error::system(format!("count {name}"), source))?;
            group.files.push(file);
            group.names.push(event.name);
        }
        Ok(Self {
            group,
            user_only,
            before: [0; 2],
        })
    }

    /// True if the kernel's work is not counted, because of perf_event_paranoid.
    #[must_use]
    pub fn user_only(&self) -> bool {
        self.user_only
    }

    /// Starts counting from 0.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn start(&mut self) -> Result<()> {
        self.before = self.group.times()?;
        self.group.tell(perf::ioctls::RESET)?;
        self.group.tell(perf::ioctls::ENABLE)
    }

    /// Stops, and returns each event's count in the order of the names.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn stop(&mut self) -> Result<Reading> {
        self.group.tell(perf::ioctls::DISABLE)?;
        let mut reading = Reading::empty();
        self.group.add_to(&mut reading, self.before)?;
        Ok(reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_of_the_time_between() {
        let mut counting = Counting::open(&["page-faults"]).unwrap();
        let fault = |pages: usize| {
            let mapping = Mapping::anonymous(pages * page_bytes()).unwrap();
            for page in 0..pages {
                // SAFETY: within the mapping, which is ours and writable.
                unsafe { mapping.start().add(page * page_bytes()).write_volatile(1) };
            }
        };
        for pages in [64, 1] {
            counting.start().unwrap();
            fault(pages);
            let counts = counting.stop().unwrap();
            fault(500);
            let [("page-faults", Some(faults))] = counts.counts[..] else {
                panic!("{counts:?}");
            };
            assert!((1.0..400.0).contains(&faults), "{pages}: {counts:?}");
            assert!(!counts.multiplexed());
        }
        let message = Counting::open(&["z80-cycles"]).unwrap_err().to_string();
        assert_eq!(message, "event z80-cycles: not known");
    }

    #[test]
    fn every_event_is_tried_and_none_is_silently_missing() {
        let counters = probe();
        assert_eq!(counters.events.len(), EVENTS.len());
        for found in &counters.events {
            if let Trial::NotSupported { reason } = &found.trial {
                assert!(!reason.is_empty());
            }
        }
        let text = serde_json::to_string(&counters).unwrap();
        assert_eq!(serde_json::from_str::<Counters>(&text).unwrap(), counters);
    }
}
