// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden interfere`: one victim, N aggressors, with and without a guard.

use std::path::PathBuf;
use std::process::ExitCode;

use memwarden_experiments::interfere::{self, Config};
use memwarden_experiments::program::Delimiter;
use memwarden_experiments::{GuardSpec, Workload};
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::units::{Size, Time, parse_seconds};
use memwarden_run::studies::interfere::Summary;
use serde::Serialize;

use super::experiment::{GuardOptions, Place, Target, off, on, on_or_a_model};
use super::on_lab::{Lab, not_native};
use crate::verbs::numbers::count;

/// Measure a victim's slowdown by other cores' traffic, without and with a guard
#[derive(clap::Args, Serialize)]
#[command(
    mut_arg("on", on_or_a_model),
    after_help = "Budgets are MB/s (2^20 bytes), one a core in core order.\n\
    --on lab means --on lab:raspberry-pi-3, the platform of the published experiment.\n\
    Examples:\n  memwarden interfere --victim latency --aggressors bandwidth:write --cpus 1-3 \\\n      --guard 1000,100,100,100\n  \
    memwarden interfere --victim 'cmd: ./my-program' --jobs-by line --cpus 1-3\n  \
    memwarden interfere --on lab\n  \
    memwarden interfere --on lab:raspberry-pi-4\n  \
    memwarden interfere --on sim:raspberry-pi-3 --guard 1000,100,100,100"
)]
pub struct Args {
    /// The victim: latency, bandwidth:KIND, 'cmd: COMMAND' (a program of yours), or with --on sim:PLATFORM trace:FILE,
    /// or one of the first two in one bank of the memory (latency:bank=0)
    #[arg(long, value_name = "WORKLOAD")]
    victim: Option<Workload>,
    /// What delimits the jobs of a program: exit (each run), line (on its standard output) or mark (memwarden_job.h)
    /// [default: exit]
    #[arg(long, value_name = "exit|line|mark")]
    jobs_by: Option<Delimiter>,
    /// The victim's CPU
    #[arg(long, value_name = "CPU")]
    victim_cpu: Option<usize>,
    /// The victim's buffer: KiB, or with a unit [default: four times the last-level cache; on lab and sim 16M]
    #[arg(long, value_name = "SIZE")]
    victim_memory: Option<Size>,
    /// The victim's passes over its buffer in each repeat; for a program, its jobs [default: as many as fit into
    /// --window; 100 jobs; with --on lab 1]
    #[arg(long, value_name = "N", value_parser = count::<u64>)]
    victim_iterations: Option<u64>,
    /// Aggressors; each kind is measured separately (comma-separated): latency, bandwidth:KIND, or with --on
    /// sim:PLATFORM trace:FILE, or one of the first two in one bank (bandwidth:write:bank=0)
    #[arg(long, value_name = "WORKLOAD,...", value_delimiter = ',')]
    aggressors: Option<Vec<Workload>>,
    /// An aggressor's buffer [default: as the victim's]
    #[arg(long, value_name = "SIZE")]
    aggressor_memory: Option<Size>,
    /// CPUs of the aggressors: one aggressor runs on the last of these, two on the last two, ... [default: the other cores
    /// of the victim's package]
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuSet>,
    /// Guard budgets, each compared with no guard: MB,...[+spare|+ps][+reclaim], or events:N,...; with --on
    /// sim:PLATFORM also +per-bank: each budget in each bank of the memory (repeatable)
    #[arg(long, value_name = "BUDGETS")]
    guard: Option<Vec<GuardSpec>>,
    /// Runs of each case
    #[arg(long, value_name = "N", value_parser = count::<u32>)]
    repeat: Option<u32>,
    #[command(flatten)]
    #[serde(flatten)]
    guard_options: GuardOptions,
    /// The guard's period, such as 1ms or 500us
    #[arg(long, value_name = "TIME")]
    period: Option<Time>,
    /// Time between the start of the aggressors and the start of the victim
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    settle: Option<Time>,
    /// Minimum time for which each guarded case is watched without a break, in every period; its aggressors continue
    /// after the victim's last run [default: 2.5s]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    hold: Option<Time>,
    /// Minimum time of a last case with all aggressors, watched without a break; 0s leaves it out
    /// [default: 0s; with --on lab 5s]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    long_case: Option<Time>,
    /// Budgets of the long case [default: those of the last --guard; with --on lab small ones]
    #[arg(long, value_name = "BUDGETS")]
    long_guard: Option<GuardSpec>,
    /// Time of each run of the victim, without --victim-iterations; with --on sim:PLATFORM in simulated time
    /// [default: 1s; with --on sim 20ms]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, conflicts_with = "victim_iterations")]
    window: Option<Time>,
    /// Skip the guard's self-test
    #[arg(long)]
    #[serde(rename = "self_test", serialize_with = "off")]
    no_self_test: bool,
    /// Let the guard not count the kernel's own traffic
    #[arg(long)]
    #[serde(serialize_with = "on")]
    user_only: bool,
    /// Fail if the guard's event isn't memory traffic (such as page-faults and cycles)
    #[arg(long)]
    #[serde(serialize_with = "on")]
    require_memory_event: bool,
    /// The kernel module's file [default: the installed one]
    #[arg(long, value_name = "PATH")]
    #[serde(skip)]
    module: Option<PathBuf>,
    /// Copy this file or folder into the lab's guest, below /host (repeatable)
    #[arg(long, value_name = "PATH")]
    #[serde(skip)]
    with: Vec<PathBuf>,
    #[command(flatten)]
    #[serde(skip)]
    place: Place,
}

