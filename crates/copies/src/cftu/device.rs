// SPDX-License-Identifier: MIT OR Apache-2.0
//! The module's device.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memwarden_platform::cftu as raw;

use super::{Channel, Copier, Copy, Info, Memory, Policy, Session, Statistics};
use crate::{Error, Result, file_lock};

/// Linux's errors for an unknown request, an invalid one, a lack of memory, and a signal.
const ENOTTY: i32 = 25;
const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;
const EINTR: i32 = 4;

/// An open `/dev/cftu`, with its own region and pinned memory.
#[derive(Debug, Clone)]
pub struct Device {
    file: Arc<File>,
    path: PathBuf,
}

/// Pinned user memory. Dropping it unpins the memory.
#[derive(Debug)]
#[must_use = "the memory is released when this goes"]
pub struct Pinned {
    file: Arc<File>,
    id: u32,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Closing the file releases it too.
        let _ = raw::unpin(&self.file, self.id);
    }
}

impl Device {
    /// Opens the device and checks its version.
    ///
    /// # Errors
    /// When it is missing, refuses, or is another device.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|reason| match reason.kind() {
                io::ErrorKind::NotFound => Error::missing(path),
                io::ErrorKind::PermissionDenied => {
                    Error::refused("opening (as root)", path, reason)
                }
                _ => Error::refused("opening", path, reason),
            })?;
        let device = Self {
            file: Arc::new(file),
            path: path.into(),
        };
        device.info()?;
        Ok(device)
    }

    /// Replaces this file's region of kernel memory; 0 frees it.
    ///
    /// # Errors
    /// When memory is short.
    pub fn set_region(&self, bytes: u64) -> Result<()> {
        raw::set_region(&self.file, bytes).map_err(|reason| {
            let hint = hint(
                &reason,
                ENOMEM,
                " (too little memory is free: give a smaller --max)",
            );
            self.refused(
                format!("getting a region of {bytes} bytes{hint} from"),
                reason,
            )
        })
    }

    /// Pins all of the memory.
    ///
    /// # Errors
    /// When the limit of locked memory is too low.
    pub fn pin(&self, memory: &Memory) -> Result<Pinned> {
        let id = raw::pin(&self.file, memory).map_err(|reason| {
            let bytes = memory.as_slice().len();
            let hint = hint(
                &reason,
                ENOMEM,
                " (ulimit -l shows the limit, which does not apply to root)",
            );
            self.refused(format!("pinning {bytes} bytes{hint} with"), reason)
        })?;
        Ok(Pinned {
            file: Arc::clone(&self.file),
            id,
        })
    }

    /// Makes one copy.
    ///
    /// # Errors
    /// When the kernel refuses, or does not copy all bytes.
    pub fn copy(&self, memory: &mut Memory, pin: Option<&Pinned>, copy: &mut Copy) -> Result<()> {
        copy.0.pin = pin.map_or(0, |pin| pin.id);
        raw::copy(&self.file, memory, &mut copy.0).map_err(|reason| {
            self.refused(format!("copying {} bytes with", copy.bytes()), reason)
        })?;
        self.whole(copy)
    }

    /// Makes many copies in one request, in order, and returns how many it made: fewer than all after a signal. Stopping and
    /// continuing the process counts as a signal, though the process does not see it.
    ///
    /// # Errors
    /// When the kernel refuses one, or does not copy all bytes.
    pub fn batch(
        &self,
        memory: &mut Memory,
        pin: Option<&Pinned>,
        copies: &mut [Copy],
    ) -> Result<usize> {
        let mut records: Vec<raw::Copy> = copies.iter().map(|copy| copy.0).collect();
        for record in &mut records {
            record.pin = pin.map_or(0, |pin| pin.id);
        }
        let (done, result) = raw::batch(&self.file, memory, &mut records);
        for (copy, record) in copies.iter_mut().zip(records) {
            copy.0 = record;
        }
        let done = usize::try_from(done).unwrap_or(usize::MAX);
        let made = match result {
            Ok(()) => copies.len(),
            Err(reason) if reason.raw_os_error() == Some(EINTR) => done.min(copies.len()),
            Err(reason) => {
                let of = copies.len();
                return Err(self.refused(format!("making copy {} of {of} with", done + 1), reason));
            }
        };
        copies[..made]
            .iter()
            .try_for_each(|copy| self.whole(copy))?;
        Ok(made)
    }

    fn whole(&self, copy: &Copy) -> Result<()> {
        if copy.0.not_copied == 0 {
            return Ok(());
        }
        let moved = copy.bytes().saturating_sub(copy.0.not_copied);
        Err(Error::Short {
            action: format!("copying {} bytes with", copy.bytes()),
            path: self.path.clone(),
            moved: usize::try_from(moved).unwrap_or(usize::MAX),
        })
    }

    fn refused(&self, action: String, reason: io::Error) -> Error {
        if reason.raw_os_error() == Some(ENOTTY) {
            return Error::NotCftu(self.path.clone());
        }
        Error::refused(action, &self.path, reason)
    }
}

