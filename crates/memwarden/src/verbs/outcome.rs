// SPDX-License-Identifier: MIT OR Apache-2.0
//! How an experiment ends: its figures on the terminal, its report in the run folder.

use std::path::Path;

use anyhow::Result;
use memwarden_run::Summary;

/// Tells what came out: tables, notes, where the report is and the finding in a sentence; or the summary as JSON.
#[cfg(feature = "host")]
pub fn tell(folder: &Path, summary: &Summary, as_json: bool) -> Result<()> {
    if as_json {
        println!("{}", serde_json::to_string_pretty(summary)?);
    } else {
        for table in memwarden_report::tables(summary) {
            println!("{}", table.to_text(None));
        }
        notes(summary);
    }
    super::report::after_run(folder, summary, as_json)
}

/// A memwarden for small machines leaves tables and report to a larger one.
#[cfg(not(feature = "host"))]
pub fn tell(folder: &Path, summary: &Summary, as_json: bool) -> Result<()> {
    if as_json {
        println!("{}", serde_json::to_string_pretty(summary)?);
    } else {
        notes(summary);
        println!("run folder: {}", folder.display());
    }
    Ok(())
}

fn notes(summary: &Summary) {
    for note in &summary.notes {
        println!("note: {note}");
    }
}
