// SPDX-License-Identifier: MIT OR Apache-2.0
//! A core's private parts: TLB, one or two caches, the prefetcher, its pages.

use memwarden_cachesim::geometry::Replacement;
use memwarden_cachesim::sets::{DIRTY, Sets, Victim};
use memwarden_cachesim::streams::{Ask, Streams};

use crate::settings::MachineSettings;

/// Pages of the smallest size; a line is in one of them.
pub(crate) const PAGE_BITS: u32 = 12;
/// A page of memory.
pub(crate) const PAGE_BYTES: u64 = 1 << PAGE_BITS;
/// TLBs have few ways; that does not matter for access patterns without a stride.
const TLB_WAYS: u64 = 4;

/// The size of a page-table entry, on every 64-bit machine, and the entries per page.
pub(crate) const ENTRY_BYTES: u64 = 8;
pub(crate) const ENTRIES: u64 = (1 << PAGE_BITS) / ENTRY_BYTES;

/// The number of pages, of this many, that hold the others' page-table entries. The upper tables
/// are not modelled: a walker caches them itself.
fn table_pages(pages: u64) -> u64 {
    pages.div_ceil(ENTRIES + 1)
}

/// Pages for a buffer, its page table included.
pub(crate) fn pages(buffer_bytes: u64) -> usize {
    let pages = buffer_bytes.div_ceil(1 << PAGE_BITS);
    (pages + pages.div_ceil(ENTRIES)) as usize
}

/// An empty cache of whole lines.
pub(crate) fn sets(size_bytes: u64, ways: usize, line_bytes: u64) -> Sets {
    let sets = size_bytes / line_bytes / ways as u64;
    Sets::new(sets, ways, Replacement::Lru)
}

/// The level that has a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    L1,
    L2,
    Nowhere,
}

#[derive(Debug)]
pub(crate) struct Private {
    l1: Sets,
    l1i: Option<Sets>,
    l2: Option<Sets>,
    tlb: Option<Sets>,
    streams: Option<Streams>,
    /// The frame of each page of the buffer, then those of its page table.
    frames: Box<[u32]>,
    /// The place of each line of the buffer, if it doesn't have whole pages.
    places: Option<Box<[u64]>>,
    line_bits: u32,
}

impl Private {
    /// Empty, with the given frames of memory for its buffer.
    pub fn new(machine: &MachineSettings, frames: Box<[u32]>) -> Self {
        let line_bits = machine.line_bytes.trailing_zeros();
        let core = &machine.core;
        Self {
            l1: sets(core.l1d.size_bytes, core.l1d.ways, machine.line_bytes),
            l1i: core
                .l1i
                .map(|l1i| sets(l1i.size_bytes, l1i.ways, machine.line_bytes)),
            l2: core
                .l2
                .map(|l2| sets(l2.size_bytes, l2.ways, machine.line_bytes)),
            tlb: (core.tlb_entries > 0).then(|| {
                let sets = core.tlb_entries.div_ceil(TLB_WAYS);
                Sets::new(sets, TLB_WAYS as usize, Replacement::Lru)
            }),
            streams: core
                .prefetcher
                .as_ref()
                .map(|settings| Streams::new(settings, line_bits)),
            frames,
            places: None,
            line_bits,
        }
    }

    /// Empty, with a place in memory for each line of its buffer, and with frames for its page
    /// table.
    pub fn placed(machine: &MachineSettings, places: Box<[u64]>, tables: &[u32]) -> Self {
        let line_bits = machine.line_bytes.trailing_zeros();
        let pages = (places.len() as u64).div_ceil(PAGE_BYTES >> line_bits) as usize;
        let frames = std::iter::repeat_n(&0, pages).chain(tables).copied();
        Self {
            places: Some(places),
            ..Self::new(machine, frames.collect())
        }
    }

    /// Whether the TLB has a page; it has the page afterwards. `None` without a TLB.
    #[inline]
    pub fn find_page(&mut self, page: u64) -> Option<bool> {
        let tlb = self.tlb.as_mut()?;
        let found = tlb.reuse(page, 0).is_some();
        if !found {
            tlb.insert(page, 0);
        }
        Some(found)
    }

    /// Accesses a line of a page, if only the order of use changes: both are present, and a
    /// store finds the line dirty. Returns whether the line is dirty.
    #[inline]
    pub fn use_again(&mut self, line: u64, page: u64, store: bool) -> Option<bool> {
        let place = self.l1.find(line)?;
        let dirty = self.l1.is_dirty_at(place);
        if store && !dirty {
            return None;
        }
        if let Some(tlb) = &mut self.tlb {
            tlb.reuse(page, 0)?;
        }
        self.l1.touch(place, 0);
        Some(dirty)
    }

    /// Fetches instructions from a line of a page, if only the order of use changes: both are
    /// present. Returns whether they are.
    #[inline]
    pub fn fetch_again(&mut self, line: u64, page: u64) -> bool {
        let Some(l1i) = &mut self.l1i else {
            return true;
        };
        let Some(place) = l1i.find(line) else {
            return false;
        };
        if let Some(tlb) = &mut self.tlb {
            if tlb.reuse(page, 0).is_none() {
                return false;
            }
        }
        l1i.touch(place, 0);
        true
    }

    /// The line of a byte of the buffer and, if its page wasn't in the TLB, the line of the
    /// page-table entry.
    pub fn translate(&mut self, offset: u64) -> (u64, Option<u64>) {
        let page = offset >> PAGE_BITS;
        let frame = u64::from(self.frames[page as usize]);
        let address = frame << PAGE_BITS | offset & ((1 << PAGE_BITS) - 1);
        let found = self.find_page(page).unwrap_or(true);
        let entry = (!found).then(|| self.entry(page));
        if let Some(places) = &self.places {
            return (places[(offset >> self.line_bits) as usize], entry);
        }
        (address >> self.line_bits, entry)
    }

