// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams whose counts can be derived in advance.

mod patterns;

use memwarden_cachesim::geometry::{
    CacheGeometry, Entries, HugeEntries, NextLine, PerfEvents, PrefetchInto, Prefetcher,
    Replacement, Stride, TlbGeometry, Writes,
};
use memwarden_cachesim::{Access, Counts, Geometry, Model, PageSize, platforms};
use patterns::MmapWalk;

const LINE: u64 = 64;

/// L1D 2 KiB (8 sets of 4), L2 8 KiB (16 of 8), last level 24 KiB (24 of 16), DTLB
/// 8 with 2 ways and 4 for huge pages, STLB 32 with 4 ways; no prefetcher.
fn small() -> Geometry {
    let entries = |entries, ways| Entries { entries, ways };
    Geometry {
        line_bytes: LINE,
        l1d: CacheGeometry::lru(2 << 10, 4),
        l1d_writes: Writes::Back,
        l2: Some(CacheGeometry::lru(8 << 10, 8)),
        llc: CacheGeometry::lru(24 << 10, 16),
        inclusive_llc: false,
        dtlb: TlbGeometry {
            small: entries(8, 2),
            huge: HugeEntries::Own(entries(4, 4)),
        },
        stlb: Some(TlbGeometry {
            small: entries(32, 4),
            huge: HugeEntries::Nowhere,
        }),
        prefetcher: None,
        next_line: None,
        stride: None,
        adjacent_line: false,
        perf_events: PerfEvents::Demand,
    }
}

/// The counts of `times` rounds of `lines` on `geometry`.
fn rounds(geometry: &Geometry, times: u64, lines: &[u64], access: Access) -> Counts {
    let mut model = Model::new(geometry).unwrap();
    for _ in 0..times {
        for line in lines {
            model.access(line * LINE, 8, access);
        }
    }
    model.counts()
}

fn lines(count: u64, stride: u64) -> Vec<u64> {
    (0..count).map(|line| line * stride).collect()
}

#[test]
fn a_sequential_walk_misses_once_a_line_at_every_level() {
    let mut model = Model::new(&small()).unwrap();
    for word in 0..10_000 {
        model.access(8 * word, 8, Access::Load);
    }
    let counts = model.counts();
    assert_eq!(counts.l1d.loads, 10_000);
    for misses in [counts.l1d, counts.l2.unwrap(), counts.llc] {
        assert_eq!(misses.load_misses, 10_000 * 8 / LINE);
    }
    assert_eq!(counts.l2.unwrap().loads, counts.l1d.load_misses);
    assert_eq!(counts.llc.loads, counts.l2.unwrap().load_misses);
    assert_eq!(counts.dtlb.loads, 10_000);
    assert_eq!(counts.page_walks(), 80_000_u64.div_ceil(4096));
    assert_eq!(
        counts.l1d.stores + counts.l1d.prefetches + counts.l1d.write_backs,
        0
    );
}

#[test]
fn an_access_is_one_to_each_line_it_touches() {
    let mut model = Model::new(&small()).unwrap();
    model.access(LINE - 1, 1, Access::Load);
    model.access(LINE - 4, 8, Access::Store);
    model.access(3 * LINE, 4 * LINE, Access::Store);
    model.access(5, 0, Access::Store);
    model.access(u64::MAX, 8, Access::Load);
    let counts = model.counts();
    assert_eq!((counts.l1d.loads, counts.l1d.stores), (2, 6));
    assert_eq!((counts.l1d.load_misses, counts.l1d.store_misses), (2, 5));
    assert_eq!((counts.dtlb.loads, counts.dtlb.stores), (2, 6));
}

#[test]
fn what_fits_misses_once() {
    let counts = rounds(&small(), 10, &lines(32, 1), Access::Load);
    assert_eq!(counts.l1d.load_misses, 32);
    let counts = rounds(&small(), 10, &lines(128, 1), Access::Load);
    assert_eq!(
        counts.l1d.load_misses,
        10 * 128,
        "four times the L1D, cyclic"
    );
    assert_eq!(counts.l2.unwrap().load_misses, 128);
    let counts = rounds(&small(), 10, &lines(384, 1), Access::Load);
    assert_eq!(counts.l2.unwrap().load_misses, 10 * 384);
    assert_eq!(counts.llc.load_misses, 384, "24 sets are no power of two");
}

