// SPDX-License-Identifier: MIT OR Apache-2.0
//! One channel of the controller, which advances from event to event: an arrival, a command, or
//! a refresh that becomes due.

use std::collections::VecDeque;

use super::command::{Command, Kind, Observer};
use super::controller::{ControllerSettings, PagePolicy};
use super::mapping::Location;
use super::memory::Memory;
use super::queue::{CLOSED, NONE, Queue, Slot};
use super::ready::{ACT, BANKS, PRE, RD, ReadyTimes, WR};
use super::statistics::Statistics;
use crate::main_memory::{Arrival, Done, NEVER_PS};

/// After all requests: no request waits for this command.
const LAST: u64 = u64::MAX;
/// Only commands that move data go before an older request.
const NOT_DATA: u64 = 1 << 63;
/// Before all requests.
const FIRST: u64 = 0;
/// The low bits of a key hold the bank, below the request's age, so that the smallest pair of
/// time and key identifies the choice.
const BANK_BITS: u32 = BANKS.ilog2();
/// Marks a first choice that must be computed again: smaller than every real key, since these
/// aren't 0.
const UNKNOWN: u128 = 0;
/// Nothing to choose.
const NO_CHOICE: u128 = u128::MAX;

/// The bank's next command for the kind of requests whose turn it is.
#[derive(Debug, Clone, Copy, Default)]
struct Choice {
    ready_ps: u64,
    key: u64,
    kind: u8,
    slot: u16,
}

/// Choices that wait for the same times: ACTs, PREs, and data commands.
#[derive(Debug, Clone, Copy)]
struct Class {
    /// Banks whose choice is in this class, including those whose turn it isn't.
    banks: u64,
    /// The first of those that may be made, or [`UNKNOWN`]. Times only become later, so it
    /// stays the first until its own time has passed.
    first: u128,
}

/// RD and WR are one class.
#[inline]
fn class(kind: u8) -> usize {
    usize::from(kind).min(RD)
}

#[inline]
fn order(at_ps: u64, key: u64) -> u128 {
    (u128::from(at_ps) << 64) | u128::from(key)
}

#[inline]
fn bank_of(order: u128) -> usize {
    order as usize % BANKS
}

/// A request that arrives later.
#[derive(Debug, Clone, Copy)]
struct Incoming {
    id: u32,
    core: u32,
    at_ps: u64,
    write: bool,
    bank: u8,
    row: u32,
    column: u32,
}

/// The channel's next event other than an arrival, and its time.
#[derive(Debug, Clone, Copy)]
enum What {
    Nothing,
    ForRequest { bank: usize },
    CloseIdle { bank: usize },
    ReadsPause,
    RefreshDue { rank: usize },
    CloseRank { rank: usize },
    Refresh { rank: usize },
}

#[derive(Debug, Clone, Copy, Default)]
struct Bank {
    open_row: u32,
    /// Row hits served while an older request waited for another row.
    past_older: u32,
    /// Its last RD or WR, or ACT.
    used_ps: u64,
}

pub(super) struct Channel {
    index: usize,
    settings: ControllerSettings,
    tck: u64,
    trefi: u64,
    read_ps: u64,
    line_bytes: u64,
    group_bits: u32,
    bank_bits: u32,
    ready: ReadyTimes,
    banks: Box<[Bank; BANKS]>,
    choices: Box<[Choice; BANKS]>,
    classes: [Class; 3],
    queue: Queue,
    /// Requests that arrive later, by their time.
    incoming: VecDeque<Incoming>,
    arrival_ps: u64,
    /// Reads and writes that were accepted and aren't done: they occupy the queues.
    taken: [usize; 2],
    done: VecDeque<Done>,
    done_ps: u64,
    /// The direction whose turn it is, and the number of its data commands so far.
    writing: bool,
    turn: u32,
    /// When the last read was issued.
    read_at_ps: u64,
    /// Banks with a row that was opened for the previous direction: their data commands go
    /// first, while rows are opened for this direction.
    finishing: u64,
    /// Banks with an open row, and banks of ranks that are to be refreshed.
    open: u64,
    blocked: u64,
    due_ps: Vec<u64>,
    /// The first of them.
    first_due: usize,
    /// The next free slot on the command bus.
    slot_ps: u64,
    next_ps: u64,
    next: What,
    age: u64,
    counted_ps: u64,
    /// All events until this time have happened.
    advanced_ps: u64,
    pub statistics: Statistics,
}

