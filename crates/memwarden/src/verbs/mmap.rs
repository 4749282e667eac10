// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden mmap`: measures the cost of a mapping.

mod compete;
mod reclaim;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;
use memwarden_experiments::mmap::{self, Access, Compete, Config, Counters, Flush, Switch, Way};
use memwarden_platform::units::parse_size;
use serde::Serialize;

use super::experiment::{HasAll, OnMachine, OrAll, on, together};
use crate::verbs::numbers::count;

/// Measure the cost of a mapping: six ways to map memory, random and sequential walks, alone or beside a competitor
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Each outer step picks a place and walks --locality times over the 32 KiB there, storing to every eighth line and\n\
    loading the others. Before the walk the mapping is filled, and the data caches are emptied.\n\
    Mappings: shared, private, private-populate (of a file), shared-anonymous, private-anonymous,\n\
    private-populate-anonymous. Platforms: this-machine, i5-2467m, raspberry-pi-3, xeon-w3530, or a TOML file\n\
    with a table [counters].\n\
    If the machine has no counters, a model replays the accesses, and every table says so.\n\
    Examples:\n  memwarden mmap --outer 65536\n  \
    memwarden mmap --flags private-anonymous --locality 2,4,8,16,32 --outer 65536\n  \
    memwarden mmap --flags private-anonymous --compete none,fork --size 256M\n  \
    memwarden mmap --platform i5-2467m --prefetcher off --outer 8192\n  \
    memwarden mmap reclaim --on lab"
)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    walk: WalkArgs,
}

#[derive(Subcommand)]
enum Verb {
    Reclaim(Box<reclaim::Args>),
    #[command(hide = true)]
    Compete(compete::Args),
}

#[derive(clap::Args, Serialize)]
struct WalkArgs {
    /// The mappings by name, or all [default: all]
    #[arg(long, value_name = "MAPPING,...", value_delimiter = ',')]
    #[serde(serialize_with = "together")]
    flags: Option<Vec<OrAll<Way>>>,
    /// random, sequential [default: both]
    #[arg(long, value_name = "ACCESS,...", value_delimiter = ',')]
    access: Option<Vec<Access>>,
    /// Walks over the 32 KiB in each step [default: 16]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = count::<u64>)]
    locality: Option<Vec<u64>>,
    /// The mapping's size: KiB, or with a unit [default: 1G; lab: 64M]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    #[serde(rename = "size_bytes")]
    size: Option<u64>,
    /// Outer steps of a walk [default: 1048576; lab: 256]
    #[arg(long, value_name = "N", value_parser = count::<u64>)]
    outer: Option<u64>,
    /// Source of the counters: auto (the machine, otherwise a model), hw, sim [default: auto]
    #[arg(long, value_name = "SOURCE")]
    counters: Option<Counters>,
    /// Platform whose caches are modelled, by name or file [default: this-machine; lab: raspberry-pi-3]
    #[arg(long, value_name = "PLATFORM")]
    platform: Option<String>,
    /// The modelled prefetcher, on lab:PLATFORM the platform's: on, off [default: on]
    #[arg(long, value_name = "on|off")]
    prefetcher: Option<Switch>,
    /// Model only the first N outer steps of each walk [default: 8192; lab: 64]
    #[arg(long, value_name = "N", value_parser = count::<u64>)]
    model_outer: Option<u64>,
    /// Competitors, each measured separately: none, fork (a child on the same CPU), background (a program on any CPU)
    /// [default: none]
    #[arg(long, value_name = "COMPETITOR,...", value_delimiter = ',')]
    compete: Option<Vec<Compete>>,
    /// Memory that the competitor takes: KiB, or with a unit [default: what is free, less a tenth of all memory and less a mapping]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    #[serde(rename = "compete_limit_bytes")]
    compete_limit: Option<u64>,
    /// Put the competitor into a control group with this memory limit (KiB, or with a unit), whose own OOM killer ends it when it exceeds the
    /// limit
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    #[serde(rename = "confine_bytes")]
    confine: Option<u64>,
    /// Write the mapping back before each walk and after it (msync, MS_SYNC), and time that separately
    #[arg(long)]
    #[serde(serialize_with = "on")]
    msync: bool,
    /// Flush of the data caches before each walk: lines (by address), read (a larger buffer), off [default: lines]
    #[arg(long, value_name = "HOW")]
    flush: Option<Flush>,
    /// Walks of each case [default: 5; lab: 2]
    #[arg(long, value_name = "N", value_parser = count::<u32>)]
    repeat: Option<u32>,
    /// Seed of the random places [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The CPU to pin to [default: the last]
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    /// Directory of the mapped files, which have no name and so leave nothing behind [default: the directory for
    /// temporary files]
    #[arg(long, value_name = "DIR", value_parser = NonEmptyStringValueParser::new())]
    dir: Option<String>,
    #[command(flatten)]
    #[serde(skip)]
    on: OnMachine,
}

