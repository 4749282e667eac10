// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of `memwarden sim`.
#![cfg(feature = "host")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const MEMWARDEN: &str = env!("CARGO_BIN_EXE_memwarden");
const DDR4: &str = include_str!("../../sim/memories/ddr4-2400.toml");

const PI: &str = include_str!("../../machines/machines/raspberry-pi-3.toml");

/// Published figures of a small chase, without a guard and with one.
const FACTS: &str = "\
source = \"a test\"

[[case]]
name = \"alone\"
workloads = [\"latency\"]
memory_bytes = 2097152
published = { latency_ns = 20.0 }

[[case]]
name = \"guarded\"
workloads = [\"latency\", \"bandwidth:read\"]
memory_bytes = 2097152
guard = { mib_s = [100, 100] }
published = { latency_ns = 600.0, load_cpu_share = 0.5 }
";

/// A working directory.
struct Desk(TempDir);

impl Desk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        names
    }

    /// Runs `memwarden sim` with these words.
    fn sim(&self, line: &str) -> Output {
        Command::new(MEMWARDEN)
            .arg("sim")
            .args(line.split_whitespace())
            .current_dir(self.0.path())
            .output()
            .unwrap()
    }

    fn json(&self, line: &str) -> Value {
        let output = self.sim(line);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {errors}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The message of a refusal.
    fn refusal(&self, line: &str) -> String {
        let output = self.sim(line);
        assert!(!output.status.success(), "{line} was taken");
        assert!(output.stdout.is_empty(), "{line}");
        String::from_utf8(output.stderr).unwrap()
    }
}

#[test]
fn the_memories_are_listed() {
    let desk = Desk::new();
    let list = desk.json("memories --json");
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), 9);
    let ddr4 = list
        .iter()
        .find(|one| one["option"] == "ddr4-2400")
        .unwrap();
    assert_eq!(ddr4["capacity_bytes"], 8_u64 << 30);
    assert_eq!(ddr4["idle_latency_ps"], (17 + 17 + 4) * 833);
    assert_eq!(ddr4["timings"]["trc"], 46160);
    let output = desk.sim("memories");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 10, "{text}");
    assert!(text.contains("ddr4-2400"), "{text}");
}

#[test]
fn a_check_finds_nothing_wrong() {
    let desk = Desk::new();
    desk.write("my.toml", DDR4.replace("DDR4-2400", "mine"));
    let found = desk.json("check ddr3-1333 my.toml --commands 30000 --json");
    assert_eq!(found["fault"], Value::Null);
    let memories = found["memories"].as_array().unwrap();
    assert_eq!(memories[0]["memory"], "DDR3-1333");
    assert_eq!(memories[1]["memory"], "mine");
    for memory in memories {
        assert!(memory["traffic"]["commands"].as_u64().unwrap() >= 30_000);
        assert_eq!(memory["traffic"]["violation_count"], 0);
        let checks = memory["checks"].as_array().unwrap();
        assert!(checks.len() >= 6);
        assert!(
            checks.iter().all(|check| check["holds"] == true),
            "{checks:?}"
        );
    }
    let output = desk.sim("check lpddr2-900 --commands 1000");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("LPDDR2-900: idle latency"), "{text}");
    let gb_s = text.lines().filter(|line| line.ends_with(", GB/s"));
    assert_eq!(gb_s.count(), 2, "{text}");
    assert!(text.contains("violations"), "{text}");
}

