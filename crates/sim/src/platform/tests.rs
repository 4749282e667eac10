// SPDX-License-Identifier: MIT OR Apache-2.0
//! Platform files: those that come with the program, and invalid ones.

use super::*;
use crate::calibrate::may_be_fitted;
use crate::cases::{Case, Facts, Measure};

const PI: &str = include_str!("../../../machines/machines/raspberry-pi-3.toml");

fn faults(text: &str) -> Vec<String> {
    match Platform::parse(Path::new("board.toml"), text) {
        Err(error) => error.to_string().lines().map(str::to_owned).collect(),
        Ok(_) => panic!("taken:\n{text}"),
    }
}

fn line_of(word: &str) -> usize {
    let at = PI.find(word).unwrap();
    PI[..at].matches('\n').count() + 1
}

#[test]
fn every_platform_can_be_built_and_written_down() {
    for name in names() {
        let platform = Platform::find(name).unwrap();
        let text = toml::to_string(&platform).unwrap();
        let back = Platform::parse(Path::new(name), &text).unwrap();
        assert_eq!(toml::to_string(&back).unwrap(), text);
        platform.machine(Vec::new(), None, 1).unwrap();
        let capacity = platform.memory().unwrap().organisation.capacity_bytes();
        assert!(
            platform.machine.memory_bytes <= capacity,
            "{name}: {capacity}"
        );
    }
}

/// A fitted platform's counters can be modelled as before.
#[test]
fn a_platform_that_is_written_down_keeps_its_counters() {
    let folder = tempfile::tempdir().unwrap();
    for (name, counted) in [("raspberry-pi-3", true), ("raspberry-pi-4", false)] {
        let platform = Platform::find(name).unwrap();
        let changed = platform.with("machine.core.mshrs", 4);
        let path = folder.path().join(format!("{name}.toml"));
        std::fs::write(&path, changed.to_toml()).unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(Platform::find(path).unwrap().machine, changed.machine);
        let geometry = memwarden_cachesim::platforms::named(path).ok();
        let expected = memwarden_cachesim::platforms::named(name).ok();
        assert_eq!(geometry, expected);
        assert_eq!(geometry.is_some(), counted);
    }
}

#[test]
fn a_machine_with_counters_only_is_answered_with_those_that_can_be_simulated() {
    assert_eq!(
        Platform::find("i5-2467m").unwrap_err().to_string(),
        "i5-2467m: the file has no [memory] and no times, which a simulation needs; these platforms have them: \
         raspberry-pi-3, raspberry-pi-4, xeon-6426y, xeon-w3530"
    );
}

#[test]
fn lines_of_another_size_are_refused() {
    let text = PI.replace("line_bytes = 64", "line_bytes = 32");
    let line = line_of("line_bytes = 64");
    assert_eq!(
        faults(&text),
        [format!(
            "board.toml line {line}, machine.line_bytes: has to be 64"
        )]
    );
}

#[test]
fn an_unknown_platform_is_answered_with_the_known_ones() {
    let error = Platform::find("raspberry-pi-2").unwrap_err().to_string();
    assert!(
        error.contains("raspberry-pi-3") && error.contains("or give a file"),
        "{error}"
    );
    let error = Platform::find("./none.toml").unwrap_err().to_string();
    assert!(error.contains("./none.toml"), "{error}");
}

#[test]
fn an_emulated_cpu_needs_an_instruction_cache_of_whole_lines() {
    let table = "[machine.core.l1i]\nsize_bytes = 32768\nways = 2\nprefetch_lines = 1\n";
    assert!(PI.contains(table));
    let found = format!("{:?}", faults(&PI.replace(table, "")));
    assert!(
        found.contains("needs a table [machine.core.l1i]"),
        "{found}"
    );
    let odd = table.replace("32768", "32769");
    let found = format!("{:?}", faults(&PI.replace(table, &odd)));
    assert!(
        found.contains("a multiple of 2 ways of 64 bytes"),
        "{found}"
    );
}

#[test]
fn every_wrong_field_is_named_with_its_line_and_range() {
    let text = PI
        .replace("cores = 4", "cores = 40")
        .replace("in_order = true", "in_order = 1")
        .replace("ways = 16", "wags = 16")
        .replace("into = \"l1d\"", "into = \"l3\"")
        .replace("chase_ps = 833", "chase_ps = -1");
    let found = faults(&text);
    let expected = [
        (
            "cores = 4",
            "machine.cores: has to be a whole number from 1 to 32",
        ),
        ("in_order", "machine.core.in_order: has to be true or false"),
        (
            "into",
            "machine.core.prefetcher.into: has to be one of l1d, l2",
        ),
        (
            "ways = 16",
            "machine.shared.cache.wags: is not known; known are size_bytes, ways, hit_ps",
        ),
        (
            "chase_ps",
            "work.chase_ps: has to be a whole number from 0 to 1000000",
        ),
    ];
    for (word, why) in expected {
        let line = format!("board.toml line {}, {why}", line_of(word));
        assert!(found.contains(&line), "{line}\n{found:#?}");
    }
    assert!(
        found
            .iter()
            .any(|line| line.contains("machine.shared.cache.ways: is missing"))
    );
}

