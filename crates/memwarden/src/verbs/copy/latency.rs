// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden copy latency`: the time of one copy, by size.

use std::process::ExitCode;

use memwarden_experiments::copy::latency::{self, Config};
use memwarden_experiments::copy::{Engine, Load, Operation, powers};
use memwarden_platform::units::parse_bytes;
use serde::Serialize;

use super::{Common, Dat, check_engines, parse_max};
use crate::verbs::experiment::{OrAll, on, together};
use crate::verbs::numbers::count;

/// Time copies of each size, out of and into user memory, by the CPU and by DMA
#[derive(clap::Args, Serialize)]
#[command(
    after_help = "from and to copy out of and into user memory; from_nc and to_nc first flush the cache lines of both sides.\n\
    cpu is copy_from_user() and copy_to_user(); dma-exclusive gives each CPU a channel, dma-shared takes the least loaded,\n\
    dma-priority has windows in whose first part only the high channels run.\n\
    The heavy load: on every other CPU a process that repeatedly writes 16 MiB (bandwidth -a write) and a thread\n\
    that writes and reads 1 MiB of a file in memory.\n\
    Missing modules are loaded (cftu, and swdma if no DMA channel is free) and unloaded afterwards.\n\
    Examples:\n  memwarden copy latency --max 2M\n  \
    memwarden copy latency --engine cpu,dma-shared --load idle,heavy\n  \
    memwarden copy latency --on lab"
)]
pub(super) struct Args {
    /// cpu, dma-exclusive, dma-shared, dma-priority, or all that are available [default: all]
    #[arg(long, value_name = "ENGINE,...", value_delimiter = ',')]
    #[serde(serialize_with = "together")]
    engine: Option<Vec<OrAll<Engine>>>,
    /// from, to, from_nc, to_nc [default: all four; lab: from,to]
    #[arg(long, value_name = "OPERATION,...", value_delimiter = ',')]
    operation: Option<Vec<Operation>>,
    /// Sizes of a copy, bytes or 64K, 2M [default: the powers of two from 1 to --max]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_bytes)]
    sizes: Option<Vec<u64>>,
    /// The largest power of two, 2M to 1G [default: 32M; lab: 1 MiB]
    #[arg(long, value_name = "SIZE", conflicts_with = "sizes", value_parser = parse_max)]
    #[serde(skip)]
    max: Option<u64>,
    /// Copies of each size [default: 300; lab: 30]
    #[arg(long, alias = "count", value_name = "N", value_parser = count::<u32>)]
    repeat: Option<u32>,
    /// Loads beside the copies, each measured separately: idle, heavy [default: idle]
    #[arg(long, value_name = "LOAD,...", value_delimiter = ',')]
    load: Option<Vec<Load>>,
    /// Let each copy pin its user memory within the measured time
    #[arg(long)]
    #[serde(serialize_with = "on")]
    pin_inside: bool,
    /// The CPU on which the copies are made [default: 0]
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
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
                config.sizes = powers(1, max);
            }
        })
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let run = latency::run;
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
        Cli::try_parse_from(std::iter::once(&"latency").chain(words))?
            .args
            .settings()
    }

    #[test]
    fn every_option_is_a_setting() {
        let command = <Cli as clap::CommandFactory>::command();
        crate::verbs::experiment::options::are_settings(&command, &[], settings);
    }

    #[test]
    fn a_quantum_is_ns_or_has_a_unit() {
        for (given, ns) in [("30000", 30_000), ("30us", 30_000)] {
            let policy = settings(&["--quantum-high", given]).unwrap().policy;
            assert_eq!(policy.quantum_high_ns, ns, "{given}");
        }
    }

    #[test]
    fn the_largest_is_a_power_of_two() {
        let largest = |max| settings(&["--max", max]).unwrap().sizes.pop();
        assert_eq!(largest("2M"), Some(2 << 20));
        assert_eq!(largest("1G"), Some(1 << 30));
        assert_eq!(settings(&["--sizes", "64,4K"]).unwrap().sizes, [64, 4096]);
        assert!(settings(&["--engine", "all"]).unwrap().engine.is_empty());
    }

    #[test]
    fn bad_input_gets_one_line_that_names_it() {
        for (words, expected) in [
            (
                &["--engine", "gpu"][..],
                "give one of cpu, dma-exclusive, dma-shared, dma-priority, or all",
            ),
            (&["--engine", "cpu,cpu"], "--engine cpu is given twice"),
            (&["--engine", "all,cpu"], "give it alone"),
            (
                &["--operation", "at"],
                "give one of from, to, from_nc, to_nc, from+to",
            ),
            (&["--operation", "from+to"], "a copy goes one way"),
            (&["--sizes", "0"], "a size cannot be 0"),
            (
                &["--timeout", "90s"],
                "--timeout: this ends the lab's machine; add --on lab",
            ),
            (
                &["--on", "lab", "--timeout", "0s"],
                "give a time of at least 1s",
            ),
            (&["--sizes", "2000000000"], "--sizes 2000000000"),
            (&["--sizes", "1", "--max", "2M"], "cannot be used with"),
            (&["--max", "1M"], "give a power of two from 2M to 1G"),
            (&["--max", "3M"], "give a power of two from 2M to 1G"),
            (&["--max", "2G"], "give a power of two from 2M to 1G"),
            (&["--repeat", "0"], "--repeat 0"),
            (&["--load", "light"], "give one of idle, heavy"),
            (&["--cpu", "x"], "invalid digit"),
            (&["--high", "64"], "--high 64"),
            (&["--quantum-high", "1"], "--quantum-high 1"),
            (&["--device", ""], "--device"),
            (&["--config", "/nonexistent.toml"], "/nonexistent.toml"),
            (&["--on", "moon"], "moon"),
            #[cfg(feature = "host")]
            (&["--cpus", "2"], "--cpus: this chooses the lab's machine"),
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