/// Parses the size of an option.
fn bytes(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    Ok(bytes as u64)
}

/// `all` is an empty list in the settings.
impl HasAll for Way {
    fn all() -> Vec<Self> {
        Vec::new()
    }
}

impl WalkArgs {
    fn settings(&self) -> anyhow::Result<Config> {
        self.on.settings(self, |_: &mut Config| ())
    }
}

/// The settings as the lab's guest gets them, where a platform's file is in /host; and that file.
fn in_the_guest(config: &Config) -> anyhow::Result<(Config, Option<PathBuf>)> {
    let mut config = config.clone();
    let file = config.platform_file().map(Path::canonicalize).transpose()?;
    if let Some(name) = file.as_deref().and_then(Path::file_name) {
        config.platform = format!("/host/{}", name.to_string_lossy());
    }
    Ok((config, file))
}

/// Runs `memwarden mmap ...`.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.verb {
        Some(Verb::Reclaim(args)) => return reclaim::run(args),
        Some(Verb::Compete(args)) => return compete::run(args),
        None => {}
    }
    let args = &args.walk;
    let mut config = args.settings()?;
    let mut carried = None;
    let OnMachine { place, machine } = &args.on;
    if place.on.is_lab() && !place.print_config {
        (config, carried) = in_the_guest(&config)?;
    }
    let lab = || {
        let lab = machine.lab()?.with(carried.as_slice());
        Ok(match config.prefetcher {
            Switch::On => lab,
            Switch::Off => lab.without_prefetcher(),
        })
    };
    place.carry_out(&config, lab, mmap::run)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use memwarden_experiments::Settings as _;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn settings(words: &[&str]) -> anyhow::Result<Config> {
        Cli::try_parse_from(std::iter::once(&"mmap").chain(words))?
            .args
            .walk
            .settings()
    }

    #[test]
    fn every_option_is_a_setting() {
        let command = <Cli as clap::CommandFactory>::command();
        crate::verbs::experiment::options::are_settings(
            &command,
            &["counters", "compete-limit", "confine"],
            settings,
        );
    }

    #[test]
    fn a_platforms_file_goes_into_the_guest() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.toml");
        std::fs::write(&file, "").unwrap();
        let config = Config {
            platform: file.display().to_string(),
            ..Config::default()
        };
        let (there, carried) = in_the_guest(&config).unwrap();
        assert_eq!(there.platform, "/host/mine.toml");
        assert_eq!(carried, Some(file.canonicalize().unwrap()));
        let named = Config::for_lab();
        assert_eq!(in_the_guest(&named).unwrap(), (named, None));
    }

    #[test]
    fn bad_input_gets_one_line_that_names_it() {
        for (words, expected) in [
            (&["--flags", "huge"][..], "`huge`: give one of shared,"),
            (&["--flags", "shared,shared"], "shared is given twice"),
            (&["--access", "any"], "give one of random, sequential"),
            (&["--locality", "0"], "--locality 0"),
            (&["--size", "0"], "a size cannot be 0"),
            (&["--size", "16K"], "does not fit"),
            (&["--size", "9999999G"], "--size"),
            (&["--outer", "0"], "--outer 0"),
            (&["--outer", "2^20"], "not a number"),
            (&["--counters", "perf"], "give one of auto, hw, sim"),
            (
                &["--platform", "vax"],
                "i5-2467m, raspberry-pi-3, xeon-w3530",
            ),
            (&["--prefetcher", "maybe"], "give one of on, off"),
            (&["--compete", "all"], "give one of none, fork, background"),
            (&["--compete-limit", "1G"], "there is no competitor"),
            (&["--flush", "all"], "give one of lines, read, off"),
            (&["--repeat", "0"], "--repeat 0"),
            (&["--seed", "-1"], "unexpected argument"),
            (&["--dir", ""], "--dir"),
            (&["--config", "/nonexistent.toml"], "/nonexistent.toml"),
            #[cfg(feature = "host")]
            (
                &["--clock", "free"],
                "--clock: this chooses the lab's machine",
            ),
        ] {
            let message = format!(
                "{:#}",
                settings(words)
                    .err()
                    .unwrap_or_else(|| panic!("{words:?} was taken"))
            );
            assert!(message.contains(expected), "{words:?}: {message}");
        }
    }
}
