// SPDX-License-Identifier: MIT OR Apache-2.0
//! Effect of a second chance for pages in use: pages that are used while other pages stream through, in a control group
//! too small for both, with the kernel's switch vm.reclaim_active off and on.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use memwarden_platform::memory_group::MemoryGroup;
use memwarden_platform::swap::{self, Swap};
use memwarden_platform::{Root, clock};
use memwarden_run::statistics::{Ratio, ratio_of_medians};
use memwarden_run::studies::mmap_reclaim::{Case, NAME, Summary, Whole};
use memwarden_run::{Metric, Sample};
use memwarden_workloads::in_use::{self, Outcome, Running};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::request::finished;
use crate::settings::check_within;
use crate::{Error, Interrupt, RunRequest, Settings};

/// The kernel's switch.
const SWITCH: &str = "/proc/sys/vm/reclaim_active";

/// Interval between checks of the process.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The experiment's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Bytes of the pages in use.
    pub hot_bytes: u64,
    /// Bytes that stream through.
    pub cold_bytes: u64,
    /// Memory limit of the group.
    pub memory_bytes: u64,
    /// Measured passes.
    pub rounds: u64,
    /// A RAM disk to swap to; empty uses the machine's own swap.
    pub swap: PathBuf,
    /// Runs with the switch off and as many with it on.
    pub repeat: u32,
}

impl Default for Config {
    fn default() -> Self {
        // The pages in use are a third of the memory and would fit easily.
        Self {
            hot_bytes: 2 << 20,
            cold_bytes: 12 << 20,
            memory_bytes: 6 << 20,
            rounds: 3,
            swap: PathBuf::new(),
            repeat: 3,
        }
    }
}

impl Settings for Config {
    type Whole = Whole;

    const COMMAND: &str = "mmap reclaim";

    /// The emulated machine has no swap by default.
    fn for_lab() -> Self {
        Self {
            swap: "/dev/ram0".into(),
            ..Self::default()
        }
    }

    fn check(&self) -> Result<(), Error> {
        let bad = |text: String| Err(Error::BadInput(text));
        for (option, bytes) in [
            ("--hot", self.hot_bytes),
            ("--cold", self.cold_bytes),
            ("--memory", self.memory_bytes),
        ] {
            if bytes > 1 << 40 {
                return bad(format!("{option}: 1 TiB at most"));
            }
        }
        if self.hot_bytes >= self.memory_bytes {
            return bad("--hot: the pages in use must fit into --memory".into());
        }
        if self.hot_bytes + self.cold_bytes <= self.memory_bytes {
            return bad("--memory: --hot and --cold both fit, so no page is ever reclaimed".into());
        }
        let limit = in_use::DESCRIPTOR.limit("rounds");
        if !limit.contains(&self.rounds) {
            return bad(format!(
                "--rounds {}: give {} to {}",
                self.rounds,
                limit.start(),
                limit.end()
            ));
        }
        check_within("--repeat", self.repeat, 1..=1000)?;
        if !self.swap.as_os_str().is_empty() && !swap::is_in_memory(&self.swap) {
            return bad(format!(
                "--swap {}: its contents would be lost; give a RAM disk (/dev/ram0, /dev/zram0)",
                self.swap.display()
            ));
        }
        Ok(self.pages().check()?)
    }
}

impl Config {
    fn pages(&self) -> in_use::Config {
        let bytes = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        in_use::Config {
            hot_bytes: bytes(self.hot_bytes),
            cold_bytes: bytes(self.cold_bytes),
            rounds: self.rounds,
        }
    }
}

/// The kernel's switch; restored when dropped.
struct Switch {
    path: PathBuf,
    before: String,
}

impl Switch {
    fn find(root: &Root) -> Result<Self, Error> {
        let before = root.text(SWITCH).ok_or_else(|| {
            Error::BadInput(
                "this kernel has no vm.reclaim_active (CONFIG_RECLAIM_ACTIVE of kernel/patches/6.12): try --on lab, whose \
                 own kernel has it"
                    .into(),
            )
        })?;
        if root
            .text("/sys/kernel/mm/lru_gen/enabled")
            .is_some_and(|text| text != "0x0000")
        {
            return Err(Error::BadInput(
                "the multi-gen LRU ignores vm.reclaim_active: echo n > /sys/kernel/mm/lru_gen/enabled"
                    .into(),
            ));
        }
        Ok(Self {
            path: root.path(SWITCH),
            before,
        })
    }

