// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readers that close the pipe: `| head -1` and `| true` with each verb. Nothing panics, the exit code is the same as
//! with a reader, and a report is complete.

#[allow(dead_code)]
mod processes;
mod verbs;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process};

fn memwarden(folder: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memwarden"));
    command
        .args(line.split_whitespace())
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

/// Further commands that print and need neither a guard nor the lab's machine: JSON, settings, refusals.
const LINES: [&str; 22] = [
    "--help",
    "--version",
    "doctor --json",
    "maps --json",
    "latency -m 64 -i 1 --json",
    "bandwidth -m 64 -i 1 --json",
    "periodic -r 64K --period 1ms --deadline 1ms --jobs 3 --no-rt --json",
    "interfere --print-config",
    "realtime --print-config",
    "mmap --print-config",
    "copy latency --print-config",
    "trace copies --print-config",
    "guard show",
    "guard show --json",
    "top --once --interval 20ms --backend null --json",
    "lab status --json",
    "sim platforms --json",
    "sim memories --json",
    "report --schema",
    "schema missing",
    "report missing",
    "nonsense",
];

/// A verb's whole run: commands that prepare it, and the run. Each begins in a folder with `guard.toml` and `memory`.
type Whole = (&'static str, &'static [&'static str]);

/// Verbs that run within seconds, without root and without a guard.
const WHOLE: [Whole; 34] = [
    ("latency", &["latency -m 64 -i 1"]),
    ("bandwidth", &["bandwidth -m 64 -i 1"]),
    (
        "periodic",
        &["periodic -r 64K --period 1ms --deadline 1ms --jobs 3 --no-rt"],
    ),
    ("jobs", &["jobs --jobs 2 -- true"]),
    ("doctor", &["doctor"]),
    ("maps", &["maps"]),
    (
        "interfere",
        &[
            "interfere --victim latency --victim-memory 64K --victim-iterations 1 --aggressors bandwidth:read \
           --aggressor-memory 64K --repeat 1 --settle 1ms --backend null --out run",
        ],
    ),
    (
        "realtime",
        &[
            "realtime --no-rt --jobs 5 --frame 64K --period 1ms --deadline 1ms --settle 1ms --out run",
        ],
    ),
    (
        "mmap",
        &[
            "mmap --flags private-anonymous --access random --locality 1 --size 2M --outer 64 --model-outer 8 --flush off \
           --repeat 1 --out run",
        ],
    ),
    (
        "mymem throughput",
        &["mymem throughput --device memory --sizes 1 --repeat 10 --out run"],
    ),
    (
        "mymem counter",
        &["mymem counter --device memory --lock none --workers 1 --increments 100 --out run"],
    ),
    (
        "mymem mistakes",
        &["mymem mistakes --device memory --workers 2 --increments 10 --out run"],
    ),
    (
        "copy latency",
        &["copy latency --device null --sizes 1 --repeat 9 --out run"],
    ),
    (
        "copy bandwidth",
        &["copy bandwidth --device null --sizes 1K --operations 2 --out run --dat dat"],
    ),
    (
        "copy pollution",
        &[
            "copy pollution --device null --application susan_corners_small --system cpu --pairs from:16 --repeat 2 --out run",
        ],
    ),
    (
        "copy breakeven",
        &[
            "copy breakeven --device null --sizes 1K --repeat 10 --victim susan_corners_small --victim-repeat 2 --out run",
        ],
    ),
    (
        "trace copies",
        &["trace copies --device null --for 50ms --out run"],
    ),
    ("guard calibrate", &["guard calibrate -m 1M"]),
    ("guard check", &["guard check guard.toml"]),
    ("guard events", &["guard events"]),
    ("top", &["top --once --interval 20ms --backend null"]),
    ("lab status", &["lab status"]),
    (
        "report",
        &[
            "copy latency --device null --sizes 1 --repeat 9 --out run",
            "report run",
        ],
    ),
    ("schema", &["schema interfere"]),
    ("sim memories", &["sim memories"]),
    ("sim platforms", &["sim platforms"]),
    (
        "sim calibrate",
        &["sim calibrate raspberry-pi-3 --compare-only"],
    ),
    ("sim check", &["sim check ddr4-2400 --commands 1000"]),
    (
        "sim generate",
        &["sim generate --pattern stream --count 100 -o trace"],
    ),
    (
        "sim record",
        &[
            "sim record --platform raspberry-pi-3 --workload bandwidth:write@1 --memory 1M --for 20us --settle 20us -o trace",
        ],
    ),
    (
        "sim replay",
        &[
            "sim generate --pattern stream --count 100 -o trace",
            "sim replay trace",
        ],
    ),
    (
        "plan",
        &[
            "plan --platform raspberry-pi-3 --task t:frame=4K,period=100us,deadline=90us@0 --load bandwidth:read@1 \
             --load-memory 64K --jobs 1 --confidence 0.5 --out run",
        ],
    ),
    ("completions", &["completions bash"]),
    ("manual", &["manual pages"]),
];

/// Verbs that need root and a guard, in an order in which they find one.
const GUARDED: [Whole; 6] = [
    (
        "guard start",
        &["guard start --backend user --event page-faults --no-self-test"],
    ),
    ("guard set", &["guard set --events 5000"]),
    ("guard mode", &["guard mode --best-effort spare"]),
    ("guard show", &["guard show"]),
    ("guard run", &["guard run --events 5000 -- true"]),
    ("guard stop", &["guard stop"]),
];

/// Verbs whose whole run is elsewhere or not possible here, with the reason.
const ELSEWHERE: [(&str, &str); 11] = [
    ("guard serve", "runs until a signal: it has its own test"),
    (
        "guard bench",
        "judges figures of a busy machine: it has its own test",
    ),
    ("mmap reclaim", "needs a patched kernel"),
    ("lab run", "boots the emulated machine"),
    ("lab prepare", "compiles an emulator"),
    ("lab shell", "boots the emulated machine"),
    ("lab interfere", "boots the emulated machine"),
    ("lab modules", "compiles modules"),
    ("lab kernel", "compiles a kernel"),
    ("lab qemu", "compiles an emulator"),
    ("lab clean", "removes the lab's files"),
];

#[test]
fn every_verb_has_a_whole_run_or_a_reason() {
    let known: BTreeSet<String> = [&WHOLE[..], &GUARDED[..]]
        .concat()
        .iter()
        .map(|(verb, _)| *verb)
        .chain(ELSEWHERE.iter().map(|(verb, _)| *verb))
        .map(str::to_owned)
        .collect();
    // The help does not list these two.
    let mut verbs = BTreeSet::from(["completions".to_owned(), "manual".to_owned()]);
    verbs::each(&[], &mut |verb, help| {
        if !verbs::is_group(help) {
            verbs.insert(verb.join(" "));
        }
    });
    assert_eq!(known, verbs);
    for (verb, lines) in [&WHOLE[..], &GUARDED[..]].concat() {
        assert!(lines.last().unwrap().starts_with(verb), "{verb}");
    }
}

/// All files below a folder, except those of a regulator.
fn files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = vec![folder.to_owned()];
    while let Some(below) = left.pop() {
        for entry in fs::read_dir(below).unwrap().flatten() {
            let path = entry.path();
            if entry.file_name() == "runtime" {
                continue;
            }
            if path.is_dir() {
                left.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap();
                found.insert(name.to_string_lossy().into_owned());
            }
        }
    }
    found
}

/// How a run is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// To the end.
    Whole,
    /// `| true`
    Gone,
    /// `2>&1 | head -c 1`
    First,
}

/// The exit code of a run; it must not panic.
fn code(mut command: Command, line: &str, reader: Reader) -> Option<i32> {
    let output = match reader {
        Reader::Whole => command.output().unwrap(),
        Reader::Gone => command.stdout(closed()).output().unwrap(),
        Reader::First => {
            let (mut from, to) = pipe();
            let mut child = command.stdout(to).stderr(closed()).spawn().unwrap();
            // Or this process would keep the pipe open.
            drop(command);
            let _ = from.read(&mut [0]);
            drop(from);
            let status = ended(&mut child);
            return judged(line, status.signal(), status.code(), "");
        }
    };
    let said = String::from_utf8_lossy(&output.stderr);
    judged(line, output.status.signal(), output.status.code(), &said)
}

fn judged(line: &str, signal: Option<i32>, code: Option<i32>, said: &str) -> Option<i32> {
    assert_eq!(signal, None, "{line}: {said}");
    assert_ne!(code, Some(101), "{line}: {said}");
    assert!(!said.contains("panicked"), "{line}: {said}");
    code
}

/// The exit code and the files of a verb's whole run.
fn whole(lines: &[&str], reader: Reader) -> (Option<i32>, BTreeSet<String>) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("guard.toml"), "mb = [1000]\n").unwrap();
    fs::write(folder.path().join("memory"), vec![0; 512 << 10]).unwrap();
    let (line, before) = lines.split_last().unwrap();
    for line in before {
        let prepared = memwarden(folder.path(), line).output().unwrap();
        assert!(prepared.status.success(), "{line}: {prepared:?}");
    }
    let code = code(memwarden(folder.path(), line), line, reader);
    (code, files(folder.path()))
}

