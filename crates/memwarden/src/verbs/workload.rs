// SPDX-License-Identifier: MIT OR Apache-2.0
//! Common command-line part of `latency` and `bandwidth`: options for
//! memory and placement, signals, readiness, results.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use memwarden_experiments::Progress as _;
use memwarden_platform::{Error, descriptor, units};
use memwarden_workloads::{BufferConfig, Observer, Placement, Progress, Stop};
use schemars::JsonSchema;
use serde::Serialize;
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::output::errln;
use super::terminal::Bar;
use super::{foreign, output};

/// Options for placement and memory.
#[derive(Debug, Args)]
pub struct WorkloadArgs {
    /// Size of the buffer: KiB, or with a unit (64M, 1G)
    #[arg(short = 'm', value_name = "SIZE", default_value = "16384", value_parser = units::parse_size, allow_negative_numbers = true)]
    bytes: usize,
    /// Run on this CPU
    #[arg(short = 'c', value_name = "CPU")]
    cpu: Option<usize>,
    /// Nice value, -20 to 19
    #[arg(short = 'p', value_name = "NICE", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    nice: Option<i32>,
    /// SCHED_FIFO priority, 1 to 99
    #[arg(short = 'r', value_name = "PRIORITY", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(1..=99))]
    fifo_priority: Option<i32>,
    /// Take the buffer from the reserved huge pages
    #[arg(short = 'x')]
    huge_pages: bool,
    /// Distance between lines: a multiple of 64 bytes; bytes, or with a unit (4K)
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "64",
        value_parser = parse_stride,
        conflicts_with = "bank_mask"
    )]
    stride: usize,
    /// Touch only lines whose physical addresses agree in these bits (such as
    /// 0x6000 for lines of one DRAM bank if bits 13 and 14 choose the bank)
    #[arg(long, value_name = "MASK", value_parser = parse_mask)]
    bank_mask: Option<u64>,
    /// Write a line to this file descriptor once the workload is running
    #[arg(long, value_name = "FD")]
    ready_fd: Option<i32>,
    /// Print the result as one line of JSON, with the cost of the measurement
    #[arg(long)]
    pub json: bool,
}

impl WorkloadArgs {
    /// The requested memory.
    pub fn buffer(&self) -> BufferConfig {
        BufferConfig {
            bytes: self.bytes,
            huge_pages: self.huge_pages,
            stride: self.stride,
            bank_mask: self.bank_mask,
        }
    }

    /// The requested CPU and priority.
    pub fn placement(&self) -> Placement {
        Placement {
            cpu: self.cpu,
            nice: self.nice,
            fifo_priority: self.fifo_priority,
        }
    }

    /// Reports progress to the parent and to the user.
    pub fn reporter(&self, stop: &Stop) -> Result<Reporter> {
        let ready = self
            .ready_fd
            .map(descriptor::inherited)
            .transpose()
            .context("--ready-fd")?;
        Ok(Reporter {
            ready,
            json: self.json,
            stop: stop.clone(),
            bar: None,
        })
    }

    /// The settings in the form of a result.
    pub fn settings(&self) -> Settings {
        Settings {
            pinned: self.cpu.is_some(),
            buffer_bytes: self.bytes,
            stride_bytes: self.stride,
            bank_mask: self.bank_mask,
            huge_pages: self.huge_pages,
        }
    }
}

/// The settings that every result includes.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Settings {
    pinned: bool,
    buffer_bytes: usize,
    stride_bytes: usize,
    bank_mask: Option<u64>,
    huge_pages: bool,
}

/// A line of `--json`: the rate at each --interval, and at the end the result.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Line<'a, T: Serialize> {
    /// The rate.
    Progress(RateLine<'a>),
    /// The figures.
    Result(ResultLine<'a, T>),
}

/// The rate since the previous line.
#[derive(Serialize, JsonSchema)]
pub struct RateLine<'a> {
    progress: &'a Progress,
}

/// A result as one line of JSON, always the last line.
#[derive(Serialize, JsonSchema)]
pub struct ResultLine<'a, T: Serialize> {
    /// `latency` or `bandwidth`.
    pub workload: &'a str,
    /// The measured figures.
    #[serde(flatten)]
    pub outcome: &'a T,
    /// The settings.
    #[serde(flatten)]
    pub settings: Settings,
    /// Remarks on the figures.
    pub notes: &'a [String],
}

/// A stop requested by SIGINT, SIGTERM or SIGALRM; records whether it was SIGINT.
pub struct StopOnSignals {
    /// The stop of the workload.
    pub stop: Stop,
    interrupted: Arc<AtomicUsize>,
}

