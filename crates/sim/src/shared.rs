// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache that the cores share, its lines in flight, and the queue for memory.

use std::collections::VecDeque;
use std::ops::Range;

use memwarden_cachesim::sets::{DIRTY, Sets, Victim};

use crate::main_memory::{Arrival, Done, MainMemory};
use crate::private::sets;
use crate::settings::{MachineSettings, SharedSettings};

/// Number of an arrival that is a write, of which only the end matters.
pub(crate) const WRITE: u32 = u32::MAX;
/// A device's write, whose end does not matter once memory has accepted it.
pub(crate) const DEVICE_WRITE: u32 = u32::MAX - 1;
/// Numbers from this one on: reads of devices, and their writes that memory has not accepted
/// yet.
pub(crate) const DEVICE: u32 = 1 << 31;

/// No line is in flight in a place.
const FREE: u64 = u64::MAX;
/// Many times the number of lines in flight.
const FILTER: usize = 1024;

/// The result of a core's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The cache has the line.
    Hit,
    /// The line was already in flight, for another core or as a prefetch.
    Joined,
    /// The line is now in flight.
    Miss,
    /// There is no free place: retry.
    Full,
}

/// A line that has arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filled {
    pub line: u64,
    /// The core that requested it first.
    pub core: usize,
    pub prefetch: bool,
    /// The cores that wait for it, a bit each, and those of them that write to it.
    pub waiters: u32,
    pub stores: u32,
    /// The line that was evicted for it.
    pub victim: Option<Victim>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Miss {
    core: usize,
    prefetch: bool,
    waiters: u32,
    stores: u32,
}

#[derive(Debug)]
pub(crate) struct Shared<M> {
    pub memory: M,
    cache: Sets,
    settings: SharedSettings,
    /// The ways for each core's lines.
    ways: Box<[Range<usize>]>,
    line_bits: u32,
    /// The line in flight in each place, or [`FREE`].
    lines: Box<[u64]>,
    misses: Box<[Miss]>,
    /// Free places, a bit each.
    free: Box<[u64]>,
    /// Number of lines in flight by their lowest bits: in most cases none has those of the
    /// wanted line, so no place has to be searched.
    under_way: Box<[u16; FILTER]>,
    /// Reads and writes for which memory has had no room yet.
    waiting: [VecDeque<Arrival>; 2],
    /// Writes that memory has not done yet, including waiting ones.
    writes_under_way: usize,
    /// A device's writes that memory has accepted since this was last read: their numbers and
    /// times.
    pub taken: Vec<Done>,
    /// No arrival comes before this time: the memory has reached at least this.
    pub floor_ps: u64,
    /// Times from which the next line can come from memory, and go to it.
    port_free_ps: [u64; 2],
}

impl<M: MainMemory> Shared<M> {
    pub fn new(machine: &MachineSettings, memory: M) -> Self {
        let settings = machine.shared.clone();
        Self {
            memory,
            cache: sets(
                settings.cache.size_bytes,
                settings.cache.ways,
                machine.line_bytes,
            ),
            ways: partitions(machine),
            line_bits: machine.line_bytes.trailing_zeros(),
            lines: vec![FREE; settings.mshrs].into_boxed_slice(),
            misses: vec![Miss::default(); settings.mshrs].into_boxed_slice(),
            free: (0..settings.mshrs.div_ceil(64))
                .map(|word| u64::MAX >> 64_usize.saturating_sub(settings.mshrs - 64 * word))
                .collect(),
            under_way: Box::new([0; FILTER]),
            waiting: [VecDeque::new(), VecDeque::new()],
            writes_under_way: 0,
            taken: Vec::new(),
            floor_ps: 0,
            port_free_ps: [0; 2],
            settings,
        }
    }

    /// Whether the line is already in flight for this core, so that it needs no other place.
    pub fn join(&mut self, core: usize, line: u64, store: bool) -> bool {
        match self.place(line) {
            Some(place) if self.misses[place].waiters & 1 << core != 0 => {
                self.misses[place].stores |= u32::from(store) << core;
                true
            }
            _ => false,
        }
    }

