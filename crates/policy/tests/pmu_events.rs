// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the table of events with the kernel's lists (tools/perf/pmu-events), for the processors that have one.
//! `scripts/from-linux-source` fetches the lists.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use memwarden_policy::events::{self, Event, Kind, Processor, Sure, vendor};
use regex::Regex;
use serde_json::Value;

/// The folder of the lists, if they were fetched.
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

/// The events in a list's files; files that are not arrays of events are ignored.
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

/// The names in the lists for a code of the table; AMD's codes have a bit for each source of a line.
fn names(code: u64) -> &'static [&'static str] {
    match code {
        0x17 => &["L2D_CACHE_REFILL"],
        0x18 => &["L2D_CACHE_WB"],
        0x2a => &["L3D_CACHE_REFILL"],
        0x37 => &["LL_CACHE_MISS_RD"],
        // Knights Landing uses another name.
        0x412e => &["LONGEST_LAT_CACHE.MISS", "L2_REQUESTS.MISS"],
        0x07f1 => &["L2_LINES_IN.ALL"],
        0x08b0 => &["OFFCORE_REQUESTS.ALL_DATA_RD"],
        0x406e => &["BUS_TRANS_BURST.SELF"],
        0x7024 => &["L2_LINES_IN.SELF.ANY"],
        0x4843 => &[
            "ls_refills_from_sys.ls_mabresp_lcl_dram",
            "ls_refills_from_sys.ls_mabresp_rmt_dram",
            "ls_dmnd_fills_from_sys.mem_io_local",
            "ls_dmnd_fills_from_sys.mem_io_remote",
            "ls_dmnd_fills_from_sys.dram_io_near",
            "ls_dmnd_fills_from_sys.dram_io_far",
        ],
        0xff72 => &[
            "l2_pf_miss_l2_l3",
            "l2_pf_miss_l2_l3.all",
            "l2_pf_miss_l2_l3.l1_dc_l2_hwpf",
        ],
        0x11 => &["LL_CACHE_READ_MISS"],
        _ => &[],
    }
}

/// The names in the lists whose masks (`config1`) make up one of the table's.
fn offcore_names(config1: u64) -> &'static [&'static str] {
    match config1 {
        0xf877 => &[
            "OFFCORE_RESPONSE.DATA_IN.ANY_LLC_MISS",
            "OFFCORE_RESPONSE.ANY_IFETCH.ANY_LLC_MISS",
        ],
        0x16_8000_30f7 => &[
            "OFFCORE_RESPONSE.ANY_DATA_RD.L2_MISS.ANY",
            "OFFCORE_RESPONSE.ANY_RFO.L2_MISS.ANY",
            "OFFCORE_RESPONSE.ANY_CODE_RD.L2_MISS.ANY",
        ],
        0x36_0000_32b7 => &["OFFCORE_RESPONSE.ANY_READ.L2_MISS.ANY"],
        0x02_0000_32b7 => &["OFFCORE_RESPONSE.ANY_READ.L2_MISS.SNOOP_MISS_OR_NO_SNOOP_NEEDED"],
        0x21_8400_0477 => &["OCR.READS_TO_CORE.L3_MISS"],
        _ => &[],
    }
}

/// Whether a folder has the offcore response under its names. Some lists have the code of the first of two registers,
/// and some have both, as in `0xB7, 0xBB`.
fn has_offcore(lists: &Path, folder: &str, config1: u64) -> bool {
    let first = |entry: &Value, name: &str| {
        let text = entry[name].as_str()?.to_lowercase();
        number(text.split(',').next()?)
    };
    let masks = entries(&lists.join(folder)).into_iter().filter(|entry| {
        let name = entry["EventName"].as_str().unwrap_or_default();
        offcore_names(config1).contains(&name) && first(entry, "EventCode") == Some(0xb7)
    });
    let masks: Vec<u64> = masks
        .filter_map(|entry| first(&entry, "MSRValue"))
        .collect();
    masks.len() == offcore_names(config1).len()
        && masks.iter().fold(0, |all, mask| all | mask) == config1
}

