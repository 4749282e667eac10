// SPDX-License-Identifier: MIT OR Apache-2.0
//! One set of a cache or TLB: its numbers, a byte of each, by which most absent numbers are recognised, and the order of the ways'
//! last uses. A way that was never used is the least recently used one, and of these the lowest.

use std::ops::Range;

use fastrand::Rng;

use crate::sets::{FLAGS, NONE, PREFETCHED};

/// The bits of a way in the word of the order.
const ORDER_BITS: usize = 4;
/// The lowest bit of each way in the word of the order.
const ORDER_ONES: u64 = 0x1111_1111_1111_1111;
/// The lowest bit of each tag in a word of eight.
const TAG_ONES: u64 = 0x0101_0101_0101_0101;

/// A set of at most `N` ways: 8 or 16. A key is a number, shifted so that there is room for its flags.
#[derive(Debug, Clone, Copy)]
pub struct Set<const N: usize> {
    /// A byte of the number in each way.
    tags: [u8; N],
    /// The ways, the most recently used one in the lowest bits.
    order: u64,
    /// The numbers with their flags; [`NONE`] is an empty place.
    places: [u64; N],
}

impl<const N: usize> Set<N> {
    /// An empty set of `ways` ways.
    #[must_use]
    pub fn empty(ways: usize) -> Self {
        Self {
            tags: [0; N],
            order: (0..ways).fold(0, |word, way| word << ORDER_BITS | way as u64),
            places: [NONE; N],
        }
    }

    /// What is in a way; a way above the set's ways has nothing.
    #[inline]
    pub fn place(&mut self, way: usize) -> &mut u64 {
        &mut self.places[way & (N - 1)]
    }

    /// The way that holds the number of `key`.
    #[inline]
    pub fn find(&self, key: u64) -> Option<usize> {
        let wanted = tag(key) * TAG_ONES;
        for (eight, tags) in self.tags.chunks_exact(8).enumerate() {
            let tags = u64::from_le_bytes(tags.try_into().expect("eight"));
            let mut possible = zero_fields(tags ^ wanted, TAG_ONES, 8);
            while possible != 0 {
                let way = 8 * eight + possible.trailing_zeros() as usize / 8;
                if self.holds(way, key) {
                    return Some(way);
                }
                possible &= possible - 1;
            }
        }
        None
    }

    /// Puts a key with its flags in `way`. Returns what was there.
    #[inline]
    pub fn put(&mut self, way: usize, key: u64, flags: u64) -> u64 {
        self.tags[way & (N - 1)] = tag(key) as u8;
        std::mem::replace(self.place(way), key | flags)
    }

    #[inline]
    fn holds(&self, way: usize, key: u64) -> bool {
        (self.places[way & (N - 1)] ^ key) >> FLAGS == 0
    }

    /// A use of a way, if it has the number of `key`. Returns its flags as they were.
    #[inline]
    pub fn reuse_if(&mut self, way: usize, key: u64, flags: u64, ordered: bool) -> Option<u64> {
        self.holds(way, key)
            .then(|| self.reuse(way, flags, ordered))
    }

    /// A use of a way, in the order of uses if that is kept. It gets `flags`. Returns its flags as they were.
    #[inline]
    pub fn reuse(&mut self, way: usize, flags: u64, ordered: bool) -> u64 {
        // Often it is the most recently used way already.
        if ordered && self.order & 0xf != way as u64 {
            self.order = to_front(self.order, way);
        }
        use_place(self.place(way), flags)
    }

    /// The least recently used way. It is then the most recently used one.
    #[inline]
    pub fn take_oldest(&mut self, ways: usize) -> usize {
        let oldest = ORDER_BITS * (ways - 1);
        let way = self.order >> oldest;
        self.order = (self.order ^ way << oldest) << ORDER_BITS | way;
        way as usize
    }

    /// A way for a new number among some, at least one: an empty one, or a random one or the least recently used one.
    pub fn victim_among(
        &mut self,
        among: Range<usize>,
        ways: usize,
        random: &mut Option<Rng>,
    ) -> usize {
        if let Some(random) = random {
            return among.start + empty_or_random(&self.places[among], random);
        }
        let oldest_first = (0..ways).rev();
        let way = oldest_first
            .map(|place| (self.order >> (ORDER_BITS * place)) as usize & 0xf)
            .find(|way| among.contains(way))
            .expect("at least one way");
        self.order = to_front(self.order, way);
        way
    }

    /// Empties a way: it comes before all others now. Returns what was there.
    pub fn empty_way(&mut self, way: usize, ways: usize) -> u64 {
        let rest = to_front(self.order, way) >> ORDER_BITS;
        self.order = rest | (way as u64) << (ORDER_BITS * (ways - 1));
        std::mem::replace(self.place(way), NONE)
    }
}

/// Sets of any number of ways.
#[derive(Debug, Clone)]
pub struct Many {
    /// The numbers with their flags; [`NONE`] is an empty place.
    pub places: Box<[u64]>,
    /// The time of each place's last use, or 0. At 10^9 uses per second 64 bits last for centuries.
    last_use: Box<[u64]>,
    now: u64,
}

impl Many {
    /// `places` empty places.
    #[must_use]
    pub fn empty(places: usize) -> Self {
        Self {
            places: vec![NONE; places].into_boxed_slice(),
            last_use: vec![0; places].into_boxed_slice(),
            now: 0,
        }
    }

    /// Empties every place.
    pub fn clear(&mut self) {
        self.places.fill(NONE);
        self.last_use.fill(0);
    }

