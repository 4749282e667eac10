// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden trace`: traces of memory operations on the whole machine.

mod command;
mod copies;
mod live;

use std::process::ExitCode;

use clap::Subcommand;

/// Trace copies between user and kernel memory
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  memwarden trace copies --for 100s\n  memwarden trace copies -- tar cf /dev/null /etc"
)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Copies(Box<copies::Args>),
}

/// Runs `memwarden trace ...`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Copies(args) => copies::run(&args),
    }
}
