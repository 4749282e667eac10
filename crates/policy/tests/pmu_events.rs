// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of events against the kernel's own lists (tools/perf/pmu-events), for the processors that it has there.
//! `scripts/from-linux-source` puts them where this looks.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use memwarden_policy::events::{self, Event, Kind, Processor, Sure, vendor};
use regex::Regex;
use serde_json::Value;

/// Where the lists are, if they were fetched.
fn lists() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")))?;
    let lists = cache.join("memwarden/linux-source/pmu-events");
    if lists.is_dir() {
        return Some(lists);
    }
    println!(
        "skipped: the kernel's lists of events are not in {}: run scripts/from-linux-source",
        lists.display()
    );
    None
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The events of a list's files; what is no event is left out.
fn entries(folder: &Path) -> Vec<Value> {
    let mut all = Vec::new();
    for file in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
    {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        if let Ok(Value::Array(some)) = serde_json::from_str(&text) {
            all.extend(some);
        }
    }
    all
}

/// Codes of a folder's events, in the form of the processor's own raw codes.
fn codes(lists: &Path, folder: &str) -> BTreeSet<u64> {
    let common = fs::read_to_string(lists.join("arm64/common-and-microarch.json")).unwrap();
    let common: Vec<Value> = serde_json::from_str(&common).unwrap();
    let of_standard = |name: &str| {
        let entry = common.iter().find(|entry| entry["EventName"] == name)?;
        number(entry["EventCode"].as_str()?)
    };
    let code = |entry: &Value| {
        if let Some(name) = entry["ArchStdEvent"].as_str() {
            return of_standard(name);
        }
        let field = |name: &str| entry[name].as_str().and_then(number);
        let code = field("EventCode")?;
        Some(code | field("UMask").unwrap_or(0) << 8)
    };
    entries(&lists.join(folder))
        .iter()
        .filter_map(code)
        .collect()
}

/// AMD's events have a bit for each source of a line; the list has them one by one, or together.
fn has(codes: &BTreeSet<u64>, code: u64, amd: bool) -> bool {
    let bits = (8..16).map(|bit| 1 << bit).filter(|bit| code & bit != 0);
    codes.contains(&code)
        || amd
            && bits
                .map(|bit| code & 0xff | bit)
                .all(|one| codes.contains(&one))
}

#[test]
fn an_event_is_in_the_list_that_it_names_as_its_source() {
    let Some(lists) = lists() else { return };
    let mut checked = 0;
    for event in events::all() {
        let Some(folder) = event
            .source
            .strip_prefix("Linux 6.12, tools/perf/pmu-events/arch/")
        else {
            assert!(
                event.sure != Sure::Listed || event.source.starts_with("Linux 7.3, "),
                "{event:?}"
            );
            continue;
        };
        assert_eq!(event.sure, Sure::Listed, "{event:?}");
        let codes = codes(&lists, folder);
        for code in [Some(event.read), event.write].into_iter().flatten() {
            assert!(
                has(&codes, code, folder.contains("/amd")),
                "{}: {code:#x} is not in {folder}",
                event.name
            );
        }
        checked += 1;
    }
    assert!(checked >= 50, "{checked}");
}

/// The folder that the kernel has for a processor.
fn folder_of(lists: &Path, row: &Processor, model: u32) -> Option<String> {
    let arm = row.vendor <= 0xff;
    let architecture = if arm { "arm64" } else { "x86" };
    let maker = match row.vendor {
        vendor::INTEL => "GenuineIntel",
        _ => "AuthenticAMD",
    };
    // A stepping is part of it for one model alone.
    let id = if arm {
        format!(
            "0x{:016x}",
            u64::from(row.vendor) << 24 | 0xf_0000 | u64::from(model) << 4
        )
    } else if row.vendor == vendor::INTEL && model == 0x55 {
        format!("{maker}-{}-{model:X}-4", row.family)
    } else {
        format!("{maker}-{}-{model:X}", row.family)
    };
    let map = fs::read_to_string(lists.join(architecture).join("mapfile.csv")).unwrap();
    map.lines().find_map(|line| {
        let mut words = line.split(',');
        let pattern = Regex::new(&format!("^(?:{})$", words.next()?)).ok()?;
        let folder = words.nth(1)?;
        pattern
            .is_match(&id)
            .then(|| format!("{architecture}/{folder}"))
    })
}

#[test]
fn a_processor_s_own_event_is_in_the_list_that_the_kernel_has_for_it() {
    let Some(lists) = lists() else { return };
    let mut checked = 0;
    let check = |row: &Processor, event: &Event, model| {
        let Some(folder) = folder_of(&lists, row, model) else {
            return false;
        };
        let codes = codes(&lists, &folder);
        assert!(
            has(&codes, event.read, folder.contains("/amd")),
            "{}, model {model:#x}: {:#x} is not in {folder}",
            event.name,
            event.read
        );
        true
    };
    for row in events::processors() {
        let event = events::named(row.event).unwrap();
        // From a manual, since the list lacks it; or without an event.
        if event.sure == Sure::Manual || event.kind == Kind::None || row.vendor == vendor::HYGON {
            continue;
        }
        for model in [row.first, row.last] {
            checked += u32::from(check(&row, &event, model));
        }
    }
    assert!(checked >= 100, "{checked}");
}
