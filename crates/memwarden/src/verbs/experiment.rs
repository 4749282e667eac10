// SPDX-License-Identifier: MIT OR Apache-2.0
//! Common part of the experiments' verbs: the target, the settings, and the run folder.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use memwarden_experiments::{Backend, Error, Interrupt, RunRequest, Settings, Simulated};
use memwarden_run::{Existing, Summary, Whole};
use serde::{Serialize, Serializer};

use super::numbers::bytes_in;
use super::on_lab::{Lab, MachineArgs, parse_limit};
use super::terminal::Bar;
use super::{outcome, output};

/// The error for `--timeout` without a lab machine.
pub const NO_LAB_TO_END: &str = "--timeout: this ends the lab's machine; add --on lab";

/// Target of an experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// This machine.
    Native,
    /// The emulated machine, with the memory of a modelled platform if one is named.
    Lab(Option<String>),
    /// A simulated machine, by its name or file.
    Sim(String),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("sim", platform)) if !platform.is_empty() => Ok(Self::Sim(platform.into())),
            _ => machine(text).ok_or_else(|| {
                "give native, lab, lab:PLATFORM or sim:PLATFORM (sim:raspberry-pi-3, for example)"
                    .into()
            }),
        }
    }
}

/// A target with a real kernel.
fn machine(text: &str) -> Option<Target> {
    match text.split_once(':') {
        None if text == "native" => Some(Target::Native),
        None if text == "lab" => Some(Target::Lab(None)),
        Some(("lab", platform)) if !platform.is_empty() => Some(Target::Lab(Some(platform.into()))),
        _ => None,
    }
}

/// For `--on` of verbs that have no model.
pub fn parse_machine(text: &str) -> Result<Target, String> {
    machine(text).ok_or_else(|| match text.strip_prefix("sim") {
        Some(_) => "this command has no model: give native, lab or lab:PLATFORM".into(),
        None => "give native, lab or lab:PLATFORM (lab:raspberry-pi-3, for example)".into(),
    })
}

impl Target {
    /// True for the emulated machine.
    pub fn is_lab(&self) -> bool {
        matches!(self, Self::Lab(_))
    }
}

/// A flag that switches a setting on; null if not given.
pub fn on<S: Serializer>(given: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    given.then_some(true).serialize(serializer)
}

/// A flag that switches a setting off; null if not given.
pub fn off<S: Serializer>(given: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    given.then_some(false).serialize(serializer)
}

/// Values of an option that also takes `all`.
pub trait HasAll: Sized {
    /// The values that `all` stands for in the settings.
    fn all() -> Vec<Self>;
}

/// One value, or `all`.
#[derive(Debug, Clone)]
pub struct OrAll<T>(Vec<T>);

impl<T> OrAll<T> {
    /// True for an `all` that is an empty list in the settings.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: HasAll + FromStr<Err: Display>> FromStr for OrAll<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self(T::all())),
            one => match one.parse() {
                Ok(one) => Ok(Self(vec![one])),
                Err(error) => Err(format!("{error}, or all")),
            },
        }
    }
}

/// The given values together.
pub fn together<T: Serialize, S: Serializer>(
    given: &Option<Vec<OrAll<T>>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match given {
        Some(given) => serializer.collect_seq(given.iter().flat_map(|one| &one.0)),
        None => serializer.serialize_none(),
    }
}

/// A run folder with its summary.
pub type Found = (PathBuf, Summary);

/// Makes an experiment's `--on` accept models, too.
pub fn on_or_a_model(on: clap::Arg) -> clap::Arg {
    on.value_parser(clap::builder::ValueParser::new(Target::from_str)).help(
        "Target: native (this machine), lab (an emulated machine), lab:PLATFORM (with a platform's caches, memory and \
         PMU) or sim:PLATFORM (a model)",
    )
}

/// A verb's options from words, for a verb that measures with another one.
#[cfg(feature = "host")]
pub fn parsed<A: clap::Args>(
    words: impl IntoIterator<Item = impl Into<std::ffi::OsString> + Clone>,
) -> anyhow::Result<A> {
    #[derive(clap::Parser)]
    #[command(no_binary_name = true)]
    struct Options<A: clap::Args> {
        #[command(flatten)]
        args: A,
    }
    Ok(<Options<A> as clap::Parser>::try_parse_from(words)?.args)
}

