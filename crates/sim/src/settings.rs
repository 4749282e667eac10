// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cores and caches of a simulated machine, as plain data.

use memwarden_cachesim::geometry::Prefetcher;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheSettings {
    /// Bytes of data.
    pub size_bytes: u64,
    /// Number of ways.
    pub ways: usize,
    /// From the core's request until the data arrive, if the line is present, ps.
    pub hit_ps: u64,
}

/// An instruction cache. Instructions in it take no time beyond their execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InstructionCacheSettings {
    /// Bytes of instructions.
    pub size_bytes: u64,
    /// Number of ways.
    pub ways: usize,
    /// Number of next lines that a line missing here brings into the shared cache, within its
    /// page.
    pub prefetch_lines: u64,
}

/// A core and its private parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CoreSettings {
    /// The core waits at a load until the value has arrived. Other cores wait only if the next
    /// address depends on it.
    pub in_order: bool,
    /// Time between two accesses that do not depend on one another, ps.
    pub issue_ps: u64,
    /// The maximum number of lines in flight for the core, without prefetches.
    pub mshrs: u32,
    /// The maximum number of prefetched lines in flight for the core.
    pub prefetch_mshrs: u32,
    /// The innermost data cache.
    pub l1d: CacheSettings,
    /// The instruction cache. The simulator's workloads have no instructions: only cores that
    /// an emulator executes use it. Without it their instruction fetches are not modelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l1i: Option<InstructionCacheSettings>,
    /// A private second cache, if there is one.
    pub l2: Option<CacheSettings>,
    /// Number of 4 KiB pages that the TLBs hold; 0 if their misses are not modelled.
    pub tlb_entries: u64,
    /// Time to find a page that the TLBs do not hold, ps; the time to read its table entry,
    /// from the caches or from memory, is added.
    pub page_walk_ps: u64,
    /// The stream prefetcher, if it is on: into the last level.
    pub prefetcher: Option<Prefetcher>,
}

/// The cache that the cores share, and the path to memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SharedSettings {
    /// Its size, ways and hit time.
    pub cache: CacheSettings,
    /// The maximum number of lines in flight from memory, for all cores together. If none is
    /// free, a core that misses waits, even if other cores use them all.
    pub mshrs: usize,
    /// The maximum number of lines that wait to be written. If none is free, no miss can begin.
    pub write_backs: usize,
    /// Number of ways that each core fills with its own lines, from the first way on; a line in
    /// another core's ways is still a hit. If empty, all cores fill all ways.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<usize>,
    /// Whether a line that leaves this cache also leaves the cores' caches.
    pub inclusive: bool,
    /// From the miss to the memory controller, ps.
    pub to_memory_ps: u64,
    /// From the memory's last bit to the core, ps.
    pub from_memory_ps: u64,
    /// Time for which a line occupies the path between the cache and the memory controller, in
    /// each direction separately, ps; 0 if the path is no bottleneck.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub port_ps: u64,
}

// The form that serde's attribute requires.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A DMA engine, which copies memory without a core and bypasses the caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DmaSettings {
    /// The maximum number of a transfer's lines in flight, each from its read to its write.
    pub outstanding: usize,
    /// Time for which a line occupies the engine's own path to the memory controller, in each
    /// direction separately, ps.
    pub port_ps: u64,
    /// Whether the engine snoops the cores' caches: it then reads cached lines from them, and
    /// lines that it writes leave them. Otherwise it accesses memory only, and the kernel
    /// maintains the caches.
    pub coherent: bool,
}

/// Everything except the memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineSettings {
    /// Number of cores, 1 to 32, all identical.
    pub cores: usize,
    /// Bytes per line, in every cache: a power of two.
    pub line_bytes: u64,
    /// Bytes of memory, of which each workload has pages at random.
    pub memory_bytes: u64,
    /// Settings of each core.
    pub core: CoreSettings,
    /// Settings of the shared part.
    pub shared: SharedSettings,
    /// The DMA engine, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dma: Option<DmaSettings>,
}
