// SPDX-License-Identifier: MIT OR Apache-2.0
//! Invented copies between user and kernel memory.

use std::path::Path;

use memwarden_run::statistics::ratio_of_medians;
use memwarden_run::{Case, Figure, Metric, Sample, Summary};
use serde_json::json;

use crate::{Noise, Result, record, write};

/// The engines, with the minimum time of a copy and the time of each byte, ns.
const ENGINES: [(&str, f64, f64); 3] = [
    ("cpu", 60.0, 0.12),
    ("dma-exclusive", 2100.0, 0.05),
    ("dma-shared", 2300.0, 0.05),
];

fn engine_of_the_run(summary: &mut Summary) {
    for (key, value) in [
        ("channels", json!(4)),
        ("provider", json!("invented-dma")),
        ("poll_bytes", json!(16_384)),
        ("align_bytes", json!(1)),
        ("can_pause", json!(true)),
    ] {
        summary.whole.insert(key.into(), Figure::Other(value));
    }
}

pub fn latency(directory: &Path) -> Result<()> {
    let mut noise = Noise(31);
    let mut run = record(
        "copy-latency",
        "target/release/memwarden copy latency --on lab --sizes 1,4096,1048576 --count 12",
    );
    run.configuration = serde_json::from_value(json!({
        "device": "/dev/cftu", "engine": [], "operation": ["from", "to"], "sizes": [1, 4096, 1_048_576], "count": 12,
        "load": ["idle"], "pin_inside": false, "cpu": 0
    }))?;
    let mut summary: Summary = Summary::new("copy-latency", "lab");
    let mut samples = Vec::new();
    let mut now = 1000.0;
    for (engine, call_ns, byte_ns) in ENGINES {
        for size in [1u32, 4096, 1_048_576] {
            for (operation, more) in [("from", 1.0), ("to", 0.9)] {
                let plural = if size == 1 { "" } else { "s" };
                let name = format!("{operation}, {engine}, {size} byte{plural}");
                let middle = (call_ns + byte_ns * f64::from(size)) * more;
                let times: Vec<f64> = noise
                    .around(middle, 0.08, 12)
                    .into_iter()
                    .map(f64::round)
                    .collect();
                for (number, ns) in (0..).zip(&times) {
                    samples.push(
                        Sample::new(&name, number, "copy", "time_ns", "ns", *ns)
                            .on_cpu(0)
                            .at_ns(now as u64),
                    );
                    now += ns + 50.0;
                }
                let time = Metric::from_samples("time_ns", &times);
                let mib_s = time
                    .median
                    .map(|ns| f64::from(size) / ns * 1e9 / 1_048_576.0);
                summary.cases.push(
                    Case::new(name)
                        .with("size_bytes", size)
                        .with_metric("time", time)
                        .with("mib_s", json!(mib_s))
                        .with("engine_share", if engine == "cpu" { 0.0 } else { 1.0 })
                        .with("operation", operation)
                        .with("engine", engine)
                        .with("load", "idle"),
                );
            }
        }
    }
    for (key, value) in [
        ("clock_shortest_ns", 16u64),
        ("clock_base_ns", 5_000_000_000),
    ] {
        summary
            .whole
            .insert(key.into(), Figure::Other(json!(value)));
    }
    engine_of_the_run(&mut summary);
    summary.note("Left out: dma-priority. Invented runs need a reason too.");
    write(directory, run, &samples, &summary)
}

