// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden sim record`: records a simulated machine's memory requests as a trace.

use std::cell::RefCell;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use memwarden_experiments::loads::{self, LoadSpec};
use memwarden_experiments::{Interrupt, Progress};
use memwarden_platform::units::{Size, Time, parse_seconds};
use memwarden_sim::Platform;
use memwarden_sim::trace::Request;
use memwarden_sim::workload::Idle;

use super::trace_file::TraceFile;
use crate::verbs::foreign::Interrupted;

use crate::verbs::terminal::Bar;

/// Write a simulated machine's memory requests as a trace
#[derive(clap::Args)]
#[command(
    after_help = "A workload is latency, bandwidth:KIND, xserver or trace:FILE, and its cores; the other cores are idle.\n\
    A request's time is its arrival at the memory, from the end of --settle on: `memwarden sim replay` gives the same\n\
    result for it, or that of another memory. The file appears when it is complete.\n\
    Examples:\n  memwarden sim record --platform raspberry-pi-3 --workload latency@0 \\\n      --workload bandwidth:write@1-3 -o pi.trace\n  \
    memwarden sim replay pi.trace --memory lpddr4-3200"
)]
pub(super) struct Args {
    /// A platform's name (`memwarden sim platforms`) or TOML file
    #[arg(long, value_name = "PLATFORM")]
    platform: String,
    /// Workloads to run: WORKLOAD@CORES (repeatable)
    #[arg(long, value_name = "LOAD", required = true)]
    workload: Vec<LoadSpec>,
    /// The workloads' buffers
    #[arg(long, value_name = "SIZE", default_value = "16M")]
    memory: Size,
    /// Length of the recording, in simulated time: seconds, or with a unit
    #[arg(long = "for", value_name = "TIME", default_value = "1ms", value_parser = parse_seconds)]
    time: Time,
    /// Time before the recording, while caches fill
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_seconds)]
    settle: Time,
    /// Seed for the placement of the workloads' pages
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    file: TraceFile,
}

/// Number of checks for a signal.
const LOOKS: u64 = 100;

/// Simulated time, ps; up to an hour.
fn picoseconds(option: &str, time: Time) -> Result<u64> {
    const HOUR: Time = Time::ms(3_600_000);
    if time > HOUR {
        bail!("{option} {time}: give at most {HOUR}");
    }
    Ok(time.as_ns() * 1000)
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let platform = Platform::find(&args.platform)?;
    let bytes = args.memory.bytes();
    let settle_ps = picoseconds("--settle", args.settle)?;
    let time_ps = picoseconds("--for", args.time)?;
    if time_ps == 0 {
        bail!("--for {}: give more than 0", args.time);
    }
    let mut workloads: Vec<Box<dyn memwarden_sim::Workload>> = Vec::new();
    let named = loads::spread("--workload", &args.workload, &platform, bytes, None)?;
    for core in 0..platform.machine.cores {
        let name = named.iter().find(|(_, of)| *of == core);
        workloads.push(match name {
            Some((name, _)) => platform.workload(name, bytes, args.seed ^ ((core as u64) << 32))?,
            None => Box::new(Idle),
        });
    }
    let interrupt = Interrupt::catch()?;
    let output = args.file.begin()?;
    let writing = || output.writing();
    let writer = RefCell::new(args.file.writer(&output)?);
    let written = RefCell::new(Ok((0_u64, 0_u64)));
    let hear = |request: Request| {
        let at_ps = request.at_ps.and_then(|at_ps| at_ps.checked_sub(settle_ps));
        let mut written = written.borrow_mut();
        if let (Some(at_ps), Ok((reads, writes))) = (at_ps, &mut *written) {
            *(if request.write { writes } else { reads }) += 1;
            let at_ps = Some(at_ps);
            let done = writer.borrow_mut().write(&Request { at_ps, ..request });
            if let Err(error) = done {
                *written = Err(error);
            }
        }
    };
    let mut machine = platform.heard_machine(workloads, None, args.seed, hear)?;
    let mut bar = Bar::new();
    for look in 1..=LOOKS {
        if interrupt.came() {
            return Err(Interrupted("nothing was written").into());
        }
        if written.borrow().is_err() {
            break;
        }
        let part = (u128::from(settle_ps + time_ps) * u128::from(look) / u128::from(LOOKS)) as u64;
        machine.run_until(part);
        bar.step(look as usize, LOOKS as usize, "simulating");
    }
    drop(machine);
    let (reads, writes) = written.into_inner().with_context(writing)?;
    writer.into_inner().finish().with_context(writing)?;
    if reads + writes == 0 {
        bail!(
            "in {} no request reached memory, as the workloads' buffers fit into the caches; give a larger --memory or \
             --for",
            args.time
        );
    }
    let bytes_per_s =
        ((reads + writes) * platform.machine.line_bytes) as f64 * 1e12 / time_ps as f64;
    let what = format!(
        "{} requests, {writes} of them writes, {:.2} GB/s ({:.1} % of the peak)",
        reads + writes,
        bytes_per_s / 1e9,
        100.0 * bytes_per_s / platform.memory()?.peak_bytes_per_s(),
    );
    args.file.keep(output, &what)?;
    Ok(ExitCode::SUCCESS)
}
