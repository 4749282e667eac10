// SPDX-License-Identifier: MIT OR Apache-2.0
//! Caches and memory behind cores that an emulator executes.
//!
//! The emulator executes one core after the other, each until the end of a round of virtual
//! time or until it has to wait. For the memory this means:
//!
//! - An access for which the core need not wait is processed at once, at the core's own time,
//!   which may be ahead of the memory's.
//! - At the first access that has to wait, the core is blocked. The accesses that it makes
//!   before the emulator can stop it (the rest of a translation block) are processed, too, as
//!   far as an in-order core would get: to the first use of a register that an outstanding load
//!   will write, or to the maximum number of lines in flight. The remaining accesses are kept
//!   for later, with the number of executed instructions as their clock.
//! - When every core has reached the end of the round or is blocked, no further request can
//!   reach the memory before a core is released. The memory [advances](EmulatedMemory::advance)
//!   to the first release, that core executes, and so on to the end of the round. So no request
//!   reaches the memory with a time that has already passed.
//! - An access to the shared cache waits for the memory to reach its time, if a line may arrive
//!   before that time.
//!
//! One effect of the order of execution remains: two cores' accesses to the shared cache within
//! a round may be looked up in reverse order, as long as no line arrives in between.
//!
//! - Devices [move memory](EmulatedMemory::transfer) independently of the cores, in the
//!   memory's time.
//!
//! An instruction takes a ns, as the emulator counts; a load from the L1 takes no additional
//! time. The cores are in order: they wait where the value of a load is used, and at the end of
//! the translation block, a branch in most cases, for all of their loads. Instructions are
//! fetched by lines; a core waits for a line that its instruction cache does not have, but
//! fetches it while its loads are outstanding.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::lines::{Asked, Lines, Upkeep};
use crate::main_memory::{Done, MainMemory, NEVER_PS};
use crate::private::{Found, Private};
use crate::settings::MachineSettings;
use crate::shared::{DEVICE, DEVICE_WRITE, WRITE};

mod transfers;

use transfers::Transfers;
pub use transfers::{Move, TRANSFERS};

const PS: u64 = 1000;

/// Not a line.
const NONE: u64 = u64::MAX;

/// The kind of a core's access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A read.
    Load,
    /// A write.
    Store,
    /// A write of a whole line, which need not be fetched.
    Zero,
    /// Instructions of a line are fetched.
    Fetch,
    /// The core has a line written back, for devices that do not snoop the caches.
    Clean,
    /// The core has a line removed from all caches without a write-back.
    Invalidate,
    /// The core has a line removed from all caches, and written back if it was dirty.
    CleanInvalidate,
}

impl Access {
    /// Its cache maintenance for devices; `None` for loads, stores and fetches.
    fn upkeep(self) -> Option<Upkeep> {
        match self {
            Self::Load | Self::Store | Self::Zero | Self::Fetch => None,
            Self::Clean => Some(Upkeep::Clean),
            Self::Invalidate => Some(Upkeep::Invalidate),
            Self::CleanInvalidate => Some(Upkeep::CleanInvalidate),
        }
    }
}

/// The registers of an access, a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registers {
    /// Registers read or written by instructions since the previous access of the translation
    /// block, including this access's instruction.
    pub uses: u64,
    /// Registers that a load writes.
    pub targets: u64,
}

impl Registers {
    /// An instruction fetch has none.
    pub const NONE: Self = Self {
        uses: 0,
        targets: 0,
    };
    /// The registers are not known: later instructions may use any.
    pub const ALL: Self = Self {
        uses: u64::MAX,
        targets: u64::MAX,
    };
}

/// A page of memory, of any size: what one entry of a TLB holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page(u64);

impl Page {
    /// The page of `1 << bits` bytes, less than 64, that has the byte at `address`.
    #[must_use]
    pub fn new(address: u64, bits: u32) -> Self {
        // Addresses have at most 52 bits.
        Self(address >> bits | u64::from(bits) << 56)
    }
}

/// An access, as the emulator reports it.
#[derive(Debug, Clone, Copy)]
pub struct Made {
    /// The core.
    pub core: usize,
    /// The kind.
    pub access: Access,
    /// The address of the byte.
    pub address: u64,
    /// The page that the page table has for it.
    pub page: Page,
    /// The address of the page's entry in the table; `None` if addresses are not translated.
    pub table_entry: Option<u64>,
    /// The core's time, ns.
    pub now_ns: u64,
    /// Number of instructions that the core has executed by then.
    pub retired: u64,
    /// The instruction's registers.
    pub registers: Registers,
}

