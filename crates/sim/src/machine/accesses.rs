// SPDX-License-Identifier: MIT OR Apache-2.0
//! The path of an access: the core's own caches, the shared cache, memory, and back.

use super::events::Event;
use super::{Machine, Touch, Waits};
use crate::lines::Asked;
use crate::main_memory::MainMemory;
use crate::private::Found;
use crate::workload::Step;

impl<M: MainMemory> Machine<M> {
    /// Runs the core until it has to wait, or until another event comes first.
    pub(super) fn proceed(&mut self, index: usize) {
        let mut now_ps = self.now_ps;
        let memory_ps = self.lines.shared.memory.next_event_ps();
        let horizon_ps = self.events.next_ps().min(memory_ps).min(self.until_ps);
        let core = &mut self.cores[index];
        let lines = &mut self.lines.cores[index];
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
            let mut touch = match core.pending.take() {
                Some(touch) => touch,
                None => match core.workload.next(now_ps) {
                    Step::Touch {
                        work_ps,
                        offset,
                        store,
                        depends,
                    } => {
                        let (line, entry) = lines.private.translate(offset);
                        core.counts.touches += 1;
                        now_ps += work_ps;
                        if entry.is_some() {
                            now_ps += self.settings.core.page_walk_ps;
                        }
                        Touch {
                            line,
                            store,
                            depends,
                            entry,
                        }
                    }
                    Step::Settle if lines.under_way == 0 => continue,
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
            // The address of its page must be known first.
            if let Some(line) = touch.entry.take() {
                core.pending = Some(touch);
                touch = Touch {
                    line,
                    store: false,
                    depends: true,
                    entry: None,
                };
            }
            let blocks = !touch.store && (touch.depends || self.settings.core.in_order);
            let settings = &self.settings.core;
            let (found, victim) = lines.private.look_up(touch.line, touch.store);
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
                self.lines.take_back(index, victim.number, self.now_ps);
                self.tell_regulator(self.now_ps);
                self.events.add(now_ps, Event::Proceed(index));
                return;
            }
        }
    }

    /// An access that the core's own caches can't serve.
    fn ask_shared(&mut self, index: usize, touch: Touch, blocks: bool, now_ps: u64) {
        let line = touch.line;
        let asked = self.lines.ask(index, line, touch.store, now_ps);
        self.tell_regulator(now_ps);
        let core = &mut self.cores[index];
        match asked {
            Asked::OwnMshr | Asked::Full => {
                core.waits = if asked == Asked::Full {
                    Waits::Shared
                } else {
                    Waits::OwnMshr
                };
                core.try_again(touch);
                return;
            }
            Asked::Hit => {
                self.lines.cores[index].under_way += 1;
                let at_ps = now_ps + self.settings.shared.cache.hit_ps;
                let store = touch.store;
                self.events.add(
                    at_ps,
                    Event::Hit {
                        core: index as u16,
                        line,
                        store,
                    },
                );
            }
            Asked::UnderWay => {}
        }
        if blocks {
            core.waits = Waits::Line(line);
        } else {
            let at_ps = now_ps + self.settings.core.issue_ps;
            self.events.add(at_ps, Event::Proceed(index));
        }
    }

    /// Passes the counted events to the regulator.
    fn tell_regulator(&mut self, now_ps: u64) {
        if let Some(banks) = &mut self.lines.banks {
            if banks.take_released() {
                self.events.add(now_ps, Event::Released);
            }
        }
        let (Some(regulator), Some(counted)) = (&mut self.regulator, &mut self.lines.counted)
        else {
            return;
        };
        for (index, resource) in counted.drain(..) {
            if regulator.count(index, resource) {
                let at_ps = now_ps + self.reaction.overflow_ps;
                self.events.add(at_ps, Event::Overflow(index, resource));
            }
        }
    }

    /// A line has arrived from memory.
    pub(super) fn fill(&mut self, slot: usize) {
        let filled = self.lines.fill(slot, self.now_ps);
        self.tell_regulator(self.now_ps);
        for core in 0..self.cores.len() {
            if filled.waiters & 1 << core != 0 {
                let store = filled.stores & 1 << core != 0;
                self.line_is_there(core, filled.line, store);
            }
        }
        self.wake_all_for_place();
    }

    /// A line has arrived for a core that requested it.
    pub(super) fn line_is_there(&mut self, index: usize, line: u64, store: bool) {
        self.lines.line_is_there(index, line, store, self.now_ps);
        self.tell_regulator(self.now_ps);
        let goes_on = match self.cores[index].waits {
            Waits::Line(wanted) => wanted == line,
            Waits::OwnMshr => true,
            Waits::Settle => self.lines.cores[index].under_way == 0,
            _ => false,
        };
        if goes_on {
            self.cores[index].waits = Waits::No;
            self.events.add(self.now_ps, Event::Proceed(index));
        }
    }

    /// The shared cache has a free place. Requests that were held back are older.
    pub(super) fn wake_all_for_place(&mut self) {
        if self.lines.released_wait {
            self.send_held();
        }
        for (index, core) in self.cores.iter_mut().enumerate() {
            if core.waits == Waits::Shared {
                core.waits = Waits::No;
                self.events.add(self.now_ps, Event::Proceed(index));
            }
        }
    }

    /// Sends all requests that were held back and need not wait any longer.
    pub(super) fn send_held(&mut self) {
        self.lines.released_wait = false;
        let mut hits = Vec::new();
        for index in 0..self.cores.len() {
            self.lines.send_held(index, self.now_ps, &mut hits);
            let at_ps = self.now_ps + self.settings.shared.cache.hit_ps;
            for (line, store) in hits.drain(..) {
                let core = index as u16;
                self.events.add(at_ps, Event::Hit { core, line, store });
            }
        }
        self.tell_regulator(self.now_ps);
    }
}
