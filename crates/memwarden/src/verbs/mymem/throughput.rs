// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden mymem throughput`: bytes written to a memory device and read back.

use std::process::ExitCode;

use memwarden_experiments::mymem::throughput::{self, Config};
use memwarden_platform::units::parse_bytes;
use serde::Serialize;

use super::Common;
use crate::verbs::numbers::count;

/// Time writes and reads of each size, on each device and from inside the kernel
#[derive(clap::Args, Serialize)]
#[command(
    after_help = "MB/s is 10^6 bytes a second. Each write is of fresh random bytes, and each read is\n\
    compared with it, both outside the timing. A missing device's module is loaded, and unloaded afterwards.\n\
    Examples:\n  memwarden mymem throughput --sweep\n  \
    memwarden mymem throughput --device /dev/mymem --sizes 64,4096\n  \
    memwarden mymem throughput --on lab"
)]
pub(super) struct Args {
    /// Bytes of a transfer, or with a unit (K, M, G) [default: 1,64,1K,64K,512K]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_bytes)]
    sizes: Option<Vec<u64>>,
    /// All powers of two from 1 to 524288 bytes
    #[arg(long, conflicts_with = "sizes")]
    #[serde(skip)]
    sweep: bool,
    /// Transfers of each size [default: 1000]
    #[arg(long, alias = "trials", value_name = "N", value_parser = count::<u32>)]
    repeat: Option<u32>,
    /// Seed of the random bytes [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(flatten)]
    #[serde(flatten)]
    common: Common,
}

impl Args {
    fn settings(&self) -> anyhow::Result<Config> {
        self.common.on.settings(self, |config: &mut Config| {
            if self.sweep {
                config.sizes = Config::sweep();
            }
        })
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.settings()?;
    args.common.carry_out(&config, throughput::run, |_| None)
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
        Cli::try_parse_from(std::iter::once(&"throughput").chain(words))?
            .args
            .settings()
    }

    #[test]
    fn every_option_is_a_setting() {
        let command = <Cli as clap::CommandFactory>::command();
        crate::verbs::experiment::options::are_settings(&command, &[], settings);
    }

    #[test]
    fn sizes_are_bytes_or_have_a_unit() {
        let sizes = settings(&["--sizes", "1,64K,1M"]).unwrap().sizes;
        assert_eq!(sizes, [1, 64 << 10, 1 << 20]);
    }

    #[test]
    fn bad_input_gets_one_line_that_names_it() {
        for (words, expected) in [
            (&["--sizes", "0"][..], "a size cannot be 0"),
            (&["--sizes", "1,x"], "a size is bytes, or has a unit"),
            (&["--sizes", "-1"], "unexpected argument"),
            (&["--sizes", "64x"], "unknown unit"),
            (&["--sizes", "64,64"], "64 is given twice"),
            (&["--sizes", "2000000000"], "--sizes 2000000000"),
            (&["--sizes", "64", "--sweep"], "cannot be used with"),
            (&["--repeat", "0"], "--repeat 0"),
            (&["--repeat", "1e3"], "not a number"),
            (&["--seed", "-1"], "unexpected argument"),
            (&["--device", ""], "device ``"),
            (
                &["--device", "in-kernel", "--device", "in-kernel"],
                "given twice",
            ),
            (&["--config", "/nonexistent.toml"], "/nonexistent.toml"),
            (&["--on", "moon"], "moon"),
            #[cfg(feature = "host")]
            (&["--clock", "slow"], "give counted or free"),
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
