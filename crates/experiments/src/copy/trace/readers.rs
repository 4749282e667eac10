// SPDX-License-Identifier: MIT OR Apache-2.0
//! One thread on each CPU reads the rings of that CPU.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use memwarden_copies::trace::{Control, Counts, Function, FunctionStatistics, Reader};
use memwarden_platform::affinity;
use rustix::pipe::{PipeFlags, pipe_with};

use super::dat::{Files, Lines};
use crate::Error;
use crate::threads::{Ends, joined, started};

/// Upper limits of the size classes of the live view; larger copies are one more class.
pub const CLASSES: [u64; 5] = [64, 512, 4096, 65_536, 1 << 20];

/// Live counts of one function.
#[derive(Debug, Clone, Copy)]
pub struct Live {
    /// The function.
    pub function: Function,
    /// Calls in each size class.
    pub calls: [u64; CLASSES.len() + 1],
    /// Records that found their ring full.
    pub dropped: u64,
}

/// The final counters of one ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ring {
    pub(super) cpu: usize,
    pub(super) function: Function,
    pub(super) counts: Counts,
}

/// A CPU with the reader of its rings.
type CpuReader = (usize, Box<dyn Reader>);

/// A pipe whose writing end is closed when the trace ends.
pub(super) struct End {
    /// The readers wait for it, as long as it is open.
    pub(super) told: OwnedFd,
    tell: OwnedFd,
}

impl End {
    pub(super) fn new() -> Result<Self, Error> {
        let pipe = pipe_with(PipeFlags::CLOEXEC);
        let (told, tell) = pipe.map_err(|reason| Error::process("making", "a pipe", reason))?;
        Ok(Self { told, tell })
    }
}

/// State that all threads share.
pub(super) struct Trace<'a> {
    functions: &'a [Function],
    controls: Vec<Box<dyn Control>>,
    every: Duration,
    files: Option<&'a Files>,
    calls: Vec<[AtomicU64; CLASSES.len() + 1]>,
    /// All rings are stopped: no more records arrive.
    stopped: AtomicBool,
    failed: AtomicBool,
}

/// What one thread read: statistics of each function, and the number of its records.
type Read = Vec<(FunctionStatistics, u64)>;

impl<'a> Trace<'a> {
    pub(super) fn new(
        functions: &'a [Function],
        controls: Vec<Box<dyn Control>>,
        every: Duration,
        files: Option<&'a Files>,
    ) -> Self {
        Self {
            functions,
            controls,
            every,
            files,
            calls: functions.iter().map(|_| Default::default()).collect(),
            stopped: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        }
    }

    /// Starts recording on all rings.
    pub(super) fn start(&self) -> Result<(), Error> {
        Ok(self.controls.iter().try_for_each(|one| one.start())?)
    }

    /// True if a thread has failed.
    pub(super) fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Live counts so far.
    pub(super) fn live(&self) -> Result<Vec<Live>, Error> {
        let mut all = Vec::new();
        for (nth, function) in self.functions.iter().enumerate() {
            let mut dropped = 0;
            for control in &self.controls {
                dropped += control.counts(nth)?.dropped;
            }
            all.push(Live {
                function: *function,
                calls: self.calls[nth]
                    .each_ref()
                    .map(|one| one.load(Ordering::Relaxed)),
                dropped,
            });
        }
        Ok(all)
    }

