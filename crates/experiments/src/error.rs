// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong in an experiment.

use std::io;

/// An error, with what was attempted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for makes no sense.
    #[error("{0}")]
    BadInput(String),
    /// A workload ended badly or said something unreadable.
    #[error("{what}: {reason}")]
    Workload {
        /// Its command.
        what: String,
        /// What it said.
        reason: String,
    },
    /// A process could not be started or watched.
    #[error("{action} {what}")]
    Process {
        /// The verb.
        action: &'static str,
        /// Its command.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// Ctrl-C, or another signal to end. The run folder tells by itself whether it keeps samples.
    #[error("interrupted")]
    Interrupted,
    /// A device of the kernel's.
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
