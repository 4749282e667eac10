// SPDX-License-Identifier: MIT OR Apache-2.0
//! The regulator on the simulated machine: the decisions are made by `policy/`, the same source
//! that the kernel module compiles. This module adds a host's part: counters with thresholds,
//! the clock that numbers periods, and the cost of reactions.

use std::sync::Arc;

use memwarden_policy::{Action, BestEffort, Core, Policy, Resource, Split, UNLIMITED};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The cost of regulation, as measured on a real machine (`memwarden guard bench`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reaction {
    /// From the event that uses up a budget to the decision, ps.
    pub overflow_ps: u64,
    /// From the decision to the core's halt, ps.
    pub throttle_ps: u64,
    /// From the beginning of a period until a throttled core runs again, ps.
    pub release_ps: u64,
    /// Time that the beginning of a period takes on each regulated core, ps.
    pub period_overhead_ps: u64,
}

/// The regulator's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// Events per period for each core, by resource.
    pub budgets: Vec<[u64; 2]>,
    /// Whether the budget of reads covers reads and writes together.
    pub combined: bool,
    /// What happens when all active cores have used their budgets.
    pub best_effort: BestEffort,
    /// Whether a core donates budget that it won't need.
    pub reclaim: bool,
    /// Length of a period, ps.
    pub period_ps: u64,
    /// Whether each core has its budget in each bank of the memory, and waits only for the
    /// banks where it is used up.
    pub per_bank: bool,
}

/// An ended period of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedPeriod {
    /// The core.
    pub core: usize,
    /// When it ended, ps.
    pub at_ps: u64,
    /// Events in it, by budget; with budgets per bank, those of the bank with the most.
    pub used: [u64; 2],
    /// Events that the core was assigned in it; with budgets per bank, in that bank.
    pub assigned: [u64; 2],
    /// Time for which the core was throttled in it, ps; with budgets per bank, for which one or
    /// more of its requests were held back.
    pub throttled_ps: u64,
}

/// An order for one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The core continues.
    Run(usize),
    /// The core is throttled.
    Stop(usize),
    /// All periods begin again at this moment.
    NewPeriod,
}

#[derive(Debug)]
struct Regulated {
    policy: Core,
    /// Events of this period, by counter.
    used: [u64; 2],
    /// The counter interrupts when `used` reaches this value.
    threshold: [u64; 2],
    /// Whether the interrupt is pending.
    interrupting: [bool; 2],
    overflows: u64,
    /// Whether a stop has been seen, by resource.
    learned: [bool; 2],
    /// The throttle that lasts until this period ends, if any.
    stop: Option<Stop>,
    /// Where both counters count one budget: how it is shared, and what was used when it was shared last.
    split: Option<(Split, [u64; 2])>,
}

/// A throttle, for the policy's books.
#[derive(Debug)]
struct Stop {
    /// The resource whose budget was used up.
    by: Resource,
    /// The period's events until the core halted, by budget; `None` before that.
    held: Option<[u64; 2]>,
}

/// The regulator's host.
#[derive(Debug)]
pub(crate) struct Regulator {
    policy: Arc<Policy>,
    cores: Vec<Regulated>,
    /// Number of the period that began at `phase_ps`.
    number: u64,
    phase_ps: u64,
    pub period_ps: u64,
}

impl Regulator {
    /// All cores take part from the beginning.
    ///
    /// # Errors
    /// When the policy refuses a budget.
    pub fn new(guard: &Guard) -> Result<Self, memwarden_policy::Error> {
        let policy = Policy::new();
        policy.set_best_effort(guard.best_effort);
        policy.set_reclaim(guard.reclaim);
        let mut cores = Vec::new();
        for budgets in &guard.budgets {
            let core = Core::new(&policy)?;
            for (resource, budget) in Resource::ALL.into_iter().zip(budgets) {
                core.settings().set_budget(resource, *budget)?;
            }
            cores.push(Regulated {
                policy: core,
                used: [0; 2],
                threshold: [0; 2],
                interrupting: [false; 2],
                overflows: 0,
                learned: [false; 2],
                stop: None,
                split: guard.combined.then(Default::default),
            });
        }
        for core in &mut cores {
            core.policy.online();
            core.arm();
        }
        Ok(Self {
            policy,
            cores,
            number: 0,
            phase_ps: 0,
            period_ps: guard.period_ps,
        })
    }

