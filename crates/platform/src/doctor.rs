// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this machine can measure and regulate, and what would change that.
//!
//! A check is one function from the machine to a [`Finding`]. Files are read
//! below a [`Root`], and what only system calls tell is in [`Live`], so that
//! tests examine saved trees.

#![allow(unsafe_code)]

use serde::{Deserialize, Serialize};

use crate::counters::{self, Counters};
use crate::{Result, Root, sched};

mod counting;
mod memory;
mod regulating;
mod steadiness;

/// How good a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing to change.
    Ok,
    /// Usable, with a consequence.
    Limited,
    /// Not there.
    Missing,
    /// Cannot be known from here.
    Unknown,
}

/// One property of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The property.
    pub name: String,
    /// How good it is.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What that means for measuring and regulating.
    pub meaning: String,
    /// The command, or the place, that changes it; `None` where all is well.
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

/// Whether the guard could run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether it could.
    pub can_run: bool,
    /// `module` or `user`: what it would run on.
    pub backend: Option<String>,
    /// The event that it would regulate by, as far as it is known beforehand.
    pub event: Option<String>,
    /// Why, in a sentence.
    pub reason: String,
}

/// Everything found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Whether the guard could run.
    pub guard: Verdict,
    /// One finding a check, in a fixed order.
    pub findings: Vec<Finding>,
    /// Every event that was tried.
    pub counters: Counters,
}

/// What only system calls tell.
#[derive(Debug, Clone)]
pub struct Live {
    /// Whether this is root.
    pub root: bool,
    /// The events, each tried.
    pub counters: Counters,
    /// Why SCHED_FIFO was refused, if it was.
    pub fifo_refused: Option<String>,
}

impl Live {
    /// Asks this machine.
    #[must_use]
    pub fn probe() -> Self {
        // On a thread of its own, which ends with its priority.
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
        }
    }
}

/// The machine under examination.
struct Patient<'a> {
    root: &'a Root,
    live: &'a Live,
}

/// Every check, in the order in which findings are shown.
const CHECKS: [fn(&Patient) -> Finding; 25] = [
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
    // The kernel's own name, without which nothing below is what it seems.
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