#[test]
fn a_memory_that_misses_its_figures_fails_the_check() {
    let desk = Desk::new();
    // Bursts that can follow each other only at half the rate.
    let slow = DDR4
        .lines()
        .map(|line| match line.split_once(" = ") {
            Some(("tccd_s", _)) => "tccd_s = \"8ck\"",
            Some(("tccd_l" | "tccd_l_wr", _)) if line.starts_with("tccd_l ") => "tccd_l = \"8ck\"",
            Some(("tccd_l_wr", _)) => "tccd_l_wr = \"8ck\"",
            _ => line,
        })
        .collect::<Vec<_>>()
        .join("\n");
    desk.write("slow.toml", slow);
    let output = desk.sim("check slow.toml --commands 1000");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    let wrong: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("WRONG"))
        .collect();
    assert_eq!(wrong.len(), 1, "{text}");
    assert!(wrong[0].contains("streaming reads"), "{text}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors, "memwarden: wrong figures: 1, broken rules: 0\n");
}

#[test]
fn a_trace_gives_the_same_figures_as_text_and_as_binary() {
    let desk = Desk::new();
    for pattern in ["random", "stream"] {
        let generate = format!("generate --pattern {pattern} --count 20000 --memory ddr3-1333");
        assert!(
            desk.sim(&format!("{generate} -o {pattern}.text"))
                .status
                .success()
        );
        let binary = desk.sim(&format!("{generate} -o {pattern}.binary --binary"));
        assert!(binary.status.success());
        let [text, binary] = ["text", "binary"].map(|form| {
            desk.json(&format!(
                "replay {pattern}.{form} --memory ddr3-1333 --check --json"
            ))
        });
        assert_eq!(text["format"], "text");
        assert_eq!(binary["format"], "binary");
        assert_eq!(text["figures"], binary["figures"]);
        assert_eq!(text["figures"]["reads"], 16_000);
        assert_eq!(text["figures"]["writes"], 4_000);
        assert_eq!(text["check"]["violation_count"], 0);
        assert!(text["check"]["commands"].as_u64().unwrap() >= 20_000 - 100);
        assert_eq!(text["memory"]["name"], "DDR3-1333");
        assert_eq!(text["controller"]["read_depth"], 32);
        assert_eq!(text["controller"]["page_policy"], "open");
        assert!(text["speed"]["requests_per_s"].as_f64().unwrap() > 0.0);
    }
    let [stream, random] = ["stream", "random"].map(|pattern| {
        let told = desk.json(&format!("replay {pattern}.text --memory ddr3-1333 --json"));
        assert_eq!(told["check"], Value::Null);
        told["figures"]["percent_of_peak"].as_f64().unwrap()
    });
    assert!(random < stream && stream < 100.0, "{random} {stream}");
}

#[test]
fn requests_come_at_their_times() {
    let desk = Desk::new();
    desk.write("my.trace", "# a line, twice\nR 0x0 100\nR 63 1100.5\n");
    let told = desk.json("replay my.trace --json");
    let figures = &told["figures"];
    assert_eq!(figures["timed"], true);
    assert_eq!(figures["row_misses"], 1);
    assert_eq!(figures["row_hits"], 1);
    let time_ps = figures["time_ps"].as_u64().unwrap();
    assert!((1_000_500..1_050_000).contains(&time_ps), "{time_ps}");
    let closed = desk.json("replay my.trace --page-policy timeout:200 --json");
    assert_eq!(closed["figures"]["row_misses"], 2);
    assert_eq!(
        closed["controller"]["page_policy"]["timeout"]["idle_ps"],
        200_000
    );
    let output = desk.sim("replay my.trace --check");
    let text = String::from_utf8(output.stdout).unwrap();
    for words in [
        "at their times",
        "row misses",
        "p99",
        "% of",
        "violations",
        "energy, uJ",
        "standby",
    ] {
        assert!(text.contains(words), "{words}\n{text}");
    }
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("million requests a second"), "{errors}");
}

