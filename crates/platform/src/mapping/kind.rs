// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ways to map memory: shared or private, with or without a file, with pages allocated at once or on first touch.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;

use super::Mapping;
use crate::units::size_text;
use crate::{Error, Result, clock};

/// One of the six ways to map memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Name on the command line.
    pub name: &'static str,
    /// The case study's name.
    pub text: &'static str,
    shared: bool,
    populate: bool,
    file: bool,
}

impl Kind {
    /// All six.
    pub const ALL: [Self; 6] = {
        const fn kind(
            name: &'static str,
            text: &'static str,
            [shared, populate, file]: [bool; 3],
        ) -> Kind {
            Kind {
                name,
                text,
                shared,
                populate,
                file,
            }
        }
        [
            kind("shared", "SHARED file", [true, false, true]),
            kind("private", "PRIVATE file", [false, false, true]),
            kind(
                "private-populate",
                "PRIVATE|POPULATE file",
                [false, true, true],
            ),
            kind("shared-anonymous", "SHARED|ANONYMOUS", [true, false, false]),
            kind(
                "private-anonymous",
                "PRIVATE|ANONYMOUS",
                [false, false, false],
            ),
            kind(
                "private-populate-anonymous",
                "PRIVATE|POPULATE|ANONYMOUS",
                [false, true, false],
            ),
        ]
    };

    /// True if it maps a file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.file
    }

    /// True if a write goes to a private copy of the page.
    #[must_use]
    pub fn is_private(&self) -> bool {
        !self.shared
    }

    /// The flags for mmap.
    #[must_use]
    pub fn flags(&self) -> i32 {
        let flag = |on: bool, flag: i32| if on { flag } else { 0 };
        flag(self.shared, libc::MAP_SHARED)
            | flag(!self.shared, libc::MAP_PRIVATE)
            | flag(self.populate, libc::MAP_POPULATE)
            | flag(!self.file, libc::MAP_ANONYMOUS)
    }
}

/// Memory mapped in one of these ways, with its file. The file has no name, so that it disappears however this process
/// ends.
#[derive(Debug)]
pub struct Mapped {
    mapping: Mapping,
    file: Option<File>,
    call_ns: u64,
}

impl Mapped {
    /// Maps `bytes`; creates a file in `directory`, with all blocks allocated, if the kind needs one.
    ///
    /// # Errors
    /// When space is short, or the file system does not support it.
    pub fn new(kind: Kind, bytes: usize, directory: &Path) -> Result<Self> {
        let file = if kind.file {
            Some(file(bytes, directory)?)
        } else {
            None
        };
        let begin_ns = clock::monotonic_ns();
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                kind.flags(),
                file.as_ref().map_or(-1, AsRawFd::as_raw_fd),
                0,
            )
        };
        let call_ns = clock::monotonic_ns() - begin_ns;
        if start == libc::MAP_FAILED {
            return Err(Error::last(format!(
                "map {} ({})",
                size_text(bytes as u64),
                kind.text
            )));
        }
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at 0 unasked");
        Ok(Self {
            mapping: Mapping { start, bytes },
            file,
            call_ns,
        })
    }

    /// Duration of the mmap call.
    #[must_use]
    pub fn call_ns(&self) -> u64 {
        self.call_ns
    }

    /// Writes a byte into each page.
    pub fn touch(&self) {
        for offset in (0..self.mapping.bytes()).step_by(super::page_bytes()) {
            self.mapping.touch(offset);
        }
    }

    /// Of the bytes written to the mapping (those that are not 0, as the file is initially), the share that a reader of
    /// the file sees; none without a file.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn seen_in_file(&self) -> Result<Option<f64>> {
        let Some(file) = &self.file else {
            return Ok(None);
        };
        // SAFETY: the whole mapping, which is ours; nothing writes to it meanwhile.
        let memory =
            unsafe { std::slice::from_raw_parts(self.mapping.start(), self.mapping.bytes()) };
        let mut read = vec![0; 1 << 20];
        let (mut written, mut seen) = (0_u64, 0_u64);
        for (chunk, offset) in memory.chunks(read.len()).zip((0..).step_by(1 << 20)) {
            let read = &mut read[..chunk.len()];
            file.read_exact_at(read, offset)
                .map_err(|source| Error::system("read the mapped file", source))?;
            for (mine, theirs) in chunk.iter().zip(read) {
                written += u64::from(*mine != 0);
                seen += u64::from(*mine != 0 && mine == theirs);
            }
        }
        Ok((written > 0).then(|| seen as f64 / written as f64))
    }

    /// The memory.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Writes every byte.
    pub fn fill(&mut self, byte: u8) {
        // SAFETY: the whole mapping, which is ours and writable.
        unsafe { self.mapping.start().write_bytes(byte, self.mapping.bytes()) };
    }

    /// Writes the changes to disk before it returns (msync with MS_SYNC).
    ///
    /// # Errors
    /// When the kernel could not write.
    pub fn sync(&self) -> Result<()> {
        // SAFETY: the whole mapping, which is ours.
        let rc = unsafe {
            libc::msync(
                self.mapping.start().cast(),
                self.mapping.bytes(),
                libc::MS_SYNC,
            )
        };
        match rc {
            0 => Ok(()),
            _ => Err(Error::last("write the mapping back (msync)")),
        }
    }

    /// Bytes in huge pages.
    #[must_use]
    pub fn huge_bytes(&self) -> u64 {
        self.mapping.huge_bytes()
    }
}

