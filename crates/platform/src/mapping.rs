// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory mappings that are unmapped when dropped.

#![allow(unsafe_code)]

pub mod kind;

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr::NonNull;

use crate::units::size_text;
use crate::{Error, Result, Root, hugepage};

/// The size of a normal page in bytes.
#[must_use]
pub fn page_bytes() -> usize {
    // SAFETY: takes a plain number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).expect("Linux always tells its page size")
}

/// Maps readable and writable memory.
#[inline]
fn map(bytes: usize, flags: i32, descriptor: RawFd) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing that exists.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            descriptor,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(start.cast()).expect("the kernel maps nothing at 0 unasked"))
}

/// Maps the first `bytes` of a file or device, shared with all who map it.
pub(crate) fn map_shared(file: &impl AsFd, bytes: usize) -> io::Result<NonNull<u8>> {
    map(bytes, libc::MAP_SHARED, file.as_fd().as_raw_fd())
}

/// A readable and writable mapping; private, anonymous and initially zero, unless [`kind`] created it.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to the thread that created it, and no
// other value holds its address.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `bytes` of normal pages.
    pub fn anonymous(bytes: usize) -> Result<Self> {
        Self::map(bytes, 0)
            .map_err(|source| Error::system(format!("map {}", size_text(bytes as u64)), source))
    }

    /// Maps `bytes`, rounded up to the default huge page size, from the pool of
    /// reserved huge pages.
    pub fn huge(bytes: usize) -> Result<Self> {
        let page = hugepage::default_bytes(&Root::system()).ok_or_else(|| {
            Error::Invalid(
                "huge pages are not available: this kernel has none (CONFIG_HUGETLBFS)".into(),
            )
        })?;
        let pages = bytes.div_ceil(page);
        Self::map(pages * page, libc::MAP_HUGETLB).map_err(|source| {
            let size = size_text(page as u64);
            let remedy = format!("reserve them: echo {pages} > /proc/sys/vm/nr_hugepages");
            Error::system(
                format!("map {pages} huge pages of {size} ({remedy})"),
                source,
            )
        })
    }

    #[inline]
    fn map(bytes: usize, flags: i32) -> io::Result<Self> {
        let start = map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags, -1)?;
        Ok(Self { start, bytes })
    }

    /// The first byte; aligned to a page.
    #[must_use]
    #[inline]
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Writes a byte at `offset`, so that the page exists.
    ///
    /// # Panics
    /// When `offset` is beyond the end.
    pub fn touch(&self, offset: usize) {
        assert!(offset < self.bytes, "behind the end of a mapping");
        // SAFETY: within the mapping, which is ours and writable.
        unsafe { self.start().add(offset).write_volatile(1) };
    }

    /// Unmaps the memory and returns an error if that fails, which a drop cannot do.
    #[inline]
    pub fn unmap(self) -> Result<()> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the whole mapping, created by us and never used again.
        match unsafe { libc::munmap(this.start.as_ptr().cast(), this.bytes) } {
            0 => Ok(()),
            _ => Err(Error::last(format!(
                "unmap {}",
                size_text(this.bytes as u64)
            ))),
        }
    }

    /// Bytes in transparent huge pages; those of [`Self::huge`] are not counted. 0 if the kernel does not report it.
    #[must_use]
    pub fn huge_bytes(&self) -> u64 {
        let first = self.start() as u64;
        let smaps = Root::system().text("/proc/self/smaps").unwrap_or_default();
        huge_bytes(&smaps, first..first + self.bytes as u64)
    }

    /// The mapping's length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, created by us and unmapped only here.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Sums the huge pages of the regions that overlap `range`: the kernel merges adjacent mappings of the same kind.
fn huge_bytes(smaps: &str, range: std::ops::Range<u64>) -> u64 {
    let mut inside = false;
    let mut kib = 0;
    for line in smaps.lines() {
        let Some((word, rest)) = line.split_once(' ') else {
            continue;
        };
        if let Some((first, last)) = word.split_once('-') {
            let [first, last] = [first, last].map(|text| u64::from_str_radix(text, 16));
            inside = matches!((first, last), (Ok(first), Ok(last)) if first < range.end && last > range.start);
        } else if inside
            && matches!(
                word,
                "AnonHugePages:" | "ShmemPmdMapped:" | "FilePmdMapped:"
            )
        {
            let figure = rest.trim().trim_end_matches("kB").trim();
            kib += figure.parse::<u64>().unwrap_or(0);
        }
    }
    (kib * 1024).min(range.end - range.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_those_of_the_regions_that_touch() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nAnonHugePages:      4 kB\n\
                     3000-9000 rw-p 00000000 00:00 0 \nAnonHugePages:      2 kB\nShmemPmdMapped:     1 kB\n";
        assert_eq!(huge_bytes(smaps, 0x1000..0x2800), 4096);
        assert_eq!(huge_bytes(smaps, 0x2000..0x9000), 7 * 1024);
        assert_eq!(huge_bytes(smaps, 0x9000..0xa000), 0);
    }
}
