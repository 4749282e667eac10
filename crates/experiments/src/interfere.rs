// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interference experiment: one victim, N aggressors, with and without a guard.

mod config;
mod measure;
mod simulate;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use memwarden_guard::BestEffort;
use memwarden_platform::Root;
use memwarden_platform::cpus::{self};
#[cfg(test)]
use memwarden_platform::units::Time;
use memwarden_run::statistics::ratio_of_medians;
use memwarden_run::studies::interfere::{Case, Core, NAME, Summary};
use memwarden_run::{Aggressor, Metric, Sample, title};

use crate::guards::Guards;
use crate::request::finished;
use crate::settings::{beside_victim, check_usable, usable};
use crate::{
    Backend, CoreProof, Error, GuardSpec, RunRequest, Settings, Workload, case_notes, guarding,
};

pub use config::Config;
use measure::{Measured, measure};
pub use simulate::simulate;

/// One case to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    /// The aggressors: kind and number; `None` is the victim alone.
    aggressors: Option<(Workload, usize)>,
    guard: Option<GuardSpec>,
    /// Minimum duration of the long case.
    long: Option<Duration>,
}

impl Plan {
    /// The case in the words of the report's tables, on a machine with `cores` cores.
    fn title(&self, cores: usize) -> String {
        let kind = self.aggressors.as_ref();
        let kind = kind.map(|(kind, count)| (kind.to_string(), *count));
        let kinds = kind
            .iter()
            .flat_map(|(kind, count)| vec![kind.as_str(); *count]);
        let guard = self.guard.as_ref().map(|guard| guard.title(cores));
        let long = self.long.map(|long| long.as_secs_f64());
        title::of(&title::company(kinds), guard.as_deref(), long)
    }

    /// The key of its samples.
    fn name(&self) -> String {
        let mut name = match &self.aggressors {
            None => "solo".to_owned(),
            Some((kind, count)) => format!("{kind} x{count}"),
        };
        if let Some(guard) = &self.guard {
            name += &format!(", guard {guard}");
        }
        if let Some(long) = self.long {
            name += &format!(", {} s", long.as_secs_f64());
        }
        name
    }
}

/// The numbers of aggressors: 1, 2, 3, ... up to `all`; of many, 1, 2, 4, 8, ... and `all`.
fn numbers(all: usize) -> Vec<usize> {
    if all <= title::FEW_CORES {
        return (1..=all).collect();
    }
    let powers = std::iter::successors(Some(1), |count| Some(count * 2));
    powers
        .take_while(|count| *count < all)
        .chain([all])
        .collect()
}

/// All cases: those without a guard first, so that no guard is loaded while they run; the long case last.
fn plans(config: &Config) -> Result<Vec<Plan>, Error> {
    let numbers = numbers(config.cpus.len());
    let counts = || {
        let kinds = config.aggressors.iter();
        kinds.flat_map(|kind| numbers.iter().map(|count| Some((kind.clone(), *count))))
    };
    let guards = config.guard.iter().map(|guard| Some(guard.clone()));
    let long = config.long_case;
    let long_guard = config.long_guard.as_ref().or(config.guard.last());
    let long_guard = long_guard.filter(|_| !long.is_zero());
    let last = config.aggressors.last();
    let long = long_guard.map(|guard| Plan {
        aggressors: last.map(|kind| (kind.clone(), config.cpus.len())),
        guard: Some(guard.clone()),
        long: Some(long.duration()),
    });
    Ok(std::iter::once(None)
        .chain(guards)
        .flat_map(|guard| {
            std::iter::once(None)
                .chain(counts())
                .map(move |aggressors| Plan {
                    aggressors,
                    guard: guard.clone(),
                    long: None,
                })
        })
        .chain(long)
        .collect())
}

