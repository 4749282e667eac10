// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traffic of known size, for the guard's self-test.

use std::time::Duration;

use memwarden_guard::self_test::{Moved, Traffic};
use memwarden_guard::{Error as GuardError, EventList, Resource, units::PAGE_BYTES};
use memwarden_platform::units::Size;
use memwarden_platform::{Root, cache};
use memwarden_policy::events::{self, Kind};

use crate::workload::{Task, Until};
use crate::{Child, Error, Interrupt, Workload};

/// Buffer size if sysfs does not report the last-level cache: larger than any cache.
const PAST_ANY_CACHE: u64 = 1 << 30;

/// A stream's buffer, in sizes of the last level. A cache whose replacement resists streams keeps up to half of a buffer
/// of twice its size, and an eighth of this one.
const STREAM: u64 = 8;

/// Arm's event for reads that miss the last level, which may be a system cache.
const LL_CACHE_MISS_RD: u64 = 0x37;

/// A buffer that fits the first-level cache: work without traffic.
const IN_CACHE: u64 = 16 << 10;

/// Pages in an iteration of fresh pages: the workload's own step.
const FRESH_BYTES: u64 = 256 * PAGE_BYTES;

/// What the guard's event counts; this determines the traffic for the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    Faults,
    Lines,
    /// Cycles or instructions: no traffic, so nothing to compare.
    Time,
}

impl Counted {
    pub fn by(event: &str) -> Self {
        match events::named(event).map(|event| event.kind) {
            Some(Kind::PageFaults | Kind::MinorFaults) => Self::Faults,
            Some(Kind::Cycles | Kind::Instructions) => Self::Time,
            // perf's other name for cycles, and their code on Arm.
            None if matches!(event, "cpu-cycles" | "0x11") => Self::Time,
            _ => Self::Lines,
        }
    }

    /// The memory traffic for `cpu`: the kind of `bandwidth`, and its buffer in bytes.
    pub fn traffic(self, cpu: usize) -> (&'static str, u64) {
        match self {
            Self::Faults => ("fresh-pages", FRESH_BYTES),
            Self::Time => ("read", IN_CACHE),
            Self::Lines => {
                let llc =
                    cache::last_level(&Root::system(), cpu).and_then(|cache| cache.size_bytes);
                ("read", llc.map_or(PAST_ANY_CACHE, stream))
            }
        }
    }
}

/// A buffer whose lines all come from memory when it is streamed, in bytes: of a huge cache at least twice its size.
fn stream(last_level: u64) -> u64 {
    (STREAM * last_level).min(PAST_ANY_CACHE.max(2 * last_level))
}

/// Makes traffic that the guard's event counts. It runs in a child process, so that its buffers, page-size settings and
/// placement do not affect this one.
#[derive(Debug)]
pub struct KnownTraffic<'a> {
    events: EventList,
    interrupt: &'a Interrupt,
}

impl<'a> KnownTraffic<'a> {
    /// Traffic for `event`, or for a list of events.
    pub fn for_event(event: &str, interrupt: &'a Interrupt) -> Self {
        Self {
            events: event.parse().unwrap_or_else(|_| EventList::all(event)),
            interrupt,
        }
    }

    fn counted(&self, cpu: usize) -> Counted {
        Counted::by(self.events.of(cpu).unwrap_or_default())
    }

    /// True if the event also counts misses of a system cache, which sysfs may not list.
    fn past_system_cache(&self, cpu: usize) -> bool {
        let event = self.events.of(cpu).unwrap_or_default();
        let code = events::named(event).map(|event| event.read);
        event == "0x37" || code == Some(LL_CACHE_MISS_RD)
    }

    /// The kind of `bandwidth`, and its buffer in bytes.
    fn traffic(&self, cpu: usize) -> (&'static str, u64) {
        let (kind, buffer) = self.counted(cpu).traffic(cpu);
        let last = cache::last_level(&Root::system(), cpu).map_or(0, |cache| cache.level);
        if self.past_system_cache(cpu) && last < 3 {
            return (kind, PAST_ANY_CACHE);
        }
        (kind, buffer)
    }

