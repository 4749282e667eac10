// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regulation by overflow interrupts of a hardware counter; the lab's PMU counts cycles.

use std::fs;
use std::io::Write;

use memwarden_run::studies::guard_bench::{Case, Figure, Pmu};

use super::rig::{Load, Rig};
use super::{Bench, Event, judged, without_target};
use crate::Error;
use crate::traffic::Counted;

const PERIOD_US: u64 = 1000;

/// Half a period at the emulated 1 GHz: a budget of cycles is a budget of time.
const BUDGET: u64 = 500 * PERIOD_US;

/// Periods watched.
const PERIODS: u32 = 400;

/// Limits by which perf slows down a counter that interrupts too often; they must be lifted in this order. A
/// regulator's counter interrupts once a period by design.
const PERF_RATE: &str = "/proc/sys/kernel/perf_event_max_sample_rate";
const PERF_TIME: &str = "/proc/sys/kernel/perf_cpu_time_max_percent";

/// In the lab a cycle is a nanosecond: the overshoot is the throttle latency, plus the time between the overflow and
/// the interrupt's first reading of the clock.
const INTERRUPT_NS: u64 = 2000;

/// perf's previous limits; restored when dropped.
struct PerfLimits(Vec<(&'static str, String)>);

impl PerfLimits {
    /// Lifts the limits; adds a note on those that cannot be lifted.
    fn lift(bench: &mut Bench) -> Self {
        let mut limits = Self(Vec::new());
        let before = |path| fs::read_to_string(path).unwrap_or_default();
        // While this limit is off, the kernel refuses to change the other one.
        if matches!(before(PERF_TIME).trim(), "0" | "100") {
            return limits;
        }
        for (path, value) in [(PERF_RATE, "1000000"), (PERF_TIME, "100")] {
            let was = before(path);
            match fs::write(path, value) {
                Ok(()) => limits.0.push((path, was)),
                Err(error) => bench
                    .summary
                    .note(format!("perf's limit {path} could not be lifted: {error}.")),
            }
        }
        limits
    }
}

impl Drop for PerfLimits {
    fn drop(&mut self) {
        // In reverse order: while the last limit is off, the kernel refuses to change the other one.
        for (path, was) in self.0.iter().rev() {
            if let Err(error) = fs::write(path, was) {
                let _ = writeln!(
                    std::io::stderr(),
                    "memwarden: {path} was {}: {error}",
                    was.trim()
                );
            }
        }
    }
}

pub(super) fn run(bench: &mut Bench) -> Result<(), Error> {
    let online: Vec<usize> = memwarden_platform::cpus::online()?.iter().collect();
    bench
        .progress
        .step(0, 1, &format!("cycles, {} CPUs", online.len()));
    let _limits = PerfLimits::lift(bench);
    let cycles = Event {
        name: "cycles".into(),
        user_only: false,
        counted: Counted::Time,
    };
    let budgets: Vec<_> = online.iter().map(|cpu| (*cpu, BUDGET)).collect();
    let loads: Vec<_> = online.iter().map(|cpu| Load::busy(*cpu)).collect();
    let mut rig = Rig::start(bench, &cycles, PERIOD_US)?;
    rig.budgets(&budgets)?;
    let seen = rig.watch(&loads, PERIODS)?;
    rig.end()?;
    let name = format!(
        "pmu: cycles, {} CPU{}",
        online.len(),
        if online.len() == 1 { "" } else { "s" }
    );
    let cores = || seen.proof.cores.values();
    let overshoot = cores().flat_map(|core| core.overshoot.iter().map(|events| (core.cpu, events)));
    let overshoot = bench.metric(&name, "overshoot_events", "events", overshoot)?;
    let latency = cores().flat_map(|core| core.throttle_latency_ns.iter().map(|ns| (core.cpu, ns)));
    let latency = bench.metric(&name, "throttle_latency_ns", "ns", latency)?;
    let release = cores().flat_map(|core| core.release_latency_ns.iter().map(|ns| (core.cpu, ns)));
    let release = bench.metric(&name, "release_latency_ns", "ns", release)?;
    let before_ns: Vec<(usize, u64)> = cores()
        .flat_map(|core| {
            let pairs = core.overshoot.iter().zip(&core.throttle_latency_ns);
            pairs.map(|(over, latency)| (core.cpu, over.saturating_sub(*latency)))
        })
        .collect();
    let exact = !before_ns.is_empty() && before_ns.iter().all(|(_, ns)| *ns <= INTERRUPT_NS);
    let before = before_ns.iter().map(|(cpu, ns)| (*cpu, ns));
    let before = bench.metric(&name, "interrupt_latency_ns", "ns", before)?;
    let sum =
        |of: fn(&memwarden_guard::CoreStatistics) -> u64| seen.cores.values().map(of).sum::<u64>();
    let case = Case::new(
        &name,
        Figure::Pmu(Pmu {
            event: "cycles".into(),
            cpus: online.len() as u64,
            period_us: PERIOD_US,
            budget_events: BUDGET,
            periods: sum(|core| core.periods),
            missed_periods: sum(|core| core.missed_periods),
            throttled_periods: sum(|core| core.throttled_periods),
            lost_trace_events: seen.proof.lost,
            overshoot_events: Some(overshoot),
            throttle_latency_ns: Some(latency),
            release_latency_ns: Some(release),
            interrupt_latency_ns: Some(before),
        }),
    );
    // Only with one CPU is it certain that nothing but the reaction adds to the overshoot.
    if online.len() > 1 {
        bench.add(without_target(case))?;
    } else {
        bench.add(judged(
            case,
            "past the budget by the reaction and at most 2 us",
            exact,
        ))?;
    }
    bench.progress.step(1, 1, "done");
    Ok(())
}
