// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden mymem`: measures the memory devices in C and in Rust, and counters in their memory.

mod counter;
mod mistakes;
mod throughput;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use memwarden_experiments::mymem::Subject;
use memwarden_experiments::{Error, RunRequest, Settings};
use memwarden_run::Summary;
use serde::Serialize;

use super::experiment::OnMachine;
use super::output::errln;

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
    on: OnMachine,
}

impl Common {
    /// Runs the experiment and prints its result. `faults` names what a device did wrong; the exit code is then 1.
    fn carry_out<S: Settings>(
        &self,
        settings: &S,
        native: impl FnOnce(&S, RunRequest) -> Result<(PathBuf, Summary<S::Whole>), Error>,
        faults: impl FnOnce(&Summary<S::Whole>) -> Option<String>,
    ) -> anyhow::Result<ExitCode> {
        let lab = || self.on.machine.lab();
        let found = self.on.place.carry_out(settings, lab, native)?;
        if let Some(fault) = found.and_then(|(_, summary)| faults(&summary)) {
            errln!("memwarden: {fault}");
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}
