// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long-term regulation: hungry cores for a minute, so that everything the kernel does once a second to a core that
//! gets no CPU time (the fair server, real-time throttling, watchdogs) happens many times.

use memwarden_run::Metric;
use memwarden_run::studies::guard_bench::{Case, Figure, Hold};

use super::regulated::TOGETHER;
use super::rig::{Held, Load, Rig};
use super::{Bench, judged, target};
use crate::{CoreProof, Error};

/// Budgets of the single core, pages a millisecond: one small enough to expose any leak, a usual one, and two thirds of
/// what a core can fault.
const ONE_CPU: [u64; 3] = [5, 50, 200];

const PERIOD_US: u64 = 1000;

const SECOND_NS: u64 = 1_000_000_000;

pub(super) fn run(bench: &mut Bench) -> Result<(), Error> {
    let online: Vec<usize> = memwarden_platform::cpus::online()?.iter().collect();
    let budgets: &[u64] = if online.len() == 1 {
        &ONE_CPU
    } else {
        &TOGETHER
    };
    let seconds = bench.subject.hold.as_secs_f64();
    let event = &bench.subject.event;
    let mut rig = Rig::start(bench, event, PERIOD_US)?;
    for (step, &pages) in budgets.iter().enumerate() {
        let budget = event.in_pages(pages);
        let cpus = match online.len() {
            1 => "1 CPU".to_owned(),
            count => format!("{count} CPUs"),
        };
        let name = format!("hold: {budget} {} a ms, {cpus}, {seconds} s", event.word());
        bench.progress.step(step, budgets.len(), &name);
        let of_each: Vec<_> = online.iter().map(|cpu| (*cpu, budget)).collect();
        let loads: Vec<_> = online.iter().map(|cpu| Load::hungry(event, *cpu)).collect();
        let set = rig.budgets(&of_each);
        if !bench.takes(&name, set)? {
            continue;
        }
        let held = rig.hold(&loads, bench.subject.hold)?;
        judge(bench, &name, budget, &held)?;
    }
    rig.end()?;
    bench.progress.step(budgets.len(), budgets.len(), "done");
    Ok(())
}

/// Figures of one core over the whole run.
#[derive(Debug, Default, Clone, PartialEq)]
struct Kept {
    cpu: usize,
    /// Events in each whole second.
    seconds: Vec<u64>,
    /// Mean events per period, over the whole run.
    mean: f64,
    /// The same over the whole second with the most events.
    worst_second: f64,
    /// Mean over the periods in which the core exhausted its budget. In other periods it demanded less, or the machine
    /// gave it no time.
    exhausted: Option<f64>,
    /// Events of the fullest period.
    largest: u64,
    /// Whether every throttle worked ([`CoreProof::every_throttle_worked`]).
    held: bool,
    /// Largest overshoot: events past the budget when a throttle took effect.
    overshoot: u64,
}

impl Kept {
    fn of(core: &CoreProof, budget: u64, period_us: u64) -> Option<Self> {
        let (&first, &last) = (core.t_ns.first()?, core.t_ns.last()?);
        let in_a_period =
            |events: u64, ns: u64| events as f64 * (period_us * 1000) as f64 / ns as f64;
        // The first record is of the period before the watched time.
        let used = core.used.iter().skip(1).sum();
        let seconds = core.seconds();
        Some(Self {
            cpu: core.cpu,
            mean: in_a_period(used, (last - first).max(1)),
            worst_second: in_a_period(seconds.iter().copied().max().unwrap_or(0), SECOND_NS),
            exhausted: mean(core.exhausted()),
            largest: core.in_a_period().max()?,
            held: core.every_throttle_worked(budget),
            overshoot: core.overshoot.iter().copied().max().unwrap_or(0),
            seconds,
        })
    }

    /// Relative error against the budget: the excess over all periods, or the shortfall over those that exhausted it.
    fn error(&self, budget: u64) -> Option<f64> {
        let share = |events: f64| events / budget as f64 - 1.0;
        let of_all = share(self.mean);
        if of_all > 0.0 {
            return Some(of_all);
        }
        self.exhausted.map(share)
    }
}

fn mean(events: impl Iterator<Item = u64>) -> Option<f64> {
    let (sum, count) = events.fold((0, 0u64), |(sum, count), events| (sum + events, count + 1));
    (count > 0).then(|| sum as f64 / count as f64)
}

