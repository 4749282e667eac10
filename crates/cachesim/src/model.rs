// SPDX-License-Identifier: MIT OR Apache-2.0
//! The path of an access through TLBs and caches.

use crate::Result;
use crate::ahead::{Recent, Strides};
use crate::counts::{CacheCounts, Counts, TlbCounts};
use crate::geometry::{
    CacheGeometry, Entries, Geometry, HugeEntries, PageSize, PrefetchInto, Replacement,
    TlbGeometry, Writes,
};
use crate::sets::{DIRTY, NONE, PREFETCHED, Sets};
use crate::streams::Streams;

/// The kind of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It reads memory.
    Load = 0,
    /// It writes memory.
    Store = 1,
}

/// The source of a request to a cache: an access, or the prefetcher.
type Asker = usize;
const LOAD: Asker = Access::Load as Asker;
const STORE: Asker = Access::Store as Asker;
const PREFETCH: Asker = 2;

/// The caches and TLBs of one core, empty at first, and their counters.
///
/// It allocates only when it is created.
#[derive(Debug, Clone)]
pub struct Model {
    /// A line's bytes, as a power of two.
    line_bits: u32,
    page: PageSize,
    /// Lines per page, as a power of two.
    page_line_bits: u32,
    /// The most recently used line, for loads; for stores too if it is known to be dirty.
    /// Another use only changes a count.
    last_line: [u64; 2],
    /// The most recently used page, for the same purpose.
    last_page: u64,
    /// Accesses, by [`Access`].
    accesses: [u64; 2],
    l1d: Level,
    l1d_writes: Writes,
    /// The cache between L1D and last level, if there is one.
    l2: Option<Level>,
    llc: Level,
    inclusive_llc: bool,
    /// The DTLB, and the TLB behind it.
    tlbs: Vec<Tlb>,
    prefetcher: Option<(PrefetchInto, Streams)>,
    next_line: Option<Recent>,
    stride: Option<Strides>,
    adjacent_line: bool,
    /// Whether there are prefetchers other than the stream prefetcher. Without them a miss takes a
    /// shorter path.
    more_prefetchers: bool,
}

/// A cache and its counts.
#[derive(Debug, Clone)]
struct Level {
    sets: Sets,
    /// By [`Asker`]; the L1D's own demand accesses are counted by the model.
    asked: [u64; 3],
    /// By [`Asker`].
    missed: [u64; 3],
    write_backs: u64,
}

/// A TLB and its counts.
#[derive(Debug, Clone)]
struct Tlb {
    small: Sets,
    huge: Huge,
    /// Added to the numbers of huge pages: more than any number of a page, and a multiple of the number of sets.
    huge_numbers: u64,
    /// By [`Access`].
    missed: [u64; 2],
}

#[derive(Debug, Clone)]
enum Huge {
    Shared,
    Own(Sets),
    Nowhere,
}

impl Model {
    /// A model of `geometry` with nothing in its caches, for pages of 4 KiB.
    ///
    /// # Errors
    /// When the geometry is not possible ([`Geometry::check`]).
    pub fn new(geometry: &Geometry) -> Result<Self> {
        geometry.check()?;
        let level = |cache: &CacheGeometry| Level::new(cache, geometry.line_bytes);
        let line_bits = geometry.line_bytes.trailing_zeros();
        Ok(Self {
            line_bits,
            page: PageSize::Small,
            page_line_bits: PageSize::Small.bits() - line_bits,
            last_line: [NONE; 2],
            last_page: NONE,
            accesses: [0; 2],
            l1d: level(&geometry.l1d),
            l1d_writes: geometry.l1d_writes,
            l2: geometry.l2.as_ref().map(|cache| level(cache).behind()),
            llc: level(&geometry.llc).behind(),
            inclusive_llc: geometry.inclusive_llc,
            tlbs: [&geometry.dtlb]
                .into_iter()
                .chain(&geometry.stlb)
                .map(Tlb::new)
                .collect(),
            prefetcher: geometry
                .prefetcher
                .as_ref()
                .map(|settings| (settings.into, Streams::new(settings, line_bits))),
            next_line: geometry
                .next_line
                .as_ref()
                .map(|settings| Recent::new(settings, line_bits)),
            stride: geometry.stride.as_ref().map(Strides::new),
            adjacent_line: geometry.adjacent_line,
            more_prefetchers: geometry.next_line.is_some()
                || geometry.stride.is_some()
                || geometry.adjacent_line,
        })
    }

