// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings of the deadline case, from TOML or from options.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use memwarden_guard::StartOptions;
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::units::{Size, Time, or_empty};
use memwarden_platform::{Root, as_text, cache};
use memwarden_run::studies::realtime::{Summary, Whole};
use memwarden_sim::Platform;
use memwarden_workloads::remarks;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::load::Load;
use crate::guards::{Guarding, proven, start_options};
use crate::program::Delimiter;
use crate::settings::{not_empty, not_twice, not_zero, usable, usable_or_first};
use crate::workload::{USUAL_BYTES, program, size_in_memory};
use crate::{Backend, Error, GuardSpec, RunRequest, Settings, Simulated, Workload};

/// A guard's settings, or `none`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting(pub Option<GuardSpec>);

impl FromStr for Setting {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "none" => Ok(Self(None)),
            _ => Ok(Self(Some(text.parse()?))),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("none"),
            Some(spec) => spec.fmt(f),
        }
    }
}

as_text!(Setting);

/// The experiment's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The task: `bandwidth:KIND` over its frame, or a user's program, `cmd: COMMAND`.
    #[schemars(with = "String")]
    pub victim: Workload,
    /// Delimiter of a program's jobs.
    pub jobs_by: Delimiter,
    /// The task's CPU.
    pub victim_cpu: usize,
    /// The frame's size, as `-m` takes it: KiB, or with a unit.
    #[schemars(with = "String")]
    pub frame: Size,
    /// Frames in memory; the jobs alternate between them.
    pub frames: u64,
    /// Time between two releases of the task.
    #[schemars(with = "String")]
    pub period: Time,
    /// Time from a release to its deadline.
    #[schemars(with = "String")]
    pub deadline: Time,
    /// Releases in each run.
    pub jobs: u64,
    /// Run the task under SCHED_FIFO with locked memory.
    pub rt: bool,
    /// Loads beside the task; each is measured separately.
    #[schemars(with = "Vec<String>")]
    pub load: Vec<Load>,
    /// The load's CPUs; empty means the first CPU of another core in the task's package.
    #[schemars(with = "String")]
    pub cpus: CpuSet,
    /// The load's buffer, if it has one; empty means the frame of a screen, or four times the last-level cache.
    #[serde(with = "or_empty")]
    #[schemars(with = "String")]
    pub load_memory: Option<Size>,
    /// Guard settings to compare; `none` is one of them.
    #[schemars(with = "Vec<String>")]
    pub guard: Vec<Setting>,
    /// Runs of each case; cases under the same guard alternate.
    pub repeat: u32,
    /// The regulator.
    #[schemars(with = "String")]
    pub backend: Backend,
    /// The kernel module's file on this machine; none uses the installed one.
    #[serde(skip)]
    pub module: Option<PathBuf>,
    /// The event that the guard counts; empty uses the guard's default.
    pub event: String,
    /// The event that counts write-backs; empty uses the guard's default.
    pub write_event: String,
    /// Whether each core has one budget for reads and write-backs together.
    pub combined: bool,
    /// Bytes that one event stands for; 0 uses the guard's default.
    pub bytes_per_event: u64,
    /// The guard's period.
    #[schemars(with = "String")]
    pub guard_period: Time,
    /// Prove that the guard regulates before the first case.
    pub self_test: bool,
    /// Fail if the guard's event is not memory traffic.
    pub require_memory_event: bool,
    /// Time between the start of a load and the start of the task.
    #[schemars(with = "String")]
    pub settle: Time,
    /// A command to run at the first miss of each case; empty means none.
    pub on_miss: String,
}

/// The case study's frame: 1920 x 1080 pixels of 4 bytes.
pub(super) const STUDY_FRAME: Size = Size::kib(8100);

/// The case study's period.
pub(super) const STUDY_PERIOD: Time = Time::ms(20);

/// The case study's deadline.
pub(super) const STUDY_DEADLINE: Time = Time::ms(13);

/// Bandwidth that the case study's memory guarantees and its guard distributes, MiB/s.
const GUARANTEED_MIB_S: usize = 1200;

/// The task's priority: above everything that is not real-time, and the same as that of interrupt threads. The guard
/// throttles all priorities alike.
const PRIORITY: u32 = 50;

