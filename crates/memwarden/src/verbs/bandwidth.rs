// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden bandwidth`, and the program called `bandwidth`.

use std::process::ExitCode;

use anyhow::Result;
use clap::builder::{PossibleValue, PossibleValuesParser};
use memwarden_platform::Root;
use memwarden_platform::units::{self, Time};
use memwarden_workloads::bandwidth::{self, Access, Config, DESCRIPTOR};
use memwarden_workloads::remarks;

use super::output;
use super::workload::{self, Line, ResultLine, WorkloadArgs};
use crate::verbs::numbers::{count_in, time_in};

/// A line of output costs about 10 us; a shorter interval would measure the printing.
const INTERVAL_MIN: Time = Time::ms(1);

/// The options of `bandwidth`.
#[derive(Debug, clap::Args)]
#[command(
    about = DESCRIPTOR.help,
    after_help = "MB/s are 2^20 bytes a second here. A line counts as 64 bytes in each array that it is touched in. \
                  SIGINT, SIGTERM and SIGALRM end the run and print its result; after SIGINT the exit code is 130.\n\
                  Examples:\n  memwarden bandwidth -a write -m 1G -c 1\n  memwarden bandwidth -a read -m 64M -t 0 -c 3 --interval 1s"
)]
pub struct Args {
    #[command(flatten)]
    workload: WorkloadArgs,
    /// How lines are touched
    #[arg(short = 'a', value_name = "ACCESS", default_value = "read", value_parser = access_names(), conflicts_with = "fresh_pages")]
    access: String,
    /// Run for this time, seconds or with a unit; 0 runs until killed
    #[arg(short = 't', value_name = "SECONDS", default_value = "5", value_parser = units::parse_seconds, allow_negative_numbers = true)]
    duration: Time,
    /// Maximum number of passes over the buffer; 0 means no limit
    #[arg(short = 'i', value_name = "ITERATIONS", default_value_t = 0, value_parser = count_in::<u64>(DESCRIPTOR.limit("-i")))]
    iterations: u64,
    /// Map, touch and unmap new pages: each one costs a page fault and counts as
    /// a whole page
    #[arg(long, conflicts_with_all = ["bank_mask", "huge_pages", "stride"])]
    fresh_pages: bool,
    /// Print the rate at this interval while running: seconds, or with a unit (100ms)
    #[arg(long, value_name = "TIME", value_parser = time_in(units::parse_seconds, INTERVAL_MIN..=Time::LONGEST, "an interval is at least 1ms"))]
    interval: Option<Time>,
    /// Keep to this pace: MB/s (2^20 bytes a second), or with a unit (512M, 1G)
    #[arg(long, value_name = "RATE", value_parser = units::parse_rate, allow_negative_numbers = true)]
    mb: Option<f64>,
}

fn access_names() -> PossibleValuesParser {
    // Fresh pages have a separate option.
    let named = Access::all().filter(|access| !matches!(access, Access::FreshPages));
    PossibleValuesParser::new(
        named.map(|access| PossibleValue::new(access.name()).help(access.descriptor().help)),
    )
}

/// What `--json` prints.
#[cfg(feature = "host")]
pub type Printed = Line<'static, bandwidth::Outcome>;

/// Moves memory and prints the rate.
pub fn run(args: Args) -> Result<ExitCode> {
    let signals = workload::stop_on_signals()?;
    let mut reporter = args.workload.reporter(&signals.stop)?;
    let name = if args.fresh_pages {
        "fresh-pages"
    } else {
        &args.access
    };
    let config = Config {
        access: Access::named(name).expect("the parser lets no other name through"),
        buffer: args.workload.buffer(),
        placement: args.workload.placement(),
        duration: (!args.duration.is_zero()).then_some(args.duration.duration()),
        iterations: (args.iterations > 0).then_some(args.iterations),
        rate_mib_s: args.mb,
        interval: args.interval.map(Time::duration),
    };
    let outcome = bandwidth::run(&config, &signals.stop, &mut reporter)?;
    let root = Root::system();
    let mut notes = remarks::bandwidth(
        &root,
        outcome.cpu,
        &config.access,
        &config.buffer,
        outcome.footprint_bytes,
    );
    notes.extend(remarks::remote_memory(
        &root,
        outcome.cpu,
        outcome.remote_share,
    ));
    // A paced load sleeps: the kernel has time for other tasks.
    if config.rate_mib_s.is_none() {
        notes.extend(remarks::pauses(&root, outcome.cpu, &config.placement));
    }

    if args.workload.json {
        let settings = args.workload.settings();
        let line = Line::Result(ResultLine {
            workload: DESCRIPTOR.name,
            outcome: &outcome,
            settings,
            notes: &notes,
        });
        output::print(&serde_json::to_string(&line)?)?;
        return Ok(signals.exit_code());
    }
    workload::print_remarks(&notes)?;
    if let Some(pages) = outcome.pages {
        output::print(&format!(
            "pages = {pages} | page faults = {}",
            outcome.page_faults
        ))?;
    }
    // Scripts parse these three lines.
    let cpu = outcome.cpu;
    let seconds = outcome.elapsed_ns as f64 / 1e9;
    output::print(&format!(
        "g_nread(bytes read) = {}\nelapsed = {seconds:.2} sec ( {} usec )\n\
         CPU{cpu}: B/W = {:.2} MB/s | CPU{cpu}: average = {:.2} ns",
        outcome.bytes,
        outcome.elapsed_ns / 1000,
        outcome.mib_s,
        outcome.ns_per_line,
    ))?;
    Ok(signals.exit_code())
}
