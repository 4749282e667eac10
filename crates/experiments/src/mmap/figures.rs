// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples and figures of the runs.

use memwarden_platform::usage::Usage;
use memwarden_run::studies::mmap::{Case, Competitor as End};
use memwarden_run::{Metric, Sample};
use memwarden_workloads::mapped::Walk;

use super::config::Config;
use super::counting::Modelled;
use super::measure::{Plan, Setup, Synced, Taken, WriteBack};

pub(super) fn times(runs: &[Taken]) -> Vec<f64> {
    runs.iter()
        .map(|run| run.outcome.elapsed_ns as f64)
        .collect()
}

/// The times of the walks that were what they are named: beside a competitor that still ran, or alone.
pub(super) fn times_of_its_kind(runs: &[Taken]) -> Vec<f64> {
    let beside = |run: &&Taken| run.rival.as_ref().is_none_or(End::was_beside);
    let times = runs.iter().filter(beside);
    times.map(|run| run.outcome.elapsed_ns as f64).collect()
}

/// Raw samples of one measured run.
pub(super) fn samples(
    plan: &Plan,
    repeat: u32,
    run: &Taken,
    cpu: usize,
    base_ns: u64,
) -> Vec<Sample> {
    let case = plan.name();
    let cpu = u32::try_from(cpu).unwrap_or(u32::MAX);
    let mut samples = Vec::new();
    let at_ns = run.outcome.begin_ns.saturating_sub(base_ns);
    let mut add = |role: &str, metric: &str, unit: &str, value: Option<f64>| {
        let sample = Sample::new(&case, repeat, role, metric, unit, value);
        samples.push(sample.on_cpu(cpu).at_ns(at_ns));
    };
    add("walk", "time_ns", "ns", Some(run.outcome.elapsed_ns as f64));
    for (name, unit, value) in run.usage.named() {
        add("walk", name, unit, Some(value as f64));
    }
    let setup = &run.setup;
    for (metric, unit, value) in [
        ("map_ns", "ns", setup.map_ns),
        ("touch_ns", "ns", setup.touch_ns),
        ("touch_minor_faults", "faults", setup.touch.minor_faults),
        ("touch_major_faults", "faults", setup.touch.major_faults),
    ] {
        add("mapping", metric, unit, Some(value as f64));
    }
    if let Some(synced) = &run.synced {
        let [before, after] = [&synced.before, &synced.after].map(|one| one.took_ns as f64);
        add("mapping", "msync_before_ns", "ns", Some(before));
        add("walk", "msync_ns", "ns", Some(after));
    }
    if let Some(reading) = &run.reading {
        for (name, count) in &reading.counts {
            add("walk", name, "events", *count);
        }
        add("walk", "running_share", "1", Some(reading.running_share));
    }
    if let Some(rival) = &run.rival {
        let touched = rival.touched_bytes as f64;
        add("competitor", "touched_bytes", "bytes", Some(touched));
        add("competitor", "passes", "passes", Some(rival.passes as f64));
        let killed = f64::from(u8::from(rival.oom_killed));
        add("competitor", "oom_killed", "1", Some(killed));
    }
    samples
}

/// The model's counts as a single sample, since a repeat would give the same counts.
pub(super) fn modelled_samples(plan: &Plan, modelled: Option<&Modelled>) -> Vec<Sample> {
    let Some(modelled) = modelled else {
        return Vec::new();
    };
    let sample = |(name, count): (String, u64)| {
        Sample::new(plan.name(), 0, "model", name, "events", count as f64)
    };
    let named = modelled.counts.named(modelled.events);
    named.into_iter().map(sample).collect()
}

