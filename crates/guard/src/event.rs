// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chooses the events that the regulator in user space counts, and describes the events of every regulator in words.
//! The table of names and of each processor's own event is in [`memwarden_policy::events`].

use std::collections::BTreeSet;

use memwarden_platform::cpus::CpuSet;
use memwarden_platform::overflow::{EventCode, Of, OverflowCounter};
use memwarden_platform::{Root, cache, cpus, pmu, processor};
use memwarden_policy::events::{self, Kind};

use crate::event_list::EventList;
use crate::regulator::given_event;
use crate::units::page_bytes;
use crate::{Control, Error, StartOptions};

/// L2D_CACHE_REFILL of Arm (Arm ARM, "PMU events").
const ARM_L2_REFILL: u64 = 0x17;

/// LL_CACHE_MISS_RD of Arm: without a cluster's L3 it counts refills of the L2, unless firmware sets CPUECTLR.EXTLLC.
const ARM_LAST_LEVEL_READ_MISS: u64 = 0x37;

/// Fills of the data cache from DRAM that instructions wait for, on AMD's Zen.
const AMD_DEMAND_FILLS: u64 = 0x4843;

const LINE_BYTES: u64 = 64;

/// The events that each CPU counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// As requested: a name, a raw code such as `0x17`, or a list of them.
    pub name: String,
    /// The event that counts write-backs, as text; `None` unless every CPU has one.
    pub write: Option<String>,
    pub bytes: u64,
    kinds: Vec<(Option<CpuSet>, Codes)>,
    /// A CPU that comes online later counts its processor's own event.
    own: bool,
    /// The caller gave the number of bytes, which overrides the table's.
    bytes_given: bool,
    /// One budget covers the sum of reads and writes.
    pub combined: bool,
}

/// The events that one CPU counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Codes {
    pub read: EventCode,
    /// A second event of reads, in the same budget. Then there is no write event.
    pub read_too: Option<EventCode>,
    pub write: Option<EventCode>,
}

impl Codes {
    fn of(read: EventCode, read_too: Option<EventCode>) -> Self {
        Self {
            read,
            read_too,
            write: None,
        }
    }

    fn all(self) -> impl Iterator<Item = EventCode> {
        [Some(self.read), self.read_too, self.write]
            .into_iter()
            .flatten()
    }

    /// The events that count reads.
    pub fn of_reads(self) -> impl Iterator<Item = EventCode> {
        [Some(self.read), self.read_too].into_iter().flatten()
    }
}

/// The meaning of a name or a raw code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Coded {
    codes: Codes,
    /// The events that count reads and writes together.
    combined: Option<Codes>,
    bytes: u64,
}

impl Coded {
    /// The events to count if no write event is given; `None` for a combined budget if no event counts writes.
    fn codes(self, combined: bool) -> Option<Codes> {
        match self.combined {
            _ if !combined => Some(self.codes),
            Some(both) => Some(both),
            None => self.codes.write.is_some().then_some(self.codes),
        }
    }
}

impl Event {
    /// Whether writes have separate budgets.
    pub fn has_write_budgets(&self) -> bool {
        self.write.is_some() && !self.combined
    }

    /// The events that this CPU counts.
    ///
    /// # Errors
    /// When no event was given for the CPU, when its PMU lacks a field of the code, or when its processor's own event
    /// is unknown or differs from the others' in bytes or writes.
    pub fn on(&self, cpu: usize) -> Result<Codes, Error> {
        self.on_below(&Root::system(), cpu)
    }

    /// Checks that the events cover all of `cpus`.
    ///
    /// # Errors
    /// When the list has no event for one of them.
    pub fn covers(&self, cpus: &CpuSet) -> Result<(), Error> {
        match cpus.iter().find(|&cpu| !self.own && self.on(cpu).is_err()) {
            Some(cpu) => self.on(cpu).map(drop),
            None => Ok(()),
        }
    }

    fn on_below(&self, root: &Root, cpu: usize) -> Result<Codes, Error> {
        let has = |cpus: &Option<CpuSet>| cpus.as_ref().is_none_or(|cpus| cpus.contains(cpu));
        if let Some((_, codes)) = self.kinds.iter().find(|(cpus, _)| has(cpus)) {
            for code in codes.all() {
                has_fields(root, cpu, code)?;
            }
            return Ok(*codes);
        }
        let bad = |why: &str| Error::BadInput(format!("event {}: CPU {cpu} {why}", self.name));
        if !self.own {
            return Err(bad("has none: name one for it, or leave it out of --cpus"));
        }
        let own = processor::own_event(root, cpu)
            .map_err(|unknown| Error::BadInput(unknown.to_string()))?;
        let coded = named(own.name).ok_or_else(|| bad("has none"))?;
        let codes = coded.codes(self.combined);
        let Some(codes) = codes.filter(|codes| {
            (self.bytes_given || coded.bytes == self.bytes)
                && (codes.write.is_some() || !self.has_write_budgets())
        }) else {
            return Err(bad("does not count as the others do"));
        };
        let codes = Codes {
            write: codes
                .write
                .filter(|_| self.combined || self.write.is_some()),
            ..codes
        };
        for code in codes.all() {
            has_fields(root, cpu, code)?;
        }
        Ok(codes)
    }
}

fn named(name: &str) -> Option<Coded> {
    of_row(events::named(name)?, page_bytes())
}

/// The codes of a row of the table. An event without a number of bytes is a fault, which stands for a page.
fn of_row(event: events::Event, page_bytes: u64) -> Option<Coded> {
    let read = match event.kind {
        Kind::Raw => EventCode {
            config1: event.read_config1,
            ..EventCode::raw(event.read)
        },
        Kind::CacheMisses => EventCode::CACHE_MISSES,
        Kind::LastLevelReadMisses => EventCode::LAST_LEVEL_READ_MISSES,
        Kind::PageFaults => EventCode::PAGE_FAULTS,
        Kind::MinorFaults => EventCode::MINOR_FAULTS,
        Kind::Cycles => EventCode::CYCLES,
        Kind::Instructions => EventCode::INSTRUCTIONS,
        Kind::None => return None,
    };
    Some(Coded {
        codes: Codes {
            read,
            read_too: event.read_too.map(EventCode::raw),
            write: event.write.map(EventCode::raw),
        },
        combined: event
            .combined
            .map(|both| Codes::of(EventCode::raw(both), None)),
        bytes: event.bytes.map_or(page_bytes, u64::from),
    })
}

