// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler's fair servers, one for each CPU.
//!
//! Since Linux 6.12 a server gives ordinary threads `runtime` nanoseconds of each second ahead of SCHED_FIFO if they would
//! starve. Its settings are in debugfs. Where that is not mounted, this module mounts it for itself: the mount is attached
//! to no path, so that no other process sees it, and ends with its descriptor. A kernel that is locked down, as with Secure
//! Boot, opens no file of debugfs.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::detached::Detached;
use crate::{Root, cpus};

/// One folder for each CPU, with `runtime` in nanoseconds; 0 turns the server off.
pub const FOLDER: &str = "/sys/kernel/debug/sched/fair_server";

/// Where debugfs belongs.
const DEBUGFS: &str = "/sys/kernel/debug";

/// Linux's own setting, in nanoseconds of each second.
pub const DEFAULT_RUNTIME_NS: u64 = 50_000_000;

/// A CPU's server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Its CPU.
    pub cpu: usize,
    /// Nanoseconds of each second; 0 if it is off, `None` if the setting cannot be read.
    pub runtime_ns: Option<u64>,
    /// The reason why the setting cannot be read or written.
    pub obstacle: Option<Obstacle>,
}

/// Why a server's setting cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// The reason.
    pub reason: String,
    /// What to do; may be empty.
    pub remedy: &'static str,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let between = if self.remedy.is_empty() { "" } else { ": " };
        write!(f, "{}{between}{}", self.reason, self.remedy)
    }
}

impl Server {
    /// Nanoseconds of each second that the server may take from a SCHED_FIFO thread. An unknown setting counts as Linux's
    /// own.
    #[must_use]
    pub fn takes_ns(&self) -> u64 {
        self.runtime_ns.unwrap_or(DEFAULT_RUNTIME_NS)
    }
}

/// The servers of a machine, and where their files can be reached.
#[derive(Debug)]
pub struct FairServers {
    root: Root,
    /// Equal to [`FOLDER`] below the root, or in a mount of its own; the error is the reason why it cannot be reached.
    folder: Result<PathBuf, Obstacle>,
    _mount: Option<Detached>,
}

impl FairServers {
    /// Finds them below `root`; `None` if this kernel has none.
    #[must_use]
    pub fn of(root: &Root) -> Option<Self> {
        let listed = root.path(FOLDER);
        let found = |folder, mount| {
            Some(Self {
                root: root.clone(),
                folder,
                _mount: mount,
            })
        };
        if listed.exists() {
            return found(Ok(listed), None);
        }
        if version(root) < (6, 12) {
            return None;
        }
        if !root.is_system() {
            let reason = format!("{FOLDER} does not exist");
            let remedy = MOUNT_IT;
            return found(Err(Obstacle { reason, remedy }), None);
        }
        match Detached::mount("debugfs") {
            Ok(mount) => {
                let own = mount.path(FOLDER.trim_start_matches(DEBUGFS).trim_start_matches('/'));
                let folder = match fs::metadata(&own) {
                    Ok(_) => Ok(own),
                    Err(error) => Err(Obstacle {
                        reason: format!("debugfs has no sched/fair_server ({error})"),
                        remedy: "a kernel with CONFIG_SCHED_DEBUG has it",
                    }),
                };
                found(folder, Some(mount))
            }
            Err(error) => {
                let reason = format!("debugfs is not mounted, and cannot be ({error})");
                let remedy = MOUNT_IT;
                found(Err(Obstacle { reason, remedy }), None)
            }
        }
    }

    /// The servers of the online CPUs, or of all CPUs if those are unknown.
    #[must_use]
    pub fn all(&self) -> Vec<Server> {
        let cpus = match cpus::online_in(&self.root) {
            Ok(online) => online.iter().collect(),
            Err(_) => self.listed(),
        };
        cpus.into_iter().map(|cpu| self.on(cpu)).collect()
    }

    /// The CPUs that have a folder.
    fn listed(&self) -> Vec<usize> {
        let entries = self.folder.as_ref().ok().map(fs::read_dir);
        let entries = entries.into_iter().flatten().flatten().flatten();
        let mut cpus: Vec<usize> = entries
            .filter_map(|entry| {
                entry
                    .file_name()
                    .to_str()?
                    .strip_prefix("cpu")?
                    .parse()
                    .ok()
            })
            .collect();
        cpus.sort_unstable();
        cpus
    }