#[test]
fn a_cyclic_walk_over_one_line_more_than_ways_always_misses() {
    // 8 sets of 4 ways; a stride of 8 lines stays in one set.
    let counts = rounds(&small(), 10, &lines(4, 8), Access::Load);
    assert_eq!(counts.l1d.load_misses, 4);
    let counts = rounds(&small(), 10, &lines(5, 8), Access::Load);
    assert_eq!(counts.l1d.load_misses, 50);
    // One more in every set.
    let counts = rounds(&small(), 10, &lines(5 * 8, 1), Access::Load);
    assert_eq!(counts.l1d.load_misses, 400);
    // 24 sets of 16 ways; all of these share a set of the L2 too.
    let counts = rounds(&small(), 10, &lines(16, 48), Access::Load);
    assert_eq!(counts.llc.load_misses, 16);
    let counts = rounds(&small(), 10, &lines(17, 48), Access::Load);
    assert_eq!(counts.llc.load_misses, counts.llc.loads);
}

#[test]
fn strides_that_share_sets_fit_as_many_lines_as_those_sets_hold() {
    // Of 8 sets a stride of 2^k lines uses 8 / 2^k, each with 4 ways.
    for (stride, fit) in [(1, 32), (2, 16), (4, 8), (8, 4), (16, 4), (3, 32), (5, 32)] {
        let counts = rounds(&small(), 3, &lines(fit, stride), Access::Load);
        assert_eq!(counts.l1d.load_misses, fit, "stride {stride} fits");
        let counts = rounds(&small(), 3, &lines(2 * fit, stride), Access::Load);
        assert_eq!(counts.l1d.load_misses, 6 * fit, "stride {stride} does not");
    }
}

#[test]
fn every_dirty_line_is_written_back_once_when_it_is_replaced() {
    // Each level holds the last lines of the walk; the ones before were replaced.
    let counts = rounds(&small(), 1, &lines(1000, 1), Access::Store);
    assert_eq!(counts.l1d.store_misses, 1000);
    assert_eq!(counts.l1d.write_backs, 1000 - 32);
    assert_eq!(counts.l2.unwrap().stores, 1000, "asked to own them");
    // A write-back finds its line in the L2, as the L2 is larger, and makes it the most
    // recently used: the L2 holds the 32 lines of the L1D, clean, and 96 dirty ones.
    assert_eq!(counts.l2.unwrap().write_backs, 1000 - 128);
    let counts = rounds(&small(), 1, &lines(1000, 1), Access::Load);
    assert_eq!(counts.l1d.write_backs + counts.llc.write_backs, 0);
}

#[test]
fn stores_to_lines_that_stay_are_never_written_back() {
    let counts = rounds(&small(), 100, &lines(32, 1), Access::Store);
    assert_eq!(counts.l1d.store_misses, 32);
    assert_eq!(counts.l1d.write_backs, 0);
}

#[test]
fn an_l1d_that_writes_through_allocates_on_loads_only() {
    let mut geometry = small();
    geometry.l1d_writes = Writes::Through;
    let mut model = Model::new(&geometry).unwrap();
    for _ in 0..3 {
        model.access(0, 8, Access::Store);
    }
    model.access(0, 8, Access::Load);
    for _ in 0..3 {
        model.access(0, 8, Access::Store);
    }
    let counts = model.counts();
    assert_eq!((counts.l1d.stores, counts.l1d.store_misses), (6, 3));
    assert_eq!((counts.l1d.loads, counts.l1d.load_misses), (1, 1));
    let l2 = counts.l2.unwrap();
    assert_eq!(
        (l2.stores, l2.store_misses),
        (6, 1),
        "all of them, and the first missed"
    );
    assert_eq!((l2.loads, l2.load_misses), (1, 0));
    let counts = rounds(&geometry, 1, &lines(1000, 1), Access::Store);
    assert_eq!(counts.l1d.write_backs, 0, "it never has a dirty line");
    assert_eq!(counts.l2.unwrap().write_backs, 1000 - 128);
}

