// SPDX-License-Identifier: MIT OR Apache-2.0
//! File descriptors that a parent process hands over by number.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{FromRawFd, RawFd};

use crate::{Error, Result};

/// The open file that a parent left under this number. Standard streams are
/// duplicated, others are taken over; so call it once for each number.
pub fn inherited(number: RawFd) -> Result<File> {
    let not_open = || Error::last(format!("use file descriptor {number}"));
    // SAFETY: plain numbers; a number that is no descriptor fails with EBADF.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(not_open());
    }
    if number > libc::STDERR_FILENO {
        // SAFETY: open, as just seen; nothing in this process opened it, so
        // nothing else will close it.
        return Ok(unsafe { File::from_raw_fd(number) });
    }
    // SAFETY: plain numbers.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(not_open());
    }
    // SAFETY: a descriptor that the kernel just made for us.
    Ok(unsafe { File::from_raw_fd(copy) })
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
