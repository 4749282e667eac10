// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which event is counted, for the regulator in user space; and in words, for every regulator. The table of names, and of
//! what each processor's own event is, is [`memwarden_policy::events`].

use memwarden_platform::overflow::{EventCode, Of, OverflowCounter};
use memwarden_platform::{Root, cpus, processor};
use memwarden_policy::events::{self, Kind};

use crate::units::PAGE_BYTES;
use crate::{Control, Error, StartOptions};

/// L2D_CACHE_REFILL of Arm (Arm ARM, "PMU events").
const ARM_L2_REFILL: u64 = 0x17;

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
    let event = events::named(name)?;
    let code = match event.kind {
        Kind::Raw => EventCode::raw(event.read),
        Kind::CacheMisses => EventCode::CACHE_MISSES,
        Kind::LastLevelReadMisses => EventCode::LAST_LEVEL_READ_MISSES,
        Kind::PageFaults => EventCode::PAGE_FAULTS,
        Kind::Cycles => EventCode::CYCLES,
        Kind::Instructions => EventCode::INSTRUCTIONS,
        Kind::None => return None,
    };
    Some((code, event.write, event.bytes.map_or(PAGE_BYTES, u64::from)))
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
        None => of_processors(root, counts)?.into(),
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

/// The name of what this machine's processors count of memory traffic; where the machine counts no such thing, it is
/// `page-faults`.
fn of_processors(root: &Root, counts: impl Fn(EventCode) -> bool) -> Result<&'static str, Error> {
    let own = processor::own_event(root).map_err(Error::platform)?;
    let code = own.ok().and_then(|event| named(event.name));
    let has_pmu = code.is_some_and(|(code, ..)| counts(code)) || counts(EventCode::CACHE_MISSES);
    match own {
        _ if !has_pmu => Ok("page-faults"),
        Ok(event) => Ok(event.name),
        Err(unknown) => Err(Error::BadInput(format!(
            "{unknown}: give --event {}, or page-faults; the self-test tells whether it is right, and `memwarden guard events` \
             lists what is known",
            unknown.to_try()
        ))),
    }
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

