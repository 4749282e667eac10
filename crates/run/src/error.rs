// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of a run folder; each message is one line that says what happened, where, and what to do.

use std::io;
use std::path::PathBuf;

/// An error in writing or reading a run folder.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operating system call failed on a file of the folder.
    #[error("{action} {}", path.display())]
    Io {
        /// What was attempted, as a verb with its object's kind: `create`, `write`, `read`, ...
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The folder to be written already exists.
    #[error("{} exists already: choose another --out, or --replace it", .0.display())]
    Exists(PathBuf),
    /// The folder to be replaced is not a run folder, so it is kept.
    #[error("{} exists and is not a run folder (it has no run.json): it will not be replaced", .0.display())]
    NotReplaceable(PathBuf),
    /// An earlier run to the same folder was interrupted and its measurements are still there.
    #[error("{} is left from an interrupted run: inspect and remove it, or --replace it", .0.display())]
    LeftOver(PathBuf),
    /// Another run, still in progress, writes this folder.
    #[error("{} is written by a run in progress: wait for its end, or choose another --out", .0.display())]
    InUse(PathBuf),
    /// The folder was removed or replaced while this run wrote to it.
    #[error("{} was removed or replaced during this run, whose samples are lost: repeat it with another --out", .0.display())]
    Taken(PathBuf),
    /// A path that cannot name a folder (`/`, `..`).
    #[error("{} cannot be a run folder: name a new folder inside it", .0.display())]
    BadName(PathBuf),
    /// The folder does not exist.
    #[error("{} is not a folder: give the path of a run folder, such as out/demo", .0.display())]
    NotAFolder(PathBuf),
    /// One of the files that make a run folder is missing.
    #[error("{} has no {file}: {hint}", folder.display())]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// The file's name.
        file: &'static str,
        /// What that probably means.
        hint: &'static str,
    },
    /// A file is not JSON, or does not match its schema.
    #[error("{}: line {line}, column {column}: {reason}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Line, from 1 (0 if the error has no place).
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        reason: String,
    },
    /// A file has another schema, or another version, than this program reads.
    #[error("{}: the schema is {found}, this version of memwarden reads \"{expected}\"", path.display())]
    Schema {
        /// The file.
        path: PathBuf,
        /// The schema in the file, quoted, or `missing`.
        found: String,
        /// The expected schema.
        expected: &'static str,
    },
    /// samples.csv has other columns than the format requires.
    #[error("{}: line 1: the columns must begin with {expected}, found {found}", path.display())]
    Columns {
        /// The file.
        path: PathBuf,
        /// The columns of the format.
        expected: String,
        /// The header row found.
        found: String,
    },
    /// A row of samples.csv cannot be read.
    #[error("{}: line {line}: {reason}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// What is wrong with the row.
        reason: String,
    },
    /// samples.csv has a header but no samples.
    #[error("{}: no samples in it: the run measured nothing", .0.display())]
    NoSamples(PathBuf),
    /// A value to be written is not finite.
    #[error("{}: {reason}", path.display())]
    NotWritable {
        /// The file.
        path: PathBuf,
        /// What is wrong with the value.
        reason: String,
    },
}

impl Error {
    /// Wraps an operating system error with what was attempted on which path.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.into(),
            source,
        }
    }
}
