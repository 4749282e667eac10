// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden sim replay`: sends a trace through a memory's controller.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use memwarden_experiments::Progress;
use memwarden_platform::units::{Time, parse_nanoseconds};
use memwarden_sim::dram::{ControllerSettings, Energy, Memory, PagePolicy};
use memwarden_sim::replay::{Replay, replay};
use memwarden_sim::trace::{Format, Reader, Request, TraceError};
use schemars::JsonSchema;
use serde::Serialize;

use super::memory;
use crate::verbs::output::errln;
use crate::verbs::output::print;
use crate::verbs::terminal::{Bar, lines, number, table};

/// Requests between two updates of the progress bar.
const BETWEEN_STEPS: u64 = 1 << 16;
/// Longest time that an idle row may stay open, ns: beyond the longest refresh interval.
const MAX_IDLE_NS: u64 = 1_000_000;
/// What the memories that come with the program move in a burst, and `sim record` in a request.
const LINE_BYTES: u64 = 64;
/// Violations to show.
const SHOWN: usize = 5;

/// Replay a trace of requests through a memory's controller
#[derive(clap::Args)]
#[command(
    after_help = "A trace has one request in each line: R or W, a byte address and, optionally, the arrival time in ns; or it is\n\
    binary (`sim generate --binary`). Requests without times arrive as fast as the controller takes them. GB/s are\n\
    10^9 bytes a second. The model's speed and its memory are on standard error, or under \"speed\" in JSON.\n\
    Examples:\n  memwarden sim replay random.trace --memory ddr4-2400 --json\n  \
    memwarden sim replay random.trace --page-policy timeout:100 --check"
)]
pub(super) struct Args {
    /// The trace
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// A name (`memwarden sim memories` lists them) or a TOML file
    #[arg(long, value_name = "MEMORY", default_value = "ddr4-2400")]
    memory: String,
    /// Page policy: open, closed, or timeout:TIME, which closes a row after that time without use: ns, or with
    /// a unit [default: open]
    #[arg(long, value_name = "POLICY", value_parser = page_policy)]
    page_policy: Option<PagePolicy>,
    /// Read queue of a channel's controller, 1 to 1024 [default: 32]
    #[arg(long, value_name = "N")]
    read_depth: Option<usize>,
    /// Write queue of a channel's controller, 1 to 1024 [default: 32]
    #[arg(long, value_name = "N")]
    write_depth: Option<usize>,
    /// Row hits of a bank that may overtake an older request for another row [default: 16]
    #[arg(long, value_name = "N")]
    row_hit_cap: Option<u32>,
    /// Number of waiting writes at which writing begins [default: 24]
    #[arg(long, value_name = "N")]
    write_high: Option<usize>,
    /// Number of waiting writes at which reading resumes [default: 8]
    #[arg(long, value_name = "N")]
    write_low: Option<usize>,
    /// Let the independent checker judge every command; the exit code is 1 when a rule is broken
    #[arg(long)]
    check: bool,
    /// Print as JSON, with all settings
    #[arg(long)]
    json: bool,
}

fn page_policy(text: &str) -> Result<PagePolicy, String> {
    match text {
        "open" => return Ok(PagePolicy::Open),
        "closed" => return Ok(PagePolicy::Closed),
        _ => {}
    }
    let digits = text.strip_prefix("timeout:");
    let idle = digits.and_then(|digits| parse_nanoseconds(digits).ok());
    let idle_ns = idle.map(Time::as_ns);
    match idle_ns.filter(|idle_ns| (1..=MAX_IDLE_NS).contains(idle_ns)) {
        Some(idle_ns) => Ok(PagePolicy::Timeout {
            idle_ps: 1000 * idle_ns,
        }),
        None => Err(format!(
            "give open, closed, or timeout:TIME with 1 to {MAX_IDLE_NS} ns"
        )),
    }
}

impl Args {
    fn settings(&self) -> ControllerSettings {
        let mut settings = ControllerSettings::default();
        macro_rules! given {
            ($($field:ident),*) => { $(if let Some(value) = self.$field { settings.$field = value; })* };
        }
        given!(page_policy, read_depth, write_depth);
        given!(row_hit_cap, write_high, write_low);
        settings
    }
}

/// A trace that updates a progress bar as it is read.
struct Watched {
    reader: Reader,
    bar: Bar,
    /// None for anything but a regular file.
    length: Option<u64>,
    count: u64,
}

impl Watched {
    fn open(path: &Path, capacity_bytes: u64) -> Result<Self, TraceError> {
        let length = path.metadata().map_or(0, |found| found.len());
        Ok(Self {
            reader: Reader::open(path)?.within(capacity_bytes),
            bar: Bar::new(),
            length: Some(length).filter(|length| *length > 0),
            count: 0,
        })
    }
}

impl Iterator for Watched {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let request = self.reader.next();
        self.count += 1;
        let is_step = self.count % BETWEEN_STEPS == 0 || request.is_none();
        if let Some(length) = self.length.filter(|_| is_step) {
            // The size of a file fits.
            let read = self.reader.bytes_read().min(length) as usize;
            self.bar.step(read, length as usize, "bytes");
        }
        request
    }
}

