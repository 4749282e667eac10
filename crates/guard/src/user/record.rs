// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a core did in each period, recorded while a client requests it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::trace::{Recording, TraceEvent, What};

/// Events of a period: the period itself, a throttle, and the throttle's end.
const EVENTS_PER_PERIOD: usize = 3;

/// The largest number of periods with room, so that a client's request cannot exhaust the machine's memory.
const PERIODS_MAX: usize = 1 << 18;

/// One core's record. The core's thread never waits for a reader and allocates nothing; events that it
/// cannot keep are counted as lost.
#[derive(Debug, Default)]
pub(super) struct Record {
    events: Mutex<Option<Vec<TraceEvent>>>,
    lost: AtomicU64,
}

impl Record {
    /// Starts a new record, with room for this many periods.
    pub fn start(&self, periods: u64) {
        let periods =
            usize::try_from(periods).map_or(PERIODS_MAX, |periods| periods.min(PERIODS_MAX));
        let room = Vec::with_capacity(periods * EVENTS_PER_PERIOD);
        *self.lock() = Some(room);
        self.lost.store(0, Ordering::Relaxed);
    }

    /// Ends the record. Returns its events and the number of lost ones.
    pub fn stop(&self) -> (Vec<TraceEvent>, u64) {
        let events = self.lock().take().unwrap_or_default();
        (events, self.lost.load(Ordering::Relaxed))
    }

    /// Keeps one event, if recording is on.
    pub fn keep(&self, cpu: usize, t_ns: u64, what: What) {
        match self.events.try_lock().as_deref_mut() {
            Ok(Some(events)) if events.len() < events.capacity() => {
                events.push(TraceEvent { cpu, t_ns, what });
            }
            Ok(None) => {}
            _ => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Vec<TraceEvent>>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the records of all cores and joins them.
pub(super) fn collect<'a>(records: impl Iterator<Item = &'a Record>) -> Recording {
    let mut recording = Recording::default();
    for record in records {
        let (events, lost) = record.stop();
        recording.events.extend(events);
        recording.lost += lost;
    }
    recording
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(record: &Record, epoch: u64) {
        let what = What::Unthrottle {
            epoch,
            throttled_ns: 1,
            latency_ns: 2,
        };
        record.keep(3, epoch, what);
    }

    #[test]
    fn only_what_is_asked_for_is_kept_and_what_has_no_room_is_counted() {
        let record = Record::default();
        keep(&record, 1);
        record.start(1000);
        for epoch in 0..3007 {
            keep(&record, epoch);
        }
        let recording = collect([&record].into_iter());
        assert_eq!(recording.events.len(), 3000);
        assert_eq!(recording.lost, 7);
        keep(&record, 1);
        record.start(1000);
        assert_eq!(collect([&record].into_iter()), Recording::default());
    }
}
