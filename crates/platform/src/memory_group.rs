// SPDX-License-Identifier: MIT OR Apache-2.0
//! A control group with a memory limit; its own OOM killer ends processes that exceed it. Uses whichever version of
//! control groups has the memory controller.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::{Error, Result, Root, runtime_folder};

/// An empty group, which says that a group of this program enabled the controller, and that the last one disables it.
const SWITCHED_ON: &str = "memwarden-switched-memory-on";

/// The file in the runtime folder that is locked while the controller is enabled or disabled. Every user may lock the
/// hierarchy's own folder.
const LOCK: &str = "memory-group.lock";
/// Pause between two attempts to take the lock.
const PAUSE: Duration = Duration::from_millis(20);
/// Attempts, for 5 s at least. A run holds the lock while it writes a few files. In a test, for 1 s: a child that another
/// test has just forked has the lock, too, until it executes its program.
const TRIES: u32 = if cfg!(test) { 50 } else { 250 };

/// A new group; removed when dropped. Its processes must have ended by then.
#[derive(Debug)]
pub struct MemoryGroup {
    folder: PathBuf,
    version: Version,
    lock: PathBuf,
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

/// The lock of the file at `path`, for as long as it isn't dropped: other runs of this program enable and disable the
/// controller, too. Waits for it; `None` if `interrupted` returns true.
fn lock(path: &Path, interrupted: &dyn Fn() -> bool) -> Result<Option<File>> {
    let failed = |source| Error::system(format!("lock {} (needs root)", path.display()), source);
    runtime_folder::create(path.parent().unwrap_or(path)).map_err(failed)?;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    for _ in 0..TRIES {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(failed(error.into())),
        }
        if interrupted() {
            return Ok(None);
        }
        thread::sleep(PAUSE);
    }
    Err(Error::Invalid(format!(
        "cannot make a control group: another process has held the lock of {path} for 5 s; wait until it ends \
         (`fuser {path}` prints its pid)",
        path = path.display()
    )))
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
    let control = place.join("cgroup.subtree_control");
    // If the kernel refuses, the mark stays for a later run.
    if mark.exists() && !has_limits(place) && fs::write(control, "-memory").is_ok() {
        let _ = fs::remove_dir(mark);
    }
}

