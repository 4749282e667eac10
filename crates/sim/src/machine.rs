// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cores that share a cache and a memory, and the regulator over them.
//!
//! Time goes from event to event, in ps; the same settings and seed give the same
//! run to the last event. A core looks its accesses up in the order of simulated
//! time: of two cores, whose access begins first finds the shared cache first.

mod accesses;
mod events;
mod guarding;

use crate::lines::Lines;
use crate::main_memory::{Done, MainMemory};
use crate::private::{self, Private};
use crate::regulator::{EndedPeriod, Guard, Order, Reaction, Regulator};
use crate::settings::MachineSettings;
use crate::shared;
use crate::workload::{Job, Workload};

use events::{Event, Events};

/// What a core has done and what was done to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoreCounts {
    /// Accesses that were begun.
    pub touches: u64,
    /// Lines that came from memory for it, prefetched ones included.
    pub refills: u64,
    /// Of these, prefetched ones.
    pub prefetches: u64,
    /// Lines that left the shared cache dirty to make room for its own.
    pub write_backs: u64,
    /// Its budget was used up.
    pub overflows: u64,
    /// It stood still so long for want of budget, ps.
    pub throttled_ps: u64,
    /// It slept or had ended, ps.
    pub idle_ps: u64,
}

impl CoreCounts {
    /// What has come since an earlier moment.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            touches: self.touches - before.touches,
            refills: self.refills - before.refills,
            prefetches: self.prefetches - before.prefetches,
            write_backs: self.write_backs - before.write_backs,
            overflows: self.overflows - before.overflows,
            throttled_ps: self.throttled_ps - before.throttled_ps,
            idle_ps: self.idle_ps - before.idle_ps,
        }
    }
}

/// Why a core does not go on of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// It has an event.
    No,
    /// For the value of a load.
    Line(u64),
    /// For one of its lines under way: it has as many as it may.
    OwnMshr,
    /// For the shared cache's next free place.
    Shared,
    /// For all its lines.
    Settle,
    /// It sleeps.
    Sleep,
    /// It has nothing more to do.
    Ended,
}

#[derive(Debug)]
struct Touch {
    line: u64,
    store: bool,
    depends: bool,
    /// The line of the page table's entry that has to be read before.
    entry: Option<u64>,
}

#[derive(Debug)]
struct Core {
    workload: Box<dyn Workload>,
    waits: Waits,
    /// An access that has to be tried again, its work done.
    pending: Option<Touch>,
    /// Since when it stands still.
    stopped_ps: Option<u64>,
    /// It would have gone on while it stood still.
    held: bool,
    /// Since when it is idle.
    idle_ps: Option<u64>,
    /// What interrupts took, to be made up for.
    owed_ps: u64,
    /// Of the time that it stood still, what ended periods have told.
    told_throttled_ps: u64,
    counts: CoreCounts,
}

/// A machine that can be run.
#[derive(Debug)]
pub struct Machine<M> {
    settings: MachineSettings,
    cores: Vec<Core>,
    lines: Lines<M>,
    regulator: Option<Regulator>,
    reaction: Reaction,
    events: Events,
    now_ps: u64,
    /// How far the machine may run.
    until_ps: u64,
    done: Vec<Done>,
    orders: Vec<Order>,
    /// Periods that were opened: a timer of an earlier one is void.
    timers: u32,
    /// Periods that have ended since they were last asked for, if they are recorded.
    periods: Option<Vec<EndedPeriod>>,
}

/// A machine that can't be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// More or fewer workloads than cores.
    #[error("{workloads} workloads for {cores} cores: give one each, idle ones included")]
    Workloads {
        /// That were given.
        workloads: usize,
        /// That there are.
        cores: usize,
    },
    /// The buffers don't fit.
    #[error("the workloads want {wanted} bytes of memory and the platform has {there}")]
    Memory {
        /// All buffers.
        wanted: u64,
        /// The memory.
        there: u64,
    },
    /// The regulator refused a budget.
    #[error(transparent)]
    Guard(#[from] memwarden_policy::Error),
}

