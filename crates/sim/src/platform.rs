// SPDX-License-Identifier: MIT OR Apache-2.0
//! Machines with a name: cores, caches, controller, memory, the cost of the regulator's
//! reactions and the time of the workloads' own instructions, in one TOML file
//! (`crates/machines/machines/`, whose crate has the fields and their ranges).
//!
//! The file's table `[fit]` lists the numbers that no datasheet gives, each with its plausible
//! range; a calibration changes only these. Its table `[counters]` is for the modelled counters.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memwarden_machines::{File, Half};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dram::mapping::AddressMap;
use crate::dram::{Controller, ControllerError, ControllerSettings, Memory, MemoryError};
use crate::machine::{Machine, MachineError};
use crate::main_memory::MainMemory;
use crate::regulator::{Guard, Reaction};
use crate::settings::MachineSettings;
use crate::trace::{Request, TraceError};
use crate::traced::{Heard, Traced};
use crate::workload::{Chase, InBank, Scroll, ScrollSettings, Stream, USES, Workload, split_bank};

/// The platform's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

/// A cache's line, which the memory moves in one burst.
const LINE_BYTES: u64 = 64;

/// As large as a buffer can be.
fn all_at_once() -> u64 {
    1 << 30
}

/// A machine with a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// The file's `[counters]`, as TOML: only [`to_toml`](Self::to_toml) needs it.
    #[serde(skip)]
    counters: String,
    /// The file's folder, from which the memory file is searched.
    #[serde(skip)]
    folder: PathBuf,
}

/// Why a platform cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlatformError {
    /// Its file cannot be read or is invalid, or there is none.
    #[error(transparent)]
    File(#[from] memwarden_machines::Error),
    /// Its memory is not available.
    #[error("memory.name")]
    Memory(#[from] MemoryError),
    /// Its controller is not possible.
    #[error("controller")]
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
    #[error("workload trace")]
    Trace(#[from] TraceError),
    /// A run that is not possible.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

/// A message with its causes, in one text.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let messages: Vec<String> = causes.map(ToString::to_string).collect();
    messages.join(": ")
}

impl PlatformError {
    /// Its message with its causes, in one text.
    #[must_use]
    pub fn with_causes(&self) -> String {
        with_causes(self)
    }
}

/// The names of the machines that come with the program and can be simulated.
#[must_use]
pub fn names() -> Vec<&'static str> {
    memwarden_machines::names(Half::Times)
}

impl Machine<Controller> {
    /// Advances simulated time to `until_ps`. This is [`Machine::advance`], compiled in this
    /// crate and with this crate's optimisation, not the caller's.
    pub fn run_until(&mut self, until_ps: u64) {
        self.advance(until_ps);
    }
}

impl Machine<Heard<'_, Controller>> {
    /// The same for a machine of [`Platform::heard_machine`].
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
        let (path, text) = memwarden_machines::find(name, Half::Times)?;
        Self::parse(&path, &text)
    }

    /// A platform from the text of the file `path`.
    ///
    /// # Errors
    /// All errors in the text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, PlatformError> {
        let mut file = File::read(path, text, Half::Times)?;
        let mut platform: Self = file.data(&["counters"])?;
        platform.counters = file.data::<Counters>(&[])?.text();
        platform.folder = path.parent().unwrap_or(Path::new("")).to_owned();
        platform.check(&mut file);
        file.finish()?;
        Ok(platform)
    }

    /// Each field's own range is checked already; these are the conditions on several fields
    /// together, and those of the simulator alone.
    fn check(&self, file: &mut File) {
        self.check_memory(file);
        self.check_controller(file);
        let mut fault = |field: &str, why: String| file.fault(field, field, why);
        let core = &self.machine.core;
        if self.machine.line_bytes != LINE_BYTES {
            fault("machine.line_bytes", format!("has to be {LINE_BYTES}"));
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
            let mut fault = |path: &str, why| file.fault(&format!("fit.{path}"), path, why);
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

    /// The memory's own errors, and whether it suits the machine.
    fn check_memory(&self, file: &mut File) {
        let name = "memory.name";
        let memory = match self.memory() {
            Ok(memory) => memory,
            Err(error) => {
                for line in with_causes(&error).lines() {
                    file.fault(name, name, line);
                }
                return;
            }
        };
        let organisation = &memory.organisation;
        let burst = organisation.burst_bytes();
        if burst != LINE_BYTES {
            let why = format!(
                "a burst of {} moves {burst} bytes: bus_bits / 8 x burst_length has to be a line, {LINE_BYTES} bytes",
                memory.name
            );
            file.fault(name, name, why);
        }
        if let Err(error) = AddressMap::new(organisation, &memory.mapping) {
            let path = "memory.channels";
            file.fault(path, path, with_causes(&error));
        }
        let (bytes, most) = (self.machine.memory_bytes, organisation.capacity_bytes());
        if bytes > most {
            let path = "machine.memory_bytes";
            let why = format!("is {bytes}: has to be at most {most}, the size of its memory");
            file.fault(path, path, why);
        }
    }

    fn check_controller(&self, file: &mut File) {
        let Err(ControllerError::Range {
            name,
            found,
            min,
            max,
        }) = self.controller.check()
        else {
            return;
        };
        let path = format!("controller.{name}");
        // A default may be out of a range that another field sets.
        let limits = ["controller.write_high", "controller.write_depth"];
        let mut places = std::iter::once(path.as_str()).chain(limits);
        let place = places.find(|place| file.has(place)).unwrap_or(&path);
        let why = format!("is {found}: has to be from {min} to {max}");
        file.fault(place, &path, why);
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
    pub fn heard_machine<'a>(
        &self,
        workloads: Vec<Box<dyn Workload>>,
        guard: Option<&Guard>,
        seed: u64,
        hear: impl FnMut(Request) + 'a,
    ) -> Result<Machine<Heard<'a, Controller>>, PlatformError> {
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

    /// The platform as a file for [`find`](Self::find), with the `[counters]` of its own file. A
    /// memory file is searched from the folder of that file.
    ///
    /// # Panics
    /// Never: the platform is plain data.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let simulated = toml::to_string(self).expect("plain data");
        if self.counters.is_empty() {
            return simulated;
        }
        format!("{simulated}\n{}", self.counters)
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
        platform.counters.clone_from(&self.counters);
        platform
    }
}

/// The table of a file that the simulator keeps without reading it.
#[derive(Serialize, Deserialize)]
struct Counters {
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<toml::Table>,
}

impl Counters {
    fn text(&self) -> String {
        toml::to_string(self).expect("plain data")
    }
}

#[cfg(test)]
mod tests;
