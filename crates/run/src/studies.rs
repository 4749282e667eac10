// SPDX-License-Identifier: MIT OR Apache-2.0
//! The types that measurements and reports share: one file for each study, with the figures of a case and of the whole
//! run.
//! The experiment with that name fills them, and the report with that name reads them.
//!
//! A figure that was not measured is null; one that does not apply to a case is left out. Figures that an older run
//! lacks have their defaults.

use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

pub mod copy_bandwidth;
pub mod copy_breakeven;
pub mod copy_latency;
pub mod copy_pollution;
pub mod copy_trace;
pub mod guard_bench;
pub mod interfere;
pub mod mmap;
pub mod mmap_reclaim;
pub mod mymem_counter;
pub mod mymem_mistakes;
pub mod mymem_throughput;
pub mod plan;
pub mod realtime;

/// The role of the raw samples of the metric object `key`, if they have one of their own.
pub(crate) fn role<'a>(experiment: &str, key: &'a str) -> &'a str {
    match (experiment, key) {
        (copy_bandwidth::NAME, "total") => copy_bandwidth::ROLE_OF_TOTAL,
        _ => key,
    }
}

/// Traffic of a modelled memory in a case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Traffic {
    /// GB (10^9 bytes) a second, reads and writes.
    pub memory_gb_s: f64,
    /// Share of the memory's peak bandwidth.
    pub memory_peak_share: f64,
    /// Mean power of the memory chips, mW, without their data pins; null if the chips' currents are unknown.
    #[serde(default)]
    pub memory_power_mw: Option<f64>,
}

/// From this share on a copy counts as the engine's; below it the CPU copied a part.
const ENGINES: f64 = 0.995;

/// True if the engine did the work of the case, judged by its share of the bytes.
pub fn is_the_engines(share: Option<f64>) -> bool {
    share.is_none_or(|share| share >= ENGINES)
}

/// Optional figures of a case: present if the case has `key`, and then all of them must match. (serde's own `Option` of
/// flattened figures treats a mismatch as absence.)
fn if_there<'de, D, T>(key: &str, deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let figures = Map::deserialize(deserializer)?;
    if !figures.contains_key(key) {
        return Ok(None);
    }
    serde_json::from_value(Value::Object(figures)).map_err(D::Error::custom)
}

impl Traffic {
    fn if_there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        if_there("memory_gb_s", deserializer)
    }
}

/// The device that copies: the engine's channels and its driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Device {
    /// Number of channels.
    pub channels: u32,
    /// The engine's driver.
    pub provider: String,
    /// The largest copy whose end is polled for, bytes.
    pub poll_bytes: u64,
    /// Alignment that the engine requires, bytes.
    pub align_bytes: u64,
    /// True if a channel can pause.
    pub can_pause: bool,
    /// True if the CPU compares what the engine copied.
    pub compares: bool,
}
