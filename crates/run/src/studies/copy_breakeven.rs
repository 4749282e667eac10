// SPDX-License-Identifier: MIT OR Apache-2.0
//! The size from which copies by the engine are better.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Device;
use crate::Metric;

/// The value of `experiment` in run.json and summary.json.
pub const NAME: &str = "copy-breakeven";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {
    /// The smallest size from which the engine wins by the time of a copy; null if there is none.
    pub latency_bytes: Option<u64>,
    /// Reason if there is none.
    pub latency_reason: Option<String>,
    /// The smallest size from which the engine wins by the CPU time of the copying thread; null if there is none.
    pub cpu_time_bytes: Option<u64>,
    /// Reason if there is none.
    pub cpu_time_reason: Option<String>,
    /// The smallest size from which the engine wins by the slowdown of another CPU's application; null if there is
    /// none.
    pub slowdown_bytes: Option<u64>,
    /// Reason if there is none.
    pub slowdown_reason: Option<String>,
    /// The engine.
    pub engine: String,
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
    /// The criterion: `latency`, `cpu-time` or `slowdown`.
    pub answer: String,
    /// Times with copies by the CPU.
    pub cpu: Option<Metric>,
    /// Times with copies by the engine.
    pub dma: Option<Metric>,
    /// The engine's median over the CPU's.
    pub ratio: Option<f64>,
    /// 95 % confidence interval of the ratio.
    pub ratio_ci95: Option<[f64; 2]>,
    /// Share of the bytes that the engine moved, 0 to 1.
    pub engine_share: Option<f64>,
    /// `from`, `to`, ...
    pub operation: String,
    /// Bytes of a copy.
    pub size_bytes: u64,
}
