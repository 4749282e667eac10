// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results of a board that has only a serial line: an archive as base64 between two marks, with its checksum. A kernel
//! message between the marks is detected: it is invalid base64, or the checksum differs.

use std::fs;
use std::path::{Path, PathBuf};

use crate::digest;
use crate::error::{Error, OnFile, Result};
use crate::program;

/// Writes the archive to a file in `folder`, and returns its path.
pub(crate) fn unpack(console: &str, folder: &Path) -> Result<PathBuf> {
    let damaged = |why: &str| Error::Lost {
        reason: format!("the results from the serial line are damaged: {why}"),
        tail: program::last_lines(console, 5),
    };
    let (checksum, text) = find(console).ok_or_else(|| damaged("their marks are missing"))?;
    let encoded = folder.join("frame.base64");
    fs::write(&encoded, text).on("write", &encoded)?;
    let decoded = program::run(
        "decode the results from the serial line",
        program::command("base64").arg("-d").arg(&encoded),
    )
    .map_err(|_| damaged("they are invalid base64"))?;
    if digest::hex([&decoded.stdout]) != checksum {
        return Err(damaged("their checksum differs"));
    }
    let archive = folder.join("frame.tar.gz");
    fs::write(&archive, decoded.stdout).on("write", &archive)?;
    Ok(archive)
}

/// The checksum that was announced, and the lines up to the mark at the end.
fn find(console: &str) -> Option<(&str, String)> {
    let mut lines = console.lines();
    let checksum = lines
        .find_map(|line| line.trim_end().split_once("memwarden-lab: frame "))?
        .1;
    let mut text = String::new();
    for line in lines {
        if line.contains("memwarden-lab: carried") {
            return Some((checksum, text));
        }
        text += line.trim();
        text.push('\n');
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    // "content" and its checksum, as sha256sum prints it.
    const CHECKSUM: &str = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73";

    #[test]
    fn a_frame_comes_out_as_it_went_in() {
        let folder = tempfile::tempdir().unwrap();
        let console = format!(
            "[ 1.0] boot\nmemwarden-lab: frame {CHECKSUM}\r\nY29u\r\ndGVudA==\r\nmemwarden-lab: carried\r\n"
        );
        let archive = unpack(&console, folder.path()).unwrap();
        assert_eq!(fs::read(archive).unwrap(), b"content");
    }

    #[test]
    fn a_damaged_frame_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for (console, why) in [
            (
                format!("memwarden-lab: frame {CHECKSUM}\nY29u\n"),
                "their marks are missing",
            ),
            (
                format!("memwarden-lab: frame {CHECKSUM}\n[ 9.0] x: y\nmemwarden-lab: carried\n"),
                "they are invalid base64",
            ),
            (
                format!("memwarden-lab: frame {CHECKSUM}\nY29u\nmemwarden-lab: carried\n"),
                "their checksum differs",
            ),
        ] {
            let said = unpack(&console, folder.path()).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
    }
}
