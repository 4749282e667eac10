// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables for terminals and pages.

use comfy_table::{CellAlignment, ContentArrangement, TableComponent, presets};
use memwarden_run::title::{printable, printable_line};
use serde::Serialize;

/// A table with its heading.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Column headings, with units.
    pub columns: Vec<Column>,
    /// Rows with one cell for each column.
    pub rows: Vec<Vec<String>>,
    /// A sentence under it.
    pub caption: String,
}

/// A column's heading.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The unit of its figures; empty if there is none.
    pub unit: String,
    /// True if it holds figures (aligned right), false for words.
    pub figures: bool,
}

impl Table {
    /// A table without columns.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..Self::default()
        }
    }

    /// Adds a column of words.
    #[must_use]
    pub fn words(mut self, name: impl Into<String>) -> Self {
        self.columns.push(Column {
            name: name.into(),
            unit: String::new(),
            figures: false,
        });
        self
    }

    /// Adds a column of figures.
    #[must_use]
    pub fn figures(mut self, name: impl Into<String>, unit: impl Into<String>) -> Self {
        self.columns.push(Column {
            name: name.into(),
            unit: unit.into(),
            figures: true,
        });
        self
    }

    /// A table with a row for each of these items; [`Rows`] adds columns.
    pub(crate) fn of<T>(title: impl Into<String>, items: impl IntoIterator<Item = T>) -> Rows<T> {
        let items: Vec<T> = items.into_iter().collect();
        let mut table = Self::new(title);
        table.rows = vec![Vec::new(); items.len()];
        Rows { items, table }
    }

    /// Sets the sentence under it.
    #[must_use]
    pub fn caption(mut self, caption: impl Into<String>) -> Self {
        self.caption = caption.into();
        self
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Drops the columns in which every cell equals `absent`.
    pub fn drop_columns_of(&mut self, absent: &str) {
        for i in (1..self.columns.len()).rev() {
            if self.rows.iter().all(|row| row[i] == absent) {
                self.columns.remove(i);
                self.rows.iter_mut().for_each(|row| drop(row.remove(i)));
            }
        }
    }

    /// The table as text for a terminal of `width` columns; unlimited if the width is unknown. Characters that control
    /// a terminal are replaced.
    pub fn to_text(&self, width: Option<u16>) -> String {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::NOTHING);
        table.set_style(TableComponent::HeaderLines, '\u{2500}');
        table.set_style(TableComponent::MiddleHeaderIntersections, '\u{2500}');
        if let Some(width) = width {
            table
                .set_width(width)
                .set_content_arrangement(ContentArrangement::Dynamic);
        }
        let head = |c: &Column| {
            if c.unit.is_empty() {
                printable(&c.name)
            } else {
                printable(&format!("{}\n{}", c.name, c.unit))
            }
        };
        table.set_header(self.columns.iter().map(head));
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| printable(cell)));
        }
        for (i, column) in self.columns.iter().enumerate() {
            if let (true, Some(shown)) = (column.figures, table.column_mut(i)) {
                shown.set_cell_alignment(CellAlignment::Right);
            }
        }
        let lines = table.lines().map(|line| line.trim_end().to_owned());
        let mut text = format!(
            "{}\n{}\n",
            printable_line(&self.title),
            lines.collect::<Vec<_>>().join("\n")
        );
        if !self.caption.is_empty() {
            text += &printable_line(&self.caption);
            text.push('\n');
        }
        text
    }
}
/// A table in the making: the heading of a column and its cells are added together.
pub(crate) struct Rows<T> {
    items: Vec<T>,
    table: Table,
}

impl<T> Rows<T> {
    /// Adds a column of words.
    pub fn words(mut self, name: &str, cell: impl Fn(&T) -> String) -> Self {
        self.table = self.table.words(name);
        self.fill(cell)
    }

    /// Adds a column of figures.
    pub fn figures(mut self, name: &str, unit: &str, cell: impl Fn(&T) -> String) -> Self {
        self.table = self.table.figures(name, unit);
        self.fill(cell)
    }

    fn fill(mut self, cell: impl Fn(&T) -> String) -> Self {
        for (row, item) in self.table.rows.iter_mut().zip(&self.items) {
            row.push(cell(item));
        }
        self
    }

    /// The table.
    pub fn table(self) -> Table {
        self.table
    }
}