    fn set(&self, value: u8) -> Result<(), Error> {
        fs::write(&self.path, value.to_string()).map_err(|source| {
            Error::process(
                "setting",
                format!("{} (needs root)", self.path.display()),
                source,
            )
        })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = fs::write(&self.path, &self.before);
    }
}

/// Runs the experiment and leaves its run folder.
///
/// # Errors
/// When the kernel lacks the switch, swap or memory control groups, or the run is interrupted; what was measured is
/// then in `DIR.partial`.
pub fn run(config: &Config, request: RunRequest) -> Result<(PathBuf, Summary), Error> {
    config.check()?;
    let interrupt = request.interrupt;
    let switch = Switch::find(&Root::system())?;
    let _swap = if config.swap.as_os_str().is_empty() {
        if swap::in_use(&Root::system()).is_empty() {
            return Err(Error::BadInput(
                "this machine has no swap, so no page can be reclaimed: give --swap /dev/ram0"
                    .into(),
            ));
        }
        None
    } else {
        Some(Swap::on(&config.swap)?)
    };
    let mut folder = request.begin(NAME, config)?;
    let mut summary = Summary::new(NAME, "native");
    let base_ns = clock::monotonic_ns();
    let mut steps = request.steps(2 * config.repeat as usize);
    let mut outcomes: [Vec<Outcome>; 2] = Default::default();
    // Alternate between off and on, so that background activity affects both.
    for repeat in 0..config.repeat {
        for value in [0, 1] {
            steps.next(&name(value));
            switch.set(value)?;
            let at_ns = clock::monotonic_ns() - base_ns;
            let outcome = once(config, interrupt)?;
            folder.append_all(&samples(value, repeat, &outcome, at_ns))?;
            folder.flush()?;
            outcomes[usize::from(value)].push(outcome);
        }
    }
    steps.end();
    drop(switch);
    for (value, outcomes) in (0..).zip(&outcomes) {
        summary.cases.push(case(config, value, outcomes));
    }
    let ratio = ratio(&outcomes);
    summary.whole = Whole {
        clock_base_ns: base_ns,
        hot_ratio: ratio.ratio,
        hot_ratio_ci95: ratio.ci95,
    };
    summary.note(
        "A major fault is a page that had to be read back from the swap. The passes before the counted ones warm up.",
    );
    finished(folder, summary)
}

fn name(value: u8) -> String {
    format!("vm.reclaim_active {value}")
}

