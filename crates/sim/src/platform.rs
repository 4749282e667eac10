// SPDX-License-Identifier: MIT OR Apache-2.0
//! Machines with a name: cores, caches, controller, memory, the cost of the regulator's
//! reactions and the time of the workloads' own instructions, in one TOML file.
//!
//! A file is checked as a whole: every invalid field is reported with its line and its allowed
//! values. Its table `[fit]` lists the numbers that no datasheet gives, each with its plausible
//! range; a calibration changes only these.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::de::{DeTable, DeValue};

use crate::dram::controller::MAX_IDLE_PS;
use crate::dram::{Controller, ControllerError, ControllerSettings, Memory, MemoryError};
use crate::faults::{Fault, Listed};
use crate::machine::{Machine, MachineError};
use crate::main_memory::MainMemory;
use crate::regulator::{Guard, Reaction};
use crate::settings::{CacheSettings, MachineSettings};
use crate::trace::{Request, TraceError};
use crate::traced::{Heard, Traced};
use crate::workload::{Chase, InBank, Scroll, ScrollSettings, Stream, USES, Workload, split_bank};

/// The platforms that come with the program: name and file.
const BUILT_IN: [(&str, &str); 4] = [
    (
        "raspberry-pi-3",
        include_str!("../platforms/raspberry-pi-3.toml"),
    ),
    (
        "raspberry-pi-4",
        include_str!("../platforms/raspberry-pi-4.toml"),
    ),
    ("xeon-6426y", include_str!("../platforms/xeon-6426y.toml")),
    ("xeon-w3530", include_str!("../platforms/xeon-w3530.toml")),
];

/// The platform's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryChoice {
    /// The name of one that comes with the program, or a file, relative to the platform file's
    /// folder.
    pub name: String,
    /// Number of channels, if it differs from the memory file's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<u64>,
}

/// Times of the workloads' own work between two accesses, ps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// `latency`: a load of its chase.
    pub chase_ps: u64,
    /// `bandwidth`: a line.
    pub line_ps: u64,
    /// The periodic task: a line of its frame.
    pub frame_ps: u64,
    /// Whether the task needs a line before it requests the next.
    pub frame_depends: bool,
    /// The X server: a line that it scrolls.
    pub xserver_ps: u64,
    /// The X server: drawing of a scroll, which causes almost no traffic; on average.
    pub xserver_draw_ps: u64,
    /// The X server: its pause after drawing, on average.
    pub xserver_pause_ps: u64,
    /// The X server: bytes moved by a scroll.
    pub xserver_bytes: u64,
    /// The X server: bytes moved in one burst, after which it draws its part of the scroll; by
    /// default all.
    #[serde(default = "all_at_once")]
    pub xserver_burst_bytes: u64,
}

fn all_at_once() -> u64 {
    SIZE
}

/// A machine with a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// Its name.
    pub name: String,
    /// The CPU type of the lab's emulator that executes for its cores, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulated_as: Option<String>,
    /// Its memory.
    pub memory: MemoryChoice,
    /// Its cores and caches.
    pub machine: MachineSettings,
    /// Its memory controller.
    pub controller: ControllerSettings,
    /// The cost of regulation.
    pub reaction: Reaction,
    /// The time of the workloads' own instructions.
    pub work: Work,
    /// The numbers that no datasheet gives, each with its plausible range.
    #[serde(default)]
    pub fit: BTreeMap<String, [u64; 2]>,
    /// The file's folder, from which the memory file is searched.
    #[serde(skip)]
    folder: PathBuf,
}

/// Why a platform cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlatformError {
    /// The file cannot be read.
    #[error("reading {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file has invalid values.
    #[error("{}", Listed(.path, .faults))]
    Faults {
        /// The file.
        path: PathBuf,
        /// All of its errors.
        faults: Vec<Fault>,
    },
    /// No platform of that name comes with the program.
    #[error("there is no platform \"{name}\"; there are {}, or give a file", names().collect::<Vec<_>>().join(", "))]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// Its memory is not available.
    #[error("memory.name: {0}")]
    Memory(#[from] MemoryError),
    /// Its controller is not possible.
    #[error("controller: {0}")]
    Controller(#[from] ControllerError),
    /// A workload that the model doesn't have.
    #[error(
        "the simulator has no workload \"{name}\"; it has latency, xserver, trace:FILE and {}",
        USES.map(|uses| format!("bandwidth:{}", uses.0)).join(", ")
    )]
    Workload {
        /// The requested name.
        name: String,
    },
    /// A trace that a core cannot replay.
    #[error("workload trace: {0}")]
    Trace(#[from] TraceError),
    /// A run that is not possible.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

/// The names of the platforms that come with the program.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|platform| platform.0)
}