    /// A core has caused an event. Returns whether its counter now interrupts.
    pub fn count(&mut self, core: usize, resource: Resource) -> bool {
        let core = &mut self.cores[core];
        let r = resource as usize;
        core.used[r] += 1;
        let interrupts = core.used[r] >= core.threshold[r] && !core.interrupting[r];
        core.interrupting[r] |= interrupts;
        interrupts
    }

    /// Handles the counter's interrupt.
    pub fn overflow(&mut self, index: usize, resource: Resource, orders: &mut Vec<Order>) {
        let core = &mut self.cores[index];
        let r = resource as usize;
        core.interrupting[r] = false;
        // The interrupt is from a period that has ended meanwhile.
        if core.policy.is_throttled() || core.used[r] < core.threshold[r] {
            return;
        }
        core.overflows += 1;
        let resource = core.budget_of(resource);
        let used = core.used_by_budget()[resource as usize];
        let action = core.policy.overflow(resource, used);
        if action == Action::Throttle {
            core.stop = Some(Stop {
                by: resource,
                held: None,
            });
        }
        core.arm();
        self.carry_out(index, action, orders);
    }

    /// A throttled core has halted.
    pub fn halted(&mut self, core: usize) {
        let core = &mut self.cores[core];
        let used = core.used_by_budget();
        if let Some(stop) = &mut core.stop {
            stop.held.get_or_insert(used);
        }
    }

    /// A core has left idle.
    pub fn active(&mut self, core: usize) {
        self.cores[core].policy.active();
    }

    /// The time of the next period, if none begins before it.
    pub fn next_boundary_ps(&self, now_ps: u64) -> u64 {
        self.phase_ps + ((now_ps - self.phase_ps) / self.period_ps + 1) * self.period_ps
    }

    /// A core's timer: its period ends, the next one begins. Returns the ended period's used
    /// and assigned events, unless no period has ended.
    pub fn period_begin(
        &mut self,
        index: usize,
        now_ps: u64,
        idle: bool,
        orders: &mut Vec<Order>,
    ) -> Option<[[u64; 2]; 2]> {
        let number = self.number + (now_ps - self.phase_ps) / self.period_ps;
        let core = &mut self.cores[index];
        let throttled = core.policy.is_throttled();
        let assigned = Resource::ALL.map(|resource| core.policy.account(resource).assigned);
        let allowed = Resource::ALL.map(|resource| core.policy.account(resource).allowed());
        let used = core.used_by_budget();
        let action = core.policy.period_begin(number, idle, used);
        if action == Action::Continue {
            return None;
        }
        // The ended period had the same budget: budgets do not change during a run.
        core.settle(used, allowed);
        core.begin();
        core.arm();
        if throttled {
            orders.push(Order::Run(index));
        }
        self.carry_out(index, action, orders);
        Some([used, assigned])
    }

    /// Best effort has opened a period, which begins now.
    pub fn restart(&mut self, now_ps: u64) {
        self.number = self.policy.census().epoch;
        self.phase_ps = now_ps;
    }

    /// Whether the policy wants a core to be throttled.
    pub fn is_throttled(&self, core: usize) -> bool {
        self.cores[core].policy.is_throttled()
    }

    /// Number of counter interrupts: each budget that was used up, and with a combined budget each share.
    pub fn overflows(&self, core: usize) -> u64 {
        self.cores[core].overflows
    }

    pub fn len(&self) -> usize {
        self.cores.len()
    }

    fn carry_out(&mut self, index: usize, action: Action, orders: &mut Vec<Order>) {
        match action {
            Action::Continue | Action::Run => {}
            Action::Throttle => orders.push(Order::Stop(index)),
            Action::ReleaseAll => {
                for (other, core) in self.cores.iter_mut().enumerate() {
                    if core.policy.release() == Action::Run {
                        core.stop = None;
                        core.arm();
                        orders.push(Order::Run(other));
                    }
                }
            }
            Action::NewPeriod => orders.push(Order::NewPeriod),
        }
    }
}

impl Regulated {
    fn used_by_budget(&self) -> [u64; 2] {
        match self.split {
            Some(_) => [self.used[0] + self.used[1], 0],
            None => self.used,
        }
    }

