// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memories behind cores that execute one after the other, as an emulator's do.

use super::*;
use crate::main_memory::FixedMemory;
use crate::platform::Platform;
use crate::settings::{DmaSettings, InstructionCacheSettings};

const MIB: u64 = 1 << 20;
const LINE: u64 = 64;

fn made(core: usize, access: Access, address: u64, now_ns: u64, retired: u64) -> Made {
    Made {
        core,
        access,
        address,
        page: page(address),
        table_entry: Some(table_entry(core, address)),
        now_ns,
        retired,
        registers: Registers::ALL,
    }
}

/// The page of an address, of 4 KiB.
fn page(address: u64) -> Page {
    Page::new(address, 12)
}

/// The place of its entry in a core's own page table.
fn table_entry(core: usize, address: u64) -> u64 {
    (1 << 40 | (core as u64) << 30) + (address >> 12) * 8
}

/// A core's accesses, repeated.
#[derive(Clone, Copy)]
enum Loop {
    /// Loads of consecutive lines.
    Read,
    /// Stores to them.
    Write,
    /// Loads of them, each once, in an order without a stride.
    Chase,
}

struct Vcpu {
    does: Loop,
    /// Instructions per iteration of its loop.
    work: u64,
    from: u64,
    lines: u64,
    turns: u64,
    now_ns: u64,
    retired: u64,
    blocked: bool,
}

impl Vcpu {
    fn new(does: Loop, work: u64, from: u64, bytes: u64) -> Self {
        Self {
            does,
            work,
            from,
            lines: bytes / LINE,
            turns: 0,
            now_ns: 0,
            retired: 0,
            blocked: false,
        }
    }

    fn next(&self) -> (Access, u64) {
        let turn = self.turns % self.lines;
        match self.does {
            Loop::Read => (Access::Load, turn),
            Loop::Write => (Access::Store, turn),
            // Powers of two: each line once, by an odd step.
            Loop::Chase => (Access::Load, turn.wrapping_mul(0x9e37_79b1) % self.lines),
        }
    }
}

/// Plays the emulator's part: its vCPUs and the memory behind them.
struct Emulator<M> {
    memory: EmulatedMemory<M>,
    vcpus: Vec<Vcpu>,
    round_ns: u64,
}

impl<M: MainMemory> Emulator<M> {
    fn slice(&mut self, index: usize, end_ns: u64) {
        let vcpu = &mut self.vcpus[index];
        while !vcpu.blocked && vcpu.now_ns < end_ns {
            vcpu.now_ns += vcpu.work;
            vcpu.retired += vcpu.work;
            let (access, line) = vcpu.next();
            vcpu.turns += 1;
            let address = vcpu.from + line * LINE;
            let filter = &self.memory.face(index).filter;
            let known = filter[(address / LINE) as usize & (filter.len() - 1)].get();
            if known >> 1 == address / LINE && (access == Access::Load || known & 1 != 0) {
                continue;
            }
            let (now_ns, retired) = (vcpu.now_ns, vcpu.retired);
            if self
                .memory
                .uses_again(index, access, address, page(address))
            {
                continue;
            }
            match self
                .memory
                .access(&made(index, access, address, now_ns, retired))
            {
                Some(ns) => vcpu.now_ns += ns,
                None => vcpu.blocked = true,
            }
        }
    }

    fn run(&mut self, until_ns: u64) {
        let mut base_ns = 0;
        let mut first = 0;
        while base_ns < until_ns {
            let end_ns = base_ns + self.round_ns;
            let count = self.vcpus.len();
            for at in 0..count {
                self.slice((first + at) % count, end_ns);
            }
            first += 1;
            loop {
                let released = self.memory.advance(end_ns);
                if released == 0 {
                    break;
                }
                for index in (0..count).filter(|index| released & 1 << index != 0) {
                    let vcpu = &mut self.vcpus[index];
                    let now_ns = self.memory.resume(index, vcpu.retired);
                    assert!(now_ns >= vcpu.now_ns, "a core goes back in time");
                    vcpu.now_ns = now_ns;
                    vcpu.blocked = false;
                    self.slice(index, end_ns);
                }
            }
            base_ns = end_ns;
        }
    }

    /// ns for each iteration of a core's loop.
    fn ns(&self, index: usize) -> f64 {
        let vcpu = &self.vcpus[index];
        vcpu.now_ns as f64 / vcpu.turns as f64
    }

