// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory devices `/dev/mymem` (C) and `/dev/mymem_rust`, and `/dev/mymem_test`, which measures them from inside
//! the kernel.

mod in_kernel;
mod transfer;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use memwarden_platform::mymem;
use memwarden_platform::names::unknown;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantArray};

use crate::{Error, Result, file_lock};

pub use in_kernel::InKernel;
pub use transfer::Transfer;

/// The device in C.
pub const C_DEVICE: &str = "/dev/mymem";

/// The device in Rust.
pub const RUST_DEVICE: &str = "/dev/mymem_rust";

/// The device that measures from inside the kernel.
pub const IN_KERNEL: &str = "/dev/mymem_test";

/// The times of one trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial {
    /// Writing, nanoseconds.
    pub write_ns: u64,
    /// Reading back, nanoseconds.
    pub read_ns: u64,
}

/// The outcome of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// Increments made.
    pub expected: u64,
    /// The counter's final value.
    pub actual: u64,
    /// From the workers' common start to the end of the last one, nanoseconds.
    pub elapsed_ns: u64,
}

/// The protection of an increment against other workers.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    EnumString,
    VariantArray,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown::<Self>)]
pub enum Lock {
    /// No lock: read, add one, write back.
    None,
    /// The same, with a mutex around.
    Mutex,
    /// The device adds atomically.
    FetchAdd,
}

/// An open memory device. Reads and writes work on any file of fixed size.
#[derive(Debug)]
pub struct Device {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Device {
    /// Opens the device for reading and writing.
    ///
    /// # Errors
    /// When it is missing or the kernel refuses.
    pub fn open(path: &Path) -> Result<Self> {
        let mut file = open(path)?;
        let bytes = file
            .seek(SeekFrom::End(0))
            .map_err(|reason| Error::refused("finding the end of", path, reason))?;
        Ok(Self {
            file,
            path: path.into(),
            bytes,
        })
    }

    /// Reserves the device for this open file: all users share its memory, so two measurements would mix.
    ///
    /// # Errors
    /// When another open file has it.
    pub fn reserve(&self) -> Result<()> {
        reserve(&self.file, &self.path)
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads all of `buffer` in one call, from `offset` bytes on.
    ///
    /// # Errors
    /// When the kernel refuses, or reads less.
    #[inline]
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let moved = self.file.read_at(buffer, offset);
        self.whole("reading", offset, buffer.len(), moved)
    }

    /// Writes all of `buffer` in one call, from `offset` bytes on.
    ///
    /// # Errors
    /// When the kernel refuses, or writes less.
    #[inline]
    pub fn write_at(&self, offset: u64, buffer: &[u8]) -> Result<()> {
        let moved = self.file.write_at(buffer, offset);
        self.whole("writing", offset, buffer.len(), moved)
    }

    /// Adds `operand` to the 64-bit word at `offset` (a multiple of 8), in the kernel. Returns the previous value.
    ///
    /// # Errors
    /// When the kernel refuses, or the file is no memory device.
    #[inline]
    pub fn fetch_add(&self, offset: u64, operand: u64) -> Result<u64> {
        mymem::fetch_add(&self.file, offset, operand)
            .map_err(|reason| self.no_request("fetch-add", reason))
    }

    /// Replaces the 64-bit word at `offset` (a multiple of 8) by `desired` if it is `expected`, in the kernel.
    /// Returns the previous value.
    ///
    /// # Errors
    /// When the kernel refuses, or the file is no memory device.
    pub fn compare_exchange(&self, offset: u64, expected: u64, desired: u64) -> Result<u64> {
        mymem::compare_exchange(&self.file, offset, expected, desired)
            .map_err(|reason| self.no_request("compare-exchange", reason))
    }

