// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where lines are, and how they move: the cores' own caches, the shared one, memory.
//!
//! The timing is decided elsewhere: by [`machine`](crate::machine), whose cores are simulated,
//! and by [`emulated`](crate::emulated), whose cores an emulator executes.

use memwarden_cachesim::sets::Victim;
use memwarden_policy::Resource;

use crate::bank_regulator::BankRegulator;
use crate::main_memory::MainMemory;
use crate::private::{PAGE_BITS, Private};
use crate::settings::MachineSettings;
use crate::shared::{Answer, Filled, Shared};

/// A core's own caches, and the lines in flight to them.
#[derive(Debug)]
pub(crate) struct CoreLines {
    pub private: Private,
    pub under_way: u32,
    pub prefetches_under_way: u32,
    /// Lines that came from memory for this core, including prefetched ones.
    pub refills: u64,
    /// The prefetched ones of these.
    pub prefetches: u64,
    /// Dirty lines that left the shared cache to make room for this core's lines.
    pub write_backs: u64,
    /// Requests that wait for their banks' next period, in the order of their arrival.
    held: Vec<Held>,
    /// Requests that were held back.
    pub held_back: u64,
    /// The time since which one or more are held back, and the earlier times' sum, ps.
    held_since_ps: Option<u64>,
    held_ps: u64,
}

/// A request that waits, since the core's budget in its bank is used up. It occupies one of the
/// core's own places for lines in flight, and none of the shared cache's.
#[derive(Debug, Clone, Copy)]
struct Held {
    line: u64,
    store: bool,
}

/// The result of a request for a line that the core's own caches don't have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The shared cache has it.
    Hit,
    /// It is in flight to the core.
    UnderWay,
    /// The core has its maximum number of lines in flight: retry.
    OwnMshr,
    /// No free place in the shared cache: retry.
    Full,
}

/// An instruction's cache maintenance of a line, for devices that do not snoop the caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upkeep {
    /// The line is written back, and stays in the caches.
    Clean,
    /// The line leaves all caches without a write-back.
    Invalidate,
    /// The line leaves all caches, and is written back if it is dirty.
    CleanInvalidate,
}

/// All lines of a machine.
#[derive(Debug)]
pub(crate) struct Lines<M> {
    pub shared: Shared<M>,
    pub cores: Vec<CoreLines>,
    mshrs: u32,
    prefetch_mshrs: u32,
    /// Number of lines that the instruction cache's misses prefetch.
    code_prefetches: u64,
    inclusive: bool,
    /// Events counted since this was last read; `None` if they are not needed.
    pub counted: Option<Vec<(usize, Resource)>>,
    /// Budgets per bank, if there are any.
    pub banks: Option<Box<BankRegulator>>,
    /// Whether a released request found no free place in the shared cache.
    pub released_wait: bool,
    line_bits: u32,
    /// Lines that have left all caches or became clean, since this was last read; `None` if
    /// they are not needed.
    pub gone: Option<Vec<u64>>,
}

impl CoreLines {
    pub fn new(private: Private) -> Self {
        Self {
            private,
            under_way: 0,
            prefetches_under_way: 0,
            refills: 0,
            prefetches: 0,
            write_backs: 0,
            held: Vec::new(),
            held_back: 0,
            held_since_ps: None,
            held_ps: 0,
        }
    }

    /// Time for which one or more of its requests were held back, ps.
    pub fn held_ps(&self, now_ps: u64) -> u64 {
        self.held_ps
            + self
                .held_since_ps
                .map_or(0, |since| now_ps.saturating_sub(since))
    }

    fn hold_back(&mut self, line: u64, store: bool, now_ps: u64) {
        self.held.push(Held { line, store });
        self.held_back += 1;
        self.held_since_ps.get_or_insert(now_ps);
    }

    /// Whether the line is held back already.
    fn join_held(&mut self, line: u64, store: bool) -> bool {
        let held = self.held.iter_mut().find(|held| held.line == line);
        held.map(|held| held.store |= store).is_some()
    }
}

impl<M: MainMemory> Lines<M> {
    pub fn new(settings: &MachineSettings, memory: M, private: Vec<Private>) -> Self {
        Self {
            shared: Shared::new(settings, memory),
            cores: private.into_iter().map(CoreLines::new).collect(),
            mshrs: settings.core.mshrs,
            prefetch_mshrs: settings.core.prefetch_mshrs,
            code_prefetches: settings.core.l1i.map_or(0, |l1i| l1i.prefetch_lines),
            inclusive: settings.shared.inclusive,
            counted: None,
            banks: None,
            released_wait: false,
            line_bits: settings.line_bytes.trailing_zeros(),
            gone: None,
        }
    }

