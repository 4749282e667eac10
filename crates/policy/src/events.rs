// SPDX-License-Identifier: MIT OR Apache-2.0
//! What processors count of memory traffic: the table of `policy/events.c`, which the kernel module has, too.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::slice;

use crate::ffi;

/// How an event is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A code of the processor's.
    Raw,
    /// perf's `cache-misses`.
    CacheMisses,
    /// perf's generic cache event: reads that miss the last level.
    LastLevelReadMisses,
    /// The kernel's page faults.
    PageFaults,
    /// Those that read nothing from a disk.
    MinorFaults,
    /// perf's `cycles`.
    Cycles,
    /// perf's `instructions`.
    Instructions,
    /// The processor has none that would do.
    None,
}

/// How an event is known to be the right one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sure {
    /// The self-test has said so, on such a processor.
    Seen,
    /// The kernel's list of the processor's events has it.
    Listed,
    /// The processor's manual alone.
    Manual,
}

/// What a count of reads has in it, beside the lines that loads wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Includes {
    /// Lines that the core's prefetchers fetch.
    pub prefetches: bool,
    /// Lines that are fetched to be written to.
    pub writes: bool,
    /// What a cache behind the core's own has: budgets are stricter than asked.
    pub shared_hits: bool,
}

/// An event, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The kernel's own name of a processor, or MemGuard's, or perf's.
    pub name: &'static str,
    /// How it is asked for.
    pub kind: Kind,
    /// The code of [`Kind::Raw`], or what the code of perf's name is; 0 where there is none.
    pub read: u64,
    /// The code of what counts lines that are written to memory.
    pub write: Option<u64>,
    /// The code of what counts lines that are read and lines that are written in one.
    pub combined: Option<u64>,
    /// Memory traffic of an event; `None` is a page.
    pub bytes: Option<u32>,
    /// What it has in it.
    pub includes: Includes,
    /// How sure that is.
    pub sure: Sure,
    /// Where its codes are from.
    pub source: &'static str,
}

/// Who made a processor: Arm's number for an implementer (`MIDR_EL1`), or one of these.
pub mod vendor {
    /// Arm.
    pub const ARM: u32 = 0x41;
    /// Intel.
    pub const INTEL: u32 = 0x100;
    /// AMD.
    pub const AMD: u32 = 0x101;
    /// Hygon.
    pub const HYGON: u32 = 0x102;
}

/// Processors whose own event is the one of this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processor {
    /// The event's name.
    pub event: &'static str,
    /// Who made them: see [`vendor`].
    pub vendor: u32,
    /// CPUID's family; 0 for Arm's.
    pub family: u32,
    /// CPUID's first model, or part number of `MIDR_EL1`.
    pub first: u32,
    /// And the last.
    pub last: u32,
}

/// All events, in the table's order.
pub fn all() -> impl Iterator<Item = Event> {
    let mut count = 0;
    // SAFETY: the table is constant and has as many rows.
    let rows = unsafe { slice::from_raw_parts(ffi::mw_events(&raw mut count), count as usize) };
    rows.iter().map(event)
}

/// All processors whose event is known.
pub fn processors() -> impl Iterator<Item = Processor> {
    let mut count = 0;
    // SAFETY: the table is constant and has as many rows.
    let rows = unsafe { slice::from_raw_parts(ffi::mw_processors(&raw mut count), count as usize) };
    rows.iter().map(|row| Processor {
        event: text(row.event),
        vendor: row.vendor,
        family: row.family,
        first: row.first,
        last: row.last,
    })
}

/// The event of this name.
#[must_use]
pub fn named(name: &str) -> Option<Event> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends with a 0; the answer is null or a row of the constant table.
    unsafe { ffi::mw_event_named(name.as_ptr()).as_ref() }.map(event)
}

/// What a processor counts of memory traffic, if that is known.
#[must_use]
pub fn of(vendor: u32, family: u32, model: u32) -> Option<Event> {
    // SAFETY: the answer is null or a row of the constant table.
    unsafe { ffi::mw_event_of(vendor, family, model).as_ref() }.map(event)
}

fn text(pointer: *const c_char) -> &'static str {
    // SAFETY: all texts of the table are constants that end with a 0.
    unsafe { CStr::from_ptr(pointer) }
        .to_str()
        .expect("the table is ASCII")
}

fn event(row: &ffi::mw_event) -> Event {
    let includes = |bit| row.includes & bit != 0;
    Event {
        name: text(row.name),
        kind: match row.kind {
            0 => Kind::Raw,
            1 => Kind::CacheMisses,
            2 => Kind::LastLevelReadMisses,
            3 => Kind::PageFaults,
            4 => Kind::MinorFaults,
            5 => Kind::Cycles,
            6 => Kind::Instructions,
            _ => Kind::None,
        },
        read: row.read,
        write: (row.write > 0).then_some(row.write),
        combined: (row.combined > 0).then_some(row.combined),
        bytes: (row.bytes > 0).then_some(row.bytes),
        includes: Includes {
            prefetches: includes(1),
            writes: includes(2),
            shared_hits: includes(4),
        },
        sure: match row.sure {
            0 => Sure::Seen,
            1 => Sure::Listed,
            _ => Sure::Manual,
        },
        source: text(row.source),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_name_is_there_once_and_every_processor_has_its_event() {
        let names: Vec<_> = all().map(|event| event.name).collect();
        let unique: BTreeSet<_> = names.iter().collect();
        assert_eq!(names.len(), unique.len());
        assert!(names.len() >= 75, "{}", names.len());
        for event in all() {
            assert_eq!(named(event.name), Some(event));
            assert!(event.kind != Kind::Raw || event.read > 0, "{event:?}");
            assert!(!event.source.is_empty());
        }
        for row in processors() {
            assert!(row.first <= row.last, "{row:?}");
            for model in row.first..=row.last {
                let event = of(row.vendor, row.family, model);
                assert_eq!(event.map(|event| event.name), Some(row.event), "{row:?}");
            }
        }
        assert_eq!(named("z80"), None);
        assert_eq!(named("a\0b"), None);
        assert_eq!(of(vendor::ARM, 0, 0xfff), None);
        assert_eq!(of(vendor::INTEL, 5, 0x2a), None);
    }
}
