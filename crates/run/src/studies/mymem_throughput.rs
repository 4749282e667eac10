// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transfers to and from a memory device, by size.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Metric;

/// The value of `experiment` in run.json and summary.json.
pub const NAME: &str = "mymem-throughput";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {
    /// The shortest time that the clock measures.
    pub clock_shortest_ns: Option<u64>,
}

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
    /// `write` or `read`.
    pub direction: String,
    /// Bytes of a call.
    pub size_bytes: u64,
    /// Time of a call, `time_ns`.
    pub time: Option<Metric>,
    /// The size over the median, MB (10^6 bytes) a second; null if the clock did not advance.
    pub mb_s: Option<f64>,
}
