// SPDX-License-Identifier: MIT OR Apache-2.0
//! One run of one case: starts the load, runs the task, ends the load.

use std::collections::BTreeMap;
use std::path::Path;

use memwarden_guard::{CoreStatistics, Regulator, Settings};
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::units::Size;
use memwarden_run::studies::realtime::OnMiss as Told;
use memwarden_workloads::periodic::Job;
use serde::Deserialize;

use super::Config;
use super::load::{Achieved, Load, Place, Running};
use super::on_miss::OnMiss;
use crate::{Child, Error, Interrupt, Workload};

/// The task's output.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct TaskRun {
    cpu: usize,
    /// Bytes that a job goes over; none for a program.
    pub frame_bytes: Option<u64>,
    pub releases: u64,
    pub skipped: u64,
    pub misses: u64,
    pub jobs: Vec<Job>,
    /// Remarks on the measurement.
    pub notes: Vec<String>,
}

impl TaskRun {
    /// The output as the model's task would print it.
    pub fn simulated(cpu: usize, frame_bytes: u64, releases: u64, jobs: Vec<Job>) -> Self {
        let skipped = releases - jobs.len() as u64;
        let late = jobs.iter().filter(|job| job.missed).count() as u64;
        Self {
            cpu,
            frame_bytes: Some(frame_bytes),
            releases,
            skipped,
            misses: skipped + late,
            jobs,
            notes: Vec::new(),
        }
    }

    /// For each release, in their order, whether its job was late or skipped.
    pub fn missed(&self) -> Vec<bool> {
        let mut missed = Vec::with_capacity(self.jobs.len());
        let mut skipped = self.skipped;
        for job in &self.jobs {
            while skipped > 0 && (missed.len() as u64) < job.number {
                missed.push(true);
                skipped -= 1;
            }
            missed.push(job.missed);
        }
        missed.extend((0..skipped).map(|_| true));
        missed
    }
}

/// Results of a case so far.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// Backend and settings of the case.
    pub settings: Option<(String, Settings)>,
    /// The task's output in each repeat.
    pub tasks: Vec<TaskRun>,
    /// The load's figures in each repeat.
    pub loads: Vec<Vec<Achieved>>,
    /// Throttled share by CPU, from the guard, in each repeat.
    pub throttled_share: Vec<BTreeMap<usize, f64>>,
    /// With budgets per bank: the share of the time for which a core's requests were held back.
    pub held_back_share: Vec<BTreeMap<usize, f64>>,
    /// Outcome of `--on-miss`.
    pub on_miss: Option<Told>,
}

/// Surroundings of a case.
pub(super) struct Around<'a> {
    /// The guard, if the case has one.
    pub guard: Option<&'a dyn Regulator>,
    /// All CPUs but the task's.
    pub others: &'a CpuSet,
    /// Default buffer of a load.
    pub load_memory: Size,
    /// File for the standard error of the user's programs.
    pub log: &'a Path,
    pub interrupt: &'a Interrupt,
}

/// Measures case `name` once. After an interrupt, `measured` has the jobs until then.
pub(super) fn measure(
    config: &Config,
    name: &str,
    load: Option<&Load>,
    around: &Around,
    measured: &mut Measured,
) -> Result<(), Error> {
    let interrupt = around.interrupt;
    interrupt.check()?;
    if let Some(guard) = around.guard {
        measured.settings = Some((guard.name().to_owned(), guard.settings()?));
    }
    let place = Place {
        cpus: &config.cpus,
        others: around.others,
        memory: load.and_then(|load| config.load_buffer(load, around.load_memory)),
        guard: measured.settings.as_ref().map(|(_, settings)| settings),
        log: around.log,
    };
    let mut running = load
        .map(|load| Running::start(load, place, interrupt))
        .transpose()?;
    interrupt.wait(config.settle.duration())?;

    let before = around.guard.map(Regulator::statistics).transpose()?;
    let command = if measured.on_miss.is_some() {
        ""
    } else {
        &config.on_miss
    };
    let mut on_miss = OnMiss::new(command, name, config.deadline.duration());
    if let Some(running) = &mut running {
        running.watch();
    }
    let mut task = Child::start(&config.task(), false)?;
    if matches!(config.victim, Workload::Program(_)) {
        task = task.driving();
    }
    let (result, cut) = task.wait_or_cut_short(interrupt, &mut |line| on_miss.hear(line))?;
    let mut task: TaskRun = serde_json::from_value(result).map_err(|error| {
        Error::workload(
            "periodic",
            format!("gave no result that can be read: {error}"),
        )
    })?;
    if task.cpu != config.victim_cpu {
        return Err(Error::workload(
            "periodic",
            format!(
                "was pinned to CPU {} and ended on CPU {}: its CPU affinity was changed meanwhile",
                config.victim_cpu, task.cpu
            ),
        ));
    }
    if cut {
        // A terminal sends Ctrl-C to the load, too: it may have ended during the last job.
        task.jobs.pop();
    }
    measured.tasks.push(task);
    // Before the load's end: it verifies its buffer, and that time is not the task's.
    let shares = around
        .guard
        .zip(before)
        .map(|(guard, before)| throttled_share(guard, &before));
    if let Some(running) = running {
        let achieved = running.end();
        measured.loads.push(match cut {
            true => achieved.unwrap_or_default(),
            false => achieved?,
        });
    }
    match shares {
        Some(Ok(share)) => measured.throttled_share.push(share),
        // The jobs count all the same.
        Some(Err(error)) if !cut => return Err(error),
        _ => {}
    }
    if cut {
        return Err(Error::Interrupted);
    }
    if let Some(told) = on_miss.finish(interrupt)? {
        measured.on_miss = Some(told);
    }
    Ok(())
}

fn throttled_share(
    guard: &dyn Regulator,
    before: &[CoreStatistics],
) -> Result<BTreeMap<usize, f64>, Error> {
    let period_us = guard.settings()?.control.period_us;
    let now = guard.statistics()?;
    let shares = now.iter().zip(before).filter_map(|(core, before)| {
        Some((core.cpu, core.since(before).throttled_share(period_us)?))
    });
    Ok(shares.collect())
}
