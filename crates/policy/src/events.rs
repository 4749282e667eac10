// SPDX-License-Identifier: MIT OR Apache-2.0
//! The events that count memory traffic: the table in `policy/events.c`, which the kernel module shares.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::slice;

use crate::ffi;

/// How an event is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A code of the processor.
    Raw,
    /// perf's `cache-misses`.
    CacheMisses,
    /// perf's generic cache event: reads that miss the last level.
    LastLevelReadMisses,
    /// The kernel's page faults.
    PageFaults,
    /// Page faults that read nothing from a disk.
    MinorFaults,
    /// perf's `cycles`.
    Cycles,
    /// perf's `instructions`.
    Instructions,
    /// The processor has no suitable event.
    None,
}

/// What confirms that an event is the right one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sure {
    /// The self-test, on such a processor.
    Seen,
    /// The kernel's list of the processor's events.
    Listed,
    /// Only the processor's manual.
    Manual,
}

/// What a count of reads includes, besides the lines that loads wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Includes {
    /// Lines that the core's prefetchers fetch.
    pub prefetches: bool,
    /// Lines that are fetched in order to write to them.
    pub writes: bool,
    /// Lines that a cache behind the core's own supplies: budgets are then stricter than requested.
    pub shared_hits: bool,
}

/// An event and its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The kernel's name of a processor, or a name from MemGuard or perf.
    pub name: &'static str,
    /// How the event is requested.
    pub kind: Kind,
    /// The code for [`Kind::Raw`]; for a name of perf's, the code that it stands for, or 0 if the table has none.
    pub read: u64,
    /// perf's `config1` for `read`, such as Intel's mask of requests and responses; usually 0.
    pub read_config1: u64,
    /// A second code, which counts lines read that `read` does not: both together are the event.
    pub read_too: Option<u64>,
    /// The code that counts lines written to memory.
    pub write: Option<u64>,
    /// The code that counts lines read and lines written in one count.
    pub combined: Option<u64>,
    /// Memory traffic per event in bytes; `None` is a page.
    pub bytes: Option<u32>,
    /// What its count includes.
    pub includes: Includes,
    /// What confirms the event.
    pub sure: Sure,
    /// Where its codes come from.
    pub source: &'static str,
}

impl Event {
    /// The code that counts reads, or the sum of two, as `--event` takes it: `0x4843+0xff72`, `0x1b7:config1=0xf877`.
    #[must_use]
    pub fn read_codes(&self) -> String {
        let mut codes = format!("{:#x}", self.read);
        if self.read_config1 != 0 {
            codes += &format!(":config1={:#x}", self.read_config1);
        }
        if let Some(too) = self.read_too {
            codes += &format!("+{too:#x}");
        }
        codes
    }
}

/// Processor vendors: Arm's implementer code (`MIDR_EL1`), or one of these.
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

/// Core types of Intel's hybrid processors: bits 31 to 24 of EAX in CPUID leaf 1AH.
pub mod core_type {
    /// The processor is no hybrid, or the type is unknown.
    pub const ANY: u32 = 0;
    /// Atom.
    pub const SMALL: u32 = 0x20;
    /// Core.
    pub const LARGE: u32 = 0x40;

    /// Intel's letter for a core type.
    #[must_use]
    pub fn letter(core: u32) -> Option<&'static str> {
        match core {
            SMALL => Some("E"),
            LARGE => Some("P"),
            _ => None,
        }
    }
}

/// A range of processors and the name of their event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processor {
    /// The event's name.
    pub event: &'static str,
    /// The vendor: see [`vendor`].
    pub vendor: u32,
    /// CPUID family; 0 for Arm.
    pub family: u32,
    /// First CPUID model, or part number in `MIDR_EL1`.
    pub first: u32,
    /// Last CPUID model or part number.
    pub last: u32,
    /// The core type of a hybrid: see [`core_type`].
    pub core: u32,
}

/// All events, in the table's order.
pub fn all() -> impl Iterator<Item = Event> {
    let mut count = 0;
    // SAFETY: the table is constant and has `count` rows.
    let rows = unsafe { slice::from_raw_parts(ffi::mw_events(&raw mut count), count as usize) };
    rows.iter().map(event)
}