#[test]
fn an_inclusive_last_level_takes_its_lines_back() {
    // One line is used all the time, so that the last level never sees it again and
    // replaces it after 16 others of its set.
    let count = |inclusive_llc| {
        let mut geometry = small();
        geometry.inclusive_llc = inclusive_llc;
        let mut model = Model::new(&geometry).unwrap();
        for line in 1..=33 {
            model.access(0, 8, Access::Load);
            model.access(24 * LINE * line, 8, Access::Load);
        }
        model.counts().l1d.load_misses
    };
    assert_eq!(count(false), 1 + 33);
    assert_eq!(count(true), 1 + 33 + 2);
}

#[test]
fn tlbs_miss_as_caches_do() {
    let walk = |pages: u64, rounds: u64, page_bytes: u64, size| {
        let mut model = Model::new(&small()).unwrap();
        model.set_page_size(size);
        for round in 0..rounds {
            for page in 0..pages {
                let access = if round % 2 == 0 {
                    Access::Load
                } else {
                    Access::Store
                };
                model.access(page * page_bytes + 128 * page % 4096, 8, access);
            }
        }
        model.counts()
    };
    let small = |pages| walk(pages, 4, 4096, PageSize::Small);
    assert_eq!(small(8).dtlb.misses(), 8, "what fits");
    let counts = small(16);
    assert_eq!(
        (counts.dtlb.load_misses, counts.dtlb.store_misses),
        (32, 32)
    );
    assert_eq!(counts.dtlb.loads, 32);
    let stlb = counts.stlb.unwrap();
    assert_eq!((stlb.loads, stlb.stores), (32, 32));
    assert_eq!((stlb.load_misses, stlb.store_misses), (16, 0));
    assert_eq!(counts.page_walks(), 16);
    assert_eq!(small(64).page_walks(), 4 * 64, "twice the STLB, cyclic");

    let huge = |pages| walk(pages, 4, 2 << 20, PageSize::Huge);
    assert_eq!(huge(4).page_walks(), 4);
    assert_eq!(huge(5).page_walks(), 20, "the STLB holds no huge pages");
    // 5 huge pages are 2560 small ones, but each is touched in one place only.
    assert_eq!(
        walk(5, 4, 2 << 20, PageSize::Small).dtlb.misses(),
        20,
        "one set of 2 ways"
    );
}

#[test]
fn a_shared_tlb_keeps_both_page_sizes_apart() {
    let mut geometry = small();
    geometry.dtlb.huge = HugeEntries::Shared;
    geometry.stlb = None;
    let mut model = Model::new(&geometry).unwrap();
    for size in [
        PageSize::Small,
        PageSize::Huge,
        PageSize::Small,
        PageSize::Huge,
    ] {
        model.set_page_size(size);
        model.access(0, 8, Access::Load);
    }
    assert_eq!(model.counts().page_walks(), 2);
    assert_eq!(model.counts().stlb, None);
}

#[test]
fn flushes_empty_what_they_say() {
    let mut model = Model::new(&platforms::named("i5-2467m").unwrap()).unwrap();
    let touch = |model: &mut Model| {
        model.reset_counts();
        model.access(64, 8, Access::Store);
        let counts = model.counts();
        (
            counts.l1d.misses(),
            counts.llc.misses(),
            counts.page_walks(),
        )
    };
    assert_eq!(touch(&mut model), (1, 1, 1));
    assert_eq!(touch(&mut model), (0, 0, 0));
    model.flush_data_caches();
    assert_eq!(touch(&mut model), (1, 1, 0));
    model.flush();
    assert_eq!(touch(&mut model), (1, 1, 1));
    assert_eq!(model.counts().llc.write_backs, 0);
}