/// Runs the experiment and writes its run folder.
///
/// # Errors
/// When a setting makes no sense here, a workload fails, the guard refuses, or the run is interrupted; what was
/// measured is then in `DIR.partial`.
pub fn run(config: &Config, request: RunRequest) -> Result<(PathBuf, Summary), Error> {
    let (config, placement) = fitted(config)?;
    let interrupt = request.interrupt;
    let all = plans(&config)?;
    let guarding = config.guarding()?;
    let guarded = all.iter().any(|plan| plan.guard.is_some());
    if guarded {
        guarding.check_event()?;
    }
    let mut folder = request.begin(NAME, &config)?;
    let mut summary = Summary::new(NAME, "native");
    summary.whole.victim_in_cache = config.victim_in_cache(&Root::system());

    let mut guards = Guards::new(guarding, guarded, &mut summary)?;
    let cores = cpus::online()?.len();
    let mut steps = request.steps(all.len());
    let mut results: BTreeMap<usize, Measured> = BTreeMap::new();
    for (index, plan) in all.iter().enumerate() {
        steps.next(&plan.title(cores));
        if let Some(spec) = &plan.guard {
            if !guards.apply(spec, interrupt, &mut summary)? {
                continue;
            }
        }
        let guard = guards.of(plan.guard.as_ref());
        let longest = results.values().map(|measured| measured.longest).max();
        let longest = longest.unwrap_or_default();
        let measured = measure(
            &config,
            plan,
            longest,
            guard,
            interrupt,
            |repeat, measured| {
                folder.append_all(&samples(&config, plan, repeat, measured))?;
                Ok(folder.flush()?)
            },
        )?;
        results.insert(index, measured);
    }
    steps.end();
    summary.whole.self_test = guards.end()?;

    let solo: Vec<f64> = results
        .get(&0)
        .map(|measured| measured.victim.concat())
        .unwrap_or_default();
    for (index, measured) in &results {
        summary
            .cases
            .push(case(&config, &all[*index], measured, &solo));
    }
    remarks(&config, &results, &mut summary);
    placement
        .into_iter()
        .for_each(|remark| summary.note(remark));
    finished(folder, summary)
}

/// Completes the configuration with facts of this machine; also returns remarks on the CPUs.
fn fitted(config: &Config) -> Result<(Config, Vec<String>), Error> {
    config.check_real()?;
    let mut config = config.clone();
    let online = cpus::online()?;
    let usable = usable()?;
    let victim = [config.victim_cpu].into_iter().collect();
    check_usable("--victim-cpu", &victim, &usable)?;
    let (cpus, placement) =
        beside_victim(&Root::system(), config.victim_cpu, &config.cpus, &usable);
    config.cpus = cpus;
    if config.cpus.is_empty() {
        return Err(Error::BadInput(format!(
            "this process may run on one CPU only ({usable}): interference needs a second one for an aggressor"
        )));
    }
    check_usable("--cpus", &config.cpus, &usable)?;
    config.check()?;
    config.size_buffers(&Root::system());
    let mut guards = config.guard.iter().chain(&config.long_guard);
    guards.try_for_each(|guard| guard.check_fits(&online))?;
    Ok((config, placement))
}

/// Raw samples of one repeat of a case.
fn samples(config: &Config, plan: &Plan, repeat: u32, measured: &Measured) -> Vec<Sample> {
    let name = plan.name();
    let (metric, unit) = config.victim.metric();
    let cpu = |cpu: usize| u32::try_from(cpu).unwrap_or(u32::MAX);
    let mut rows = Vec::new();
    let at = repeat as usize;
    for value in measured.victim.get(at).into_iter().flatten() {
        rows.push(
            Sample::new(&name, repeat, "victim", metric, unit, *value)
                .on_cpu(cpu(config.victim_cpu)),
        );
    }
    for aggressor in &measured.aggressors {
        let value = aggressor.mib_s.get(at).copied();
        rows.push(
            Sample::new(&name, repeat, "aggressor", "mib_s", "MiB/s", value)
                .on_cpu(cpu(aggressor.cpu)),
        );
    }
    if let Some(guarded) = measured.guarded.get(at) {
        for (&core, &share) in &guarded.throttled_share {
            rows.push(
                Sample::new(&name, repeat, "guard", "throttled_share", "1", share)
                    .on_cpu(cpu(core)),
            );
        }
        for (&core, &share) in &guarded.held_back_share {
            rows.push(
                Sample::new(&name, repeat, "guard", "held_back_share", "1", share)
                    .on_cpu(cpu(core)),
            );
        }
        for (&core, proof) in &guarded.proof.cores {
            for (used, t_ns) in proof.used.iter().zip(&proof.t_ns) {
                rows.push(
                    Sample::new(
                        &name,
                        repeat,
                        "guard",
                        "events_per_period",
                        "events",
                        *used as f64,
                    )
                    .on_cpu(cpu(core))
                    .at_ns(*t_ns),
                );
            }
        }
    }
    rows
}

