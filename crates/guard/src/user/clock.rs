// SPDX-License-Identifier: MIT OR Apache-2.0
//! The period clock, and the budgets in force. All cores number their periods by it, so a core that is late still knows
//! which period it is in. The length of a period and the budgets are one setting: they change in the same period on all
//! cores. `kernel/memguard/clock.c` is its counterpart in the kernel.
//!
//! Only core threads write the clock. They have the same real-time priority, and each has its own CPU. So a reader that
//! waits for a writer cannot keep the writer from finishing. (It could preempt a writer with an ordinary priority.) A
//! client's thread publishes the settings that it wants and then kicks the cores; a core thread puts them in force.
//!
//! New budgets are in force from a period on that no core has joined. To join a period, a core changes or reads the
//! policy's census; only then does it read its budgets. The writer locks the clock first and then reads the census. So
//! either the writer sees that the period has been joined, or the core sees the writer.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError, TryLockError};

use memwarden_policy::{Action, Core, Error, Resource, UNLIMITED};

/// The policy numbers periods on a circle of 2^21. As in `policy.c`, only this small part of it counts as ahead of the
/// clock: cores open a few periods early at most, but the policy's number is old if all cores were offline.
const CIRCLE: u64 = 1 << 21;
const AHEAD: u64 = 1 << 10;

/// A consistent reading of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    number: u64,
    phase_ns: u64,
    pub period_ns: u64,
}

impl Reading {
    /// Period 1 begins at `now_ns`.
    pub fn new(now_ns: u64, period_ns: u64) -> Self {
        Self {
            number: 1,
            phase_ns: now_ns,
            period_ns,
        }
    }

    fn periods_since_phase(&self, now_ns: u64) -> u64 {
        // Another core may have set the phase after the caller read the time.
        now_ns.saturating_sub(self.phase_ns) / self.period_ns
    }

    /// Number of the period that contains `now_ns`.
    pub fn number_at(&self, now_ns: u64) -> u64 {
        self.number + self.periods_since_phase(now_ns)
    }

    /// Time at which the next period begins.
    pub fn next_boundary_ns(&self, now_ns: u64) -> u64 {
        self.phase_ns + (self.periods_since_phase(now_ns) + 1) * self.period_ns
    }

    /// Number of the period that the policy calls `epoch`.
    fn number_of(&self, epoch: u64, now_ns: u64) -> u64 {
        let now = self.number_at(now_ns);
        let ahead = epoch.wrapping_sub(now) % CIRCLE;
        if ahead < AHEAD {
            now + ahead
        } else {
            now.saturating_sub(CIRCLE - ahead)
        }
    }
}

/// One core's budgets, by resource, in events a period.
type Budgets = [AtomicU64; 2];

/// The period clock: a sequence lock protects its fields.
#[derive(Debug)]
pub(crate) struct PeriodClock {
    /// Odd while a thread writes.
    sequence: AtomicU64,
    number: AtomicU64,
    phase_ns: AtomicU64,
    period_ns: AtomicU64,
    /// Counts the changes of budgets. Those of this generation are in force from period `from` on, and those of the
    /// previous generation before it, from period `previous_from` on.
    generation: AtomicU64,
    from: AtomicU64,
    previous_from: AtomicU64,
    /// By core, then by parity of the generation.
    budgets: Vec<[Budgets; 2]>,
    /// Number of the settings that were last taken.
    taken: AtomicU64,
    /// Number of the settings that were last published.
    published: AtomicU64,
    wanted: Mutex<Wanted>,
}

/// The settings that a client requested.
#[derive(Debug)]
struct Wanted {
    number: u64,
    period_ns: u64,
    /// By core.
    budgets: Vec<[u64; 2]>,
}

/// A core's budgets in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InForce {
    /// Events by resource.
    pub events: [u64; 2],
    /// Other settings follow in a later period.
    pub pending: bool,
}

