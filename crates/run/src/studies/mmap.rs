// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cost of a mapping: random and sequential walks, sweeps of the locality, and competitors.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Metric;

/// The value of `experiment` in run.json and summary.json.
pub const NAME: &str = "mmap";

/// summary.json.
pub type Summary = crate::Summary<Whole>;

/// Figures of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Whole {
    /// Source of the counters: the machine or the model.
    pub counted_by: Option<CountedBy>,
    /// True if `L1-dcache-load-misses` counts all lines that come into the L1D, for loads, stores and prefetches. Their share is
    /// then one of loads and stores.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub l1d_lines: bool,
    /// Number of counters that the machine can run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware_counters: Option<u64>,
    /// The modelled platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// Its caches and TLBs in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub geometry_text: Option<String>,
    /// The same in the model's form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub geometry: Option<Value>,
    /// Parts of it that were assumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assumed: Option<Vec<String>>,
    /// Origin of the samples' times on the kernel's clock.
    pub clock_base_ns: u64,
    /// The CPU of the walks.
    pub cpu: u64,
    /// Speed of the model.
    pub model_accesses_per_s: Option<f64>,
}

impl crate::Whole for Whole {
    type Case = Case;
}

/// Source of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CountedBy {
    /// The machine.
    Hardware,
    /// A model of its caches and TLBs, or another machine's.
    Model,
}

/// One case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Always null: no regulator runs.
    pub guard: (),
    /// The mapping: `SHARED file`, ...
    pub mapping: String,
    /// `random` or `sequential`.
    pub access: String,
    /// Walks over each place.
    pub locality: u64,
    /// The competitor, or `none`.
    pub compete: String,
    /// Bytes mapped.
    pub size_bytes: u64,
    /// Places of a walk.
    pub outer: u64,
    /// Loads of a walk.
    pub loads: u64,
    /// Stores of a walk.
    pub stores: u64,
    /// Bytes of the mapping in huge pages.
    pub huge_bytes: u64,
    /// Walks.
    pub repeats: u64,
    /// Time of a walk, `time_ns`.
    pub time: Option<Metric>,
    /// CPU time in user mode.
    pub user_us: Option<Metric>,
    /// CPU time in the kernel.
    pub system_us: Option<Metric>,
    /// Page faults that needed no disk.
    pub minor_faults: Option<Metric>,
    /// Page faults that needed a disk.
    pub major_faults: Option<Metric>,
    /// Switches because the walk waited.
    pub voluntary_switches: Option<Metric>,
    /// Switches because another thread got the CPU.
    pub involuntary_switches: Option<Metric>,
    /// Blocks of 512 bytes read.
    pub blocks_in: Option<Metric>,
    /// Blocks of 512 bytes written.
    pub blocks_out: Option<Metric>,
    /// The process's peak memory, KiB.
    pub max_rss_kib: Option<Metric>,
    /// True if writes go to private pages.
    pub private: bool,
    /// True if a file is mapped.
    pub file: bool,
    /// Time of the mmap call.
    pub map: Option<Metric>,
    /// Time of the first write to each page.
    pub touch: Option<Metric>,
    /// Page faults of the first writes that needed no disk.
    pub touch_minor_faults: Option<Metric>,
    /// Page faults of the first writes that needed a disk, or found no page of the file in memory.
    pub touch_major_faults: Option<Metric>,
    /// Time of the msync before the walk, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub msync_before: Option<Metric>,
    /// Share of the written bytes that a reader of the file saw before and after that msync.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen_before: Option<[f64; 2]>,
    /// The same for the msync after the walk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen_after: Option<[f64; 2]>,
    /// Time of the msync after the walk, `msync_ns`, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub msync: Option<Metric>,
    /// Places of the walk that were counted, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted_outer: Option<u64>,
    /// Counts by event name.
    #[serde(flatten)]
    pub counts: IndexMap<String, Metric>,
    /// Smallest share of the time that a counter ran, if the machine counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_share: Option<f64>,
    /// True if counters took turns, so that counts are estimates; only if the machine counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multiplexed: Option<bool>,
    /// Share of the L1D's loads that missed; with [`Whole::l1d_lines`], lines that came into it over loads and stores.
    pub l1d_load_miss_share: Option<f64>,
    /// Share of the L1D's stores that missed.
    pub l1d_store_miss_share: Option<f64>,
    /// Share of the L1D's prefetches that missed.
    pub l1d_prefetch_miss_share: Option<f64>,
    /// Share of the L2's loads that missed.
    pub l2_load_miss_share: Option<f64>,
    /// Share of the L2's accesses that refilled a line.
    pub l2_refill_share: Option<f64>,
    /// Share of the last level's loads that missed.
    pub llc_load_miss_share: Option<f64>,
    /// Share of the DTLB's loads that missed.
    pub dtlb_load_miss_share: Option<f64>,
    /// Competitors that the OOM killer killed, if there was a competitor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    /// How each competitor ended, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub competitors: Option<Vec<Competitor>>,
    /// The median time over that of the same walk alone, of the walks that began beside a competitor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown: Option<f64>,
    /// 95 % confidence interval of the slowdown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown_ci95: Option<[f64; 2]>,
}

impl Case {
    /// True if it has a competitor.
    pub fn competes(&self) -> bool {
        self.compete != "none"
    }

    /// The walks that began beside a competitor.
    pub fn beside(&self) -> u64 {
        let all = self.competitors.iter().flatten();
        all.filter(|one| one.was_beside()).count() as u64
    }

    /// Median count of an event.
    pub fn count(&self, event: &str) -> Option<f64> {
        self.counts.get(event)?.median
    }
}

/// How a competitor ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Competitor {
    /// Bytes that it should take.
    pub limit_bytes: u64,
    /// Bytes that it took.
    pub touched_bytes: u64,
    /// Passes over all of its memory.
    pub passes: u64,
    /// True if the OOM killer killed it.
    pub oom_killed: bool,
    /// Its end, in words.
    pub end: String,
}

impl Competitor {
    /// Whether it ran as its walk began, which waits until the competitor has touched all of its memory or has ended.
    pub fn was_beside(&self) -> bool {
        self.passes > 0
    }
}
