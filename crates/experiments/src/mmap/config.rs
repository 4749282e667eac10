// SPDX-License-Identifier: MIT OR Apache-2.0
//! The experiment's settings.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use memwarden_cachesim::platforms;
use memwarden_platform::as_text;
use memwarden_platform::mapping::kind::Kind;
use memwarden_platform::names::unknown;
use memwarden_workloads::mapped::{self, Walk};
use memwarden_workloads::{LINE_BYTES, competitor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantArray};

use crate::settings::{check_seed, check_within, not_twice};
use crate::{Error, Settings};

/// A way to map memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way(pub Kind);

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|way| way.name() == text);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("`{text}`: give one of {names}")
        })
    }
}

as_text!(Way);

impl Way {
    /// Every one.
    pub const ALL: [Self; 6] = {
        let [a, b, c, d, e, f] = Kind::ALL;
        [Self(a), Self(b), Self(c), Self(d), Self(e), Self(f)]
    };

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name
    }
}

/// Order in which a walk visits the places of a mapping.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    EnumString,
    VariantArray,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown::<Self>)]
pub enum Access {
    /// Random order.
    Random,
    /// Sequential order.
    Sequential,
}

/// The source of the counters.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    EnumString,
    VariantArray,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown::<Self>)]
pub enum Counters {
    /// The machine's counters if it has them, else a model.
    Auto,
    /// The machine's counters.
    #[serde(rename = "hw")]
    #[strum(serialize = "hw")]
    Hardware,
    /// A model.
    #[serde(rename = "sim")]
    #[strum(serialize = "sim")]
    Model,
}

/// The competitor for memory and CPU.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    EnumString,
    VariantArray,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown::<Self>)]
pub enum Compete {
    /// None.
    None,
    /// A forked child, on the same CPU.
    Fork,
    /// A separate program, on any CPU.
    Background,
}

/// How the data caches are emptied before each run.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    EnumString,
    VariantArray,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown::<Self>)]
pub enum Flush {
    /// Flushes each line of the mapping by its address.
    Lines,
    /// Reads a larger buffer.
    Read,
    /// Not at all.
    Off,
}

/// On or off, as on the command line.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    EnumString,
    VariantArray,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown::<Self>)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// The platform that is the machine itself.
pub const THIS_MACHINE: &str = "this-machine";

/// The experiment's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The mappings; empty means all.
    #[schemars(with = "Vec<String>")]
    pub flags: Vec<Way>,
    /// The orders.
    pub access: Vec<Access>,
    /// Walks over the span in each step.
    pub locality: Vec<u64>,
    /// Bytes of the mapping.
    pub size_bytes: u64,
    /// Outer steps.
    pub outer: u64,
    /// The source of the counters.
    pub counters: Counters,
    /// The platform whose caches are modelled: a name or a file.
    pub platform: String,
    /// The modelled prefetcher.
    pub prefetcher: Switch,
    /// Largest number of a walk's outer steps that the model simulates.
    pub model_outer: u64,
    /// The competitors; each is measured separately.
    pub compete: Vec<Compete>,
    /// Bytes that a competitor takes; 0 means the free memory, less a tenth of the machine's memory and less a mapping.
    pub compete_limit_bytes: u64,
    /// Memory limit of the competitor's control group, bytes; 0 means no group.
    pub confine_bytes: u64,
    /// Write the mapping back before each walk and after it.
    pub msync: bool,
    /// How the caches are emptied before each run.
    pub flush: Flush,
    /// Runs of each case.
    pub repeat: u32,
    /// Seed of the random places.
    pub seed: u64,
    /// The CPU; none means the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    /// Directory for the mapped files; empty means the system's directory for temporary files.
    pub dir: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            flags: Vec::new(),
            access: Access::VARIANTS.into(),
            locality: vec![16],
            size_bytes: 1 << 30,
            outer: 1 << 20,
            counters: Counters::Auto,
            platform: THIS_MACHINE.into(),
            prefetcher: Switch::On,
            // 256 MiB of lines in order, seven times the last level of a server; with fewer, misses of the initial fill
            // would dominate. 67 million accesses take the model one to two seconds.
            model_outer: 1 << 13,
            compete: vec![Compete::None],
            compete_limit_bytes: 0,
            confine_bytes: 0,
            msync: false,
            flush: Flush::Lines,
            // The fewest from which a ratio has an interval.
            repeat: 5,
            seed: 1,
            cpu: None,
            dir: PathBuf::new(),
        }
    }
}