/// Creates a file without a name.
fn file(bytes: usize, directory: &Path) -> Result<File> {
    let failed = |what: &str, source| {
        Error::system(
            format!(
                "{what} in {} (--dir names another place)",
                directory.display()
            ),
            source,
        )
    };
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = options
        .clone()
        .custom_flags(libc::O_TMPFILE)
        .mode(0o600)
        .open(directory)
        .or_else(|error| match error.raw_os_error() {
            // Without support for unnamed files: create one and unlink it at once.
            Some(libc::EOPNOTSUPP | libc::EISDIR) => {
                let path = directory.join(format!(".memwarden-mmap-{}", std::process::id()));
                let file = options.clone().create_new(true).mode(0o600).open(&path)?;
                std::fs::remove_file(&path)?;
                Ok(file)
            }
            _ => Err(error),
        })
        .map_err(|source| failed("make a file", source))?;
    let length = libc::off_t::try_from(bytes).unwrap_or(libc::off_t::MAX);
    // SAFETY: an open descriptor and plain numbers.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) } {
        0 => Ok(file),
        _ => Err(failed(
            &format!("keep {} for a file", size_text(bytes as u64)),
            std::io::Error::last_os_error(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_six_ways_are_all_different_and_hold_what_is_written() {
        let folder = tempfile::tempdir().unwrap();
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            for other in &Kind::ALL[..index] {
                assert_ne!(other.flags(), kind.flags());
                assert_ne!(other.name, kind.name);
            }
            let mut mapped = Mapped::new(kind, 1 << 16, folder.path()).unwrap();
            mapped.fill(9);
            // A reader of the file sees writes to a shared mapping at once, and those to a private one never.
            let seen = kind.file.then_some(if kind.shared { 1.0 } else { 0.0 });
            assert_eq!(mapped.seen_in_file().unwrap(), seen, "{}", kind.name);
            mapped.sync().unwrap();
            assert_eq!(mapped.seen_in_file().unwrap(), seen, "{}", kind.name);
            // SAFETY: the last byte of the mapping.
            let last = unsafe { mapped.mapping().start().add((1 << 16) - 1).read_volatile() };
            assert_eq!(last, 9);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_place_that_takes_no_file_is_named() {
        let kind = Kind::ALL[0];
        let message = Mapped::new(kind, 4096, Path::new("/proc")).unwrap_err();
        assert!(message.to_string().contains("in /proc (--dir"), "{message}");
    }
}