impl PeriodClock {
    /// Period 1 begins at `now_ns`. None of the `cores` has a limit.
    pub fn new(now_ns: u64, period_ns: u64, cores: usize) -> Self {
        let Reading {
            number, phase_ns, ..
        } = Reading::new(now_ns, period_ns);
        let unlimited = || [UNLIMITED; 2].map(AtomicU64::new);
        Self {
            sequence: AtomicU64::new(0),
            number: AtomicU64::new(number),
            phase_ns: AtomicU64::new(phase_ns),
            period_ns: AtomicU64::new(period_ns),
            generation: AtomicU64::new(0),
            from: AtomicU64::new(0),
            previous_from: AtomicU64::new(0),
            budgets: (0..cores).map(|_| [unlimited(), unlimited()]).collect(),
            taken: AtomicU64::new(0),
            published: AtomicU64::new(0),
            wanted: Mutex::new(Wanted {
                number: 0,
                period_ns,
                budgets: vec![[UNLIMITED; 2]; cores],
            }),
        }
    }

    pub fn read(&self) -> Reading {
        self.read_consistently(|clock| clock)
    }

    /// Ends the period of the core with this index and begins period `number`, or a later one that the policy is in.
    /// Returns the policy's action and the core's budgets.
    ///
    /// # Errors
    /// If a budget is invalid.
    pub fn begin(
        &self,
        index: usize,
        core: &mut Core,
        number: u64,
        now_ns: u64,
        idle: bool,
        used: [u64; 2],
    ) -> Result<(Action, InForce), Error> {
        let action = core.period_join(number, idle, used);
        if action == Action::Continue {
            return Ok((action, self.budgets(index, core.epoch(), now_ns)));
        }
        Ok((action, self.open(index, core, now_ns)?))
    }

    /// The core with this index takes part from now on, in the middle of the policy's period.
    ///
    /// # Errors
    /// If a budget is invalid.
    pub fn online(&self, index: usize, core: &mut Core, now_ns: u64) -> Result<InForce, Error> {
        // The policy predicts the core's need from the budget that it comes with.
        let epoch = core.policy().census().epoch;
        set_budgets(core, self.budgets(index, epoch, now_ns))?;
        core.online();
        self.open(index, core, now_ns)
    }

    /// Opens the books of the period that the core has joined.
    fn open(&self, index: usize, core: &mut Core, now_ns: u64) -> Result<InForce, Error> {
        let in_force = self.budgets(index, core.epoch(), now_ns);
        set_budgets(core, in_force)?;
        core.period_open();
        Ok(in_force)
    }

    /// The budgets of the core with this index in the period that the policy calls `epoch`.
    pub fn budgets(&self, index: usize, epoch: u64, now_ns: u64) -> InForce {
        // Orders the read after the core has joined the period.
        fence(Ordering::SeqCst);
        self.read_consistently(|clock| {
            let number = clock.number_of(epoch, now_ns);
            let generation = self.generation.load(Ordering::Relaxed);
            let of = |generation| {
                let words = &self.budgets[index][parity(generation)];
                words.each_ref().map(|word| word.load(Ordering::Relaxed))
            };
            let (current, previous) = (of(generation), of(generation.wrapping_sub(1)));
            if number >= self.from.load(Ordering::Relaxed) {
                return InForce {
                    events: current,
                    pending: false,
                };
            }
            let late = number < self.previous_from.load(Ordering::Relaxed);
            let events = if late {
                // Two changes came after the core joined; a kick is on its way. Neither period's budget is exceeded.
                [0, 1].map(|resource| current[resource].min(previous[resource]))
            } else {
                previous
            };
            InForce {
                events,
                pending: true,
            }
        })
    }

