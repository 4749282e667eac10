// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces and machines: a trace as a core's workload, and a machine's memory requests as a
//! trace.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::main_memory::{Arrival, Done, MainMemory};
use crate::private::PAGE_BYTES;
use crate::trace::{Place, Reader, Request, TraceError};
use crate::workload::{Step, Workload};

/// A core that makes a trace's accesses, in order, again and again. An access with a time waits
/// until then, counted from the trace's first time and the beginning of the round; no access
/// waits for the data of a read. The addresses are a program's own: each page gets a place in memory when it first occurs.
pub struct Traced {
    path: PathBuf,
    reader: Reader,
    /// The place of each page of the trace in the buffer.
    pages: HashMap<u64, u32>,
    /// The first time in the trace.
    first_ps: Option<u64>,
    round_ps: u64,
    /// An access that waits for its time.
    waiting: Option<Request>,
}

impl Traced {
    /// Reads the whole file once, so that all errors are reported before the run; later only a
    /// part of it is in memory at a time.
    ///
    /// # Errors
    /// When it cannot be read, has an error or no access, isn't a regular file, or touches more
    /// than `memory_bytes`.
    pub fn open(path: &Path, memory_bytes: u64) -> Result<Self, TraceError> {
        let bad = |place, why| TraceError::Bad {
            path: path.to_owned(),
            place,
            why,
        };
        if path.metadata().is_ok_and(|found| !found.is_file()) {
            let why = "is not a regular file: a core reads it repeatedly";
            return Err(bad(Place::Byte(0), why.into()));
        }
        let mut reader = Reader::open(path)?;
        let mut pages = HashMap::new();
        let mut first_ps = None;
        while let Some(request) = reader.next().transpose()? {
            first_ps = first_ps.or(request.at_ps);
            let count = pages.len() as u32;
            if let Entry::Vacant(page) = pages.entry(request.address / PAGE_BYTES) {
                if u64::from(count) == memory_bytes / PAGE_BYTES {
                    let why = format!(
                        "touches one more page than the {memory_bytes} bytes of memory that the platform has"
                    );
                    return Err(bad(reader.place(), why));
                }
                page.insert(count);
            }
        }
        if pages.is_empty() {
            return Err(bad(reader.place(), "has no access".into()));
        }
        Ok(Self {
            path: path.to_owned(),
            reader: Reader::open(path)?,
            pages,
            first_ps,
            round_ps: 0,
            waiting: None,
        })
    }

    /// The next access; after the last, the first again. `None` when the file has changed and
    /// is no longer a trace.
    fn access(&mut self, now_ps: u64) -> Option<Request> {
        if let Some(request) = self.waiting.take() {
            return Some(request);
        }
        if let Some(request) = self.reader.next() {
            return request.ok();
        }
        self.reader = Reader::open(&self.path).ok()?;
        self.round_ps = now_ps;
        self.reader.next()?.ok()
    }
}

impl fmt::Debug for Traced {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_tuple("Traced").field(&self.path).finish()
    }
}

impl Workload for Traced {
    fn next(&mut self, now_ps: u64) -> Step {
        let Some(request) = self.access(now_ps) else {
            return Step::End;
        };
        let first_ps = self.first_ps.unwrap_or(0);
        let since_ps = request
            .at_ps
            .map_or(0, |at_ps| at_ps.saturating_sub(first_ps));
        let until_ps = self.round_ps + since_ps;
        if until_ps > now_ps {
            self.waiting = Some(request);
            return Step::Sleep { until_ps };
        }
        let Some(page) = self.pages.get(&(request.address / PAGE_BYTES)) else {
            return Step::End;
        };
        Step::Touch {
            work_ps: 0,
            offset: u64::from(*page) * PAGE_BYTES + request.address % PAGE_BYTES,
            store: request.write,
            depends: false,
        }
    }

    fn buffer_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES
    }
}

/// A memory whose requests are reported: each with its arrival time, in ascending order.
pub struct Heard<'a, M> {
    memory: M,
    hear: Box<dyn FnMut(Request) + 'a>,
}

impl<M: fmt::Debug> fmt::Debug for Heard<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heard")
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

impl<'a, M> Heard<'a, M> {
    /// `hear` is called for each request to `memory`.
    pub fn new(memory: M, hear: impl FnMut(Request) + 'a) -> Self {
        let hear = Box::new(hear);
        Self { memory, hear }
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }
}