/// Parses a raw code, or the sum of two such as `0x4843+0xff72`; `None` for a name.
///
/// # Errors
/// When the text is neither.
pub(crate) fn raw_codes(event: &str) -> Result<Option<(EventCode, Option<EventCode>)>, Error> {
    let (first, second) = match event.split_once('+') {
        Some((first, second)) => (first, Some(second)),
        None => (event, None),
    };
    let bad = || {
        Error::BadInput(format!(
            "event `{event}`: a sum takes two raw codes, as in 0x4843+0xff72"
        ))
    };
    let read = raw_code(first)?;
    let read_too = second.map(raw_code).transpose()?;
    match (read, read_too) {
        (Some(read), None) => Ok(Some((read, None))),
        (Some(read), Some(Some(read_too))) => Ok(Some((read, Some(read_too)))),
        (None, None) => Ok(None),
        _ => Err(bad()),
    }
}

/// Parses a raw code such as `0x17` or `0x1b7:config1=0x10800`; `None` for a name.
///
/// # Errors
/// When the text is neither a raw code nor a name.
fn raw_code(event: &str) -> Result<Option<EventCode>, Error> {
    let bad = |why: &str| {
        Error::BadInput(format!(
            "event `{event}`: {why}give a name, such as page-faults, or a raw code, such as 0x17 or 0x1b7:config1=0x10800"
        ))
    };
    let number = |text: &str| {
        let digits = text.strip_prefix("0x").ok_or_else(|| bad(""))?;
        u64::from_str_radix(digits, 16).map_err(|_| bad(""))
    };
    if event.starts_with("0x") {
        let mut parts = event.split(':');
        let mut code = EventCode::raw(number(parts.next().unwrap_or_default())?);
        let mut named = BTreeSet::new();
        for part in parts {
            let (field, value) = part.split_once('=').ok_or_else(|| bad(""))?;
            *match field {
                "config1" => &mut code.config1,
                "config2" => &mut code.config2,
                _ => return Err(bad(&format!("there is no field `{field}`; "))),
            } = number(value)?;
            if !named.insert(field) {
                return Err(bad(&format!("{field} is given twice; ")));
            }
        }
        return Ok(Some(code));
    }
    let well_formed = !event.is_empty()
        && event
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        && !event.bytes().all(|byte| byte.is_ascii_digit());
    if well_formed { Ok(None) } else { Err(bad("")) }
}

/// The code as text, in the form that [`raw_code`] parses.
pub(crate) fn raw_text(code: EventCode) -> String {
    let mut text = format!("{:#x}", code.config);
    for (field, value) in [("config1", code.config1), ("config2", code.config2)] {
        if value != 0 {
            text += &format!(":{field}={value:#x}");
        }
    }
    text
}

/// Refuses reads that two events count, since a core's budgets have two counters.
///
/// # Errors
/// When an event is the sum of two, unknown or malformed.
pub(crate) fn leaves_a_counter(reads: &EventList) -> Result<(), Error> {
    for (name, _) in reads.iter() {
        if coded(name)?.codes.read_too.is_some() {
            return Err(Error::BadInput(format!(
                "event {name} is the sum of two, which leaves no counter for --write-event: leave that out"
            )));
        }
    }
    Ok(())
}

/// Codes of a list of write events, each a raw code or a name. With `bytes`, a named event must stand for that many
/// bytes, as the read event does.
///
/// # Errors
/// When a name is unknown, `cycles` or `instructions`, or stands for another number of bytes.
pub(crate) fn write_codes(
    text: &str,
    bytes: Option<u64>,
) -> Result<Vec<(EventCode, Option<CpuSet>)>, Error> {
    let list: EventList = text.parse()?;
    list.iter()
        .map(|(word, cpus)| {
            let unknown = || {
                Error::BadInput(format!(
                    "write event `{word}`: give its raw code, such as 0x18, or one for each kind of CPU, as in \
                     0x18@0-3,0x2c@4-7"
                ))
            };
            if let Some(code) = raw_code(word)? {
                return Ok((code, cpus.cloned()));
            }
            let coded = named(word).ok_or_else(unknown)?;
            let Codes {
                read,
                read_too,
                write,
            } = coded.codes;
            let code = write.unwrap_or(read);
            if read_too.is_some()
                || matches!(code, EventCode::CYCLES | EventCode::INSTRUCTIONS)
            {
                return Err(unknown());
            }
            match bytes {
                Some(bytes) if bytes != coded.bytes => Err(Error::BadInput(format!(
                    "write event {word}: it is {} bytes of traffic, and a read event {bytes}: give --bytes-per-event",
                    coded.bytes
                ))),
                _ => Ok((code, cpus.cloned())),
            }
        })
        .collect()
}

/// Refuses a field that the CPU's PMU doesn't have, since the kernel ignores some of them silently.
///
/// # Errors
/// When the PMU has no field for `config1` or `config2`, or none for some of its bits.
pub(crate) fn has_fields(root: &Root, cpu: usize, code: EventCode) -> Result<(), Error> {
    for (field, value) in [("config1", code.config1), ("config2", code.config2)] {
        if value == 0 {
            continue;
        }
        let (pmu, bits) = pmu::field_bits(root, cpu, field);
        if value & !bits != 0 {
            return Err(Error::BadInput(format!(
                "event {}: the PMU of CPU {cpu} ({}) has {} for {field}: see its folder format below \
                 /sys/bus/event_source/devices",
                raw_text(code),
                pmu.as_deref().unwrap_or("none"),
                match bits {
                    0 => "no field".to_owned(),
                    bits => format!("fields in bits {bits:#x} alone"),
                },
            )));
        }
    }
    Ok(())
}