impl Machine<Controller> {
    /// Advances simulated time to `until_ps`. This is [`Machine::advance`], compiled in this
    /// crate and with this crate's optimisation, not the caller's.
    pub fn run_until(&mut self, until_ps: u64) {
        self.advance(until_ps);
    }
}

impl Platform {
    /// The event of the emulated PMU that counts the lines that a core brings from memory: if
    /// the second level is the last, its refills, which the guard calls armv8; with three
    /// levels, those of the third (0x2A, L3D_CACHE_REFILL).
    #[must_use]
    pub fn memory_event(&self) -> &'static str {
        match self.machine.core.l2 {
            None => "armv8",
            Some(_) => "0x2a",
        }
    }

    /// A platform that comes with the program, or from a file: a name with a `/` in it or with
    /// the ending `.toml` is a file.
    ///
    /// # Errors
    /// When there is no platform of that name, or the file is invalid.
    pub fn find(name: &str) -> Result<Self, PlatformError> {
        if name.contains('/') || name.ends_with(".toml") {
            let path = Path::new(name);
            let text = std::fs::read_to_string(path).map_err(|source| PlatformError::Read {
                path: path.to_owned(),
                source,
            })?;
            return Self::parse(path, &text);
        }
        let known = BUILT_IN.iter().find(|platform| platform.0 == name);
        let (name, text) = known.ok_or_else(|| PlatformError::Unknown { name: name.into() })?;
        Self::parse(Path::new(name), text)
    }

    /// A platform from the text of the file `path`.
    ///
    /// # Errors
    /// All errors in the text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, PlatformError> {
        let mut faults = match DeTable::parse(text) {
            Ok(table) => judge(text, table.get_ref()),
            Err(error) => vec![Fault::syntax(text, &error)],
        };
        if faults.is_empty() {
            match toml::from_str::<Self>(text) {
                Ok(mut platform) => {
                    platform.folder = path.parent().unwrap_or(Path::new("")).to_owned();
                    platform.check(text, &mut faults);
                    if faults.is_empty() {
                        // The errors of the memory and of the controller.
                        platform.controller()?;
                        return Ok(platform);
                    }
                }
                Err(error) => faults.push(Fault::syntax(text, &error)),
            }
        }
        faults.sort_by_key(|fault| fault.line);
        Err(PlatformError::Faults {
            path: path.to_owned(),
            faults,
        })
    }

    /// Each field's own range is checked already; these are the conditions on several fields
    /// together.
    fn check(&self, text: &str, faults: &mut Vec<Fault>) {
        let table = DeTable::parse(text);
        let mut leaves = Vec::new();
        if let Ok(table) = &table {
            flatten("", table.get_ref(), &mut leaves);
        }
        let mut fault_at = |place: &str, field: &str, why: String| {
            let at = leaves.iter().find(|leaf| leaf.0 == place);
            let at = at.map_or(0, |leaf| leaf.1);
            faults.push(Fault::at(text, at, field, why));
        };
        let mut fault = |field: &str, why: String| fault_at(field, field, why);
        let line = self.machine.line_bytes;
        let core = &self.machine.core;
        let size = |cache: CacheSettings| (cache.size_bytes, cache.ways);
        let caches = [
            ("machine.core.l1d", Some(size(core.l1d))),
            (
                "machine.core.l1i",
                core.l1i.map(|l1i| (l1i.size_bytes, l1i.ways)),
            ),
            ("machine.core.l2", core.l2.map(size)),
            (
                "machine.shared.cache",
                Some(size(self.machine.shared.cache)),
            ),
        ];
        for (name, cache) in caches {
            if let Some((bytes, ways)) = cache {
                if (bytes % (line * ways as u64)) != 0 {
                    let why = format!("has to be a multiple of {ways} ways of {line} bytes");
                    fault(&format!("{name}.size_bytes"), why);
                }
            }
        }
        if self.emulated_as.is_some() && core.l1i.is_none() {
            let why = "needs a table [machine.core.l1i]: the CPU's instruction cache";
            fault("emulated_as", why.into());
        }
        let (parts, ways) = (
            &self.machine.shared.partitions,
            self.machine.shared.cache.ways,
        );
        if !parts.is_empty()
            && (parts.len() != self.machine.cores || parts.iter().sum::<usize>() > ways)
        {
            let why = format!(
                "has to be a number of ways for each of the {} cores, at most the cache's {ways} together",
                self.machine.cores
            );
            fault("machine.shared.partitions", why);
        }
        for (path, [least, most]) in &self.fit {
            let mut fault = |path: &str, why| fault_at(&format!("fit.{path}"), path, why);
            match self.get(path) {
                Some(value) if (*least..=*most).contains(&value) => {}
                Some(value) => {
                    let why = format!("{path} is {value}: has to be from {least} to {most}");
                    fault(path, why);
                }
                None => fault(path, "there is no such number to fit".into()),
            }
        }
    }

    /// Its memory, with the platform's number of channels.
    ///
    /// # Errors
    /// When there is no such memory.
    pub fn memory(&self) -> Result<Memory, MemoryError> {
        let name = &self.memory.name;
        let mut memory = if name.ends_with(".toml") {
            Memory::read(&self.folder.join(name))?
        } else {
            Memory::named(name)?
        };
        if let Some(channels) = self.memory.channels {
            memory.organisation.channels = channels;
            // The address fields that choose among one have no bits; those of several channels
            // must be named.
            if channels > 1 && !memory.mapping.order.iter().any(|name| name == "channel") {
                let place = memory.mapping.order.len() - 1;
                memory.mapping.order.insert(place, "channel".into());
            }
        }
        Ok(memory)
    }

    /// Its memory with its controller, at time 0.
    ///
    /// # Errors
    /// When the memory or the controller is not possible.
    pub fn controller(&self) -> Result<Controller, PlatformError> {
        Ok(Controller::new(&self.memory()?, &self.controller)?)
    }

    /// The machine at time 0, with a workload for each of its first cores; the others
    /// are idle. `seed` spreads the workloads' pages over memory.
    ///
    /// # Errors
    /// When there are more workloads than cores, they don't fit, or a budget is invalid.
    pub fn machine(
        &self,
        workloads: Vec<Box<dyn Workload>>,
        guard: Option<&Guard>,
        seed: u64,
    ) -> Result<Machine<Controller>, PlatformError> {
        self.machine_with(self.controller()?, workloads, guard, seed)
    }

    /// The same, with `hear` called for each request to the memory.
    ///
    /// # Errors
    /// As [`machine`](Self::machine).
    pub fn heard_machine<F: FnMut(Request)>(
        &self,
        workloads: Vec<Box<dyn Workload>>,
        guard: Option<&Guard>,
        seed: u64,
        hear: F,
    ) -> Result<Machine<Heard<Controller, F>>, PlatformError> {
        self.machine_with(Heard::new(self.controller()?, hear), workloads, guard, seed)
    }

    fn machine_with<M: MainMemory>(
        &self,
        memory: M,
        mut workloads: Vec<Box<dyn Workload>>,
        guard: Option<&Guard>,
        seed: u64,
    ) -> Result<Machine<M>, PlatformError> {
        while workloads.len() < self.machine.cores {
            workloads.push(Box::new(crate::workload::Idle));
        }
        Ok(Machine::new(
            &self.machine,
            memory,
            workloads,
            guard,
            self.reaction,
            seed,
        )?)
    }

    /// A workload by its name in the experiments: `latency` or `bandwidth:KIND`, each also with
    /// `:bank=N`, or `xserver`, with its buffer; the size of `trace:FILE` comes from the file.
    ///
    /// # Errors
    /// When the workload isn't modelled, or the trace is invalid.
    pub fn workload(
        &self,
        name: &str,
        bytes: u64,
        seed: u64,
    ) -> Result<Box<dyn Workload>, PlatformError> {
        let (line, work) = (self.machine.line_bytes, &self.work);
        if let Some((kind, bank)) = split_bank(name) {
            return Ok(Box::new(InBank::new(
                self.workload(kind, bytes, seed)?,
                bank,
            )));
        }
        if let Some(file) = name.strip_prefix("trace:") {
            let memory_bytes = self.machine.memory_bytes;
            return Ok(Box::new(Traced::open(Path::new(file), memory_bytes)?));
        }
        let kind = name.strip_prefix("bandwidth:");
        let uses = USES.iter().find(|uses| Some(uses.0) == kind);
        Ok(match (name, uses) {
            ("latency", _) => Box::new(Chase::new(bytes.max(2 * line), line, work.chase_ps, seed)),
            ("xserver", _) => {
                let settings = ScrollSettings {
                    bytes: work.xserver_bytes,
                    line_ps: work.xserver_ps,
                    burst_bytes: work.xserver_burst_bytes,
                    draw_ps: work.xserver_draw_ps,
                    pause_ps: work.xserver_pause_ps,
                };
                Box::new(Scroll::new(settings, bytes, line, seed))
            }
            (_, Some((_, uses))) => Box::new(Stream::of(uses, bytes, line, work.line_ps)),
            _ => {
                return Err(PlatformError::Workload { name: name.into() });
            }
        })
    }

    /// The platform as a file for [`find`](Self::find). A memory file is searched from the
    /// folder of that file.
    ///
    /// # Panics
    /// Never: the platform is plain data.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("plain data")
    }

    /// The folder of its file, from which a memory file is searched.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A number of the platform by its path, such as `machine.shared.mshrs`.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<u64> {
        let all = toml::Table::try_from(self).ok()?;
        let mut at = &toml::Value::Table(all);
        for word in path.split('.') {
            at = at.as_table()?.get(word)?;
        }
        u64::try_from(at.as_integer()?).ok()
    }

    /// Why the platform's file could not have that value at this path, if it couldn't.
    pub(crate) fn refuses(path: &str, value: u64) -> Option<String> {
        let known = KNOWN.iter().find(|known| known.path == path)?;
        match known.holds {
            Holds::Whole(min, max) if !(min..=max).contains(&value) => Some(known.holds.what()),
            _ => None,
        }
    }

    /// The same platform with one number changed.
    ///
    /// # Panics
    /// When there is no number at that path; [`get`](Self::get) tells whether there is.
    #[must_use]
    pub fn with(&self, path: &str, value: u64) -> Self {
        fn set(table: &mut toml::Table, path: &str, value: i64) {
            match path.split_once('.') {
                None => {
                    table.insert(path.into(), value.into());
                }
                Some((first, rest)) => {
                    let inner = table.get_mut(first).and_then(toml::Value::as_table_mut);
                    set(inner.expect("a table"), rest, value);
                }
            }
        }
        let mut all = toml::Table::try_from(self).expect("a platform is a table");
        let value = i64::try_from(value).expect("small numbers");
        set(&mut all, path, value);
        let mut platform: Self = all.try_into().expect("still a platform");
        platform.folder.clone_from(&self.folder);
        platform
    }
}

