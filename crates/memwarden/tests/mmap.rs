// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of `mmap` and their expected output, with small mappings. No time is judged here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use memwarden_platform::memory_group::MemoryGroup;
use memwarden_run::{Case, Recorded};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const MEMWARDEN: &str = env!("CARGO_BIN_EXE_memwarden");

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

const SMALL: &str = "--size 2M --outer 32 --model-outer 8 --repeat 1";

/// The six mappings with their flags of mmap.
const FLAGS: [(&str, &str); 6] = [
    ("shared", "MAP_SHARED"),
    ("private", "MAP_PRIVATE"),
    ("private-populate", "MAP_PRIVATE|MAP_POPULATE"),
    ("shared-anonymous", "MAP_SHARED|MAP_ANONYMOUS"),
    ("private-anonymous", "MAP_PRIVATE|MAP_ANONYMOUS"),
    (
        "private-populate-anonymous",
        "MAP_PRIVATE|MAP_ANONYMOUS|MAP_POPULATE",
    ),
];

/// A directory for the run.
struct Bench(TempDir);

impl Bench {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn place(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(MEMWARDEN);
        command
            .arg("mmap")
            .args(["--out", self.place("run").to_str().unwrap(), "--replace"])
            .args(line.split_whitespace())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    fn recorded(&self, line: &str) -> Recorded {
        let output = self.run(line);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {errors}");
        assert!(errors.is_empty(), "no terminal, no progress: {errors}");
        assert!(self.place("run/report.html").is_file());
        Recorded::read(&self.place("run")).unwrap()
    }
}

fn count(case: &Case, key: &str) -> f64 {
    case.metric(key).and_then(|metric| metric.median).unwrap()
}

/// Pages that are populated at once cost the call time and no fault at their first write. A reader of the file sees the
/// contents of a shared mapping, and nothing of a private one.
fn setup_is_what_its_kind_of_mapping_costs(case: &Case) {
    assert!(count(case, "map") > 0.0 && count(case, "touch") > 0.0);
    let faults = count(case, "touch_minor_faults") + count(case, "touch_major_faults");
    let populated = case.name.contains("POPULATE");
    assert_eq!(faults == 0.0, populated, "{}: {faults}", case.name);
    let seen = |key: &str| case.value(key).map(|value| value[1].as_f64().unwrap());
    let expected = match case.name.split(',').next().unwrap() {
        "SHARED file" => Some(1.0),
        name if name.ends_with("file") => Some(0.0),
        _ => None,
    };
    assert_eq!(seen("seen_before"), expected, "{}", case.name);
    assert_eq!(seen("seen_after"), expected, "{}", case.name);
}

#[test]
fn the_matrix_has_every_mapping_and_the_model_s_loads_are_those_of_the_walk() {
    let bench = Bench::new();
    let run = bench.recorded(&format!(
        "{SMALL} --counters sim --platform i5-2467m --locality 2,4 --msync"
    ));
    assert_eq!(run.summary.cases.len(), 6 * 2 * 2);
    for case in &run.summary.cases {
        let locality = case.number("locality").unwrap();
        assert_eq!(count(case, "L1-dcache-loads"), 8.0 * 448.0 * locality);
        assert_eq!(count(case, "L1-dcache-stores"), 8.0 * 64.0 * locality);
        assert_eq!(case.number("loads"), Some(32.0 * 448.0 * locality));
        assert_eq!(count(case, "major_faults"), 0.0, "{}", case.name);
        assert!(case.metric("msync").is_some() && case.metric("msync_before").is_some());
        setup_is_what_its_kind_of_mapping_costs(case);
    }
    let page = fs::read_to_string(bench.place("run/report.html")).unwrap();
    for said in [
        "Cost of the mapping",
        "copy-on-write of the file",
        "Written back by msync",
    ] {
        assert!(page.contains(said), "{said}");
    }
    let notes = run.summary.notes.join("\n");
    for said in [
        "modelled, not measured: i5-2467m (L1D 32 KiB",
        "the first 8 of 32 outer steps",
        "million accesses a second",
        "ru_ixrss",
    ] {
        assert!(notes.contains(said), "{said}: {notes}");
    }
    assert!(
        bench
            .place("run/plots/lines-into-the-l1d-by-locality.svg")
            .is_file()
    );
}

#[test]
fn random_misses_the_tlb_more_often_and_more_locality_misses_less() {
    let bench = Bench::new();
    let line = "--size 64M --outer 64 --model-outer 64 --repeat 1 --flags private-anonymous --counters sim \
                --platform i5-2467m --prefetcher off --locality 2,4,8,16,32";
    let run = bench.recorded(line);
    let share = |access: &str, locality: f64, key: &str| {
        let mut cases = run.summary.cases.iter();
        let case = cases.find(|case| {
            case.text("access") == Some(access) && case.number("locality") == Some(locality)
        });
        case.unwrap().number(key).unwrap()
    };
    for access in ["random", "sequential"] {
        let shares: Vec<f64> = [2.0, 4.0, 8.0, 16.0, 32.0]
            .map(|locality| share(access, locality, "l1d_load_miss_share"))
            .into();
        assert!(
            shares.windows(2).all(|pair| pair[1] < pair[0]),
            "{access}: {shares:?}"
        );
    }
    // In order, each of a span's 512 lines is brought once, for 16 * 512 loads and stores: perf's event on this processor
    // counts lines that are brought for either.
    assert_eq!(share("sequential", 16.0, "l1d_load_miss_share"), 1.0 / 16.0);
    // Loads and stores together: the place decides which of them touches a new page first.
    let tlb = |access: &str| -> f64 {
        let mut cases = run.summary.cases.iter();
        let case = cases.find(|case| {
            case.text("access") == Some(access) && case.number("locality") == Some(16.0)
        });
        let case = case.unwrap();
        count(case, "dTLB-load-misses") + count(case, "dTLB-store-misses")
    };
    assert!(tlb("random") > tlb("sequential"));
}

#[test]
fn mmap_is_given_the_flags_that_were_asked_for() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: no strace here");
        return;
    }
    let bench = Bench::new();
    for (name, flags) in FLAGS {
        let log = bench.place("strace");
        let mut strace = Command::new("strace");
        strace
            .args(["-f", "-e", "trace=mmap,msync,fallocate", "-o"])
            .arg(&log)
            .arg(MEMWARDEN)
            .args(["mmap", "--replace", "--out"])
            .arg(bench.place("run"))
            .args(SMALL.split(' '))
            .args("--counters sim --platform i5-2467m --access random --msync --flags".split(' '))
            .arg(name);
        let output = strace.stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        if errors.contains("ptrace") {
            println!("skipped: strace is not permitted here");
            return;
        }
        assert!(output.status.success(), "{name}: {errors}");
        let log = fs::read_to_string(log).unwrap();
        let calls = |call: &str, with: &str| {
            log.lines()
                .filter(|line| line.contains(&format!("{call}(")) && line.contains(with))
                .count()
        };
        // The flags end before a comma and begin after one.
        assert_eq!(
            calls(
                "mmap",
                &format!(" 2097152, PROT_READ|PROT_WRITE, {flags}, ")
            ),
            1,
            "{name}: {log}"
        );
        let of_file = usize::from(!flags.contains("ANONYMOUS"));
        assert_eq!(calls("fallocate", ", 2097152)"), of_file, "{name}: {log}");
        assert_eq!(calls("msync", ", 2097152, MS_SYNC"), 2, "{name}: {log}");
    }
}

