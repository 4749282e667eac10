// SPDX-License-Identifier: MIT OR Apache-2.0
//! The earliest time of the next command of each kind: one time per kind for each bank, for its
//! bank group, and for its rank; the rank's time includes the channel's limits.

use super::command::Kind;
use super::memory::{Memory, Timings};

/// Indices of the kinds that address a bank.
pub(super) const ACT: usize = 0;
pub(super) const PRE: usize = 1;
pub(super) const RD: usize = 2;
pub(super) const WR: usize = 3;
/// The maximum number of banks of a channel, and so of groups and ranks.
pub(super) const BANKS: usize = 64;

/// The earliest times of ACT, PRE, RD and WR.
type Times = [u64; 4];

/// Earliest times of one channel. Banks are numbered rank by rank, group by group. No index
/// needs a bounds check: there is a time for every possible bank.
#[derive(Debug, Clone)]
pub struct ReadyTimes {
    timings: Timings,
    after_read: After,
    after_write: After,
    /// Groups per rank and banks per group, as powers of two: a division would take most of a
    /// command's time.
    group_bits: u32,
    bank_bits: u32,
    ranks: usize,
    /// Limits of the bank alone.
    banks: Box<[Times; BANKS]>,
    groups: Box<[Times; BANKS]>,
    of_rank: Box<[Times; BANKS]>,
    /// The last four ACTs of each rank, the oldest at the index.
    windows: Vec<([u64; 4], usize)>,
}

/// How long a RD or a WR delays other commands, ps.
#[derive(Debug, Clone, Copy)]
struct After {
    precharge: u64,
    /// The next RD and WR in the same group, in the same rank, and in other ranks. The group's
    /// value is 0 if the rank's time is as long.
    group: [u64; 2],
    rank: [u64; 2],
    other: [u64; 2],
}

impl After {
    fn read(t: &Timings, burst_ps: u64) -> Self {
        let data_end = t.tcl + burst_ps;
        Self {
            precharge: t.trtp,
            group: [t.tccd_l, 0],
            rank: [
                t.tccd_s.max(burst_ps),
                t.trtw.max(data_end.saturating_sub(t.tcwl)),
            ],
            other: [
                burst_ps + t.trtrs,
                (data_end + t.trtrs).saturating_sub(t.tcwl),
            ],
        }
    }

    fn write(t: &Timings, burst_ps: u64) -> Self {
        let data_end = t.tcwl + burst_ps;
        Self {
            precharge: data_end + t.twr,
            group: [data_end + t.twtr_l, t.tccd_l_wr],
            rank: [data_end + t.twtr_s, t.tccd_s.max(burst_ps)],
            other: [
                (data_end + t.trtrs).saturating_sub(t.tcl),
                burst_ps + t.trtrs,
            ],
        }
    }
}

#[inline]
fn later(time: &mut u64, least: u64) {
    *time = (*time).max(least);
}

#[inline]
fn data_later(times: &mut Times, at_ps: u64, [read, write]: [u64; 2]) {
    later(&mut times[RD], at_ps + read);
    later(&mut times[WR], at_ps + write);
}

impl ReadyTimes {
    /// A channel that has been idle for long; every time is rounded up to clocks.
    #[must_use]
    pub fn new(memory: &Memory) -> Self {
        let organisation = &memory.organisation;
        let timings = memory.timings.in_clocks();
        let idle = || Box::new([[0; 4]; BANKS]);
        Self {
            timings,
            after_read: After::read(&timings, memory.burst_ps()),
            after_write: After::write(&timings, memory.burst_ps()),
            group_bits: organisation.bank_groups.ilog2(),
            bank_bits: organisation.banks.ilog2(),
            ranks: organisation.ranks as usize,
            banks: idle(),
            groups: idle(),
            of_rank: idle(),
            windows: vec![([0; 4], 0); organisation.ranks as usize],
        }
    }

    fn banks_of(&self, rank: usize) -> std::ops::Range<usize> {
        let bits = self.group_bits + self.bank_bits;
        rank << bits..(rank + 1) << bits
    }

    #[inline]
    fn group(&self, bank: usize) -> usize {
        (bank >> self.bank_bits) % BANKS
    }

    #[inline]
    fn rank(&self, bank: usize) -> usize {
        (bank >> (self.bank_bits + self.group_bits)) % BANKS
    }

