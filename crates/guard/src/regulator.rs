// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every regulator can do.

use std::collections::BTreeMap;

use memwarden_platform::cpus::CpuSet;
use serde::{Deserialize, Serialize};

use crate::budget::{Events, Request};
use crate::trace::Recording;
use crate::{BestEffort, Control, CoreStatistics, Error, Resource};

/// How to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOptions {
    /// A named event, or a raw code as `0x17`; `None` leaves the choice to the regulator.
    pub event: Option<String>,
    /// The event that counts write-backs.
    pub write_event: Option<String>,
    /// One budget for each core holds reads and write-backs together.
    #[serde(default)]
    pub combined: bool,
    /// Bytes that one event stands for; `None` leaves it to the regulator.
    pub bytes_per_event: Option<u64>,
    /// Length of a period in microseconds.
    pub period_us: u64,
    /// The machine's guaranteed bandwidth in MiB/s, where known.
    pub maxbw_mib_s: Option<u64>,
    /// Leave the kernel's own traffic uncounted.
    pub user_only: bool,
    /// The CPUs to regulate; all others are left alone. `None` is every CPU.
    pub cpus: Option<CpuSet>,
}

impl StartOptions {
    /// Whether `cpu` is to be regulated.
    pub fn regulates(&self, cpu: usize) -> bool {
        self.cpus.as_ref().is_none_or(|cpus| cpus.contains(cpu))
    }
}

impl Default for StartOptions {
    fn default() -> Self {
        Self {
            event: None,
            write_event: None,
            combined: false,
            bytes_per_event: None,
            // MemGuard's own: short against a frame or a control loop, long against a period's work.
            period_us: 1000,
            maxbw_mib_s: None,
            user_only: false,
            cpus: None,
        }
    }
}

/// Everything that can be set, as it is at present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The settings of all cores together.
    pub control: Control,
    /// Read budgets in events a period, by core; of a combined guard those of reads and writes together.
    pub read_budget_events: BTreeMap<usize, Events>,
    /// Write budgets in events a period, by core; empty where writes have none of their own.
    pub write_budget_events: BTreeMap<usize, Events>,
}

/// A running recording; dropped, it ends and leaves nothing behind.
pub trait Recorder {
    /// Forgets what was recorded and goes on.
    ///
    /// # Errors
    /// When the regulator refuses.
    fn restart(&self) -> Result<(), Error>;

    /// Ends recording and hands over what was recorded.
    ///
    /// # Errors
    /// When it can't be read.
    fn stop(&self) -> Result<Recording, Error>;
}

/// A regulator: budgets in, throttled cores out.
pub trait Regulator {
    /// Its name in reports: `module`, `user`, `null`.
    fn name(&self) -> &'static str;

    /// Begins to count; nothing is throttled before a budget is set.
    ///
    /// # Errors
    /// When it runs already, or can't run here.
    fn start(&mut self, options: &StartOptions) -> Result<(), Error>;

    /// Is it running, whoever started it?
    fn is_running(&self) -> bool;

    /// Which guard this is: other processes see the same text as long as it runs, and another one when it was started
    /// anew. Empty when none runs; `None` for a regulator that no other process can reach.
    fn instance(&self) -> Option<String> {
        None
    }

    /// Every setting.
    ///
    /// # Errors
    /// When it isn't running, or can't be read.
    fn settings(&self) -> Result<Settings, Error>;

    /// New budgets, all or none of them.
    ///
    /// # Errors
    /// When it isn't running, or refuses.
    fn set_budgets(&mut self, resource: Resource, request: &Request) -> Result<(), Error>;

    /// What happens with the rest of a period, and whether cores donate.
    ///
    /// # Errors
    /// When it isn't running, or refuses.
    fn set_mode(
        &mut self,
        best_effort: Option<BestEffort>,
        reclaim: Option<bool>,
    ) -> Result<(), Error>;

    /// The machine's guaranteed bandwidth in MiB/s.
    ///
    /// # Errors
    /// When it isn't running, or refuses.
    fn set_maxbw(&mut self, maxbw_mib_s: u64) -> Result<(), Error>;

    /// The period in microseconds; budgets keep the unit they were given in, so that MB/s stay MB/s.
    ///
    /// # Errors
    /// When it isn't running, or refuses.
    fn set_period(&mut self, period_us: u64) -> Result<(), Error>;

    /// Exempts a core from throttling, or not.
    ///
    /// # Errors
    /// When it isn't running, or refuses.
    fn set_rt(&mut self, cpu: usize, rt: bool) -> Result<(), Error>;

    /// What every core did since the last reset.
    ///
    /// # Errors
    /// When it isn't running, or can't be read.
    fn statistics(&self) -> Result<Vec<CoreStatistics>, Error>;

    /// Statistics begin anew.
    ///
    /// # Errors
    /// When it isn't running, or refuses.
    fn reset_statistics(&mut self) -> Result<(), Error>;

    /// Records every period and throttle of every core from now on, with room for this many periods of each.
    ///
    /// # Errors
    /// When it isn't running, or keeps no such record.
    fn record(&self, periods: u64) -> Result<Box<dyn Recorder>, Error> {
        let _ = periods;
        Err(Error::System(format!(
            "the {} regulator keeps no record of its periods",
            self.name()
        )))
    }

    /// Ends regulation; every core runs free.
    ///
    /// # Errors
    /// When it isn't running, or can't be ended.
    fn stop(&mut self) -> Result<(), Error>;

    /// Puts back what [`Regulator::settings`] said earlier.
    ///
    /// # Errors
    /// When it isn't running, or refuses.
    fn restore(&mut self, earlier: &Settings) -> Result<(), Error> {
        let now = self.settings()?;
        if now.control.period_us != earlier.control.period_us {
            self.set_period(earlier.control.period_us)?;
        }
        if now.control.maxbw_mib_s != earlier.control.maxbw_mib_s {
            self.set_maxbw(earlier.control.maxbw_mib_s)?;
        }
        for (resource, now, earlier) in [
            (
                Resource::Read,
                &now.read_budget_events,
                &earlier.read_budget_events,
            ),
            (
                Resource::Write,
                &now.write_budget_events,
                &earlier.write_budget_events,
            ),
        ] {
            // A core that went offline meanwhile has no budget to put back.
            for (&cpu, &events) in earlier.iter().filter(|(cpu, _)| now.contains_key(cpu)) {
                if now.get(&cpu) != Some(&events) {
                    self.set_budgets(resource, &Request::events_for_cpu(cpu, events))?;
                }
            }
        }
        for cpu in now.control.online.iter() {
            let rt = earlier.control.rt.contains(cpu);
            if now.control.rt.contains(cpu) != rt {
                self.set_rt(cpu, rt)?;
            }
        }
        let mode = |control: &Control| (control.best_effort, control.reclaim);
        if mode(&now.control) == mode(&earlier.control) {
            return Ok(());
        }
        self.set_mode(
            Some(earlier.control.best_effort),
            Some(earlier.control.reclaim),
        )
    }
}
