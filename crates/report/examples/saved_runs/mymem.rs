// SPDX-License-Identifier: MIT OR Apache-2.0
//! Invented runs on the memory devices.

use std::path::Path;

use memwarden_run::{Case, Figure, Metric, Sample, Summary};
use serde_json::json;

use crate::{Noise, Result, record, write};

pub fn throughput(directory: &Path) -> Result<()> {
    let mut noise = Noise(23);
    let mut run = record(
        "mymem-throughput",
        "target/release/memwarden mymem throughput --on lab --sizes 1,4096,524288 --trials 12",
    );
    run.configuration = serde_json::from_value(json!({
        "device": [], "sizes": [1, 4096, 524_288], "trials": 12, "seed": 1
    }))?;
    let mut summary: Summary = Summary::new("mymem-throughput", "lab");
    let mut samples = Vec::new();
    for size in [1u32, 4096, 524_288] {
        // Time of a system call, and of each copied byte.
        for (subject, call_ns, byte_ns) in [
            ("C device", 900.0, 0.04),
            ("Rust device", 950.0, 0.042),
            ("in-kernel", 60.0, 0.035),
        ] {
            for (direction, more) in [("write", 1.0), ("read", 0.9)] {
                let plural = if size == 1 { "" } else { "s" };
                let name = format!("{subject}, {direction}, {size} byte{plural}");
                let middle = (call_ns + byte_ns * f64::from(size)) * more;
                let times: Vec<f64> = noise
                    .around(middle, 0.08, 12)
                    .into_iter()
                    .map(f64::round)
                    .collect();
                samples.extend(
                    (0..).zip(&times).map(|(trial, ns)| {
                        Sample::new(&name, trial, "device", "time_ns", "ns", *ns)
                    }),
                );
                let time = Metric::from_samples("time_ns", &times);
                let mb_s = time.median.map(|ns| f64::from(size) / ns * 1000.0);
                summary.cases.push(
                    Case::new(name)
                        .with("subject", subject)
                        .with("direction", direction)
                        .with("size_bytes", size)
                        .with_metric("time", time)
                        .with("mb_s", json!(mb_s)),
                );
            }
        }
    }
    let shortest = Figure::Other(json!(16));
    summary.whole.insert("clock_shortest_ns".into(), shortest);
    summary.note(
        "The shortest time that this clock measures is 16 ns (its step, or the cost of reading it). The medians of \
         these cases are below five times that and no more exact: in-kernel, write, 1 byte; in-kernel, read, 1 byte.",
    );
    write(directory, run, &samples, &summary)
}

pub fn counter(directory: &Path) -> Result<()> {
    let mut noise = Noise(29);
    let mut run = record(
        "mymem-counter",
        "target/release/memwarden mymem counter --on lab --workers 1,8,50 --repeat 2",
    );
    run.configuration = serde_json::from_value(json!({
        "device": [], "workers": "1,8,50", "increments": 1000, "lock": ["none", "mutex", "fetch-add"], "repeat": 2,
        "in_kernel_workers": "50", "in_kernel_increments": 150_000
    }))?;
    let mut summary: Summary = Summary::new("mymem-counter", "lab");
    let mut samples = Vec::new();
    for (lock, loses) in [("none", 1.0), ("mutex", 0.0), ("fetch-add", 0.0)] {
        for (subject, workers, increments, share) in [
            ("C device", 1, 1000, 0.0),
            ("C device", 8, 1000, 0.61),
            ("C device", 50, 1000, 0.74),
            ("in-kernel", 50, 150_000, 0.52),
        ] {
            let lock_text = if lock == "none" { "no lock" } else { lock };
            let plural = if workers == 1 { "" } else { "s" };
            let name = format!("{subject}, {lock_text}, {workers} worker{plural}");
            let expected = f64::from(workers * increments);
            let errors: Vec<f64> = noise
                .around(share * loses * 100.0, 0.0, 2)
                .iter()
                .enumerate()
                .map(|(repeat, percent)| (percent + repeat as f64 * percent.min(0.01)) / 100.0)
                .collect();
            let counts: Vec<f64> = errors
                .iter()
                .map(|e| (expected * (1.0 - e)).round())
                .collect();
            let increment = noise.around(1900.0, 0.05, 2);
            for (repeat, count) in (0..).zip(&counts) {
                let sample = |metric, unit, value: f64| {
                    Sample::new(&name, repeat, "workers", metric, unit, value)
                };
                samples.push(sample("count", "increments", *count));
                samples.push(sample("error_share", "1", errors[repeat as usize]));
                let elapsed = increment[repeat as usize] * expected;
                samples.push(sample("elapsed_ns", "ns", elapsed.round()));
            }
            let wrong = counts.iter().filter(|count| **count != expected).count();
            summary.cases.push(
                Case::new(name)
                    .with("subject", subject)
                    .with("lock", lock)
                    .with("workers", workers)
                    .with("increments", increments)
                    .with("expected", workers * increments)
                    .with_metric("count", Metric::from_samples("count", &counts))
                    .with_metric("error", Metric::from_samples("error_share", &errors))
                    .with_metric(
                        "increment",
                        Metric::from_samples("increment_ns", &increment),
                    )
                    .with("runs", 2)
                    .with("wrong_runs", wrong),
            );
        }
    }
    write(directory, run, &samples, &summary)
}
