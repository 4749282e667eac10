// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a trace through a controller, and collects the result.
//!
//! Requests are accepted in the trace's order: one that finds its queue full delays the
//! following ones. A request without a time arrives when it is accepted, otherwise at its time,
//! which counts from the first request's.
//! The memory used does not grow with the trace.

mod latencies;

pub use latencies::Latencies;

use crate::dram::command::{Observer, Silent};
use crate::dram::{
    Activity, CheckReport, Checker, Controller, ControllerError, ControllerSettings, Memory,
    Statistics,
};
use crate::main_memory::{Arrival, Done, MainMemory};
use crate::trace::{Request, TraceError};

/// The result of a trace.
#[derive(Debug, Clone)]
pub struct Replay {
    /// Read requests, including those that a waiting write answered.
    pub reads: u64,
    /// Write requests, including those that were merged into a waiting one.
    pub writes: u64,
    /// Whether the requests had times.
    pub timed: bool,
    /// From the first request's arrival to the end of the last, ps.
    pub time_ps: u64,
    /// From a read's arrival to its last data bit.
    pub read_latencies: Latencies,
    /// The controller's own counts.
    pub statistics: Statistics,
    /// The counts that determine the energy.
    pub activity: Activity,
    /// The checker's findings, if it was used.
    pub check: Option<CheckReport>,
}

impl Replay {
    /// Bytes per second that the memory's data buses moved.
    #[must_use]
    pub fn bytes_per_s(&self, memory: &Memory) -> f64 {
        let lines = self.statistics.reads + self.statistics.writes;
        let bytes = lines * memory.organisation.burst_bytes();
        // A merged write takes no time, so a trace may end when it begins.
        bytes as f64 * 1e12 / self.time_ps.max(1) as f64
    }
}

/// Why a trace wasn't replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The controller is not possible.
    #[error("the controller")]
    Controller(#[from] ControllerError),
    /// The trace cannot be read to its end.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The trace has no request.
    #[error("the trace has no request")]
    Empty,
}

/// Runs a whole trace through a controller; with `check`, the independent checker observes its
/// commands.
///
/// # Errors
/// When the controller is not possible, or the trace has an error or no request.
pub fn replay(
    memory: &Memory,
    settings: &ControllerSettings,
    trace: &mut dyn Iterator<Item = Result<Request, TraceError>>,
    check: bool,
) -> Result<Replay, ReplayError> {
    if check {
        let controller = Controller::observed(memory, settings, Checker::new(memory))?;
        let (mut replay, checker) = run(controller, trace)?;
        replay.check = Some(checker.into_report());
        Ok(replay)
    } else {
        let controller = Controller::observed(memory, settings, Silent)?;
        Ok(run(controller, trace)?.0)
    }
}

/// A request that isn't done.
#[derive(Debug, Clone, Copy)]
struct UnderWay {
    at_ps: u64,
    write: bool,
}

struct Run<O> {
    controller: Controller<O>,
    now_ps: u64,
    end_ps: u64,
    /// Requests by their number, and the numbers that are free.
    under_way: Vec<UnderWay>,
    free: Vec<u32>,
    done: Vec<Done>,
    reads: u64,
    writes: u64,
    read_latencies: Latencies,
}

fn run<O: Observer>(
    controller: Controller<O>,
    trace: &mut dyn Iterator<Item = Result<Request, TraceError>>,
) -> Result<(Replay, O), ReplayError> {
    let mut run = Run {
        controller,
        now_ps: 0,
        end_ps: 0,
        under_way: Vec::new(),
        free: Vec::new(),
        done: Vec::new(),
        reads: 0,
        writes: 0,
        read_latencies: Latencies::default(),
    };
    let mut begin = None;
    for request in trace {
        let mut request = request?;
        let begin_ps = begin.get_or_insert(request.at_ps).unwrap_or(0);
        request.at_ps = request.at_ps.map(|at_ps| at_ps - begin_ps);
        run.take(&request);
    }
    let begin = begin.ok_or(ReplayError::Empty)?;
    run.controller.finish(run.end_ps, &mut run.done);
    run.count_done();
    let mut statistics = run.controller.statistics();
    let activity = Activity::until(&statistics, run.end_ps);
    statistics.refreshes = activity.refreshes;
    let replay = Replay {
        reads: run.reads,
        writes: run.writes,
        timed: begin.is_some(),
        time_ps: run.end_ps,
        read_latencies: run.read_latencies,
        activity,
        statistics,
        check: None,
    };
    Ok((replay, run.controller.into_observer()))
}

impl<O: Observer> Run<O> {
    fn take(&mut self, request: &Request) {
        let Request { address, write, .. } = *request;
        let from_ps = self.now_ps.max(request.at_ps.unwrap_or(0));
        let done = &mut self.done;
        self.now_ps = self.controller.wait_for_room(address, write, from_ps, done);
        self.count_done();
        let under_way = UnderWay {
            // Waiting for room means waiting for the memory.
            at_ps: request.at_ps.unwrap_or(self.now_ps),
            write,
        };
        let id = if let Some(id) = self.free.pop() {
            self.under_way[id as usize] = under_way;
            id
        } else {
            self.under_way.push(under_way);
            (self.under_way.len() - 1) as u32
        };
        self.controller.push(Arrival {
            id,
            core: 0,
            address,
            write,
            at_ps: self.now_ps,
        });
    }

    #[inline]
    fn count_done(&mut self) {
        for done in self.done.drain(..) {
            let UnderWay { at_ps, write } = self.under_way[done.id as usize];
            self.free.push(done.id);
            self.end_ps = self.end_ps.max(done.at_ps);
            if write {
                self.writes += 1;
            } else {
                self.reads += 1;
                self.read_latencies.add(done.at_ps - at_ps);
            }
        }
    }
}

#[cfg(test)]
mod tests;
