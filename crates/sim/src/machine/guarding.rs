// SPDX-License-Identifier: MIT OR Apache-2.0
//! Applies the regulator's orders to the cores, at the right times.

use super::Machine;
use super::events::Event;
use crate::main_memory::MainMemory;
use crate::regulator::{EndedPeriod, Order};

impl<M: MainMemory> Machine<M> {
    pub(super) fn set_timer(&mut self) {
        let at_ps = match (&self.regulator, &self.lines.banks) {
            (Some(regulator), _) => regulator.next_boundary_ps(self.now_ps),
            (None, Some(banks)) => banks.next_boundary_ps(self.now_ps),
            (None, None) => return,
        };
        self.events.add(at_ps, Event::Period(self.timers));
    }

    /// A period begins in all banks. No core has a part in this, so none loses time.
    fn bank_periods_begin(&mut self) {
        let Some(banks) = &mut self.lines.banks else {
            return;
        };
        for index in 0..banks.len() {
            let core = &mut self.cores[index];
            let idle = core.idle_ps.is_some();
            let [used, assigned] = banks.period_begin(index, self.now_ps, idle);
            if let Some(periods) = &mut self.periods {
                let held_ps = self.lines.cores[index].held_ps(self.now_ps);
                periods.push(EndedPeriod {
                    core: index,
                    at_ps: self.now_ps,
                    used,
                    assigned,
                    throttled_ps: held_ps - core.told_throttled_ps,
                });
                core.told_throttled_ps = held_ps;
            }
        }
        self.timers = self.timers.wrapping_add(1);
        self.set_timer();
        self.send_held();
    }

    /// All timers expire.
    pub(super) fn periods_begin(&mut self) {
        if self.lines.banks.is_some() {
            self.bank_periods_begin();
            return;
        }
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
            let ended = regulator.period_begin(index, self.now_ps, idle, &mut orders);
            if let (Some(periods), Some([used, assigned])) = (&mut self.periods, ended) {
                let stopped_ps = core.stopped_ps.map_or(0, |since| self.now_ps - since);
                let throttled_ps = core.counts.throttled_ps + stopped_ps;
                periods.push(EndedPeriod {
                    core: index,
                    at_ps: self.now_ps,
                    used,
                    assigned,
                    throttled_ps: throttled_ps - core.told_throttled_ps,
                });
                core.told_throttled_ps = throttled_ps;
            }
        }
        self.timers = self.timers.wrapping_add(1);
        self.set_timer();
        self.carry_out(orders);
    }

    pub(super) fn carry_out(&mut self, mut orders: Vec<Order>) {
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
        if anew {
            if let Some(regulator) = &mut self.regulator {
                regulator.restart(self.now_ps);
                self.periods_begin();
            }
        }
    }

    pub(super) fn stop(&mut self, index: usize) {
        let Some(regulator) = &mut self.regulator else {
            return;
        };
        let core = &mut self.cores[index];
        // Its period may have ended before it was throttled.
        if regulator.is_throttled(index) && core.stopped_ps.is_none() {
            core.stopped_ps = Some(self.now_ps);
            regulator.halted(index);
        }
    }

    pub(super) fn go(&mut self, index: usize) {
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