/// Options of all experiments.
#[derive(clap::Args)]
pub struct Place {
    /// Target: native (this machine), lab (an emulated machine) or lab:PLATFORM (with a platform's caches, memory and
    /// PMU)
    #[arg(long, value_name = "PLACE", default_value = "native", value_parser = parse_machine)]
    pub on: Target,
    /// Read settings from a TOML file; options on the command line override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the settings as TOML and exit
    #[arg(long)]
    pub print_config: bool,
    /// The run folder [default: out/EXPERIMENT-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Replace the run folder if it exists
    #[arg(long)]
    replace: bool,
    /// Limit of the lab's machine, boot included; time in which it waits for a core of a busy host does not count [default: 30m]
    #[arg(long, value_name = "TIME", value_parser = parse_limit)]
    timeout: Option<Duration>,
    /// Print the summary as JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

/// The platform whose caches and memory the emulated machine gets.
fn platform<S: Settings>(asked: Option<&str>) -> Option<&str> {
    asked.or(S::PLATFORM)
}

/// Options of the guard that an experiment starts.
#[derive(clap::Args, Serialize)]
pub struct GuardOptions {
    /// The regulator: auto, module, user, or null (regulates nothing)
    #[arg(long, value_name = "NAME")]
    backend: Option<Backend>,
    /// Event that the guard counts: a name, or a raw code such as 0x17
    #[arg(long, value_name = "EVENT", value_parser = NonEmptyStringValueParser::new())]
    event: Option<String>,
    /// Event that counts write-backs: a name, or a raw code such as 0x18
    #[arg(long, value_name = "CODE", value_parser = NonEmptyStringValueParser::new())]
    write_event: Option<String>,
    /// One budget for reads and write-backs together
    #[arg(long)]
    #[serde(serialize_with = "on")]
    combined: bool,
    /// Bytes that one event stands for
    #[arg(long, value_name = "N", value_parser = bytes_in(1..=u64::MAX))]
    bytes_per_event: Option<u64>,
}

/// Options of the experiments that choose the emulated machine, too.
#[derive(clap::Args)]
pub struct OnMachine {
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub machine: MachineArgs,
}

impl OnMachine {
    /// As [`Place::settings`].
    pub fn settings<S: Settings>(
        &self,
        options: &impl Serialize,
        adjust: impl FnOnce(&mut S),
    ) -> anyhow::Result<S> {
        self.machine.check(&self.place.on)?;
        self.place.settings(options, adjust)
    }
}

impl Place {
    /// The target's default settings, overridden by the file and then by the options; `adjust` applies the options that
    /// are no settings.
    pub fn settings<S: Settings>(
        &self,
        options: &impl Serialize,
        adjust: impl FnOnce(&mut S),
    ) -> anyhow::Result<S> {
        if !self.on.is_lab() && self.timeout.is_some() {
            anyhow::bail!(NO_LAB_TO_END);
        }
        let defaults = match &self.on {
            Target::Native => S::for_native()?,
            Target::Lab(asked) => match platform::<S>(asked.as_deref()) {
                Some(name) => S::for_modelled(&Simulated::find(name)?.platform),
                None => S::for_lab(),
            },
            Target::Sim(_) => S::for_sim(),
        };
        let mut settings = defaults.under(self.config.as_deref(), options)?;
        adjust(&mut settings);
        settings.check()?;
        Ok(settings)
    }

    /// Runs the experiment on its target: `native` here, or its command on the machine that `lab` returns. None if only
    /// the settings were requested, which are then printed.
    pub fn measure<S: Settings>(
        &self,
        settings: &S,
        lab: impl FnOnce() -> anyhow::Result<Lab>,
        native: impl FnOnce(&S, RunRequest) -> Result<(PathBuf, Summary<S::Whole>), Error>,
    ) -> anyhow::Result<Option<(PathBuf, Summary<S::Whole>)>> {
        if self.print_config {
            output::write(&settings.to_toml()?)?;
            return Ok(None);
        }
        let out = self.out.as_deref();
        let existing = Existing::replace_if(self.replace);
        if let Target::Lab(asked) = &self.on {
            settings.check_real()?;
            let platform = platform::<S>(asked.as_deref());
            if let Some(name) = platform {
                settings.check_cores(&Simulated::find(name)?)?;
            }
            let (folder, summary) = lab()?
                .on_platform(platform)?
                .within(self.timeout)
                .carry_out(S::COMMAND, &settings.to_guest_toml()?, out, existing)?;
            return Ok(Some((folder, summary.typed()?)));
        }
        let simulated = match &self.on {
            Target::Sim(asked) => Some(Simulated::find(asked)?),
            _ => None,
        };
        let (interrupt, mut bar) = (Interrupt::catch()?, Bar::new());
        let request = RunRequest::new(out, existing, &interrupt, &mut bar);
        Ok(Some(match simulated {
            Some(simulated) => settings.simulate(&simulated, request)?,
            None => native(settings, request)?,
        }))
    }

