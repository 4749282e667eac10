// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of an experiment: prints its figures, and writes its report to the run folder.

use std::path::Path;

use crate::verbs::output::outln;
use anyhow::Result;
use memwarden_run::Summary;
use memwarden_run::title::printable_line;

/// Prints the result: tables, notes and the finding in a sentence; or the summary as JSON. Then writes the report, which
/// may fail (as on a full disk), and prints its path.
#[cfg(feature = "host")]
pub fn tell(folder: &Path, summary: &Summary, as_json: bool) -> Result<()> {
    if as_json {
        outln!("{}", serde_json::to_string_pretty(summary)?)?;
    } else {
        for table in memwarden_report::tables(summary) {
            outln!("{}", table.to_text(None))?;
        }
        notes(summary)?;
        outln!("{}", memwarden_report::finding(summary))?;
    }
    let page = memwarden_report::render(&memwarden_run::Recorded::read(folder)?)?;
    if as_json {
        return Ok(());
    }
    outln!("report: {}", page.display())
}

/// A memwarden without the feature `host` prints no tables and writes no report.
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
    notes.try_for_each(|note| outln!("note: {}", printable_line(note)))
}
