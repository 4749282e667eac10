// SPDX-License-Identifier: MIT OR Apache-2.0
//! What experiments on a simulated machine share: its cores, its guard, its run folder.

use std::collections::BTreeMap;

use memwarden_guard::budget::Events;
use memwarden_guard::trace::{Recording, TraceEvent, What};
use memwarden_guard::{BestEffort, Null, Regulator, Settings, StartOptions};
use memwarden_platform::cpus::CpuSet;
use memwarden_run::studies::Traffic;
use memwarden_run::{Run, RunFolder};
use memwarden_sim::dram::Activity;
use memwarden_sim::platform::PlatformError;
use memwarden_sim::regulator::EndedPeriod;
use memwarden_sim::sweep::sweep;
use memwarden_sim::{Guard, Platform};
use serde::Serialize;
use serde_json::json;

use crate::{Error, GuardSpec, Proof, RunRequest};

/// The regulator's name in a summary.
const BACKEND: &str = "sim";

/// A platform, and the name that it was requested by.
#[derive(Debug, Clone)]
pub struct Simulated {
    /// The text behind `sim:`.
    pub asked: String,
    /// The platform.
    pub platform: Platform,
}

impl From<PlatformError> for Error {
    fn from(error: PlatformError) -> Self {
        Self::BadInput(error.with_causes())
    }
}

impl Simulated {
    /// Finds the platform with that name or file.
    ///
    /// # Errors
    /// When there is none, or its file is invalid.
    pub fn find(asked: &str) -> Result<Self, Error> {
        Ok(Self {
            asked: asked.into(),
            platform: Platform::find(asked)?,
        })
    }

    /// `sim:PLATFORM`.
    pub(crate) fn target(&self) -> String {
        format!("sim:{}", self.asked)
    }

    /// Its cores.
    pub(crate) fn cores(&self) -> CpuSet {
        (0..self.platform.machine.cores).collect()
    }

    /// Refuses cores that the platform lacks.
    pub(crate) fn has(
        &self,
        option: &str,
        cpus: impl IntoIterator<Item = usize>,
    ) -> Result<(), Error> {
        let cores = self.cores();
        match cpus.into_iter().find(|cpu| !cores.contains(*cpu)) {
            Some(cpu) => Err(Error::BadInput(format!(
                "{option}: core {cpu} is not one of {}'s {cores}",
                self.platform.name
            ))),
            None => Ok(()),
        }
    }

    /// Begins the run folder, which includes the complete platform description.
    pub(crate) fn begin(
        &self,
        experiment: &str,
        settings: &impl Serialize,
        request: &RunRequest,
    ) -> Result<RunFolder, Error> {
        let mut record = Run::new(experiment, self.target()).with_settings(settings);
        record.platform = Some(json!({
            "platform": self.platform,
            "memory": self.platform.memory().map_err(PlatformError::from)?,
        }));
        Ok(RunFolder::create(request.out, record, request.existing)?)
    }

    /// The guard's settings in the form of a regulator, and in the form of the model.
    pub(crate) fn guard(
        &self,
        spec: &GuardSpec,
        options: &StartOptions,
    ) -> Result<((String, Settings), Guard), Error> {
        let mut null = Null::new(self.cores());
        null.start(&StartOptions {
            bytes_per_event: Some(self.platform.machine.line_bytes),
            ..options.clone()
        })?;
        spec.check()?;
        spec.set(&mut null)?;
        let mut settings = null.settings()?;
        settings.control.event = "refills of the last cache".into();
        if settings.control.combined {
            settings.control.write_event = Some("write-backs of the last cache".into());
        }
        let control = &settings.control;
        let limit = |events: Option<&Events>| match events {
            Some(Some(events)) => *events,
            _ => memwarden_sim::UNLIMITED,
        };
        let guard = Guard {
            budgets: self
                .cores()
                .iter()
                .map(|core| {
                    [
                        limit(settings.read_budget_events.get(&core)),
                        limit(settings.write_budget_events.get(&core)),
                    ]
                })
                .collect(),
            combined: control.combined,
            best_effort: match control.best_effort {
                BestEffort::None => memwarden_sim::BestEffort::None,
                BestEffort::Spare => memwarden_sim::BestEffort::Spare,
                BestEffort::Proportional => memwarden_sim::BestEffort::Proportional,
            },
            reclaim: control.reclaim,
            period_ps: control.period_us * 1_000_000,
            per_bank: spec.per_bank,
        };
        Ok(((BACKEND.into(), settings), guard))
    }

    /// Runs all jobs, on all CPUs. After an interrupt, the results are those of the first jobs.
    pub(crate) fn all<T: Sync, R: Send>(
        all: &[T],
        run: impl Fn(&T) -> Result<R, PlatformError> + Sync,
        request: RunRequest,
    ) -> Result<Vec<R>, Error> {
        let results = sweep(all, run, |done| {
            let number = done.min(all.len().saturating_sub(1));
            request.progress.step(number, all.len(), "simulating");
            !request.interrupt.came()
        });
        request.progress.step(all.len(), all.len(), "done");
        let (Ok(results) | Err(results)) = results;
        results
            .into_iter()
            .map(|one| one.map_err(Error::from))
            .collect()
    }

    /// Bandwidth and power of the memory over `time_ps`.
    pub(crate) fn traffic(&self, activity: &Activity, time_ps: u64) -> Result<Traffic, Error> {
        let memory = self.platform.memory().map_err(PlatformError::from)?;
        let lines = activity.reads + activity.writes;
        let bytes = (lines * memory.organisation.burst_bytes()) as f64;
        let energy = memory.energy(activity, time_ps);
        let bytes_per_s = bytes / (time_ps as f64 / 1e12);
        Ok(Traffic {
            memory_gb_s: bytes_per_s / 1e9,
            memory_peak_share: bytes_per_s / memory.peak_bytes_per_s(),
            memory_power_mw: energy.map(|energy| energy.mean_mw(time_ps)),
        })
    }
}

/// The periods in the form of a real regulator's trace.
pub(crate) fn proof(periods: &[EndedPeriod]) -> Proof {
    let events = periods.iter().map(|period| TraceEvent {
        cpu: period.core,
        t_ns: period.at_ps / 1000,
        what: What::Period {
            epoch: 0,
            periods: 1,
            late_ns: 0,
            used_read: period.used[0],
            assigned_read: period.assigned[0],
            used_write: period.used[1],
            assigned_write: period.assigned[1],
            throttled_ns: period.throttled_ps / 1000,
        },
    });
    Proof::of(&Recording {
        events: events.collect(),
        lost: 0,
    })
}

/// Share of `time_ps` of each regulated core, for which it was throttled, or its requests were held back.
pub(crate) fn share_of_regulated(
    settings: &Settings,
    stopped_ps: &[u64],
    time_ps: u64,
) -> BTreeMap<usize, f64> {
    let regulated = settings
        .read_budget_events
        .iter()
        .filter(|(_, events)| events.is_some());
    regulated
        .filter_map(|(core, _)| Some((*core, *stopped_ps.get(*core)? as f64 / time_ps as f64)))
        .collect()
}