impl Channel {
    pub fn new(index: usize, memory: &Memory, settings: &ControllerSettings) -> Self {
        let organisation = &memory.organisation;
        let timings = memory.timings.in_clocks();
        let depth = settings.read_depth + settings.write_depth;
        let mut channel = Self {
            index,
            settings: *settings,
            tck: timings.tck,
            trefi: timings.trefi,
            read_ps: timings.tcl + memory.burst_ps(),
            line_bytes: organisation.burst_bytes(),
            group_bits: organisation.bank_groups.ilog2(),
            bank_bits: organisation.banks.ilog2(),
            ready: ReadyTimes::new(memory),
            banks: Box::new(
                [Bank {
                    open_row: CLOSED,
                    ..Bank::default()
                }; BANKS],
            ),
            choices: Box::new([Choice::default(); BANKS]),
            classes: [Class {
                banks: 0,
                first: UNKNOWN,
            }; 3],
            queue: Queue::new(depth),
            incoming: VecDeque::with_capacity(depth),
            arrival_ps: NEVER_PS,
            taken: [0; 2],
            done: VecDeque::with_capacity(4 * depth),
            done_ps: NEVER_PS,
            writing: false,
            turn: 0,
            read_at_ps: 0,
            finishing: 0,
            open: 0,
            blocked: 0,
            // The ranks' refreshes are staggered, so that the ranks don't all wait at the same
            // time.
            due_ps: (1..=organisation.ranks)
                .map(|rank| {
                    (timings.trefi * rank / organisation.ranks).next_multiple_of(timings.tck)
                })
                .collect(),
            first_due: 0,
            slot_ps: 0,
            next_ps: NEVER_PS,
            next: What::Nothing,
            age: 1,
            counted_ps: 0,
            advanced_ps: 0,
            statistics: Statistics::new(),
        };
        channel.decide();
        channel
    }

    #[inline]
    pub fn has_room(&self, write: bool) -> bool {
        let depth = if write {
            self.settings.write_depth
        } else {
            self.settings.read_depth
        };
        self.taken[usize::from(write)] < depth
    }

    fn room(&self) -> [bool; 2] {
        [false, true].map(|write| self.has_room(write))
    }

    #[inline]
    pub fn push(&mut self, arrival: Arrival, location: Location) {
        self.taken[usize::from(arrival.write)] += 1;
        let group = (location.rank << self.group_bits) + location.group;
        let incoming = Incoming {
            id: arrival.id,
            core: arrival.core as u32,
            at_ps: arrival.at_ps,
            write: arrival.write,
            bank: ((group << self.bank_bits) + location.bank) as u8,
            row: location.row,
            column: location.column,
        };
        // No arrival comes before the request. A request that a waiting write answers is
        // different: it frees its entry at once, which must be reported as an event.
        if incoming.at_ps == self.advanced_ps
            && self.arrival_ps == NEVER_PS
            && !self
                .queue
                .has_write(incoming.bank.into(), incoming.row, incoming.column)
        {
            self.admit(incoming);
            return;
        }
        let mut place = self.incoming.len();
        while place > 0 && self.incoming[place - 1].at_ps > incoming.at_ps {
            place -= 1;
        }
        if place == self.incoming.len() {
            self.incoming.push_back(incoming);
        } else {
            self.incoming.insert(place, incoming);
        }
        self.arrival_ps = self.arrival_ps.min(incoming.at_ps);
    }

    pub fn next_event_ps(&self) -> u64 {
        self.next_ps.min(self.arrival_ps).min(self.done_ps)
    }

    /// No read is done before this time: one that hasn't been issued takes its full time.
    pub fn earliest_done_ps(&self) -> u64 {
        let issue_ps = self.next_ps.min(self.arrival_ps);
        self.done_ps.min(issue_ps.saturating_add(self.read_ps))
    }

    pub fn advance<O: Observer>(&mut self, until_ps: u64, done: &mut Vec<Done>, observer: &mut O) {
        self.advance_to(until_ps, observer);
        self.hand_out(until_ps, done);
    }

