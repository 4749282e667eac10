// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--fresh-pages`: maps, touches one word a page, unmaps. Every page costs one
//! fault, in which the kernel zeroes it.

#![allow(unsafe_code)]

use memwarden_platform::mapping::{Mapping, page_bytes};
use memwarden_platform::{clock, hugepage};

use super::Load;
use crate::{BufferConfig, Descriptor, Error, Result, ratio};

/// Pages of a mapping. They share two system calls: with 256 pages these took
/// 26 ns of a page's 3.2 us on an EPYC, and 73 of 4400 instructions in the
/// emulated machine (see `loop_ns_per_touch`). Many more pages would exceed the
/// kernel's per-CPU lists of free pages (a few hundred), and would come from the
/// zone's list, under its lock. 256 pages of 4 KiB are 1 MiB, with one or two
/// page-table pages.
const PAGES_A_STEP: u64 = 256;

pub(super) struct FreshPages {
    page: usize,
    pages_a_pass: u64,
}

impl FreshPages {
    pub(super) fn new(config: &BufferConfig) -> Result<Self> {
        if config.bank_mask.is_some() || config.huge_pages {
            return Err(Error::Invalid(
                "fresh pages are normal pages at any address: neither -x nor a bank mask applies"
                    .into(),
            ));
        }
        // Once for the process; otherwise each mapping would need an madvise.
        hugepage::disable_transparent()?;
        let page = page_bytes();
        Ok(Self {
            page,
            pages_a_pass: (config.bytes / page).max(1) as u64,
        })
    }
}

/// One store a page, each with a page fault.
///
/// # Safety
/// There are `pages` writable pages of `page` bytes from `start` on.
#[inline(never)]
unsafe fn touch(start: *mut u8, pages: usize, page: usize) {
    for number in 0..pages {
        // SAFETY: the caller's promise. Volatile: each store is made.
        unsafe { start.add(number * page).cast::<u64>().write_volatile(1) };
    }
}

impl Load for FreshPages {
    const UNIT: &'static str = "page";

    fn unit_bytes(&self) -> u64 {
        self.page as u64
    }

    fn most(&self) -> u64 {
        PAGES_A_STEP
    }

    fn pass(&self) -> u64 {
        self.pages_a_pass
    }

    fn step(&mut self, units: u64) -> Result<()> {
        let mapping = Mapping::anonymous(units as usize * self.page)?;
        // SAFETY: the mapping has that many pages.
        unsafe { touch(mapping.start(), units as usize, self.page) };
        mapping.unmap()
    }

    fn remote_share(&self) -> Option<f64> {
        None
    }

    fn verify(&self) -> Result<()> {
        Ok(())
    }

    fn floor(&mut self) -> Result<f64> {
        let begin = clock::now_ns();
        let times = 64;
        for _ in 0..times {
            Mapping::anonymous(PAGES_A_STEP as usize * self.page)?.unmap()?;
        }
        Ok(ratio(clock::now_ns() - begin, times * PAGES_A_STEP))
    }
}

/// Traffic between cache and memory.
pub(super) const TRAFFIC: &str = "each page is zeroed by the kernel in a page fault; whether the zeros go to memory or \
    stay in the cache depends on the kernel and the CPU";

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "fresh-pages",
    help: "map, touch one word a page, unmap: every page costs one fault, and counts as a whole page",
    limits: &[],
};
