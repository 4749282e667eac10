// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests by a pattern, if no trace was recorded.

use super::Request;
use crate::dram::Memory;

/// The order of the requested lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// A random line each time.
    Random,
    /// Consecutive lines from the first; after the last the first again.
    Stream,
}

/// Requests by a pattern, without an end and without times.
#[derive(Debug, Clone)]
pub struct Patterned {
    pattern: Pattern,
    line_bytes: u64,
    lines: u64,
    write_share: f64,
    random: fastrand::Rng,
    count: u64,
}

impl Patterned {
    /// Over all lines of `memory`; any number of requests has this share of writes, spread
    /// evenly. The seed chooses the random lines.
    #[must_use]
    pub fn new(pattern: Pattern, memory: &Memory, write_share: f64, seed: u64) -> Self {
        let line_bytes = memory.organisation.burst_bytes();
        Self {
            pattern,
            line_bytes,
            lines: memory.organisation.capacity_bytes() / line_bytes,
            write_share,
            random: fastrand::Rng::with_seed(seed),
            count: 0,
        }
    }
}

impl Iterator for Patterned {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let line = match self.pattern {
            Pattern::Random => self.random.u64(..self.lines),
            Pattern::Stream => self.count % self.lines,
        };
        let writes = |count: u64| (count as f64 * self.write_share).floor();
        let write = writes(self.count + 1) > writes(self.count);
        self.count += 1;
        Some(Request {
            address: line * self.line_bytes,
            write,
            at_ps: None,
        })
    }
}