    /// The earliest time of a kind, by its index, for a bank.
    #[inline]
    pub(super) fn of_bank(&self, kind: usize, bank: usize) -> u64 {
        self.banks[bank % BANKS][kind % 4].max(self.of_group(kind, bank))
    }

    /// The part of it that depends on the bank's group and rank.
    #[inline]
    pub(super) fn of_group(&self, kind: usize, bank: usize) -> u64 {
        let group_ps = self.groups[self.group(bank)][kind % 4];
        group_ps.max(self.of_rank[self.rank(bank)][kind % 4])
    }

    /// The earliest time of a kind over all ranks: no bank's time is before its rank's.
    #[inline]
    pub(super) fn of_ranks(&self, kind: usize) -> u64 {
        if self.ranks == 1 {
            return self.of_rank[0][kind % 4];
        }
        let ranks = self.of_rank[..self.ranks].iter();
        ranks.map(|times| times[kind % 4]).min().unwrap_or(0)
    }

    /// The earliest time at which a command may be issued to a bank, or to the bank's rank.
    #[must_use]
    pub fn earliest(&self, kind: Kind, bank: usize) -> u64 {
        let all = |kind: usize| {
            let banks = self.banks[self.banks_of(self.rank(bank))].iter();
            banks.map(|times| times[kind]).max().unwrap_or(0)
        };
        match kind {
            Kind::Activate => self.of_bank(ACT, bank),
            Kind::Precharge => self.of_bank(PRE, bank),
            Kind::Read => self.of_bank(RD, bank),
            Kind::Write => self.of_bank(WR, bank),
            Kind::PrechargeAll => all(PRE),
            // A refresh needs of its banks what an ACT needs of each.
            Kind::Refresh => all(ACT),
        }
    }

    /// A command is issued to a bank, or to the bank's rank.
    #[inline]
    pub fn issue(&mut self, kind: Kind, bank: usize, at_ps: u64) {
        match kind {
            Kind::Activate => self.activate(bank, at_ps),
            Kind::Precharge => self.precharge(bank, at_ps),
            Kind::PrechargeAll => self
                .banks_of(self.rank(bank))
                .for_each(|bank| self.precharge(bank, at_ps)),
            Kind::Read => self.data(bank, at_ps, self.after_read),
            Kind::Write => self.data(bank, at_ps, self.after_write),
            Kind::Refresh => {
                for bank in self.banks_of(self.rank(bank)) {
                    later(&mut self.banks[bank][ACT], at_ps + self.timings.trfc);
                }
            }
        }
    }

    #[inline]
    fn precharge(&mut self, bank: usize, at_ps: u64) {
        later(&mut self.banks[bank % BANKS][ACT], at_ps + self.timings.trp);
    }

    #[inline]
    fn activate(&mut self, bank: usize, at_ps: u64) {
        let (group, rank) = (self.group(bank), self.rank(bank));
        let t = &self.timings;
        let own = &mut self.banks[bank % BANKS];
        later(&mut own[ACT], at_ps + t.trc);
        later(&mut own[PRE], at_ps + t.tras);
        later(&mut own[RD], at_ps + t.trcd);
        later(&mut own[WR], at_ps + t.trcd);
        let (window, oldest) = &mut self.windows[rank];
        window[*oldest % 4] = at_ps + t.tfaw;
        *oldest = (*oldest + 1) % 4;
        let other = (at_ps + t.trrd_s).max(window[*oldest]);
        later(&mut self.of_rank[rank][ACT], other);
        later(&mut self.groups[group][ACT], at_ps + t.trrd_l);
    }

    #[inline]
    fn data(&mut self, bank: usize, at_ps: u64, after: After) {
        let (group, rank) = (self.group(bank), self.rank(bank));
        later(&mut self.banks[bank % BANKS][PRE], at_ps + after.precharge);
        data_later(&mut self.groups[group], at_ps, after.group);
        data_later(&mut self.of_rank[rank], at_ps, after.rank);
        if self.ranks > 1 {
            let ranks = self.of_rank.iter_mut().take(self.ranks).enumerate();
            for (_, times) in ranks.filter(|(other, _)| *other != rank) {
                data_later(times, at_ps, after.other);
            }
        }
    }
}