/// The type of a field.
#[derive(Debug, Clone, Copy)]
enum Holds {
    Whole(u64, u64),
    Flag,
    Text,
    Words(&'static [&'static str]),
    /// Numbers of ways of a cache, for each core.
    Partitions,
    /// A page policy.
    Policy,
}

/// A field of a platform file.
struct Known {
    path: &'static str,
    holds: Holds,
    /// Whether it may be missing: it belongs to an optional table, or has a default.
    optional: bool,
}

const fn whole(path: &'static str, min: u64, max: u64) -> Known {
    Known {
        path,
        holds: Holds::Whole(min, max),
        optional: false,
    }
}

const fn of(path: &'static str, holds: Holds) -> Known {
    Known {
        path,
        holds,
        optional: false,
    }
}

const fn optional(known: Known) -> Known {
    Known {
        optional: true,
        ..known
    }
}

/// CPU types of the lab's emulator that have a PMU and no instructions whose accesses it cannot
/// see.
const CPUS: [&str; 4] = ["cortex-a53", "cortex-a72", "cortex-a76", "neoverse-n1"];

/// A microsecond in ps: longer than any delay between a core and its memory.
const US: u64 = 1_000_000;
/// A second in ps.
const S: u64 = 1_000_000 * US;
const SIZE: u64 = 1 << 30;