/// True if a group in `place` has a setting of the controller other than its default, or cannot be read.
fn has_limits(place: &Path) -> bool {
    const DEFAULTS: [(&str, &str); 9] = [
        ("memory.max", "max"),
        ("memory.high", "max"),
        ("memory.swap.max", "max"),
        ("memory.swap.high", "max"),
        ("memory.zswap.max", "max"),
        ("memory.zswap.writeback", "1"),
        ("memory.low", "0"),
        ("memory.min", "0"),
        ("memory.oom.group", "0"),
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
    /// Creates a group of this process with a limit of `bytes`. `None` if `interrupted` returned true while another run
    /// enabled or disabled the controller.
    ///
    /// # Errors
    /// When no hierarchy has the memory controller, or this process may not create groups, or the other run takes longer
    /// than 5 s.
    pub fn new(bytes: u64, interrupted: &dyn Fn() -> bool) -> Result<Option<Self>> {
        Self::below(&Root::system(), bytes, interrupted)
    }

    fn below(root: &Root, bytes: u64, interrupted: &dyn Fn() -> bool) -> Result<Option<Self>> {
        let (place, version) = place(root)?;
        let lock_file = root.path(runtime_folder::FOLDER).join(LOCK);
        // Held until the limit is set: by it, other runs recognise that the group needs the controller. In version 1 all
        // groups have the controller.
        let mut locked = None;
        if version == Version::Second {
            locked = lock(&lock_file, interrupted)?;
            if locked.is_none() {
                return Ok(None);
            }
            switch_on(&place)?;
        }
        let folder = (0..)
            .map(|number| place.join(format!("memwarden-{}-{number}", std::process::id())))
            .find(|folder| !folder.exists())
            .expect("numbers don't run out");
        let group = Self {
            folder,
            version,
            lock: lock_file,
        };
        let made = group.make(bytes);
        // Before the group may be dropped, which takes the lock, too.
        drop(locked);
        made.map(|()| Some(group))
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
                    thread::sleep(Duration::from_millis(1));
                }
                _ => break,
            }
        }
        let place = self.folder.parent().unwrap_or(&self.folder);
        if self.version == Version::Second {
            // Without the lock the controller stays enabled, which changes no limit.
            if let Ok(Some(_lock)) = lock(&self.lock, &|| false) {
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

    fn made(root: &Root) -> MemoryGroup {
        let group = MemoryGroup::below(root, 1 << 20, &|| false).unwrap();
        group.expect("no signal came")
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

        let first = made(&root);
        assert_eq!(text(), "+memory");
        fs::write(&control, "cpu memory").unwrap();
        let second = made(&root);
        end(first);
        assert_eq!(text(), "cpu memory", "the second still has its limit");

        // A setting that another program has changed.
        let other = place.join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("memory.high"), "4096\n").unwrap();
        end(second);
        assert_eq!(text(), "cpu memory");
        fs::write(other.join("memory.high"), "max\n").unwrap();
        for (setting, changed, default) in [
            ("memory.max", "4096\n", "max\n"),
            ("memory.swap.max", "0\n", "max\n"),
            ("memory.swap.high", "4096\n", "max\n"),
            ("memory.zswap.max", "0\n", "max\n"),
            ("memory.zswap.writeback", "0\n", "1\n"),
            ("memory.low", "4096\n", "0\n"),
            ("memory.min", "4096\n", "0\n"),
            ("memory.oom.group", "1\n", "0\n"),
        ] {
            fs::write(other.join(setting), changed).unwrap();
            end(made(&root));
            assert_eq!(text(), "cpu memory", "{setting}");
            fs::write(other.join(setting), default).unwrap();
        }
        end(made(&root));
        assert_eq!(text(), "-memory");
        assert_eq!(groups(), 1, "only the other one is there");
    }

    #[test]
    fn a_controller_that_cannot_be_disabled_is_disabled_later() {
        let machine = tree("cgroup2 /cg cgroup2 rw 0 0\n", "cpu memory");
        let root = Root::at(machine.path());
        let control = machine.path().join("cg/cgroup.subtree_control");
        let mark = machine.path().join("cg").join(SWITCHED_ON);
        let group = made(&root);
        // Root cannot write this either; the kernel refuses with EBUSY.
        fs::remove_file(&control).unwrap();
        fs::create_dir(&control).unwrap();
        end(group);
        assert!(mark.exists());
        fs::remove_dir(&control).unwrap();
        fs::write(&control, "memory").unwrap();
        end(made(&root));
        assert_eq!(fs::read_to_string(&control).unwrap(), "-memory");
        assert!(!mark.exists());
    }

    #[test]
    fn a_controller_that_was_enabled_before_stays_enabled() {
        let machine = tree("cgroup2 /cg cgroup2 rw 0 0\n", "memory");
        let control = machine.path().join("cg/cgroup.subtree_control");
        fs::write(&control, "memory").unwrap();
        end(made(&Root::at(machine.path())));
        assert_eq!(fs::read_to_string(&control).unwrap(), "memory");
    }

    #[test]
    fn a_lock_of_the_hierarchy_s_folder_delays_no_group() {
        for mounts in [
            "cgroup2 /cg cgroup2 rw 0 0\n",
            "cgroup /cg cgroup rw,memory 0 0\n",
        ] {
            let machine = tree(mounts, "cpu memory");
            let folder = File::open(machine.path().join("cg")).unwrap();
            flock(&folder, FlockOperation::LockExclusive).unwrap();
            let group = made(&Root::at(machine.path()));
            let _ = fs::remove_file(group.folder().join("memory.limit_in_bytes"));
            end(group);
            // Version 1 has nothing to lock.
            let is_second = mounts.starts_with("cgroup2");
            assert_eq!(machine.path().join("run").exists(), is_second);
        }
    }

    #[test]
    fn a_wait_for_the_lock_ends_at_a_signal_and_at_the_limit() {
        let machine = tree("cgroup2 /cg cgroup2 rw 0 0\n", "cpu memory");
        let root = Root::at(machine.path());
        let control = machine.path().join("cg/cgroup.subtree_control");
        let mark = machine.path().join("cg").join(SWITCHED_ON);
        let text = || fs::read_to_string(&control).unwrap();
        let group = made(&root);
        fs::write(&control, "memory").unwrap();

        let path = root.path(runtime_folder::FOLDER).join(LOCK);
        let held = lock(&path, &|| false).unwrap().expect("it is free");
        let interrupted = MemoryGroup::below(&root, 1 << 20, &|| true).unwrap();
        assert!(interrupted.is_none());
        let message = MemoryGroup::below(&root, 1 << 20, &|| false)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("another process has held the lock of"),
            "{message}"
        );
        end(group);
        assert_eq!(text(), "memory");
        assert!(mark.exists());

        drop(held);
        end(made(&root));
        assert_eq!(text(), "-memory");
        assert!(!mark.exists());
    }
}
