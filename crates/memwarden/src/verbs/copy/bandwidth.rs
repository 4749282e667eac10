// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden copy bandwidth`: copy bandwidth of all CPUs at once, by size.

use std::process::ExitCode;

use memwarden_experiments::copy::bandwidth::{self, Config};
use memwarden_experiments::copy::{Engine, Operation, powers};
use memwarden_platform::units::parse_bytes;
use serde::Serialize;

use super::{Common, Dat, check_engines, parse_max};
use crate::verbs::experiment::{OrAll, together};
use crate::verbs::numbers::count;

/// Copy on every CPU at once; report each channel's rate and the total, by size
#[derive(clap::Args, Serialize)]
#[command(
    after_help = "One thread on each CPU. from and to copy out of and into user memory, from+to alternates between them.\n\
    cpu is copy_from_user() and copy_to_user(); dma-exclusive gives each CPU a channel, dma-shared takes the least loaded,\n\
    dma-priority has windows in whose first part only the high channels run. MB/s is 2^20 bytes a second.\n\
    Missing modules are loaded (cftu, and swdma if no DMA channel is free) and unloaded afterwards.\n\
    Examples:\n  memwarden copy bandwidth --engine cpu,dma-shared\n  \
    memwarden copy bandwidth --engine dma-priority --high 0 \\\n      --quantum-high 60us --quantum-low 30us\n  \
    memwarden copy bandwidth --on lab"
)]
pub(super) struct Args {
    /// cpu, dma-exclusive, dma-shared, dma-priority, or all that are available [default: all]
    #[arg(long, value_name = "ENGINE,...", value_delimiter = ',')]
    #[serde(serialize_with = "together")]
    engine: Option<Vec<OrAll<Engine>>>,
    /// from, to, from+to [default: all three]
    #[arg(long, value_name = "OPERATION,...", value_delimiter = ',')]
    operation: Option<Vec<Operation>>,
    /// Sizes of a copy, bytes or 64K, 2M [default: the powers of two from 1 KiB to --max]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_bytes)]
    sizes: Option<Vec<u64>>,
    /// The largest power of two, 2M to 1G [default: 32M; lab: 1 MiB]
    #[arg(long, value_name = "SIZE", conflicts_with = "sizes", value_parser = parse_max)]
    #[serde(skip)]
    max: Option<u64>,
    /// Copies of each thread [default: 300; lab: 30]
    #[arg(long, value_name = "N", value_parser = count::<u32>)]
    operations: Option<u32>,
    /// Runs of each case [default: 1]
    #[arg(long, value_name = "N", value_parser = count::<u32>)]
    repeat: Option<u32>,
    #[command(flatten)]
    #[serde(skip)]
    dat: Dat,
    #[command(flatten)]
    #[serde(flatten)]
    common: Common,
}

impl Args {
    fn settings(&self) -> anyhow::Result<Config> {
        check_engines(self.engine.as_ref())?;
        self.common.settings(self, |config: &mut Config| {
            if let Some(max) = self.max {
                config.sizes = powers(1 << 10, max);
            }
        })
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let run = bandwidth::run;
    args.common.carry_out(&args.settings()?, &args.dat, run)
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
        Cli::try_parse_from(std::iter::once(&"bandwidth").chain(words))?
            .args
            .settings()
    }

    #[test]
    fn every_option_is_a_setting() {
        let command = <Cli as clap::CommandFactory>::command();
        crate::verbs::experiment::options::are_settings(&command, &[], settings);
    }

    #[test]
    fn the_largest_size_ends_the_powers_of_two_that_begin_at_a_kib() {
        let sizes = settings(&["--max", "2M"]).unwrap().sizes;
        assert_eq!(
            (sizes.first(), sizes.last(), sizes.len()),
            (Some(&1024), Some(&(2 << 20)), 12)
        );
    }

    #[test]
    fn bad_input_gets_one_line_that_names_it() {
        for (words, expected) in [
            (&["--engine", "dma"][..], "give one of cpu, dma-exclusive"),
            (&["--operation", "from_nc"], "give from, to or from+to"),
            (&["--operation", "from,from"], "given twice"),
            (&["--sizes", "0"], "a size cannot be 0"),
            (&["--sizes", "1K", "--max", "2M"], "cannot be used with"),
            (&["--max", "1M"], "give a power of two from 2M to 1G"),
            (&["--operations", "0"], "--operations 0"),
            (&["--repeat", "0"], "--repeat 0"),
            (&["--high", "x"], "invalid digit"),
            (&["--quantum-low", "2000000000"], "--quantum-low 2 s: give"),
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
