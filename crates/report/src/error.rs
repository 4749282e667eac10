// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of reports.

use std::path::PathBuf;

/// An error in making a report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run folder cannot be read.
    #[error(transparent)]
    Run(#[from] memwarden_run::Error),
    /// A file of the report cannot be written.
    #[error("{action} {}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The page's template failed: a bug in this program.
    #[error("fill in the report's template: {0}")]
    Template(String),
    /// The program that makes PNG files is missing or failed.
    #[error("{0}")]
    Raster(String),
}
