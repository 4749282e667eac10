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
    let text = PI.replace("lpddr2-900", "lpddr2-1");
    let line = line_of("name = \"lpddr2-900\"");
    let why =
        format!("board.toml line {line}, memory.name: there is no memory \"lpddr2-1\"; there are ");
    assert!(faults(&text)[0].starts_with(&why), "{:?}", faults(&text));
    assert!(faults("name = ")[0].contains("board.toml line 1, syntax"));
}

#[test]
fn queues_that_limit_each_other_are_named_with_their_line() {
    for (from, to, place, why) in [
        (
            "write_low = 8",
            "write_low = 30",
            "write_low",
            "write_low: is 30: has to be from 0 to 23",
        ),
        (
            "write_high = 24",
            "write_high = 40",
            "write_high",
            "write_high: is 40: has to be from 1 to 32",
        ),
        // The default of 24 is out of the range that write_depth sets.
        (
            "write_depth = 32\nrow_hit_cap = 34\nwrite_high = 24",
            "write_depth = 8\nrow_hit_cap = 34",
            "write_depth",
            "write_high: is 24: has to be from 1 to 8",
        ),
    ] {
        assert!(PI.contains(from));
        let line = line_of(place);
        assert_eq!(
            faults(&PI.replace(from, to)),
            [format!("board.toml line {line}, controller.{why}")]
        );
    }
}

const W3530: &str = include_str!("../../../machines/machines/xeon-w3530.toml");

/// The faults of a Xeon W3530 with its memory changed, and more memory in the machine's table.
fn faults_of_memory(from: &str, to: &str, bytes: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let ddr3 = include_str!("../../memories/ddr3-1333.toml");
    assert!(ddr3.contains(from));
    std::fs::write(folder.path().join("my.toml"), ddr3.replace(from, to)).unwrap();
    let text = W3530
        .replace("\"ddr3-1333\"", "\"my.toml\"")
        .replace("memory_bytes = 2147483648", bytes);
    let path = folder.path().join("board.toml");
    let error = Platform::parse(&path, &text).unwrap_err().with_causes();
    let error = error.replace(&format!("{}/", folder.path().display()), "");
    error.lines().map(str::to_owned).collect()
}

#[test]
fn a_memory_whose_burst_is_no_line_is_refused() {
    for (bits, bytes) in [(32, 32), (128, 128)] {
        let bus = format!("bus_bits = {bits}");
        assert_eq!(
            faults_of_memory("bus_bits = 64", &bus, "memory_bytes = 1073741824"),
            [format!(
                "board.toml line 11, memory.name: a burst of DDR3-1333 moves {bytes} bytes: \
                 bus_bits / 8 x burst_length has to be a line, 64 bytes"
            )]
        );
    }
}

/// Each message of a chain has its own text only.
#[test]
fn a_memory_file_that_is_wrong_or_missing_is_told_once() {
    let text = W3530.replace("ddr3-1333", "none.toml");
    let error = Platform::parse(Path::new("board.toml"), &text).unwrap_err();
    assert_eq!(
        error.with_causes(),
        "board.toml line 11, memory.name: reading none.toml: No such file or directory (os error 2)"
    );
    let memory = "memory_bytes = 2147483648";
    let told = faults_of_memory("bus_bits = 64", "bus_bits = 65", memory);
    let why = "board.toml line 11, memory.name: my.toml line 16, organisation.bus_bits: is 65: ";
    assert!(told.len() == 1 && told[0].starts_with(why), "{told:?}");
    let error = PlatformError::from(ControllerError::Range {
        name: "write_high",
        found: 40,
        min: 1,
        max: 32,
    });
    assert_eq!(
        error.with_causes(),
        "controller: write_high is 40: has to be from 1 to 32"
    );
}

#[test]
fn more_memory_than_the_memory_has_is_refused() {
    let line = W3530
        .lines()
        .position(|line| line.starts_with("memory_bytes"));
    let line = line.unwrap() + 1;
    let told = faults_of_memory("rows = 32768", "rows = 16384", "memory_bytes = 2147483648");
    assert_eq!(
        told,
        [format!(
            "board.toml line {line}, machine.memory_bytes: is 2147483648: has to be at most \
             1073741824, the size of its memory"
        )]
    );
    // Two channels have twice as much.
    let two = PI
        .replace("\"lpddr2-900\"", "\"lpddr2-900\"\nchannels = 2")
        .replace("memory_bytes = 1073741824", "memory_bytes = 2147483648");
    assert!(Platform::parse(Path::new("board.toml"), &two).is_ok());
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

/// The requests of every platform's cores are addresses of its memory.
#[test]
fn what_a_platform_requests_is_replayed_on_its_memory() {
    for name in names() {
        let platform = Platform::find(name).unwrap();
        let memory = platform.memory().unwrap();
        let mut requests = Vec::new();
        let workloads: Vec<_> = ["latency", "bandwidth:write"]
            .map(|workload| platform.workload(workload, 8 << 20, 1).unwrap())
            .into();
        let hear = |request| requests.push(request);
        let mut machine = platform.heard_machine(workloads, None, 1, hear).unwrap();
        machine.advance(200_000_000);
        drop(machine);
        let capacity = memory.organisation.capacity_bytes();
        assert!(requests.iter().all(|request| request.address < capacity));
        let count = requests.len() as u64;
        assert!(count > 500, "{name}: {count}");
        let mut trace = requests.into_iter().map(Ok);
        let replay =
            crate::replay::replay(&memory, &platform.controller, &mut trace, true).unwrap();
        assert_eq!(replay.reads + replay.writes, count, "{name}");
        assert_eq!(replay.check.unwrap().violation_count, 0, "{name}");
    }
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
