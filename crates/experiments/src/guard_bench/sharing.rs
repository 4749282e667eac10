// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events that sharing and reclaim grant, in cases whose result follows from the policy.

use super::rig::{Load, Rig, Seen};
use super::{Bench, Event, judged};
use crate::Error;
use memwarden_guard::BestEffort;
use memwarden_run::studies::guard_bench::{Case, Figure, Sharing, SharingCore};

/// Budgets of 3 to 1, in pages a period. Together they are well below what one core can make.
const FIRST: u64 = 45;
const SECOND: u64 = 15;

/// Periods watched. Predictions settle within ten, as the average halves the difference in each period.
const PERIODS: u32 = 200;

/// The two cores.
const CPUS: [usize; 2] = [0, 1];

/// Relative tolerance of a figure against the policy's result.
const NEAR: f64 = 0.02;

struct Scene {
    name: &'static str,
    mode: BestEffort,
    reclaim: bool,
    /// The loads of the two cores.
    loads: Vec<Load>,
    /// The expected result, in words.
    target: &'static str,
    /// Checks the mean events per period of the two cores, in pages.
    follows: fn(f64, f64) -> bool,
}

fn near(value: f64, expected: f64, tolerance: f64) -> bool {
    (value / expected - 1.0).abs() <= tolerance
}

const SUM: f64 = (FIRST + SECOND) as f64;

fn scenes(event: &Event) -> Vec<Scene> {
    let (first, second) = (FIRST as f64, SECOND as f64);
    assert!(first > second);
    let hungry = |cpu| Load::hungry(event, cpu);
    let both = || vec![hungry(CPUS[0]), hungry(CPUS[1])];
    vec![
        Scene {
            name: "none, both hungry",
            mode: BestEffort::None,
            reclaim: false,
            loads: both(),
            target: "their budgets",
            follows: |a, b| near(a, FIRST as f64, NEAR) && near(b, SECOND as f64, NEAR),
        },
        Scene {
            name: "none, CPU 0 idle",
            mode: BestEffort::None,
            reclaim: false,
            loads: vec![hungry(CPUS[1])],
            target: "its own budget; the idle core's is not used",
            follows: |_, b| near(b, SECOND as f64, NEAR),
        },
        Scene {
            name: "reclaim, CPU 0 idle",
            mode: BestEffort::None,
            reclaim: true,
            loads: vec![hungry(CPUS[1])],
            target: "both budgets",
            follows: |_, b| near(b, SUM, NEAR),
        },
        Scene {
            name: "reclaim, both hungry",
            mode: BestEffort::None,
            reclaim: true,
            loads: both(),
            target: "their budgets: neither has anything to donate",
            follows: |a, b| near(a, FIRST as f64, NEAR) && near(b, SECOND as f64, NEAR),
        },
        Scene {
            name: "reclaim, CPU 0 busy without traffic",
            mode: BestEffort::None,
            reclaim: true,
            loads: vec![Load::busy(CPUS[0]), hungry(CPUS[1])],
            // The budgets limit both cores, not the available time.
            target: "twice its budget for CPU 2, and never above both",
            follows: |_, b| b > 2.0 * SECOND as f64 && b <= SUM * 1.01,
        },
        Scene {
            name: "spare, both hungry",
            mode: BestEffort::Spare,
            reclaim: false,
            loads: both(),
            // The machine, not the policy, decides how the cores share the rest.
            target: "more than its budget for each",
            follows: |a, b| a > 1.5 * FIRST as f64 && b > 1.5 * SECOND as f64,
        },
        Scene {
            name: "spare, CPU 0 idle",
            mode: BestEffort::Spare,
            reclaim: false,
            loads: vec![hungry(CPUS[1])],
            target: "more than both budgets: an idle core holds no other up",
            follows: |_, b| b > SUM,
        },
        Scene {
            name: "proportional, both hungry",
            mode: BestEffort::Proportional,
            reclaim: false,
            loads: both(),
            target: "3 to 1, more than both budgets",
            follows: |a, b| near(a / b, FIRST as f64 / SECOND as f64, NEAR) && a + b > SUM,
        },
        Scene {
            name: "proportional, CPU 0 idle",
            mode: BestEffort::Proportional,
            reclaim: false,
            loads: vec![hungry(CPUS[1])],
            target: "more than both budgets",
            follows: |_, b| b > SUM,
        },
    ]
}

