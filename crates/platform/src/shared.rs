// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory words that several processes share.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use crate::mapping::map_shared;
use crate::{Error, Result};

/// An array of 64-bit words, initially zero, that a child process can map, too.
#[derive(Debug)]
pub struct SharedWords {
    file: File,
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the words are atomics, and the mapping belongs to the process.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// New words, in unnamed memory; the descriptor is closed on exec unless [`Self::inherit`] is called.
    ///
    /// # Errors
    /// When memory is short.
    pub fn create(count: usize) -> Result<Self> {
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"memwarden".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(Error::last("make shared memory"));
        }
        // SAFETY: a descriptor that the kernel just created for us.
        let file = unsafe { File::from_raw_fd(fd) };
        let bytes = (count * size_of::<u64>()) as u64;
        file.set_len(bytes)
            .map_err(|source| Error::system("make shared memory", source))?;
        Self::map(file)
    }

    /// Maps the words of a descriptor that another process created.
    ///
    /// # Errors
    /// When it is not such memory.
    pub fn from_descriptor(fd: OwnedFd) -> Result<Self> {
        Self::map(File::from(fd))
    }

    fn map(file: File) -> Result<Self> {
        let system = |source| Error::system("map shared memory", source);
        let bytes = file.metadata().map_err(system)?.len();
        let bytes = usize::try_from(bytes).unwrap_or(0);
        if bytes < size_of::<u64>() {
            return Err(system(io::Error::from(io::ErrorKind::InvalidData)));
        }
        let start = map_shared(&file, bytes).map_err(system)?;
        Ok(Self {
            file,
            start: start.cast(),
            count: bytes / size_of::<u64>(),
        })
    }

    /// Makes the descriptor inheritable for programs that this process starts.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn inherit(&self) -> Result<()> {
        // SAFETY: plain numbers.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETFD, 0) } {
            0 => Ok(()),
            _ => Err(Error::last("share memory with a child process")),
        }
    }
}

impl std::ops::Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this length, is page-aligned and lives as long as this; any bits are a valid
        // AtomicU64.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl AsFd for SharedWords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, created by us and unmapped only here.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.count * size_of::<u64>()) };
    }
}

/// The open file with a descriptor number from the command line.
///
/// # Errors
/// When there is none.
pub fn inherited(fd: i32) -> Result<OwnedFd> {
    // SAFETY: duplicating looks at the number only; -1 or a closed one is refused.
    let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if own < 0 {
        return Err(Error::last(format!("use inherited descriptor {fd}")));
    }
    // SAFETY: a descriptor that the kernel just created for us.
    Ok(unsafe { OwnedFd::from_raw_fd(own) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn both_sides_see_the_same_words() {
        let here = SharedWords::create(5).unwrap();
        let there =
            SharedWords::from_descriptor(inherited(here.as_fd().as_raw_fd()).unwrap()).unwrap();
        assert_eq!((here.len(), there.len()), (5, 5));
        here[4].store(7, Ordering::Release);
        assert_eq!(there[4].load(Ordering::Acquire), 7);
        assert!(inherited(-1).is_err());
    }
}
