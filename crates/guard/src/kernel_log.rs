// SPDX-License-Identifier: MIT OR Apache-2.0
//! The module's last message in the kernel log, for errors that an errno alone doesn't explain.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The newest message about memguard in the log at `kmsg`, without its header.
pub(crate) fn last_line(kmsg: &Path) -> Option<String> {
    newest(&mut open(kmsg)?)
}

/// Messages that the log at `kmsg` receives from now on.
pub(crate) struct Since(Option<File>);

impl Since {
    pub fn now(kmsg: &Path) -> Self {
        let at_end = open(kmsg).and_then(|mut log| {
            log.seek(SeekFrom::End(0)).ok()?;
            Some(log)
        });
        Self(at_end)
    }

    /// Like [`last_line`], for the messages received since.
    pub fn last_line(mut self) -> Option<String> {
        newest(self.0.as_mut()?)
    }
}

fn open(kmsg: &Path) -> Option<File> {
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    OpenOptions::new()
        .read(true)
        .custom_flags(nonblock)
        .open(kmsg)
        .ok()
}

fn newest(file: &mut File) -> Option<String> {
    let mut last = None;
    // A read returns one record, of 8 KiB at most.
    let mut record = [0; 8192];
    loop {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(length) => {
                let text = String::from_utf8_lossy(&record[..length]);
                if let Some(line) = text.lines().rev().find_map(message) {
                    last = Some(line);
                }
            }
            // The record was overwritten; the next read returns a later one.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
    }
    last
}

fn message(record: &str) -> Option<String> {
    let message = record
        .split_once(';')
        .map_or(record, |(_, message)| message);
    message
        .contains("memguard")
        .then(|| message.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_last_line_about_memguard_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kmsg");
        std::fs::write(
            &path,
            "6,1,2,-;memguard: first\n3,2,3,-;memguard: CPU2: refused\n6,3,4,-;other\n",
        )
        .unwrap();
        assert_eq!(last_line(&path).unwrap(), "memguard: CPU2: refused");
        assert_eq!(last_line(&folder.path().join("missing")), None);
    }

    #[test]
    fn what_was_there_before_is_not_taken_for_an_answer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kmsg");
        std::fs::write(&path, "4,1,2,-;memguard: limit: an old complaint\n").unwrap();
        assert_eq!(Since::now(&path).last_line(), None);
        let since = Since::now(&path);
        let mut log = OpenOptions::new().append(true).open(&path).unwrap();
        log.write_all(b"4,2,3,-;memguard: limit: there is no such online cpu\n")
            .unwrap();
        assert_eq!(
            since.last_line().unwrap(),
            "memguard: limit: there is no such online cpu"
        );
        assert_eq!(Since::now(&folder.path().join("missing")).last_line(), None);
    }
}
