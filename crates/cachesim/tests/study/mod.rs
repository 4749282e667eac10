// SPDX-License-Identifier: MIT OR Apache-2.0
//! The accesses of the published mmap study, as its counts imply them (docs/results/mmap.md).
//!
//! Each of 2^20 steps picks a base, random or the one before plus 512, and walks 512 places of 64
//! bytes 16 times; it stores to the first place of each eight and loads the others. The base is
//! in bytes, not in lines: a step in order moves the walk by 8 lines, and the bases are below
//! the number of lines of 1 GiB, so that all walks are in the first 16 MiB.
//!
//! The program is not optimised: its variables are in memory. A place that is loaded takes nine
//! loads and three stores, one that is stored to eight and three.

use memwarden_cachesim::{Access, Model};

/// Outer steps.
pub const STEPS: u64 = 1 << 20;
/// Places of a walk.
pub const PLACES: u64 = 512;
/// Walks from each base.
pub const LOCALITY: u64 = 16;
/// Bases are smaller.
const BASES: u64 = (1 << 24) - PLACES;
/// Address of the buffer: at the beginning of a page.
const BUFFER: u64 = 1 << 32;

/// The order of the bases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Random,
    InOrder,
}

/// The walk.
#[derive(Debug, Clone, Copy)]
pub struct Study {
    pub order: Order,
    /// Bytes per unit of the base: 1, or 64 if the base were in lines.
    pub unit: u64,
    /// Whether the loop's variables are in two lines of the stack, or in one.
    pub two_lines: bool,
}

impl Study {
    /// The bases of `steps` steps, in bytes.
    pub fn bases(self, steps: u64) -> impl Iterator<Item = u64> {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut base = 0;
        (0..steps).map(move |_| {
            if self.order == Order::Random {
                base = rng.u64(..BASES);
            } else {
                base += PLACES;
                if base >= BASES {
                    base = 0;
                }
            }
            base * self.unit
        })
    }

    /// Feeds the accesses of the first `steps` steps.
    pub fn feed(self, model: &mut Model, steps: u64) {
        for base in self.bases(steps) {
            for _ in 0..LOCALITY {
                for place in 0..PLACES {
                    self.place(model, BUFFER + base + 64 * place, place % 8 == 0);
                }
            }
        }
    }

    /// One iteration of the innermost loop: the variables in the order in which a compiler
    /// without optimisation accesses them, and the place.
    fn place(self, model: &mut Model, address: u64, store: bool) {
        const STACK: u64 = (1 << 46) + 20 * 64;
        /// The size of a line is a global variable.
        const LINE_SIZE: u64 = (1 << 45) + 50 * 64;
        let counter = STACK + if self.two_lines { 64 } else { 56 };
        let (base, pointer, value, buffer) = (STACK + 48, STACK + 24, STACK + 16, STACK + 8);
        let mut load = |instruction, address, bytes| {
            model.access_by(instruction, address, bytes, Access::Load);
        };
        load(1, base, 4);
        load(2, counter, 4);
        load(3, LINE_SIZE, 4);
        load(4, buffer, 8);
        model.access(pointer, 8, Access::Store);
        model.access_by(5, counter, 4, Access::Load);
        model.access_by(6, pointer, 8, Access::Load);
        if store {
            model.access(address, 1, Access::Store);
        } else {
            model.access_by(7, address, 1, Access::Load);
            model.access(value, 1, Access::Store);
        }
        model.access_by(8, counter, 4, Access::Load);
        model.access(counter, 4, Access::Store);
        model.access_by(9, counter, 4, Access::Load);
    }

    /// Pages of 4 KiB in all walks, each counted once for each step.
    pub fn pages(self) -> u64 {
        let spans = self.bases(STEPS).map(pages);
        spans.map(|pages| pages.end() + 1 - pages.start()).sum()
    }

    /// Soft faults of the walk, if no page of 4 KiB of the buffer was touched before: one for each
    /// page, and a second one for a page whose first access is a load, since it gets the page of
    /// zeros until a store copies it.
    pub fn soft_faults(self) -> u64 {
        let mut faults = vec![0; 2 + (BASES as usize + 64 * PLACES as usize) / 4096];
        for base in self.bases(STEPS) {
            for page in pages(base) {
                // The first place of the walk in the page.
                let place = (page * 4096).saturating_sub(base).div_ceil(64);
                let fault = &mut faults[page as usize];
                if *fault == 0 {
                    *fault = 1 + u64::from(place % 8 != 0);
                }
            }
        }
        faults.iter().sum()
    }
}

fn pages(base: u64) -> std::ops::RangeInclusive<u64> {
    base / 4096..=(base + 64 * (PLACES - 1)) / 4096
}