/// A later check would bring back pages that the competitor had swapped out.
#[test]
fn a_mapping_is_written_back_before_a_competitor_takes_memory() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: no strace here");
        return;
    }
    let bench = Bench::new();
    let log = bench.place("strace");
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-e", "trace=mmap,msync", "-o"])
        .arg(&log)
        .arg(MEMWARDEN)
        .args(["mmap", "--replace", "--out"])
        .arg(bench.place("run"))
        .args(SMALL.split(' '))
        .args(
            "--counters sim --platform i5-2467m --access random --msync --flags shared".split(' '),
        )
        .args("--compete fork --compete-limit 12M".split(' '));
    let output = strace.stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("ptrace") {
        println!("skipped: strace is not permitted here");
        return;
    }
    assert!(output.status.success(), "{errors}");
    let log = fs::read_to_string(log).unwrap();
    // The competitor maps its memory only when it begins to take it.
    let calls = log.lines().filter_map(|line| {
        let is_ours = line.contains("msync(") && line.contains(", 2097152, MS_SYNC");
        let is_rivals = line.contains("mmap(") && line.contains(" 12582912, PROT_READ|PROT_WRITE");
        (is_ours || is_rivals).then_some(if is_ours { "msync" } else { "compete" })
    });
    let calls: Vec<_> = calls.collect();
    assert_eq!(calls, ["msync", "compete", "msync"], "{log}");
}

