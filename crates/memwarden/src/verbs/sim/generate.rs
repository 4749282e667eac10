// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden sim generate`: writes a trace with a pattern.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;
use memwarden_experiments::Interrupt;
use memwarden_sim::trace::{Pattern, Patterned};

use super::memory;
use super::trace_file::TraceFile;
use crate::verbs::foreign::Interrupted;
use crate::verbs::numbers::count_in;

/// Requests between checks for a signal.
const BETWEEN_LOOKS: u64 = 1 << 16;

/// Write a trace of requests with a pattern
#[derive(clap::Args)]
#[command(
    after_help = "The same options give the same trace. The file appears when it is complete.\n\
    Examples:\n  memwarden sim generate --pattern random --count 1M -o random.trace\n  \
    memwarden sim generate --pattern stream --count 10M --binary -o stream.trace"
)]
pub(super) struct Args {
    /// Order of the lines: random, or one after the other
    #[arg(long, value_enum)]
    pattern: Order,
    /// Number of requests
    #[arg(long, value_name = "N", value_parser = count_in::<u64>(1..=u64::MAX))]
    count: u64,
    /// Share of writes, from 0 to 1; they are spread evenly
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, value_parser = share)]
    write_share: f64,
    /// Memory whose lines are addressed: a name (`memwarden sim memories` lists them) or a TOML file
    #[arg(long, value_name = "MEMORY", default_value = "ddr4-2400")]
    memory: String,
    /// Seed of the random lines
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    file: TraceFile,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Order {
    Random,
    Stream,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok();
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "a share is from 0 (reads only) to 1 (writes only), such as 0.2".to_owned())
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let memory = memory(&args.memory)?;
    let interrupt = Interrupt::catch()?;
    let output = args.file.begin()?;
    let writing = || output.writing();
    let pattern = match args.pattern {
        Order::Random => Pattern::Random,
        Order::Stream => Pattern::Stream,
    };
    let requests = Patterned::new(pattern, &memory, args.write_share, args.seed);
    let mut writer = args.file.writer(&output)?;
    let mut writes = 0_u64;
    for (index, request) in (0..args.count).zip(requests) {
        if index % BETWEEN_LOOKS == 0 && interrupt.came() {
            return Err(Interrupted("nothing was written").into());
        }
        writes += u64::from(request.write);
        writer.write(&request).with_context(writing)?;
    }
    writer.finish().with_context(writing)?;
    if interrupt.came() {
        return Err(Interrupted("nothing was written").into());
    }
    let what = format!("{} requests, {writes} of them writes", args.count);
    args.file.keep(output, &what)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_from_0_to_1() {
        assert_eq!(share("0"), Ok(0.0));
        assert_eq!(share("0.2"), Ok(0.2));
        assert_eq!(share("1"), Ok(1.0));
        for text in ["-0.1", "1.1", "NaN", "inf", "", "4:1"] {
            assert!(share(text).unwrap_err().contains("from 0"), "{text}");
        }
    }
}
