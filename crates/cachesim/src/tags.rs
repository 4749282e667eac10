// SPDX-License-Identifier: MIT OR Apache-2.0
//! A byte of each number in a set: most absent numbers are recognised without a look at the set itself.

/// A set of more ways has no tags.
const MOST_WAYS: usize = 16;
/// Each byte's lowest bit.
const ONES: u64 = 0x0101_0101_0101_0101;

/// The tags of all sets.
#[derive(Debug, Clone)]
pub struct Tags(Box<[[u64; MOST_WAYS / 8]]>);

impl Tags {
    /// Tags for empty sets; `None` for more than 16 ways.
    #[must_use]
    pub fn new(sets: usize, ways: usize) -> Option<Self> {
        (ways <= MOST_WAYS).then(|| Self(vec![[0; MOST_WAYS / 8]; sets].into_boxed_slice()))
    }

    /// `way` holds `number` now.
    #[inline]
    pub fn put(&mut self, set: usize, way: usize, number: u64) {
        let word = &mut self.0[set][way / 8];
        let shift = 8 * (way % 8);
        *word = *word & !(0xff << shift) | tag(number) << shift;
    }

    /// The first way of a set that holds a number. `holds` is asked about each way with the number's tag, sometimes about one
    /// without it, and sometimes about one above the set's `ways`, which holds nothing.
    #[inline]
    pub fn find(
        &self,
        set: usize,
        ways: usize,
        number: u64,
        holds: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let wanted = tag(number) * ONES;
        for (eight, word) in self.0[set].iter().enumerate().take(ways.div_ceil(8)) {
            let differs = word ^ wanted;
            // The lowest byte that is 0 has its highest bit set here; further ones may, too.
            let mut possible = differs.wrapping_sub(ONES) & !differs & ONES << 7;
            while possible != 0 {
                let way = 8 * eight + possible.trailing_zeros() as usize / 8;
                if holds(way) {
                    return Some(way);
                }
                possible &= possible - 1;
            }
        }
        None
    }
}

/// A number's tag. The numbers of a set differ by multiples of the number of sets; the product's highest byte
/// depends on all bits of a number.
#[inline]
fn tag(number: u64) -> u64 {
    // Knuth's multiplicative hash: 2^64 divided by the golden ratio (The Art of Computer Programming, volume 3, 6.4).
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_number_is_found_in_its_way_and_an_absent_one_is_seldom_looked_at() {
        for ways in 1..=MOST_WAYS {
            let mut tags = Tags::new(2, ways).unwrap();
            // The lines of a set of a cache with 4096 sets.
            let number = |nth: usize| 4096 * nth as u64 + 17;
            for way in 0..ways {
                tags.put(1, way, number(way));
            }
            let looks = Cell::new(0);
            for nth in 0..1000 {
                let holds = |way: usize| {
                    looks.set(looks.get() + 1);
                    way < ways && way == nth
                };
                let found = tags.find(1, ways, number(nth), holds);
                assert_eq!(found, (nth < ways).then_some(nth));
            }
            // One in 256 of the ways has an absent number's tag by chance; a word's unused bytes are 0.
            assert!(looks.get() < 1000 / 10, "{ways} ways: {}", looks.get());
        }
    }

    #[test]
    fn a_set_of_many_ways_has_no_tags() {
        assert!(Tags::new(1, MOST_WAYS + 1).is_none());
    }
}