    /// Requests a line that the core's own caches don't have.
    pub fn ask(&mut self, index: usize, line: u64, store: bool, now_ps: u64) -> Asked {
        let core = &mut self.cores[index];
        if self.shared.join(index, line, store) {
            return Asked::UnderWay;
        }
        if self.banks.is_some() && core.join_held(line, store) {
            return Asked::UnderWay;
        }
        if core.under_way >= self.mshrs {
            return Asked::OwnMshr;
        }
        if self.holds_back(index, line) {
            let core = &mut self.cores[index];
            core.hold_back(line, store, now_ps);
            core.under_way += 1;
            self.prefetch(index, line, now_ps);
            return Asked::UnderWay;
        }
        let core = &mut self.cores[index];
        let answer = self.shared.ask(index, line, store, now_ps);
        let asked = match answer {
            Answer::Full => return Asked::Full,
            Answer::Hit => Asked::Hit,
            Answer::Joined | Answer::Miss => Asked::UnderWay,
        };
        core.under_way += u32::from(asked == Asked::UnderWay);
        if answer == Answer::Miss {
            self.count_refill(index, line, false);
        }
        self.prefetch(index, line, now_ps);
        asked
    }

    /// Requests a line of instructions that the core's own caches don't have. It needs none of
    /// the core's places for data in flight.
    pub fn ask_for_code(&mut self, index: usize, line: u64, now_ps: u64) -> Asked {
        if self.shared.join(index, line, false) {
            return Asked::UnderWay;
        }
        let answer = self.shared.ask(index, line, false, now_ps);
        let asked = match answer {
            Answer::Full => return Asked::Full,
            Answer::Hit => Asked::Hit,
            Answer::Joined | Answer::Miss => Asked::UnderWay,
        };
        self.cores[index].under_way += u32::from(asked == Asked::UnderWay);
        if answer == Answer::Miss {
            self.count_refill(index, line, false);
        }
        let page_lines = 1 << (PAGE_BITS - self.line_bits);
        let page_end = (line | (page_lines - 1)) + 1;
        let end = page_end.min(line + 1 + self.code_prefetches);
        self.prefetch_lines(index, line + 1..end, now_ps);
        asked
    }

    fn bank_of(&self, line: u64) -> usize {
        self.shared.memory.bank_of(line << self.line_bits)
    }

    /// Whether a core's request for a line has to wait for its bank's next period: only memory
    /// has the line, and the core's budget in its bank is used up.
    #[inline]
    fn holds_back(&mut self, index: usize, line: u64) -> bool {
        let Some(banks) = &self.banks else {
            return false;
        };
        banks.is_used_up(index, self.bank_of(line)) && !self.shared.has_or_awaits(line)
    }

    /// Sends a core's requests that need not wait any longer. Those that the shared cache has
    /// meanwhile are added to `hits`, with whether they are stores.
    pub fn send_held(&mut self, index: usize, now_ps: u64, hits: &mut Vec<(u64, bool)>) {
        let mut held = std::mem::take(&mut self.cores[index].held);
        held.retain(|&Held { line, store }| {
            if self.holds_back(index, line) {
                return true;
            }
            let answer = self.shared.ask(index, line, store, now_ps);
            match answer {
                Answer::Full => self.released_wait = true,
                Answer::Hit => hits.push((line, store)),
                Answer::Joined => {}
                Answer::Miss => self.count_refill(index, line, false),
            }
            answer == Answer::Full
        });
        let core = &mut self.cores[index];
        core.held = held;
        if core.held.is_empty() {
            core.held_ps = core.held_ps(now_ps);
            core.held_since_ps = None;
        }
    }

    fn prefetch(&mut self, index: usize, line: u64, now_ps: u64) {
        let Some(ask) = self.cores[index].private.prefetches(line) else {
            return;
        };
        self.prefetch_lines(index, ask.lines(), now_ps);
    }

    fn prefetch_lines(&mut self, index: usize, lines: impl Iterator<Item = u64>, now_ps: u64) {
        for line in lines {
            if self.cores[index].prefetches_under_way >= self.prefetch_mshrs {
                return;
            }
            // A request that nothing waits for is dropped, not held back.
            if !self.holds_back(index, line) && self.shared.prefetch(index, line, now_ps) {
                self.cores[index].prefetches_under_way += 1;
                self.count_refill(index, line, true);
            }
        }
    }

    fn count_refill(&mut self, index: usize, line: u64, prefetch: bool) {
        let core = &mut self.cores[index];
        core.refills += 1;
        core.prefetches += u64::from(prefetch);
        if let Some(counted) = &mut self.counted {
            counted.push((index, Resource::Read));
        }
        self.count_in_bank(index, line, Resource::Read);
    }

    fn count_in_bank(&mut self, index: usize, line: u64, resource: Resource) {
        if self.banks.is_none() {
            return;
        }
        let bank = self.bank_of(line);
        if let Some(banks) = &mut self.banks {
            banks.count(index, bank, resource);
        }
    }