/// The figures of one case.
fn case(config: &Config, plan: &Plan, measured: &Measured, solo: &[f64]) -> Case {
    let shares = Shares {
        throttled: measured.share("throttled_share", |guarded| &guarded.throttled_share),
        held_back: measured.share("held_back_share", |guarded| &guarded.held_back_share),
    };
    let aggressors = measured.aggressors.iter().map(|aggressor| Aggressor {
        cpu: u32::try_from(aggressor.cpu).unwrap_or(u32::MAX),
        kind: aggressor.kind.to_string(),
        mib_s: Metric::from_samples("mib_s", &aggressor.mib_s).median,
        throttled_share: shares.throttled.get(&aggressor.cpu).copied(),
        held_back_share: shares.held_back.get(&aggressor.cpu).copied(),
        ..Aggressor::default()
    });
    let settings = measured.settings.as_ref();
    let cores = settings.map(|(_, settings)| {
        let control = &settings.control;
        let strict = control.best_effort == BestEffort::None && !control.reclaim;
        let regulated = settings.read_budget_events.iter();
        regulated
            .map(|(&cpu, budget)| {
                let period_us = control.period_us;
                core(measured, cpu, *budget, strict, &shares, period_us)
            })
            .collect()
    });
    let victim = measured.victim.concat();
    let slowdown = if config.victim.more_is_worse() {
        ratio_of_medians(&victim, solo)
    } else {
        ratio_of_medians(solo, &victim)
    };
    Case {
        name: plan.name(),
        guard: settings
            .zip(plan.guard.as_ref())
            .map(|((backend, settings), spec)| guarding::describe(backend, settings, spec)),
        victim: Some(Metric::from_samples(config.victim.metric().0, &victim)),
        cores,
        lost_trace_events: settings.map(|_| measured.guarded.iter().map(|g| g.proof.lost).sum()),
        long_s: plan
            .long
            .filter(|_| settings.is_some())
            .map(|long| long.as_secs_f64()),
        traffic: None,
        slowdown: slowdown.ratio,
        slowdown_ci95: slowdown.ci95,
        aggressors: aggressors.collect(),
    }
}

/// Excess of a mean, over all periods or over a second, that single periods cannot explain: the promised accuracy, 1 %.
const MEAN_WITHIN: f64 = 0.01;

/// Medians over the repeats, by core.
#[derive(Default)]
struct Shares {
    throttled: BTreeMap<usize, f64>,
    held_back: BTreeMap<usize, f64>,
}

