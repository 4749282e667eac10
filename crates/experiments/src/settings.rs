// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface of all experiments' settings.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use memwarden_platform::cpus::{self, CpuSet};
use memwarden_platform::{Root, affinity, settings_file, topology};
use memwarden_run::{Summary, Whole};
use memwarden_sim::Platform;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Error, RunRequest, Simulated};

/// An experiment's settings, from TOML or from the options of its command.
pub trait Settings: Default + Serialize + DeserializeOwned {
    /// Type of the summary's whole-run figures.
    type Whole: Whole;

    /// The words of its command, without the program's name.
    const COMMAND: &'static str;

    /// Default platform whose caches and memory the emulated machine gets. Without a platform its memory accesses take
    /// no time.
    const PLATFORM: Option<&'static str> = None;

    /// Settings that had another name, each with its name of today. Files may have either, so the old name is also an
    /// alias of serde.
    const RENAMED: &[(&str, &str)] = &[];

    /// The settings for this machine.
    ///
    /// # Errors
    /// When its CPUs can't be read.
    fn for_native() -> Result<Self, Error> {
        Ok(Self::default())
    }

    /// The settings for the emulated machine.
    #[must_use]
    fn for_lab() -> Self {
        Self::default()
    }

    /// The settings for the emulated machine with a platform's caches and memory, such as [`Self::PLATFORM`]'s.
    #[must_use]
    fn for_modelled(_platform: &Platform) -> Self {
        Self::for_lab()
    }

    /// The settings for a simulated machine.
    #[must_use]
    fn for_sim() -> Self {
        Self::default()
    }

    /// Runs the experiment on a simulated machine.
    ///
    /// # Errors
    /// As on any other machine, or if the experiment is not modelled.
    fn simulate(
        &self,
        simulated: &Simulated,
        _request: RunRequest,
    ) -> Result<(PathBuf, Summary<Self::Whole>), Error> {
        Err(Error::BadInput(format!(
            "--on sim:{}: this experiment is not modelled; give native or lab (interfere and realtime are)",
            simulated.asked
        )))
    }

    /// Checks the settings without measuring anything.
    ///
    /// # Errors
    /// The first invalid setting.
    fn check(&self) -> Result<(), Error>;

