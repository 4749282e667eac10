// SPDX-License-Identifier: MIT OR Apache-2.0
//! The module's devices.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use memwarden_platform::copytrace as raw;

use super::{Control, Counts, Function, Info, Opened, Reader, Record, Tracer, Waits};
use crate::{Error, Result};

/// Linux's errors for an unknown request, a ring that is claimed, and a lack of memory.
const ENOTTY: i32 = 25;
const EBUSY: i32 = 16;
const ENOMEM: i32 = 12;

/// The devices in a folder.
#[derive(Debug)]
pub struct Devices {
    folder: PathBuf,
    info: Info,
}

impl Devices {
    /// Checks that the devices exist, and their version.
    ///
    /// # Errors
    /// When they do not exist, refuse, or are other devices.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(Function::From.device());
        let info = info(&open(&path)?, &path)?.0;
        Ok(Self {
            folder: folder.into(),
            info,
        })
    }
}

fn open(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|reason| match reason.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Error::missing(path),
        io::ErrorKind::PermissionDenied => refused("opening (as root)", path, reason),
        _ => refused("opening", path, reason),
    })
}

fn info(file: &File, path: &Path) -> Result<(Info, raw::Info)> {
    let record = raw::info(file).map_err(|reason| refused("asking", path, reason))?;
    match Info::of(&record) {
        Some(info) => Ok((info, record)),
        None => Err(Error::OtherVersion {
            path: path.into(),
            version: record.version,
            ours: raw::VERSION,
        }),
    }
}

impl Tracer for Devices {
    fn info(&self) -> Info {
        self.info
    }

    fn open(&self, cpu: usize, functions: &[Function], end: BorrowedFd<'_>) -> Result<Opened> {
        let waiting = |reason| refused("preparing to wait for", &self.folder, reason);
        let waits = Waits::new().map_err(waiting)?;
        waits.add(&end).map_err(waiting)?;
        let mut files = Vec::new();
        let mut rings = Vec::new();
        for function in functions {
            let path = self.folder.join(function.device());
            let file = open(&path)?;
            let (_, record) = info(&file, &path)?;
            let number = u32::try_from(cpu).unwrap_or(u32::MAX);
            raw::claim(&file, number).map_err(|reason| {
                let hint = match reason.raw_os_error() {
                    Some(ENOMEM) => format!(
                        " ({} MiB: load the module with smaller rings, modprobe copytrace records=4096)",
                        record.ring_bytes >> 20
                    ),
                    _ => hint(&reason, " (another trace has it: end that first)").into(),
                };
                refused(
                    &format!("claiming the ring of CPU {cpu}{hint} of"),
                    &path,
                    reason,
                )
            })?;
            let ring = raw::Ring::map(&file, &record).map_err(|reason| {
                refused(&format!("mapping the ring of CPU {cpu} of"), &path, reason)
            })?;
            waits.add(&file).map_err(waiting)?;
            rings.push(ring);
            files.push(Claimed {
                file: Arc::new(file),
                path,
            });
        }
        Ok(Opened {
            reader: Box::new(Rings {
                files: files.clone(),
                rings,
                waits,
            }),
            control: Box::new(Files(files)),
        })
    }
}

/// A device's file with the ring that it claimed.
#[derive(Clone)]
struct Claimed {
    file: Arc<File>,
    path: PathBuf,
}

struct Rings {
    // Kept open: a file that is closed is waited for no longer.
    files: Vec<Claimed>,
    rings: Vec<raw::Ring>,
    waits: Waits,
}

impl Reader for Rings {
    fn wait(&mut self, timeout: Duration) -> Result<()> {
        match (self.waits.wait(timeout), self.files.first()) {
            (Err(reason), Some(first)) => Err(refused("waiting for", &first.path, reason)),
            _ => Ok(()),
        }
    }

    fn read(&mut self, nth: usize, each: &mut dyn FnMut(&Record)) -> usize {
        self.rings[nth].read(each)
    }
}

struct Files(Vec<Claimed>);

impl Files {
    /// Makes the request to all files, even after an error.
    fn all(&self, action: &str, request: fn(&Arc<File>) -> io::Result<()>) -> Result<()> {
        let mut outcome = Ok(());
        for one in &self.0 {
            if let Err(reason) = request(&one.file) {
                outcome = Err(refused(action, &one.path, reason));
            }
        }
        outcome
    }
}

impl Control for Files {
    fn start(&self) -> Result<()> {
        self.0.iter().try_for_each(|one| {
            raw::start(&one.file).map_err(|reason| {
                let hint = hint(&reason, " (another module traces copies)");
                refused(&format!("starting{hint}"), &one.path, reason)
            })
        })
    }

    fn close(&self) -> Result<()> {
        self.all("closing", raw::close)
    }

    fn stop(&self) -> Result<()> {
        self.all("stopping", raw::stop)
    }

    fn counts(&self, nth: usize) -> Result<Counts> {
        let one = &self.0[nth];
        raw::counts(&one.file)
            .map_err(|reason| refused("asking for the counts of", &one.path, reason))
    }
}

/// The remedy for a claimed ring.
fn hint(reason: &io::Error, text: &'static str) -> &'static str {
    if reason.raw_os_error() == Some(EBUSY) {
        text
    } else {
        ""
    }
}

fn refused(action: &str, path: &Path, reason: io::Error) -> Error {
    if reason.raw_os_error() == Some(ENOTTY) {
        return Error::NotCopytrace(path.into());
    }
    Error::refused(action, path, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_are_not_there_are_named() {
        let message = Devices::open(Path::new("/nonexistent"))
            .unwrap_err()
            .to_string();
        assert!(
            message.starts_with("/nonexistent/from_user is not there: "),
            "{message}"
        );
    }

    #[test]
    fn a_file_is_no_such_device() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("from_user"), "").unwrap();
        let message = Devices::open(folder.path()).unwrap_err().to_string();
        assert!(
            message.ends_with(
                "not a copytrace device, its driver does not know the requests (use /dev/copytrace)"
            ),
            "{message}"
        );
    }
}