    /// A use of a place, which gets `flags`. Returns its flags as they were.
    pub fn reuse(&mut self, place: usize, flags: u64) -> u64 {
        self.touch(place);
        use_place(&mut self.places[place], flags)
    }

    fn touch(&mut self, place: usize) {
        self.now += 1;
        self.last_use[place] = self.now;
    }

    /// The place for a new number among some, at least one. It is used now.
    pub fn victim_among(&mut self, among: Range<usize>, random: &mut Option<Rng>) -> usize {
        if let Some(random) = random {
            return among.start + empty_or_random(&self.places[among], random);
        }
        let place = among
            .min_by_key(|place| self.last_use[*place])
            .expect("at least one place");
        self.touch(place);
        place
    }

    /// Empties a place: it comes before all others now. Returns what was there.
    pub fn empty_place(&mut self, place: usize) -> u64 {
        self.last_use[place] = 0;
        std::mem::replace(&mut self.places[place], NONE)
    }
}

/// The place gets `flags` and loses [`PREFETCHED`]. Returns its flags as they were.
#[inline]
fn use_place(place: &mut u64, flags: u64) -> u64 {
    let before = *place;
    *place = before & !PREFETCHED | flags;
    before & ((1 << FLAGS) - 1)
}

/// The first empty place, or any.
#[inline(never)]
fn empty_or_random(places: &[u64], random: &mut Rng) -> usize {
    let empty = places.iter().position(|place| *place == NONE);
    empty.unwrap_or_else(|| random.usize(..places.len()))
}

/// A key's tag. The numbers of a set differ by multiples of the number of sets; the product's highest byte
/// depends on all bits of a number.
#[inline]
fn tag(key: u64) -> u64 {
    // Knuth's multiplicative hash: 2^64 divided by the golden ratio (The Art of Computer Programming, volume 3, 6.4).
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56
}

/// A word with the highest bit set of the lowest field that is 0, and perhaps of further ones; 0 if no field is 0. `ones` has the
/// lowest bit of each field.
#[inline]
fn zero_fields(word: u64, ones: u64, field_bits: usize) -> u64 {
    word.wrapping_sub(ones) & !word & ones << (field_bits - 1)
}

/// The order with `way`, which is in it, in its lowest bits, and the more recently used ones behind it.
#[inline]
fn to_front(order: u64, way: usize) -> u64 {
    let way = way as u64;
    let place =
        zero_fields(order ^ (way * ORDER_ONES), ORDER_ONES, ORDER_BITS).trailing_zeros() & !3;
    let newer = order & !(u64::MAX << place);
    let older = order & (u64::MAX << place << ORDER_BITS);
    older | newer << ORDER_BITS | way
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of a set and of as many places with times.
    fn the_same_ways<const N: usize>(random: &mut Rng) {
        for ways in N - 7..=N {
            let mut set = Set::<N>::empty(ways);
            let mut many = Many::empty(ways);
            // One way, at most, is empty again at a time: among several, words and times choose differently.
            let mut emptied = false;
            for step in 0..1000 {
                let way = random.usize(..ways);
                let start = random.usize(..ways);
                let among = start..random.usize(start + 1..=ways);
                let what = format!("{ways} ways, step {step}");
                match random.u8(..4) {
                    0 => {
                        set.reuse(way, 0, true);
                        many.reuse(way, 0);
                    }
                    1 => {
                        let oldest = set.take_oldest(ways);
                        assert_eq!(oldest, many.victim_among(0..ways, &mut None), "{what}");
                        emptied = false;
                    }
                    2 => {
                        emptied &= among.len() != ways;
                        let oldest = set.victim_among(among.clone(), ways, &mut None);
                        assert_eq!(oldest, many.victim_among(among, &mut None), "{what}");
                    }
                    _ if !emptied && step > 20 * ways => {
                        set.empty_way(way, ways);
                        many.empty_place(way);
                        emptied = true;
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn words_and_times_choose_the_same_ways() {
        let mut random = Rng::with_seed(7);
        the_same_ways::<8>(&mut random);
        the_same_ways::<16>(&mut random);
    }

    #[test]
    fn many_places_have_an_order_too() {
        let mut many = Many::empty(20);
        for place in 0..20 {
            assert_eq!(many.victim_among(0..20, &mut None), place);
        }
        many.reuse(0, 0);
        many.empty_place(9);
        assert_eq!(many.victim_among(0..20, &mut None), 9);
        assert_eq!(many.victim_among(0..20, &mut None), 1);
        assert_eq!(many.victim_among(10..12, &mut None), 10);
        many.clear();
        assert_eq!(many.victim_among(0..20, &mut None), 0);
    }

    /// A number is found in its way, and an absent one has the tag of a way by chance only.
    fn found_in_its_way<const N: usize>() {
        for ways in N - 7..=N {
            let mut set = Set::<N>::empty(ways);
            // The lines of a set of a cache with 4096 sets.
            let key = |nth: usize| (4096 * nth as u64 + 17) << FLAGS;
            for way in 0..ways {
                assert_eq!(set.put(way, key(way), way as u64 & 3), NONE);
            }
            for nth in 0..1000 {
                assert_eq!(set.find(key(nth)), (nth < ways).then_some(nth));
            }
            let absent = ways..1000;
            let known = |nth: &usize| set.tags[..ways].contains(&(tag(key(*nth)) as u8));
            // One in 256 for each way.
            let by_chance = absent.filter(known).count();
            assert!(by_chance < 100, "{ways} ways: {by_chance}");
        }
    }

    #[test]
    fn a_number_is_found_in_its_way_and_an_absent_one_is_seldom_looked_at() {
        found_in_its_way::<8>();
        found_in_its_way::<16>();
    }
}