    fn count(&self, index: usize, count: Count) -> u64 {
        self.memory.face(index).counts[count as usize].get()
    }
}

/// A Raspberry Pi 3 with a memory that takes 100 ns for each line.
fn pi(vcpus: Vec<Vcpu>) -> Emulator<FixedMemory> {
    let mut settings = Platform::find("raspberry-pi-3").unwrap().machine;
    settings.core.prefetcher = None;
    settings.core.tlb_entries = 0;
    settings.shared.to_memory_ps = 0;
    settings.shared.from_memory_ps = 0;
    settings.shared.port_ps = 0;
    settings.shared.cache.hit_ps = 10_000;
    Emulator {
        memory: EmulatedMemory::new(&settings, FixedMemory::new(100_000, 0, 1000)),
        vcpus,
        round_ns: 1000,
    }
}

#[test]
fn a_load_takes_what_its_cache_takes() {
    for (bytes, each_ns) in [(16 << 10, 5.0), (256 << 10, 15.0), (16 * MIB, 105.0)] {
        let mut emulator = pi(vec![Vcpu::new(Loop::Chase, 5, 0, bytes)]);
        emulator.run(60_000_000);
        // The first pass comes from memory.
        let least = 100.0 * (bytes / LINE) as f64 / emulator.vcpus[0].turns as f64;
        let ns = emulator.ns(0);
        let most = each_ns + if bytes < MIB { least } else { 0.0 };
        assert!(
            (each_ns - 0.1..=most + 0.1).contains(&ns),
            "{bytes} bytes: {ns} ns, {each_ns} to {most}"
        );
    }
}

#[test]
fn two_runs_are_the_same_and_rounds_do_not_matter() {
    let run = |round_ns| {
        let platform = Platform::find("raspberry-pi-3").unwrap();
        let vcpus = [Loop::Chase, Loop::Write, Loop::Write, Loop::Write];
        let vcpus = vcpus.iter().enumerate();
        let mut emulator = Emulator {
            memory: EmulatedMemory::new(&platform.machine, platform.controller().unwrap()),
            vcpus: vcpus
                .map(|(at, does)| Vcpu::new(*does, 5, at as u64 * 16 * MIB, 16 * MIB))
                .collect(),
            round_ns,
        };
        emulator.run(20_000_000);
        (emulator.ns(0), emulator.count(1, Count::Bus))
    };
    let (once, again) = (run(1000), run(1000));
    assert_eq!(once, again);
    for round_ns in [200, 5000] {
        let (ns, _) = run(round_ns);
        assert!(
            (0.98..1.02).contains(&(ns / once.0)),
            "{round_ns}: {ns} and {} ns",
            once.0
        );
    }
}

#[test]
fn counts_are_what_a_stream_must_cause() {
    let lines = 16 * MIB / LINE;
    let mut emulator = pi(vec![Vcpu::new(Loop::Read, 4, 0, 16 * MIB)]);
    emulator.run(40_000_000);
    let turns = emulator.vcpus[0].turns;
    assert!(turns > lines, "more than one pass");
    for count in [Count::L1Refill, Count::SharedRefill, Count::Bus] {
        assert!(turns.abs_diff(emulator.count(0, count)) <= 2, "{count:?}");
    }
    assert_eq!(emulator.count(0, Count::SharedWriteBack), 0);

    let mut emulator = pi(vec![Vcpu::new(Loop::Write, 4, 0, 16 * MIB)]);
    emulator.run(40_000_000);
    let turns = emulator.vcpus[0].turns;
    // Lines in the shared cache have not been written back: they are there, or in the L1.
    let kept = 512 * 1024 / LINE;
    assert!(turns.abs_diff(emulator.count(0, Count::SharedRefill)) <= 4);
    let written = emulator.count(0, Count::SharedWriteBack);
    assert!(
        turns.abs_diff(written + kept) <= kept / 50,
        "{turns} {written}"
    );
}

#[test]
fn a_limit_is_told_when_it_is_reached() {
    let mut emulator = pi(vec![Vcpu::new(Loop::Read, 4, 0, 16 * MIB)]);
    emulator.memory.face(0).limits[Count::SharedRefill as usize].set(1000);
    for _ in 0..100_000 {
        if emulator.memory.take_reached() != 0 {
            break;
        }
        let until_ns = emulator.vcpus[0].now_ns;
        assert!(emulator.count(0, Count::SharedRefill) < 1000);
        emulator.slice(0, until_ns + 1);
        emulator.run_once();
    }
    assert_eq!(emulator.count(0, Count::SharedRefill), 1000);
}

