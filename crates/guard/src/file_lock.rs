// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole-file locks (flock(2)). The kernel releases them when the process that holds them ends, for whatever reason.

use std::fs::File;
use std::io;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Tries to take the exclusive lock. False if another open file holds it.
///
/// # Errors
/// When the file system cannot lock.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits for the lock.
///
/// # Errors
/// When the file system cannot lock.
pub(crate) fn lock(file: &File) -> io::Result<()> {
    Ok(flock(file, FlockOperation::LockExclusive)?)
}

/// Whether another open file holds the lock. Concurrent checks don't see each other, since the check's lock is shared.
pub(crate) fn is_locked(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}
