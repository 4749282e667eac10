// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the model with a second one that is written for readability only: each set is a
//! list of lines, the most recently used at its end. Random streams, random geometries; every
//! counter must agree.

use std::collections::HashMap;

use memwarden_cachesim::counts::{CacheCounts, Counts, TlbCounts};
use memwarden_cachesim::geometry::{
    CacheGeometry, Entries, HugeEntries, NextLine, PerfEvents, PrefetchInto, Prefetcher, Stride,
    TlbGeometry, Writes,
};
use memwarden_cachesim::{Access, Geometry, Model, PageSize};

/// The source of a request.
#[derive(Clone, Copy, PartialEq)]
enum Asker {
    Load,
    Store,
    Prefetcher,
}

/// A line in a cache.
#[derive(Clone)]
struct Line {
    number: u64,
    dirty: bool,
    prefetched: bool,
}

struct Cache {
    sets: Vec<Vec<Line>>,
    ways: usize,
    counts: CacheCounts,
}

impl Cache {
    fn new(geometry: &CacheGeometry, line_bytes: u64) -> Self {
        let sets = geometry.size_bytes / line_bytes / geometry.ways as u64;
        Self {
            sets: vec![Vec::new(); usize::try_from(sets).unwrap()],
            ways: geometry.ways,
            counts: CacheCounts::default(),
        }
    }

    fn set(&mut self, number: u64) -> &mut Vec<Line> {
        let sets = self.sets.len() as u64;
        &mut self.sets[usize::try_from(number % sets).unwrap()]
    }

    fn take(&mut self, number: u64) -> Option<Line> {
        let set = self.set(number);
        let at = set.iter().position(|line| line.number == number)?;
        Some(set.remove(at))
    }

    /// The victim, if the set was full.
    fn put(&mut self, line: Line) -> Option<Line> {
        let ways = self.ways;
        let set = self.set(line.number);
        set.push(line);
        (set.len() > ways).then(|| set.remove(0))
    }

    /// Whether it was present; makes it the most recently used.
    fn use_line(&mut self, number: u64) -> bool {
        let Some(line) = self.take(number) else {
            return false;
        };
        self.put(line);
        true
    }

    fn ask(&mut self, asker: Asker, hit: bool) {
        let counts = &mut self.counts;
        let (asked, missed) = match asker {
            Asker::Load => (&mut counts.loads, &mut counts.load_misses),
            Asker::Store => (&mut counts.stores, &mut counts.store_misses),
            Asker::Prefetcher => (&mut counts.prefetches, &mut counts.prefetch_misses),
        };
        *asked += 1;
        *missed += u64::from(!hit);
    }
}

/// Pages by set, the most recently used at its set's end.
type Pages = Vec<Vec<(u64, PageSize)>>;

struct Tlb {
    small: Pages,
    own: Option<(Pages, usize)>,
    huge: HugeEntries,
    ways: usize,
    counts: TlbCounts,
}

impl Tlb {
    fn new(geometry: &TlbGeometry) -> Self {
        let sets = |of: Entries| vec![Vec::new(); usize::try_from(of.entries).unwrap() / of.ways];
        Self {
            small: sets(geometry.small),
            own: match geometry.huge {
                HugeEntries::Own(own) => Some((sets(own), own.ways)),
                _ => None,
            },
            huge: geometry.huge,
            ways: geometry.small.ways,
            counts: TlbCounts::default(),
        }
    }

    fn translate(&mut self, address: u64, size: PageSize, access: Access) -> bool {
        let page = address >> size.bits();
        let hit = if size == PageSize::Huge && self.huge == HugeEntries::Nowhere {
            false
        } else {
            let (sets, ways) = match &mut self.own {
                Some((sets, ways)) if size == PageSize::Huge => (sets, *ways),
                _ => (&mut self.small, self.ways),
            };
            let count = sets.len() as u64;
            let set = &mut sets[usize::try_from(page % count).unwrap()];
            let at = set.iter().position(|held| *held == (page, size));
            if let Some(at) = at {
                set.remove(at);
            }
            set.push((page, size));
            if set.len() > ways {
                set.remove(0);
            }
            at.is_some()
        };
        let counts = &mut self.counts;
        let (asked, missed) = match access {
            Access::Load => (&mut counts.loads, &mut counts.load_misses),
            Access::Store => (&mut counts.stores, &mut counts.store_misses),
        };
        *asked += 1;
        *missed += u64::from(!hit);
        hit
    }
}

/// A page that the prefetcher tracks: lines are counted within it.
struct Stream {
    page: u64,
    line: i64,
    direction: i64,
    steps: u64,
    furthest: i64,
}

