// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the cores and caches of a simulated machine are, as plain data.

use memwarden_cachesim::geometry::Prefetcher;
use serde::{Deserialize, Serialize};

/// A cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheSettings {
    /// Bytes of data.
    pub size_bytes: u64,
    /// Lines a set.
    pub ways: usize,
    /// From the core's asking to the data's being there, when the line is here, ps.
    pub hit_ps: u64,
}

/// A core and what it has for itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreSettings {
    /// Stands still at a load until its value is there. Others only where the next
    /// address comes of it.
    pub in_order: bool,
    /// Between two accesses that nobody waits for, ps.
    pub issue_ps: u64,
    /// Lines that may be under way for it, prefetches apart.
    pub mshrs: u32,
    /// Prefetched lines that may be under way for it.
    pub prefetch_mshrs: u32,
    /// The innermost data cache.
    pub l1d: CacheSettings,
    /// A second one of its own, if it has that.
    pub l2: Option<CacheSettings>,
    /// Pages of 4 KiB that the TLBs hold; 0 where their misses are left out.
    pub tlb_entries: u64,
    /// What finding a page that they don't hold takes the core, ps; reading its entry in
    /// the page table comes on top, from the caches or from memory.
    pub page_walk_ps: u64,
    /// The stream prefetcher, if it is on: into the last level.
    pub prefetcher: Option<Prefetcher>,
}

/// The cache that the cores share, and the way to memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedSettings {
    /// Its size, ways and time.
    pub cache: CacheSettings,
    /// Lines that may be under way from memory, of all cores together. With none
    /// free, a core that misses waits, whoever has them.
    pub mshrs: usize,
    /// Lines that wait to be written. With none free, no miss can begin.
    pub write_backs: usize,
    /// Its ways that each core has for its own lines, from the first way on; one that is
    /// found in another's is a hit all the same. Without any, all have all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<usize>,
    /// A line that leaves it leaves the cores' caches, too.
    pub inclusive: bool,
    /// From the miss to the memory controller, ps.
    pub to_memory_ps: u64,
    /// From the memory's last bit to the core, ps.
    pub from_memory_ps: u64,
    /// For so long a line occupies the way between the cache and the memory controller, each direction by itself, ps;
    /// 0 where that is no bottleneck.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub port_ps: u64,
}

// What serde's attribute asks for.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A DMA engine: what copies memory without a core, and beside the caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DmaSettings {
    /// Lines of a transfer that may be under way, each from its read to its write.
    pub outstanding: usize,
    /// For so long a line occupies the engine's own way to the memory controller, each direction by itself, ps.
    pub port_ps: u64,
    /// It sees the cores' caches: what they hold is read from them, and what it writes leaves them. Otherwise it reads and
    /// writes memory alone, and the kernel maintains the caches.
    pub coherent: bool,
}

/// All but the memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineSettings {
    /// How many cores, 1 to 32, all alike.
    pub cores: usize,
    /// Bytes a line, in every cache: a power of two.
    pub line_bytes: u64,
    /// Bytes of memory, of which each workload has pages at random.
    pub memory_bytes: u64,
    /// Each core.
    pub core: CoreSettings,
    /// What they share.
    pub shared: SharedSettings,
    /// The DMA engine, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dma: Option<DmaSettings>,
}