/// The event for `options`. If they name none, it is the memory traffic event of the machine's processors. If `counts`
/// says that the machine counts neither that nor `cache-misses`, it is `page-faults`, which every machine has.
///
/// # Errors
/// When a name is unknown or a code malformed, or when no event was given and the processors' own event is unknown or can't
/// be counted here, although `cache-misses` can.
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
    let (list, own) = match options.given_event() {
        Some(text) => (text.parse()?, None),
        None => of_processors(root, options.cpus.as_ref(), counts)?,
    };
    let write_codes = match &options.write_event {
        None => Vec::new(),
        Some(text) => {
            leaves_a_counter(&list)?;
            let first = list.iter().next().map(|(name, _)| coded(name));
            let read_bytes = first.transpose()?.map(|coded| coded.bytes);
            write_codes(
                text,
                read_bytes.filter(|_| options.bytes_per_event.is_none()),
            )?
        }
    };
    if options.bytes_per_event == Some(0) {
        return Err(Error::BadInput("0 bytes per event: give 1 or more".into()));
    }
    let mut bytes = options.bytes_per_event;
    let mut kinds = Vec::new();
    for (name, cpus) in list.iter() {
        let coded = coded(name)?;
        let own_bytes = coded.bytes;
        if options.bytes_per_event.is_none() && bytes.is_some_and(|bytes| bytes != own_bytes) {
            return Err(Error::BadInput(format!(
                "event `{list}`: an event of {name} is {own_bytes} bytes of traffic, and those before it are {}: give \
                 --bytes-per-event",
                bytes.unwrap_or(own_bytes)
            )));
        }
        bytes.get_or_insert(own_bytes);
        if write_codes.is_empty() {
            let codes = coded.codes(options.combined).ok_or_else(|| {
                Error::BadInput(format!(
                    "event {name} counts no write-backs, but a combined budget covers them too: give --write-event \
                     CODE, or the raw code of an event that counts both"
                ))
            })?;
            kinds.push((cpus.cloned(), codes));
        }
        for (code, write_cpus) in &write_codes {
            let cpus = both(cpus, write_cpus.as_ref());
            if cpus.as_ref().is_none_or(|cpus| !cpus.is_empty()) {
                let write = Some(*code);
                kinds.push((
                    cpus,
                    Codes {
                        write,
                        ..coded.codes
                    },
                ));
            }
        }
    }
    let all_write = kinds.iter().all(|(_, codes)| codes.write.is_some());
    if !all_write && !options.combined {
        kinds.iter_mut().for_each(|(_, codes)| codes.write = None);
    }
    let write = match &options.write_event {
        Some(text) => Some(text.parse::<EventList>()?.to_string()),
        None => written(&kinds),
    };
    // A CPU that comes online later may be of another kind, so this kind is limited to the known CPUs.
    if let (Some(online), [(cpus, _)]) = (&own, kinds.as_mut_slice()) {
        cpus.get_or_insert_with(|| online.clone());
    }
    Ok(Event {
        name: list.to_string(),
        write,
        bytes: bytes.unwrap_or(LINE_BYTES),
        kinds,
        own: own.is_some(),
        bytes_given: options.bytes_per_event.is_some(),
        combined: options.combined,
    })
}

/// The CPUs in both sets; `None` stands for all CPUs.
fn both(one: Option<&CpuSet>, other: Option<&CpuSet>) -> Option<CpuSet> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.iter().filter(|&cpu| other.contains(cpu)).collect()),
        (one, other) => one.or(other).cloned(),
    }
}

/// The write events as `--write-event` takes them: one code if all CPUs share it, else a list.
fn written(kinds: &[(Option<CpuSet>, Codes)]) -> Option<String> {
    let codes = kinds.iter().map(|(_, codes)| codes.write.map(raw_text));
    let codes: Vec<String> = codes.collect::<Option<_>>()?;
    let first = codes.first()?;
    if codes.iter().all(|code| code == first) {
        return Some(first.clone());
    }
    let words = kinds.iter().zip(&codes).flat_map(|((cpus, _), code)| {
        let cpus = cpus.as_ref().map_or(String::new(), CpuSet::to_string);
        let ranges: Vec<String> = cpus
            .split(',')
            .map(|range| format!("{code}@{range}"))
            .collect();
        ranges
    });
    Some(words.collect::<Vec<_>>().join(","))
}

/// Looks up a name or a raw code. For a combined budget, a raw code is taken to count both reads and writes.
fn coded(name: &str) -> Result<Coded, Error> {
    match raw_codes(name)? {
        Some((read, read_too)) => {
            let codes = Codes::of(read, read_too);
            Ok(Coded {
                codes,
                combined: Some(codes),
                bytes: LINE_BYTES,
            })
        }
        None if given_event(name).is_none() => Err(Error::BadInput(
            "event `auto` is for all CPUs: leave the list out, or name an event for each of its CPUs".into(),
        )),
        None => named(name).ok_or_else(|| {
            Error::BadInput(format!(
                "event `{name}` is unknown; try armv8, nehalem, cache-misses or page-faults, or a raw code such as 0x17"
            ))
        }),
    }
}

/// The memory traffic events of this machine's processors, and the CPUs for which they are known. If the machine
/// counts neither them nor `cache-misses`, it is `page-faults` on every CPU.
fn of_processors(
    root: &Root,
    cpus: Option<&CpuSet>,
    counts: impl Fn(EventCode) -> bool,
) -> Result<(EventList, Option<CpuSet>), Error> {
    let own = processor::own_events(root, cpus).map_err(Error::platform)?;
    let first = own.as_ref().ok().and_then(|kinds| kinds.first());
    let code = first.and_then(|(event, _)| named(event.name));
    let refused = code.and_then(|coded| coded.codes.of_reads().find(|code| !counts(*code)));
    let has_pmu = code.is_some() && refused.is_none() || counts(EventCode::CACHE_MISSES);
    match (own, refused) {
        _ if !has_pmu => Ok((EventList::all("page-faults"), None)),
        (Ok(kinds), _) if kinds.is_empty() => Err(Error::BadInput(
            "none of the CPUs to regulate is online".into(),
        )),
        // A hypervisor may pass on a part of the processor's PMU only.
        (Ok(kinds), Some(_)) => Err(Error::BadInput(format!(
            "this machine can't count {}'s event {}: a virtual machine's PMU may lack it, or another user of perf may hold it; \
             give --event cache-misses, or page-faults; the self-test tells whether it counts memory traffic",
            kinds[0].0.name,
            kinds[0].0.read_codes()
        ))),
        (Ok(kinds), None) => {
            let known = kinds.iter().flat_map(|(_, cpus)| cpus.iter()).collect();
            Ok((EventList::by_cpu(&kinds), Some(known)))
        }
        (Err(unknown), _) => Err(Error::BadInput(format!(
            "{unknown}: give --event {}, or page-faults; the self-test tells whether it is right, and `memwarden guard events` \
             lists what is known",
            unknown.to_try()
        ))),
    }
}