/// Processes whose command line contains all of these words.
fn processes(words: &[&str]) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        words.iter().all(|word| line.contains(word)).then_some(pid)
    })
    .collect()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn competition_is_survived_twenty_times_out_of_twenty() {
    let bench = Bench::new();
    let before = fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    let run = bench.recorded(
        "--size 1M --outer 16 --model-outer 1 --platform i5-2467m --counters sim --flags private-anonymous --access random \
         --compete fork,background --compete-limit 4M --repeat 20",
    );
    assert_eq!(run.summary.cases.len(), 2);
    for case in &run.summary.cases {
        assert_eq!(case.metric("time").unwrap().samples, 20);
        assert_eq!(case.number("oom_kills"), Some(0.0));
        let competitors = case.value("competitors").unwrap().as_array().unwrap();
        assert_eq!(competitors.len(), 20);
        for competitor in competitors {
            assert_eq!(competitor["touched_bytes"], 4 << 20, "{competitor}");
            assert_eq!(competitor["end"], "was ended when the walk was done");
        }
        // The model does not cover cases with a competitor.
        assert!(case.metric("L1-dcache-loads").is_none());
    }
    assert_eq!(
        fs::read_to_string("/proc/self/oom_score_adj").unwrap(),
        before
    );
    assert!(processes(&["mmap", "compete", "4194304"]).is_empty());
}

#[test]
fn a_competitor_that_the_oom_killer_takes_is_a_result() {
    if let Err(error) = MemoryGroup::new(64 << 20, &|| false) {
        eprintln!("skipped: {error}");
        return;
    }
    let bench = Bench::new();
    let run = bench.recorded(
        "--size 1M --outer 16 --model-outer 1 --platform i5-2467m --counters sim --flags private-anonymous --access random \
         --compete none,fork,background --compete-limit 256M --confine 24M --repeat 10",
    );
    let competing = run.summary.cases.iter();
    for case in competing.filter(|case| case.text("compete") != Some("none")) {
        assert_eq!(case.metric("time").unwrap().samples, 10, "{}", case.name);
        let competitors = case.value("competitors").unwrap().as_array().unwrap();
        // With a swap the competitors may survive.
        if fs::read_to_string("/proc/swaps").unwrap().lines().count() == 1 {
            assert_eq!(case.number("oom_kills"), Some(10.0), "{competitors:?}");
            for competitor in competitors {
                assert_eq!(competitor["end"], "was killed by the OOM killer");
                assert!(competitor["touched_bytes"].as_u64().unwrap() < 24 << 20);
            }
            // The walks began alone.
            assert!(case.number("slowdown").is_none(), "{}", case.name);
        }
    }
    let page = fs::read_to_string(bench.place("run/report.html")).unwrap();
    assert!(page.contains("killed by the OOM killer"));
}

#[test]
fn whatever_ends_the_measurement_nothing_is_left_behind() {
    for (signal, completes_folder) in [
        (Signal::INT, true),
        (Signal::TERM, true),
        (Signal::KILL, false),
    ] {
        let bench = Bench::new();
        let files = bench.place("files");
        fs::create_dir(&files).unwrap();
        // No other process uses this limit.
        let limit = 3000 + u64::from(std::process::id() % 1000);
        let bytes = (limit * 1024).to_string();
        let line = format!(
            "--size 1M --outer 4000000000 --counters sim --platform i5-2467m --flags shared --access random \
             --compete background --compete-limit {limit}K --dir {}",
            files.display()
        );
        let mut child = bench
            .command(&line)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let competitors = || processes(&["compete", &bytes]);
        eventually("a competitor", || !competitors().is_empty());
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = child.wait().unwrap();
        // A shell's exit code; none if SIGKILL ended it.
        let code = completes_folder.then(|| 128 + signal.as_raw());
        assert_eq!(status.code(), code);
        eventually("the competitor is gone", || competitors().is_empty());
        assert_eq!(fs::read_dir(&files).unwrap().count(), 0, "{signal:?}");
        assert!(!bench.place("run").exists());
        if completes_folder {
            let mut said = String::new();
            std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
            assert!(said.contains("interrupted"), "{said}");
            // Nothing was measured yet.
            assert!(!bench.place("run.partial").exists());
        }
    }
}