/// Compares one core's budget with its use, over every period of every repeat.
fn core(
    measured: &Measured,
    cpu: usize,
    budget: Option<u64>,
    strict: bool,
    shares: &Shares,
    period_us: u64,
) -> Core {
    let cores: Vec<&CoreProof> = measured
        .guarded
        .iter()
        .filter_map(|guarded| guarded.proof.cores.get(&cpu))
        .collect();
    let counted = || {
        let guarded = measured.guarded.iter();
        guarded.filter_map(|guarded| guarded.counted.get(&cpu))
    };
    let used = || cores.iter().flat_map(|core| &core.used);
    let periods: u64 = cores.iter().map(|core| core.periods).sum();
    let mean = (periods > 0).then(|| used().sum::<u64>() as f64 / periods as f64);
    let in_a_period = || cores.iter().flat_map(|core| core.in_a_period());
    let largest = in_a_period().max();
    let seconds = cores.iter().flat_map(|core| core.seconds());
    let worst_second = seconds
        .max()
        .map(|events| events as f64 * period_us as f64 / 1e6);
    let over = budget.map(|budget| in_a_period().filter(|used| *used > budget).count() as u64);
    let overshoot = cores.iter().flat_map(|core| &core.overshoot).max().copied();
    let unregulated: u64 = counted().map(|core| core.unregulated_periods).sum();
    let counted_periods: u64 = counted().map(|core| core.periods).sum();
    // Best-effort sharing and reclaim allow a core to exceed its budget.
    let held = budget.filter(|_| strict).zip(mean);
    let held = held.map(|(budget, mean)| {
        unregulated == 0
            && cores.iter().all(|core| core.every_throttle_worked(budget))
            && mean.max(worst_second.unwrap_or(0.0)) <= budget as f64 * (1.0 + MEAN_WITHIN)
    });
    let core = Core {
        cpu: u32::try_from(cpu).unwrap_or(u32::MAX),
        budget_events: budget,
        periods: Some(periods),
        counted_periods: (counted_periods > 0).then_some(counted_periods),
        largest_period_events: largest,
        mean_period_events: mean,
        worst_second_events: worst_second,
        periods_over_budget: over,
        unregulated_periods: Some(unregulated),
        // Measured at the throttles, independent of the periods' sums.
        overshoot_max: overshoot,
        throttled_share: shares.throttled.get(&cpu).copied(),
        held_back_share: shares.held_back.get(&cpu).copied(),
        held,
    };
    Core {
        // A part of the periods can show that a budget was broken, not that it held.
        held: held.filter(|held| !held || core.recorded_whole()),
        ..core
    }
}

/// A count in a note; `null` if unknown.
fn told(count: Option<u64>) -> String {
    count.map_or_else(|| "null".into(), |count| count.to_string())
}

/// One sentence for each case in which a core was not held, with its worst period.
fn not_held(cases: &[Case]) -> Vec<String> {
    let of_case = |case: &Case| {
        let cores = case.cores.iter().flatten();
        let failed = cores.filter(|core| core.held == Some(false));
        let failed: Vec<String> = failed
            .map(|core| {
                format!(
                    "CPU{} used up to {} of {} events in a period, {} of {} periods were above the budget, the mean was {:.2}",
                    core.cpu,
                    told(core.largest_period_events),
                    told(core.budget_events),
                    told(core.periods_over_budget),
                    told(core.periods),
                    core.mean_period_events.unwrap_or_default(),
                )
            })
            .collect();
        (!failed.is_empty()).then(|| format!("NOT HELD: {}: {}.", case.title(), failed.join("; ")))
    };
    cases.iter().filter_map(of_case).collect()
}

/// The result of the long case, with the core that used most in a second.
fn held_long(cases: &[Case]) -> Option<String> {
    let case = cases.iter().find(|case| case.is_long())?;
    let cores = case.cores.as_ref()?;
    // A core without a budget has nothing to keep.
    let cores: Vec<&Core> = cores
        .iter()
        .filter(|core| core.budget_events.is_some())
        .collect();
    if !cores.iter().all(|core| core.held == Some(true)) {
        return None;
    }
    let share = |core: &Core| Some(core.worst_second_events? / core.budget_events? as f64);
    let of = |core: &Core| share(core).unwrap_or(0.0);
    let fullest = cores.into_iter().max_by(|a, b| of(a).total_cmp(&of(b)))?;
    Some(format!(
        "Held for {:.1} s in one piece: {}: no core passed {:.1} % of its budget in any second, and CPU{}, the fullest, had \
         {} of {} events in its largest of {} periods.",
        case.long_s?,
        case.title(),
        share(fullest)? * 100.0,
        fullest.cpu,
        told(fullest.largest_period_events),
        told(fullest.budget_events),
        told(fullest.periods),
    ))
}