/// What a guard counts, and which traffic it doesn't limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meaning {
    /// The event counts memory traffic, or traffic that leaves a core's caches.
    pub memory_traffic: bool,
    /// One line, such as `event page-faults counts fresh pages ...`.
    pub text: String,
}

impl Meaning {
    /// Refuses an event that doesn't count memory traffic.
    ///
    /// # Errors
    /// When the event doesn't count memory traffic.
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

/// Processors on which the same name counts different events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Processor {
    Arm,
    Amd,
    Other,
}

/// What the meaning of a name depends on.
#[derive(Debug, Clone, Copy)]
struct Machine<'a> {
    processor: Processor,
    root: &'a Root,
}

impl<'a> Machine<'a> {
    fn of_system(root: &'a Root) -> Self {
        Self {
            processor: Processor::of(root),
            root,
        }
    }

    /// Whether sysfs lists an L3 for these CPUs.
    fn has_l3(self, cpus: Option<&CpuSet>) -> bool {
        let first = cpus.and_then(|cpus| cpus.iter().next()).unwrap_or(0);
        let caches = cache::of_cpu(self.root, first);
        caches.iter().any(|cache| cache.level >= 3)
    }
}

impl Processor {
    fn of(root: &Root) -> Self {
        let info = root.text("/proc/cpuinfo").unwrap_or_default();
        if cfg!(any(target_arch = "aarch64", target_arch = "arm")) {
            Self::Arm
        } else if info.contains("AuthenticAMD") || info.contains("HygonGenuine") {
            Self::Amd
        } else {
            Self::Other
        }
    }
}

/// The first CPU that a regulator with these options regulates.
///
/// # Errors
/// When the list of online CPUs can't be read.
pub(crate) fn first_cpu(options: &StartOptions) -> Result<usize, Error> {
    let online = cpus::online().map_err(Error::platform)?;
    let first = online.iter().find(|&cpu| options.regulates(cpu));
    Ok(first.unwrap_or(0))
}

/// What the guard with these settings counts.
pub fn meaning(control: &Control) -> Meaning {
    tell(
        Machine::of_system(&Root::system()),
        &control.event,
        control.write_event.as_deref(),
        control.combined,
        control.bytes_per_event,
        control.user_only,
    )
}

/// What a user-space regulator counts if it is started with these options.
///
/// # Errors
/// As at the regulator's start.
pub fn meaning_of(options: &StartOptions) -> Result<Meaning, Error> {
    let first = first_cpu(options)?;
    let counts = |code| OverflowCounter::open(first, code, Of::Cpu, options.user_only).is_ok();
    let event = choose(options, counts)?;
    Ok(tell(
        Machine::of_system(&Root::system()),
        &event.name,
        event.write.as_deref().filter(|_| event.combined),
        event.combined,
        event.bytes,
        options.user_only,
    ))
}

/// Describes a processor's own event: memory traffic or not, what it counts, and what its budget doesn't limit.
/// `l3` is whether sysfs lists an L3.
fn of_table(name: &str, bytes: u64, l3: bool) -> (bool, String, String) {
    let Some(event) = events::named(name).filter(|event| event.kind != Kind::None) else {
        return (false, "nothing".into(), "no core is held".into());
    };
    let includes = event.includes;
    let is = |code| event.kind == Kind::Raw && event.read == code;
    let of_l2 = is(ARM_LAST_LEVEL_READ_MISS) && !l3;
    let what = if includes.shared_hits || is(ARM_L2_REFILL) || of_l2 {
        format!("lines that come to the core's own caches ({bytes} bytes each)")
    } else {
        format!("lines that come from memory ({bytes} bytes each)")
    };
    let mut but = Vec::new();
    if includes.shared_hits {
        but.push("hits in a cache behind them count too, so that budgets are stricter than asked");
    } else if is(ARM_L2_REFILL) {
        but.push("where there is an L3, hits in it count too");
    } else if of_l2 {
        but.push(
            "sysfs lists no L3, so hits in a system cache may count too, and budgets are then stricter than asked",
        );
    }
    if is(AMD_DEMAND_FILLS) {
        but.push("lines of prefetch instructions and of code do not count");
    }
    if !includes.prefetches {
        but.push("what hardware prefetchers fetch may not count");
    }
    if !includes.writes {
        but.push("lines that are fetched to be written to do not count");
    }
    if but.is_empty() {
        but.push("what other caches of the system answer may count too");
    }
    (true, what, but.join("; "))
}

