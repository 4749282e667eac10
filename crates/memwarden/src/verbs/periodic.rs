// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden periodic`: one real-time task, as `memwarden realtime` runs it.

use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::builder::{PossibleValue, PossibleValuesParser};
use memwarden_platform::Root;
use memwarden_platform::units::{self, Time};
use memwarden_run::Metric;
use memwarden_workloads::bandwidth::Access;
use memwarden_workloads::periodic::{self, Config, DESCRIPTOR, FirstMiss, Job, Outcome};
use memwarden_workloads::{BufferConfig, Placement, remarks};
use schemars::JsonSchema;
use serde::Serialize;

use super::{output, workload};
use crate::verbs::numbers::count_in;

/// Interval between checks for a missed deadline: immediate for a reader, with few wake-ups on the task's CPU.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The options of `periodic`.
#[derive(Debug, clap::Args)]
#[command(
    about = DESCRIPTOR.help,
    after_help = "If a job still runs when the next one is released, the next one is skipped and counts as a \
                  miss.\nExamples:\n  memwarden periodic -a screen --frames 4 --jobs 100 --json\n  memwarden periodic -c 0 -r 50 --period 20ms --deadline 13ms"
)]
pub struct Args {
    /// Size of the frame that a job goes over: KiB, or with a unit [default: 1920 x 1080 pixels of 4 bytes]
    #[arg(short = 'm', value_name = "SIZE", default_value = "8100", hide_default_value = true, value_parser = units::parse_size)]
    bytes: usize,
    /// Frames in memory; the jobs alternate between them. With enough frames no cache holds the next one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count_in::<u64>(DESCRIPTOR.limit("--frames")))]
    frames: u64,
    /// Access of a job to its frame
    #[arg(short = 'a', value_name = "ACCESS", default_value = "read", value_parser = access_names())]
    access: String,
    /// Time between two releases
    #[arg(long, value_name = "TIME", default_value = "20ms")]
    period: Time,
    /// Time from a release to its deadline
    #[arg(long, value_name = "TIME", default_value = "13ms")]
    deadline: Time,
    /// Releases
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = count_in::<u64>(DESCRIPTOR.limit("--jobs")))]
    jobs: u64,
    /// Run on this CPU
    #[arg(short = 'c', value_name = "CPU")]
    cpu: Option<usize>,
    /// SCHED_FIFO priority, 1 to 99, with memory locked [default: neither]
    #[arg(short = 'r', value_name = "PRIORITY", value_parser = clap::value_parser!(i32).range(1..=99))]
    fifo_priority: Option<i32>,
    /// Take the frame from the reserved huge pages
    #[arg(short = 'x')]
    huge_pages: bool,
    /// Print a line immediately when a job first misses its deadline
    #[arg(long)]
    tell_miss: bool,
    /// Print the result as one line of JSON, with every job
    #[arg(long)]
    json: bool,
}

fn access_names() -> PossibleValuesParser {
    PossibleValuesParser::new(
        Access::all()
            .map(|access| PossibleValue::new(access.name()).help(access.descriptor().help)),
    )
}

/// A line of `--json`: with --tell-miss the first miss, and at the end the result.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Line<T> {
    /// The first missed deadline.
    Miss {
        /// The job.
        miss: Miss,
    },
    /// The figures.
    Result(Box<T>),
}

/// A job that missed its deadline.
#[derive(Serialize, JsonSchema)]
pub struct Miss {
    job: u64,
    late_ns: u64,
}

/// What `--json` prints.
#[cfg(feature = "host")]
pub type Printed = Line<Figures<'static>>;

/// The figures of the task.
#[derive(Serialize, JsonSchema)]
pub struct Figures<'a> {
    workload: &'a str,
    #[serde(flatten)]
    outcome: &'a Outcome,
    /// Remarks on the figures.
    notes: &'a [String],
}

