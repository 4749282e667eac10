// SPDX-License-Identifier: MIT OR Apache-2.0
//! A group of cgroup v2: where its folder is, and the files in it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use memwarden_platform::Root;

use crate::Error;

/// Attempts to move the processes out of a group, which races with their forks.
const MOVES: u32 = 100;

/// The mount points of cgroup2, as /proc/mounts lists them.
fn mounts(root: &Root) -> Vec<PathBuf> {
    let text = root.bytes("/proc/mounts").unwrap_or_default();
    text.split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let mut words = line.split(|byte| *byte == b' ');
            let place = words.nth(1)?;
            (words.next() == Some(b"cgroup2")).then(|| unescaped(place))
        })
        .collect()
}

/// Decodes a path of /proc/mounts, where characters that would end a word are written in octal.
fn unescaped(place: &[u8]) -> PathBuf {
    let digit = |at: usize| {
        let byte = place.get(at).copied().filter(u8::is_ascii_digit)?;
        Some(u32::from(byte - b'0'))
    };
    let octal = |at: usize| {
        let value = digit(at + 1)? * 64 + digit(at + 2)? * 8 + digit(at + 3)?;
        u8::try_from(value).ok()
    };
    let mut bytes = Vec::new();
    let mut at = 0;
    while let Some(&byte) = place.get(at) {
        let escaped = if byte == b'\\' { octal(at) } else { None };
        bytes.push(escaped.unwrap_or(byte));
        at += if escaped.is_some() { 4 } else { 1 };
    }
    OsStr::from_bytes(&bytes).into()
}

/// The folder that `typed` names: absolute, or relative to the mount point of cgroup2.
///
/// # Errors
/// When cgroup2 is not mounted, or the path contains `..`, is outside the mount point, or is the root of the hierarchy.
pub(super) fn resolve(root: &Root, typed: &Path) -> Result<PathBuf, Error> {
    let text = typed.display();
    let mounts = mounts(root);
    let first = mounts.first().ok_or_else(|| {
        Error::BadInput(format!(
            "--cgroup {text}: no cgroup2 is mounted; try `mount -t cgroup2 none /sys/fs/cgroup`"
        ))
    })?;
    let plain = typed
        .components()
        .all(|part| !matches!(part, Component::ParentDir));
    if !plain {
        return Err(Error::BadInput(format!(
            "--cgroup {text}: give the folder without `..`"
        )));
    }
    let path: PathBuf = first.join(typed).components().collect();
    let Some(mount) = mounts.iter().find(|mount| path.starts_with(mount)) else {
        return Err(Error::BadInput(format!(
            "--cgroup {text}: it is not below {}, where cgroup2 is mounted",
            first.display()
        )));
    };
    if path == *mount {
        return Err(Error::BadInput(format!(
            "--cgroup {text}: the root group cannot be stopped; name a group below {}",
            mount.display()
        )));
    }
    Ok(path)
}

/// This process's group, as a folder below the mount point that contains `path`.
pub(super) fn own(root: &Root, path: &Path) -> Option<PathBuf> {
    let mount = mounts(root)
        .into_iter()
        .find(|mount| path.starts_with(mount))?;
    let text = root.bytes("/proc/self/cgroup")?;
    let mut lines = text.split(|byte| *byte == b'\n');
    let own = lines.find_map(|line| line.strip_prefix(b"0::/"))?;
    Some(mount.join(OsStr::from_bytes(own)).components().collect())
}

/// Makes perf count the groups of `path`'s hierarchy, if no controller was ever enabled there: only with the first one does
/// the kernel give groups perf's own controller, which has no file to enable it, and which they keep.
///
/// On machines with systemd that happens at the boot. Leaves the hierarchy's controllers as they were.
pub(super) fn let_perf_count(root: &Root, path: &Path) -> Result<(), Error> {
    let mounts = mounts(root);
    let Some(mount) = mounts.iter().find(|mount| path.starts_with(mount)) else {
        return Ok(());
    };
    let list = |file: &'static str| read(mount, file).unwrap_or_default();
    let controllers = list("cgroup.controllers");
    // It needs no initialisation of the groups, as the controllers of CPUs and memory do.
    let cheap = |name: &&str| matches!(*name, "pids" | "misc" | "rdma");
    let mut names = controllers.split_whitespace();
    let Some(name) = names.clone().find(cheap).or_else(|| names.next()) else {
        return Ok(());
    };
    if list("cgroup.subtree_control").is_empty() {
        write(mount, "cgroup.subtree_control", &format!("+{name}"))?;
        write(mount, "cgroup.subtree_control", &format!("-{name}"))?;
    }
    Ok(())
}

/// Why this kernel cannot count a group's events, if /proc/mounts shows it.
pub(super) fn why_uncounted(root: &Root) -> Option<&'static str> {
    let mounts = root.bytes("/proc/mounts")?;
    let taken = String::from_utf8_lossy(&mounts).lines().any(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        words.get(2) == Some(&"cgroup")
            && words
                .get(3)
                .is_some_and(|options| options.split(',').any(|option| option == "perf_event"))
    });
    taken.then_some("the perf_event controller is mounted as cgroup v1: unmount it there")
}

/// Reads a file of the group.
pub(super) fn read(path: &Path, file: &'static str) -> io::Result<String> {
    fs::read_to_string(path.join(file)).map(|text| text.trim().to_owned())
}

/// Writes a file of the group.
pub(super) fn write(path: &Path, file: &'static str, text: &str) -> Result<(), Error> {
    let file = path.join(file);
    fs::write(&file, text).map_err(Error::file("writing", &file))
}

