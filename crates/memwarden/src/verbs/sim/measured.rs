// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measured figures from runs of the experiments, matched with the published cases: the same workloads with the same
//! memory under the same guard.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use memwarden_platform::units::Size;
use memwarden_run::{Aggressor, GuardSettings, Recorded, Run, studies};
use memwarden_sim::cases::{Budgets, Case, Measure, Mode};
use serde::de::DeserializeOwned;

use crate::verbs::experiment::parsed;
use crate::verbs::{interfere, realtime};

const MIB: f64 = (1 << 20) as f64;
const LINE_BYTES: f64 = 64.0;

/// The cases of several run folders.
pub(super) struct Measured(Vec<Found>);

struct Found {
    run: PathBuf,
    setting: Setting,
    figures: BTreeMap<Measure, f64>,
}

/// The key by which a published case matches one of a run.
#[derive(Debug, PartialEq)]
struct Setting {
    subject: Subject,
    /// Sorted.
    loads: Vec<String>,
    guard: Option<Guarded>,
}

/// The workload whose figures are compared.
#[derive(Debug, PartialEq)]
enum Subject {
    Workload {
        kind: String,
        bytes: u64,
    },
    Task {
        frame_bytes: u64,
        period_us: u64,
        deadline_us: u64,
    },
}

/// The part of a guard's settings that a case depends on: budgets of the active cores.
#[derive(Debug, PartialEq)]
struct Guarded {
    subject_mib_s: u64,
    /// Sorted.
    loads_mib_s: Vec<u64>,
    best_effort: String,
    reclaim: bool,
    period_us: u64,
}

/// Measures the published cases of `platform` on the lab's machine with its memory, into the run folder `run`.
pub(super) fn measure(platform: &str, cases: &[Case], run: &Path) -> Result<()> {
    let on = format!("lab:{platform}");
    let options = ["--on", &on, "--out"].map(OsStr::new);
    let options = options.into_iter().chain([run.as_os_str()]);
    if cases.iter().any(|case| case.task.is_some()) {
        realtime::measure(&parsed(options)?)?;
    } else {
        interfere::measure(&parsed(options)?)?;
    }
    Ok(())
}

impl Measured {
    /// Reads the cases of `folders`.
    ///
    /// # Errors
    /// When a folder is not a run folder of interfere or realtime.
    pub(super) fn read(folders: &[PathBuf]) -> Result<Self> {
        let mut all = Vec::new();
        for folder in folders {
            let recorded = Recorded::read(folder).context("--lab")?;
            let found = match recorded.run.experiment.as_str() {
                studies::interfere::NAME => of_interfere(&recorded),
                studies::realtime::NAME => of_realtime(&recorded),
                other => bail!(
                    "--lab {}: it is a run of {other}: give one of interfere or realtime",
                    folder.display()
                ),
            };
            all.extend(found.with_context(|| format!("--lab {}", folder.display()))?);
        }
        Ok(Self(all))
    }

    /// The measured figure of that case, from the last folder that has it.
    pub(super) fn figure(&self, case: &Case, measure: Measure) -> Option<f64> {
        let wanted = Setting::of(case)?;
        let mut found = self.0.iter().rev().filter(|found| found.setting == wanted);
        found.find_map(|found| found.figures.get(&measure).copied())
    }

    /// Folders without a published case.
    pub(super) fn unused<'a>(&'a self, cases: &'a [Case]) -> impl Iterator<Item = &'a Path> {
        let wanted: Vec<Setting> = cases.iter().filter_map(Setting::of).collect();
        let used = move |run: &Path| {
            let mut of_run = self.0.iter().filter(|found| found.run == run);
            of_run.any(|found| wanted.contains(&found.setting))
        };
        let mut runs: Vec<&Path> = self.0.iter().map(|found| found.run.as_path()).collect();
        runs.dedup();
        runs.into_iter().filter(move |run| !used(run))
    }
}

impl Setting {
    /// The key of a published case.
    fn of(case: &Case) -> Option<Self> {
        let mut busy = case
            .workloads
            .iter()
            .enumerate()
            .filter(|(_, kind)| *kind != "idle");
        let (core, kind) = busy.next()?;
        let others: Vec<(usize, &String)> = busy.collect();
        let subject = match case.task {
            Some(task) if kind == "task" => Subject::Task {
                frame_bytes: task.frame_bytes,
                period_us: task.period_us,
                deadline_us: task.deadline_us,
            },
            _ => Subject::Workload {
                kind: kind.clone(),
                bytes: case.memory_bytes,
            },
        };
        let of = |budgets: &Budgets, core: usize| budgets.mib_s.get(core).copied().unwrap_or(0);
        let guard = case.guard.as_ref().map(|guard| Guarded {
            subject_mib_s: of(guard, core),
            loads_mib_s: sorted(others.iter().map(|(core, _)| of(guard, *core))),
            best_effort: match guard.best_effort {
                Mode::None => "none",
                Mode::Spare => "spare",
                Mode::Proportional => "proportional",
            }
            .into(),
            reclaim: guard.reclaim,
            period_us: guard.period_us,
        });
        Some(Self {
            subject,
            loads: sorted(others.into_iter().map(|(_, kind)| kind.clone())),
            guard,
        })
    }
}