#[test]
fn a_whole_run_of_each_verb_is_complete_without_a_reader() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    for (verb, lines) in WHOLE {
        if verb == "interfere" && cpus < 2 {
            eprintln!("skipped: {verb} needs two CPUs");
            continue;
        }
        let read = whole(lines, Reader::Whole);
        // Some exit with 1 without root.
        let leaves_files = lines.last().unwrap().contains(" run");
        assert!(!leaves_files || read.0 == Some(0), "{verb}: {read:?}");
        if lines.last().unwrap().contains("--out run") {
            for file in ["run.json", "summary.json", "samples.csv", "report.html"] {
                assert!(read.1.contains(&format!("run/{file}")), "{verb}: {file}");
            }
        }
        for reader in [Reader::Gone, Reader::First] {
            assert_eq!(whole(lines, reader), read, "{verb}: {reader:?}");
        }
    }
}

/// The regulator in user space takes off the limit of real-time threads of the whole machine and puts it back: one test
/// at a time has one.
static MACHINE: Mutex<()> = Mutex::new(());

fn rt_runtime() -> String {
    fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap_or_default()
}

#[test]
fn the_verbs_of_a_guard_need_no_reader() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = rt_runtime();
    let folder = tempfile::tempdir().unwrap();
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: this needs root");
        return;
    }
    for reader in [Reader::Whole, Reader::Gone, Reader::First] {
        for (verb, lines) in GUARDED {
            let line = lines[0];
            let code = code(memwarden(folder.path(), line), line, reader);
            if reader == Reader::Whole && verb == "guard start" && code != Some(0) {
                eprintln!("skipped: no guard can run here");
                return;
            }
            assert_eq!(code, Some(0), "{verb}: {reader:?}");
        }
    }
    assert_eq!(rt_runtime(), before);
}

