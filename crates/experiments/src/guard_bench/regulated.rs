// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accuracy, overshoot, reaction, and period boundaries.

use memwarden_run::studies::guard_bench::{
    Accuracy, Boundaries, Case, Figure, Overshoot, Reaction,
};

use super::rig::{Load, Rig, Seen};
use super::{Bench, Event, judged, target};
use crate::{CoreProof, Error};

/// Budgets for one core at a time, pages a millisecond: from so few that one fault matters to two thirds of what a core
/// can fault.
pub(super) const ALONE: [u64; 6] = [5, 10, 25, 50, 100, 200];

/// Budgets for all cores at once; four times the largest is what one core can fault.
pub(super) const TOGETHER: [u64; 4] = [5, 10, 25, 50];

/// Periods watched in each case. Four cores and ten budgets give thousands of throttles: enough for a 99.9th
/// percentile.
const PERIODS: u32 = 120;

/// If fewer periods than this share exhaust the budget, a note says so.
const ENOUGH: f64 = 0.95;

/// Period lengths whose boundaries are checked, microseconds.
const BOUNDARY_PERIODS: [u64; 4] = [1000, 500, 200, 100];

/// Largest share of missed period boundaries.
const MISSED: f64 = 0.01;

/// Figures of all throttles, over all cases.
#[derive(Default)]
struct Throttles {
    overshoot: Vec<(usize, u64)>,
    throttle_ns: Vec<(usize, u64)>,
    release_ns: Vec<(usize, u64)>,
}

impl Throttles {
    fn take(&mut self, core: &CoreProof) {
        let of_core = |values: &[u64]| {
            values
                .iter()
                .map(|value| (core.cpu, *value))
                .collect::<Vec<_>>()
        };
        self.overshoot.extend(of_core(&core.overshoot));
        self.throttle_ns.extend(of_core(&core.throttle_latency_ns));
        self.release_ns.extend(of_core(&core.release_latency_ns));
    }
}

/// Each core alone, at each budget.
pub(super) fn alone(bench: &mut Bench) -> Result<(), Error> {
    let online: Vec<usize> = memwarden_platform::cpus::online()?.iter().collect();
    let event = &bench.subject.event;
    let mut rig = Rig::start(bench, event, 1000)?;
    let mut throttles = Throttles::default();
    let budgets = bench.subject.budgets().to_vec();
    for (step, &pages) in budgets.iter().enumerate() {
        let budget = event.in_pages(pages);
        let name = accuracy_of(event, budget, 1);
        bench.progress.step(step, budgets.len(), &name);
        let mut seen = Vec::new();
        for &cpu in &online {
            let set = rig.budgets(&[(cpu, budget)]);
            if !bench.takes(&name, set)? {
                break;
            }
            seen.push((vec![cpu], rig.watch(&[Load::hungry(event, cpu)], PERIODS)?));
        }
        if seen.len() == online.len() {
            accuracy(bench, budget, 1, &seen, &mut throttles)?;
        }
    }
    rig.end()?;
    reaction(bench, "one core at a time", &throttles)?;
    bench.progress.step(budgets.len(), budgets.len(), "done");
    Ok(())
}

/// All cores at once, at each budget and then at each period length.
pub(super) fn together(bench: &mut Bench) -> Result<(), Error> {
    let online: Vec<usize> = memwarden_platform::cpus::online()?.iter().collect();
    let steps = TOGETHER.len() + BOUNDARY_PERIODS.len();
    let event = &bench.subject.event;
    let mut rig = Rig::start(bench, event, 1000)?;
    let mut throttles = Throttles::default();
    for (step, pages) in TOGETHER.into_iter().enumerate() {
        let budget = event.in_pages(pages);
        let name = accuracy_of(event, budget, online.len());
        bench.progress.step(step, steps, &name);
        let budgets: Vec<_> = online.iter().map(|cpu| (*cpu, budget)).collect();
        let loads: Vec<_> = online.iter().map(|cpu| Load::hungry(event, *cpu)).collect();
        let set = rig.budgets(&budgets);
        if !bench.takes(&name, set)? {
            continue;
        }
        let seen = [(online.clone(), rig.watch(&loads, PERIODS)?)];
        accuracy(bench, budget, online.len(), &seen, &mut throttles)?;
    }
    rig.end()?;
    reaction(bench, "all cores", &throttles)?;
    for (step, period_us) in BOUNDARY_PERIODS.into_iter().enumerate() {
        bench.progress.step(
            TOGETHER.len() + step,
            steps,
            &format!("boundaries at {period_us} us"),
        );
        boundaries(bench, &online, period_us)?;
    }
    bench.progress.step(steps, steps, "done");
    Ok(())
}

fn accuracy_of(event: &Event, budget: u64, cpus: usize) -> String {
    let who = if cpus == 1 {
        "each core alone"
    } else {
        "all cores"
    };
    format!("accuracy: {budget} {} a ms, {who}", event.word())
}

