// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface of every regulator.

use std::collections::BTreeMap;

use memwarden_platform::cpus::CpuSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::budget::{Events, Request};
use crate::trace::Recording;
use crate::{BestEffort, Control, CoreStatistics, Error, Meaning, Resource};

/// Options to start a regulator with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOptions {
    /// An event's name, or a raw code such as `0x17`; `None` and `auto` leave the choice to the regulator.
    pub event: Option<String>,
    /// The event that counts write-backs.
    pub write_event: Option<String>,
    /// Each core has one budget for reads and write-backs together.
    #[serde(default)]
    pub combined: bool,
    /// Bytes that one event stands for; `None` leaves the choice to the regulator.
    pub bytes_per_event: Option<u64>,
    /// Length of a period in microseconds.
    pub period_us: u64,
    /// The machine's guaranteed bandwidth in MiB/s, if known.
    pub maxbw_mib_s: Option<u64>,
    /// Do not count the kernel's own traffic.
    pub user_only: bool,
    /// CPUs to regulate; the others run unregulated. `None` means every CPU.
    pub cpus: Option<CpuSet>,
}

/// The name that stands for each processor's own event.
const AUTO: &str = "auto";

/// The event that `event` requests; `None` if it is `auto`.
#[must_use]
pub fn given_event(event: &str) -> Option<&str> {
    Some(event).filter(|event| *event != AUTO)
}

impl StartOptions {
    /// The event that was requested; `None` if the regulator chooses.
    pub(crate) fn given_event(&self) -> Option<&str> {
        self.event.as_deref().and_then(given_event)
    }

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
            // MemGuard's default: short against a frame or a control loop, long against the work per period.
            period_us: 1000,
            maxbw_mib_s: None,
            user_only: false,
            cpus: None,
        }
    }
}

/// All settings, with their current values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Settings {
    /// The settings of all cores together.
    pub control: Control,
    /// Read budgets in events a period, by core; with a combined budget, those of reads and writes together.
    pub read_budget_events: BTreeMap<usize, Events>,
    /// Write budgets in events a period, by core; empty if writes have no separate budgets.
    pub write_budget_events: BTreeMap<usize, Events>,
}

impl Settings {
    /// A line that names the online cores without any budget, except those that are never throttled and those in
    /// `known`; `None` if there are none.
    #[must_use]
    pub fn without_budget(&self, known: impl Fn(usize) -> bool) -> Option<String> {
        let limited = |cpu| {
            [&self.read_budget_events, &self.write_budget_events]
                .into_iter()
                .any(|budgets| budgets.get(&cpu).is_some_and(Option::is_some))
        };
        let control = &self.control;
        let cpus: CpuSet = control
            .online
            .iter()
            .filter(|&cpu| !limited(cpu) && !control.rt.contains(cpu) && !known(cpu))
            .collect();
        match cpus.len() {
            0 => None,
            1 => Some(format!("CPU{cpus} has no budget")),
            _ => Some(format!("CPU{cpus} have no budget")),
        }
    }
}

/// A running recording. Dropping it ends the recording and removes its traces.
pub trait Recorder {
    /// Discards the recorded events and goes on.
    ///
    /// # Errors
    /// When the regulator refuses.
    fn restart(&self) -> Result<(), Error>;

    /// Ends the recording and returns it.
    ///
    /// # Errors
    /// When it can't be read.
    fn stop(&self) -> Result<Recording, Error>;
}

/// A regulator: it throttles cores to their budgets.
pub trait Regulator {
    /// Its name in reports: `module`, `user`, `null`.
    fn name(&self) -> &'static str;

    /// What a start with these options would count; `None` if only the start can tell.
    fn foretell(&self, options: &StartOptions) -> Option<Meaning> {
        let _ = options;
        None
    }

    /// Starts to count. No core is throttled before a budget is set.
    ///
    /// # Errors
    /// When it runs already, or can't run here.
    fn start(&mut self, options: &StartOptions) -> Result<(), Error>;

    /// Whether it is running, regardless of the process that started it.
    fn is_running(&self) -> bool;

    /// Identifies the running guard: every process gets the same text while it runs, and another text after a restart.
    /// Empty if no guard runs; `None` for a regulator that other processes can't reach.
    fn instance(&self) -> Option<String> {
        None
    }

