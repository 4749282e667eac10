// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden realtime`: a task with deadlines, alone and beside a load, under each guard setting.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;
use memwarden_experiments::Workload;
use memwarden_experiments::program::Delimiter;
use memwarden_experiments::realtime::{self, Config, Load, Setting};
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::units::{Size, Time, parse_seconds};
use memwarden_run::studies::realtime::Summary;
use memwarden_workloads::periodic::DESCRIPTOR;
use serde::Serialize;

use super::experiment::{GuardOptions, Place, off, on, on_or_a_model};
use super::on_lab::{Lab, not_native};
use crate::verbs::numbers::{count, count_in};

/// Count the deadlines that a real-time task misses beside a load, without and with a guard
#[derive(clap::Args, Serialize)]
#[command(
    mut_arg("on", on_or_a_model),
    after_help = "Loads: screen (a frame buffer that scrolls), xserver (Xvfb with a scrolling xterm, where installed), \
    latency, bandwidth:KIND\nas in `memwarden interfere`, 'cmd: COMMAND', or a command behind --. A load runs until it is ended.\n\
    Budgets are MB/s (2^20 bytes), one a core in core order.\n\
    --on lab means --on lab:xeon-w3530, the platform of the published case; it has two CPUs.\n\
    --on-miss has MEMWARDEN_CASE, MEMWARDEN_JOB, MEMWARDEN_LATE_NS and MEMWARDEN_DEADLINE_NS in its environment.\n\
    Examples:\n  memwarden realtime --load screen --guard none --guard 600,600+ps\n  \
    memwarden realtime --victim 'cmd: ./player' --period 20ms --deadline 13ms \\\n      --load bandwidth:write\n  \
    memwarden realtime --jobs 200 -- stress-ng --vm 1 --vm-bytes 256M\n  \
    memwarden realtime --on lab"
)]
pub struct Args {
    /// The task: bandwidth:KIND over its frame, or a program of yours, 'cmd: COMMAND'
    #[arg(long, value_name = "WORKLOAD")]
    victim: Option<Workload>,
    /// What delimits the jobs of a program: mark (memwarden_job.h; the program has its own timer), line (it answers each
    /// line with a line) or exit (a run at each release) [default: mark]
    #[arg(long, value_name = "exit|line|mark")]
    jobs_by: Option<Delimiter>,
    /// The task's CPU
    #[arg(long, value_name = "CPU")]
    victim_cpu: Option<usize>,
    /// Memory that a job goes over once: KiB, or with a unit
    #[arg(long, value_name = "SIZE")]
    frame: Option<Size>,
    /// Frames in memory; the jobs alternate between them. With enough frames no cache holds the next one
    #[arg(long, value_name = "N", value_parser = count_in::<u64>(DESCRIPTOR.limit("--frames")))]
    frames: Option<u64>,
    /// Time between two releases of the task
    #[arg(long, value_name = "TIME")]
    period: Option<Time>,
    /// Time from a release to its deadline
    #[arg(long, value_name = "TIME")]
    deadline: Option<Time>,
    /// Releases in each run
    #[arg(long, value_name = "N", value_parser = count::<u64>)]
    jobs: Option<u64>,
    /// Run without SCHED_FIFO and locked memory
    #[arg(long)]
    #[serde(rename = "rt", serialize_with = "off")]
    no_rt: bool,
    /// Loads beside the task, each measured separately: screen, xserver, latency, bandwidth:KIND, 'cmd: COMMAND', or
    /// trace:FILE with --on sim:PLATFORM (repeatable)
    #[arg(long, value_name = "LOAD")]
    load: Option<Vec<Load>>,
    /// CPUs of the load: a workload runs on each of them [default: the first CPU of another core
    /// in the task's package]
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuSet>,
    /// The load's buffer, if it has one [default: four times the last-level cache; a screen 8100 KiB; on lab 16M, on sim 64M]
    #[arg(long, value_name = "SIZE")]
    load_memory: Option<Size>,
    /// Guard settings to compare: none, MB,...[+spare|+ps][+reclaim], or events:N,...; with
    /// --on sim:PLATFORM also +per-bank: each budget in each bank of the memory (repeatable)
    #[arg(long, value_name = "BUDGETS")]
    guard: Option<Vec<Setting>>,
    /// Runs of each case; the cases alternate
    #[arg(long, value_name = "N", value_parser = count::<u32>)]
    repeat: Option<u32>,
    #[command(flatten)]
    #[serde(flatten)]
    guard_options: GuardOptions,
    /// The guard's period, such as 1ms or 500us
    #[arg(long, value_name = "TIME")]
    guard_period: Option<Time>,
    /// Time between the start of a load and the start of the task
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    settle: Option<Time>,
    /// Shell command to run at the first missed deadline of each case
    #[arg(long, value_name = "CMD", value_parser = NonEmptyStringValueParser::new())]
    on_miss: Option<String>,
    /// Skip the guard's self-test
    #[arg(long)]
    #[serde(rename = "self_test", serialize_with = "off")]
    no_self_test: bool,
    /// Fail if the guard's event isn't memory traffic (such as page-faults and cycles)
    #[arg(long)]
    #[serde(serialize_with = "on")]
    require_memory_event: bool,
    /// The kernel module's file [default: the installed one]
    #[arg(long, value_name = "PATH")]
    #[serde(skip)]
    module: Option<PathBuf>,
    #[command(flatten)]
    #[serde(skip)]
    place: Place,
    /// Copy this file or folder into the lab's guest, below /host (repeatable)
    #[arg(long, value_name = "PATH")]
    #[serde(skip)]
    with: Vec<PathBuf>,
    /// A command as the load
    #[arg(last = true, value_name = "COMMAND")]
    #[serde(skip)]
    command: Vec<OsString>,
}

