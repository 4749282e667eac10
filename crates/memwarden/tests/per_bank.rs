// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets per bank, as a user types them.
#![cfg(feature = "host")]

use std::process::{Command, Output};

use serde_json::Value;

const MEMWARDEN: &str = env!("CARGO_BIN_EXE_memwarden");

fn run(folder: &tempfile::TempDir, words: &str) -> Output {
    Command::new(MEMWARDEN)
        .args(words.split_whitespace())
        .current_dir(folder.path())
        .output()
        .unwrap()
}

fn summary(words: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&folder, words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The message of a refusal, which leaves nothing behind.
fn refusal(words: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&folder, words);
    assert!(!output.status.success(), "{words} was taken");
    assert!(output.stdout.is_empty(), "{words}");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "{words}");
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told.lines().count(), 1, "{told}");
    told
}

fn case<'a>(summary: &'a Value, name: &str) -> &'a Value {
    let mut cases = summary["cases"].as_array().unwrap().iter();
    cases.find(|case| case["name"] == name).unwrap()
}

fn load_mib_s(case: &Value) -> f64 {
    let loads = case["aggressors"].as_array().unwrap().iter();
    loads.map(|load| load["mib_s"].as_f64().unwrap()).sum()
}

const INTERFERE: &str = "interfere --on sim:raspberry-pi-3 --repeat 1 --window 5ms --settle 2ms --json \
                         --victim latency:bank=0 --victim-memory 4M --cpus 1";

#[test]
fn an_attack_on_a_bank_is_held_and_spread_traffic_gets_the_budget_of_every_bank() {
    let (attack, spread) = ("bandwidth:write:bank=0", "bandwidth:write");
    let summary = summary(&format!(
        "{INTERFERE} --aggressors {spread},{attack} --aggressor-memory 4M --guard max,30 --guard max,30+per-bank"
    ));
    let of = |kind: &str, guard: &str| case(&summary, &format!("{kind} x1, guard max,30{guard}"));

    let (plain, per_bank) = (of(attack, ""), of(attack, "+per-bank"));
    let held = load_mib_s(per_bank);
    assert!((28.5..=30.0).contains(&held), "{held}");
    let ratio = load_mib_s(plain) / held;
    assert!((ratio - 1.0).abs() < 0.03, "{ratio}");
    let slowdown = |case: &Value| case["slowdown"].as_f64().unwrap();
    assert!((slowdown(per_bank) / slowdown(plain) - 1.0).abs() < 0.02);

    let free = load_mib_s(of(spread, "+per-bank"));
    assert!(free > 3.0 * load_mib_s(of(spread, "")), "{free}");
    assert!(free <= 8.0 * 30.0, "8 banks: {free}");

    for name in [attack, spread] {
        let case = of(name, "+per-bank");
        assert_eq!(case["guard"]["per_bank"], true);
        let core = case["cores"].as_array().unwrap().iter();
        let core = core.clone().find(|core| core["cpu"] == 1).unwrap();
        // 30 MiB/s are 491 lines in 1 ms.
        assert_eq!(core["budget_events"], 491);
        assert_eq!(core["largest_period_events"], 491, "in one bank");
        assert_eq!(core["held"], true);
        assert!(core["held_back_share"].as_f64().unwrap() > 0.1);
        assert_eq!(core["throttled_share"], Value::Null);
        let load = &case["aggressors"][0];
        assert_eq!(load["held_back_share"], core["held_back_share"]);
    }
    for key in ["per_bank", "held_back_share"] {
        let plain = serde_json::to_string(of(spread, "")).unwrap();
        assert!(!plain.contains(key), "{plain}");
    }
}

#[test]
fn a_task_keeps_its_deadline_beside_a_load_with_budgets_per_bank() {
    let summary = summary(
        "realtime --on sim:raspberry-pi-3 --frame 256K --period 4ms --deadline 3ms --jobs 3 --load bandwidth:write \
         --load-memory 4M --guard max,30 --guard max,30+per-bank --json",
    );
    let cases = summary["cases"].as_array().unwrap();
    let load = |per_bank: bool| {
        let mut loaded = cases.iter().filter(|case| {
            case["guard"]["per_bank"].as_bool().unwrap_or(false) == per_bank
                && !case["aggressors"].as_array().unwrap().is_empty()
        });
        &loaded.next().unwrap()["aggressors"][0]
    };
    let mib_s = |per_bank| load(per_bank)["mib_s"].as_f64().unwrap();
    assert!(mib_s(true) > 3.0 * mib_s(false));
    assert!(load(true)["held_back_share"].as_f64().unwrap() > 0.1);
    assert!(load(false)["throttled_share"].as_f64().unwrap() > 0.1);
}