    fn on(&self, cpu: usize) -> Server {
        let file = match &self.folder {
            Ok(folder) => folder.join(format!("cpu{cpu}/runtime")),
            Err(reason) => {
                return Server {
                    cpu,
                    runtime_ns: None,
                    obstacle: Some(reason.clone()),
                };
            }
        };
        let read = fs::read_to_string(&file).and_then(|text| {
            let number = text.trim().parse::<u64>();
            number.map_err(|_| io::Error::other(format!("\"{}\" is no number", text.trim())))
        });
        let runtime_ns = read.as_ref().ok().copied();
        // Opening for writing changes nothing.
        let writable = read.and_then(|_| File::options().write(true).open(&file));
        let obstacle = writable.err().map(|error| Obstacle {
            reason: format!("{FOLDER}/cpu{cpu}/runtime cannot be set ({error})"),
            remedy: remedy(&error),
        });
        Server {
            cpu,
            runtime_ns,
            obstacle,
        }
    }

    /// The path below the root of a CPU's `runtime`.
    #[must_use]
    pub fn path(&self, cpu: usize) -> PathBuf {
        self.root.path(&format!("{FOLDER}/cpu{cpu}/runtime"))
    }

    /// Where a file of the servers, given by its path below the root, can be reached; other paths are unchanged.
    #[must_use]
    pub fn reach(&self, path: &Path) -> PathBuf {
        match (path.strip_prefix(self.root.path(FOLDER)), &self.folder) {
            (Ok(rest), Ok(folder)) => folder.join(rest),
            _ => path.to_owned(),
        }
    }
}

/// The servers of the online CPUs; none before Linux 6.12.
#[must_use]
pub fn servers(root: &Root) -> Vec<Server> {
    FairServers::of(root).map_or_else(Vec::new, |servers| servers.all())
}

/// The kernel's version, major and minor; 0 if unknown.
#[must_use]
pub fn version(root: &Root) -> (u32, u32) {
    let release = root.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|word| word.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

const MOUNT_IT: &str = "mount -t debugfs none /sys/kernel/debug";

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => "turn off the kernel's lockdown, which Secure Boot turns on",
        Some(libc::EROFS) => "mount -o remount,rw /sys/kernel/debug",
        Some(libc::EACCES) => "run as root",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(release: &str) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        for (path, text) in [
            ("/proc/sys/kernel/osrelease", release),
            ("/sys/devices/system/cpu/online", "0-1\n"),
        ] {
            let path = root.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        (folder, root)
    }

    #[test]
    fn servers_that_cannot_be_reached_are_found_from_linux_6_12_on() {
        let (_folder, root) = machine("6.11.0-arm64\n");
        assert_eq!(servers(&root), []);
        let (_folder, root) = machine("6.12.38-arm64\n");
        let found = servers(&root);
        assert_eq!(found.len(), 2);
        for server in found {
            assert_eq!((server.runtime_ns, server.takes_ns()), (None, 50_000_000));
            let obstacle = server.obstacle.unwrap();
            assert!(obstacle.remedy.contains("mount -t debugfs"), "{obstacle}");
        }
    }

    #[test]
    fn each_server_has_its_setting_or_the_reason_why_not() {
        let (_folder, root) = machine("6.12.38-arm64\n");
        for cpu in 0..2 {
            fs::create_dir_all(root.path(&format!("{FOLDER}/cpu{cpu}"))).unwrap();
        }
        fs::write(root.path(&format!("{FOLDER}/cpu0/runtime")), "1000000\n").unwrap();
        fs::create_dir(root.path(&format!("{FOLDER}/cpu1/runtime"))).unwrap();
        let found = servers(&root);
        assert_eq!(
            found[0],
            Server {
                cpu: 0,
                runtime_ns: Some(1_000_000),
                obstacle: None
            }
        );
        assert_eq!(found[1].runtime_ns, None);
        let obstacle = found[1].obstacle.as_ref().unwrap();
        assert!(
            obstacle.reason.contains("cpu1/runtime cannot be set"),
            "{obstacle}"
        );
    }

    #[test]
    fn a_path_below_the_root_is_reached_where_the_files_are() {
        let folder = tempfile::tempdir().unwrap();
        let servers = FairServers {
            root: Root::system(),
            folder: Ok(folder.path().to_owned()),
            _mount: None,
        };
        let path = servers.path(3);
        assert_eq!(path, Path::new(FOLDER).join("cpu3/runtime"));
        assert_eq!(servers.reach(&path), folder.path().join("cpu3/runtime"));
        let other = Path::new("/proc/sys/kernel/sched_rt_runtime_us");
        assert_eq!(servers.reach(other), other);
    }
}
