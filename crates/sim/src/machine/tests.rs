// SPDX-License-Identifier: MIT OR Apache-2.0
//! Machines whose figures can be derived by hand.

use memwarden_policy::{BestEffort, UNLIMITED};

mod banks;

use super::*;
use crate::main_memory::FixedMemory;
use crate::settings::{CacheSettings, CoreSettings, SharedSettings};
use crate::workload::{Chase, Idle, Periodic, Step, Stream};

const NS: u64 = 1000;
const MS: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;
/// The path to memory and back.
const WAY: u64 = 20 * NS;
const MEMORY: u64 = 80 * NS;

fn settings(cores: usize) -> MachineSettings {
    let cache = |size_bytes, ways, hit_ps| CacheSettings {
        size_bytes,
        ways,
        hit_ps,
    };
    MachineSettings {
        cores,
        line_bytes: 64,
        memory_bytes: 64 * MIB,
        core: CoreSettings {
            in_order: false,
            issue_ps: NS,
            mshrs: 8,
            prefetch_mshrs: 4,
            l1d: cache(32 << 10, 4, 2 * NS),
            l1i: None,
            l2: None,
            tlb_entries: 0,
            page_walk_ps: 0,
            prefetcher: None,
        },
        shared: SharedSettings {
            cache: cache(512 << 10, 16, 10 * NS),
            mshrs: 32,
            write_backs: 16,
            partitions: Vec::new(),
            inclusive: false,
            to_memory_ps: WAY / 2,
            from_memory_ps: WAY / 2,
            port_ps: 0,
        },
        dma: None,
    }
}

const REACTION: Reaction = Reaction {
    overflow_ps: 0,
    throttle_ps: 0,
    release_ps: 0,
    period_overhead_ps: 0,
};

fn machine(
    settings: &MachineSettings,
    memory: FixedMemory,
    workloads: Vec<Box<dyn Workload>>,
    guard: Option<&Guard>,
) -> Machine<FixedMemory> {
    Machine::new(settings, memory, workloads, guard, REACTION, 1).unwrap()
}

/// A memory that is never the bottleneck.
fn wide() -> FixedMemory {
    FixedMemory::new(MEMORY, 0, 1000)
}

fn stream(bytes: u64, store: bool) -> Box<dyn Workload> {
    Box::new(Stream::new(bytes, 64, store, 0))
}

fn chase(bytes: u64) -> Box<dyn Workload> {
    Box::new(Chase::new(bytes, 64, 0, 7))
}

#[test]
fn a_chase_beyond_all_caches_takes_the_sum_of_its_ways() {
    let mut machine = machine(&settings(1), wide(), vec![chase(32 * MIB)], None);
    machine.advance(10 * MS);
    let counts = machine.counts(0);
    // One in 64 is in the shared cache by chance, as 32 MiB are 64 times as large.
    let average = 10 * MS / counts.touches;
    assert!((97 * NS..=100 * NS).contains(&average), "{average} ps");
    assert!(counts.refills * 64 >= counts.touches * 62);
}

#[test]
fn a_partition_keeps_a_core_s_lines_from_the_others() {
    let refills = |partitions: &[usize]| {
        let mut settings = settings(2);
        settings.shared.partitions = partitions.to_vec();
        let workloads = vec![chase(128 << 10), stream(4 * MIB, true)];
        let mut machine = machine(&settings, wide(), workloads, None);
        machine.advance(2 * MS);
        let before = machine.counts(0).refills;
        machine.advance(4 * MS);
        assert!(machine.counts(1).refills > 10_000);
        machine.counts(0).refills - before
    };
    assert!(refills(&[]) > 1000, "{}", refills(&[]));
    assert_eq!(refills(&[8, 8]), 0);
    // Not all ways have to be assigned.
    assert_eq!(refills(&[8, 1]), 0);
}

#[test]
fn a_chase_within_a_cache_takes_that_caches_time() {
    for (bytes, expected) in [(16 << 10, 2 * NS), (256 << 10, 10 * NS)] {
        let mut machine = machine(&settings(1), wide(), vec![chase(bytes)], None);
        machine.advance(MS);
        let before = machine.counts(0);
        machine.advance(2 * MS);
        let after = machine.counts(0);
        assert_eq!(after.refills, before.refills);
        let average = MS as f64 / (after.touches - before.touches) as f64;
        // An eighth of the larger one is in the first cache.
        let bound = if bytes > 32 << 10 { 0.88 } else { 0.999 };
        assert!(average <= expected as f64 * 1.001, "{average} ps");
        assert!(average >= expected as f64 * bound, "{average} ps");
    }
}

