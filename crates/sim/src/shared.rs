// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache that the cores share, its lines under way, and what waits for memory.

use std::collections::VecDeque;
use std::ops::Range;

use memwarden_cachesim::sets::{DIRTY, Sets, Victim};

use crate::main_memory::{Arrival, Done, MainMemory};
use crate::private::sets;
use crate::settings::{MachineSettings, SharedSettings};

/// As an arrival's number: a write, of which only the end is of interest.
pub(crate) const WRITE: u32 = u32::MAX;
/// A device's write, whose end is of no interest once memory has taken it.
pub(crate) const DEVICE_WRITE: u32 = u32::MAX - 1;
/// The other numbers from this one on: reads of devices, and writes that memory has not taken yet.
pub(crate) const DEVICE: u32 = 1 << 31;

/// No line is under way in a place.
const FREE: u64 = u64::MAX;
/// Many times as many as lines are under way.
const FILTER: usize = 1024;

/// What came of a core's asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The line is here.
    Hit,
    /// It was under way for another core or by a prefetch.
    Joined,
    /// It is under way now.
    Miss,
    /// No place for it: ask again.
    Full,
}

/// A line that has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filled {
    pub line: u64,
    /// Who asked for it first.
    pub core: usize,
    pub prefetch: bool,
    /// Cores that wait for it, a bit each, and of these those that write to it.
    pub waiters: u32,
    pub stores: u32,
    /// What had to go for it.
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
    /// The ways in which each core's lines have their places.
    ways: Box<[Range<usize>]>,
    line_bits: u32,
    /// The line under way in each place, or [`FREE`].
    lines: Box<[u64]>,
    misses: Box<[Miss]>,
    /// Places without a line, a bit each.
    free: Box<[u64]>,
    /// How many lines are under way by their lowest bits: mostly none has those of a line
    /// that is looked for, and no place has to be looked at.
    under_way: Box<[u16; FILTER]>,
    /// Reads and writes for which memory had no room yet.
    waiting: [VecDeque<Arrival>; 2],
    /// Writes that memory has not done yet, waiting ones included.
    writes_under_way: usize,
    /// A device's writes that memory has taken since this was last looked at: their numbers, and when.
    pub taken: Vec<Done>,
    /// No arrival comes before: where the memory is, at least.
    pub floor_ps: u64,
    /// From when on the next line can come from memory, or go there.
    port_free_ps: [u64; 2],
}

impl<M: MainMemory> Shared<M> {
    pub fn new(machine: &MachineSettings, memory: M) -> Self {
        let settings = machine.shared.clone();
        Self {
            memory,
            cache: sets(&settings.cache, machine.line_bytes),
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

    /// Whether the line is under way for this core already, which then needs no
    /// other place for it.
    pub fn join(&mut self, core: usize, line: u64, store: bool) -> bool {
        match self.place(line) {
            Some(place) if self.misses[place].waiters & 1 << core != 0 => {
                self.misses[place].stores |= u32::from(store) << core;
                true
            }
            _ => false,
        }
    }

    /// A core wants a line that it has not.
    pub fn ask(&mut self, core: usize, line: u64, store: bool, now_ps: u64) -> Answer {
        if let Some(place) = self.cache.find(line) {
            self.cache.touch(place, 0);
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

    /// Fetches a line that no core waits for; false if it is here, under way, or there
    /// is no place for it.
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

    /// The line of a place has come.
    pub fn fill(&mut self, place: usize) -> Filled {
        let line = std::mem::replace(&mut self.lines[place], FREE);
        self.free[place / 64] |= 1 << (place % 64);
        self.under_way[line as usize % FILTER] -= 1;
        let miss = self.misses[place];
        // A dirty line of a core's may have come first.
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

    /// A core lets a dirty line go. Return: the line that had to go for it.
    pub fn take_back(&mut self, core: usize, line: u64) -> Option<Victim> {
        if let Some(place) = self.cache.search(line) {
            self.cache.touch(place, DIRTY);
            return None;
        }
        self.insert(core, line, DIRTY)
    }

    /// A line is as memory will have it. Return: whether it was not.
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

    /// A device reads or writes a line of memory, which it asks for at `now_ps`. A read's number is told back when it is
    /// done; a write's is in `taken` when memory has taken it.
    pub fn ask_for_device(&mut self, number: u32, line: u64, write: bool, now_ps: u64) {
        let arrival = Arrival {
            id: number,
            // One that there is not.
            core: self.ways.len(),
            address: line << self.line_bits,
            write,
            at_ps: now_ps + self.settings.to_memory_ps,
        };
        self.send(arrival, now_ps);
    }

    /// A line passes the way from memory, or to it, at `at_ps` or as soon as that is free.
    fn pass(&mut self, to_memory: bool, at_ps: u64) -> u64 {
        let free_ps = &mut self.port_free_ps[usize::from(to_memory)];
        let at_ps = at_ps.max(*free_ps);
        *free_ps = at_ps + self.settings.port_ps;
        at_ps
    }

    /// Memory has read a line at `done_ps`. Return: when it is there, ps. Lines come in this order.
    pub fn comes_ps(&mut self, done_ps: u64) -> u64 {
        self.pass(false, done_ps + self.settings.from_memory_ps)
    }

    /// The next line that memory will have read comes no earlier, if that is done at `done_ps` or later, ps.
    pub fn earliest_fill_ps(&self, done_ps: u64) -> u64 {
        let comes_ps = done_ps.saturating_add(self.settings.from_memory_ps);
        comes_ps.max(self.port_free_ps[0])
    }

    /// Memory has done one of the writes.
    pub fn written(&mut self) {
        self.writes_under_way -= 1;
    }

    /// Gives memory what it has room for. Reads go first: cores wait for them.
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

    /// Gives memory one more, after what waits already.
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

    /// Whether another line can't wait to be written.
    pub fn is_full_of_writes(&self) -> bool {
        self.writes_under_way >= self.settings.write_backs
    }

    /// Whether a line can't begin to come now.
    pub fn is_full(&self) -> bool {
        self.free_place().is_none()
    }

    /// Whether the line is under way for this core.
    pub fn waits_for(&self, core: usize, line: u64) -> bool {
        self.place(line)
            .is_some_and(|place| self.misses[place].waiters & 1 << core != 0)
    }

    /// Where another line can be under way, unless too much is.
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

    /// Where a line is under way.
    fn place(&self, line: u64) -> Option<usize> {
        if self.under_way[line as usize % FILTER] == 0 {
            return None;
        }
        self.lines.iter().position(|held| *held == line)
    }
}

/// In which ways each core's lines are.
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