    /// Processes all events until `until_ps`, inclusive.
    pub fn advance_to<O: Observer>(&mut self, until_ps: u64, observer: &mut O) {
        while self.arrival_ps.min(self.next_ps) <= until_ps {
            if !O::SEES && matches!(self.next, What::RefreshDue { .. }) {
                self.skip_refreshes(until_ps);
            }
            self.step(observer);
        }
        self.advanced_ps = until_ps;
    }

    /// Skips whole tREFI of a pause, in which each rank only gets its REF: counts them without
    /// their commands. At least one tREFI remains, whose commands give the channel the state that
    /// the skipped ones would leave.
    fn skip_refreshes(&mut self, until_ps: u64) {
        let pause_ps = until_ps.min(self.arrival_ps.saturating_sub(1));
        let skipped = (pause_ps.saturating_sub(self.next_ps) / self.trefi).saturating_sub(1);
        if skipped == 0 || self.queue.lengths != [0; 2] || (self.open | self.blocked) != 0 {
            return;
        }
        let refreshed_late = (0..self.due_ps.len()).any(|rank| {
            let bank = self.rank_banks(rank).trailing_zeros() as usize;
            self.ready.earliest(Kind::Refresh, bank) > self.due_ps[rank]
        });
        if refreshed_late {
            return;
        }
        for due_ps in &mut self.due_ps {
            *due_ps += skipped * self.trefi;
        }
        self.statistics.refreshes += skipped * self.due_ps.len() as u64;
        self.decide();
    }

    /// Advances to `from_ps`, and then until a line of that kind has room; adds lines as soon
    /// as it is known when they will be done. Returns when there is room, and whether it had to
    /// wait.
    pub fn wait_for_room<O: Observer>(
        &mut self,
        write: bool,
        from_ps: u64,
        done: &mut Vec<Done>,
        observer: &mut O,
    ) -> (u64, bool) {
        // Requests pushed at the time up to which all events have happened come before the
        // other events of that time.
        if from_ps > self.advanced_ps {
            self.advance_to(from_ps, observer);
        }
        let (mut room_ps, full) = (from_ps, !self.has_room(write));
        while !self.has_room(write) {
            room_ps = self.arrival_ps.min(self.next_ps);
            self.advance_to(room_ps, observer);
        }
        self.hand_out(NEVER_PS, done);
        (room_ps, full)
    }

    /// Advances until it is known when each line will be done, and adds these lines.
    pub fn finish_all<O: Observer>(&mut self, done: &mut Vec<Done>, observer: &mut O) {
        while self.taken != [0; 2] {
            self.step(observer);
        }
        self.hand_out(NEVER_PS, done);
    }

    /// As [`MainMemory::go_on`](crate::MainMemory::go_on): events without an effect outside the
    /// channel do not end the call.
    pub fn go_on<O: Observer>(
        &mut self,
        mut until_ps: u64,
        done: &mut Vec<Done>,
        observer: &mut O,
    ) -> Option<u64> {
        let room = self.room();
        let mut seen_ps = None;
        loop {
            let event_ps = self.arrival_ps.min(self.next_ps);
            // Lines that are done at the time of an event are reported together with that
            // event.
            if self.done_ps < event_ps && self.done_ps <= until_ps {
                until_ps = self.done_ps;
                seen_ps = Some(until_ps);
                break;
            }
            if event_ps > until_ps {
                break;
            }
            self.step(observer);
            if self.room() != room {
                until_ps = event_ps;
                seen_ps = Some(event_ps);
            }
        }
        self.hand_out(until_ps, done);
        seen_ps
    }

    /// The next arrival, or the channel's own next event.
    #[inline]
    fn step<O: Observer>(&mut self, observer: &mut O) {
        if self.arrival_ps <= self.next_ps {
            if let Some(arrival) = self.incoming.pop_front() {
                self.arrival_ps = self.incoming.front().map_or(NEVER_PS, |next| next.at_ps);
                self.admit(arrival);
            }
        } else {
            self.act(observer);
            self.decide();
        }
    }

    #[inline]
    fn hand_out(&mut self, until_ps: u64, done: &mut Vec<Done>) {
        while self.done_ps <= until_ps {
            let Some(first) = self.done.pop_front() else {
                break;
            };
            done.push(first);
            self.done_ps = self.done.front().map_or(NEVER_PS, |next| next.at_ps);
        }
    }

