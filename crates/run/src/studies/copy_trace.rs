// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every copy between user and kernel memory, and the places in the kernel that make them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Metric;
use crate::summary::present;

/// `experiment` in run.json and summary.json.
pub const NAME: &str = "copy-trace";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {
    /// What sees the copies: `hooks` or `probes`.
    pub source: String,
    /// Whether probes count the `__` forms with the others.
    pub merged: bool,
    /// Whether the kernel tells callers' addresses.
    pub addresses: bool,
    /// Records of each ring.
    pub ring_records: u64,
    /// CPUs traced.
    pub cpus: u64,
    /// How long, seconds.
    pub elapsed_s: Option<f64>,
    /// Where the samples' times begin on the kernel's clock.
    pub clock_base_ns: u64,
    /// Copies that the probes missed.
    pub missed: u64,
    /// Exit code of the command; null without one.
    pub command_exit_code: Option<i32>,
    /// Places that copied most often.
    pub callers: Vec<Caller>,
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
    /// No regulator takes part.
    pub guard: (),
    /// `function`, or `size` of a function.
    pub kind: String,
    /// `from`, `to`, `__from` or `__to`.
    pub function: String,
    /// The size; null of all other sizes together. Of a size alone.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<Option<u64>>,
    /// Copies.
    pub calls: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Bytes that were asked for and not copied.
    pub not_copied_bytes: u64,
    /// Copies by an engine.
    pub engine_calls: u64,
    /// Bytes copied by an engine.
    pub engine_bytes: u64,
    /// Time of a copy, `time_ns`.
    pub time: Option<Metric>,
    /// Records read; of a function alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<u64>,
    /// Records dropped because the ring was full; of a function alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
    /// Sizes and their copies; of a function alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_by_size: Option<Vec<[u64; 2]>>,
    /// Copies of sizes that were not kept apart; of a function alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_of_other_sizes: Option<u64>,
}

/// A place in the kernel that copies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Caller {
    /// The function it calls.
    pub function: String,
    /// Where that returns to.
    pub address: String,
    /// The same by name and offset; null where the kernel tells no names.
    pub symbol: Option<String>,
    /// Copies.
    pub calls: u64,
    /// Bytes copied.
    pub bytes: u64,
}
