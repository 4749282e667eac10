// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which way of a set was used least recently.

use std::ops::Range;

/// A way takes four bits of a set's word.
const BITS: usize = 4;
/// More ways than this do not fit in a word.
const MOST_PACKED: usize = 16;
/// Each way's lowest bit.
const ONES: u64 = 0x1111_1111_1111_1111;

/// The order of each set's ways. A way that was never used is the least recently used one, and of these the lowest.
#[derive(Debug, Clone)]
pub enum Order {
    /// A word for each set: its ways, the most recently used one in the lowest bits.
    Packed(Box<[u64]>),
    /// For sets of more ways: the time of each place's last use, or 0, and the present time. At 10^9 uses per second its
    /// 64 bits last for centuries.
    Times(Box<[u64]>, u64),
}

impl Order {
    /// The order of `sets` unused sets.
    #[must_use]
    pub fn new(sets: usize, ways: usize) -> Self {
        if ways <= MOST_PACKED {
            Self::Packed(vec![unused(ways); sets].into_boxed_slice())
        } else {
            Self::Times(vec![0; sets * ways].into_boxed_slice(), 0)
        }
    }

    /// No way has been used.
    pub fn clear(&mut self, ways: usize) {
        match self {
            Self::Packed(words) => words.fill(unused(ways)),
            Self::Times(times, _) => times.fill(0),
        }
    }

    /// A use of a set's way.
    #[inline]
    pub fn touch(&mut self, set: usize, way: usize, ways: usize) {
        match self {
            Self::Packed(words) => {
                let word = words[set];
                // Often it is the most recently used way already.
                if word & 0xf != way as u64 {
                    words[set] = to_front(word, way);
                }
            }
            Self::Times(times, now) => {
                *now += 1;
                times[set * ways + way] = *now;
            }
        }
    }

    /// The least recently used way of a set. It is then the most recently used one.
    #[inline]
    pub fn take_oldest(&mut self, set: usize, ways: usize) -> usize {
        match self {
            Self::Packed(words) => {
                let way = words[set] >> (BITS * (ways - 1));
                words[set] = (words[set] ^ way << (BITS * (ways - 1))) << BITS | way;
                way as usize
            }
            Self::Times(..) => self.take_oldest_within(set, 0..ways, ways),
        }
    }

    /// The same among some of a set's ways, at least one.
    pub fn take_oldest_within(&mut self, set: usize, among: Range<usize>, ways: usize) -> usize {
        let way = match self {
            Self::Packed(words) => {
                let oldest_first = (0..ways).rev();
                oldest_first
                    .map(|place| (words[set] >> (BITS * place)) as usize & 0xf)
                    .find(|way| among.contains(way))
            }
            Self::Times(times, _) => among.min_by_key(|way| times[set * ways + way]),
        };
        let way = way.expect("at least one way");
        self.touch(set, way, ways);
        way
    }

    /// A way that is empty again: it comes before all others.
    pub fn forget(&mut self, set: usize, way: usize, ways: usize) {
        match self {
            Self::Packed(words) => {
                let rest = to_front(words[set], way) >> BITS;
                words[set] = rest | (way as u64) << (BITS * (ways - 1));
            }
            Self::Times(times, _) => times[set * ways + way] = 0,
        }
    }
}

/// The word of a set without a use.
fn unused(ways: usize) -> u64 {
    (0..ways).fold(0, |word, way| word << BITS | way as u64)
}

/// The word with `way`, which is in it, in its lowest bits, and the more recently used ones behind it.
#[inline]
fn to_front(word: u64, way: usize) -> u64 {
    let way = way as u64;
    // The lowest four bits that are 0 have their highest bit set here; further ones may, too.
    let differs = word ^ (way * ONES);
    let zero = differs.wrapping_sub(ONES) & !differs & (ONES << (BITS - 1));
    let place = zero.trailing_zeros() & !3;
    let newer = word & !(u64::MAX << place);
    let older = word & (u64::MAX << place << BITS);
    older | newer << BITS | way
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_times_choose_the_same_ways() {
        let mut random = fastrand::Rng::with_seed(7);
        for ways in 1..=MOST_PACKED {
            let sets = 3;
            let mut packed = Order::new(sets, ways);
            assert!(matches!(packed, Order::Packed(_)));
            let mut times = Order::Times(vec![0; sets * ways].into_boxed_slice(), 0);
            // One way a set, at most, is empty again at a time: among several, words and times choose differently.
            let mut forgotten = [false; 3];
            for step in 0..2000 {
                let (set, way) = (random.usize(..sets), random.usize(..ways));
                let start = random.usize(..ways);
                let among = start..random.usize(start + 1..=ways);
                let whole = among.len() == ways;
                let what = format!("{ways} ways, step {step}");
                match random.u8(..4) {
                    0 => {
                        packed.touch(set, way, ways);
                        times.touch(set, way, ways);
                    }
                    1 => {
                        let oldest = packed.take_oldest(set, ways);
                        assert_eq!(oldest, times.take_oldest(set, ways), "{what}");
                        forgotten[set] = false;
                    }
                    2 => {
                        let oldest = packed.take_oldest_within(set, among.clone(), ways);
                        let same = times.take_oldest_within(set, among, ways);
                        assert_eq!(oldest, same, "{what}");
                        forgotten[set] &= !whole;
                    }
                    _ if !forgotten[set] && step > 50 * ways => {
                        packed.forget(set, way, ways);
                        times.forget(set, way, ways);
                        forgotten[set] = true;
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn many_ways_have_an_order_too() {
        let ways = MOST_PACKED + 4;
        let mut order = Order::new(2, ways);
        for way in 0..ways {
            assert_eq!(order.take_oldest(1, ways), way);
        }
        order.touch(1, 0, ways);
        order.forget(1, 9, ways);
        assert_eq!(order.take_oldest(1, ways), 9);
        assert_eq!(order.take_oldest(1, ways), 1);
        assert_eq!(order.take_oldest_within(1, 10..12, ways), 10);
        order.clear(ways);
        assert_eq!(order.take_oldest(1, ways), 0);
    }
}
