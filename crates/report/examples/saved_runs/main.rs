// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regenerates the saved runs under `tests/data`: `cargo run -p memwarden-report --example saved_runs`.
//!
//! Their figures are invented, of about the size that the lab gives, so that every table and plot has content. They
//! serve tests and the review of pages, and describe no machine.

mod copy;
mod mmap;
mod mymem;
mod plan;

use std::path::Path;

use memwarden_run::statistics::{ratio_of_medians, share_ci95};
use memwarden_run::{
    Aggressor, Cache, Case, Existing, Figure, GuardSettings, Host, LabFacts, Metric, Recorded, Run,
    RunFolder, Sample, Summary,
};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    interfere(&data.join("interfere"), 1.0)?;
    interfere(&data.join("interfere-slower"), 1.1)?;
    realtime(&data.join("realtime"))?;
    bench_guard(&data.join("bench-guard"))?;
    mmap::walks(&data.join("mmap"))?;
    mmap::reclaim(&data.join("mmap-reclaim"))?;
    mymem::throughput(&data.join("mymem-throughput"))?;
    mymem::counter(&data.join("mymem-counter"))?;
    copy::latency(&data.join("copy-latency"))?;
    copy::bandwidth(&data.join("copy-bandwidth"))?;
    copy::pollution(&data.join("copy-pollution"))?;
    copy::breakeven(&data.join("copy-breakeven"))?;
    copy::trace(&data.join("copy-trace"))?;
    plan::plan(&data.join("plan"))?;
    other(&data.join("other"))
}

/// Invented noise, deterministic.
struct Noise(u64);

impl Noise {
    /// From 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / (1u64 << 24) as f64
    }

    fn around(&mut self, value: f64, share: f64, count: usize) -> Vec<f64> {
        let mut one =
            || (value * (1.0 + share * (2.0 * self.next() - 1.0)) * 100.0).round() / 100.0;
        (0..count).map(|_| one()).collect()
    }

    /// Many small values and a few large ones.
    fn tailed(&mut self, value: f64, count: usize) -> Vec<f64> {
        (0..count)
            .map(|_| (value * (1.0 - self.next()).powf(-0.35)).round())
            .collect()
    }
}

fn record(experiment: &str, command: &str) -> Run {
    let mut run = Run::new(experiment, "lab");
    run.command_line = command.split(' ').map(str::to_owned).collect();
    run.started = "2026-03-01T12:00:05.000Z".into();
    run.version = "0.1.0".into();
    run.git_revision = Some("0123abc".into());
    run.host = Host {
        cpu_model: Some("QEMU max (0x00:0x051)".into()),
        architecture: Some("aarch64".into()),
        cores: Some(4),
        caches: vec![Cache {
            level: 2,
            kind: "unified".into(),
            size_bytes: Some(524_288),
            line_bytes: Some(64),
            ways: None,
            cpus: Some("0-3".into()),
        }],
        memory_bytes: Some(1 << 30),
        kernel: Some("6.12.63+deb13-arm64".into()),
        virtualised: Some(true),
        counters: vec!["page-faults".into(), "cycles".into()],
        regulators: vec!["module".into()],
        ..Host::default()
    };
    run.lab = Some(LabFacts {
        kernel: "6.12.63+deb13-arm64".into(),
        machine: "virt".into(),
        qemu_version: "7.2.22".into(),
        clock: "counted".into(),
        ..LabFacts::default()
    });
    run
}

/// Marks the run as one with a platform's caches and memory.
fn on_platform(run: &mut Run, name: &str) {
    if let Some(lab) = &mut run.lab {
        lab.more.insert("platform".into(), name.into());
    }
}

fn write(directory: &Path, run: Run, samples: &[Sample], summary: &Summary) -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let mut folder = RunFolder::create(Some(&temporary.path().join("run")), run, Existing::Refuse)?;
    folder.append_all(samples)?;
    let mut recorded = Recorded::read(&folder.finish(summary)?)?;
    recorded.run.ended = Some("2026-03-01T12:01:13.500Z".into());
    recorded.adopt(Some(directory), Existing::Replace)?;
    Ok(())
}

/// One core's proof.
fn core(cpu: u32, events: u64, used: u64, throttled_share: Option<f64>) -> Value {
    json!({
        "cpu": cpu,
        "budget_events": events,
        "periods": 1205,
        "largest_period_events": used,
        "mean_period_events": used as f64 * 0.998,
        "periods_over_budget": 0,
        "overshoot_max": 0,
        "throttled_share": throttled_share,
    })
}

