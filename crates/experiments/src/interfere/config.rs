// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings of the interference experiment, from TOML or from options.

use std::path::PathBuf;
use std::time::Duration;

use memwarden_guard::StartOptions;
use memwarden_platform::Root;
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::units::{Size, Time, or_empty};
use memwarden_run::studies::interfere::{Summary, Whole};
use memwarden_sim::Platform;
use memwarden_workloads::remarks;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::guards::{Guarding, proven, start_options};
use crate::program::Delimiter;
use crate::settings::{not_empty, not_twice, not_zero, usable, usable_or_first};
use crate::workload::{Task, Until, program, size_in_memory};
use crate::{Backend, Error, GuardSpec, RunRequest, Settings, Simulated, Workload};

/// The fair server of Linux 6.12 and later reserves 50 ms of each second for ordinary tasks. If a budget leaves a core
/// less, the server runs such tasks nonetheless, from the second second on. These budgets leave less, and the case has
/// four such seconds.
const LONG_CASE: Time = Time::ms(5000);

/// Buffer size of the published experiment.
const PUBLISHED_MEMORY: Size = Size::kib(16 << 10);

/// Default number of a program's jobs in each repeat: enough for a 99th percentile.
const JOBS: u64 = 100;

/// The experiment's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The victim; `cmd: COMMAND` is a user's program.
    #[schemars(with = "String")]
    pub victim: Workload,
    /// Delimiter of a program's jobs.
    pub jobs_by: Delimiter,
    /// The victim's CPU.
    pub victim_cpu: usize,
    /// The victim's buffer, as `-m` takes it: KiB, or with a unit; empty means four times the last-level cache.
    #[serde(with = "or_empty")]
    #[schemars(with = "String")]
    pub victim_memory: Option<Size>,
    /// The victim's passes over its buffer in each repeat; for a program, its jobs. 0 uses `window` instead.
    pub victim_iterations: u64,
    /// Aggressors; each kind is measured separately.
    #[schemars(with = "Vec<String>")]
    pub aggressors: Vec<Workload>,
    /// The aggressors' buffers, as the victim's.
    #[serde(with = "or_empty")]
    #[schemars(with = "String")]
    pub aggressor_memory: Option<Size>,
    /// The aggressors' CPUs: one aggressor runs on the last, two on the last two, and so on. Empty means the other cores
    /// of the victim's package.
    #[schemars(with = "String")]
    pub cpus: CpuSet,
    /// Guard settings; each is compared with no guard.
    #[schemars(with = "Vec<String>")]
    pub guard: Vec<GuardSpec>,
    /// Runs of each case.
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
    /// The guard does not count the kernel's own traffic.
    pub user_only: bool,
    /// The guard's period.
    #[schemars(with = "String")]
    pub period: Time,
    /// Prove that the guard regulates before the first case.
    pub self_test: bool,
    /// Fail if the guard's event is not memory traffic.
    pub require_memory_event: bool,
    /// Time between the start of the aggressors and the start of the victim.
    #[schemars(with = "String")]
    pub settle: Time,
    /// Minimum time for which each case with a guard is watched without a break: after the victim's last run the
    /// aggressors go on until then.
    #[schemars(with = "String")]
    pub hold: Time,
    /// Minimum duration of a last case, with all aggressors under a guard, watched without a break; 0s leaves it out.
    #[schemars(with = "String")]
    pub long_case: Time,
    /// Budgets of the long case; none uses those of the last `guard`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub long_guard: Option<GuardSpec>,
    /// Duration of each run of the victim if `victim_iterations` is 0; on a model always, in simulated time.
    #[schemars(with = "String")]
    pub window: Time,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            victim: Workload::Latency,
            jobs_by: Delimiter::Exit,
            victim_cpu: 0,
            victim_memory: None,
            victim_iterations: 0,
            aggressors: vec![
                Workload::Bandwidth("read".into()),
                Workload::Bandwidth("write".into()),
            ],
            aggressor_memory: None,
            cpus: CpuSet::default(),
            guard: Vec::new(),
            // The fewest runs that give a meaningful median and range.
            repeat: 5,
            backend: Backend::Auto,
            module: None,
            event: String::new(),
            write_event: String::new(),
            combined: false,
            bytes_per_event: 0,
            user_only: false,
            period: Time::ms(1),
            self_test: true,
            require_memory_event: false,
            settle: Time::ms(10),
            // What the kernel does once a second to a core without CPU time for its tasks happens at least twice.
            hold: Time::ms(2500),
            // Every guarded case is watched long enough, and the usual budgets of this machine are unknown.
            long_case: Time::ZERO,
            long_guard: None,
            // Long enough that no single disturbance decides the result.
            window: Time::ms(1000),
        }
    }
}