/// The counted events, for each core separately. The emulator counts [`Count::Access`], the
/// memory all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Count {
    /// Loads and stores.
    Access,
    /// Lines filled into the L1.
    L1Refill,
    /// Dirty lines evicted from the L1.
    L1WriteBack,
    /// Pages filled into the TLB for a load or store.
    TlbRefill,
    /// Lines filled into the instruction cache.
    CodeRefill,
    /// Pages filled into the TLB for an instruction fetch.
    CodeTlbRefill,
    /// Accesses to the core's private L2.
    L2,
    /// Lines filled into the core's private L2.
    L2Refill,
    /// Accesses to the shared cache: lines filled into the core's last private cache, and dirty
    /// lines evicted from it.
    Shared,
    /// Lines that came from memory for this core, including prefetched ones.
    SharedRefill,
    /// Dirty lines that went to memory to make room for a line of this core.
    SharedWriteBack,
    /// The sum of these two: this core's traffic on the path to memory.
    Bus,
    /// ns for which the core waited.
    Stalled,
}

/// How many kinds of [`Count`] there are.
pub const COUNTS: usize = Count::Stalled as usize + 1;

/// The part of a core's state that the emulator sees, too.
#[derive(Debug, Clone)]
pub struct Face {
    /// Lines whose accesses the emulator need not report: `2 * line`, plus 1 if it need not
    /// report stores either, at the index `line % filter.len()`, a power of two. These are the
    /// most recently used lines of each L1 set: another access only changes the order in which
    /// pages were used. (If the page has left the TLB since, the miss is not counted.)
    pub filter: Rc<[Cell<u64>]>,
    /// The same for instruction fetches: the line itself, or `u64::MAX`. Without an instruction
    /// cache it has no entries, and no fetch need be reported.
    pub fetch_filter: Rc<[Cell<u64>]>,
    /// Indexed by [`Count`].
    pub counts: Rc<[Cell<u64>]>,
    /// Indexed by [`Count`]: when a count reaches its limit, [`EmulatedMemory::take_reached`]
    /// reports it.
    pub limits: Rc<[Cell<u64>]>,
}

#[derive(Debug, Clone, Copy)]
struct Op {
    retired: u64,
    line: u64,
    page: Page,
    /// The line of the page's entry in the table.
    table_line: Option<u64>,
    access: Access,
    registers: Registers,
    stage: Stage,
}

/// A load whose line is in flight.
#[derive(Debug, Clone, Copy)]
struct Load {
    line: u64,
    targets: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Not started yet.
    New,
    /// The page's table entry has to be read.
    Walk,
    /// The line has to be looked up.
    Look,
}

/// What a blocked core waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    No,
    /// A line in flight to it.
    Line(u64),
    /// The lines of all its loads: it has no other work.
    Loads,
    /// Any line in flight to it: it has reached the maximum number.
    OwnMshr,
    /// A free place in the shared cache.
    Shared,
    /// The memory to reach the core's time.
    Time,
}

#[derive(Debug)]
struct Core {
    face: Face,
    /// Its time, and the number of instructions that it had executed then.
    t_ps: u64,
    retired: u64,
    ops: VecDeque<Op>,
    loads: Vec<Load>,
    waits: Waits,
    counts: [u64; COUNTS],
    /// Waiting time that is not a whole ns yet.
    stalled_ps: u64,
}

/// The caches of all cores and the memory behind them.
#[derive(Debug)]
pub struct EmulatedMemory<M> {
    settings: MachineSettings,
    lines: Lines<M>,
    cores: Vec<Core>,
    /// Transfers of devices.
    transfers: Transfers,
    /// Lines that memory has read: the time at which each arrives, and its place in the shared
    /// cache.
    fills: VecDeque<(u64, u32)>,
    done: Vec<Done>,
    line_bits: u32,
    now_ps: u64,
    released: u64,
    reached: u64,
    /// Cores whose counts may have changed since they were published, a bit each.
    changed: u64,
}

