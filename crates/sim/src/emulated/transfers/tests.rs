// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices that move memory, alone and beside cores.

use super::*;
use crate::dram::Controller;
use crate::emulated::{Access, COUNTS, Count, EmulatedMemory, Made, Page, Registers};
use crate::main_memory::FixedMemory;
use crate::platform::Platform;

const MIB: u64 = 1 << 20;
const LINE: u64 = 64;

/// A Raspberry Pi 3 whose memory takes 100 ns for each line, any number at once, and whose
/// paths take no time.
fn pi(coherent: bool) -> EmulatedMemory<FixedMemory> {
    let mut settings = Platform::find("raspberry-pi-3").unwrap().machine;
    settings.core.prefetcher = None;
    settings.core.tlb_entries = 0;
    settings.shared.to_memory_ps = 0;
    settings.shared.from_memory_ps = 0;
    settings.shared.port_ps = 0;
    settings.shared.cache.hit_ps = 10_000;
    settings.dma = Some(DmaSettings {
        outstanding: 4,
        port_ps: 0,
        coherent,
    });
    EmulatedMemory::new(&settings, FixedMemory::new(100_000, 0, 1000))
}

fn board() -> EmulatedMemory<Controller> {
    let platform = Platform::find("raspberry-pi-3").unwrap();
    EmulatedMemory::new(&platform.machine, platform.controller().unwrap())
}

fn copy(from: u64, to: u64, bytes: u64, now_ns: u64) -> Move {
    Move {
        number: 0,
        from: Some(from),
        to: Some(to),
        bytes,
        now_ns,
    }
}

/// Time of a transfer while the cores do nothing, ns.
fn takes_ns<M: MainMemory>(memory: &mut EmulatedMemory<M>, wanted: &Move) -> u64 {
    memory.transfer(wanted);
    for end_ns in (wanted.now_ns..).step_by(1000) {
        assert_eq!(memory.advance(end_ns), 0);
        if let Some((number, ended_ns)) = memory.take_ended() {
            assert_eq!(number, wanted.number);
            assert!(ended_ns <= end_ns, "told before its end");
            return ended_ns - wanted.now_ns;
        }
        assert!(end_ns < wanted.now_ns + 100_000_000, "it never ends");
    }
    unreachable!()
}

/// A core's access with no other traffic. Returns its time, ns.
fn access(
    memory: &mut EmulatedMemory<FixedMemory>,
    access: Access,
    address: u64,
    now_ns: u64,
) -> u64 {
    let made = Made {
        core: 0,
        access,
        address,
        page: Page::new(address, 12),
        table_entry: None,
        now_ns,
        retired: now_ns,
        registers: Registers::ALL,
    };
    if let Some(ns) = memory.access(&made) {
        return ns;
    }
    assert_eq!(memory.advance(now_ns + 1000), 1, "never released");
    memory.resume(0, now_ns) - now_ns
}

fn count(memory: &EmulatedMemory<FixedMemory>, count: Count) -> u64 {
    memory.face(0).counts[count as usize].get()
}

#[test]
fn a_transfer_takes_the_time_of_its_lines_four_at_once() {
    for (bytes, ns) in [(1, 100), (64, 100), (256, 100), (257, 200), (4096, 1600)] {
        assert_eq!(
            takes_ns(&mut pi(false), &copy(0, MIB, bytes, 5000)),
            ns,
            "{bytes}"
        );
    }
    // Bytes in two lines cause accesses to both.
    assert_eq!(takes_ns(&mut pi(false), &copy(32, MIB + 32, 256, 0)), 200);
    // Transfers that only read or only write: memory accepts a write at once.
    let read = Move {
        to: None,
        ..copy(0, 0, 512, 0)
    };
    assert_eq!(takes_ns(&mut pi(false), &read), 200);
    let write = Move {
        from: None,
        ..copy(0, 0, 512, 0)
    };
    assert_eq!(takes_ns(&mut pi(false), &write), 0);
    assert_eq!(takes_ns(&mut pi(false), &copy(0, 0, 0, 700)), 0);
}

#[test]
fn without_an_engine_it_takes_no_time() {
    let mut settings = Platform::find("raspberry-pi-3").unwrap().machine;
    settings.dma = None;
    let mut memory = EmulatedMemory::new(&settings, FixedMemory::new(100_000, 0, 1000));
    assert_eq!(takes_ns(&mut memory, &copy(0, MIB, 4096, 300)), 0);
}

#[test]
fn on_a_boards_memory_time_grows_with_the_size() {
    let ns = |bytes| takes_ns(&mut board(), &copy(0, 16 * MIB, bytes, 0)) as f64;
    let (line, page, mib) = (ns(64), ns(4096), ns(MIB));
    assert!(line < page / 4.0, "{line} {page}");
    // All writes of a page wait together; with more than a page, reads and writes take turns.
    assert!(
        (1.0..1.25).contains(&(mib / (256.0 * page))),
        "{page} {mib}"
    );
    // Each line crosses the bus of 18 ns a line twice.
    assert!(mib / (MIB / LINE) as f64 >= 36.0, "{mib}");
}

#[test]
fn no_cache_gets_a_line_and_no_core_counts_one() {
    for coherent in [false, true] {
        let mut memory = pi(coherent);
        takes_ns(&mut memory, &copy(0, MIB, 4096, 0));
        for at in 0..COUNTS {
            assert_eq!(memory.face(0).counts[at].get(), 0, "{at}");
        }
        for (address, now_ns) in [(0, 10_000), (MIB, 20_000)] {
            assert_eq!(access(&mut memory, Access::Load, address, now_ns), 100);
        }
        assert_eq!(count(&memory, Count::SharedRefill), 2);
    }
}