impl Settings for Config {
    type Whole = Whole;

    const COMMAND: &str = "interfere";

    /// The platform of the published experiment.
    const PLATFORM: Option<&'static str> = Some("raspberry-pi-3");

    /// The victim runs on CPU 0 if this process may.
    fn for_native() -> Result<Self, Error> {
        let config = Self::default();
        Ok(Self {
            victim_cpu: usable_or_first(config.victim_cpu, &usable()?),
            ..config
        })
    }

    /// A model has caches, memory, and a PMU that counts memory traffic. The published experiment used a regulator that
    /// counts user mode only (MemGuard's counter has `exclude_kernel`). Two runs give the same result.
    fn for_modelled(platform: &Platform) -> Self {
        let others = platform.machine.cores.saturating_sub(1);
        Self {
            victim_memory: Some(PUBLISHED_MEMORY),
            aggressor_memory: Some(PUBLISHED_MEMORY),
            victim_iterations: 1,
            cpus: (1..=others).collect(),
            guard: budgets(1000, 100, others).into_iter().collect(),
            repeat: 1,
            backend: Backend::Module,
            event: platform.memory_event().into(),
            user_only: true,
            hold: Time::ZERO,
            long_case: LONG_CASE,
            // Of the Raspberry Pi, three writers that share the memory take 15 us for the 163 lines of a period.
            long_guard: budgets(1000, 10, others),
            ..Self::default()
        }
    }

    /// The model is deterministic but for the placement of pages.
    fn for_sim() -> Self {
        Self {
            victim_memory: Some(PUBLISHED_MEMORY),
            aggressor_memory: Some(PUBLISHED_MEMORY),
            window: Time::ms(20),
            repeat: 3,
            settle: Time::ms(5),
            ..Self::default()
        }
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
        let mut all = std::iter::once(&self.victim).chain(&self.aggressors);
        all.try_for_each(Workload::check_real)?;
        let mut guards = self.guard.iter().chain(&self.long_guard);
        guards.try_for_each(GuardSpec::check_real)
    }

    fn check(&self) -> Result<(), Error> {
        let bad = |text: String| Err(Error::BadInput(text));
        not_zero("--repeat", self.repeat)?;
        not_empty(
            &self.aggressors,
            "no aggressors: give --aggressors bandwidth:read, for example",
        )?;
        not_twice("--aggressors", &self.aggressors)?;
        not_twice("--guard", &self.guard)?;
        self.aggressors
            .iter()
            .try_for_each(Workload::check_aggressor)?;
        if self.cpus.contains(self.victim_cpu) {
            return bad(format!(
                "CPU {} is both --victim-cpu and one of the aggressors' --cpus {}",
                self.victim_cpu, self.cpus
            ));
        }
        if self.window.is_zero() {
            return bad(format!("--window {}: give one above 0", self.window));
        }
        self.start_options().map(|_| ())
    }
}

/// Budgets in MB/s of the first core and of the `others`.
fn budgets(first: u64, each: u64, others: usize) -> Option<GuardSpec> {
    let others = format!(",{each}").repeat(others);
    format!("{first}{others}").parse().ok()
}

impl Config {
    /// The guard of the cases, which proves itself on the cores that they use.
    pub(super) fn guarding(&self) -> Result<Guarding, Error> {
        Ok(Guarding {
            backend: self.backend,
            module: self.module.clone(),
            options: self.start_options()?,
            period_option: "--period",
            require_memory_event: self.require_memory_event,
            proven: proven(self.backend, self.self_test, self.victim_cpu, &self.cpus),
        })
    }