/// The figures of one case.
pub(super) fn case(
    config: &Config,
    plan: &Plan,
    walk: &Walk,
    runs: &[Taken],
    modelled: Option<&Modelled>,
    l1d_lines: bool,
) -> Case {
    let huge = runs.iter().map(|run| run.huge_bytes).max().unwrap_or(0);
    let used = |name: &str, of: fn(&Usage) -> u64| {
        let values: Vec<f64> = runs.iter().map(|run| of(&run.usage) as f64).collect();
        (!runs.is_empty()).then(|| Metric::from_samples(name, &values))
    };
    let of_setup = |name: &str, of: fn(&Setup) -> u64| {
        let values: Vec<f64> = runs.iter().map(|run| of(&run.setup) as f64).collect();
        (!runs.is_empty()).then(|| Metric::from_samples(name, &values))
    };
    let synced: Vec<&Synced> = runs.iter().filter_map(|run| run.synced.as_ref()).collect();
    let msync = |name: &str, of: fn(&Synced) -> &WriteBack| {
        let values: Vec<f64> = synced.iter().map(|one| of(one).took_ns as f64).collect();
        (!values.is_empty()).then(|| Metric::from_samples(name, &values))
    };
    let rivals: Vec<_> = runs.iter().flat_map(|run| run.rival.clone()).collect();
    let case = Case {
        name: plan.name(),
        mapping: plan.way.0.text.into(),
        access: plan.access.to_string(),
        locality: plan.locality,
        compete: plan.compete.to_string(),
        size_bytes: config.size_bytes,
        outer: walk.outer,
        loads: walk.loads(),
        stores: walk.stores(),
        huge_bytes: huge,
        repeats: runs.len() as u64,
        time: Some(Metric::from_samples("time_ns", &times(runs))),
        user_us: used("user_us", |usage| usage.user_us),
        system_us: used("system_us", |usage| usage.system_us),
        minor_faults: used("minor_faults", |usage| usage.minor_faults),
        major_faults: used("major_faults", |usage| usage.major_faults),
        voluntary_switches: used("voluntary_switches", |usage| usage.voluntary_switches),
        involuntary_switches: used("involuntary_switches", |usage| usage.involuntary_switches),
        blocks_in: used("blocks_in", |usage| usage.blocks_in),
        blocks_out: used("blocks_out", |usage| usage.blocks_out),
        max_rss_kib: used("max_rss_kib", |usage| usage.max_rss_kib),
        private: plan.way.0.is_private(),
        file: plan.way.0.is_file(),
        map: of_setup("map_ns", |setup| setup.map_ns),
        touch: of_setup("touch_ns", |setup| setup.touch_ns),
        touch_minor_faults: of_setup("touch_minor_faults", |setup| setup.touch.minor_faults),
        touch_major_faults: of_setup("touch_major_faults", |setup| setup.touch.major_faults),
        msync_before: msync("msync_before_ns", |synced| &synced.before),
        msync: msync("msync_ns", |synced| &synced.after),
        seen_before: synced.last().and_then(|synced| synced.before.seen_shares),
        seen_after: synced.last().and_then(|synced| synced.after.seen_shares),
        oom_kills: (!rivals.is_empty())
            .then(|| rivals.iter().filter(|rival| rival.oom_killed).count() as u64),
        competitors: (!rivals.is_empty()).then_some(rivals),
        ..Case::default()
    };
    let case = match modelled {
        Some(modelled) => {
            let counts = modelled
                .counts
                .named(modelled.events)
                .into_iter()
                .map(|(name, count)| {
                    let metric = Metric::from_samples(&name, &[count as f64]);
                    (name, metric)
                });
            Case {
                counted_outer: Some(modelled.steps),
                counts: counts.collect(),
                ..case
            }
        }
        None => counted(case, runs),
    };
    shares(case, l1d_lines)
}

