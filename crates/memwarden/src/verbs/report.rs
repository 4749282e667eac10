// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden report`: reports of run folders.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use memwarden_report::compare::{
    Comparison, compare, compare_table, differences_table, side_by_side_table,
};
use memwarden_report::{finding, png_of_plots, render, side_by_side, tables};
use memwarden_run::title::{printable, printable_json};
use memwarden_run::{Recorded, Run, Summary, schema};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Value, json};

use super::output;

/// Renders run folders again, shows them side by side, or compares them
///
/// One folder: writes its report.html and plots, prints the tables and the finding. Several: renders each, prints
/// their medians side by side. The raw samples are never changed.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  memwarden report out/demo\n  \
    memwarden report --compare out/before out/after --page compared.html")]
pub struct Args {
    /// Run folders
    #[arg(value_name = "DIR", required_unless_present_any = ["schema", "compare"])]
    directories: Vec<PathBuf>,
    /// Print ratios of B's medians over A's, with 95 % confidence intervals
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["directories", "finding", "png", "parquet"])]
    compare: Option<Vec<PathBuf>>,
    /// Print the finding in one sentence, without writing files
    #[arg(long, conflicts_with_all = ["png", "parquet", "page"])]
    finding: bool,
    /// Print JSON, without writing files
    #[arg(long, conflicts_with_all = ["finding", "png", "parquet", "page"])]
    json: bool,
    /// Also write plots/*.png (with rsvg-convert, of Debian's package librsvg2-bin)
    #[arg(long)]
    png: bool,
    /// Also write samples.parquet (only in a memwarden built with --features parquet)
    #[arg(long)]
    parquet: bool,
    /// With several folders or --compare: write the comparison to this HTML page
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Print the JSON schemas of run.json and summary.json
    #[arg(long, exclusive = true)]
    schema: bool,
}