    /// The command-line arguments that run the victim.
    pub(super) fn victim_arguments(&self) -> Vec<String> {
        let cpu = self.victim_cpu;
        match (&self.victim, self.victim_iterations) {
            (Workload::Program(line), 0) => program(line, cpu, self.jobs_by, JOBS, &[]),
            (Workload::Program(line), jobs) => program(line, cpu, self.jobs_by, jobs, &[]),
            (victim, iterations) => victim.arguments(Task {
                cpu,
                memory: self.victim_memory,
                until: match iterations {
                    0 => Until::Time(self.window),
                    iterations => Until::Iterations(iterations),
                },
            }),
        }
    }

    /// The planned time of each run of the victim; zero if its work sets it.
    pub(super) fn victim_time(&self) -> Duration {
        match (&self.victim, self.victim_iterations) {
            (Workload::Program(_), _) | (_, 1..) => Duration::ZERO,
            _ => self.window.duration(),
        }
    }

    /// Sets the size of buffers without a size: so large that the caches of CPU `victim_cpu` hold at most a quarter of
    /// a buffer, within the free memory.
    pub(super) fn size_buffers(&mut self, root: &Root) {
        let buffers = self.cpus.len() as u64 + 1;
        let size = size_in_memory(root, self.victim_cpu, buffers);
        for memory in [&mut self.victim_memory, &mut self.aggressor_memory] {
            memory.get_or_insert(size);
        }
    }

    /// True if the last-level cache holds a good part of the victim's buffer; none if unknown.
    pub(super) fn victim_in_cache(&self, root: &Root) -> Option<bool> {
        if !matches!(self.victim, Workload::Latency | Workload::Bandwidth(_))
            || self.victim.makes_faults()
        {
            return None;
        }
        Some(self.victim_memory?.bytes() < remarks::memory_bytes(root, self.victim_cpu)?)
    }

    /// The CPUs of `count` aggressors: the last ones of [`Self::cpus`].
    pub(super) fn busy(&self, count: usize) -> impl Iterator<Item = usize> {
        self.cpus.iter().skip(self.cpus.len() - count)
    }

