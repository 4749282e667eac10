// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden schema`: JSON schemas of an experiment's settings and summary.

use std::process::ExitCode;

use anyhow::Context;
use memwarden_experiments::schema;

use super::output::outln;

/// Print the JSON schemas of an experiment's settings and of its summary.json
#[derive(clap::Args)]
#[command(after_help = "NAME is the `experiment` of a run folder.\n\
    Examples:\n  memwarden schema interfere\n  \
    memwarden schema copy-latency")]
pub struct Args {
    /// The experiment: interfere, realtime, mmap, mymem-counter, copy-latency, ...
    #[arg(value_name = "NAME")]
    name: String,
}

/// Runs `memwarden schema`.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let all = schema::all();
    let names = || all.iter().map(|one| one.name).collect::<Vec<_>>();
    let found = all.iter().find(|one| one.name == args.name);
    let found = found.with_context(|| {
        format!(
            "there is no experiment {}: give one of {}",
            args.name,
            names().join(", ")
        )
    })?;
    outln!("{}", serde_json::to_string_pretty(found)?)?;
    Ok(ExitCode::SUCCESS)
}
