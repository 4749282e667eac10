// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cores that share a cache and a memory, with the regulator over them.
//!
//! Time advances from event to event, in ps; the same settings and seed give the same run to
//! the last event. Accesses are looked up in the order of simulated time: of two cores, the one
//! whose access begins first looks up the shared cache first.

mod accesses;
mod events;
mod guarding;
mod placement;

use memwarden_policy::BestEffort;

use crate::bank_regulator::BankRegulator;
use crate::lines::Lines;
use crate::main_memory::{Done, MainMemory};
use crate::private::{self, Private};
use crate::regulator::{EndedPeriod, Guard, Order, Reaction, Regulator};
use crate::settings::MachineSettings;
use crate::shared;
use crate::workload::{Job, Workload};

use events::{Event, Events};

/// A core's counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoreCounts {
    /// Accesses that were begun.
    pub touches: u64,
    /// Lines that came from memory for this core, including prefetched ones.
    pub refills: u64,
    /// The prefetched ones of these.
    pub prefetches: u64,
    /// Dirty lines that left the shared cache to make room for this core's lines.
    pub write_backs: u64,
    /// How often its budget was used up; with budgets per bank, in all banks together.
    pub overflows: u64,
    /// Requests that were held back, with budgets per bank.
    pub held_back: u64,
    /// Time for which one or more requests were held back, ps.
    pub held_ps: u64,
    /// Time for which it was throttled, ps.
    pub throttled_ps: u64,
    /// Time for which it slept or had ended, ps.
    pub idle_ps: u64,
}

impl CoreCounts {
    /// The difference from an earlier moment.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            touches: self.touches - before.touches,
            refills: self.refills - before.refills,
            prefetches: self.prefetches - before.prefetches,
            write_backs: self.write_backs - before.write_backs,
            overflows: self.overflows - before.overflows,
            held_back: self.held_back - before.held_back,
            held_ps: self.held_ps - before.held_ps,
            throttled_ps: self.throttled_ps - before.throttled_ps,
            idle_ps: self.idle_ps - before.idle_ps,
        }
    }
}

/// What a core waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Nothing: it has an event.
    No,
    /// The value of a load.
    Line(u64),
    /// One of its lines in flight: it has its maximum number.
    OwnMshr,
    /// The next free place of the shared cache.
    Shared,
    /// All of its lines.
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
    /// The line of the page table's entry that must be read first, if any.
    entry: Option<u64>,
}

#[derive(Debug)]
struct Core {
    workload: Box<dyn Workload>,
    waits: Waits,
    /// An access that has to be retried; its work is done.
    pending: Option<Touch>,
    /// The time since which it is throttled.
    stopped_ps: Option<u64>,
    /// Whether it became ready to run while it was throttled.
    held: bool,
    /// The time since which it is idle.
    idle_ps: Option<u64>,
    /// Time of interrupts that delays the core's next step.
    owed_ps: u64,
    /// The part of its throttled time, or with budgets per bank of the time for which requests
    /// were held back, that ended periods have reported.
    told_throttled_ps: u64,
    counts: CoreCounts,
}

/// A simulated machine.
#[derive(Debug)]
pub struct Machine<M> {
    settings: MachineSettings,
    cores: Vec<Core>,
    lines: Lines<M>,
    regulator: Option<Regulator>,
    reaction: Reaction,
    events: Events,
    now_ps: u64,
    /// The time until which the machine may run.
    until_ps: u64,
    done: Vec<Done>,
    orders: Vec<Order>,
    /// Number of periods that were begun: a timer of an earlier one is void.
    timers: u32,
    /// Periods that have ended since they were last read, if they are recorded.
    periods: Option<Vec<EndedPeriod>>,
}

/// Why a machine is not possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// The number of workloads differs from the number of cores.
    #[error("{workloads} workloads for {cores} cores: give one each, idle ones included")]
    Workloads {
        /// The number of workloads.
        workloads: usize,
        /// The number of cores.
        cores: usize,
    },
    /// The buffers don't fit.
    #[error("the workloads want {wanted} bytes of memory and the platform has {there}")]
    Memory {
        /// The size of all buffers.
        wanted: u64,
        /// The size of the memory.
        there: u64,
    },
    /// Budgets per bank with proportional sharing.
    #[error(
        "budgets per bank have no proportional sharing: a bank's period cannot begin before the \
         others'; use spare sharing or none"
    )]
    Sharing,
    /// A workload's bank does not exist.
    #[error("core {core}'s workload has bank {bank}, and the memory has banks 0 to {}", banks - 1)]
    NoBank {
        /// The core.
        core: usize,
        /// The workload's bank.
        bank: usize,
        /// Number of banks.
        banks: usize,
    },
    /// The rest of a bank is smaller than a workload's buffer.
    #[error(
        "core {core}'s workload wants {wanted} bytes in bank {bank}, and fewer are left there: \
         give it a smaller buffer"
    )]
    FullBank {
        /// The core.
        core: usize,
        /// The workload's bank.
        bank: usize,
        /// The size of its buffer.
        wanted: u64,
    },
    /// The regulator refused a budget.
    #[error(transparent)]
    Guard(#[from] memwarden_policy::Error),
}

