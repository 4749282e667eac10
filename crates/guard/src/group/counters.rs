// SPDX-License-Identifier: MIT OR Apache-2.0
//! A group's counters: two on each CPU. One counts, undisturbed. The other is the alarm, stopped and set anew
//! whenever the shares change; what it misses meanwhile, the first has.

use std::fs::File;
use std::os::fd::AsFd;

use memwarden_platform::Result;
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::overflow::{FAR, Of, OverflowCounter};
use rustix::event::{PollFd, PollFlags};

use super::shares;
use crate::event::Event;

/// A CPU, and why it has no event.
type LeftOut = (usize, String);

struct PerCpu {
    count: OverflowCounter,
    alarm: OverflowCounter,
    /// The count at the period's begin.
    begin: u64,
}

pub(super) struct Counters {
    cpus: Vec<PerCpu>,
    pub online: CpuSet,
    /// Online CPUs that have no event, with the reason: the group is not counted there.
    pub left_out: Vec<LeftOut>,
    /// Used in this period, as last read.
    used: Vec<u64>,
    /// What each CPU used in the ended period and in this.
    lately: Vec<u64>,
    shares: Vec<u64>,
    /// Events that are expected to come while alarms are set.
    margin: u64,
}

/// The CPUs that have an event, with it, and those that have none, with the reason.
fn sort<Code>(
    online: &CpuSet,
    on: impl Fn(usize) -> std::result::Result<Code, crate::Error>,
) -> (Vec<(usize, Code)>, Vec<LeftOut>) {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for cpu in online.iter() {
        match on(cpu) {
            Ok(code) => with.push((cpu, code)),
            Err(error) => without.push((cpu, error.to_string())),
        }
    }
    (with, without)
}

impl Counters {
    /// `group`: its open folder. A CPU without an event is left out.
    pub fn open(group: &File, online: CpuSet, event: &Event, user_only: bool) -> Result<Self> {
        let open =
            |cpu, code| OverflowCounter::open(cpu, code, Of::Group(group.as_fd()), user_only);
        let (with, left_out) = sort(&online, |cpu| event.on(cpu).map(|codes| codes.read));
        let cpus = with
            .into_iter()
            .map(|(cpu, code)| {
                let count = open(cpu, code)?;
                Ok(PerCpu {
                    begin: count.read()?,
                    count,
                    alarm: open(cpu, code)?,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let none = vec![0; cpus.len()];
        Ok(Self {
            cpus,
            online,
            left_out,
            used: none.clone(),
            lately: none.clone(),
            shares: none,
            margin: 0,
        })
    }

    /// Events in this period so far, of all CPUs together.
    pub fn used(&mut self) -> Result<u64> {
        for (cpu, used) in self.cpus.iter().zip(&mut self.used) {
            *used = cpu.count.read()?.saturating_sub(cpu.begin);
        }
        Ok(self.used.iter().sum())
    }

    /// A period ends with what [`Self::used`] said last.
    pub fn next_period(&mut self) {
        for (index, cpu) in self.cpus.iter_mut().enumerate() {
            cpu.begin += self.used[index];
            self.lately[index] = self.used[index];
            self.used[index] = 0;
        }
    }

    /// Sets the alarms so that the sum cannot pass `left` unseen. Returns `false` when so much came meanwhile that it
    /// could all the same: then look again.
    pub fn arm(&mut self, left: u64) -> Result<bool> {
        let before: u64 = self.used.iter().sum();
        let weights: Vec<u64> = self
            .used
            .iter()
            .zip(&self.lately)
            .map(|(used, lately)| used + lately)
            .collect();
        shares::split(left, self.margin, &weights, &mut self.shares);
        for (cpu, share) in self.cpus.iter_mut().zip(&self.shares) {
            cpu.alarm.arm(*share)?;
        }
        let moved = self.used()? - before;
        // What came this time may come again; what didn't is forgotten by and by.
        self.margin = moved.max(self.margin - self.margin.div_ceil(4));
        Ok(left > moved && shares::are_sound(left - moved, &self.shares))
    }

    /// No alarm rings.
    pub fn disarm(&mut self) -> Result<()> {
        self.arm_each(FAR)
    }

    /// From here on every CPU's alarm notes its time at each `events` more.
    pub fn arm_each(&mut self, events: u64) -> Result<()> {
        for cpu in &mut self.cpus {
            cpu.alarm.take();
            cpu.alarm.arm(events)?;
        }
        Ok(())
    }

    /// When an alarm rang first and last, since it was asked last.
    pub fn rang(&mut self) -> Option<(u64, u64)> {
        self.cpus
            .iter_mut()
            .filter_map(|cpu| cpu.alarm.take_span())
            .reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
    }

    /// What to wait for.
    pub fn alarms(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.cpus
            .iter()
            .map(|cpu| PollFd::from_borrowed_fd(cpu.alarm.as_fd(), PollFlags::IN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_without_an_event_is_left_out_and_the_others_count() {
        let online: CpuSet = [0, 1, 4].into_iter().collect();
        let on = |cpu| match cpu {
            4 => Err(crate::Error::BadInput("CPU 4 has none".into())),
            cpu => Ok(cpu * 10),
        };
        let (with, without) = sort(&online, on);
        assert_eq!(with, [(0, 0), (1, 10)]);
        assert_eq!(without, [(4, "CPU 4 has none".into())]);
    }
}
