// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard check`: checks a budget file as `guard serve` would.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::verbs::output::outln;
use memwarden_experiments::Backend;
use memwarden_guard::BudgetFile;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The budget file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = BudgetFile::read(&args.file)?;
    file.backend::<Backend>()?;
    outln!("{}: well-formed", args.file.display())?;
    Ok(ExitCode::SUCCESS)
}
