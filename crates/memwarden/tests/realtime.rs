// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of `realtime` and `periodic` and their expected output. No time is judged here.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use memwarden_platform::cpus;
use memwarden_run::{Recorded, Sample, read_samples};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

const MEMWARDEN: &str = env!("CARGO_BIN_EXE_memwarden");

fn memwarden(arguments: &[&str]) -> Output {
    Command::new(MEMWARDEN).args(arguments).output().unwrap()
}

/// Standard output of a successful run.
fn output(arguments: &[&str]) -> String {
    let output = memwarden(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The single line of a failing run.
fn refusal(arguments: &[&str]) -> String {
    let output = memwarden(arguments);
    assert!(!output.status.success(), "{arguments:?} was taken");
    String::from_utf8(output.stderr).unwrap()
}

/// A short run without privileges: 20 jobs of 64 KiB, one every millisecond.
fn short<'a>(out: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec![
        "realtime",
        "--no-rt",
        "--jobs",
        "20",
        "--frame",
        "64K",
        "--period",
        "1ms",
        "--deadline",
        "1ms",
        "--settle",
        "1ms",
        "--json",
        "--out",
    ];
    words.push(out.to_str().unwrap());
    words.extend(more);
    words
}

/// True if the load can have its own CPU.
/// If not, prints that the test is skipped.
fn has_two_cpus() -> bool {
    let two = cpus::online().unwrap().len() > 1;
    if !two {
        println!("skipped: one CPU");
    }
    two
}

#[test]
fn a_task_by_itself_tells_of_every_job() {
    let text = output(&[
        "periodic",
        "-m",
        "64",
        "--jobs",
        "10",
        "--period",
        "1ms",
        "--deadline",
        "1ms",
        "--json",
    ]);
    let result: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let jobs = result["jobs"].as_array().unwrap();
    let skipped = result["skipped"].as_u64().unwrap();
    assert_eq!(result["releases"], 10);
    assert_eq!(jobs.len() as u64 + skipped, 10);
    for job in jobs {
        let ns = |key: &str| job[key].as_u64().unwrap();
        assert_eq!(
            ns("response_ns"),
            ns("release_jitter_ns") + ns("execution_ns")
        );
        assert_eq!(job["missed"], ns("response_ns") > 1_000_000);
    }
}

#[test]
fn a_task_by_itself_tells_people_and_at_once() {
    let text = output(&[
        "periodic",
        "-m",
        "64",
        "--jobs",
        "3",
        "--period",
        "1ms",
        "--deadline",
        "1ns",
        "--tell-miss",
    ]);
    assert!(text.contains("job 0 missed its deadline by "), "{text}");
    assert!(text.contains("releases 3 | skipped "), "{text}");
    assert!(text.trim_end().ends_with("deadline misses 3"), "{text}");
}

#[test]
fn a_run_leaves_a_folder_that_the_report_reads() {
    if !has_two_cpus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let text = output(&short(
        &out,
        &[
            "--guard",
            "none",
            "--guard",
            "600,600+ps",
            "--backend",
            "null",
            "--repeat",
            "2",
        ],
    ));
    let summary: Value = serde_json::from_str(&text).unwrap();
    let names: Vec<&str> = summary["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "alone",
            "screen",
            "alone, guard 600,600+ps",
            "screen, guard 600,600+ps"
        ]
    );
    let run = Recorded::read(&out).unwrap();
    for case in &run.summary.cases {
        assert_eq!(case.number("releases"), Some(40.0), "two repeats of 20");
        let responses = run
            .samples
            .iter()
            .filter(|s| s.case == case.name && s.metric == "response_ns")
            .count();
        assert_eq!(responses as f64 + case.number("skipped").unwrap(), 40.0);
        assert_eq!(case.guard.is_some(), case.name.contains("guard"));
        let load = case.aggressors.first();
        assert_eq!(load.is_some(), case.name.starts_with("screen"));
        assert!(load.is_none_or(|load| load.mib_s.unwrap() > 0.0));
    }
    assert!(out.join("report.html").is_file());
    assert!(
        out.join("plots/job-times.svg").is_file() && out.join("plots/release-jitter.svg").is_file()
    );
    assert!(
        !out.join("load.log").exists(),
        "no program wrote to standard error"
    );
}