struct Naive {
    geometry: Geometry,
    size: PageSize,
    /// L1D first.
    caches: Vec<Cache>,
    tlbs: Vec<Tlb>,
    /// The most recently seen at the end.
    streams: Vec<Stream>,
    /// Lines that were brought or first used, the last at the end.
    recent: Vec<u64>,
    /// By entry of the table: the instruction, its addresses, the last at the end.
    instructions: HashMap<usize, (u64, Vec<i64>)>,
}

impl Naive {
    fn new(geometry: &Geometry) -> Self {
        let cache = |cache: &CacheGeometry| Cache::new(cache, geometry.line_bytes);
        let mut caches = vec![cache(&geometry.l1d)];
        caches.extend(geometry.l2.as_ref().map(cache));
        caches.push(cache(&geometry.llc));
        let mut tlbs = vec![Tlb::new(&geometry.dtlb)];
        tlbs.extend(geometry.stlb.as_ref().map(Tlb::new));
        Self {
            geometry: geometry.clone(),
            size: PageSize::Small,
            caches,
            tlbs,
            streams: Vec::new(),
            recent: Vec::new(),
            instructions: HashMap::new(),
        }
    }

    fn access(&mut self, address: u64, bytes: u64, access: Access) {
        let line_bytes = self.geometry.line_bytes;
        for line in address / line_bytes..=(address + bytes - 1) / line_bytes {
            for tlb in &mut self.tlbs {
                if tlb.translate(line * line_bytes, self.size, access) {
                    break;
                }
            }
            self.line(line, access);
        }
    }

    fn line(&mut self, number: u64, access: Access) {
        let store = access == Access::Store;
        let through = store && self.geometry.l1d_writes == Writes::Through;
        let found = self.caches[0].take(number);
        let asker = if store { Asker::Store } else { Asker::Load };
        self.caches[0].ask(asker, found.is_some());
        let missed = found.is_none();
        let mut first_use = false;
        let mut brought = false;
        if let Some(line) = found {
            first_use = line.prefetched;
            let dirty = line.dirty || store && !through;
            self.caches[0].put(Line {
                number,
                dirty,
                prefetched: false,
            });
        } else if !through {
            brought = self.bring(1, number, asker);
            self.install(
                0,
                Line {
                    number,
                    dirty: store,
                    prefetched: false,
                },
            );
        }
        if through {
            brought = self.bring(1, number, Asker::Store);
            self.caches[1].set(number).last_mut().unwrap().dirty = true;
        }
        self.complete_pair(number, brought);
        if first_use || missed && !through {
            self.next_line(number, store);
        }
        let settings = self.geometry.prefetcher.as_ref();
        if missed || first_use && settings.is_some_and(|one| one.into == PrefetchInto::L1d) {
            self.train(number);
        }
    }

    fn next_line(&mut self, number: u64, store: bool) {
        let Some(settings) = &self.geometry.next_line else {
            return;
        };
        let ascends = number > 0 && self.recent.contains(&(number - 1));
        self.recent.push(number);
        if self.recent.len() > settings.recent {
            self.recent.remove(0);
        }
        let page = |line| line * self.geometry.line_bytes / 4096;
        if ascends && !store && page(number) == page(number + 1) {
            self.prefetch_into_l1d(number + 1);
        }
    }

    fn load_by(&mut self, instruction: u64, address: u64) {
        let Some(settings) = &self.geometry.stride else {
            return;
        };
        let at = usize::try_from(instruction).unwrap() % settings.instructions;
        let entry = self.instructions.entry(at).or_default();
        if entry.0 != instruction || entry.1.is_empty() {
            *entry = (instruction, Vec::new());
        }
        entry.1.push(i64::try_from(address).unwrap());
        let strides: Vec<i64> = entry.1.windows(2).map(|two| two[1] - two[0]).collect();
        let Some(stride) = strides.last() else {
            return;
        };
        let same = strides.iter().rev().take_while(|one| *one == stride);
        let repeats = same.count() as u64 - 1;
        let next = address.wrapping_add_signed(*stride);
        let possible = *stride != 0 && stride.unsigned_abs() <= settings.largest_bytes;
        if possible && repeats >= settings.repeats && next / 4096 == address / 4096 {
            self.prefetch_into_l1d(next / self.geometry.line_bytes);
        }
    }

    fn prefetch_into_l1d(&mut self, number: u64) {
        let hit = self.caches[0]
            .set(number)
            .iter()
            .any(|line| line.number == number);
        self.caches[0].ask(Asker::Prefetcher, hit);
        if hit {
            return;
        }
        let brought = self.bring(1, number, Asker::Prefetcher);
        self.install(
            0,
            Line {
                number,
                dirty: false,
                prefetched: true,
            },
        );
        self.complete_pair(number, brought);
        let settings = self.geometry.prefetcher.as_ref();
        if settings.is_some_and(|one| one.into == PrefetchInto::L2) {
            self.train(number);
        }
    }