#[test]
fn the_benchmark_of_a_guard_needs_no_reader() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = rt_runtime();
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: this needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let start = "guard run --backend user --event page-faults --no-self-test --events 5000 -- true";
    if code(memwarden(folder.path(), start), start, Reader::Whole) != Some(0) {
        eprintln!("skipped: no guard can run here");
        return;
    }
    let line = "guard bench --part alone --faults 25 --backend user --out run";
    for reader in [Reader::Whole, Reader::Gone, Reader::First] {
        let (code, files) = whole(&[line], reader);
        // 1 if a figure misses its target.
        assert!(matches!(code, Some(0 | 1)), "{reader:?}: {code:?}");
        for file in ["run.json", "summary.json", "samples.csv", "report.html"] {
            assert!(files.contains(&format!("run/{file}")), "{reader:?}: {file}");
        }
    }
    assert_eq!(rt_runtime(), before);
}

#[test]
fn a_service_without_a_reader_ends_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("guard.toml");
    fs::write(&file, "backend = \"null\"\nself_test = false\n").unwrap();
    let said = folder.path().join("said");
    let line = "guard serve --listen 127.0.0.1:0 --config guard.toml";
    let mut child = memwarden(folder.path(), line)
        .stdout(closed())
        .stderr(File::create(&said).unwrap())
        .spawn()
        .unwrap();
    let said = || fs::read_to_string(&said).unwrap();
    processes::eventually("it serves", || said().contains("guard null started"));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let status = ended(&mut child);
    assert_eq!(
        judged(line, status.signal(), status.code(), &said()),
        Some(0)
    );
}

