// SPDX-License-Identifier: MIT OR Apache-2.0
//! A set-associative array of numbers: lines in a cache, pages in a TLB.

use std::ops::Range;

use crate::geometry::Replacement;
use crate::order::Order;
use crate::tags::Tags;

/// The line differs from the next level's copy.
pub const DIRTY: u64 = 1;
/// A prefetch brought the line, and no access has used it since.
pub const PREFETCHED: u64 = 2;
/// Number of flag bits below a number.
const FLAGS: u32 = 2;

/// Not a number, and not a number with flags: lines and pages have fewer bits.
pub const NONE: u64 = u64::MAX;

/// More than the lines of an L1D, and few enough to stay in the L1D of the host.
const HINTS: usize = 1024;

/// Numbers with their flags, and the order of their last uses.
#[derive(Debug, Clone)]
pub struct Sets {
    /// `number << FLAGS | flags`, set after set; [`NONE`] is an empty place. The places of a set are a power of two, of
    /// which the first `ways` are used.
    places: Box<[u64]>,
    ways: usize,
    /// The places of a set, as a power of two.
    set_bits: u32,
    index: Index,
    tags: Option<Tags>,
    /// For a number's lowest bits, the last place of a number with those bits: the first place
    /// to search, before the whole set.
    hints: Box<[u32]>,
    replacement: Chosen,
}

/// How a victim is chosen.
#[derive(Debug, Clone)]
enum Chosen {
    Oldest(Order),
    Random(fastrand::Rng),
}

/// The evicted number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// The line or page.
    pub number: u64,
    /// Whether it had [`DIRTY`].
    pub dirty: bool,
}

impl Sets {
    /// `sets * ways` empty places, at least one. The lowest `skipped_bits` of a number do not
    /// influence the choice of its set.
    ///
    /// # Panics
    /// If there are more places than memory has addresses.
    #[must_use]
    pub fn new(sets: u64, ways: usize, skipped_bits: u32, replacement: Replacement) -> Self {
        let set_bits = ways.next_power_of_two().trailing_zeros();
        let count = usize::try_from(sets).expect("a geometry that was checked");
        Self {
            places: vec![NONE; count << set_bits].into_boxed_slice(),
            ways,
            set_bits,
            index: Index::new(sets, skipped_bits),
            tags: Tags::new(count, ways),
            hints: Box::new([0; HINTS]),
            replacement: match replacement {
                Replacement::Lru => Chosen::Oldest(Order::new(count, ways)),
                // Any seed works, as long as it is the same in every run.
                Replacement::Random => Chosen::Random(fastrand::Rng::with_seed(1)),
            },
        }
    }

    /// The same without hints, for a cache in which numbers are only searched.
    #[must_use]
    pub fn without_hints(mut self) -> Self {
        self.hints = Box::new([0]);
        self
    }

    /// Empties every place.
    pub fn clear(&mut self) {
        self.places.fill(NONE);
        if let Chosen::Oldest(order) = &mut self.replacement {
            order.clear(self.ways);
        }
    }

    /// The place of `number`, which is probably present: the hint is tried first.
    #[inline]
    pub fn find(&mut self, number: u64) -> Option<usize> {
        let hint = self.hints[number as usize & (self.hints.len() - 1)] as usize;
        if self.places[hint] ^ number << FLAGS < 1 << FLAGS {
            return Some(hint);
        }
        let place = self.search(number)?;
        self.hint(number, place);
        Some(place)
    }

    /// Whether the number in `place` has [`DIRTY`].
    #[inline]
    #[must_use]
    pub fn is_dirty_at(&self, place: usize) -> bool {
        self.places[place] & DIRTY != 0
    }

    /// The place of `number`, which is probably absent.
    #[inline]
    #[must_use]
    pub fn search(&self, number: u64) -> Option<usize> {
        let set = self.index.of(number);
        let first = set << self.set_bits;
        let key = number << FLAGS;
        let places = &self.places[first..first + self.ways];
        let holds = |way: usize| {
            places
                .get(way)
                .is_some_and(|place| place ^ key < 1 << FLAGS)
        };
        let way = match &self.tags {
            Some(tags) => tags.find(set, self.ways, number, holds),
            None => (0..self.ways).find(|way| holds(*way)),
        };
        Some(first + way?)
    }

    #[inline]
    fn set_and_way(&self, place: usize) -> (usize, usize) {
        (place >> self.set_bits, place & ((1 << self.set_bits) - 1))
    }

    #[inline]
    fn hint(&mut self, number: u64, place: usize) {
        let at = number as usize & (self.hints.len() - 1);
        self.hints[at] = place as u32;
    }

    /// Makes the number in `place` the most recently used, adds `flags` to it, and clears
    /// [`PREFETCHED`]. Returns the flags as they were.
    #[inline]
    pub fn touch(&mut self, place: usize, flags: u64) -> u64 {
        let (set, way) = self.set_and_way(place);
        if let Chosen::Oldest(order) = &mut self.replacement {
            order.touch(set, way, self.ways);
        }
        let before = self.places[place];
        self.places[place] = before & !PREFETCHED | flags;
        before & (DIRTY | PREFETCHED)
    }

    /// Puts a number that is not present in an empty place or in a victim's.
    #[inline]
    pub fn insert(&mut self, number: u64, flags: u64) -> Option<Victim> {
        let set = self.index.of(number);
        let way = match &mut self.replacement {
            Chosen::Oldest(order) => order.take_oldest(set, self.ways),
            Chosen::Random(random) => {
                let first = set << self.set_bits;
                empty_or_random(&self.places[first..first + self.ways], random)
            }
        };
        self.replace(set << self.set_bits | way, number, flags)
    }

