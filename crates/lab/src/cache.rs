// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache of fetched, unpacked and built files.
//!
//! `$XDG_CACHE_HOME/memwarden` (or `~/.cache/memwarden`). Each entry is a folder `KIND/NAME_VERSION`. It is made in a
//! temporary sibling and renamed when complete, and renamed again before it is removed, so that existing entries are
//! complete. A lock file keeps two runs from fetching the same entry.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::{Error, OnFile, Result};

/// Prefix of an incomplete entry's name: one that is being filled or removed, or that a killed run left.
const PARTIAL: &str = ".unfinished-";

/// Kinds of entries: Debian's kernels and headers, kernels that the lab built, programs and packages for the guest, and
/// build tools.
const KINDS: [&str; 7] = [
    "kernel", "headers", "own", "busybox", "packages", "tools", "checks",
];

/// The folder of apt's package lists, with a lock of its own.
pub(crate) const LISTS: &str = "apt";

/// The ending of the locks' names.
const LOCK: &str = "lock";

/// The cache's folder. A process that adds an entry holds the lock of that entry's kind.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

/// An entry of the cache.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Entry {
    /// One of [`KINDS`].
    pub kind: String,
    /// Package and version.
    pub name: String,
    /// Size on disk, in bytes.
    pub bytes: u64,
    /// Its folder.
    pub path: PathBuf,
}

impl Cache {
    /// The user's cache.
    ///
    /// # Errors
    /// When neither `XDG_CACHE_HOME` nor `HOME` is set.
    pub fn of_user() -> Result<Self> {
        let base = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
            (Some(cache), _) if Path::new(&cache).is_absolute() => PathBuf::from(cache),
            (_, Some(home)) if !home.is_empty() => PathBuf::from(home).join(".cache"),
            _ => {
                return Err(Error::BadInput(
                    "neither XDG_CACHE_HOME nor HOME is set: set one, the lab keeps the kernel there"
                        .to_owned(),
                ));
            }
        };
        Ok(Self::at(base.join("memwarden")))
    }

    /// A cache at a given folder.
    #[must_use]
    pub fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// The cache's folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of an entry, made by `make` if it does not exist yet. `make` gets the temporary folder to fill and
    /// the final path.
    pub(crate) fn entry(
        &self,
        kind: &str,
        name: &str,
        make: impl FnOnce(&Path, &Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let home = self.root.join(kind);
        let path = home.join(name);
        if path.is_dir() {
            return Ok(path);
        }
        let _lock = self.lock(kind)?;
        if path.is_dir() {
            return Ok(path);
        }
        fs::create_dir_all(&home).on("create", &home)?;
        remove_partial(&home)?;
        let temporary = tempfile::Builder::new()
            .prefix(PARTIAL)
            .tempdir_in(&home)
            .on("create a folder in", &home)?;
        make(temporary.path(), &path)?;
        let made = temporary.keep();
        fs::rename(&made, &path).on("rename to", &path)?;
        // A temporary folder is private to its owner; a cached one is not secret.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, open).on("set permissions of", &path)?;
        Ok(path)
    }

    /// Names of the complete entries of a kind, sorted.
    pub(crate) fn names(&self, kind: &str) -> Vec<String> {
        let Ok(folder) = fs::read_dir(self.root.join(kind)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = folder
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        names
    }

    /// Everything in the cache with its size.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for kind in KINDS {
            for name in self.names(kind) {
                let path = self.root.join(kind).join(&name);
                entries.push(Entry {
                    kind: kind.to_owned(),
                    bytes: size(&path),
                    name,
                    path,
                });
            }
        }
        entries
    }

    /// Waits for the lock of a kind of entries, or of [`LISTS`].
    pub(crate) fn lock(&self, kind: &str) -> Result<File> {
        fs::create_dir_all(&self.root).on("create", &self.root)?;
        lock(&self.lock_path(kind))
    }

    fn lock_path(&self, kind: &str) -> PathBuf {
        self.root.join(format!("{kind}.{LOCK}"))
    }

    /// Removes everything but the locks, for which other processes may wait, and returns how many bytes that freed.
    ///
    /// # Errors
    /// When another process adds an entry, or a file cannot be removed. It does not wait, because that process may
    /// need a second lock.
    pub fn clean(&self) -> Result<u64> {
        if !self.root.exists() {
            return Ok(0);
        }
        let mut locks = Vec::new();
        for kind in KINDS.iter().chain([&LISTS]) {
            locks.push(lock_now(&self.lock_path(kind))?);
        }
        let mut freed = 0;
        let is_folder = |path: &Path| path.is_dir() && !path.is_symlink();
        let (kinds, files): (Vec<_>, Vec<_>) =
            (children(&self.root)?.into_iter()).partition(|path| is_folder(path));
        // First, since they name entries.
        for path in files {
            if path.extension().is_none_or(|ending| ending != LOCK) {
                freed += size(&path);
                fs::remove_file(&path).on("remove", &path)?;
            }
        }
        for kind in kinds {
            freed += size(&kind);
            remove_partial(&kind)?;
            for entry in children(&kind)?.iter().filter(|path| is_folder(path)) {
                remove_entry(entry)?;
            }
            fs::remove_dir_all(&kind).on("remove", &kind)?;
        }
        Ok(freed)
    }
}

