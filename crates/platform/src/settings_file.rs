// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the files that users write for this program: settings, machines, budgets. They are small, and a wrong path may be
//! a device that never ends.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// The largest file, bytes: a hundred times the longest one that comes with the program.
const MOST: u64 = 1 << 20;

/// The text of a file that is read once, which may be a pipe.
///
/// # Errors
/// When the file cannot be read, is larger than 1 MiB, or is not UTF-8.
pub fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MOST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST {
        return Err(too_large());
    }
    Ok(text)
}

/// The same for a file that is read several times, so a pipe won't do.
///
/// # Errors
/// As [`read`]; and when it is a pipe or a device.
pub fn read_again(path: &Path) -> Result<String> {
    let kind = path.metadata()?.file_type();
    // Reading a directory has an error of its own.
    if kind.is_file() || kind.is_dir() {
        return read(path);
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        "not a regular file: this file is read several times, so a pipe won't do; save it first",
    ))
}

fn too_large() -> Error {
    Error::new(
        ErrorKind::InvalidData,
        "larger than 1 MiB, the limit of such a file",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_at_most_one_mib() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "#".repeat(1 << 20);
        std::fs::write(file.path(), &text).unwrap();
        assert_eq!(read(file.path()).unwrap(), text);
        assert_eq!(read_again(file.path()).unwrap(), text);
        std::fs::write(file.path(), text + "#").unwrap();
        let said = read(file.path()).unwrap_err().to_string();
        assert!(said.contains("larger than 1 MiB"), "{said}");
    }

    #[test]
    fn a_device_without_an_end_is_read_up_to_the_limit() {
        let said = read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(said.contains("larger than 1 MiB"), "{said}");
    }

    #[test]
    fn a_pipe_can_be_read_once() {
        let (reader, mut writer) = rustix::pipe::pipe()
            .map(|(r, w)| (r, File::from(w)))
            .unwrap();
        std::io::Write::write_all(&mut writer, b"a = 1\n").unwrap();
        drop(writer);
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
        let said = read_again(Path::new(&path)).unwrap_err().to_string();
        assert!(said.starts_with("not a regular file"), "{said}");
        assert_eq!(read(Path::new(&path)).unwrap(), "a = 1\n");
    }

    #[test]
    fn a_directory_and_a_missing_file_have_the_systems_errors() {
        let folder = tempfile::tempdir().unwrap();
        let kind = |path: &Path| read_again(path).unwrap_err().kind();
        assert_eq!(kind(folder.path()), ErrorKind::IsADirectory);
        assert_eq!(kind(&folder.path().join("none")), ErrorKind::NotFound);
    }
}
