// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the mapped file of a region, as opposed to another file with the same name.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::Region;
use crate::Root;

/// The kernel's suffix for a file that no directory contains any more.
const DELETED: &[u8] = b" (deleted)";

/// The file behind a region.
#[derive(Debug)]
pub(super) struct Mapped {
    /// Its name, without the kernel's escapes and suffix.
    pub name: OsString,
    /// True if no directory contains it under this name any more.
    pub deleted: bool,
    /// The open file, or the reason why it could not be opened.
    pub file: Result<File, String>,
}

/// Finds and opens the file that `region` maps. `program` is the target of /proc/PID/exe.
///
/// Opens only a regular file with the region's inode. The device number is not compared: btrfs and overlayfs report
/// another one in maps than stat(2) does.
pub(super) fn find(root: &Root, pid: u32, region: &Region, program: Option<&OsStr>) -> Mapped {
    let literal = region.name.clone().unwrap_or_default();
    let link = root.path(&format!(
        "/proc/{pid}/map_files/{:x}-{:x}",
        region.start, region.end
    ));
    // The link has the name without escapes; following it needs CAP_CHECKPOINT_RESTORE.
    let names = match fs::read_link(&link) {
        Ok(name) => vec![name.into_os_string()],
        Err(_) => unescaped(&literal),
    };
    let by_name = names
        .iter()
        .find_map(|name| Some((name.clone(), at_name(root, pid, name, region.inode)?)));
    if let Some((name, file)) = by_name {
        return Mapped {
            name,
            deleted: false,
            file,
        };
    }
    let name = names.into_iter().next().unwrap_or_default();
    let deleted = name.as_bytes().ends_with(DELETED);
    let mut through = vec![link];
    if program == Some(&literal) {
        through.push(root.path(&format!("/proc/{pid}/exe")));
    }
    let file = through
        .iter()
        .find_map(|path| open(path, region.inode))
        .unwrap_or_else(|| {
            Err(if deleted {
                "it was deleted or replaced since: root can read it (through /proc/PID/map_files)"
            } else {
                "no file of that name that this user can see is the one that is mapped: try as root"
            }
            .to_owned())
        });
    Mapped {
        name: without_remark(name, deleted),
        deleted,
        file,
    }
}

/// The file with this name if it is the mapped one: as the process sees the name, then as this process sees it. (The
/// names of a process with another root directory in our mount namespace begin at our root.)
fn at_name(root: &Root, pid: u32, name: &OsStr, inode: u64) -> Option<Result<File, String>> {
    let below = |prefix: &str| -> Option<PathBuf> {
        let name = name.as_bytes().strip_prefix(b"/")?;
        Some(root.path(prefix).join(OsStr::from_bytes(name)))
    };
    [below(&format!("/proc/{pid}/root")), below("/")]
        .into_iter()
        .flatten()
        .find_map(|path| open(&path, inode))
}

/// `None` if it is another file, not a regular file, or not visible.
fn open(path: &std::path::Path, inode: u64) -> Option<Result<File, String>> {
    let found = fs::metadata(path).ok()?;
    // Opening a device or a FIFO may have side effects or block.
    (found.is_file() && found.ino() == inode)
        .then(|| File::open(path).map_err(|error| error.to_string()))
}

fn without_remark(name: OsString, deleted: bool) -> OsString {
    let mut bytes = name.into_vec();
    if deleted {
        bytes.truncate(bytes.len() - DELETED.len());
    }
    OsString::from_vec(bytes)
}

