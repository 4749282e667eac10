// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden mymem counter`: a counter in a memory device that several workers increment.

use std::process::ExitCode;

use memwarden_copies::mymem::Lock;
use memwarden_experiments::mymem::counter::{self, Config, Workers};
use serde::Serialize;
use strum::VariantArray;

use super::Common;
use crate::verbs::experiment::{HasAll, OrAll, together};
use crate::verbs::numbers::{count, count_in};

/// Count with several workers and report lost updates: without a lock, with a mutex, with the device's atomic addition
#[derive(clap::Args, Serialize)]
#[command(
    after_help = "Each worker has its own file descriptor and reads the 64-bit counter, adds one, and writes it back.\n\
    The exit code is 1 if an update is lost with mutex or fetch-add; without a lock, lost updates are the result.\n\
    A missing device's module is loaded, and unloaded afterwards.\n\
    Examples:\n  memwarden mymem counter --workers 1-8,16,50,100\n  \
    memwarden mymem counter --device in-kernel --workers 50 --lock none\n  \
    memwarden mymem counter --on lab"
)]
pub(super) struct Args {
    /// Numbers of workers, 1 to 100: a list with ranges [default: 1-2,4,8,16,50,100; lab: 1-2,4,8,50]
    #[arg(long, value_name = "LIST")]
    workers: Option<Workers>,
    /// Increments of each worker [default: 150000; lab: 1000]
    #[arg(long, value_name = "N", value_parser = count::<u64>)]
    increments: Option<u64>,
    /// none, mutex, fetch-add, or all (repeatable) [default: all]
    #[arg(long, value_name = "LOCK")]
    #[serde(serialize_with = "together")]
    lock: Option<Vec<OrAll<Lock>>>,
    /// Runs of each case; the cases alternate [default: 1]
    #[arg(long, value_name = "N", value_parser = count::<u32>)]
    repeat: Option<u32>,
    /// Numbers of workers inside the kernel [default: as --workers; lab: 50]
    #[arg(long, value_name = "LIST")]
    in_kernel_workers: Option<Workers>,
    /// Increments of each worker inside the kernel [default: as --increments; lab: 150000]
    #[arg(long, value_name = "N", value_parser = count_in::<u64>(1..=u64::MAX))]
    in_kernel_increments: Option<u64>,
    #[command(flatten)]
    #[serde(flatten)]
    common: Common,
}

impl HasAll for Lock {
    fn all() -> Vec<Self> {
        Self::VARIANTS.into()
    }
}

impl Args {
    fn settings(&self) -> anyhow::Result<Config> {
        self.common.on.settings(self, |_: &mut Config| ())
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.settings()?;
    args.common
        .carry_out(&config, counter::run, counter::faults)
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
        Cli::try_parse_from(std::iter::once(&"counter").chain(words))?
            .args
            .settings()
    }

    #[test]
    fn every_option_is_a_setting() {
        let command = <Cli as clap::CommandFactory>::command();
        crate::verbs::experiment::options::are_settings(&command, &[], settings);
    }

    #[test]
    fn the_lab_has_defaults_of_its_own() {
        let lab = settings(&["--on", "lab", "--workers", "1-3"]).unwrap();
        assert_eq!(lab.workers.to_string(), "1-3");
        assert_eq!(lab.in_kernel_workers.to_string(), "50");
        assert_eq!(settings(&["--lock", "all"]).unwrap().lock, Lock::VARIANTS);
    }

    #[test]
    fn bad_input_gets_one_line_that_names_it() {
        for (words, expected) in [
            (&["--workers", "0"][..], "workers `0`: out of range"),
            (&["--workers", "101"], "workers `101`: out of range"),
            (&["--workers", "8-1"], "workers `8-1`: runs backwards"),
            (&["--workers", "1,x"], "workers `x`: not a number"),
            (&["--workers", ""], "workers ``"),
            (&["--increments", "0"], "--increments 0"),
            (&["--increments", "many"], "not a number"),
            (&["--lock", "spin"], "give one of none, mutex, fetch-add"),
            (
                &["--lock", "none", "--lock", "all"],
                "--lock none is given twice",
            ),
            (&["--repeat", "0"], "--repeat 0"),
            (&["--in-kernel-workers", "200"], "workers `200`"),
            (&["--in-kernel-increments", "0"], "0 is not in"),
            (&["--device", ""], "device ``"),
            (
                &["--device", "/a", "--device", "/a"],
                "--device /a is given twice",
            ),
            (&["--config", "/nonexistent.toml"], "/nonexistent.toml"),
            (&["--on", "moon"], "moon"),
            #[cfg(feature = "host")]
            (&["--kernel", ""], "--kernel"),
            #[cfg(feature = "host")]
            (
                &["--clock", "free"],
                "--clock: this chooses the lab's machine",
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