    /// The resource whose budget a counter counts.
    fn budget_of(&self, counter: Resource) -> Resource {
        match self.split {
            Some(_) => Resource::Read,
            None => counter,
        }
    }

    /// Charges the events of a period that ended with a stop, and that exceed its budgets, as the kernel module does. A
    /// period without a stop owes nothing.
    ///
    /// The policy learns a stop's events over some fifty periods. A run of the model is about as long, and the guards
    /// that it is compared with ran for seconds, so here the policy expects the first stop's events from then on.
    fn settle(&mut self, used: [u64; 2], allowed: [u64; 2]) {
        let Some(stop) = self.stop.take() else {
            return;
        };
        let held = stop.held.unwrap_or(used);
        for resource in Resource::ALL {
            let r = resource as usize;
            let (used, allowed, held) = (used[r], allowed[r], held[r]);
            if stop.by != resource {
                self.policy.owe(resource, used, held, allowed);
            } else if std::mem::replace(&mut self.learned[r], true) {
                self.policy.settle_stop(resource, used, held, allowed);
            } else {
                let excess = used.saturating_sub(allowed);
                self.policy.expect_stop(resource, excess);
            }
        }
    }

    /// Counts from 0 on. What came since the budget was shared last is still to be told.
    fn begin(&mut self) {
        let used = std::mem::take(&mut self.used);
        if let Some((split, shared)) = &mut self.split {
            let _ = split.shares([used[0] - shared[0], used[1] - shared[1]], UNLIMITED);
            *shared = [0; 2];
        }
    }