    /// A buffer that fits easily into the last-level cache but not into the inner caches.
    fn within_last_level(&self, cpu: usize) -> Option<u64> {
        if self.counted(cpu) != Counted::Lines {
            return None;
        }
        let caches = cache::of_cpu(&Root::system(), cpu);
        let data = |level: &dyn Fn(u32) -> bool| {
            let sizes = caches
                .iter()
                .filter(|cache| cache.kind != cache::Kind::Instruction && level(cache.level));
            sizes.map(|cache| cache.size_bytes).max().flatten()
        };
        let last = caches.iter().map(|cache| cache.level).max()?;
        let (inner, last) = (data(&|level| level < last)?, data(&|level| level == last)?);
        let buffer = (last / 4).max(2 * inner);
        (buffer <= last / 2).then_some(buffer)
    }

    fn run_child(&self, cpu: usize, bytes: u64, kind: &str, buffer: u64) -> Result<Moved, Error> {
        let task = Task {
            cpu,
            memory: Some(Size::of_bytes(buffer)),
            until: Until::Iterations(bytes.div_ceil(buffer)),
        };
        // The program's start moves several MB. On the tested core it is in every run, and so in no difference of two.
        let here = [cpu].into_iter().collect();
        let arguments = Workload::Bandwidth(kind.into()).arguments(task);
        let result = Child::start_on(&here, &arguments, false)?.wait(self.interrupt)?;
        let number = |key: &str| {
            result
                .get(key)
                .and_then(serde_json::Value::as_u64)
                .ok_or_else(|| Error::Workload {
                    what: format!("bandwidth:{kind}"),
                    reason: format!("gave no {key}"),
                })
        };
        Ok(Moved {
            bytes: number("bytes")?,
            elapsed: Duration::from_nanos(number("elapsed_ns")?),
            comparable: self.counted(cpu) != Counted::Time,
        })
    }
}

impl Traffic for KnownTraffic<'_> {
    fn run(
        &mut self,
        cpu: usize,
        resource: Resource,
        bytes: u64,
    ) -> Result<Option<Moved>, GuardError> {
        let (kind, buffer) = self.traffic(cpu);
        let kind = match resource {
            Resource::Read => kind,
            Resource::Write if self.counted(cpu) == Counted::Lines => "write",
            Resource::Write => return Ok(None),
        };
        self.run_child(cpu, bytes, kind, buffer)
            .map(Some)
            .map_err(|error| failed(cpu, &error))
    }

    fn has(&self, resource: Resource) -> bool {
        let lines = |(event, _)| Counted::by(event) == Counted::Lines;
        resource == Resource::Read || self.events.iter().all(lines)
    }

    fn run_in_last_level(
        &mut self,
        cpu: usize,
        resource: Resource,
        bytes: u64,
    ) -> Result<Option<Moved>, GuardError> {
        let kind = match resource {
            Resource::Read => "read",
            Resource::Write => "write",
        };
        self.within_last_level(cpu)
            .map(|buffer| self.run_child(cpu, bytes, kind, buffer))
            .transpose()
            .map_err(|error| failed(cpu, &error))
    }
}

fn failed(cpu: usize, error: &Error) -> GuardError {
    GuardError::SelfTest(format!("making traffic on CPU {cpu}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_eight_times_the_last_level() {
        assert_eq!(stream(512 << 10), 4 << 20);
        assert_eq!(stream(96 << 20), 768 << 20);
        assert_eq!(stream(256 << 20), 1 << 30);
        assert_eq!(stream(1 << 30), 2 << 30);
    }

    #[test]
    fn every_name_has_the_traffic_that_its_event_counts() {
        for event in events::all() {
            let expected = match event.name {
                "page-faults" | "minor-faults" | "soft" => Counted::Faults,
                "cycles" | "instructions" => Counted::Time,
                _ => Counted::Lines,
            };
            assert_eq!(Counted::by(event.name), expected, "{}", event.name);
        }
        for (code, expected) in [
            ("cpu-cycles", Counted::Time),
            ("0x11", Counted::Time),
            ("0x17", Counted::Lines),
        ] {
            assert_eq!(Counted::by(code), expected, "{code}");
        }
        assert_eq!(Counted::by("soft").traffic(0).0, "fresh-pages");
    }
}