/// The complete output, with the settings.
#[derive(Serialize, JsonSchema)]
pub struct Told<'a> {
    trace: &'a Path,
    format: Format,
    memory: &'a Memory,
    controller: &'a ControllerSettings,
    figures: &'a Figures,
    check: Option<Judged>,
    speed: &'a Speed,
}

/// Results of the trace; the same requests give the same results.
#[derive(Serialize, JsonSchema)]
pub struct Figures {
    reads: u64,
    writes: u64,
    timed: bool,
    time_ps: u64,
    bytes_per_s: f64,
    peak_bytes_per_s: f64,
    percent_of_peak: f64,
    row_hits: u64,
    row_misses: u64,
    row_conflicts: u64,
    refreshes: u64,
    forwarded_reads: u64,
    merged_writes: u64,
    read_latency_mean_ps: Option<f64>,
    read_latency_p50_ps: Option<u64>,
    read_latency_p99_ps: Option<u64>,
    /// None if the memory's file has no currents.
    energy: Option<Energy>,
    mean_power_mw: Option<f64>,
}

#[derive(Serialize, JsonSchema)]
pub struct Judged {
    commands: u64,
    violation_count: u64,
    violations: Vec<String>,
}

/// Speed of the model, including reading of the trace.
#[derive(Serialize, JsonSchema)]
pub struct Speed {
    wall_s: f64,
    requests_per_s: f64,
    /// The same by CPU time of this thread, which excludes other threads' turns.
    requests_per_cpu_s: Option<f64>,
    /// Peak memory of the process.
    most_memory_kib: Option<u64>,
}

/// CPU time of this thread, ns.
fn cpu_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn most_memory_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let memory = memory(&args.memory)?;
    let settings = args.settings();
    let mut trace = Watched::open(&args.trace, memory.organisation.capacity_bytes())?;
    let format = trace.reader.format();
    let (begin, begin_ns) = (Instant::now(), cpu_ns());
    let outcome = replay(&memory, &settings, &mut trace, args.check);
    let wall_s = begin.elapsed().as_secs_f64();
    let cpu_s = cpu_ns()
        .zip(begin_ns)
        .map(|(end, begin)| (end - begin) as f64 / 1e9);
    let outcome = outcome.with_context(|| format!("replaying {}", args.trace.display()))?;
    let figures = figures(&outcome, &memory);
    let requests = (outcome.reads + outcome.writes) as f64;
    let speed = Speed {
        wall_s,
        requests_per_s: requests / wall_s,
        requests_per_cpu_s: cpu_s
            .filter(|cpu_s| *cpu_s > 0.0)
            .map(|cpu_s| requests / cpu_s),
        most_memory_kib: most_memory_kib(),
    };
    let check = outcome.check.as_ref().map(|report| Judged {
        commands: report.commands,
        violation_count: report.violation_count,
        violations: report.violations.iter().map(ToString::to_string).collect(),
    });
    let violations = check.as_ref().map_or(0, |check| check.violation_count);
    if args.json {
        let told = Told {
            trace: &args.trace,
            format,
            memory: &memory,
            controller: &settings,
            figures: &figures,
            check,
            speed: &speed,
        };
        print(&serde_json::to_string_pretty(&told)?)?;
    } else {
        print(&text(&figures, check.as_ref()))?;
        let burst_bytes = memory.organisation.burst_bytes();
        if burst_bytes != LINE_BYTES {
            errln!("note: each request is a burst of this memory, {burst_bytes} bytes");
        }
        errln!("note: {}", speed_text(&speed));
    }
    if violations == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    errln!("memwarden: rules were broken {violations} times");
    Ok(ExitCode::FAILURE)
}

fn figures(outcome: &Replay, memory: &Memory) -> Figures {
    let statistics = &outcome.statistics;
    let bytes_per_s = outcome.bytes_per_s(memory);
    let peak_bytes_per_s = memory.peak_bytes_per_s();
    let latencies = &outcome.read_latencies;
    let energy = memory.energy(&outcome.activity, outcome.time_ps);
    Figures {
        reads: outcome.reads,
        writes: outcome.writes,
        timed: outcome.timed,
        time_ps: outcome.time_ps,
        bytes_per_s,
        peak_bytes_per_s,
        percent_of_peak: 100.0 * bytes_per_s / peak_bytes_per_s,
        row_hits: statistics.row_hits,
        row_misses: statistics.row_misses,
        row_conflicts: statistics.row_conflicts,
        refreshes: statistics.refreshes,
        forwarded_reads: statistics.forwarded,
        merged_writes: statistics.merged,
        read_latency_mean_ps: latencies.mean_ps(),
        read_latency_p50_ps: latencies.quantile_ps(0.5),
        read_latency_p99_ps: latencies.quantile_ps(0.99),
        energy,
        mean_power_mw: energy.map(|energy| energy.mean_mw(outcome.time_ps)),
    }
}

