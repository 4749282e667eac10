// SPDX-License-Identifier: MIT OR Apache-2.0
//! A control group with a memory limit; its own OOM killer ends processes that exceed it. Uses whichever version of
//! control groups has the memory controller.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::{Error, Result, Root};

/// An empty group, which says that a group of this program enabled the controller, and that the last one disables it.
const SWITCHED_ON: &str = "memwarden-switched-memory-on";

/// A new group; removed when dropped. Its processes must have ended by then.
#[derive(Debug)]
pub struct MemoryGroup {
    folder: PathBuf,
    version: Version,
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

/// The lock of the hierarchy at `place`, for as long as it isn't dropped: other runs of this program enable and disable the
/// controller, too.
fn lock(place: &Path) -> Result<File> {
    let folder = File::open(place).and_then(|folder| {
        flock(&folder, FlockOperation::LockExclusive)?;
        Ok(folder)
    });
    folder.map_err(|source| Error::system(format!("lock {}", place.display()), source))
}

/// Enables the controller for the groups in `place`, if it isn't.
fn switch_on(place: &Path) -> Result<()> {
    let control = place.join("cgroup.subtree_control");
    let on = fs::read_to_string(&control).unwrap_or_default();
    if on.split_whitespace().any(|one| one == "memory") {
        return Ok(());
    }
    write(&control, "+memory")?;
    // If this fails, the controller stays enabled, which changes no limit.
    let _ = fs::create_dir(place.join(SWITCHED_ON));
    Ok(())
}

/// Disables the controller if [`switch_on`] enabled it and no group in `place` has a limit or a protection, which would be
/// lost: the kernel refuses to disable a controller only if the groups pass it on to groups of their own.
fn switch_off(place: &Path) {
    let mark = place.join(SWITCHED_ON);
    if mark.exists() && !has_limits(place) && fs::remove_dir(mark).is_ok() {
        let _ = fs::write(place.join("cgroup.subtree_control"), "-memory");
    }
}

/// True if a group in `place` has a setting of the controller other than its default, or cannot be read.
fn has_limits(place: &Path) -> bool {
    const DEFAULTS: [(&str, &str); 6] = [
        ("memory.max", "max"),
        ("memory.high", "max"),
        ("memory.swap.max", "max"),
        ("memory.zswap.max", "max"),
        ("memory.low", "0"),
        ("memory.min", "0"),
    ];
    let Ok(entries) = fs::read_dir(place) else {
        return true;
    };
    let groups = entries.flatten().map(|entry| entry.path());
    groups.filter(|path| path.is_dir()).any(|group| {
        DEFAULTS.iter().any(|(file, default)| {
            // A kernel without swap has no such file.
            let text = fs::read_to_string(group.join(file));
            text.is_ok_and(|text| text.trim() != *default)
        })
    })
}

impl MemoryGroup {
    /// Creates a group of this process with a limit of `bytes`.
    ///
    /// # Errors
    /// When no hierarchy has the memory controller, or this process may not create groups.
    pub fn new(bytes: u64) -> Result<Self> {
        Self::below(&Root::system(), bytes)
    }

    fn below(root: &Root, bytes: u64) -> Result<Self> {
        let (place, version) = place(root)?;
        // Held until the limit is set: by it, other runs recognise that the group needs the controller.
        let lock = lock(&place)?;
        if version == Version::Second {
            switch_on(&place)?;
        }
        let folder = (0..)
            .map(|number| place.join(format!("memwarden-{}-{number}", std::process::id())))
            .find(|folder| !folder.exists())
            .expect("numbers don't run out");
        let group = Self { folder, version };
        let made = group.make(bytes);
        // Before the group may be dropped, which takes the lock, too.
        drop(lock);
        made.map(|()| group)
    }

    fn make(&self, bytes: u64) -> Result<()> {
        fs::create_dir(&self.folder).map_err(|source| {
            Error::system(
                format!(
                    "make the control group {} (needs root)",
                    self.folder.display()
                ),
                source,
            )
        })?;
        let limit = match self.version {
            Version::First => "memory.limit_in_bytes",
            Version::Second => "memory.max",
        };
        write(&self.folder.join(limit), &bytes.to_string())
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
        let place = self.folder.parent().unwrap_or(&self.folder);
        if self.version == Version::Second {
            if let Ok(_lock) = lock(place) {
                switch_off(place);
            }
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
    /// What the kernel does: it removes a group with the files in it.
    fn end(group: MemoryGroup) {
        let _ = fs::remove_file(group.folder().join("memory.max"));
        drop(group);
    }

    #[test]
    fn the_last_group_that_needs_the_controller_disables_it() {
        let machine = tree("cgroup2 /cg cgroup2 rw 0 0\n", "cpu memory");
        let root = Root::at(machine.path());
        let place = machine.path().join("cg");
        let control = place.join("cgroup.subtree_control");
        let text = || fs::read_to_string(&control).unwrap();
        let groups = || {
            let entries = fs::read_dir(&place).unwrap().flatten();
            entries.filter(|entry| entry.path().is_dir()).count()
        };
        fs::write(&control, "cpu").unwrap();

        let first = MemoryGroup::below(&root, 1 << 20).unwrap();
        assert_eq!(text(), "+memory");
        fs::write(&control, "cpu memory").unwrap();
        let second = MemoryGroup::below(&root, 1 << 20).unwrap();
        end(first);
        assert_eq!(text(), "cpu memory", "the second still has its limit");

        // A limit that another program has set.
        fs::create_dir(place.join("other")).unwrap();
        fs::write(place.join("other/memory.high"), "4096\n").unwrap();
        end(second);
        assert_eq!(text(), "cpu memory");
        fs::write(place.join("other/memory.high"), "max\n").unwrap();
        fs::write(place.join("other/memory.low"), "0\n").unwrap();
        end(MemoryGroup::below(&root, 1 << 20).unwrap());
        assert_eq!(text(), "-memory");
        assert_eq!(groups(), 1, "only the other one is there");
    }

    #[test]
    fn a_controller_that_was_enabled_before_stays_enabled() {
        let machine = tree("cgroup2 /cg cgroup2 rw 0 0\n", "memory");
        let control = machine.path().join("cg/cgroup.subtree_control");
        fs::write(&control, "memory").unwrap();
        end(MemoryGroup::below(&Root::at(machine.path()), 1 << 20).unwrap());
        assert_eq!(fs::read_to_string(&control).unwrap(), "memory");
    }
}
