// SPDX-License-Identifier: MIT OR Apache-2.0
//! A machine's caches and TLBs, as plain data that can be read from and written to a file.

use memwarden_platform::cache::{Cache, Kind};
use memwarden_platform::units::size_text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The caches and TLBs of one core, from the core outward.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Bytes per line, in every cache: a power of two, 16 to 4096.
    pub line_bytes: u64,
    /// The innermost data cache.
    pub l1d: CacheGeometry,
    /// How the L1D treats stores.
    #[serde(default)]
    pub l1d_writes: Writes,
    /// The cache between the L1D and the last level, if there is one.
    #[serde(default)]
    pub l2: Option<CacheGeometry>,
    /// The last cache before memory. If several cores share it, the modelled core has all of
    /// it.
    pub llc: CacheGeometry,
    /// Whether a line that leaves the last level leaves the other caches too. Otherwise each
    /// cache keeps its lines: a line enters all of them and leaves each separately (neither
    /// inclusive nor exclusive).
    #[serde(default)]
    pub inclusive_llc: bool,
    /// The TLB that every access uses.
    pub dtlb: TlbGeometry,
    /// The second-level TLB, if there is one.
    #[serde(default)]
    pub stlb: Option<TlbGeometry>,
    /// The stream prefetcher; `None` means switched off.
    #[serde(default)]
    pub prefetcher: Option<Prefetcher>,
    /// The L1D's next-line prefetcher; `None` means switched off.
    #[serde(default)]
    pub next_line: Option<NextLine>,
    /// The L1D's stride prefetcher; `None` means switched off.
    #[serde(default)]
    pub stride: Option<Stride>,
    /// Whether each line that is fetched into the cache behind the L1D brings the other line of
    /// its aligned pair into that cache.
    #[serde(default)]
    pub adjacent_line: bool,
    /// The events that perf's names stand for.
    #[serde(default)]
    pub perf_events: PerfEvents,
}

/// One cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheGeometry {
    /// Bytes of data. The number of sets need not be a power of two.
    pub size_bytes: u64,
    /// Number of ways.
    pub ways: usize,
    /// The replacement policy.
    #[serde(default)]
    pub replacement: Replacement,
}

/// The replacement policy: which line of a full set is evicted.
///
/// It matters if a working set just fits. Sixteen walks over 32 KiB in an L1D of 32 KiB and 4
/// ways miss once per line with LRU. With random replacement the first walk evicts some of its
/// own lines, the second evicts others for those, and it takes about twice the misses until all
/// lines are present (`random_replacement_matters_to_a_working_set_that_just_fits`). Tree
/// pseudo-LRU, Intel's usual choice for an L1D, is not modelled: as with LRU, a run of misses
/// in one set replaces each of its ways once.
/// LRU, a run of misses in one set replaces each of its ways once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// The least recently used line.
    #[default]
    Lru,
    /// A random line, by a generator with the same seed in each model: runs repeat exactly.
    Random,
}

/// How a cache treats stores. All caches behind the L1D write back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Writes {
    /// A missing line is fetched and written in this cache; the next level gets the data when
    /// the line is replaced.
    #[default]
    Back,
    /// Each store goes to the next level, and a missing line is not fetched.
    Through,
}

/// One TLB.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlbGeometry {
    /// Entries for pages of 4 KiB.
    pub small: Entries,
    /// Entries for pages of 2 MiB.
    pub huge: HugeEntries,
}

/// The entries of a TLB; the least recently used page of a full set is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entries {
    /// Number of pages in all.
    pub entries: u64,
    /// Ways; if equal to `entries`, the TLB is fully associative.
    pub ways: usize,
}

/// Where a TLB holds pages of 2 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HugeEntries {
    /// In the same entries as pages of 4 KiB.
    Shared,
    /// In separate entries.
    Own(Entries),
    /// Nowhere: lookups always miss. Possible for the STLB only.
    Nowhere,
}

/// A stream prefetcher: it observes the demand accesses that miss in the L1D (and, if it
/// prefetches into the L1D, the first access to a prefetched line). Within a page of 4 KiB it
/// treats ascending or descending ones as a stream, and fetches the next lines, never beyond
/// the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prefetcher {
    /// The cache that the lines go into. They also stay in the caches on their path.
    pub into: PrefetchInto,
    /// Number of pages that it tracks; the least recently seen one is forgotten.
    pub streams: usize,
    /// Steps in one direction until it treats them as a stream.
    pub trigger_steps: u64,
    /// The maximum number of lines fetched for one access.
    pub degree: u64,
    /// The maximum number of lines ahead of the access.
    pub distance: u64,
}