    /// One load or store of `bytes` at `address`. It counts as one access to each line that it
    /// touches; with 0 bytes it counts as none.
    #[inline]
    pub fn access(&mut self, address: u64, bytes: u64, access: Access) {
        if bytes == 0 {
            return;
        }
        let first = address >> self.line_bits;
        let last = address.saturating_add(bytes - 1) >> self.line_bits;
        self.line(first, access);
        if last > first {
            self.more_lines(first + 1, last, access);
        }
    }

    /// The same access by a known instruction: any number that is the same each time. A stride
    /// prefetcher observes only these loads.
    #[inline]
    pub fn access_by(&mut self, instruction: u64, address: u64, bytes: u64, access: Access) {
        self.access(address, bytes, access);
        if let (Some(strides), Access::Load) = (&mut self.stride, access) {
            if let Some(next) = strides.train(instruction, address) {
                self.prefetch_into_l1d(next >> self.line_bits);
            }
        }
    }

    /// A stream of loads and stores of `bytes`, each at its offset from `base`.
    ///
    /// Inlined into a caller that is compiled for size, the loop would call a function for each access.
    #[inline(never)]
    pub fn stream(&mut self, base: u64, bytes: u64, stream: &[(u64, Access)]) {
        for (distance, access) in stream {
            self.access(base + distance, bytes, *access);
        }
    }

