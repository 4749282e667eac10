// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copy bandwidth of all CPUs at once, by size.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Device;
use crate::Metric;
use crate::summary::present;

/// The value of `experiment` in run.json and summary.json.
pub const NAME: &str = "copy-bandwidth";

/// Role of the raw samples of a case's `total`: the sums over all threads.
pub const ROLE_OF_TOTAL: &str = "all";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {
    /// Origin of the samples' times on the kernel's clock.
    pub clock_base_ns: u64,
    /// Copies of each thread in a run.
    pub operations: u64,
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
    /// `from`, `to`, ...
    pub operation: String,
    /// `cpu`, `dma-shared`, ...
    pub engine: String,
    /// Bytes of a copy.
    pub size_bytes: u64,
    /// Copies of each thread in a run.
    pub operations: u64,
    /// Share of the bytes that the engine moved, 0 to 1.
    pub engine_share: Option<f64>,
    /// Total rate of all threads, `mib_s`.
    pub total: Option<Metric>,
    /// Rates of the single threads, `mib_s`.
    pub channel: Option<Metric>,
    /// The threads.
    pub channels: Vec<Thread>,
    /// Share of each channel; absent for copies by the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel_shares: Option<Vec<Share>>,
    /// Share of the engine's bytes that the high channels copied; null if it copied none. Only with `dma-priority`.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub high_share: Option<Option<f64>>,
}

/// One thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Thread {
    /// Its CPU.
    pub cpu: u32,
    /// The channel of all its copies; null if no single channel made them.
    pub channel: Option<u32>,
    /// True if that channel has high priority.
    pub high: bool,
    /// Median of its rates, MB (2^20 bytes) a second.
    pub mib_s: Option<f64>,
}

/// One channel's share of what the engine copied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Share {
    /// Its number.
    pub channel: u32,
    /// True if it has high priority.
    pub high: bool,
    /// Its share of the bytes, 0 to 1; null if the engine copied none.
    pub share: Option<f64>,
}