    fn complete_pair(&mut self, number: u64, brought: bool) {
        let other = number ^ 1;
        let absent = !self.caches[1]
            .set(other)
            .iter()
            .any(|line| line.number == other);
        if self.geometry.adjacent_line && brought && absent {
            self.bring(1, other, Asker::Prefetcher);
        }
    }

    /// Ensures that `level` has the line, as the most recently used one. Returns whether it did
    /// not.
    fn bring(&mut self, level: usize, number: u64, asker: Asker) -> bool {
        if level == self.caches.len() {
            return false;
        }
        let hit = self.caches[level].use_line(number);
        self.caches[level].ask(asker, hit);
        if !hit {
            self.bring(level + 1, number, asker);
            self.install(
                level,
                Line {
                    number,
                    dirty: false,
                    prefetched: false,
                },
            );
        }
        !hit
    }

    fn install(&mut self, level: usize, line: Line) {
        let Some(mut victim) = self.caches[level].put(line) else {
            return;
        };
        if self.geometry.inclusive_llc && level + 1 == self.caches.len() {
            for inner in &mut self.caches[..level] {
                if let Some(copy) = inner.take(victim.number) {
                    victim.dirty |= copy.dirty;
                }
            }
        }
        if !victim.dirty {
            return;
        }
        self.caches[level].counts.write_backs += 1;
        if level + 1 == self.caches.len() {
            return;
        }
        match self.caches[level + 1].take(victim.number) {
            Some(_) => {
                self.caches[level + 1].put(Line {
                    prefetched: false,
                    ..victim
                });
            }
            None => self.install(
                level + 1,
                Line {
                    prefetched: false,
                    ..victim
                },
            ),
        }
    }

    fn train(&mut self, number: u64) {
        let Some(settings) = self.geometry.prefetcher.clone() else {
            return;
        };
        let lines_a_page = 4096 / self.geometry.line_bytes;
        let page = number / lines_a_page;
        let line = i64::try_from(number % lines_a_page).unwrap();
        let Some(at) = self.streams.iter().position(|stream| stream.page == page) else {
            self.streams.push(Stream {
                page,
                line,
                direction: 0,
                steps: 0,
                furthest: 0,
            });
            if self.streams.len() > settings.streams {
                self.streams.remove(0);
            }
            return;
        };
        let mut stream = self.streams.remove(at);
        let mut wanted = Vec::new();
        let direction = (line - stream.line).signum();
        if direction != 0 {
            stream.line = line;
            if direction != stream.direction {
                stream.direction = direction;
                stream.steps = 0;
                stream.furthest = line;
            }
            stream.steps += 1;
            if stream.steps >= settings.trigger_steps {
                for ahead in 1..=i64::try_from(settings.distance).unwrap() {
                    let next = line + ahead * direction;
                    let new = (next - stream.furthest) * direction > 0;
                    let within = (0..i64::try_from(lines_a_page).unwrap()).contains(&next);
                    if new && within && (wanted.len() as u64) < settings.degree {
                        wanted.push(next);
                    }
                }
                if (line - stream.furthest) * direction > 0 {
                    stream.furthest = line;
                }
                stream.furthest = wanted.last().copied().unwrap_or(stream.furthest);
            }
        }
        self.streams.push(stream);
        for line in wanted {
            let number = page * lines_a_page + u64::try_from(line).unwrap();
            match settings.into {
                PrefetchInto::L2 => {
                    let brought = self.bring(1, number, Asker::Prefetcher);
                    self.complete_pair(number, brought);
                }
                PrefetchInto::L1d => self.prefetch_into_l1d(number),
            }
        }
    }

    fn flush_data_caches(&mut self) {
        for cache in &mut self.caches {
            cache.sets.iter_mut().for_each(Vec::clear);
        }
        self.streams.clear();
        self.recent.clear();
        self.instructions.clear();
    }

    fn flush(&mut self) {
        self.flush_data_caches();
        for tlb in &mut self.tlbs {
            tlb.small.iter_mut().for_each(Vec::clear);
            if let Some((own, _)) = &mut tlb.own {
                own.iter_mut().for_each(Vec::clear);
            }
        }
    }

    fn counts(&self) -> Counts {
        Counts {
            l1d: self.caches[0].counts,
            l2: (self.caches.len() == 3).then(|| self.caches[1].counts),
            llc: self.caches.last().unwrap().counts,
            dtlb: self.tlbs[0].counts,
            stlb: self.tlbs.get(1).map(|stlb| stlb.counts),
        }
    }
}

