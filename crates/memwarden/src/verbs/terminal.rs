// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables and progress on a terminal; in a pipe, only tables.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use memwarden_experiments::Progress;

/// An empty table with these headings; columns are separated by spaces, so that standard tools can cut them.
pub fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_header(headings.iter().copied());
    table
}

/// A table's text: figures aligned right, and no space before the first column or after the last.
pub fn lines(mut table: Table, figures: std::ops::Range<usize>) -> String {
    for index in figures {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let text = table.to_string();
    let lines: Vec<&str> = text
        .lines()
        .map(|line| line.strip_prefix(' ').unwrap_or(line).trim_end())
        .collect();
    lines.join("\n")
}

/// A figure with a fixed number of decimals.
pub fn number(value: f64, digits: usize) -> String {
    format!("{value:.digits$}")
}

/// Environment variable with a file for progress lines: in the lab's guest this is the console, and the host shows
/// them.
const STEPS: &str = "MEMWARDEN_STEPS";

/// Minimum interval between progress lines, by the guest's clock.
const BETWEEN_STEPS: Duration = Duration::from_millis(20);

/// Progress of an experiment.
pub enum Bar {
    /// An observer that ignores progress.
    Silent,
    /// A progress bar on stderr.
    Shown(ProgressBar),
    /// Lines in a file, with the time of the last one.
    Told(File, Option<Instant>),
}

impl Bar {
    /// A bar that appears with the first step, if stderr is a terminal or progress lines are requested.
    pub fn new() -> Self {
        let wanted = std::env::var_os(STEPS).filter(|path| !path.is_empty());
        if let Some(file) = wanted.and_then(|path| File::options().append(true).open(path).ok()) {
            return Self::Told(file, None);
        }
        if !std::io::stderr().is_terminal() {
            return Self::Silent;
        }
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {eta} left") {
            bar.set_style(style);
        }
        Self::Shown(bar)
    }
}

impl Progress for Bar {
    fn step(&mut self, done: usize, total: usize, what: &str) {
        match self {
            Self::Silent => {}
            Self::Shown(bar) => {
                bar.set_length(total as u64);
                bar.set_position(done as u64);
                let what = if what.is_empty() { "starting" } else { what };
                bar.set_message(what.to_owned());
                if done == total {
                    bar.finish_and_clear();
                }
            }
            Self::Told(file, last) => {
                if done < total && last.is_some_and(|last| last.elapsed() < BETWEEN_STEPS) {
                    return;
                }
                // The reader may be gone; the experiment goes on.
                let _ =
                    file.write_all(format!("memwarden-step: {done}/{total} {what}\n").as_bytes());
                *last = Some(Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_as_lines_and_the_last_always() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut bar = Bar::Told(file.reopen().unwrap(), None);
        for done in 0..1000 {
            bar.step(done, 1000, "a copy");
        }
        bar.step(1000, 1000, "done");
        let told = std::fs::read_to_string(file.path()).unwrap();
        assert!(
            told.starts_with("memwarden-step: 0/1000 a copy\n"),
            "{told}"
        );
        assert!(told.ends_with("memwarden-step: 1000/1000 done\n"), "{told}");
        assert!(told.lines().count() < 1001, "not each of many");
    }
}