    /// A core requests a line that it doesn't have.
    pub fn ask(&mut self, core: usize, line: u64, store: bool, now_ps: u64) -> Answer {
        if self.cache.reuse(line, 0).is_some() {
            return Answer::Hit;
        }
        let stores = u32::from(store) << core;
        if let Some(place) = self.place(line) {
            self.misses[place].waiters |= 1 << core;
            self.misses[place].stores |= stores;
            return Answer::Joined;
        }
        let Some(place) = self.free_place() else {
            return Answer::Full;
        };
        let miss = Miss {
            core,
            prefetch: false,
            waiters: 1 << core,
            stores,
        };
        self.begin(place, line, miss, now_ps);
        Answer::Miss
    }

    /// Fetches a line that no core waits for; false if the line is present or in flight, or
    /// there is no free place.
    pub fn prefetch(&mut self, core: usize, line: u64, now_ps: u64) -> bool {
        let Some(place) = self.free_place() else {
            return false;
        };
        if self.place(line).is_some() || self.cache.search(line).is_some() {
            return false;
        }
        let miss = Miss {
            core,
            prefetch: true,
            ..Miss::default()
        };
        self.begin(place, line, miss, now_ps);
        true
    }

    /// Whether a line is here or on its way.
    pub fn has_or_awaits(&mut self, line: u64) -> bool {
        self.place(line).is_some() || self.cache.search(line).is_some()
    }

    /// The line of a place has arrived.
    pub fn fill(&mut self, place: usize) -> Filled {
        let line = std::mem::replace(&mut self.lines[place], FREE);
        self.free[place / 64] |= 1 << (place % 64);
        self.under_way[line as usize % FILTER] -= 1;
        let miss = self.misses[place];
        // A dirty line from a core may have arrived first.
        let victim = match self.cache.search(line) {
            Some(_) => None,
            None => self.insert(miss.core, line, 0),
        };
        Filled {
            line,
            core: miss.core,
            prefetch: miss.prefetch,
            waiters: miss.waiters,
            stores: miss.stores,
            victim,
        }
    }

    /// Whether a line is here.
    pub fn holds(&mut self, line: u64) -> bool {
        self.cache.search(line).is_some()
    }

    /// A core evicts a dirty line. Returns the line that had to be evicted for it.
    pub fn take_back(&mut self, core: usize, line: u64) -> Option<Victim> {
        if self.cache.reuse_if_present(line, DIRTY).is_some() {
            return None;
        }
        self.insert(core, line, DIRTY)
    }

    /// A line becomes equal to memory. Returns whether it was not.
    pub fn clean(&mut self, line: u64) -> bool {
        self.cache.clean(line)
    }

    /// A line leaves. Return: whether it was dirty.
    pub fn remove(&mut self, line: u64) -> bool {
        self.cache.remove(line).is_some_and(|gone| gone.dirty)
    }

    fn insert(&mut self, core: usize, line: u64, flags: u64) -> Option<Victim> {
        self.cache
            .insert_within(self.ways[core].clone(), line, flags)
    }

    /// A line goes to memory.
    pub fn write(&mut self, core: usize, line: u64, now_ps: u64) {
        let mut arrival = self.arrival(WRITE, core, line, now_ps);
        arrival.at_ps = self.pass(true, arrival.at_ps);
        self.writes_under_way += 1;
        self.send(arrival, now_ps);
    }

    /// A device reads or writes a line of memory at `now_ps`. A read's number is reported when
    /// it is done; a write's is in `taken` when memory has accepted it.
    pub fn ask_for_device(&mut self, number: u32, line: u64, write: bool, now_ps: u64) {
        let arrival = Arrival {
            id: number,
            // The number of no core: no core counts the line.
            core: self.ways.len(),
            address: line << self.line_bits,
            write,
            at_ps: now_ps + self.settings.to_memory_ps,
        };
        self.send(arrival, now_ps);
    }

    /// A line passes the path from memory, or to it, at `at_ps` or as soon as the path is free.
    fn pass(&mut self, to_memory: bool, at_ps: u64) -> u64 {
        let free_ps = &mut self.port_free_ps[usize::from(to_memory)];
        let at_ps = at_ps.max(*free_ps);
        *free_ps = at_ps + self.settings.port_ps;
        at_ps
    }

    /// Memory has read a line at `done_ps`. Returns its time of arrival, ps. Lines arrive in
    /// this order.
    pub fn comes_ps(&mut self, done_ps: u64) -> u64 {
        self.pass(false, done_ps + self.settings.from_memory_ps)
    }