#[test]
fn an_engine_that_does_not_see_the_caches_leaves_them_alone() {
    let mut memory = pi(false);
    access(&mut memory, Access::Store, 0, 0);
    assert_eq!(memory.advance(1000), 0);
    assert_eq!(takes_ns(&mut memory, &copy(MIB, 0, 64, 2000)), 100);
    // The core still finds its line, until it drops it.
    assert_eq!(access(&mut memory, Access::Load, 0, 4000), 0);
    assert_eq!(access(&mut memory, Access::Invalidate, 0, 5000), 0);
    assert_eq!(count(&memory, Count::SharedWriteBack), 0);
    assert_eq!(access(&mut memory, Access::Load, 0, 6000), 100);
}

#[test]
fn maintenance_writes_a_dirty_line_back_once() {
    for (kind, gone) in [(Access::Clean, false), (Access::CleanInvalidate, true)] {
        let mut memory = pi(false);
        access(&mut memory, Access::Store, 0, 0);
        assert_eq!(memory.advance(1000), 0);
        let place = memory.face(0).filter[0].get();
        assert_eq!(place, 1, "a dirty line");
        for now_ns in [2000, 3000] {
            access(&mut memory, kind, 0, now_ns);
            assert_eq!(memory.advance(now_ns + 500), 0);
            assert_eq!(count(&memory, Count::SharedWriteBack), 1, "{kind:?}");
        }
        // The emulator must report the next store.
        assert_ne!(memory.face(0).filter[0].get(), 1);
        let ns = if gone { 100 } else { 0 };
        assert_eq!(access(&mut memory, Access::Load, 0, 5000), ns, "{kind:?}");
    }
}

#[test]
fn maintenance_waits_for_a_line_that_comes() {
    let mut memory = pi(false);
    assert_eq!(access(&mut memory, Access::Store, 0, 0), 0);
    assert_eq!(access(&mut memory, Access::CleanInvalidate, 0, 10), 90);
    assert_eq!(count(&memory, Count::SharedWriteBack), 1);
    assert_eq!(access(&mut memory, Access::Load, 0, 1000), 100);
}

#[test]
fn an_engine_that_sees_the_caches_reads_from_them_and_takes_lines_from_them() {
    let mut memory = pi(true);
    access(&mut memory, Access::Store, 0, 0);
    assert_eq!(memory.advance(1000), 0);
    // Dirty in the L1: read in the time of a hit, and it stays.
    assert_eq!(takes_ns(&mut memory, &copy(0, MIB, 64, 2000)), 10);
    assert_eq!(access(&mut memory, Access::Load, 0, 4000), 0);
    // Overwritten: the core loses the line, and nothing is written back.
    assert_eq!(takes_ns(&mut memory, &copy(MIB, 0, 64, 5000)), 100);
    assert_eq!(access(&mut memory, Access::Load, 0, 7000), 100);
    assert_eq!(count(&memory, Count::SharedWriteBack), 0);
}

/// Time per load of a chase on core 0, ns, and MB/s of consecutive copies beside it.
fn beside_copies(round_ns: u64, copies: bool) -> (f64, f64) {
    let mut memory = board();
    let (mut now_ns, mut turns, mut blocked) = (0_u64, 0_u64, false);
    let mut moved = 0_u64;
    if copies {
        memory.transfer(&copy(256 * MIB, 512 * MIB, 65536, 0));
    }
    let mut slice = |memory: &mut EmulatedMemory<Controller>, from_ns: u64, end_ns: u64| {
        now_ns = now_ns.max(from_ns);
        while now_ns < end_ns {
            now_ns += 5;
            let line = turns.wrapping_mul(0x9e37_79b1) % (16 * MIB / LINE);
            turns += 1;
            let made = Made {
                core: 0,
                access: Access::Load,
                address: line * LINE,
                page: Page::new(line * LINE, 12),
                table_entry: Some((1 << 40) + line * LINE / 4096 * 8),
                now_ns,
                retired: 5 * turns,
                registers: Registers::ALL,
            };
            match memory.access(&made) {
                Some(ns) => now_ns += ns,
                None => return (true, turns),
            }
        }
        (false, turns)
    };
    let mut done = 0;
    for end_ns in (round_ns..=10_000_000).step_by(round_ns as usize) {
        if !blocked {
            (blocked, done) = slice(&mut memory, 0, end_ns);
        }
        while memory.advance(end_ns) != 0 {
            let at_ns = memory.resume(0, 5 * done);
            (blocked, done) = slice(&mut memory, at_ns, end_ns);
        }
        while let Some((_, ended_ns)) = memory.take_ended() {
            moved += 65536;
            memory.transfer(&copy(256 * MIB, 512 * MIB, 65536, ended_ns));
        }
    }
    (1e7 / done as f64, moved as f64 / 1e4)
}

#[test]
fn a_core_is_slower_beside_copies_whatever_a_rounds_length() {
    let (alone, _) = beside_copies(1000, false);
    let (beside, moved) = beside_copies(1000, true);
    assert!(beside > 1.2 * alone, "{alone} {beside}");
    assert!(moved > 300.0, "{moved}");
    assert_eq!(beside_copies(1000, true), (beside, moved));
    let (short, _) = beside_copies(200, true);
    assert!((0.98..1.02).contains(&(short / beside)), "{short} {beside}");
}
