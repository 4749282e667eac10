// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does the reaction grow with the number of CPUs? Every core over its budget, reclaim on, and nothing to reclaim.

use memwarden_guard::BestEffort;
use memwarden_run::Case;

use super::Bench;
use super::rig::{Load, Rig};
use crate::Error;

/// Small enough that sixteen cores have room on one stream of instructions: 16 x 5 faults are 0.3 ms of work.
const BUDGET: u64 = 5;

/// Periods watched: with two CPUs still hundreds of throttles.
const PERIODS: u32 = 200;

pub(super) fn run(bench: &mut Bench) -> Result<(), Error> {
    let online: Vec<usize> = memwarden_platform::cpus::online()?.iter().collect();
    bench.progress.step(0, 1, &format!("{} CPUs", online.len()));
    let mut rig = Rig::start(bench.module.clone(), "page-faults", 1000, bench.interrupt)?;
    let budgets: Vec<_> = online.iter().map(|cpu| (*cpu, BUDGET)).collect();
    let loads: Vec<_> = online.iter().map(|cpu| Load::faults(*cpu)).collect();
    rig.budgets(&budgets)?;
    rig.mode(BestEffort::None, true)?;
    let seen = rig.watch(&loads, PERIODS)?;
    rig.end()?;
    let name = format!("scaling: {} CPUs", online.len());
    let cores = || seen.proof.cores.values();
    let latency = cores().flat_map(|core| core.throttle_latency_ns.iter().map(|ns| (core.cpu, ns)));
    let latency = bench.metric(&name, "throttle_latency_ns", "ns", latency)?;
    let sum =
        |of: fn(&memwarden_guard::CoreStatistics) -> u64| seen.cores.values().map(of).sum::<u64>();
    let case = Case::new(&name)
        .with("figure", "scaling")
        .with("event", "page-faults")
        .with("cpus", online.len())
        .with("budget_events", BUDGET)
        .with("overflows", sum(|core| core.overflows))
        .with("throttled_periods", sum(|core| core.throttled_periods))
        .with("reclaimed_events", sum(|core| core.read.reclaimed))
        .with("missed_periods", sum(|core| core.missed_periods))
        .with_metric("throttle_latency_ns", latency);
    bench.add(case)?;
    bench.progress.step(1, 1, "done");
    Ok(())
}
