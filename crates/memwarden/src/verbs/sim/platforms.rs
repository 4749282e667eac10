// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden sim platforms`: lists the built-in platforms.

use std::process::ExitCode;

use anyhow::Result;
use memwarden_platform::units::size_text;
use memwarden_sim::cases::{self, Facts};
use memwarden_sim::{Platform, calibrate, platform};
use schemars::JsonSchema;
use serde::Serialize;

use crate::verbs::output::print;
use crate::verbs::terminal::{lines, number, table};

/// List the built-in platforms
#[derive(clap::Args)]
#[command(
    after_help = "A platform is a whole machine: `memwarden interfere --on sim:PLATFORM`, `memwarden realtime --on sim:PLATFORM`.\n\
    GB/s are 10^9 bytes a second, of all channels together. Facts are published figures of the machine: a platform\n\
    with facts can be fitted to them (`memwarden sim calibrate PLATFORM`). --json prints all parameters of each.\n\
    Examples:\n  memwarden sim platforms\n  memwarden sim platforms --json"
)]
pub(super) struct Args {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
pub type Printed = Vec<Listed>;

/// A platform.
#[derive(Serialize, JsonSchema)]
pub struct Listed {
    /// The value for other verbs.
    option: &'static str,
    peak_bytes_per_s: f64,
    channels: u64,
    facts: Option<Published>,
    #[serde(flatten)]
    platform: Platform,
}

#[derive(Serialize, JsonSchema)]
/// Published figures.
pub struct Published {
    source: String,
    cases: usize,
    /// Number of figures that a calibration fits.
    fitted_to: usize,
}

fn listed(option: &'static str) -> Result<Listed> {
    let platform = Platform::find(option)?;
    let memory = platform.memory()?;
    let facts = if cases::names().any(|name| name == option) {
        let facts = Facts::find(option)?;
        let fitted_to = facts.cases.iter();
        Some(Published {
            fitted_to: fitted_to
                .filter(|case| calibrate::is_fitted_to(case))
                .count(),
            cases: facts.cases.len(),
            source: facts.source,
        })
    } else {
        None
    };
    Ok(Listed {
        option,
        peak_bytes_per_s: memory.peak_bytes_per_s(),
        channels: memory.organisation.channels,
        facts,
        platform,
    })
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let all: Vec<Listed> = platform::names()
        .into_iter()
        .map(listed)
        .collect::<Result<_>>()?;
    if args.json {
        print(&serde_json::to_string_pretty(&all)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let headings = [
        "platform",
        "machine",
        "memory",
        "cores",
        "last cache",
        "channels",
        "bytes",
        "peak GB/s",
        "facts",
    ];
    let mut rows = table(&headings);
    for one in &all {
        let platform = &one.platform;
        let facts = one.facts.as_ref().map_or_else(
            || "none: not fitted".to_owned(),
            |facts| format!("{} cases, {} to fit to", facts.cases, facts.fitted_to),
        );
        rows.add_row([
            one.option.to_owned(),
            platform.name.clone(),
            platform.memory.name.clone(),
            platform.machine.cores.to_string(),
            size_text(platform.machine.shared.cache.size_bytes),
            one.channels.to_string(),
            size_text(platform.machine.memory_bytes),
            number(one.peak_bytes_per_s / 1e9, 2),
            facts,
        ]);
    }
    print(&lines(rows, 3..8))?;
    Ok(ExitCode::SUCCESS)
}