#[test]
fn what_a_machine_asks_for_is_recorded_replayed_and_walked() {
    let desk = Desk::new();
    // More lines than the caches of the walking core hold.
    let record = "record --platform raspberry-pi-3 --workload latency@0 --workload bandwidth:write@1-3 \
                  --memory 4M --for 800us --settle 100us";
    for (form, file) in [("", "my.trace"), ("--binary", "my.binary")] {
        let output = desk.sim(&format!("{record} {form} -o {file}"));
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains(" GB/s ("), "{said}");
    }
    let text = desk.json("replay my.trace --memory lpddr2-900 --check --json");
    let binary = desk.json("replay my.binary --memory lpddr2-900 --check --json");
    assert_eq!(text["figures"], binary["figures"]);
    assert!(text["figures"]["reads"].as_u64().unwrap() > 1000, "{text}");
    // In the other direction: a core walks the trace, and its traffic is recorded.
    let walk =
        "record --platform raspberry-pi-4 --workload trace:my.trace@2 --for 200us -o walked.trace";
    assert!(desk.sim(walk).status.success());
    let walked = std::fs::read_to_string(desk.path("walked.trace")).unwrap();
    assert!(walked.lines().any(|line| line.starts_with("W 0x")));
    // A buffer that fits into a cache causes no memory traffic.
    let told = desk.refusal(
        "record --platform raspberry-pi-3 --workload bandwidth:read@0 --memory 4K --settle 1ms --for 10us -o none",
    );
    assert!(told.contains("no request reached memory"), "{told}");
    assert!(!desk.path("none").exists());
}

/// A trace has no sizes, so a recorded line is half a line to such a memory.
#[test]
fn a_replay_says_if_a_request_is_no_line() {
    let desk = Desk::new();
    desk.write("half.toml", DDR4.replace("bus_bits = 64", "bus_bits = 32"));
    desk.write("my.trace", "R 0\nR 64\n");
    for (memory, bytes) in [("half.toml", Some(32)), ("ddr4-2400", None)] {
        let output = desk.sim(&format!("replay my.trace --memory {memory}"));
        let told = String::from_utf8(output.stderr).unwrap();
        let note = "note: each request is a burst of this memory, ";
        assert_eq!(told.contains(note), bytes.is_some(), "{told}");
        if let Some(bytes) = bytes {
            assert!(told.contains(&format!("{note}{bytes} bytes\n")), "{told}");
        }
    }
}

#[test]
fn a_file_is_replaced_only_on_request_and_whole() {
    let desk = Desk::new();
    let generate = "generate --pattern stream --count 100 --write-share 0 -o my.trace";
    desk.write("my.trace", "mine");
    let told = desk.refusal(generate);
    assert_eq!(
        told,
        "memwarden: my.trace exists already: choose another --output, or --replace it\n"
    );
    assert_eq!(std::fs::read(desk.path("my.trace")).unwrap(), b"mine");
    assert!(desk.sim(&format!("{generate} --replace")).status.success());
    let text = std::fs::read_to_string(desk.path("my.trace")).unwrap();
    assert_eq!(text.lines().count(), 101);
    assert!(text.ends_with("R 0x18c0\n"), "{text}");
    // A file that can't be finished leaves nothing behind.
    std::fs::create_dir(desk.path("folder")).unwrap();
    let told = desk.refusal("generate --pattern stream --count 9 -o folder --replace");
    assert!(
        told.contains("folder exists and is not a plain file"),
        "{told}"
    );
    let told = desk.refusal("generate --pattern stream --count 9 -o nowhere/my.trace");
    assert!(told.contains("writing nowhere/my.trace"), "{told}");
    assert_eq!(desk.files(), ["folder", "my.trace"]);
}