pub fn bandwidth(directory: &Path) -> Result<()> {
    let mut noise = Noise(37);
    let mut run = record(
        "copy-bandwidth",
        "target/release/memwarden copy bandwidth --on lab --sizes 1024,1048576 --operations 30 --repeat 3",
    );
    run.configuration = serde_json::from_value(json!({
        "device": "/dev/cftu", "engine": [], "operation": ["from", "from+to"], "sizes": [1024, 1_048_576],
        "operations": 30, "repeat": 3
    }))?;
    let mut summary: Summary = Summary::new("copy-bandwidth", "lab");
    let mut samples = Vec::new();
    for (engine, small, large) in [
        ("cpu", 2600.0, 3900.0),
        ("dma-exclusive", 410.0, 6100.0),
        ("dma-priority", 390.0, 5900.0),
    ] {
        for (size, all) in [(1024u32, small), (1_048_576, large)] {
            for operation in ["from", "from+to"] {
                let name = format!("{operation}, {engine}, {size} bytes");
                let priority = engine == "dma-priority";
                let mut totals = [0.0; 3];
                let mut rates = Vec::new();
                let mut channels = Vec::new();
                for cpu in 0..2u32 {
                    let high = priority && cpu == 0;
                    let part = if priority {
                        [0.64, 0.36][cpu as usize]
                    } else {
                        0.5
                    };
                    let mine = noise.around(all * part, 0.05, 3);
                    for ((repeat, rate), total) in (0..).zip(&mine).zip(&mut totals) {
                        let elapsed = f64::from(size) * 30.0 / 1_048_576.0 / rate * 1e9;
                        let channel = (engine != "cpu").then_some(f64::from(cpu));
                        let sample = |metric, unit, value: Option<f64>| {
                            Sample::new(&name, repeat, "channel", metric, unit, value)
                                .on_cpu(cpu)
                                .at_ns(u64::from(repeat) * 1_000_000)
                        };
                        samples.push(sample("elapsed_ns", "ns", Some(elapsed.round())));
                        samples.push(sample("channel", "number", channel));
                        samples.push(sample("mib_s", "MiB/s", Some(*rate)));
                        *total += rate;
                    }
                    let rate = Metric::from_samples("mib_s", &mine).median;
                    let channel = (engine != "cpu").then_some(cpu);
                    channels
                        .push(json!({"cpu": cpu, "channel": channel, "high": high, "mib_s": rate}));
                    rates.extend(mine);
                }
                for (repeat, total) in (0..).zip(&totals) {
                    samples.push(Sample::new(&name, repeat, "all", "mib_s", "MiB/s", *total));
                }
                let mut case = Case::new(&name)
                    .with("operation", operation)
                    .with("engine", engine)
                    .with("size_bytes", size)
                    .with("operations", 30)
                    .with_metric("total", Metric::from_samples("mib_s", &totals))
                    .with_metric("channel", Metric::from_samples("mib_s", &rates))
                    .with("channels", channels);
                if engine != "cpu" {
                    let share = |channel: u32| match (priority, channel) {
                        (false, _) => 0.5,
                        (true, 0) => 0.64,
                        (true, _) => 0.36,
                    };
                    let of = |channel| {
                        let high = priority && channel == 0;
                        json!({"channel": channel, "high": high, "share": share(channel)})
                    };
                    case.set("channel_shares", [0, 1].map(of).to_vec());
                    case.set("engine_share", 1.0);
                }
                if priority {
                    case.set("high_share", 0.64);
                }
                summary.cases.push(case);
            }
        }
    }
    for (key, value) in [
        ("clock_base_ns", json!(5_000_000_000_u64)),
        ("operations", json!(30)),
    ] {
        summary.whole.insert(key.into(), Figure::Other(value));
    }
    engine_of_the_run(&mut summary);
    write(directory, run, &samples, &summary)
}

