// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the devices.

use std::io;
use std::path::{Path, PathBuf};

use crate::cftu::PolicyKind;
use crate::load::module_of;

/// An error: what was attempted on what and, if known, the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device does not exist.
    #[error("{} is not there: {remedy}", path.display())]
    Missing {
        /// The device's file.
        path: PathBuf,
        /// What to do.
        remedy: String,
    },
    /// The device's module could not be loaded.
    #[error(
        "{} is not there, and `modprobe {module}` failed: {reason} (install memwarden's kernel modules, or run on the \
         lab: --on lab)",
        path.display()
    )]
    NotLoaded {
        /// The device's file.
        path: PathBuf,
        /// Its module.
        module: &'static str,
        /// modprobe's message.
        reason: String,
    },
    /// The kernel refused.
    #[error("{action} {}: {reason}", path.display())]
    Refused {
        /// What was attempted, with size and place.
        action: String,
        /// The device's file.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// A call moved fewer bytes than requested.
    #[error("{action} {}: {moved} bytes were moved", path.display())]
    Short {
        /// What was attempted, with size and place.
        action: String,
        /// The device's file.
        path: PathBuf,
        /// Bytes.
        moved: usize,
    },
    /// The file's driver has no atomic requests.
    #[error("{request} on {}: not a memory device, its driver does not know this request (use /dev/mymem or \
        /dev/mymem_rust)", path.display())]
    NotADevice {
        /// The request.
        request: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// A block device, to which a measurement would write.
    #[error("{}: a disk, whose contents would be lost (use /dev/mymem or /dev/mymem_rust)", .0.display())]
    Disk(PathBuf),
    /// The file belongs to another driver.
    #[error("{}: not a cftu device, its driver does not know the requests (use /dev/cftu)", .0.display())]
    NotCftu(PathBuf),
    /// The file belongs to another driver.
    #[error("{}: not a copytrace device, its driver does not know the requests (use /dev/copytrace)", .0.display())]
    NotCopytrace(PathBuf),
    /// The module has another header.
    #[error("{}: the module speaks version {version} of its requests and this memwarden {ours} (install both from one release)", path.display())]
    OtherVersion {
        /// The device's file.
        path: PathBuf,
        /// The module's version.
        version: u32,
        /// This program's version.
        ours: u32,
    },
    /// A policy that doesn't fit the channels.
    #[error(
        "policy {kind} of {}: it does not fit its {channels} channels (with more CPUs than channels give --fold, or use \
         dma-shared; high channels must be among them)",
        path.display()
    )]
    Policy {
        /// The policy.
        kind: PolicyKind,
        /// The device's file.
        path: PathBuf,
        /// Channels that the module holds.
        channels: u32,
    },
    /// Another process measures with the device.
    #[error("{}: another process measures with it, and its figures and ours would mix; wait until it ends", .0.display())]
    InUse(PathBuf),
    /// An error of the platform crate.
    #[error(transparent)]
    Platform(#[from] memwarden_platform::Error),
    /// The bytes read differ from those written.
    #[error("{}: of {bytes} bytes written, byte {first} came back as {got:#04x} instead of {wrote:#04x}", path.display())]
    OtherBytes {
        /// The device's file.
        path: PathBuf,
        /// Length of the transfer.
        bytes: usize,
        /// Index of the first byte that differs, from 0.
        first: usize,
        /// The byte written.
        wrote: u8,
        /// The byte read back.
        got: u8,
    },
    /// A result that this version cannot parse.
    #[error("{} answered `{command}` with text that this version of memwarden doesn't understand: {what}", path.display())]
    Unreadable {
        /// The device's file.
        path: PathBuf,
        /// The command that it received.
        command: String,
        /// The line, or what is missing.
        what: String,
    },
}

impl Error {
    /// True if another process uses the device: it is there, and will be free later.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match self {
            Self::InUse(_) => true,
            // A module with `exclusive=1` refuses the second open file.
            Self::Refused { reason, .. } => reason.kind() == io::ErrorKind::ResourceBusy,
            _ => false,
        }
    }

    /// The kernel refused `action` on the device at `path`.
    pub(crate) fn refused(action: impl Into<String>, path: &Path, reason: io::Error) -> Self {
        Self::Refused {
            action: action.into(),
            path: path.into(),
            reason,
        }
    }

    /// No file at `path`; the remedy names the module that creates it.
    pub(crate) fn missing(path: &Path) -> Self {
        Self::Missing {
            path: path.into(),
            remedy: module_of(path).map_or_else(
                || {
                    "give the path of a device, such as /dev/mymem, /dev/cftu or /dev/copytrace"
                        .into()
                },
                |module| {
                    format!("load the module (modprobe {module}), or run on the lab (--on lab)")
                },
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_busy_is_told_from_one_that_is_not_available() {
        let path = Path::new("/dev/mymem");
        let refused = |kind: io::ErrorKind| Error::refused("opening", path, kind.into());
        assert!(Error::InUse(path.into()).is_busy());
        assert!(refused(io::ErrorKind::ResourceBusy).is_busy());
        assert!(!refused(io::ErrorKind::PermissionDenied).is_busy());
        assert!(!Error::missing(path).is_busy());
    }
}
