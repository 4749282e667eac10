// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts of a kernel's own file systems that are attached to no path: no other process sees them, and each ends with its
//! descriptor.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// A mount of its own, which lasts as long as this.
#[derive(Debug)]
pub(crate) struct Detached(OwnedFd);

impl Detached {
    /// Mounts debugfs, securityfs or the like (`fsopen(2)`, `fsmount(2)`).
    ///
    /// # Errors
    /// `ENODEV` if the kernel has no such file system, `EPERM` without `CAP_SYS_ADMIN`.
    pub fn mount(kind: &str) -> rustix::io::Result<Self> {
        let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let mount = fsmount(
            &context,
            FsMountFlags::FSMOUNT_CLOEXEC,
            MountAttrFlags::empty(),
        )?;
        Ok(Self(mount))
    }

    /// Where this process finds a file of it.
    pub fn path(&self, below: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{below}", self.0.as_raw_fd()).into()
    }
}