fn accuracy(
    bench: &mut Bench,
    budget: u64,
    cpus: usize,
    seen: &[(Vec<usize>, Seen)],
    throttles: &mut Throttles,
) -> Result<(), Error> {
    let event = &bench.subject.event;
    let name = accuracy_of(event, budget, cpus);
    let cores: Vec<&CoreProof> = seen
        .iter()
        .flat_map(|(regulated, seen)| regulated.iter().filter_map(|cpu| seen.proof.cores.get(cpu)))
        .collect();
    cores.iter().for_each(|core| throttles.take(core));
    let used = cores
        .iter()
        .flat_map(|core| core.used.iter().map(|used| (core.cpu, used)));
    let achieved = bench.metric(&name, "achieved_events", "events", used)?;
    // The error of the worst core: a mean over cores would hide errors of opposite sign. Only periods in which the core
    // demanded more than its budget tell whether it received it.
    let error = cores
        .iter()
        .filter_map(|core| {
            let count = core.exhausted().count();
            let sum: u64 = core.exhausted().sum();
            (count > 0).then(|| sum as f64 / count as f64 / budget as f64 - 1.0)
        })
        .max_by(|a, b| a.abs().total_cmp(&b.abs()));
    let exhausted: usize = cores.iter().map(|core| core.exhausted().count()).sum();
    let periods: u64 = cores.iter().map(|core| core.periods).sum();
    let largest = cores.iter().map(|core| core.events_per_period_max).max();
    let overshoot = cores.iter().flat_map(|core| &core.overshoot).max().copied();
    let overshoot = overshoot.unwrap_or(0);
    let lost: u64 = seen.iter().map(|(_, seen)| seen.proof.lost).sum();
    let held = !cores.is_empty() && cores.iter().all(|core| core.every_throttle_worked(budget));
    let enough = exhausted as f64 >= ENOUGH * periods as f64;
    if !enough {
        bench.summary.note(format!(
            "{name}: in {} of {periods} periods the core did not reach its budget, as it made no more {}. These \
             periods say nothing about accuracy.",
            periods.saturating_sub(exhausted as u64),
            event.word(),
        ));
    }
    let limit = bench.subject.accuracy();
    let reached =
        exhausted > 0 && held && lost == 0 && error.is_some_and(|error| error.abs() <= limit);
    let case = Case::new(
        &name,
        Figure::Accuracy(Accuracy {
            event: event.name.clone(),
            cpus: cpus as u64,
            period_us: 1000,
            budget_events: budget,
            periods,
            exhausted_periods: exhausted as u64,
            largest_period_events: largest,
            overshoot_events_max: overshoot,
            lost_trace_events: lost,
            error_share: error,
            limit_share: Some(limit),
            achieved_events: Some(achieved),
        }),
    );
    let target = target(limit);
    bench.add(judged(case, &target, reached))
}

fn reaction(bench: &mut Bench, who: &str, throttles: &Throttles) -> Result<(), Error> {
    fn by_core(values: &[(usize, u64)]) -> impl Iterator<Item = (usize, &u64)> {
        values.iter().map(|(cpu, value)| (*cpu, value))
    }
    let event = &bench.subject.event;
    let name = &format!("overshoot: {}, {who}", event.name);
    let events = bench.metric(
        name,
        "overshoot_events",
        "events",
        by_core(&throttles.overshoot),
    )?;
    // The core runs until the thread stops it, so the time past the budget is the time from overflow to throttle.
    let ns = bench.metric(name, "overshoot_ns", "ns", by_core(&throttles.throttle_ns))?;
    let case = Case::new(
        name,
        Figure::Overshoot(Overshoot {
            event: event.name.clone(),
            overshoot_events: Some(events),
            overshoot_ns: Some(ns),
        }),
    );
    bench.add(case)?;
    let name = &format!("reaction: {}, {who}", event.name);
    let throttle = bench.metric(
        name,
        "throttle_latency_ns",
        "ns",
        by_core(&throttles.throttle_ns),
    )?;
    let release = bench.metric(
        name,
        "release_latency_ns",
        "ns",
        by_core(&throttles.release_ns),
    )?;
    let case = Case::new(
        name,
        Figure::Reaction(Reaction {
            event: event.name.clone(),
            throttle_latency_ns: Some(throttle),
            release_latency_ns: Some(release),
        }),
    );
    bench.add(case)
}

/// All cores throttle in every period, at ever shorter periods and the same bandwidth.
fn boundaries(bench: &mut Bench, online: &[usize], period_us: u64) -> Result<(), Error> {
    let event = &bench.subject.event;
    let name = format!("boundaries: {period_us} us");
    let mut rig = Rig::start(bench, event, period_us)?;
    // 25 pages a millisecond (100 MB/s), and at least one event a period.
    let budget = (event.in_pages(25) * period_us / 1000).max(1);
    let budgets: Vec<_> = online.iter().map(|cpu| (*cpu, budget)).collect();
    let loads: Vec<_> = online.iter().map(|cpu| Load::hungry(event, *cpu)).collect();
    let set = rig.budgets(&budgets);
    if !bench.takes(&name, set)? {
        return rig.end();
    }
    let periods = PERIODS * 1000 / u32::try_from(period_us).unwrap_or(1000);
    let seen = rig.watch(&loads, periods)?;
    rig.end()?;
    let late = seen
        .proof
        .cores
        .values()
        .flat_map(|core| core.late_ns.iter().map(|late| (core.cpu, late)));
    let late = bench.metric(&name, "late_ns", "ns", late)?;
    let begun: u64 = seen.cores.values().map(|core| core.periods).sum();
    let missed: u64 = seen.cores.values().map(|core| core.missed_periods).sum();
    let share = (begun + missed > 0).then(|| missed as f64 / (begun + missed) as f64);
    let case = Case::new(
        &name,
        Figure::Boundaries(Boundaries {
            period_us,
            cpus: online.len() as u64,
            budget_events: budget,
            periods: begun,
            missed_periods: missed,
            missed_share: share,
            limit_share: Some(MISSED),
            late_ns: Some(late),
        }),
    );
    bench.add(judged(
        case,
        "at most 1 % missed",
        share.is_some_and(|share| share <= MISSED),
    ))
}