#[test]
fn a_closed_pipe_changes_no_exit_code() {
    let folder = tempfile::tempdir().unwrap();
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
        let line = format!("copy latency --device null --sizes 1 --repeat 9 --out run{more}");
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
/// A run folder can come from elsewhere, and its text must not control the terminal.
#[test]
fn text_of_a_run_folder_does_not_control_the_terminal() {
    const HOSTILE: &str = "\u{1b}[2J\u{9b}2J\u{202e}";
    let folder = tempfile::tempdir().unwrap();
    let saved = Path::new(env!("CARGO_MANIFEST_DIR")).join("../report/tests/data/other");
    let name = "a very long name of a case that goes on and on without end";
    for (run, line) in [("a", "1"), ("b", "what")] {
        let run = folder.path().join(run);
        fs::create_dir(&run).unwrap();
        for file in ["run.json", "summary.json", "samples.csv"] {
            let text = fs::read_to_string(saved.join(file)).unwrap();
            let words = match file {
                "samples.csv" => HOSTILE.to_owned(),
                _ => serde_json::to_string(HOSTILE).unwrap().replace('"', ""),
            };
            let text = text.replace(name, &format!("{name}{words}"));
            let text = text.replace("\"west\"", &format!("\"west{words}{line}\""));
            fs::write(run.join(file), text.replace("Reykjavik", &words)).unwrap();
        }
    }
    let broken = folder.path().join("broken");
    fs::create_dir(&broken).unwrap();
    for file in ["run.json", "summary.json"] {
        fs::copy(saved.join(file), broken.join(file)).unwrap();
    }
    fs::write(broken.join("samples.csv"), format!("case{HOSTILE}\n")).unwrap();
    for line in [
        "report a",
        "report a b",
        "report a --finding",
        "report a --json",
        "report --compare a b",
        "report --compare a b --json",
        "report broken",
    ] {
        let output = memwarden(folder.path(), line).output().unwrap();
        assert_eq!(output.status.success(), !line.ends_with("broken"), "{line}");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        let controls = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!said.contains(controls), "{line}: {said:?}");
        assert!(said.contains("[2J"), "{line}: {said:?}");
        if line.ends_with("--json") {
            let value: serde_json::Value = serde_json::from_str(&said).unwrap();
            let kept = value.to_string();
            assert!(
                kept.contains('\u{202e}') && kept.contains('\u{9b}'),
                "{line}"
            );
        }
    }
}

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

/// A program that has begun to print, and its output.
fn printing(folder: &Path, line: &str) -> (Child, File) {
    let (mut reader, writer) = pipe();
    let child = memwarden(folder, line)
        .stdout(writer)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    reader.read_exact(&mut [0]).unwrap();
    (child, reader)
}

#[test]
fn a_closed_output_ends_a_load_and_a_view() {
    let folder = tempfile::tempdir().unwrap();
    for line in [
        "bandwidth -m 64 -t 0 --interval 10ms",
        "bandwidth -m 64 -t 0 --interval 10ms --json",
        "top --backend null --interval 20ms",
        "top --backend null --interval 20ms --json",
    ] {
        let (mut child, reader) = printing(folder.path(), line);
        drop(reader);
        assert_eq!(ended(&mut child).code(), Some(0), "{line}");
    }
}

#[test]
fn a_signal_that_ends_a_view_is_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        for line in [
            "top --backend null --interval 20ms",
            "top --backend null --interval 20ms --json",
        ] {
            let (mut child, mut reader) = printing(folder.path(), line);
            kill_process(Pid::from_child(&child), signal).unwrap();
            // Its output is read until then: a full pipe would keep it from noticing the signal.
            let reading =
                std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
            assert_eq!(ended(&mut child).code(), Some(code), "{line}");
            reading.join().unwrap().unwrap();
        }
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
