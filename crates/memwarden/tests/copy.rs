// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of `copy` and their expected output, with copies within the process instead of the device. No time is
//! judged here.

use std::path::PathBuf;
use std::process::{Command, Output};

use memwarden_platform::affinity;
use memwarden_run::Recorded;
use tempfile::TempDir;

const MEMWARDEN: &str = env!("CARGO_BIN_EXE_memwarden");

fn memwarden(arguments: &[&str]) -> Output {
    Command::new(MEMWARDEN).args(arguments).output().unwrap()
}

/// A directory for the run.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn place(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, verb: &str, more: &[&str]) -> Output {
        let out = self.place("run");
        let mut words = vec!["copy", verb, "--device", "null", "--out"];
        words.push(out.to_str().unwrap());
        words.extend(more);
        memwarden(&words)
    }

    fn recorded(&self, verb: &str, more: &[&str]) -> Recorded {
        let output = self.run(verb, more);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{verb} {more:?}: {errors}");
        assert!(errors.is_empty(), "no terminal, no progress: {errors}");
        assert!(self.place("run/report.html").is_file());
        Recorded::read(&self.place("run")).unwrap()
    }
}

/// The machine's first two CPUs, if it has two.
fn two_cpus() -> Option<[String; 2]> {
    let cpus: Vec<usize> = affinity::get().unwrap().iter().take(2).collect();
    <[usize; 2]>::try_from(cpus)
        .ok()
        .map(|two| two.map(|cpu| cpu.to_string()))
}

#[test]
fn a_latency_run_leaves_its_folder_and_the_classic_files() {
    let bench = Bench::new();
    let dat = bench.place("dat");
    let dat = dat.to_str().unwrap();
    let more = ["--sizes", "1,64", "--repeat", "9", "--dat", dat];
    let run = bench.recorded("latency", &more);
    assert_eq!(run.summary.cases.len(), 4 * 4 * 2);
    assert!(bench.place("run/plots/median-from-idle.svg").is_file());
    for operation in ["from", "to", "from_nc", "to_nc"] {
        let file = |end: &str| {
            let name = format!("dat/micro-benchmark_{operation}_dma-shared_idle{end}.dat");
            std::fs::read_to_string(bench.place(&name)).unwrap()
        };
        assert_eq!(file("").lines().count(), 18);
        assert_eq!(file("_synth").lines().count(), 2);
        assert!(file("").lines().all(|line| line.split('\t').count() == 5));
    }
}

#[test]
fn a_heavy_load_comes_and_goes() {
    let Some([cpu, _]) = two_cpus() else {
        println!("skipped: one CPU: the load runs on the other CPUs");
        return;
    };
    let bench = Bench::new();
    let more = [
        "--engine",
        "cpu",
        "--operation",
        "to",
        "--sizes",
        "4096",
        "--repeat",
        "20",
        "--load",
        "idle,heavy",
        "--cpu",
        &cpu,
    ];
    let run = bench.recorded("latency", &more);
    let names: Vec<&str> = run
        .summary
        .cases
        .iter()
        .map(|case| case.name.as_str())
        .collect();
    assert_eq!(
        names,
        ["to, cpu, 4096 bytes", "to, cpu, 4096 bytes, heavy load"]
    );
    for load in ["idle", "heavy"] {
        let plot = format!("run/plots/mean-to-{load}.svg");
        assert!(bench.place(&plot).is_file(), "{plot}");
    }
}

#[test]
fn bandwidth_is_of_all_cpus() {
    let bench = Bench::new();
    let dat = bench.place("dat");
    let more = [
        "--sizes",
        "4096",
        "--operations",
        "10",
        "--json",
        "--dat",
        dat.to_str().unwrap(),
    ];
    let output = bench.run("bandwidth", &more);
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["cases"].as_array().unwrap().len(), 12);
    let text = std::fs::read_to_string(dat.join("dma-exclusive/measures_from_to.dat")).unwrap();
    let cpus = affinity::get().unwrap().len();
    assert_eq!(text.lines().count(), cpus + 1);
    assert!(text.lines().last().unwrap().starts_with("total_band= "));
}

#[test]
fn pollution_and_breakeven_have_two_cpus_at_work() {
    let Some([first, second]) = two_cpus() else {
        println!("skipped: one CPU: two things cannot run at once");
        return;
    };
    let bench = Bench::new();
    let more = [
        "--application",
        "susan_corners_small",
        "--pairs",
        "to:4096",
        "--repeat",
        "2",
        "--copy-cpu",
        &first,
        "--application-cpu",
        &second,
    ];
    assert_eq!(bench.recorded("pollution", &more).summary.cases.len(), 3);
    let more = [
        "--sizes",
        "64,4096",
        "--repeat",
        "10",
        "--victim",
        "susan_corners_small",
        "--victim-repeat",
        "2",
        "--cpu",
        &first,
        "--victim-cpu",
        &second,
        "--replace",
    ];
    assert_eq!(bench.recorded("breakeven", &more).summary.cases.len(), 12);
}

#[test]
fn bad_input_gets_one_line_and_leaves_nothing() {
    let bench = Bench::new();
    for (verb, more, expected) in [
        (
            "latency",
            &["--sizes", "2G"][..],
            "--sizes 2147483648: give 1 to",
        ),
        ("latency", &["--cpu", "8191"], "CPU 8191 is not online"),
        (
            "latency",
            &["--operation", "from+to"],
            "a copy goes one way",
        ),
        (
            "latency",
            &["--device", "/nonexistent/cftu"],
            "/nonexistent/cftu is not there",
        ),
        ("latency", &["--device", MEMWARDEN], ": "),
        ("bandwidth", &["--repeat", "0"], "--repeat 0"),
        ("pollution", &["--application", "doom"], "doom"),
        ("pollution", &["--copy-cpu", "1"], "give two CPUs"),
        ("breakeven", &["--repeat", "1"], "--repeat 1: give 10 to"),
        (
            "breakeven",
            &["--on", "lab", "--apply"],
            "--apply: the answer is for the lab's machine",
        ),
    ] {
        // The last --device option counts.
        let output = if more[0] == "--device" {
            memwarden(&["copy", verb, more[0], more[1]])
        } else {
            bench.run(verb, more)
        };
        assert!(!output.status.success(), "{verb} {more:?} was taken");
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(message.lines().count(), 1, "{verb} {more:?}: {message}");
        assert!(message.contains(expected), "{verb} {more:?}: {message}");
        assert!(!bench.place("run.partial").exists());
    }
}