impl Face {
    /// For a data and an instruction cache with these numbers of sets.
    fn new(sets: u64, code_sets: u64) -> Self {
        let entries = |sets: u64| {
            if sets.is_power_of_two() || sets == 0 {
                sets as usize
            } else {
                1
            }
        };
        let cells = |len, value| {
            std::iter::repeat_with(|| Cell::new(value))
                .take(len)
                .collect()
        };
        Self {
            filter: cells(entries(sets), NONE),
            fetch_filter: cells(entries(code_sets), NONE),
            counts: cells(COUNTS, 0),
            limits: cells(COUNTS, u64::MAX),
        }
    }

    fn place(&self, line: u64) -> &Cell<u64> {
        &self.filter[line as usize & (self.filter.len() - 1)]
    }

    /// The line was the most recently used one of its set.
    fn used(&self, line: u64, dirty: bool) {
        self.place(line).set(line << 1 | u64::from(dirty));
    }

    /// Instructions were fetched from the line, the most recently used one of its set.
    fn fetched(&self, line: u64) {
        if let Some(place) = self.fetch_place(line) {
            place.set(line);
        }
    }

    fn fetch_place(&self, line: u64) -> Option<&Cell<u64>> {
        let mask = self.fetch_filter.len().checked_sub(1)?;
        self.fetch_filter.get(line as usize & mask)
    }

    /// The line is gone, or is clean.
    fn changed(&self, line: u64) {
        let place = self.place(line);
        if place.get() >> 1 == line {
            place.set(NONE);
        }
        if let Some(place) = self.fetch_place(line).filter(|place| place.get() == line) {
            place.set(NONE);
        }
    }
}

impl Core {
    /// An access has found the line in the L1 for its kind.
    fn used(&self, line: u64, access: Access) {
        if access == Access::Fetch {
            self.face.fetched(line);
        } else {
            self.face.used(line, access != Access::Load);
        }
    }

    /// The line that its first access needs; `None` if that is cache maintenance, which brings
    /// no line.
    fn wanted(&self) -> Option<u64> {
        let op = self.ops.front()?;
        match (op.stage, op.table_line) {
            (Stage::Walk, Some(line)) => Some(line),
            _ if op.access.upkeep().is_some() => None,
            _ => Some(op.line),
        }
    }

    /// Whether it waits for a line of instructions.
    fn fetches(&self, line: u64) -> bool {
        self.ops.front().is_some_and(|op| {
            op.access == Access::Fetch && op.line == line && op.stage == Stage::Look
        })
    }
}

/// The count of lines that enter the L1 for an access.
fn l1_refill(access: Access) -> Count {
    match access {
        Access::Fetch => Count::CodeRefill,
        _ => Count::L1Refill,
    }
}

impl<M: MainMemory> EmulatedMemory<M> {
    /// Empty caches, at time 0.
    #[must_use]
    pub fn new(settings: &MachineSettings, memory: M) -> Self {
        let sets = |bytes, ways| bytes / settings.line_bytes / ways as u64;
        let l1d = &settings.core.l1d;
        let data_sets = sets(l1d.size_bytes, l1d.ways);
        let code_sets = settings
            .core
            .l1i
            .map_or(0, |l1i| sets(l1i.size_bytes, l1i.ways));
        let private = || Private::new(settings, Box::default());
        let core = || Core {
            face: Face::new(data_sets, code_sets),
            t_ps: 0,
            retired: 0,
            ops: VecDeque::with_capacity(64),
            loads: Vec::with_capacity(64),
            waits: Waits::No,
            counts: [0; COUNTS],
            stalled_ps: 0,
        };
        let mut lines = Lines::new(
            settings,
            memory,
            std::iter::repeat_with(private)
                .take(settings.cores)
                .collect(),
        );
        lines.gone = Some(Vec::new());
        Self {
            lines,
            cores: std::iter::repeat_with(core).take(settings.cores).collect(),
            transfers: Transfers::new(settings),
            fills: VecDeque::new(),
            done: Vec::new(),
            line_bits: settings.line_bytes.trailing_zeros(),
            now_ps: 0,
            released: 0,
            reached: 0,
            changed: 0,
            settings: settings.clone(),
        }
    }

    /// The part of a core's state that the emulator sees.
    #[must_use]
    pub fn face(&self, core: usize) -> &Face {
        &self.cores[core].face
    }

    /// The memory behind the caches.
    #[must_use]
    pub fn memory(&self) -> &M {
        &self.lines.shared.memory
    }