fn interfere(directory: &Path, slower: f64) -> Result<()> {
    let mut noise = Noise(3);
    let mut run = record(
        "interfere",
        "target/release/memwarden interfere --on lab --victim latency --aggressors bandwidth:read,bandwidth:write \
         --cpus 1-3 --guard 1000,100,100,100 --repeat 5",
    );
    on_platform(&mut run, "raspberry-pi-3");
    run.configuration = serde_json::from_value(json!({
        "victim": "latency", "victim_cpu": 0, "aggressors": ["bandwidth:read", "bandwidth:write"], "cpus": "1-3",
        "guard": ["1000,100,100,100"], "repeat": 5, "period": "1ms", "event": "armv8"
    }))?;
    let guard = GuardSettings {
        backend: "module".into(),
        budget_mib_s: [1000.0, 100.0, 100.0, 100.0].map(Some).to_vec(),
        best_effort: "none".into(),
        ..GuardSettings::default()
    };
    let mut summary: Summary = Summary::new("interfere", "lab");
    let mut samples = Vec::new();
    let solo = noise.around(81.9 * slower, 0.004, 5);
    for guarded in [false, true] {
        for (kind, count) in [
            ("", 0),
            ("bandwidth:read", 1),
            ("bandwidth:read", 2),
            ("bandwidth:read", 3),
            ("bandwidth:write", 1),
            ("bandwidth:write", 2),
            ("bandwidth:write", 3),
        ] {
            let mut name = if count == 0 {
                "solo".to_owned()
            } else {
                format!("{kind} x{count}")
            };
            if guarded {
                name += ", guard 1000,100,100,100";
            }
            let write = kind.ends_with("write");
            let each = if write { 0.98 } else { 0.86 };
            let factor = 1.0 + count as f64 * if guarded { 0.017 } else { each };
            let victim = if count == 0 && !guarded {
                solo.clone()
            } else {
                noise.around(81.9 * slower * factor, 0.006, 5)
            };
            let mut case =
                Case::new(&name).with_metric("victim", Metric::from_samples("latency_ns", &victim));
            case.set_slowdown(ratio_of_medians(&victim, &solo));
            case.guard = guarded.then(|| guard.clone());
            for (i, value) in victim.iter().enumerate() {
                let at = samples.len() as u64 * 1_000_000;
                let sample = Sample::new(&name, i as u32, "victim", "latency_ns", "ns", *value);
                samples.push(sample.on_cpu(0).at_ns(at));
            }
            let mut cores = vec![core(0, 250, 0, Some(0.0))];
            for cpu in 1..=count {
                let mib_s = noise.around(
                    if guarded {
                        99.6
                    } else {
                        1100.0 / (1 + count) as f64
                    },
                    0.02,
                    1,
                )[0];
                let share =
                    guarded.then(|| (noise.around(0.62, 0.05, 1)[0] * 1000.0).round() / 1000.0);
                case.aggressors.push(Aggressor {
                    cpu,
                    kind: kind.into(),
                    mib_s: Some(mib_s),
                    throttled_share: share,
                    ..Aggressor::default()
                });
                cores.push(core(cpu, 25, 25, share));
                samples
                    .push(Sample::new(&name, 0, "aggressor", "mib_s", "MiB/s", mib_s).on_cpu(cpu));
            }
            if guarded {
                case.set("cores", cores);
            }
            summary.cases.push(case);
        }
    }
    summary.note(
        "An event is a page fault of 4096 bytes: 100 MiB/s are 25 events in a period of 1 ms.",
    );
    write(directory, run, &samples, &summary)
}

