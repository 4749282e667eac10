// SPDX-License-Identifier: MIT OR Apache-2.0
//! The L1D's own prefetchers: the next line, and the stride of a load instruction.

use crate::geometry::{NextLine, Stride};
use crate::sets::NONE;
use crate::streams::PAGE_BITS;

/// The lines that were brought or first used last.
#[derive(Debug, Clone)]
pub struct Recent {
    lines: Box<[u64]>,
    oldest: usize,
    /// The one that was added last: mostly the line before.
    newest: u64,
    /// Lines per page, as a power of two.
    page_line_bits: u32,
}

impl Recent {
    /// An empty list, for lines of `2^line_bits` bytes.
    #[must_use]
    pub fn new(settings: &NextLine, line_bits: u32) -> Self {
        Self {
            lines: vec![NONE; settings.recent].into_boxed_slice(),
            oldest: 0,
            newest: NONE,
            page_line_bits: PAGE_BITS - line_bits,
        }
    }

    /// Forgets all lines.
    pub fn clear(&mut self) {
        self.lines.fill(NONE);
        self.newest = NONE;
    }

    /// An access brought `line` or was the first one to a prefetched line. Returns the line to
    /// fetch; a store fetches none.
    pub fn train(&mut self, line: u64, load: bool) -> Option<u64> {
        let before = line.wrapping_sub(1);
        // Line 0 has none before it, but an unused entry is that number.
        let ascends = line > 0 && (self.newest == before || self.lines.contains(&before));
        self.newest = line;
        self.lines[self.oldest] = line;
        self.oldest += 1;
        if self.oldest == self.lines.len() {
            self.oldest = 0;
        }
        let next = line + 1;
        let within = next >> self.page_line_bits == line >> self.page_line_bits;
        (load && ascends && within).then_some(next)
    }
}

/// The load instructions and their strides.
#[derive(Debug, Clone)]
pub struct Strides {
    settings: Stride,
    instructions: Box<[Instruction]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    number: u64,
    address: u64,
    /// In bytes, modulo 2^64.
    stride: u64,
    repeats: u64,
}

const UNUSED: Instruction = Instruction {
    number: NONE,
    address: 0,
    stride: 0,
    repeats: 0,
};

impl Strides {
    /// An empty table.
    #[must_use]
    pub fn new(settings: &Stride) -> Self {
        Self {
            settings: settings.clone(),
            instructions: vec![UNUSED; settings.instructions].into_boxed_slice(),
        }
    }

    /// Forgets all instructions.
    pub fn clear(&mut self) {
        self.instructions.fill(UNUSED);
    }

    /// The load instruction `number` loads from `address`. Returns the address to fetch.
    pub fn train(&mut self, number: u64, address: u64) -> Option<u64> {
        let at = number % self.instructions.len() as u64;
        let one = &mut self.instructions[at as usize];
        if one.number != number {
            *one = Instruction {
                number,
                address,
                ..UNUSED
            };
            return None;
        }
        let stride = address.wrapping_sub(one.address);
        one.address = address;
        if stride != one.stride {
            one.stride = stride;
            one.repeats = 0;
            return None;
        }
        one.repeats += 1;
        let next = address.wrapping_add(stride);
        let size = stride.min(stride.wrapping_neg());
        let possible = (1..=self.settings.largest_bytes).contains(&size)
            && next >> PAGE_BITS == address >> PAGE_BITS;
        (possible && one.repeats >= self.settings.repeats).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_after_the_line_before_fetches_the_next_within_the_page() {
        let mut recent = Recent::new(&NextLine { recent: 2 }, 6);
        assert_eq!(recent.train(0, true), None, "the first");
        assert_eq!(recent.train(1, true), Some(2));
        assert_eq!(recent.train(2, false), None, "a store");
        assert_eq!(recent.train(3, true), Some(4), "after a store");
        assert_eq!(recent.train(5, true), None, "a line was left out");
        assert_eq!(recent.train(4, true), Some(5), "3 is still remembered");
        assert_eq!(recent.train(3, true), None, "descending");
        for line in [62, 63] {
            assert_eq!(recent.train(line, true), None, "the page ends");
        }
        assert_eq!(recent.train(64, true), Some(65), "the line before counts");
        recent.clear();
        assert_eq!(recent.train(65, true), None);
    }

    #[test]
    fn two_streams_need_two_remembered_lines() {
        for (lines, fetched) in [(1, 0), (2, 2 * 7)] {
            let mut recent = Recent::new(&NextLine { recent: lines }, 6);
            let walk = (0..8).flat_map(|line| [line, 1000 + line]);
            let fetches = walk.filter_map(|line| recent.train(line, true));
            assert_eq!(fetches.count(), fetched);
        }
    }

    #[test]
    fn a_repeated_stride_is_followed_in_both_directions() {
        let mut strides = Strides::new(&Stride::ip_based());
        let mut train = |addresses: &[u64]| {
            let fetches = addresses.iter().map(|address| strides.train(7, *address));
            fetches.collect::<Vec<_>>()
        };
        let fetched = train(&[0, 64, 128, 192, 256, 264, 272]);
        let expected = [None, None, None, Some(256), Some(320), None, None];
        assert_eq!(fetched, expected);
        let down = train(&[4000, 3900, 3800, 3700, 3600]);
        assert_eq!(down, [None, None, None, Some(3600), Some(3500)]);
        assert_eq!(train(&[3600; 4]), [None; 4], "a stride of 0");
    }

    #[test]
    fn neither_a_large_stride_nor_another_page_is_fetched() {
        let mut strides = Strides::new(&Stride::ip_based());
        let mut fetched = |stride: u64| {
            strides.clear();
            let addresses = (0..20).map(|step| step * stride);
            addresses
                .filter_map(|address| strides.train(1, address))
                .count()
        };
        // Five pages of 4; the first page has a step less, and it repeats twice before it is used.
        assert_eq!(fetched(1024), 5 * 3 - 3 + 1 - 1);
        assert_eq!(fetched(2048), 10 - 2);
        assert_eq!(fetched(2049), 0);
    }

    #[test]
    fn instructions_with_one_entry_displace_each_other() {
        let mut strides = Strides::new(&Stride {
            instructions: 2,
            ..Stride::ip_based()
        });
        let mut both = |other: u64| {
            strides.clear();
            let steps = (0..8).flat_map(|step| [(0, 64 * step), (other, 8192 + 64 * step)]);
            steps
                .filter_map(|(number, address)| strides.train(number, address))
                .count()
        };
        assert_eq!(both(1), 2 * 5);
        assert_eq!(both(2), 0);
    }
}