#[test]
fn a_signal_leaves_no_partial_trace() {
    let desk = Desk::new();
    let mut child = Command::new(MEMWARDEN)
        .args("sim generate --pattern random --count 100000000000 -o my.trace".split(' '))
        .current_dir(desk.0.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while desk.files().is_empty() {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(desk.files().is_empty(), "{:?}", desk.files());
}

#[test]
fn bad_input_gets_one_line_that_names_it() {
    let desk = Desk::new();
    desk.write("bad.trace", "R 0\n\nR 0x1g\n");
    desk.write("far.trace", "W 0\nR 0x200000000\n");
    desk.write("empty.trace", "# nothing\n");
    desk.write("cut.trace", b"\x89MWT\r\n\x1a\n\x01\0\0\0\0\0\0\0\0\0\0");
    desk.write("good.trace", "R 0\n");
    for (line, expected) in [
        (
            "replay bad.trace",
            "bad.trace line 3: \"0x1g\" is not an address: has to be a byte address, decimal or with 0x",
        ),
        (
            "replay far.trace",
            "far.trace line 2: address 0x200000000 is beyond the memory: has to be from 0 to 0x1ffffffff",
        ),
        ("replay empty.trace", "the trace has no request"),
        (
            "replay cut.trace",
            "cut.trace byte 16: the last record has 3 of its 20 bytes",
        ),
        ("replay none.trace", "reading none.trace: No such file"),
        (
            "replay good.trace --memory ddr1",
            "there is no memory \"ddr1\"; there are ddr2-800, ddr3-1333",
        ),
        ("replay good.trace --memory none.toml", "reading none.toml"),
        (
            "replay good.trace --read-depth 0",
            "read_depth is 0: has to be from 1 to 1024",
        ),
        (
            "replay good.trace --write-depth 8",
            "replaying good.trace: the controller: write_high is 24: has to be from 1 to 8\n",
        ),
        (
            "record --platform vax --workload latency@0 -o new",
            "there is no platform \"vax\"",
        ),
        (
            "record --platform raspberry-pi-3 --workload trace:bad.trace@0 -o new",
            "bad.trace line 3: \"0x1g\" is not an address",
        ),
        (
            "record --platform raspberry-pi-3 --workload trace:empty.trace@0 -o new",
            "empty.trace line 1: has no access",
        ),
        (
            "record --platform raspberry-pi-3 --workload latency@4 -o new",
            "core 4 is not one of",
        ),
        (
            "record --platform raspberry-pi-3 --workload latency@0 --for 0us -o new",
            "--for 0s: give more than 0",
        ),
        (
            "record --platform raspberry-pi-3 --workload latency@0 --settle 2h -o new",
            "--settle 7200s: give at most 3600s",
        ),
        ("check ddr1", "there is no memory \"ddr1\""),
        (
            "generate --pattern stream --count 9 --memory ddr1 -o new",
            "there is no memory \"ddr1\"",
        ),
    ] {
        let told = desk.refusal(line);
        assert!(
            told.starts_with("memwarden: ") && told.lines().count() == 1,
            "{line}: {told}"
        );
        assert!(told.contains(expected), "{line}: {told}");
    }
    for (line, expected) in [
        ("replay", "TRACE"),
        ("replay good.trace --page-policy shut", "timeout:TIME"),
        (
            "generate --pattern zigzag --count 9 -o new",
            "random, stream",
        ),
        ("generate --pattern stream --count 0 -o new", "0 is not in"),
        ("generate --pattern stream --count 9", "--output"),
        (
            "generate --pattern stream --count 9 --write-share 2 -o new",
            "from 0 (reads only) to 1",
        ),
        ("check --commands 0", "0 is not in"),
        ("check --commands many", "not a number"),
    ] {
        let told = desk.refusal(line);
        assert!(told.contains(expected), "{line}: {told}");
    }
    assert!(!desk.path("new").exists());
}

#[test]
fn the_platforms_are_listed() {
    let desk = Desk::new();
    let list = desk.json("platforms --json");
    let options: Vec<&str> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["option"].as_str().unwrap())
        .collect();
    let known = [
        "raspberry-pi-3",
        "raspberry-pi-4",
        "xeon-6426y",
        "xeon-w3530",
    ];
    assert_eq!(options, known);
    assert_eq!(list[0]["name"], "Raspberry Pi 3 Model B");
    assert_eq!(list[0]["machine"]["cores"], 4);
    let peak = list[0]["peak_bytes_per_s"].as_f64().unwrap();
    assert!((3.59e9..3.61e9).contains(&peak), "{peak}");
    assert_eq!(list[0]["facts"]["fitted_to"], 3);
    assert_eq!(list[1]["facts"], Value::Null);
    let output = desk.sim("platforms");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 5, "{text}");
    for option in known {
        assert!(text.contains(option), "{text}");
    }
}

