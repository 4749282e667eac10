// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that devices move by themselves (DMA).
//!
//! A transfer proceeds line by line: a line is read, passes the engine's own path, and is
//! written. As many lines of a transfer are in flight as the engine allows; a line's slot is
//! free again when the memory controller has accepted the write. The lines wait for the memory
//! with those of the cores, and fill no cache. An engine that does not snoop does not affect
//! the caches. One that does reads cached lines from the caches, in the time of a hit in the
//! shared one; a line that it writes leaves the caches as a whole, even if the first or last
//! one is written in part.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::lines::Lines;
use crate::main_memory::{Done, MainMemory, NEVER_PS};
use crate::settings::{DmaSettings, MachineSettings};
use crate::shared::DEVICE;

/// Numbers of transfers: 0 to 63.
pub const TRANSFERS: usize = 64;

/// A transfer that a device is told to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// A number below [`TRANSFERS`] that no other transfer in progress has.
    pub number: u32,
    /// The first byte to read, if memory is read.
    pub from: Option<u64>,
    /// The first byte to write, if memory is written.
    pub to: Option<u64>,
    /// Number of bytes.
    pub bytes: u64,
    /// Time of its beginning.
    pub now_ns: u64,
}

/// Consecutive lines.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    next: u64,
    left: u64,
}

impl Run {
    fn new(address: Option<u64>, bytes: u64, line_bits: u32) -> Self {
        match address {
            Some(address) if bytes > 0 => {
                let next = address >> line_bits;
                Self {
                    next,
                    left: ((address + bytes - 1) >> line_bits) - next + 1,
                }
            }
            _ => Self::default(),
        }
    }

    fn take(&mut self) -> Option<u64> {
        let line = self.next;
        self.left = self.left.checked_sub(1)?;
        self.next += 1;
        Some(line)
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Transfer {
    from: Run,
    to: Run,
    under_way: usize,
}

/// A line in flight of a transfer.
#[derive(Debug, Clone, Copy, Default)]
struct Step {
    transfer: usize,
    to: Option<u64>,
}

/// The next event. Of two at the same time, the earlier variant goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A transfer begins.
    Begin(usize),
    /// The data that a step reads has arrived.
    Read(u32),
    /// The memory controller has the data that a step writes.
    Written(u32),
}

/// All transfers in progress, through one engine.
#[derive(Debug)]
pub(super) struct Transfers {
    /// Without settings, a transfer takes no time.
    settings: Option<DmaSettings>,
    from_memory_ps: u64,
    hit_ps: u64,
    line_bits: u32,
    transfers: Box<[Transfer]>,
    steps: Vec<Step>,
    free: Vec<u32>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    /// Times from which a line can pass the engine's path from memory, and to it.
    port_free_ps: [u64; 2],
    ended: VecDeque<(u32, u64)>,
}

impl Transfers {
    pub fn new(machine: &MachineSettings) -> Self {
        Self {
            settings: machine.dma,
            from_memory_ps: machine.shared.from_memory_ps,
            hit_ps: machine.shared.cache.hit_ps,
            line_bits: machine.line_bytes.trailing_zeros(),
            transfers: vec![Transfer::default(); TRANSFERS].into_boxed_slice(),
            steps: Vec::new(),
            free: Vec::new(),
            events: BinaryHeap::new(),
            port_free_ps: [0; 2],
            ended: VecDeque::new(),
        }
    }

    /// A transfer begins at `now_ps`.
    pub fn begin(&mut self, wanted: &Move, now_ps: u64) {
        if self.settings.is_none() {
            self.ended.push_back((wanted.number, now_ps));
            return;
        }
        let number = wanted.number as usize;
        self.transfers[number] = Transfer {
            from: Run::new(wanted.from, wanted.bytes, self.line_bits),
            to: Run::new(wanted.to, wanted.bytes, self.line_bits),
            under_way: 0,
        };
        self.at(now_ps, Event::Begin(number));
    }

