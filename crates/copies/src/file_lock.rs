// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reserves a device whose state is one for all its users, by a lock on its file (flock(2)).

use std::fs::File;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::{Error, Result};

/// Locks the file. The lock ends with the file, so also with the process.
///
/// # Errors
/// When another open file has the lock.
pub(crate) fn reserve(file: &File, path: &Path) -> Result<()> {
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|reason| match reason {
        Errno::WOULDBLOCK => Error::InUse(path.into()),
        _ => Error::refused("locking", path, reason.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_one_user_at_a_time() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let opened = || File::open(file.path()).unwrap();
        let first = opened();
        reserve(&first, file.path()).unwrap();
        let message = reserve(&opened(), file.path()).unwrap_err().to_string();
        assert!(
            message.ends_with(
                ": another process measures with it, and its figures and ours would mix; wait until it ends"
            ),
            "{message}"
        );
        drop(first);
        reserve(&opened(), file.path()).unwrap();
    }
}
