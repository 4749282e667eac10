// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables and progress on a terminal; in a pipe, tables alone.

use std::io::IsTerminal;

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use memwarden_experiments::Progress;

/// An empty table with these headings: columns by spaces, so that it can be cut with ordinary tools.
pub fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_header(headings.iter().copied());
    table
}

/// A table's text: with figures to the right, and nothing before the first column or behind the last.
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

/// A figure with so many decimals.
pub fn number(value: f64, digits: usize) -> String {
    format!("{value:.digits$}")
}

/// A progress bar on stderr; nothing when that is no terminal.
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// A bar that shows up with the first step.
    pub fn new() -> Self {
        Self(std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            if let Ok(style) =
                ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {eta} left")
            {
                bar.set_style(style);
            }
            bar
        }))
    }
}

impl Progress for Bar {
    fn step(&mut self, done: usize, total: usize, what: &str) {
        let Some(bar) = &self.0 else { return };
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        bar.set_message(what.to_owned());
        if done == total {
            bar.finish_and_clear();
        }
    }
}
