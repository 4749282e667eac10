// SPDX-License-Identifier: MIT OR Apache-2.0
//! The future events, in order of time; of two at the same time, the one that was added first.

use memwarden_policy::Resource;

use crate::main_memory::NEVER_PS;

/// An event at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A core continues.
    Proceed(usize),
    /// A sleeping core continues.
    Wake(usize),
    /// The shared cache has delivered a line.
    Hit { core: u16, line: u64, store: bool },
    /// Memory has delivered the line of a place.
    Fill(usize),
    /// A counter interrupts.
    Overflow(usize, Resource),
    /// Requests that were held back may go on.
    Released,
    /// A core is throttled.
    Stop(usize),
    /// A throttled core continues.
    Go(usize),
    /// A period begins, unless the timer is void.
    Period(u32),
}

/// Only a few events wait at a time, and most new ones are near: a sorted list is faster than a
/// heap.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// With their times, the latest first.
    waiting: Vec<(u64, Event)>,
}

impl Events {
    pub fn add(&mut self, at_ps: u64, event: Event) {
        let later = self.waiting.iter().rposition(|other| other.0 > at_ps);
        self.waiting
            .insert(later.map_or(0, |place| place + 1), (at_ps, event));
    }

    /// The time of the first event, or [`NEVER_PS`].
    pub fn next_ps(&self) -> u64 {
        self.waiting.last().map_or(NEVER_PS, |first| first.0)
    }

    /// Removes the first event, if it is not after that time.
    pub fn take(&mut self, until_ps: u64) -> Option<(u64, Event)> {
        if self.next_ps() > until_ps {
            return None;
        }
        self.waiting.pop()
    }
}
