// SPDX-License-Identifier: MIT OR Apache-2.0
//! What commands print with `--json` has the form that `memwarden schema` gives.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Commands that run on every machine, in an empty folder, in this order.
const LINES: &[(&str, &str)] = &[
    ("latency", "-m 64 -i 1 --json"),
    ("bandwidth", "-m 64 -t 0.1 --interval 20ms --json"),
    (
        "periodic",
        "-m 64 --jobs 3 --period 10ms --deadline 1ns --tell-miss --json",
    ),
    ("jobs", "--jobs 3 --json -- true"),
    ("doctor", "--json"),
    ("maps", "--json"),
    ("guard events", "--json"),
    ("top", "--backend null --interval 20ms --count 2 --json"),
    ("sim memories", "--json"),
    ("sim platforms", "--json"),
    ("sim check", "ddr4-2400 --commands 1K --json"),
    ("sim replay", "a.trace --check --json"),
    (
        "mmap",
        "--size 1M --outer 4 --model-outer 4 --repeat 2 --flags shared --counters sim --platform i5-2467m --out mmap --json",
    ),
    (
        "copy latency",
        "--device null --sizes 1 --repeat 9 --out copy --json",
    ),
    (
        "copy bandwidth",
        "--device null --sizes 1K --operations 9 --repeat 2 --out rate --json",
    ),
    (
        "trace copies",
        "--device null --for 10ms --out trace --json",
    ),
    (
        "interfere",
        "--on sim:raspberry-pi-3 --window 100us --repeat 2 --aggressors bandwidth:write --out sim --json",
    ),
    ("report", "sim --json"),
    ("report", "sim copy --json"),
    ("report", "--compare sim sim --json"),
];

fn memwarden(folder: &Path, words: &[&str]) -> Vec<u8> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memwarden"));
    let output = command.args(words).current_dir(folder).output().unwrap();
    // The doctor's exit code is its verdict.
    assert!(
        output.status.success() || words == ["doctor", "--json"],
        "{words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// The schema of what a command prints.
fn schema(folder: &Path, command: &str) -> Value {
    let printed = memwarden(folder, &["schema", command]);
    let mut schema: Value = serde_json::from_slice(&printed).unwrap();
    // An experiment has that of its settings, too.
    match schema.get_mut("summary") {
        Some(summary) => summary.take(),
        None => schema,
    }
}

#[test]
fn what_is_printed_matches_its_schema() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let generate = "sim generate --pattern stream --count 1K -o a.trace";
    memwarden(folder, &generate.split(' ').collect::<Vec<_>>());
    for (command, options) in LINES {
        let words: Vec<&str> = command.split(' ').chain(options.split(' ')).collect();
        let printed = memwarden(folder, &words);
        let schema = schema(folder, command);
        let validator = jsonschema::validator_for(&schema).unwrap();
        let mut documents = 0;
        for document in serde_json::Deserializer::from_slice(&printed).into_iter::<Value>() {
            let document = document.unwrap_or_else(|error| panic!("{words:?}: {error}"));
            if let Err(error) = validator.validate(&document) {
                panic!("{words:?}: {error} at {}", error.instance_path());
            }
            documents += 1;
        }
        assert!(documents > 0, "{words:?}");
        assert!(!validator.is_valid(&Value::Null), "{words:?}");
    }
}

#[test]
fn every_listed_command_has_a_schema() {
    let folder = Path::new(".");
    let list = String::from_utf8(memwarden(folder, &["schema"])).unwrap();
    let mut seen = 0;
    for line in list.lines().skip(1) {
        let command = line.split("  ").next().unwrap().trim();
        let schema = schema(folder, command);
        assert!(jsonschema::meta::is_valid(&schema), "{command}");
        seen += 1;
    }
    assert!(seen > 30, "{list}");
}