    /// The counts.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let dtlb = self.tlbs[0].counts(self.accesses);
        Counts {
            l1d: CacheCounts {
                loads: self.accesses[LOAD],
                stores: self.accesses[STORE],
                ..self.l1d.counts()
            },
            l2: self.l2.as_ref().map(Level::counts),
            llc: self.llc.counts(),
            dtlb,
            stlb: self
                .tlbs
                .get(1)
                .map(|stlb| stlb.counts(self.tlbs[0].missed)),
        }
    }

    /// Resets the counts; caches and TLBs keep their contents.
    pub fn reset_counts(&mut self) {
        self.accesses = [0; 2];
        for level in self.levels() {
            level.asked = [0; 3];
            level.missed = [0; 3];
            level.write_backs = 0;
        }
        for tlb in &mut self.tlbs {
            tlb.missed = [0; 2];
        }
    }

    /// Sets the page size of the following accesses. The TLBs keep their contents.
    pub fn set_page_size(&mut self, page: PageSize) {
        self.page = page;
        self.page_line_bits = page.bits() - self.line_bits;
        self.forget_last();
    }

    /// Empties all caches and TLBs, and the prefetchers' tables. Dirty lines are not counted as
    /// written back: the counters cover the stream only.
    pub fn flush(&mut self) {
        self.flush_data_caches();
        for tlb in &mut self.tlbs {
            tlb.clear();
        }
    }

    /// Empties the caches and the prefetchers' tables, as flushing every line of a buffer does
    /// (x86 `clflush`, arm64 `dc civac`). The TLBs keep their contents.
    pub fn flush_data_caches(&mut self) {
        for level in self.levels() {
            level.sets.clear();
        }
        if let Some((_, streams)) = &mut self.prefetcher {
            streams.clear();
        }
        if let Some(recent) = &mut self.next_line {
            recent.clear();
        }
        if let Some(strides) = &mut self.stride {
            strides.clear();
        }
        self.forget_last();
    }

    fn levels(&mut self) -> impl Iterator<Item = &mut Level> {
        [&mut self.l1d, &mut self.llc]
            .into_iter()
            .chain(&mut self.l2)
    }

    fn forget_last(&mut self) {
        self.last_line = [NONE; 2];
        self.last_page = NONE;
    }

    /// The other lines of an access that touches several.
    #[cold]
    fn more_lines(&mut self, first: u64, last: u64, access: Access) {
        for line in first..=last {
            self.line(line, access);
        }
    }

    /// The hot path: a line that is in the L1D, in most cases where the hint says.
    #[inline]
    fn line(&mut self, line: u64, access: Access) {
        self.accesses[access as usize] += 1;
        if self.last_line[access as usize] == line {
            return;
        }
        let page = line >> self.page_line_bits;
        if page != self.last_page {
            self.translate(page, access);
        }
        if access == Access::Store && self.l1d_writes == Writes::Through {
            return self.store_through(line);
        }
        let flags = if access == Access::Store { DIRTY } else { 0 };
        let Some(before) = self.l1d.sets.reuse(line, flags) else {
            return self.miss(line, access);
        };
        self.last_line = [
            line,
            if (before | flags) & DIRTY != 0 {
                line
            } else {
                NONE
            },
        ];
        if before & PREFETCHED != 0 {
            self.first_use(line, access);
        }
    }

    /// Finds the page in a TLB, or walks; all TLBs that missed then hold it.
    fn translate(&mut self, page: u64, access: Access) {
        self.last_page = page;
        let huge = self.page == PageSize::Huge;
        for tlb in &mut self.tlbs {
            if tlb.translate(page, huge) {
                return;
            }
            tlb.missed[access as usize] += 1;
        }
    }

    #[inline(never)]
    fn miss(&mut self, line: u64, access: Access) {
        self.l1d.missed[access as usize] += 1;
        if self.more_prefetchers {
            return self.bring_with_more(line, access);
        }
        self.bring(line, access);
        self.stream_on(line);
    }

    /// Returns whether the cache behind the L1D did not have it.
    #[inline]
    fn bring(&mut self, line: u64, access: Access) -> bool {
        let missed = self.fetch(line, access as Asker);
        let dirty = access == Access::Store;
        self.fill_l1d(line, if dirty { DIRTY } else { 0 });
        self.last_line = [line, if dirty { line } else { NONE }];
        missed
    }

    #[inline(never)]
    fn bring_with_more(&mut self, line: u64, access: Access) {
        let missed = self.bring(line, access);
        self.complete_pair(line, missed);
        self.next_line(line, access);
        self.stream_on(line);
    }

    /// The first access to a prefetched line. A stream prefetcher into the L2 does not observe it,
    /// since it is no request to the L2.
    #[inline]
    fn first_use(&mut self, line: u64, access: Access) {
        if self.more_prefetchers {
            return self.first_use_with_more(line, access);
        }
        self.stream_on(line);
    }

    #[inline(never)]
    fn first_use_with_more(&mut self, line: u64, access: Access) {
        self.next_line(line, access);
        if let Some((PrefetchInto::L1d, _)) = self.prefetcher {
            self.stream_on(line);
        }
    }

    /// A store to an L1D that writes through: the next level always gets it.
    #[cold]
    fn store_through(&mut self, line: u64) {
        match self.l1d.sets.reuse(line, 0) {
            Some(before) => {
                self.last_line = [line, NONE];
                self.store_behind(line);
                if before & PREFETCHED != 0 {
                    self.first_use(line, Access::Store);
                }
            }
            None => {
                self.l1d.missed[STORE] += 1;
                self.last_line = [NONE; 2];
                self.store_behind(line);
                self.stream_on(line);
            }
        }
    }

    /// A store that arrives at the cache behind the L1D.
    fn store_behind(&mut self, line: u64) {
        let missed = self.fetch(line, STORE);
        self.behind_l1d().update(line);
        self.complete_pair(line, missed);
    }

    #[inline]
    fn behind_l1d(&mut self) -> &mut Level {
        self.l2.as_mut().unwrap_or(&mut self.llc)
    }

    /// Ensures that the cache behind the L1D has `line`, and fetches it from further out if
    /// necessary. Lines come in from memory inward, so each victim is written back to a cache that
    /// already has the new line. Returns whether that cache did not have it.
    #[inline]
    fn fetch(&mut self, line: u64, asker: Asker) -> bool {
        let missed = !self.behind_l1d().request(line, asker);
        if missed {
            self.fetch_missing(line, asker);
        }
        missed
    }

    /// The same for a line that the cache behind the L1D was found not to have.
    fn fetch_missing(&mut self, line: u64, asker: Asker) {
        if self.l2.is_none() {
            return self.fill_llc(line, 0);
        }
        if !self.llc.request(line, asker) {
            self.fill_llc(line, 0);
        }
        self.fill_l2(line, 0);
    }

    /// A line that was missing in the cache behind the L1D brings the other line of its aligned
    /// pair there. That one brings no further pair: the first line is there.
    #[inline]
    fn complete_pair(&mut self, line: u64, missed: bool) {
        if missed && self.adjacent_line {
            self.fetch_other(line ^ 1);
        }
    }

    #[inline(never)]
    fn fetch_other(&mut self, line: u64) {
        let cache = self.behind_l1d();
        if cache.sets.search(line).is_none() {
            cache.asked[PREFETCH] += 1;
            cache.missed[PREFETCH] += 1;
            self.fetch_missing(line, PREFETCH);
        }
    }

    #[inline]
    fn fill_l1d(&mut self, line: u64, flags: u64) {
        let victim = self.l1d.sets.insert(line, flags);
        if let Some(dirty) = victim.filter(|victim| victim.dirty) {
            self.l1d.write_backs += 1;
            self.write_back_from_l1d(dirty.number);
        }
    }

    /// A dirty line comes out of the L1D. The whole line is valid, so nothing is fetched.
    fn write_back_from_l1d(&mut self, line: u64) {
        let Some(l2) = &mut self.l2 else {
            return self.write_back_to_llc(line);
        };
        if !l2.update(line) {
            self.fill_l2(line, DIRTY);
        }
    }

    #[inline]
    fn fill_l2(&mut self, line: u64, flags: u64) {
        let Some(l2) = &mut self.l2 else { return };
        let victim = l2.sets.insert(line, flags);
        if let Some(dirty) = victim.filter(|victim| victim.dirty) {
            l2.write_backs += 1;
            self.write_back_to_llc(dirty.number);
        }
    }

    fn write_back_to_llc(&mut self, line: u64) {
        if !self.llc.update(line) {
            self.fill_llc(line, DIRTY);
        }
    }

    fn fill_llc(&mut self, line: u64, flags: u64) {
        let Some(victim) = self.llc.sets.insert(line, flags) else {
            return;
        };
        let mut dirty = victim.dirty;
        if self.inclusive_llc {
            for cache in [Some(&mut self.l1d), self.l2.as_mut()]
                .into_iter()
                .flatten()
            {
                let copy = cache.sets.remove(victim.number);
                dirty |= copy.is_some_and(|copy| copy.dirty);
            }
            self.last_line = [NONE; 2];
        }
        self.llc.write_backs += u64::from(dirty);
    }

    /// Lets the L1D's next-line prefetcher observe an access that brought a line, or that was the
    /// first one to a prefetched line.
    fn next_line(&mut self, line: u64, access: Access) {
        if let Some(recent) = &mut self.next_line {
            if let Some(next) = recent.train(line, access == Access::Load) {
                self.prefetch_into_l1d(next);
            }
        }
    }

    /// Lets the stream prefetcher observe a request, and fetches the lines that it requests.
    fn stream_on(&mut self, line: u64) {
        let Some((into, streams)) = &mut self.prefetcher else {
            return;
        };
        let into = *into;
        let Some(ask) = streams.train(line) else {
            return;
        };
        for line in ask.lines() {
            match into {
                PrefetchInto::L1d => self.prefetch_into_l1d(line),
                PrefetchInto::L2 => {
                    let missed = self.fetch(line, PREFETCH);
                    self.complete_pair(line, missed);
                }
            }
        }
    }

    fn prefetch_into_l1d(&mut self, line: u64) {
        self.l1d.asked[PREFETCH] += 1;
        if self.l1d.sets.search(line).is_none() {
            self.l1d.missed[PREFETCH] += 1;
            if self.more_prefetchers {
                return self.fill_ahead_with_more(line);
            }
            self.fill_ahead(line);
        }
    }

    /// Returns whether the cache behind the L1D did not have it.
    #[inline]
    fn fill_ahead(&mut self, line: u64) -> bool {
        let missed = self.fetch(line, PREFETCH);
        self.fill_l1d(line, PREFETCHED);
        // This line is now the most recently used one.
        self.last_line = [NONE; 2];
        missed
    }

    /// A stream prefetcher into the L2 observes the requests of the L1D's prefetchers, too.
    #[inline(never)]
    fn fill_ahead_with_more(&mut self, line: u64) {
        let missed = self.fill_ahead(line);
        self.complete_pair(line, missed);
        if let Some((PrefetchInto::L2, _)) = self.prefetcher {
            self.stream_on(line);
        }
    }
}