    /// The cores with a count that has reached its limit since the previous call, a bit each.
    #[inline]
    pub fn take_reached(&mut self) -> u64 {
        std::mem::take(&mut self.reached)
    }

    /// A core has accessed the byte at `address`. Returns true if the access is complete
    /// because it only changed the order of use. Otherwise call [`access`](Self::access).
    #[inline]
    pub fn uses_again(&mut self, core: usize, access: Access, address: u64, page: Page) -> bool {
        let state = &self.cores[core];
        if state.waits != Waits::No {
            return false;
        }
        let line = address >> self.line_bits;
        let private = &mut self.lines.cores[core].private;
        if access == Access::Fetch {
            let again = private.fetch_again(line, page.0);
            if again {
                state.face.fetched(line);
            }
            return again;
        }
        let Some(dirty) = private.use_again(line, page.0, access != Access::Load) else {
            return false;
        };
        state.face.used(line, dirty);
        true
    }

    /// A core has accessed memory. Returns the time that this takes, ns, or `None` if the core
    /// is blocked.
    pub fn access(&mut self, made: &Made) -> Option<u64> {
        let core = &mut self.cores[made.core];
        core.ops.push_back(Op {
            retired: made.retired,
            line: made.address >> self.line_bits,
            page: made.page,
            table_line: made.table_entry.map(|entry| entry >> self.line_bits),
            access: made.access,
            registers: made.registers,
            stage: Stage::New,
        });
        match core.waits {
            Waits::No => {
                // A remainder of less than a ns is kept.
                core.t_ps = made.now_ns * PS + core.t_ps % PS;
                core.retired = made.retired;
            }
            Waits::Loads => {}
            _ => return None,
        }
        self.proceed(made.core);
        self.publish(made.core);
        let core = &self.cores[made.core];
        (core.waits == Waits::No).then(|| core.t_ps / PS - made.now_ns)
    }

    /// Advances the memory to `until_ns`, or until it releases cores. Returns these, a bit
    /// each; 0 when it has reached `until_ns`.
    pub fn advance(&mut self, until_ns: u64) -> u64 {
        let until_ps = until_ns * PS;
        while self.released == 0 && self.go_on(until_ps) {}
        if self.released == 0 {
            self.at(until_ps);
        }
        let mut changed = std::mem::take(&mut self.changed);
        while changed != 0 {
            self.publish(changed.trailing_zeros() as usize);
            changed &= changed - 1;
        }
        debug_assert!((0..self.cores.len()).all(|core| self.is_published(core)));
        std::mem::take(&mut self.released)
    }

    /// A released core continues, and has executed `retired` instructions by now. Returns its
    /// time, ns.
    pub fn resume(&mut self, core: usize, retired: u64) -> u64 {
        let core = &mut self.cores[core];
        // An exception takes back instructions that were counted with their block.
        core.t_ps += retired.saturating_sub(core.retired) * PS;
        core.retired = retired;
        core.t_ps / PS
    }

    /// A device begins to move memory.
    pub fn transfer(&mut self, wanted: &Move) {
        let now_ps = self.now_ps.max(wanted.now_ns * PS);
        self.transfers.begin(wanted, now_ps);
    }

    /// The number of a transfer that has ended since the previous call, and its end, ns.
    pub fn take_ended(&mut self) -> Option<(u32, u64)> {
        let (number, end_ps) = self.transfers.take_ended()?;
        Some((number, end_ps.div_ceil(PS)))
    }

    fn at(&mut self, now_ps: u64) {
        self.now_ps = self.now_ps.max(now_ps);
        self.lines.shared.floor_ps = self.now_ps;
    }

    /// One step of the memory; false if there is none until then.
    fn go_on(&mut self, until_ps: u64) -> bool {
        let fill_ps = self.fills.front().map_or(NEVER_PS, |fill| fill.0);
        let waiting = self.cores.iter().enumerate();
        let (time_ps, waiting) = waiting
            .filter(|(_, core)| core.waits == Waits::Time)
            .map(|(index, core)| (core.t_ps, index))
            .min()
            .unwrap_or((NEVER_PS, 0));
        let device_ps = self.transfers.next_ps();
        let first_ps = fill_ps.min(until_ps).min(time_ps).min(device_ps);
        if let Some(at_ps) = self.lines.shared.memory.go_on(first_ps, &mut self.done) {
            self.at(at_ps);
            self.memory_went_on();
        } else if device_ps == first_ps {
            self.at(device_ps);
            self.transfers.go_on(&mut self.lines);
            self.forget();
            self.tell_taken();
        } else if time_ps < fill_ps && time_ps <= until_ps {
            self.at(time_ps);
            self.release(waiting, time_ps);
        } else if fill_ps <= until_ps {
            let Some((at_ps, place)) = self.fills.pop_front() else {
                return false;
            };
            self.at(at_ps);
            self.fill(place as usize, at_ps);
        } else {
            return false;
        }
        true
    }