#[test]
fn what_does_not_go_together_is_named() {
    let text = PI.replace("size_bytes = 524288", "size_bytes = 524289");
    let why = format!(
        "board.toml line {}, machine.shared.cache.size_bytes: has to be a multiple",
        line_of("size_bytes = 524288")
    );
    assert!(faults(&text)[0].starts_with(&why), "{:?}", faults(&text));
    for parts in ["[4, 4, 4]", "[4, 4, 4, 5]"] {
        let text = PI.replace(
            "inclusive = ",
            &format!("partitions = {parts}\ninclusive = "),
        );
        let why = "machine.shared.partitions: has to be a number of ways for each of the 4 cores, \
                   at most the cache's 16 together";
        assert!(faults(&text)[0].contains(why), "{:?}", faults(&text));
    }
    let text = PI.replace("inclusive = ", "partitions = [0, 4]\ninclusive = ");
    assert!(faults(&text)[0].contains("partitions: has to be a list of whole numbers from 1"));
    let text = PI.replace(
        "\"controller.row_hit_cap\" = [",
        "\"controller.row_hit_cap\" = [60, 64]\n#",
    );
    let (line, found) = (line_of("\"controller.row_hit_cap\" ="), faults(&text));
    assert!(
        found[0].starts_with(&format!("board.toml line {line}, controller.row_hit_cap: "))
            && found[0].contains("has to be from 60 to 64"),
        "{found:?}"
    );
    let text = PI.replace("\"controller.row_hit_cap\"", "\"controller.row_hits\"");
    assert!(faults(&text)[0].contains("is not a number of a platform"));
    let text = PI.replace("write_low = 8", "write_low = 30");
    assert!(
        faults(&text)[0].starts_with("controller: write_low is 30"),
        "{:?}",
        faults(&text)
    );
    let text = PI.replace("lpddr2-900", "lpddr2-1");
    assert!(faults(&text)[0].contains("there is no memory \"lpddr2-1\""));
    assert!(faults("name = ")[0].contains("board.toml line 1, syntax"));
}

#[test]
fn channels_that_no_address_bit_chooses_are_refused() {
    let name = "name = \"lpddr2-900\"";
    let line = line_of(name) + 1;
    for channels in [3, 6, 12, 0, 32] {
        let text = PI.replace(name, &format!("{name}\nchannels = {channels}"));
        assert_eq!(
            faults(&text),
            [format!(
                "board.toml line {line}, memory.channels: has to be one of 1, 2, 4, 8, 16"
            )]
        );
    }
    for channels in [1, 2, 4, 8, 16] {
        let text = PI.replace(name, &format!("{name}\nchannels = {channels}"));
        assert!(Platform::parse(Path::new("board.toml"), &text).is_ok());
    }
    let pi = Platform::find("raspberry-pi-3").unwrap();
    let mut memory = pi.memory().unwrap();
    memory.organisation.channels = 3;
    let error = Controller::new(&memory, &pi.controller).err().unwrap();
    assert_eq!(
        error.to_string(),
        "channels is 3: has to be a power of two from 1 to 64"
    );
}

#[test]
fn a_number_is_read_and_changed_by_its_path() {
    let pi = Platform::find("raspberry-pi-3").unwrap();
    let changed = pi.with("machine.shared.cache.ways", 8);
    assert_eq!(changed.get("machine.shared.cache.ways"), Some(8));
    assert_eq!(changed.machine.shared.cache.ways, 8);
    assert_eq!(pi.get("machine.shared.cache"), None);
    assert_eq!(pi.get("nothing"), None);
}

#[test]
fn a_workload_that_is_not_modelled_is_refused() {
    let pi = Platform::find("raspberry-pi-3").unwrap();
    for name in ["bandwidth:fresh-pages", "bandwidth:ntwrite", "stress", ""] {
        let error = pi.workload(name, 1 << 20, 1).unwrap_err().to_string();
        assert!(error.contains("bandwidth:triad"), "{error}");
    }
}

fn figure(facts: &Facts, platform: &Platform, name: &str, measure: Measure) -> (f64, f64) {
    let named = |case: &&Case| case.name == name;
    let case = facts.cases.iter().find(named).unwrap();
    let found = case.run(platform, 1).unwrap()[&measure];
    (
        found,
        case.published.get(&measure).copied().unwrap_or(f64::NAN),
    )
}

