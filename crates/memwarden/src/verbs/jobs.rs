// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden jobs`: times the jobs of a user's program, as `interfere` and `realtime` do with their victim.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use memwarden_experiments::program::{self, Config, Delimiter, Outcome, Release};
use memwarden_platform::units::Time;
use memwarden_workloads::Placement;
use memwarden_workloads::periodic::Job;
use schemars::JsonSchema;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGQUIT};

use super::periodic::{Line, miss_line, time_line};
use super::{output, workload};
use crate::verbs::numbers::count_in;

/// Time the jobs of your own program, delimited by its runs, its lines, or its marks
#[derive(Debug, clap::Args)]
#[command(
    after_help = "exit: a job is a run of the program. line: memwarden writes a line to the program's standard input, and\n\
    the next line of its standard output ends the job. mark: the program marks the begin and end of each job, with\n\
    memwarden_job.h, .rs or .py from share/memwarden. The first job warms up and is left out.\n\
    Examples:\n  memwarden jobs --jobs 20 -- sort -o /dev/null words\n  \
    memwarden jobs --by mark --period 20ms --deadline 13ms -c 1 -r 50 -- ./player"
)]
pub struct Args {
    /// What delimits a job
    #[arg(
        long,
        alias = "jobs-by",
        value_name = "exit|line|mark",
        default_value = "exit"
    )]
    by: Delimiter,
    /// Jobs; with --period, releases
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = count_in::<u64>(1..=1_000_000))]
    jobs: u64,
    /// Time between two releases [default: a job begins when the previous one has ended]
    #[arg(long, value_name = "TIME")]
    period: Option<Time>,
    /// Time from a release to its deadline [default: the period]
    #[arg(long, value_name = "TIME", requires = "period")]
    deadline: Option<Time>,
    /// Run on this CPU
    #[arg(short = 'c', value_name = "CPU")]
    cpu: Option<usize>,
    /// SCHED_FIFO priority of the program, 1 to 98 [default: none]
    #[arg(short = 'r', value_name = "PRIORITY", value_parser = clap::value_parser!(i32).range(1..=98))]
    fifo_priority: Option<i32>,
    /// Print a line immediately when a job first misses its deadline
    #[arg(long, requires = "period")]
    tell_miss: bool,
    /// Print the result as one line of JSON, with every job
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What `--json` prints.
#[cfg(feature = "host")]
pub type Printed = Line<Figures<'static>>;

/// The figures of the program's jobs.
#[derive(Serialize, JsonSchema)]
pub struct Figures<'a> {
    workload: &'a str,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

/// Runs the program, and prints the times of its jobs.
pub fn run(args: Args) -> Result<ExitCode> {
    let signals = workload::stop_on_signals()?;
    // These signals must not leave the program running either: a closed terminal sends the first, Ctrl-\ the second.
    for signal in [SIGHUP, SIGQUIT] {
        signal_hook::flag::register(signal, signals.stop.flag()).context("cannot catch signals")?;
    }
    let release = args.release()?;
    let config = Config {
        command: args.command,
        by: args.by,
        jobs: args.jobs,
        release,
        placement: Placement {
            cpu: args.cpu,
            nice: None,
            fifo_priority: args.fifo_priority,
        },
    };
    let mut told = Ok(true);
    let outcome = program::run(&config, &signals.stop, &mut |job, late_ns| {
        if args.tell_miss {
            told = miss_line(args.json, job.number, late_ns)
                .and_then(|line| output::write(&format!("{line}\n")));
        }
    })?;
    told.context("telling of a miss")?;
    if args.json {
        let line = Line::Result(Box::new(Figures {
            workload: "jobs",
            outcome: &outcome,
        }));
        output::print(&serde_json::to_string(&line)?)?;
    } else {
        workload::print_remarks(&outcome.notes)?;
        output::print(&for_people(&outcome, release.is_some()))?;
    }
    Ok(signals.exit_code())
}

impl Args {
    fn release(&self) -> Result<Option<Release>> {
        let Some(period) = self.period else {
            return Ok(None);
        };
        let deadline = self.deadline.unwrap_or(period);
        if deadline.is_zero() || deadline > period {
            bail!("--deadline: give one above 0 and not above the period");
        }
        Ok(Some(Release {
            period: period.duration(),
            deadline: deadline.duration(),
        }))
    }
}

fn for_people(outcome: &Outcome, periodic: bool) -> String {
    let line = |name: &str, figure: fn(&Job) -> u64| time_line(name, &outcome.jobs, figure);
    let job = line("from start to end", |job| job.execution_ns);
    if !periodic {
        return format!("{job}jobs {}", outcome.jobs.len());
    }
    format!(
        "{job}{}releases {} | skipped {} | deadline misses {}",
        line("from release to end", |job| job.response_ns),
        outcome.releases,
        outcome.skipped,
        outcome.misses
    )
}