    /// Checks that a real machine, native or emulated, supports the settings.
    ///
    /// # Errors
    /// The first setting that only a simulated machine supports.
    fn check_real(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Checks that a platform has the requested cores.
    ///
    /// # Errors
    /// The first core that the platform lacks.
    fn check_cores(&self, _platform: &Simulated) -> Result<(), Error> {
        Ok(())
    }

    /// These settings, overridden by a TOML file and then by options. The options serialise under the settings' names;
    /// an option that was not given is null.
    ///
    /// # Errors
    /// When the file can't be read or does not match these settings.
    fn under(&self, file: Option<&Path>, options: &impl Serialize) -> Result<Self, Error> {
        let mut all = json(self)?;
        if let Some(path) = file {
            let text = settings_file::read(path)
                .map_err(|error| Error::BadInput(format!("reading {}: {error}", path.display())))?;
            let mut given = parse::<Self>(&text)
                .map_err(|error| Error::BadInput(format!("{}: {error}", path.display())))?;
            for (old, new) in Self::RENAMED {
                if let Some(value) = given.remove(*old) {
                    given.insert((*new).into(), value);
                }
            }
            lay(&mut all, json(&given)?);
        }
        lay(&mut all, json(options)?);
        serde_json::from_value(all).map_err(|error| Error::BadInput(error.to_string()))
    }

    /// The settings as TOML for the emulated machine, on which they run as on a real one.
    ///
    /// # Errors
    /// As [`Self::to_toml`].
    fn to_guest_toml(&self) -> Result<String, Error> {
        self.to_toml()
    }

    /// The settings as TOML.
    ///
    /// # Errors
    /// When TOML can't represent a number.
    fn to_toml(&self) -> Result<String, Error> {
        toml::to_string(self).map_err(|error| Error::BadInput(format!("the settings: {error}")))
    }
}

fn json(value: &impl Serialize) -> Result<Value, Error> {
    serde_json::to_value(value).map_err(|error| Error::BadInput(error.to_string()))
}

/// Overrides `all` with `over`, field by field.
fn lay(all: &mut Value, over: Value) {
    match (all, over) {
        (_, Value::Null) => {}
        (Value::Object(all), Value::Object(over)) => {
            for (key, value) in over {
                lay(all.entry(key).or_insert(Value::Null), value);
            }
        }
        (all, over) => *all = over,
    }
}

/// Parses a file with some of the settings; an error is one line with its place in the file.
fn parse<T: DeserializeOwned>(text: &str) -> Result<toml::Table, String> {
    let one_line = |error: toml::de::Error| {
        let line = error
            .span()
            .map(|span| text[..span.start].matches('\n').count() + 1);
        let message = error.message().lines().collect::<Vec<_>>().join(" ");
        line.map_or_else(|| message.clone(), |line| format!("line {line}: {message}"))
    };
    // Parse as the settings type first, for errors with a line number.
    let _: T = toml::from_str(text).map_err(one_line)?;
    toml::from_str(text).map_err(one_line)
}

/// Refuses an option with a CPU that is not online.
pub(crate) fn check_online(option: &str, cpus: &CpuSet) -> Result<(), Error> {
    cpus::check_online(cpus).map_err(|error| Error::BadInput(format!("{option}: {error}")))
}

/// The online CPUs on which this process may run: a container's cpuset, for example, excludes the others.
pub(crate) fn usable() -> Result<CpuSet, Error> {
    Ok(affinity::usable()?)
}

/// The default CPU of a victim: `cpu` if this process may run there, otherwise the first usable one.
pub(crate) fn usable_or_first(cpu: usize, usable: &CpuSet) -> usize {
    match usable.iter().next() {
        Some(first) if !usable.contains(cpu) => first,
        _ => cpu,
    }
}

/// The default CPU of a load beside `cpu`: `usual`, unless that shares a core with `cpu`, is in another package, or is one
/// on which this process may not run.
pub(crate) fn usual_or_beside(root: &Root, usual: usize, cpu: usize, usable: &CpuSet) -> usize {
    usable_or_first(usual, &topology::beside(root, cpu, usable))
}

/// The CPUs of a load beside the victim's CPU, and remarks on them. `named` are those that the user named; without any,
/// those of [`topology::beside`].
pub(crate) fn beside_victim(
    root: &Root,
    victim_cpu: usize,
    named: &CpuSet,
    usable: &CpuSet,
) -> (CpuSet, Vec<String>) {
    const VICTIM: &str = "the victim";
    let remarks = |cpus| topology::remarks(root, VICTIM, victim_cpu, cpus).into_iter();
    if !named.is_empty() {
        return (named.clone(), remarks(named).collect());
    }
    let cpus = topology::beside(root, victim_cpu, usable);
    let left_out = topology::left_out(root, VICTIM, victim_cpu, &cpus, usable);
    let remarks = remarks(&cpus).chain(left_out).collect();
    (cpus, remarks)
}

/// Refuses an option with a CPU that is not online, or on which this process may not run.
pub(crate) fn check_usable(option: &str, cpus: &CpuSet, usable: &CpuSet) -> Result<(), Error> {
    check_online(option, cpus)?;
    match cpus.iter().find(|cpu| !usable.contains(*cpu)) {
        Some(cpu) => Err(Error::BadInput(format!(
            "{option}: this process may not run on CPU {cpu}: its cgroup's cpuset allows CPUs {usable}"
        ))),
        None => Ok(()),
    }
}

/// Refuses a number beyond its limits.
pub(crate) fn check_within<T: PartialOrd + fmt::Display>(
    option: &str,
    value: T,
    limits: RangeInclusive<T>,
) -> Result<(), Error> {
    if limits.contains(&value) {
        return Ok(());
    }
    let (first, last) = limits.into_inner();
    Err(Error::BadInput(format!(
        "{option} {value}: give {first} to {last}"
    )))
}

/// Refuses a seed beyond the largest integer of TOML.
pub(crate) fn check_seed(seed: u64) -> Result<(), Error> {
    check_within("--seed", seed, 0..=i64::MAX as u64)
}

/// Refuses 0.
pub(crate) fn not_zero(option: &str, count: impl Into<u64>) -> Result<(), Error> {
    match count.into() {
        0 => Err(Error::BadInput(format!("{option} 0: give 1 or more"))),
        _ => Ok(()),
    }
}

/// Refuses an empty list with this message.
pub(crate) fn not_empty<T>(all: &[T], message: &str) -> Result<(), Error> {
    match all {
        [] => Err(Error::BadInput(message.into())),
        _ => Ok(()),
    }
}

/// Refuses the same CPU for two options.
pub(crate) fn two_cpus(one: (&str, usize), other: (&str, usize)) -> Result<(), Error> {
    if one.1 != other.1 {
        return Ok(());
    }
    Err(Error::BadInput(format!(
        "{} and {} are both {}: give two CPUs",
        one.0, other.0, one.1
    )))
}

/// Refuses a repeatable option with the same value twice.
pub(crate) fn not_twice<T: PartialEq + fmt::Display>(option: &str, all: &[T]) -> Result<(), Error> {
    let mut before = all.iter().enumerate();
    match before.find(|(index, one)| all[..*index].contains(one)) {
        Some((_, one)) => Err(Error::BadInput(format!("{option} {one} is given twice"))),
        None => Ok(()),
    }
}

/// Checks the sizes of a device's transfers: at most `most` bytes, none twice.
pub(crate) fn check_sizes(sizes: &[u64], most: u64) -> Result<(), Error> {
    not_empty(sizes, "no size: give --sizes 64,4096, for example")?;
    if let Some(size) = sizes.iter().find(|size| !(1..=most).contains(*size)) {
        return Err(Error::BadInput(format!(
            "--sizes {size}: give 1 to {most} bytes"
        )));
    }
    not_twice("--sizes", sizes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The settings from a file with this text.
    pub(crate) fn read<S: Settings>(text: &str, defaults: &S) -> Result<S, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        defaults
            .under(Some(file.path()), &())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        let defaults = crate::copy::bandwidth::Config::default();
        let said = defaults.under(Some(Path::new("/dev/zero")), &());
        assert_eq!(
            said.unwrap_err().to_string(),
            "reading /dev/zero: larger than 1 MiB, the limit of such a file"
        );
    }

    #[test]
    fn cpus_outside_the_cpuset_are_refused_and_never_the_default() {
        let cpus = |text: &str| text.parse::<CpuSet>().unwrap();
        let mine = usable().unwrap();
        assert!(
            affinity::get()
                .unwrap()
                .iter()
                .all(|cpu| mine.contains(cpu))
        );
        check_usable("--cpus", &mine, &mine).unwrap();
        let first = cpus::online().unwrap().iter().next().unwrap();
        let said = check_usable("--cpus", &cpus(&first.to_string()), &cpus("4000-4001"));
        assert_eq!(
            said.unwrap_err().to_string(),
            format!(
                "--cpus: this process may not run on CPU {first}: its cgroup's cpuset allows CPUs 4000-4001"
            )
        );
        assert_eq!(usable_or_first(0, &cpus("2-3")), 2);
        assert_eq!(usable_or_first(0, &cpus("0-3")), 0);
        assert_eq!(usable_or_first(0, &CpuSet::default()), 0);
    }

    #[test]
    fn the_default_load_is_not_on_the_victims_core_and_a_load_there_is_told() {
        // Two cores of two threads each.
        let machine = tempfile::tempdir().unwrap();
        for (cpu, threads) in [(0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")] {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            let topology = machine.path().join(path);
            std::fs::create_dir_all(&topology).unwrap();
            std::fs::write(topology.join("thread_siblings_list"), threads).unwrap();
        }
        let root = Root::at(machine.path());
        let cpus = |text: &str| text.parse::<CpuSet>().unwrap();
        let beside = |named: &str| beside_victim(&root, 0, &cpus(named), &cpus("0-3"));
        let (default, remarks) = beside("");
        assert_eq!(default, cpus("2-3"));
        assert!(
            remarks[0].contains("CPU1 (of the same core)"),
            "{remarks:?}"
        );
        let (named, remarks) = beside("1-2");
        assert_eq!(named, cpus("1-2"));
        assert!(
            remarks[0]
                .starts_with("CPU1: a hardware thread of the same core as the victim's CPU0."),
            "{remarks:?}"
        );
        assert_eq!(usual_or_beside(&root, 1, 0, &cpus("0-3")), 2);
        assert_eq!(usual_or_beside(&root, 1, 2, &cpus("0-3")), 1);
    }

    #[test]
    fn a_file_of_an_older_version_has_the_older_names() {
        use crate::copy::{breakeven, latency, pollution};
        use crate::mymem::throughput;
        fn old<S: Settings>(text: &str) -> S {
            read(text, &S::for_lab()).unwrap_or_else(|error| panic!("{text}: {error}"))
        }
        assert_eq!(old::<latency::Config>("count = 7").repeat, 7);
        assert_eq!(old::<pollution::Config>("count = 7").repeat, 7);
        assert_eq!(old::<throughput::Config>("trials = 7").repeat, 7);
        let breakeven: breakeven::Config = old("count = 17\nvictim_runs = 7");
        assert_eq!((breakeven.repeat, breakeven.victim_repeat), (17, 7));
        let both = read("count = 7\nrepeat = 8", &latency::Config::default()).unwrap_err();
        assert!(both.contains("duplicate field `repeat`"), "{both}");
        assert!(toml::from_str::<latency::Config>("count = 7").is_ok());
    }

    #[test]
    fn options_lie_over_the_file_and_the_file_over_the_defaults() {
        #[derive(Serialize)]
        struct Policy {
            quantum_high_ns: Option<u64>,
            fold: Option<bool>,
        }
        #[derive(Serialize)]
        struct Options {
            sizes: Option<Vec<u64>>,
            repeat: Option<u32>,
            policy: Policy,
        }
        use crate::copy::bandwidth::Config;
        let file = tempfile::NamedTempFile::new().unwrap();
        let text =
            "repeat = 7\noperations = 9\n[policy]\nquantum_low_ns = 5\nquantum_high_ns = 6\n";
        std::fs::write(file.path(), text).unwrap();
        let options = Options {
            sizes: Some(Vec::new()),
            repeat: Some(3),
            policy: Policy {
                quantum_high_ns: Some(8),
                fold: None,
            },
        };
        let config = Config::default()
            .under(Some(file.path()), &options)
            .unwrap();
        assert_eq!((config.repeat, config.operations), (3, 9));
        assert_eq!(config.engine, Config::default().engine);
        assert!(config.sizes.is_empty(), "an empty list is given");
        let policy = config.policy;
        assert_eq!(
            (policy.quantum_low_ns, policy.quantum_high_ns, policy.fold),
            (5, 8, false)
        );
    }
}
