// SPDX-License-Identifier: MIT OR Apache-2.0
//! A counter in a device's memory that several workers increment.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Metric;

/// `experiment` in run.json and summary.json.
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
    /// No regulator takes part.
    pub guard: (),
    /// What is measured: `C device`, `Rust device`, `in-kernel`, or a path.
    pub subject: String,
    /// `none`, `mutex` or `fetch-add`.
    pub lock: String,
    /// Workers that increment it.
    pub workers: u32,
    /// Increments of each.
    pub increments: u64,
    /// What the counter should be at the end.
    pub expected: u64,
    /// What it is.
    pub count: Option<Metric>,
    /// |counted - expected| / expected, `error_share`.
    pub error: Option<Metric>,
    /// Time of an increment, of all workers together, `increment_ns`.
    pub increment: Option<Metric>,
    /// How often it was measured.
    pub runs: u64,
    /// Runs in which the counter was not as expected.
    pub wrong_runs: u64,
}