    #[inline]
    fn finish(&mut self, id: u32, at_ps: u64) {
        let mut place = self.done.len();
        while place > 0 && self.done[place - 1].at_ps > at_ps {
            place -= 1;
        }
        if place == self.done.len() {
            self.done.push_back(Done { id, at_ps });
        } else {
            self.done.insert(place, Done { id, at_ps });
        }
        self.done_ps = self.done_ps.min(at_ps);
    }

    /// Counts the waiting time up to now. Event times never go back.
    #[inline]
    fn count_until(&mut self, now_ps: u64) {
        let waiting = (self.queue.lengths[0] + self.queue.lengths[1]) as u64;
        self.statistics.queue_integral_ps += waiting * (now_ps - self.counted_ps);
        self.counted_ps = now_ps;
    }

    fn admit(&mut self, arrival: Incoming) {
        self.count_until(arrival.at_ps);
        if arrival.at_ps > self.slot_ps {
            self.slot_ps = arrival.at_ps.next_multiple_of(self.tck);
        }
        let Incoming {
            write, row, column, ..
        } = arrival;
        let bank = usize::from(arrival.bank);
        if self.queue.has_write(bank, row, column) {
            // The queue has the line already.
            self.taken[usize::from(write)] -= 1;
            if write {
                self.statistics.merged += 1;
                self.finish(arrival.id, arrival.at_ps);
            } else {
                self.statistics.forwarded += 1;
                self.finish(arrival.id, arrival.at_ps + self.tck);
            }
            return;
        }
        let slot = Slot {
            id: arrival.id,
            core: arrival.core,
            at_ps: arrival.at_ps,
            age: self.age,
            row,
            column,
            opened: false,
            closed: false,
            next: NONE,
        };
        self.age += 1;
        let open_row = self.banks[bank % BANKS].open_row;
        let chosen_anew = self.queue.add(write, bank, open_row, slot) && write == self.writing;
        if chosen_anew {
            self.choose(bank);
        }
        // The bank's demand, and whether a turn is over, may have changed.
        let open_pages = self.settings.page_policy == PagePolicy::Open;
        let pause = !self.writing && self.queue.lengths[0] == 0;
        if chosen_anew || !open_pages || pause || self.turn_is_over() {
            self.decide();
        }
    }

    /// Computes the bank's next command.
    #[inline]
    fn choose(&mut self, bank: usize) {
        let bit = 1 << bank;
        let old = &mut self.classes[class(self.choices[bank % BANKS].kind)];
        old.banks &= !bit;
        if bank_of(old.first) == bank {
            old.first = UNKNOWN;
        }
        let finishing = self.finishing & bit != 0;
        let write = self.writing != finishing;
        let list = self.queue.lists[bank % BANKS][usize::from(write)];
        if list.head == NONE {
            return;
        }
        let Bank {
            open_row,
            past_older,
            ..
        } = self.banks[bank % BANKS];
        let may_hit = finishing || list.hit == list.head || past_older < self.settings.row_hit_cap;
        let (kind, slot) = if open_row == CLOSED {
            (ACT, list.head)
        } else if list.hit != NONE && may_hit {
            (if write { WR } else { RD }, list.hit)
        } else {
            (PRE, list.head)
        };
        let age = (self.queue.slots[usize::from(slot)].age << BANK_BITS) | bank as u64;
        self.choices[bank % BANKS] = Choice {
            ready_ps: self.ready.of_bank(kind, bank),
            key: if kind >= RD { age } else { age | NOT_DATA },
            kind: kind as u8,
            slot,
        };
        let kind = class(kind as u8);
        self.classes[kind].banks |= bit;
        let first = self.classes[kind].first;
        self.classes[kind].first = if self.finishing | self.blocked == 0 && first != UNKNOWN {
            first.min(self.order(bank))
        } else {
            UNKNOWN
        };
    }

    /// Marks all first choices as unknown.
    fn forget_first(&mut self) {
        for class in &mut self.classes {
            class.first = UNKNOWN;
        }
    }

    /// The first choice among some banks.
    #[inline]
    fn first_of(&self, mut banks: u64) -> u128 {
        let mut first = NO_CHOICE;
        while banks != 0 {
            first = first.min(self.order(banks.trailing_zeros() as usize));
            banks &= banks - 1;
        }
        first
    }

