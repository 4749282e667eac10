// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of `mymem` and their expected output, with an ordinary file instead of a device: it supports reads and
//! writes but no atomic requests. No time is judged here.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memwarden_run::{Recorded, read_samples};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const MEMWARDEN: &str = env!("CARGO_BIN_EXE_memwarden");

fn memwarden(arguments: &[&str]) -> Output {
    Command::new(MEMWARDEN).args(arguments).output().unwrap()
}

/// The single line of a failing run.
fn refusal(arguments: &[&str]) -> String {
    let output = memwarden(arguments);
    assert!(!output.status.success(), "{arguments:?} was taken");
    String::from_utf8(output.stderr).unwrap()
}

/// A file of a device's size, and a directory for the run.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("memory"), vec![0; 512 << 10]).unwrap();
        Self { folder }
    }

    fn device(&self) -> PathBuf {
        self.folder.path().join("memory")
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// The words of `mymem VERB` on the file.
    fn words<'a>(&self, paths: &'a [PathBuf; 2], verb: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let text = |path: &'a Path| path.to_str().unwrap();
        let mut words = vec!["mymem", verb, "--device", text(&paths[0])];
        words.extend(["--out", text(&paths[1])]);
        words.extend(more);
        words
    }

    fn run(&self, verb: &str, more: &[&str]) -> Output {
        let paths = [self.device(), self.out()];
        memwarden(&self.words(&paths, verb, more))
    }

    fn recorded(&self, verb: &str, more: &[&str]) -> Recorded {
        let output = self.run(verb, more);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{verb} {more:?}: {errors}");
        Recorded::read(&self.out()).unwrap()
    }
}

#[test]
fn mistakes_are_on_one_page_and_a_file_is_not_judged_as_a_device() {
    let bench = Bench::new();
    let run = bench.recorded("mistakes", &["--workers", "2", "--increments", "200"]);
    let found = |done: &str| {
        let cases = &run.summary.cases;
        let case = cases.iter().find(|case| case.name.contains(done));
        let case = case.unwrap_or_else(|| panic!("{done}"));
        assert!(case.number("as_expected").is_none());
        let judged = run.samples.iter().find(|sample| sample.case == case.name);
        assert_eq!(judged.map(|sample| sample.value), Some(None), "{done}");
        case.text("found").unwrap().to_owned()
    };
    assert_eq!(found("closed while 2 workers"), "EBADF in 2 of 2 workers");
    assert_eq!(
        found("given to another file"),
        "the workers wrote 16 bytes of the other file"
    );
    assert_eq!(found("write 8 bytes at the end"), "8 bytes");
    assert!(found("by two calls").ends_with("of 400 updates lost"));
    assert!(found("MYMEM_FETCH_ADD").contains("not a memory device"));
    assert_eq!(found("exclusive=0"), "4 of 4 opened it");
    let length = std::fs::metadata(bench.device()).unwrap().len();
    assert_eq!(length, 512 << 10, "the file is as long as before");
    let page = std::fs::read_to_string(bench.out().join("report.html")).unwrap();
    assert!(page.contains("Mistakes with a memory device"));
    assert!(page.contains("a file stands in for the device"));
    let refused = refusal(&["mymem", "mistakes", "--device", "in-kernel"]);
    assert!(refused.contains("--device in-kernel"), "{refused}");
}

#[test]
fn an_interrupted_run_of_mistakes_keeps_those_it_made() {
    let bench = Bench::new();
    let paths = [bench.device(), bench.out()];
    // More increments than can finish before the interrupt.
    let more = ["--increments", "100000000"];
    let mut child = Command::new(MEMWARDEN)
        .args(bench.words(&paths, "mistakes", &more))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let partial = bench.out().with_extension("partial");
    // The two cases of a closed descriptor and the eight of offsets come before the increments.
    let kept = || read_samples(&partial.join("samples.csv")).map_or(0, |rows| rows.len());
    while kept() < 10 && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.ends_with("memwarden: interrupted\n"), "{said}");
    assert!(said.contains(": 10 samples are in "), "{said}");
    assert_eq!(kept(), 10);
}

