// SPDX-License-Identifier: MIT OR Apache-2.0
//! Huge pages: the reserved pools, and transparent ones.

#![allow(unsafe_code)]

use serde::{Deserialize, Serialize};

use crate::{Error, Result, Root};

/// The pool of huge pages of one size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Reserved pages.
    pub total: u64,
    /// Reserved pages not in use.
    pub free: u64,
}

/// All pools of the kernel, smallest pages first.
#[must_use]
pub fn pools(root: &Root) -> Vec<Pool> {
    const DIRECTORY: &str = "/sys/kernel/mm/hugepages";
    let mut pools: Vec<Pool> = root
        .names(DIRECTORY)
        .into_iter()
        .filter_map(|name| {
            let kib: u64 = name
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?
                .parse()
                .ok()?;
            let count =
                |file| u64::try_from(root.number(&format!("{DIRECTORY}/{name}/{file}"))?).ok();
            Some(Pool {
                page_bytes: kib << 10,
                total: count("nr_hugepages")?,
                free: count("free_hugepages")?,
            })
        })
        .collect();
    pools.sort_by_key(|pool| pool.page_bytes);
    pools
}

/// The default huge page size of a mapping.
#[must_use]
pub fn default_bytes(root: &Root) -> Option<usize> {
    let text = root.text("/proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// The selected word of the kernel's `always [madvise] never`.
#[must_use]
pub fn transparent(root: &Root) -> Option<String> {
    let text = root.text("/sys/kernel/mm/transparent_hugepage/enabled")?;
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// Turns transparent huge pages (and the medium sizes of newer kernels) off for
/// this process, so that every page costs a fault.
pub fn disable_transparent() -> Result<()> {
    // SAFETY: plain numbers; the kernel requires the last three to be 0.
    let rc = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1_u64, 0_u64, 0_u64, 0_u64) };
    if rc != 0 {
        return Err(Error::last(
            "turn transparent huge pages off for this process",
        ));
    }
    Ok(())
}
