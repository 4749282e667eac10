// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden trace`: who does what to memory, on the whole machine.

mod command;
mod copies;
mod live;

use std::process::ExitCode;

use clap::Subcommand;

/// See who copies how much between user and kernel memory
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Copies(Box<copies::Args>),
}

/// Carries out `memwarden trace ...`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Copies(args) => copies::run(&args),
    }
}
