// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets per bank: each core has its budget in each bank of the memory, and only its requests
//! to banks where the budget is used up wait, until the next period.
//!
//! Every bank is a memory of its own for `policy/`: it has its own cores, budgets and pool.
//! The host is the memory system, which knows the bank of each request. It counts exactly and
//! reacts in no time: no interrupt, no thread, no cost on the cores.

use std::sync::Arc;

use memwarden_policy::{Action, Core, Policy, Resource};

use crate::regulator::Guard;

/// A core's events in one bank.
#[derive(Debug)]
struct Counted {
    policy: Core,
    /// Events of this period.
    used: [u64; 2],
    /// The policy decides when `used` reaches this value.
    threshold: [u64; 2],
    /// Whether the budget is used up.
    used_up: bool,
}

/// The regulator of all banks.
#[derive(Debug)]
pub(crate) struct BankRegulator {
    /// By bank, then by core.
    banks: Vec<Vec<Counted>>,
    combined: bool,
    pub period_ps: u64,
    /// Number of used-up budgets of each core.
    overflows: Vec<u64>,
    /// Whether sharing has released requests since this was last read.
    released: bool,
}

impl BankRegulator {
    /// All cores take part from the beginning, in each of `banks` banks.
    ///
    /// # Errors
    /// When the policy refuses a budget.
    pub fn new(guard: &Guard, banks: usize) -> Result<Self, memwarden_policy::Error> {
        let bank = || -> Result<Vec<Counted>, memwarden_policy::Error> {
            let policy = Policy::new();
            policy.set_best_effort(guard.best_effort);
            policy.set_reclaim(guard.reclaim);
            let cores = guard.budgets.iter();
            cores
                .map(|budgets| Counted::new(&policy, budgets))
                .collect()
        };
        Ok(Self {
            banks: (0..banks).map(|_| bank()).collect::<Result<_, _>>()?,
            combined: guard.combined,
            period_ps: guard.period_ps,
            overflows: vec![0; guard.budgets.len()],
            released: false,
        })
    }

    /// Number of cores.
    pub fn len(&self) -> usize {
        self.overflows.len()
    }

    /// Whether a core's requests to a bank have to wait.
    pub fn is_used_up(&self, core: usize, bank: usize) -> bool {
        self.banks[bank][core].used_up
    }

    /// A core has caused an event in a bank.
    pub fn count(&mut self, core: usize, bank: usize, resource: Resource) {
        let cores = &mut self.banks[bank];
        let counted = &mut cores[core];
        counted.used[resource as usize] += 1;
        let resource = if self.combined {
            Resource::Read
        } else {
            resource
        };
        let used = counted.used_by_budget(self.combined)[resource as usize];
        if counted.used_up || used < counted.threshold[resource as usize] {
            return;
        }
        let action = counted.policy.overflow(resource, used);
        counted.arm(self.combined);
        counted.used_up = counted.policy.is_throttled();
        match action {
            Action::Throttle => self.overflows[core] += 1,
            Action::ReleaseAll => {
                for counted in cores {
                    if counted.policy.release() == Action::Run {
                        counted.arm(self.combined);
                    }
                    self.released |= counted.used_up;
                    counted.used_up = counted.policy.is_throttled();
                }
            }
            // A period of a single bank never begins early: that sharing is refused.
            Action::Continue | Action::Run | Action::NewPeriod => {}
        }
    }

    /// A core has left idle.
    pub fn active(&mut self, core: usize) {
        for bank in &mut self.banks {
            bank[core].policy.active();
        }
    }

    /// The time of the next period.
    pub fn next_boundary_ps(&self, now_ps: u64) -> u64 {
        (now_ps / self.period_ps + 1) * self.period_ps
    }

    /// A core's period ends in all banks, and the next one begins. Returns the ended period's
    /// used and assigned events in the bank in which the core used most.
    pub fn period_begin(&mut self, core: usize, now_ps: u64, idle: bool) -> [[u64; 2]; 2] {
        let number = now_ps / self.period_ps;
        let mut most = [[0; 2]; 2];
        for (index, bank) in self.banks.iter_mut().enumerate() {
            let counted = &mut bank[core];
            let used = counted.used_by_budget(self.combined);
            let assigned = Resource::ALL.map(|resource| counted.policy.account(resource).assigned);
            if index == 0 || used > most[0] {
                most = [used, assigned];
            }
            let action = counted.policy.period_begin(number, idle, used);
            counted.used = [0; 2];
            counted.arm(self.combined);
            counted.used_up = false;
            // The others waited for this core alone, which is idle.
            if action == Action::ReleaseAll {
                for counted in bank {
                    if counted.policy.release() == Action::Run {
                        counted.arm(self.combined);
                    }
                    counted.used_up = counted.policy.is_throttled();
                }
            }
        }
        most
    }

