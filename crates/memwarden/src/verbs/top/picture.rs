// SPDX-License-Identifier: MIT OR Apache-2.0
//! The screen as SVG, for the docs.

use std::fmt::Write;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

/// Size of a character cell, and the space around the screen.
const CELL: (usize, usize) = (9, 19);
const MARGIN: usize = 12;

const BACKGROUND: &str = "#1b1f24";
const FOREGROUND: &str = "#e6e6e6";

fn ink(cell: &Cell) -> (&'static str, &'static str) {
    let front = match cell.fg {
        Color::Blue => "#7ab8ff",
        Color::Yellow => "#ffd24d",
        _ => FOREGROUND,
    };
    if cell.modifier.contains(Modifier::REVERSED) {
        (BACKGROUND, front)
    } else {
        (front, BACKGROUND)
    }
}

/// Draws the screen: a run of cells with the same style is one text.
pub fn svg(title: &str, screen: &Buffer) -> String {
    let (columns, rows) = (
        usize::from(screen.area.width),
        usize::from(screen.area.height),
    );
    let (width, height) = (columns * CELL.0 + 2 * MARGIN, rows * CELL.1 + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\">\n<title>{title}</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n\
         <g font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"15\" xml:space=\"preserve\">\n"
    );
    for (row, cells) in screen.content.chunks(columns).enumerate() {
        let mut at = 0;
        for run in cells.chunk_by(|one, other| one.style() == other.style()) {
            let text: String = run.iter().map(Cell::symbol).collect();
            draw_run(&mut svg, row, at, run, &text);
            at += run.len();
        }
    }
    svg + "</g>\n</svg>\n"
}

fn draw_run(svg: &mut String, row: usize, at: usize, run: &[Cell], text: &str) {
    let (front, back) = ink(&run[0]);
    let (x, y) = (MARGIN + at * CELL.0, MARGIN + row * CELL.1);
    let width = run.len() * CELL.0;
    if back != BACKGROUND {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{}\" fill=\"{back}\"/>",
            CELL.1
        );
    }
    if text.trim().is_empty() {
        return;
    }
    let bold = if run[0].modifier.contains(Modifier::BOLD) {
        " font-weight=\"bold\""
    } else {
        ""
    };
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{}\" fill=\"{front}\"{bold} textLength=\"{width}\">{text}</text>",
        y + 14
    );
}