    /// `more` may read other fields.
    fn read_consistently<T>(&self, more: impl Fn(Reading) -> T) -> T {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            if before % 2 == 0 {
                let read = more(self.fields());
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == before {
                    return read;
                }
            }
            std::hint::spin_loop();
        }
    }

    fn fields(&self) -> Reading {
        Reading {
            number: self.number.load(Ordering::Relaxed),
            phase_ns: self.phase_ns.load(Ordering::Relaxed),
            period_ns: self.period_ns.load(Ordering::Relaxed),
        }
    }

    fn write(&self, change: impl FnOnce(Reading) -> Option<Reading>) {
        let mut sequence = self.sequence.load(Ordering::Relaxed);
        loop {
            if sequence % 2 == 0 {
                match self.sequence.compare_exchange_weak(
                    sequence,
                    sequence + 1,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => break,
                    Err(now) => sequence = now,
                }
            } else {
                std::hint::spin_loop();
                sequence = self.sequence.load(Ordering::Relaxed);
            }
        }
        fence(Ordering::Release);
        if let Some(new) = change(self.fields()) {
            self.number.store(new.number, Ordering::Relaxed);
            self.phase_ns.store(new.phase_ns, Ordering::Relaxed);
            self.period_ns.store(new.period_ns, Ordering::Relaxed);
        }
        self.sequence.store(sequence + 2, Ordering::Release);
    }

    /// Best effort has opened the period that the policy calls `epoch`; it begins at `now_ns`.
    pub fn restart(&self, epoch: u64, now_ns: u64) {
        // A core that opened a later period may have written first.
        self.write(|old| {
            (now_ns > old.phase_ns).then(|| Reading {
                number: old.number_of(epoch, now_ns).max(old.number_at(now_ns)),
                phase_ns: now_ns,
                ..old
            })
        });
    }

    /// Requests a length and budgets, one pair for each core. Once the caller kicks the cores, the first one that
    /// checks puts them in force.
    pub fn publish(&self, period_ns: u64, budgets: Vec<[u64; 2]>) {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        *wanted = Wanted {
            number: wanted.number + 1,
            period_ns,
            budgets,
        };
        self.published.store(wanted.number, Ordering::Release);
    }

    /// Puts requested settings in force. A period of a new length begins at `now_ns`; budgets alone wait for the next
    /// one. `epoch` returns the period that the policy is in.
    pub fn take_wanted(&self, now_ns: u64, epoch: impl FnOnce() -> u64) {
        if self.published.load(Ordering::Acquire) == self.taken.load(Ordering::Relaxed) {
            return;
        }
        self.write(|old| {
            let wanted = match self.wanted.try_lock() {
                Ok(wanted) => wanted,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                // A client is publishing; it kicks the cores afterwards.
                Err(TryLockError::WouldBlock) => return None,
            };
            if wanted.number == self.taken.load(Ordering::Relaxed) {
                return None;
            }
            self.taken.store(wanted.number, Ordering::Relaxed);
            // Orders the read of the census after this thread has locked the clock.
            fence(Ordering::SeqCst);
            let joined = old.number_of(epoch(), now_ns);
            let from = joined.max(old.number_at(now_ns)) + 1;
            let mut generation = self.generation.load(Ordering::Relaxed);
            // Budgets that are not in force yet are replaced.
            let last_from = self.from.load(Ordering::Relaxed);
            if last_from < from {
                generation += 1;
                self.generation.store(generation, Ordering::Relaxed);
                self.previous_from.store(last_from, Ordering::Relaxed);
                self.from.store(from, Ordering::Relaxed);
            }
            for (words, events) in self.budgets.iter().zip(&wanted.budgets) {
                for (word, events) in words[parity(generation)].iter().zip(events) {
                    word.store(*events, Ordering::Relaxed);
                }
            }
            (wanted.period_ns != old.period_ns).then_some(Reading {
                number: from,
                phase_ns: now_ns,
                period_ns: wanted.period_ns,
            })
        });
    }
}

fn set_budgets(core: &Core, in_force: InForce) -> Result<(), Error> {
    let settings = core.settings();
    for (resource, events) in Resource::ALL.into_iter().zip(in_force.events) {
        settings.set_budget(resource, events)?;
    }
    Ok(())
}

