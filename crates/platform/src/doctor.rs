// SPDX-License-Identifier: MIT OR Apache-2.0
//! Examines what this machine can measure and regulate, and what would change that.
//!
//! A check is one function from the machine to a [`Finding`]. Files are read
//! below a [`Root`], and facts that need system calls are in [`Live`], so that
//! tests can examine saved trees.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::ErrorKind;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::counters::{self, Counters};
use crate::{Result, Root, sched};

mod counting;
mod memory;
mod regulating;
mod steadiness;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing to change.
    Ok,
    /// Usable, with a consequence.
    Limited,
    /// Not available.
    Missing,
    /// Unknown.
    Unknown,
}

/// One property of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The property.
    pub name: String,
    /// Its severity.
    pub level: Level,
    /// The current state.
    pub found: String,
    /// The consequence for measuring and regulating.
    pub meaning: String,
    /// The command or the place that changes it; `None` if nothing needs to change.
    pub change: Option<String>,
}

impl Finding {
    fn new(level: Level, name: &str, found: impl Into<String>, meaning: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            level,
            found: found.into(),
            meaning: meaning.into(),
            change: None,
        }
    }

    fn change(mut self, command: impl Into<String>) -> Self {
        self.change = Some(command.into());
        self
    }
}

/// Whether the guard can run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// True if it can.
    pub can_run: bool,
    /// Its backend: `module` or `user`.
    pub backend: Option<String>,
    /// The event that it would count, if known beforehand.
    pub event: Option<String>,
    /// The reason, in a sentence.
    pub reason: String,
}

/// All results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// Whether the guard can run.
    pub guard: Verdict,
    /// One finding for each check, in a fixed order.
    pub findings: Vec<Finding>,
    /// The events that were tried.
    pub counters: Counters,
}

/// Facts that need system calls.
#[derive(Debug, Clone)]
pub struct Live {
    /// True for root.
    pub root: bool,
    /// The results of trying the events.
    pub counters: Counters,
    /// Reason why SCHED_FIFO was refused, if it was.
    pub fifo_refused: Option<String>,
    /// Reason why the limit of real-time threads cannot be written, if it cannot.
    pub rt_limit_refused: Option<String>,
}

impl Live {
    /// Collects the facts of this machine.
    #[must_use]
    pub fn probe() -> Self {
        // In a separate thread, whose priority ends with it.
        let fifo = std::thread::spawn(|| sched::set_fifo(1)).join();
        let refused = |error: &dyn std::error::Error| {
            error
                .source()
                .map_or_else(|| error.to_string(), ToString::to_string)
        };
        Self {
            // SAFETY: takes nothing, touches nothing.
            root: unsafe { libc::geteuid() } == 0,
            counters: counters::probe(),
            fifo_refused: match fifo {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(refused(&error)),
                Err(_) => Some("the trial thread failed".into()),
            },
            // Opening for writing changes nothing.
            rt_limit_refused: match File::options().write(true).open(regulating::RT_RUNTIME) {
                Err(error) if error.kind() != ErrorKind::NotFound => Some(error.to_string()),
                _ => None,
            },
        }
    }
}

/// The machine under examination.
struct Patient<'a> {
    root: &'a Root,
    live: &'a Live,
}

/// All checks, in the order of the findings.
const CHECKS: [fn(&Patient) -> Finding; 26] = [
    counting::pmu,
    counting::memory_traffic,
    counting::counters_at_once,
    counting::page_faults,
    counting::paranoid,
    counting::perf_throttle,
    counting::watchdog,
    regulating::privileges,
    regulating::module,
    regulating::lockdown,
    regulating::tracefs,
    regulating::fifo,
    regulating::rt_throttling,
    regulating::fair_server,
    regulating::throttle_thread,
    steadiness::virtualised,
    steadiness::isolated,
    steadiness::smt,
    steadiness::governor,
    steadiness::boost,
    steadiness::clock,
    memory::caches,
    memory::prefetchers,
    memory::huge_pages,
    memory::transparent_huge_pages,
    memory::dma,
];

/// Examines the machine below `root`.
pub fn examine(root: &Root, live: &Live) -> Result<Diagnosis> {
    // Every Linux has this file; without it the tree below is not usable.
    root.read("/proc/sys/kernel/osrelease")?;
    let patient = Patient { root, live };
    Ok(Diagnosis {
        guard: regulating::verdict(&patient),
        findings: CHECKS.iter().map(|check| check(&patient)).collect(),
        counters: live.counters.clone(),
    })
}

#[cfg(test)]
mod tests;