/// Optional tables; if one of a table's fields is present, all must be.
const GROUPS: [&str; 4] = [
    "machine.core.l1i.",
    "machine.core.l2.",
    "machine.core.prefetcher.",
    "machine.dma.",
];

const KNOWN: &[Known] = &[
    of("name", Holds::Text),
    optional(of("emulated_as", Holds::Words(&CPUS))),
    of("memory.name", Holds::Text),
    optional(whole("memory.channels", 1, 16)),
    whole("machine.cores", 1, 32),
    whole("machine.line_bytes", 64, 64),
    whole("machine.memory_bytes", 1 << 20, 1 << 36),
    of("machine.core.in_order", Holds::Flag),
    whole("machine.core.issue_ps", 50, US),
    whole("machine.core.mshrs", 1, 64),
    whole("machine.core.prefetch_mshrs", 0, 64),
    whole("machine.core.tlb_entries", 0, 65536),
    whole("machine.core.page_walk_ps", 0, US),
    whole("machine.core.l1d.size_bytes", 1024, SIZE),
    whole("machine.core.l1d.ways", 1, 64),
    whole("machine.core.l1d.hit_ps", 50, US),
    whole("machine.core.l1i.size_bytes", 1024, SIZE),
    whole("machine.core.l1i.ways", 1, 64),
    whole("machine.core.l1i.prefetch_lines", 0, 64),
    whole("machine.core.l2.size_bytes", 1024, SIZE),
    whole("machine.core.l2.ways", 1, 64),
    whole("machine.core.l2.hit_ps", 50, US),
    of("machine.core.prefetcher.into", Holds::Words(&["l1d", "l2"])),
    whole("machine.core.prefetcher.streams", 1, 64),
    whole("machine.core.prefetcher.trigger_steps", 1, 64),
    whole("machine.core.prefetcher.degree", 1, 64),
    whole("machine.core.prefetcher.distance", 1, 64),
    whole("machine.shared.cache.size_bytes", 1024, SIZE),
    whole("machine.shared.cache.ways", 1, 64),
    whole("machine.shared.cache.hit_ps", 50, US),
    whole("machine.shared.mshrs", 1, 256),
    whole("machine.shared.write_backs", 1, 256),
    optional(of("machine.shared.partitions", Holds::Partitions)),
    of("machine.shared.inclusive", Holds::Flag),
    whole("machine.shared.to_memory_ps", 0, US),
    whole("machine.shared.from_memory_ps", 0, US),
    optional(whole("machine.shared.port_ps", 0, US)),
    whole("machine.dma.outstanding", 1, 64),
    whole("machine.dma.port_ps", 0, US),
    of("machine.dma.coherent", Holds::Flag),
    optional(whole("controller.read_depth", 1, 1024)),
    optional(whole("controller.write_depth", 1, 1024)),
    optional(whole("controller.row_hit_cap", 0, 1 << 20)),
    optional(whole("controller.write_high", 1, 1024)),
    optional(whole("controller.write_low", 0, 1023)),
    optional(whole("controller.writes_per_drain", 1, 1 << 20)),
    optional(whole("controller.reads_per_turn", 1, 1 << 20)),
    optional(whole("controller.write_idle_ps", 0, MAX_IDLE_PS)),
    optional(of("controller.page_policy", Holds::Policy)),
    whole("reaction.overflow_ps", 0, 1000 * US),
    whole("reaction.throttle_ps", 0, 1000 * US),
    whole("reaction.release_ps", 0, 1000 * US),
    whole("reaction.period_overhead_ps", 0, 1000 * US),
    whole("work.chase_ps", 0, US),
    whole("work.line_ps", 0, US),
    whole("work.frame_ps", 0, US),
    of("work.frame_depends", Holds::Flag),
    whole("work.xserver_ps", 0, US),
    whole("work.xserver_draw_ps", 0, S),
    whole("work.xserver_pause_ps", 0, S),
    whole("work.xserver_bytes", 64, SIZE),
    optional(whole("work.xserver_burst_bytes", 64, SIZE)),
];