#[test]
fn the_mmap_walk_misses_once_a_line_and_step() {
    // A span that fills the L1D exactly, in a buffer larger than all caches.
    for random in [None, Some(7)] {
        let walk = MmapWalk {
            lines: 1 << 14,
            outer: 50,
            locality: 16,
            span: 32,
            random,
        };
        let mut model = Model::new(&small()).unwrap();
        walk.feed(|line, access| model.access(LINE * line, 8, access));
        let counts = model.counts();
        assert_eq!(counts.l1d.loads, 50 * 16 * 28);
        assert_eq!(counts.l1d.stores, 50 * 16 * 4);
        assert_eq!(counts.l1d.load_misses, 50 * 28, "random: {random:?}");
        assert_eq!(counts.l1d.store_misses, 50 * 4);
        assert_eq!(counts.l1d.write_backs, 49 * 4);
        if random.is_none() {
            assert_eq!(counts.llc.misses(), 50 * 32);
            // Two spans per page.
            assert_eq!(counts.page_walks(), 25);
        }
    }
}

#[test]
fn the_mmap_walk_wraps_around_into_what_is_still_there() {
    // 8 spans fit into the last level (384 lines), not into the L2 (128).
    let walk = MmapWalk {
        lines: 256,
        outer: 80,
        locality: 2,
        span: 32,
        random: None,
    };
    let mut model = Model::new(&small()).unwrap();
    walk.feed(|line, access| model.access(LINE * line, 8, access));
    assert_eq!(model.counts().l1d.misses(), 80 * 32);
    assert_eq!(model.counts().llc.misses(), 256);
    assert_eq!(model.counts().llc.write_backs, 0);
}

#[test]
fn the_mmap_walk_on_named_platforms_misses_once_a_line_and_step() {
    for (name, exact) in [
        ("i5-2467m", true),
        ("xeon-w3530", true),
        ("raspberry-pi-3", false),
    ] {
        let mut geometry = platforms::named(name).unwrap().without_prefetchers();
        if !exact {
            geometry.l1d.replacement = Replacement::Lru;
        }
        let walk = MmapWalk {
            lines: 1 << 18,
            outer: 32,
            locality: 16,
            span: 512,
            random: None,
        };
        let mut model = Model::new(&geometry).unwrap();
        walk.feed(|line, access| model.access(LINE * line, 8, access));
        let counts = model.counts();
        assert_eq!(counts.l1d.load_misses, 32 * 448, "{name}");
        assert_eq!(counts.l1d.store_misses, 32 * 64, "{name}");
        assert_eq!(counts.llc.misses(), 32 * 512, "{name}");
        assert_eq!(counts.page_walks(), 32 * 8, "{name}");
    }
}

#[test]
fn random_replacement_matters_to_a_working_set_that_just_fits() {
    let walk = MmapWalk {
        lines: 1 << 18,
        outer: 64,
        locality: 16,
        span: 512,
        random: None,
    };
    let misses = |replacement| {
        let mut geometry = platforms::named("raspberry-pi-3").unwrap();
        geometry.prefetcher = None;
        geometry.l1d.replacement = replacement;
        let mut model = Model::new(&geometry).unwrap();
        walk.feed(|line, access| model.access(LINE * line, 8, access));
        model.counts().l1d.misses()
    };
    assert_eq!(misses(Replacement::Lru), 64 * 512);
    let random = misses(Replacement::Random);
    println!(
        "L1D misses a line and step, random replacement: {:.3}",
        f64::from(u32::try_from(random).unwrap()) / (64.0 * 512.0)
    );
    assert!(random > 3 * 64 * 512 / 2, "{random}");
}

#[test]
fn a_prefetcher_into_the_l2_leaves_the_l1d_alone_and_spares_the_l2s_misses() {
    let mut geometry = platforms::named("xeon-w3530").unwrap();
    let all = lines(6400, 1);
    let with = rounds(&geometry, 1, &all, Access::Load);
    geometry.prefetcher = None;
    let without = rounds(&geometry, 1, &all, Access::Load);
    assert_eq!(with.l1d, without.l1d);
    let (with, without) = (with.l2.unwrap(), without.l2.unwrap());
    assert_eq!(with.loads, without.loads);
    // The first three lines of each page of 64 miss; the rest come by prefetch.
    assert_eq!(without.load_misses, 6400);
    assert_eq!(with.load_misses, 3 * 100);
    assert_eq!((with.prefetches, with.prefetch_misses), (6100, 6100));
    assert_eq!((without.prefetches, without.prefetch_misses), (0, 0));
}