/// Describes an event: memory traffic or not, what it counts, and what its budget doesn't limit.
fn tell_of(
    machine: Machine,
    event: &str,
    cpus: Option<&CpuSet>,
    bytes: u64,
) -> (bool, String, String) {
    match (event, machine.processor) {
        ("page-faults" | "soft", _) => (
            false,
            format!("fresh pages ({bytes} bytes each), not memory traffic"),
            "a program that reuses its memory is not held".into(),
        ),
        ("minor-faults", _) => (
            false,
            format!("fresh pages and mapped ones ({bytes} bytes each), not memory traffic"),
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
        (name, _) if events::named(name).is_some() => {
            of_table(name, bytes, machine.has_l3(cpus))
        }
        _ => (
            true,
            match event.contains('+') {
                true => format!("two raw codes, taken to be memory traffic of {bytes} bytes each"),
                false => format!("a raw code, taken to be memory traffic of {bytes} bytes each"),
            },
            "only the self-test can tell whether it is".into(),
        ),
    }
}

fn tell(
    machine: Machine,
    events: &str,
    write_event: Option<&str>,
    combined: bool,
    bytes: u64,
    user_only: bool,
) -> Meaning {
    let list = events.parse().unwrap_or_else(|_| EventList::all(events));
    let mut memory_traffic = true;
    let mut texts = Vec::new();
    for (event, cpus) in list.iter() {
        let (traffic, what, but) = tell_of(machine, event, cpus, bytes);
        memory_traffic &= traffic;
        let whose = cpus.map_or(String::new(), |cpus| format!(" (CPUs {cpus})"));
        texts.push(format!("event {event}{whose} counts {what}: {but}"));
    }
    let mut text = texts.join("; ");
    if combined {
        let writes = match write_event {
            Some(write) => format!("write-backs ({write})"),
            None => "write-backs".to_owned(),
        };
        text += &format!(
            "; {writes} count in the same budget; the traffic of devices is not counted, and non-temporal stores may not be"
        );
    } else if memory_traffic {
        text += &match write_event {
            None => "; write-backs, non-temporal stores and the traffic of devices are not counted"
                .to_owned(),
            Some(write) => format!(
                "; write-backs ({write}) are held where they have a budget; the traffic of devices is not counted, and non-temporal stores may not be"
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
        let nowhere = tempfile::tempdir().unwrap();
        let root = Root::at(nowhere.path());
        let on = |processor| Machine {
            processor,
            root: &root,
        };
        let told = |processor, event| tell(on(processor), event, None, false, 64, false);
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
            (
                Processor::Arm,
                "neoverse-n1",
                true,
                "own caches (64 bytes each): sysfs lists no L3",
            ),
            (Processor::Other, "haswell", true, "stricter than asked"),
            (
                Processor::Other,
                "zen2",
                true,
                "from memory (64 bytes each): lines of prefetch instructions and of code do not count",
            ),
            (
                Processor::Other,
                "clearwaterforest",
                true,
                "prefetchers fetch may not count",
            ),
            (
                Processor::Other,
                "crestmont",
                true,
                "own caches (64 bytes each): hits in a cache behind them count too",
            ),
            (
                Processor::Other,
                "silvermont",
                true,
                "from memory (64 bytes each): what other caches of the system answer may count too",
            ),
            (
                Processor::Other,
                "snb",
                true,
                "fetched to be written to do not count",
            ),
            (Processor::Arm, "apple", false, "nothing"),
            (Processor::Other, "0x412e", true, "counts a raw code"),
            (
                Processor::Other,
                "0x4843+0xff72",
                true,
                "counts two raw codes",
            ),
        ] {
            let meaning = told(processor, event);
            assert_eq!(meaning.memory_traffic, memory_traffic, "{event}");
            assert!(meaning.text.contains(word), "{}", meaning.text);
            assert!(!meaning.text.contains('\n'));
            let required = meaning.require_memory_traffic();
            assert_eq!(required.is_ok(), memory_traffic, "{required:?}");
        }
        let with = |event, write, combined, user_only| {
            tell(on(Processor::Other), event, write, combined, 64, user_only).text
        };
        let text = with("armv8", None, false, false);
        assert!(
            text.ends_with(
                "; write-backs, non-temporal stores and the traffic of devices are not counted"
            ),
            "{text}"
        );
        let text = with("armv8", Some("0x18"), false, true);
        assert!(text.contains("non-temporal stores may not be"), "{text}");
        assert!(text.contains("write-backs (0x18)"), "{text}");
        assert!(text.ends_with("(--user-only)"), "{text}");
        let text = with("armv8", Some("0x18"), true, false);
        assert!(
            text.contains("write-backs (0x18) count in the same budget"),
            "{text}"
        );
        let text = with("core2", None, true, false);
        assert!(
            text.contains("write-backs count in the same budget"),
            "{text}"
        );
    }

    #[test]
    fn with_an_l3_the_last_level_event_counts_what_comes_from_memory() {
        let folder = tempfile::tempdir().unwrap();
        let cache = |cpu: usize, index: usize, level: &str| {
            let cache = folder.path().join(format!(
                "sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            ));
            std::fs::create_dir_all(&cache).unwrap();
            for (file, text) in [
                ("level", level),
                ("type", "Unified"),
                ("shared_cpu_list", "0-3"),
            ] {
                std::fs::write(cache.join(file), text).unwrap();
            }
        };
        let root = Root::at(folder.path());
        let machine = Machine {
            processor: Processor::Arm,
            root: &root,
        };
        let told = |event| tell(machine, event, None, false, 64, false).text;
        cache(0, 2, "2");
        assert!(told("neoverse-n1").contains("hits in a system cache may count"));
        cache(0, 3, "3");
        let text = told("neoverse-n1");
        assert!(text.contains("come from memory"), "{text}");
        assert!(!text.contains("system cache"), "{text}");
        // CPU 4 has no L3.
        let text = told("neoverse-n1@0-3,cortex-a520@4");
        assert!(
            text.contains("(CPUs 4) counts lines that come to the core's own"),
            "{text}"
        );
    }

    #[test]
    fn events_by_name_by_code_and_by_default() {
        assert_eq!(ask(None, None).unwrap().name, "page-faults");
        let nowhere = tempfile::tempdir().unwrap();
        let root = machine(&nowhere, &[]);
        let options = StartOptions::default();
        let refused = choose_on(&root, &options, |_| true)
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("CPU0 (of an unknown kind) is not in the table of events"),
            "{refused}"
        );
        let options = StartOptions {
            event: Some("cache-misses".into()),
            ..options
        };
        let chosen = choose_on(&root, &options, |_| true).unwrap();
        assert_eq!(chosen.name, "cache-misses");
        let arm = ask(Some("cortex-a53"), None).unwrap();
        assert_eq!(arm.write, Some("0x18".into()));
        assert_eq!(arm.on(9).unwrap(), codes(0x17, Some(0x18)));
        let raw = ask(Some("0x2a"), Some("0x2b")).unwrap();
        assert_eq!(raw.on(0).unwrap(), codes(0x2a, Some(0x2b)));
        assert_eq!(raw.bytes, 64);
    }

    fn codes(read: u64, write: Option<u64>) -> Codes {
        Codes {
            read: EventCode::raw(read),
            read_too: None,
            write: write.map(EventCode::raw),
        }
    }

    #[test]
    fn auto_is_no_event_given() {
        let nowhere = tempfile::tempdir().unwrap();
        let a53 = machine(&nowhere, &["0x00000000410fd034"]);
        let options = StartOptions {
            event: Some("auto".into()),
            ..StartOptions::default()
        };
        let auto = choose_on(&a53, &options, |_| true).unwrap();
        let none = choose_on(&a53, &StartOptions::default(), |_| true).unwrap();
        assert_eq!((auto.name.as_str(), &auto), ("cortex-a53", &none));
        assert_eq!(ask(Some("auto"), None).unwrap().name, "page-faults");
        let said = ask(Some("auto@0,0x17@1"), None).unwrap_err().to_string();
        assert!(said.contains("`auto` is for all CPUs"), "{said}");
    }

    #[test]
    fn a_write_event_by_name_counts_writes_in_the_reads_currency() {
        let event = ask(Some("page-faults"), Some("minor-faults")).unwrap();
        assert_eq!(event.write, Some("minor-faults".into()));
        // A processor's name stands for its write-back event.
        let event = ask(Some("cortex-a53"), Some("cortex-a53")).unwrap();
        assert_eq!(event.on(0).unwrap(), codes(0x17, Some(0x18)));
        let said = ask(Some("cortex-a53"), Some("page-faults")).unwrap_err();
        assert!(said.to_string().contains(&format!(
            "{} bytes of traffic, and a read event 64",
            page_bytes()
        )));
        for other in ["cycles", "instructions"] {
            let said = ask(Some("cortex-a53"), Some(other)).unwrap_err();
            assert!(said.to_string().contains("give its raw code"), "{said}");
        }
    }

    #[test]
    fn a_fault_stands_for_a_page_of_this_kernel() {
        let bytes = |name, page_bytes| {
            of_row(events::named(name).unwrap(), page_bytes).map(|coded| coded.bytes)
        };
        for page in [4 << 10, 16 << 10, 64 << 10] {
            assert_eq!(bytes("page-faults", page), Some(page));
            assert_eq!(bytes("minor-faults", page), Some(page));
            assert_eq!(bytes("armv8", page), Some(64));
        }
        let faults = ask(Some("page-faults"), None).unwrap();
        assert_eq!(
            faults.bytes,
            memwarden_platform::mapping::page_bytes() as u64
        );
    }

    #[test]
    fn each_cpu_counts_its_own_event() {
        let event = ask(Some("cortex-a53@0-1,0x2a@2"), None).unwrap();
        assert_eq!(event.on(1).unwrap(), codes(0x17, None));
        assert_eq!(event.on(2).unwrap(), codes(0x2a, None));
        // One of the events counts no writes, so no CPU has a write budget.
        assert_eq!(event.write, None);
        let said = event.on(3).unwrap_err().to_string();
        assert!(said.contains("CPU 3 has none"), "{said}");
        let event = ask(Some("cortex-a53@0-1,cortex-a72@2"), None).unwrap();
        assert_eq!(event.on(2).unwrap(), codes(0x17, Some(0x18)));
        assert_eq!(event.write, Some("0x18".into()));
        let event = ask(Some("cortex-a53@0,0x2a@1"), Some("0x61")).unwrap();
        assert_eq!(event.on(0).unwrap(), codes(0x17, Some(0x61)));
        assert_eq!(event.write, Some("0x61".into()));
        // A budget is in bytes, so events of different sizes need --bytes-per-event.
        let said = ask(Some("page-faults@0,0x17@1"), None).unwrap_err();
        assert!(said.to_string().contains("--bytes-per-event"), "{said}");
        // Several write events, each on its CPUs.
        let event = ask(Some("0x17@0-1,0x2a@2-3"), Some("0x18@0-1,0x2c@2-3")).unwrap();
        assert_eq!(event.on(1).unwrap(), codes(0x17, Some(0x18)));
        assert_eq!(event.on(3).unwrap(), codes(0x2a, Some(0x2c)));
        assert_eq!(event.write, Some("0x18@0-1,0x2c@2-3".into()));
        let event = ask(Some("0x17"), Some("0x18@0,0x2c@2")).unwrap();
        assert_eq!(event.on(2).unwrap(), codes(0x17, Some(0x2c)));
        let said = event.on(1).unwrap_err().to_string();
        assert!(said.contains("CPU 1 has none"), "{said}");
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine {
            processor: Processor::Arm,
            root: &Root::at(folder.path()),
        };
        let text = tell(
            machine,
            "cortex-a53@0-1,page-faults@2",
            None,
            false,
            64,
            false,
        );
        assert!(!text.memory_traffic, "{text:?}");
        assert!(text.text.contains("(CPUs 0-1)") && text.text.contains("(CPUs 2)"));
    }

    #[test]
    fn one_budget_over_both_takes_one_event_where_there_is_one() {
        let ask = |event: &str, write: Option<&str>| {
            let options = StartOptions {
                event: Some(event.to_owned()),
                write_event: write.map(str::to_owned),
                combined: true,
                ..StartOptions::default()
            };
            choose(&options, |_| false)
        };
        let two = ask("cortex-a53", None).unwrap();
        assert_eq!(two.on(0).unwrap(), codes(0x17, Some(0x18)));
        assert!(two.combined && !two.has_write_budgets());
        assert_eq!(two.write.as_deref(), Some("0x18"));
        let one = ask("core2", None).unwrap();
        assert_eq!(one.on(0).unwrap(), codes(0x406e, None));
        assert_eq!(one.write, None);
        // A single raw code is taken to count both; the self-test checks that.
        assert_eq!(ask("0x19", None).unwrap().on(0).unwrap(), codes(0x19, None));
        let asked = ask("0x17", Some("0x18")).unwrap();
        assert_eq!(asked.on(0).unwrap(), codes(0x17, Some(0x18)));
        let faults = ask("page-faults", Some("minor-faults")).unwrap();
        assert_eq!(
            faults.on(0).unwrap(),
            Codes {
                read: EventCode::PAGE_FAULTS,
                read_too: None,
                write: Some(EventCode::MINOR_FAULTS),
            }
        );
        // One CPU counts with two events, the other with one.
        let mixed = ask("cortex-a53@0,0x19@1", None).unwrap();
        assert_eq!(mixed.on(0).unwrap(), codes(0x17, Some(0x18)));
        assert_eq!(mixed.on(1).unwrap(), codes(0x19, None));
        for event in ["cortex-a76", "page-faults", "cortex-a53@0,cortex-a76@1"] {
            let said = ask(event, None).unwrap_err().to_string();
            assert!(said.contains("give --write-event CODE"), "{said}");
        }
    }

    #[test]
    fn two_events_count_one_budget_of_reads() {
        let both = Codes {
            read: EventCode::raw(0x4843),
            read_too: Some(EventCode::raw(0xff72)),
            write: None,
        };
        for text in ["zen4", "0x4843+0xff72", "zen1@0-3,0x4843+0xff72@4-7"] {
            let event = ask(Some(text), None).unwrap();
            assert_eq!((event.on(0).unwrap(), event.write), (both, None), "{text}");
        }
        let event = ask(Some("0x1b7:config1=0x1+0x18"), None).unwrap();
        let codes = event.kinds[0].1;
        assert_eq!(
            (codes.read.config1, codes.read_too.unwrap().config),
            (1, 0x18)
        );
        for (text, why) in [
            ("0x17+", "a raw code"),
            ("+0x17", "a raw code"),
            ("0x17+0x18+0x19", "a raw code"),
            ("0x17+armv8", "a sum takes two raw codes"),
            ("armv8+0x17", "a sum takes two raw codes"),
        ] {
            let said = ask(Some(text), None).unwrap_err().to_string();
            assert!(said.contains(why), "{text}: {said}");
        }
        // There is no third counter for writes, neither in a budget of their own nor in a combined one.
        for combined in [false, true] {
            let options = StartOptions {
                event: Some("0x60+0x17".into()),
                write_event: Some("0x18".into()),
                combined,
                ..StartOptions::default()
            };
            let said = choose(&options, |_| false).unwrap_err().to_string();
            assert!(
                said.contains("leaves no counter for --write-event"),
                "{said}"
            );
        }
        let said = ask(Some("cortex-a53"), Some("zen4")).unwrap_err();
        assert!(said.to_string().contains("give its raw code"), "{said}");
        // A combined budget takes a sum to count both directions; a processor's own sum has no writes.
        let options = |event: &str| StartOptions {
            event: Some(event.to_owned()),
            combined: true,
            ..StartOptions::default()
        };
        let sum = choose(&options("0x60+0x61"), |_| false).unwrap();
        assert_eq!(sum.on(0).unwrap().read_too, Some(EventCode::raw(0x61)));
        assert!(choose(&options("zen4"), |_| false).is_err());
    }

    #[test]
    fn a_cpu_that_comes_online_later_counts_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let (a53, a76) = ("0x00000000410fd034", "0x00000000414fd0b1");
        let a72 = "0x00000000410fd083";
        let root = machine(&folder, &[a53, a53, a76, "0x00000000611f0230", a72]);
        let online = folder.path().join("sys/devices/system/cpu/online");
        std::fs::write(&online, "0-1").unwrap();
        let event = choose_on(&root, &StartOptions::default(), |_| true).unwrap();
        assert_eq!(event.name, "cortex-a53");
        assert_eq!(event.on_below(&root, 1).unwrap(), codes(0x17, Some(0x18)));
        let said = event.on_below(&root, 2).unwrap_err().to_string();
        assert!(
            said.contains("CPU 2 does not count as the others"),
            "{said}"
        );
        let said = event.on_below(&root, 3).unwrap_err().to_string();
        assert!(said.contains("counts no memory traffic"), "{said}");
        assert_eq!(event.on_below(&root, 4).unwrap(), codes(0x17, Some(0x18)));
        // Unregulated CPUs are not examined.
        std::fs::write(&online, "0-3").unwrap();
        let options = StartOptions {
            cpus: Some([0, 2].into_iter().collect()),
            ..StartOptions::default()
        };
        let event = choose_on(&root, &options, |_| true).unwrap();
        assert_eq!(event.name, "cortex-a53@0,cortex-a76@2");
    }

    #[test]
    fn a_code_has_more_fields_where_its_pmu_has_them() {
        let code = raw_code("0x1b7:config1=0x10800").unwrap().unwrap();
        assert_eq!(
            (code.config, code.config1, code.config2),
            (0x1b7, 0x10800, 0)
        );
        assert_eq!(raw_text(code), "0x1b7:config1=0x10800");
        for (text, why) in [
            ("0x1b7:config3=0x1", "no field `config3`"),
            ("0x1b7:config1=1", "give a name"),
            ("0x1b7:config1", "give a name"),
            ("0x1b7:config1=0x1:config1=0x2", "config1 is given twice"),
        ] {
            let said = raw_code(text).unwrap_err().to_string();
            assert!(said.contains(why), "{text}: {said}");
        }
        let folder = tempfile::tempdir().unwrap();
        pmu_of(&folder, "cpu", None);
        let root = Root::at(folder.path());
        has_fields(&root, 0, code).unwrap();
        let refused = |text: &str| {
            let code = raw_code(text).unwrap().unwrap();
            has_fields(&root, 0, code).unwrap_err().to_string()
        };
        let said = refused("0x1b7:config2=0x1");
        assert!(said.contains("(cpu) has no field for config2"), "{said}");
        let said = refused("0x1b7:config1=0x4000000000");
        assert!(said.contains("bits 0x8000003fffffffff alone"), "{said}");
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

    /// Intel's PMU of these CPUs, or of all.
    fn pmu_of(folder: &tempfile::TempDir, name: &str, cpus: Option<&str>) {
        let pmu = folder
            .path()
            .join("sys/bus/event_source/devices")
            .join(name);
        std::fs::create_dir_all(pmu.join("format")).unwrap();
        std::fs::write(pmu.join("format/event"), "config:0-7\n").unwrap();
        std::fs::write(pmu.join("format/offcore_rsp"), "config1:0-37,63\n").unwrap();
        if let Some(cpus) = cpus {
            std::fs::write(pmu.join("cpus"), cpus).unwrap();
        }
    }

    #[test]
    fn a_hybrids_core_types_count_their_own_events() {
        let folder = tempfile::tempdir().unwrap();
        let cpu = |cpu: usize| {
            format!(
                "processor\t: {cpu}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 170\nmodel name\t: x\n"
            )
        };
        let root = machine_of(&folder, &(0..3).map(cpu).collect::<Vec<_>>().join("\n"));
        std::fs::write(folder.path().join("sys/devices/system/cpu/online"), "0-2\n").unwrap();
        pmu_of(&folder, "cpu_core", Some("0\n"));
        pmu_of(&folder, "cpu_atom", Some("1-2\n"));
        let event = choose_on(&root, &StartOptions::default(), |_| true).unwrap();
        assert_eq!(event.name, "meteorlake@0,crestmont@1-2");
        let read = |cpu| event.on_below(&root, cpu).unwrap().read;
        assert_eq!(
            [read(0), read(2)],
            [EventCode::raw(0x412e), EventCode::raw(0x1e25)]
        );
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
        let chosen = |midrs: &[&str], counts| -> Result<_, Error> {
            let folder = tempfile::tempdir().unwrap();
            let event = choose_on(&machine(&folder, midrs), &StartOptions::default(), |_| {
                counts
            })?;
            let read = event.on(0)?.read;
            Ok((event.name, read))
        };
        let (a53, a73) = ("0x00000000410fd034", "0x00000000411fd091");
        let (a55, a76) = ("0x00000000412fd050", "0x00000000414fd0b1");
        let l2_refill = EventCode::raw(0x17);
        assert_eq!(
            chosen(&[a53], true).unwrap(),
            ("cortex-a53".into(), l2_refill)
        );
        assert_eq!(
            chosen(&[a73, a53], true).unwrap(),
            ("cortex-a73@0,cortex-a53@1".into(), l2_refill)
        );
        assert_eq!(
            chosen(&[a55, a76], true).unwrap(),
            ("cortex-a55@0,cortex-a76@1".into(), EventCode::raw(0x2a))
        );
        assert_eq!(chosen(&[a53], false).unwrap().0, "page-faults");
        // Last-level caches: an L2 on one CPU, an L3 on the other.
        let both = chosen(&[a53, a76], true).unwrap();
        assert_eq!(both, ("cortex-a53@0,cortex-a76@1".into(), l2_refill));
        // Another vendor's core with an Arm part number, an Apple core, and an unknown core.
        for other in ["0x00000000510fd034", "0x00000000611f0230", ""] {
            let said = chosen(&[a53, other], true).unwrap_err().to_string();
            assert!(
                said.starts_with("CPU1 (maker") && said.contains("--event armv8"),
                "{said}"
            );
            assert!(!said.contains('\n'));
        }
    }

    #[test]
    fn a_processor_whose_event_is_refused_names_others() {
        let folder = tempfile::tempdir().unwrap();
        let root = machine_of(
            &folder,
            "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 26\nmodel name\t: x\n",
        );
        pmu_of(&folder, "cpu", None);
        let without = |lacking: fn(EventCode) -> bool| {
            choose_on(&root, &StartOptions::default(), |code| !lacking(code))
        };
        let said = without(|code| code.config1 != 0).unwrap_err().to_string();
        assert!(
            said.contains("can't count nehalem-ep's event 0x1b7:config1=0xf877")
                && said.contains("--event cache-misses"),
            "{said}"
        );
        assert_eq!(without(|_| false).unwrap().name, "nehalem-ep");
        assert_eq!(without(|_| true).unwrap().name, "page-faults");
    }

    #[test]
    fn an_x86_processor_has_its_own_and_an_unknown_one_is_refused() {
        let chosen = |cpuinfo: &str| {
            let folder = tempfile::tempdir().unwrap();
            let root = machine_of(&folder, cpuinfo);
            pmu_of(&folder, "cpu", None);
            let event = choose_on(&root, &StartOptions::default(), |_| true)?;
            let read = event.on_below(&root, 0)?.read;
            Ok::<_, Error>((event.name, read))
        };
        let of = |maker, family: u32, model: u32| {
            format!(
                "processor\t: 0\nvendor_id\t: {maker}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: x\n"
            )
        };
        for (maker, family, model, name, code) in [
            (
                "GenuineIntel",
                6,
                0x1a,
                "nehalem-ep",
                EventCode {
                    config1: 0xf877,
                    ..EventCode::raw(0x01b7)
                },
            ),
            ("GenuineIntel", 6, 0x3c, "haswell", EventCode::raw(0x07f1)),
            (
                "GenuineIntel",
                6,
                0xcf,
                "emeraldrapids",
                EventCode::raw(0x412e),
            ),
            // A hybrid whose cores have one PMU, as in some virtual machines.
            ("GenuineIntel", 6, 0x97, "alderlake", EventCode::raw(0x412e)),
            ("AuthenticAMD", 25, 0x61, "zen4", EventCode::raw(0x4843)),
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
        // 32-bit Arm: /proc/cpuinfo describes each CPU separately.
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
        let event = choose_on(&root, &StartOptions::default(), |_| true).unwrap();
        assert_eq!(event.name, "cortex-a53@0,cortex-a76@1");
        assert_eq!(chosen("isa\t\t: rv64imafdc\n").unwrap().0, "riscv");
        let said = chosen("cpu\t: POWER9\n").unwrap_err().to_string();
        assert!(
            said.contains("is not in the table of events: give --event cache-misses"),
            "{said}"
        );
    }

    #[test]
    fn what_is_no_event_is_refused() {
        for (event, write) in [
            (Some("z80"), None),
            (Some("17"), None),
            (Some("0x"), None),
            (Some(""), None),
            (Some("a b"), None),
            (None, Some("z80")),
            (None, Some("0xg")),
        ] {
            assert!(ask(event, write).is_err(), "{event:?} {write:?}");
        }
    }
}