    /// The earliest arrival of the next line that memory reads, if it is done at `done_ps` or
    /// later, ps.
    pub fn earliest_fill_ps(&self, done_ps: u64) -> u64 {
        let comes_ps = done_ps.saturating_add(self.settings.from_memory_ps);
        comes_ps.max(self.port_free_ps[0])
    }

    /// Memory has done one of the writes.
    pub fn written(&mut self) {
        self.writes_under_way -= 1;
    }

    /// Passes requests to memory while it has room. Reads go first, since cores wait for them.
    pub fn hand_over(&mut self, now_ps: u64) {
        for write in 0..2 {
            while let Some(&first) = self.waiting[write].front() {
                if !self.memory.has_room(first.address, first.write) {
                    break;
                }
                self.waiting[write].pop_front();
                self.give(first, now_ps);
            }
        }
    }

    /// Passes one more request to memory, after those that already wait.
    fn send(&mut self, arrival: Arrival, now_ps: u64) {
        let waiting = &mut self.waiting[usize::from(arrival.write)];
        if waiting.is_empty() && self.memory.has_room(arrival.address, arrival.write) {
            self.give(arrival, now_ps);
        } else {
            waiting.push_back(arrival);
        }
    }

    fn give(&mut self, arrival: Arrival, now_ps: u64) {
        let at_ps = arrival.at_ps.max(now_ps).max(self.floor_ps);
        let mut id = arrival.id;
        if arrival.write && id != WRITE {
            self.taken.push(Done { id, at_ps });
            id = DEVICE_WRITE;
        }
        self.memory.push(Arrival {
            id,
            at_ps,
            ..arrival
        });
    }

    /// Whether no other line can wait to be written.
    pub fn is_full_of_writes(&self) -> bool {
        self.writes_under_way >= self.settings.write_backs
    }

    /// Whether a request that was refused for lack of a place can be answered now: for a line,
    /// or for a write-back without one.
    pub fn admits(&mut self, line: Option<u64>) -> bool {
        match line {
            None => !self.is_full_of_writes(),
            Some(line) => !self.is_full() || self.has_or_awaits(line),
        }
    }

    /// Whether no other miss can begin.
    pub fn is_full(&self) -> bool {
        self.free_place().is_none()
    }

    /// Whether the line is in flight for this core.
    pub fn waits_for(&self, core: usize, line: u64) -> bool {
        self.place(line)
            .is_some_and(|place| self.misses[place].waiters & 1 << core != 0)
    }

    /// A free place for another line in flight, unless too many are.
    fn free_place(&self) -> Option<usize> {
        if self.is_full_of_writes() {
            return None;
        }
        let word = self.free.iter().position(|bits| *bits != 0)?;
        Some(64 * word + self.free[word].trailing_zeros() as usize)
    }

    fn begin(&mut self, place: usize, line: u64, miss: Miss, now_ps: u64) {
        self.free[place / 64] &= !(1 << (place % 64));
        self.lines[place] = line;
        self.under_way[line as usize % FILTER] += 1;
        self.misses[place] = miss;
        let arrival = self.arrival(place as u32, miss.core, line, now_ps);
        self.send(arrival, now_ps);
    }

    fn arrival(&self, id: u32, core: usize, line: u64, now_ps: u64) -> Arrival {
        Arrival {
            id,
            core,
            address: line << self.line_bits,
            write: id == WRITE,
            at_ps: now_ps + self.settings.to_memory_ps,
        }
    }

    /// The place in which a line is in flight.
    fn place(&self, line: u64) -> Option<usize> {
        if self.under_way[line as usize % FILTER] == 0 {
            return None;
        }
        self.lines.iter().position(|held| *held == line)
    }
}

/// The ways for each core's lines.
fn partitions(machine: &MachineSettings) -> Box<[Range<usize>]> {
    let shared = &machine.shared;
    if shared.partitions.is_empty() {
        return std::iter::repeat_n(0..shared.cache.ways, machine.cores).collect();
    }
    let ends = shared.partitions.iter().scan(0, |end, ways| {
        *end += ways;
        Some(*end - ways..*end)
    });
    ends.collect()
}