    /// Reads while `work` runs, which starts the rings; afterwards closes `end`, on which the readers wait, too, and reads
    /// the rings until they are empty.
    pub(super) fn read_while(
        &self,
        readers: Vec<CpuReader>,
        end: End,
        work: impl FnOnce(&Self) -> Result<(), Error>,
    ) -> Result<(Vec<FunctionStatistics>, Vec<Ring>), Error> {
        let cpus: Vec<usize> = readers.iter().map(|(cpu, _)| *cpu).collect();
        let read = std::thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            // After an error, too, the readers are told to stop before the pipe wakes those that wait.
            let pipe = end.tell;
            let ends = Ends(&self.stopped);
            let threads = readers
                .into_iter()
                .map(|(cpu, reader)| {
                    let tell = tell.clone();
                    started(scope, move || self.read(cpu, reader, &tell))
                })
                .collect::<Result<Vec<_>, Error>>()?;
            drop(tell);
            // Recording starts only once every thread runs on its CPU.
            let ready = told
                .iter()
                .take(threads.len())
                .filter(|is_there| *is_there)
                .count();
            let ready = ready == threads.len();
            let mut outcome = if ready { work(self) } else { Ok(()) };
            // All rings first; the threads keep reading meanwhile, as stopping takes time.
            for control in &self.controls {
                outcome = outcome.and(control.close().map_err(Error::from));
            }
            for control in &self.controls {
                outcome = outcome.and(control.stop().map_err(Error::from));
            }
            drop(ends);
            drop(pipe);
            let read: Vec<_> = threads.into_iter().map(joined).collect();
            let read = read.into_iter().collect::<Result<Vec<Read>, Error>>();
            // A thread's own error explains those that followed from it.
            let read = read?;
            outcome.map(|()| read)
        })?;
        self.account(&cpus, read)
    }

    /// Merges the threads' statistics and compares them with the kernel's count of records.
    fn account(
        &self,
        cpus: &[usize],
        read: Vec<Read>,
    ) -> Result<(Vec<FunctionStatistics>, Vec<Ring>), Error> {
        let mut all: Vec<FunctionStatistics> = self
            .functions
            .iter()
            .map(|_| FunctionStatistics::default())
            .collect();
        let mut rings = Vec::new();
        for ((cpu, control), of_cpu) in cpus.iter().zip(&self.controls).zip(read) {
            for (nth, (statistics, count)) in of_cpu.into_iter().enumerate() {
                let ring = Ring {
                    cpu: *cpu,
                    function: self.functions[nth],
                    counts: control.counts(nth)?,
                };
                if count != ring.counts.recorded {
                    return Err(Error::workload(
                        format!("trace of {} on CPU {cpu}", ring.function),
                        format!(
                            "the kernel recorded {} copies, and {count} were read",
                            ring.counts.recorded
                        ),
                    ));
                }
                all[nth].merge(&statistics);
                rings.push(ring);
            }
        }
        Ok((all, rings))
    }

    /// The body of a reader thread.
    fn read(
        &self,
        cpu: usize,
        mut reader: Box<dyn Reader>,
        tell: &mpsc::Sender<bool>,
    ) -> Result<Read, Error> {
        let pinned = affinity::pin(cpu);
        // The receiver waits for a message from every thread.
        let _ = tell.send(pinned.is_ok());
        let outcome = match pinned {
            Ok(()) => self.read_to_end(cpu, reader.as_mut()),
            Err(error) => Err(error.into()),
        };
        if outcome.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        outcome
    }

    fn read_to_end(&self, cpu: usize, reader: &mut dyn Reader) -> Result<Read, Error> {
        let mut all: Read = self.functions.iter().map(|_| Default::default()).collect();
        let mut lines = self.files.map(|files| Lines::new(files, cpu));
        loop {
            // Read before the ring: records from before the stop are then still read below.
            let stopped = self.stopped.load(Ordering::Acquire);
            let mut count = 0;
            for (nth, (statistics, read)) in all.iter_mut().enumerate() {
                let mut calls = [0; CLASSES.len() + 1];
                let taken = reader.read(nth, &mut |record| {
                    statistics.add(record);
                    calls[CLASSES.partition_point(|most| *most < record.bytes)] += 1;
                    if let Some(lines) = &mut lines {
                        lines.add(nth, record);
                    }
                });
                for (sum, count) in self.calls[nth].iter().zip(calls) {
                    sum.fetch_add(count, Ordering::Relaxed);
                }
                if let Some(lines) = &mut lines {
                    lines.write(nth)?;
                }
                *read += taken as u64;
                count += taken;
            }
            match (stopped, count) {
                (true, 0) => return Ok(all),
                (true, _) => {}
                (false, _) => reader.wait(self.every)?,
            }
        }
    }
}
