// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of `memwarden plan`, and of experiments on a simulated machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn memwarden(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memwarden"))
        .args(arguments)
        .output()
        .unwrap()
}

fn refused(arguments: &[&str], words: &str) {
    let output = memwarden(arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{arguments:?} was taken");
    assert!(message.contains(words), "{arguments:?}: {message}");
    assert!(output.stdout.is_empty(), "{arguments:?} printed something");
}

/// A small task, so that a plan takes about a second.
const SMALL: [&str; 6] = [
    "plan",
    "--platform",
    "raspberry-pi-3",
    "--task",
    "t:frame=128K,period=1ms,deadline=300us@0",
    "--load-memory=1M",
];

#[test]
fn a_plan_names_the_setting_and_the_commands_that_make_it_and_leaves_its_page() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("plan");
    let load = ["--load", "bandwidth:write@1-3", "--jobs", "2", "--json"];
    let folder = ["--out", out.to_str().unwrap()];
    let output = memwarden(&[&SMALL[..], &load, &folder].concat());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    let recommended = &plan["recommended"];
    let case = &recommended["case"];
    let budget = case["guard"]["budget_mib_s"][1].as_f64().unwrap();
    assert!(case["margin_ms"].as_f64().unwrap() >= 0.0);
    assert_eq!(
        (&recommended["jobs"], &recommended["late"]),
        (&8.into(), &0.into())
    );
    let cases = plan["cases"].as_array().unwrap();
    let unguarded = cases
        .iter()
        .find(|case| case["name"] == "no guard")
        .unwrap();
    assert!(unguarded["margin_ms"].as_f64().unwrap() < 0.0);
    let set = recommended["commands"][1].as_str().unwrap();
    assert!(set.starts_with("memwarden guard set --mb "), "{set}");
    assert!(
        set.ends_with(&format!("{budget},{budget},{budget}")),
        "{set}"
    );
    let front = plan["front"].as_array().unwrap();
    assert!(front.len() > 1);
    for name in front {
        assert!(cases.iter().any(|case| case["name"] == *name), "{name}");
    }
    let reached = recommended["sensitivity"].as_array().unwrap().iter();
    let all = reached.clone().all(|one| one["case"]["reached"] == true);
    let verdict = if all { "robust" } else { "fragile" };
    assert_eq!(recommended["verdict"], verdict);
    assert!(reached.len() > 0);

    // The folder has the same result; its page has the verdict and the charts.
    assert_eq!(read(&out, "summary.json"), plan);
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(
        page.contains(&format!("The setting is {verdict}")),
        "{page}"
    );
    assert!(page.contains(set));
    for plot in ["settings", "sensitivity"] {
        assert!(out.join(format!("plots/{plot}.svg")).exists(), "{plot}");
    }
    // Its settings give the same plan again.
    let settings = read(&out, "run.json")["configuration"].clone();
    assert_eq!(
        settings["task"],
        "t:frame=131072,period=1000us,deadline=300us@0"
    );
    refused(&[&SMALL[..], &load, &folder].concat(), "--replace");
}

#[test]
fn a_share_of_late_jobs_takes_the_jobs_that_show_it() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("plan");
    let goal = ["--miss-ratio", "0.1", "--confidence", "0.9", "--jobs", "2"];
    let load = [
        "--load",
        "bandwidth:write@1-3",
        "--out",
        out.to_str().unwrap(),
    ];
    let output = memwarden(&[&SMALL[..], &goal, &load].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    // ln(0.1 / 2) / ln(0.9) = 28.4.
    assert!(
        text.contains("takes 29 jobs of the first candidate, all in time"),
        "{text}"
    );
    let summary = read(&out, "summary.json");
    assert_eq!(summary["jobs_needed"], 29);
    // The two jobs of a search's run begin at two points of the guard's period. A test's jobs begin at many more, and
    // some candidates fail it.
    let candidate = summary["recommended"]["candidate"].as_f64().unwrap();
    let jobs = ((0.1 / (candidate * (candidate + 1.0))).ln() / 0.9_f64.ln()).ceil();
    assert!(
        text.contains(&format!("None of {jobs} jobs is late")),
        "{text}"
    );
    assert!(summary["recommended"]["most_late"].as_f64().unwrap() <= 0.1);
}

#[test]
fn a_plan_s_settings_are_a_file() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("plan.toml");
    let load = [
        "--load",
        "bandwidth:write@1-3",
        "--goal",
        "p99",
        "--print-config",
    ];
    let output = memwarden(&[&SMALL[..], &load].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("miss_ratio = 0.01\n"), "{text}");
    assert!(text.contains("load = [\"bandwidth:write@1-3\"]"), "{text}");
    std::fs::write(&file, &text).unwrap();
    let file = file.to_str().unwrap();
    let again = memwarden(&["plan", "--config", file, "--print-config"]);
    assert_eq!(String::from_utf8(again.stdout).unwrap(), text);
    // A goal on the command line overrides the file's miss ratio; without one the file's is kept.
    let strict = memwarden(&[
        "plan",
        "--config",
        file,
        "--goal",
        "deadline",
        "--print-config",
    ]);
    let strict = String::from_utf8(strict.stdout).unwrap();
    assert!(strict.contains("miss_ratio = 0.0\n"), "{strict}");
    std::fs::write(file, "tsak = 1\n").unwrap();
    refused(&["plan", "--config", file], "line 1: unknown field `tsak`");
}