    /// The line of a place of the shared cache has arrived from memory. The cores that wait for
    /// it still have to [get it](Self::line_is_there).
    pub fn fill(&mut self, place: usize, now_ps: u64) -> Filled {
        let filled = self.shared.fill(place);
        if let Some(victim) = filled.victim {
            self.let_go(filled.core, victim, now_ps);
        }
        if filled.prefetch {
            self.cores[filled.core].prefetches_under_way -= 1;
        }
        filled
    }

    /// A line that was in flight has arrived for a core.
    pub fn line_is_there(&mut self, index: usize, line: u64, store: bool, now_ps: u64) {
        self.cores[index].under_way -= 1;
        self.bring(index, line, store, now_ps);
    }

    /// A line enters a core's own caches. Returns the number of dirty lines that were evicted
    /// for it.
    pub fn bring(&mut self, index: usize, line: u64, store: bool, now_ps: u64) -> u64 {
        let victims = self.cores[index].private.fill(line, store);
        let gone = victims.into_iter().flatten();
        gone.map(|victim| self.take_back(index, victim.number, now_ps))
            .count() as u64
    }

    /// A line of instructions enters a core's own caches. Returns the number of dirty lines that
    /// were evicted for it.
    pub fn bring_code(&mut self, index: usize, line: u64, now_ps: u64) -> u64 {
        let victim = self.cores[index].private.fill_code(line);
        if let Some(victim) = victim {
            self.take_back(index, victim.number, now_ps);
        }
        u64::from(victim.is_some())
    }

    /// A core accesses a line that other cores' caches may have. These drop the line, or, if it
    /// is only read, keep it clean. Returns these cores, a bit each.
    pub fn take_from_others(&mut self, index: usize, line: u64, store: bool, now_ps: u64) -> u32 {
        let mut changed = 0;
        for other in (0..self.cores.len()).filter(|other| *other != index) {
            let private = &mut self.cores[other].private;
            let dirty = if store {
                let held = private.take_out(line);
                changed |= u32::from(held.is_some()) << other;
                held == Some(true)
            } else {
                let dirty = private.clean(line);
                changed |= u32::from(dirty) << other;
                dirty
            };
            if dirty {
                self.take_back(index, line, now_ps);
            }
        }
        changed
    }

    /// A dirty line is evicted from a core's own caches.
    pub fn take_back(&mut self, index: usize, line: u64, now_ps: u64) {
        if let Some(victim) = self.shared.take_back(index, line) {
            self.let_go(index, victim, now_ps);
        }
    }

    /// A line leaves the shared cache, to make room for a line of one of the cores.
    fn let_go(&mut self, index: usize, victim: Victim, now_ps: u64) {
        let mut dirty = victim.dirty;
        if self.inclusive {
            for core in &mut self.cores {
                dirty |= core.private.invalidate(victim.number);
                core.private.drop_code(victim.number);
            }
            if let Some(gone) = &mut self.gone {
                gone.push(victim.number);
            }
        }
        if dirty {
            self.write_back(index, victim.number, now_ps);
        }
    }

    /// Whether any cache holds a line.
    pub fn are_cached(&mut self, line: u64) -> bool {
        self.shared.holds(line) || self.cores.iter_mut().any(|core| core.private.holds(line))
    }

    /// A device overwrites a line: it leaves all caches.
    pub fn overwrite(&mut self, line: u64) {
        self.take_out(line, true);
    }

    /// A core's instruction has a line written back, removed from all caches, or both.
    pub fn maintain(&mut self, index: usize, line: u64, upkeep: Upkeep, now_ps: u64) {
        let dirty = self.take_out(line, upkeep != Upkeep::Clean);
        if dirty && upkeep != Upkeep::Invalidate {
            self.write_back(index, line, now_ps);
        }
    }

    /// A line leaves all caches, or becomes clean in them. Returns whether it was dirty in one.
    fn take_out(&mut self, line: u64, leaves: bool) -> bool {
        let mut dirty = false;
        for core in &mut self.cores {
            let private = &mut core.private;
            dirty |= if leaves {
                private.invalidate(line)
            } else {
                private.clean(line)
            };
        }
        dirty |= if leaves {
            self.shared.remove(line)
        } else {
            self.shared.clean(line)
        };
        if let Some(gone) = &mut self.gone {
            gone.push(line);
        }
        dirty
    }

    fn write_back(&mut self, index: usize, line: u64, now_ps: u64) {
        self.cores[index].write_backs += 1;
        self.shared.write(index, line, now_ps);
        if let Some(counted) = &mut self.counted {
            counted.push((index, Resource::Write));
        }
        self.count_in_bank(index, line, Resource::Write);
    }
}
