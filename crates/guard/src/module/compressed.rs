// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unpacks module files for kernels that can't. A kernel unpacks at most one format, and of xz only
//! files with the checksum CRC32; DKMS also makes others.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};

/// The program that unpacks this file, by the suffix of the file's name.
pub(super) fn unpacker(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_str()? {
        "xz" => Some("xz"),
        "zst" => Some("zstd"),
        "gz" => Some("gzip"),
        _ => None,
    }
}

/// The file's content, or the reason why `program` can't unpack it.
pub(super) fn unpacked(path: &Path, program: &str) -> Result<Vec<u8>, String> {
    let output = Command::new(program)
        .arg("-dc")
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!(
                "this kernel does not unpack the file, and {program} is not installed: install it, or unpack the file and give it with --module"
            ),
            _ => format!("unpacking it with {program}: {error}"),
        })?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("unpacking it with {program}: {}", said.trim()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    fn packed(program: &str, suffix: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("memguard.ko");
        let path = folder.path().join(format!("memguard.ko.{suffix}"));
        fs::write(&plain, "a module").unwrap();
        let status = Command::new(program)
            .args(["-c"])
            .arg(&plain)
            .stdout(File::create(&path).unwrap())
            .status();
        assert!(status.unwrap().success());
        (folder, path)
    }

    #[test]
    fn files_are_unpacked_by_the_program_of_their_suffix() {
        for (program, suffix) in [("xz", "xz"), ("gzip", "gz")] {
            let (_folder, path) = packed(program, suffix);
            assert_eq!(unpacker(&path), Some(program));
            assert_eq!(unpacked(&path, program).unwrap(), b"a module");
        }
        assert_eq!(unpacker(Path::new("memguard.ko.zst")), Some("zstd"));
        assert_eq!(unpacker(Path::new("memguard.ko")), None);
        assert_eq!(unpacker(Path::new("memguard")), None);
    }

    #[test]
    fn the_reason_is_what_the_program_said_or_that_it_is_missing() {
        let (_folder, path) = packed("gzip", "gz");
        fs::write(&path, "no archive").unwrap();
        let reason = unpacked(&path, "gzip").unwrap_err();
        assert!(reason.starts_with("unpacking it with gzip: "), "{reason}");
        assert!(reason.contains("not in gzip format"), "{reason}");
        let reason = unpacked(&path, "no-such-program").unwrap_err();
        assert!(
            reason.contains("no-such-program is not installed"),
            "{reason}"
        );
    }
}
