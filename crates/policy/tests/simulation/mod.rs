// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small host: each core wants events at a constant rate and has a timer, and kicks arrive at once. Time advances in
//! ticks and is identical in every run.

#![allow(dead_code)]

use std::sync::Arc;

use memwarden_policy::{Action, BestEffort, Core, Policy, Resource};

/// Ticks in a period.
pub const PERIOD: u64 = 1000;

/// What runs on a core.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Events per tick while it runs.
    pub rate: u64,
    /// Events that it wants in each period; 0 means idle.
    pub need: u64,
}

/// More than any core gets.
pub const ENDLESS: u64 = u64::MAX;
pub const IDLE: Load = Load { rate: 0, need: 0 };

pub struct SimCore {
    pub core: Core,
    pub load: Load,
    /// Events that each throttle itself causes; the list repeats.
    pub stops: Vec<u64>,
    /// Events that the load uses before each throttle takes hold; the list repeats.
    pub overruns: Vec<u64>,
    /// Number of throttles, whether this period has one, and the events used when it took hold.
    throttles: usize,
    stopped: bool,
    held: u64,
    /// The most events in any ended period.
    pub largest: u64,
    /// Events that the load still wants in this period of the fixed clock.
    left: u64,
    /// Events counted in the current period.
    used: u64,
    /// Events until the counter overflows: armed, then counted down.
    armed: u64,
    deadline: u64,
    /// Events counted from the beginning.
    pub total: u64,
    /// Ticks spent throttled.
    pub throttled_ticks: u64,
}

pub struct Simulation {
    pub policy: Arc<Policy>,
    pub cores: Vec<SimCore>,
    pub now: u64,
    /// The clock: period `number` began at `phase`.
    number: u64,
    phase: u64,
    pub releases: u64,
    pub new_periods: u64,
}

impl SimCore {
    fn stop(&mut self) {
        let of = |events: &[u64]| {
            let at = self.throttles % events.len().max(1);
            events.get(at).copied().unwrap_or(0)
        };
        let (overrun, stop) = (of(&self.overruns), of(&self.stops));
        self.stopped = true;
        self.held = self.used + overrun;
        self.used += overrun + stop;
        self.total += overrun + stop;
        self.throttles += 1;
    }
}

impl Simulation {
    /// Creates cores with these read budgets and loads.
    pub fn new(mode: BestEffort, reclaim: bool, cores: &[(u64, Load)]) -> Simulation {
        let policy = Policy::new();
        policy.set_best_effort(mode);
        policy.set_reclaim(reclaim);
        let cores = cores
            .iter()
            .map(|&(budget, load)| {
                let mut core = Core::new(&policy).unwrap();
                let settings = core.settings();
                settings.set_budget(Resource::Read, budget).unwrap();
                core.online();
                SimCore {
                    core,
                    load,
                    stops: Vec::new(),
                    overruns: Vec::new(),
                    throttles: 0,
                    stopped: false,
                    held: 0,
                    largest: 0,
                    left: load.need,
                    used: 0,
                    armed: budget,
                    deadline: 0,
                    total: 0,
                    throttled_ticks: 0,
                }
            })
            .collect();
        Simulation {
            policy,
            cores,
            now: 0,
            number: 1,
            phase: 0,
            releases: 0,
            new_periods: 0,
        }
    }

    /// Runs for `periods` periods; returns the events of each core.
    pub fn run(&mut self, periods: u64) -> Vec<u64> {
        let before: Vec<u64> = self.cores.iter().map(|core| core.total).collect();
        for _ in 0..periods * PERIOD {
            self.tick();
        }
        let after = self.cores.iter().map(|core| core.total);
        after
            .zip(before)
            .map(|(after, before)| after - before)
            .collect()
    }

    fn tick(&mut self) {
        for i in 0..self.cores.len() {
            if self.now % PERIOD == 0 {
                self.cores[i].left = self.cores[i].load.need;
            }
            if self.now >= self.cores[i].deadline {
                self.begin(i);
            }
        }
        for i in 0..self.cores.len() {
            self.work(i);
        }
        self.now += 1;
    }

    /// Runs one tick's events on one core, up to a throttle.
    fn work(&mut self, i: usize) {
        let core = &self.cores[i];
        let mut wanted = core.load.rate.min(core.left);
        if core.core.is_throttled() {
            self.cores[i].throttled_ticks += 1;
        }
        while wanted > 0 && !self.cores[i].core.is_throttled() {
            let core = &mut self.cores[i];
            let events = wanted.min(core.armed);
            core.armed -= events;
            core.used += events;
            core.total += events;
            if core.left != ENDLESS {
                core.left -= events;
            }
            wanted -= events;
            if core.armed == 0 {
                let action = core.core.overflow(Resource::Read, core.used);
                self.obey(i, action);
            }
        }
    }

    fn begin(&mut self, i: usize) {
        let periods = (self.now - self.phase) / PERIOD;
        let number = self.number + periods;
        let core = &mut self.cores[i];
        let idle = core.load.need == 0;
        let allowed = core.core.account(Resource::Read).allowed();
        let action = core.core.period_join(number, idle, [core.used, 0]);
        if action != Action::Continue {
            if std::mem::take(&mut core.stopped) {
                core.core
                    .settle_stop(Resource::Read, core.used, core.held, allowed);
            }
            core.core.period_open();
            core.largest = core.largest.max(core.used);
            core.used = 0;
        }
        core.deadline = self.phase + (periods + 1) * PERIOD;
        self.obey(i, action);
    }

    fn arm(&mut self, i: usize) {
        let core = &mut self.cores[i];
        core.armed = core.core.until_overflow(Resource::Read);
    }

    fn obey(&mut self, from: usize, action: Action) {
        if action != Action::Continue {
            self.arm(from);
        }
        match action {
            Action::Continue | Action::Run => {}
            Action::Throttle => self.cores[from].stop(),
            Action::ReleaseAll => {
                self.releases += 1;
                for i in (0..self.cores.len()).filter(|&i| i != from) {
                    if self.cores[i].core.release() == Action::Run {
                        self.cores[i].stopped = false;
                        self.arm(i);
                    }
                }
            }
            Action::NewPeriod => {
                self.new_periods += 1;
                self.number = self.policy.census().epoch;
                self.phase = self.now;
                for i in 0..self.cores.len() {
                    self.begin(i);
                }
            }
        }
    }
}
