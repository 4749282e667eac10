// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a deadline to budgets: the regulator settings that a model tried, and the recommended one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Traffic;
use crate::GuardSettings;

/// The value of `experiment` in run.json and summary.json.
pub const NAME: &str = "plan";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run: the problem and its answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {
    /// The platform's name.
    pub platform: String,
    /// The memory's name.
    pub memory: String,
    /// Peak bandwidth of the memory, GB (10^9 bytes) a second.
    pub memory_peak_gb_s: f64,
    /// The task's name.
    pub task: String,
    /// Bytes that a job reads.
    pub frame_bytes: u64,
    /// Time between two releases.
    pub period_us: u64,
    /// Time from a release to its deadline.
    pub deadline_us: u64,
    /// A job counts as late if it ends less than this before its deadline.
    pub margin_us: u64,
    /// Largest allowed share of late jobs.
    pub miss_ratio: f64,
    /// Confidence with which the recommended setting's jobs must show the miss ratio, 0 to 1.
    pub confidence: f64,
    /// The fewest jobs that can show the miss ratio for the first candidate, if none is late; null if no job may be
    /// late.
    pub jobs_needed: Option<u64>,
    /// Jobs of each case.
    pub jobs: u64,
    /// The Pareto front: cases for which no other case has both more load and an earlier longest job; ordered by load.
    pub front: Vec<String>,
    /// The setting to use; null if none reaches the goal.
    pub recommended: Option<Choice>,
    /// If the recommended setting is fragile, the best setting that no uncertain number spoils.
    pub robust: Option<Choice>,
    /// The deadline case measured with the recommended setting.
    pub verified: Option<Verified>,
}

impl crate::Whole for Whole {
    type Case = Case;
}

/// A setting, with its effect on the task and the load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Case {
    /// Its name: `alone`, `no guard`, or the setting.
    pub name: String,
    /// The regulator's settings; null without a guard.
    pub guard: Option<GuardSettings>,
    /// Late and skipped jobs over releases.
    pub miss_share: f64,
    /// 99th percentile of the jobs' times.
    pub p99_ms: f64,
    /// The longest job.
    pub worst_ms: f64,
    /// Time from its end to the deadline; negative if it was late.
    pub margin_ms: f64,
    /// Total traffic of the loads, MB/s (2^20 bytes).
    pub load_mib_s: f64,
    /// Traffic of the memory.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// True if the goal is reached.
    pub reached: bool,
}

/// A setting in a run with more jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Choice {
    /// The run.
    pub case: Case,
    /// Its jobs.
    pub jobs: u64,
    /// Late jobs.
    pub late: u64,
    /// Its number among the tested candidates, from 1; 0 if not recorded.
    pub candidate: u64,
    /// Upper limit of the share of late jobs (Clopper and Pearson). The permitted error probability is divided among
    /// the tested candidates: candidate k gets 1/(k (k + 1)) of it.
    pub most_late: f64,
    /// Result of the runs with changed numbers of the platform.
    pub verdict: Verdict,
    /// The commands that apply the setting.
    pub commands: Vec<String>,
    /// The setting with changed numbers of the platform, in as many jobs.
    pub sensitivity: Vec<Sensitivity>,
    /// Uncertain numbers, or changes of them, that were not tried, with the reason.
    pub untried: Vec<String>,
}

/// Whether a wrong number of the platform would spoil a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No tried number spoils it.
    Robust,
    /// At least one tried number spoils it.
    Fragile,
    /// No uncertain number of the platform was tried.
    #[default]
    Unknown,
}

/// A setting with one changed number of the platform.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sensitivity {
    /// Its path in the platform's file.
    pub number: String,
    /// The file's value.
    pub is: u64,
    /// The changed value.
    pub were: u64,
    /// The result.
    pub case: Case,
}

/// Predicted against measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Verified {
    /// Target of the measurement: `native`, `lab:PLATFORM`.
    pub place: String,
    /// Predicted without a guard.
    pub predicted_unguarded: Outcome,
    /// Measured without a guard.
    pub unguarded: Outcome,
    /// Predicted with the setting.
    pub predicted: Outcome,
    /// Measured with the setting; null if nothing needs regulation.
    pub guarded: Option<Outcome>,
}

/// A task beside its load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Outcome {
    /// Late and skipped jobs over releases.
    pub miss_share: f64,
    /// 99th percentile of the jobs' times.
    pub p99_ms: Option<f64>,
    /// Total traffic of the loads, MB/s (2^20 bytes).
    pub load_mib_s: f64,
    /// Traffic relative to that without a guard.
    pub load_share: f64,
}