/// Possible meanings of a name in maps: `\012` is a newline, or these four characters.
fn unescaped(name: &OsStr) -> Vec<OsString> {
    const ESCAPE: &[u8] = b"\\012";
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some(first) = rest.first() {
        if let Some(after) = rest.strip_prefix(ESCAPE) {
            bytes.push(b'\n');
            rest = after;
        } else {
            bytes.push(*first);
            rest = &rest[1..];
        }
    }
    let newline = OsString::from_vec(bytes);
    if newline == name {
        vec![newline]
    } else {
        vec![newline, name.to_owned()]
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::super::parse;
    use super::*;

    /// A saved tree with process 7, whose root directory is `inside`.
    fn tree() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        for directory in ["proc/7/map_files", "inside/lib", "lib"] {
            fs::create_dir_all(folder.path().join(directory)).unwrap();
        }
        std::os::unix::fs::symlink("../../inside", folder.path().join("proc/7/root")).unwrap();
        let root = Root::at(folder.path());
        (folder, root)
    }

    fn write(root: &Root, path: &str) -> u64 {
        fs::write(root.path(path), path).unwrap();
        fs::metadata(root.path(path)).unwrap().ino()
    }

    fn region(inode: u64, name: &str) -> Region {
        let line = format!("1000-2000 r-xp 00000000 08:01 {inode} {name}\n");
        parse(line.as_bytes(), "maps").unwrap().remove(0)
    }

    fn content(mapped: Mapped) -> Result<String, String> {
        let mut text = String::new();
        mapped.file?.read_to_string(&mut text).unwrap();
        Ok(text)
    }

    #[test]
    fn a_process_in_another_root_has_its_own_files() {
        let (_folder, root) = tree();
        let outside = write(&root, "lib/a");
        let inside = write(&root, "inside/lib/a");
        let mapped = find(&root, 7, &region(inside, "/lib/a"), None);
        assert_eq!(content(mapped).unwrap(), "inside/lib/a");
        let mapped = find(&root, 7, &region(outside, "/lib/a"), None);
        assert_eq!(content(mapped).unwrap(), "lib/a");
    }

    #[test]
    fn another_file_of_that_name_is_not_read() {
        let (_folder, root) = tree();
        let inode = write(&root, "lib/a");
        let mapped = find(&root, 7, &region(inode + 1_000_000, "/lib/a"), None);
        assert!(!mapped.deleted);
        assert!(content(mapped).unwrap_err().contains("try as root"));
    }

    #[test]
    fn deleted_is_a_remark_or_part_of_the_name() {
        let (_folder, root) = tree();
        let inode = write(&root, "lib/a (deleted)");
        let mapped = find(&root, 7, &region(inode, "/lib/a (deleted)"), None);
        assert_eq!(
            (mapped.deleted, mapped.name.to_str()),
            (false, Some("/lib/a (deleted)"))
        );

        let mapped = find(
            &root,
            7,
            &region(inode + 1_000_000, "/lib/a (deleted)"),
            None,
        );
        assert_eq!(
            (mapped.deleted, mapped.name.to_str()),
            (true, Some("/lib/a"))
        );
        assert!(content(mapped).unwrap_err().contains("deleted or replaced"));

        let mapped = find(
            &root,
            7,
            &region(inode + 1, "/lib/a (deleted) (deleted)"),
            None,
        );
        assert_eq!(
            (mapped.deleted, mapped.name.to_str()),
            (true, Some("/lib/a (deleted)"))
        );
    }

    #[test]
    fn a_deleted_file_is_read_through_the_process() {
        let (_folder, root) = tree();
        let inode = write(&root, "proc/7/map_files/1000-2000");
        let mapped = find(&root, 7, &region(inode, "/lib/a (deleted)"), None);
        assert!(mapped.deleted);
        assert_eq!(content(mapped).unwrap(), "proc/7/map_files/1000-2000");

        let inode = write(&root, "proc/7/exe");
        let name = "/bin/p (deleted)";
        let mapped = find(&root, 7, &region(inode, name), Some(OsStr::new(name)));
        assert_eq!(content(mapped).unwrap(), "proc/7/exe");
        assert!(content(find(&root, 7, &region(inode, name), None)).is_err());
    }

    #[test]
    fn a_newline_and_its_escape_are_told_apart_by_the_file() {
        let (_folder, root) = tree();
        let newline = write(&root, "lib/a\nb");
        let literal = write(&root, "lib/a\\012b");
        for (inode, name) in [(newline, "/lib/a\nb"), (literal, "/lib/a\\012b")] {
            let mapped = find(&root, 7, &region(inode, "/lib/a\\012b"), None);
            assert_eq!(mapped.name, name);
            assert!(mapped.file.is_ok());
        }
    }

    #[test]
    fn a_fifo_is_not_opened() {
        let (_folder, root) = tree();
        let path = root.path("lib/fifo");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        if !made.is_ok_and(|status| status.success()) {
            println!("skipped: no mkfifo");
            return;
        }
        let inode = fs::metadata(&path).unwrap().ino();
        assert!(
            find(&root, 7, &region(inode, "/lib/fifo"), None)
                .file
                .is_err()
        );
    }
}
