// SPDX-License-Identifier: MIT OR Apache-2.0
//! Physical addresses of this process's pages, through /proc/self/pagemap.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::mapping::{Mapping, page_bytes};
use crate::{Error, Result};

/// Bit 63 of an entry (Documentation/admin-guide/mm/pagemap.rst): page present.
const PRESENT: u64 = 1 << 63;
/// Bits 0 to 54 of an entry: the page frame number; 0 without CAP_SYS_ADMIN.
const FRAME: u64 = (1 << 55) - 1;

/// The physical address of each normal page of `mapping`, in order; huge pages
/// appear as their normal pages.
///
/// Every page must have been touched. Without huge pages or a locked mapping the
/// kernel may move a page later (compaction), so query shortly before use.
pub fn physical_pages(mapping: &Mapping) -> Result<Vec<u64>> {
    let failed = |source| {
        Error::system(
            "read /proc/self/pagemap (physical addresses need CONFIG_PROC_PAGE_MONITOR and root)",
            source,
        )
    };
    let page = page_bytes();
    let mut entries = vec![0_u8; mapping.bytes() / page * 8];
    let offset = (mapping.start().addr() / page * 8) as u64;
    File::open("/proc/self/pagemap")
        .and_then(|file| file.read_exact_at(&mut entries, offset))
        .map_err(failed)?;
    entries
        .chunks_exact(8)
        .map(|entry| {
            decode(
                u64::from_ne_bytes(entry.try_into().expect("chunks of 8")),
                page as u64,
            )
        })
        .collect()
}

fn decode(entry: u64, page_bytes: u64) -> Result<u64> {
    if entry & PRESENT == 0 {
        return Err(Error::Invalid(
            "a page of the buffer is not in memory (swapped out?), so its bank is unknown".into(),
        ));
    }
    match entry & FRAME {
        0 => Err(Error::Invalid(
            "/proc/self/pagemap hides physical addresses: run as root (CAP_SYS_ADMIN) to choose by DRAM bank".into(),
        )),
        frame => Ok(frame * page_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_an_address_or_an_error() {
        assert_eq!(decode(PRESENT | 0x1234, 4096).unwrap(), 0x123_4000);
        assert!(
            decode(0x1234, 4096)
                .unwrap_err()
                .to_string()
                .contains("not in memory")
        );
        assert!(
            decode(PRESENT, 4096)
                .unwrap_err()
                .to_string()
                .contains("run as root")
        );
    }
}
