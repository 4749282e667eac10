// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counters, under perf's names.
//!
//! A count's unit is an access: a load or a store of bytes in one line. (An access to two lines
//! counts as two, since the cache makes two; perf's `L1-dcache-loads` on an Intel core counts
//! instructions, and counts it once.)

use serde::{Deserialize, Serialize};

use crate::geometry::PerfEvents;

/// Counts of one cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheCounts {
    /// Demand loads that reached this cache: for the L1D those of the stream, for any other
    /// cache those that missed in the cache before it.
    pub loads: u64,
    /// Demand loads that did not find their line.
    pub load_misses: u64,
    /// Demand stores that reached this cache. Behind the L1D these are requests for ownership
    /// of the line; write-backs are not included.
    pub stores: u64,
    /// Demand stores that did not find their line.
    pub store_misses: u64,
    /// Lines that the prefetcher requested from this cache, not included above.
    pub prefetches: u64,
    /// Prefetched lines that were not present and were fetched.
    pub prefetch_misses: u64,
    /// Dirty lines that left this cache for the next level. Those of the last level are the
    /// lines written to memory.
    pub write_backs: u64,
}

impl CacheCounts {
    /// Demand accesses: loads and stores.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.loads + self.stores
    }

    /// Demand misses: of loads and of stores.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.load_misses + self.store_misses
    }

    /// Lines brought into this cache, for accesses and prefetches, if its stores allocate. On
    /// Intel cores from Nehalem to Ice Lake, perf's `L1-dcache-load-misses` is this count of the
    /// L1D (L1D.REPLACEMENT).
    #[must_use]
    pub fn fills(&self) -> u64 {
        self.misses() + self.prefetch_misses
    }
}

/// Counts of one TLB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlbCounts {
    /// Loads that reached this TLB: all of the stream for the DTLB, those that missed in the
    /// DTLB for the STLB.
    pub loads: u64,
    /// Loads that did not find their page.
    pub load_misses: u64,
    /// Stores that reached this TLB.
    pub stores: u64,
    /// Stores that did not find their page.
    pub store_misses: u64,
}

impl TlbCounts {
    /// Misses of loads and of stores.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.load_misses + self.store_misses
    }
}

/// Counts of a model since it was created or last reset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// The innermost data cache.
    pub l1d: CacheCounts,
    /// The cache between the L1D and the last level; `None` if there is none.
    pub l2: Option<CacheCounts>,
    /// The last cache before memory, whatever its level.
    pub llc: CacheCounts,
    /// The TLB that every access uses.
    pub dtlb: TlbCounts,
    /// The second-level TLB; `None` if there is none.
    pub stlb: Option<TlbCounts>,
}

impl Counts {
    /// Page walks: translations that no TLB held. On Intel cores since Sandy Bridge, perf's
    /// `dTLB-load-misses` and `dTLB-store-misses` are this count, not the DTLB's misses
    /// (`MISS_CAUSES_A_WALK`; SDM vol. 3B, chapter on events).
    #[must_use]
    pub fn page_walks(&self) -> u64 {
        self.stlb.unwrap_or(self.dtlb).misses()
    }

    /// Every counter of the geometry, with its name: perf's name if perf has one, otherwise one
    /// of the same form (`L2-loads`, `LLC-write-backs`). `events` are those that perf's names
    /// stand for ([`PerfEvents`]).
    #[must_use]
    pub fn named(&self, events: PerfEvents) -> Vec<(String, u64)> {
        match events {
            PerfEvents::Demand => self.by_name(),
            PerfEvents::SandyBridge => self.of_sandy_bridge().by_name(),
        }
    }

    /// The L1D's and the DTLB's misses by the events of Sandy Bridge.
    fn of_sandy_bridge(&self) -> Self {
        let last = self.stlb.unwrap_or(self.dtlb);
        Self {
            l1d: CacheCounts {
                load_misses: self.l1d.fills(),
                store_misses: self.l1d.write_backs,
                ..self.l1d
            },
            dtlb: TlbCounts {
                load_misses: last.load_misses,
                store_misses: last.store_misses,
                ..self.dtlb
            },
            ..*self
        }
    }

    fn by_name(&self) -> Vec<(String, u64)> {
        let mut named = Vec::new();
        let caches = [
            ("L1-dcache", Some(self.l1d)),
            ("L2", self.l2),
            ("LLC", Some(self.llc)),
        ];
        for (name, counts) in caches {
            let Some(counts) = counts else { continue };
            named.extend([
                (format!("{name}-loads"), counts.loads),
                (format!("{name}-load-misses"), counts.load_misses),
                (format!("{name}-stores"), counts.stores),
                (format!("{name}-store-misses"), counts.store_misses),
                (format!("{name}-prefetches"), counts.prefetches),
                (format!("{name}-prefetch-misses"), counts.prefetch_misses),
                (format!("{name}-write-backs"), counts.write_backs),
            ]);
        }
        for (name, counts) in [("dTLB", Some(self.dtlb)), ("sTLB", self.stlb)] {
            let Some(counts) = counts else { continue };
            named.extend([
                (format!("{name}-loads"), counts.loads),
                (format!("{name}-load-misses"), counts.load_misses),
                (format!("{name}-stores"), counts.stores),
                (format!("{name}-store-misses"), counts.store_misses),
            ]);
        }
        named
    }
}
