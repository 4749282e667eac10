// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory devices: the time of a transfer, and the correctness of a counter that several workers increment.
//!
//! The same is measured on the device in C, on the one in Rust, and from inside the kernel without system calls.

pub mod counter;
pub mod mistakes;
pub mod throughput;

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use memwarden_copies::mymem::{C_DEVICE, Device, IN_KERNEL, InKernel, RUST_DEVICE};
use memwarden_copies::{Loaded, provide};
use memwarden_platform::as_text;
use memwarden_run::{Summary, Whole};

use crate::{Error, Interrupt};

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A device's file, from user space.
    Device(PathBuf),
    /// The device in Rust, from inside the kernel.
    InKernel,
}

impl Subject {
    /// The default subjects of a run; missing ones are left out.
    #[must_use]
    pub fn all() -> [Self; 3] {
        [
            Self::Device(C_DEVICE.into()),
            Self::Device(RUST_DEVICE.into()),
            Self::InKernel,
        ]
    }

    /// Its name in tables and notes.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::InKernel => "in-kernel".into(),
            Self::Device(path) if path == Path::new(C_DEVICE) => "C device".into(),
            Self::Device(path) if path == Path::new(RUST_DEVICE) => "Rust device".into(),
            Self::Device(path) => path.display().to_string(),
        }
    }
}

/// As its option takes it: a path, or `in-kernel`.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InKernel => f.write_str("in-kernel"),
            Self::Device(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for Subject {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "" => Err(Error::BadInput(
                "device ``: give a path such as /dev/mymem, or in-kernel".into(),
            )),
            "in-kernel" => Ok(Self::InKernel),
            path => Ok(Self::Device(path.into())),
        }
    }
}

as_text!(Subject);

/// Devices whose modules have the parameter `exclusive`.
const OURS: [&str; 2] = [C_DEVICE, RUST_DEVICE];

/// An open subject.
#[derive(Debug)]
enum Client {
    Device(Device),
    InKernel {
        kernel: InKernel,
        /// Bytes of the memory in which it measures, that of the device in Rust.
        bytes: u64,
    },
}

/// The open subjects, reserved for this measurement, and the modules that were loaded for them.
#[derive(Debug, Default)]
struct Clients {
    open: Vec<(Subject, Client)>,
    /// The device in Rust, if it is reserved for `in-kernel` only.
    in_kernel_memory: Option<Device>,
    loaded: Vec<Loaded>,
}

impl Clients {
    fn add(&mut self, subject: &Subject) -> memwarden_copies::Result<()> {
        let path = match subject {
            Subject::Device(path) => path,
            Subject::InKernel => Path::new(IN_KERNEL),
        };
        self.loaded.extend(provide(path)?);
        let client = match subject {
            Subject::Device(path) => Client::Device(reserved(path)?),
            Subject::InKernel => Client::InKernel {
                kernel: InKernel::open(path)?,
                bytes: self.reserve_in_kernel_memory()?,
            },
        };
        self.open.push((subject.clone(), client));
        Ok(())
    }

    /// Reserves the device in Rust, unless it is an open subject; returns its size.
    fn reserve_in_kernel_memory(&mut self) -> memwarden_copies::Result<u64> {
        let path = Path::new(RUST_DEVICE);
        let open = self.open.iter().find_map(|(_, client)| match client {
            Client::Device(device) if device.path() == path => Some(device.bytes()),
            _ => None,
        });
        if let Some(bytes) = open {
            return Ok(bytes);
        }
        Ok(self.in_kernel_memory.insert(reserved(path)?).bytes())
    }
}

fn reserved(path: &Path) -> memwarden_copies::Result<Device> {
    let device = Device::open(path)?;
    device.reserve()?;
    Ok(device)
}

/// The error of a command that failed: the interrupt, if it ended the command.
fn ended(error: memwarden_copies::Error, interrupt: &Interrupt) -> Error {
    if interrupt.came() {
        Error::Interrupted
    } else {
        error.into()
    }
}

/// True if the device's module lets it be open only once (its parameter `exclusive`).
fn exclusive(path: &Path) -> bool {
    exclusive_in(Path::new("/sys/module"), path)
}

fn exclusive_in(modules: &Path, path: &Path) -> bool {
    // Another file of that name has another driver, or none.
    if !OURS.iter().any(|ours| path == Path::new(ours)) {
        return false;
    }
    let module = modules.join(path.file_name().unwrap_or_default());
    std::fs::read_to_string(module.join("parameters/exclusive"))
        .is_ok_and(|value| value.trim() == "Y")
}

