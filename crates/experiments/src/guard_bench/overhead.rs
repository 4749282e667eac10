// SPDX-License-Identifier: MIT OR Apache-2.0
//! Overhead of an armed guard that never throttles: the same work with and without it.

use std::ops::Range;
use std::time::Duration;

use memwarden_guard::BestEffort;
use memwarden_run::statistics::{Ratio, ratio_of_medians};
use memwarden_run::studies::guard_bench::{Case, Figure, Overhead, Reached};
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

/// How often each work runs without a guard and with one.
struct Repeat {
    /// Rounds, each with all periods.
    rounds: u32,
    /// Runs in a row.
    runs: u32,
}

/// On the counted clock, runs differ only by where the period boundaries fall.
const COUNTED: Repeat = Repeat { rounds: 1, runs: 3 };

/// A core's frequency and temperature drift, so runs with and without a guard alternate.
const FREE: Repeat = Repeat {
    rounds: 11,
    runs: 1,
};

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
    let Repeat { rounds, runs } = match bench.subject.counted_clock {
        true => COUNTED,
        false => FREE,
    };
    let steps = WORKS.len() * (1 + PERIODS.len()) * rounds as usize;
    let mut step = 0;
    for work in WORKS {
        let mut without = Vec::new();
        let mut guarded = PERIODS.map(|(period_us, limit)| Guarded {
            period_us,
            limit,
            times: Vec::new(),
            throttled_periods: 0,
        });
        for round in 0..rounds {
            let repeats = round * runs..(round + 1) * runs;
            bench
                .progress
                .step(step, steps, &format!("{}, no guard", work.0));
            step += 1;
            without.extend(measure(bench, work, None, repeats.clone())?);
            for with in &mut guarded {
                let period_us = with.period_us;
                bench
                    .progress
                    .step(step, steps, &format!("{}, {period_us} us", work.0));
                step += 1;
                let mut rig = Rig::start(bench, &bench.subject.event, period_us)?;
                rig.budgets(&[(CPU, BUDGET)])?;
                rig.mode(work.4, false)?;
                let before = rig.guard().statistics()?;
                let times = measure(bench, work, Some(period_us), repeats.clone())?;
                let after = rig.guard().statistics()?;
                rig.end()?;
                with.times.extend(times);
                with.throttled_periods += after
                    .iter()
                    .zip(&before)
                    .map(|(after, before)| after.since(before).throttled_periods)
                    .sum::<u64>();
            }
        }
        for with in guarded {
            add(bench, work.0, &with, &without)?;
        }
    }
    bench.progress.step(steps, steps, "done");
    Ok(())
}

/// Runs of a work with a guard.
struct Guarded {
    period_us: u64,
    limit: f64,
    times: Vec<f64>,
    throttled_periods: u64,
}

fn add(bench: &mut Bench, what: &str, with: &Guarded, without: &[f64]) -> Result<(), Error> {
    let Guarded {
        period_us,
        limit,
        ref times,
        throttled_periods,
    } = *with;
    let name = format!("overhead: {period_us} us, {what}");
    let Ratio { ratio, ci95 } = ratio_of_medians(times, without);
    let share = ratio.map(|ratio| ratio - 1.0);
    let ends = ci95.map(|ends| ends.map(|end| end - 1.0));
    let a_period = share.map(|share| {
        share / (1.0 + share) * 1000.0 * f64::from(u32::try_from(period_us).unwrap_or(0))
    });
    let case = Case::new(
        &name,
        Figure::Overhead(Overhead {
            event: what.into(),
            period_us,
            overhead_share: share,
            overhead_share_ci95: ends,
            overhead_per_period_ns: a_period,
            throttled_periods,
            with_guard: Some(Metric::from_samples("elapsed_ns", times)),
            without_guard: Some(Metric::from_samples("elapsed_ns", without)),
            limit_share: (what != FAULTS).then_some(limit),
        }),
    );
    if what != FAULTS {
        let reached = match throttled_periods {
            0 => verdict(share, ends, limit),
            _ => Reached::No,
        };
        if reached == Reached::Unclear {
            bench.summary.note(
                "An overhead is `unclear` if its interval contains its target: the runs differ by more than the \
                 overhead.",
            );
        }
        let target = format!("at most {} %", limit * 100.0);
        return bench.add(Case {
            reached: Some(reached),
            ..judged(case, &target, true)
        });
    }
    // The kernel spends instructions on counting a software event; a PMU counts in hardware.
    bench.summary.note(
        "The overhead with faults holds what the kernel's own counting of the page-faults event costs at every fault, \
         which a PMU's counter does not: no target applies to it.",
    );
    bench.add(without_target(case))
}

/// Compares an overhead and its interval with the limit; without an interval, the overhead alone.
fn verdict(share: Option<f64>, ends: Option<[f64; 2]>, limit: f64) -> Reached {
    match (share, ends) {
        (_, Some([low, high])) if low <= limit && limit < high => Reached::Unclear,
        (Some(share), _) if share <= limit => Reached::Yes,
        _ => Reached::No,
    }
}

fn measure(
    bench: &mut Bench,
    (what, workload, memory, iterations, _): (&str, &str, &str, u64, BestEffort),
    period_us: Option<u64>,
    repeats: Range<u32>,
) -> Result<Vec<f64>, Error> {
    let workload: Workload = workload.parse()?;
    let case = match period_us {
        Some(period_us) => format!("overhead: {period_us} us, {what}"),
        None => format!("overhead: no guard, {what}"),
    };
    let mut all = Vec::new();
    for repeat in repeats {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overhead_is_judged_by_its_interval() {
        let of = |with: &[f64], without: &[f64]| {
            let Ratio { ratio, ci95 } = ratio_of_medians(with, without);
            let ends = ci95.map(|ends| ends.map(|end| end - 1.0));
            verdict(ratio.map(|ratio| ratio - 1.0), ends, 0.005)
        };
        let spread = [985.0, 990.0, 995.0, 1000.0, 1005.0, 1010.0, 1015.0];
        assert_eq!(of(&spread.map(|ns| ns * 1.006), &spread), Reached::Unclear);
        assert_eq!(of(&spread.map(|ns| ns * 1.1), &spread), Reached::No);
        assert_eq!(of(&spread.map(|ns| ns * 0.9), &spread), Reached::Yes);
        // Too few runs for an interval, as on the counted clock.
        assert_eq!(of(&[1000.1; 3], &[1000.0; 3]), Reached::Yes);
        assert_eq!(of(&[1010.0; 3], &[1000.0; 3]), Reached::No);
        assert_eq!(verdict(None, None, 0.005), Reached::No);
    }

    #[test]
    fn a_free_clock_has_enough_runs_for_an_interval() {
        let enough = memwarden_run::statistics::FEWEST_FOR_RATIO;
        assert!((FREE.rounds * FREE.runs) as usize >= enough);
    }
}
