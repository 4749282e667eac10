// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of `trace` and their expected output, with records of a fixed pattern instead of the kernel's.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use memwarden_platform::cpus;
use memwarden_run::{Case, Recorded};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const MEMWARDEN: &str = env!("CARGO_BIN_EXE_memwarden");

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

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(MEMWARDEN);
        command.args(["trace", "copies", "--device", "null"]);
        command.arg("--out").arg(self.place("run")).args(more);
        command
    }

    fn run(&self, more: &[&str]) -> Output {
        self.command(more).output().unwrap()
    }

    fn recorded(&self) -> Recorded {
        assert!(self.place("run/report.html").is_file());
        Recorded::read(&self.place("run")).unwrap()
    }
}

fn count(case: &Case, key: &str) -> u64 {
    case.value(key).unwrap().as_u64().unwrap()
}

fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_trace_leaves_its_folder_and_the_classic_files() {
    let bench = Bench::new();
    let output = bench.run(&["--for", "50ms", "--dat"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(errors.is_empty(), "no terminal, no table: {errors}");
    let run = bench.recorded();
    let cpus = cpus::online().unwrap().len() as u64;
    for (name, file) in [
        ("from", "mem_trace_from.dat"),
        ("to", "mem_trace_to.dat"),
        ("__from", "__mem_trace_from.dat"),
        ("__to", "__mem_trace_to.dat"),
    ] {
        let case = run
            .summary
            .cases
            .iter()
            .find(|case| case.name == name)
            .unwrap();
        let calls = count(case, "calls");
        assert!(calls >= 100 * cpus);
        let lines = lines(&bench.place("run").join(file));
        assert_eq!(lines.len() as u64, calls);
        let mut next = vec![0; usize::try_from(cpus).unwrap()];
        for line in lines {
            let fields: Vec<&str> = line.split('\t').collect();
            assert_eq!(fields.len(), 9, "{line}");
            let number: u64 = fields[1].parse().unwrap();
            if let Some(next) = next.get_mut(fields[0].parse::<usize>().unwrap()) {
                assert_eq!(number, *next, "{line}");
                *next += 1;
            }
            assert!(fields[7].starts_with("0xffff") && ["CPU", "DMA"].contains(&fields[8]));
        }
    }
    assert!(bench.place("run/plots/calls-from.svg").is_file());
    assert!(bench.place("run/plots/time-by-size.svg").is_file());
    let said = String::from_utf8(output.stdout).unwrap();
    for words in [
        "copy_from_user",
        "Most frequent callers",
        "found their ring full",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn a_command_ends_the_trace_and_its_code_is_the_answer() {
    let bench = Bench::new();
    let output = bench.run(&[
        "--ops",
        "to",
        "--json",
        "--",
        "sh",
        "-c",
        "echo hello; exit 7",
    ]);
    assert_eq!(output.status.code(), Some(7));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["command_exit_code"], 7);
    assert_eq!(summary["cases"][0]["name"], "to");
    assert!(String::from_utf8_lossy(&output.stderr).contains("hello"));
    assert_eq!(bench.recorded().summary.cases[0].name, "to");
}

#[test]
fn a_command_gets_its_words_byte_for_byte() {
    let bench = Bench::new();
    let file = bench.place("trace.toml");
    let print = |from: &[&OsStr]| {
        let mut command = bench.command(&["--ops", "to", "--json"]);
        command.args(from).output().unwrap()
    };
    let typed = ["--print-config", "--", "printf", "%s"].map(OsStr::new);
    let typed = [&typed[..], &[OsStr::from_bytes(b"caf\xe9")]].concat();
    std::fs::write(&file, print(&typed).stdout).unwrap();
    let output = print(&[OsStr::new("--config"), file.as_os_str()]);
    assert!(output.status.success());
    assert!(output.stderr.starts_with(b"caf\xe9"), "{output:?}");
    let run = bench.recorded().run;
    assert_eq!(run.configuration["command"][2][3], 0xe9);
}

#[test]
fn ctrl_c_ends_a_trace_and_the_run_is_complete() {
    let bench = Bench::new();
    let mut child = bench.command(&[]).stdout(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    // Signals are caught before the folder is created.
    while !bench.place("run.partial/samples.csv").exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "it never began");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!bench.place("run.partial").exists());
    assert!(count(&bench.recorded().summary.cases[0], "recorded") > 0);
}

#[test]
fn a_command_that_is_not_there_leaves_no_run() {
    let bench = Bench::new();
    let output = bench.run(&["--", "/nonexistent/make"]);
    assert_eq!(output.status.code(), Some(127));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("starting /nonexistent/make"), "{message}");
    assert!(!bench.place("run").exists());
    assert!(!bench.place("run.partial").exists());
}

#[test]
fn settings_are_printed_and_read_again() {
    let bench = Bench::new();
    let words = ["--for", "20ms", "--ops", "__to,from", "--print-config"];
    let output = bench.run(&words);
    let file = bench.place("trace.toml");
    std::fs::write(&file, &output.stdout).unwrap();
    assert!(!bench.place("run").exists());
    let output = bench.run(&["--config", file.to_str().unwrap()]);
    assert!(output.status.success());
    let run = bench.recorded();
    let names: Vec<&str> = run.summary.cases[..2]
        .iter()
        .map(|case| case.name.as_str())
        .collect();
    assert_eq!(names, ["__to", "from"]);
    assert_eq!(run.run.configuration["for"], "20ms");
}

#[test]
fn bad_input_gets_one_line_and_leaves_nothing() {
    let bench = Bench::new();
    for (more, expected) in [
        (&["--for", "0s"][..], "--for 0s: give 1ms to a year"),
        (&["--every", "0s"], "--every 0s: give 1ms to 10s"),
        (&["--ops", "to,to"], "--ops to is given twice"),
        (&["--for", "1s", "--", "true"], "give one of the two"),
        (&["--config", "/nonexistent.toml"], "/nonexistent.toml"),
    ] {
        let output = bench.run(more);
        assert!(!output.status.success(), "{more:?} was taken");
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(message.lines().count(), 1, "{more:?}: {message}");
        assert!(message.contains(expected), "{more:?}: {message}");
        assert!(!bench.place("run.partial").exists());
    }
    let missing = Command::new(MEMWARDEN)
        .args(["trace", "copies", "--device", "/nonexistent"])
        .output()
        .unwrap();
    let message = String::from_utf8(missing.stderr).unwrap();
    assert!(
        message.contains("/nonexistent/from_user is not there"),
        "{message}"
    );
}
