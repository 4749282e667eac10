// SPDX-License-Identifier: MIT OR Apache-2.0
//! The named machines.
//!
//! A manufacturer's manual seldom documents a replacement policy. If it doesn't, LRU is
//! assumed.

use crate::geometry::{
    CacheGeometry, Entries, HugeEntries, NextLine, PerfEvents, PrefetchInto, Prefetcher,
    Replacement, TlbGeometry, Writes,
};
use crate::{Error, Geometry, Result};

/// A machine with a name.
#[derive(Debug)]
pub struct Platform {
    /// The name on the command line.
    pub name: &'static str,
    /// Its description, for the help.
    pub help: &'static str,
    /// Its caches and TLBs.
    pub geometry: fn() -> Geometry,
}

/// All of them, by name.
pub const PLATFORMS: [Platform; 3] = [
    Platform {
        name: "i5-2467m",
        help: "Intel Core i5-2467M, Sandy Bridge: L2 256 KiB, L3 3 MiB",
        geometry: i5_2467m,
    },
    Platform {
        name: "raspberry-pi-3",
        help: "Raspberry Pi 3, four Cortex-A53: L2 512 KiB",
        geometry: raspberry_pi_3,
    },
    Platform {
        name: "xeon-w3530",
        help: "Intel Xeon W3530, Nehalem: L2 256 KiB, L3 8 MiB",
        geometry: xeon_w3530,
    },
];

/// The platform's geometry.
///
/// # Errors
/// When no platform has that name; the message lists the names.
pub fn named(name: &str) -> Result<Geometry> {
    let platform = PLATFORMS.iter().find(|platform| platform.name == name);
    platform
        .map(|platform| (platform.geometry)())
        .ok_or_else(|| {
            let names: Vec<_> = PLATFORMS.iter().map(|platform| platform.name).collect();
            Error::Invalid(format!(
                "no platform is named {name} (there are {})",
                names.join(", ")
            ))
        })
}

/// Raspberry Pi 3: BCM2837, four Cortex-A53.
///
/// From Arm's Cortex-A53 MPCore Technical Reference Manual, DDI 0500:
/// - L1D: 4 ways, lines of 64 bytes (section 6.1), pseudo-random replacement (2.1.6,
///   "Data Cache Unit"); the BCM2837's are 32 KiB.
/// - L2: 16 ways (7.1), of 512 KiB here, shared by the four cores.
/// - TLBs: a data micro TLB of 10 entries, fully associative, and a unified main TLB
///   of 512 with 4 ways (5.1), which holds blocks of 2 MiB among the pages (5.2.2).
/// - Prefetcher: into the L1D, 2 streams, started by linefills of 2 consecutive lines
///   (here, of any two in one direction), 5 lines outstanding (CPUACTLR_EL1, reset
///   values of NPFSTRM, STRIDE and L1PCTL, 4.3).
///
/// Not modelled: write streaming, by which the fourth line in a row that is written
/// from end to end is no longer allocated in the L1D (CPUACTLR_EL1.L1RADIS).
#[must_use]
pub fn raspberry_pi_3() -> Geometry {
    Geometry {
        line_bytes: 64,
        l1d: CacheGeometry {
            replacement: Replacement::Random,
            ..CacheGeometry::lru(32 << 10, 4)
        },
        l1d_writes: Writes::Back,
        l2: None,
        llc: CacheGeometry::lru(512 << 10, 16),
        inclusive_llc: false,
        dtlb: TlbGeometry {
            small: entries(10, 10),
            huge: HugeEntries::Shared,
        },
        stlb: Some(TlbGeometry {
            small: entries(512, 4),
            huge: HugeEntries::Shared,
        }),
        prefetcher: Some(Prefetcher {
            into: PrefetchInto::L1d,
            streams: 2,
            trigger_steps: 1,
            degree: 5,
            distance: 5,
        }),
        next_line: None,
        stride: None,
        adjacent_line: false,
        perf_events: PerfEvents::Demand,
    }
}

