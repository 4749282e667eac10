// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors in a file, each with its line.

use std::fmt;
use std::path::Path;

/// An error in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The line, from 1.
    pub line: usize,
    /// The field with its table.
    pub field: String,
    /// The error, and the allowed values.
    pub why: String,
}

impl Fault {
    /// At a byte of the text.
    #[must_use]
    pub fn at(text: &str, byte: usize, field: &str, why: impl Into<String>) -> Self {
        let before = &text.as_bytes()[..byte.min(text.len())];
        Self {
            line: before.iter().filter(|byte| **byte == b'\n').count() + 1,
            field: field.to_owned(),
            why: why.into(),
        }
    }

    /// A file that isn't TOML.
    #[must_use]
    pub fn syntax(text: &str, error: &toml::de::Error) -> Self {
        let at = error.span().map_or(0, |span| span.start);
        let message = error.message().lines().collect::<Vec<_>>().join(" ");
        Self::at(text, at, "syntax", message)
    }
}

/// One line per error, beginning with the file.
pub struct Listed<'a>(pub &'a Path, pub &'a [Fault]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (index, fault) in self.1.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            let Fault { line, field, why } = fault;
            write!(
                f,
                "{newline}{} line {line}, {field}: {why}",
                self.0.display()
            )?;
        }
        Ok(())
    }
}
