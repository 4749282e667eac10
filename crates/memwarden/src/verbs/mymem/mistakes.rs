// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden mymem mistakes`: provokes mistakes with a memory device.

use std::process::ExitCode;

use memwarden_experiments::mymem::mistakes::{self, Config};
use serde::Serialize;

use super::Common;
use crate::verbs::numbers::count;

/// Make the mistakes that a program can make with a device, and report the device's reaction to each
#[derive(clap::Args, Serialize)]
#[command(
    after_help = "The mistakes: a descriptor closed while workers use it, its number given to another file, offsets at and beyond\n\
    the end, several programs at once without and with the module's `exclusive`, an increment by two calls.\n\
    The exit code is 1 if a device's reaction is not the expected one.\n\
    If a device is missing, the command loads its module and unloads it at the end; only then does it try `exclusive`.\n\
    Examples:\n  memwarden mymem mistakes\n  \
    memwarden mymem mistakes --on lab"
)]
pub(super) struct Args {
    /// Threads that share a descriptor and increment a counter [default: 4]
    #[arg(long, value_name = "N", value_parser = count::<u32>)]
    workers: Option<u32>,
    /// Increments of each thread [default: 50000; lab: 1000]
    #[arg(long, value_name = "N", value_parser = count::<u64>)]
    increments: Option<u64>,
    #[command(flatten)]
    #[serde(flatten)]
    common: Common,
}

impl Args {
    fn settings(&self) -> anyhow::Result<Config> {
        self.common.on.settings(self, |_: &mut Config| ())
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.settings()?;
    args.common
        .carry_out(&config, mistakes::run, mistakes::faults)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn every_option_is_a_setting() {
        let command = <Cli as clap::CommandFactory>::command();
        let settings = |words: &[&str]| {
            Cli::try_parse_from(std::iter::once(&"mistakes").chain(words))?
                .args
                .settings()
        };
        crate::verbs::experiment::options::are_settings(&command, &[], settings);
    }
}
