// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden mmap compete`: the background competitor that `memwarden mmap` starts and kills.

use std::process::ExitCode;

use memwarden_workloads::competitor::{self, Words};

/// Take memory, and keep using it until killed
#[derive(clap::Args)]
pub(super) struct Args {
    /// Bytes to take
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 46))]
    bytes: u64,
    /// Descriptor of the words that it shares with its parent
    #[arg(long, value_parser = clap::value_parser!(i32).range(3..))]
    words: i32,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let words = Words::inherited(args.words)?;
    competitor::run(usize::try_from(args.bytes)?, &words);
    // It got no memory, and has reported that.
    Ok(ExitCode::FAILURE)
}
