// SPDX-License-Identifier: MIT OR Apache-2.0
//! When the next command of each kind may go out: one earliest time for each kind,
//! for each bank, and for each bank group what its group, rank and channel say.

use super::command::Kind;
use super::memory::{Memory, Timings};

/// Kinds that are for a bank, as indices.
pub(super) const ACT: usize = 0;
pub(super) const PRE: usize = 1;
pub(super) const RD: usize = 2;
pub(super) const WR: usize = 3;

/// Earliest times of one channel. Banks are numbered rank by rank, group by group.
#[derive(Debug, Clone)]
pub struct ReadyTimes {
    timings: Timings,
    burst_ps: u64,
    /// Groups of a rank and banks of a group, as powers of two: a division would be
    /// most of a command's time.
    group_bits: u32,
    bank_bits: u32,
    /// Of the bank alone.
    pub(super) bank: Vec<[u64; 4]>,
    /// Of its group, rank and channel, each at its [`gate`].
    pub(super) group: Box<[u64; 1 << u8::BITS]>,
    groups: usize,
    /// The last four ACTs of each rank, the oldest at the index.
    windows: Vec<([u64; 4], usize)>,
}

/// The place of a group's time for a kind. A bank or more to a group, there are up to 64.
pub(super) fn gate(group: usize, kind: usize) -> u8 {
    (group * 4 + kind) as u8
}

fn later(time: &mut u64, least: u64) {
    *time = (*time).max(least);
}

impl ReadyTimes {
    /// A channel that has been idle for long; every time is rounded up to clocks.
    #[must_use]
    pub fn new(memory: &Memory) -> Self {
        let organisation = &memory.organisation;
        let groups = (organisation.ranks * organisation.bank_groups) as usize;
        Self {
            timings: memory.timings.in_clocks(),
            burst_ps: memory.burst_ps(),
            group_bits: organisation.bank_groups.ilog2(),
            bank_bits: organisation.banks.ilog2(),
            bank: vec![[0; 4]; organisation.banks_per_channel() as usize],
            group: Box::new([0; 1 << u8::BITS]),
            groups,
            windows: vec![([0; 4], 0); organisation.ranks as usize],
        }
    }

    fn banks_of(&self, rank: usize) -> std::ops::Range<usize> {
        let bits = self.group_bits + self.bank_bits;
        rank << bits..(rank + 1) << bits
    }

    /// The earliest time at which a command may go out to a bank, or to the rank
    /// that the bank is of.
    #[must_use]
    pub fn earliest(&self, kind: Kind, bank: usize) -> u64 {
        let group = bank >> self.bank_bits;
        let rank = group >> self.group_bits;
        let own =
            |kind: usize| self.bank[bank][kind].max(self.group[usize::from(gate(group, kind))]);
        let all = |kind: usize| {
            let banks = self.bank[self.banks_of(rank)].iter();
            banks.map(|times| times[kind]).max().unwrap_or(0)
        };
        match kind {
            Kind::Activate => own(ACT),
            Kind::Precharge => own(PRE),
            Kind::Read => own(RD),
            Kind::Write => own(WR),
            Kind::PrechargeAll => all(PRE),
            // What a refresh needs of its banks is what an ACT needs of each.
            Kind::Refresh => all(ACT),
        }
    }

    /// A command goes out to a bank, or to the rank that the bank is of.
    pub fn issue(&mut self, kind: Kind, bank: usize, at_ps: u64) {
        let group = bank >> self.bank_bits;
        let rank = group >> self.group_bits;
        match kind {
            Kind::Activate => self.activate(bank, group, rank, at_ps),
            Kind::Precharge => self.precharge(bank, at_ps),
            Kind::PrechargeAll => self
                .banks_of(rank)
                .for_each(|bank| self.precharge(bank, at_ps)),
            Kind::Read => self.read(bank, group, rank, at_ps),
            Kind::Write => self.write(bank, group, rank, at_ps),
            Kind::Refresh => {
                for bank in self.banks_of(rank) {
                    later(&mut self.bank[bank][ACT], at_ps + self.timings.trfc);
                }
            }
        }
    }

    fn precharge(&mut self, bank: usize, at_ps: u64) {
        later(&mut self.bank[bank][ACT], at_ps + self.timings.trp);
    }

    fn activate(&mut self, bank: usize, group: usize, rank: usize, at_ps: u64) {
        let t = &self.timings;
        let own = &mut self.bank[bank];
        later(&mut own[ACT], at_ps + t.trc);
        later(&mut own[PRE], at_ps + t.tras);
        later(&mut own[RD], at_ps + t.trcd);
        later(&mut own[WR], at_ps + t.trcd);
        let (window, oldest) = &mut self.windows[rank];
        window[*oldest] = at_ps + t.tfaw;
        *oldest = (*oldest + 1) % 4;
        let other = (at_ps + t.trrd_s).max(window[*oldest]);
        let of_rank = 4 * (rank << self.group_bits)..4 * ((rank + 1) << self.group_bits);
        for times in self.group[of_rank].chunks_exact_mut(4) {
            later(&mut times[ACT], other);
        }
        later(
            &mut self.group[usize::from(gate(group, ACT))],
            at_ps + t.trrd_l,
        );
    }

    fn read(&mut self, bank: usize, group: usize, rank: usize, at_ps: u64) {
        let t = &self.timings;
        later(&mut self.bank[bank][PRE], at_ps + t.trtp);
        let data_end = at_ps + t.tcl + self.burst_ps;
        let same = [
            at_ps + t.tccd_s.max(self.burst_ps),
            (at_ps + t.trtw).max(data_end.saturating_sub(t.tcwl)),
        ];
        let other = [
            at_ps + self.burst_ps + t.trtrs,
            (data_end + t.trtrs).saturating_sub(t.tcwl),
        ];
        self.data(rank, same, other);
        self.data_of_group(group, [at_ps + self.timings.tccd_l, 0]);
    }

    /// Data keep the next RD and WR off the bus: so long in the same rank, so long in others.
    fn data(&mut self, rank: usize, same: [u64; 2], other: [u64; 2]) {
        let groups = self.group.chunks_exact_mut(4).take(self.groups);
        for (group, times) in groups.enumerate() {
            let own = group >> self.group_bits == rank;
            let [read, write] = if own { same } else { other };
            later(&mut times[RD], read);
            later(&mut times[WR], write);
        }
    }

    fn data_of_group(&mut self, group: usize, [read, write]: [u64; 2]) {
        later(&mut self.group[usize::from(gate(group, RD))], read);
        later(&mut self.group[usize::from(gate(group, WR))], write);
    }

    fn write(&mut self, bank: usize, group: usize, rank: usize, at_ps: u64) {
        let t = &self.timings;
        let data_end = at_ps + t.tcwl + self.burst_ps;
        later(&mut self.bank[bank][PRE], data_end + t.twr);
        let same = [data_end + t.twtr_s, at_ps + t.tccd_s.max(self.burst_ps)];
        let other = [
            (data_end + t.trtrs).saturating_sub(t.tcl),
            at_ps + self.burst_ps + t.trtrs,
        ];
        let group_own = [data_end + t.twtr_l, at_ps + t.tccd_l_wr];
        self.data(rank, same, other);
        self.data_of_group(group, group_own);
    }
}