impl Default for Config {
    fn default() -> Self {
        Self {
            victim: Workload::Bandwidth("read".into()),
            jobs_by: Delimiter::Mark,
            victim_cpu: 0,
            frame: STUDY_FRAME,
            frames: 1,
            period: STUDY_PERIOD,
            deadline: STUDY_DEADLINE,
            jobs: 1000,
            rt: true,
            load: vec![Load::screen()],
            cpus: CpuSet::default(),
            load_memory: None,
            guard: vec![Setting(None)],
            repeat: 1,
            backend: Backend::Auto,
            module: None,
            event: String::new(),
            write_event: String::new(),
            combined: false,
            bytes_per_event: 0,
            guard_period: Time::ms(1),
            self_test: true,
            require_memory_event: false,
            // Longer than a load's first passes, much shorter than a run.
            settle: Time::ms(100),
            on_miss: String::new(),
        }
    }
}

impl Settings for Config {
    type Whole = Whole;

    const COMMAND: &str = "realtime";

    /// The platform of the published case.
    const PLATFORM: Option<&'static str> = Some("xeon-w3530");

    /// The victim runs on CPU 0 if this process may.
    fn for_native() -> Result<Self, Error> {
        let config = Self::default();
        Ok(Self {
            victim_cpu: usable_or_first(config.victim_cpu, &usable()?),
            ..config
        })
    }

    /// The case study with fewer jobs: its frame, period and deadline, more frames than a last-level cache of 8 MiB can
    /// hold, and its guard settings, which give the task a half or three quarters of the guaranteed bandwidth and the
    /// other cores the rest.
    fn for_modelled(platform: &Platform) -> Self {
        let others = platform.machine.cores.saturating_sub(1).max(1);
        let guarded = [(600, ""), (600, "+ps"), (900, ""), (900, "+ps")].map(|(task, mode)| {
            let other = format!(",{}", (GUARANTEED_MIB_S - task) / others);
            format!("{task}{}{mode}", other.repeat(others))
        });
        let settings = std::iter::once("none").chain(guarded.iter().map(String::as_str));
        Self {
            // The case study's task compares the pixels that it reads.
            victim: Workload::Bandwidth("compare".into()),
            frames: 4,
            jobs: 50,
            load: vec![Load::screen()],
            guard: settings.flat_map(str::parse).collect(),
            backend: Backend::Module,
            event: platform.memory_event().into(),
            settle: Time::ms(10),
            ..Self::default()
        }
    }

    /// Enough jobs for percentiles.
    fn for_sim() -> Self {
        Self {
            jobs: 200,
            ..Self::default()
        }
    }

    /// The emulated machine's caches set no size: its loads have the workloads' default, also if that fits in a cache.
    fn to_guest_toml(&self) -> Result<String, Error> {
        let mut config = self.clone();
        config.record_load_memory(Size::of_bytes(USUAL_BYTES));
        config.to_toml()
    }

    fn check_cores(&self, simulated: &Simulated) -> Result<(), Error> {
        simulated.has("--victim-cpu", [self.victim_cpu])?;
        simulated.has("--cpus", self.cpus.iter())
    }

    fn simulate(
        &self,
        simulated: &Simulated,
        request: RunRequest,
    ) -> Result<(PathBuf, Summary), Error> {
        super::simulate(self, simulated, request)
    }

    fn check_real(&self) -> Result<(), Error> {
        let mut guards = self.guard.iter().filter_map(|setting| setting.0.as_ref());
        guards.try_for_each(GuardSpec::check_real)?;
        self.load.iter().try_for_each(|load| match load {
            Load::Workload(workload) => workload.check_real(),
            _ => Ok(()),
        })
    }

    fn check(&self) -> Result<(), Error> {
        let bad = |text: String| Err(Error::BadInput(text));
        if !matches!(self.victim, Workload::Bandwidth(_) | Workload::Program(_)) {
            return bad(format!(
                "--victim {}: give bandwidth:KIND, as a job goes once over a frame, or 'cmd: COMMAND'",
                self.victim
            ));
        }
        not_zero("--jobs", self.jobs)?;
        not_zero("--frames", self.frames)?;
        not_zero("--repeat", self.repeat)?;
        not_empty(
            &self.guard,
            "no guard setting: give --guard none, for example",
        )?;
        not_twice("--load", &self.load)?;
        not_twice("--guard", &self.guard)?;
        if self.cpus.contains(self.victim_cpu) {
            return bad(format!(
                "CPU {} is both --victim-cpu and one of the load's --cpus {}",
                self.victim_cpu, self.cpus
            ));
        }
        if self.deadline.is_zero() || self.deadline > self.period {
            return bad(format!(
                "--deadline {}: give one above 0 and not above the task's --period {}",
                self.deadline, self.period
            ));
        }
        self.start_options().map(|_| ())
    }
}