    /// How often a core's budget in a bank was used up.
    pub fn overflows(&self, core: usize) -> u64 {
        self.overflows[core]
    }

    /// Whether sharing has released requests since the previous call.
    pub fn take_released(&mut self) -> bool {
        std::mem::take(&mut self.released)
    }
}

impl Counted {
    fn new(policy: &Arc<Policy>, budgets: &[u64; 2]) -> Result<Self, memwarden_policy::Error> {
        let mut core = Core::new(policy)?;
        for (resource, budget) in Resource::ALL.into_iter().zip(budgets) {
            core.settings().set_budget(resource, *budget)?;
        }
        core.online();
        let mut counted = Self {
            policy: core,
            used: [0; 2],
            threshold: [0; 2],
            used_up: false,
        };
        counted.arm(false);
        Ok(counted)
    }

    fn used_by_budget(&self, combined: bool) -> [u64; 2] {
        if combined {
            [self.used[0] + self.used[1], 0]
        } else {
            self.used
        }
    }

    fn arm(&mut self, combined: bool) {
        let used = self.used_by_budget(combined);
        for (r, resource) in Resource::ALL.into_iter().enumerate() {
            self.threshold[r] = used[r].saturating_add(self.policy.until_overflow(resource));
        }
    }
}

#[cfg(test)]
mod tests {
    use memwarden_policy::{BestEffort, UNLIMITED};

    use super::*;
    use Resource::{Read, Write};

    fn regulator(budgets: &[u64], best_effort: BestEffort, combined: bool) -> BankRegulator {
        let guard = Guard {
            budgets: budgets.iter().map(|read| [*read, UNLIMITED]).collect(),
            combined,
            best_effort,
            reclaim: false,
            period_ps: 1000,
            per_bank: true,
        };
        BankRegulator::new(&guard, 4).unwrap()
    }

    #[test]
    fn a_budget_is_used_up_in_one_bank_for_one_core_until_the_next_period() {
        let mut regulator = regulator(&[5, 9], BestEffort::None, false);
        for _ in 0..4 {
            regulator.count(0, 2, Read);
        }
        assert!(!regulator.is_used_up(0, 2));
        regulator.count(0, 2, Read);
        assert!(regulator.is_used_up(0, 2));
        assert!(!regulator.is_used_up(1, 2));
        assert!((0..4).all(|bank| bank == 2 || !regulator.is_used_up(0, bank)));
        assert_eq!((regulator.overflows(0), regulator.overflows(1)), (1, 0));
        regulator.count(0, 1, Read);
        assert_eq!(
            regulator.period_begin(0, 1000, false),
            [[5, 0], [5, UNLIMITED]]
        );
        assert!(!regulator.is_used_up(0, 2));
    }

    #[test]
    fn each_period_has_the_whole_budget_of_each_bank() {
        let mut regulator = regulator(&[5], BestEffort::None, false);
        for period in 1..10 {
            for bank in 0..4 {
                let events = (1..).find(|_| {
                    regulator.count(0, bank, Read);
                    regulator.is_used_up(0, bank)
                });
                assert_eq!(events, Some(5), "period {period}, bank {bank}");
            }
            regulator.period_begin(0, 1000 * period, false);
        }
        assert_eq!(regulator.overflows(0), 9 * 4);
    }

    #[test]
    fn write_backs_count_against_a_combined_budget_only() {
        for (combined, expected) in [(true, true), (false, false)] {
            let mut regulator = regulator(&[5], BestEffort::None, combined);
            for resource in [Read, Write, Write, Write, Write] {
                regulator.count(0, 3, resource);
            }
            assert_eq!(regulator.is_used_up(0, 3), expected);
        }
    }

    #[test]
    fn spare_releases_a_bank_once_all_cores_have_used_their_budgets_there() {
        let mut regulator = regulator(&[2, 3], BestEffort::Spare, false);
        for core in 0..2 {
            regulator.period_begin(core, 1000, false);
        }
        (0..2).for_each(|_| regulator.count(0, 1, Read));
        (0..3).for_each(|_| regulator.count(1, 0, Read));
        assert!(regulator.is_used_up(0, 1) && regulator.is_used_up(1, 0));
        assert!(!regulator.take_released());
        (0..3).for_each(|_| regulator.count(1, 1, Read));
        assert!(!regulator.is_used_up(0, 1) && !regulator.is_used_up(1, 1));
        assert!(regulator.is_used_up(1, 0), "another bank");
        assert!(regulator.take_released() && !regulator.take_released());
    }
}
