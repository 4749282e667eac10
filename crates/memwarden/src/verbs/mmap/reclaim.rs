// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden mmap reclaim`: measures the effect of a second chance for pages in use.

use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;
use memwarden_experiments::mmap::reclaim::{self, Config};
use serde::Serialize;

use super::bytes;
use crate::verbs::experiment::OnMachine;
use crate::verbs::numbers::count;

/// Count how often pages in use must be read back while others stream through, with vm.reclaim_active off and on
#[derive(clap::Args, Serialize)]
#[command(
    after_help = "The switch is in kernels with kernel/patches/6.12 (CONFIG_RECLAIM_ACTIVE), such as the lab's own. It is restored\n\
    afterwards. The pages are in a control group and go to a swap, which --swap makes on a RAM disk.\n\
    Examples:\n  memwarden mmap reclaim --on lab\n  \
    memwarden mmap reclaim --swap /dev/ram0 --hot 4M --cold 24M --memory 12M"
)]
pub(super) struct Args {
    /// Size of the pages in use: KiB, or with a unit [default: 2M]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    #[serde(rename = "hot_bytes")]
    hot: Option<u64>,
    /// Size of the pages that stream through: KiB, or with a unit [default: 12M]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    #[serde(rename = "cold_bytes")]
    cold: Option<u64>,
    /// Memory limit for both: KiB, or with a unit [default: 6M]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    #[serde(rename = "memory_bytes")]
    memory: Option<u64>,
    /// Measured passes [default: 3]
    #[arg(long, value_name = "N", value_parser = count::<u64>)]
    rounds: Option<u64>,
    /// A RAM disk to swap to during the runs; its contents are lost [default: the machine's own swap; lab: /dev/ram0]
    #[arg(long, value_name = "DEVICE", value_parser = NonEmptyStringValueParser::new())]
    swap: Option<String>,
    /// Runs with the switch off, and as many with it on [default: 3]
    #[arg(long, value_name = "N", value_parser = count::<u32>)]
    repeat: Option<u32>,
    #[command(flatten)]
    #[serde(skip)]
    on: OnMachine,
}

impl Args {
    fn settings(&self) -> anyhow::Result<Config> {
        self.on.settings(self, |_: &mut Config| ())
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let lab = || Ok(args.on.machine.lab()?.with_our_patches_only());
    let config = args.settings()?;
    args.on.place.carry_out(&config, lab, reclaim::run)?;
    Ok(ExitCode::SUCCESS)
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

    fn settings(words: &[&str]) -> anyhow::Result<Config> {
        Cli::try_parse_from(std::iter::once(&"reclaim").chain(words))?
            .args
            .settings()
    }

    #[test]
    fn every_option_is_a_setting() {
        let command = <Cli as clap::CommandFactory>::command();
        crate::verbs::experiment::options::are_settings(&command, &["memory", "swap"], settings);
    }

    #[test]
    fn bad_input_gets_one_line_that_names_it() {
        for (words, expected) in [
            (&["--hot", "6M"][..], "--hot"),
            (&["--memory", "1G"], "no page is ever reclaimed"),
            (&["--rounds", "0"], "--rounds 0"),
            (&["--repeat", "x"], "not a number"),
            (&["--swap", "/dev/sda"], "would be lost"),
            (&["--cold", "4K"], "--memory"),
        ] {
            let message = format!(
                "{:#}",
                settings(words)
                    .err()
                    .unwrap_or_else(|| panic!("{words:?} was taken"))
            );
            assert!(message.contains(expected), "{words:?}: {message}");
        }
    }
}