impl Args {
    fn settings(&self) -> anyhow::Result<Config> {
        self.place.settings(self, |config: &mut Config| {
            if !self.command.is_empty() {
                let mut load = self.load.clone().unwrap_or_default();
                load.push(Load::command(&self.command));
                config.load = load;
            }
            config.module.clone_from(&self.module);
        })
    }
}

/// Runs `memwarden realtime`.
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
    args.place.measure(&config, lab, realtime::run)
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
        Cli::try_parse_from(std::iter::once(&"realtime").chain(words))?
            .args
            .settings()
    }

    #[test]
    fn every_option_is_a_setting() {
        let command = <Cli as clap::CommandFactory>::command();
        crate::verbs::experiment::options::are_settings(&command, &[], settings);
    }

    #[test]
    fn a_command_behind_two_dashes_is_the_load() {
        let config = settings(&["--jobs", "5", "--", "stress-ng", "--vm", "1", "it's"]).unwrap();
        assert_eq!(config.load.len(), 1);
        assert_eq!(
            config.load[0].to_string(),
            r"cmd: stress-ng --vm 1 'it'\''s'"
        );
        let both = settings(&["--load", "screen", "--", "true"]).unwrap();
        assert_eq!(both.load.len(), 2);
    }

    #[test]
    fn the_lab_is_the_platform_of_the_published_experiment() {
        let modelled = |name| Config::for_modelled(&Platform::find(name).unwrap());
        assert_eq!(settings(&["--on", "lab"]).unwrap(), modelled("xeon-w3530"));
        let other = settings(&["--on", "lab:raspberry-pi-4"]).unwrap();
        assert_eq!(other, modelled("raspberry-pi-4"));
        assert_ne!(other, Config::default());
    }

    #[test]
    fn bad_input_gets_one_line_that_names_it() {
        for (words, expected) in [
            (&["--victim", "stress"][..], "workload `stress`"),
            (&["--victim", "latency"], "--victim latency"),
            (&["--load", "xclock"], "load `xclock`"),
            (&["--load", "cmd:"], "load `cmd:`"),
            (&["--load", "screen", "--load", "screen"], "given twice"),
            (&["--guard", "1000,x"], "budget `x`"),
            (&["--guard", "0"], "budget `0`"),
            (&["--guard", "none+ps"], "budget `none`"),
            (&["--guard", "100+fast"], "+fast"),
            (&["--guard", "none", "--guard", "none"], "given twice"),
            (&["--cpus", "3-1"], "runs backwards"),
            (&["--cpus", "0-3"], "CPU 0 is both"),
            (&["--jobs", "0"], "--jobs 0"),
            (&["--jobs", "many"], "not a number"),
            (&["--repeat", "0"], "--repeat 0"),
            (&["--frame", "8MQ"], "'8MQ' for '--frame"),
            (&["--frame", ""], "--frame"),
            (&["--period", "5"], "no unit"),
            (&["--deadline", "21ms"], "--deadline 21ms"),
            (&["--deadline", "0s"], "--deadline 0s"),
            (&["--guard-period", "1ns"], "period 1ns"),
            (&["--load-memory", "12Q"], "'12Q' for '--load-memory"),
            (&["--bytes-per-event", "0"], "a size cannot be 0"),
            (&["--backend", "moon"], "backend `moon`"),
            (&["--config", "/nonexistent.toml"], "/nonexistent.toml"),
            (&["--on", "moon"], "moon"),
            (&["--on-miss", ""], "--on-miss"),
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