impl Config {
    /// The options that start the guard.
    pub(super) fn start_options(&self) -> Result<StartOptions, Error> {
        start_options(
            &self.event,
            &self.write_event,
            self.combined,
            self.bytes_per_event,
            self.guard_period,
        )
    }

    /// The guard of the cases, which proves itself on the cores that they use.
    pub(super) fn guarding(&self) -> Result<Guarding, Error> {
        Ok(Guarding {
            backend: self.backend,
            module: self.module.clone(),
            options: self.start_options()?,
            period_option: "--guard-period",
            require_memory_event: self.require_memory_event,
            proven: proven(self.backend, self.self_test, self.victim_cpu, &self.cpus),
        })
    }

    /// The default buffer of a load other than a screen, on this machine.
    pub(super) fn usual_load_memory(&self, root: &Root) -> Size {
        let cpu = self.cpus.iter().next().unwrap_or(self.victim_cpu);
        size_in_memory(root, cpu, self.cpus.len() as u64 + 1)
    }

    /// Makes `usual` the size of the loads, for the run's record, unless one of them is a screen with its own default.
    pub(super) fn record_load_memory(&mut self, usual: Size) {
        let has_buffer = |load: &Load| matches!(load, Load::Workload(_));
        if self.load.iter().any(has_buffer) && !self.load.contains(&Load::screen()) {
            self.load_memory.get_or_insert(usual);
        }
    }

    /// The buffer of a load, which is `usual` by default; none if the load sets it by itself.
    pub(super) fn load_buffer(&self, load: &Load, usual: Size) -> Option<Size> {
        match load {
            Load::Xserver | Load::Command(_) => None,
            // A screen has a fixed size.
            load if *load == Load::screen() => Some(self.load_memory.unwrap_or(STUDY_FRAME)),
            Load::Workload(_) => Some(self.load_memory.unwrap_or(usual)),
        }
    }

    /// A note if the last-level cache holds the load's buffers beside the task's frame.
    pub(super) fn load_in_cache(&self, load: &Load, usual: Size, root: &Root) -> Option<String> {
        if matches!(load, Load::Workload(workload) if workload.makes_faults()) {
            return None;
        }
        let buffer = self.load_buffer(load, usual)?;
        let cpu = self.cpus.iter().next()?;
        let cache = cache::last_level(root, cpu)?;
        let loads = self.cpus.iter().filter(|cpu| cache.cpus.contains(*cpu));
        let task = match self.victim {
            Workload::Bandwidth(_) if cache.cpus.contains(self.victim_cpu) => self.frame.bytes(),
            _ => 0,
        };
        let all = buffer
            .bytes()
            .saturating_mul(loads.count() as u64)
            .saturating_add(task);
        let enough = Size::of_bytes(remarks::memory_bytes(root, cpu)?);
        (all <= cache.size_bytes?).then(|| {
            format!(
                "The load {load} moves little memory: its buffer of {buffer} fits in this machine's {cache} (CPUs {}) beside \
                 the task's frame. With --load-memory {enough} it would move memory.",
                cache.cpus
            )
        })
    }

    /// The command-line arguments that run the user's program.
    fn program(&self, line: &str) -> Vec<String> {
        let mut more = vec![
            ("--period", self.period.to_string()),
            ("--deadline", self.deadline.to_string()),
        ];
        if self.rt {
            more.push(("-r", PRIORITY.to_string()));
        }
        if !self.on_miss.is_empty() {
            more.push(("--tell-miss", String::new()));
        }
        program(line, self.victim_cpu, self.jobs_by, self.jobs, &more)
    }