impl Holds {
    fn allows(self, value: &DeValue) -> bool {
        match self {
            Self::Whole(min, max) => value
                .as_integer()
                .and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok())
                .is_some_and(|number| (min..=max).contains(&number)),
            Self::Flag => value.as_bool().is_some(),
            Self::Text => value.as_str().is_some_and(|text| !text.is_empty()),
            Self::Words(words) => value.as_str().is_some_and(|text| words.contains(&text)),
            Self::Partitions => {
                let way = Self::Whole(1, 64);
                let ways = value.as_array();
                ways.is_some_and(|ways| ways.iter().all(|ways| way.allows(ways.get_ref())))
            }
            Self::Policy => value
                .as_str()
                .is_some_and(|text| ["open", "closed"].contains(&text)),
        }
    }

    fn what(self) -> String {
        match self {
            Self::Whole(min, max) if min == max => format!("has to be {min}"),
            Self::Whole(min, max) => format!("has to be a whole number from {min} to {max}"),
            Self::Flag => "has to be true or false".into(),
            Self::Text => "has to be a text".into(),
            Self::Words(words) => format!("has to be one of {}", words.join(", ")),
            Self::Partitions => "has to be a list of whole numbers from 1 to 64".into(),
            Self::Policy => {
                "has to be \"open\", \"closed\" or a table page_policy.timeout with idle_ps".into()
            }
        }
    }
}

