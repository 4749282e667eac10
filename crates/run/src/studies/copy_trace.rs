// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every copy between user and kernel memory, and its callers in the kernel.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Metric;
use crate::summary::present;

/// The value of `experiment` in run.json and summary.json.
pub const NAME: &str = "copy-trace";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {
    /// The source of the records: `hooks` or `probes`.
    pub source: String,
    /// True if probes count the `__` forms with the others.
    pub merged: bool,
    /// True if the kernel reports the callers' addresses.
    pub addresses: bool,
    /// Records of each ring.
    pub ring_records: u64,
    /// CPUs traced.
    pub cpus: u64,
    /// Duration, seconds.
    pub elapsed_s: Option<f64>,
    /// Origin of the samples' times on the kernel's clock.
    pub clock_base_ns: u64,
    /// Step of the clock that times the copies, ns: no time is more exact. Null if unknown.
    pub clock_step_ns: Option<f64>,
    /// Copies that the probes missed.
    pub missed: u64,
    /// Exit code of the command; null without one.
    pub command_exit_code: Option<i32>,
    /// The most frequent callers.
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
    /// Always null: no regulator runs.
    pub guard: (),
    /// `function`, or `size` for one size of a function.
    pub kind: String,
    /// `from`, `to`, `__from` or `__to`.
    pub function: String,
    /// The size; null for all other sizes together. Only in cases of kind `size`.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<Option<u64>>,
    /// Copies.
    pub calls: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Bytes that were requested and not copied.
    pub not_copied_bytes: u64,
    /// Copies by an engine.
    pub engine_calls: u64,
    /// Bytes copied by an engine.
    pub engine_bytes: u64,
    /// Time of a copy, `time_ns`.
    pub time: Option<Metric>,
    /// Records read; only in cases of kind `function`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<u64>,
    /// Records dropped because the ring was full; only in cases of kind `function`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
    /// Sizes and their copies; only in cases of kind `function`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_by_size: Option<Vec<[u64; 2]>>,
    /// Copies of sizes without a count of their own; only in cases of kind `function`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_of_other_sizes: Option<u64>,
}

/// A caller in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Caller {
    /// The function it calls.
    pub function: String,
    /// Its return address.
    pub address: String,
    /// The address as name and offset; null if the kernel reports no names.
    pub symbol: Option<String>,
    /// Copies.
    pub calls: u64,
    /// Bytes copied.
    pub bytes: u64,
}
