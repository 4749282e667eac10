// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden copy pollution`: slowdown of an application by the copies of another CPU.

use std::process::ExitCode;

use memwarden_experiments::copy::Engine;
use memwarden_experiments::copy::pollution::{self, Config, Pair, System};
use serde::Serialize;

use super::{Common, Dat};
use crate::verbs::numbers::count;

/// Run applications beside another CPU's copies, and report their slowdown by CPU copies and by DMA copies
#[derive(clap::Args, Serialize)]
#[command(
    after_help = "One CPU repeats a copy; another runs an application, whose time, cache references and misses are measured.\n\
    Systems: ideal (no copies), cpu (copies by the CPU), dma (by --engine).\n\
    Applications: susan_smoothing_, susan_edges_ and susan_corners_ with small, medium or large; qsort_small, qsort_large.\n\
    Missing modules are loaded (cftu, and swdma if no DMA channel is free) and unloaded afterwards.\n\
    Examples:\n  memwarden copy pollution --application susan_edges_large --pairs to:4096\n  \
    memwarden copy pollution --repeat 50\n  \
    memwarden copy pollution --on lab:raspberry-pi-3"
)]
pub(super) struct Args {
    /// The engine of the system dma: dma-exclusive, dma-shared, dma-priority [default: dma-shared]
    #[arg(long, value_name = "ENGINE")]
    engine: Option<Engine>,
    /// ideal, cpu, dma [default: all three]
    #[arg(long, value_name = "SYSTEM,...", value_delimiter = ',')]
    system: Option<Vec<System>>,
    /// The copies as OPERATION:BYTES; the operation is from, to or from+to
    /// [default: from+to:16,from:224,from:1124,from:16064,to:1448,to:4096]
    #[arg(long, value_name = "PAIR,...", value_delimiter = ',')]
    pairs: Option<Vec<Pair>>,
    /// The applications by name [default: all; lab: the small ones]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    application: Option<Vec<String>>,
    /// Runs of an application in each case [default: 300; lab: 10]
    #[arg(long, alias = "count", value_name = "N", value_parser = count::<u32>)]
    repeat: Option<u32>,
    /// The CPU on which the copies are made [default: 0]
    #[arg(long, value_name = "CPU")]
    copy_cpu: Option<usize>,
    /// The application's CPU [default: 1, or the first of another core]
    #[arg(long, value_name = "CPU")]
    application_cpu: Option<usize>,
    /// Seed of the applications' inputs [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(flatten)]
    #[serde(skip)]
    dat: Dat,
    #[command(flatten)]
    #[serde(flatten)]
    common: Common,
}

impl Args {
    fn settings(&self) -> anyhow::Result<Config> {
        self.common.settings(self, |_: &mut Config| ())
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let run = pollution::run;
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
        Cli::try_parse_from(std::iter::once(&"pollution").chain(words))?
            .args
            .settings()
    }

    #[test]
    fn every_option_is_a_setting() {
        let command = <Cli as clap::CommandFactory>::command();
        crate::verbs::experiment::options::are_settings(&command, &[], settings);
    }

    #[test]
    fn bad_input_gets_one_line_that_names_it() {
        for (words, expected) in [
            (&["--engine", "cpu"][..], "give a DMA engine"),
            (&["--system", "worst"], "give one of ideal, cpu, dma"),
            (&["--pairs", "from"], "pair `from`"),
            (&["--pairs", "to:0"], "pair `to:0`"),
            (&["--pairs", "to:1,to:1"], "--pairs to:1 is given twice"),
            (&["--application", "doom"], "doom"),
            (&["--repeat", "0"], "--repeat 0"),
            (&["--copy-cpu", "1"], "give two CPUs"),
            (&["--dat", ""], "--dat"),
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