/// All errors in single fields.
fn judge(text: &str, file: &DeTable) -> Vec<Fault> {
    let mut leaves: Vec<(String, usize, &DeValue)> = Vec::new();
    flatten("", file, &mut leaves);
    let mut faults = Vec::new();
    for (path, at, value) in &leaves {
        if let Some(fitted) = path.strip_prefix("fit.") {
            let known = KNOWN.iter().find(|known| known.path == fitted);
            let range = value.as_array().filter(|array| array.len() == 2);
            let allowed = match (known.map(|known| known.holds), range) {
                (Some(Holds::Whole(min, max)), Some(range)) => {
                    let holds = Holds::Whole(min, max);
                    range.iter().all(|bound| holds.allows(bound.get_ref()))
                }
                _ => false,
            };
            if !allowed {
                let why = match known.map(|known| known.holds) {
                    Some(Holds::Whole(min, max)) => {
                        format!("has to be [LEAST, MOST] between {min} and {max}")
                    }
                    _ => "is not a number of a platform: name one by its path, in quotes".into(),
                };
                faults.push(Fault::at(text, *at, path, why));
            }
            continue;
        }
        if path == "controller.page_policy.timeout.idle_ps" {
            let holds = Holds::Whole(0, S);
            if !holds.allows(value) {
                faults.push(Fault::at(text, *at, path, holds.what()));
            }
            continue;
        }
        match KNOWN.iter().find(|known| known.path == path) {
            None => {
                let table = path.rsplit_once('.').map_or("", |(table, _)| table);
                let there = KNOWN.iter().filter_map(|known| {
                    let (group, name) = known.path.rsplit_once('.').unwrap_or(("", known.path));
                    (group == table).then_some(name)
                });
                let there: Vec<&str> = there.collect();
                let why = if there.is_empty() {
                    "is not known".to_owned()
                } else {
                    format!("is not known; known are {}", there.join(", "))
                };
                faults.push(Fault::at(text, *at, path, why));
            }
            Some(known) if !known.holds.allows(value) => {
                faults.push(Fault::at(text, *at, path, known.holds.what()));
            }
            Some(_) => {}
        }
    }
    for known in KNOWN {
        let there = |path: &str| leaves.iter().any(|leaf| leaf.0.starts_with(path));
        let group = GROUPS.iter().find(|group| known.path.starts_with(**group));
        let wanted = group.map_or(!known.optional, |group| there(group));
        if wanted && !leaves.iter().any(|leaf| leaf.0 == known.path) {
            let table = known.path.rsplit_once('.').map_or("", |(table, _)| table);
            let at = leaves.iter().find(|leaf| leaf.0.starts_with(table));
            let why = format!("is missing: {}", known.holds.what());
            let at = at.map_or(0, |leaf| leaf.1);
            faults.push(Fault::at(text, at, known.path, why));
        }
    }
    faults
}

/// All values except tables, with their path and position.
fn flatten<'t, 'i>(
    prefix: &str,
    table: &'t DeTable<'i>,
    leaves: &mut Vec<(String, usize, &'t DeValue<'i>)>,
) {
    for (key, value) in table {
        let path = format!("{prefix}{}", key.get_ref());
        match value.get_ref() {
            DeValue::Table(inner) => flatten(&format!("{path}."), inner, leaves),
            other => leaves.push((path, key.span().start, other)),
        }
    }
}

#[cfg(test)]
mod tests;
