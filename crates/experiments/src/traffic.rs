// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traffic of known size, for the guard's self-test.

use std::io::{BufRead, Write};
use std::time::Duration;

use memwarden_guard::self_test::{Moved, Traffic};
use memwarden_guard::{Error as GuardError, EventList, Resource, units::page_bytes};
use memwarden_platform::{Root, cache, clock, faults};
use memwarden_policy::events::{self, Kind};
use memwarden_workloads::bandwidth::{self, Access, Pass};
use memwarden_workloads::{BufferConfig, Placement, Stop};
use serde::{Deserialize, Serialize};

use crate::{Child, Error, Interrupt};

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
const FRESH_PAGES: u64 = 256;

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
            Self::Faults => ("fresh-pages", FRESH_PAGES * page_bytes()),
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

/// Makes traffic that the guard's event counts. A child process makes it, so that its buffers, page-size settings and
/// placement do not affect this one; one process makes all of a core's traffic.
#[derive(Debug)]
pub struct KnownTraffic<'a> {
    events: EventList,
    interrupt: &'a Interrupt,
    /// What makes it, on which CPU.
    process: Option<(usize, Child)>,
}

impl<'a> KnownTraffic<'a> {
    /// Traffic for `event`, or for a list of events.
    pub fn for_event(event: &str, interrupt: &'a Interrupt) -> Self {
        Self {
            events: event.parse().unwrap_or_else(|_| EventList::all(event)),
            interrupt,
            process: None,
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

    /// The process that makes the traffic of `cpu`, started if it isn't there. It has executed its code once, so that
    /// no run includes its start, which moves several MB.
    fn process(&mut self, cpu: usize) -> Result<&mut Child, Error> {
        if self.process.as_ref().is_none_or(|(its, _)| *its != cpu) {
            // One at a time: the other one's core may be throttled next.
            self.process = None;
            let arguments = [VERB.to_owned(), "-c".to_owned(), cpu.to_string()];
            let here = [cpu].into_iter().collect();
            let mut child = Child::start_answering_on(&here, &arguments)?;
            let (access, buffer_bytes) = self.traffic(cpu);
            let first = Request {
                access: access.into(),
                buffer_bytes: buffer_bytes.min(IN_CACHE),
                passes: 1,
            };
            first.made_by(&mut child, self.interrupt)?;
            self.process = Some((cpu, child));
        }
        let (_, child) = self.process.as_mut().expect("it was just started");
        Ok(child)
    }

    fn make(&mut self, cpu: usize, bytes: u64, kind: &str, buffer: u64) -> Result<Moved, Error> {
        let request = Request {
            access: kind.into(),
            buffer_bytes: buffer,
            passes: bytes.div_ceil(buffer),
        };
        let interrupt = self.interrupt;
        let made = request.made_by(self.process(cpu)?, interrupt)?;
        Ok(Moved {
            bytes: made.bytes,
            elapsed: Duration::from_nanos(made.elapsed_ns),
            comparable: self.counted(cpu) != Counted::Time,
        })
    }
}

/// The verb of the process that makes the traffic.
const VERB: &str = "traffic";

/// A line of its standard input.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    /// A kind of `bandwidth`, or `fresh-pages`.
    access: String,
    buffer_bytes: u64,
    passes: u64,
}

/// The line of its output that answers it.
#[derive(Debug, Serialize, Deserialize)]
struct Made {
    bytes: u64,
    elapsed_ns: u64,
}

impl Request {
    fn made_by(&self, child: &mut Child, interrupt: &Interrupt) -> Result<Made, Error> {
        let broken = |what: &str, error: &serde_json::Error| {
            Error::workload(
                format!("bandwidth:{}", self.access),
                format!("{what}: {error}"),
            )
        };
        let line = serde_json::to_string(self).map_err(|error| broken("no request", &error))?;
        let answer = child.ask(&line, interrupt)?;
        serde_json::from_str(&answer).map_err(|error| broken("gave no figures", &error))
    }

    /// The buffer, one pass at a time.
    fn passes(&self) -> Result<Box<dyn Pass>, Error> {
        let access = Access::named(&self.access)
            .ok_or_else(|| bad(format!("there is no access `{}`", self.access)))?;
        let config = BufferConfig {
            bytes: usize::try_from(self.buffer_bytes)
                .map_err(|_| bad(format!("{} bytes are too many", self.buffer_bytes)))?,
            ..BufferConfig::default()
        };
        Ok(bandwidth::passes(&access, &config, &Stop::new())?)
    }
}

/// Of buffers that are larger, only the last is kept for further requests.
const LARGE: u64 = 32 << 20;

/// The buffers of earlier requests: to fill one takes as much traffic as several passes.
#[derive(Default)]
struct Buffers(Vec<Buffer>);

struct Buffer {
    access: String,
    bytes: u64,
    passes: Box<dyn Pass>,
}

impl Buffers {
    fn of(&mut self, request: &Request) -> Result<&mut dyn Pass, Error> {
        let is_its = |buffer: &Buffer| {
            buffer.access == request.access && buffer.bytes == request.buffer_bytes
        };
        let place = match self.0.iter().position(is_its) {
            Some(place) => place,
            None => {
                if request.buffer_bytes > LARGE {
                    self.0.retain(|buffer| buffer.bytes <= LARGE);
                }
                self.0.push(Buffer {
                    access: request.access.clone(),
                    bytes: request.buffer_bytes,
                    passes: request.passes()?,
                });
                self.0.len() - 1
            }
        };
        Ok(self.0[place].passes.as_mut())
    }