    /// The options that start the guard.
    pub(super) fn start_options(&self) -> Result<StartOptions, Error> {
        Ok(StartOptions {
            user_only: self.user_only,
            ..start_options(
                &self.event,
                &self.write_event,
                self.combined,
                self.bytes_per_event,
                self.period,
            )?
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;
    use crate::workload::{USUAL_BYTES, tests::machine};

    #[test]
    fn defaults_round_trip_through_toml() {
        let pi = Platform::find("raspberry-pi-3").unwrap();
        for config in [Config::default(), Config::for_modelled(&pi)] {
            config.check().unwrap();
            let back =
                settings::tests::read(&config.to_toml().unwrap(), &Config::default()).unwrap();
            assert_eq!(back, config);
        }
    }

    #[test]
    fn each_core_of_a_modelled_platform_has_a_budget() {
        for name in memwarden_sim::platform::names() {
            let platform = Platform::find(name).unwrap();
            let config = Config::for_modelled(&platform);
            for guard in config.guard.iter().chain(&config.long_guard) {
                let budgets = guard.to_string().split(',').count();
                assert_eq!(budgets, platform.machine.cores, "{name}: {guard}");
            }
            assert!(config.long_guard.is_some(), "{name}");
        }
    }

    #[test]
    fn a_case_that_is_given_twice_is_refused() {
        let read = Workload::Bandwidth("read".into());
        let aggressors = Config {
            aggressors: vec![read.clone(), read],
            ..Config::default()
        };
        let guard: GuardSpec = "100".parse().unwrap();
        let guards = Config {
            guard: vec![guard.clone(), guard],
            ..Config::default()
        };
        for (config, told) in [
            (aggressors, "--aggressors bandwidth:read is given twice"),
            (guards, "--guard 100 is given twice"),
        ] {
            assert_eq!(config.check().unwrap_err().to_string(), told);
        }
    }

    #[test]
    fn the_last_cpus_are_the_first_to_be_busy() {
        let config = Config {
            cpus: (1..4).collect(),
            ..Config::default()
        };
        let busy = |count| config.busy(count).collect::<Vec<_>>();
        assert!(busy(0).is_empty());
        assert_eq!(busy(1), [3]);
        assert_eq!(busy(3), [1, 2, 3]);
    }

    #[test]
    fn buffers_are_four_times_the_last_level_cache_unless_memory_is_short_or_they_are_given() {
        let gib_16 = 16 << 20;
        for (l3_kib, free_kib, given, memory, in_cache) in [
            (512, gib_16, None, "16M", Some(false)),
            (32 << 10, gib_16, None, "128M", Some(false)),
            (300 << 10, gib_16, None, "1200M", Some(false)),
            // Four buffers in half of 1 GiB.
            (300 << 10, 1 << 20, None, "128M", Some(true)),
            (32 << 10, gib_16, Some(PUBLISHED_MEMORY), "16M", Some(true)),
        ] {
            let folder = machine(l3_kib, free_kib);
            let root = Root::at(folder.path());
            let mut config = Config {
                cpus: (1..4).collect(),
                victim_memory: given,
                ..Config::default()
            };
            config.size_buffers(&root);
            assert_eq!(config.victim_memory.unwrap().to_string(), memory);
            assert_eq!(config.victim_in_cache(&root), in_cache, "{memory}");
        }
        let unknown = Root::at(tempfile::tempdir().unwrap().path());
        let mut config = Config::default();
        config.size_buffers(&unknown);
        assert_eq!(config.victim_memory, Some(Size::of_bytes(USUAL_BYTES)));
        assert_eq!(config.victim_in_cache(&unknown), None);
    }

    #[test]
    fn without_a_number_of_iterations_the_window_decides() {
        let words = |iterations| {
            let config = Config {
                victim_iterations: iterations,
                victim_memory: Some(Size::kib(1024)),
                ..Config::default()
            };
            config.victim_arguments().join(" ")
        };
        assert_eq!(words(0), "latency -c 0 -m 1M -t 1s --json");
        assert_eq!(words(7), "latency -c 0 -m 1M -i 7 --json");
    }

    #[test]
    fn cores_that_the_platform_does_not_have_are_refused() {
        let pi = Simulated::find("raspberry-pi-3").unwrap();
        let with = |victim_cpu, cpus: &str| Config {
            victim_cpu,
            cpus: cpus.parse().unwrap(),
            ..Config::default()
        };
        with(0, "1-3").check_cores(&pi).unwrap();
        let said = with(0, "1-4").check_cores(&pi).unwrap_err().to_string();
        assert!(said.starts_with("--cpus: core 4 is not one of"), "{said}");
        let said = with(4, "1-3").check_cores(&pi).unwrap_err().to_string();
        assert!(said.starts_with("--victim-cpu: core 4"), "{said}");
    }

    #[test]
    fn a_file_changes_what_it_names_and_nothing_else() {
        let pi = Config::for_modelled(&Platform::find("raspberry-pi-3").unwrap());
        let config = settings::tests::read("repeat = 7\nguard = [\"600,200+ps\"]\n", &pi).unwrap();
        assert_eq!(config.repeat, 7);
        assert_eq!(config.guard[0].to_string(), "600,200+ps");
        assert_eq!(config.event, pi.event);
    }

    #[test]
    fn bad_files_say_where() {
        for (text, words) in [
            ("repeat = 1\nrepeets = 7\n", "line 2"),
            ("victim = \"lat\"\n", "workload `lat`"),
            ("guard = [\"0\"]\n", "budget `0`"),
            ("cpus = \"1-\"\n", "CPU list"),
            ("repeat = \"x\"\n", "line 1"),
            ("repeat = 1\nhold = \"5\"\n", "line 2: time `5`: no unit"),
            ("victim_memory = \"x\"\n", "line 1: size `x`"),
            ("= 3\n", "line 1"),
        ] {
            let message = settings::tests::read(text, &Config::default()).unwrap_err();
            assert!(
                message.contains(words) && !message.contains('\n'),
                "{text}: {message}"
            );
        }
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
        assert!(with(|c| c.repeat = 0).contains("--repeat"));
        assert!(with(|c| c.window = Time::ZERO).contains("--window 0s"));
        assert!(with(|c| c.aggressors.clear()).contains("--aggressors"));
        assert!(with(|c| c.victim_cpu = 2).contains("CPU 2 is both"));
        assert!(with(|c| c.period = Time::ms(2000)).contains("period 2s"));
    }
}