/// One run, in its own group and process.
fn once(config: &Config, interrupt: &Interrupt) -> Result<Outcome, Error> {
    // Dropped last: a group can only be removed after its processes have ended.
    let group =
        MemoryGroup::new(config.memory_bytes, &|| interrupt.came())?.ok_or(Error::Interrupted)?;
    let mut running = Running::start(config.pages(), &interrupt.into())?;
    group.add(running.id())?;
    running.go();
    loop {
        interrupt.check()?;
        match running.ended() {
            Some((_, Some(outcome))) => {
                interrupt.check()?;
                return Ok(outcome);
            }
            Some((ended, None)) => {
                let why = if group.kills().is_some_and(|kills| kills > 0) {
                    "the OOM killer ended it (is the swap large enough?)".into()
                } else {
                    format!("it ended too early ({ended:?})")
                };
                return Err(Error::workload("pages in use", why));
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
}

fn samples(value: u8, repeat: u32, outcome: &Outcome, at_ns: u64) -> Vec<Sample> {
    let sample = |role: &str, metric: &str, unit: &str, value_: u64| {
        Sample::new(name(value), repeat, role, metric, unit, value_ as f64).at_ns(at_ns)
    };
    vec![
        sample("hot", "major_faults", "faults", outcome.hot_major_faults),
        sample("hot", "touches", "pages", outcome.hot_touches),
        sample("cold", "major_faults", "faults", outcome.cold_major_faults),
        sample("cold", "touches", "pages", outcome.cold_touches),
    ]
}

/// The major faults on pages in use with the switch on, over those with it off.
fn ratio([off, on]: &[Vec<Outcome>; 2]) -> Ratio {
    let faults = |outcomes: &[Outcome]| -> Vec<f64> {
        let all = outcomes.iter();
        all.map(|one| one.hot_major_faults as f64).collect()
    };
    ratio_of_medians(&faults(on), &faults(off))
}

fn case(config: &Config, value: u8, outcomes: &[Outcome]) -> Case {
    let metric = |name: &str, of: fn(&Outcome) -> f64| {
        let values: Vec<f64> = outcomes.iter().map(of).collect();
        Some(Metric::from_samples(name, &values))
    };
    Case {
        name: name(value),
        guard: (),
        reclaim_active: value,
        hot_bytes: config.hot_bytes,
        cold_bytes: config.cold_bytes,
        memory_bytes: config.memory_bytes,
        rounds: config.rounds,
        hot_major_faults: metric("hot_major_faults", |one| one.hot_major_faults as f64),
        hot_fault_share: metric("hot_fault_share", |one| {
            one.hot_major_faults as f64 / (one.hot_touches as f64).max(1.0)
        }),
        cold_major_faults: metric("cold_major_faults", |one| one.cold_major_faults as f64),
        cold_fault_share: metric("cold_fault_share", |one| {
            one.cold_major_faults as f64 / (one.cold_touches as f64).max(1.0)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;

    #[test]
    fn defaults_round_trip_through_toml() {
        for config in [Config::default(), Config::for_lab()] {
            config.check().unwrap();
            let back =
                settings::tests::read(&config.to_toml().unwrap(), &Config::default()).unwrap();
            assert_eq!(back, config);
        }
    }

    #[test]
    fn the_ratio_is_of_the_switch_on_to_off() {
        let runs = |faults: u64| {
            let one = Outcome {
                hot_major_faults: faults,
                ..Outcome::default()
            };
            vec![one; 5]
        };
        let ratio = ratio(&[runs(10), runs(30)]);
        assert_eq!((ratio.ratio, ratio.ci95), (Some(3.0), Some([3.0, 3.0])));
        assert_eq!(super::ratio(&[runs(0), runs(30)]).ratio, None);
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(with(|c| c.hot_bytes = 6 << 20).contains("--hot"));
        assert!(with(|c| c.memory_bytes = 1 << 30).contains("no page is ever reclaimed"));
        assert!(with(|c| c.rounds = 0).contains("--rounds 0"));
        assert!(with(|c| c.repeat = 0).contains("--repeat 0"));
        assert!(with(|c| c.swap = "/dev/sda".into()).contains("would be lost"));
        assert!(with(|c| c.cold_bytes = 1 << 50).contains("1 TiB"));
    }

    #[test]
    fn a_kernel_without_the_switch_is_told_and_with_it_it_is_put_back() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        let Err(error) = Switch::find(&root) else {
            panic!("there is none");
        };
        assert!(
            error.to_string().contains("no vm.reclaim_active"),
            "{error}"
        );
        let path = folder.path().join("proc/sys/vm");
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("reclaim_active"), "0\n").unwrap();
        let switch = Switch::find(&root).unwrap();
        switch.set(1).unwrap();
        assert_eq!(
            fs::read_to_string(path.join("reclaim_active")).unwrap(),
            "1"
        );
        drop(switch);
        assert_eq!(
            fs::read_to_string(path.join("reclaim_active")).unwrap(),
            "0"
        );
        let other = folder.path().join("sys/kernel/mm/lru_gen");
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join("enabled"), "0x0007\n").unwrap();
        let Err(error) = Switch::find(&root) else {
            panic!("it would not be heeded");
        };
        assert!(error.to_string().contains("multi-gen LRU"), "{error}");
    }
}
