// SPDX-License-Identifier: MIT OR Apache-2.0
//! The named machines, and those of the user's files: the counters' half of a machine's file
//! (`crates/machines/machines/`).
//!
//! A manufacturer's manual seldom documents a replacement policy. If it doesn't, LRU is
//! assumed.

pub use memwarden_machines::is_file;
use memwarden_machines::{File, Half};
use serde::Deserialize;

use crate::geometry::{
    CacheGeometry, Entries, HugeEntries, NextLine, PerfEvents, Prefetcher, Replacement, Stride,
    TlbGeometry, Writes,
};
use crate::{Error, Geometry, Result};

/// The names of the machines that come with the program and whose counters can be modelled.
#[must_use]
pub fn names() -> Vec<&'static str> {
    memwarden_machines::names(Half::Counters)
}

/// The geometry of a machine that comes with the program, or of a file: a name with a `/` in it
/// or with the ending `.toml` is a file.
///
/// # Errors
/// When no machine has that name, or its file is invalid or has no `[counters]`; the message
/// lists the names, or the errors with their lines.
pub fn named(name: &str) -> Result<Geometry> {
    let refused = |error: memwarden_machines::Error| {
        Error::Invalid(match error {
            memwarden_machines::Error::Read { path, source } => {
                format!("cannot read {}: {source}", path.display())
            }
            error => error.to_string(),
        })
    };
    let (path, text) = memwarden_machines::find(name, Half::Counters).map_err(refused)?;
    let file = File::read(&path, &text, Half::Counters).map_err(refused)?;
    let described: Described = file.data(&[]).map_err(refused)?;
    file.finish().map_err(refused)?;
    let geometry = described.geometry();
    geometry.check()?;
    Ok(geometry)
}

/// What the model takes of a file; the file's other fields are the simulator's.
#[derive(Deserialize)]
struct Described {
    machine: Machine,
    counters: Counters,
}

#[derive(Deserialize)]
struct Machine {
    line_bytes: u64,
    core: Core,
    shared: Shared,
}

#[derive(Deserialize)]
struct Core {
    tlb_entries: u64,
    l1d: Cache,
    l2: Option<Cache>,
    prefetcher: Option<Prefetcher>,
}

#[derive(Deserialize)]
struct Shared {
    inclusive: bool,
    cache: Cache,
}

#[derive(Deserialize)]
struct Cache {
    size_bytes: u64,
    ways: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Counters {
    #[serde(default)]
    l1d_replacement: Replacement,
    #[serde(default)]
    l2_replacement: Replacement,
    #[serde(default)]
    llc_replacement: Replacement,
    #[serde(default)]
    l1d_writes: Writes,
    dtlb: Dtlb,
    stlb: Option<Stlb>,
    /// That of a machine which is simulated without one.
    prefetcher: Option<Prefetcher>,
    next_line: Option<NextLine>,
    stride: Option<Stride>,
    #[serde(default)]
    adjacent_line: bool,
    #[serde(default)]
    perf_events: PerfEvents,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dtlb {
    entries: u64,
    ways: usize,
    huge: Huge,
}

/// Its entries are the machine's `tlb_entries`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stlb {
    ways: usize,
    huge: Huge,
}

/// A word, or a table with the number of entries.
#[derive(Deserialize)]
#[serde(untagged)]
enum Huge {
    Word(HugeEntries),
    Own(Entries),
}

impl Described {
    fn geometry(self) -> Geometry {
        let (core, shared, counters) = (self.machine.core, self.machine.shared, self.counters);
        Geometry {
            line_bytes: self.machine.line_bytes,
            l1d: core.l1d.with(counters.l1d_replacement),
            l1d_writes: counters.l1d_writes,
            l2: core.l2.map(|l2| l2.with(counters.l2_replacement)),
            llc: shared.cache.with(counters.llc_replacement),
            inclusive_llc: shared.inclusive,
            dtlb: tlb(
                counters.dtlb.entries,
                counters.dtlb.ways,
                counters.dtlb.huge,
            ),
            stlb: counters
                .stlb
                .map(|stlb| tlb(core.tlb_entries, stlb.ways, stlb.huge)),
            prefetcher: counters.prefetcher.or(core.prefetcher),
            next_line: counters.next_line,
            stride: counters.stride,
            adjacent_line: counters.adjacent_line,
            perf_events: counters.perf_events,
        }
    }
}

impl Cache {
    fn with(self, replacement: Replacement) -> CacheGeometry {
        CacheGeometry {
            size_bytes: self.size_bytes,
            ways: self.ways,
            replacement,
        }
    }
}

fn tlb(entries: u64, ways: usize, huge: Huge) -> TlbGeometry {
    TlbGeometry {
        small: Entries { entries, ways },
        huge: match huge {
            Huge::Word(word) => word,
            Huge::Own(entries) => HugeEntries::Own(entries),
        },
    }
}

#[cfg(test)]
mod tests;
