// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks of whole files (flock(2)): they end with the process that holds them, however it ends.

use std::fs::File;
use std::io;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Takes the lock for this file alone. False if another open file holds it.
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

/// Whether another open file holds the lock. Processes that look at the same time don't see each other.
pub(crate) fn is_locked(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}