#[test]
fn a_platform_is_compared_and_changes_nothing() {
    let desk = Desk::new();
    desk.write("facts.toml", FACTS);
    let compare = "calibrate raspberry-pi-3 --against facts.toml --compare-only";
    let told = desk.json(&format!("{compare} --json"));
    assert_eq!(told["fit"], Value::Null);
    let cases = told["cases"].as_array().unwrap();
    let find = |case: &str, measure: &str| {
        let mut cases = cases.iter();
        cases
            .find(|one| one["case"] == case && one["measure"] == measure)
            .unwrap()
    };
    let alone = find("alone", "latency_ns");
    assert_eq!(alone["fitted"], true);
    let found = alone["found"].as_f64().unwrap();
    assert_eq!(alone["difference"].as_f64().unwrap(), found / 20.0 - 1.0);
    // The guard allows at most a tenth more than its 100 MB/s.
    let guarded = find("guarded", "latency_ns");
    assert_eq!(guarded["fitted"], false);
    let found = guarded["found"].as_f64().unwrap();
    assert!((500.0..=700.0).contains(&found), "{found}");
    let share = find("guarded", "load_cpu_share");
    assert_eq!(
        share["difference"].as_f64().unwrap(),
        share["found"].as_f64().unwrap() - 0.5
    );

    let text = String::from_utf8(desk.sim(compare).stdout).unwrap();
    let row = |start: &str, middle: &str| {
        let mut rows = text.lines();
        rows.find(|line| line.starts_with(start) && line.contains(middle))
            .unwrap()
    };
    assert!(row("alone", "latency_ns").ends_with(" fitted"), "{text}");
    assert!(
        row("guarded", "latency_ns").ends_with(" predicted"),
        "{text}"
    );
    assert!(
        row("guarded", "load_cpu_share").contains(" points "),
        "{text}"
    );
    assert!(
        text.contains("MORE THAN 10 % OFF: alone, latency_ns: +"),
        "{text}"
    );
    assert!(text.contains("nothing was changed"), "{text}");
    assert_eq!(desk.files(), ["facts.toml"]);
}

#[test]
fn a_platform_is_fitted_and_written() {
    let desk = Desk::new();
    desk.write("facts.toml", FACTS);
    desk.write("mine.toml", "mine");
    let calibrate = "calibrate raspberry-pi-3 --against facts.toml --tries 5 -o mine.toml";
    assert_eq!(
        desk.refusal(calibrate),
        "memwarden: mine.toml exists already: choose another --output, or --replace it\n"
    );
    assert_eq!(std::fs::read(desk.path("mine.toml")).unwrap(), b"mine");
    let told = desk.json(&format!("{calibrate} --replace --json"));
    let fit = &told["fit"];
    assert_eq!(fit["tried"], 5);
    let worst = |of: &str| fit[of].as_f64().unwrap();
    assert!(worst("worst_now") <= worst("worst_before"), "{fit}");
    let parameters = fit["parameters"].as_array().unwrap();
    assert_eq!(parameters.len(), 11);
    // The written file gives the same result again.
    let again = desk.json("calibrate mine.toml --against facts.toml --compare-only --json");
    assert_eq!(again["cases"], told["cases"]);
    let told = desk.refusal("calibrate mine.toml --against facts.toml -o nowhere/mine.toml");
    assert_eq!(
        told,
        "memwarden: writing nowhere/mine.toml: there is no folder nowhere\n"
    );
    let text = String::from_utf8(
        desk.sim("calibrate mine.toml --against facts.toml --tries 1")
            .stdout,
    );
    let text = text.unwrap();
    for words in [
        "parameter",
        "machine.shared.to_memory_ps",
        " before, ",
        "platforms tried: 1",
    ] {
        assert!(text.contains(words), "{words}\n{text}");
    }
    assert_eq!(desk.files(), ["facts.toml", "mine.toml"]);
}