/// A size as its option takes it.
fn kib(bytes: u64) -> String {
    format!("{}K", bytes / 1024)
}

impl Settings for Config {
    type Whole = memwarden_run::studies::mmap::Whole;

    const COMMAND: &str = "mmap";

    /// The settings for the emulated machine: it is about a hundred times slower and does not report its caches.
    fn for_lab() -> Self {
        Self {
            size_bytes: 64 << 20,
            outer: 256,
            model_outer: 64,
            platform: "raspberry-pi-3".into(),
            repeat: 2,
            ..Self::default()
        }
    }

    fn check(&self) -> Result<(), Error> {
        let bad = |text: String| Err(Error::BadInput(text));
        not_twice("--flags", &self.flags)?;
        not_twice("--access", &self.access)?;
        not_twice("--locality", &self.locality)?;
        not_twice("--compete", &self.compete)?;
        for (option, empty, example) in [
            ("--access", self.access.is_empty(), "random,sequential"),
            ("--locality", self.locality.is_empty(), "2,4,8,16,32"),
            ("--compete", self.compete.is_empty(), "none,fork"),
        ] {
            if empty {
                return bad(format!("nothing to do: give {option} {example}"));
            }
        }
        let most = *competitor::DESCRIPTOR.limit("bytes").end();
        for (option, bytes) in [
            ("--size", self.size_bytes),
            ("--compete-limit", self.compete_limit_bytes),
            ("--confine", self.confine_bytes),
        ] {
            if bytes > most || bytes % 1024 != 0 {
                return bad(format!(
                    "{option} {bytes} bytes: give whole KiB, 64 TiB at most"
                ));
            }
        }
        let span = (mapped::SPAN_LINES * LINE_BYTES) as u64;
        if self.size_bytes < span {
            return bad(format!(
                "--size {}: a span of {} does not fit",
                kib(self.size_bytes),
                kib(span)
            ));
        }
        for locality in &self.locality {
            self.walk(Access::Random, *locality).check()?;
        }
        let limit = mapped::DESCRIPTOR.limit("outer");
        if !limit.contains(&self.model_outer) {
            return bad(format!(
                "--model-outer {}: give 1 to {}",
                self.model_outer,
                limit.end()
            ));
        }
        if self.platform != THIS_MACHINE {
            let known = platforms::named(&self.platform);
            known.map_err(|error| {
                // A file may have several errors, a line each.
                let more = match self.platform_file() {
                    Some(_) => String::new(),
                    None => format!("; {THIS_MACHINE} is the current machine"),
                };
                Error::BadInput(format!("--platform: {error}{more}"))
            })?;
        }
        let rivals = self.compete.iter().any(|one| *one != Compete::None);
        for (option, bytes) in [
            ("--compete-limit", self.compete_limit_bytes),
            ("--confine", self.confine_bytes),
        ] {
            if bytes != 0 && !rivals {
                return bad(format!(
                    "{option}: there is no competitor; give --compete fork or background, too"
                ));
            }
        }
        check_within("--repeat", self.repeat, 1..=1000)?;
        check_seed(self.seed)?;
        Ok(())
    }
}

/// Whether the files of a directory are in memory only (statfs(2) of tmpfs and ramfs).
fn is_in_memory(directory: &Path) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    let kind = rustix::fs::statfs(directory).map(|one| one.f_type as u32);
    kind.is_ok_and(|kind| [TMPFS, RAMFS].contains(&kind))
}