fn judge(bench: &mut Bench, name: &str, budget: u64, held: &Held) -> Result<(), Error> {
    let seen = &held.seen;
    let cores = || seen.proof.cores.values();
    let kept: Vec<Kept> = cores()
        .filter_map(|core| Kept::of(core, budget, PERIOD_US))
        .collect();
    // One raw sample a second: one for each period would make a million rows in a minute.
    let seconds = kept
        .iter()
        .flat_map(|kept| kept.seconds.iter().map(|events| (kept.cpu, events)));
    let seconds = bench.metric(name, "second_events", "events", seconds)?;
    let used: Vec<f64> = cores()
        .flat_map(|core| &core.used)
        .map(|used| *used as f64)
        .collect();
    let achieved = Metric::from_samples("achieved_events", &used);
    let share = |events: f64| events / budget as f64 - 1.0;
    // The error of the worst core.
    let error = kept
        .iter()
        .filter_map(|kept| kept.error(budget))
        .max_by(|a, b| a.abs().total_cmp(&b.abs()));
    let most = |of: fn(&Kept) -> f64| kept.iter().map(of).max_by(f64::total_cmp);
    let worst_second = most(|kept| kept.worst_second);
    let load = held.load_events.values().copied().max_by(f64::total_cmp);
    let sum =
        |of: fn(&memwarden_guard::CoreStatistics) -> u64| seen.cores.values().map(of).sum::<u64>();
    let unregulated = sum(|core| core.unregulated_periods);
    let lost = seen.proof.lost;
    let limit = bench.subject.accuracy();
    let held = kept.iter().all(|kept| kept.held);
    let reached = held
        && lost == 0
        && unregulated == 0
        && kept.len() == seen.cores.len()
        && error.is_some_and(|error| error.abs() <= limit)
        // Independent source: the loads' own count of the pages that they touched.
        && load.is_some_and(|events| share(events) <= limit);
    let case = Case::new(
        name,
        Figure::Hold(Hold {
            event: bench.subject.event.name.clone(),
            cpus: seen.cores.len() as u64,
            period_us: PERIOD_US,
            budget_events: budget,
            seconds: Some(bench.subject.hold.as_secs_f64()),
            periods: cores().map(|core| core.periods).sum(),
            missed_periods: sum(|core| core.missed_periods),
            unregulated_periods: unregulated,
            mean_events: most(|kept| kept.mean),
            error_share: error,
            limit_share: Some(limit),
            largest_period_events: kept.iter().map(|kept| kept.largest).max(),
            worst_second_events: worst_second,
            load_events: load,
            overshoot_events_max: kept.iter().map(|kept| kept.overshoot).max(),
            lost_trace_events: lost,
            second_events: Some(seconds),
            achieved_events: Some(achieved),
        }),
    );
    let target = target(limit);
    bench.add(judged(case, &target, reached))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Periods of 5 events; from 1.9 s on, 24 periods of each second have 250.
    fn leaking(periods: u64) -> CoreProof {
        let mut core = CoreProof::default();
        for period in 0..periods {
            let leak = period > 1900 && period % 1000 < 24;
            core.t_ns.push(7 + period * 1_000_000);
            core.used.push(if leak { 250 } else { 5 });
        }
        core
    }

    #[test]
    fn a_leak_once_a_second_is_seen_in_all_figures_of_a_long_run() {
        let long = Kept::of(&leaking(10_001), 5, 1000).unwrap();
        assert!(
            (long.mean - (5.0 + 9.0 * 24.0 * 245.0 / 10_000.0)).abs() < 1.0,
            "{long:?}"
        );
        assert!(
            (long.worst_second - (5.0 + 24.0 * 245.0 / 1000.0)).abs() < 0.3,
            "{long:?}"
        );
        assert_eq!((long.largest, long.held, long.overshoot), (250, false, 0));
        assert!(long.error(5).unwrap() > 0.8);
        // 130 periods, the length of a short case, never meet the leak.
        let short = Kept::of(&leaking(131), 5, 1000).unwrap();
        assert!((short.mean - 5.0).abs() < 1e-9);
        assert_eq!((short.largest, short.held), (5, true));
        assert_eq!(Kept::of(&CoreProof::default(), 5, 1000), None);
    }

    #[test]
    fn a_core_that_had_no_time_for_its_budget_was_held_and_one_that_was_stopped_too_early_was_not()
    {
        let mut core = leaking(131);
        core.used[40..60].fill(3);
        core.held_ns = core.used.iter().map(|used| used / 5 * 1000).collect();
        let kept = Kept::of(&core, 5, 1000).unwrap();
        assert!(kept.mean < 4.8, "{kept:?}");
        assert!(kept.error(5).unwrap().abs() < 1e-9);
        core.held_ns.fill(1000);
        let error = Kept::of(&core, 5, 1000).unwrap().error(5).unwrap();
        assert!(error < -0.05, "{error}");
        // No period exhausted the budget, so nothing can be judged.
        core.held_ns.fill(0);
        assert_eq!(Kept::of(&core, 5, 1000).unwrap().error(5), None);
    }
}