impl<M: MainMemory> MainMemory for Heard<'_, M> {
    fn has_room(&self, address: u64, write: bool) -> bool {
        self.memory.has_room(address, write)
    }

    fn push(&mut self, arrival: Arrival) {
        (self.hear)(Request {
            address: arrival.address,
            write: arrival.write,
            at_ps: Some(arrival.at_ps),
        });
        self.memory.push(arrival);
    }

    fn next_event_ps(&self) -> u64 {
        self.memory.next_event_ps()
    }

    fn advance(&mut self, until_ps: u64, done: &mut Vec<Done>) {
        self.memory.advance(until_ps, done);
    }

    fn go_on(&mut self, until_ps: u64, done: &mut Vec<Done>) -> Option<u64> {
        self.memory.go_on(until_ps, done)
    }

    fn banks(&self) -> usize {
        self.memory.banks()
    }

    fn bank_of(&self, address: u64) -> usize {
        self.memory.bank_of(address)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::Write;

    use super::*;
    use crate::platform::Platform;
    use crate::replay::replay;
    use crate::trace::{Format, Writer};

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn touch(offset: u64, store: bool) -> Step {
        Step::Touch {
            work_ps: 0,
            offset,
            store,
            depends: false,
        }
    }

    #[test]
    fn a_trace_is_walked_again_and_again_and_its_pages_have_places() {
        let file = file("R 0x7fff12345040\nW 0x1008\nR 0x7fff12345080\n");
        let mut traced = Traced::open(file.path(), 1 << 20).unwrap();
        assert_eq!(traced.buffer_bytes(), 8192);
        for _ in 0..2 {
            assert_eq!(traced.next(7), touch(0x40, false));
            assert_eq!(traced.next(7), touch(4096 + 8, true));
            assert_eq!(traced.next(7), touch(0x80, false));
        }
    }

    #[test]
    fn an_access_waits_for_its_time_in_each_round() {
        let file = file("R 0 0\nR 64 1.5\n");
        let mut traced = Traced::open(file.path(), 1 << 20).unwrap();
        assert_eq!(traced.next(0), touch(0, false));
        assert_eq!(traced.next(100), Step::Sleep { until_ps: 1500 });
        assert_eq!(traced.next(1500), touch(64, false));
        assert_eq!(traced.next(2000), touch(0, false));
        assert_eq!(traced.next(2100), Step::Sleep { until_ps: 3500 });
    }

    /// A trace that was cut out of a longer one.
    #[test]
    fn no_round_begins_with_the_time_before_the_first_access() {
        let file = file("R 0 3600000000000\nR 64 3600000000001.5\n");
        let mut traced = Traced::open(file.path(), 1 << 20).unwrap();
        assert_eq!(traced.next(7), touch(0, false));
        assert_eq!(traced.next(100), Step::Sleep { until_ps: 1500 });
        assert_eq!(traced.next(1500), touch(64, false));
        assert_eq!(traced.next(2000), touch(0, false));
        assert_eq!(traced.next(2100), Step::Sleep { until_ps: 3500 });
    }

    #[test]
    fn what_is_wrong_with_a_trace_is_told_before_anything_runs() {
        for (text, why) in [
            ("", "has no access"),
            ("R 0\nR x\n", "line 2: \"x\" is not an address"),
            ("R 0\nW 4096\n", "line 2: touches one more page"),
        ] {
            let file = file(text);
            let error = Traced::open(file.path(), 4096).unwrap_err().to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
        let error = Traced::open(Path::new("/dev/null"), 4096).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    /// A machine's memory requests, replayed at their times through the same controller, give
    /// the same traffic.
    #[test]
    fn a_recorded_machine_replayed_is_the_same_traffic() {
        let pi = Platform::find("raspberry-pi-3").unwrap();
        let workloads = ["bandwidth:write", "latency"]
            .map(|name| pi.workload(name, 4 << 20, 3).unwrap())
            .into();
        let heard = RefCell::new(Vec::new());
        let hear = |request| heard.borrow_mut().push(request);
        let mut machine = pi.heard_machine(workloads, None, 1, hear).unwrap();
        machine.advance(500_000_000);
        let moved = machine.memory().memory().statistics();
        assert!(moved.reads > 1000 && moved.writes > 1000, "{moved:?}");

        drop(machine);
        let requests = heard.into_inner();
        let mut writer = Writer::new(Vec::new(), Format::Binary).unwrap();
        for request in &requests {
            writer.write(request).unwrap();
        }
        let written = writer.finish().unwrap();
        let mut read = Reader::new(Box::new(std::io::Cursor::new(written)), "x".as_ref()).unwrap();
        let replayed = replay(&pi.memory().unwrap(), &pi.controller, &mut read, true).unwrap();
        let again = replayed.statistics;
        // A few were in flight when the machine was stopped.
        let under_way = again.reads + again.writes - moved.reads - moved.writes;
        assert!(under_way <= 64, "{again:?} {moved:?}");
        assert!(
            again.row_hits.abs_diff(moved.row_hits) <= under_way,
            "{again:?} {moved:?}"
        );
    }
}
