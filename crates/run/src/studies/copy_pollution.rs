// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slowdown of an application by the copies of another CPU.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Device;
use crate::Metric;

/// The value of `experiment` in run.json and summary.json.
pub const NAME: &str = "copy-pollution";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {
    /// Origin of the samples' times on the kernel's clock.
    pub clock_base_ns: u64,
    /// The engine of the system `dma`.
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
    /// Time of a run of the application, `time_ns`.
    pub victim: Option<Metric>,
    /// Cache references of a run.
    pub references: Option<Metric>,
    /// Cache misses of a run.
    pub misses: Option<Metric>,
    /// Misses over references.
    pub miss_share: Option<Metric>,
    /// Smallest share of a run's time in which the counters counted; below 1 the counts of that run are scaled. Null without
    /// counters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_share: Option<f64>,
    /// The application.
    pub application: String,
    /// `ideal` (no copies), `cpu` or `dma`.
    pub system: String,
    /// The copy beside it: `from+to:16`.
    pub pair: Option<String>,
    /// Copies made during all runs.
    pub copies: Option<u64>,
    /// Share of the bytes that the engine moved, 0 to 1; only with `dma`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine_share: Option<f64>,
    /// The median time over that without copies.
    pub slowdown: Option<f64>,
    /// 95 % confidence interval of the slowdown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown_ci95: Option<[f64; 2]>,
}
