// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden sim memories`: lists the built-in memories.

use std::process::ExitCode;

use anyhow::Result;
use memwarden_platform::units::size_text;
use memwarden_sim::dram::{Memory, Standard, memory_file};
use schemars::JsonSchema;
use serde::Serialize;

use crate::verbs::output::print;
use crate::verbs::terminal::{lines, number, table};

/// List the built-in memories
#[derive(clap::Args)]
#[command(
    after_help = "GB/s are 10^9 bytes a second, of all channels together. The idle latency is tRCD, tCL and the burst, in\n\
    whole clocks. --json prints all parameters of each memory.\n\
    Examples:\n  memwarden sim memories\n  memwarden sim memories --json"
)]
pub(super) struct Args {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
pub type Printed = Vec<Listed>;

/// A memory.
#[derive(Serialize, JsonSchema)]
pub struct Listed {
    /// The value for other verbs.
    option: &'static str,
    capacity_bytes: u64,
    peak_bytes_per_s: f64,
    idle_latency_ps: u64,
    #[serde(flatten)]
    memory: Memory,
}

fn listed(option: &'static str) -> Result<Listed> {
    let memory = Memory::named(option)?;
    let timings = memory.timings.in_clocks();
    Ok(Listed {
        option,
        capacity_bytes: memory.organisation.capacity_bytes(),
        peak_bytes_per_s: memory.peak_bytes_per_s(),
        idle_latency_ps: timings.trcd + timings.tcl + memory.burst_ps(),
        memory,
    })
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let all: Vec<Listed> = memory_file::names().map(listed).collect::<Result<_>>()?;
    if args.json {
        print(&serde_json::to_string_pretty(&all)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let headings = [
        "memory",
        "standard",
        "channels",
        "capacity",
        "peak GB/s",
        "idle latency ns",
    ];
    let mut rows = table(&headings);
    for one in &all {
        let standard = Standard::NAMES
            .iter()
            .find(|known| known.1 == one.memory.standard);
        rows.add_row([
            one.option.to_owned(),
            standard.map_or("", |known| known.0).to_owned(),
            one.memory.organisation.channels.to_string(),
            size_text(one.capacity_bytes),
            number(one.peak_bytes_per_s / 1e9, 2),
            number(one.idle_latency_ps as f64 / 1e3, 2),
        ]);
    }
    print(&lines(rows, 2..6))?;
    Ok(ExitCode::SUCCESS)
}
