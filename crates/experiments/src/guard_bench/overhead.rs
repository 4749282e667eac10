// SPDX-License-Identifier: MIT OR Apache-2.0
//! Overhead of an armed guard that never throttles: the same work with and without it.

use std::time::Duration;

use memwarden_guard::BestEffort;
use memwarden_run::studies::guard_bench::{Case, Figure, Overhead};
use memwarden_run::{Metric, Sample};

use super::rig::Rig;
use super::{Bench, judged, without_target};
use crate::workload::{Task, Until};
use crate::{Child, Error, Workload};

/// Periods, and the share of a core's instructions that the guard may use. The targets of 1 ms and 100 us are given;
/// the two between them are interpolated.
const PERIODS: [(u64, f64); 4] = [(1000, 0.005), (500, 0.0075), (200, 0.0125), (100, 0.02)];

/// More than a core can use in a period: the guard is armed but never throttles.
const BUDGET: u64 = 1_000_000;

/// Runs of each work. On the counted clock they differ only by where the period boundaries fall.
const REPEAT: u32 = 3;

/// Longer than the work that a kernel defers after boot; idle time costs the counted clock nothing.
const QUIET_AFTER: Duration = Duration::from_secs(5);

/// The CPU of the work.
const CPU: usize = 0;

/// The work with a fault in each page. The other works cause no event, so their overhead is the guard's own.
const FAULTS: &str = "faults";

/// The works: name, workload, buffer, iterations, and sharing; with sharing each core has a timer in every period.
const WORKS: [(&str, &str, &str, u64, BestEffort); 3] = [
    ("no traffic", "latency", "64K", 40_000, BestEffort::None),
    (
        "no traffic, sharing",
        "latency",
        "64K",
        40_000,
        BestEffort::Spare,
    ),
    (FAULTS, "bandwidth:fresh-pages", "1M", 60, BestEffort::None),
];

pub(super) fn run(bench: &mut Bench) -> Result<(), Error> {
    // A kernel that has just booted still does deferred work.
    std::thread::sleep(QUIET_AFTER);
    let steps = WORKS.len() * (1 + PERIODS.len());
    let mut step = 0;
    for work in WORKS {
        bench
            .progress
            .step(step, steps, &format!("{}, no guard", work.0));
        step += 1;
        let without = measure(bench, work, None)?;
        for (period_us, limit) in PERIODS {
            bench
                .progress
                .step(step, steps, &format!("{}, {period_us} us", work.0));
            step += 1;
            let mut rig = Rig::start(bench, &bench.subject.event, period_us)?;
            rig.budgets(&[(CPU, BUDGET)])?;
            rig.mode(work.4, false)?;
            let before = rig.guard().statistics()?;
            let with = measure(bench, work, Some(period_us))?;
            let after = rig.guard().statistics()?;
            rig.end()?;
            let throttled: u64 = after
                .iter()
                .zip(&before)
                .map(|(after, before)| after.since(before).throttled_periods)
                .sum();
            add(bench, work.0, period_us, limit, &with, &without, throttled)?;
        }
    }
    bench.progress.step(steps, steps, "done");
    Ok(())
}

fn add(
    bench: &mut Bench,
    what: &str,
    period_us: u64,
    limit: f64,
    with: &[f64],
    without: &[f64],
    throttled: u64,
) -> Result<(), Error> {
    let name = format!("overhead: {period_us} us, {what}");
    let (with, without) = (
        Metric::from_samples("elapsed_ns", with),
        Metric::from_samples("elapsed_ns", without),
    );
    let share = with
        .median
        .zip(without.median)
        .map(|(with, without)| with / without - 1.0);
    let a_period = share.map(|share| {
        share / (1.0 + share) * 1000.0 * f64::from(u32::try_from(period_us).unwrap_or(0))
    });
    let case = Case::new(
        &name,
        Figure::Overhead(Overhead {
            event: what.into(),
            period_us,
            overhead_share: share,
            overhead_per_period_ns: a_period,
            throttled_periods: throttled,
            with_guard: Some(with),
            without_guard: Some(without),
            limit_share: (what != FAULTS).then_some(limit),
        }),
    );
    if what != FAULTS {
        let target = format!("at most {} %", limit * 100.0);
        let reached = throttled == 0 && share.is_some_and(|share| share <= limit);
        return bench.add(judged(case, &target, reached));
    }
    // The kernel spends instructions on counting a software event; a PMU counts in hardware.
    bench.summary.note(
        "The overhead with faults holds what the kernel's own counting of the page-faults event costs at every fault, \
         which a PMU's counter does not: no target applies to it.",
    );
    bench.add(without_target(case))
}

fn measure(
    bench: &mut Bench,
    (what, workload, memory, iterations, _): (&str, &str, &str, u64, BestEffort),
    period_us: Option<u64>,
) -> Result<Vec<f64>, Error> {
    let workload: Workload = workload.parse()?;
    let case = match period_us {
        Some(period_us) => format!("overhead: {period_us} us, {what}"),
        None => format!("overhead: no guard, {what}"),
    };
    let mut all = Vec::new();
    for repeat in 0..REPEAT {
        let arguments = workload.arguments(Task {
            cpu: CPU,
            memory: Some(memory.parse()?),
            until: Until::Iterations(iterations),
        });
        let result = Child::start(&arguments, false)?.wait(bench.interrupt)?;
        let elapsed = result
            .get("elapsed_ns")
            .and_then(serde_json::Value::as_f64)
            .ok_or_else(|| Error::workload(&workload, "gave no elapsed_ns"))?;
        bench.keep(&Sample::new(&case, repeat, "work", "elapsed_ns", "ns", elapsed).on_cpu(0))?;
        all.push(elapsed);
    }
    Ok(all)
}
