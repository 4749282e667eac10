// SPDX-License-Identifier: MIT OR Apache-2.0
//! What measuring and reporting share: a file for each study, with the types of a case's figures and of the whole
//! run's. The experiment of that name fills them, and the report of that name reads them.
//!
//! A figure that was not measured is null; one that a case has no place for is left out. What an older run lacks is at
//! its default.

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

/// What a modelled memory moved in a case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Traffic {
    /// GB (10^9 bytes) a second, reads and writes.
    pub memory_gb_s: f64,
    /// Share of what the memory can move at most.
    pub memory_peak_share: f64,
    /// Mean power of the memory's chips, mW, without their data pins; null where their currents aren't known.
    #[serde(default)]
    pub memory_power_mw: Option<f64>,
}

/// Figures that a case may be without: it has them if it has `key`, and then all of them have to fit. (serde's own
/// `Option` of flattened figures takes one that doesn't fit for none.)
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
    /// Channels.
    pub channels: u32,
    /// The engine's driver.
    pub provider: String,
    /// Up to this size a copy's end is polled for.
    pub poll_bytes: u64,
    /// Alignment that the engine asks for.
    pub align_bytes: u64,
    /// Whether a channel can pause.
    pub can_pause: bool,
    /// Whether the CPU compares what the engine copied.
    pub compares: bool,
}
