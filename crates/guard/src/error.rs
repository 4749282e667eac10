// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the regulators and their clients.

use std::io;
use std::path::PathBuf;

/// An error: what was attempted on which object, and the remedy if there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An input is invalid.
    #[error("{0}")]
    BadInput(String),
    /// The operation needs root.
    #[error("{0}: this needs root; run it under sudo")]
    NotRoot(&'static str),
    /// The running kernel was built without loadable modules.
    #[error("this kernel loads no modules (CONFIG_MODULES is off): use --backend user")]
    NoModuleSupport,
    /// No module file was found.
    #[error(
        "no memguard module for kernel {release}: looked in {looked_in}; build kernel/memguard, or give its place with --module PATH"
    )]
    NoModule {
        /// The running kernel.
        release: String,
        /// Folders looked in.
        looked_in: String,
    },
    /// The kernel refused the module.
    #[error("loading {} failed: {reason}{}", path.display(), log.as_ref().map(|line| format!("; the kernel says: {line}")).unwrap_or_default())]
    Refused {
        /// The module file.
        path: PathBuf,
        /// The error in words.
        reason: String,
        /// The module's last line in the kernel log.
        log: Option<String>,
    },
    /// A guard is running already.
    #[error(
        "the guard is running already (event {event}, period {period_us} us): `memwarden guard stop` ends it"
    )]
    AlreadyRunning {
        /// The event that it counts.
        event: String,
        /// Its period.
        period_us: u64,
    },
    /// No guard is running.
    #[error("no guard is running: `memwarden guard start` starts one")]
    NotRunning,
    /// The module is loaded, but its files are missing.
    #[error("memguard is loaded, but its folder {} is missing: mount devtmpfs on /dev", .0.display())]
    NoDevice(PathBuf),
    /// The module refused a line that was written to one of its files.
    #[error("the module refused `{line}` for {file}: {reason}")]
    RefusedSetting {
        /// The file in the module's folder.
        file: &'static str,
        /// The line.
        line: String,
        /// Why: the module's message if the kernel log has one.
        reason: String,
    },
    /// This version can't parse one of the module's files.
    #[error(
        "cannot parse memguard's {file}: `{line}`; use a module and a memwarden of the same version"
    )]
    Unreadable {
        /// The file in the module's folder.
        file: &'static str,
        /// The line in question.
        line: String,
    },
    /// A file could not be read or written.
    #[error("{action} {}: {reason}", path.display())]
    File {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// A setting was refused, and those set before it could not be undone.
    #[error("{refused}; the settings that changed before that could not be undone: {undo}")]
    NotUndone {
        /// Why the setting was refused.
        refused: Box<Error>,
        /// The first error of the undo.
        undo: Box<Error>,
    },
    /// The guard was ended for one with other settings, and neither that one nor one with the old settings could be started.
    #[error(
        "{refused}; nor could a guard be started for the old settings ({old}), so the service keeps no guard now"
    )]
    NotStartedAgain {
        /// Why the guard with the new settings could not be started.
        refused: Box<Error>,
        /// Why the one with the old settings could not.
        old: Box<Error>,
    },
    /// The caller ended its wait for another process.
    #[error("interrupted while another memwarden was starting the guard")]
    Interrupted,
    /// The self-test failed: the regulator doesn't regulate.
    #[error("{0}")]
    SelfTest(String),
    /// The system refused an operation that the regulator needs; the message names the operation and its object.
    #[error("{0}")]
    System(String),
    /// The regulator in user space can't run, or ended; the message says why.
    #[error("{0}")]
    Regulator(String),
}

impl Error {
    pub(crate) fn platform(error: memwarden_platform::Error) -> Self {
        use std::error::Error as _;
        Self::System(match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        })
    }

    /// For `map_err`: adds the operation and the file to an I/O error.
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |reason| Self::File {
            action,
            path,
            reason,
        }
    }
}