    /// The first of all choices. Data commands of this turn wait for those of the previous
    /// turn.
    #[inline]
    fn first_choice(&mut self) -> u128 {
        let slot = order(self.slot_ps, 1);
        let asked = self.queue.banks[usize::from(self.writing)] & !self.blocked;
        if self.classes[PRE].first < slot {
            self.classes[PRE].first = self.first_of(asked & self.classes[PRE].banks);
        }
        let mut first = self.classes[PRE].first;
        // A class whose first choice can't be earlier need not be searched.
        if order(self.ready.of_ranks(ACT), 0) < first {
            if self.classes[ACT].first < slot {
                self.classes[ACT].first = self.first_of(asked & self.classes[ACT].banks);
            }
            first = first.min(self.classes[ACT].first);
        }
        let finishing = self.finishing & !self.blocked;
        let kind = if self.writing == (finishing == 0) {
            WR
        } else {
            RD
        };
        if order(self.ready.of_ranks(kind), 0) < first {
            if self.classes[RD].first < slot {
                let own = asked & self.classes[RD].banks;
                self.classes[RD].first =
                    self.first_of(if finishing == 0 { own } else { finishing });
            }
            first = first.min(self.classes[RD].first);
        }
        first
    }

    /// When a bank's choice can be made, and its key, as one number, so that finding the
    /// smallest needs no branch that would be hard to predict.
    #[inline]
    fn order(&self, bank: usize) -> u128 {
        let choice = &self.choices[bank % BANKS];
        let group_ps = self.ready.of_group(usize::from(choice.kind), bank);
        let at_ps = choice.ready_ps.max(group_ps).max(self.slot_ps);
        order(at_ps, choice.key)
    }

    /// Reads and writes take turns, because a change of the bus's direction costs time.
    #[inline]
    fn turn_is_over(&self) -> bool {
        let [reads, writes] = self.queue.lengths;
        let settings = &self.settings;
        if self.writing {
            let enough = writes <= settings.write_low || self.turn >= settings.writes_per_drain;
            reads > 0 && enough
        } else {
            let full = writes >= settings.write_high;
            let enough = full && self.turn >= settings.reads_per_turn;
            let idle = reads == 0 && (full || self.slot_ps >= self.pause_ps());
            writes > 0 && (enough || idle)
        }
    }

    /// From this time on a pause of the reads is long enough for writes.
    fn pause_ps(&self) -> u64 {
        let pause_ps = self.read_at_ps + self.settings.write_idle_ps;
        pause_ps.next_multiple_of(self.tck)
    }

    /// Banks with a row that was opened for a request of a direction, which still waits.
    fn opened(&self, write: bool) -> u64 {
        let mut opened = 0;
        let mut banks = self.queue.banks[usize::from(write)] & self.open;
        while banks != 0 {
            let bank = banks.trailing_zeros() as usize;
            banks &= banks - 1;
            let hit = self.queue.lists[bank][usize::from(write)].hit;
            if hit != NONE && self.queue.slots[usize::from(hit)].opened {
                opened |= 1 << bank;
            }
        }
        opened
    }

    fn take_turns(&mut self) {
        if self.turn_is_over() {
            self.forget_first();
            self.finishing = self.opened(self.writing);
            self.writing = !self.writing;
            self.turn = 0;
            let mut banks = self.queue.banks[usize::from(self.writing)] | self.finishing;
            while banks != 0 {
                self.choose(banks.trailing_zeros() as usize);
                banks &= banks - 1;
            }
        }
    }

    fn rank_banks(&self, rank: usize) -> u64 {
        let banks = 1 << (self.group_bits + self.bank_bits);
        (u64::MAX >> (64 - banks)) << (rank * banks)
    }

