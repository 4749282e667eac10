// SPDX-License-Identifier: MIT OR Apache-2.0
//! What will happen, first things first; of two at once, what was added first.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use memwarden_policy::Resource;

use crate::main_memory::NEVER_PS;

/// Something that happens at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A core goes on.
    Proceed(usize),
    /// A sleeping core goes on.
    Wake(usize),
    /// The shared cache has given a line.
    Hit { core: usize, line: u64, store: bool },
    /// Memory has given the line of a place.
    Fill(usize),
    /// A counter interrupts.
    Overflow(usize, Resource),
    /// A core stands still.
    Stop(usize),
    /// A core that stood still goes on.
    Go(usize),
    /// A period begins, unless the timer is an old one.
    Period(u32),
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    at_ps: u64,
    number: u64,
    event: Event,
}

/// The heap has its greatest on top: that is what comes first.
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ps, other.number).cmp(&(self.at_ps, self.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Entry>,
    number: u64,
}

impl Events {
    pub fn add(&mut self, at_ps: u64, event: Event) {
        self.number += 1;
        self.heap.push(Entry {
            at_ps,
            number: self.number,
            event,
        });
    }

    /// When the first comes, or [`NEVER_PS`].
    pub fn next_ps(&self) -> u64 {
        self.heap.peek().map_or(NEVER_PS, |entry| entry.at_ps)
    }

    pub fn take(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|entry| (entry.at_ps, entry.event))
    }
}