#[test]
fn a_prefetcher_into_the_l1d_spares_the_l1ds_misses_in_both_directions() {
    let mut geometry = small();
    geometry.prefetcher = Some(Prefetcher {
        into: PrefetchInto::L1d,
        streams: 2,
        trigger_steps: 2,
        degree: 2,
        distance: 4,
    });
    let mut all = lines(640, 1);
    for _ in 0..2 {
        let counts = rounds(&geometry, 1, &all, Access::Load);
        assert_eq!(counts.l1d.load_misses, 3 * 10);
        assert_eq!(
            (counts.l1d.prefetches, counts.l1d.prefetch_misses),
            (610, 610)
        );
        let l2 = counts.l2.unwrap();
        assert_eq!((l2.loads, l2.load_misses), (30, 30));
        assert_eq!((l2.prefetches, l2.prefetch_misses), (610, 610));
        assert_eq!(counts.dtlb.loads, 640, "prefetches are not translated");
        all.reverse();
    }
}

#[test]
fn a_next_line_prefetcher_spares_ascending_loads() {
    let mut geometry = small();
    geometry.next_line = Some(NextLine::dcu());
    let counts = rounds(&geometry, 1, &lines(640, 1), Access::Load);
    // The first two lines of the walk miss, then the first of each page of 64.
    assert_eq!(counts.l1d.load_misses, 2 + 9);
    assert_eq!(
        (counts.l1d.prefetches, counts.l1d.prefetch_misses),
        (629, 629)
    );
    assert_eq!(counts.l1d.fills(), 640);
    assert_eq!(counts.dtlb.loads, 640, "prefetches are not translated");
    let mut all = lines(640, 1);
    let counts = rounds(&geometry, 1, &all, Access::Store);
    assert_eq!(counts.l1d.prefetches, 0, "stores fetch no next line");
    all.reverse();
    let counts = rounds(&geometry, 1, &all, Access::Load);
    assert_eq!(counts.l1d.prefetches, 0, "nor do descending loads");
    let counts = rounds(&geometry, 1, &lines(320, 2), Access::Load);
    assert_eq!(
        counts.l1d.prefetches, 0,
        "nor do loads that leave lines out"
    );
    // What fits is fetched once: a load that hits fetches nothing.
    let counts = rounds(&geometry, 10, &lines(31, 1), Access::Load);
    assert_eq!((counts.l1d.load_misses, counts.l1d.prefetches), (2, 30));
    assert_eq!(counts.l1d.fills(), 32, "with the line after the last");
}

#[test]
fn a_stride_prefetcher_follows_each_load_instruction() {
    let mut geometry = small();
    geometry.stride = Some(Stride::ip_based());
    // Two instructions that walk in opposite directions, 5 lines a step.
    let step = 5 * LINE;
    let count = |known: bool| {
        let mut model = Model::new(&geometry).unwrap();
        for n in 0..200 {
            let walks = [(1, n * step), (2, (1 << 20) - n * step)];
            for (instruction, address) in walks {
                if known {
                    model.access_by(instruction, address, 8, Access::Load);
                } else {
                    model.access(address, 8, Access::Load);
                }
            }
        }
        model.counts().l1d
    };
    let (with, without) = (count(true), count(false));
    assert_eq!(without.load_misses, 400);
    assert_eq!((without.prefetches, with.loads), (0, 400));
    assert_eq!(with.load_misses + with.prefetch_misses, 400 + 2);
    // Each instruction misses in its first four steps, and once a page: 200 steps are 15.6 pages.
    assert_eq!(with.load_misses, 2 * (4 + 15));
    let mut model = Model::new(&geometry).unwrap();
    for n in 0..200 {
        model.access_by(1, n * step, 8, Access::Store);
    }
    assert_eq!(model.counts().l1d.prefetches, 0, "stores are not observed");
}

