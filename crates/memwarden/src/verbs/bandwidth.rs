// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden bandwidth`, and the program called `bandwidth`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::builder::{PossibleValue, PossibleValuesParser};
use memwarden_platform::{Root, units};
use memwarden_workloads::bandwidth::{self, Access, Config, DESCRIPTOR};
use memwarden_workloads::remarks;

use super::output;
use super::workload::{self, ResultLine, WorkloadArgs};

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
    /// Run for this time; 0 runs until killed
    #[arg(short = 't', value_name = "SECONDS", default_value = "5", value_parser = units::parse_duration, allow_negative_numbers = true)]
    duration: Duration,
    /// Maximum number of passes over the buffer; 0 means no limit
    #[arg(short = 'i', value_name = "ITERATIONS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(DESCRIPTOR.limit("-i")))]
    iterations: u64,
    /// Map, touch and unmap new pages: each one costs a page fault and counts as
    /// a whole page
    #[arg(long, conflicts_with_all = ["bank_mask", "huge_pages", "stride"])]
    fresh_pages: bool,
    /// Print the rate at this interval while running (such as 100ms)
    #[arg(long, value_name = "TIME", value_parser = interval)]
    interval: Option<Duration>,
    /// Keep to this pace, in MB/s (2^20 bytes a second)
    #[arg(long, value_name = "RATE", value_parser = rate, allow_negative_numbers = true)]
    mb: Option<f64>,
}

fn access_names() -> PossibleValuesParser {
    // Fresh pages have a separate option.
    let named = Access::all().filter(|access| !matches!(access, Access::FreshPages));
    PossibleValuesParser::new(
        named.map(|access| PossibleValue::new(access.name()).help(access.descriptor().help)),
    )
}

fn interval(text: &str) -> Result<Duration, String> {
    match units::parse_duration(text) {
        // A line of output costs about 10 us; a shorter interval would measure the printing.
        Ok(time) if time < Duration::from_millis(1) => Err("an interval is at least 1ms".into()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if f64::is_finite(rate) && rate > 0.0 => Ok(rate),
        Ok(_) => Err("a pace must be above 0".into()),
        Err(_) => Err("not a number of MB/s".into()),
    }
}

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
        duration: (!args.duration.is_zero()).then_some(args.duration),
        iterations: (args.iterations > 0).then_some(args.iterations),
        rate_mib_s: args.mb,
        interval: args.interval,
    };
    let outcome = bandwidth::run(&config, &signals.stop, &mut reporter)?;
    let notes = remarks::bandwidth(
        &Root::system(),
        outcome.cpu,
        &config.access,
        &config.buffer,
        outcome.footprint_bytes,
    );

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
    if let Some(pages) = outcome.pages {
        output::print(&format!(
            "pages = {pages} | page faults = {}",
            outcome.page_faults
        ))?;
    }
    // Scripts parse these three lines.
    let cpu = outcome.cpu;
    #[allow(clippy::cast_precision_loss)]
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