    /// Reads all settings.
    ///
    /// # Errors
    /// When it isn't running, or can't be read.
    fn settings(&self) -> Result<Settings, Error>;

    /// Sets the requested budgets, either all or none of them.
    ///
    /// # Errors
    /// When it isn't running, or refuses.
    fn set_budgets(&mut self, resource: Resource, request: &Request) -> Result<(), Error>;

    /// Sets what happens when all active cores have used their budgets, and whether cores donate; `None` keeps it.
    ///
    /// # Errors
    /// When it isn't running, or refuses.
    fn set_mode(
        &mut self,
        best_effort: Option<BestEffort>,
        reclaim: Option<bool>,
    ) -> Result<(), Error>;

    /// Sets the machine's guaranteed bandwidth in MiB/s.
    ///
    /// # Errors
    /// When it isn't running, or refuses.
    fn set_maxbw(&mut self, maxbw_mib_s: u64) -> Result<(), Error>;

    /// Sets the period in microseconds. Budgets keep their unit: one in MB/s stays the same in MB/s. The length and the
    /// budgets change together, in the same period on all cores.
    ///
    /// # Errors
    /// When it isn't running, or refuses.
    fn set_period(&mut self, period_us: u64) -> Result<(), Error>;

    /// Exempts a core from throttling, or ends its exemption.
    ///
    /// # Errors
    /// When it isn't running, or refuses.
    fn set_rt(&mut self, cpu: usize, rt: bool) -> Result<(), Error>;

    /// Statistics of every core since the last reset.
    ///
    /// # Errors
    /// When it isn't running, or can't be read.
    fn statistics(&self) -> Result<Vec<CoreStatistics>, Error>;

    /// Resets the statistics.
    ///
    /// # Errors
    /// When it isn't running, or refuses.
    fn reset_statistics(&mut self) -> Result<(), Error>;

    /// Records every period and throttle of every core from now on, with space for `periods` periods of each core.
    ///
    /// # Errors
    /// When it isn't running, or can't record.
    fn record(&self, periods: u64) -> Result<Box<dyn Recorder>, Error> {
        let _ = periods;
        Err(Error::System(format!(
            "the {} regulator keeps no record of its periods",
            self.name()
        )))
    }

    /// Ends regulation; every core runs unregulated.
    ///
    /// # Errors
    /// When it isn't running, or can't be ended.
    fn stop(&mut self) -> Result<(), Error>;

    /// Restores settings that [`Regulator::settings`] returned earlier.
    ///
    /// # Errors
    /// When it isn't running. The first setting that it refuses; the others are restored.
    fn restore(&mut self, earlier: &Settings) -> Result<(), Error> {
        let now = self.settings()?;
        let mut outcome = Ok(());
        let mut note = |step: Result<(), Error>| {
            if outcome.is_ok() {
                outcome = step;
            }
        };
        let (was, is) = (&earlier.control, &now.control);
        // As in `Wanted::changes`: no budget, old or new, is too small for the period or maxbw beside it.
        if was.period_us > is.period_us {
            note(self.set_period(was.period_us));
        }
        if was.maxbw_mib_s > is.maxbw_mib_s {
            note(self.set_maxbw(was.maxbw_mib_s));
        }
        let new_basis = was.period_us != is.period_us || was.maxbw_mib_s != is.maxbw_mib_s;
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
            for (&cpu, &events) in earlier {
                // A core that went offline in the meantime has no budget to restore.
                let Some(&present) = now.get(&cpu) else {
                    continue;
                };
                if present != events || new_basis && events.is_some() {
                    note(self.set_budgets(resource, &Request::events_for_cpu(cpu, events)));
                }
            }
        }
        if was.period_us < is.period_us {
            note(self.set_period(was.period_us));
        }
        if was.maxbw_mib_s < is.maxbw_mib_s {
            note(self.set_maxbw(was.maxbw_mib_s));
        }
        for cpu in is.online.iter() {
            let rt = was.rt.contains(cpu);
            if is.rt.contains(cpu) != rt {
                note(self.set_rt(cpu, rt));
            }
        }
        let mode = |control: &Control| (control.best_effort, control.reclaim);
        if mode(is) != mode(was) {
            note(self.set_mode(Some(was.best_effort), Some(was.reclaim)));
        }
        outcome
    }
}
