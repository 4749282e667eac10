// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden copy`: copies between user and kernel memory, by CPU and by DMA.

mod bandwidth;
mod breakeven;
mod latency;
mod pollution;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;
use memwarden_experiments::copy::{Engine, dat};
use memwarden_experiments::{Error, RunRequest, Settings};
use memwarden_platform::units::{Time, parse_bytes, parse_nanoseconds};
use memwarden_run::Summary;
use serde::{Serialize, Serializer};

use super::experiment::{HasAll, OnMachine, OrAll, Place, on};
use super::on_lab::Lab;
use crate::verbs::output::outln;

/// Measure copies between user and kernel memory, by the CPU and by a DMA engine
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  memwarden copy latency --on lab --max 2M\n  memwarden copy pollution --on lab:raspberry-pi-3"
)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Latency(Box<latency::Args>),
    Bandwidth(Box<bandwidth::Args>),
    Pollution(Box<pollution::Args>),
    Breakeven(Box<breakeven::Args>),
}

/// Runs `memwarden copy ...`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Latency(args) => latency::run(&args),
        Verb::Bandwidth(args) => bandwidth::run(&args),
        Verb::Pollution(args) => pollution::run(&args),
        Verb::Breakeven(args) => breakeven::run(&args),
    }
}

/// Options of all copy verbs.
#[derive(clap::Args, Serialize)]
struct Common {
    /// The device; null copies within this process, to try the commands [default: /dev/cftu]
    #[arg(long, value_name = "PATH|null", value_parser = NonEmptyStringValueParser::new())]
    device: Option<String>,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    #[serde(skip)]
    on: OnMachine,
    /// The emulated machine: virt (channels in software; with a platform, its DMA engine), or zcu102 (sixteen DMA
    /// channels) [default: virt]
    #[cfg(feature = "host")]
    #[arg(long = "machine", value_name = "MACHINE", value_parser = parse_board)]
    #[serde(skip)]
    board: Option<memwarden_lab::Board>,
}

/// Settings of the channels' policies.
#[derive(clap::Args, Serialize)]
struct PolicyArgs {
    /// Let CPUs share a channel if there are more CPUs than channels
    #[arg(long)]
    #[serde(serialize_with = "on")]
    fold: bool,
    /// dma-priority: first part of each window, in which only the high channels run: ns, or with a unit [default: 30us]
    #[arg(long, value_name = "TIME", value_parser = parse_nanoseconds)]
    #[serde(rename = "quantum_high_ns", serialize_with = "nanoseconds")]
    quantum_high: Option<Time>,
    /// dma-priority: the rest of the window: ns, or with a unit [default: 60us]
    #[arg(long, value_name = "TIME", value_parser = parse_nanoseconds)]
    #[serde(rename = "quantum_low_ns", serialize_with = "nanoseconds")]
    quantum_low: Option<Time>,
    /// dma-priority: the high channels [default: 0]
    #[arg(long, value_name = "CHANNEL,...", value_delimiter = ',')]
    high: Option<Vec<u32>>,
    /// Don't compare what the driver's engine copied: loads cftu with compare=0; cftu must not be loaded yet
    #[arg(long)]
    #[serde(serialize_with = "on")]
    no_compare: bool,
}

fn nanoseconds<S: Serializer>(time: &Option<Time>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(Time::as_ns).serialize(serializer)
}

#[cfg(feature = "host")]
fn parse_board(text: &str) -> Result<memwarden_lab::Board, String> {
    [memwarden_lab::Board::Virt, memwarden_lab::Board::Zcu102]
        .into_iter()
        .find(|board| board.name() == text)
        .ok_or_else(|| "give virt or zcu102".into())
}

/// The classic layouts; only some experiments have them.
#[derive(clap::Args)]
struct Dat {
    /// Also write the classic tab-separated files to this directory
    #[arg(long, value_name = "DIR", value_parser = NonEmptyStringValueParser::new())]
    dat: Option<String>,
}

impl Dat {
    /// Creates the directory, if requested, so that a failure comes before the measurement.
    fn begin(&self, place: &Place) -> anyhow::Result<()> {
        match &self.dat {
            Some(directory) if !place.print_config => std::fs::create_dir_all(directory)
                .with_context(|| format!("--dat: making {directory}")),
            _ => Ok(()),
        }
    }

    /// Writes the files if requested.
    fn write(&self, folder: &Path, quiet: bool) -> anyhow::Result<()> {
        let Some(directory) = &self.dat else {
            return Ok(());
        };
        let count = dat::write(folder, Path::new(directory))?;
        if !quiet {
            outln!("{count} files in the classic layouts: {directory}")?;
        }
        Ok(())
    }
}

impl Common {
    fn settings<S: Settings>(
        &self,
        options: &impl Serialize,
        adjust: impl FnOnce(&mut S),
    ) -> anyhow::Result<S> {
        let place = &self.on.place;
        self.on.machine.check(&place.on)?;
        #[cfg(feature = "host")]
        super::on_lab::not_native(&place.on, "--machine", self.board.is_some())?;
        place.settings(options, adjust)
    }

    /// The emulated machine to use.
    fn lab(&self) -> anyhow::Result<Lab> {
        let lab = self.on.machine.lab()?;
        #[cfg(feature = "host")]
        let lab = lab.on_board(self.board.unwrap_or_default());
        Ok(lab)
    }

    /// Runs the experiment and prints its result; with `dat`, also writes the classic files.
    fn carry_out<S: Settings>(
        &self,
        settings: &S,
        dat: &Dat,
        native: impl FnOnce(&S, RunRequest) -> Result<(PathBuf, Summary<S::Whole>), Error>,
    ) -> anyhow::Result<ExitCode> {
        let place = &self.on.place;
        dat.begin(place)?;
        if let Some((folder, _)) = place.carry_out(settings, || self.lab(), native)? {
            dat.write(&folder, place.json)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// `all` is all that are available.
impl HasAll for Engine {
    fn all() -> Vec<Self> {
        Vec::new()
    }
}

/// Checks that `all` is given alone.
fn check_engines(given: Option<&Vec<OrAll<Engine>>>) -> anyhow::Result<()> {
    let given = given.map_or(&[][..], Vec::as_slice);
    if given.len() > 1 && given.iter().any(OrAll::is_empty) {
        anyhow::bail!("--engine all: this already includes every engine; give it alone");
    }
    Ok(())
}

/// Largest size of the default sizes, which are powers of two.
fn parse_max(text: &str) -> Result<u64, String> {
    parse_bytes(text)
        .ok()
        .filter(|bytes| (2 << 20..=1 << 30).contains(bytes) && bytes.is_power_of_two())
        .ok_or_else(|| "give a power of two from 2M to 1G".into())
}