#[test]
fn a_memory_file_is_found_from_where_the_platform_is_written() {
    let desk = Desk::new();
    for folder in ["boards", "fitted"] {
        std::fs::create_dir(desk.path(folder)).unwrap();
    }
    desk.write("boards/my-memory.toml", DDR4);
    desk.write(
        "boards/my.toml",
        PI.replace("\"lpddr2-900\"", "\"my-memory.toml\""),
    );
    desk.write("facts.toml", FACTS);
    let against = "--against facts.toml --json";
    for to in ["fitted/my.toml", "boards/mine.toml"] {
        let told = desk.json(&format!(
            "calibrate boards/my.toml {against} --tries 1 -o {to}"
        ));
        let again = desk.json(&format!("calibrate {to} {against} --compare-only"));
        assert_eq!(again["cases"], told["cases"]);
    }
    let text = std::fs::read_to_string(desk.path("boards/mine.toml")).unwrap();
    assert!(text.contains("name = \"my-memory.toml\""), "{text}");
}

#[test]
fn a_signal_ends_a_calibration_and_leaves_nothing() {
    let desk = Desk::new();
    let mut child = Command::new(MEMWARDEN)
        .args("sim calibrate raspberry-pi-3 -o my.toml".split(' '))
        .current_dir(desk.0.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    while desk.files().is_empty() {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told, "memwarden: interrupted: nothing was written\n");
    assert!(desk.files().is_empty(), "{:?}", desk.files());
}

/// Starts a command that reports its steps to the file `steps`.
fn stepping(desk: &Desk, line: &str) -> Child {
    desk.write("steps", "");
    Command::new(MEMWARDEN)
        .arg("sim")
        .args(line.split(' '))
        .current_dir(desk.0.path())
        .env("MEMWARDEN_STEPS", desk.path("steps"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_signal_ends_a_calibration_and_keeps_the_best_platform() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let desk = Desk::new();
        desk.write("facts.toml", FACTS);
        // The model's own latency is about twice that: the search is long, and each step improves it.
        let line =
            "calibrate raspberry-pi-3 --against facts.toml --within 0 --tries 100000 -o my.toml";
        let mut child = stepping(&desk, line);
        let improved = || {
            let steps = std::fs::read_to_string(desk.path("steps")).unwrap();
            let mut worst = steps
                .lines()
                .filter_map(|line| Some(line.split_once("worst ")?.1.to_owned()));
            let first = worst.next();
            worst.any(|one| Some(one) != first)
        };
        while !improved() {
            assert!(child.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(5));
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{told}");
        assert!(
            told.contains("the best platform so far is in my.toml.partial\n"),
            "{told}"
        );
        let end = "memwarden: interrupted: the search was not completed\n";
        assert!(told.ends_with(end), "{told}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.contains("my.toml.partial: the fitted platform"),
            "{text}"
        );
        assert_eq!(desk.files(), ["facts.toml", "my.toml.partial", "steps"]);

        // The file is a platform, and better than the one before.
        std::fs::rename(desk.path("my.toml.partial"), desk.path("best.toml")).unwrap();
        let compared = |platform: &str| {
            let line = format!("calibrate {platform} --against facts.toml --compare-only --json");
            let difference = desk.json(&line)["cases"][0]["difference"].clone();
            difference.as_f64().unwrap().abs()
        };
        assert!(compared("best.toml") < compared("raspberry-pi-3"));
    }
}

#[test]
fn a_signal_ends_a_comparison_and_keeps_the_cases_that_are_done() {
    let desk = Desk::new();
    // These jobs take minutes.
    let long = "[[case]]\nname = \"long\"\nworkloads = [\"task\"]\nmemory_bytes = 65536\n\
                task = { frame_bytes = 1048576, period_us = 10000, deadline_us = 9000, jobs = 100000 }\n";
    desk.write("facts.toml", format!("{FACTS}\n{long}"));
    let line = "calibrate raspberry-pi-3 --against facts.toml --compare-only --json";
    let mut child = stepping(&desk, line);
    let begun = || {
        let steps = std::fs::read_to_string(desk.path("steps")).unwrap();
        steps.contains(" 2/3 cases")
    };
    while !begun() {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{told}");
    assert_eq!(told, "memwarden: interrupted: cases are missing\n");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["interrupted"], true);
    let cases: BTreeSet<&str> = report["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|case| case["case"].as_str().unwrap())
        .collect();
    assert_eq!(cases, BTreeSet::from(["alone", "guarded"]));
}

#[test]
fn wrong_platforms_and_facts_get_one_line_that_names_them() {
    let desk = Desk::new();
    desk.write("my.toml", PI);
    desk.write("unfit.toml", PI.split("[fit]").next().unwrap());
    desk.write("good.toml", FACTS);
    desk.write(
        "field.toml",
        FACTS.replace("latency_ns = 20.0", "latency = 20.0"),
    );
    desk.write("guard.toml", FACTS.replace("[100, 100]", "[]"));
    desk.write("large.toml", FACTS.replace("2097152", "2097152000000"));
    desk.write(
        "load.toml",
        FACTS.replace("\"bandwidth:read\"", "\"bandwidth:erase\""),
    );
    desk.write(
        "guarded.toml",
        FACTS.replace("published = { latency_ns = 20.0 }", ""),
    );
    for (line, expected) in [
        (
            "raspberry-pi-2",
            "there is no platform \"raspberry-pi-2\"; there are raspberry-pi-3, raspberry-pi-4, ",
        ),
        ("none.toml", "reading none.toml: No such file"),
        ("good.toml", "good.toml line "),
        (
            "raspberry-pi-4",
            "no facts of \"raspberry-pi-4\" come with the program (there are raspberry-pi-3, xeon-w3530)",
        ),
        ("my.toml", "give --against: no facts of \"my\""),
        (
            "my.toml --against none.toml",
            "reading none.toml: No such file",
        ),
        (
            "my.toml --against field.toml",
            "field.toml line 7: unknown variant `latency`",
        ),
        (
            "my.toml --against guard.toml",
            "guard.toml line 9: case \"guarded\": guard: mib_s for a core or more",
        ),
        (
            "my.toml --against large.toml",
            "large.toml line 3: case \"alone\": memory_bytes has to be from 4096 to 1073741824",
        ),
        (
            "my.toml --against load.toml",
            "case \"guarded\": the simulator has no workload \"bandwidth:erase\"",
        ),
        ("my.toml --against guarded.toml", "only --compare-only"),
        (
            "unfit.toml --against good.toml",
            "unfit.toml has no [fit] table",
        ),
    ] {
        let told = desk.refusal(&format!("calibrate {line} --tries 1"));
        assert!(told.starts_with("memwarden: "), "{line}: {told}");
        assert!(told.contains(expected), "{line}: {told}");
        assert!(
            told.lines().count() == 1 || line == "good.toml",
            "{line}: {told}"
        );
    }
    for (line, expected) in [
        ("", "PLATFORM"),
        ("my.toml --within 2", "from 0 to 1"),
        ("my.toml --tries 0", "not in 1..=1000000"),
        ("my.toml --compare-only --output new", "cannot be used with"),
        ("my.toml --replace", "--output"),
    ] {
        let told = desk.refusal(&format!("calibrate {line}"));
        assert!(told.contains(expected), "{line}: {told}");
    }
    assert!(!desk.path("new").exists());
}

#[test]
fn every_wrong_field_of_a_memory_file_is_told() {
    let desk = Desk::new();
    let text = DDR4
        .replace("rows = 65536", "rows = 65537")
        .replace("tras = 32000", "tras = \"long\"");
    let line = |start: &str| {
        1 + text
            .lines()
            .position(|line| line.starts_with(start))
            .unwrap()
    };
    desk.write("my.toml", &text);
    desk.write("good.trace", "R 0\n");
    for verb in ["check my.toml", "replay good.trace --memory my.toml"] {
        let told = desk.refusal(verb);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(
            lines,
            [
                format!(
                    "memwarden: my.toml line {}, organisation.rows: is 65537: has to be a power of two from 2 to 4194304",
                    line("rows")
                ),
                format!(
                    "my.toml line {}, timings.tras: has to be whole ps, or \"Nck\" in clocks, from 100 to 200000",
                    line("tras")
                ),
            ]
        );
    }
}

/// A run of interfere in the model itself: its measured figures appear beside the calculated ones.
#[test]
fn what_was_measured_stands_beside_the_model() {
    let desk = Desk::new();
    desk.write("facts.toml", MEASURED_FACTS);
    let interfere = |words: &str| {
        let ran = Command::new(MEMWARDEN)
            .args("interfere --on sim:raspberry-pi-3 --repeat 1 --window 2ms".split(' '))
            .args("--aggressors bandwidth:read --guard 1000,100,100,100".split(' '))
            .args(words.split(' '))
            .current_dir(desk.0.path())
            .output()
            .unwrap();
        assert!(ran.status.success(), "{ran:?}");
    };
    interfere("--out run");
    let compare = "calibrate raspberry-pi-3 --against facts.toml --compare-only --lab";
    let told = desk.json(&format!("{compare} run --json"));
    let of = |case: &str, measure: &str, column: &str| {
        let cases = told["cases"].as_array().unwrap();
        let found = cases
            .iter()
            .find(|one| one["case"] == case && one["measure"] == measure);
        found.unwrap()[column].as_f64()
    };
    for case in ["readers", "guarded"] {
        let lab = of(case, "latency_ns", "lab").unwrap();
        let model = of(case, "latency_ns", "found").unwrap();
        assert!((lab / model - 1.0).abs() < 0.1, "{case}: {lab} {model}");
        assert_eq!(
            of(case, "latency_ns", "model_to_lab"),
            Some(model / lab - 1.0)
        );
        // Three loads together.
        assert!(of(case, "load_mib_s", "lab").unwrap() > 250.0);
    }
    let lab = of("readers", "latency_ns", "lab").unwrap();
    assert_eq!(
        of("readers", "latency_ns", "lab_difference"),
        Some(lab / 500.0 - 1.0)
    );
    assert_eq!(of("writers", "latency_ns", "lab"), None);

    // With another memory it is another case.
    interfere("--out small --victim-memory 1M");
    let told = desk.refusal(&format!("{compare} run,small"));
    assert!(
        told.contains("--lab small: none of its cases is published"),
        "{told}"
    );
    let told = desk.refusal(&format!("{compare} facts.toml"));
    assert!(told.contains("--lab: facts.toml"), "{told}");
}

const MEASURED_FACTS: &str = r#"
source = "a test"

[[case]]
name = "readers"
workloads = ["latency", "bandwidth:read", "bandwidth:read", "bandwidth:read"]
published = { latency_ns = 500 }

[[case]]
name = "writers"
workloads = ["latency", "bandwidth:write"]

[[case]]
name = "guarded"
workloads = ["latency", "bandwidth:read", "bandwidth:read", "bandwidth:read"]
guard = { mib_s = [1000, 100, 100, 100] }
"#;
