// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes wrong with a memory device, provoked one mistake at a time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `experiment` in run.json and summary.json.
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
    /// No regulator takes part.
    pub guard: (),
    /// The device: `C device`, `Rust device`, or a path.
    pub subject: String,
    /// The kind of mistake: `closed descriptor`, `offset`, `several programs`, `increment`.
    pub mistake: String,
    /// What was done.
    pub done: String,
    /// What the device does about it.
    pub expected: String,
    /// What it did.
    pub found: String,
    /// Whether that is the same; null where a file stands in for the device, and for a case that was
    /// not tried.
    pub as_expected: Option<bool>,
    /// Of an increment, the updates that were lost, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_share: Option<f64>,
}