impl<M: MainMemory> Emulator<M> {
    /// Advances to the next release.
    fn run_once(&mut self) {
        let until_ns = self.vcpus[0].now_ns + 1000;
        if self.vcpus[0].blocked && self.memory.advance(until_ns) != 0 {
            self.vcpus[0].now_ns = self.memory.resume(0, self.vcpus[0].retired);
            self.vcpus[0].blocked = false;
        }
    }
}

#[test]
fn a_line_that_another_core_has_written_comes_from_there() {
    let mut memory = pi(Vec::new()).memory;
    let line = 4096;
    // Core 0 writes it; the filter takes its next store, not core 1's.
    assert_eq!(memory.access(&made(0, Access::Store, line, 0, 0)), Some(0));
    assert_eq!(memory.advance(1000), 0);
    let place = (line / LINE) as usize % memory.face(0).filter.len();
    assert_eq!(memory.face(0).filter[place].get(), line / LINE * 2 + 1);
    // Core 1 reads: from the shared cache, and both have it.
    assert_eq!(
        memory.access(&made(1, Access::Load, line, 1000, 1000)),
        Some(10)
    );
    assert_eq!(memory.face(0).filter[place].get(), NONE);
    assert_eq!(memory.face(1).filter[place].get(), line / LINE * 2);
    // Core 1 writes: core 0 loses the line.
    assert_eq!(
        memory.access(&made(1, Access::Store, line, 1100, 1100)),
        Some(0)
    );
    assert_eq!(
        memory.access(&made(0, Access::Load, line, 1200, 1200)),
        Some(10)
    );
    assert_eq!(memory.advance(5000), 0);
    assert_eq!(memory.face(0).counts[Count::SharedRefill as usize].get(), 1);
    assert_eq!(memory.face(1).counts[Count::SharedRefill as usize].get(), 0);
}

#[test]
fn a_line_that_is_zeroed_is_not_fetched() {
    let mut memory = pi(Vec::new()).memory;
    for line in 0..100 {
        assert_eq!(
            memory.access(&made(0, Access::Zero, line * LINE, line, line)),
            Some(0)
        );
    }
    assert_eq!(memory.advance(1000), 0);
    let counts = &memory.face(0).counts;
    // A whole line that is written is no refill of any level (Armv8, L1D_CACHE_REFILL).
    for count in [Count::L1Refill, Count::Shared, Count::SharedRefill] {
        assert_eq!(counts[count as usize].get(), 0, "{count:?}");
    }
}

/// Time until a core continues that makes these loads at once, from memory, ns; each load has
/// the registers that it uses and writes.
fn loads_take_ns(registers: &[(u64, u64)]) -> u64 {
    let mut memory = pi(Vec::new()).memory;
    for (at, &(uses, targets)) in registers.iter().enumerate() {
        let load = Made {
            registers: Registers { uses, targets },
            ..made(0, Access::Load, at as u64 * LINE, 0, 0)
        };
        assert_eq!(memory.access(&load), None);
    }
    assert_eq!(memory.advance(1_000_000), 1, "never released");
    memory.resume(0, 0)
}

#[test]
fn loads_that_do_not_use_each_others_values_are_under_way_together() {
    let mshrs = Platform::find("raspberry-pi-3").unwrap().machine.core.mshrs;
    assert_eq!(mshrs, 3);
    let independent: Vec<_> = (0..8).map(|at| (1 << 40, 1 << at)).collect();
    for (count, ns) in [(1, 100), (3, 100), (4, 200), (6, 200), (7, 300)] {
        assert_eq!(loads_take_ns(&independent[..count]), ns, "{count}");
    }
    let chase: Vec<_> = (0..8).map(|_| (1, 1)).collect();
    assert_eq!(loads_take_ns(&chase), 800);
    // The third uses the value that the first has loaded, and runs with the fourth.
    assert_eq!(loads_take_ns(&[(0, 1), (0, 2), (1, 4), (0, 8)]), 200);
    let unknown = [(u64::MAX, u64::MAX); 4];
    assert_eq!(loads_take_ns(&unknown), 400);
}

