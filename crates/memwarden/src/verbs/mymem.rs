// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden mymem`: measures the memory devices in C and in Rust, and counters in their memory.

mod counter;
mod mistakes;
mod throughput;

use std::process::ExitCode;

use clap::Subcommand;
use memwarden_experiments::Settings;
use memwarden_experiments::mymem::Subject;
use serde::Serialize;

use super::experiment::Place;
use super::on_lab::MachineArgs;

/// Measure the memory devices: transfers of all sizes, counters with several workers, and common mistakes
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  memwarden mymem throughput --on lab\n  memwarden mymem counter --device in-kernel --workers 50 --lock none"
)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Throughput(throughput::Args),
    Counter(counter::Args),
    Mistakes(mistakes::Args),
}

/// Runs `memwarden mymem ...`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Throughput(args) => throughput::run(&args),
        Verb::Counter(args) => counter::run(&args),
        Verb::Mistakes(args) => mistakes::run(&args),
    }
}

/// Options of all mymem verbs.
#[derive(clap::Args, Serialize)]
struct Common {
    /// A device's path, or in-kernel (repeatable) [default: /dev/mymem, /dev/mymem_rust and in-kernel, as far as they
    /// exist]
    #[arg(long, value_name = "PATH|in-kernel")]
    device: Option<Vec<Subject>>,
    #[command(flatten)]
    #[serde(skip)]
    place: Place,
    #[command(flatten)]
    #[serde(skip)]
    machine: MachineArgs,
}

impl Common {
    fn settings<S: Settings>(&self, options: &impl Serialize) -> anyhow::Result<S> {
        self.machine.check(&self.place.on)?;
        self.place.settings(options)
    }
}