impl Level {
    fn new(geometry: &CacheGeometry, line_bytes: u64) -> Self {
        let sets = geometry.size_bytes / line_bytes / geometry.ways as u64;
        Self {
            sets: Sets::new(sets, geometry.ways, geometry.replacement),
            asked: [0; 3],
            missed: [0; 3],
            write_backs: 0,
        }
    }

    /// The same behind the L1D, where a request mostly misses.
    fn behind(self) -> Self {
        Self {
            sets: self.sets.without_hints(),
            ..self
        }
    }

    /// Whether it has a requested line.
    #[inline]
    fn request(&mut self, line: u64, asker: Asker) -> bool {
        self.asked[asker] += 1;
        let found = self.sets.reuse_if_present(line, 0).is_some();
        self.missed[asker] += u64::from(!found);
        found
    }

    /// A dirty line comes out of the cache before this one. It is not a request, so no access is
    /// counted. Returns whether the line is here.
    fn update(&mut self, line: u64) -> bool {
        self.sets.reuse_if_present(line, DIRTY).is_some()
    }

    fn counts(&self) -> CacheCounts {
        CacheCounts {
            loads: self.asked[LOAD],
            load_misses: self.missed[LOAD],
            stores: self.asked[STORE],
            store_misses: self.missed[STORE],
            prefetches: self.asked[PREFETCH],
            prefetch_misses: self.missed[PREFETCH],
            write_backs: self.write_backs,
        }
    }
}