    fn memory_went_on(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        let mut written = false;
        for Done { id, at_ps } in done.drain(..) {
            if id == WRITE {
                self.lines.shared.written();
                written = true;
            } else if id == DEVICE_WRITE {
                // It was complete when memory accepted it.
            } else if id >= DEVICE {
                self.transfers.read(Done { id, at_ps });
            } else {
                let at_ps = self.lines.shared.comes_ps(at_ps);
                self.fills.push_back((at_ps, id));
            }
        }
        self.done = done;
        self.lines.shared.hand_over(self.now_ps);
        self.tell_taken();
        if written {
            self.release_waiting_for_shared(self.now_ps);
        }
    }

    /// Reports the writes that memory has accepted from devices.
    fn tell_taken(&mut self) {
        for taken in self.lines.shared.taken.drain(..) {
            self.transfers.written(taken);
        }
    }

    fn fill(&mut self, place: usize, at_ps: u64) {
        let filled = self.lines.fill(place, at_ps);
        self.changed |= 1 << filled.core | u64::from(filled.waiters);
        self.forget();
        for index in (0..self.cores.len()).filter(|index| filled.waiters & 1 << index != 0) {
            let store = filled.stores & 1 << index != 0;
            // Another core that waited for the line may have written to it already.
            self.take_from_others(index, filled.line, store);
            self.lines.cores[index].under_way -= 1;
            let core = &self.cores[index];
            let loads = core.loads.iter().any(|load| load.line == filled.line);
            let fetches = core.fetches(filled.line);
            if fetches {
                self.bring_code(index, filled.line);
            }
            if store || loads || !fetches {
                self.bring(index, filled.line, store);
            }
            let core = &mut self.cores[index];
            core.loads.retain(|load| load.line != filled.line);
            match core.waits {
                Waits::Line(wanted) if wanted == filled.line => self.release(index, at_ps),
                Waits::Loads if core.loads.is_empty() => self.release(index, at_ps),
                Waits::OwnMshr => self.release(index, at_ps),
                _ => {}
            }
        }
        self.release_waiting_for_shared(at_ps);
    }

    /// Releases the cores that wait for a place in the shared cache, if their lines can have one.
    fn release_waiting_for_shared(&mut self, at_ps: u64) {
        for index in 0..self.cores.len() {
            let core = &self.cores[index];
            if core.waits == Waits::Shared && self.lines.shared.admits(core.wanted()) {
                self.release(index, at_ps);
            }
        }
    }

    fn release(&mut self, index: usize, at_ps: u64) {
        let core = &mut self.cores[index];
        core.stalled_ps += at_ps.saturating_sub(core.t_ps);
        core.t_ps = core.t_ps.max(at_ps);
        core.waits = Waits::No;
        self.changed |= 1 << index;
        self.proceed(index);
        if self.cores[index].waits == Waits::No {
            self.released |= 1 << index;
        }
    }