    /// As [`Self::measure`], and prints the result.
    pub fn carry_out<S: Settings>(
        &self,
        settings: &S,
        lab: impl FnOnce() -> anyhow::Result<Lab>,
        native: impl FnOnce(&S, RunRequest) -> Result<(PathBuf, Summary<S::Whole>), Error>,
    ) -> anyhow::Result<Option<(PathBuf, Summary<S::Whole>)>> {
        let found = self.measure(settings, lab, native)?;
        if let Some((folder, summary)) = &found {
            self.tell(folder, summary)?;
        }
        Ok(found)
    }

    /// Prints the result.
    pub fn tell<W: Whole>(&self, folder: &Path, summary: &Summary<W>) -> anyhow::Result<()> {
        outcome::tell(folder, &summary.untyped(), self.json)
    }
}

/// Checks for the verbs' tests.
#[cfg(test)]
pub(crate) mod options {
    use clap::{ArgAction, Command};

    /// Values of which at least one is valid for any option.
    const SAMPLES: &[&str] = &[
        "1",
        "2",
        "3",
        "64",
        "1000",
        "1ms",
        "1s",
        "16M",
        "64M",
        "256M",
        "0.5",
        "1-2",
        "3-4",
        "1000,100",
        "read",
        "null",
        "cpu",
        "dma",
        "dma-exclusive",
        "to",
        "heavy",
        "qsort_small",
        "random",
        "private-anonymous",
        "on",
        "off",
        "none",
        "raspberry-pi-3",
        "native",
        "instructions",
        "mutex",
        "spinlock",
        "atomic",
        "page-faults",
        "0x18",
        "mb",
        "from:16",
        "bandwidth:write",
        "hrt@0",
        "latency",
        "modelled",
        "fork",
        "1G",
        "50",
        "50%",
        "line",
    ];

    /// Options that choose the lab's machine or name a file.
    const ELSEWHERE: [&str; 8] = [
        "on", "config", "timeout", "with", "kernel", "clock", "cpus", "machine",
    ];

    /// Gives each of a command's options alone. Each must be a field of the settings below it, and must accept a sample
    /// value, except those in `except`, which need more than one word.
    pub(crate) fn are_settings<T>(
        command: &Command,
        except: &[&str],
        settings: impl Fn(&[&str]) -> anyhow::Result<T>,
    ) {
        let mut refused = Vec::new();
        for option in command.get_arguments() {
            let Some(name) = option.get_long().filter(|name| *name != "help") else {
                continue;
            };
            let long = format!("--{name}");
            let takes_value = matches!(option.get_action(), ArgAction::Set | ArgAction::Append);
            let named: Vec<String> = option
                .get_possible_values()
                .iter()
                .map(|value| value.get_name().to_owned())
                .collect();
            let mut tries: Vec<Vec<&str>> = Vec::new();
            if takes_value {
                let values = named
                    .iter()
                    .map(String::as_str)
                    .chain(SAMPLES.iter().copied());
                tries.extend(values.map(|value| vec![long.as_str(), value]));
            } else {
                tries.push(vec![&long]);
            }
            let mut taken = false;
            for words in tries {
                match settings(&words) {
                    Ok(_) => taken = true,
                    Err(error) => {
                        let said = format!("{error:#}");
                        assert!(!said.contains("unknown field"), "{words:?}: {said}");
                    }
                }
            }
            if !taken && !ELSEWHERE.contains(&name) {
                refused.push(name.to_owned());
            }
        }
        assert_eq!(refused, except, "options that no value was taken of");
    }
}