/// Figures of the machine's counters.
fn counted(case: Case, runs: &[Taken]) -> Case {
    let readings: Vec<_> = runs.iter().filter_map(|run| run.reading.as_ref()).collect();
    let Some(first) = readings.first() else {
        return case;
    };
    let counts = first.counts.iter().enumerate().map(|(index, (name, _))| {
        let values: Vec<f64> = readings
            .iter()
            .filter_map(|reading| reading.counts.get(index)?.1)
            .collect();
        let metric = if values.is_empty() {
            Metric::unmeasured(*name, "its group had no turn on the machine's counters")
        } else {
            Metric::from_samples(*name, &values)
        };
        ((*name).to_owned(), metric)
    });
    let least = readings
        .iter()
        .map(|reading| reading.running_share)
        .fold(1.0, f64::min);
    Case {
        counted_outer: Some(case.outer),
        counts: counts.collect(),
        running_share: Some(least),
        multiplexed: Some(readings.iter().any(|reading| reading.multiplexed())),
        ..case
    }
}

/// Miss ratios: misses over accesses. Lines that come into the L1D for any access are a share of all accesses.
fn shares(case: Case, l1d_lines: bool) -> Case {
    let share_of = |misses: &str, of: Option<f64>| {
        let counts = case.count(misses).zip(of);
        let counts = counts.filter(|(_, of)| *of > 0.0);
        counts.map(|(misses, of)| misses / of)
    };
    let share = |misses, of| share_of(misses, case.count(of));
    let loads = case.count("L1-dcache-loads");
    let accesses = match l1d_lines {
        true => loads
            .zip(case.count("L1-dcache-stores"))
            .map(|(loads, stores)| loads + stores),
        false => loads,
    };
    Case {
        l1d_load_miss_share: share_of("L1-dcache-load-misses", accesses),
        l1d_store_miss_share: share("L1-dcache-store-misses", "L1-dcache-stores"),
        l1d_prefetch_miss_share: share("L1-dcache-prefetch-misses", "L1-dcache-prefetches"),
        l2_load_miss_share: share("L2-load-misses", "L2-loads"),
        l2_refill_share: share("l2d_cache_refill", "l2d_cache"),
        llc_load_miss_share: share("LLC-load-misses", "LLC-loads"),
        dtlb_load_miss_share: share("dTLB-load-misses", "dTLB-loads"),
        ..case
    }
}

#[cfg(test)]
mod tests {
    use memwarden_platform::counters::groups::Reading;
    use memwarden_workloads::mapped::Outcome;

    use super::super::config::{Access, Compete, Way};
    use super::*;

    #[test]
    fn counters_that_took_turns_are_marked_and_one_without_a_turn_is_null() {
        let run = |running_share, misses| Taken {
            outcome: Outcome {
                begin_ns: 5,
                elapsed_ns: 100,
                steps: 1,
            },
            usage: Usage::default(),
            setup: Setup::default(),
            synced: None,
            reading: Some(Reading {
                counts: vec![
                    ("L1-dcache-loads", Some(1000.0)),
                    ("L1-dcache-load-misses", Some(misses)),
                    ("LLC-loads", None),
                ],
                running_share,
            }),
            rival: None,
            base: 0,
            huge_bytes: 0,
        };
        let plan = Plan {
            way: Way::ALL[0],
            access: Access::Random,
            locality: 16,
            compete: Compete::None,
        };
        let config = Config::default();
        let walk = config.walk(plan.access, plan.locality);
        let runs = [run(1.0, 10.0), run(0.5, 30.0), run(1.0, 20.0)];
        let case = case(&config, &plan, &walk, &runs, None, false);
        assert_eq!(case.name, "SHARED file, random, locality 16");
        assert_eq!(case.l1d_load_miss_share, Some(0.02));
        assert_eq!(case.multiplexed, Some(true));
        assert_eq!(case.running_share, Some(0.5));
        let llc = &case.counts["LLC-loads"];
        assert!(llc.median.is_none() && llc.note.is_some());
        assert_eq!(case.llc_load_miss_share, None);
        assert!(
            samples(&plan, 2, &runs[2], 1, 0)
                .iter()
                .any(|sample| { sample.metric == "LLC-loads" && sample.value.is_none() })
        );
    }
}