impl Args {
    fn settings(&self) -> anyhow::Result<Config> {
        anyhow::ensure!(
            self.victim_iterations.is_none() || !matches!(self.place.on, Target::Sim(_)),
            "--victim-iterations: on a model --window sets the length of a run"
        );
        self.place.settings(self, |config: &mut Config| {
            // Otherwise a number of passes, a default of the lab's, would hide the time.
            if self.window.is_some() {
                config.victim_iterations = 0;
            }
            config.module.clone_from(&self.module);
        })
    }
}

/// Runs `memwarden interfere`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some((folder, summary)) = measure(&args)? {
        args.place.tell(&folder, &summary)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures without printing a result.
pub fn measure(args: &Args) -> anyhow::Result<Option<(PathBuf, Summary)>> {
    let config = args.settings()?;
    not_native(&args.place.on, "--with", !args.with.is_empty())?;
    let lab = || Ok(Lab::usual().with(&args.with));
    args.place.measure(&config, lab, interfere::run)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use memwarden_experiments::Settings as _;
    use memwarden_sim::Platform;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn settings(words: &[&str]) -> anyhow::Result<Config> {
        Cli::try_parse_from(std::iter::once(&"interfere").chain(words))?
            .args
            .settings()
    }

    #[test]
    fn every_option_is_a_setting() {
        let command = <Cli as clap::CommandFactory>::command();
        crate::verbs::experiment::options::are_settings(&command, &[], settings);
    }

    #[test]
    fn the_lab_is_the_platform_of_the_published_experiment() {
        let modelled = |name| Config::for_modelled(&Platform::find(name).unwrap());
        assert_eq!(
            settings(&["--on", "lab"]).unwrap(),
            modelled("raspberry-pi-3")
        );
        let other = settings(&["--on", "lab:raspberry-pi-4"]).unwrap();
        assert_eq!(other, modelled("raspberry-pi-4"));
        assert_ne!(other, Config::default());
    }

    #[test]
    fn a_window_replaces_the_labs_number_of_passes() {
        assert_eq!(settings(&["--on", "lab"]).unwrap().victim_iterations, 1);
        let timed = settings(&["--on", "lab", "--window", "2ms"]).unwrap();
        assert_eq!(
            (timed.victim_iterations, timed.window.to_string()),
            (0, "2ms".into())
        );
    }

    #[test]
    fn bad_input_gets_one_line_that_names_it() {
        for (words, expected) in [
            (&["--victim", "stress"][..], "workload `stress`"),
            (&["--victim", "cmd:"], "workload `cmd:`"),
            (&["--aggressors", "cmd: true"], "can only be the victim"),
            (&["--jobs-by", "second"], "give one of exit, line, mark"),
            (
                &["--aggressors", "bandwidth:reed"],
                "workload `bandwidth:reed`",
            ),
            (&["--guard", "1000,x"], "budget `x`"),
            (&["--guard", "0"], "budget `0`"),
            (&["--guard", "100+fast"], "+fast"),
            (&["--guard", "100+per-bank+ps"], "give +spare instead"),
            (&["--victim", "latency:bank=x"], "workload `latency:bank=x`"),
            (&["--cpus", "3-1"], "runs backwards"),
            (&["--cpus", "0-3"], "CPU 0 is both"),
            (&["--repeat", "0"], "--repeat 0"),
            (
                &["--window", "1s", "--victim-iterations", "2"],
                "cannot be used with",
            ),
            (
                &["--on", "sim:raspberry-pi-3", "--victim-iterations", "2"],
                "--window sets the length",
            ),
            (&["--repeat", "-1"], "unexpected argument"),
            (&["--period", "5"], "no unit"),
            (&["--period", "1ns"], "period 1ns"),
            (&["--victim-memory", "12Q"], "'12Q' for '--victim-memory"),
            (&["--bytes-per-event", "0"], "a size cannot be 0"),
            (&["--backend", "kernel"], "backend `kernel`"),
            (&["--config", "/nonexistent.toml"], "/nonexistent.toml"),
            (&["--on", "moon"], "moon"),
            (&["--event", ""], "--event"),
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
