// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden doctor`.

mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use memwarden_platform::Root;
use memwarden_platform::doctor::{self, Diagnosis, Level, Live};

use super::output::print;
use super::paint::{Paint, Tone};

/// Reports what this machine can measure and regulate, and how to change that.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exits with 0 if the guard can run here, with 1 otherwise. Changes nothing; --report runs a regulator \
                  for each event that it tries.\n\
    Examples:\n  memwarden doctor\n  memwarden doctor --report my-board.json\n  \
    memwarden interfere --out my-curve && \\\n      memwarden doctor --report my-board.json --curve my-curve"
)]
pub struct Args {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Read /proc, /sys and /lib below this directory instead; facts from system
    /// calls are still this machine's
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Try which events count memory traffic here, as root, and write the result and the findings as JSON to this new
    /// file.
    /// It has no names, addresses or serial numbers, so that it can be sent to others
    #[arg(long, value_name = "FILE", conflicts_with = "root")]
    report: Option<PathBuf>,
    /// Add to the report the cases of this run folder, which `memwarden interfere` made on this machine
    #[arg(long, value_name = "DIR", requires = "report")]
    curve: Option<PathBuf>,
}

/// Examines the machine and prints the findings.
pub fn run(args: Args) -> Result<ExitCode> {
    let diagnosis = doctor::examine(&Root::at(args.root), &Live::probe())?;
    if let Some(path) = &args.report {
        report::write(path, args.curve.as_deref(), diagnosis.clone())?;
    }
    if args.json {
        print(&serde_json::to_string_pretty(&diagnosis)?)?;
    } else {
        print(&table(&diagnosis, Paint::of(&std::io::stdout())))?;
    }
    Ok(if diagnosis.guard.can_run {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// One line for each finding; for those with a problem, also what it means and what
/// changes it.
fn table(diagnosis: &Diagnosis, paint: Paint) -> String {
    let width = diagnosis
        .findings
        .iter()
        .map(|finding| finding.name.len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for finding in &diagnosis.findings {
        let (tone, level) = match finding.level {
            Level::Ok => (Tone::Good, "ok"),
            Level::Limited => (Tone::Fair, "limited"),
            Level::Missing => (Tone::Bad, "missing"),
            Level::Unknown => (Tone::Fair, "unknown"),
        };
        let level = paint.word(tone, &format!("{level:<7}"));
        text += &format!("{level}  {:width$}  {}\n", finding.name, finding.found);
        if finding.level != Level::Ok {
            text += &format!("{:7}  {:width$}  means: {}\n", "", "", finding.meaning);
        }
        if let Some(change) = &finding.change {
            text += &format!("{:7}  {:width$}  change: {change}\n", "", "");
        }
    }
    let guard = &diagnosis.guard;
    text += &match (guard.can_run, &guard.backend, &guard.event) {
        (true, Some(backend), Some(event)) => {
            format!(
                "\n{}: backend {backend}, event {event} ({}).",
                paint.word(Tone::Good, "The guard can run"),
                guard.reason
            )
        }
        (true, Some(backend), None) => {
            format!(
                "\n{}: backend {backend}, event to be chosen ({}).",
                paint.word(Tone::Good, "The guard can run"),
                guard.reason
            )
        }
        _ => format!(
            "\n{}: {}.",
            paint.word(Tone::Bad, "The guard cannot run"),
            guard.reason
        ),
    };
    text
}