fn sorted<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.collect();
    all.sort();
    all
}

/// The settings of a run.
fn settings<S: DeserializeOwned>(run: &Run) -> Result<S> {
    let settings = serde_json::from_value(run.configuration.clone().into());
    settings.context("run.json: its settings")
}

fn of_interfere(recorded: &Recorded) -> Result<Vec<Found>> {
    let Recorded { run, summary, .. } = recorded;
    let settings: memwarden_experiments::interfere::Config = settings(run)?;
    let summary: studies::interfere::Summary = summary.typed()?;
    let found = summary.cases.iter().map(|ran| {
        let subject = Subject::Workload {
            kind: settings.victim.to_string(),
            bytes: settings.victim_memory.map_or(0, Size::bytes),
        };
        let period_us = settings.period.as_us();
        let guard = ran.guard.as_ref();
        Ok(Found {
            run: recorded.directory.clone(),
            setting: Setting {
                subject,
                loads: sorted(ran.aggressors.iter().map(|load| load.kind.clone())),
                guard: guard
                    .map(|guard| guarded(guard, settings.victim_cpu, &ran.aggressors, period_us)),
            },
            figures: of_victim(ran),
        })
    });
    found.collect()
}

fn of_realtime(recorded: &Recorded) -> Result<Vec<Found>> {
    let Recorded { run, summary, .. } = recorded;
    let settings: memwarden_experiments::realtime::Config = settings(run)?;
    let summary: studies::realtime::Summary = summary.typed()?;
    let found = summary.cases.iter().map(|ran| {
        let subject = Subject::Task {
            frame_bytes: settings.frame.bytes(),
            period_us: settings.period.as_us(),
            deadline_us: settings.deadline.as_us(),
        };
        let period_us = settings.guard_period.as_us();
        let guard = ran.guard.as_ref();
        Ok(Found {
            run: recorded.directory.clone(),
            setting: Setting {
                subject,
                loads: sorted(ran.aggressors.iter().map(|load| load.kind.clone())),
                guard: guard
                    .map(|guard| guarded(guard, settings.victim_cpu, &ran.aggressors, period_us)),
            },
            figures: of_task(ran),
        })
    });
    found.collect()
}

fn guarded(guard: &GuardSettings, core: usize, loads: &[Aggressor], period_us: u64) -> Guarded {
    let of = |core: usize| {
        let budget = guard.budget_mib_s.get(core).copied().flatten();
        budget.map_or(0, |mib_s| mib_s.round() as u64)
    };
    Guarded {
        subject_mib_s: of(core),
        loads_mib_s: sorted(loads.iter().map(|load| of(load.cpu as usize))),
        best_effort: guard.best_effort.clone(),
        reclaim: guard.reclaim,
        period_us,
    }
}

/// Figures of a case of interfere.
fn of_victim(ran: &studies::interfere::Case) -> BTreeMap<Measure, f64> {
    let mut figures = of_loads(&ran.aggressors);
    if let Some(victim) = &ran.victim {
        if let Some(median) = victim.median {
            // Bandwidth and time of a line are equivalent.
            let other = 1e9 * LINE_BYTES / MIB / median;
            let (ns, mib_s) = match victim.metric.as_str() {
                "latency_ns" => (median, other),
                _ => (other, median),
            };
            figures.insert(Measure::LatencyNs, ns);
            figures.insert(Measure::MibS, mib_s);
        }
    }
    figures
}

/// Figures of a case of realtime.
fn of_task(ran: &studies::realtime::Case) -> BTreeMap<Measure, f64> {
    let mut figures = of_loads(&ran.aggressors);
    let response = ran.victim.as_ref();
    let ms = |ns: Option<f64>| ns.map(|ns| ns / 1e6);
    let all = [
        (Measure::P99Ms, ms(response.and_then(|times| times.p99))),
        (Measure::WorstMs, ms(response.and_then(|times| times.max))),
        (Measure::MissShare, ran.miss_share),
    ];
    figures.extend(
        all.into_iter()
            .filter_map(|(measure, value)| Some((measure, value?))),
    );
    figures
}

fn of_loads(loads: &[Aggressor]) -> BTreeMap<Measure, f64> {
    let moved: Option<Vec<f64>> = loads.iter().map(|load| load.mib_s).collect();
    let moved = moved.filter(|all| !all.is_empty());
    moved
        .map(|all| (Measure::LoadMibS, all.iter().sum()))
        .into_iter()
        .collect()
}
