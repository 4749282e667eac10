// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is behind the last cache, as the caches see it.

/// No time: nothing will happen.
pub const NEVER_PS: u64 = u64::MAX;

/// One line for the memory to read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Told back when it is done.
    pub id: u32,
    /// The core that it is for.
    pub core: usize,
    /// Its first byte.
    pub address: u64,
    /// Whether the line is written.
    pub write: bool,
    /// When it comes to the memory, ps; not before what the memory was last
    /// advanced to.
    pub at_ps: u64,
}

/// A read whose line is there, or a write that the memory has taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// The arrival's.
    pub id: u32,
    /// When, ps.
    pub at_ps: u64,
}

/// A memory: it takes lines while it has room, and tells when they are done. Time
/// goes on only by [`advance`](MainMemory::advance).
pub trait MainMemory {
    /// Whether a line of that kind at that address would be taken now.
    fn has_room(&self, address: u64, write: bool) -> bool;

    /// Takes a line. There has to be room for it.
    fn push(&mut self, arrival: Arrival);

    /// When something will happen of itself, or [`NEVER_PS`].
    fn next_event_ps(&self) -> u64;

    /// No read is done before, whatever comes from now on.
    fn earliest_done_ps(&self) -> u64 {
        self.next_event_ps()
    }

    /// Lets time go on until `until_ps`, that moment included, and adds what is done.
    fn advance(&mut self, until_ps: u64, done: &mut Vec<Done>);

    /// Lets time go on to the first moment at which anything is done, or there is room
    /// where there was none, and adds what is done. It may stop before that, but not
    /// after. Return: that moment, or `None` once all has happened that does until
    /// `until_ps`.
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

/// A memory without banks: each line takes as long, and one begins after the other.
/// For bounds that can be worked out by hand, and where the memory is not the question.
#[derive(Debug, Clone)]
pub struct FixedMemory {
    latency_ps: u64,
    gap_ps: u64,
    depth: usize,
    last_begin_ps: Option<u64>,
    under_way: std::collections::VecDeque<Done>,
}

impl FixedMemory {
    /// Each line takes `latency_ps` from its begin, and two begin at least `gap_ps`
    /// apart; `depth` are taken at a time.
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
