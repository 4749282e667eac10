// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden traffic`: the process that makes the traffic of the guard's self-test.

use std::process::ExitCode;

use memwarden_experiments::traffic;

/// Make the traffic that each line of standard input asks for, until it ends
#[derive(clap::Args)]
pub struct Args {
    /// Run on this CPU
    #[arg(short = 'c', value_name = "CPU")]
    cpu: usize,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    traffic::serve(args.cpu, std::io::stdin().lock(), std::io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}
