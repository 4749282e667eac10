// SPDX-License-Identifier: MIT OR Apache-2.0
//! Event names, and what each counts on which processor: the table of `kernel/memguard/event.c`, for the regulator in
//! user space; and in words, for every regulator.

use memwarden_platform::overflow::{EventCode, Of, OverflowCounter};
use memwarden_platform::{Root, cpus};

use crate::units::PAGE_BYTES;
use crate::{Control, Error, StartOptions};

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

/// Arm's cores: the name of what counts memory traffic on them, and the number in MIDR_EL1.
const ARM_CORES: [(&str, u64); 7] = [
    ("cortex-a7", 0xc07),
    ("cortex-a15", 0xc0f),
    ("cortex-a35", 0xd04),
    ("cortex-a53", 0xd03),
    ("cortex-a57", 0xd07),
    ("cortex-a72", 0xd08),
    ("cortex-a73", 0xd09),
];

/// Code for reads, raw code for writes, bytes an event.
fn named(name: &str) -> Option<(EventCode, Option<u64>, u64)> {
    let raw = |code, write| Some((EventCode::raw(code), write, LINE_BYTES));
    let other = |code, bytes| Some((code, None, bytes));
    match name {
        "armv7" | "armv8" => raw(ARM.0, Some(ARM.1)),
        _ if ARM_CORES.iter().any(|(core, _)| *core == name) => raw(ARM.0, Some(ARM.1)),
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

/// What `options` ask for. Without a name it is what the machine's processors count of memory traffic; where `counts`
/// says that the machine has no counter for it, `page-faults`, which every machine has.
///
/// # Errors
/// When a name is unknown, or a code isn't one; when none was given and the processors' is not known.
pub(crate) fn choose(
    options: &StartOptions,
    counts: impl Fn(EventCode) -> bool,
) -> Result<Event, Error> {
    choose_on(&Root::system(), options, counts)
}

fn choose_on(
    root: &Root,
    options: &StartOptions,
    counts: impl Fn(EventCode) -> bool,
) -> Result<Event, Error> {
    let name = match &options.event {
        Some(name) => name.clone(),
        None if !counts(EventCode::CACHE_MISSES) => "page-faults".into(),
        None => of_processors(root)?.into(),
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

/// The name of what this machine's processors count of memory traffic.
fn of_processors(root: &Root) -> Result<&'static str, Error> {
    let mut found = None;
    for cpu in cpus::online_in(root).map_err(Error::platform)?.iter() {
        let midr = format!("/sys/devices/system/cpu/cpu{cpu}/regs/identification/midr_el1");
        let Some(midr) = root.text(&midr) else {
            // Not of arm64: perf's own name is one of the last level's, or of the L2's.
            return Ok("cache-misses");
        };
        let number = u64::from_str_radix(midr.trim_start_matches("0x"), 16).unwrap_or(0);
        let (implementer, part) = (number >> 24 & 0xff, number >> 4 & 0xfff);
        let of = ARM_CORES.iter().find(|(_, core)| *core == part);
        let Some((name, _)) = of.filter(|_| implementer == u64::from(b'A')) else {
            return Err(Error::BadInput(format!(
                "which event of CPU{cpu} (MIDR {midr}) counts memory traffic is not known: give --event armv8 (refills of \
                 the L2), 0x2a or 0x37 (of an L3), or page-faults; the self-test tells whether it is right"
            )));
        };
        found.get_or_insert(*name);
    }
    Ok(found.unwrap_or("cache-misses"))
}

/// What a guard counts, and what it doesn't hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meaning {
    /// The event counts memory traffic, or what leaves a core's caches.
    pub memory_traffic: bool,
    /// One line, such as `event page-faults counts fresh pages ...`.
    pub text: String,
}

impl Meaning {
    /// Refuses an event that isn't memory traffic.
    ///
    /// # Errors
    /// When it isn't.
    pub fn require_memory_traffic(&self) -> Result<(), Error> {
        if self.memory_traffic {
            return Ok(());
        }
        Err(Error::BadInput(format!(
            "--require-memory-event: {}; give --event a name or code that counts memory traffic (`memwarden doctor` \
             lists what this machine counts)",
            self.text
        )))
    }
}

/// The processors on which one name counts different things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Processor {
    Arm,
    Amd,
    Other,
}

impl Processor {
    fn of_system() -> Self {
        let info = Root::system().text("/proc/cpuinfo").unwrap_or_default();
        if cfg!(any(target_arch = "aarch64", target_arch = "arm")) {
            Self::Arm
        } else if info.contains("AuthenticAMD") || info.contains("HygonGenuine") {
            Self::Amd
        } else {
            Self::Other
        }
    }
}

/// What the guard with these settings counts.
pub fn meaning(control: &Control) -> Meaning {
    tell(
        Processor::of_system(),
        &control.event,
        control.write_event.as_deref(),
        control.bytes_per_event,
        control.user_only,
    )
}

/// What a regulator in user space that is started with these options counts.
///
/// # Errors
/// As at the start.
pub fn meaning_of(options: &StartOptions) -> Result<Meaning, Error> {
    let online = cpus::online().map_err(Error::platform)?;
    let first = online.iter().next().unwrap_or(0);
    let counts = |code| OverflowCounter::open(first, code, Of::Cpu, options.user_only).is_ok();
    let event = choose(options, counts)?;
    Ok(tell(
        Processor::of_system(),
        &event.name,
        None,
        event.bytes,
        options.user_only,
    ))
}

fn tell(
    processor: Processor,
    event: &str,
    write_event: Option<&str>,
    bytes: u64,
    user_only: bool,
) -> Meaning {
    // Whether it is memory traffic, what it is, and what it doesn't hold.
    let (memory_traffic, what, but) = match (event, processor) {
        ("page-faults" | "soft", _) => (
            false,
            format!("fresh pages ({bytes} bytes each), not memory traffic"),
            "a program that reuses its memory is not held",
        ),
        ("cycles", _) => (
            false,
            "CPU cycles, not memory traffic".into(),
            "a budget is one of CPU time",
        ),
        ("instructions", _) => (
            false,
            "instructions, not memory traffic".into(),
            "a budget is one of CPU work",
        ),
        ("null", _) => (false, "nothing".into(), "no core is held"),
        ("cache-misses", Processor::Arm) => (
            false,
            "refills of the first-level data cache on most Arm cores, not memory traffic".into(),
            "hits in the L2 count too, so that a core is stopped early (armv8 counts refills of the L2)",
        ),
        ("cache-misses", Processor::Amd) => (
            true,
            format!("misses of the L2 cache ({bytes} bytes each)"),
            "hits in the L3 count too, and hardware prefetches may not",
        ),
        (name, _) if named(name).is_some_and(|(code, ..)| code == EventCode::raw(ARM.0)) => (
            true,
            format!("refills of the L2 cache ({bytes} bytes each)"),
            "where there is an L3, hits in it count too",
        ),
        ("core2", _) => (
            true,
            format!("lines brought into the L2 cache ({bytes} bytes each)"),
            "cores that share the L2 share the count",
        ),
        ("snb", _) => (
            true,
            format!("data reads that leave the core ({bytes} bytes each)"),
            "hits in the last-level cache count too",
        ),
        ("cache-misses" | "nehalem" | "skylake", _) => (
            true,
            format!("misses of the last-level cache ({bytes} bytes each)"),
            "some hardware prefetches may not count",
        ),
        _ => (
            true,
            format!("a raw code, taken to be memory traffic of {bytes} bytes each"),
            "only the self-test can tell whether it is",
        ),
    };
    let mut text = format!("event {event} counts {what}: {but}");
    if memory_traffic {
        text += &match write_event {
            None => "; write-backs and the traffic of devices are not counted".to_owned(),
            Some(write) => format!(
                "; write-backs ({write}) are held where they have a budget; the traffic of devices is not counted"
            ),
        };
    }
    if user_only {
        text += "; the kernel's own events are not counted (--user-only)";
    }
    Meaning {
        memory_traffic,
        text,
    }
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
            let part = ARM_CORES.iter().find(|(core, _)| *core == name);
            assert_eq!(
                part.map(|(_, part)| format!("{part:#x}")).as_deref(),
                words.get(5).copied(),
                "{name}"
            );
            rows += 1;
        }
        assert_eq!(rows, 18);
    }

    #[test]
    fn every_event_says_whether_it_is_memory_traffic_and_what_it_does_not_hold() {
        let told = |processor, event| tell(processor, event, None, 64, false);
        for (processor, event, memory_traffic, word) in [
            (
                Processor::Other,
                "page-faults",
                false,
                "reuses its memory is not held",
            ),
            (Processor::Other, "cycles", false, "CPU time"),
            (Processor::Other, "instructions", false, "CPU work"),
            (Processor::Other, "null", false, "no core is held"),
            (Processor::Other, "cache-misses", true, "last-level"),
            (Processor::Amd, "cache-misses", true, "misses of the L2"),
            (Processor::Arm, "cache-misses", false, "first-level"),
            (Processor::Arm, "cortex-a53", true, "refills of the L2"),
            (Processor::Other, "0x412e", true, "raw code"),
        ] {
            let meaning = told(processor, event);
            assert_eq!(meaning.memory_traffic, memory_traffic, "{event}");
            assert!(meaning.text.contains(word), "{}", meaning.text);
            assert!(!meaning.text.contains('\n'));
            let required = meaning.require_memory_traffic();
            assert_eq!(required.is_ok(), memory_traffic, "{required:?}");
        }
        let text = tell(Processor::Other, "armv8", Some("0x18"), 64, true).text;
        assert!(text.contains("write-backs (0x18)"), "{text}");
        assert!(text.ends_with("(--user-only)"), "{text}");
    }

    #[test]
    fn events_by_name_by_code_and_by_default() {
        assert_eq!(ask(None, None).unwrap().name, "page-faults");
        let nowhere = tempfile::tempdir().unwrap();
        let root = machine(&nowhere, &[]);
        let options = StartOptions::default();
        let chosen = choose_on(&root, &options, |_| true).unwrap();
        assert_eq!(chosen.name, "cache-misses");
        let arm = ask(Some("cortex-a53"), None).unwrap();
        assert_eq!(arm.write, Some(("0x18".into(), EventCode::raw(0x18))));
        let raw = ask(Some("0x2a"), Some("0x2b")).unwrap();
        assert_eq!((raw.read, raw.bytes), (EventCode::raw(0x2a), 64));
        assert_eq!(raw.write.unwrap().1, EventCode::raw(0x2b));
    }

    /// A machine with these processors.
    fn machine(folder: &tempfile::TempDir, midrs: &[&str]) -> Root {
        let cpus = folder.path().join("sys/devices/system/cpu");
        std::fs::create_dir_all(&cpus).unwrap();
        std::fs::write(
            cpus.join("online"),
            format!("0-{}\n", midrs.len().max(1) - 1),
        )
        .unwrap();
        for (cpu, midr) in midrs.iter().enumerate() {
            let registers = cpus.join(format!("cpu{cpu}/regs/identification"));
            std::fs::create_dir_all(&registers).unwrap();
            std::fs::write(registers.join("midr_el1"), format!("{midr}\n")).unwrap();
        }
        Root::at(folder.path())
    }

    #[test]
    fn an_arm_core_has_the_event_of_its_last_level() {
        let chosen = |midrs: &[&str], counts| {
            let folder = tempfile::tempdir().unwrap();
            choose_on(&machine(&folder, midrs), &StartOptions::default(), |_| {
                counts
            })
            .map(|event| (event.name, event.read))
        };
        let (a53, a73) = ("0x00000000410fd034", "0x00000000411fd091");
        let l2_refill = EventCode::raw(0x17);
        assert_eq!(
            chosen(&[a53], true).unwrap(),
            ("cortex-a53".into(), l2_refill)
        );
        // Both of its clusters count the same.
        assert_eq!(
            chosen(&[a73, a53], true).unwrap(),
            ("cortex-a73".into(), l2_refill)
        );
        assert_eq!(chosen(&[a53], false).unwrap().0, "page-faults");
        // Cortex-A76, another implementer's core with a number of Arm's, nothing.
        for other in ["0x00000000413fd0b1", "0x00000000510fd034", ""] {
            let said = chosen(&[a53, other], true).unwrap_err().to_string();
            assert!(
                said.contains("which event of CPU1") && said.contains("--event armv8"),
                "{said}"
            );
        }
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
