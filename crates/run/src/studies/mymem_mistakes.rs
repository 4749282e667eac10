// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mistakes with a memory device, provoked one at a time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The value of `experiment` in run.json and summary.json.
pub const NAME: &str = "mymem-mistakes";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {}

impl crate::Whole for Whole {
    type Case = Case;
}

/// One mistake.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Always null: no regulator runs.
    pub guard: (),
    /// The device: `C device`, `Rust device`, or a path.
    pub subject: String,
    /// The kind of mistake: `closed descriptor`, `offset`, `several programs`, `increment`.
    pub mistake: String,
    /// The provoked mistake.
    pub done: String,
    /// The expected reaction.
    pub expected: String,
    /// The reaction of the device.
    pub found: String,
    /// True if the reaction is the expected one; null if a file stands in for the device or the case was not tried.
    pub as_expected: Option<bool>,
    /// For an increment, the share of lost updates, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_share: Option<f64>,
}
