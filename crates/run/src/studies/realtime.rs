// SPDX-License-Identifier: MIT OR Apache-2.0
//! The deadline case: a real-time task alone and beside a load, under each guard setting.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Traffic;
use crate::summary::present;
use crate::{Aggressor, GuardSettings, Metric};

/// `experiment` in run.json and summary.json.
pub const NAME: &str = "realtime";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run: what the task does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {
    /// What the guard's self-test found on each core, where it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_test: Option<Value>,
    /// Bytes that a job goes over.
    pub frame_bytes: Option<u64>,
    /// From one release to the next.
    pub period_ns: Option<u64>,
    /// From a release to when its job must have finished.
    pub deadline_ns: Option<u64>,
    /// What a job does with its frame: `bandwidth:read`.
    pub access: String,
    /// Whether the task had a real-time priority and locked memory.
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
    /// From planned release to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub victim: Option<Metric>,
    /// From start to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution: Option<Metric>,
    /// From planned release to start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_jitter: Option<Metric>,
    /// Deadlines.
    pub releases: Option<u64>,
    /// Jobs that did not start because the one before still ran.
    pub skipped: Option<u64>,
    /// Deadlines missed, skipped jobs included.
    pub misses: Option<u64>,
    /// Misses over releases.
    pub miss_share: Option<f64>,
    /// Wilson's interval of the share, 95 %.
    pub miss_share_ci95: Option<[f64; 2]>,
    /// Share of the time that the task's core was throttled, with a guard.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub throttled_share: Option<Option<f64>>,
    /// What the command for the first miss did, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_miss: Option<OnMiss>,
    /// What a simulated memory moved.
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
    /// How late it was.
    pub late_ns: u64,
    /// How the command ended; null where a signal ended it, or it did not end in time.
    pub exit_code: Option<i32>,
}
