// SPDX-License-Identifier: MIT OR Apache-2.0
//! The named machines, and files of a user.

use std::fs;

use super::*;
use crate::geometry::PrefetchInto;

/// A machine with all fields of the counters' half, and none of the other's.
const MINE: &str = r#"
name = "mine"

[machine]
line_bytes = 128

[machine.core]
tlb_entries = 1024

[machine.core.l1d]
size_bytes = 65536
ways = 4

[machine.core.l2]
size_bytes = 524288
ways = 8

[machine.shared]
inclusive = false

[machine.shared.cache]
size_bytes = 10485760
ways = 20

[counters]
l1d_replacement = "random"
l2_replacement = "random"
llc_replacement = "random"
l1d_writes = "through"
adjacent_line = true
perf_events = "sandy-bridge"

[counters.dtlb]
entries = 48
ways = 48
huge = "shared"

[counters.stlb]
ways = 8
huge = { entries = 16, ways = 2 }

[counters.prefetcher]
into = "l1d"
streams = 3
trigger_steps = 2
degree = 1
distance = 4

[counters.next_line]
recent = 5

[counters.stride]
instructions = 64
largest_bytes = 1024
repeats = 3
"#;

/// The geometry of a file with this text, or its errors.
fn read(text: &str) -> std::result::Result<Geometry, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    fs::write(&path, text).unwrap();
    named(path.to_str().unwrap()).map_err(|error| {
        let folder = format!("{}/", folder.path().display());
        error.to_string().replace(&folder, "")
    })
}

/// MINE with one thing changed.
fn spoilt(from: &str, to: &str) -> String {
    assert_eq!(MINE.matches(from).count(), 1, "{from}");
    read(&MINE.replace(from, to)).unwrap_err()
}

fn line_of(word: &str) -> usize {
    MINE[..MINE.find(word).unwrap()].matches('\n').count() + 1
}

#[test]
fn every_platform_can_be_modelled_and_written_down() {
    assert_eq!(names(), ["i5-2467m", "raspberry-pi-3", "xeon-w3530"]);
    for name in names() {
        let geometry = named(name).unwrap();
        let text = serde_json::to_string(&geometry).unwrap();
        assert_eq!(serde_json::from_str::<Geometry>(&text).unwrap(), geometry);
    }
}

/// Their files say it in numbers, so that this machine's are not theirs by accident.
#[test]
fn the_intels_have_the_documented_prefetchers() {
    let i5 = named("i5-2467m").unwrap();
    assert_eq!(i5.prefetcher, Some(Prefetcher::streamer()));
    assert_eq!(i5.next_line, Some(NextLine::dcu()));
    let xeon = named("xeon-w3530").unwrap();
    assert_eq!(xeon.prefetcher, Some(Prefetcher::streamer()));
    assert_eq!((xeon.next_line, xeon.adjacent_line), (None, false));
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    assert_eq!(
        named("i5").unwrap_err().to_string(),
        "there is no platform \"i5\"; there are i5-2467m, raspberry-pi-3, xeon-w3530, or give a file"
    );
}

#[test]
fn a_machine_without_counters_is_answered_with_those_that_have_them() {
    assert_eq!(
        named("xeon-6426y").unwrap_err().to_string(),
        "xeon-6426y: the file has no [counters], which the modelled counters need; these platforms have one: i5-2467m, \
         raspberry-pi-3, xeon-w3530"
    );
    let error = named("./none.toml").unwrap_err().to_string();
    assert!(
        error.starts_with("cannot read ./none.toml: No such file"),
        "{error}"
    );
}

