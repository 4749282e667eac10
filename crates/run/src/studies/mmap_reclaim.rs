// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the second chance of pages in use is worth.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Metric;

/// `experiment` in run.json and summary.json.
pub const NAME: &str = "mmap-reclaim";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {
    /// Where the samples' times begin on the kernel's clock.
    pub clock_base_ns: u64,
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
    /// `vm.reclaim_active`: 0 gives pages in use a second chance, 1 does not.
    pub reclaim_active: u8,
    /// Bytes in use.
    pub hot_bytes: u64,
    /// Bytes that pass through.
    pub cold_bytes: u64,
    /// Memory for both.
    pub memory_bytes: u64,
    /// Passes over the bytes in use that are counted.
    pub rounds: u64,
    /// Pages in use that were read back from the swap.
    pub hot_major_faults: Option<Metric>,
    /// Their share of the uses.
    pub hot_fault_share: Option<Metric>,
    /// Pages that pass through that were read back.
    pub cold_major_faults: Option<Metric>,
    /// Their share of the uses.
    pub cold_fault_share: Option<Metric>,
}