impl Tlb {
    fn new(geometry: &TlbGeometry) -> Self {
        let sets = |of: Entries| Sets::new(of.entries / of.ways as u64, of.ways, Replacement::Lru);
        Self {
            small: sets(geometry.small),
            huge: match geometry.huge {
                HugeEntries::Shared => Huge::Shared,
                HugeEntries::Own(own) => Huge::Own(sets(own)),
                HugeEntries::Nowhere => Huge::Nowhere,
            },
            huge_numbers: {
                let sets = geometry.small.entries / geometry.small.ways as u64;
                (1_u64 << 60).next_multiple_of(sets)
            },
            missed: [0; 2],
        }
    }

    /// Whether the page was present; it is afterwards.
    fn translate(&mut self, page: u64, huge: bool) -> bool {
        let (sets, number) = match &mut self.huge {
            Huge::Nowhere if huge => return false,
            Huge::Own(own) if huge => (own, page),
            Huge::Shared if huge => (&mut self.small, self.huge_numbers + page),
            _ => (&mut self.small, page),
        };
        let found = sets.reuse(number, 0).is_some();
        if !found {
            sets.insert(number, 0);
        }
        found
    }

    fn clear(&mut self) {
        self.small.clear();
        if let Huge::Own(own) = &mut self.huge {
            own.clear();
        }
    }

    /// Its counts, given the number of requests.
    fn counts(&self, [loads, stores]: [u64; 2]) -> TlbCounts {
        TlbCounts {
            loads,
            load_misses: self.missed[LOAD],
            stores,
            store_misses: self.missed[STORE],
        }
    }
}
