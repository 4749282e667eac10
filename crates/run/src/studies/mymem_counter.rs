// SPDX-License-Identifier: MIT OR Apache-2.0
//! A counter in a device's memory that several workers increment.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Metric;

/// The value of `experiment` in run.json and summary.json.
pub const NAME: &str = "mymem-counter";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {}

impl crate::Whole for Whole {
    type Case = Case;
}

/// One case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Always null: no regulator runs.
    pub guard: (),
    /// The subject: `C device`, `Rust device`, `in-kernel`, or a path.
    pub subject: String,
    /// `none`, `mutex` or `fetch-add`.
    pub lock: String,
    /// Number of workers.
    pub workers: u32,
    /// Increments of each worker.
    pub increments: u64,
    /// The expected final value of the counter.
    pub expected: u64,
    /// The counter's final value.
    pub count: Option<Metric>,
    /// |counted - expected| / expected, `error_share`.
    pub error: Option<Metric>,
    /// Elapsed time over the increments of all workers, `increment_ns`.
    pub increment: Option<Metric>,
    /// Number of runs.
    pub runs: u64,
    /// Runs with an unexpected final value.
    pub wrong_runs: u64,
}