/// All processors with a known event; of a hybrid, one for each core type.
pub fn processors() -> impl Iterator<Item = Processor> {
    let mut count = 0;
    // SAFETY: the table is constant and has `count` rows.
    let rows = unsafe { slice::from_raw_parts(ffi::mw_processors(&raw mut count), count as usize) };
    rows.iter().flat_map(|row| {
        let of = |event, core| Processor {
            event: text(event),
            vendor: row.vendor,
            family: row.family,
            first: row.first,
            last: row.last,
            core,
        };
        // SAFETY: the name is a constant that ends with a 0; the result is null or another such constant.
        let small = unsafe { ffi::mw_small_cores(row.event) };
        if small.is_null() {
            vec![of(row.event, core_type::ANY)]
        } else {
            vec![of(row.event, core_type::LARGE), of(small, core_type::SMALL)]
        }
    })
}

/// The event with this name.
#[must_use]
pub fn named(name: &str) -> Option<Event> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends with a 0; the result is null or a row of the constant table.
    unsafe { ffi::mw_event_named(name.as_ptr()).as_ref() }.map(event)
}

/// The event that counts a processor's memory traffic, if known. On a hybrid whose `core` is [`core_type::ANY`], it is
/// the large cores'.
#[must_use]
pub fn of(vendor: u32, family: u32, model: u32, core: u32) -> Option<Event> {
    // SAFETY: the result is null or a row of the constant table.
    unsafe { ffi::mw_event_of(vendor, family, model, core).as_ref() }.map(event)
}

fn text(pointer: *const c_char) -> &'static str {
    // SAFETY: all strings of the table are constants that end with a 0.
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
        read_config1: row.read_config1,
        read_too: (row.read_too > 0).then_some(row.read_too),
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
            // A budget has two counters at most.
            assert!(
                event.read_too.is_none() || event.write.is_none(),
                "{event:?}"
            );
            assert!(!event.source.is_empty());
        }
        for row in processors() {
            assert!(row.first <= row.last, "{row:?}");
            for model in row.first..=row.last {
                let event = of(row.vendor, row.family, model, row.core);
                assert_eq!(event.map(|event| event.name), Some(row.event), "{row:?}");
            }
        }
        assert_eq!(named("z80"), None);
        assert_eq!(named("a\0b"), None);
        assert_eq!(of(vendor::ARM, 0, 0xfff, core_type::ANY), None);
        assert_eq!(of(vendor::INTEL, 5, 0x2a, core_type::ANY), None);
    }

    #[test]
    fn a_hybrid_has_an_event_for_each_core_type() {
        let name = |core| of(vendor::INTEL, 6, 0xaa, core).map(|event| event.name);
        assert_eq!(name(core_type::LARGE), Some("meteorlake"));
        assert_eq!(name(core_type::SMALL), Some("crestmont"));
        assert_eq!(name(core_type::ANY), Some("meteorlake"));
        // A whole processor of small cores has a core type, too.
        let n100 = of(vendor::INTEL, 6, 0xbe, core_type::SMALL);
        assert_eq!(n100.map(|event| event.name), Some("gracemont"));
        let hybrid = |row: &Processor| row.core != core_type::ANY;
        for row in processors().filter(hybrid) {
            let other = core_type::SMALL + core_type::LARGE - row.core;
            let other = of(row.vendor, row.family, row.first, other).unwrap();
            assert_ne!(other.name, row.event, "{row:?}");
        }
        assert!(processors().filter(hybrid).count() >= 20);
    }

    #[test]
    fn lines_that_enter_an_atoms_l2_are_those_of_all_states() {
        // L2_LINES_IN.S, .E, .M and .F of event 0x25.
        let all = 0x25 | (0x02 | 0x04 | 0x08 | 0x10) << 8;
        for name in ["crestmont", "skymont", "grandridge", "sierraforest"] {
            assert_eq!(named(name).unwrap().read, all, "{name}");
        }
    }

    #[test]
    fn codes_are_as_the_option_takes_them() {
        let codes = |name| named(name).unwrap().read_codes();
        assert_eq!(codes("cortex-a53"), "0x17");
        assert_eq!(codes("zen4"), "0x4843+0xff72");
        assert_eq!(codes("westmere"), "0x1b7:config1=0xf877");
    }
}
