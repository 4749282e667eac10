// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's lockdown (`man 7 kernel_lockdown`), which Secure Boot turns on in most distributions.
//!
//! Its file is in securityfs. Where that is not mounted there, as in containers and on small systems, this module mounts it for
//! itself, attached to no path.

use std::fs;
use std::io::{self, ErrorKind};

use rustix::io::Errno;

use crate::Root;
use crate::detached::Detached;

/// The file, with the modes and the present one in brackets: `none [integrity] confidentiality`.
const FILE: &str = "/sys/kernel/security/lockdown";

/// The place of securityfs.
const FOLDER: &str = "/sys/kernel/security";

/// What the kernel refuses even to root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lockdown {
    /// Nothing, or the kernel has no lockdown.
    Off,
    /// `integrity` or `confidentiality`.
    On(String),
    /// It could not be read.
    Unknown {
        /// The reason.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
}

impl Lockdown {
    /// The lockdown of the machine below `root`.
    #[must_use]
    pub fn of(root: &Root) -> Self {
        match fs::read_to_string(root.path(FILE)) {
            Ok(modes) => Self::read(&modes),
            Err(error) if error.kind() != ErrorKind::NotFound => Self::unreadable(&error),
            Err(_) if is_mounted(root) => Self::Off,
            Err(_) if root.is_system() => match Detached::mount("securityfs") {
                Ok(mount) => match fs::read_to_string(mount.path("lockdown")) {
                    Ok(modes) => Self::read(&modes),
                    // A kernel without lockdown has no such file.
                    Err(error) if error.kind() == ErrorKind::NotFound => Self::Off,
                    Err(error) => Self::unreadable(&error),
                },
                Err(Errno::NODEV) => Self::Off,
                Err(error) => Self::not_mounted(&format!(", and cannot be mounted: {error}")),
            },
            Err(_) => Self::not_mounted(""),
        }
    }

    fn read(modes: &str) -> Self {
        let mode = modes
            .split_once('[')
            .and_then(|(_, from)| from.split_once(']'))
            .map(|(mode, _)| mode);
        match mode {
            None | Some("none") => Self::Off,
            Some(mode) => Self::On(mode.to_owned()),
        }
    }

    fn not_mounted(why: &str) -> Self {
        Self::Unknown {
            reason: format!("securityfs is not mounted{why}"),
            remedy: "as root, outside of containers: mount -t securityfs none /sys/kernel/security",
        }
    }

    fn unreadable(error: &io::Error) -> Self {
        Self::Unknown {
            reason: format!("{FILE} cannot be read: {error}"),
            remedy: "as root, outside of containers: cat /sys/kernel/security/lockdown",
        }
    }

    /// The mode, if it is on.
    #[must_use]
    pub fn mode(&self) -> Option<&str> {
        match self {
            Self::On(mode) => Some(mode),
            _ => None,
        }
    }
}

/// Whether securityfs is what a path below [`FOLDER`] leads to.
fn is_mounted(root: &Root) -> bool {
    let mounts = root.text("/proc/mounts").unwrap_or_default();
    let mut kinds = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        (words.next() == Some(FOLDER)).then(|| words.next())?
    });
    // A later mount covers the earlier ones.
    kinds.next_back() == Some("securityfs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lockdown(files: &[(&str, &str)]) -> Lockdown {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        for (path, text) in files {
            let path = root.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Lockdown::of(&root)
    }

    #[test]
    fn the_mode_in_brackets_is_on() {
        let mode = |modes: &str| lockdown(&[(FILE, modes)]);
        assert_eq!(mode("[none] integrity confidentiality\n"), Lockdown::Off);
        assert_eq!(
            mode("none integrity [confidentiality]\n").mode(),
            Some("confidentiality")
        );
    }

    #[test]
    fn a_missing_file_means_off_only_where_securityfs_is_mounted() {
        let mounts = "securityfs /sys/kernel/security securityfs rw,nosuid 0 0\n";
        assert_eq!(lockdown(&[("/proc/mounts", mounts)]), Lockdown::Off);
        let unknown = lockdown(&[("/proc/mounts", "proc /proc proc rw 0 0\n")]);
        assert!(matches!(unknown, Lockdown::Unknown { .. }), "{unknown:?}");
    }

    #[test]
    fn a_securityfs_elsewhere_or_covered_tells_nothing() {
        for mounts in [
            "none /tmp/h securityfs rw 0 0\n",
            "securityfs /sys/kernel/security securityfs rw 0 0\ntmpfs /sys/kernel/security tmpfs rw 0 0\n",
        ] {
            let unknown = lockdown(&[("/proc/mounts", mounts)]);
            assert!(matches!(unknown, Lockdown::Unknown { .. }), "{unknown:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_a_kernel_without_lockdown() {
        let mounts = "securityfs /sys/kernel/security securityfs rw 0 0\n";
        let folder = format!("{FILE}/in-its-place");
        let unknown = lockdown(&[("/proc/mounts", mounts), (&folder, "")]);
        match unknown {
            Lockdown::Unknown { reason, .. } => assert!(reason.contains(FILE), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
}