#[test]
fn the_adjacent_line_completes_an_aligned_pair_behind_the_l1d() {
    let mut geometry = small();
    geometry.adjacent_line = true;
    for (stride, pairs) in [(1, 32), (2, 64), (3, 64)] {
        for access in [Access::Load, Access::Store] {
            let counts = rounds(&geometry, 1, &lines(64, stride), access);
            let l2 = counts.l2.unwrap();
            assert_eq!(counts.l1d.misses(), 64, "it does not go into the L1D");
            assert_eq!(
                (l2.misses(), l2.prefetches, l2.prefetch_misses),
                (pairs, pairs, pairs)
            );
            assert_eq!(counts.llc.prefetches, pairs, "from memory");
        }
    }
    // Downward the pair's second line comes first.
    let down: Vec<u64> = lines(64, 1).into_iter().rev().collect();
    let l2 = rounds(&geometry, 1, &down, Access::Load).l2.unwrap();
    assert_eq!((l2.load_misses, l2.prefetch_misses), (32, 32));
}

#[test]
fn prefetches_into_the_l1d_train_a_streamer_into_the_l2() {
    let geometry = Geometry {
        adjacent_line: false,
        ..platforms::named("i5-2467m").unwrap()
    };
    let all = lines(6400, 1);
    let counts = rounds(&geometry, 1, &all, Access::Load);
    // Two lines in all, then one a page, come by demand.
    assert_eq!(counts.l1d.load_misses, 2 + 99);
    let l2 = counts.l2.unwrap();
    // The streamer observes the page's first line, then each line as the L1D fetches it: its
    // first three requests miss, by demand or for the L1D, and the rest are its own.
    assert_eq!(l2.loads, 101);
    assert_eq!(l2.misses() + l2.prefetch_misses, 6400);
    assert_eq!(counts.llc.loads + counts.llc.prefetches, 6400);
}

#[test]
fn perfs_events_of_sandy_bridge_count_fills_write_backs_and_walks() {
    let walk = MmapWalk {
        lines: 1 << 18,
        outer: 32,
        locality: 2,
        span: 512,
        random: None,
    };
    let mut model = Model::new(&platforms::named("i5-2467m").unwrap()).unwrap();
    walk.feed(|line, access| model.access(LINE * line, 8, access));
    let counts = model.counts();
    let of = |events| {
        let named = counts.named(events);
        move |name: &str| named.iter().find(|(one, _)| one == name).unwrap().1
    };
    let (demand, perf) = (of(PerfEvents::Demand), of(PerfEvents::SandyBridge));
    assert!(demand("L1-dcache-load-misses") < 32 * 448);
    let fills = perf("L1-dcache-load-misses");
    assert_eq!(fills, counts.l1d.misses() + counts.l1d.prefetch_misses);
    assert!(fills >= 32 * 512, "{fills}");
    assert_eq!(perf("L1-dcache-store-misses"), counts.l1d.write_backs);
    let stlb = counts.stlb.unwrap();
    assert_eq!(perf("dTLB-load-misses"), stlb.load_misses);
    assert_eq!(perf("dTLB-store-misses"), stlb.store_misses);
    for same in [
        "L1-dcache-loads",
        "L1-dcache-prefetch-misses",
        "LLC-load-misses",
        "sTLB-loads",
    ] {
        assert_eq!(demand(same), perf(same), "{same}");
    }
}

#[test]
fn names_are_perfs() {
    let counts = Model::new(&platforms::named("raspberry-pi-3").unwrap())
        .unwrap()
        .counts();
    let names: Vec<_> = counts
        .named(PerfEvents::Demand)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    for name in [
        "L1-dcache-loads",
        "L1-dcache-load-misses",
        "L1-dcache-prefetch-misses",
        "LLC-store-misses",
        "dTLB-load-misses",
        "sTLB-loads",
    ] {
        assert!(
            names.iter().any(|known| known == name),
            "{name} in {names:?}"
        );
    }
    assert!(
        !names.iter().any(|name| name.starts_with("L2")),
        "it has none but the last"
    );
}
