// SPDX-License-Identifier: MIT OR Apache-2.0
//! Effect of the second chance for pages in use.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Metric;

/// The value of `experiment` in run.json and summary.json.
pub const NAME: &str = "mmap-reclaim";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {
    /// Origin of the samples' times on the kernel's clock.
    pub clock_base_ns: u64,
    /// Median of the major faults on pages in use with `vm.reclaim_active` 1 over that with 0; null if that is 0.
    pub hot_ratio: Option<f64>,
    /// 95 % confidence interval of the ratio; null with fewer than 5 runs of each.
    pub hot_ratio_ci95: Option<[f64; 2]>,
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
    /// `vm.reclaim_active`: 0 gives pages in use a second chance, 1 does not.
    pub reclaim_active: u8,
    /// Bytes of the pages in use.
    pub hot_bytes: u64,
    /// Bytes that stream through.
    pub cold_bytes: u64,
    /// Memory limit for both.
    pub memory_bytes: u64,
    /// Counted passes over the pages in use.
    pub rounds: u64,
    /// Major faults on pages in use: pages read back from the swap.
    pub hot_major_faults: Option<Metric>,
    /// Major faults on pages in use over their uses.
    pub hot_fault_share: Option<Metric>,
    /// Major faults on pages that stream through.
    pub cold_major_faults: Option<Metric>,
    /// Major faults on pages that stream through over their uses.
    pub cold_fault_share: Option<Metric>,
}
