// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface between the last cache and the memory.

/// Not a time: no event will come.
pub const NEVER_PS: u64 = u64::MAX;

/// One line for the memory to read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The number with which the end is reported.
    pub id: u32,
    /// The core whose line it is.
    pub core: usize,
    /// The address of its first byte.
    pub address: u64,
    /// Whether the line is written.
    pub write: bool,
    /// The time at which it reaches the memory, ps; not before the time to which the memory was
    /// last advanced.
    pub at_ps: u64,
}

/// A read whose line has arrived, or a write that the memory has accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// The arrival's number.
    pub id: u32,
    /// The time, ps.
    pub at_ps: u64,
}

/// A memory: it accepts lines while it has room, and reports when they are done. Time advances
/// only by [`advance`](MainMemory::advance).
pub trait MainMemory {
    /// Whether it would now accept a line of that kind at that address.
    fn has_room(&self, address: u64, write: bool) -> bool;

    /// Accepts a line. There must be room for it.
    fn push(&mut self, arrival: Arrival);

    /// The time of the memory's next own event, or [`NEVER_PS`].
    fn next_event_ps(&self) -> u64;

    /// No read is done before this time, whatever arrives from now on.
    fn earliest_done_ps(&self) -> u64 {
        self.next_event_ps()
    }

    /// Advances to `until_ps`, inclusive, and adds the lines that are done.
    fn advance(&mut self, until_ps: u64, done: &mut Vec<Done>);

    /// Number of banks, over all channels.
    fn banks(&self) -> usize {
        1
    }

    /// The bank of an address, from 0.
    fn bank_of(&self, _address: u64) -> usize {
        0
    }

    /// Advances to the first time at which a line is done or a full queue gets room, and adds
    /// the lines that are done. It may stop earlier, but not later. Returns that time, or
    /// `None` when all events until `until_ps` have happened.
    fn go_on(&mut self, until_ps: u64, done: &mut Vec<Done>) -> Option<u64> {
        to_next_event(self, until_ps, done)
    }
}

/// [`MainMemory::go_on`] by one event.
pub(crate) fn to_next_event<M: MainMemory + ?Sized>(
    memory: &mut M,
    until_ps: u64,
    done: &mut Vec<Done>,
) -> Option<u64> {
    let next_ps = memory.next_event_ps();
    if next_ps > until_ps || next_ps == NEVER_PS {
        return None;
    }
    memory.advance(next_ps, done);
    Some(next_ps)
}

/// A memory without banks: each line takes the same time, and lines begin one after the other.
/// For bounds that can be derived by hand, and for tests that do not depend on the memory.
#[derive(Debug, Clone)]
pub struct FixedMemory {
    latency_ps: u64,
    gap_ps: u64,
    depth: usize,
    last_begin_ps: Option<u64>,
    under_way: std::collections::VecDeque<Done>,
}

impl FixedMemory {
    /// Each line takes `latency_ps` from its beginning, and two lines begin at least `gap_ps`
    /// apart; at most `depth` are accepted at a time.
    #[must_use]
    pub fn new(latency_ps: u64, gap_ps: u64, depth: usize) -> Self {
        Self {
            latency_ps,
            gap_ps,
            depth,
            last_begin_ps: None,
            under_way: std::collections::VecDeque::with_capacity(depth),
        }
    }
}

impl MainMemory for FixedMemory {
    fn has_room(&self, _address: u64, _write: bool) -> bool {
        self.under_way.len() < self.depth
    }

    fn push(&mut self, arrival: Arrival) {
        let begin = self
            .last_begin_ps
            .map_or(arrival.at_ps, |last| arrival.at_ps.max(last + self.gap_ps));
        self.last_begin_ps = Some(begin);
        self.under_way.push_back(Done {
            id: arrival.id,
            at_ps: begin + self.latency_ps,
        });
    }

    fn next_event_ps(&self) -> u64 {
        self.under_way.front().map_or(NEVER_PS, |done| done.at_ps)
    }

    fn advance(&mut self, until_ps: u64, done: &mut Vec<Done>) {
        while let Some(first) = self
            .under_way
            .front()
            .filter(|first| first.at_ps <= until_ps)
        {
            done.push(*first);
            self.under_way.pop_front();
        }
    }
}