    /// The number of a transfer that has ended since the previous call, and its end, ps.
    pub fn take_ended(&mut self) -> Option<(u32, u64)> {
        self.ended.pop_front()
    }

    /// Time of the next event, or [`NEVER_PS`].
    pub fn next_ps(&self) -> u64 {
        self.events.peek().map_or(NEVER_PS, |event| event.0.0)
    }

    /// Processes the first event, which is due now.
    pub fn go_on<M: MainMemory>(&mut self, lines: &mut Lines<M>) {
        let Some(Reverse((now_ps, event))) = self.events.pop() else {
            return;
        };
        match event {
            Event::Begin(number) => self.issue(number, lines, now_ps),
            Event::Read(step) => match self.steps[step as usize].to {
                Some(line) => self.write(step, line, lines, now_ps),
                None => self.leave(step, lines, now_ps),
            },
            Event::Written(step) => self.leave(step, lines, now_ps),
        }
    }

    /// Memory has read a step's line.
    pub fn read(&mut self, done: Done) {
        let at_ps = self.pass(false, done.at_ps + self.from_memory_ps);
        self.at(at_ps, Event::Read(done.id - DEVICE));
    }

    /// Memory has accepted a step's write.
    pub fn written(&mut self, taken: Done) {
        let at_ps = taken.at_ps + self.from_memory_ps;
        self.at(at_ps, Event::Written(taken.id - DEVICE));
    }

    fn at(&mut self, at_ps: u64, event: Event) {
        self.events.push(Reverse((at_ps, event)));
    }

    fn is_coherent(&self) -> bool {
        self.settings.is_some_and(|settings| settings.coherent)
    }

    /// A line passes the engine's path.
    fn pass(&mut self, to_memory: bool, at_ps: u64) -> u64 {
        let free_ps = &mut self.port_free_ps[usize::from(to_memory)];
        let at_ps = at_ps.max(*free_ps);
        *free_ps = at_ps + self.settings.map_or(0, |settings| settings.port_ps);
        at_ps
    }

    /// Begins as many steps of a transfer as may be in flight; if no step is left, the transfer
    /// has ended.
    fn issue<M: MainMemory>(&mut self, number: usize, lines: &mut Lines<M>, now_ps: u64) {
        let outstanding = self.settings.map_or(1, |settings| settings.outstanding);
        while self.transfers[number].under_way < outstanding {
            let transfer = &mut self.transfers[number];
            let (from, to) = (transfer.from.take(), transfer.to.take());
            if from.is_none() && to.is_none() {
                break;
            }
            transfer.under_way += 1;
            let step = self.free.pop().unwrap_or_else(|| {
                self.steps.push(Step::default());
                self.steps.len() as u32 - 1
            });
            self.steps[step as usize] = Step {
                transfer: number,
                to,
            };
            match (from, to) {
                (Some(line), _) if self.is_coherent() && lines.are_cached(line) => {
                    let at_ps = self.pass(false, now_ps + self.hit_ps);
                    self.at(at_ps, Event::Read(step));
                }
                (Some(line), _) => lines
                    .shared
                    .ask_for_device(DEVICE + step, line, false, now_ps),
                (None, Some(line)) => self.write(step, line, lines, now_ps),
                (None, None) => {}
            }
        }
        if self.transfers[number].under_way == 0 {
            self.ended.push_back((number as u32, now_ps));
        }
    }

    fn write<M: MainMemory>(&mut self, step: u32, line: u64, lines: &mut Lines<M>, now_ps: u64) {
        if self.is_coherent() {
            lines.overwrite(line);
        }
        let at_ps = self.pass(true, now_ps);
        lines
            .shared
            .ask_for_device(DEVICE + step, line, true, at_ps);
    }

    /// A step is done, and the next one gets its slot.
    fn leave<M: MainMemory>(&mut self, step: u32, lines: &mut Lines<M>, now_ps: u64) {
        let number = self.steps[step as usize].transfer;
        self.free.push(step);
        self.transfers[number].under_way -= 1;
        self.issue(number, lines, now_ps);
    }
}

#[cfg(test)]
mod tests;
