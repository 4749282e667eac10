// SPDX-License-Identifier: MIT OR Apache-2.0
//! A group's counters: two on each CPU. One counts without interruption. The other, the alarm, is stopped and set again
//! whenever the shares change; the first one counts what the alarm misses meanwhile. A third event shows whether the kernel
//! has removed them.

use std::fs::File;
use std::os::fd::AsFd;

use memwarden_platform::Result;
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::overflow::{FAR, Of, OverflowCounter, Presence};
use rustix::event::{PollFd, PollFlags};

use super::shares;
use crate::event::Event;

/// A CPU, and the reason why it has no event.
type LeftOut = (usize, String);

/// Least share of the group's time for which a counter must count. Times are read while they run, so they differ by
/// microseconds; two events that share one counter get about half of the time each.
const WHOLE: f64 = 0.99;

struct PerCpu {
    cpu: usize,
    count: OverflowCounter,
    alarm: OverflowCounter,
    /// The count at the beginning of the period.
    begin: u64,
}

pub(super) struct Counters {
    /// One for each event: a CPU has two if its event is the sum of two.
    cpus: Vec<PerCpu>,
    /// One for each CPU with a counter.
    presence: Vec<(usize, Presence)>,
    pub online: CpuSet,
    /// Online CPUs without an event, with the reason. The group is not counted there.
    pub left_out: Vec<LeftOut>,
    /// Events of each counter in this period, as last read.
    used: Vec<u64>,
    /// Events of each counter in the previous period.
    lately: Vec<u64>,
    shares: Vec<u64>,
    /// Expected number of events while the alarms are set.
    margin: u64,
}

/// The CPUs with an event, each with its event, and the CPUs without one, each with the reason.
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
    /// `group` is the group's open folder. A CPU without an event is left out.
    pub fn open(group: &File, online: CpuSet, event: &Event, user_only: bool) -> Result<Self> {
        let open =
            |cpu, code| OverflowCounter::open(cpu, code, Of::Group(group.as_fd()), user_only);
        let (with, left_out) = sort(&online, |cpu| event.on(cpu));
        let presence = with
            .iter()
            .map(|(cpu, _)| Ok((*cpu, Presence::open(*cpu)?)))
            .collect::<Result<Vec<_>>>()?;
        let cpus = with
            .into_iter()
            .flat_map(|(cpu, codes)| codes.of_reads().map(move |code| (cpu, code)))
            .map(|(cpu, code)| {
                let count = open(cpu, code)?;
                Ok(PerCpu {
                    cpu,
                    begin: count.read()?,
                    count,
                    alarm: open(cpu, code)?,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let none = vec![0; cpus.len()];
        Ok(Self {
            cpus,
            presence,
            online,
            left_out,
            used: none.clone(),
            lately: none.clone(),
            shares: none,
            margin: 0,
        })
    }

    /// Events of this period so far, summed over all CPUs.
    pub fn used(&mut self) -> Result<u64> {
        for (cpu, used) in self.cpus.iter().zip(&mut self.used) {
            *used = cpu.count.read()?.saturating_sub(cpu.begin);
        }
        Ok(self.used.iter().sum())
    }

    /// The CPUs on which the kernel gave the counter to other events for a part of the group's time, each with the share
    /// that was counted.
    pub fn shared(&self) -> Result<Vec<(usize, f64)>> {
        let mut shared = Vec::new();
        for cpu in &self.cpus {
            let share = cpu.count.counted_share()?;
            if share < WHOLE {
                shared.push((cpu.cpu, share));
            }
        }
        Ok(shared)
    }

    /// The CPUs whose counters the kernel has removed: each was offline for a moment, or the machine was suspended.
    pub fn removed(&mut self, now_ns: u64) -> Result<Vec<usize>> {
        let mut removed = Vec::new();
        for (cpu, presence) in &mut self.presence {
            if presence.is_lost(now_ns)? {
                removed.push(*cpu);
            }
        }
        Ok(removed)
    }

    /// Ends the period with the counts that [`Self::used`] last read.
    pub fn next_period(&mut self) {
        for (index, cpu) in self.cpus.iter_mut().enumerate() {
            cpu.begin += self.used[index];
            self.lately[index] = self.used[index];
            self.used[index] = 0;
        }
    }

    /// Sets the alarms so that an alarm expires before the counters' sum exceeds `left`. Returns `false` if the events
    /// that are counted meanwhile make the alarms too late; the caller then calls it again with what is left.
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
        // The events of this time may come again; those of earlier times decay.
        self.margin = moved.max(self.margin - self.margin.div_ceil(4));
        Ok(left > moved && shares::are_sound(left - moved, &self.shares))
    }

    /// Sets all alarms so far away that none rings.
    pub fn disarm(&mut self) -> Result<()> {
        self.arm_each(FAR)
    }

    /// From now on, every CPU's alarm records the time after each further `events` events.
    pub fn arm_each(&mut self, events: u64) -> Result<()> {
        for cpu in &mut self.cpus {
            cpu.alarm.take();
            cpu.alarm.arm(events)?;
        }
        Ok(())
    }

    /// Times of the first and the last alarm since the last call.
    pub fn rang(&mut self) -> Option<(u64, u64)> {
        self.cpus
            .iter_mut()
            .filter_map(|cpu| cpu.alarm.take_span())
            .reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
    }

    /// The descriptors to poll.
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