/// Runs `memwarden report`.
pub fn run(args: Args) -> Result<ExitCode> {
    if args.schema {
        print(&schemas()?)?;
    } else if let Some([a, b]) = args.compare.as_deref() {
        comparison(&args, a, b)?;
    } else if args.finding {
        for directory in &args.directories {
            let (_, summary) = Recorded::read_summary(directory)?;
            print(&format!("{}\n", finding(&summary)))?;
        }
    } else if args.json {
        output::write(&printable_json(&as_json(&args.directories)?))?;
    } else {
        again(&args)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Both schemas in one JSON document, by their names in the files.
fn schemas() -> Result<String> {
    let parse = |text: &str| serde_json::from_str::<Value>(text).context("the schemas built in");
    let all = json!({ schema::RUN: parse(schema::RUN_JSON)?, schema::SUMMARY: parse(schema::SUMMARY_JSON)? });
    Ok(format!("{all:#}\n"))
}

fn comparison(args: &Args, a: &Path, b: &Path) -> Result<()> {
    let (first, second) = (Recorded::read(a)?, Recorded::read(b)?);
    let compared = compare(&first, &second);
    if compared.is_empty() {
        anyhow::bail!(
            "{} and {} have no metric in common: compare runs of the same cases",
            a.display(),
            b.display()
        );
    }
    if args.json {
        let printed = Printed::Compared(compared);
        let text = format!("{}\n", serde_json::to_string_pretty(&printed)?);
        return output::write(&printable_json(&text)).map(drop);
    }
    print(&compare_table(&first, &second).to_text(width()))?;
    let runs = [first, second];
    differences(&runs)?;
    if let Some(page) = &args.page {
        side_by_side(&runs, page)?;
        print(&format!("\nPage: {}\n", page.display()))?;
    }
    Ok(())
}

/// Prints the settings and targets in which the runs differ, if any.
fn differences(runs: &[Recorded]) -> Result<()> {
    let table = differences_table(runs);
    if table.rows.is_empty() {
        return Ok(());
    }
    print(&format!("\n{}", table.to_text(width())))
}

/// What `--json` prints.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Printed {
    /// Of one folder.
    One(Box<Reported>),
    /// Of several.
    Several(Vec<Reported>),
    /// Of --compare.
    Compared(Vec<Comparison>),
}

/// A run.
#[derive(Serialize, JsonSchema)]
pub struct Reported {
    directory: PathBuf,
    /// The result in a sentence.
    finding: String,
    /// Its run.json.
    #[schemars(schema_with = "run_schema")]
    run: Run,
    /// Its summary.json.
    #[schemars(schema_with = "summary_schema")]
    summary: Summary,
}

fn run_schema(_: &mut SchemaGenerator) -> Schema {
    embedded(schema::RUN_JSON)
}

fn summary_schema(_: &mut SchemaGenerator) -> Schema {
    embedded(schema::SUMMARY_JSON)
}

/// A schema that is part of another one.
fn embedded(text: &str) -> Schema {
    serde_json::from_str(text).expect("the schemas are JSON")
}

fn as_json(directories: &[PathBuf]) -> Result<String> {
    let mut all = Vec::new();
    for directory in directories {
        let (run, summary) = Recorded::read_summary(directory)?;
        all.push(Reported {
            directory: directory.clone(),
            finding: finding(&summary),
            run,
            summary,
        });
    }
    let printed = match all.len() {
        1 => Printed::One(Box::new(all.remove(0))),
        _ => Printed::Several(all),
    };
    Ok(format!("{}\n", serde_json::to_string_pretty(&printed)?))
}

/// Prints each folder's result, and renders it again. A page that cannot be written keeps no result back; the last such
/// error is returned, after the others were printed.
fn again(args: &Args) -> Result<()> {
    let runs = args
        .directories
        .iter()
        .map(|d| Recorded::read(d))
        .collect::<Result<Vec<_>, _>>()?;
    let mut failed: Vec<anyhow::Error> = Vec::new();
    for recorded in &runs {
        if runs.len() == 1 {
            for table in tables(&recorded.summary) {
                print(&format!("{}\n", table.to_text(width())))?;
            }
        }
        print(&format!("{}\n", finding(&recorded.summary)))?;
        match files(args, recorded) {
            Ok(page) => print(&format!("Report: {}\n", page.display()))?,
            Err(error) => failed.push(error),
        }
    }
    if runs.len() > 1 {
        print(&format!("\n{}", side_by_side_table(&runs).to_text(width())))?;
        differences(&runs)?;
    }
    if let Some(page) = &args.page {
        match side_by_side(&runs, page) {
            Ok(()) => print(&format!("Side by side: {}\n", page.display()))?,
            Err(error) => failed.push(error.into()),
        }
    }
    let last = failed.pop();
    for error in failed {
        output::fail(format_args!("{error:#}"));
    }
    last.map_or(Ok(()), Err)
}

/// Writes the files of a folder; returns the page's path.
fn files(args: &Args, recorded: &Recorded) -> Result<PathBuf> {
    if args.parquet {
        parquet(recorded)?;
    }
    let page = render(recorded)?;
    if args.png {
        png_of_plots(&recorded.directory)?;
    }
    Ok(page)
}

#[cfg(feature = "parquet")]
fn parquet(recorded: &Recorded) -> Result<()> {
    let path = memwarden_report::parquet::write(recorded)?;
    print(&format!("Samples: {}\n", path.display()))
}

#[cfg(not(feature = "parquet"))]
fn parquet(recorded: &Recorded) -> Result<()> {
    anyhow::bail!(
        "write {}: this memwarden was built without Parquet; build it with `cargo build --release -p memwarden \
         --features parquet`",
        recorded.directory.join("samples.parquet").display()
    )
}

/// The terminal's width; none if the output is no terminal, so that lines in a file are not wrapped.
fn width() -> Option<u16> {
    let terminal = std::io::stdout().is_terminal();
    terminal
        .then(terminal_size::terminal_size)
        .flatten()
        .map(|(width, _)| width.0)
}

/// Prints text that a folder of another origin may have written.
fn print(text: &str) -> Result<()> {
    output::write(&printable(text)).map(drop)
}
