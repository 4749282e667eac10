// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of an experiment.

use std::{fmt, io};

/// An error, with what was attempted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid request.
    #[error("{0}")]
    BadInput(String),
    /// A workload failed or printed something unreadable.
    #[error("{what}: {reason}")]
    Workload {
        /// Its command.
        what: String,
        /// The workload's message.
        reason: String,
    },
    /// A process could not be started or watched.
    #[error("{action} {what}")]
    Process {
        /// What was attempted.
        action: &'static str,
        /// Its command.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// Ctrl-C or another signal to end. The run folder reports by itself whether it keeps samples.
    #[error("interrupted")]
    Interrupted,
    /// A kernel device.
    #[error(transparent)]
    Copies(#[from] memwarden_copies::Error),
    /// The regulator.
    #[error(transparent)]
    Guard(#[from] memwarden_guard::Error),
    /// The machine.
    #[error(transparent)]
    Platform(#[from] memwarden_platform::Error),
    /// The run folder.
    #[error(transparent)]
    Run(#[from] memwarden_run::Error),
}

impl Error {
    /// A process that could not be started or watched.
    pub fn process(
        action: &'static str,
        what: impl fmt::Display,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::Process {
            action,
            what: what.to_string(),
            source: source.into(),
        }
    }

    /// A workload that failed or printed something unreadable.
    pub fn workload(what: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self::Workload {
            what: what.to_string(),
            reason: reason.to_string(),
        }
    }
}
