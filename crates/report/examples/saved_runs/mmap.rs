// SPDX-License-Identifier: MIT OR Apache-2.0
//! Invented runs on mappings.

use std::path::Path;

use memwarden_run::{Case, Figure, Metric, Sample, Summary};
use serde_json::json;

use crate::{Noise, Result, record, write};

const MODEL: &str = "i5-2467m (L1D 32 KiB 8 ways, L2 256 KiB 8 ways, LLC 3 MiB 12 ways, DTLB 64 entries, STLB 512; prefetcher on)";

/// Walks: two mappings, both orders, two localities, and a competitor beside some of them.
pub fn walks(directory: &Path) -> Result<()> {
    let mut noise = Noise(41);
    let mut run = record(
        "mmap",
        "target/release/memwarden mmap --flags shared,private-anonymous --locality 2,16 --compete none,fork \
         --platform i5-2467m --outer 65536",
    );
    run.configuration = serde_json::from_value(json!({
        "flags": ["shared", "private-anonymous"], "access": ["random", "sequential"], "locality": [2, 16],
        "size_bytes": 1 << 30, "outer": 65536, "compete": ["none", "fork"], "repeat": 3
    }))?;
    let mut summary: Summary = Summary::new("mmap", "lab");
    let mut samples = Vec::new();
    for compete in ["none", "fork"] {
        for mapping in ["SHARED file", "PRIVATE|ANONYMOUS"] {
            for access in ["random", "sequential"] {
                for locality in [2_u32, 16] {
                    let beside = compete == "fork";
                    if beside && locality == 2 {
                        continue;
                    }
                    let end = if beside { ", beside fork" } else { "" };
                    let name = format!("{mapping}, {access}, locality {locality}{end}");
                    let random = access == "random";
                    let ns = 6e7 * f64::from(locality) * if random { 1.3 } else { 1.0 };
                    let ns = if beside { ns * 1.9 } else { ns };
                    let taken: Vec<f64> = noise
                        .around(ns, 0.03, 3)
                        .iter()
                        .map(|t| t.round())
                        .collect();
                    samples.extend((0..).zip(&taken).map(|(repeat, ns)| {
                        Sample::new(&name, repeat, "walk", "time_ns", "ns", *ns).on_cpu(1)
                    }));
                    let metric = |key: &str, value: f64| Metric::from_samples(key, &[value]);
                    let mut case = Case::new(name)
                        .with("mapping", mapping)
                        .with("access", access)
                        .with("locality", locality)
                        .with("compete", compete)
                        .with("outer", 65536)
                        .with("huge_bytes", 0)
                        .with_metric("time", Metric::from_samples("time_ns", &taken));
                    let switches = if beside { 63.0 } else { 3.0 };
                    let faults = if mapping == "SHARED file" {
                        1200.0
                    } else {
                        0.0
                    };
                    for (key, value) in [
                        ("user_us", ns / 1e3 * 0.98),
                        ("system_us", 1500.0),
                        ("minor_faults", faults),
                        ("major_faults", 0.0),
                        ("voluntary_switches", 0.0),
                        ("involuntary_switches", switches),
                        ("blocks_in", 0.0),
                        ("blocks_out", 0.0),
                        ("max_rss_kib", 1_060_000.0),
                    ] {
                        case.set_metric(key, metric(key, value));
                    }
                    if beside {
                        let ends = [("was ended when the walk was done", false); 2];
                        let ends = ends.iter().chain(&[("was killed by the OOM killer", true)]);
                        let all: Vec<_> = ends
                            .map(|(end, killed)| {
                                json!({"limit_bytes": 1 << 29, "touched_bytes": 1 << 29, "passes": 9,
                                       "oom_killed": killed, "end": end})
                            })
                            .collect();
                        case.set("oom_kills", 1);
                        case.set("competitors", all);
                        case.slowdown = Some(1.9);
                        case.slowdown_ci95 = Some([1.84, 1.96]);
                    } else {
                        let loads = 8192.0 * 448.0 * f64::from(locality);
                        let misses = 8192.0 * 448.0 * if random { 0.99 } else { 0.55 };
                        let walks = 8192.0 * if random { 8.0 } else { 0.3 };
                        for (key, value) in [
                            ("L1-dcache-loads", loads),
                            ("L1-dcache-load-misses", misses),
                            ("L1-dcache-stores", loads / 7.0),
                            ("L1-dcache-store-misses", misses / 7.0),
                            ("dTLB-loads", loads),
                            ("dTLB-load-misses", walks),
                        ] {
                            case.set_metric(key, metric(key, value));
                        }
                        case.set("counted_outer", 8192);
                        case.set("l1d_load_miss_share", misses / loads);
                        case.set("l1d_store_miss_share", misses / loads);
                        case.set("dtlb_load_miss_share", walks / loads);
                    }
                    summary.cases.push(case);
                }
            }
        }
    }
    for (key, value) in [
        ("counted_by", json!("model")),
        ("geometry_text", json!(MODEL)),
        ("assumed", json!([])),
        ("model_accesses_per_s", json!(52_000_000.0)),
    ] {
        summary.whole.insert(key.into(), Figure::Other(value));
    }
    summary.note(format!(
        "L1D, L2, LLC and TLB counters are modelled, not measured: {MODEL}."
    ));
    write(directory, run, &samples, &summary)
}

pub fn reclaim(directory: &Path) -> Result<()> {
    let mut noise = Noise(43);
    let mut run = record(
        "mmap-reclaim",
        "target/release/memwarden mmap reclaim --on lab",
    );
    run.configuration = serde_json::from_value(json!({
        "hot_bytes": 2 << 20, "cold_bytes": 12 << 20, "memory_bytes": 6 << 20, "rounds": 3, "swap": "/dev/ram0", "repeat": 3
    }))?;
    let mut summary: Summary = Summary::new("mmap-reclaim", "lab");
    let mut samples = Vec::new();
    for (value, middle) in [(0, 400.0), (1, 9000.0)] {
        let name = format!("vm.reclaim_active {value}");
        let hot: Vec<f64> = noise
            .around(middle, 0.1, 3)
            .iter()
            .map(|n| n.round())
            .collect();
        let cold: Vec<f64> = noise
            .around(9200.0, 0.001, 3)
            .iter()
            .map(|n| n.round())
            .collect();
        for (repeat, faults) in (0..).zip(&hot) {
            samples.push(Sample::new(
                &name,
                repeat,
                "hot",
                "major_faults",
                "faults",
                *faults,
            ));
        }
        let share = |faults: &[f64], of: f64| faults.iter().map(|n| n / of).collect::<Vec<_>>();
        let metric = |key: &str, values: &[f64]| Metric::from_samples(key, values);
        summary.cases.push(
            Case::new(name)
                .with("reclaim_active", value)
                .with("hot_bytes", 2 << 20)
                .with("cold_bytes", 12 << 20)
                .with("memory_bytes", 6 << 20)
                .with("rounds", 3)
                .with_metric("hot_major_faults", metric("hot_major_faults", &hot))
                .with_metric(
                    "hot_fault_share",
                    metric("hot_fault_share", &share(&hot, 98304.0)),
                )
                .with_metric("cold_major_faults", metric("cold_major_faults", &cold))
                .with_metric(
                    "cold_fault_share",
                    metric("cold_fault_share", &share(&cold, 9216.0)),
                ),
        );
    }
    write(directory, run, &samples, &summary)
}
