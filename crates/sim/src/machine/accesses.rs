// SPDX-License-Identifier: MIT OR Apache-2.0
//! An access's way: the core's own caches, the shared one, memory, and back.

use memwarden_policy::Resource;

use super::events::Event;
use super::shared::Answer;
use super::{Machine, Touch, Waits};
use crate::main_memory::MainMemory;
use crate::private::Found;
use crate::workload::Step;

impl<M: MainMemory> Machine<M> {
    /// The core goes on until it has to wait, or something else comes first.
    pub(super) fn proceed(&mut self, index: usize) {
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
            let mut touch = match core.pending.take() {
                Some(touch) => touch,
                None => match core.workload.next(now_ps) {
                    Step::Touch {
                        work_ps,
                        offset,
                        store,
                        depends,
                    } => {
                        let (line, entry) = core.private.translate(offset);
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
            // Where its page is has to be known first.
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
            core.try_again(touch);
            return;
        } else {
            match self.shared.ask(index, line, touch.store, now_ps) {
                Answer::Full => {
                    core.waits = Waits::Shared;
                    core.try_again(touch);
                    return;
                }
                Answer::Hit => {
                    core.under_way += 1;
                    let at_ps = now_ps + settings.shared.cache.hit_ps;
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
    pub(super) fn fill(&mut self, slot: usize) {
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
        if let Some(gone) = self.shared.take_back(index, line) {
            self.write_back(index, gone);
        }
    }

    fn write_back(&mut self, index: usize, line: u64) {
        self.cores[index].counts.write_backs += 1;
        self.shared.write(index, line, self.now_ps);
        self.count(index, Resource::Write, self.now_ps);
    }

    /// A line is there for a core that asked for it.
    pub(super) fn line_is_there(&mut self, index: usize, line: u64, store: bool) {
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

    pub(super) fn wake_all(&mut self, waits: Waits) {
        for (index, core) in self.cores.iter_mut().enumerate() {
            if core.waits == waits {
                core.waits = Waits::No;
                self.events.add(self.now_ps, Event::Proceed(index));
            }
        }
    }
}