#[test]
fn a_line_that_one_core_writes_and_another_reads_while_it_comes_is_clean_in_both() {
    let mut memory = pi(Vec::new()).memory;
    let line = 4096;
    assert_eq!(memory.access(&made(0, Access::Store, line, 0, 0)), Some(0));
    assert_eq!(memory.access(&made(1, Access::Load, line, 0, 0)), None);
    assert_eq!(memory.advance(1000), 2);
    // Core 0's next store is reported, and takes the line from core 1.
    assert!(!memory.uses_again(0, Access::Store, line, page(line)));
    assert_eq!(
        memory.access(&made(0, Access::Store, line, 500, 500)),
        Some(0)
    );
    assert!(!memory.uses_again(1, Access::Load, line, page(line)));
}

/// The emulator's view of a core, and the reason for which the core is blocked, agree with the
/// memory's own state.
fn check_core(memory: &mut EmulatedMemory<FixedMemory>, index: usize) {
    let core = &memory.cores[index];
    if core.waits == Waits::No {
        assert!(core.ops.is_empty() && core.loads.is_empty(), "{core:?}");
    }
    assert_eq!(
        core.waits == Waits::Loads,
        core.ops.is_empty() && !core.loads.is_empty()
    );
    let known: Vec<u64> = core.face.filter.iter().map(Cell::get).collect();
    for known in known.into_iter().filter(|known| *known != NONE) {
        let private = &mut memory.lines.cores[index].private;
        assert!(private.holds_in_l1(known >> 1), "core {index}: {known:#x}");
        let line = known >> 1;
        let dirty = private.holds_in_l1(line) && !private.has_clean(line);
        assert!(known & 1 == 0 || dirty, "core {index}: {known:#x}");
        // Except for a line that was zeroed, and so never came from memory.
        let inclusive = memory.settings.shared.inclusive;
        assert!(
            !inclusive || dirty || memory.lines.shared.holds(known >> 1),
            "core {index}: {known:#x} is not in the shared cache"
        );
    }
}

/// Fetches a line with no other traffic. Returns how long this takes, ns.
fn fetch_ns(memory: &mut EmulatedMemory<FixedMemory>, address: u64, now_ns: u64) -> u64 {
    let fetch = Made {
        registers: Registers::NONE,
        ..made(0, Access::Fetch, address, now_ns, now_ns)
    };
    if let Some(ns) = memory.access(&fetch) {
        return ns;
    }
    assert_eq!(memory.advance(now_ns + 1000), 1, "never released");
    memory.resume(0, now_ns) - now_ns
}

/// The counts of instruction fetches: into the L1, and from memory.
fn fetched(memory: &EmulatedMemory<FixedMemory>) -> (u64, u64) {
    let counts = &memory.face(0).counts;
    let count = |count| counts[count as usize].get();
    assert_eq!(count(Count::L1Refill), 0);
    (count(Count::CodeRefill), count(Count::SharedRefill))
}

/// [`pi`] with these next lines prefetched for instructions.
fn code(prefetch_lines: u64) -> EmulatedMemory<FixedMemory> {
    let mut settings = pi(Vec::new()).memory.settings;
    settings.core.l1i = settings.core.l1i.map(|l1i| InstructionCacheSettings {
        prefetch_lines,
        ..l1i
    });
    EmulatedMemory::new(&settings, FixedMemory::new(100_000, 0, 1000))
}

#[test]
fn instructions_come_once_into_a_cache_of_their_own() {
    let mut memory = code(0);
    let line = MIB;
    // The next lines of its set: it has two ways.
    let (second, third) = (line + 16 * 1024, line + 32 * 1024);
    assert_eq!(fetch_ns(&mut memory, line, 0), 100);
    let known = |memory: &EmulatedMemory<FixedMemory>, line: u64| {
        let filter = &memory.face(0).fetch_filter;
        filter[(line / LINE) as usize & (filter.len() - 1)].get() == line / LINE
    };
    assert!(known(&memory, line), "the emulator need not report it");
    assert_eq!(fetched(&memory), (1, 1));
    assert!(memory.uses_again(0, Access::Fetch, line, page(line)));
    assert_eq!(fetch_ns(&mut memory, second, 1000), 100);
    assert!(
        !known(&memory, line),
        "another line of the set was used since"
    );
    assert!(memory.uses_again(0, Access::Fetch, line, page(line)));
    assert_eq!(fetch_ns(&mut memory, third, 2000), 100);
    // It took the place of `second`, which the shared cache still has.
    assert!(memory.uses_again(0, Access::Fetch, line, page(line)));
    assert!(!memory.uses_again(0, Access::Fetch, second, page(second)));
    assert_eq!(fetch_ns(&mut memory, second, 3000), 10);
    assert_eq!(fetched(&memory), (4, 3));
    // Data have a cache of their own.
    let load = made(0, Access::Load, line, 4000, 4000);
    assert_eq!(memory.access(&load), Some(10));
}