impl Config {
    /// The mappings that are measured.
    #[must_use]
    pub fn ways(&self) -> Vec<Way> {
        if self.flags.is_empty() {
            Way::ALL.into()
        } else {
            self.flags.clone()
        }
    }

    /// Directory for the mapped files.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        if self.dir.as_os_str().is_empty() {
            std::env::temp_dir()
        } else {
            self.dir.clone()
        }
    }

    /// The most memory that one of the mappings takes. A private mapping of a file on tmpfs takes it twice: the file's
    /// pages are memory, and so are the copies that are written.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let mut copied = self.ways().into_iter();
        let twice = copied.any(|way| way.0.is_file() && way.0.is_private())
            && is_in_memory(&self.directory());
        self.size_bytes.saturating_mul(if twice { 2 } else { 1 })
    }

    /// The file of the platform, if it isn't one that comes with the program.
    #[must_use]
    pub fn platform_file(&self) -> Option<&Path> {
        platforms::is_file(&self.platform).then_some(Path::new(&self.platform))
    }

    /// The walk of a case.
    #[must_use]
    pub fn walk(&self, access: Access, locality: u64) -> Walk {
        Walk {
            lines: usize::try_from(self.size_bytes).unwrap_or(usize::MAX) / LINE_BYTES,
            outer: self.outer,
            locality,
            random: (access == Access::Random).then_some(self.seed),
        }
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
        assert_eq!(Config::default().ways(), Way::ALL);
    }

    #[test]
    fn private_pages_of_a_file_in_memory_take_its_size_twice() {
        let shm = Path::new("/dev/shm");
        if !is_in_memory(shm) {
            eprintln!("skipped: {} is no tmpfs", shm.display());
            return;
        }
        let way = |file: bool, private: bool| {
            let mut all = Way::ALL.into_iter();
            let same = |way: &Way| way.0.is_file() == file && way.0.is_private() == private;
            all.find(same).unwrap()
        };
        let bytes = |way: Way, dir: &Path| {
            let config = Config {
                flags: vec![way],
                dir: dir.into(),
                size_bytes: 1 << 20,
                ..Config::default()
            };
            config.memory_bytes() >> 20
        };
        let proc = Path::new("/proc");
        let private_file = way(true, true);
        assert_eq!(
            [bytes(private_file, shm), bytes(private_file, proc)],
            [2, 1]
        );
        assert_eq!(bytes(way(true, false), shm), 1);
        assert_eq!(bytes(way(false, true), shm), 1);
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(with(|c| c.flags = vec![Way::ALL[0]; 2]).contains("shared is given twice"));
        assert!(with(|c| c.access.clear()).contains("--access random,sequential"));
        assert!(with(|c| c.locality = vec![0]).contains("--locality 0"));
        assert!(with(|c| c.outer = 0).contains("--outer 0"));
        assert!(with(|c| c.size_bytes = 16 << 10).contains("--size 16K"));
        assert!(with(|c| c.size_bytes = 1 << 60).contains("--size"));
        assert!(with(|c| c.model_outer = 0).contains("--model-outer 0"));
        assert!(with(|c| c.platform = "i5".into()).contains("xeon-w3530"));
        assert!(with(|c| c.compete.clear()).contains("--compete none,fork"));
        assert!(with(|c| c.confine_bytes = 1 << 20).contains("there is no competitor"));
        assert!(with(|c| c.repeat = 0).contains("--repeat 0"));
        assert!(Config::default().repeat as usize >= memwarden_run::statistics::FEWEST_FOR_RATIO);
        assert!(with(|c| c.seed = u64::MAX).contains("--seed"));
        assert_eq!(
            "anonymous".parse::<Way>().unwrap_err().to_string(),
            "`anonymous`: give one of shared, private, private-populate, shared-anonymous, private-anonymous, \
             private-populate-anonymous"
        );
    }
}
