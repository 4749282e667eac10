// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong between a person and a regulator.

use std::io;
use std::path::PathBuf;

/// An error, with what was attempted on what, and the remedy where there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for makes no sense.
    #[error("{0}")]
    BadInput(String),
    /// Loading and steering a module is root's.
    #[error("{0}: this needs root; run it under sudo")]
    NotRoot(&'static str),
    /// The running kernel was built without loadable modules.
    #[error("this kernel takes no modules (CONFIG_MODULES is off), and so no memguard")]
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
    /// The kernel would not take the module.
    #[error("loading {} failed: {reason}{}", path.display(), log.as_ref().map(|line| format!("; the kernel says: {line}")).unwrap_or_default())]
    Refused {
        /// The module file.
        path: PathBuf,
        /// The error in words.
        reason: String,
        /// The module's last line in the kernel log.
        log: Option<String>,
    },
    /// There is one already.
    #[error(
        "the guard is running already (event {event}, period {period_us} us): `memwarden guard stop` ends it"
    )]
    AlreadyRunning {
        /// What it counts.
        event: String,
        /// Its period.
        period_us: u64,
    },
    /// There is none.
    #[error("no guard is running: `memwarden guard start` starts one")]
    NotRunning,
    /// The module is there and its files are not.
    #[error("memguard is loaded, but {} is missing: it is a device, and wants devtmpfs on /dev", .0.display())]
    NoDevice(PathBuf),
    /// The module refused what was written.
    #[error("the module refused `{line}` for {file}: {reason}")]
    RefusedSetting {
        /// The file in the module's folder.
        file: &'static str,
        /// What was written.
        line: String,
        /// Why, in the module's words where the kernel log has them.
        reason: String,
    },
    /// A file said something that this version doesn't understand.
    #[error(
        "memguard's {file} says something that this version of memwarden doesn't understand: `{line}`"
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
        /// The verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// The regulator doesn't regulate.
    #[error("{0}")]
    SelfTest(String),
    /// The machine refused something that the regulator needs; the message says what and where.
    #[error("{0}")]
    System(String),
    /// The regulator in user space can't run, or ended; the message says why.
    #[error("{0}")]
    Regulator(String),
}

impl Error {
    #[allow(clippy::needless_pass_by_value)]
    pub(crate) fn platform(error: memwarden_platform::Error) -> Self {
        use std::error::Error as _;
        Self::System(match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        })
    }

    /// For `map_err`: what was done to which file.
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