    /// Finds the next command. Of those that can be issued first, data commands go first, then
    /// the command of the oldest request.
    fn decide(&mut self) {
        self.take_turns();
        let first = self.first_choice();
        let (mut best_ps, mut best_key) = ((first >> 64) as u64, first as u64);
        let mut best = if first == NO_CHOICE {
            What::Nothing
        } else {
            What::ForRequest {
                bank: bank_of(first),
            }
        };
        if self.settings.page_policy != PagePolicy::Open {
            let asked = self.queue.banks[usize::from(self.writing)];
            let mut banks = self.open & !asked & !self.blocked;
            while banks != 0 {
                let bank = banks.trailing_zeros() as usize;
                banks &= banks - 1;
                if let Some(at_ps) = self.close_idle_ps(bank) {
                    if at_ps < best_ps {
                        best_ps = at_ps;
                        best_key = LAST;
                        best = What::CloseIdle { bank };
                    }
                }
            }
        }
        if !self.writing && self.queue.lengths[0] == 0 && self.queue.lengths[1] > 0 {
            let at_ps = self.pause_ps();
            if at_ps < best_ps {
                (best_ps, best_key, best) = (at_ps, LAST, What::ReadsPause);
            }
        }
        if self.blocked == 0 {
            let due_ps = self.due_ps[self.first_due];
            if due_ps <= best_ps {
                best_ps = due_ps;
                best = What::RefreshDue {
                    rank: self.first_due,
                };
            }
        } else {
            for rank in 0..self.due_ps.len() {
                let (at_ps, what) = self.refresh_next(rank);
                if at_ps < best_ps || (at_ps == best_ps && best_key > FIRST) {
                    best_ps = at_ps;
                    best_key = FIRST;
                    best = what;
                }
            }
        }
        self.next_ps = best_ps;
        self.next = best;
    }

    fn close_idle_ps(&self, bank: usize) -> Option<u64> {
        let [reads, writes] = &self.queue.lists[bank];
        if reads.hit != NONE || writes.hit != NONE {
            return None;
        }
        let idle_ps = match self.settings.page_policy {
            PagePolicy::Open => return None,
            PagePolicy::Closed => 0,
            PagePolicy::Timeout { idle_ps } => idle_ps,
        };
        let from_ps = (self.banks[bank].used_ps + idle_ps).next_multiple_of(self.tck);
        Some(self.ready.of_bank(PRE, bank).max(from_ps).max(self.slot_ps))
    }

    fn refresh_next(&self, rank: usize) -> (u64, What) {
        let banks = self.rank_banks(rank);
        if self.blocked & banks == 0 {
            return (self.due_ps[rank], What::RefreshDue { rank });
        }
        let bank = banks.trailing_zeros() as usize;
        if self.open & banks == 0 {
            let at_ps = self.ready.earliest(Kind::Refresh, bank);
            (at_ps.max(self.slot_ps), What::Refresh { rank })
        } else {
            let at_ps = self.ready.earliest(Kind::PrechargeAll, bank);
            (at_ps.max(self.slot_ps), What::CloseRank { rank })
        }
    }

    fn act<O: Observer>(&mut self, observer: &mut O) {
        let now_ps = self.next_ps;
        match self.next {
            What::Nothing => {}
            What::ReadsPause => self.slot_ps = self.slot_ps.max(now_ps),
            What::RefreshDue { rank } => {
                self.blocked |= self.rank_banks(rank);
                self.forget_first();
                self.slot_ps = self.slot_ps.max(self.due_ps[rank]);
            }
            What::CloseIdle { bank } => self.command(Kind::Precharge, bank, 0, now_ps, observer),
            What::CloseRank { rank } => {
                let bank = self.rank_banks(rank).trailing_zeros() as usize;
                self.command(Kind::PrechargeAll, bank, 0, now_ps, observer);
            }
            What::Refresh { rank } => {
                let bank = self.rank_banks(rank).trailing_zeros() as usize;
                self.command(Kind::Refresh, bank, 0, now_ps, observer);
                self.blocked &= !self.rank_banks(rank);
                self.due_ps[rank] += self.trefi;
                let ranks = 0..self.due_ps.len();
                self.first_due = ranks.min_by_key(|rank| self.due_ps[*rank]).unwrap_or(0);
                self.forget_first();
                self.statistics.refreshes += 1;
            }
            What::ForRequest { bank } => {
                let Choice { kind, slot, .. } = self.choices[bank % BANKS];
                let slot = &mut self.queue.slots[usize::from(slot)];
                let row = slot.row;
                match usize::from(kind) {
                    ACT => {
                        slot.opened = true;
                        self.command(Kind::Activate, bank, row, now_ps, observer);
                    }
                    PRE => {
                        slot.closed = true;
                        self.command(Kind::Precharge, bank, 0, now_ps, observer);
                    }
                    RD => self.command(Kind::Read, bank, row, now_ps, observer),
                    _ => self.command(Kind::Write, bank, row, now_ps, observer),
                }
            }
        }
    }