fn text(figures: &Figures, check: Option<&Judged>) -> String {
    let mut rows = table(&["figure", "value", ""]);
    let mut add = |name: &str, value: String, note: String| {
        rows.add_row([name.to_owned(), value, note]);
    };
    let Figures { reads, writes, .. } = figures;
    let kinds = format!("{reads} reads, {writes} writes");
    add("requests", (reads + writes).to_string(), kinds);
    let pace = if figures.timed {
        "at their times"
    } else {
        "as fast as they were taken"
    };
    let time_us = number(figures.time_ps as f64 / 1e6, 3);
    add("simulated time, us", time_us, pace.into());
    let peak = format!(
        "{:.1} % of {:.2}",
        figures.percent_of_peak,
        figures.peak_bytes_per_s / 1e9
    );
    add(
        "bandwidth, GB/s",
        number(figures.bytes_per_s / 1e9, 3),
        peak,
    );
    let counts = [
        ("row hits", figures.row_hits),
        ("row misses", figures.row_misses),
        ("row conflicts", figures.row_conflicts),
    ];
    let bursts: u64 = counts.iter().map(|count| count.1).sum();
    for (name, count) in counts {
        let percent = 100.0 * count as f64 / bursts.max(1) as f64;
        add(name, count.to_string(), format!("{percent:.1} %"));
    }
    add("refreshes", figures.refreshes.to_string(), String::new());
    let from_queue = [
        (
            "forwarded reads",
            figures.forwarded_reads,
            "from a write that waited",
        ),
        (
            "merged writes",
            figures.merged_writes,
            "into a write that waited",
        ),
    ];
    for (name, count, note) in from_queue {
        add(name, count.to_string(), note.into());
    }
    let latency = |ps: Option<f64>| ps.map_or("-".to_owned(), |ps| number(ps / 1e3, 1));
    let mean = latency(figures.read_latency_mean_ps);
    add("mean read latency, ns", mean, String::new());
    for (name, ps) in [
        ("p50", figures.read_latency_p50_ps),
        ("p99", figures.read_latency_p99_ps),
    ] {
        let value = latency(ps.map(|ps| ps as f64));
        add(name, value, "or up to 0.8 % less".into());
    }
    let (value, note) = energy_text(figures);
    add("energy, uJ", value, note);
    if let Some(check) = check {
        add("commands judged", check.commands.to_string(), String::new());
        add(
            "violations",
            check.violation_count.to_string(),
            String::new(),
        );
    }
    let mut parts = vec![lines(rows, 1..2)];
    let violations = check.iter().flat_map(|check| &check.violations);
    parts.extend(violations.take(SHOWN).cloned());
    parts.join("\n")
}

/// The energy with its parts.
fn energy_text(figures: &Figures) -> (String, String) {
    let Some((energy, mw)) = figures.energy.zip(figures.mean_power_mw) else {
        return ("-".into(), "the memory's file has no currents".into());
    };
    let total = energy.total_uj();
    let parts = [
        ("activates", energy.activates_uj),
        ("reads", energy.reads_uj),
        ("writes", energy.writes_uj),
        ("refresh", energy.refresh_uj),
        ("standby", energy.standby_uj),
    ];
    let parts = parts.map(|(name, uj)| format!("{name} {:.0} %", 100.0 * uj / total));
    let note = format!("{mw:.0} mW: {}", parts.join(", "));
    (number(total, 1), note)
}

fn speed_text(speed: &Speed) -> String {
    let mut text = format!(
        "{:.2} s, {:.2} million requests a second",
        speed.wall_s,
        speed.requests_per_s / 1e6
    );
    if let Some(requests) = speed.requests_per_cpu_s {
        text += &format!(" ({:.2} by the CPU's time)", requests / 1e6);
    }
    if let Some(kib) = speed.most_memory_kib {
        text += &format!("; at most {kib} KiB of memory");
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn settings(words: &[&str]) -> Result<ControllerSettings, clap::Error> {
        let words = ["replay", "my.trace"].iter().chain(words);
        Ok(Cli::try_parse_from(words)?.args.settings())
    }

    #[test]
    fn what_is_not_given_is_the_controllers_default() {
        assert_eq!(settings(&[]).unwrap(), ControllerSettings::default());
        let line = "--page-policy timeout:250 --read-depth 1 --write-depth 2 --row-hit-cap 3 \
                    --write-high 4 --write-low 5";
        let words: Vec<&str> = line.split_whitespace().collect();
        let expected = ControllerSettings {
            read_depth: 1,
            write_depth: 2,
            row_hit_cap: 3,
            write_high: 4,
            write_low: 5,
            page_policy: PagePolicy::Timeout { idle_ps: 250_000 },
            ..ControllerSettings::default()
        };
        assert_eq!(settings(&words).unwrap(), expected);
    }

    #[test]
    fn a_page_policy_that_is_none_is_told_what_there_are() {
        assert_eq!(page_policy("closed"), Ok(PagePolicy::Closed));
        for text in [
            "",
            "Open",
            "timeout",
            "timeout:",
            "timeout:0",
            "timeout:-1",
            "timeout:1000001",
        ] {
            let told = page_policy(text).unwrap_err();
            assert!(
                told.contains("open, closed, or timeout:TIME"),
                "{text}: {told}"
            );
        }
    }
}
