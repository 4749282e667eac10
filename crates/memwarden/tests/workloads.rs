// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of `latency` and `bandwidth` and their expected output.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const MEMWARDEN: &str = env!("CARGO_BIN_EXE_memwarden");

fn memwarden(arguments: &str) -> Output {
    Command::new(MEMWARDEN)
        .args(arguments.split_whitespace())
        .output()
        .unwrap()
}

/// Standard output of a successful run.
fn output(arguments: &str) -> String {
    let output = memwarden(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The last line, which is the result.
fn json(arguments: &str) -> Value {
    serde_json::from_str(output(arguments).lines().last().unwrap()).unwrap()
}

/// True if `line` matches `pattern`, in which `#` stands for a number and `.##` for
/// two decimals.
fn matches(line: &str, pattern: &str) -> bool {
    let mut rest = line;
    for (part, text) in pattern.split('#').enumerate() {
        if part > 0 {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            if digits == 0 {
                return false;
            }
            rest = &rest[digits..];
        }
        match rest.strip_prefix(text) {
            Some(after) => rest = after,
            None => return false,
        }
    }
    rest.is_empty()
}

fn assert_last_lines(text: &str, patterns: [&str; 3]) {
    let lines: Vec<&str> = text.lines().collect();
    for (line, pattern) in lines[lines.len() - 3..].iter().zip(patterns) {
        assert!(matches(line, pattern), "`{line}` is not `{pattern}`");
    }
}

const LATENCY: [&str; 3] = [
    "duration # us",
    "average #.# ns | bandwidth #.# MB (#.# MiB)/s",
    "readsum  #",
];

/// The text's CPU number is a pattern, too.
const BANDWIDTH: [&str; 3] = [
    "g_nread(bytes read) = #",
    "elapsed = #.# sec ( # usec )",
    "CPU#: B/W = #.# MB/s | CPU#: average = #.# ns",
];

#[test]
fn latency_ends_with_the_lines_that_scripts_read() {
    for arguments in [
        "latency -m 64 -i 3",
        "latency -m 64 -i 3 -s -c 0",
        "latency -m 64 --mlp 4",
    ] {
        assert_last_lines(&output(arguments), LATENCY);
    }
}

#[test]
fn the_readsum_is_what_it_must_be() {
    // 100 times the sum of 0 to 65535, the traditional result of a buffer of 4096 KB.
    let text = output("latency -m 4096");
    assert_eq!(text.lines().last(), Some("readsum  214745088000"));
}

#[test]
fn bandwidth_ends_with_the_lines_that_scripts_read() {
    for arguments in [
        "bandwidth -m 64 -i 3 -t 0",
        "bandwidth -m 64 -i 3 -a write -c 0",
        "bandwidth --fresh-pages -m 4M -i 1",
        "bandwidth -m 64 -t 0.01 --interval 1ms",
    ] {
        assert_last_lines(&output(arguments), BANDWIDTH);
    }
}

#[test]
fn the_program_answers_to_its_two_other_names() {
    let directory = tempfile::tempdir().unwrap();
    for (name, arguments, lines) in [
        ("latency", "-m 64 -i 1 -c 0", LATENCY),
        ("bandwidth", "-m 64 -i 1 -c 0", BANDWIDTH),
    ] {
        let program = directory.path().join(name);
        symlink(MEMWARDEN, &program).unwrap();
        let output = Command::new(&program)
            .args(arguments.split(' '))
            .output()
            .unwrap();
        assert!(output.status.success());
        assert_last_lines(&String::from_utf8(output.stdout).unwrap(), lines);
    }
}

#[test]
fn json_repeats_what_was_asked_and_what_was_done() {
    let result = json("bandwidth -m 1M -i 4 -t 0 -a copy -c 0 --json");
    assert_eq!(result["workload"], "bandwidth");
    assert_eq!(result["access"], "copy");
    assert_eq!(result["cpu"], 0);
    assert_eq!(result["pinned"], true);
    assert_eq!(result["buffer_bytes"], 1 << 20);
    // Two arrays of half the buffer, every line counted in each.
    assert_eq!(result["bytes"], 4 << 20);
    assert_eq!(result["pages"], Value::Null);
    for figure in ["mib_s", "ns_per_line", "elapsed_ns"] {
        assert!(result[figure].as_f64().unwrap() > 0.0, "{figure}");
    }
    for figure in [
        "clock_read_ns",
        "clock_reads",
        "loop_ns_per_touch",
        "clock_share",
    ] {
        assert!(
            result["measuring_cost"][figure].as_f64().unwrap() > 0.0,
            "{figure}"
        );
    }

    let result = json("latency -m 1M -i 2 --mlp 2 --json");
    assert_eq!(result["workload"], "latency");
    assert_eq!(result["mlp"], 2);
    assert_eq!(result["pinned"], false);
    assert_eq!(result["loads"], 2 * 16384);
    assert_eq!(result["readsum"], 2_u64 * (16384 * 16383 / 2));
    assert!(result["latency_ns"].as_f64().unwrap() > 0.0);
    assert!(!result["notes"].as_array().unwrap().is_empty());
}

#[test]
fn a_fresh_page_costs_a_fault() {
    let result = json("bandwidth --fresh-pages -m 8M -i 2 -t 0 --json");
    let (pages, faults) = (
        result["pages"].as_u64().unwrap(),
        result["page_faults"].as_u64().unwrap(),
    );
    assert_eq!(result["bytes"], 16 << 20);
    // An independent source: the kernel's count; a few faults are the program's own.
    assert!(
        (pages..pages + 64).contains(&faults),
        "{faults} faults for {pages} pages"
    );
}

#[test]
fn progress_comes_before_the_result() {
    let text = output("bandwidth -m 64 -t 0.02 --interval 1ms --json");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (result, progress) = lines.split_last().unwrap();
    assert!(!progress.is_empty());
    let bytes: u64 = progress
        .iter()
        .map(|line| line["progress"]["bytes"].as_u64().unwrap())
        .sum();
    assert!(bytes <= result["bytes"].as_u64().unwrap());
}

/// Starts `arguments` with `--ready-fd 3` on a pipe, waits for the line, sends
/// the signal and returns the output.
fn stopped_by(signal: &str, arguments: &str) -> Output {
    let mut child = Command::new("sh")
        .args([
            "-c",
            "exec 3>&2 2>/dev/null; exec \"$0\" \"$@\" --ready-fd 3",
            MEMWARDEN,
        ])
        .args(arguments.split(' '))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    let kill = Command::new("sh")
        .args(["-c", &format!("kill -{signal} {}", child.id())])
        .status();
    assert!(kill.unwrap().success());
    child.wait_with_output().unwrap()
}

#[test]
fn signals_end_the_run_and_print_its_result() {
    for (signal, code) in [("TERM", 0), ("INT", 130), ("ALRM", 0)] {
        for (arguments, lines) in [
            ("bandwidth -m 64 -t 0 -a write", BANDWIDTH),
            ("bandwidth -t 0 --fresh-pages", BANDWIDTH),
            ("bandwidth -m 64 -t 0 --mb 1", BANDWIDTH),
        ] {
            let output = stopped_by(signal, arguments);
            assert_eq!(output.status.code(), Some(code), "{signal} {arguments}");
            assert_last_lines(&String::from_utf8(output.stdout).unwrap(), lines);
        }
    }
    let result = stopped_by("TERM", "bandwidth -m 64 -t 0 --json");
    let result: Value = serde_json::from_slice(&result.stdout).unwrap();
    assert!(result["bytes"].as_u64().unwrap() > 0);
}

#[test]
fn bad_input_gets_a_clear_line_and_no_figure() {
    for (arguments, code, says) in [
        ("latency -m 0", 2, "a size cannot be 0"),
        ("latency -m -1", 2, "a size cannot be negative"),
        ("latency -m much", 2, "unknown unit"),
        ("latency -m 12Q", 2, "unknown unit"),
        ("latency -m 99999999999999999999", 2, "too large a number"),
        ("latency -m 18014398509481984", 2, "too large a size"),
        ("latency -m 999999G", 1, "larger than"),
        (
            "latency -c 8191",
            1,
            "CPU 8191 is not online: this machine has CPUs 0",
        ),
        ("latency -c -1", 2, "unexpected argument"),
        ("latency -i -1", 2, "unexpected argument"),
        ("latency -i many", 2, "invalid"),
        ("latency -p 20", 2, "20 is not in -20..=19"),
        ("latency -p -21", 2, "-21 is not in -20..=19"),
        ("latency -r 0", 2, "0 is not in 1..=99"),
        ("latency -r 100", 2, "100 is not in 1..=99"),
        ("latency --mlp 0", 2, "0 is not in 1..=32"),
        ("latency --mlp 33", 2, "33 is not in 1..=32"),
        (
            "latency -m 1 --mlp 17",
            1,
            "16 lines are too few for 17 chases",
        ),
        (
            "latency --stride 100",
            1,
            "stride 100 is not a multiple of the 64-byte line",
        ),
        ("latency --stride 0", 2, "cannot be 0"),
        ("latency -m 1 --stride 4096", 1, "smaller than the stride"),
        ("latency --bank-mask bank", 2, "not a mask of address bits"),
        ("latency --bank-mask 0x20", 1, "bank bits are bit 6 and up"),
        ("latency --bank-mask 0", 1, "bank bits are bit 6 and up"),
        (
            "latency --ready-fd 77",
            1,
            "--ready-fd: cannot use file descriptor 77: Bad file descriptor",
        ),
        (
            "bandwidth -a scribble",
            2,
            "possible values: read, compare, write, copy, triad, ntwrite, readwrite",
        ),
        ("bandwidth -t -1", 2, "a time cannot be negative"),
        ("bandwidth -t soon", 2, "unknown unit"),
        ("bandwidth -m 64 --mb 0", 2, "a rate cannot be 0"),
        ("bandwidth --mb -5", 2, "a rate cannot be negative"),
        ("bandwidth --mb nan", 2, "not a number"),
        ("bandwidth --mb fast", 2, "not a number"),
        ("bandwidth --interval 1us", 2, "an interval is at least 1ms"),
        ("bandwidth --fresh-pages -a write", 2, "cannot be used with"),
        ("bandwidth --fresh-pages -x", 2, "cannot be used with"),
        ("bandwidth -a copy --bank-mask 0x2000", 1, "several arrays"),
    ] {
        let output = memwarden(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments}: {errors}");
        assert!(errors.contains(says), "{arguments}: {errors}");
        assert!(output.stdout.is_empty(), "{arguments}");
        if code == 1 {
            assert_eq!(errors.lines().count(), 1, "{arguments}: {errors}");
            assert!(errors.starts_with("memwarden: "), "{errors}");
        }
    }
}

#[test]
fn huge_pages_that_are_not_there_are_said_so() {
    let free = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    // More than this machine has free, whatever that is; if the kernel reports no
    // free memory the message is another, but still one line.
    let free: u64 = std::fs::read_to_string(free).map_or(0, |text| text.trim().parse().unwrap());
    let output = memwarden(&format!("latency -x -m {}M", (free + 8) * 2));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("huge page"), "{errors}");
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = Command::new(MEMWARDEN)
        .args(["latency", "-m", "64", "-i", "1"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("cannot write to standard output")
    );
}

#[test]
fn the_help_describes_every_access() {
    let help = output("bandwidth --help");
    for name in [
        "read",
        "compare",
        "write",
        "copy",
        "triad",
        "ntwrite",
        "readwrite",
    ] {
        assert!(help.contains(&format!("- {name}:")), "{name} in {help}");
    }
}