    #[inline]
    fn command<O: Observer>(
        &mut self,
        kind: Kind,
        bank: usize,
        row: u32,
        at_ps: u64,
        observer: &mut O,
    ) {
        self.ready.issue(kind, bank, at_ps);
        self.slot_ps = at_ps + self.tck;
        let group = bank >> self.bank_bits;
        let command = Command {
            at_ps,
            kind,
            rank: (group >> self.group_bits) as u32,
            group: (group & ((1 << self.group_bits) - 1)) as u32,
            bank: (bank & ((1 << self.bank_bits) - 1)) as u32,
            row,
        };
        observer.command(self.index, &command);
        match kind {
            Kind::Activate => {
                self.classes[ACT].first = UNKNOWN;
                self.row_changed(bank, row, at_ps);
            }
            Kind::Precharge => self.row_changed(bank, CLOSED, at_ps),
            Kind::PrechargeAll => {
                // Rows that were to be finished may be among them.
                self.forget_first();
                let mut banks = self.rank_banks(group >> self.group_bits);
                while banks != 0 {
                    self.row_changed(banks.trailing_zeros() as usize, CLOSED, at_ps);
                    banks &= banks - 1;
                }
            }
            Kind::Refresh => {
                let mut banks = self.rank_banks(group >> self.group_bits);
                while banks != 0 {
                    self.choose(banks.trailing_zeros() as usize);
                    banks &= banks - 1;
                }
            }
            Kind::Read | Kind::Write => self.serve(kind == Kind::Write, bank, at_ps),
        }
    }

    fn row_changed(&mut self, bank: usize, row: u32, at_ps: u64) {
        self.banks[bank % BANKS] = Bank {
            open_row: row,
            past_older: 0,
            used_ps: at_ps,
        };
        self.finishing &= !(1 << bank);
        let of_rank = self.rank_banks(bank >> (self.bank_bits + self.group_bits));
        let was_open = self.open & of_rank != 0;
        self.open &= !(1 << bank);
        self.open |= u64::from(row != CLOSED) << bank;
        self.statistics.activates += u64::from(row != CLOSED);
        match (was_open, self.open & of_rank != 0) {
            (false, true) => self.statistics.open.begin(at_ps),
            (true, false) => self.statistics.open.end(at_ps),
            _ => {}
        }
        self.queue.row_changed(bank, row);
        self.choose(bank);
    }

    fn serve(&mut self, write: bool, bank: usize, at_ps: u64) {
        self.count_until(at_ps);
        let oldest = self.queue.lists[bank % BANKS][usize::from(write)];
        let slot = self.queue.take_hit(write, bank);
        let state = &mut self.banks[bank % BANKS];
        state.used_ps = at_ps;
        state.past_older = if oldest.hit == oldest.head {
            0
        } else {
            state.past_older + 1
        };
        let of_this_turn = write == self.writing;
        self.finishing &= !(1 << bank);
        self.classes[RD].first = UNKNOWN;
        self.choose(bank);
        self.turn = self.turn.saturating_add(u32::from(of_this_turn));
        self.taken[usize::from(write)] -= 1;
        let statistics = &mut self.statistics;
        statistics.row_conflicts += u64::from(slot.closed);
        statistics.row_misses += u64::from(slot.opened && !slot.closed);
        statistics.row_hits += u64::from(!slot.opened && !slot.closed);
        statistics.wait_sum_ps += at_ps - slot.at_ps;
        let core = (slot.core as usize).min(statistics.bytes_by_core.len() - 1);
        statistics.bytes_by_core[core] += self.line_bytes;
        if write {
            statistics.writes += 1;
            self.finish(slot.id, at_ps);
        } else {
            self.read_at_ps = at_ps;
            statistics.reads += 1;
            statistics.read_latency_sum_ps += at_ps + self.read_ps - slot.at_ps;
            self.finish(slot.id, at_ps + self.read_ps);
        }
        debug_assert!(
            self.queue.lengths != [0; 2]
                || self.statistics.wait_sum_ps == self.statistics.queue_integral_ps,
            "Little's law: the time that requests waited is not the sum of their waits"
        );
    }
}
