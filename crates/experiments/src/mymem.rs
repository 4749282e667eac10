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

use crate::Error;

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

/// An open subject.
#[derive(Debug)]
enum Client {
    Device(Device),
    InKernel(InKernel),
}

/// The open subjects, and the modules that were loaded for them.
#[derive(Debug, Default)]
struct Clients {
    open: Vec<(Subject, Client)>,
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
            Subject::Device(path) => Client::Device(Device::open(path)?),
            Subject::InKernel => Client::InKernel(InKernel::open(path)?),
        };
        self.open.push((subject.clone(), client));
        Ok(())
    }
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
        while self.loaded.pop().is_some() {}
    }
}

/// Opens the subjects in `wanted`, and loads their modules if necessary. If `wanted` is empty it opens all, and leaves
/// out unavailable ones with a note.
fn open<W: Whole>(wanted: &[Subject], summary: &mut Summary<W>) -> Result<Clients, Error> {
    let mut clients = Clients::default();
    if !wanted.is_empty() {
        for subject in wanted {
            clients.add(subject)?;
        }
        return Ok(clients);
    }
    let mut reason = None;
    for subject in Subject::all() {
        if let Err(error) = clients.add(&subject) {
            summary.note(format!("Left out: {}. {error}.", subject.name()));
            reason.get_or_insert(error);
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
