// SPDX-License-Identifier: MIT OR Apache-2.0
//! What sharing and reclaim hand out, in cases whose numbers follow from the policy.

use memwarden_guard::BestEffort;
use memwarden_run::Case;
use serde_json::json;

use super::rig::{Load, Rig, Seen};
use super::{Bench, judged};
use crate::Error;

/// Budgets of 3 to 1. Together they are what a core can still make beside a busy one, on half of the machine's time.
const FIRST: u64 = 45;
const SECOND: u64 = 15;

/// Periods watched. Predictions settle within ten (the average halves what is left each period).
const PERIODS: u32 = 200;

/// The two cores. Each follows an idle one: QEMU gives the CPU that follows a busy one hardly a turn.
const CPUS: [usize; 2] = [0, 2];

/// How near a number must come to what follows from the policy.
const NEAR: f64 = 0.02;

struct Scene {
    name: &'static str,
    mode: BestEffort,
    reclaim: bool,
    /// What the two do.
    loads: Vec<Load>,
    /// What must come out, in words.
    target: &'static str,
    /// Given the events a period of the two.
    follows: fn(f64, f64) -> bool,
}

fn near(value: f64, expected: f64, tolerance: f64) -> bool {
    (value / expected - 1.0).abs() <= tolerance
}

#[allow(clippy::cast_precision_loss)]
const SUM: f64 = (FIRST + SECOND) as f64;

#[allow(clippy::cast_precision_loss)]
fn scenes() -> Vec<Scene> {
    let (first, second) = (FIRST as f64, SECOND as f64);
    assert!(first > second);
    let both = || vec![Load::faults(CPUS[0]), Load::faults(CPUS[1])];
    vec![
        Scene {
            name: "none, both hungry",
            mode: BestEffort::None,
            reclaim: false,
            loads: both(),
            target: "45 and 15",
            follows: |a, b| near(a, FIRST as f64, NEAR) && near(b, SECOND as f64, NEAR),
        },
        Scene {
            name: "none, CPU 0 idle",
            mode: BestEffort::None,
            reclaim: false,
            loads: vec![Load::faults(CPUS[1])],
            target: "15: the idle core's budget is lost",
            follows: |_, b| near(b, SECOND as f64, NEAR),
        },
        Scene {
            name: "reclaim, CPU 0 idle",
            mode: BestEffort::None,
            reclaim: true,
            loads: vec![Load::faults(CPUS[1])],
            target: "60: its own 15 and the idle core's 45",
            follows: |_, b| near(b, SUM, NEAR),
        },
        Scene {
            name: "reclaim, both hungry",
            mode: BestEffort::None,
            reclaim: true,
            loads: both(),
            target: "45 and 15: nobody has anything to donate",
            follows: |a, b| near(a, FIRST as f64, NEAR) && near(b, SECOND as f64, NEAR),
        },
        Scene {
            name: "reclaim, CPU 0 busy without traffic",
            mode: BestEffort::None,
            reclaim: true,
            loads: vec![Load::busy(CPUS[0]), Load::faults(CPUS[1])],
            // The busy core takes its turns of the one stream: 60 is the limit, not what there is time for.
            target: "well above its own 15 for CPU 2, and never above 60",
            follows: |_, b| b > 2.0 * SECOND as f64 && b <= SUM,
        },
        Scene {
            name: "spare, both hungry",
            mode: BestEffort::Spare,
            reclaim: false,
            loads: both(),
            // How the rest is shared is up to the machine, not to the policy.
            target: "more than its budget for each",
            follows: |a, b| a > 1.5 * FIRST as f64 && b > 1.5 * SECOND as f64,
        },
        Scene {
            name: "spare, CPU 0 idle",
            mode: BestEffort::Spare,
            reclaim: false,
            loads: vec![Load::faults(CPUS[1])],
            target: "more than both budgets: an idle core keeps nobody waiting",
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
            loads: vec![Load::faults(CPUS[1])],
            target: "more than both budgets",
            follows: |_, b| b > SUM,
        },
    ]
}

pub(super) fn run(bench: &mut Bench) -> Result<(), Error> {
    let scenes = scenes();
    let steps = scenes.len();
    let mut rig = Rig::start(bench, "page-faults", 1000)?;
    rig.budgets(&[(CPUS[0], FIRST), (CPUS[1], SECOND)])?;
    for (step, scene) in scenes.into_iter().enumerate() {
        bench.progress.step(step, steps, scene.name);
        rig.mode(scene.mode, scene.reclaim)?;
        let seen = rig.watch(&scene.loads, PERIODS)?;
        add(bench, &scene, &seen, rig.period_us)?;
    }
    rig.end()?;
    bench.progress.step(steps, steps, "done");
    Ok(())
}

fn add(bench: &mut Bench, scene: &Scene, seen: &Seen, period_us: u64) -> Result<(), Error> {
    let name = format!("sharing: 45,15, {}", scene.name);
    let mut cores = Vec::new();
    let mut rates = [0.0; 2];
    for (index, (cpu, budget)) in CPUS.into_iter().zip([FIRST, SECOND]).enumerate() {
        let rate = seen.rate(cpu, period_us);
        rates[index] = rate.unwrap_or(f64::NAN);
        let statistics = seen.cores.get(&cpu);
        cores.push(json!({
            "cpu": cpu,
            "budget_events": budget,
            "used_events": rate,
            "donated_events": statistics.map(|core| core.read.donated),
            "reclaimed_events": statistics.map(|core| core.read.reclaimed),
            "best_effort_periods": statistics.map(|core| core.best_effort_periods),
            "throttled_share": statistics.and_then(|core| core.throttled_share(period_us)),
        }));
        if let Some(core) = seen.proof.cores.get(&cpu) {
            bench.metric(
                &name,
                "events_per_period",
                "events",
                core.used.iter().map(|used| (cpu, used)),
            )?;
        }
    }
    let case = Case::new(&name)
        .with("figure", "sharing")
        .with("event", "page-faults")
        .with("mode", scene.name)
        .with("cores", cores);
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
        let scenes = scenes();
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