impl StopOnSignals {
    /// The exit code after the result is printed.
    pub fn exit_code(&self) -> ExitCode {
        match i32::try_from(self.interrupted.load(Ordering::Relaxed)) {
            Ok(signal) if signal != 0 => foreign::after_signal(signal),
            _ => ExitCode::SUCCESS,
        }
    }
}

/// Catches the signals from now on.
pub fn stop_on_signals() -> Result<StopOnSignals> {
    let stop = Stop::new();
    let interrupted = Arc::new(AtomicUsize::new(0));
    // Those of a terminal, which its whole process group gets: an experiment's workload, too.
    for signal in [SIGINT, SIGQUIT, SIGHUP] {
        let number = usize::try_from(signal).unwrap_or_default();
        signal_hook::flag::register_usize(signal, Arc::clone(&interrupted), number)
            .context("cannot catch signals")?;
    }
    for signal in [SIGINT, SIGQUIT, SIGHUP, SIGTERM, SIGALRM] {
        signal_hook::flag::register(signal, stop.flag()).context("cannot catch signals")?;
    }
    Ok(StopOnSignals { stop, interrupted })
}

/// Prints remarks as lines before the figures.
pub fn print_remarks(remarks: &[String]) -> Result<()> {
    remarks
        .iter()
        .try_for_each(|remark| output::print(&format!("note: {remark}")))
}

/// Tells the parent when the workload runs, and shows progress to the user.
pub struct Reporter {
    ready: Option<std::fs::File>,
    json: bool,
    /// Requested if the progress output has no reader.
    stop: Stop,
    /// Progress bar of a long run.
    bar: Option<Bar>,
}

/// A longer run announces its duration and shows progress.
const LONG: Duration = Duration::from_secs(15);

/// A larger buffer is announced: to map and link it takes seconds.
const LARGE_BYTES: u64 = 1 << 30;

/// What a terminal shows while memory is prepared.
fn preparation(bytes: u64) -> Option<String> {
    (bytes > LARGE_BYTES).then(|| {
        format!(
            "memwarden: preparing {}; Ctrl-C ends the run",
            units::size_text(bytes)
        )
    })
}

impl Observer for Reporter {
    fn preparing(&mut self, bytes: u64) -> Result<(), Error> {
        if let Some(text) = preparation(bytes) {
            if !self.json && std::io::stderr().is_terminal() {
                errln!("{text}");
            }
        }
        Ok(())
    }

    fn started(&mut self) -> Result<(), Error> {
        if let Some(mut ready) = self.ready.take() {
            ready
                .write_all(b"ready\n")
                .map_err(|source| Error::system("write to the --ready-fd descriptor", source))?;
        }
        Ok(())
    }

    fn expected(&mut self, time: Duration) -> Result<(), Error> {
        if time > LONG && !self.json {
            errln!(
                "memwarden: this takes about {}; Ctrl-C ends the run and prints its result",
                about(time)
            );
            self.bar = Some(Bar::new());
        }
        Ok(())
    }

    fn done(&mut self, share: f64) -> Result<(), Error> {
        if let Some(bar) = &mut self.bar {
            bar.step((share * 100.0) as usize, 100, "percent");
        }
        Ok(())
    }

    fn progress(&mut self, progress: &Progress) -> Result<(), Error> {
        let text = if self.json {
            let line: Line<'_, ()> = Line::Progress(RateLine { progress });
            serde_json::to_string(&line).map_err(|error| Error::Invalid(error.to_string()))?
        } else {
            let seconds = progress.t_ns as f64 / 1e9;
            format!("{seconds:.3} s: {:.2} MB/s", progress.mib_s)
        };
        let read = output::write(&format!("{text}\n"))
            .map_err(|error| Error::Invalid(format!("{error:#}")))?;
        if !read {
            self.stop.request();
        }
        Ok(())
    }
}

/// A time in a single unit: `40 s`, `24 min`, `2.5 h`.
fn about(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        ..90.0 => format!("{seconds:.0} s"),
        90.0..5400.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

fn parse_stride(text: &str) -> Result<usize, Error> {
    let bytes = units::parse_bytes(text)?;
    usize::try_from(bytes).map_err(|_| Error::Invalid("too large a stride".into()))
}

fn parse_mask(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| "not a mask of address bits (such as 0x6000)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preparation_of_much_memory_is_announced() {
        assert_eq!(preparation(1 << 30), None);
        assert_eq!(
            preparation(3 << 30).unwrap(),
            "memwarden: preparing 3 GiB; Ctrl-C ends the run"
        );
    }
}
