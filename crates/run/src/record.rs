// SPDX-License-Identifier: MIT OR Apache-2.0
//! run.json: what ran, where, and how.

use std::sync::OnceLock;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::schema;

static GIT_REVISION: OnceLock<String> = OnceLock::new();

/// Sets the source revision that the program was built from; every later [`Run::new`] records it. The program calls it
/// once at its start; a second call changes nothing.
pub fn set_git_revision(revision: &str) {
    if !revision.is_empty() {
        let _ = GIT_REVISION.set(revision.to_owned());
    }
}

/// The current time as RFC 3339 in UTC, to the millisecond.
pub fn now_rfc3339() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

/// run.json: the record of one run (schema `memwarden.run/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Always [`schema::RUN`].
    pub schema: String,
    /// The experiment: `interfere`, `bench-guard`, ...
    pub experiment: String,
    /// Where it ran: `native`, `lab`, `sim:PLATFORM`.
    pub target: String,
    /// The full effective configuration, defaults included.
    #[serde(default)]
    pub configuration: Map<String, Value>,
    /// The command line as typed, program first.
    pub command_line: Vec<String>,
    /// Time of the start (RFC 3339).
    pub started: String,
    /// Time of the end (RFC 3339); null in an interrupted run.
    #[serde(default)]
    pub ended: Option<String>,
    /// Version of memwarden.
    pub version: String,
    /// Source revision that memwarden was built from, if known.
    #[serde(default)]
    pub git_revision: Option<String>,
    /// The machine of the experiment: in the lab, the emulated one.
    #[serde(default)]
    pub host: Host,
    /// With target `lab`: facts of the emulated machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lab: Option<LabFacts>,
    /// With target `sim:PLATFORM`: the complete platform file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Value>,
    /// Additions of later versions or single experiments.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Run {
    /// The record of a run that starts now, with this process's command line and an empty configuration.
    pub fn new(experiment: impl Into<String>, target: impl Into<String>) -> Self {
        Self {
            schema: schema::RUN.into(),
            experiment: experiment.into(),
            target: target.into(),
            configuration: Map::new(),
            command_line: command_line(),
            started: now_rfc3339(),
            ended: None,
            version: env!("CARGO_PKG_VERSION").into(),
            git_revision: GIT_REVISION.get().cloned(),
            host: Host::default(),
            lab: None,
            platform: None,
            more: Map::new(),
        }
    }

    /// The same record with these settings as its configuration.
    #[must_use]
    pub fn with_settings(mut self, settings: &impl Serialize) -> Self {
        if let Ok(Value::Object(settings)) = serde_json::to_value(settings) {
            self.configuration = settings;
        }
        self
    }
}

/// This process's command line as text: bytes that are not UTF-8 appear as U+FFFD.
#[must_use]
pub fn command_line() -> Vec<String> {
    std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

/// Facts of the machine; an unknown one is null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// CPU model, as the system reports it.
    #[serde(default)]
    pub cpu_model: Option<String>,
    /// Machine architecture: `aarch64`, `x86_64`.
    #[serde(default)]
    pub architecture: Option<String>,
    /// CPUs online.
    #[serde(default)]
    pub cores: Option<u32>,
    /// The caches, each once.
    #[serde(default)]
    pub caches: Vec<Cache>,
    /// Memory in bytes.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Kernel release and version.
    #[serde(default)]
    pub kernel: Option<String>,
    /// Frequency governor.
    #[serde(default)]
    pub governor: Option<String>,
    /// True on a virtual machine.
    #[serde(default)]
    pub virtualised: Option<bool>,
    /// Available counters by event name.
    #[serde(default)]
    pub counters: Vec<String>,
    /// Available regulators: `module`, `user`.
    #[serde(default)]
    pub regulators: Vec<String>,
    /// Other facts.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// One cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cache {
    /// 1, 2, 3.
    pub level: u32,
    /// `data`, `instruction`, `unified`.
    pub kind: String,
    /// Size in bytes.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Line size in bytes.
    #[serde(default)]
    pub line_bytes: Option<u64>,
    /// Ways of associativity.
    #[serde(default)]
    pub ways: Option<u64>,
    /// CPUs that share it, as a list: `0-3`.
    #[serde(default)]
    pub cpus: Option<String>,
}

/// Facts of the emulated machine of a run in the lab.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LabFacts {
    /// Release of the guest's kernel.
    pub kernel: String,
    /// QEMU's machine: `virt`, `xlnx-zcu102`.
    pub machine: String,
    /// QEMU's version.
    pub qemu_version: String,
    /// `counted` (time counts each CPU's instructions, repeatable) or `free` (follows the host's clock). Runs from
    /// before November 2026 call the first `parallel`; there `counted` counted all CPUs' instructions together.
    pub clock: String,
    /// Other facts.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl LabFacts {
    /// The clock in today's words: runs from before November 2026 have `parallel` for `counted`, and a `counted` clock on
    /// which the CPUs shared one stream of instructions.
    #[must_use]
    pub fn clock_name(&self) -> &str {
        match self.clock.as_str() {
            "parallel" => "counted",
            "counted" if self.more.contains_key("tick_us") => "counted, CPUs in turns",
            clock => clock,
        }
    }
}