#[test]
fn the_next_line_of_the_page_is_prefetched_into_the_shared_cache() {
    let mut memory = code(1);
    let last = MIB + 4096 - 2 * LINE;
    assert_eq!(fetch_ns(&mut memory, last, 0), 100);
    assert_eq!(memory.advance(1000), 0);
    assert_eq!(fetched(&memory), (1, 2));
    assert_eq!(fetch_ns(&mut memory, last + LINE, 1000), 10);
    assert_eq!(fetched(&memory), (2, 2), "none beyond the page");
    assert_eq!(fetch_ns(&mut memory, last + 2 * LINE, 2000), 100);
}

#[test]
fn instructions_are_fetched_while_loads_are_outstanding() {
    let mut memory = code(0);
    let load = |address, at: u32| Made {
        registers: Registers {
            uses: 0,
            targets: 1 << at,
        },
        ..made(0, Access::Load, address, 0, 0)
    };
    let fetch = Made {
        registers: Registers::NONE,
        ..made(0, Access::Fetch, 2 * MIB, 0, 0)
    };
    // As many loads as the core can have outstanding need no place that a fetch needs.
    for at in 0..3 {
        assert_eq!(memory.access(&load(MIB + u64::from(at) * LINE, at)), None);
    }
    assert_eq!(memory.access(&fetch), None);
    // The line's own load, in the same block of instructions.
    assert_eq!(memory.access(&load(2 * MIB, 4)), None);
    assert_eq!(memory.advance(1000), 1);
    assert_eq!(
        memory.resume(0, 0),
        110,
        "the load finds the line in the shared cache"
    );
}

#[test]
fn a_line_that_is_fetched_and_loaded_at_once_comes_into_both_caches() {
    let mut memory = code(0);
    let load = Made {
        registers: Registers {
            uses: 0,
            targets: 1,
        },
        ..made(0, Access::Load, MIB, 0, 0)
    };
    let fetch = Made {
        registers: Registers::NONE,
        ..made(0, Access::Fetch, MIB, 0, 0)
    };
    assert_eq!(memory.access(&load), None);
    assert_eq!(memory.access(&fetch), None);
    assert_eq!(memory.advance(1000), 1);
    assert_eq!(memory.resume(0, 0), 100);
    assert!(memory.uses_again(0, Access::Load, MIB, page(MIB)));
    assert!(memory.uses_again(0, Access::Fetch, MIB, page(MIB)));
}

#[test]
fn instructions_leave_with_the_line_of_an_inclusive_cache_but_not_for_a_store() {
    let mut settings = pi(Vec::new()).memory.settings;
    settings.shared.inclusive = true;
    settings.shared.cache.size_bytes = 16 * LINE;
    let mut memory = EmulatedMemory::new(&settings, FixedMemory::new(100_000, 0, 1000));
    fetch_ns(&mut memory, MIB, 0);
    let store = made(1, Access::Store, MIB, 1000, 1000);
    memory.access(&store);
    assert_eq!(memory.advance(2000), 2);
    assert!(memory.uses_again(0, Access::Fetch, MIB, page(MIB)));
    for at in 1..=16 {
        fetch_ns(&mut memory, MIB + 4096 * at, 1000 * (at + 2));
    }
    assert!(!memory.uses_again(0, Access::Fetch, MIB, page(MIB)));
}