    /// Processes the core's accesses, up to the one that has to wait.
    fn proceed(&mut self, index: usize) {
        while let Some(&(mut op)) = self.cores[index].ops.front() {
            if op.stage == Stage::New {
                let core = &mut self.cores[index];
                let uses = op.registers.uses;
                if let Some(load) = core.loads.iter().find(|load| load.targets & uses != 0) {
                    core.waits = Waits::Line(load.line);
                    return;
                }
                core.t_ps += op.retired.saturating_sub(core.retired) * PS;
                core.retired = core.retired.max(op.retired);
                op.stage = match op.table_line {
                    Some(_)
                        if self.lines.cores[index].private.find_page(op.page.0) == Some(false) =>
                    {
                        let count = match op.access {
                            Access::Fetch => Count::CodeTlbRefill,
                            _ => Count::TlbRefill,
                        };
                        core.counts[count as usize] += 1;
                        core.t_ps += self.settings.core.page_walk_ps;
                        core.stalled_ps += self.settings.core.page_walk_ps;
                        Stage::Walk
                    }
                    _ => Stage::Look,
                };
                core.ops[0] = op;
            }
            if let (Stage::Walk, Some(line)) = (op.stage, op.table_line) {
                let (gone_on, waits) = self.find(index, line, Access::Load);
                if gone_on {
                    self.cores[index].ops[0].stage = Stage::Look;
                }
                self.cores[index].waits = waits;
            } else {
                let (gone_on, mut waits) = self.find(index, op.line, op.access);
                let core = &mut self.cores[index];
                if gone_on {
                    core.ops.pop_front();
                    if let Waits::Line(line) = waits {
                        let targets = op.registers.targets;
                        core.loads.push(Load { line, targets });
                        waits = Waits::No;
                    }
                }
                core.waits = waits;
            }
            if self.cores[index].waits != Waits::No {
                return;
            }
        }
        let core = &mut self.cores[index];
        core.waits = if core.loads.is_empty() {
            Waits::No
        } else {
            Waits::Loads
        };
    }

    /// A core accesses a line. Returns whether the access is complete or has to be retried, and
    /// what the core has to wait for.
    fn find(&mut self, index: usize, line: u64, access: Access) -> (bool, Waits) {
        if let Some(upkeep) = access.upkeep() {
            return self.maintain(index, line, upkeep);
        }
        let fetch = access == Access::Fetch;
        let store = !fetch && access != Access::Load;
        let own = &mut self.lines.cores[index].private;
        if store && own.has_clean(line) {
            self.take_from_others(index, line, true);
        }
        let own = &mut self.lines.cores[index].private;
        let (found, victim) = if fetch {
            (own.look_up_code(line), None)
        } else {
            own.look_up(line, store)
        };
        let core = &mut self.cores[index];
        if let Some(victim) = victim {
            self.lines.take_back(index, victim.number, core.t_ps);
        }
        match found {
            Found::L1 => {
                core.used(line, access);
                return (true, Waits::No);
            }
            Found::L2 => {
                core.counts[l1_refill(access) as usize] += 1;
                core.counts[Count::L2 as usize] += 1;
                core.used(line, access);
                self.forget();
                self.hit(
                    index,
                    self.settings.core.l2.map_or(0, |l2| l2.hit_ps),
                    store,
                );
                return (true, Waits::No);
            }
            Found::Nowhere => {}
        }
        // Later arrivals do not matter for a line that is in flight to the core.
        if !self.lines.shared.waits_for(index, line) {
            if self.is_ahead(index) {
                return (false, Waits::Time);
            }
            self.take_from_others(index, line, store);
        }
        if access == Access::Zero {
            if self.lines.shared.is_full() {
                return (false, Waits::Shared);
            }
            self.keep(index, line, true);
            return (true, Waits::No);
        }
        let t_ps = self.cores[index].t_ps;
        let asked = if fetch {
            self.lines.ask_for_code(index, line, t_ps)
        } else {
            self.lines.ask(index, line, store, t_ps)
        };
        match asked {
            Asked::OwnMshr => (false, Waits::OwnMshr),
            Asked::Full => (false, Waits::Shared),
            Asked::Hit => {
                if fetch {
                    self.bring_code(index, line);
                } else {
                    self.bring(index, line, store);
                }
                self.hit(index, self.settings.shared.cache.hit_ps, store);
                (true, Waits::No)
            }
            Asked::UnderWay if store => (true, Waits::No),
            // The core has no other work: it looks again when the line is there.
            Asked::UnderWay => (!fetch, Waits::Line(line)),
        }
    }

    /// A core maintains a line. Returns the same as [`find`](Self::find).
    fn maintain(&mut self, index: usize, line: u64, upkeep: Upkeep) -> (bool, Waits) {
        let shared = &self.lines.shared;
        if shared.waits_for(index, line) {
            return (false, Waits::Line(line));
        }
        if shared.is_full_of_writes() {
            return (false, Waits::Shared);
        }
        if self.is_ahead(index) {
            return (false, Waits::Time);
        }
        let t_ps = self.cores[index].t_ps;
        self.lines.maintain(index, line, upkeep, t_ps);
        self.forget();
        (true, Waits::No)
    }

