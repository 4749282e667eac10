// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a machine has, as plain data: it can be read from and written to a file.

use memwarden_platform::cache::{Cache, Kind};
use memwarden_platform::units::size_text;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The caches and TLBs of one core, from the core outward.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Bytes a line, in every cache: a power of two, 16 to 4096.
    pub line_bytes: u64,
    /// The innermost data cache.
    pub l1d: CacheGeometry,
    /// What the L1D does with stores.
    #[serde(default)]
    pub l1d_writes: Writes,
    /// The cache between the L1D and the last level, if there is one.
    #[serde(default)]
    pub l2: Option<CacheGeometry>,
    /// The last cache before memory. If several cores share it, this one has it
    /// all to itself.
    pub llc: CacheGeometry,
    /// A line that leaves the last level leaves the other caches too. Otherwise
    /// each cache keeps what it has: a line comes into all of them and leaves
    /// each on its own (neither inclusive nor exclusive).
    #[serde(default)]
    pub inclusive_llc: bool,
    /// The TLB that every access asks.
    pub dtlb: TlbGeometry,
    /// The second-level TLB, if there is one.
    #[serde(default)]
    pub stlb: Option<TlbGeometry>,
    /// The prefetcher; `None` is switched off.
    #[serde(default)]
    pub prefetcher: Option<Prefetcher>,
}

/// One cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheGeometry {
    /// Bytes of data. Any number of sets will do, powers of two or not.
    pub size_bytes: u64,
    /// Lines a set.
    pub ways: usize,
    /// Which line of a full set goes.
    #[serde(default)]
    pub replacement: Replacement,
}

/// Which line of a full set goes.
///
/// It matters where a working set just fits. Sixteen walks over 32 KiB in an L1D
/// of 32 KiB and 4 ways miss once a line with LRU; with random replacement the
/// first walk throws out some of its own lines, the second throws out others for
/// those, and it takes about twice the misses until all are in
/// (`random_replacement_matters_to_a_working_set_that_just_fits`). Tree
/// pseudo-LRU, Intel's usual choice for an L1D, is not modelled: there, as with
/// LRU, a run of misses in one set replaces each of its ways once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// The least recently used.
    #[default]
    Lru,
    /// Any, by a generator that starts anew in each model: runs repeat exactly.
    Random,
}

/// What a cache does with stores. All behind the L1D write back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Writes {
    /// A missing line is fetched and written here; what is behind learns of it
    /// when the line is replaced.
    #[default]
    Back,
    /// Each store goes on to what is behind, and a missing line is not fetched.
    Through,
}

/// One TLB.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlbGeometry {
    /// What holds pages of 4 KiB.
    pub small: Entries,
    /// What holds pages of 2 MiB.
    pub huge: HugeEntries,
}

/// The places of a TLB; the least recently used page of a full set goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entries {
    /// How many pages in all.
    pub entries: u64,
    /// Pages a set; as many as `entries` is fully associative.
    pub ways: usize,
}

/// Where a TLB keeps pages of 2 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HugeEntries {
    /// Among the pages of 4 KiB.
    Shared,
    /// In entries of their own.
    Own(Entries),
    /// Nowhere: it is asked in vain. Possible for the STLB only.
    Nowhere,
}

/// A stream prefetcher: it looks at the demand accesses that miss in the L1D (and,
/// if it prefetches into the L1D, at the first one that finds a prefetched line).
/// Within a page of 4 KiB it takes ascending or descending ones for a stream, and
/// fetches the lines that come next, never beyond the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefetcher {
    /// Where the lines go. They also stay in the caches that they come through.
    pub into: PrefetchInto,
    /// Pages that it keeps in mind, the least recently seen being forgotten.
    pub streams: usize,
    /// Steps in one direction until it is taken for a stream.
    pub trigger_steps: u64,
    /// Lines that one access may have fetched.
    pub degree: u64,
    /// How many lines it may be ahead of the access.
    pub distance: u64,
}

/// Where prefetched lines go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrefetchInto {
    /// Into the L1D.
    L1d,
    /// Into the cache behind the L1D, be it the last level or not.
    L2,
}

/// The pages that an address is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PageSize {
    /// 4 KiB.
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

/// A geometry read from a machine, and what the machine did not tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfMachine {
    /// What to model.
    pub geometry: Geometry,
    /// One sentence for each part that was assumed; belongs under every table.
    pub assumed: Vec<String>,
}

impl Geometry {
    /// The caches that one CPU uses ([`memwarden_platform::cache::of_cpu`]), and
    /// for what sysfs does not tell, the following.
    ///
    /// - Ways: 8. All caches replace the least recently used, write back, and the
    ///   last level is not inclusive.
    /// - TLBs: those of Skylake, which many later x86 cores also have: 64 entries
    ///   with 4 ways for 4 KiB, 32 with 4 for 2 MiB, and behind them 1536 with 12
    ///   for both (Intel, Optimization Reference Manual, section on the Skylake
    ///   client microarchitecture's cache and memory subsystem).
    /// - Prefetcher: [`Prefetcher::streamer`].
    ///
    /// A cache at a fourth level or beyond is left out.
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
        };
        geometry.check()?;
        Ok(OfMachine { geometry, assumed })
    }

    /// Whether it can be modelled.
    ///
    /// # Errors
    /// With the first figure that cannot be, and why.
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
        match &self.prefetcher {
            Some(prefetcher) if prefetcher.streams == 0 || prefetcher.degree == 0 => {
                Err(Error::Invalid(
                    "a prefetcher without streams or degree: leave it out instead".into(),
                ))
            }
            _ => Ok(()),
        }
    }
}

/// More than any cache or TLB has, and little enough to be counted in any type.
const MOST_PLACES: u64 = 1 << 28;

/// Sets of `ways` places, of which there are `places`.
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
    /// A cache that replaces the least recently used.
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
                "{what}: {} is no whole number of lines",
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

impl Prefetcher {
    /// Intel's L2 streamer, as far as it is documented for Sandy Bridge: 32 streams,
    /// up to two prefetches for each access to the L2, and up to 20 lines ahead
    /// (Optimization Reference Manual, section "Data Prefetching" of the chapter on
    /// Sandy Bridge). After how many steps it starts is not said there; two is
    /// assumed. It may keep one stream in either direction in a page, here it is one.
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