    fn make(&mut self, request: &Request) -> Result<Made, Error> {
        let passes = self.of(request)?;
        let faults = faults::minor()?;
        let begin = clock::now_ns();
        for _ in 0..request.passes {
            passes.once()?;
        }
        let elapsed_ns = clock::now_ns() - begin;
        let (faults, least) = (faults::minor()? - faults, request.passes * passes.faults());
        if faults < least {
            return Err(bad(format!(
                "{least} pages cost only {faults} faults: the kernel maps several pages a fault"
            )));
        }
        Ok(Made {
            bytes: request.passes * passes.bytes(),
            elapsed_ns,
        })
    }
}

/// Makes the traffic that each line of `requests` asks for on `cpu`, and answers with a line of what was made: the process
/// that [`KnownTraffic`] starts.
///
/// # Errors
/// When a line is no request, its traffic can't be made, or there is no reader any more.
pub fn serve(cpu: usize, requests: impl BufRead, mut answers: impl Write) -> Result<(), Error> {
    let failed = |action| move |source| Error::process(action, "the self-test", source);
    Placement {
        cpu: Some(cpu),
        ..Placement::default()
    }
    .apply()?;
    let mut buffers = Buffers::default();
    for line in requests.lines() {
        let line = line.map_err(failed("listening to"))?;
        let request: Request = serde_json::from_str(&line)
            .map_err(|error| bad(format!("`{line}` is no request: {error}")))?;
        let made = serde_json::to_string(&buffers.make(&request)?)
            .map_err(|error| bad(error.to_string()))?;
        writeln!(answers, "{made}")
            .and_then(|()| answers.flush())
            .map_err(failed("answering"))?;
    }
    Ok(())
}

fn bad(what: String) -> Error {
    Error::BadInput(format!("{VERB}: {what}"))
}

impl Traffic for KnownTraffic<'_> {
    fn prepare(&mut self, cpu: usize) -> Result<(), GuardError> {
        (self.process(cpu).map(|_| ())).map_err(|error| failed(cpu, &error))
    }

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
        self.make(cpu, bytes, kind, buffer)
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
            .map(|buffer| self.make(cpu, bytes, kind, buffer))
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

    /// What the process answers to these lines.
    fn answers(lines: &str) -> Result<Vec<Made>, Error> {
        let mut said = Vec::new();
        serve(0, lines.as_bytes(), &mut said)?;
        let said = String::from_utf8(said).unwrap();
        Ok(said
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect())
    }

    #[test]
    fn each_request_is_made_and_answered() {
        let request = |access: &str, buffer_bytes, passes| {
            let access = access.to_owned();
            serde_json::to_string(&Request {
                access,
                buffer_bytes,
                passes,
            })
            .unwrap()
        };
        let fresh_bytes = FRESH_PAGES * page_bytes();
        let lines = [
            request("read", 1 << 16, 3),
            request("write", 1 << 20, 1),
            request("fresh-pages", fresh_bytes, 2),
        ];
        let made = answers(&lines.join("\n")).unwrap();
        let bytes: Vec<u64> = made.iter().map(|made| made.bytes).collect();
        assert_eq!(bytes, [3 << 16, 1 << 20, 2 * fresh_bytes]);
    }

    #[test]
    fn a_buffer_is_filled_once_and_large_ones_do_not_add_up() {
        let request = |access: &str, buffer_bytes| Request {
            access: access.into(),
            buffer_bytes,
            passes: 1,
        };
        let mut buffers = Buffers::default();
        for _ in 0..2 {
            buffers.make(&request("read", 1 << 20)).unwrap();
            buffers.make(&request("write", 1 << 20)).unwrap();
        }
        let sizes = |buffers: &Buffers| -> Vec<u64> {
            buffers.0.iter().map(|buffer| buffer.bytes).collect()
        };
        assert_eq!(sizes(&buffers), [1 << 20, 1 << 20]);
        for bytes in [LARGE + 4096, LARGE + 8192] {
            buffers.make(&request("read", bytes)).unwrap();
            assert_eq!(sizes(&buffers), [1 << 20, 1 << 20, bytes]);
        }
    }

    #[test]
    fn what_is_no_request_is_refused_with_its_text() {
        let said = answers("64M").unwrap_err().to_string();
        assert!(said.contains("`64M` is no request"), "{said}");
        let said = answers(r#"{"access":"swim","buffer_bytes":64,"passes":1}"#);
        let said = said.unwrap_err().to_string();
        assert!(said.contains("there is no access `swim`"), "{said}");
    }

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
