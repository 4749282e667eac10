// SPDX-License-Identifier: MIT OR Apache-2.0
//! The module's last word in the kernel log, for errors that an errno alone doesn't explain.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The newest line of the log at `kmsg` that is about memguard, without its header.
pub(crate) fn last_line(kmsg: &Path) -> Option<String> {
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(nonblock)
        .open(kmsg)
        .ok()?;
    let mut last = None;
    // One record a read; 8 KiB is the longest that the kernel hands out.
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
            // The log was overwritten under us: go on with the next record.
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
}
