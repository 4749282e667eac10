// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden copy breakeven`: the size from which the engine wins on this machine.

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use memwarden_experiments::copy::breakeven::{self, Answer, Config, THRESHOLD};
use memwarden_experiments::copy::{Engine, NULL, Operation};
use memwarden_platform::units::parse_bytes;
use memwarden_run::studies::copy_breakeven::Whole;
use serde::Serialize;

use super::Common;
use crate::verbs::numbers::count;
use crate::verbs::output::outln;

/// Find the size from which DMA wins: by copy time, by CPU time, and by another application's slowdown
#[derive(clap::Args, Serialize)]
#[command(
    after_help = "Three answers, each null with its reason if the engine never wins. --apply writes the answer that --answer names to\n\
    /sys/module/cftu/parameters/min_bytes; the CPU then makes shorter copies. For this cftu must be loaded (modprobe cftu).\n\
    The line for /etc/modprobe.d is printed in any case; nothing is written there.\n\
    Each copy by the engine pins its user memory within the time, as the copies do that the threshold decides on.\n\
    Examples:\n  memwarden copy breakeven\n  \
    memwarden copy breakeven --engine dma-exclusive --answer cpu-time --apply\n  \
    memwarden copy breakeven --on lab --machine zcu102"
)]
pub(super) struct Args {
    /// The engine: dma-exclusive, dma-shared, dma-priority [default: dma-shared]
    #[arg(long, value_name = "ENGINE")]
    engine: Option<Engine>,
    /// from, to, from_nc, to_nc; the engine must win in all of them [default: from,to]
    #[arg(long, value_name = "OPERATION,...", value_delimiter = ',')]
    operation: Option<Vec<Operation>>,
    /// Sizes of a copy, bytes or 64K, 2M [default: the powers of two to 32 MiB; lab: 64 bytes to 1 MiB]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_bytes)]
    sizes: Option<Vec<u64>>,
    /// Copies of each size, at least 10 [default: 100; lab: 20]
    #[arg(long, alias = "count", value_name = "N", value_parser = count::<u32>)]
    repeat: Option<u32>,
    /// The victim application [default: susan_corners_medium; lab: susan_corners_small]
    #[arg(long, value_name = "NAME")]
    victim: Option<String>,
    /// Runs of the victim beside each size, at least 2 [default: 20; lab: 6]
    #[arg(long, alias = "victim-runs", value_name = "N", value_parser = count::<u32>)]
    victim_repeat: Option<u32>,
    /// The CPU on which the copies are made [default: 0]
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    /// The victim's CPU [default: 1, or the first of another core]
    #[arg(long, value_name = "CPU")]
    victim_cpu: Option<usize>,
    /// Which answer is the threshold: latency, cpu-time, slowdown
    #[arg(long, value_name = "ANSWER", default_value = "latency")]
    #[serde(skip)]
    answer: Answer,
    /// Write the threshold to the loaded cftu
    #[arg(long)]
    #[serde(skip)]
    apply: bool,
    #[command(flatten)]
    #[serde(flatten)]
    common: Common,
}

impl Args {
    fn settings(&self) -> anyhow::Result<Config> {
        if self.apply && self.common.on.place.on.is_lab() {
            bail!("--apply: the answer is for the lab's machine, not for this one");
        }
        let config = self.common.settings(self, |_: &mut Config| ())?;
        if self.apply && config.device == Path::new(NULL) {
            bail!("--apply: --device null has no engine, so its answer is not valid for cftu");
        }
        Ok(config)
    }

    /// Prints the threshold, and sets it if requested.
    fn settle(&self, whole: &Whole) -> anyhow::Result<()> {
        let Some(bytes) = breakeven::answer(whole, self.answer) else {
            if self.apply {
                bail!(
                    "--apply: by {} the engine wins at no size; nothing was written",
                    self.answer
                );
            }
            return Ok(());
        };
        if !self.common.on.place.json {
            outln!(
                "for a file in /etc/modprobe.d: {}",
                breakeven::modprobe_line(bytes)
            )?;
        }
        if self.apply {
            breakeven::apply(bytes, Path::new(THRESHOLD))?;
        }
        Ok(())
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.settings()?;
    if args.apply {
        breakeven::can_apply(Path::new(THRESHOLD))?;
    }
    let Common { on, .. } = &args.common;
    let lab = || args.common.lab();
    if let Some((_, summary)) = on.place.carry_out(&config, lab, breakeven::run)? {
        args.settle(&summary.whole)?;
    }
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
        Cli::try_parse_from(std::iter::once(&"breakeven").chain(words))?
            .args
            .settings()
    }

    #[test]
    fn every_option_is_a_setting() {
        let command = <Cli as clap::CommandFactory>::command();
        crate::verbs::experiment::options::are_settings(&command, &[], settings);
    }

    #[test]
    fn the_older_names_of_the_repetitions_are_accepted() {
        let now = settings(&["--repeat", "1K", "--victim-repeat", "7"]).unwrap();
        assert_eq!((now.repeat, now.victim_repeat), (1000, 7));
        let then = settings(&["--count", "1000", "--victim-runs", "7"]).unwrap();
        assert_eq!(then, now);
    }

    #[test]
    fn bad_input_gets_one_line_that_names_it() {
        for (words, expected) in [
            (&["--engine", "cpu"][..], "give a DMA engine"),
            (&["--sizes", "0"], "a size cannot be 0"),
            (&["--repeat", "3"], "--repeat 3: give 10 to"),
            (&["--victim", "doom"], "doom"),
            (&["--victim-cpu", "0"], "give two CPUs"),
            (
                &["--answer", "all"],
                "give one of latency, cpu-time, slowdown",
            ),
            (
                &["--apply", "--device", "null"],
                "--apply: --device null has no engine",
            ),
            (
                &["--apply", "--on", "lab"],
                "--apply: the answer is for the lab's machine",
            ),
            #[cfg(feature = "host")]
            (
                &["--on", "lab", "--machine", "pdp11"],
                "give virt or zcu102",
            ),
            #[cfg(feature = "host")]
            (
                &["--machine", "zcu102"],
                "--machine: this chooses the lab's machine",
            ),
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
