// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache that the cores share, its lines under way, and what waits for memory.

use std::collections::VecDeque;

use memwarden_cachesim::sets::{DIRTY, Sets, Victim};

use crate::main_memory::{Arrival, MainMemory};
use crate::private::sets;
use crate::settings::{MachineSettings, SharedSettings};

/// As an arrival's number: a write, of which only the end is of interest.
pub(super) const WRITE: u32 = u32::MAX;

/// No line is under way in a place.
const FREE: u64 = u64::MAX;

/// What came of a core's asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
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
pub(super) struct Filled {
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
pub(super) struct Shared<M> {
    pub memory: M,
    cache: Sets,
    settings: SharedSettings,
    line_bits: u32,
    /// The line under way in each place, or [`FREE`].
    lines: Box<[u64]>,
    misses: Box<[Miss]>,
    /// For which memory had no room yet.
    reads: VecDeque<Arrival>,
    writes: VecDeque<Arrival>,
    /// Writes that memory has not done yet, waiting ones included.
    writes_under_way: usize,
    /// The last arrival's time: they come in order.
    last_ps: u64,
}

impl<M: MainMemory> Shared<M> {
    pub fn new(machine: &MachineSettings, memory: M) -> Self {
        let settings = machine.shared;
        Self {
            memory,
            cache: sets(&settings.cache, machine.line_bytes),
            settings,
            line_bits: machine.line_bytes.trailing_zeros(),
            lines: vec![FREE; settings.mshrs].into_boxed_slice(),
            misses: vec![Miss::default(); settings.mshrs].into_boxed_slice(),
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            writes_under_way: 0,
            last_ps: 0,
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
        let miss = Miss {
            core,
            prefetch: false,
            waiters: 1 << core,
            stores,
        };
        if self.begin(line, miss, now_ps) {
            Answer::Miss
        } else {
            Answer::Full
        }
    }

    /// Fetches a line that nobody waits for; false if it is here, under way, or there
    /// is no place for it.
    pub fn prefetch(&mut self, core: usize, line: u64, now_ps: u64) -> bool {
        let miss = Miss {
            core,
            prefetch: true,
            ..Miss::default()
        };
        self.cache.search(line).is_none()
            && self.place(line).is_none()
            && self.begin(line, miss, now_ps)
    }

    /// The line of a place has come.
    pub fn fill(&mut self, place: usize) -> Filled {
        let line = std::mem::replace(&mut self.lines[place], FREE);
        let miss = self.misses[place];
        // A dirty line of a core's may have come first.
        let victim = match self.cache.search(line) {
            Some(_) => None,
            None => self.cache.insert(line, 0),
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

    /// A core lets a dirty line go. Return: the dirty line that had to go for it.
    pub fn take_back(&mut self, line: u64) -> Option<u64> {
        if let Some(place) = self.cache.search(line) {
            self.cache.touch(place, DIRTY);
            return None;
        }
        let gone = self.cache.insert(line, DIRTY)?;
        gone.dirty.then_some(gone.number)
    }

    /// A line goes to memory.
    pub fn write(&mut self, core: usize, line: u64, now_ps: u64) {
        let arrival = self.arrival(WRITE, core, line, now_ps);
        self.writes_under_way += 1;
        self.writes.push_back(arrival);
        self.hand_over(now_ps);
    }

    /// Memory has done one of the writes.
    pub fn written(&mut self) {
        self.writes_under_way -= 1;
    }

    /// Gives memory what it has room for. Reads go first: somebody waits for them.
    pub fn hand_over(&mut self, now_ps: u64) {
        for waiting in [&mut self.reads, &mut self.writes] {
            while let Some(first) = waiting.front()
                && self.memory.has_room(first.address, first.write)
            {
                self.last_ps = self.last_ps.max(first.at_ps).max(now_ps);
                self.memory.push(Arrival {
                    at_ps: self.last_ps,
                    ..*first
                });
                waiting.pop_front();
            }
        }
    }

    fn begin(&mut self, line: u64, miss: Miss, now_ps: u64) -> bool {
        if self.writes_under_way >= self.settings.write_backs {
            return false;
        }
        let Some(place) = self.place(FREE) else {
            return false;
        };
        self.lines[place] = line;
        self.misses[place] = miss;
        let arrival = self.arrival(place as u32, miss.core, line, now_ps);
        self.reads.push_back(arrival);
        self.hand_over(now_ps);
        true
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

    fn place(&self, line: u64) -> Option<usize> {
        self.lines.iter().position(|held| *held == line)
    }
}
