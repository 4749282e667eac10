// SPDX-License-Identifier: MIT OR Apache-2.0
//! The period clock. All cores number their periods by it, so a core that is late still knows which period it is in.
//!
//! Only core threads write it. They have the same real-time priority, and each has its own CPU. So a reader that waits
//! for a writer cannot keep the writer from finishing. (It could preempt a writer with an ordinary priority.)

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A consistent reading of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    number: u64,
    phase_ns: u64,
    pub period_ns: u64,
}

impl Reading {
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
}

/// The period clock: a sequence lock protects its fields.
#[derive(Debug)]
pub(crate) struct PeriodClock {
    /// Odd while a thread writes.
    sequence: AtomicU64,
    number: AtomicU64,
    phase_ns: AtomicU64,
    period_ns: AtomicU64,
    /// The requested length of a period; any thread may store it.
    wanted_period_ns: AtomicU64,
}

impl PeriodClock {
    /// Period 1 begins at `now_ns`.
    pub fn new(now_ns: u64, period_ns: u64) -> Self {
        Self {
            sequence: AtomicU64::new(0),
            number: AtomicU64::new(1),
            phase_ns: AtomicU64::new(now_ns),
            period_ns: AtomicU64::new(period_ns),
            wanted_period_ns: AtomicU64::new(period_ns),
        }
    }

    pub fn read(&self) -> Reading {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            let reading = Reading {
                number: self.number.load(Ordering::Relaxed),
                phase_ns: self.phase_ns.load(Ordering::Relaxed),
                period_ns: self.period_ns.load(Ordering::Relaxed),
            };
            fence(Ordering::Acquire);
            if before % 2 == 0 && self.sequence.load(Ordering::Relaxed) == before {
                return reading;
            }
            std::hint::spin_loop();
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
        let old = Reading {
            number: self.number.load(Ordering::Relaxed),
            phase_ns: self.phase_ns.load(Ordering::Relaxed),
            period_ns: self.period_ns.load(Ordering::Relaxed),
        };
        if let Some(new) = change(old) {
            self.number.store(new.number, Ordering::Relaxed);
            self.phase_ns.store(new.phase_ns, Ordering::Relaxed);
            self.period_ns.store(new.period_ns, Ordering::Relaxed);
        }
        self.sequence.store(sequence + 2, Ordering::Release);
    }

    /// Best effort has opened period `number`, which begins at `now_ns`.
    pub fn restart(&self, number: u64, now_ns: u64) {
        // A core that opened a later period may have written first.
        self.write(|old| {
            (now_ns > old.phase_ns).then_some(Reading {
                number,
                phase_ns: now_ns,
                ..old
            })
        });
    }

    /// Requests another length; the first core thread that checks applies it.
    pub fn ask_for_period(&self, period_ns: u64) {
        self.wanted_period_ns.store(period_ns, Ordering::Release);
    }

    /// Applies a requested length: a period of that length begins at `now_ns`.
    pub fn take_wanted_period(&self, now_ns: u64) {
        let wanted = self.wanted_period_ns.load(Ordering::Acquire);
        if wanted == self.period_ns.load(Ordering::Relaxed) {
            return;
        }
        self.write(|old| {
            (old.period_ns != wanted).then(|| Reading {
                number: old.number_at(now_ns) + 1,
                phase_ns: now_ns,
                period_ns: wanted,
            })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_numbered_from_the_phase() {
        let clock = PeriodClock::new(1000, 100);
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
        let clock = PeriodClock::new(1000, 100);
        clock.restart(2, 1030);
        assert_eq!(clock.read().number_at(1031), 2);
        assert_eq!(clock.read().next_boundary_ns(1031), 1130);
        clock.restart(9, 1020);
        assert_eq!(clock.read().number_at(1031), 2);
    }

    #[test]
    fn a_new_length_begins_a_new_period() {
        let clock = PeriodClock::new(1000, 100);
        clock.ask_for_period(40);
        assert_eq!(clock.read().period_ns, 100);
        clock.take_wanted_period(1250);
        let reading = clock.read();
        assert_eq!((reading.number_at(1250), reading.period_ns), (4, 40));
        clock.take_wanted_period(1260);
        assert_eq!(clock.read(), reading);
    }

    #[test]
    fn readers_never_see_half_of_a_change() {
        let clock = PeriodClock::new(0, 10);
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