/// Where prefetched lines go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PrefetchInto {
    /// Into the L1D.
    L1d,
    /// Into the cache behind the L1D, even if that is the last level.
    L2,
}

/// A prefetcher that fetches the next line into the L1D. A load that brings a line, or that is
/// the first access to a prefetched line, fetches the line after it if the line before it is one
/// of the last that were brought or first used, and if both are in one page of 4 KiB.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextLine {
    /// Number of lines that it remembers.
    pub recent: usize,
}

/// A prefetcher that learns the stride of each load instruction and fetches one stride ahead
/// into the L1D, within the page of 4 KiB, whether or not the load hits. It observes only loads
/// whose instruction is known ([`Model::access_by`](crate::Model::access_by)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stride {
    /// Number of instructions that it tracks; instructions with the same remainder share an
    /// entry.
    pub instructions: usize,
    /// The largest stride.
    pub largest_bytes: u64,
    /// How often a stride repeats before it is used.
    pub repeats: u64,
}

/// The events that perf's names for L1D and TLB misses stand for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PerfEvents {
    /// Accesses that did not find their line or page.
    #[default]
    Demand,
    /// Those that the kernel programs on Sandy Bridge (`snb_hw_cache_event_ids` in
    /// arch/x86/events/intel/core.c), as Intel's list of that processor's events defines them:
    ///
    /// | perf's name | event | what it counts |
    /// | --- | --- | --- |
    /// | `L1-dcache-load-misses` | L1D.REPLACEMENT (51H, 01H) | lines brought into the L1D, for loads, stores and prefetches |
    /// | `L1-dcache-store-misses` | L1D.ALL_M_REPLACEMENT (51H, 08H) | modified lines that left the L1D |
    /// | `L1-dcache-prefetch-misses` | HW_PRE_REQ.DL1_MISS (4EH, 02H) | requests of both L1D prefetchers that missed, each time they access the cache; the model has no second time |
    /// | `dTLB-load-misses` | DTLB_LOAD_MISSES.MISS_CAUSES_A_WALK (08H, 01H) | page walks by loads |
    /// | `dTLB-store-misses` | DTLB_STORE_MISSES.MISS_CAUSES_A_WALK (49H, 01H) | page walks by stores |
    SandyBridge,
}

/// The size of the pages that the accesses are in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PageSize {
    /// 4 KiB, also for a machine whose kernel has larger ones.
    #[default]
    #[serde(rename = "4K")]
    Small,
    /// 2 MiB.
    #[serde(rename = "2M")]
    Huge,
}

impl PageSize {
    /// The size as a power of two.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Self::Small => 12,
            Self::Huge => 21,
        }
    }
}

/// A geometry read from a machine, and the parts that the machine did not report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfMachine {
    /// The geometry to model.
    pub geometry: Geometry,
    /// One sentence for each part that was assumed; print these under every table.
    pub assumed: Vec<String>,
}

impl Geometry {
    /// The caches that one CPU uses ([`memwarden_platform::cache::of_cpu`]). For values that
    /// sysfs does not have, the following are assumed.
    ///
    /// - Ways: 8. All caches replace the least recently used line and write back; the last
    ///   level is not inclusive.
    /// - TLBs: those of Skylake, which many later x86 cores also have: 64 entries
    ///   with 4 ways for 4 KiB, 32 with 4 for 2 MiB, and behind them 1536 with 12
    ///   for both (Intel, Optimization Reference Manual, section on the Skylake
    ///   client microarchitecture's cache and memory subsystem).
    /// - Prefetcher: [`Prefetcher::streamer`].
    ///
    /// Caches at the fourth level or beyond are left out.
    ///
    /// # Errors
    /// When there are not at least two levels of known size, with lines of one size.
    pub fn of_machine(caches: &[Cache]) -> Result<OfMachine> {
        let mut assumed = Vec::new();
        let data = |level| {
            caches
                .iter()
                .find(|cache| cache.level == level && cache.kind != Kind::Instruction)
        };
        let line_bytes = data(1).and_then(|l1d| l1d.line_bytes).unwrap_or_else(|| {
            assumed.push("lines of 64 bytes".into());
            64
        });
        let mut read = |level| {
            let cache: Option<&Cache> = data(level);
            let Some((cache, size_bytes)) =
                cache.and_then(|cache| Some((cache, cache.size_bytes?)))
            else {
                return Ok(None);
            };
            if cache.line_bytes.is_some_and(|bytes| bytes != line_bytes) {
                return Err(Error::Invalid(format!(
                    "{cache} has lines of another size than the L1d: name a platform instead"
                )));
            }
            let ways = cache.ways.unwrap_or_else(|| {
                assumed.push(format!("{cache} has 8 ways"));
                8
            });
            Ok(Some(CacheGeometry::lru(
                size_bytes,
                usize::try_from(ways).unwrap_or(usize::MAX),
            )))
        };
        let (l1d, l2, l3) = (read(1)?, read(2)?, read(3)?);
        let (Some(l1d), Some(llc)) = (l1d, l3.clone().or_else(|| l2.clone())) else {
            return Err(Error::Invalid(
                "the kernel does not tell the sizes of an L1d and of a cache behind it: name a platform instead".into(),
            ));
        };
        assumed.extend([
            "all caches replace the least recently used line and write back".into(),
            "the last level is not inclusive".into(),
            "a DTLB of 64 entries with 4 ways (2 MiB: 32 with 4), behind it 1536 with 12".into(),
            "a prefetcher as Intel documents its L2 streamer".into(),
        ]);
        let entries = |entries, ways| Entries { entries, ways };
        let geometry = Self {
            line_bytes,
            l1d,
            l1d_writes: Writes::Back,
            l2: l3.and(l2),
            llc,
            inclusive_llc: false,
            dtlb: TlbGeometry {
                small: entries(64, 4),
                huge: HugeEntries::Own(entries(32, 4)),
            },
            stlb: Some(TlbGeometry {
                small: entries(1536, 12),
                huge: HugeEntries::Shared,
            }),
            prefetcher: Some(Prefetcher::streamer()),
            next_line: None,
            stride: None,
            adjacent_line: false,
            perf_events: PerfEvents::Demand,
        };
        geometry.check()?;
        Ok(OfMachine { geometry, assumed })
    }