pub fn pollution(directory: &Path) -> Result<()> {
    let mut noise = Noise(41);
    let mut run = record(
        "copy-pollution",
        "target/release/memwarden copy pollution --on lab --application susan_edges_small,qsort_small --count 8",
    );
    run.configuration = serde_json::from_value(json!({
        "device": "/dev/cftu", "engine": "dma-shared", "system": ["ideal", "cpu", "dma"],
        "pairs": ["from+to:16", "to:4096"], "application": ["susan_edges_small", "qsort_small"], "count": 8
    }))?;
    let mut summary: Summary = Summary::new("copy-pollution", "lab");
    let mut samples = Vec::new();
    for (application, alone) in [
        ("susan_edges_small", 900_000.0),
        ("qsort_small", 4_200_000.0),
    ] {
        let mut ideal = Vec::new();
        for (system, pair, more) in [
            ("ideal", None, 1.0),
            ("cpu", Some("from+to:16"), 1.02),
            ("dma", Some("from+to:16"), 1.01),
            ("cpu", Some("to:4096"), 1.19),
            ("dma", Some("to:4096"), 1.04),
        ] {
            let name = match pair {
                Some(pair) => format!("{application}, {system}, {pair}"),
                None => format!("{application}, {system}"),
            };
            let times = noise.around(alone * more, 0.01, 8);
            let references = noise.around(157_283.0, 0.01, 8);
            // No counts beside the engine, to show a case without them.
            let counted = system != "dma";
            let cache = |metric: &str, share: f64| {
                if !counted {
                    return Metric {
                        metric: metric.into(),
                        ..Metric::default()
                    };
                }
                let values: Vec<f64> = references.iter().map(|n| n * share).collect();
                Metric::from_samples(metric, &values)
            };
            for (number, ns) in (0..).zip(&times) {
                let sample = |metric, unit, value: Option<f64>| {
                    Sample::new(&name, number, "victim", metric, unit, value)
                        .on_cpu(1)
                        .at_ns(u64::from(number) * 5_000_000)
                };
                let seen = references[number as usize].round();
                samples.push(sample("time_ns", "ns", Some(ns.round())));
                samples.push(sample(
                    "cache_references",
                    "events",
                    counted.then_some(seen),
                ));
                samples.push(sample(
                    "cache_misses",
                    "events",
                    counted.then_some((seen * 0.02).round()),
                ));
            }
            let mut case = Case::new(name)
                .with_metric("victim", Metric::from_samples("time_ns", &times))
                .with_metric("references", cache("cache_references_events", 1.0))
                .with_metric("misses", cache("cache_misses_events", 0.02))
                .with_metric(
                    "miss_share",
                    if counted {
                        Metric::from_samples("miss_share", &[0.02; 8])
                    } else {
                        cache("miss_share", 1.0)
                    },
                )
                .with("application", application)
                .with("system", system)
                .with("pair", pair)
                .with("copies", pair.map(|_| 64_000));
            if system == "ideal" {
                ideal = times;
            } else {
                case.set_slowdown(ratio_of_medians(&times, &ideal));
            }
            summary.cases.push(case);
        }
    }
    for (key, value) in [
        ("clock_base_ns", json!(5_000_000_000_u64)),
        ("engine", json!("dma-shared")),
    ] {
        summary.whole.insert(key.into(), Figure::Other(value));
    }
    engine_of_the_run(&mut summary);
    summary.note(
        "Cache references and misses could not be measured in some cases: the PMU was on leave.",
    );
    write(directory, run, &samples, &summary)
}

pub fn breakeven(directory: &Path) -> Result<()> {
    let mut noise = Noise(43);
    let mut run = record(
        "copy-breakeven",
        "target/release/memwarden copy breakeven --on lab --sizes 64,4096,1048576 --count 20",
    );
    run.configuration = serde_json::from_value(json!({
        "device": "/dev/cftu", "engine": "dma-shared", "operation": ["from"], "sizes": [64, 4096, 1_048_576], "count": 20
    }))?;
    let mut summary: Summary = Summary::new("copy-breakeven", "lab");
    let mut samples = Vec::new();
    for (answer, metric, ratios) in [
        ("latency", "time_ns", [30.0, 4.0, 0.45]),
        ("cpu-time", "cpu_time_ns", [20.0, 0.7, 0.02]),
        ("slowdown", "victim_ns", [1.0, 1.01, 1.02]),
    ] {
        for (size, ratio) in [64u32, 4096, 1_048_576].into_iter().zip(ratios) {
            let name = format!("{answer}, from, {size} bytes");
            let cpu = noise.around(60.0 + 0.12 * f64::from(size), 0.01, 10);
            let dma: Vec<f64> = cpu
                .iter()
                .map(|ns| (ns * ratio * 100.0).round() / 100.0)
                .collect();
            for (role, times) in [("cpu", &cpu), ("dma", &dma)] {
                samples.extend(
                    (0..)
                        .zip(times)
                        .map(|(number, ns)| Sample::new(&name, number, role, metric, "ns", *ns)),
                );
            }
            let over = ratio_of_medians(&dma, &cpu);
            summary.cases.push(
                Case::new(name)
                    .with("answer", answer)
                    .with_metric("cpu", Metric::from_samples(metric, &cpu))
                    .with_metric("dma", Metric::from_samples(metric, &dma))
                    .with("ratio", json!(over.ratio))
                    .with("ratio_ci95", json!(over.ci95))
                    .with("operation", "from")
                    .with("size_bytes", size),
            );
        }
    }
    let reason =
        "at 1048576 bytes, the largest that was measured, the engine's figure is 1.02 of the CPU's";
    for (key, value) in [
        ("latency_bytes", json!(1_048_576)),
        ("latency_reason", json!(null)),
        ("cpu_time_bytes", json!(4096)),
        ("cpu_time_reason", json!(null)),
        ("slowdown_bytes", json!(null)),
        ("slowdown_reason", json!(reason)),
        ("engine", json!("dma-shared")),
    ] {
        summary.whole.insert(key.into(), Figure::Other(value));
    }
    engine_of_the_run(&mut summary);
    summary.note(format!(
        "By slowdown there is no size from which the engine wins: {reason}."
    ));
    write(directory, run, &samples, &summary)
}

