// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the guest's first file system: a cpio archive ("newc"), as specified in the kernel's
//! Documentation/driver-api/early-userspace/buffer-format.rst.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::{OnFile, Result};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;

/// An incomplete archive. The same files in the same order give the same bytes: the archive has neither the host's
/// times nor its inode numbers.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    folders: BTreeSet<PathBuf>,
}

impl Archive {
    /// Adds a folder and those above it. `path` has no leading slash.
    pub fn folder(&mut self, path: impl AsRef<Path>) {
        let path = path.as_ref();
        if path.as_os_str().is_empty() || !self.folders.insert(path.to_owned()) {
            return;
        }
        self.folder(parent(path));
        self.entry(path, DIRECTORY | 0o755, b"");
    }

    /// Adds a file with its content.
    pub fn file(&mut self, path: impl AsRef<Path>, mode: u32, content: &[u8]) {
        let path = path.as_ref();
        self.folder(parent(path));
        self.entry(path, REGULAR | (mode & 0o7777), content);
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: impl AsRef<Path>, target: &str) {
        let path = path.as_ref();
        self.folder(parent(path));
        self.entry(path, SYMLINK | 0o777, target.as_bytes());
    }

    /// Adds a file or a whole folder of the host; links are followed.
    pub fn copy(&mut self, path: impl AsRef<Path>, from: &Path) -> Result<()> {
        self.copy_below(path.as_ref(), from)
    }

    fn copy_below(&mut self, path: &Path, from: &Path) -> Result<()> {
        let facts = fs::metadata(from).on("read", from)?;
        if !facts.is_dir() {
            let content = fs::read(from).on("read", from)?;
            self.file(path, facts.permissions().mode(), &content);
            return Ok(());
        }
        self.folder(path);
        for name in names(from)? {
            self.copy_below(&path.join(&name), &from.join(&name))?;
        }
        Ok(())
    }

    /// Adds the content of a host folder. `place` maps a path in the folder to one in the archive; links stay links.
    pub fn overlay(&mut self, folder: &Path, place: &dyn Fn(&Path) -> PathBuf) -> Result<()> {
        self.overlay_below(folder, Path::new(""), place)
    }

    fn overlay_below(
        &mut self,
        folder: &Path,
        inside: &Path,
        place: &dyn Fn(&Path) -> PathBuf,
    ) -> Result<()> {
        for name in names(&folder.join(inside))? {
            let inside = inside.join(name);
            let (from, path) = (folder.join(&inside), place(&inside));
            let facts = fs::symlink_metadata(&from).on("read", &from)?;
            if facts.is_dir() {
                self.folder(&path);
                self.overlay_below(folder, &inside, place)?;
            } else if facts.is_symlink() {
                let target = fs::read_link(&from).on("read", &from)?;
                self.folder(parent(&path));
                self.entry(
                    &path,
                    SYMLINK | 0o777,
                    target.as_os_str().as_encoded_bytes(),
                );
            } else {
                let content = fs::read(&from).on("read", &from)?;
                self.file(&path, facts.permissions().mode(), &content);
            }
        }
        Ok(())
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(Path::new("TRAILER!!!"), 0, b"");
        self.bytes
    }

    fn entry(&mut self, path: &Path, mode: u32, content: &[u8]) {
        self.entries += 1;
        let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name = path.as_os_str().as_encoded_bytes();
        let name_length = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        self.bytes.extend_from_slice(b"070701");
        // inode, mode, uid, gid, links, time, size, 4 device numbers, name's length, checksum
        for field in [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            length,
            0,
            0,
            0,
            0,
            name_length,
            0,
        ] {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name);
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Result<Vec<OsString>> {
    let entries = fs::read_dir(folder).on("read", folder)?;
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    Ok(names)
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_archive_is_what_cpio_reads() {
        let mut archive = Archive::default();
        archive.file("usr/bin/odd", 0o755, b"12345");
        archive.file("usr/bin/x", 0o644, b"");
        archive.link("usr/bin/y", "x");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);

        let listing = Command::new("cpio")
            .args(["--list", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut cpio) = listing else {
            eprintln!("skipped: cpio is not installed");
            return;
        };
        cpio.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = cpio.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            "usr\nusr/bin\nusr/bin/odd\nusr/bin/x\nusr/bin/y\n"
        );
    }

    #[test]
    fn an_overlay_keeps_its_links_and_moves_what_it_is_told_to() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("lib")).unwrap();
        fs::write(temp.path().join("lib/x.so.1"), "x").unwrap();
        std::os::unix::fs::symlink("x.so.1", temp.path().join("lib/x.so")).unwrap();
        std::os::unix::fs::symlink("/nowhere", temp.path().join("broken")).unwrap();
        let mut overlaid = Archive::default();
        let place = |inside: &Path| Path::new("usr").join(inside);
        overlaid.overlay(temp.path(), &place).unwrap();
        let mut by_hand = Archive::default();
        by_hand.link("usr/broken", "/nowhere");
        by_hand.folder("usr/lib");
        by_hand.link("usr/lib/x.so", "x.so.1");
        by_hand.file("usr/lib/x.so.1", 0o644, b"x");
        assert_eq!(overlaid.finish(), by_hand.finish());
    }

    #[test]
    fn the_same_files_give_the_same_bytes() {
        let make = || {
            let mut archive = Archive::default();
            archive.file("a/b", 0o600, b"content");
            archive.finish()
        };
        assert_eq!(make(), make());
    }
}
