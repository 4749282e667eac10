// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a simulated core does: the workloads of the real experiments, as steps.

use std::fmt;

/// What a core does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Work, then touch a byte of its buffer.
    Touch {
        /// What comes before, ps.
        work_ps: u64,
        /// The byte, from the buffer's begin.
        offset: u64,
        /// Written, not read.
        store: bool,
        /// Nothing goes on before the value is there: the next address comes of it.
        depends: bool,
    },
    /// Wait until everything is there that was asked for, and ask again.
    Settle,
    /// Do nothing until then, ps; the core counts as idle.
    Sleep {
        /// When to go on.
        until_ps: u64,
    },
    /// Nothing more.
    End,
}

/// A workload on one core.
pub trait Workload: fmt::Debug + Send {
    /// What comes next; `now_ps` is the simulated time.
    fn next(&mut self, now_ps: u64) -> Step;

    /// How many bytes of memory it has for its own.
    fn buffer_bytes(&self) -> u64;

    /// Of a periodic task: when each job was released and done, ps.
    fn jobs(&self) -> &[Job] {
        &[]
    }
}

/// A job of a periodic task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// When it might begin, ps.
    pub released_ps: u64,
    /// When its last line was there, ps.
    pub done_ps: u64,
}

/// `latency`: one cycle through all lines in random order, each load's address from
/// the load before.
#[derive(Debug)]
pub struct Chase {
    next: Box<[u32]>,
    at: u32,
    line_bytes: u64,
    work_ps: u64,
}

impl Chase {
    /// Over `bytes`, by Sattolo's algorithm, so that it is one cycle. `work_ps` a load.
    ///
    /// # Panics
    /// With fewer than two lines, or more than 2^32.
    #[must_use]
    pub fn new(bytes: u64, line_bytes: u64, work_ps: u64, seed: u64) -> Self {
        let lines = u32::try_from(bytes / line_bytes).expect("at most 2^32 lines");
        assert!(lines > 1, "a cycle has two lines or more");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut next: Box<[u32]> = (0..lines).collect();
        for last in (1..next.len()).rev() {
            next.swap(last, random.usize(..last));
        }
        Self {
            next,
            at: 0,
            line_bytes,
            work_ps,
        }
    }
}

impl Workload for Chase {
    fn next(&mut self, _now_ps: u64) -> Step {
        let offset = u64::from(self.at) * self.line_bytes;
        self.at = self.next[self.at as usize];
        Step::Touch {
            work_ps: self.work_ps,
            offset,
            store: false,
            depends: true,
        }
    }

    fn buffer_bytes(&self) -> u64 {
        self.next.len() as u64 * self.line_bytes
    }
}

/// `bandwidth`: a word of each line, in order, again and again.
#[derive(Debug, Clone)]
pub struct Stream {
    bytes: u64,
    line_bytes: u64,
    at: u64,
    store: bool,
    work_ps: u64,
}

impl Stream {
    /// Over `bytes`, with `work_ps` a line, written or read.
    #[must_use]
    pub fn new(bytes: u64, line_bytes: u64, store: bool, work_ps: u64) -> Self {
        Self {
            bytes: bytes / line_bytes * line_bytes,
            line_bytes,
            at: 0,
            store,
            work_ps,
        }
    }
}

impl Workload for Stream {
    fn next(&mut self, _now_ps: u64) -> Step {
        let offset = self.at;
        self.at += self.line_bytes;
        if self.at >= self.bytes {
            self.at = 0;
        }
        Step::Touch {
            work_ps: self.work_ps,
            offset,
            store: self.store,
            depends: false,
        }
    }

    fn buffer_bytes(&self) -> u64 {
        self.bytes
    }
}

/// The periodic task: each period it reads a frame, in order.
#[derive(Debug)]
pub struct Periodic {
    frame_bytes: u64,
    line_bytes: u64,
    work_ps: u64,
    period_ps: u64,
    count: usize,
    at: u64,
    settled: bool,
    released_ps: u64,
    jobs: Vec<Job>,
}

impl Periodic {
    /// `count` jobs, one released each `period_ps`, each reads `frame_bytes` with
    /// `work_ps` a line.
    #[must_use]
    pub fn new(
        frame_bytes: u64,
        line_bytes: u64,
        work_ps: u64,
        period_ps: u64,
        count: usize,
    ) -> Self {
        Self {
            frame_bytes: frame_bytes / line_bytes * line_bytes,
            line_bytes,
            work_ps,
            period_ps,
            count,
            at: 0,
            settled: false,
            released_ps: 0,
            jobs: Vec::with_capacity(count),
        }
    }
}

impl Workload for Periodic {
    fn next(&mut self, now_ps: u64) -> Step {
        if self.at == self.frame_bytes {
            if !self.settled {
                self.settled = true;
                return Step::Settle;
            }
            self.jobs.push(Job {
                released_ps: self.released_ps,
                done_ps: now_ps,
            });
            // A job that comes after its successor's release begins that one at once.
            self.released_ps += self.period_ps;
            self.at = 0;
            self.settled = false;
        }
        if self.jobs.len() == self.count {
            return Step::End;
        }
        if self.at == 0 && now_ps < self.released_ps {
            return Step::Sleep {
                until_ps: self.released_ps,
            };
        }
        let offset = self.at;
        self.at += self.line_bytes;
        Step::Touch {
            work_ps: self.work_ps,
            offset,
            store: false,
            depends: false,
        }
    }

    fn buffer_bytes(&self) -> u64 {
        self.frame_bytes
    }

    fn jobs(&self) -> &[Job] {
        &self.jobs
    }
}

/// A core that has nothing to do.
#[derive(Debug, Clone, Copy)]
pub struct Idle;

impl Workload for Idle {
    fn next(&mut self, _now_ps: u64) -> Step {
        Step::End
    }

    fn buffer_bytes(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset(step: Step) -> u64 {
        match step {
            Step::Touch { offset, .. } => offset,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_chase_comes_by_every_line_once() {
        let mut chase = Chase::new(64 * 1000, 64, 0, 5);
        let mut seen: Vec<_> = (0..1000).map(|_| offset(chase.next(0)) / 64).collect();
        assert_eq!(offset(chase.next(0)) / 64, seen[0]);
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_stream_begins_anew_at_its_end() {
        let mut stream = Stream::new(200, 64, true, 0);
        let seen: Vec<_> = (0..5).map(|_| offset(stream.next(0))).collect();
        assert_eq!(seen, [0, 64, 128, 0, 64]);
    }

    #[test]
    fn a_job_is_done_when_all_is_there_and_the_next_waits_for_its_release() {
        let mut task = Periodic::new(128, 64, 0, 1000, 2);
        assert_eq!(offset(task.next(0)), 0);
        assert_eq!(offset(task.next(10)), 64);
        assert_eq!(task.next(20), Step::Settle);
        assert_eq!(task.next(300), Step::Sleep { until_ps: 1000 });
        assert_eq!(offset(task.next(1000)), 0);
        assert_eq!(offset(task.next(1010)), 64);
        assert_eq!(task.next(1020), Step::Settle);
        assert_eq!(task.next(2500), Step::End);
        let done: Vec<_> = task.jobs().iter().map(|job| job.done_ps).collect();
        assert_eq!(done, [300, 2500]);
    }
}