#[test]
fn reclaim_is_refused_in_one_line_where_the_kernel_has_no_switch() {
    if Path::new("/proc/sys/vm/reclaim_active").exists() {
        println!("skipped: this kernel has vm.reclaim_active");
        return;
    }
    let output = Command::new(MEMWARDEN)
        .args(["mmap", "reclaim"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("no vm.reclaim_active") && said.contains("--on lab"),
        "{said}"
    );
}

#[test]
fn the_help_lists_the_platforms() {
    let bench = Bench::new();
    let refused = String::from_utf8(bench.run("--platform vax").stderr).unwrap();
    let names = refused.split("there are ").nth(1).unwrap();
    let names = names.split(", or give a file").next().unwrap();
    let help = String::from_utf8(bench.run("--help").stdout).unwrap();
    let expected = format!("Platforms: this-machine, {names}, or a TOML file");
    assert!(help.contains(&expected), "{expected}");
}

/// The file of a machine that comes with the program, with half of its L1D.
#[test]
fn a_machine_of_ones_own_is_modelled() {
    let bench = Bench::new();
    let i5 = include_str!("../../machines/machines/i5-2467m.toml");
    let file = bench.place("mine.toml");
    fs::write(
        &file,
        i5.replace("size_bytes = 32768", "size_bytes = 16384"),
    )
    .unwrap();
    let walk = "--size 1M --outer 16 --model-outer 8 --repeat 1 --flags private-anonymous --access sequential \
                --counters sim --prefetcher off";
    let mut misses = Vec::new();
    for platform in ["i5-2467m", file.to_str().unwrap()] {
        let run = bench.recorded(&format!("{walk} --platform {platform}"));
        let notes = run.summary.notes.join("\n");
        let size = if platform.ends_with(".toml") { 16 } else { 32 };
        let expected = format!("not measured: {platform} (L1D {size} KiB");
        assert!(notes.contains(&expected), "{expected}: {notes}");
        misses.push(count(&run.summary.cases[0], "L1-dcache-load-misses"));
    }
    // A place fits into the L1D of 32 KiB, and is walked sixteen times.
    assert_eq!(misses, [8.0 * 512.0, 16.0 * 8.0 * 512.0]);
    fs::write(&file, i5.replace("recent = 10", "recent = 0")).unwrap();
    let output = bench.run(&format!("{walk} --platform {}", file.display()));
    let said = String::from_utf8(output.stderr).unwrap();
    let line = i5[..i5.find("recent = 10").unwrap()].matches('\n').count() + 1;
    assert!(
        !output.status.success()
            && said.contains(&format!(
                "mine.toml line {line}, counters.next_line.recent: "
            )),
        "{said}"
    );
}

#[test]
fn bad_input_gets_one_line_and_leaves_nothing() {
    let bench = Bench::new();
    let bad = [
        ("--size 16K", "--size 16K"),
        ("--size 60000G", "more than the"),
        ("--platform vax", "i5-2467m, raspberry-pi-3, xeon-w3530"),
        ("--platform xeon-6426y", "the file has no [counters]"),
        ("--platform ./none.toml", "cannot read ./none.toml: No such"),
        ("--cpu 8191", "CPU 8191 is not online"),
        (
            "--dir /nonexistent --size 1M --platform i5-2467m",
            "in /nonexistent (--dir",
        ),
        ("--compete-limit 1G", "there is no competitor"),
    ];
    for (line, expected) in bad {
        let output = bench.run(line);
        assert!(!output.status.success(), "{line} was taken");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{line}: {said}");
        assert!(said.contains(expected), "{line}: {said}");
        assert!(!bench.place("run.partial").exists());
    }
}
