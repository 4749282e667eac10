// SPDX-License-Identifier: MIT OR Apache-2.0
//! Swap on a RAM disk, for experiments that need swap.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::mapping::page_bytes;
use crate::{Error, Result, Root};

/// A RAM disk that the kernel swaps to; swapping to it ends when dropped.
#[derive(Debug)]
pub struct Swap {
    device: CString,
}

/// The active swap areas.
#[must_use]
pub fn in_use(root: &Root) -> Vec<PathBuf> {
    let text = root.text("/proc/swaps").unwrap_or_default();
    let lines = text.lines().skip(1);
    lines
        .filter_map(|line| Some(line.split_whitespace().next()?.into()))
        .collect()
}

/// True if the name is that of a RAM disk: the contents of any other disk must not be overwritten.
#[must_use]
pub fn is_in_memory(device: &Path) -> bool {
    let Some(name) = device.to_str().and_then(|path| path.strip_prefix("/dev/")) else {
        return false;
    };
    let number = name
        .strip_prefix("zram")
        .or_else(|| name.strip_prefix("ram"));
    number.is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

impl Swap {
    /// Formats the disk as swap, and enables it.
    ///
    /// # Errors
    /// When it is no RAM disk, is missing, or the kernel refuses it.
    pub fn on(device: &Path) -> Result<Self> {
        if !is_in_memory(device) {
            return Err(Error::Invalid(format!(
                "{}: its contents would be lost; give a RAM disk (/dev/ram0, /dev/zram0)",
                device.display()
            )));
        }
        write_header(device).map_err(|source| {
            Error::system(
                format!(
                    "make a swap of {} (modprobe brd makes /dev/ram0)",
                    device.display()
                ),
                source,
            )
        })?;
        let path = CString::new(device.as_os_str().as_bytes())
            .map_err(|_| Error::Invalid("a path has no byte 0".into()))?;
        // SAFETY: a C string and a plain number.
        match unsafe { libc::swapon(path.as_ptr(), 0) } {
            0 => Ok(Self { device: path }),
            _ => Err(Error::last(format!(
                "swap to {} (needs root)",
                device.display()
            ))),
        }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // SAFETY: a C string.
        unsafe { libc::swapoff(self.device.as_ptr()) };
    }
}

/// The header page of swap version 1 (linux/swap.h): the number of its last page, and the signature at its end.
fn write_header(device: &Path) -> std::io::Result<()> {
    let page = page_bytes();
    let mut file = OpenOptions::new().write(true).open(device)?;
    let pages = file.seek(SeekFrom::End(0))? / page as u64;
    let last = u32::try_from(pages.saturating_sub(1)).unwrap_or(u32::MAX);
    if last < 10 {
        return Err(std::io::Error::other("it is smaller than ten pages"));
    }
    let mut header = vec![0; page];
    header[1024..1028].copy_from_slice(&1_u32.to_ne_bytes());
    header[1028..1032].copy_from_slice(&last.to_ne_bytes());
    header[page - 10..].copy_from_slice(b"SWAPSPACE2");
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&header)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_with_something_on_it_is_left_alone() {
        for device in ["/dev/ram0", "/dev/zram12"] {
            assert!(is_in_memory(Path::new(device)), "{device}");
        }
        for device in [
            "/dev/sda",
            "/dev/ram",
            "/dev/ram0p1",
            "/tmp/ram0",
            "/dev/zramx",
            "",
            "/dev/random",
        ] {
            assert!(!is_in_memory(Path::new(device)), "{device}");
            let message = Swap::on(Path::new(device)).unwrap_err().to_string();
            assert!(message.contains("would be lost"), "{message}");
        }
    }

    #[test]
    fn the_header_is_as_the_kernel_reads_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 * page_bytes() as u64).unwrap();
        write_header(file.path()).unwrap();
        let written = std::fs::read(file.path()).unwrap();
        assert_eq!(written.len(), 64 * page_bytes());
        assert_eq!(&written[page_bytes() - 10..page_bytes()], b"SWAPSPACE2");
        assert_eq!(written[1028..1032], 63_u32.to_ne_bytes());
    }
}