impl Deref for Clients {
    type Target = [(Subject, Client)];

    fn deref(&self) -> &Self::Target {
        &self.open
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        // Close the devices first: an open device holds a reference to its module, and a module to those that it
        // depends on.
        self.open.clear();
        self.in_kernel_memory = None;
        while self.loaded.pop().is_some() {}
    }
}

/// Opens the subjects in `wanted`, and loads their modules if necessary. If `wanted` is empty it opens all that are
/// available.
fn open<W: Whole>(wanted: &[Subject], summary: &mut Summary<W>) -> Result<Clients, Error> {
    if wanted.is_empty() {
        return open_available(&Subject::all(), summary);
    }
    let mut clients = Clients::default();
    // in-kernel last: it reserves the device in Rust if that is no subject itself.
    let (last, first): (Vec<_>, Vec<_>) = wanted.iter().partition(|one| **one == Subject::InKernel);
    for subject in first.into_iter().chain(last) {
        clients.add(subject)?;
    }
    let place = |subject: &Subject| wanted.iter().position(|one| one == subject);
    clients.open.sort_by_key(|(subject, _)| place(subject));
    Ok(clients)
}

/// Opens the subjects, and leaves out unavailable ones with a note. Fails if another process uses one.
fn open_available<W: Whole>(
    subjects: &[Subject],
    summary: &mut Summary<W>,
) -> Result<Clients, Error> {
    let mut clients = Clients::default();
    let mut reason = None;
    for subject in subjects {
        match clients.add(subject) {
            Ok(()) => {}
            Err(error) if error.is_busy() => return Err(error.into()),
            Err(error) => {
                summary.note(format!("Left out: {}. {error}.", subject.name()));
                reason.get_or_insert(error);
            }
        }
    }
    match reason {
        Some(error) if clients.is_empty() => Err(error.into()),
        _ => Ok(clients),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_known_by_their_options() {
        for subject in Subject::all() {
            assert_eq!(subject.to_string().parse::<Subject>().unwrap(), subject);
        }
        let names = Subject::all().map(|subject| subject.name());
        assert_eq!(names, ["C device", "Rust device", "in-kernel"]);
        let other: Subject = "/tmp/x".parse().unwrap();
        assert_eq!(other.name(), "/tmp/x");
        assert!("".parse::<Subject>().is_err());
    }

    #[test]
    fn a_device_that_another_measures_with_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let wanted = [Subject::Device(file.path().into())];
        let mut summary: Summary = Summary::new("mymem-counter", "native");
        let first = open(&wanted, &mut summary).unwrap();
        let message = open(&wanted, &mut summary).unwrap_err().to_string();
        assert!(
            message.contains(": another process measures with it"),
            "{message}"
        );
        drop(first);
        open(&wanted, &mut summary).unwrap();
    }

    #[test]
    fn a_default_device_is_left_out_if_it_is_missing_and_refused_if_it_is_in_use() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let missing = Subject::Device("/nonexistent/mymem".into());
        let subjects = [missing, Subject::Device(file.path().into())];
        let mut summary: Summary = Summary::new("mymem-counter", "native");
        let first = open_available(&subjects, &mut summary).unwrap();
        assert_eq!(first.len(), 1);
        assert!(summary.notes[0].starts_with("Left out: /nonexistent/mymem"));
        let message = open_available(&subjects, &mut summary)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains(": another process measures with it"),
            "{message}"
        );
        drop(first);
        open_available(&subjects, &mut summary).unwrap();
    }

    #[test]
    fn exclusive_is_read_of_memwarden_s_modules_only() {
        let modules = tempfile::tempdir().unwrap();
        let parameters = modules.path().join("mymem/parameters");
        std::fs::create_dir_all(&parameters).unwrap();
        let is = |path| exclusive_in(modules.path(), Path::new(path));
        for (value, expected) in [("Y\n", true), ("N\n", false)] {
            std::fs::write(parameters.join("exclusive"), value).unwrap();
            assert_eq!(is(C_DEVICE), expected);
            assert!(!is(RUST_DEVICE) && !is("/tmp/mymem"));
        }
    }

    #[test]
    fn a_device_that_was_named_is_not_left_out() {
        let wanted = ["/nonexistent/mymem".parse().unwrap()];
        let mut summary: Summary = Summary::new("mymem-counter", "native");
        let message = open(&wanted, &mut summary).unwrap_err().to_string();
        assert!(
            message.starts_with("/nonexistent/mymem is not there"),
            "{message}"
        );
        assert!(summary.notes.is_empty());
    }
}
