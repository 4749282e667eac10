// SPDX-License-Identifier: MIT OR Apache-2.0
//! A control group with a memory limit; its own OOM killer ends processes that exceed it. Uses whichever version of
//! control groups has the memory controller.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result, Root};

/// A new group; removed when dropped. Its processes must have ended by then.
#[derive(Debug)]
pub struct MemoryGroup {
    folder: PathBuf,
    version: Version,
    /// The file in which the controller was enabled for this group.
    switched_on: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    First,
    Second,
}

/// Directory in which groups with the memory controller are created.
pub(crate) fn place(root: &Root) -> Result<(PathBuf, Version)> {
    let mounts = root.text("/proc/mounts").unwrap_or_default();
    for line in mounts.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, place, kind, options, ..] = words[..] else {
            continue;
        };
        let place = place.replace("\\040", " ");
        let has = |list: &str, separator: char| list.split(separator).any(|one| one == "memory");
        if kind == "cgroup" && has(options, ',') {
            return Ok((root.path(&place), Version::First));
        }
        if kind == "cgroup2" {
            let controllers = root.text(&format!("{place}/cgroup.controllers"));
            if has(&controllers.unwrap_or_default(), ' ') {
                return Ok((root.path(&place), Version::Second));
            }
        }
    }
    Err(Error::Invalid(
        "no control group has the memory controller here: mount cgroup2, or boot without cgroup_disable=memory".into(),
    ))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|source| {
        Error::system(
            format!("write {text} to {} (needs root)", path.display()),
            source,
        )
    })
}

impl MemoryGroup {
    /// Creates a group of this process with a limit of `bytes`.
    ///
    /// # Errors
    /// When no hierarchy has the memory controller, or this process may not create groups.
    pub fn new(bytes: u64) -> Result<Self> {
        let (place, version) = place(&Root::system())?;
        let mut switched_on = None;
        if version == Version::Second {
            let control = place.join("cgroup.subtree_control");
            let on = fs::read_to_string(&control).unwrap_or_default();
            if !on.split_whitespace().any(|one| one == "memory") {
                write(&control, "+memory")?;
                switched_on = Some(control);
            }
        }
        let folder = (0..)
            .map(|number| place.join(format!("memwarden-{}-{number}", std::process::id())))
            .find(|folder| !folder.exists())
            .expect("numbers don't run out");
        let group = Self {
            folder,
            version,
            switched_on,
        };
        fs::create_dir(&group.folder).map_err(|source| {
            Error::system(
                format!(
                    "make the control group {} (needs root)",
                    group.folder.display()
                ),
                source,
            )
        })?;
        let limit = match version {
            Version::First => "memory.limit_in_bytes",
            Version::Second => "memory.max",
        };
        write(&group.folder.join(limit), &bytes.to_string())?;
        Ok(group)
    }

    /// Moves a process into the group; its later children are in it, too.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn add(&self, pid: u32) -> Result<()> {
        write(&self.folder.join("cgroup.procs"), &pid.to_string())
    }

    /// Number of processes that its OOM killer has killed; `None` if the kernel does not report it.
    #[must_use]
    pub fn kills(&self) -> Option<u64> {
        let file = match self.version {
            Version::First => "memory.oom_control",
            Version::Second => "memory.events",
        };
        let text = fs::read_to_string(self.folder.join(file)).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line?.trim().parse().ok()
    }

    /// Its directory.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A process that was just killed may not have exited yet.
        for _ in 0..1000 {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                _ => break,
            }
        }
        if let Some(control) = &self.switched_on {
            // The kernel refuses this while another group uses the controller, which then stays enabled.
            let _ = fs::write(control, "-memory");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(mounts: &str, controllers: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for directory in ["proc", "cg"] {
            fs::create_dir(folder.path().join(directory)).unwrap();
        }
        fs::write(folder.path().join("proc/mounts"), mounts).unwrap();
        fs::write(folder.path().join("cg/cgroup.controllers"), controllers).unwrap();
        folder
    }

    #[test]
    fn the_controller_is_found_where_it_is() {
        for (mounts, controllers, found) in [
            (
                "cgroup2 /cg cgroup2 rw 0 0\n",
                "cpu memory",
                Some(Version::Second),
            ),
            ("cgroup2 /cg cgroup2 rw 0 0\n", "cpu", None),
            (
                "cgroup /v1 cgroup rw,cpu 0 0\ncgroup /cg cgroup rw,memory 0 0\n",
                "",
                Some(Version::First),
            ),
            ("", "", None),
        ] {
            let folder = tree(mounts, controllers);
            match (place(&Root::at(folder.path())), found) {
                (Ok((place, version)), Some(expected)) => {
                    assert_eq!(version, expected);
                    assert!(place.ends_with("cg"));
                }
                (Err(error), None) => assert!(error.to_string().contains("memory controller")),
                (other, _) => panic!("{mounts}: {other:?}"),
            }
        }
    }
}