    /// One call must move all bytes: it is timed as a whole, and must not interleave with another writer's call.
    #[inline]
    fn whole(
        &self,
        action: &str,
        offset: u64,
        asked: usize,
        moved: io::Result<usize>,
    ) -> Result<()> {
        match moved {
            Ok(moved) if moved == asked => Ok(()),
            Ok(moved) => Err(Error::Short {
                action: format!("{action} {asked} bytes at {offset} of"),
                path: self.path.clone(),
                moved,
            }),
            Err(reason) => Err(Error::refused(
                format!("{action} {asked} bytes at {offset} of"),
                &self.path,
                reason,
            )),
        }
    }

    fn no_request(&self, request: &'static str, reason: io::Error) -> Error {
        // Linux's error for a request that the driver doesn't know.
        const ENOTTY: i32 = 25;
        if reason.raw_os_error() == Some(ENOTTY) {
            return Error::NotADevice {
                request,
                path: self.path.clone(),
            };
        }
        Error::refused(format!("{request} on"), &self.path, reason)
    }
}

/// Like [`Device::reserve`], for a file that the caller has opened.
///
/// # Errors
/// When another open file has the device.
pub fn reserve(file: &File, path: &Path) -> Result<()> {
    file_lock::reserve(file, path)
}

/// Refuses a block device: the measurements write to the file that they are given.
///
/// # Errors
/// When it is one.
pub fn refuse_disk(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.file_type().is_block_device() => Err(Error::Disk(path.into())),
        _ => Ok(()),
    }
}

fn open(path: &Path) -> Result<File> {
    refuse_disk(path)?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|reason| match reason.kind() {
            io::ErrorKind::NotFound => Error::missing(path),
            io::ErrorKind::PermissionDenied => Error::refused(
                "opening (as root, or with the device's group)",
                path,
                reason,
            ),
            _ => Error::refused("opening", path, reason),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: u64) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(bytes).unwrap();
        file
    }

    #[test]
    fn what_is_written_is_read_and_nothing_beside_it() {
        let file = file(4096);
        let device = Device::open(file.path()).unwrap();
        assert_eq!(device.bytes(), 4096);
        device.write_at(8, b"memory").unwrap();
        let mut back = [1; 16];
        device.read_at(4, &mut back).unwrap();
        assert_eq!(&back, b"\0\0\0\0memory\0\0\0\0\0\0");
    }

    #[test]
    fn a_call_that_moves_less_is_an_error() {
        let file = file(10);
        let device = Device::open(file.path()).unwrap();
        let message = device.read_at(6, &mut [0; 8]).unwrap_err().to_string();
        assert!(
            message.starts_with("reading 8 bytes at 6 of ")
                && message.ends_with(": 4 bytes were moved"),
            "{message}"
        );
    }

    #[test]
    fn a_disk_is_refused() {
        let mut found = fs::read_dir("/dev").unwrap().map(|entry| entry.unwrap());
        let Some(disk) = found.find(|entry| entry.file_type().unwrap().is_block_device()) else {
            eprintln!("skipped: there is no block device here");
            return;
        };
        let message = Device::open(&disk.path()).unwrap_err().to_string();
        assert!(
            message.contains("whose contents would be lost"),
            "{message}"
        );
    }

    #[test]
    fn a_file_adds_nothing_by_itself() {
        let file = file(4096);
        let device = Device::open(file.path()).unwrap();
        for (request, message) in [
            ("fetch-add on ", device.fetch_add(0, 1).unwrap_err()),
            (
                "compare-exchange on ",
                device.compare_exchange(0, 0, 1).unwrap_err(),
            ),
        ] {
            let message = message.to_string();
            assert!(
                message.starts_with(request) && message.contains("not a memory device"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_missing_device_names_its_module() {
        let message = Error::missing(Path::new(RUST_DEVICE)).to_string();
        assert_eq!(
            message,
            "/dev/mymem_rust is not there: load the module (modprobe mymem_rust), or run on the lab (--on lab)"
        );
        assert!(Device::open(Path::new("/nonexistent/mymem")).is_err());
    }

    #[test]
    fn locks_have_names() {
        for &lock in Lock::VARIANTS {
            assert_eq!(lock.to_string().parse(), Ok(lock));
        }
        assert!("spin".parse::<Lock>().unwrap_err().contains("fetch-add"));
    }
}