fn bench_guard(directory: &Path) -> Result<()> {
    let mut noise = Noise(5);
    let run = record(
        "bench-guard",
        "memwarden guard bench --on lab --out out/bench-guard",
    );
    let mut summary: Summary = Summary::new("bench-guard", "lab");
    let mut samples = Vec::new();
    let mut measured = |name: &str, metric: &str, unit: &str, values: &[f64]| {
        samples.extend(values.iter().enumerate().map(|(i, v)| {
            Sample::new(name, 0, "guard", metric, unit, *v)
                .on_cpu(0)
                .at_ns(i as u64 * 1_000_000)
        }));
        Metric::from_samples(metric, values)
    };
    for (cpus, budgets) in [(1, vec![5, 10, 25, 50, 100, 200]), (4, vec![5, 10, 25, 50])] {
        for budget in budgets {
            let name = format!("accuracy: {budget} faults a ms, {cpus} regulated");
            let achieved: Vec<f64> = (0..40)
                .map(|_| {
                    f64::from(budget)
                        - if noise.next() < 0.01 * cpus as f64 {
                            1.0
                        } else {
                            0.0
                        }
                })
                .collect();
            let metric = measured(&name, "achieved_events", "events", &achieved);
            let error = metric.mean.unwrap_or(0.0) / f64::from(budget) - 1.0;
            summary.cases.push(
                Case::new(&name)
                    .with("figure", "accuracy")
                    .with("event", "page-faults")
                    .with("cpus", cpus)
                    .with("budget_events", budget)
                    .with("period_us", 1000)
                    .with("periods", 2000)
                    .with("largest_period_events", budget)
                    .with("error_share", error)
                    .with("limit_share", 0.01)
                    .with("target", "within 1 %")
                    .with("reached", "yes")
                    .with_metric("achieved_events", metric),
            );
        }
    }
    for (event, typical) in [("page-faults", 0.0), ("cycles", 900.0)] {
        let name = format!("overshoot: {event}");
        let events: Vec<f64> = if typical == 0.0 {
            vec![0.0; 200]
        } else {
            noise.tailed(typical, 200)
        };
        let ns = noise.tailed(2100.0, 200);
        let case = Case::new(&name)
            .with("figure", "overshoot")
            .with("event", event)
            .with_metric(
                "overshoot_events",
                measured(&name, "overshoot_events", "events", &events),
            )
            .with_metric("overshoot_ns", measured(&name, "overshoot_ns", "ns", &ns));
        summary.cases.push(case);
    }
    let name = "reaction: page-faults";
    let throttle = noise.tailed(3800.0, 200);
    let release = noise.tailed(1900.0, 200);
    summary.cases.push(
        Case::new(name)
            .with("figure", "reaction")
            .with_metric(
                "throttle_latency_ns",
                measured(name, "throttle_latency_ns", "ns", &throttle),
            )
            .with_metric(
                "release_latency_ns",
                measured(name, "release_latency_ns", "ns", &release),
            ),
    );
    for (period, cost, limit, missed) in [
        (1000, 0.0021, 0.005, 0.0),
        (500, 0.0040, 0.0075, 0.0),
        (200, 0.0093, 0.0125, 0.0004),
        (100, 0.0212, 0.02, 0.0031),
    ] {
        summary.cases.push(
            Case::new(format!("overhead: {period} us"))
                .with("figure", "overhead")
                .with("period_us", period)
                .with("overhead_share", cost)
                .with("limit_share", limit)
                .with("target", format!("at most {} %", limit * 100.0))
                .with("reached", if cost < limit { "yes" } else { "NO" }),
        );
        let name = format!("boundaries: {period} us");
        let late = noise.tailed(9000.0, 60);
        summary.cases.push(
            Case::new(&name)
                .with("figure", "boundaries")
                .with("period_us", period)
                .with("cpus", 4)
                .with("missed_share", missed)
                .with("limit_share", 0.01)
                .with_metric("late_ns", measured(&name, "late_ns", "ns", &late)),
        );
    }
    for cpus in [2, 4, 8, 16] {
        let name = format!("scaling: {cpus} CPUs");
        let values = noise.tailed(3700.0 + 8.0 * f64::from(cpus), 60);
        summary.cases.push(
            Case::new(&name)
                .with("figure", "scaling")
                .with("cpus", cpus)
                .with_metric(
                    "throttle_latency_ns",
                    measured(&name, "throttle_latency_ns", "ns", &values),
                ),
        );
    }
    for (mode, used) in [
        ("none", [150, 50]),
        ("spare", [281, 97]),
        ("proportional", [211, 70]),
    ] {
        let core = |cpu: usize| json!({"cpu": cpu, "budget_events": ([150, 50][cpu]), "used_events": (used[cpu])});
        summary.cases.push(
            Case::new(format!("sharing: 600,200, {mode}"))
                .with("figure", "sharing")
                .with("mode", mode)
                .with("cores", json!([core(0), core(1)])),
        );
    }
    write(directory, run, &samples, &summary)
}

