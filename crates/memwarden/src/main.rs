// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line, and nothing else: parses, calls the verb, prints the error.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod verbs;

/// Measures, traces and regulates memory traffic on multicore Linux.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome: anyhow::Result<ExitCode> = match cli.verb {};
    outcome.unwrap_or_else(|error| {
        eprintln!("memwarden: {error:#}");
        ExitCode::FAILURE
    })
}