#[test]
fn a_device_without_room_for_the_workers_is_refused_in_a_line() {
    let bench = Bench::new();
    let out = bench.out();
    for device in ["/dev/full", "/dev/null"] {
        let said = refusal(&[
            "mymem",
            "mistakes",
            "--device",
            device,
            "--out",
            out.to_str().unwrap(),
        ]);
        let expected =
            format!("memwarden: {device} has 0 bytes: 4 workers need 32, a word of 8 each\n");
        assert_eq!(said, expected);
        assert!(!out.exists() && !out.with_extension("partial").exists());
    }
}

#[test]
fn every_transfer_is_in_the_folder() {
    let bench = Bench::new();
    let run = bench.recorded("throughput", &["--sizes", "1,4096", "--repeat", "20"]);
    assert_eq!(run.summary.cases.len(), 4);
    assert_eq!(run.samples.len(), 4 * 20);
    let name = bench.device().display().to_string();
    let case = &run.summary.cases[3];
    assert_eq!(case.name, format!("{name}, read, 4096 bytes"));
    let time = case.metric("time").unwrap();
    assert_eq!(time.samples, 20);
    let mb_s = case.number("mb_s").unwrap();
    assert!((mb_s * time.median.unwrap() - 4_096_000.0).abs() < 1.0);
    assert!(bench.out().join("report.html").is_file());
    assert!(bench.out().join("plots/read-time.svg").is_file());
}

#[test]
fn the_same_seed_writes_the_same_bytes() {
    let left = |seed: &str| {
        let bench = Bench::new();
        bench.recorded(
            "throughput",
            &["--sizes", "64", "--repeat", "3", "--seed", seed],
        );
        std::fs::read(bench.device()).unwrap()
    };
    assert!(left("5") == left("5") && left("5") != left("6"));
}

#[test]
fn a_mutex_loses_nothing() {
    let bench = Bench::new();
    let more = [
        "--workers",
        "1,5",
        "--increments",
        "2000",
        "--lock",
        "mutex",
        "--repeat",
        "2",
    ];
    let run = bench.recorded("counter", &more);
    assert_eq!(run.summary.cases.len(), 2);
    for case in &run.summary.cases {
        let expected = case.number("workers").unwrap() * 2000.0;
        assert_eq!(case.metric("count").unwrap().min, Some(expected));
        assert_eq!(case.metric("error").unwrap().max, Some(0.0));
        assert_eq!(
            (case.number("runs"), case.number("wrong_runs")),
            (Some(2.0), Some(0.0))
        );
    }
    let word = std::fs::read(bench.device()).unwrap();
    assert_eq!(u64::from_ne_bytes(word[..8].try_into().unwrap()), 10_000);
}

#[test]
fn what_is_lost_without_a_lock_is_a_figure_and_no_fault() {
    let bench = Bench::new();
    let more = ["--workers", "8", "--increments", "5000", "--lock", "none"];
    let run = bench.recorded("counter", &more);
    let case = &run.summary.cases[0];
    let (count, expected) = (
        case.metric("count").unwrap(),
        case.number("expected").unwrap(),
    );
    let error = case.metric("error").unwrap().median.unwrap();
    assert!(((expected - count.median.unwrap()) / expected - error).abs() < 1e-12);
}