/// Whether a folder has the code under its name. For AMD every bit must be present.
fn has(lists: &Path, folder: &str, (code, config1): (u64, u64)) -> bool {
    if config1 != 0 {
        return code == 0x01b7 && has_offcore(lists, folder, config1);
    }
    let common = fs::read_to_string(lists.join("arm64/common-and-microarch.json")).unwrap();
    let common: Vec<Value> = serde_json::from_str(&common).unwrap();
    let of_standard = |name: &str| {
        let entry = common.iter().find(|entry| entry["EventName"] == name)?;
        number(entry["EventCode"].as_str()?)
    };
    let mut found = 0;
    for entry in entries(&lists.join(folder)) {
        let standard = entry["ArchStdEvent"].as_str();
        let Some(name) = standard.or(entry["EventName"].as_str()) else {
            continue;
        };
        if !names(code).contains(&name) {
            continue;
        }
        let field = |name: &str| entry[name].as_str().and_then(number);
        let own = standard.and_then(of_standard).or(field("EventCode"));
        found |= own.unwrap_or(0) | field("UMask").unwrap_or(0) << 8;
    }
    found == code
}

/// All codes of an event, each with its `config1`.
fn codes(event: &Event) -> impl Iterator<Item = (u64, u64)> {
    [
        Some((event.read, event.read_config1)),
        event.read_too.map(|code| (code, 0)),
        event.write.map(|code| (code, 0)),
        event.combined.map(|code| (code, 0)),
    ]
    .into_iter()
    .flatten()
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
        for code in codes(&event) {
            assert!(
                has(&lists, folder, code),
                "{}: {code:#x?} is not in {folder} as one of {:?} {:?}",
                event.name,
                names(code.0),
                offcore_names(code.1)
            );
        }
        checked += 1;
    }
    assert!(checked >= 50, "{checked}");
}

fn architecture(row: &Processor) -> &'static str {
    if row.vendor <= 0xff { "arm64" } else { "x86" }
}

/// The rows of the kernel's map of an architecture: a processor's identifier as a pattern, and its folder.
fn map(lists: &Path, architecture: &str) -> Vec<(Regex, String)> {
    let rows = fs::read_to_string(lists.join(architecture).join("mapfile.csv")).unwrap();
    rows.lines()
        .filter_map(|line| {
            let mut words = line.split(',');
            let pattern = Regex::new(&format!("^(?:{})$", words.next()?)).ok()?;
            let folder = words.nth(1)?;
            Some((pattern, format!("{architecture}/{folder}")))
        })
        .collect()
}

/// The kernel's folder for a processor.
fn folder_of(map: &[(Regex, String)], row: &Processor, model: u32) -> Option<String> {
    let maker = match row.vendor {
        vendor::INTEL => "GenuineIntel",
        _ => "AuthenticAMD",
    };
    // Only one model's identifier includes a stepping.
    let id = if architecture(row) == "arm64" {
        format!(
            "0x{:016x}",
            u64::from(row.vendor) << 24 | 0xf_0000 | u64::from(model) << 4
        )
    } else if row.vendor == vendor::INTEL && model == 0x55 {
        format!("{maker}-{}-{model:X}-4", row.family)
    } else {
        format!("{maker}-{}-{model:X}", row.family)
    };
    map.iter()
        .find(|(pattern, _)| pattern.is_match(&id))
        .map(|(_, folder)| folder.clone())
}

#[test]
fn a_processor_s_own_event_is_in_the_list_that_the_kernel_has_for_it() {
    let Some(lists) = lists() else { return };
    let maps = BTreeMap::from(["arm64", "x86"].map(|name| (name, map(&lists, name))));
    // Whether a folder has a code; all models of a range are compared, and most share a folder.
    let mut known = BTreeMap::new();
    let mut checked = 0;
    for row in events::processors() {
        let event = events::named(row.event).unwrap();
        // These come from a manual because the list lacks them, or have no event.
        if event.sure == Sure::Manual || event.kind == Kind::None || row.vendor == vendor::HYGON {
            continue;
        }
        for model in row.first..=row.last {
            let Some(folder) = folder_of(&maps[architecture(&row)], &row, model) else {
                continue;
            };
            for code in codes(&event) {
                let found = *known
                    .entry((folder.clone(), code))
                    .or_insert_with(|| has(&lists, &folder, code));
                assert!(
                    found,
                    "{}, model {model:#x}: {code:#x?} is not in {folder}",
                    event.name
                );
            }
            checked += 1;
        }
    }
    assert!(checked >= 80, "{checked}");
}