/// Cases whose recording has fewer periods than the regulator counted.
fn unrecorded(cases: &[Case]) -> Vec<String> {
    let mut told = Vec::new();
    for case in cases {
        for core in case.cores.iter().flatten() {
            let (Some(recorded), Some(counted)) = (core.periods, core.counted_periods) else {
                continue;
            };
            if !core.recorded_whole() {
                told.push(format!(
                    "{}: the recording has {recorded} of {counted} periods of CPU{}: the budget figures \
                     are not over every period.",
                    case.title(), core.cpu
                ));
            }
        }
    }
    told
}

/// Adds the notes that a reader needs.
fn remarks(config: &Config, results: &BTreeMap<usize, Measured>, summary: &mut Summary) {
    if config.guard.is_empty() {
        summary.note("No guard was requested (--guard): the cases show only interference.");
    }
    if config.backend == Backend::Null {
        summary.note(
            "The null regulator regulates nothing: the cases with a guard show the cost of the experiment itself.",
        );
    }
    for (whose, which) in [(0, "the victim's"), (1, "an aggressor's")] {
        let shares = results.values().filter_map(|one| one.remote_share[whose]);
        let largest = shares.fold(0.0, f64::max);
        if largest >= 0.01 {
            summary.note(format!(
                "Up to {:.0} % of {which} buffer was in the memory of other NUMA nodes than its CPU's: the figures include \
                 remote accesses. numactl --membind=NODE memwarden ... allows the memory of one node only.",
                largest * 100.0
            ));
        }
    }
    let titles = summary.cases.iter().map(Case::title);
    let of_victim = results.values().map(|measured| &measured.notes);
    let notes = case_notes::by_case("The victim", titles.zip(of_victim));
    notes.into_iter().for_each(|note| summary.note(note));
    let guarded = || results.values().flat_map(|measured| &measured.guarded);
    let counts_faults = results.values().any(|measured| {
        let settings = measured.settings.as_ref();
        settings.is_some_and(|(_, settings)| settings.control.event == "page-faults")
    });
    let free: Vec<String> = config
        .aggressors
        .iter()
        .filter(|aggressor| counts_faults && !aggressor.makes_faults())
        .map(ToString::to_string)
        .collect();
    if !free.is_empty() {
        summary.note(format!(
            "The guard counted page-faults, which {} rarely causes, so its budget does not throttle it. Without a PMU, \
             use bandwidth:fresh-pages, whose traffic the guard counts.",
            free.join(", ")
        ));
    }
    for sentence in not_held(&summary.cases)
        .into_iter()
        .chain(unrecorded(&summary.cases))
        .chain(held_long(&summary.cases))
    {
        summary.note(sentence);
    }
    let lost: u64 = guarded().map(|guarded| guarded.proof.lost).sum();
    if lost > 0 {
        summary.note(format!(
            "The trace lost {lost} events: the budget figures are over the recorded periods, not all."
        ));
    }
    if let Some(reason) = guarded().find_map(|guarded| guarded.untraced.as_ref()) {
        summary.note(format!("No proof over every period: {reason}."));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two runs of a case: the first short, the second long enough for a leak of 24 periods.
    fn measured(largest: u64) -> Measured {
        let guarded = |periods: u64| {
            let mut core = CoreProof {
                cpu: 1,
                periods,
                overshoot: vec![0; 100],
                ..CoreProof::default()
            };
            core.t_ns = (1..=periods).map(|period| period * 1_000_000).collect();
            core.used = (0..periods)
                .map(|period| {
                    if period > 1000 && period <= 1024 {
                        largest
                    } else {
                        10
                    }
                })
                .collect();
            measure::Guarded {
                proof: crate::Proof {
                    cores: [(1, core)].into(),
                    lost: 0,
                },
                ..measure::Guarded::default()
            }
        };
        Measured {
            guarded: vec![guarded(130), guarded(2500)],
            ..Measured::default()
        }
    }

    fn core_of(measured: &Measured, budget: Option<u64>, strict: bool) -> Core {
        core(measured, 1, budget, strict, &Shares::default(), 1000)
    }

    fn budget(mib_s: f64) -> memwarden_run::GuardSettings {
        memwarden_run::GuardSettings {
            budget_mib_s: vec![Some(mib_s)],
            ..memwarden_run::GuardSettings::default()
        }
    }

    fn with_core(core: Core) -> Vec<Case> {
        vec![Case {
            name: "solo, guard 40".into(),
            guard: Some(budget(40.0)),
            cores: Some(vec![core]),
            ..Case::default()
        }]
    }

    #[test]
    fn a_leak_in_any_period_of_any_run_is_told_with_the_case() {
        let held = core_of(&measured(10), Some(10), true);
        assert_eq!(held.held, Some(true));
        assert!(not_held(&with_core(held)).is_empty());
        let leaking = core_of(&measured(250), Some(10), true);
        assert_eq!(
            (leaking.held, leaking.periods_over_budget),
            (Some(false), Some(24))
        );
        assert_eq!(
            not_held(&with_core(leaking)),
            [
                "NOT HELD: alone, guard 40: CPU1 used up to 250 of 10 events in a period, 24 of 2630 periods were above \
                 the budget, the mean was 12.19."
            ]
        );
        // Sharing allows the excess, and without a budget there is nothing to hold.
        assert_eq!(core_of(&measured(250), Some(10), false).held, None);
        assert_eq!(core_of(&measured(250), None, true).held, None);
    }

    /// An idle core over 191 periods: one budget of events spread over 58 periods passes; all of it in one period does
    /// not.
    #[test]
    fn what_an_idle_core_took_in_many_periods_is_no_period_over_its_budget() {
        let idle = |used: u64, span: u64| {
            let core = CoreProof {
                cpu: 3,
                periods: 133 + span,
                used: vec![used, 300],
                spans: vec![span, 133],
                t_ns: vec![58_000_000, 191_000_000],
                events_per_period_max: used.div_ceil(span),
                ..CoreProof::default()
            };
            let proof = crate::Proof {
                cores: [(3, core)].into(),
                lost: 0,
            };
            let guarded = measure::Guarded {
                proof,
                ..measure::Guarded::default()
            };
            let measured = Measured {
                guarded: vec![guarded],
                ..Measured::default()
            };
            super::core(&measured, 3, Some(1638), true, &Shares::default(), 1000)
        };
        let core = idle(1642, 58);
        assert_eq!(
            (core.held, core.largest_period_events),
            (Some(true), Some(29))
        );
        assert_eq!(core.periods_over_budget, Some(0));
        // Twice the budget at once, as far as is known.
        assert_eq!(idle(3276, 58).held, Some(false));
        let core = idle(1700, 1);
        assert_eq!(
            (core.held, core.periods_over_budget),
            (Some(false), Some(1))
        );
    }

    /// The fair server's 50 ms of each second, from the second second on, as faults; in the long case and in a short
    /// one.
    /// Events counted during a throttle are its overshoot, so the largest period alone proves nothing.
    #[test]
    fn the_fair_servers_leak_is_told_in_the_long_case_and_never_comes_in_a_short_one() {
        let run = |periods: u64| {
            let leak = |period: u64| period > 1900 && period % 1000 < 50;
            let used = |period: u64| if leak(period) { 250 } else { 5 };
            let core = CoreProof {
                cpu: 1,
                periods,
                t_ns: (1..=periods).map(|period| period * 1_000_000).collect(),
                used: (1..=periods).map(used).collect(),
                overshoot: (1..=periods).map(|period| used(period) - 5).collect(),
                ..CoreProof::default()
            };
            let guarded = measure::Guarded {
                proof: crate::Proof {
                    cores: [(1, core)].into(),
                    lost: 0,
                },
                ..measure::Guarded::default()
            };
            let measured = Measured {
                guarded: vec![guarded],
                ..Measured::default()
            };
            core_of(&measured, Some(5), true)
        };
        let case = |core: Core| {
            vec![Case {
                name: "bandwidth:write x1, guard 20, 5 s".into(),
                guard: Some(budget(20.0)),
                cores: Some(vec![core]),
                long_s: Some(5.0),
                aggressors: vec![Aggressor {
                    kind: "bandwidth:write".into(),
                    ..Aggressor::default()
                }],
                ..Case::default()
            }]
        };
        let short = run(300);
        assert_eq!((short.held, short.worst_second_events), (Some(true), None));
        let long = run(5001);
        assert_eq!(long.held, Some(false));
        assert!(
            (long.worst_second_events.unwrap() - 17.25).abs() < 0.01,
            "{long:?}"
        );
        assert!(
            not_held(&case(long.clone()))[0]
                .starts_with("NOT HELD: 1 \u{d7} bandwidth:write, guard 20, 5 s: ")
        );
        assert_eq!(held_long(&case(long)), None);
        let held = core_of(&measured(10), Some(10), true);
        let mut with_free = case(held.clone());
        let free = core_of(&measured(10), None, true);
        with_free[0].cores.as_mut().unwrap().push(free.clone());
        assert_eq!(held_long(&with_free), held_long(&case(held.clone())));
        assert_eq!(held_long(&case(free)), None);
        assert_eq!(
            held_long(&case(held)).unwrap(),
            "Held for 5.0 s in one piece: 1 \u{d7} bandwidth:write, guard 20, 5 s: no core passed 100.0 % of its budget in \
             any second, and CPU1, the fullest, had 10 of 10 events in its largest of 2630 periods."
        );
    }

    #[test]
    fn a_second_past_the_budget_is_not_held_whatever_the_mean_is() {
        let mut one = measured(10);
        let core = one.guarded[1].proof.cores.get_mut(&1).unwrap();
        core.overshoot = vec![10];
        core.used[500..520].fill(20);
        core.used[1001..].fill(0);
        let core = core_of(&one, Some(10), true);
        assert!(core.mean_period_events.unwrap() < 10.0);
        assert_eq!(
            (core.held, core.worst_second_events),
            (Some(false), Some(10.2))
        );
    }

    #[test]
    fn a_core_whose_counter_was_lost_is_not_held() {
        let mut lost = measured(10);
        let counted = memwarden_guard::CoreStatistics {
            unregulated_periods: 1,
            periods: 2500,
            ..Default::default()
        };
        lost.guarded[1].counted.insert(1, counted);
        assert_eq!(core_of(&lost, Some(10), true).held, Some(false));
    }

    #[test]
    fn a_recording_with_gaps_is_told() {
        let mut gaps = measured(10);
        let counted = |periods| memwarden_guard::CoreStatistics {
            periods,
            ..Default::default()
        };
        gaps.guarded[1].counted.insert(1, counted(2631));
        assert!(unrecorded(&with_core(core_of(&gaps, Some(10), true))).is_empty());
        assert_eq!(core_of(&gaps, Some(10), true).held, Some(true));
        gaps.guarded[1].counted.insert(1, counted(5000));
        assert_eq!(core_of(&gaps, Some(10), true).held, None);
        assert_eq!(core_of(&gaps, Some(2), true).held, Some(false));
        let told = unrecorded(&with_core(core_of(&gaps, Some(10), true)));
        assert!(told[0].contains("2630 of 5000 periods of CPU1"), "{told:?}");
    }

    #[test]
    fn remote_memory_is_told_by_whose_it_was() {
        let of = |remote_share| Measured {
            remote_share,
            ..Measured::default()
        };
        let results = [
            (0, of([Some(0.0), None])),
            (1, of([Some(0.25), Some(0.001)])),
            (2, of([Some(0.125), None])),
        ];
        let mut summary = Summary::new(NAME, "native");
        remarks(&Config::default(), &results.into(), &mut summary);
        let told: Vec<_> = summary
            .notes
            .iter()
            .filter(|note| note.contains("NUMA"))
            .collect();
        assert_eq!(told.len(), 1);
        assert!(
            told[0].starts_with("Up to 25 % of the victim's buffer was"),
            "{told:?}"
        );
    }

    #[test]
    fn cases_without_a_guard_come_first_and_solo_before_all() {
        let config = Config {
            aggressors: vec![Workload::Bandwidth("fresh-pages".into())],
            cpus: (1..4).collect(),
            guard: vec!["600,200+ps".parse().unwrap()],
            long_case: Time::ms(5000),
            long_guard: "1000,20,20,20".parse().ok(),
            ..Config::default()
        };
        let plans = plans(&config).unwrap();
        let names: Vec<String> = plans.iter().map(Plan::name).collect();
        assert_eq!(
            names,
            [
                "solo",
                "bandwidth:fresh-pages x1",
                "bandwidth:fresh-pages x2",
                "bandwidth:fresh-pages x3",
                "solo, guard 600,200+ps",
                "bandwidth:fresh-pages x1, guard 600,200+ps",
                "bandwidth:fresh-pages x2, guard 600,200+ps",
                "bandwidth:fresh-pages x3, guard 600,200+ps",
                "bandwidth:fresh-pages x3, guard 1000,20,20,20, 5 s",
            ]
        );
        let titles: Vec<String> = plans.iter().map(|plan| plan.title(4)).collect();
        assert_eq!(titles[..2], ["alone", "1 \u{d7} bandwidth:fresh-pages"]);
        assert_eq!(
            titles[5..7],
            [
                "1 \u{d7} bandwidth:fresh-pages, guard 600,200,max,max, proportional sharing",
                "2 \u{d7} bandwidth:fresh-pages, guard 600,200,max,max, proportional sharing",
            ]
        );
        assert_eq!(
            titles[8],
            "3 \u{d7} bandwidth:fresh-pages, guard 1000,20,20,20, 5 s"
        );
    }

    #[test]
    fn many_cpus_are_measured_at_a_few_numbers() {
        assert_eq!(numbers(3), [1, 2, 3]);
        assert_eq!(numbers(16).len(), 16);
        assert_eq!(numbers(17), [1, 2, 4, 8, 16, 17]);
        assert_eq!(numbers(127), [1, 2, 4, 8, 16, 32, 64, 127]);
        assert_eq!(numbers(128), [1, 2, 4, 8, 16, 32, 64, 128]);
    }

    #[test]
    fn the_long_case_has_the_last_guard_unless_it_has_one_of_its_own_and_none_is_without_a_guard() {
        let last = |long_case: u64, guard: &[&str], long_guard: Option<&str>| {
            let config = Config {
                long_case: Time::ms(long_case),
                guard: guard.iter().map(|guard| guard.parse().unwrap()).collect(),
                long_guard: long_guard.map(|guard| guard.parse().unwrap()),
                cpus: (1..3).collect(),
                ..Config::default()
            };
            plans(&config).unwrap().last().unwrap().name()
        };
        assert_eq!(last(0, &[], Some("max,20")), "bandwidth:write x2");
        assert_eq!(last(5000, &[], None), "bandwidth:write x2");
        assert_eq!(
            last(5000, &["100", "max,40"], None),
            "bandwidth:write x2, guard max,40, 5 s"
        );
        assert_eq!(
            last(2500, &["100"], Some("max,20")),
            "bandwidth:write x2, guard max,20, 2.5 s"
        );
    }
}
