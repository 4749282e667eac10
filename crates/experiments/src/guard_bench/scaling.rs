// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests whether the reaction time grows with the number of CPUs. Reclaim is on but finds nothing: the overflow handler
//! queries the pool and every other core's share of it, and then throttles.
//!
//! Each machine is measured twice. With one hungry core the time is the guard's own; with all cores hungry it includes
//! the kernel's work for the other cores at the same moment.

use memwarden_guard::{BestEffort, CoreStatistics};
use memwarden_run::studies::guard_bench::{Case, Figure, Scaling};

use super::Bench;
use super::rig::{Load, Rig, Seen};
use crate::Error;

/// Budget of each core when all are hungry.
const BUDGET_TOGETHER: u64 = 5;

/// Budget of the single hungry core: 100 faults take about 0.4 ms, so the overflow comes well after the other cores
/// have begun their periods.
const BUDGET_ALONE: u64 = 100;

/// Periods watched; even two CPUs give hundreds of throttles.
const PERIODS: u32 = 200;

/// The single hungry core.
const ALONE: usize = 0;

pub(super) fn run(bench: &mut Bench) -> Result<(), Error> {
    let online: Vec<usize> = memwarden_platform::cpus::online()?.iter().collect();
    let name = format!("scaling: {} CPUs", online.len());
    let mut rig = Rig::start(bench, &bench.subject.event, 1000)?;
    rig.mode(BestEffort::None, true)?;

    bench
        .progress
        .step(0, 2, &format!("{} CPUs, one hungry", online.len()));
    rig.budgets(&[(ALONE, BUDGET_ALONE)])?;
    let one = rig.watch(&[Load::faults(ALONE)], PERIODS)?;
    bench
        .progress
        .step(1, 2, &format!("{} CPUs, all hungry", online.len()));
    let budgets: Vec<_> = online.iter().map(|cpu| (*cpu, BUDGET_TOGETHER)).collect();
    let loads: Vec<_> = online.iter().map(|cpu| Load::faults(*cpu)).collect();
    rig.budgets(&budgets)?;
    let all = rig.watch(&loads, PERIODS)?;
    rig.end()?;

    let mut latency = |seen: &Seen, metric: &str| {
        let values = seen.proof.cores.values();
        let values =
            values.flat_map(|core| core.throttle_latency_ns.iter().map(|ns| (core.cpu, ns)));
        bench.metric(&name, metric, "ns", values)
    };
    let (of_one, of_all) = (
        latency(&one, "throttle_latency_ns")?,
        latency(&all, "throttle_latency_all_ns")?,
    );
    let sum = |of: fn(&CoreStatistics) -> u64| all.cores.values().map(of).sum::<u64>();
    let case = Case::new(
        &name,
        Figure::Scaling(Scaling {
            event: "page-faults".into(),
            cpus: online.len() as u64,
            budget_events: BUDGET_ALONE,
            budget_together_events: BUDGET_TOGETHER,
            overflows: sum(|core| core.overflows),
            reclaimed_events: sum(|core| core.read.reclaimed),
            missed_periods: sum(|core| core.missed_periods),
            throttle_latency_ns: Some(of_one),
            throttle_latency_all_ns: Some(of_all),
        }),
    );
    bench.summary.note(
        "Scaling: throttle_latency_ns is with one core over its budget and is judged; throttle_latency_all_ns is with \
         all of them, and holds what the kernel does for the others at the same moment.",
    );
    bench.add(case)?;
    bench.progress.step(2, 2, "done");
    Ok(())
}