    /// Whether it has a prefetcher.
    #[must_use]
    pub fn prefetches(&self) -> bool {
        self.prefetcher.is_some()
            || self.next_line.is_some()
            || self.stride.is_some()
            || self.adjacent_line
    }

    /// The same geometry with its prefetchers switched off.
    #[must_use]
    pub fn without_prefetchers(self) -> Self {
        Self {
            prefetcher: None,
            next_line: None,
            stride: None,
            adjacent_line: false,
            ..self
        }
    }

    /// Checks whether it can be modelled.
    ///
    /// # Errors
    /// The first figure that is not possible, and the reason.
    pub fn check(&self) -> Result<()> {
        if !self.line_bytes.is_power_of_two() || !(16..=4096).contains(&self.line_bytes) {
            return Err(Error::Invalid(format!(
                "lines of {} bytes: a power of two from 16 to 4096 is possible",
                self.line_bytes
            )));
        }
        self.l1d.check("the L1D", self.line_bytes)?;
        if let Some(l2) = &self.l2 {
            l2.check("the L2", self.line_bytes)?;
        }
        self.llc.check("the last level", self.line_bytes)?;
        self.dtlb.check("the DTLB")?;
        if self.dtlb.huge == HugeEntries::Nowhere {
            return Err(Error::Invalid(
                "the DTLB holds no pages of 2 MiB: it would miss on every access".into(),
            ));
        }
        if let Some(stlb) = &self.stlb {
            stlb.check("the STLB")?;
        }
        let useless = |what| {
            let message = format!("a prefetcher without {what}: leave it out instead");
            Err(Error::Invalid(message))
        };
        match &self.prefetcher {
            Some(prefetcher) if prefetcher.streams == 0 || prefetcher.degree == 0 => {
                return useless("streams or degree");
            }
            _ => {}
        }
        if self.next_line.as_ref().is_some_and(|next| next.recent == 0) {
            return useless("recent lines");
        }
        if self
            .stride
            .as_ref()
            .is_some_and(|one| one.instructions == 0)
        {
            return useless("instructions");
        }
        Ok(())
    }
}

/// More than any cache or TLB has, and small enough for any integer type.
const MOST_PLACES: u64 = 1 << 28;

/// Sets of `ways` places, `places` in all.
fn check_sets(what: &str, places: u64, ways: usize) -> Result<()> {
    let ways_u64 = ways as u64;
    if places == 0 || ways == 0 || places > MOST_PLACES || places % ways_u64 != 0 {
        return Err(Error::Invalid(format!(
            "{what}: {places} places cannot be sets of {ways} ways"
        )));
    }
    Ok(())
}

impl CacheGeometry {
    /// A cache that replaces the least recently used line.
    #[must_use]
    pub const fn lru(size_bytes: u64, ways: usize) -> Self {
        Self {
            size_bytes,
            ways,
            replacement: Replacement::Lru,
        }
    }

    fn check(&self, what: &str, line_bytes: u64) -> Result<()> {
        if self.size_bytes % line_bytes != 0 {
            return Err(Error::Invalid(format!(
                "{what}: {} is not a whole number of lines",
                size_text(self.size_bytes)
            )));
        }
        check_sets(what, self.size_bytes / line_bytes, self.ways)
    }
}