/// What a processor's own event counts: whether that is memory traffic, what it is, and what it doesn't hold.
fn of_table(name: &str, bytes: u64) -> (bool, String, String) {
    let Some(event) = events::named(name).filter(|event| event.kind != Kind::None) else {
        return (false, "nothing".into(), "no core is held".into());
    };
    let includes = event.includes;
    let what = if includes.shared_hits || event.kind == Kind::Raw && event.read == ARM_L2_REFILL {
        format!("lines that come to the core's own caches ({bytes} bytes each)")
    } else {
        format!("lines that come from memory ({bytes} bytes each)")
    };
    let mut but = Vec::new();
    if includes.shared_hits {
        but.push("hits in a cache behind them count too, so that budgets are stricter than asked");
    } else if event.kind == Kind::Raw && event.read == ARM_L2_REFILL {
        but.push("where there is an L3, hits in it count too");
    }
    if !includes.prefetches {
        but.push("what hardware prefetchers fetch may not count");
    }
    if !includes.writes {
        but.push("lines that are fetched to be written to do not count");
    }
    if but.is_empty() {
        but.push("what other caches of the system answer counts too");
    }
    (true, what, but.join("; "))
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
            "a program that reuses its memory is not held".into(),
        ),
        ("cycles", _) => (
            false,
            "CPU cycles, not memory traffic".into(),
            "a budget is one of CPU time".into(),
        ),
        ("instructions", _) => (
            false,
            "instructions, not memory traffic".into(),
            "a budget is one of CPU work".into(),
        ),
        ("null", _) => (false, "nothing".into(), "no core is held".into()),
        ("cache-misses", Processor::Arm) => (
            false,
            "refills of the first-level data cache on most Arm cores, not memory traffic".into(),
            "hits in the L2 count too, so that a core is stopped early (armv8 counts refills of the L2)".into(),
        ),
        ("cache-misses", Processor::Amd) => (
            true,
            format!("misses of the L2 cache ({bytes} bytes each)"),
            "hits in the L3 count too, and hardware prefetches may not".into(),
        ),
        ("cache-misses", _) => (
            true,
            format!("misses of the last-level cache ({bytes} bytes each)"),
            "some hardware prefetches may not count".into(),
        ),
        (name, _) if events::named(name).is_some() => of_table(name, bytes),
        _ => (
            true,
            format!("a raw code, taken to be memory traffic of {bytes} bytes each"),
            "only the self-test can tell whether it is".into(),
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
            (
                Processor::Arm,
                "cortex-a53",
                true,
                "own caches (64 bytes each): where there is an L3",
            ),
            (Processor::Arm, "cortex-a76", true, "come from memory"),
            (Processor::Other, "haswell", true, "stricter than asked"),
            (
                Processor::Other,
                "zen2",
                true,
                "prefetchers fetch may not count",
            ),
            (
                Processor::Other,
                "snb",
                true,
                "fetched to be written to do not count",
            ),
            (Processor::Arm, "apple", false, "nothing"),
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

    /// A machine with this /proc/cpuinfo.
    fn machine_of(folder: &tempfile::TempDir, cpuinfo: &str) -> Root {
        let root = machine(folder, &[]);
        std::fs::create_dir_all(folder.path().join("proc")).unwrap();
        std::fs::write(folder.path().join("proc/cpuinfo"), cpuinfo).unwrap();
        root
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
        let (a55, a76) = ("0x00000000412fd050", "0x00000000414fd0b1");
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
        assert_eq!(
            chosen(&[a55, a76], true).unwrap(),
            ("cortex-a55".into(), EventCode::raw(0x2a))
        );
        assert_eq!(chosen(&[a53], false).unwrap().0, "page-faults");
        // An L3 beside an L2 as the last level; another maker's core with a number of Arm's; one of Apple's; nothing.
        for other in [a76, "0x00000000510fd034", "0x00000000611f0230", ""] {
            let said = chosen(&[a53, other], true).unwrap_err().to_string();
            assert!(
                said.starts_with("CPU1 (maker") && said.contains("--event armv8"),
                "{said}"
            );
            assert!(!said.contains('\n'));
        }
    }

    #[test]
    fn an_x86_processor_has_its_own_and_an_unknown_one_is_refused() {
        let chosen = |cpuinfo: &str| {
            let folder = tempfile::tempdir().unwrap();
            let root = machine_of(&folder, cpuinfo);
            choose_on(&root, &StartOptions::default(), |_| true)
                .map(|event| (event.name, event.read))
        };
        let of = |maker, family: u32, model: u32| {
            format!(
                "processor\t: 0\nvendor_id\t: {maker}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: x\n"
            )
        };
        for (maker, family, model, name, code) in [
            ("GenuineIntel", 6, 0x1a, "nehalem", EventCode::raw(0x412e)),
            ("GenuineIntel", 6, 0x3c, "haswell", EventCode::raw(0x07f1)),
            (
                "GenuineIntel",
                6,
                0xcf,
                "emeraldrapids",
                EventCode::raw(0x412e),
            ),
            // A raw code would reach one kind of its cores alone.
            (
                "GenuineIntel",
                6,
                0x97,
                "alderlake",
                EventCode::CACHE_MISSES,
            ),
            ("AuthenticAMD", 25, 0x61, "zen4", EventCode::raw(0x4844)),
            ("HygonGenuine", 24, 1, "zen1", EventCode::raw(0x4843)),
        ] {
            assert_eq!(
                chosen(&of(maker, family, model)).unwrap(),
                (name.into(), code),
                "{name}"
            );
        }
        let said = chosen(&of("GenuineIntel", 6, 1)).unwrap_err().to_string();
        assert!(
            said.contains("family 0x6, model 0x1) is not in the table"),
            "{said}"
        );
        assert!(said.contains("--event 0x412e or cache-misses"), "{said}");
        // 32-bit Arm, each CPU by its own lines.
        let arm = |part| format!("CPU implementer\t: 0x41\nCPU part\t: {part}\n");
        let a7 = format!("processor\t: 0\n{}\nHardware\t: board\n", arm("0xc07"));
        assert_eq!(
            chosen(&a7).unwrap(),
            ("cortex-a7".into(), EventCode::raw(0x17))
        );
        let folder = tempfile::tempdir().unwrap();
        let both = format!(
            "processor\t: 0\n{}\nprocessor\t: 1\n{}",
            arm("0xd03"),
            arm("0xd0b")
        );
        machine(&folder, &["", ""]);
        for cpu in [0, 1] {
            let registers = format!("sys/devices/system/cpu/cpu{cpu}/regs");
            std::fs::remove_dir_all(folder.path().join(registers)).unwrap();
        }
        std::fs::create_dir(folder.path().join("proc")).unwrap();
        std::fs::write(folder.path().join("proc/cpuinfo"), both).unwrap();
        let root = Root::at(folder.path());
        let said = choose_on(&root, &StartOptions::default(), |_| true).unwrap_err();
        assert!(
            said.to_string().contains("another event than cortex-a53"),
            "{said}"
        );
        assert_eq!(chosen("isa\t\t: rv64imafdc\n").unwrap().0, "riscv");
        assert_eq!(chosen("cpu\t: POWER9\n").unwrap().0, "cache-misses");
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
