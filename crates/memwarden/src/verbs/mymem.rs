// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden mymem`: the memory devices, in C and in Rust, and what a counter in their memory comes to.

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

/// Measure the memory devices: transfers of all sizes, counters that several workers increment, and what goes wrong
#[derive(clap::Args)]
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

/// Carries out `memwarden mymem ...`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Throughput(args) => throughput::run(&args),
        Verb::Counter(args) => counter::run(&args),
        Verb::Mistakes(args) => mistakes::run(&args),
    }
}

/// What all of them take.
#[derive(clap::Args, Serialize)]
struct Common {
    /// A device's path, or in-kernel (repeatable) [default: /dev/mymem, /dev/mymem_rust and in-kernel, those that are
    /// there]
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