#[test]
fn a_command_is_a_load_and_the_first_miss_runs_another() {
    if !has_two_cpus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (out, told) = (folder.path().join("run"), folder.path().join("told"));
    let on_miss = format!("echo $MEMWARDEN_CASE >>{}", told.display());
    let mut words = short(&out, &["--on-miss", &on_miss, "--", "sleep", "1000"]);
    // No job finishes within a nanosecond.
    words[9] = "1ns";
    let summary: Value = serde_json::from_str(&output(&words)).unwrap();
    for case in summary["cases"].as_array().unwrap() {
        assert_eq!(case["misses"], 20);
        assert_eq!(case["on_miss"]["exit_code"], 0);
    }
    assert_eq!(summary["cases"][1]["aggressors"][0]["mib_s"], Value::Null);
    assert_eq!(
        std::fs::read_to_string(told).unwrap(),
        "alone\ncmd: sleep 1000\n"
    );
}

#[test]
fn what_cannot_run_is_said_in_one_line() {
    if !has_two_cpus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    for (more, words) in [
        (
            &["--load", "cmd: echo oh no >&2; exit 3"][..],
            "ended (exit status: 3)",
        ),
        (&["--victim-cpu", "8000"], "--victim-cpu: CPU 8000"),
        (&["--cpus", "8000"], "--cpus: CPU 8000"),
        (
            &["--guard", "1,2,3", "--backend", "null", "--cpus", "1"],
            "3 budgets",
        ),
    ] {
        if words == "3 budgets" && cpus::online().unwrap().len() > 2 {
            continue;
        }
        let mut arguments = short(&out, more);
        arguments.push("--replace");
        let said = refusal(&arguments);
        let line = said.lines().last().unwrap_or_default();
        assert!(
            line.starts_with("memwarden: ") && line.contains(words),
            "{said}"
        );
    }
    // PATH without the two programs.
    let empty = Command::new(MEMWARDEN)
        .args(short(&out, &["--load", "xserver", "--replace"]))
        .env("PATH", folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8(empty.stderr).unwrap();
    assert!(!empty.status.success());
    assert!(said.contains("apt-get install xvfb xterm"), "{said}");
}

/// A guard that this user may not start, for all cases.
#[test]
fn a_run_of_which_no_case_can_be_measured_gives_the_reason_and_replaces_nothing() {
    if !has_two_cpus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let out = folder.path().join("run");
    let as_nobody = |more: &[&str]| {
        let mut command = Command::new(MEMWARDEN);
        command.args(short(&out, more)).current_dir(folder.path());
        if rustix::process::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        command.output()
    };
    let first = match as_nobody(&["--guard", "none"]) {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: user nobody cannot run the program: {error}");
            return;
        }
    };
    assert!(first.status.success(), "{first:?}");
    let read = || ["run.json", "samples.csv"].map(|name| std::fs::read(out.join(name)).unwrap());
    let before = read();
    let refused = as_nobody(&["--guard", "600,600", "--replace"]).unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("this needs root"), "{said}");
    assert_eq!(read(), before);
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "{said}"
    );
    // Beside a case that can be measured, the guarded ones are left out with the same reason.
    let both = as_nobody(&["--guard", "none", "--guard", "600,600", "--replace"]).unwrap();
    let summary = String::from_utf8_lossy(&both.stdout);
    assert!(
        summary.contains("were left out") && summary.contains("needs root"),
        "{both:?}"
    );
}