#[test]
fn a_deadline_that_nothing_meets_is_said_and_is_an_error() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("plan");
    let task = "t:frame=128K,period=1ms,deadline=20us@0";
    let load = ["--load", "bandwidth:read@1", "--jobs", "1"];
    let folder = ["--out", out.to_str().unwrap()];
    let output = memwarden(&[&SMALL[..4], &[task], &load, &folder].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("No setting reaches the goal"), "{text}");
}

#[test]
fn bad_input_to_a_plan_gets_a_clear_line() {
    let with = |load: &'static str| [&SMALL[..], &["--load", load]].concat();
    refused(&with("bandwidth:write"), "WORKLOAD@CORES");
    refused(
        &with("bandwidth:write@1-4"),
        "core 4 is not one of Raspberry Pi 3 Model B's 0-3",
    );
    refused(&with("bandwidth:write@0"), "core 0 already has a workload");
    refused(
        &with("bandwidth:fresh-pages@1"),
        "the simulator has no workload",
    );
    refused(&SMALL, "--load");
    let and = |more: &'static str| [&with("bandwidth:read@1")[..], &[more]].concat();
    refused(&and("--miss-ratio=1"), "a share from 0 to below 1");
    refused(&and("--confidence=1"), "above 0 and below 1");
    refused(&and("--jobs=0"), "give 1 to 100000");
    refused(&and("--miss-ratio=0.00001"), "needs 368887 jobs");
    refused(&and("--margin=300us"), "less than the deadline");
    refused(
        &and("--margin=1m"),
        "--margin 60s: give less than the deadline",
    );
    let mut other = with("bandwidth:read@1");
    other[2] = "raspberry-pi-9";
    refused(
        &other,
        "there is no platform \"raspberry-pi-9\"; there are raspberry-pi-3",
    );
}

fn read(folder: &Path, name: &str) -> Value {
    let text = std::fs::read_to_string(folder.join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Runs an experiment on a simulated Raspberry Pi 3. Returns the temporary directory, which removes
/// the run folder when dropped, and the run folder.
fn simulated(line: &str) -> (tempfile::TempDir, PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("run");
    let mut arguments: Vec<&str> = line.split_whitespace().collect();
    arguments.extend(["--on", "sim:raspberry-pi-3", "--out", out.to_str().unwrap()]);
    let output = memwarden(&arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {message}");
    (scratch, out)
}

#[test]
fn interference_on_a_simulated_machine_leaves_the_same_folder() {
    let (_scratch, out) = simulated(
        "interfere --aggressors bandwidth:write --cpus 2-3 --guard 1000,100,100,100 --victim-memory 4M \
         --aggressor-memory 4M --repeat 2 --settle 1ms --window 3ms",
    );
    let told = read(&out, "summary.json");
    assert_eq!(told["target"], "sim:raspberry-pi-3");
    let cases = told["cases"].as_array().unwrap();
    let names: Vec<_> = cases
        .iter()
        .map(|case| case["name"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), 6, "{names:?}");
    let slowdown = |index: usize| cases[index]["slowdown"].as_f64().unwrap();
    assert!(
        slowdown(2) > 2.0 && slowdown(5) < 1.5,
        "{} {}",
        slowdown(2),
        slowdown(5)
    );
    assert_eq!(cases[5]["guard"]["backend"], "sim");
    assert!(cases[2]["memory_peak_share"].as_f64().unwrap() > 0.5);
    let core = &cases[5]["cores"][3];
    assert_eq!(
        (core["cpu"].as_u64(), core["budget_events"].as_u64()),
        (Some(3), Some(1638))
    );
    assert!(core["periods"].as_u64().unwrap() >= 4, "{core}");
    let run = read(&out, "run.json");
    assert_eq!(run["platform"]["memory"]["name"], "LPDDR2-900");
    assert!(out.join("report.html").exists());
}

#[test]
fn the_deadline_case_on_a_simulated_machine_counts_misses() {
    let (_scratch, out) = simulated(
        "realtime --frame 128K --period 1ms --deadline 200us --jobs 5 --load bandwidth:write --cpus 1-3 \
         --load-memory 1M --guard none --guard max,25,25,25",
    );
    let told = read(&out, "summary.json");
    let misses = |index: usize| told["cases"][index]["misses"].as_u64().unwrap();
    assert_eq!((misses(0), misses(1), misses(3)), (0, 5, 0), "{told}");
}

#[test]
fn what_is_not_modelled_is_refused_and_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("run");
    let to = out.to_str().unwrap();
    let sim = ["--on", "sim:raspberry-pi-3", "--out", to];
    let with = |verb: &[&'static str]| -> Vec<String> {
        let all = verb.iter().copied().map(str::to_owned);
        all.chain(sim.iter().map(|word| (*word).to_owned()))
            .collect()
    };
    for (verb, words) in [
        (
            &["interfere", "--aggressors", "bandwidth:fresh-pages"][..],
            "the simulator has no workload",
        ),
        (&["interfere", "--cpus", "3-5"], "core 4 is not one of"),
        (
            &["interfere", "--guard", "1,1,1,1,1"],
            "5 budgets for 4 cores",
        ),
        (&["interfere", "--window", "0ms"], "--window 0s"),
        (
            &["realtime", "--load", "cmd: true"],
            "a command cannot be simulated",
        ),
        (&["realtime", "--on-miss", "true"], "--on-miss"),
        (&["mmap", "--size", "1M"], "this command has no model"),
    ] {
        let words_of = with(verb);
        let arguments: Vec<&str> = words_of.iter().map(String::as_str).collect();
        refused(&arguments, words);
    }
    refused(
        &["interfere", "--on", "sim:pi"],
        "there is no platform \"pi\"",
    );
    refused(&["interfere", "--on", "sim:"], "sim:PLATFORM");
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}