/// A machine with mostly small reads and writes: the number of calls falls with the size, and the time grows with it.
pub fn trace(directory: &Path) -> Result<()> {
    let mut noise = Noise(53);
    let mut run = record(
        "copy-trace",
        "target/release/memwarden trace copies --on lab --for 2s",
    );
    run.configuration = serde_json::from_value(json!({
        "device": "/dev/copytrace", "ops": ["from", "to", "__from", "__to"], "for": "2s", "every": "100ms",
        "dat": false, "command": []
    }))?;
    let mut summary: Summary = Summary::new("copy-trace", "lab");
    let mut samples = Vec::new();
    let mut sizes = Vec::new();
    let mut callers = Vec::new();
    for (function, calls_of_8, dropped, address) in [
        ("from", 6400u64, 0u64, "0xffff80008044c129"),
        ("to", 9100, 12, "0xffff800080441d30"),
        ("__from", 900, 0, "0xffff8000804a0210"),
        ("__to", 0, 0, ""),
    ] {
        let mut by_size = Vec::new();
        let (mut calls, mut bytes) = (0, 0);
        let mut all = Vec::new();
        for size in [8u64, 64, 1102, 4096, 65_536] {
            let count = calls_of_8 * 8 / (size + size / 64).max(8);
            if count == 0 {
                continue;
            }
            let name = format!("{function}, {size} bytes");
            let times: Vec<f64> = noise
                .around(60.0 + size as f64 / 9.0, 0.2, 6)
                .into_iter()
                .map(f64::round)
                .collect();
            for (number, ns) in (0..).zip(&times) {
                samples.push(
                    Sample::new(&name, number, "copy", "time_ns", "ns", *ns)
                        .on_cpu(number % 4)
                        .at_ns(u64::from(number) * 7000),
                );
            }
            sizes.push(
                Case::new(name)
                    .with("kind", "size")
                    .with("function", function)
                    .with("size_bytes", size)
                    .with("calls", count)
                    .with("bytes", count * size)
                    .with("not_copied_bytes", 0)
                    .with("engine_calls", 0)
                    .with("engine_bytes", 0)
                    .with_metric("time", Metric::from_samples("time_ns", &times)),
            );
            by_size.push([size, count]);
            calls += count;
            bytes += count * size;
            all.extend(times);
        }
        for (metric, count) in [("recorded_records", calls), ("dropped_records", dropped)] {
            samples
                .push(Sample::new(function, 0, "ring", metric, "records", count as f64).on_cpu(0));
        }
        let time = if all.is_empty() {
            Metric::unmeasured("time_ns", "no copy was seen")
        } else {
            Metric::from_samples("time_ns", &all)
        };
        summary.cases.push(
            Case::new(function)
                .with("kind", "function")
                .with("function", function)
                .with("calls", calls)
                .with("bytes", bytes)
                .with("not_copied_bytes", if function == "to" { 96 } else { 0 })
                .with("engine_calls", 0)
                .with("engine_bytes", 0)
                .with_metric("time", time)
                .with("recorded", calls)
                .with("dropped", dropped)
                .with("calls_by_size", json!(by_size))
                .with("calls_of_other_sizes", 0),
        );
        if calls > 0 {
            let symbol = (function != "__from").then(|| format!("invented_{function}+0x1c"));
            callers.push(json!({
                "function": function, "address": address, "symbol": symbol, "calls": calls, "bytes": bytes
            }));
        }
    }
    summary.cases.extend(sizes);
    for (key, value) in [
        ("source", json!("hooks")),
        ("merged", json!(false)),
        ("ring_records", json!(65_536)),
        ("cpus", json!(4)),
        ("elapsed_s", json!(2.0)),
        ("clock_base_ns", json!(5_000_000_000u64)),
        ("missed", json!(0)),
        ("command_exit_code", json!(null)),
        ("callers", json!(callers)),
    ] {
        summary.whole.insert(key.into(), Figure::Other(value));
    }
    summary.note("12 copies found their ring full and count only in `dropped`.");
    write(directory, run, &samples, &summary)
}
