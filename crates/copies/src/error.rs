// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a device can refuse.

use std::io;
use std::path::{Path, PathBuf};

use crate::cftu::PolicyKind;
use crate::load::module_of;

/// An error: what was attempted on what, and what to do about it where that is known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such device.
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
        /// What modprobe said.
        reason: String,
    },
    /// The kernel refused.
    #[error("{action} {}: {reason}", path.display())]
    Refused {
        /// The verb, with how much and where.
        action: String,
        /// The device's file.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// A call moved less than it was asked to.
    #[error("{action} {}: {moved} bytes were moved", path.display())]
    Short {
        /// The verb, with how much and where.
        action: String,
        /// The device's file.
        path: PathBuf,
        /// Bytes.
        moved: usize,
    },
    /// The file's driver has no atomic requests.
    #[error("{request} on {}: no memory device, its driver does not know this request (use /dev/mymem or /dev/mymem_rust)", path.display())]
    NotADevice {
        /// Which request.
        request: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The file's driver is another one.
    #[error("{}: no cftu, its driver does not know the requests (use /dev/cftu)", .0.display())]
    NotCftu(PathBuf),
    /// The file's driver is another one.
    #[error("{}: no tracer of copies, its driver does not know the requests (use /dev/copytrace)", .0.display())]
    NotCopytrace(PathBuf),
    /// The module has another header.
    #[error("{}: the module speaks version {version} of its requests and this memwarden {ours} (install both from one release)", path.display())]
    OtherVersion {
        /// The device's file.
        path: PathBuf,
        /// The module's.
        version: u32,
        /// Ours.
        ours: u32,
    },
    /// A policy that doesn't fit the channels.
    #[error(
        "policy {kind} of {}: it does not fit its {channels} channels (with more CPUs than channels give --fold, or use \
         dma-shared; high channels must be among them)",
        path.display()
    )]
    Policy {
        /// Which.
        kind: PolicyKind,
        /// The device's file.
        path: PathBuf,
        /// Channels that the module holds.
        channels: u32,
    },
    /// The machine.
    #[error(transparent)]
    Platform(#[from] memwarden_platform::Error),
    /// What was read is not what was written.
    #[error("{}: of {bytes} bytes written, byte {first} came back as {got:#04x} instead of {wrote:#04x}", path.display())]
    OtherBytes {
        /// The device's file.
        path: PathBuf,
        /// Length of the transfer.
        bytes: usize,
        /// The first that differs, from 0.
        first: usize,
        /// The byte written.
        wrote: u8,
        /// The byte read back.
        got: u8,
    },
    /// A result that this version doesn't understand.
    #[error("{} answered `{command}` with something that this version of memwarden doesn't understand: {what}", path.display())]
    Unreadable {
        /// The device's file.
        path: PathBuf,
        /// What it was told.
        command: String,
        /// The line, or what is missing.
        what: String,
    },
}

impl Error {
    /// No file at `path`, with the remedy that its module suggests.
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
