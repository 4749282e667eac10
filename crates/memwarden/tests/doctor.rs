// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of `memwarden doctor`.

use std::process::{Command, Output};

fn doctor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memwarden"))
        .arg("doctor")
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn the_exit_code_says_whether_the_guard_can_run() {
    let output = doctor(&["--json"]);
    let diagnosis: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let can_run = diagnosis["guard"]["can_run"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(!can_run)));
    for finding in diagnosis["findings"].as_array().unwrap() {
        assert!(
            ["ok", "limited", "missing", "unknown"].contains(&finding["level"].as_str().unwrap()),
            "{finding}"
        );
    }
}

#[test]
fn every_finding_has_a_line_and_those_not_well_a_meaning() {
    let text = String::from_utf8(doctor(&[]).stdout).unwrap();
    let diagnosis: serde_json::Value = serde_json::from_slice(&doctor(&["--json"]).stdout).unwrap();
    for finding in diagnosis["findings"].as_array().unwrap() {
        let (name, level) = (
            finding["name"].as_str().unwrap(),
            finding["level"].as_str().unwrap(),
        );
        let mut lines = text
            .lines()
            .skip_while(|line| !line[9.min(line.len())..].starts_with(name));
        assert!(lines.next().unwrap().starts_with(level), "{name}");
        if level != "ok" {
            assert!(lines.next().unwrap().contains("means: "), "{name}");
        }
    }
    assert!(text.lines().last().unwrap().starts_with("The guard can"));
}

#[test]
fn a_saved_tree_is_examined_and_one_that_is_none_is_an_error() {
    let tree = tempfile::tempdir().unwrap();
    let path = tree.path().to_str().unwrap();
    let output = doctor(&["--root", path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.starts_with("memwarden: cannot read /proc/sys/kernel/osrelease: "),
        "{errors}"
    );

    let kernel = tree.path().join("proc/sys/kernel");
    std::fs::create_dir_all(&kernel).unwrap();
    std::fs::write(kernel.join("osrelease"), "6.1.0\n").unwrap();
    std::fs::write(kernel.join("sched_rt_runtime_us"), "950000\n").unwrap();
    let text = String::from_utf8(doctor(&["--root", path]).stdout).unwrap();
    assert!(text.contains("950 ms in each 1000 ms"), "{text}");
    assert!(text.contains("not in Linux 6.1"), "{text}");
}

#[test]
fn a_report_is_a_new_file_that_names_no_machine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("board.json");
    let name = path.to_str().unwrap();
    let output = doctor(&["--report", name]);
    assert!(
        path.is_file(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = std::fs::read_to_string(&path).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(report["diagnosis"]["findings"].is_array());
    assert!(report["host"]["kernel"].is_string());
    // Either an event was tried, or the report says why none was.
    let tried = report["events"].as_array().unwrap();
    assert_eq!(tried.is_empty(), report["untried"].is_string(), "{report}");
    let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert!(!text.contains(&format!("\"{}\"", host_name.trim())));
    // An existing report is not replaced.
    let output = doctor(&["--report", name]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("--report: making"),
        "{said}"
    );
    assert_eq!(said.trim().lines().count(), 1);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

/// Runs interfere with small buffers, and returns its run folder.
fn interfere(out: &std::path::Path, target: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_memwarden"))
        .args(["interfere", "--cpus", "1", "--aggressors", "bandwidth:read"])
        .args(["--victim-memory", "1M", "--window", "2ms", "--repeat", "1"])
        .args(target)
        .arg("--out")
        .arg(out)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    out.to_str().unwrap().to_owned()
}

#[test]
fn a_report_takes_the_curve_of_a_run_on_this_machine_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("board.json");
    let name = path.to_str().unwrap();
    let model = interfere(
        &folder.path().join("model"),
        &["--on", "sim:raspberry-pi-3"],
    );
    for (run, why) in [
        (model.as_str(), "it was not made on this machine"),
        ("/nonexistent", "/nonexistent"),
    ] {
        let output = doctor(&["--report", name, "--curve", run]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.starts_with("memwarden: --curve") && said.contains(why),
            "{said}"
        );
        assert!(!output.status.success() && said.trim().lines().count() == 1);
        assert!(!path.exists());
    }
    if !std::path::Path::new("/sys/devices/system/cpu/cpu1").exists() {
        // Nothing to be an aggressor.
        return;
    }
    let run = interfere(&folder.path().join("here"), &[]);
    doctor(&["--report", name, "--curve", &run]);
    let text = std::fs::read_to_string(&path).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["curve"]["victim"], "latency");
    let cases = report["curve"]["cases"].as_array().unwrap();
    let names: Vec<_> = cases.iter().map(|case| &case["name"]).collect();
    assert_eq!(names, ["solo", "bandwidth:read x1"]);
    for case in cases {
        assert!(case["victim"]["median"].as_f64().unwrap() > 0.0, "{case}");
    }
    assert!(!text.contains(&run));
}
