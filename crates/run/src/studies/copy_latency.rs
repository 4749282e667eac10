// SPDX-License-Identifier: MIT OR Apache-2.0
//! The time of one copy, by size.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Device;
use crate::Metric;

/// The value of `experiment` in run.json and summary.json.
pub const NAME: &str = "copy-latency";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {
    /// The shortest time that the clock measures.
    pub clock_shortest_ns: u64,
    /// Origin of the samples' times on the kernel's clock.
    pub clock_base_ns: u64,
    /// The engine and its driver.
    #[serde(flatten)]
    pub device: Device,
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
    /// Bytes of a copy.
    pub size_bytes: u64,
    /// Time of a copy, `time_ns`.
    pub time: Option<Metric>,
    /// The size over the median, MB (2^20 bytes) a second; null if the clock did not advance.
    pub mib_s: Option<f64>,
    /// Share of the bytes that the engine moved, 0 to 1.
    pub engine_share: Option<f64>,
    /// `from`, `to`, ...
    pub operation: String,
    /// `cpu`, `dma-shared`, ...
    pub engine: String,
    /// `idle` or `heavy`.
    pub load: String,
}
