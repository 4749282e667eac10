// SPDX-License-Identifier: MIT OR Apache-2.0
//! File descriptors that a parent process passes by number.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, RawFd};

use crate::{Error, Result};

/// The open file that the parent passed under this number. Standard streams are
/// duplicated; others are taken over, so call it once for each number.
pub fn inherited(number: RawFd) -> Result<File> {
    let not_open = || Error::last(format!("use file descriptor {number}"));
    // SAFETY: plain numbers; a number that is no descriptor fails with EBADF.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(not_open());
    }
    if number > libc::STDERR_FILENO {
        // SAFETY: open, as just checked; nothing in this process opened it, so
        // nothing else will close it.
        return Ok(unsafe { File::from_raw_fd(number) });
    }
    // SAFETY: plain numbers.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(not_open());
    }
    // SAFETY: a descriptor that the kernel just created for us.
    Ok(unsafe { File::from_raw_fd(copy) })
}

/// Writes to whatever file currently has this number: shows what happens to a descriptor number after its file was
/// closed.
///
/// # Errors
/// EBADF if no file has the number.
pub fn write_at(number: RawFd, offset: u64, bytes: &[u8]) -> io::Result<usize> {
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    // SAFETY: the bytes are ours and only read; the kernel checks the number.
    let moved = unsafe { libc::pwrite(number, bytes.as_ptr().cast(), bytes.len(), offset) };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_not_open_is_refused() {
        for number in [-1, 1_000_000] {
            assert!(inherited(number).is_err());
        }
    }
}