impl TlbGeometry {
    fn check(&self, what: &str) -> Result<()> {
        check_sets(what, self.small.entries, self.small.ways)?;
        match self.huge {
            HugeEntries::Own(own) => check_sets(what, own.entries, own.ways),
            HugeEntries::Shared | HugeEntries::Nowhere => Ok(()),
        }
    }
}

impl NextLine {
    /// Intel's DCU prefetcher, as the file of the machine i5-2467m describes it, with its source.
    #[must_use]
    pub const fn dcu() -> Self {
        Self { recent: 10 }
    }
}

impl Stride {
    /// Intel's IP-based stride prefetcher: strides of up to 2 KiB in both directions (same
    /// section). The manual does not give the number of instructions and repetitions; 256
    /// and 2 are assumed.
    #[must_use]
    pub const fn ip_based() -> Self {
        Self {
            instructions: 256,
            largest_bytes: 2 << 10,
            repeats: 2,
        }
    }
}

impl Prefetcher {
    /// Intel's L2 streamer, as the file of the machine i5-2467m describes it, with its source.
    #[must_use]
    pub const fn streamer() -> Self {
        Self {
            into: PrefetchInto::L2,
            streams: 32,
            trigger_steps: 2,
            degree: 2,
            distance: 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use memwarden_platform::cpus::CpuSet;

    use super::*;

    fn cache(level: u32, kind: Kind, size_kib: u64, ways: u64) -> Cache {
        Cache {
            level,
            kind,
            size_bytes: Some(size_kib << 10),
            line_bytes: Some(64),
            ways: Some(ways),
            cpus: CpuSet::default(),
        }
    }

    /// A virtual machine's share of a server whose last level is cut into 26 slices.
    fn server() -> Vec<Cache> {
        vec![
            cache(1, Kind::Instruction, 32, 8),
            cache(1, Kind::Data, 32, 8),
            cache(2, Kind::Unified, 1024, 16),
            cache(3, Kind::Unified, 36608, 11),
        ]
    }

    #[test]
    fn three_levels_are_read() {
        let geometry = Geometry::of_machine(&server()).unwrap().geometry;
        assert_eq!(geometry.l1d, CacheGeometry::lru(32 << 10, 8));
        assert_eq!(geometry.l2, Some(CacheGeometry::lru(1 << 20, 16)));
        assert_eq!(geometry.llc, CacheGeometry::lru(36608 << 10, 11));
    }

    #[test]
    fn of_two_levels_the_second_is_the_last() {
        let two = Geometry::of_machine(&server()[..3]).unwrap().geometry;
        assert_eq!(two.l2, None);
        assert_eq!(two.llc, CacheGeometry::lru(1 << 20, 16));
    }

    #[test]
    fn what_is_not_told_is_assumed_and_said() {
        let mut caches = server();
        caches[2].ways = None;
        let of = Geometry::of_machine(&caches).unwrap();
        assert_eq!(of.geometry.l2.unwrap().ways, 8);
        assert!(of.assumed.iter().any(|line| line == "L2 1 MiB has 8 ways"));
        assert!(of.assumed.iter().any(|line| line.contains("DTLB of 64")));
    }

    #[test]
    fn a_machine_that_tells_too_little_is_refused() {
        for caches in [&server()[..2], &server()[2..], &[]] {
            let error = Geometry::of_machine(caches).unwrap_err().to_string();
            assert!(error.contains("name a platform"), "{error}");
        }
        let mut caches = server();
        caches[3].line_bytes = Some(128);
        let error = Geometry::of_machine(&caches).unwrap_err().to_string();
        assert!(error.contains("another size"), "{error}");
    }

    #[test]
    fn what_cannot_be_built_is_refused() {
        let good = Geometry::of_machine(&server()).unwrap().geometry;
        let spoils: [fn(&mut Geometry); 10] = [
            |g| g.line_bytes = 48,
            |g| g.line_bytes = 8192,
            |g| g.l1d.size_bytes += 1,
            |g| g.l1d.ways = 7,
            |g| g.l2.as_mut().unwrap().ways = 0,
            |g| g.llc.size_bytes = 0,
            |g| g.llc.size_bytes = u64::MAX - 63,
            |g| g.dtlb.small.entries = 63,
            |g| g.dtlb.huge = HugeEntries::Nowhere,
            |g| g.prefetcher.as_mut().unwrap().streams = 0,
        ];
        for spoil in spoils {
            let mut geometry = good.clone();
            spoil(&mut geometry);
            assert!(geometry.check().is_err(), "{geometry:?}");
        }
    }
}