fn parity(generation: u64) -> usize {
    usize::from(generation % 2 == 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use memwarden_policy::{BestEffort, Policy};

    use super::*;

    #[test]
    fn periods_are_numbered_from_the_phase() {
        let clock = PeriodClock::new(1000, 100, 0);
        let reading = clock.read();
        for (now, number, boundary) in [
            (900, 1, 1100),
            (1000, 1, 1100),
            (1099, 1, 1100),
            (1100, 2, 1200),
            (1950, 10, 2000),
        ] {
            assert_eq!(
                (reading.number_at(now), reading.next_boundary_ns(now)),
                (number, boundary)
            );
        }
    }

    #[test]
    fn best_effort_begins_a_period_at_once_and_only_the_latest_counts() {
        let clock = PeriodClock::new(1000, 100, 0);
        clock.restart(2, 1030);
        assert_eq!(clock.read().number_at(1031), 2);
        assert_eq!(clock.read().next_boundary_ns(1031), 1130);
        clock.restart(9, 1020);
        assert_eq!(clock.read().number_at(1031), 2);
    }

    #[test]
    fn numbers_follow_the_policys_circle() {
        let clock = |number| Reading {
            number,
            ..Reading::new(1000, 100)
        };
        for (number, epoch, expected) in [
            (1, 1, 1),
            (5, 3, 3),
            (5, 7, 7),
            ((1 << 21) - 1, 0, 1 << 21),
            (3 << 21, (1 << 21) - 1, (3 << 21) - 1),
            ((3 << 21) + 9, 9, (3 << 21) + 9),
            // All cores were offline for more than half a circle.
            ((1 << 21) - 9000, 5, 5),
            (1, 0, 0),
        ] {
            assert_eq!(clock(number).number_of(epoch, 1000), expected);
            // Seven periods later.
            assert_eq!(clock(number).number_of(epoch + 7, 1700), expected + 7);
        }
    }

    #[test]
    fn the_number_never_decreases() {
        let clock = PeriodClock::new(1000, 100, 0);
        let rounds = 2 << 21;
        let later = 1000 + 100 * rounds;
        assert_eq!(clock.read().number_at(later), rounds + 1);
        clock.restart(2, later);
        assert_eq!(clock.read().number_at(later), rounds + 2);
        // Meanwhile, another core has opened a later period.
        clock.restart(1, later + 10);
        assert_eq!(clock.read().number_at(later + 10), rounds + 2);
    }

    /// Two cores without traffic, which share a policy.
    struct Rig {
        clock: PeriodClock,
        policy: Arc<Policy>,
        cores: Vec<Core>,
    }

    impl Rig {
        /// Period 1 begins at 1000 and is 1000 long; the budgets are 1000.
        fn new() -> Self {
            let policy = Policy::new();
            let mut rig = Self {
                clock: PeriodClock::new(0, 1000, 2),
                cores: (0..2).map(|_| Core::new(&policy).unwrap()).collect(),
                policy,
            };
            rig.publish(1000, 1000);
            rig.take(0);
            for (index, core) in rig.cores.iter_mut().enumerate() {
                rig.clock.online(index, core, 0).unwrap();
            }
            for index in 0..2 {
                assert_eq!(rig.begin(index, 1000), (1000, false));
            }
            rig
        }

        fn publish(&self, period_ns: u64, events: u64) {
            self.clock.publish(period_ns, vec![[events, events]; 2]);
        }

        fn take(&self, now_ns: u64) {
            self.clock
                .take_wanted(now_ns, || self.policy.census().epoch);
        }

        fn number(&self, now_ns: u64) -> u64 {
            self.clock.read().number_at(now_ns)
        }

        /// The core's budget, and whether another one follows.
        fn begin(&mut self, index: usize, now_ns: u64) -> (u64, bool) {
            let number = self.number(now_ns);
            self.begin_number(index, number, now_ns)
        }

        fn begin_number(&mut self, index: usize, number: u64, now_ns: u64) -> (u64, bool) {
            let core = &mut self.cores[index];
            let begun = self
                .clock
                .begin(index, core, number, now_ns, false, [0, 0])
                .unwrap();
            (core.account(Resource::Read).budget, begun.1.pending)
        }
    }

    #[test]
    fn a_new_length_begins_a_period_at_once_with_its_budgets() {
        let mut rig = Rig::new();
        rig.publish(100, 100);
        assert_eq!(rig.begin(0, 1150), (1000, false));
        rig.take(1250);
        let number = rig.number(1250);
        assert_eq!(number, rig.cores[0].epoch() + 1);
        assert_eq!(rig.clock.read().next_boundary_ns(1250), 1350);
        assert_eq!(rig.begin(0, 1250), (100, false));
        // This core is late: its kick comes two periods later.
        assert_eq!(rig.begin(1, 1460), (100, false));
        let before = rig.clock.read();
        rig.take(1500);
        assert_eq!(rig.clock.read(), before);
    }

    #[test]
    fn a_core_that_joins_a_later_period_than_it_read_has_that_periods_budgets() {
        for (period_ns, events) in [(100, 100), (10_000, 10_000)] {
            let mut rig = Rig::new();
            let number = rig.number(1990);
            rig.publish(period_ns, events);
            rig.take(2010);
            assert_eq!(rig.begin(0, 2010), (events, false));
            assert_eq!(rig.begin_number(1, number, 1990), (events, false));
            assert_eq!(rig.cores[0].epoch(), rig.cores[1].epoch());
        }
    }

    #[test]
    fn budgets_alone_wait_for_the_next_period() {
        let mut rig = Rig::new();
        let before = rig.clock.read();
        rig.publish(1000, 500);
        rig.take(1050);
        assert_eq!(rig.clock.read(), before);
        assert_eq!(rig.begin(0, 1050), (1000, true));
        // They are replaced before they are in force.
        rig.publish(1000, 700);
        rig.take(1060);
        assert_eq!(rig.begin(0, 1060), (1000, true));
        assert_eq!(rig.begin(0, 2000), (700, false));
        // This core joins at the end of the new period, just before the next change.
        assert_eq!(rig.begin(1, 2999), (700, false));
        rig.publish(1000, 900);
        rig.take(2999);
        assert_eq!(rig.begin(1, 2999), (700, true));
        assert_eq!(rig.begin(1, 3000), (900, false));
    }

    #[test]
    fn settings_take_effect_after_every_period_that_a_core_has_joined() {
        let mut rig = Rig::new();
        rig.policy.set_best_effort(BestEffort::Proportional);
        // Best effort opens a period, and a core joins it before the clock has its number.
        let epoch = rig.cores[0].epoch();
        let _ = rig.cores[0].overflow(Resource::Read, 1000);
        assert_eq!(
            rig.cores[1].overflow(Resource::Read, 1000),
            Action::NewPeriod
        );
        assert_eq!(rig.begin(0, 1300), (1000, false));
        assert_eq!(rig.cores[0].epoch(), epoch + 1);
        rig.publish(100, 100);
        rig.take(1310);
        rig.clock.restart(epoch + 1, 1320);
        assert_eq!(rig.number(1320), epoch + 2);
        for index in 0..2 {
            assert_eq!(rig.begin(index, 1320), (100, false));
            assert_eq!(rig.cores[index].epoch(), epoch + 2);
        }
    }

    #[test]
    fn a_core_that_comes_online_has_the_budgets_of_the_period() {
        let mut rig = Rig::new();
        let _ = rig.cores[1].offline();
        rig.publish(1000, 500);
        rig.take(1050);
        let online = |rig: &mut Rig| {
            let core = &mut rig.cores[1];
            let _ = core.offline();
            let pending = rig.clock.online(1, core, 1050).unwrap().pending;
            let account = core.account(Resource::Read);
            (account.budget, account.prediction, pending)
        };
        assert_eq!(online(&mut rig), (1000, 1000, true));
        assert_eq!(rig.begin(0, 2000), (500, false));
        assert_eq!(online(&mut rig), (500, 500, false));
    }

    #[test]
    fn settings_that_a_client_is_publishing_are_left_for_its_kick() {
        let mut rig = Rig::new();
        rig.publish(100, 100);
        let publishing = rig.clock.wanted.lock().unwrap();
        rig.take(1250);
        drop(publishing);
        assert_eq!(rig.begin(0, 1250), (1000, false));
        rig.take(1250);
        assert_eq!(rig.begin(0, 1250), (100, false));
    }

    /// Core threads that race with each other, with best effort and with changes. Simulated time only.
    #[test]
    fn all_cores_have_the_budgets_of_the_length_of_each_period() {
        const CORES: usize = 3;
        const CHANGES: u64 = 500;
        let policy = Policy::new();
        policy.set_best_effort(BestEffort::Proportional);
        let clock = PeriodClock::new(0, 1000, CORES);
        // Budgets show their length, and the change that set them.
        let publish = |length, change| {
            clock.publish(length, vec![[length << 20 | change, UNLIMITED]; CORES]);
        };
        publish(1000, 0);
        clock.take_wanted(0, || 0);
        let (time, done) = (AtomicU64::new(1), AtomicBool::new(false));
        let seen_ns = [0; CORES].map(AtomicU64::new);
        // Keeps the threads together, so that they share most periods. (The policy takes a core that is 1024 periods
        // late for one that is early.)
        let too_far = || {
            let slowest = seen_ns
                .iter()
                .map(|seen_ns| seen_ns.load(Ordering::Relaxed));
            time.load(Ordering::Relaxed) > slowest.min().unwrap_or_default() + 1000
        };
        let run = |index: usize| {
            let mut core = Core::new(&policy).unwrap();
            core.online();
            let mut begun = Vec::new();
            while !done.load(Ordering::Acquire) {
                let mut now_ns = time.load(Ordering::Relaxed);
                seen_ns[index].store(now_ns, Ordering::Relaxed);
                if too_far() {
                    std::thread::yield_now();
                } else {
                    time.fetch_add(7, Ordering::Relaxed);
                }
                clock.take_wanted(now_ns, || policy.census().epoch);
                if now_ns % 5 == 0 {
                    let budget = core.account(Resource::Read).budget;
                    if core.overflow(Resource::Read, budget) == Action::NewPeriod {
                        now_ns = time.load(Ordering::Relaxed);
                        clock.restart(policy.census().epoch, now_ns);
                    }
                }
                let number = clock.read().number_at(now_ns);
                let (action, _) = clock
                    .begin(index, &mut core, number, now_ns, false, [0, 0])
                    .unwrap();
                if action == Action::Continue {
                    continue;
                }
                let budget = core.account(Resource::Read).budget;
                let (length, late) = clock.read_consistently(|reading| {
                    let number = reading.number_of(core.epoch(), now_ns);
                    let before = |from: &AtomicU64| number < from.load(Ordering::Relaxed);
                    let length = (!before(&clock.from)).then_some(reading.period_ns);
                    (length, before(&clock.previous_from))
                });
                // Two changes came meanwhile: the other cores are in a later period.
                if late {
                    continue;
                }
                begun.push((core.epoch(), budget, length));
            }
            begun
        };
        let run = &run;
        let cores: Vec<_> = std::thread::scope(|scope| {
            let cores: Vec<_> = (0..CORES)
                .map(|index| scope.spawn(move || run(index)))
                .collect();
            for change in 1..=CHANGES {
                // Every other change keeps the length.
                publish([1000, 100][(change / 2 % 2) as usize], change);
                // The next change comes two long periods later.
                while clock.taken.load(Ordering::Relaxed) <= change
                    || time.load(Ordering::Relaxed) < 2000 * change
                {
                    std::thread::yield_now();
                }
            }
            done.store(true, Ordering::Release);
            cores.into_iter().map(|core| core.join().unwrap()).collect()
        });
        let mut budget_of = BTreeMap::new();
        let mut compared = 0;
        for (epoch, budget, length) in cores.into_iter().flatten() {
            if let Some(other) = budget_of.insert(epoch, budget) {
                compared += 1;
                assert_eq!(budget, other, "period {epoch}");
            }
            if let Some(length) = length {
                assert_eq!(budget >> 20, length, "period {epoch}");
            }
        }
        assert!(compared > CHANGES / 2, "{compared}");
    }

    #[test]
    fn readers_never_see_half_of_a_change() {
        let clock = PeriodClock::new(0, 10, 0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for now in 1..20_000 {
                        clock.restart(7 * now, now);
                    }
                });
            }
            for _ in 0..20_000 {
                let reading = clock.read();
                assert!(reading.number == 1 || reading.number == 7 * reading.phase_ns);
            }
        });
    }
}