    /// Whether the core is at a time before which a line may still arrive.
    fn is_ahead(&self, index: usize) -> bool {
        let t_ps = self.cores[index].t_ps;
        t_ps > self.now_ps && t_ps > self.next_fill_ps()
    }

    /// A cache has the line: a load waits for it.
    fn hit(&mut self, index: usize, takes_ps: u64, store: bool) {
        if !store {
            let core = &mut self.cores[index];
            core.t_ps += takes_ps;
            core.stalled_ps += takes_ps;
        }
    }

    /// A line arrives in the core's own caches from outside.
    fn bring(&mut self, index: usize, line: u64, store: bool) {
        self.count_arrival(index, Count::L1Refill);
        self.keep(index, line, store);
    }

    /// A line arrives in the core's instruction cache, and in its own second cache, from
    /// outside.
    fn bring_code(&mut self, index: usize, line: u64) {
        self.count_arrival(index, Count::CodeRefill);
        let core = &mut self.cores[index];
        let at_ps = core.t_ps.max(self.now_ps);
        core.counts[Count::Shared as usize] += self.lines.bring_code(index, line, at_ps);
        core.face.fetched(line);
        self.forget();
    }

    fn count_arrival(&mut self, index: usize, l1_refill: Count) {
        let counts = &mut self.cores[index].counts;
        counts[l1_refill as usize] += 1;
        counts[Count::Shared as usize] += 1;
        if self.settings.core.l2.is_some() {
            counts[Count::L2 as usize] += 1;
            counts[Count::L2Refill as usize] += 1;
        }
    }

    /// The core's own caches have a line: other lines are evicted to make room.
    fn keep(&mut self, index: usize, line: u64, store: bool) {
        let core = &mut self.cores[index];
        let at_ps = core.t_ps.max(self.now_ps);
        let gone = self.lines.bring(index, line, store, at_ps);
        core.counts[Count::L1WriteBack as usize] += gone;
        core.counts[Count::Shared as usize] += gone;
        core.face.used(line, store);
        self.forget();
    }

    fn take_from_others(&mut self, index: usize, line: u64, store: bool) {
        let now_ps = self.cores[index].t_ps.max(self.now_ps);
        let changed = self.lines.take_from_others(index, line, store, now_ps);
        for (other, core) in self.cores.iter().enumerate() {
            if changed & 1 << other != 0 {
                core.face.changed(line);
            }
        }
        self.forget();
    }

    /// Removes lines that the shared cache has evicted, and with it each core's caches, from
    /// the emulator's filters.
    fn forget(&mut self) {
        for line in self.lines.gone.iter_mut().flat_map(|gone| gone.drain(..)) {
            for core in &self.cores {
                core.face.changed(line);
            }
        }
    }

    /// No line arrives before this time.
    fn next_fill_ps(&self) -> u64 {
        let fill_ps = self.fills.front().map_or(NEVER_PS, |fill| fill.0);
        let done_ps = self.lines.shared.memory.earliest_done_ps();
        fill_ps.min(self.lines.shared.earliest_fill_ps(done_ps))
    }

    /// Copies the counts to where the emulator sees them.
    fn publish(&mut self, index: usize) {
        let counts = self.counts(index);
        let face = &self.cores[index].face;
        let seen = face.counts[1..].iter().zip(&face.limits[1..]);
        for ((seen, limit), count) in seen.zip(&counts[1..]) {
            seen.set(*count);
            if *count >= limit.get() {
                self.reached |= 1 << index;
            }
        }
    }

    fn is_published(&self, index: usize) -> bool {
        let (counts, face) = (self.counts(index), &self.cores[index].face);
        (1..COUNTS).all(|at| face.counts[at].get() == counts[at])
    }

    /// A core's counts but for [`Count::Access`], which the emulator counts.
    fn counts(&self, index: usize) -> [u64; COUNTS] {
        let (core, lines) = (&self.cores[index], &self.lines.cores[index]);
        let mut counts = core.counts;
        counts[Count::SharedRefill as usize] = lines.refills;
        counts[Count::SharedWriteBack as usize] = lines.write_backs;
        counts[Count::Bus as usize] = lines.refills + lines.write_backs;
        counts[Count::Stalled as usize] = core.stalled_ps / PS;
        counts
    }
}

#[cfg(test)]
mod tests;