    /// The same within some of the set's ways, at least one.
    #[inline]
    pub fn insert_within(&mut self, ways: Range<usize>, number: u64, flags: u64) -> Option<Victim> {
        if ways.len() == self.ways {
            return self.insert(number, flags);
        }
        let set = self.index.of(number);
        let way = match &mut self.replacement {
            Chosen::Oldest(order) => order.take_oldest_within(set, ways, self.ways),
            Chosen::Random(random) => {
                let first = set << self.set_bits;
                let places = &self.places[first + ways.start..first + ways.end];
                ways.start + empty_or_random(places, random)
            }
        };
        self.replace(set << self.set_bits | way, number, flags)
    }

    #[inline]
    fn replace(&mut self, place: usize, number: u64, flags: u64) -> Option<Victim> {
        self.hint(number, place);
        let (set, way) = self.set_and_way(place);
        if let Some(tags) = &mut self.tags {
            tags.put(set, way, number);
        }
        let before = std::mem::replace(&mut self.places[place], number << FLAGS | flags);
        (before != NONE).then_some(Victim {
            number: before >> FLAGS,
            dirty: before & DIRTY != 0,
        })
    }

    /// Clears a number's [`DIRTY`]. Returns whether it had that.
    #[inline]
    pub fn clean(&mut self, number: u64) -> bool {
        let Some(place) = self.search(number) else {
            return false;
        };
        let dirty = self.is_dirty_at(place);
        self.places[place] &= !DIRTY;
        dirty
    }

    /// Removes a number, if it is present.
    #[inline]
    pub fn remove(&mut self, number: u64) -> Option<Victim> {
        let place = self.search(number)?;
        let before = std::mem::replace(&mut self.places[place], NONE);
        let (set, way) = self.set_and_way(place);
        if let Chosen::Oldest(order) = &mut self.replacement {
            order.forget(set, way, self.ways);
        }
        Some(Victim {
            number,
            dirty: before & DIRTY != 0,
        })
    }
}

/// The first empty place, or any.
fn empty_or_random(places: &[u64], random: &mut fastrand::Rng) -> usize {
    let empty = places.iter().position(|place| *place == NONE);
    empty.unwrap_or_else(|| random.usize(..places.len()))
}

/// The set of a number: its remainder by the number of sets. For a power of two no division is
/// needed. (For other numbers, multiplying by a reciprocal made no measurable difference.)
#[derive(Debug, Clone, Copy)]
struct Index {
    skipped_bits: u32,
    sets: u64,
    power_of_two: bool,
}

impl Index {
    fn new(sets: u64, skipped_bits: u32) -> Self {
        Self {
            skipped_bits,
            sets,
            power_of_two: sets.is_power_of_two(),
        }
    }

    #[inline]
    fn of(self, number: u64) -> usize {
        let number = number >> self.skipped_bits;
        let set = if self.power_of_two {
            number & (self.sets - 1)
        } else {
            number % self.sets
        };
        set as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_the_remainder_whatever_the_number_of_sets() {
        for sets in (1..=130).chain([4096, 53248, 3 * 4096, 1 << 40, (1 << 40) - 1]) {
            let index = Index::new(sets, 0);
            let edges = [0, 1, sets - 1, sets, sets + 1, u64::MAX >> 4, 7 * sets - 1];
            let random = std::iter::repeat_with(|| fastrand::u64(..1 << 60)).take(1000);
            for number in edges.into_iter().chain(random) {
                assert_eq!(index.of(number) as u64, number % sets, "{number} % {sets}");
            }
        }
    }

    #[test]
    fn the_least_recently_used_goes() {
        let mut sets = Sets::new(1, 3, 0, Replacement::Lru);
        for number in [1, 2, 3] {
            assert_eq!(sets.insert(number, 0), None);
        }
        let place = sets.find(1).unwrap();
        sets.touch(place, DIRTY);
        let victims: Vec<_> = (4..8)
            .map(|number| sets.insert(number, 0).unwrap())
            .collect();
        let clean = |number| Victim {
            number,
            dirty: false,
        };
        let dirty = Victim {
            number: 1,
            dirty: true,
        };
        assert_eq!(victims, [clean(2), clean(3), dirty, clean(4)]);
    }

    #[test]
    fn a_part_of_the_ways_replaces_what_is_in_it() {
        for replacement in [Replacement::Lru, Replacement::Random] {
            let mut sets = Sets::new(1, 4, 0, replacement);
            assert_eq!(sets.insert_within(0..1, 1, 0), None);
            for number in [2, 3, 4] {
                assert_eq!(sets.insert_within(1..4, number, 0), None);
            }
            let gone = sets.insert_within(1..4, 5, 0).unwrap().number;
            assert!((2..5).contains(&gone), "{gone}");
            assert!(sets.find(1).is_some());
            assert_eq!(sets.insert_within(0..1, 6, 0).unwrap().number, 1);
        }
    }

    #[test]
    fn an_empty_place_is_taken_before_any_victim() {
        for replacement in [Replacement::Lru, Replacement::Random] {
            let mut sets = Sets::new(1, 4, 0, replacement);
            for number in 0..4 {
                sets.insert(number, 0);
            }
            assert_eq!(
                sets.remove(2),
                Some(Victim {
                    number: 2,
                    dirty: false
                })
            );
            assert_eq!(sets.remove(2), None);
            assert_eq!(sets.insert(9, 0), None);
        }
    }
}