    /// The command-line arguments that run the task.
    pub(super) fn task(&self) -> Vec<String> {
        let access = match &self.victim {
            Workload::Bandwidth(access) => access,
            Workload::Program(line) => return self.program(line),
            _ => return Vec::new(),
        };
        let mut words: Vec<String> = ["periodic", "--json", "-a"].map(String::from).into();
        words.push(access.clone());
        let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
        option("-c", self.victim_cpu.to_string());
        option("-m", self.frame.to_string());
        option("--frames", self.frames.to_string());
        option("--period", self.period.to_string());
        option("--deadline", self.deadline.to_string());
        option("--jobs", self.jobs.to_string());
        if self.rt {
            option("-r", PRIORITY.to_string());
        }
        if !self.on_miss.is_empty() {
            words.push("--tell-miss".into());
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;
    use crate::workload::tests::machine;

    #[test]
    fn defaults_round_trip_through_toml() {
        let xeon = Platform::find("xeon-w3530").unwrap();
        for config in [Config::default(), Config::for_modelled(&xeon)] {
            config.check().unwrap();
            let back =
                settings::tests::read(&config.to_toml().unwrap(), &Config::default()).unwrap();
            assert_eq!(back, config);
        }
        assert_eq!(Config::for_modelled(&xeon).guard.len(), 5);
    }

    #[test]
    fn a_load_exceeds_the_cache_or_a_note_says_that_it_fits() {
        let folder = machine(32 << 10, 16 << 20);
        let root = Root::at(folder.path());
        let write: Load = "bandwidth:write".parse().unwrap();
        let with = |load_memory| Config {
            cpus: [1].into_iter().collect(),
            load_memory,
            ..Config::default()
        };
        let size = |config: &Config, load: &Load| {
            let usual = config.usual_load_memory(&root);
            let noted = config.load_in_cache(load, usual, &root);
            let size = config.load_buffer(load, usual).map(|size| size.to_string());
            (size, noted.unwrap_or_default())
        };
        let (by_cache, given) = (with(None), with(Some(Size::of_bytes(USUAL_BYTES))));
        assert_eq!(
            size(&by_cache, &write),
            (Some("128M".into()), String::new())
        );
        assert_eq!(size(&by_cache, &Load::Xserver), (None, String::new()));
        let (memory, noted) = size(&given, &write);
        assert_eq!(memory.unwrap(), "16M");
        assert_eq!(
            noted,
            "The load bandwidth:write moves little memory: its buffer of 16M fits in this machine's L3 32 MiB (CPUs 0-3) \
             beside the task's frame. With --load-memory 128M it would move memory."
        );
        let (memory, noted) = size(&by_cache, &Load::screen());
        assert_eq!(memory.unwrap(), STUDY_FRAME.to_string());
        assert!(
            noted.starts_with("The load screen moves little memory"),
            "{noted}"
        );
        // The study's L3 holds the screen or the frame, not both.
        let study = machine(8 << 10, 16 << 20);
        let study = Root::at(study.path());
        assert_eq!(
            by_cache.load_in_cache(&Load::screen(), STUDY_FRAME, &study),
            None
        );
    }

    #[test]
    fn the_emulated_machine_s_loads_keep_their_size() {
        let sent = |load: &str| {
            let config = Config {
                load: vec![load.parse().unwrap()],
                ..Config::default()
            };
            let sent = config.to_guest_toml().unwrap();
            settings::tests::read(&sent, &Config::default())
                .unwrap()
                .load_memory
        };
        assert_eq!(sent("screen"), None);
        assert_eq!(sent("xserver"), None);
        assert_eq!(sent("bandwidth:write"), Some(Size::of_bytes(USUAL_BYTES)));
    }

    #[test]
    fn the_study_s_frame_is_a_full_screen() {
        assert_eq!(STUDY_FRAME.bytes(), 1920 * 1080 * 4);
    }

    #[test]
    fn a_task_without_privileges_asks_for_none() {
        let line = |config: Config| config.task().join(" ");
        let all = line(Config {
            on_miss: "date".into(),
            ..Config::default()
        });
        assert_eq!(
            all,
            "periodic --json -a read -c 0 -m 8100K --frames 1 --period 20ms --deadline 13ms --jobs 1000 -r 50 --tell-miss"
        );
        let little = line(Config {
            rt: false,
            ..Config::default()
        });
        assert!(little.ends_with("--jobs 1000"), "{little}");
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config {
                cpus: (1..4).collect(),
                ..Config::default()
            };
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(with(|c| c.victim = Workload::Latency).contains("--victim latency"));
        assert!(with(|c| c.jobs = 0).contains("--jobs"));
        assert!(with(|c| c.repeat = 0).contains("--repeat"));
        assert!(with(|c| c.guard.clear()).contains("--guard none"));
        assert!(with(|c| c.guard.push(Setting(None))).contains("--guard none is given twice"));
        assert!(with(|c| c.load.push(c.load[0].clone())).contains("given twice"));
        assert!(with(|c| c.victim_cpu = 1).contains("CPU 1 is both"));
        assert!(with(|c| c.frames = 0).contains("--frames 0"));
        assert!(with(|c| c.deadline = Time::ms(21)).contains("--deadline 21ms"));
        assert!(with(|c| c.deadline = Time::ZERO).contains("--deadline 0s"));
        assert!(with(|c| c.guard_period = Time::ms(2000)).contains("period 2s"));
    }
}