#[test]
fn a_file_says_all_that_the_model_needs() {
    let own = |entries, ways| Entries { entries, ways };
    let random = |size_bytes, ways| CacheGeometry {
        replacement: Replacement::Random,
        ..CacheGeometry::lru(size_bytes, ways)
    };
    let expected = Geometry {
        line_bytes: 128,
        l1d: random(64 << 10, 4),
        l1d_writes: Writes::Through,
        l2: Some(random(512 << 10, 8)),
        llc: random(10 << 20, 20),
        inclusive_llc: false,
        dtlb: TlbGeometry {
            small: own(48, 48),
            huge: HugeEntries::Shared,
        },
        stlb: Some(TlbGeometry {
            small: own(1024, 8),
            huge: HugeEntries::Own(own(16, 2)),
        }),
        prefetcher: Some(Prefetcher {
            into: PrefetchInto::L1d,
            streams: 3,
            trigger_steps: 2,
            degree: 1,
            distance: 4,
        }),
        next_line: Some(NextLine { recent: 5 }),
        stride: Some(Stride {
            instructions: 64,
            largest_bytes: 1024,
            repeats: 3,
        }),
        adjacent_line: true,
        perf_events: PerfEvents::SandyBridge,
    };
    assert_eq!(read(MINE).unwrap(), expected);
    // Without the optional fields: LRU, written back, one TLB, no prefetcher.
    let head = &MINE[..MINE.find("[counters]").unwrap()];
    let dtlb = "[counters.dtlb]\nentries = 1024\nways = 4\nhuge = \"shared\"\n";
    let least = read(&format!("{head}{dtlb}")).unwrap();
    assert_eq!(least.l1d, CacheGeometry::lru(64 << 10, 4));
    assert_eq!(
        (least.l1d_writes, least.perf_events),
        (Writes::Back, PerfEvents::Demand)
    );
    assert!(least.stlb.is_none() && !least.prefetches());
}

#[test]
fn every_wrong_field_is_named_with_its_line() {
    for (from, to, field, why) in [
        (
            "l1d_replacement = \"random\"",
            "l1d_replacement = \"fifo\"",
            "counters.l1d_replacement",
            "has to be one of lru, random",
        ),
        (
            "recent = 5",
            "recent = 0",
            "counters.next_line.recent",
            "has to be a whole number from 1 to 1024",
        ),
        (
            "huge = \"shared\"",
            "huge = \"nowhere\"",
            "counters.dtlb.huge",
            "has to be shared, or a table with entries and ways",
        ),
        (
            "adjacent_line = true",
            "adjacent = true",
            "counters.adjacent",
            "is not known; known are l1d_replacement, l2_replacement, llc_replacement, l1d_writes, adjacent_line, \
             perf_events",
        ),
        (
            "line_bytes = 128",
            "line_bytes = 96",
            "machine.line_bytes",
            "has to be a power of two",
        ),
        (
            "size_bytes = 524288",
            "size_bytes = 524289",
            "machine.core.l2.size_bytes",
            "has to be a multiple of 8 ways of 128 bytes",
        ),
        (
            "entries = 48",
            "entries = 50",
            "counters.dtlb.entries",
            "has to be a multiple of the 48 ways",
        ),
        (
            "tlb_entries = 1024",
            "tlb_entries = 0",
            "machine.core.tlb_entries",
            "has to be a multiple of the 8 ways",
        ),
    ] {
        let expected = format!("mine.toml line {}, {field}: {why}", line_of(from));
        assert_eq!(spoilt(from, to), expected);
    }
    let line = line_of("ways = 48");
    assert_eq!(
        spoilt("huge = \"shared\"\n", ""),
        format!(
            "mine.toml line {}, counters.dtlb.huge: is missing: has to be shared, or a table with entries and ways",
            line - 1
        )
    );
    let twice = spoilt(
        "[machine.shared]",
        "[machine.core.prefetcher]\ninto = \"l2\"\nstreams = 1\ntrigger_steps = 1\ndegree = 1\ndistance = 1\n\n\
         [machine.shared]",
    );
    assert!(
        twice.contains("counters.prefetcher.into: is for a machine whose"),
        "{twice}"
    );
    let one_tlb = MINE.replace(
        "[counters.stlb]\nways = 8\nhuge = { entries = 16, ways = 2 }\n",
        "",
    );
    assert_eq!(
        read(&one_tlb).unwrap_err(),
        format!(
            "mine.toml line {}, machine.core.tlb_entries: has to be 48, the entries of the DTLB, or there has to be a \
             [counters.stlb]",
            line_of("tlb_entries")
        )
    );
    let no_l2 = spoilt("[machine.core.l2]\nsize_bytes = 524288\nways = 8\n", "");
    assert!(
        no_l2.contains("counters.l2_replacement: needs a table [machine.core.l2]"),
        "{no_l2}"
    );
}
