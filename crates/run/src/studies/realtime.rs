// SPDX-License-Identifier: MIT OR Apache-2.0
//! The deadline case: a real-time task alone and beside a load, under each guard setting.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Traffic;
use crate::summary::present;
use crate::{Aggressor, GuardSettings, Metric};

/// The value of `experiment` in run.json and summary.json.
pub const NAME: &str = "realtime";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run, and a description of the task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {
    /// Result of the guard's self-test on each core, if it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_test: Option<Value>,
    /// Bytes that a job goes over.
    pub frame_bytes: Option<u64>,
    /// Time between two releases.
    pub period_ns: Option<u64>,
    /// Time from a release to its deadline.
    pub deadline_ns: Option<u64>,
    /// What a job does with its frame: `bandwidth:read`.
    pub access: String,
    /// True if the task had a real-time priority and locked memory.
    pub real_time: bool,
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
    /// The regulator's settings; null without a guard.
    pub guard: Option<GuardSettings>,
    /// Time from the planned release to the end of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub victim: Option<Metric>,
    /// Time from the start to the end of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution: Option<Metric>,
    /// Time from the planned release to the start of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_jitter: Option<Metric>,
    /// Number of deadlines.
    pub releases: Option<u64>,
    /// Releases whose job never began; for a program, also periods without a job.
    pub skipped: Option<u64>,
    /// Missed deadlines, including skipped jobs.
    pub misses: Option<u64>,
    /// Misses over releases.
    pub miss_share: Option<f64>,
    /// Wilson's interval of the share, 95 %.
    pub miss_share_ci95: Option<[f64; 2]>,
    /// Throttled share of the task's core, with a guard.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub throttled_share: Option<Option<f64>>,
    /// Outcome of the command for the first miss, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_miss: Option<OnMiss>,
    /// Traffic of a simulated memory.
    #[serde(flatten, deserialize_with = "Traffic::if_there")]
    pub traffic: Option<Traffic>,
    /// The median job time over that of the task alone.
    pub slowdown: Option<f64>,
    /// 95 % confidence interval of the slowdown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown_ci95: Option<[f64; 2]>,
    /// The load, on each of its CPUs.
    pub aggressors: Vec<Aggressor>,
}

/// A command that ran at a miss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct OnMiss {
    /// Number of the job that missed its deadline.
    pub job: u64,
    /// Lateness of the job.
    pub late_ns: u64,
    /// Exit code of the command; null if a signal ended it or it did not end in time.
    pub exit_code: Option<i32>,
}