#[test]
fn an_update_lost_under_a_lock_fails_with_one_line() {
    let bench = Bench::new();
    let (done, device) = (AtomicBool::new(false), bench.device());
    let more = ["--workers", "2", "--increments", "20000", "--lock", "mutex"];
    let output = std::thread::scope(|scope| {
        // A writer that ignores the mutex.
        scope.spawn(|| {
            let file = OpenOptions::new().write(true).open(&device).unwrap();
            while !done.load(Ordering::Relaxed) {
                file.write_at(&[0; 8], 0).unwrap();
            }
        });
        let output = bench.run("counter", &more);
        done.store(true, Ordering::Relaxed);
        output
    });
    assert_eq!(output.status.code(), Some(1));
    let expected = format!(
        "memwarden: updates were lost under a lock: {}, mutex, 2 workers\n",
        device.display()
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
    let run = Recorded::read(&bench.out()).unwrap();
    assert_eq!(run.summary.cases[0].number("wrong_runs"), Some(1.0));
}

/// Before a gate, the workers that had started waited for the others for ever, and no signal ended them.
#[test]
fn a_worker_that_cannot_start_ends_the_run_with_one_line() {
    let bench = Bench::new();
    let paths = [bench.device(), bench.out()];
    let more = ["--workers", "20", "--increments", "10", "--lock", "none"];
    // Eight stacks of 256 MiB are more than the process may have.
    let output = Command::new("timeout")
        .args(["--signal=KILL", "120", "sh", "-c"])
        .args(["ulimit -v 2097152 && exec \"$@\"", "sh", MEMWARDEN])
        .args(bench.words(&paths, "counter", &more))
        .env("RUST_MIN_STACK", (256 << 20).to_string())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(
        last.starts_with("memwarden: starting a thread: ") && !said.contains("panicked"),
        "{said}"
    );
}

#[test]
fn a_device_with_which_another_measures_is_refused() {
    let bench = Bench::new();
    let other = std::fs::File::open(bench.device()).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    let paths = [bench.device(), bench.out()];
    for verb in ["counter", "throughput", "mistakes"] {
        let said = refusal(&bench.words(&paths, verb, &[]));
        assert!(
            said.contains(": another process measures with it"),
            "{verb}: {said}"
        );
    }
    drop(other);
    bench.recorded("throughput", &["--sizes", "8", "--repeat", "2"]);
}

#[test]
fn bad_input_gets_one_line() {
    let bench = Bench::new();
    let paths = [bench.device(), bench.out()];
    for (verb, more, expected) in [
        ("throughput", &["--sizes", "1M"][..], "has 524288 bytes"),
        ("throughput", &["--repeat", "0"], "--repeat 0"),
        (
            "throughput",
            &["--kernel", "own"],
            "--kernel: this chooses the lab's machine",
        ),
        (
            "throughput",
            &["--device", "/nonexistent/mymem"],
            "/nonexistent/mymem is not there",
        ),
        ("counter", &["--increments", "0"], "--increments 0"),
        ("counter", &["--repeat", "0"], "--repeat 0"),
        (
            "counter",
            &["--lock", "fetch-add"],
            "memwarden: fetch-add on ",
        ),
        ("counter", &["--workers", "2"], "not a memory device"),
        (
            "counter",
            &["--lock", "none", "--lock", "none"],
            "given twice",
        ),
        (
            "counter",
            &["--config", "/nonexistent.toml"],
            "reading /nonexistent.toml",
        ),
    ] {
        let message = refusal(&bench.words(&paths, verb, more));
        assert_eq!(message.lines().count(), 1, "{verb} {more:?}: {message}");
        assert!(message.contains(expected), "{verb} {more:?}: {message}");
        assert!(!bench.out().with_extension("partial").exists());
    }
    // The parser checks options, and adds a hint to the help.
    for (verb, more, expected) in [
        ("throughput", &["--sizes", "1,x"][..], "invalid value 'x'"),
        ("throughput", &["--sizes", "0"], "a size cannot be 0"),
        ("counter", &["--workers", "0"], "workers `0`: out of range"),
        ("counter", &["--workers", "5-1"], "runs backwards"),
        (
            "counter",
            &["--lock", "spin"],
            "give one of none, mutex, fetch-add",
        ),
    ] {
        let message = refusal(&bench.words(&paths, verb, more));
        assert!(
            message.lines().next().unwrap().contains(expected),
            "{verb} {more:?}: {message}"
        );
    }
}

#[test]
fn settings_print_as_a_file_that_is_read_again() {
    let bench = Bench::new();
    let printed = memwarden(&["mymem", "counter", "--workers", "1-3", "--print-config"]);
    let file = bench.folder.path().join("counter.toml");
    std::fs::write(&file, &printed.stdout).unwrap();
    let again = memwarden(&[
        "mymem",
        "counter",
        "--config",
        file.to_str().unwrap(),
        "--print-config",
    ]);
    assert!(printed.stdout == again.stdout);
    let text = String::from_utf8(again.stdout).unwrap();
    assert!(text.contains("workers = \"1-3\""), "{text}");
}
