// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden sim`: a model of the memory system.

mod calibrate;
mod check;
mod generate;
mod measured;
mod memories;
mod output;
mod platforms;
mod record;
mod replay;
mod trace_file;

/// What the verbs print with `--json`.
pub mod printed {
    pub use super::calibrate::Report as Calibrated;
    pub use super::check::Report as Checked;
    pub use super::memories::Printed as Memories;
    pub use super::platforms::Printed as Platforms;
    pub use super::replay::Told as Replayed;
}

use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use memwarden_sim::dram::{Memory, MemoryError};

/// Model a DRAM, its controller and machines around it: check and calibrate the model, replay traces of requests
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  memwarden sim platforms\n  memwarden sim calibrate raspberry-pi-3 --compare-only"
)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Memories(memories::Args),
    Platforms(platforms::Args),
    Calibrate(calibrate::Args),
    Check(check::Args),
    Generate(generate::Args),
    Record(record::Args),
    Replay(replay::Args),
}

/// Runs `memwarden sim ...`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Memories(args) => memories::run(&args),
        Verb::Platforms(args) => platforms::run(&args),
        Verb::Calibrate(args) => calibrate::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Generate(args) => generate::run(&args),
        Verb::Record(args) => record::run(&args),
        Verb::Replay(args) => replay::run(&args),
    }
}

/// A built-in memory, or one from a file.
fn memory(asked: &str) -> anyhow::Result<Memory> {
    match Memory::named(asked) {
        Err(unknown @ MemoryError::Unknown { .. }) => {
            let path = Path::new(asked);
            if asked.contains(['/', '.']) || path.exists() {
                Ok(Memory::read(path)?)
            } else {
                Err(anyhow::anyhow!("{unknown}, or give a TOML file"))
            }
        }
        found => Ok(found?),
    }
}
