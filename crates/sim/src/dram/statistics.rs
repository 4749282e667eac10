// SPDX-License-Identifier: MIT OR Apache-2.0
//! The controller's counts.

use schemars::JsonSchema;
use serde::Serialize;

/// Counts since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Statistics {
    /// Lines that the memory read.
    pub reads: u64,
    /// Lines that the memory wrote.
    pub writes: u64,
    /// Reads that got their line from a waiting write.
    pub forwarded: u64,
    /// Writes of a line that was already waiting to be written.
    pub merged: u64,
    /// Reads and writes whose row was open.
    pub row_hits: u64,
    /// Reads and writes whose bank was closed.
    pub row_misses: u64,
    /// Reads and writes whose bank had another row open.
    pub row_conflicts: u64,
    /// ACTs.
    pub activates: u64,
    /// Time with open banks.
    #[serde(skip)]
    pub open: OpenTime,
    /// Refreshes of a rank.
    pub refreshes: u64,
    /// Bytes read and written for each core.
    pub bytes_by_core: Vec<u64>,
    /// From arrival to the last data bit, over all `reads`, ps.
    pub read_latency_sum_ps: u64,
    /// From arrival to the RD or WR, over all `reads` and `writes`, ps.
    pub wait_sum_ps: u64,
    /// The number of waiting requests, integrated over time, ps. By Little's law it equals
    /// `wait_sum_ps` whenever no request waits.
    pub queue_integral_ps: u64,
}

/// How long ranks had an open bank, summed over all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenTime {
    /// Sum of the end times minus sum of the begin times, ps; it includes begins that have no
    /// end yet.
    sum_ps: u64,
    /// Number of ranks that have an open bank.
    ranks: u64,
}

impl OpenTime {
    pub(super) fn begin(&mut self, at_ps: u64) {
        self.sum_ps = self.sum_ps.wrapping_sub(at_ps);
        self.ranks += 1;
    }

    pub(super) fn end(&mut self, at_ps: u64) {
        self.sum_ps = self.sum_ps.wrapping_add(at_ps);
        self.ranks -= 1;
    }

    /// The total until a time that isn't before the last begin or end, ps.
    pub(super) fn until(&self, at_ps: u64) -> u64 {
        self.sum_ps.wrapping_add(self.ranks.wrapping_mul(at_ps))
    }
}

impl Statistics {
    pub(super) fn new() -> Self {
        Self {
            bytes_by_core: vec![0; 64],
            ..Self::default()
        }
    }

    /// Adds another channel's counts.
    pub(super) fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.forwarded += other.forwarded;
        self.merged += other.merged;
        self.row_hits += other.row_hits;
        self.row_misses += other.row_misses;
        self.row_conflicts += other.row_conflicts;
        self.activates += other.activates;
        self.open.sum_ps = self.open.sum_ps.wrapping_add(other.open.sum_ps);
        self.open.ranks += other.open.ranks;
        self.refreshes += other.refreshes;
        for (sum, bytes) in self.bytes_by_core.iter_mut().zip(&other.bytes_by_core) {
            *sum += bytes;
        }
        self.read_latency_sum_ps += other.read_latency_sum_ps;
        self.wait_sum_ps += other.wait_sum_ps;
        self.queue_integral_ps += other.queue_integral_ps;
    }
}
