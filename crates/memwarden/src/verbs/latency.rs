// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden latency`, and the program called `latency`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use memwarden_platform::Root;
use memwarden_platform::units::{self, Time};
use memwarden_workloads::latency::{self, Config, DESCRIPTOR};
use memwarden_workloads::remarks;

use super::output;
use super::workload::{self, ResultLine, WorkloadArgs};
use crate::verbs::numbers::count_in;

/// Default time limit without a number of iterations: 16 MiB of the slowest memory need less for the traditional 100
/// iterations.
const USUAL_TIME: Duration = Duration::from_secs(10);

/// The options of `latency`.
#[derive(Debug, clap::Args)]
#[command(
    about = DESCRIPTOR.help,
    after_help = "MB/s are 10^6 bytes, MiB/s 2^20 bytes a second: 64 bytes over the latency. \
                  SIGINT, SIGTERM and SIGALRM end the run and print its result; after SIGINT the exit code is 130.\n\
                  Examples:\n  memwarden latency -m 1G -c 1\n  memwarden latency -m 256M -i 3 --mlp 8"
)]
pub struct Args {
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Chase in address order instead of at random
    #[arg(short = 's')]
    sequential: bool,
    /// Laps around the buffer; 0 runs until killed [default: 100 at most; without limit with -t]
    #[arg(short = 'i', value_name = "ITERATIONS", value_parser = count_in::<u64>(DESCRIPTOR.limit("-i")))]
    iterations: Option<u64>,
    /// Time limit, seconds or with a unit; the lap during which it passes is the last. 0 means no limit [default: 10s, without limit with -i]
    #[arg(short = 't', value_name = "SECONDS", value_parser = units::parse_seconds)]
    duration: Option<Time>,
    /// Parallel chases, to measure memory-level parallelism
    #[arg(long, value_name = "CHASES", default_value_t = 1, value_parser = count_in::<u64>(DESCRIPTOR.limit("--mlp")))]
    mlp: u64,
    /// Seed of the random order; the same seed gives the same order
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

/// What `--json` prints.
#[cfg(feature = "host")]
pub type Printed = ResultLine<'static, latency::Outcome>;

/// Runs the chase, and prints the result.
pub fn run(args: Args) -> Result<ExitCode> {
    let signals = workload::stop_on_signals()?;
    let mut reporter = args.workload.reporter(&signals.stop)?;
    let config = Config {
        buffer: args.workload.buffer(),
        placement: args.workload.placement(),
        sequential: args.sequential,
        iterations: match (args.iterations, args.duration) {
            (Some(0), _) | (None, Some(_)) => None,
            (Some(iterations), _) => Some(iterations),
            (None, None) => Config::default().iterations,
        },
        within: match (args.iterations, args.duration) {
            (None, None) => Some(USUAL_TIME),
            (_, duration) => duration.filter(|time| !time.is_zero()).map(Time::duration),
        },
        mlp: usize::try_from(args.mlp)?,
        seed: args.seed,
    };
    let outcome = latency::run(&config, &signals.stop, &mut reporter)?;
    let root = Root::system();
    let mut notes = remarks::latency(&root, &config, &outcome);
    notes.extend(remarks::remote_memory(
        &root,
        outcome.cpu,
        outcome.remote_share,
    ));
    notes.extend(remarks::pauses(&root, outcome.cpu, &config.placement));

    if args.workload.json {
        let settings = args.workload.settings();
        let line = ResultLine {
            workload: DESCRIPTOR.name,
            outcome: &outcome,
            settings,
            notes: &notes,
        };
        output::print(&serde_json::to_string(&line)?)?;
        return Ok(signals.exit_code());
    }
    workload::print_remarks(&notes)?;
    if outcome.mlp > 1 {
        output::print(&format!(
            "{} parallel chases | {:.2} ns for each load of a chase",
            outcome.mlp, outcome.latency_ns
        ))?;
    }
    // Scripts parse these three lines. With parallel chases the average is per
    // load of any chase, so that 64 bytes over it is still the bandwidth.
    let average_ns = outcome.elapsed_ns as f64 / outcome.loads as f64;
    output::print(&format!(
        "duration {} us\naverage {average_ns:.2} ns | bandwidth {:.2} MB ({:.2} MiB)/s\nreadsum  {}",
        outcome.elapsed_ns / 1000,
        outcome.mb_s,
        outcome.mib_s,
        outcome.readsum,
    ))?;
    Ok(signals.exit_code())
}
