// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cores that share a cache and a memory, and the regulator over them.
//!
//! Time goes from event to event, in ps; the same settings and seed give the same
//! run to the last event. A core looks its accesses up in the order of simulated
//! time: of two cores, whose access begins first finds the shared cache first.

mod events;
mod shared;

use memwarden_policy::Resource;

use crate::main_memory::{Done, MainMemory, NEVER_PS};
use crate::private::{Found, Private};
use crate::regulator::{Guard, Order, Reaction, Regulator};
use crate::settings::MachineSettings;
use crate::workload::{Job, Step, Workload};

use events::{Event, Events};
use shared::{Answer, Shared};

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
}

#[derive(Debug)]
struct Core {
    private: Private,
    workload: Box<dyn Workload>,
    waits: Waits,
    /// An access that has to be tried again, its work done.
    pending: Option<Touch>,
    under_way: u32,
    prefetches_under_way: u32,
    /// Since when it stands still.
    stopped_ps: Option<u64>,
    /// It would have gone on while it stood still.
    held: bool,
    /// Since when it is idle.
    idle_ps: Option<u64>,
    /// What interrupts took, to be made up for.
    owed_ps: u64,
    counts: CoreCounts,
}

/// A machine that can be run.
#[derive(Debug)]
pub struct Machine<M> {
    settings: MachineSettings,
    cores: Vec<Core>,
    shared: Shared<M>,
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
        let mut free: Vec<u32> = (0..(settings.memory_bytes >> 12) as u32).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut free);
        let mut cores = Vec::new();
        for workload in workloads {
            let pages = workload.buffer_bytes().div_ceil(4096) as usize;
            let Some(rest) = free.len().checked_sub(pages) else {
                return Err(MachineError::Memory {
                    wanted,
                    there: settings.memory_bytes,
                });
            };
            let frames = free.split_off(rest).into_boxed_slice();
            cores.push(Core::new(Private::new(settings, frames), workload));
        }
        let regulator = guard.map(Regulator::new).transpose()?;
        let mut machine = Self {
            shared: Shared::new(settings, memory),
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
        };
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
        &self.shared.memory
    }

    /// What a core has done so far.
    #[must_use]
    pub fn counts(&self, core: usize) -> CoreCounts {
        let state = &self.cores[core];
        let mut counts = state.counts;
        counts.throttled_ps += state.stopped_ps.map_or(0, |since| self.now_ps - since);
        counts.idle_ps += state.idle_ps.map_or(0, |since| self.now_ps - since);
        counts.overflows = self
            .regulator
            .as_ref()
            .map_or(0, |regulator| regulator.overflows(core));
        counts
    }

    /// The jobs of a periodic task.
    #[must_use]
    pub fn jobs(&self, core: usize) -> &[Job] {
        self.cores[core].workload.jobs()
    }

    /// Whether a core's workload has come to its end.
    #[must_use]
    pub fn has_ended(&self, core: usize) -> bool {
        self.cores[core].waits == Waits::Ended
    }

    /// Lets time go on until `until_ps`.
    pub fn run_until(&mut self, until_ps: u64) {
        self.until_ps = until_ps;
        loop {
            let memory_ps = self.shared.memory.next_event_ps();
            let event_ps = self.events.next_ps();
            if memory_ps.min(event_ps) > until_ps || memory_ps.min(event_ps) == NEVER_PS {
                break;
            }
            if memory_ps <= event_ps {
                self.now_ps = self.now_ps.max(memory_ps);
                self.memory_goes_on();
            } else if let Some((at_ps, event)) = self.events.take() {
                self.now_ps = at_ps;
                self.handle(event);
            }
        }
        self.now_ps = self.now_ps.max(until_ps);
    }

    fn memory_goes_on(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        self.shared.memory.advance(self.now_ps, &mut done);
        let mut written = false;
        for Done { id, at_ps } in done.drain(..) {
            if id == shared::WRITE {
                self.shared.written();
                written = true;
            } else {
                let at_ps = at_ps + self.settings.shared.from_memory_ps;
                self.events.add(at_ps, Event::Fill(id as usize));
            }
        }
        self.done = done;
        self.shared.hand_over(self.now_ps);
        if written {
            self.wake_all(Waits::Shared);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Proceed(core) => self.proceed(core),
            Event::Wake(core) => self.wake_up(core),
            Event::Hit { core, line, store } => self.line_is_there(core, line, store),
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

    /// The core goes on until it has to wait, or something else comes first.
    fn proceed(&mut self, index: usize) {
        let mut now_ps = self.now_ps;
        let memory_ps = self.shared.memory.next_event_ps();
        let horizon_ps = self.events.next_ps().min(memory_ps).min(self.until_ps);
        let core = &mut self.cores[index];
        core.waits = Waits::No;
        if core.stopped_ps.is_some() {
            core.held = true;
            return;
        }
        if core.owed_ps > 0 {
            now_ps += std::mem::take(&mut core.owed_ps);
            self.events.add(now_ps, Event::Proceed(index));
            return;
        }
        loop {
            let touch = match core.pending.take() {
                Some(touch) => touch,
                None => match core.workload.next(now_ps) {
                    Step::Touch {
                        work_ps,
                        offset,
                        store,
                        depends,
                    } => {
                        let (line, held) = core.private.translate(offset);
                        let walk_ps = if held {
                            0
                        } else {
                            self.settings.core.page_walk_ps
                        };
                        core.counts.touches += 1;
                        now_ps += work_ps + walk_ps;
                        Touch {
                            line,
                            store,
                            depends,
                        }
                    }
                    Step::Settle if core.under_way == 0 => continue,
                    Step::Settle => {
                        core.waits = Waits::Settle;
                        return;
                    }
                    Step::Sleep { until_ps } => {
                        core.waits = Waits::Sleep;
                        core.idle_ps = Some(now_ps);
                        self.events.add(until_ps.max(now_ps), Event::Wake(index));
                        return;
                    }
                    Step::End => {
                        core.waits = Waits::Ended;
                        core.idle_ps = Some(now_ps);
                        return;
                    }
                },
            };
            if now_ps > horizon_ps {
                core.pending = Some(touch);
                self.events.add(now_ps, Event::Proceed(index));
                return;
            }
            let blocks = !touch.store && (touch.depends || self.settings.core.in_order);
            let settings = &self.settings.core;
            let (found, victim) = core.private.look_up(touch.line, touch.store);
            let taken_ps = match found {
                Found::L1 if blocks => settings.l1d.hit_ps,
                Found::L2 if blocks => settings.l2.map_or(0, |l2| l2.hit_ps),
                Found::L1 | Found::L2 => settings.issue_ps,
                Found::Nowhere => {
                    self.ask_shared(index, touch, blocks, now_ps);
                    return;
                }
            };
            now_ps += taken_ps;
            if let Some(victim) = victim {
                self.take_back(index, victim.number);
                self.events.add(now_ps, Event::Proceed(index));
                return;
            }
        }
    }

    /// An access that the core's own caches can't answer.
    fn ask_shared(&mut self, index: usize, touch: Touch, blocks: bool, now_ps: u64) {
        let settings = &self.settings;
        let core = &mut self.cores[index];
        let line = touch.line;
        if self.shared.join(index, line, touch.store) {
            // It is under way for this core already.
        } else if core.under_way == settings.core.mshrs {
            core.waits = Waits::OwnMshr;
            core.pending = Some(touch);
            return;
        } else {
            match self.shared.ask(index, line, touch.store, now_ps) {
                Answer::Full => {
                    core.waits = Waits::Shared;
                    core.pending = Some(touch);
                    return;
                }
                Answer::Hit => {
                    core.under_way += 1;
                    let at_ps = now_ps + settings.shared.cache.hit_ps;
                    let store = touch.store;
                    self.events.add(
                        at_ps,
                        Event::Hit {
                            core: index,
                            line,
                            store,
                        },
                    );
                }
                Answer::Joined => core.under_way += 1,
                Answer::Miss => {
                    core.under_way += 1;
                    self.count_refill(index, false, now_ps);
                }
            }
            self.prefetch(index, line, now_ps);
        }
        let core = &mut self.cores[index];
        if blocks {
            core.waits = Waits::Line(line);
        } else {
            let at_ps = now_ps + self.settings.core.issue_ps;
            self.events.add(at_ps, Event::Proceed(index));
        }
    }

    fn prefetch(&mut self, index: usize, line: u64, now_ps: u64) {
        let most = self.settings.core.prefetch_mshrs;
        let Some(ask) = self.cores[index].private.prefetches(line) else {
            return;
        };
        for line in ask.lines() {
            if self.cores[index].prefetches_under_way >= most {
                return;
            }
            if self.shared.prefetch(index, line, now_ps) {
                self.cores[index].prefetches_under_way += 1;
                self.count_refill(index, true, now_ps);
            }
        }
    }

    fn count_refill(&mut self, index: usize, prefetch: bool, now_ps: u64) {
        let counts = &mut self.cores[index].counts;
        counts.refills += 1;
        counts.prefetches += u64::from(prefetch);
        self.count(index, Resource::Read, now_ps);
    }

    fn count(&mut self, index: usize, resource: Resource, now_ps: u64) {
        if let Some(regulator) = &mut self.regulator
            && regulator.count(index, resource)
        {
            let at_ps = now_ps + self.reaction.overflow_ps;
            self.events.add(at_ps, Event::Overflow(index, resource));
        }
    }

    /// A line has come from memory.
    fn fill(&mut self, slot: usize) {
        let filled = self.shared.fill(slot);
        if let Some(victim) = filled.victim {
            let mut dirty = victim.dirty;
            if self.settings.shared.inclusive {
                for core in &mut self.cores {
                    dirty |= core.private.invalidate(victim.number);
                }
            }
            if dirty {
                self.write_back(filled.core, victim.number);
            }
        }
        if filled.prefetch {
            self.cores[filled.core].prefetches_under_way -= 1;
        }
        for core in 0..self.cores.len() {
            if filled.waiters & 1 << core != 0 {
                let store = filled.stores & 1 << core != 0;
                self.line_is_there(core, filled.line, store);
            }
        }
        self.wake_all(Waits::Shared);
    }

    /// A dirty line leaves a core's own caches.
    fn take_back(&mut self, index: usize, line: u64) {
        if let Some(gone) = self.shared.take_back(line) {
            self.write_back(index, gone);
        }
    }

    fn write_back(&mut self, index: usize, line: u64) {
        self.cores[index].counts.write_backs += 1;
        self.shared.write(index, line, self.now_ps);
        self.count(index, Resource::Write, self.now_ps);
    }

    /// A line is there for a core that asked for it.
    fn line_is_there(&mut self, index: usize, line: u64, store: bool) {
        self.cores[index].under_way -= 1;
        let victims = self.cores[index].private.fill(line, store);
        for victim in victims.into_iter().flatten() {
            self.take_back(index, victim.number);
        }
        let core = &self.cores[index];
        let goes_on = match core.waits {
            Waits::Line(wanted) => wanted == line,
            Waits::OwnMshr => true,
            Waits::Settle => core.under_way == 0,
            _ => false,
        };
        if goes_on {
            self.cores[index].waits = Waits::No;
            self.events.add(self.now_ps, Event::Proceed(index));
        }
    }

    fn wake_all(&mut self, waits: Waits) {
        for (index, core) in self.cores.iter_mut().enumerate() {
            if core.waits == waits {
                core.waits = Waits::No;
                self.events.add(self.now_ps, Event::Proceed(index));
            }
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

    fn set_timer(&mut self) {
        if let Some(regulator) = &self.regulator {
            let at_ps = regulator.next_boundary_ps(self.now_ps);
            self.events.add(at_ps, Event::Period(self.timers));
        }
    }

    /// All timers run out.
    fn periods_begin(&mut self) {
        let mut orders = std::mem::take(&mut self.orders);
        let Some(regulator) = &mut self.regulator else {
            return;
        };
        for index in 0..regulator.len() {
            let core = &mut self.cores[index];
            let idle = core.idle_ps.is_some();
            if !idle {
                core.owed_ps += self.reaction.period_overhead_ps;
            }
            regulator.period_begin(index, self.now_ps, idle, &mut orders);
        }
        self.timers = self.timers.wrapping_add(1);
        self.set_timer();
        self.carry_out(orders);
    }

    fn carry_out(&mut self, mut orders: Vec<Order>) {
        let mut anew = false;
        for order in orders.drain(..) {
            match order {
                Order::Stop(core) => {
                    let at_ps = self.now_ps + self.reaction.throttle_ps;
                    self.events.add(at_ps, Event::Stop(core));
                }
                Order::Run(core) => {
                    let at_ps = self.now_ps + self.reaction.release_ps;
                    self.events.add(at_ps, Event::Go(core));
                }
                Order::NewPeriod => anew = true,
            }
        }
        self.orders = orders;
        if anew && let Some(regulator) = &mut self.regulator {
            regulator.restart(self.now_ps);
            self.periods_begin();
        }
    }

    fn stop(&mut self, index: usize) {
        let throttled = self
            .regulator
            .as_ref()
            .is_some_and(|regulator| regulator.is_throttled(index));
        let core = &mut self.cores[index];
        // Its period may have ended before it stood still.
        if throttled && core.stopped_ps.is_none() {
            core.stopped_ps = Some(self.now_ps);
        }
    }

    fn go(&mut self, index: usize) {
        let core = &mut self.cores[index];
        let Some(since) = core.stopped_ps.take() else {
            return;
        };
        core.counts.throttled_ps += self.now_ps - since;
        if std::mem::take(&mut core.held) {
            self.events.add(self.now_ps, Event::Proceed(index));
        }
    }
}

impl Core {
    fn new(private: Private, workload: Box<dyn Workload>) -> Self {
        Self {
            private,
            workload,
            waits: Waits::No,
            pending: None,
            under_way: 0,
            prefetches_under_way: 0,
            stopped_ps: None,
            held: false,
            idle_ps: None,
            owed_ps: 0,
            counts: CoreCounts::default(),
        }
    }
}

#[cfg(test)]
mod tests;
