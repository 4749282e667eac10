// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readers that close the pipe: `| head -1` and `| true` with each verb. Nothing panics, the exit code is the same as
//! with a reader, and a report is complete.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process};

fn memwarden(folder: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memwarden"));
    command
        .args(line.split(' '))
        .current_dir(folder)
        .env("MEMWARDEN_RUNTIME_DIR", folder.join("runtime"))
        .stdin(Stdio::null());
    command
}

fn pipe() -> (File, OwnedFd) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    (reader.into(), writer)
}

/// A pipe whose reading end is closed.
fn closed() -> OwnedFd {
    pipe().1
}

/// All commands that print and need neither a guard nor the lab's machine.
const LINES: [&str; 34] = [
    "--help",
    "--version",
    "doctor",
    "doctor --json",
    "maps",
    "maps --json",
    "latency -m 64 -i 1",
    "latency -m 64 -i 1 --json",
    "bandwidth -m 64 -i 1",
    "bandwidth -m 64 -i 1 --json",
    "periodic -r 64K --period 1ms --deadline 1ms --jobs 3 --no-rt",
    "periodic -r 64K --period 1ms --deadline 1ms --jobs 3 --no-rt --json",
    "interfere --print-config",
    "realtime --print-config",
    "mmap --print-config",
    "copy latency --print-config",
    "trace copies --print-config",
    "guard check guard.toml",
    "guard show",
    "guard show --json",
    "top --once --interval 20ms --backend null",
    "top --once --interval 20ms --backend null --json",
    "lab status",
    "lab status --json",
    "sim platforms",
    "sim platforms --json",
    "sim memories",
    "sim memories --json",
    "sim generate --pattern stream --count 100 -o trace --replace",
    "report --schema",
    "schema interfere",
    "schema missing",
    "report missing",
    "nonsense",
];

#[test]
fn a_closed_pipe_changes_no_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("guard.toml"), "mb = [1000]\n").unwrap();
    for line in LINES {
        let command = || {
            let mut command = memwarden(folder.path(), line);
            command.stderr(Stdio::null());
            command
        };
        let read = command().output().unwrap().status;
        let out = command().stdout(closed()).output().unwrap();
        let both = command()
            .stdout(closed())
            .stderr(closed())
            .status()
            .unwrap();
        assert_eq!(read.signal(), None, "{line}");
        assert_ne!(read.code(), Some(101), "{line}");
        for status in [out.status, both] {
            assert_eq!(status.code(), read.code(), "{line}");
        }
    }
}

#[test]
fn a_run_with_a_closed_output_is_complete() {
    for more in ["", " --json"] {
        let folder = tempfile::tempdir().unwrap();
        let line = format!("copy latency --device null --sizes 1 --count 9 --out run{more}");
        let status = memwarden(folder.path(), &line)
            .stdout(closed())
            .stderr(closed())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(0), "{line}");
        let run = folder.path().join("run");
        for file in ["run.json", "summary.json", "samples.csv", "report.html"] {
            assert!(run.join(file).is_file(), "{line}: {file}");
        }
        for line in ["report run", "report run --json", "report run --finding"] {
            let status = memwarden(folder.path(), line)
                .stdout(closed())
                .status()
                .unwrap();
            assert_eq!(status.code(), Some(0), "{line}");
        }
    }
}

/// Waits up to a minute for the end.
fn ended(child: &mut Child) -> std::process::ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if began.elapsed() > Duration::from_secs(60) {
            let _ = child.kill();
            panic!("it never ended");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_closed_output_ends_a_load() {
    let folder = tempfile::tempdir().unwrap();
    for more in ["", " --json"] {
        let line = format!("bandwidth -m 64 -t 0 --interval 10ms{more}");
        let (mut reader, writer) = pipe();
        let mut child = memwarden(folder.path(), &line)
            .stdout(writer)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        reader.read_exact(&mut [0]).unwrap();
        drop(reader);
        assert_eq!(ended(&mut child).code(), Some(0), "{line}");
    }
}

#[test]
fn ctrl_c_keeps_the_cases_that_were_measured() {
    let folder = tempfile::tempdir().unwrap();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 {
        eprintln!("skipped: one CPU");
        return;
    }
    let line = "interfere --victim latency --victim-memory 64K --victim-iterations 1 --aggressors bandwidth:read \
                --aggressor-memory 64K --cpus 1 --repeat 500 --settle 1ms --backend null --out run"
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let mut child = memwarden(folder.path(), &line)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let samples = folder.path().join("run.partial/samples.csv");
    let count = || fs::read_to_string(&samples).map_or(0, |text| text.lines().count());
    let began = Instant::now();
    // The solo case is measured; the case with an aggressor takes longer.
    while count() < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        assert!(began.elapsed() < Duration::from_secs(300), "no sample");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(ended(&mut child).code(), Some(130));
    assert!(count() > 1);
    assert!(!folder.path().join("run").exists());
}