#[test]
fn a_page_has_one_entry_whatever_its_size_and_instructions_share_it() {
    let mut settings = pi(Vec::new()).memory.settings;
    settings.core.tlb_entries = 512;
    let mut memory = EmulatedMemory::new(&settings, FixedMemory::new(100_000, 0, 1000));
    let mut now_ns = 0;
    let mut access = |access, address, bits| {
        now_ns += 10_000;
        let made = Made {
            page: Page::new(address, bits),
            ..made(0, access, address, now_ns, now_ns)
        };
        memory.access(&made);
        memory.advance(now_ns + 5000);
        memory.resume(0, now_ns);
        let counts = &memory.face(0).counts;
        let count = |count| counts[count as usize].get();
        (count(Count::TlbRefill), count(Count::CodeTlbRefill))
    };
    assert_eq!(access(Access::Load, 2 * MIB, 21), (1, 0));
    assert_eq!(access(Access::Load, 3 * MIB, 21), (1, 0));
    assert_eq!(access(Access::Fetch, 3 * MIB + 8192, 21), (1, 0));
    assert_eq!(access(Access::Load, 2 * MIB, 12), (2, 0));
    assert_eq!(access(Access::Load, 2 * MIB + 4096, 12), (3, 0));
    assert_eq!(access(Access::Fetch, 8 * MIB, 12), (3, 1));
    // Without a page table there is no TLB.
    let mut memory = EmulatedMemory::new(&settings, FixedMemory::new(100_000, 0, 1000));
    let untranslated = Made {
        table_entry: None,
        ..made(0, Access::Load, MIB, 0, 0)
    };
    memory.access(&untranslated);
    assert_eq!(memory.advance(1000), 1);
    assert_eq!(memory.resume(0, 0), 100);
}

#[test]
fn whatever_four_cores_do_to_the_same_lines_each_goes_on() {
    let mut settings = Platform::find("raspberry-pi-3").unwrap().machine;
    settings.core.l1d.size_bytes = 16 * LINE;
    settings.core.tlb_entries = 8;
    settings.shared.cache.size_bytes = 256 * LINE;
    settings.shared.mshrs = 4;
    settings.shared.write_backs = 2;
    for (inclusive, coherent) in [(false, false), (true, false), (false, true), (true, true)] {
        settings.shared.inclusive = inclusive;
        settings.dma = settings.dma.map(|dma| DmaSettings { coherent, ..dma });
        let mut memory = EmulatedMemory::new(&settings, FixedMemory::new(100_000, 0, 1000));
        let mut random = fastrand::Rng::with_seed(21);
        let mut now_ns = [0_u64; 4];
        let mut retired = [0_u64; 4];
        let mut blocked = [false; 4];
        let mut moves = 0;
        for round in 1..20_000 {
            let end_ns = round * 1000;
            if moves == 0 || memory.take_ended().is_some() {
                moves += 1;
                memory.transfer(&Move {
                    number: 0,
                    from: Some(random.u64(..600) * LINE),
                    to: Some(random.u64(..600) * LINE),
                    bytes: random.u64(..64) * LINE,
                    now_ns: end_ns - 500,
                });
            }
            for core in 0..4 {
                while !blocked[core] && now_ns[core] < end_ns {
                    let count = random.u64(1..12);
                    now_ns[core] += count;
                    retired[core] += count;
                    // A block runs to its end, whatever has to wait in it.
                    for _ in 0..count {
                        let access = match random.u32(..24) {
                            0 => Access::Zero,
                            1..=6 => Access::Store,
                            7 => Access::Clean,
                            8 => Access::Invalidate,
                            9 => Access::CleanInvalidate,
                            10..=13 => Access::Fetch,
                            _ => Access::Load,
                        };
                        let address = random.u64(..600) * LINE + random.u64(..8) * 4096 * 16;
                        if !blocked[core]
                            && access.upkeep().is_none()
                            && memory.uses_again(core, access, address, page(address))
                        {
                            continue;
                        }
                        let made = Made {
                            registers: Registers {
                                uses: 1 << random.u32(..4),
                                targets: 1 << random.u32(..4),
                            },
                            ..made(core, access, address, now_ns[core], retired[core])
                        };
                        match memory.access(&made) {
                            Some(ns) => now_ns[core] += ns,
                            None => blocked[core] = true,
                        }
                    }
                }
            }
            for _ in 0..1000 {
                let released = memory.advance(end_ns);
                for core in (0..4).filter(|core| released & 1 << core != 0) {
                    assert!(blocked[core]);
                    blocked[core] = false;
                    let at_ns = memory.resume(core, retired[core]);
                    assert!(at_ns >= now_ns[core], "core {core} goes back in time");
                    // Twelve accesses, each with a walk, behind three other cores'.
                    assert!(at_ns < now_ns[core] + 50_000, "core {core} waited too long");
                    now_ns[core] = at_ns;
                }
                if released == 0 {
                    break;
                }
            }
            for (core, now_ns) in now_ns.iter().enumerate() {
                check_core(&mut memory, core);
                assert!(now_ns + 60_000 > end_ns, "core {core} stands still");
            }
        }
        assert!(moves > 1000, "the engine stands still: {moves}");
    }
}