/// The case study's task: 10 ms of its 20 ms, with a deadline of 13 ms; sometimes late beside the load, never with the
/// guard.
fn realtime(directory: &Path) -> Result<()> {
    let mut noise = Noise(5);
    let mut run = record(
        "realtime",
        "target/release/memwarden realtime --on lab --jobs 40 --load screen --guard none --guard 600,300+ps",
    );
    on_platform(&mut run, "xeon-w3530");
    run.configuration = serde_json::from_value(
        json!({"jobs": 40, "load": ["screen"], "guard": ["none", "600,300+ps"]}),
    )?;
    let mut summary: Summary = Summary::new("realtime", "lab");
    for (key, value) in [
        ("frame_bytes", json!(8_294_400)),
        ("period_ns", json!(20_000_000)),
        ("deadline_ns", json!(13_000_000)),
        ("access", json!("bandwidth:read")),
        ("real_time", json!(true)),
    ] {
        summary.whole.insert(key.into(), Figure::Other(value));
    }
    let guard = GuardSettings {
        backend: "module".into(),
        budget_mib_s: vec![Some(600.0), Some(300.0)],
        best_effort: "proportional".into(),
        reclaim: false,
        ..GuardSettings::default()
    };
    let mut samples = Vec::new();
    let mut alone = Vec::new();
    for (name, job_ns, skipped, guarded) in [
        ("alone", 1.01e7, 0, false),
        ("screen", 1.3e7, 2, false),
        ("alone, guard 600,300+ps", 1.02e7, 0, true),
        ("screen, guard 600,300+ps", 1.12e7, 0, true),
    ] {
        let execution = noise.around(job_ns, 0.1, 40 - skipped);
        let jitter = noise.tailed(4000.0, 40 - skipped);
        let response: Vec<f64> = execution.iter().zip(&jitter).map(|(e, j)| e + j).collect();
        for (metric, values) in [
            ("response_ns", &response),
            ("execution_ns", &execution),
            ("release_jitter_ns", &jitter),
        ] {
            samples.extend((0..).zip(values).map(|(job, v): (u64, _)| {
                Sample::new(name, 0, "victim", metric, "ns", *v)
                    .on_cpu(0)
                    .at_ns(job * 20_000_000)
            }));
        }
        if name == "alone" {
            alone.clone_from(&response);
        }
        let misses = response.iter().filter(|ns| **ns > 1.3e7).count() + skipped;
        let mut case = Case::new(name)
            .with_metric("victim", Metric::from_samples("response_ns", &response))
            .with_metric(
                "execution",
                Metric::from_samples("execution_ns", &execution),
            )
            .with_metric(
                "release_jitter",
                Metric::from_samples("release_jitter_ns", &jitter),
            )
            .with("releases", 40)
            .with("skipped", skipped)
            .with("misses", misses)
            .with("miss_share", misses as f64 / 40.0)
            .with("miss_share_ci95", json!(share_ci95(misses as u64, 40)));
        case.set_slowdown(ratio_of_medians(&response, &alone));
        case.guard = guarded.then(|| guard.clone());
        if guarded {
            case.set("throttled_share", 0.04);
        }
        if name.starts_with("screen") {
            case.aggressors.push(Aggressor {
                cpu: 1,
                kind: "screen".into(),
                mib_s: Some(if guarded { 299.1 } else { 2950.0 }),
                throttled_share: guarded.then_some(0.71),
                cpu_share: Some(Some(if guarded { 0.29 } else { 0.998 })),
                ..Aggressor::default()
            });
        }
        summary.cases.push(case);
    }
    summary.note("2 jobs were skipped because the previous job was still running at their release: they count as \
        misses, and have no time in the distributions.");
    write(directory, run, &samples, &summary)
}

/// An experiment that this library does not know, with hostile names and a figure that could not be measured.
fn other(directory: &Path) -> Result<()> {
    let mut run = record("weather", "memwarden weather --city <Reykjavik>");
    run.target = "native".into();
    run.lab = None;
    let mut summary: Summary = Summary::new("weather", "native");
    let mut samples = Vec::new();
    for (i, name) in [
        "<script>alert(1)</script> & \"quotes\"",
        "a very long name of a case that goes on and on without end",
    ]
    .into_iter()
    .enumerate()
    {
        let values = [1.5 + i as f64, 2.5, 7.25, -1.0, 2.0, 2.25];
        samples.extend(
            values
                .iter()
                .map(|v| Sample::new(name, 0, "sky", "rain_mm", "mm", *v)),
        );
        summary.cases.push(
            Case::new(name)
                .with_metric("rain_mm", Metric::from_samples("rain_mm", &values))
                .with_metric(
                    "snow_mm",
                    Metric::unmeasured("snow_mm", "the gauge was frozen"),
                )
                .with("wind_from", "west")
                .with("days", i + 1)
                .with("list", json!([1, 2, 3]))
                .with("cloudy_share", 0.333),
        );
    }
    write(directory, run, &samples, &summary)
}
