// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regulation by overflow interrupts of a hardware counter; the lab's PMU counts cycles.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;

use memwarden_platform::clock::monotonic_ns;
use memwarden_platform::counters::Counting;
use memwarden_platform::{affinity, spin};
use memwarden_run::studies::guard_bench::{Case, Figure, Pmu};

use super::rig::{Load, Rig};
use super::{Bench, Event, judged, without_target};
use crate::Error;
use crate::traffic::Counted;

const PERIOD_US: u64 = 1000;

/// The time in which a busy core uses up its budget: half a period.
const BUDGET_NS: u64 = 500 * PERIOD_US;

/// Length of one measurement of a core's frequency. Its error, some system calls, is far below a percent.
const WINDOW_NS: u64 = 10_000_000;

/// Measurements for each core: an idle core needs time to reach its frequency, and other tasks may interrupt one.
const WINDOWS: u32 = 10;

/// Periods watched.
const PERIODS: u32 = 400;

/// Limits by which perf slows down a counter that interrupts too often; they must be lifted in this order. A
/// regulator's counter interrupts once a period by design.
const PERF_RATE: &str = "/proc/sys/kernel/perf_event_max_sample_rate";
const PERF_TIME: &str = "/proc/sys/kernel/perf_cpu_time_max_percent";

/// Limit of the time between the overflow and the interrupt's first reading of the clock: the time past the budget less
/// the throttle latency.
const INTERRUPT_NS: f64 = 2000.0;

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

/// Cycles that `cpu` counts in a nanosecond while it is busy, to two digits. In the lab a cycle is a nanosecond.
fn cycles_per_ns(cpu: usize) -> Result<f64, memwarden_platform::Error> {
    let measure = || {
        affinity::pin(cpu)?;
        let mut counting = Counting::open(&["cycles"], cpu)?;
        let mut highest = 0.0_f64;
        for _ in 0..WINDOWS {
            let begin_ns = monotonic_ns();
            counting.start()?;
            while monotonic_ns() - begin_ns < WINDOW_NS {
                spin::relax();
            }
            let reading = counting.stop()?;
            let elapsed_ns = monotonic_ns() - begin_ns;
            let cycles = reading.counts.first().and_then(|(_, cycles)| *cycles);
            // While the thread waits for its turn, only the time goes on.
            highest = highest.max(cycles.unwrap_or(0.0) / elapsed_ns as f64);
        }
        Ok((highest * 100.0).round() / 100.0)
    };
    let measured = std::thread::scope(|scope| scope.spawn(measure).join());
    measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The budget of a core with that frequency.
fn budget_events(cycles_per_ns: f64) -> u64 {
    (BUDGET_NS as f64 * cycles_per_ns).round() as u64
}

/// Time between an overflow and the interrupt's first reading of the clock. The reaction counts from that reading, the
/// overshoot from the overflow.
fn interrupt_latency_ns(
    overshoot_events: u64,
    throttle_latency_ns: u64,
    cycles_per_ns: f64,
) -> f64 {
    overshoot_events as f64 / cycles_per_ns - throttle_latency_ns as f64
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
    let mut frequencies: BTreeMap<usize, f64> = BTreeMap::new();
    for &cpu in &online {
        let frequency = cycles_per_ns(cpu)?;
        if frequency <= 0.0 {
            return Err(Error::BadInput(format!(
                "--part pmu: CPU {cpu} counts no cycles"
            )));
        }
        frequencies.insert(cpu, frequency);
    }
    let budgets: Vec<_> = frequencies
        .iter()
        .map(|(cpu, frequency)| (*cpu, budget_events(*frequency)))
        .collect();
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
    let before_ns: Vec<(usize, f64)> = cores()
        .filter_map(|core| Some((core, *frequencies.get(&core.cpu)?)))
        .flat_map(|(core, frequency)| {
            let pairs = core.overshoot.iter().zip(&core.throttle_latency_ns);
            pairs.map(move |(over, ns)| (core.cpu, interrupt_latency_ns(*over, *ns, frequency)))
        })
        .collect();
    // A core whose frequency has fallen since it was measured has used too few cycles for its reaction.
    let exact = !before_ns.is_empty() && before_ns.iter().all(|(_, ns)| ns.abs() <= INTERRUPT_NS);
    let before_ns: Vec<(usize, u64)> = before_ns
        .iter()
        .map(|(cpu, ns)| (*cpu, ns.max(0.0).round() as u64))
        .collect();
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
            cycles_per_ns: frequencies.values().next().copied(),
            budget_events: budgets.first().map_or(0, |(_, events)| *events),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_compared_with_time_at_the_core_s_frequency() {
        for (frequency, budget) in [(1.0, 500_000), (3.0, 1_500_000), (0.6, 300_000)] {
            assert_eq!(budget_events(frequency), budget);
            for (before_ns, reaction_ns) in [(0, 5000), (100, 5000), (6000, 3000)] {
                let events = (f64::from(before_ns + reaction_ns) * frequency).round() as u64;
                let ns = interrupt_latency_ns(events, reaction_ns as u64, frequency);
                assert!((ns - f64::from(before_ns)).abs() < 1.0, "{frequency}: {ns}");
            }
        }
    }

    #[test]
    fn a_core_s_frequency_is_that_of_its_counter() {
        let cpu = affinity::get().unwrap().iter().next().unwrap();
        match cycles_per_ns(cpu) {
            Ok(frequency) => assert!((0.01..20.0).contains(&frequency), "{frequency}"),
            Err(error) => eprintln!("skipped: {error}"),
        }
    }
}
