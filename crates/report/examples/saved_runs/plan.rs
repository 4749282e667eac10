// SPDX-License-Identifier: MIT OR Apache-2.0
//! An invented plan, whose recommended setting is fragile.

use std::path::Path;

use memwarden_run::studies::Traffic;
use memwarden_run::studies::plan::{
    Case, Choice, NAME, Outcome, Sensitivity, Summary, Verdict, Verified, Whole,
};
use memwarden_run::{GuardSettings, Sample};
use serde_json::json;

use crate::{Result, record, write};

const DEADLINE_MS: f64 = 13.0;

/// A case with this load and longest job; `guard` is the load's budget, the way of sharing and the period.
fn case(name: &str, guard: Option<(u32, &str, u64)>, load_mib_s: f64, worst_ms: f64) -> Case {
    let late = worst_ms > DEADLINE_MS;
    Case {
        name: name.into(),
        guard: guard.map(|(load, best_effort, period_us)| GuardSettings {
            backend: "sim".into(),
            budget_mib_s: vec![(best_effort != "none").then_some(670.0), Some(load.into())],
            best_effort: best_effort.into(),
            period_us: Some(period_us),
            ..GuardSettings::default()
        }),
        miss_share: if late { 0.4 } else { 0.0 },
        p99_ms: worst_ms,
        worst_ms,
        margin_ms: DEADLINE_MS - worst_ms,
        load_mib_s,
        traffic: Traffic {
            memory_gb_s: 0.5 + load_mib_s / 700.0,
            memory_peak_share: (0.5 + load_mib_s / 700.0) / 10.67,
            memory_power_mw: None,
        },
        reached: !late,
    }
}

/// The setting, with two numbers of the platform a tenth lower and higher; the second costs the task `cost_ms`.
fn choice(case: &Case, cost_ms: f64, commands: [&str; 3]) -> Choice {
    let changed = |number: &str, is: u64, were: u64, more_ms: f64| {
        let worst_ms = case.worst_ms + more_ms;
        let late = worst_ms > DEADLINE_MS;
        Sensitivity {
            number: number.into(),
            is,
            were,
            case: Case {
                miss_share: if late { 0.2 } else { 0.0 },
                p99_ms: worst_ms,
                worst_ms,
                margin_ms: DEADLINE_MS - worst_ms,
                reached: !late,
                ..case.clone()
            },
        }
    };
    let sensitivity = vec![
        changed("controller.row_hit_cap", 16, 14, 0.01),
        changed("controller.row_hit_cap", 16, 18, -0.01),
        changed("work.frame_ps", 26_300, 23_670, -cost_ms),
        changed("work.frame_ps", 26_300, 28_930, cost_ms),
    ];
    let robust = sensitivity.iter().all(|one| one.case.reached);
    Choice {
        case: case.clone(),
        jobs: 20,
        late: 0,
        candidate: 1,
        most_late: 0.1684,
        verdict: if robust {
            Verdict::Robust
        } else {
            Verdict::Fragile
        },
        commands: commands.map(str::to_owned).to_vec(),
        sensitivity,
        untried: vec!["controller.write_idle_ps (it is 0)".into()],
    }
}

pub fn plan(directory: &Path) -> Result<()> {
    let command = "target/release/memwarden plan --platform xeon-w3530 --task \
                   hrt:frame=8294400,period=20ms,deadline=13ms@0 --load xserver@1 --verify native";
    let mut run = record(NAME, command);
    run.target = "sim:xeon-w3530".into();
    run.configuration = serde_json::from_value(json!({
        "platform": "xeon-w3530", "load": ["xserver@1"], "jobs": 5, "miss_ratio": 0.0
    }))?;
    let mut summary = Summary::new(NAME, "sim:xeon-w3530");
    summary.cases = vec![
        case("alone", None, 0.0, 10.2),
        case("no guard", None, 814.0, 13.36),
        case("max,25, 1000 us", Some((25, "none", 1000)), 41.0, 10.4),
        case("max,700, 1000 us", Some((700, "none", 1000)), 655.0, 12.6),
        case(
            "670,850 spare, 1000 us",
            Some((850, "spare", 1000)),
            758.0,
            12.9,
        ),
        case(
            "670,700 spare, 1000 us",
            Some((700, "spare", 1000)),
            713.0,
            12.5,
        ),
    ];
    let front = [1, 4, 5, 3, 2];
    let commands = |load: &'static str| {
        [
            "memwarden guard start --period 1000us",
            load,
            "memwarden guard mode --best-effort spare",
        ]
    };
    let measured = |miss_share, p99_ms, load_mib_s: f64| Outcome {
        miss_share,
        p99_ms: Some(p99_ms),
        load_mib_s,
        load_share: load_mib_s / 820.0,
    };
    summary.whole = Whole {
        platform: "Intel Xeon W3530".into(),
        memory: "DDR3-1333".into(),
        memory_peak_gb_s: 10.67,
        task: "hrt".into(),
        frame_bytes: 8_294_400,
        period_us: 20_000,
        deadline_us: 13_000,
        confidence: 0.95,
        jobs: 5,
        front: front.map(|case| summary.cases[case].name.clone()).to_vec(),
        recommended: Some(choice(
            &summary.cases[4],
            0.3,
            commands("memwarden guard set --mb 670,850"),
        )),
        robust: Some(choice(
            &summary.cases[5],
            0.3,
            commands("memwarden guard set --mb 670,700"),
        )),
        verified: Some(Verified {
            place: "native".into(),
            predicted_unguarded: measured(0.4, 13.36, 820.0),
            unguarded: measured(0.38, 13.6, 820.0),
            predicted: measured(0.0, 12.9, 758.0),
            guarded: Some(measured(0.01, 12.95, 740.0)),
        }),
        ..Whole::default()
    };
    let samples: Vec<Sample> = summary
        .cases
        .iter()
        .map(|case| Sample::new(&case.name, 0, "victim", "worst_ms", "ms", case.worst_ms))
        .collect();
    write(directory, run, &samples, &summary.untyped())
}