    fn arm(&mut self) {
        let left = self.policy.until_overflow(Resource::Read);
        if let Some((split, shared)) = &mut self.split {
            let since = [self.used[0] - shared[0], self.used[1] - shared[1]];
            *shared = self.used;
            for (r, share) in split.shares(since, left).into_iter().enumerate() {
                self.threshold[r] = self.used[r].saturating_add(share);
            }
            return;
        }
        for (r, resource) in Resource::ALL.into_iter().enumerate() {
            self.threshold[r] = self.used[r].saturating_add(self.policy.until_overflow(resource));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regulator(budgets: &[u64], best_effort: BestEffort) -> Regulator {
        Regulator::new(&Guard {
            budgets: budgets.iter().map(|read| [*read, UNLIMITED]).collect(),
            combined: false,
            best_effort,
            reclaim: false,
            period_ps: 1000,
            per_bank: false,
        })
        .unwrap()
    }

    #[test]
    fn one_budget_stops_reads_writes_and_both_together() {
        use Resource::{Read, Write};
        for kinds in [&[Read][..], &[Write], &[Read, Write], &[Read, Read, Write]] {
            let mut regulator = Regulator::new(&Guard {
                budgets: vec![[100, UNLIMITED]],
                combined: true,
                best_effort: BestEffort::None,
                reclaim: false,
                period_ps: 1000,
                per_bank: false,
            })
            .unwrap();
            for period in 1..4 {
                let (mut orders, mut events) = (Vec::new(), 0);
                for kind in kinds.iter().copied().cycle() {
                    events += 1;
                    if regulator.count(0, kind) {
                        regulator.overflow(0, kind, &mut orders);
                    }
                    if !orders.is_empty() {
                        break;
                    }
                }
                assert_eq!((events, orders), (100, vec![Order::Stop(0)]), "{kinds:?}");
                let mut orders = Vec::new();
                let ended = regulator.period_begin(0, period * 1000, false, &mut orders);
                assert_eq!(ended.unwrap(), [[100, 0], [100, UNLIMITED]]);
            }
            assert!(regulator.overflows(0) <= 15, "{}", regulator.overflows(0));
        }
    }

    fn use_up(regulator: &mut Regulator, core: usize, events: u64) -> Vec<Order> {
        let mut orders = Vec::new();
        for _ in 0..events {
            if regulator.count(core, Resource::Read) {
                regulator.overflow(core, Resource::Read, &mut orders);
            }
        }
        orders
    }

    #[test]
    fn the_event_that_uses_up_a_budget_stops_the_core_until_the_period_ends() {
        let mut regulator = regulator(&[5, 9], BestEffort::None);
        assert_eq!(use_up(&mut regulator, 0, 4), []);
        assert_eq!(use_up(&mut regulator, 0, 1), [Order::Stop(0)]);
        assert_eq!(use_up(&mut regulator, 0, 3), [], "what was under way");
        let mut orders = Vec::new();
        regulator.period_begin(0, 1000, false, &mut orders);
        assert_eq!(orders, [Order::Run(0)]);
        assert_eq!(regulator.cores[0].used, [0, 0]);
    }

    /// After an overflow each period has 10 more events until the core halts, and 5 that are counted while it is halted.
    #[test]
    fn events_of_a_stop_are_charged_to_later_periods() {
        let mut regulator = regulator(&[100], BestEffort::None);
        let mut used = Vec::new();
        for period in 1..=200 {
            let mut orders = Vec::new();
            while orders.is_empty() {
                orders = use_up(&mut regulator, 0, 1);
            }
            use_up(&mut regulator, 0, 10);
            regulator.halted(0);
            use_up(&mut regulator, 0, 5);
            let mut orders = Vec::new();
            let [ended, assigned] = regulator
                .period_begin(0, period * 1000, false, &mut orders)
                .unwrap();
            assert_eq!(assigned[0], 100);
            used.push(ended[0]);
        }
        assert_eq!(used[0], 115);
        assert!(used[1..].iter().all(|used| *used == 100), "{used:?}");
    }

    /// The interrupt of the overflow is still pending when the period ends.
    #[test]
    fn a_period_that_ends_without_a_stop_owes_nothing() {
        let mut regulator = regulator(&[100], BestEffort::None);
        for _ in 0..300 {
            regulator.count(0, Resource::Read);
        }
        let mut orders = Vec::new();
        regulator.period_begin(0, 1000, false, &mut orders);
        regulator.overflow(0, Resource::Read, &mut orders);
        assert_eq!(orders, []);
        assert_eq!(regulator.cores[0].policy.account(Resource::Read).owed, 0);
        assert_eq!(use_up(&mut regulator, 0, 99), []);
        assert_eq!(use_up(&mut regulator, 0, 1), [Order::Stop(0)]);
    }

    /// Reads stop the core; writes that follow its halt are not the tasks'.
    #[test]
    fn a_stop_charges_the_other_budget_for_what_came_before_the_halt() {
        let mut regulator = Regulator::new(&Guard {
            budgets: vec![[100, 100]],
            combined: false,
            best_effort: BestEffort::None,
            reclaim: false,
            period_ps: 1000,
            per_bank: false,
        })
        .unwrap();
        let writes = |regulator: &mut Regulator, count| {
            (0..count).for_each(|_| {
                regulator.count(0, Resource::Write);
            });
        };
        assert_eq!(use_up(&mut regulator, 0, 100), [Order::Stop(0)]);
        writes(&mut regulator, 170);
        regulator.halted(0);
        writes(&mut regulator, 500);
        regulator.period_begin(0, 1000, false, &mut Vec::new());
        // Half a budget is a stop's.
        assert_eq!(regulator.cores[0].policy.account(Resource::Write).owed, 20);
    }

    #[test]
    fn spare_lets_all_go_once_all_have_used_theirs() {
        let mut regulator = regulator(&[5, 9], BestEffort::Spare);
        let mut orders = Vec::new();
        for core in 0..2 {
            regulator.period_begin(core, 1000, false, &mut orders);
        }
        orders.clear();
        assert_eq!(use_up(&mut regulator, 0, 5), [Order::Stop(0)]);
        assert_eq!(use_up(&mut regulator, 1, 9), [Order::Run(0)]);
        assert_eq!(use_up(&mut regulator, 0, 1000), []);
    }

    #[test]
    fn proportional_opens_a_period_that_begins_at_once() {
        let mut regulator = regulator(&[5, 9], BestEffort::Proportional);
        let mut orders = Vec::new();
        for core in 0..2 {
            regulator.period_begin(core, 1000, false, &mut orders);
        }
        assert_eq!(use_up(&mut regulator, 0, 5), [Order::Stop(0)]);
        assert_eq!(use_up(&mut regulator, 1, 9), [Order::NewPeriod]);
        regulator.restart(1400);
        orders.clear();
        for core in 0..2 {
            regulator.period_begin(core, 1400, false, &mut orders);
        }
        assert_eq!(orders, [Order::Run(0)]);
        assert_eq!(regulator.next_boundary_ps(1400), 2400);
        assert_eq!(use_up(&mut regulator, 0, 5), [Order::Stop(0)]);
    }
}