    /// The line with a page's table entry. The tables are in the last frames.
    fn entry(&self, page: u64) -> u64 {
        let tables = self.frames.len() as u64 - table_pages(self.frames.len() as u64);
        let frame = u64::from(self.frames[(tables + page / ENTRIES) as usize]);
        ((frame << PAGE_BITS) | ((page % ENTRIES) * ENTRY_BYTES)) >> self.line_bits
    }

    /// Looks up a line. A line in the second cache moves into the first; if this evicts a line
    /// that must go to the shared cache, `victim` has it.
    #[inline]
    pub fn look_up(&mut self, line: u64, store: bool) -> (Found, Option<Victim>) {
        let flags = if store { DIRTY } else { 0 };
        if self.l1.reuse(line, flags).is_some() {
            return (Found::L1, None);
        }
        let Some(l2) = &mut self.l2 else {
            return (Found::Nowhere, None);
        };
        if l2.reuse(line, 0).is_none() {
            return (Found::Nowhere, None);
        }
        (Found::L2, self.bring_to_l1(line, store))
    }

    /// Looks up a line of instructions. A line in the second cache is copied into the first.
    #[inline]
    pub fn look_up_code(&mut self, line: u64) -> Found {
        let Some(l1i) = &mut self.l1i else {
            return Found::L1;
        };
        if l1i.reuse(line, 0).is_some() {
            return Found::L1;
        }
        let Some(l2) = &mut self.l2 else {
            return Found::Nowhere;
        };
        if l2.reuse(line, 0).is_none() {
            return Found::Nowhere;
        }
        l1i.insert(line, 0);
        Found::L2
    }

    /// A line of instructions has arrived from outside. Returns the line that must be written
    /// back, if any.
    #[inline]
    pub fn fill_code(&mut self, line: u64) -> Option<Victim> {
        if let Some(l1i) = &mut self.l1i {
            if l1i.search(line).is_none() {
                l1i.insert(line, 0);
            }
        }
        let l2 = self.l2.as_mut()?;
        if l2.search(line).is_some() {
            return None;
        }
        l2.insert(line, 0).filter(|gone| gone.dirty)
    }

    /// An inclusive shared cache has dropped a line. Stores of other cores do not reach the
    /// instruction cache, which is not coherent.
    #[inline]
    pub fn drop_code(&mut self, line: u64) {
        if let Some(l1i) = &mut self.l1i {
            l1i.remove(line);
        }
    }

    /// A line has arrived from outside. Returns the line that must be written back, if any.
    #[inline]
    pub fn fill(&mut self, line: u64, store: bool) -> [Option<Victim>; 2] {
        let mut dropped = None;
        if let Some(l2) = &mut self.l2 {
            if l2.search(line).is_none() {
                dropped = l2.insert(line, 0).filter(|gone| gone.dirty);
            }
        }
        [dropped, self.bring_to_l1(line, store)]
    }

    #[inline]
    fn bring_to_l1(&mut self, line: u64, store: bool) -> Option<Victim> {
        let flags = if store { DIRTY } else { 0 };
        if self.l1.reuse_if_present(line, flags).is_some() {
            return None;
        }
        let gone = self.l1.insert(line, flags).filter(|gone| gone.dirty)?;
        let Some(l2) = &mut self.l2 else {
            return Some(gone);
        };
        if l2.reuse_if_present(gone.number, DIRTY).is_some() {
            return None;
        }
        l2.insert(gone.number, DIRTY).filter(|gone| gone.dirty)
    }

    /// Whether a line is here.
    #[inline]
    pub fn holds(&mut self, line: u64) -> bool {
        self.l1.search(line).is_some()
            || self.l2.as_mut().is_some_and(|l2| l2.search(line).is_some())
    }

    /// Whether a line is in the innermost cache.
    #[cfg(test)]
    pub fn holds_in_l1(&mut self, line: u64) -> bool {
        self.l1.search(line).is_some()
    }

    /// Whether a line is here, and a store would have to tell other cores.
    #[inline]
    pub fn has_clean(&mut self, line: u64) -> bool {
        match self.l1.find(line) {
            Some(place) => !self.l1.is_dirty_at(place),
            None => self.l2.as_mut().is_some_and(|l2| l2.search(line).is_some()),
        }
    }

    /// The next level gets the line's contents. Returns whether the line was dirty.
    #[inline]
    pub fn clean(&mut self, line: u64) -> bool {
        let mut dirty = self.l1.clean(line);
        if let Some(l2) = &mut self.l2 {
            dirty |= l2.clean(line);
        }
        dirty
    }

    /// A line leaves, if it is here. Returns whether it was dirty.
    #[inline]
    pub fn take_out(&mut self, line: u64) -> Option<bool> {
        let l1 = self.l1.remove(line).map(|gone| gone.dirty);
        let l2 = self.l2.as_mut().and_then(|l2| l2.remove(line));
        match (l1, l2.map(|gone| gone.dirty)) {
            (Some(one), Some(other)) => Some(one || other),
            (one, other) => one.or(other),
        }
    }

    /// A line leaves. Returns whether it was dirty here.
    pub fn invalidate(&mut self, line: u64) -> bool {
        self.take_out(line) == Some(true)
    }

    /// The prefetcher's request after a miss of `line`.
    #[inline]
    pub fn prefetches(&mut self, line: u64) -> Option<Ask> {
        self.streams.as_mut()?.train(line)
    }
}