#[test]
fn streams_have_as_many_lines_under_way_as_a_core_may() {
    for mshrs in [1, 4, 8] {
        let mut settings = settings(1);
        settings.core.mshrs = mshrs;
        let mut machine = machine(&settings, wide(), vec![stream(8 * MIB, false)], None);
        machine.advance(10 * MS);
        let lines = machine.counts(0).refills as f64;
        let expected = f64::from(mshrs) * 10.0 * MS as f64 / (MEMORY + WAY) as f64;
        assert!((lines / expected - 1.0).abs() < 0.02, "{mshrs}: {lines}");
    }
}

#[test]
fn an_in_order_core_waits_for_each_load_and_for_no_store() {
    let mut settings = settings(1);
    settings.core.in_order = true;
    let lines = |store| {
        let mut machine = machine(&settings, wide(), vec![stream(8 * MIB, store)], None);
        machine.advance(10 * MS);
        machine.counts(0).refills as f64
    };
    let one = 10.0 * MS as f64 / (MEMORY + WAY) as f64;
    assert!((lines(false) / one - 1.0).abs() < 0.02);
    assert!((lines(true) / (8.0 * one) - 1.0).abs() < 0.02);
}

#[test]
fn a_prefetcher_hides_what_an_in_order_core_would_wait_for() {
    use memwarden_cachesim::geometry::{PrefetchInto, Prefetcher};
    let mut settings = settings(1);
    settings.core.in_order = true;
    let lines = |settings: &MachineSettings| {
        let mut machine = machine(settings, wide(), vec![stream(8 * MIB, false)], None);
        machine.advance(10 * MS);
        machine.counts(0)
    };
    let without = lines(&settings);
    assert_eq!(without.prefetches, 0);
    settings.core.prefetcher = Some(Prefetcher {
        into: PrefetchInto::L2,
        streams: 8,
        trigger_steps: 2,
        degree: 2,
        distance: 8,
    });
    let with = lines(&settings);
    assert!(with.touches > 2 * without.touches, "{with:?} {without:?}");
    // A request is dropped while all of its places are taken.
    assert!(with.prefetches * 10 > with.refills * 6, "{with:?}");
}

#[test]
fn each_stored_line_is_written_back_once() {
    let mut machine = machine(&settings(1), wide(), vec![stream(8 * MIB, true)], None);
    machine.advance(20 * MS);
    let counts = machine.counts(0);
    // Lines that are still in the caches are not written yet.
    let held = (512 + 32) * 1024 / 64;
    assert!(counts.refills > 2 * 8 * MIB / 64, "two walks and more");
    assert!(counts.write_backs <= counts.refills);
    assert!(counts.write_backs + held + 8 >= counts.refills);
}

#[test]
fn a_memory_of_one_line_at_a_time_is_shared_evenly() {
    let narrow = FixedMemory::new(MEMORY, 40 * NS, 16);
    let workloads = (0..4).map(|_| stream(8 * MIB, false)).collect();
    let mut machine = machine(&settings(4), narrow, workloads, None);
    machine.advance(10 * MS);
    let lines: Vec<_> = (0..4).map(|core| machine.counts(core).refills).collect();
    let sum: u64 = lines.iter().sum();
    assert!(sum.abs_diff(10 * MS / (40 * NS)) < 40, "{lines:?}");
    for lines in &lines {
        assert!(lines.abs_diff(sum / 4) < sum / 50, "{lines}");
    }
}

#[test]
fn a_budget_is_kept_to_the_event_where_reacting_takes_no_time() {
    let guard = Guard {
        budgets: vec![[1000, UNLIMITED], [UNLIMITED, UNLIMITED]],
        combined: false,
        best_effort: BestEffort::None,
        reclaim: false,
        period_ps: MS,
        per_bank: false,
    };
    let workloads = vec![stream(8 * MIB, false), chase(8 * MIB)];
    let mut machine = machine(&settings(2), wide(), workloads, Some(&guard));
    machine.advance(50 * MS - 1);
    let counts = machine.counts(0);
    assert_eq!(counts.overflows, 50);
    // The overflow is a separate event: an access that begins at that moment still counts.
    assert!((50_000..=50_050).contains(&counts.refills), "{counts:?}");
    assert!(counts.throttled_ps > 40 * MS);
    assert_eq!(machine.counts(1).throttled_ps, 0);
}