impl<M: MainMemory> Machine<M> {
    /// A machine at time 0, its caches empty, its buffers on pages by `seed`.
    ///
    /// # Errors
    /// When the workloads don't fit, or a budget is none.
    pub fn new(
        settings: &MachineSettings,
        memory: M,
        workloads: Vec<Box<dyn Workload>>,
        guard: Option<&Guard>,
        reaction: Reaction,
        seed: u64,
    ) -> Result<Self, MachineError> {
        if workloads.len() != settings.cores {
            return Err(MachineError::Workloads {
                workloads: workloads.len(),
                cores: settings.cores,
            });
        }
        let wanted: u64 = workloads
            .iter()
            .map(|workload| workload.buffer_bytes())
            .sum();
        let mut free: Vec<u32> =
            (0..(settings.memory_bytes / private::PAGE_BYTES) as u32).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut free);
        let (mut cores, mut caches) = (Vec::new(), Vec::new());
        for workload in workloads {
            let pages = private::pages(workload.buffer_bytes());
            let Some(rest) = free.len().checked_sub(pages) else {
                return Err(MachineError::Memory {
                    wanted,
                    there: settings.memory_bytes,
                });
            };
            let frames = free.split_off(rest).into_boxed_slice();
            cores.push(Core::new(workload));
            caches.push(Private::new(settings, frames));
        }
        let regulator = guard.map(Regulator::new).transpose()?;
        let mut machine = Self {
            lines: Lines::new(settings, memory, caches),
            settings: settings.clone(),
            cores,
            regulator,
            reaction,
            events: Events::default(),
            now_ps: 0,
            until_ps: 0,
            done: Vec::new(),
            orders: Vec::new(),
            timers: 0,
            periods: None,
        };
        if machine.regulator.is_some() {
            machine.lines.counted = Some(Vec::new());
        }
        for core in 0..machine.cores.len() {
            machine.events.add(0, Event::Proceed(core));
        }
        machine.set_timer();
        Ok(machine)
    }

    /// The simulated time, ps.
    #[must_use]
    pub fn now_ps(&self) -> u64 {
        self.now_ps
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &M {
        &self.lines.shared.memory
    }

    /// What a core has done so far.
    #[must_use]
    pub fn counts(&self, core: usize) -> CoreCounts {
        let state = &self.cores[core];
        let mut counts = state.counts;
        let lines = &self.lines.cores[core];
        counts.refills = lines.refills;
        counts.prefetches = lines.prefetches;
        counts.write_backs = lines.write_backs;
        counts.throttled_ps += state.stopped_ps.map_or(0, |since| self.now_ps - since);
        counts.idle_ps += state.idle_ps.map_or(0, |since| self.now_ps - since);
        counts.overflows = self
            .regulator
            .as_ref()
            .map_or(0, |regulator| regulator.overflows(core));
        counts
    }

    /// The periods that have ended since this was last asked; they are recorded from the
    /// first time on.
    pub fn ended_periods(&mut self) -> Vec<EndedPeriod> {
        self.periods.replace(Vec::new()).unwrap_or_default()
    }

    /// The jobs of a periodic task.
    #[must_use]
    pub fn jobs(&self, core: usize) -> &[Job] {
        self.cores[core].workload.jobs()
    }

    /// Whether a core is neither idle nor throttled at this moment.
    #[must_use]
    pub fn is_running(&self, core: usize) -> bool {
        let core = &self.cores[core];
        core.idle_ps.is_none() && core.stopped_ps.is_none()
    }

    /// Whether a core's workload has come to its end.
    #[must_use]
    pub fn has_ended(&self, core: usize) -> bool {
        self.cores[core].waits == Waits::Ended
    }

    /// Lets time go on until `until_ps`.
    pub fn advance(&mut self, until_ps: u64) {
        self.until_ps = until_ps;
        loop {
            let first_ps = self.events.next_ps().min(until_ps);
            if let Some(memory_ps) = self.lines.shared.memory.go_on(first_ps, &mut self.done) {
                self.now_ps = self.now_ps.max(memory_ps);
                self.memory_went_on();
            } else if let Some((at_ps, event)) = self.events.take(until_ps) {
                self.now_ps = at_ps;
                self.handle(event);
            } else {
                break;
            }
        }
        self.now_ps = self.now_ps.max(until_ps);
    }

    fn memory_went_on(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        let mut written = false;
        for Done { id, at_ps } in done.drain(..) {
            if id == shared::WRITE {
                self.lines.shared.written();
                written = true;
            } else {
                let at_ps = self.lines.shared.comes_ps(at_ps);
                self.events.add(at_ps, Event::Fill(id as usize));
            }
        }
        self.done = done;
        self.lines.shared.hand_over(self.now_ps);
        if written {
            self.wake_all(Waits::Shared);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Proceed(core) => self.proceed(core),
            Event::Wake(core) => self.wake_up(core),
            Event::Hit { core, line, store } => self.line_is_there(core.into(), line, store),
            Event::Fill(slot) => self.fill(slot),
            Event::Overflow(core, resource) => {
                let mut orders = std::mem::take(&mut self.orders);
                if let Some(regulator) = &mut self.regulator {
                    regulator.overflow(core, resource, &mut orders);
                }
                self.carry_out(orders);
            }
            Event::Stop(core) => self.stop(core),
            Event::Go(core) => self.go(core),
            Event::Period(timer) if timer == self.timers => self.periods_begin(),
            Event::Period(_) => {}
        }
    }

    fn wake_up(&mut self, index: usize) {
        let core = &mut self.cores[index];
        if let Some(since) = core.idle_ps.take() {
            core.counts.idle_ps += self.now_ps - since;
        }
        if let Some(regulator) = &mut self.regulator {
            regulator.active(index);
        }
        self.proceed(index);
    }
}

impl Core {
    fn new(workload: Box<dyn Workload>) -> Self {
        Self {
            workload,
            waits: Waits::No,
            pending: None,
            stopped_ps: None,
            held: false,
            idle_ps: None,
            owed_ps: 0,
            told_throttled_ps: 0,
            counts: CoreCounts::default(),
        }
    }

    /// An access finds no place: it is tried again, and so is what waits for it.
    fn try_again(&mut self, touch: Touch) {
        self.pending = Some(match self.pending.take() {
            Some(after) => Touch {
                entry: Some(touch.line),
                ..after
            },
            None => touch,
        });
    }
}

#[cfg(test)]
mod tests;
