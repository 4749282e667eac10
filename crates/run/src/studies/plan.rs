// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a deadline to budgets: the settings of the regulator that were tried in a model, and the recommended one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Traffic;
use crate::GuardSettings;

/// `experiment` in run.json and summary.json.
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
    /// What the memory can move at most, GB (10^9 bytes) a second.
    pub memory_peak_gb_s: f64,
    /// The task's name.
    pub task: String,
    /// Bytes that a job reads.
    pub frame_bytes: u64,
    /// From one release to the next.
    pub period_us: u64,
    /// From a release to when its job must have finished.
    pub deadline_us: u64,
    /// A job that ends less than this before its deadline is late.
    pub margin_us: u64,
    /// The share of jobs that may be late.
    pub miss_ratio: f64,
    /// How sure the recommended setting's jobs make that, 0 to 1.
    pub confidence: f64,
    /// The fewest jobs that show the miss ratio for the first candidate, all in time; null where none may be late.
    pub jobs_needed: Option<u64>,
    /// Jobs of each case.
    pub jobs: u64,
    /// Names of the cases than which no other has both more load and an earlier longest job, by load.
    pub front: Vec<String>,
    /// The setting to use; null where none reaches the goal.
    pub recommended: Option<Choice>,
    /// Where the recommended setting is fragile, the best one that no uncertain number spoils.
    pub robust: Option<Choice>,
    /// The deadline case measured with the recommended setting.
    pub verified: Option<Verified>,
}

impl crate::Whole for Whole {
    type Case = Case;
}

/// A setting, and what becomes of the task and its load with it.
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
    /// From its end to the deadline; below 0 it was late.
    pub margin_ms: f64,
    /// What the loads moved together, MB/s (2^20 bytes).
    pub load_mib_s: f64,
    /// What the memory moved.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Whether the goal is reached.
    pub reached: bool,
}

/// A setting in a run with more jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Choice {
    /// That run.
    pub case: Case,
    /// Its jobs.
    pub jobs: u64,
    /// Of those, the late ones.
    pub late: u64,
    /// Which of the tested candidates it is, from 1; 0 where that was not recorded.
    pub candidate: u64,
    /// The share of late jobs that this leaves possible (Clopper and Pearson's upper limit). Of what the confidence leaves
    /// to chance, candidate k has 1/(k (k + 1)).
    pub most_late: f64,
    /// Whether a wrong number of the platform would spoil it.
    pub verdict: Verdict,
    /// The commands that make the setting.
    pub commands: Vec<String>,
    /// What becomes of it with other numbers in the platform, in as many jobs.
    pub sensitivity: Vec<Sensitivity>,
    /// The uncertain numbers, or their changes, that were not tried, with the reason.
    pub untried: Vec<String>,
}

/// Whether a wrong number of the platform would spoil a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// None of those that were tried.
    Robust,
    /// One of them at least.
    Fragile,
    /// No uncertain number of the platform was tried.
    #[default]
    Unknown,
}

/// A setting where a number of the platform is another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sensitivity {
    /// Its path in the platform's file.
    pub number: String,
    /// What the file says.
    pub is: u64,
    /// What it was taken to be.
    pub were: u64,
    /// What became of the setting.
    pub case: Case,
}

/// Predicted against measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Verified {
    /// Where it was measured: `native`, `lab:PLATFORM`.
    pub place: String,
    /// The model without a guard.
    pub predicted_unguarded: Outcome,
    /// Measured without a guard.
    pub unguarded: Outcome,
    /// The model with the setting.
    pub predicted: Outcome,
    /// Measured with the setting; null where nothing has to be regulated.
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
    /// What the loads moved together, MB/s (2^20 bytes).
    pub load_mib_s: f64,
    /// And over that without a guard.
    pub load_share: f64,
}