#[test]
fn a_stored_line_counts_against_the_write_budget_as_well() {
    let guard = Guard {
        budgets: vec![[UNLIMITED, 500]],
        combined: false,
        best_effort: BestEffort::None,
        reclaim: false,
        period_ps: MS,
        per_bank: false,
    };
    let workloads = vec![stream(8 * MIB, true)];
    let mut machine = machine(&settings(1), wide(), workloads, Some(&guard));
    machine.advance(20 * MS - 1);
    let counts = machine.counts(0);
    // The first periods fill the caches, and write nothing back.
    assert!((9_000..=10_200).contains(&counts.write_backs), "{counts:?}");
}

#[test]
fn a_periodic_task_sleeps_between_its_jobs_and_is_idle_then() {
    // 1000 lines, each alone: 100 ns, of a period of 1 ms.
    let mut settings = settings(1);
    settings.core.mshrs = 1;
    let task = Periodic::new(64_000, 64, 0, false, MS, 5);
    let mut machine = machine(&settings, wide(), vec![Box::new(task)], None);
    machine.advance(10 * MS);
    assert!(machine.has_ended(0));
    let jobs = machine.jobs(0);
    assert_eq!(jobs.len(), 5);
    // Both frames fit into the shared cache: each comes from memory the first time only.
    let times: Vec<_> = jobs
        .iter()
        .map(|job| job.done_ps - job.released_ps)
        .collect();
    let whole = 100_000 * NS..=102_000 * NS;
    assert!(
        times[..2].iter().all(|time| whole.contains(time)),
        "{times:?}"
    );
    assert!(
        times[2..].iter().all(|time| *time < 20_000 * NS),
        "{times:?}"
    );
    let idle = machine.counts(0).idle_ps;
    assert_eq!(idle + times.iter().sum::<u64>(), 10 * MS);
}

#[test]
fn with_reclaim_an_idle_cores_budget_is_anothers() {
    let guard = |reclaim| Guard {
        budgets: vec![[1000, UNLIMITED], [1000, UNLIMITED]],
        combined: false,
        best_effort: BestEffort::None,
        reclaim,
        period_ps: MS,
        per_bank: false,
    };
    let lines = |reclaim| {
        let workloads: Vec<Box<dyn Workload>> = vec![stream(8 * MIB, false), Box::new(Idle)];
        let guard = guard(reclaim);
        let mut machine = machine(&settings(2), wide(), workloads, Some(&guard));
        machine.advance(50 * MS);
        machine.counts(0).refills
    };
    assert!(
        lines(true) * 10 > lines(false) * 18,
        "{} {}",
        lines(true),
        lines(false)
    );
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let workloads = vec![chase(4 * MIB), stream(8 * MIB, true)];
        let narrow = FixedMemory::new(MEMORY, 10 * NS, 16);
        let mut machine =
            Machine::new(&settings(2), narrow, workloads, None, REACTION, seed).unwrap();
        machine.advance(3 * MS);
        [machine.counts(0), machine.counts(1)]
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_guard_or_workloads_that_do_not_fit_are_refused() {
    let new = |workloads, budgets| {
        let guard = Guard {
            budgets,
            combined: false,
            best_effort: BestEffort::None,
            reclaim: false,
            period_ps: MS,
            per_bank: false,
        };
        Machine::new(&settings(1), wide(), workloads, Some(&guard), REACTION, 1)
            .err()
            .map(|error| error.to_string())
    };
    let refused = new(vec![], vec![[1, 1]]).unwrap();
    assert!(refused.contains("0 workloads for 1 cores"), "{refused}");
    let refused = new(vec![stream(1 << 40, false)], vec![[1, 1]]).unwrap();
    assert!(refused.contains("the platform has 67108864"), "{refused}");
    assert!(new(vec![stream(MIB, false)], vec![[0, 1]]).is_some());
    assert!(new(vec![stream(MIB, false)], vec![[1, 1]]).is_none());
}
