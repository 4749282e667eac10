// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the lab, each with a remedy.

use std::path::{Path, PathBuf};

/// Why the lab could not complete a task.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument that the lab cannot take.
    #[error("{0}")]
    BadInput(String),
    /// A program that the lab calls is not installed.
    #[error("{program} is not installed: run scripts/install-packages")]
    MissingProgram {
        /// Its name.
        program: String,
    },
    /// Programs that a build calls are not installed.
    #[error(
        "not installed: {programs}: run scripts/install-packages, or install them as your system does"
    )]
    MissingPrograms {
        /// Their names.
        programs: String,
    },
    /// A program that the lab called failed.
    #[error("{attempted}: {program} failed with {status}: {detail}")]
    Program {
        /// What was attempted, on what.
        attempted: String,
        /// The program's name.
        program: String,
        /// Its exit status, in words.
        status: String,
        /// The end of its output.
        detail: String,
    },
    /// A file operation failed.
    #[error("{attempted} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        attempted: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Neither apt nor the cache knows a package.
    #[error(
        "apt does not know the package {0}: run scripts/install-packages, which adds the guest's architecture, then \
         apt-get update as root, which refreshes the package lists"
    )]
    UnknownPackage(String),
    /// memwarden's source tree was not found.
    #[error(
        "cannot find memwarden's source tree (kernel/, lab/) above the program or the current \
         directory: run it from a checkout, or set MEMWARDEN_SOURCE"
    )]
    NoSource,
    /// The guest did not come up.
    #[error("the guest did not boot: {reason}; the console ends with:\n{tail}")]
    Boot {
        /// What was seen.
        reason: String,
        /// The console's last lines.
        tail: String,
    },
    /// The guest stopped before the command ended or its results were returned.
    #[error(
        "the guest stopped before its results were carried back: {reason}; the console ends with:\n{tail}"
    )]
    Lost {
        /// What was seen.
        reason: String,
        /// The console's last lines.
        tail: String,
    },
    /// The run took longer than it may.
    #[error(
        "the guest was still running after {seconds} s and was stopped (--timeout); the console ends with:\n{tail}"
    )]
    TimedOut {
        /// The limit.
        seconds: u64,
        /// The console's last lines.
        tail: String,
    },
    /// The user interrupted the run.
    #[error("interrupted: all programs were stopped and incomplete files removed")]
    Interrupted,
}

/// The lab's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Names the file in the error of a file operation.
pub(crate) trait OnFile<T> {
    fn on(self, attempted: &'static str, path: &Path) -> Result<T>;
}

impl<T> OnFile<T> for std::io::Result<T> {
    fn on(self, attempted: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io {
            attempted,
            path: path.to_owned(),
            source,
        })
    }
}
