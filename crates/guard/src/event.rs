// SPDX-License-Identifier: MIT OR Apache-2.0
//! Event names, and what each counts on which processor: the table of `kernel/memguard/event.c`, for the regulator in
//! user space.

use memwarden_platform::overflow::EventCode;

use crate::units::PAGE_BYTES;
use crate::{Error, StartOptions};

/// Arm ARM, "PMU events": L2D_CACHE_REFILL and L2D_CACHE_WB.
const ARM: (u64, u64) = (0x17, 0x18);
/// Intel SDM vol. 3: LONGEST_LAT_CACHE.MISS.
const LONGEST_LATENCY_MISS: u64 = 0x412e;

const LINE_BYTES: u64 = 64;

/// What is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// As it was asked for: a name or `0x17`.
    pub name: String,
    pub read: EventCode,
    /// Write-backs, as asked for.
    pub write: Option<(String, EventCode)>,
    pub bytes: u64,
}

/// Code for reads, raw code for writes, bytes an event.
fn named(name: &str) -> Option<(EventCode, Option<u64>, u64)> {
    let raw = |code, write| Some((EventCode::raw(code), write, LINE_BYTES));
    let other = |code, bytes| Some((code, None, bytes));
    match name {
        "armv7" | "armv8" | "cortex-a7" | "cortex-a15" | "cortex-a53" | "cortex-a57"
        | "cortex-a72" => raw(ARM.0, Some(ARM.1)),
        "core2" => raw(0x7024, None),
        "nehalem" | "skylake" => raw(LONGEST_LATENCY_MISS, None),
        "snb" => raw(0x08b0, None),
        "cache-misses" => other(EventCode::CACHE_MISSES, LINE_BYTES),
        "page-faults" | "soft" => other(EventCode::PAGE_FAULTS, PAGE_BYTES),
        // Not memory traffic: for trying the machine out.
        "cycles" => other(EventCode::CYCLES, LINE_BYTES),
        "instructions" => other(EventCode::INSTRUCTIONS, LINE_BYTES),
        _ => None,
    }
}

/// The code in `0x17`; `None` for a name.
///
/// # Errors
/// When it is neither.
pub(crate) fn raw_code(event: &str) -> Result<Option<u64>, Error> {
    let bad = || {
        Error::BadInput(format!(
            "event `{event}`: give a name, such as page-faults, or a raw code, such as 0x17"
        ))
    };
    if let Some(digits) = event.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).map(Some).map_err(|_| bad());
    }
    let well_formed = !event.is_empty()
        && event
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        && !event.bytes().all(|byte| byte.is_ascii_digit());
    if well_formed { Ok(None) } else { Err(bad()) }
}

/// What `options` ask for. Without a name it is `cache-misses` where `counts` says that the machine has it, else
/// `page-faults`, which every machine has.
///
/// # Errors
/// When a name is unknown, or a code isn't one.
pub(crate) fn choose(
    options: &StartOptions,
    counts: impl Fn(EventCode) -> bool,
) -> Result<Event, Error> {
    let name = match &options.event {
        Some(name) => name.clone(),
        None if counts(EventCode::CACHE_MISSES) => "cache-misses".into(),
        None => "page-faults".into(),
    };
    let (read, write, bytes) = match raw_code(&name)? {
        Some(code) => (EventCode::raw(code), None, LINE_BYTES),
        None => named(&name).ok_or_else(|| {
            Error::BadInput(format!(
                "event `{name}` is unknown; try armv8, nehalem, cache-misses or page-faults, or a raw code such as 0x17"
            ))
        })?,
    };
    let write = match &options.write_event {
        None => write.map(|code| (format!("{code:#x}"), EventCode::raw(code))),
        Some(text) => {
            let code = raw_code(text)?.ok_or_else(|| {
                Error::BadInput(format!(
                    "write event `{text}`: give its raw code, such as 0x18"
                ))
            })?;
            Some((text.clone(), EventCode::raw(code)))
        }
    };
    let bytes = match options.bytes_per_event {
        Some(0) => return Err(Error::BadInput("0 bytes per event: give 1 or more".into())),
        given => given.unwrap_or(bytes),
    };
    Ok(Event {
        name,
        read,
        write,
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(event: Option<&str>, write: Option<&str>) -> Result<Event, Error> {
        let options = StartOptions {
            event: event.map(str::to_owned),
            write_event: write.map(str::to_owned),
            ..StartOptions::default()
        };
        choose(&options, |_| false)
    }

    #[test]
    fn the_module_knows_the_same_names() {
        let table = std::fs::read_to_string(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../kernel/memguard/event.c"
        ))
        .unwrap();
        let mut rows = 0;
        for line in table.lines().filter(|line| line.starts_with("\t{ \"")) {
            let words: Vec<&str> = line
                .trim()
                .trim_matches(&['{', '}', ' ', ','][..])
                .split(", ")
                .collect();
            let name = words[0].trim_matches('"');
            let (code, write, bytes) = named(name).unwrap_or_else(|| panic!("{name}"));
            if words[1] == "PERF_TYPE_RAW" {
                let number =
                    |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
                assert_eq!(code, EventCode::raw(number(words[2])), "{name}");
                assert_eq!(write.unwrap_or(0), number(words[3]), "{name}");
            }
            assert_eq!(bytes == PAGE_BYTES, words[4] == "PAGE_SIZE", "{name}");
            rows += 1;
        }
        assert_eq!(rows, 16);
    }

    #[test]
    fn events_by_name_by_code_and_by_default() {
        assert_eq!(ask(None, None).unwrap().name, "page-faults");
        let options = StartOptions::default();
        assert_eq!(choose(&options, |_| true).unwrap().name, "cache-misses");
        let arm = ask(Some("cortex-a53"), None).unwrap();
        assert_eq!(arm.write, Some(("0x18".into(), EventCode::raw(0x18))));
        let raw = ask(Some("0x2a"), Some("0x2b")).unwrap();
        assert_eq!((raw.read, raw.bytes), (EventCode::raw(0x2a), 64));
        assert_eq!(raw.write.unwrap().1, EventCode::raw(0x2b));
    }

    #[test]
    fn what_is_no_event_is_refused() {
        for (event, write) in [
            (Some("z80"), None),
            (Some("17"), None),
            (Some("0x"), None),
            (Some(""), None),
            (Some("a b"), None),
            (None, Some("page-faults")),
            (None, Some("0xg")),
        ] {
            assert!(ask(event, write).is_err(), "{event:?} {write:?}");
        }
    }
}