pub(super) fn run(bench: &mut Bench) -> Result<(), Error> {
    let event = &bench.subject.event;
    let scenes = scenes(event);
    let steps = scenes.len();
    let mut rig = Rig::start(bench, event, 1000)?;
    let budgets = [FIRST, SECOND].map(|pages| event.in_pages(pages));
    rig.budgets(&[(CPUS[0], budgets[0]), (CPUS[1], budgets[1])])?;
    for (step, scene) in scenes.into_iter().enumerate() {
        bench.progress.step(step, steps, scene.name);
        rig.mode(scene.mode, scene.reclaim)?;
        let seen = rig.watch(&scene.loads, PERIODS)?;
        add(bench, &scene, budgets, &seen, rig.period_us)?;
    }
    rig.end()?;
    bench.progress.step(steps, steps, "done");
    Ok(())
}

fn add(
    bench: &mut Bench,
    scene: &Scene,
    budgets: [u64; 2],
    seen: &Seen,
    period_us: u64,
) -> Result<(), Error> {
    let event = &bench.subject.event;
    let name = format!("sharing: {},{}, {}", budgets[0], budgets[1], scene.name);
    let mut cores = Vec::new();
    let mut rates = [0.0; 2];
    for (index, (cpu, budget)) in CPUS.into_iter().zip(budgets).enumerate() {
        let rate = seen.rate(cpu, period_us);
        rates[index] = rate.map_or(f64::NAN, |events| events / event.in_pages(1) as f64);
        let statistics = seen.cores.get(&cpu);
        cores.push(SharingCore {
            cpu: u32::try_from(cpu).unwrap_or(u32::MAX),
            budget_events: Some(budget),
            used_events: rate,
            donated_events: statistics.map(|core| core.read.donated),
            reclaimed_events: statistics.map(|core| core.read.reclaimed),
            best_effort_periods: statistics.map(|core| core.best_effort_periods),
            throttled_share: statistics.and_then(|core| core.throttled_share(period_us)),
        });
        if let Some(core) = seen.proof.cores.get(&cpu) {
            bench.metric(
                &name,
                "events_per_period",
                "events",
                core.used.iter().map(|used| (cpu, used)),
            )?;
        }
    }
    let case = Case::new(
        &name,
        Figure::Sharing(Sharing {
            event: event.name.clone(),
            mode: scene.name.into(),
            cores,
        }),
    );
    bench.add(judged(
        case,
        scene.target,
        (scene.follows)(rates[0], rates[1]),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scene_takes_what_follows_from_the_policy_and_nothing_else() {
        let scenes = scenes(&Event::page_faults());
        let scene = |name: &str| scenes.iter().find(|scene| scene.name == name).unwrap();
        assert!((scene("none, both hungry").follows)(45.0, 15.0));
        assert!(!(scene("none, both hungry").follows)(45.0, 20.0));
        assert!((scene("reclaim, CPU 0 idle").follows)(0.0, 60.0));
        assert!(!(scene("reclaim, CPU 0 idle").follows)(0.0, 15.0));
        assert!((scene("spare, both hungry").follows)(145.0, 116.0));
        assert!(!(scene("spare, both hungry").follows)(200.0, 15.0));
        let beside = scene("reclaim, CPU 0 busy without traffic").follows;
        assert!(beside(0.0, 54.9) && !beside(0.0, 15.0) && !beside(0.0, 61.0));
        assert!((scene("proportional, both hungry").follows)(210.0, 70.5));
        assert!(!(scene("proportional, both hungry").follows)(45.0, 15.0));
        assert!(!(scene("proportional, CPU 0 idle").follows)(0.0, f64::NAN));
    }
}