impl Copier for Device {
    fn info(&self) -> Result<Info> {
        let record =
            raw::info(&self.file).map_err(|reason| self.refused("asking".into(), reason))?;
        Info::of(&record).ok_or_else(|| Error::OtherVersion {
            path: self.path.clone(),
            version: record.version,
            ours: raw::VERSION,
        })
    }

    fn reserve_policy(&self) -> Result<()> {
        file_lock::reserve(&self.file, &self.path)
    }

    fn set_policy(&self, policy: &Policy) -> Result<()> {
        raw::set_policy(&self.file, &policy.record()).map_err(|reason| {
            if reason.raw_os_error() == Some(EINVAL) {
                if let Ok(info) = self.info() {
                    return Error::Policy {
                        kind: policy.kind,
                        path: self.path.clone(),
                        channels: info.channels,
                    };
                }
            }
            self.refused(format!("choosing the policy {} of", policy.kind), reason)
        })
    }

    fn channel(&self, number: u32) -> Result<Channel> {
        let record = raw::channel(&self.file, number)
            .map_err(|reason| self.refused(format!("asking for channel {number} of"), reason))?;
        Ok(Channel::of(&record))
    }

    fn statistics(&self) -> Result<Statistics> {
        raw::statistics(&self.file)
            .map_err(|reason| self.refused("asking for the statistics of".into(), reason))
    }

    fn open(&self, bytes: u64, pinned: bool) -> Result<Box<dyn Session>> {
        let device = Self::open(&self.path)?;
        device.set_region(bytes)?;
        let memory = Memory::new(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let pin = pinned.then(|| device.pin(&memory)).transpose()?;
        Ok(Box::new(Opened {
            device,
            pin,
            memory,
        }))
    }
}

/// An open device with its user memory, which is unpinned before it is unmapped.
struct Opened {
    device: Device,
    pin: Option<Pinned>,
    memory: Memory,
}

impl Session for Opened {
    fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    fn copy(&mut self, copies: &mut [Copy]) -> Result<usize> {
        self.device
            .batch(&mut self.memory, self.pin.as_ref(), copies)
    }
}

/// The remedy for an errno.
fn hint(reason: &io::Error, errno: i32, text: &'static str) -> &'static str {
    if reason.raw_os_error() == Some(errno) {
        text
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_names_its_remedy() {
        let message = Device::open(Path::new("/nonexistent/cftu"))
            .unwrap_err()
            .to_string();
        assert!(
            message.starts_with("/nonexistent/cftu is not there: "),
            "{message}"
        );
        // On a machine that has the device there is nothing to test.
        if !Path::new(super::super::DEVICE).exists() {
            let message = Device::open(Path::new(super::super::DEVICE))
                .unwrap_err()
                .to_string();
            assert_eq!(
                message,
                "/dev/cftu is not there: load the module (modprobe cftu), or run on the lab (--on lab)"
            );
        }
    }

    #[test]
    fn a_file_is_no_such_device() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let message = Device::open(file.path()).unwrap_err().to_string();
        assert!(
            message.ends_with(
                "not a cftu device, its driver does not know the requests (use /dev/cftu)"
            ),
            "{message}"
        );
    }
}