fn children(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).on("read", folder)?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// Removes an entry. It is renamed first, so that no run takes what an interrupted removal leaves for complete. The
/// caller holds the lock, and has called [`remove_partial`].
pub(crate) fn remove_entry(entry: &Path) -> Result<()> {
    let name = entry.file_name().unwrap_or_default().to_string_lossy();
    let stale = entry.with_file_name(format!("{PARTIAL}{name}"));
    fs::rename(entry, &stale).on("rename", entry)?;
    fs::remove_dir_all(&stale).on("remove", &stale)
}

/// Removes incomplete entries, which killed runs left. The caller holds the lock, so no other process is filling one.
pub(crate) fn remove_partial(home: &Path) -> Result<()> {
    for path in children(home)? {
        let name = path.file_name().unwrap_or_default();
        if name.to_string_lossy().starts_with(PARTIAL) {
            fs::remove_dir_all(&path).on("remove", &path)?;
        }
    }
    Ok(())
}

/// Waits for the lock, which is held until the file is dropped.
pub(crate) fn lock(path: &Path) -> Result<File> {
    let file = lock_file(path)?;
    flock(&file, FlockOperation::LockExclusive)
        .map_err(std::io::Error::from)
        .on("lock", path)?;
    Ok(file)
}

/// The same, if it is free. A released lock is held a moment longer by a child process that was just created and has not
/// executed its program yet, so it is tried for a while.
fn lock_now(path: &Path) -> Result<File> {
    const TRIES: u32 = 25;
    const BETWEEN: Duration = Duration::from_millis(20);
    let file = lock_file(path)?;
    for left in (0..TRIES).rev() {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if left > 0 => std::thread::sleep(BETWEEN),
            Err(rustix::io::Errno::WOULDBLOCK) => break,
            Err(other) => return Err(std::io::Error::from(other)).on("lock", path),
        }
    }
    Err(Error::BadInput(format!(
        "{} is held by a run that fetches or builds: clean the cache when it is over",
        path.display()
    )))
}

fn lock_file(path: &Path) -> Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .on("open", path)
}

/// Bytes taken on disk by all files below a path; links are not followed.
#[must_use]
pub fn size(path: &Path) -> u64 {
    let Ok(facts) = path.symlink_metadata() else {
        return 0;
    };
    if !facts.is_dir() {
        return std::os::unix::fs::MetadataExt::blocks(&facts) * 512;
    }
    let Ok(folder) = fs::read_dir(path) else {
        return 0;
    };
    folder.filter_map(|e| Some(size(&e.ok()?.path()))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_made_once_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("c"));
        for round in 0..2 {
            let path = cache
                .entry("kernel", "k_1", |temporary, home| {
                    assert_eq!(round, 0, "made twice");
                    assert_eq!(home, folder.path().join("c/kernel/k_1"));
                    fs::write(temporary.join("image"), b"x").on("write", temporary)
                })
                .unwrap();
            assert!(path.join("image").is_file());
        }
        assert_eq!(cache.entries().len(), 1);
        assert!(cache.clean().unwrap() > 0);
        assert_eq!(cache.clean().unwrap(), 0);
    }

    #[test]
    fn a_cache_in_use_is_not_cleaned() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().to_owned());
        cache.entry("kernel", "k_1", |_, _| Ok(())).unwrap();
        let refused = |lock: &str| {
            let error = cache.clean().unwrap_err().to_string();
            assert!(
                error.contains(lock) && error.contains("when it is over"),
                "{error}"
            );
        };
        cache
            .entry("own", "built_for_minutes", |_, _| {
                refused("own.lock");
                Ok(())
            })
            .unwrap();
        let lists = cache.lock(LISTS).unwrap();
        refused("apt.lock");
        assert_eq!(cache.entries().len(), 2);
        drop(lists);
        cache.clean().unwrap();
        assert_eq!(cache.entries().len(), 0);
    }

    /// A run that waited for a lock while the cache was cleaned holds a lock that others see.
    #[test]
    fn the_locks_stay() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().to_owned());
        cache.entry("kernel", "k_1", |_, _| Ok(())).unwrap();
        let waiting = lock_file(&cache.lock_path("kernel")).unwrap();
        cache.clean().unwrap();
        flock(&waiting, FlockOperation::LockExclusive).unwrap();
        assert!(lock_now(&cache.lock_path("kernel")).is_err());
    }

    #[test]
    fn one_kind_is_made_while_another_is() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().to_owned());
        cache
            .entry("own", "built_for_minutes", |_, _| {
                cache.entry("kernel", "fetched", |_, _| Ok(())).map(|_| ())
            })
            .unwrap();
        assert_eq!(cache.entries().len(), 2);
    }

    #[test]
    fn what_a_killed_run_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().to_owned());
        let stale = folder.path().join("kernel/.unfinished-x");
        fs::create_dir_all(stale.join("half")).unwrap();
        cache.entry("kernel", "k_1", |_, _| Ok(())).unwrap();
        assert!(!stale.exists());
    }

    #[test]
    fn a_failed_entry_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().to_owned());
        let failed = cache.entry("kernel", "k_1", |temporary, _| {
            fs::write(temporary.join("half"), b"x").on("write", temporary)?;
            Err(Error::BadInput("no".to_owned()))
        });
        assert!(failed.is_err());
        assert_eq!(
            fs::read_dir(folder.path().join("kernel")).unwrap().count(),
            0
        );
    }
}