#[test]
fn only_a_model_has_budgets_per_bank_and_workloads_in_a_bank() {
    for words in [
        "interfere --guard 100,100+per-bank",
        "interfere --on lab --guard 100,100+per-bank",
        "interfere --long-case 5s --long-guard 100,100+per-bank",
        "interfere --backend user --guard 100,100+per-bank",
        "interfere --backend module --guard 100,100+per-bank",
        "realtime --guard 100,100+per-bank",
        "realtime --on lab --guard 100,100+per-bank",
    ] {
        let told = refusal(words);
        assert!(
            told.contains("guard `100,100+per-bank`: budgets per bank"),
            "{told}"
        );
        assert!(told.contains("leave out +per-bank, or use a model (--on sim:PLATFORM)"));
    }
    for words in [
        "interfere --victim latency:bank=0",
        "interfere --on lab --aggressors bandwidth:write:bank=0",
        "realtime --load bandwidth:read:bank=0",
    ] {
        let told = refusal(words);
        assert!(told.contains(":bank=0`"), "{told}");
        assert!(told.contains("(--on sim:PLATFORM)"), "{told}");
    }
}

#[test]
fn what_a_model_cannot_do_is_refused_with_one_line() {
    for (words, expected) in [
        (
            "--aggressors bandwidth:write:bank=8",
            "core 1's workload has bank 8, and the memory has banks 0 to 7",
        ),
        (
            "--aggressors bandwidth:write:bank=0 --aggressor-memory 256M",
            "core 1's workload wants 268435456 bytes in bank 0, and fewer are left there",
        ),
    ] {
        let told = refusal(&format!("{INTERFERE} {words}"));
        assert!(told.contains(expected), "{told}");
    }
    let folder = tempfile::tempdir().unwrap();
    let facts = "source = \"a test\"\n[[case]]\nname = \"guarded\"\nworkloads = [\"latency\", \"bandwidth:read\"]\n\
                 memory_bytes = 2097152\nguard = { mib_s = [0, 30], per_bank = true, best_effort = \"proportional\" }\n";
    std::fs::write(folder.path().join("facts.toml"), facts).unwrap();
    let compare = "sim calibrate raspberry-pi-3 --against facts.toml --compare-only --json";
    let told = String::from_utf8(run(&folder, compare).stderr).unwrap();
    assert!(
        told.contains(
            "facts.toml line 2: case \"guarded\": guard: per_bank has no proportional sharing"
        ),
        "{told}"
    );

    let spare = facts.replace("proportional", "spare");
    std::fs::write(folder.path().join("facts.toml"), spare).unwrap();
    let output = run(&folder, compare);
    assert!(output.status.success(), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cases = told["cases"].as_array().unwrap();
    let load = cases.iter().find(|one| one["measure"] == "load_mib_s");
    let load = load.unwrap()["found"].as_f64().unwrap();
    assert!(load > 60.0 && load <= 8.0 * 30.0, "{load}");
}

#[test]
fn a_workload_in_a_bank_is_recorded_there() {
    let folder = tempfile::tempdir().unwrap();
    let record = "sim record --platform raspberry-pi-3 --workload bandwidth:write:bank=3@1-2 --memory 4M \
                  --for 500us --settle 1ms -o my.trace";
    let output = run(&folder, record);
    assert!(output.status.success(), "{output:?}");
    let trace = std::fs::read_to_string(folder.path().join("my.trace")).unwrap();
    let written: Vec<u64> = trace
        .lines()
        .filter_map(|line| line.strip_prefix("W 0x")?.split(' ').next())
        .map(|address| u64::from_str_radix(address, 16).unwrap())
        .collect();
    assert!(written.len() > 500, "{}", written.len());
    // A row has 4 KiB, and consecutive rows are in consecutive banks.
    assert!(written.iter().all(|address| address >> 12 & 7 == 3));
}
