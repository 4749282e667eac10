// SPDX-License-Identifier: MIT OR Apache-2.0
//! What will happen, first things first; of two at once, what was added first.

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
    Hit { core: u16, line: u64, store: bool },
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

/// Few wait at a time, and most that is added comes soon: a list in order is faster than
/// a heap.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// With their times, the last one first.
    waiting: Vec<(u64, Event)>,
}

impl Events {
    pub fn add(&mut self, at_ps: u64, event: Event) {
        let later = self.waiting.iter().rposition(|other| other.0 > at_ps);
        self.waiting
            .insert(later.map_or(0, |place| place + 1), (at_ps, event));
    }

    /// When the first comes, or [`NEVER_PS`].
    pub fn next_ps(&self) -> u64 {
        self.waiting.last().map_or(NEVER_PS, |first| first.0)
    }

    /// The first, if it comes until then.
    pub fn take(&mut self, until_ps: u64) -> Option<(u64, Event)> {
        if self.next_ps() > until_ps {
            return None;
        }
        self.waiting.pop()
    }
}
