// SPDX-License-Identifier: MIT OR Apache-2.0
//! How an experiment ends: its figures on the terminal, its report in the run folder.

use std::path::Path;

use crate::verbs::output::outln;
use anyhow::Result;
use memwarden_run::Summary;

/// Writes the report, and tells what came out: tables, notes, where the report is and the finding in a sentence; or the
/// summary as JSON.
#[cfg(feature = "host")]
pub fn tell(folder: &Path, summary: &Summary, as_json: bool) -> Result<()> {
    let page = memwarden_report::render(folder)?;
    if as_json {
        return outln!("{}", serde_json::to_string_pretty(summary)?);
    }
    for table in memwarden_report::tables(summary) {
        outln!("{}", table.to_text(None))?;
    }
    notes(summary)?;
    outln!(
        "report: {}\n{}",
        page.display(),
        memwarden_report::finding(summary)
    )
}

/// A memwarden for small machines leaves tables and report to a larger one.
#[cfg(not(feature = "host"))]
pub fn tell(folder: &Path, summary: &Summary, as_json: bool) -> Result<()> {
    if as_json {
        outln!("{}", serde_json::to_string_pretty(summary)?)?;
    } else {
        notes(summary)?;
        outln!("run folder: {}", folder.display())?;
    }
    Ok(())
}

fn notes(summary: &Summary) -> Result<()> {
    let mut notes = summary.notes.iter();
    notes.try_for_each(|note| outln!("note: {note}"))
}
