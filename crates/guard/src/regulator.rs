// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface of every regulator.

use std::collections::BTreeMap;

use memwarden_platform::cpus::CpuSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::budget::{Events, Request};
use crate::event_list::same_events;
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
pub(crate) fn given_event(event: &str) -> Option<&str> {
    Some(event).filter(|event| *event != AUTO)
}

impl StartOptions {
    /// The event that was requested; `None` if the regulator chooses.
    pub(crate) fn given_event(&self) -> Option<&str> {
        self.event.as_deref().and_then(given_event)
    }

    /// Refuses options that differ from a running guard's, which can't be changed while it runs; an option that was not
    /// given suits every guard. The period always has a value, so the caller compares it.
    ///
    /// # Errors
    /// The first option that differs.
    pub fn suit(&self, control: &Control) -> Result<(), Error> {
        const TOGETHER: &str = "reads and write-backs together";
        let same = |event: &str| same_events(event, &control.event, &control.cpus);
        let event = self.given_event().filter(|event| !same(event));
        let asked = event.map(str::to_owned);
        running_has("--event", asked, &control.event)?;
        let running = control.write_event.as_deref().unwrap_or("none");
        running_has("--write-event", self.write_event.clone(), running)?;
        let running = match control.combined {
            true => TOGETHER,
            false => "budgets of reads",
        };
        let asked = self.combined.then(|| TOGETHER.to_owned());
        running_has("--combined", asked, running)?;
        let running = control.bytes_per_event.to_string();
        let asked = self.bytes_per_event.map(|bytes| bytes.to_string());
        running_has("--bytes-per-event", asked, &running)?;
        let asked = self.maxbw_mib_s.map(|maxbw| maxbw.to_string());
        running_has("--maxbw", asked, &control.maxbw_mib_s.to_string())?;
        let running = match control.user_only {
            true => "user-only",
            false => "including the kernel's traffic",
        };
        let asked = self.user_only.then(|| "user-only".to_owned());
        running_has("--user-only", asked, running)
    }

    /// Whether `cpu` is to be regulated.
    pub fn regulates(&self, cpu: usize) -> bool {
        self.cpus.as_ref().is_none_or(|cpus| cpus.contains(cpu))
    }
}

/// Refuses an option whose value `asked` is not the running guard's; `None` if the option was not given.
///
/// # Errors
/// When the values differ.
pub fn running_has(option: &str, asked: Option<String>, running: &str) -> Result<(), Error> {
    match asked.filter(|asked| asked != running) {
        None => Ok(()),
        Some(asked) => Err(Error::BadInput(format!(
            "{option}: {asked} was requested, but the running guard has {running}: leave the option out, or end that \
             guard first (`memwarden guard stop`)"
        ))),
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

#[cfg(test)]
mod tests {
    use memwarden_platform::cpus::CpuSet;

    use super::*;
    use crate::Null;

    #[test]
    fn only_options_that_were_given_must_be_the_running_guards() {
        let mut guard = Null::new(CpuSet::from_iter([0, 1]));
        let given = StartOptions {
            bytes_per_event: Some(4096),
            maxbw_mib_s: Some(1200),
            ..StartOptions::default()
        };
        guard.start(&given).unwrap();
        let control = guard.settings().unwrap().control;
        let same = StartOptions {
            event: Some(control.event.clone()),
            write_event: control.write_event.clone(),
            ..given.clone()
        };
        let auto = StartOptions {
            event: Some("auto".into()),
            ..StartOptions::default()
        };
        for options in [StartOptions::default(), auto, given, same] {
            options.suit(&control).unwrap();
        }
        let differ = |change: fn(&mut StartOptions)| {
            let mut options = StartOptions::default();
            change(&mut options);
            options.suit(&control).unwrap_err().to_string()
        };
        assert_eq!(
            differ(|options| options.bytes_per_event = Some(64)),
            "--bytes-per-event: 64 was requested, but the running guard has 4096: leave the option out, or end that guard \
             first (`memwarden guard stop`)"
        );
        for (change, said) in [
            (
                (|options| options.event = Some("cycles".into())) as fn(&mut StartOptions),
                "--event: cycles ",
            ),
            (
                |options| options.write_event = Some("0x18".into()),
                "--write-event: 0x18 ",
            ),
            (|options| options.combined = true, "--combined: "),
            (|options| options.maxbw_mib_s = Some(1), "--maxbw: 1 "),
            (|options| options.user_only = true, "--user-only: "),
        ] {
            let refused = differ(change);
            assert!(refused.starts_with(said), "{refused}");
        }
    }
}