/// Runs the task, and prints the times of its jobs.
pub fn run(args: Args) -> Result<ExitCode> {
    let signals = workload::stop_on_signals()?;
    let config = Config {
        access: Access::named(&args.access).expect("the parser lets no other name through"),
        buffer: BufferConfig {
            bytes: args.bytes,
            huge_pages: args.huge_pages,
            ..BufferConfig::default()
        },
        frames: args.frames,
        placement: Placement {
            cpu: args.cpu,
            nice: None,
            fifo_priority: args.fifo_priority,
        },
        period: args.period.duration(),
        deadline: args.deadline.duration(),
        jobs: args.jobs,
    };
    let first_miss = FirstMiss::default();
    let outcome = if args.tell_miss {
        telling(args.json, &first_miss, || {
            periodic::run(&config, &signals.stop, &first_miss)
        })?
    } else {
        periodic::run(&config, &signals.stop, &first_miss)?
    };
    let root = Root::system();
    let mut notes = remarks::bandwidth(
        &root,
        outcome.cpu,
        &config.access,
        &config.buffer,
        outcome.frame_bytes * outcome.frames,
    );
    notes.extend(remarks::remote_memory(
        &root,
        outcome.cpu,
        outcome.remote_share,
    ));
    if args.json {
        let line = Line::Result(Box::new(Figures {
            workload: DESCRIPTOR.name,
            outcome: &outcome,
            notes: &notes,
        }));
        output::print(&serde_json::to_string(&line)?)?;
    } else {
        workload::print_remarks(&notes)?;
        output::print(&for_people(&outcome))?;
    }
    Ok(signals.exit_code())
}

/// Runs the task, while another thread watches for its first miss: the task itself neither prints nor wakes a thread.
fn telling(
    as_json: bool,
    first_miss: &FirstMiss,
    task: impl FnOnce() -> memwarden_workloads::Result<Outcome>,
) -> Result<Outcome> {
    let (done, ended) = channel::<()>();
    std::thread::scope(|scope| {
        // Started before the task takes its CPU and its priority, so that the watcher inherits neither.
        let watcher = scope.spawn(move || {
            loop {
                let over = ended.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout);
                if let Some((job, late_ns)) = first_miss.get() {
                    return output::print(&miss_line(as_json, job, late_ns)?);
                }
                if over {
                    return Ok(());
                }
            }
        });
        let outcome = task();
        drop(done);
        watcher
            .join()
            .map_err(|_| anyhow::anyhow!("the thread that reports misses panicked"))
            .and_then(|outcome| outcome)
            .context("telling of a miss")?;
        Ok(outcome?)
    })
}

/// The line that reports the first miss.
pub(super) fn miss_line(as_json: bool, job: u64, late_ns: u64) -> Result<String> {
    Ok(if as_json {
        let miss = Miss { job, late_ns };
        serde_json::to_string(&Line::<()>::Miss { miss })?
    } else {
        format!(
            "job {job} missed its deadline by {}",
            ms(Some(late_ns as f64))
        )
    })
}

fn for_people(outcome: &Outcome) -> String {
    let line = |name: &str, figure: fn(&Job) -> u64| time_line(name, &outcome.jobs, figure);
    format!(
        "{}{}{}releases {} | skipped {} | deadline misses {}",
        line("release jitter", |job| job.release_jitter_ns),
        line("from start to end", |job| job.execution_ns),
        line("from release to end", |job| job.response_ns),
        outcome.releases,
        outcome.skipped,
        outcome.misses
    )
}

/// One line with the distribution of a time of the jobs.
pub(super) fn time_line(name: &str, jobs: &[Job], figure: fn(&Job) -> u64) -> String {
    let samples: Vec<f64> = jobs.iter().map(|job| figure(job) as f64).collect();
    let metric = Metric::from_samples(name, &samples);
    format!(
        "{name}: min {} | median {} | 99 % {} | max {}\n",
        ms(metric.min),
        ms(metric.median),
        ms(metric.p99),
        ms(metric.max)
    )
}

/// Nanoseconds as milliseconds.
fn ms(ns: Option<f64>) -> String {
    ns.map_or_else(|| "n/a".into(), |ns| format!("{:.3} ms", ns / 1e6))
}