fn any_geometry(rng: &mut fastrand::Rng) -> Geometry {
    let line_bytes = 1 << rng.u64(4..=8);
    fn cache(rng: &mut fastrand::Rng, line_bytes: u64, most_sets: u64) -> CacheGeometry {
        let ways = rng.usize(1..=9);
        CacheGeometry::lru(rng.u64(1..=most_sets) * ways as u64 * line_bytes, ways)
    }
    fn entries(rng: &mut fastrand::Rng) -> Entries {
        let ways = rng.usize(1..=6);
        Entries {
            entries: rng.u64(1..=5) * ways as u64,
            ways,
        }
    }
    fn tlb(rng: &mut fastrand::Rng, kinds: u8) -> TlbGeometry {
        TlbGeometry {
            small: entries(rng),
            huge: match rng.u8(..kinds) {
                0 => HugeEntries::Shared,
                1 => HugeEntries::Own(entries(rng)),
                _ => HugeEntries::Nowhere,
            },
        }
    }
    Geometry {
        line_bytes,
        l1d: cache(rng, line_bytes, 6),
        l1d_writes: if rng.u8(..4) == 0 {
            Writes::Through
        } else {
            Writes::Back
        },
        l2: rng.bool().then(|| cache(rng, line_bytes, 12)),
        // Sometimes smaller than the cache before it.
        llc: cache(rng, line_bytes, 24),
        inclusive_llc: rng.bool(),
        dtlb: tlb(rng, 2),
        stlb: rng.bool().then(|| tlb(rng, 3)),
        prefetcher: rng.bool().then(|| Prefetcher {
            into: if rng.bool() {
                PrefetchInto::L1d
            } else {
                PrefetchInto::L2
            },
            streams: rng.usize(1..=4),
            trigger_steps: rng.u64(0..=3),
            degree: rng.u64(1..=4),
            distance: rng.u64(0..=9),
        }),
        next_line: rng.bool().then(|| NextLine {
            recent: rng.usize(1..=4),
        }),
        stride: rng.bool().then(|| Stride {
            instructions: rng.usize(1..=3),
            largest_bytes: 1 << rng.u32(4..=11),
            repeats: rng.u64(1..=3),
        }),
        adjacent_line: rng.bool(),
        perf_events: PerfEvents::Demand,
    }
}

#[test]
fn every_counter_agrees_with_a_naive_model() {
    let seeds = 600;
    let mut busy = [0_u64; 4];
    for seed in 0..seeds {
        let mut rng = fastrand::Rng::with_seed(seed);
        let geometry = any_geometry(&mut rng);
        let mut model = Model::new(&geometry).unwrap();
        let mut naive = Naive::new(&geometry);
        let far = 1 << rng.u32(8..20);
        let mut address = 0;
        for step in 0..3000 {
            match rng.u32(..1000) {
                0 => {
                    model.flush();
                    naive.flush();
                }
                1 => {
                    model.flush_data_caches();
                    naive.flush_data_caches();
                }
                2..=5 => {
                    let size = if rng.bool() {
                        PageSize::Small
                    } else {
                        PageSize::Huge
                    };
                    model.set_page_size(size);
                    naive.size = size;
                }
                6..=99 => address = rng.u64(..far) + if rng.u8(..4) == 0 { 1 << 40 } else { 0 },
                100..=399 => address += geometry.line_bytes,
                400..=599 => address = address.saturating_sub(geometry.line_bytes),
                600..=799 => address = rng.u64(..far),
                _ => {}
            }
            let access = if rng.u8(..3) == 0 {
                Access::Store
            } else {
                Access::Load
            };
            let bytes = [1, 8, 16, 300][rng.usize(..4)];
            if rng.u8(..4) == 0 {
                model.access(address, bytes, access);
                naive.access(address, bytes, access);
            } else {
                let instruction = rng.u64(..10) / 7;
                model.access_by(instruction, address, bytes, access);
                naive.access(address, bytes, access);
                if access == Access::Load {
                    naive.load_by(instruction, address);
                }
            }
            assert_eq!(
                model.counts(),
                naive.counts(),
                "seed {seed}, step {step}: {geometry:?}"
            );
        }
        let counts = model.counts();
        busy[0] += u64::from(counts.l1d.prefetch_misses > 0);
        busy[1] += u64::from(counts.l2.is_some_and(|l2| l2.write_backs > 0));
        busy[2] += u64::from(counts.llc.write_backs > 0);
        busy[3] += u64::from(
            counts
                .stlb
                .is_some_and(|stlb| stlb.loads > stlb.load_misses),
        );
    }
    assert!(
        busy.iter().all(|times| *times > seeds / 10),
        "a stream that tries little: {busy:?}"
    );
}