/// Processes whose command line contains `mark`.
fn running(mark: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .filter(|line| String::from_utf8_lossy(line).contains(mark))
        .count()
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn nothing_outlives_ctrl_c() {
    if !has_two_cpus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    // A unique duration, to find the process by it.
    let mark = format!("{}", 700_000 + std::process::id());
    let load = format!("cmd: sleep {mark} & sleep {mark}");
    let mut words = short(&out, &["--load", &load, "--repeat", "100"]);
    words[3] = "1000";
    let mut run = Command::new(MEMWARDEN)
        .args(words)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let sleeping = || running(&mark) > 2;
    wait_for("the load never began", sleeping);
    let id = run.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &id])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(run.wait().unwrap().code(), Some(130));
    wait_for("the load was left behind", || running(&mark) == 0);
    assert!(!out.exists());
}

#[test]
fn a_signal_keeps_the_jobs_that_were_timed() {
    if !has_two_cpus() {
        return;
    }
    // A terminal sends Ctrl-C to the task, too.
    for (signal, to_group, code) in [
        (Signal::INT, false, 130),
        (Signal::INT, true, 130),
        (Signal::TERM, false, 143),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let missed = folder.path().join("missed");
        let on_miss = format!("touch {}", missed.display());
        let out = folder.path().join("run");
        let mut words = short(&out, &["--guard", "none", "--on-miss", &on_miss]);
        for (option, value) in [("--jobs", "1000000"), ("--deadline", "1ns")] {
            let at = words.iter().position(|word| *word == option).unwrap();
            words[at + 1] = value;
        }
        let child = Command::new(MEMWARDEN)
            .args(&words)
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let began = Instant::now();
        while !missed.exists() {
            assert!(began.elapsed() < Duration::from_secs(60), "no job");
            std::thread::sleep(Duration::from_millis(5));
        }
        // A few jobs more.
        std::thread::sleep(Duration::from_millis(200));
        let pid = Pid::from_child(&child);
        match to_group {
            true => kill_process_group(pid, signal).unwrap(),
            false => kill_process(pid, signal).unwrap(),
        }
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.ends_with("memwarden: interrupted\n"), "{said}");
        assert!(said.contains(" samples are in "), "{said}");
        let partial = out.with_extension("partial");
        let rows = read_samples(&partial.join("samples.csv")).unwrap();
        let responses = |row: &&Sample| row.case == "alone" && row.metric == "response_ns";
        assert!(rows.iter().filter(responses).count() > 1, "{said}");
        assert!(!out.exists());
    }
}

/// The program in a shell in which no file becomes larger than that many KiB, as on a full disk.
fn on_a_disk_of(kib: u32, out: &Path) -> String {
    let run = format!(
        "trap '' XFSZ; ulimit -f {kib}; exec \"$0\" realtime --on sim:raspberry-pi-3 --victim-cpu 0 --frame 64K \
         --period 1ms --deadline 1ms --jobs 200 --out \"$1\""
    );
    let output = Command::new("bash")
        .args(["-c", &run, MEMWARDEN])
        .arg(out)
        .output()
        .unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn on_a_full_disk_the_samples_in_the_file_are_counted() {
    let temp = tempfile::tempdir().unwrap();
    let errors = on_a_disk_of(8, &temp.path().join("run"));
    let partial = temp.path().join("run.partial");
    let rows = std::fs::read_to_string(partial.join("samples.csv")).unwrap();
    let whole = rows.matches('\n').count() - 1;
    let [kept, reason] = errors.lines().collect::<Vec<_>>()[..] else {
        panic!("{errors}");
    };
    let left = format!(
        "not completed: {whole} samples are in {}",
        partial.display()
    );
    assert!(kept.ends_with(&left), "{kept}");
    assert_eq!(reason.matches("File too large").count(), 1, "{reason}");
}

#[test]
fn on_a_full_disk_no_empty_run_is_left() {
    let temp = tempfile::tempdir().unwrap();
    let errors = on_a_disk_of(4, &temp.path().join("run"));
    assert!(
        errors.contains("run.json") && errors.lines().count() == 1,
        "{errors}"
    );
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
}