/// The spec's tolerance for the figures to which the platform file was fitted.
#[test]
fn the_pi_alone_and_beside_readers_is_as_it_was_published() {
    let pi = Platform::find("raspberry-pi-3").unwrap();
    let facts = Facts::find("raspberry-pi-3").unwrap();
    for name in [
        "latency alone",
        "latency, 3x bandwidth:read",
        "latency, 3x bandwidth:write",
    ] {
        let (found, published) = figure(&facts, &pi, name, Measure::LatencyNs);
        assert!(
            (found / published - 1.0).abs() <= 0.1,
            "{name}: {found} for {published} ns"
        );
    }
}

/// A server that is throttled at each tick has no share by the tick, however long it runs.
#[test]
fn the_tick_does_not_see_what_is_throttled_when_it_comes() {
    let pi = Platform::find("raspberry-pi-3").unwrap();
    let text = |guard: &str| {
        format!(
            "source = \"x\"\n[[case]]\nname = \"a\"\nworkloads = [\"latency\", \"bandwidth:read\"]\n{guard}\n"
        )
    };
    let shares = |guard: &str| {
        let facts = Facts::parse(Path::new("facts.toml"), &text(guard)).unwrap();
        let figures = facts.cases[0].run(&pi, 1).unwrap();
        [
            figures[&Measure::LoadCpuShare],
            figures[&Measure::LoadTickShare],
        ]
    };
    assert_eq!(shares(""), [1.0, 1.0]);
    let [cpu, tick] = shares("guard = { mib_s = [0, 400] }");
    assert!(cpu > 0.2 && tick < 0.1, "{cpu} {tick}");
}

#[test]
fn a_guarded_case_is_fitted_to_only_where_it_says_so() {
    let facts = Facts::find("xeon-w3530").unwrap();
    let fitted: Vec<(&str, Measure)> = facts
        .cases
        .iter()
        .filter(|case| case.guard.is_some())
        .flat_map(|case| Measure::ALL.map(|measure| (case, measure)))
        .filter(|(case, measure)| may_be_fitted(case, *measure))
        .map(|(case, measure)| (case.name.as_str(), measure))
        .collect();
    assert_eq!(
        fitted,
        [("task, xserver, guard 600,600", Measure::LoadTickShare)]
    );
}

#[test]
fn facts_that_make_no_sense_are_named() {
    let refused = |text: &str| {
        let error = Facts::parse(Path::new("facts.toml"), text);
        error.unwrap_err().to_string()
    };
    let head = "source = \"x\"\n[[case]]\nname = \"a\"\n";
    for (text, why) in [
        ("workloads = [\"idle\"]", "one at least has to do something"),
        ("workloads = [\"task\"]", "has to have a [case.task]"),
        (
            "workloads = [\"latency\"]\npublished = { latency_ns = -1.0 }",
            "has to be above 0",
        ),
        (
            "workloads = [\"latency\"]\npublished = { miss_share = 28.0 }",
            "has to be from 0 to 1",
        ),
        (
            "workloads = [\"latency\"]\nfit = [\"latency_ns\"]",
            "fit: latency_ns has to be published",
        ),
        (
            "workloads = [\"latency\"]\npublished = { latency = 1.0 }",
            "latency_ns",
        ),
        (
            "workloads = [\"latency\"]\nguard = { mib_s = [] }",
            "mib_s for a core",
        ),
        ("workloads = 3", "line 4"),
        (
            "workloads = [\"latency\"]\nmemory_bytes = 1000000000000",
            "memory_bytes has to be from 4096 to 1073741824",
        ),
        (
            "workloads = [\"latency\"]\nguard = { mib_s = [9], period_us = 9000000 }",
            "period_us from 1 to 1000000",
        ),
        (
            "workloads = [\"task\"]\ntask = { frame_bytes = 64, period_us = 9, deadline_us = 10, jobs = 1 }",
            "task.deadline_us has to be from 1 to 9",
        ),
        (
            "workloads = [\"task\"]\ntask = { frame_bytes = 64, period_us = 9, deadline_us = 9, jobs = 999999 }",
            "task.jobs has to be from 1 to 100000",
        ),
        // The line is the second case's, not the first one's.
        (
            "workloads = [\"latency\"]\n[[case]]\nname = \"a\"\nworkloads = [\"idle\"]",
            "facts.toml line 5: case \"a\": workloads",
        ),
    ] {
        let error = refused(&format!("{head}{text}\n"));
        assert!(
            error.contains(why) && error.starts_with("facts.toml line "),
            "{error}"
        );
    }
}