/// True if the group is frozen.
pub(super) fn is_frozen(path: &Path) -> bool {
    read(path, "cgroup.freeze").is_ok_and(|text| text == "1")
}

/// Moves every process to the group `home`, and removes the folder, with the groups below it that are empty.
///
/// # Errors
/// When the folder cannot be removed: a group below it has processes, or processes keep moving into it.
pub(super) fn empty_and_remove(path: &Path, home: &Path) -> Result<(), Error> {
    let mut last = Ok(());
    for _ in 0..MOVES {
        for pid in read(path, "cgroup.procs").unwrap_or_default().lines() {
            // Ignores failures: a process that has ended meanwhile needs no move.
            let _ = fs::write(home.join("cgroup.procs"), pid);
        }
        remove_empty_below(path);
        match fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => last = Err(error),
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    last.map_err(Error::file("removing", path))
}

/// Removes the groups below `path`, the deepest first. The kernel refuses those with processes.
fn remove_empty_below(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty_below(&entry.path());
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(mounts: impl AsRef<[u8]>) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("proc/self")).unwrap();
        fs::write(folder.path().join("proc/mounts"), mounts).unwrap();
        fs::write(
            folder.path().join("proc/self/cgroup"),
            "4:memory:/x\n0::/user/me\n",
        )
        .unwrap();
        let root = Root::at(folder.path());
        (folder, root)
    }

    const HYBRID: &str = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
        cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";

    #[test]
    fn a_group_is_found_by_either_name() {
        let (_folder, root) = root(HYBRID);
        for text in ["a/b", "./a//b/", "/sys/fs/cgroup/unified/a/b"] {
            let path = resolve(&root, Path::new(text)).unwrap();
            assert_eq!(path, Path::new("/sys/fs/cgroup/unified/a/b"), "{text}");
        }
        let home = own(&root, Path::new("/sys/fs/cgroup/unified/a"));
        assert_eq!(home.unwrap(), Path::new("/sys/fs/cgroup/unified/user/me"));
        assert!(own(&root, Path::new("/elsewhere")).is_none());
    }

    #[test]
    fn names_keep_their_bytes() {
        let (folder, root) =
            root(b"x /m\xfc ext4 rw 0 0\nnone /my\\040cgroups/\xff cgroup2 rw 0 0\n");
        let below = |name: &[u8]| {
            Path::new(OsStr::from_bytes(b"/my cgroups/\xff")).join(OsStr::from_bytes(name))
        };
        let path = resolve(&root, Path::new(OsStr::from_bytes(b"caf\xe9"))).unwrap();
        assert_eq!(path, below(b"caf\xe9"));
        fs::write(folder.path().join("proc/self/cgroup"), b"0::/\xe9/me\n").unwrap();
        assert_eq!(own(&root, &path).unwrap(), below(b"\xe9/me"));
        assert!(why_uncounted(&root).is_none());
        let (_folder, odd) = super::tests::root("none /a\\134b\\9 cgroup2 rw 0 0\n");
        assert_eq!(mounts(&odd), [Path::new(r"/a\b\9")]);
    }

    #[test]
    fn what_is_no_group_is_refused_with_the_remedy() {
        let (_folder, hybrid) = root(HYBRID);
        for (text, expected) in [
            (
                "/sys/fs/cgroup/cpu/a",
                "not below /sys/fs/cgroup/unified, where",
            ),
            ("/", "not below"),
            ("", "the root group cannot be stopped"),
            (".", "the root group cannot be stopped"),
            (
                "/sys/fs/cgroup/unified",
                "name a group below /sys/fs/cgroup/unified",
            ),
            ("../cpu", "without `..`"),
            ("a/../..", "without `..`"),
        ] {
            let message = resolve(&hybrid, Path::new(text)).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        }
        let (_folder, none) = root("proc /proc proc rw 0 0\n");
        let message = resolve(&none, Path::new("a")).unwrap_err().to_string();
        assert!(message.contains("mount -t cgroup2"), "{message}");
    }

    #[test]
    fn a_hierarchy_without_controllers_gets_one_for_a_moment() {
        let folder = tempfile::tempdir().unwrap();
        let mount = folder.path().join("cgroup");
        fs::create_dir_all(&mount).unwrap();
        let (_folder, root) = root(format!("none {} cgroup2 rw 0 0\n", mount.display()));
        let subtree = mount.join("cgroup.subtree_control");
        for (controllers, before, after) in [
            ("cpuset cpu pids misc\n", "", "-pids"),
            ("cpuset cpu\n", "\n", "-cpuset"),
            ("cpuset cpu pids\n", "cpu\n", "cpu\n"),
            ("\n", "", ""),
        ] {
            fs::write(mount.join("cgroup.controllers"), controllers).unwrap();
            fs::write(&subtree, before).unwrap();
            let_perf_count(&root, &mount.join("batch")).unwrap();
            assert_eq!(fs::read_to_string(&subtree).unwrap(), after);
        }
        let_perf_count(&root, Path::new("/elsewhere/batch")).unwrap();
    }

    #[test]
    fn a_controller_on_the_old_hierarchy_is_told() {
        let (_folder, hybrid) = root(HYBRID);
        assert!(why_uncounted(&hybrid).is_none());
        let (_folder, old) = root("cgroup /sys/fs/cgroup/perf_event cgroup rw,perf_event 0 0\n");
        assert!(why_uncounted(&old).is_some());
    }
}
