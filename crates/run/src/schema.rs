// SPDX-License-Identifier: MIT OR Apache-2.0
//! The JSON schemas of the run folder's files. A schema's meaning never changes; it gains a version.

/// The value of `schema` in run.json.
pub const RUN: &str = "memwarden.run/1";
/// The value of `schema` in summary.json.
pub const SUMMARY: &str = "memwarden.summary/1";

/// JSON schema of run.json.
pub const RUN_JSON: &str = include_str!("../schemas/run-1.schema.json");
/// JSON schema of summary.json.
pub const SUMMARY_JSON: &str = include_str!("../schemas/summary-1.schema.json");