/// Intel Core i5-2467M: Sandy Bridge, two cores.
///
/// - L1D 32 KiB with 8 ways, L2 256 KiB with 8, lines of 64 bytes, an inclusive last
///   level whose ways differ between models (Optimization Reference Manual, chapter
///   on Sandy Bridge, section "Cache Hierarchy"); here 3 MiB with 12 ways, as CPUID
///   leaf 4 of two-core models with 3 MiB says.
/// - DTLB 64 entries with 4 ways for 4 KiB, 32 with 4 for 2 MiB; STLB 512 with 4 ways,
///   for 4 KiB alone (Software Developer's Manual vol. 3A, section "Internal Caches,
///   TLBs, and Buffers", table of their characteristics).
/// - Prefetchers (Optimization Reference Manual, section "Data Prefetching" of the same
///   chapter): the L1D's for the next line, [`NextLine::dcu`]; the L2's for streams,
///   [`Prefetcher::streamer`], and for the line that completes an aligned pair of 128
///   bytes. The L1D's fourth, for the stride of a load instruction
///   ([`Stride::ip_based`](crate::geometry::Stride::ip_based)), is switched off: with it
///   the published mmap study would have had ten times as many prefetches that miss in
///   order (docs/results/mmap.md).
/// - Counters: perf's events, [`PerfEvents::SandyBridge`].
#[must_use]
pub fn i5_2467m() -> Geometry {
    Geometry {
        llc: CacheGeometry::lru(3 << 20, 12),
        next_line: Some(NextLine::dcu()),
        adjacent_line: true,
        perf_events: PerfEvents::SandyBridge,
        ..nehalem_to_sandy_bridge()
    }
}

/// Intel Xeon W3530: Nehalem, four cores.
///
/// - L1D 32 KiB with 8 ways, L2 256 KiB with 8, an inclusive L3 of 8 MiB with 16, lines
///   of 64 bytes (Software Developer's Manual vol. 3A, section "Internal Caches, TLBs,
///   and Buffers", text and table of their characteristics).
/// - DTLB 64 entries with 4 ways for 4 KiB, 32 with 4 for 2 MiB; STLB 512 with 4 ways,
///   for 4 KiB alone (same table).
/// - Prefetcher: Sandy Bridge's streamer, for want of figures of its own.
#[must_use]
pub fn xeon_w3530() -> Geometry {
    Geometry {
        llc: CacheGeometry::lru(8 << 20, 16),
        ..nehalem_to_sandy_bridge()
    }
}

/// The common part of these two: everything except the last level.
fn nehalem_to_sandy_bridge() -> Geometry {
    Geometry {
        line_bytes: 64,
        l1d: CacheGeometry::lru(32 << 10, 8),
        l1d_writes: Writes::Back,
        l2: Some(CacheGeometry::lru(256 << 10, 8)),
        llc: CacheGeometry::lru(8 << 20, 16),
        inclusive_llc: true,
        dtlb: TlbGeometry {
            small: entries(64, 4),
            huge: HugeEntries::Own(entries(32, 4)),
        },
        stlb: Some(TlbGeometry {
            small: entries(512, 4),
            huge: HugeEntries::Nowhere,
        }),
        prefetcher: Some(Prefetcher::streamer()),
        next_line: None,
        stride: None,
        adjacent_line: false,
        perf_events: PerfEvents::Demand,
    }
}

fn entries(entries: u64, ways: usize) -> Entries {
    Entries { entries, ways }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_platform_can_be_modelled_and_written_down() {
        for platform in &PLATFORMS {
            let geometry = named(platform.name).unwrap();
            geometry.check().unwrap();
            let text = serde_json::to_string(&geometry).unwrap();
            assert_eq!(serde_json::from_str::<Geometry>(&text).unwrap(), geometry);
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = named("i5").unwrap_err().to_string();
        assert_eq!(
            error,
            "no platform is named i5 (there are i5-2467m, raspberry-pi-3, xeon-w3530)"
        );
    }
}