impl<M: MainMemory> Machine<M> {
    /// A machine at time 0, with empty caches, its buffers on pages chosen by `seed`.
    ///
    /// # Errors
    /// When the workloads don't fit, or a budget is invalid.
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
        for (index, workload) in workloads.into_iter().enumerate() {
            let mut pages = private::pages(workload.buffer_bytes());
            let mut placed = None;
            if let Some(bank) = workload.bank() {
                let bytes = workload.buffer_bytes();
                let mut random = fastrand::Rng::with_seed(seed ^ ((index as u64 + 1) << 32));
                let lines =
                    placement::in_bank(&mut free, &memory, settings, bank, bytes, &mut random);
                placed = Some(lines.map_err(|refused| refused.of_core(index, bank, bytes))?);
                // The page table is anywhere.
                pages -= (bytes.div_ceil(private::PAGE_BYTES)) as usize;
            }
            let Some(rest) = free.len().checked_sub(pages) else {
                return Err(MachineError::Memory {
                    wanted,
                    there: settings.memory_bytes,
                });
            };
            let frames = free.split_off(rest).into_boxed_slice();
            cores.push(Core::new(workload));
            caches.push(match placed {
                Some(lines) => Private::placed(settings, lines, &frames),
                None => Private::new(settings, frames),
            });
        }
        let (banked, plain) = match guard {
            Some(guard) if guard.per_bank => (Some(guard), None),
            guard => (None, guard),
        };
        if banked.is_some_and(|guard| guard.best_effort == BestEffort::Proportional) {
            return Err(MachineError::Sharing);
        }
        let banks = banked
            .map(|guard| BankRegulator::new(guard, memory.banks()))
            .transpose()?;
        let regulator = plain.map(Regulator::new).transpose()?;
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
        machine.lines.banks = banks.map(Box::new);
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

    /// A core's counts so far.
    #[must_use]
    pub fn counts(&self, core: usize) -> CoreCounts {
        let state = &self.cores[core];
        let mut counts = state.counts;
        let lines = &self.lines.cores[core];
        counts.refills = lines.refills;
        counts.prefetches = lines.prefetches;
        counts.write_backs = lines.write_backs;
        counts.held_back = lines.held_back;
        counts.held_ps = lines.held_ps(self.now_ps);
        counts.throttled_ps += state.stopped_ps.map_or(0, |since| self.now_ps - since);
        counts.idle_ps += state.idle_ps.map_or(0, |since| self.now_ps - since);
        counts.overflows = match (&self.regulator, &self.lines.banks) {
            (Some(regulator), _) => regulator.overflows(core),
            (None, Some(banks)) => banks.overflows(core),
            (None, None) => 0,
        };
        counts
    }

    /// The periods that have ended since the previous call; they are recorded from the first
    /// call on.
    pub fn ended_periods(&mut self) -> Vec<EndedPeriod> {
        self.periods.replace(Vec::new()).unwrap_or_default()
    }

    /// The jobs of a periodic task.
    #[must_use]
    pub fn jobs(&self, core: usize) -> &[Job] {
        self.cores[core].workload.jobs()
    }

    /// Whether a core is now neither idle nor throttled.
    #[must_use]
    pub fn is_running(&self, core: usize) -> bool {
        let core = &self.cores[core];
        core.idle_ps.is_none() && core.stopped_ps.is_none()
    }

    /// Whether a core's workload has ended.
    #[must_use]
    pub fn has_ended(&self, core: usize) -> bool {
        self.cores[core].waits == Waits::Ended
    }

    /// Advances simulated time to `until_ps`.
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
            self.wake_all_for_place();
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
            Event::Released => self.send_held(),
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
        if let Some(banks) = &mut self.lines.banks {
            banks.active(index);
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

    /// An access finds no free place: it is retried, and so are those that wait for it.
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
