// SPDX-License-Identifier: MIT OR Apache-2.0
//! A set-associative array of numbers: lines in a cache, pages in a TLB.

use std::ops::Range;

use crate::geometry::Replacement;

/// The line differs from the next level's copy.
pub const DIRTY: u64 = 1;
/// A prefetch brought the line, and no access has used it since.
pub const PREFETCHED: u64 = 2;
/// Number of flag bits below the time of the last use.
const FLAGS: u32 = 2;

/// Not a number: lines and pages have fewer bits.
pub const NONE: u64 = u64::MAX;

/// More than the lines of an L1D, and few enough to stay in the L1D of the host.
const HINTS: usize = 1024;

/// Numbers, and for each the time of its last use and its flags.
#[derive(Debug, Clone)]
pub struct Sets {
    /// Set after set, `ways` numbers each; [`NONE`] is an empty place.
    numbers: Box<[u64]>,
    /// `time << FLAGS | flags` for each place; 0 when empty, so that an empty
    /// place is the oldest.
    uses: Box<[u64]>,
    ways: usize,
    index: Index,
    /// Counts uses. At 10^9 per second its 62 bits last for a century.
    time: u64,
    /// For a number's lowest bits, the last place of a number with those bits: the first place
    /// to search, before the whole set.
    hints: Box<[u32; HINTS]>,
    /// Chooses the victim; `None` means the least recently used.
    random: Option<fastrand::Rng>,
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
        let places = usize::try_from(sets).expect("a geometry that was checked") * ways;
        Self {
            numbers: vec![NONE; places].into_boxed_slice(),
            uses: vec![0; places].into_boxed_slice(),
            ways,
            index: Index::new(sets, skipped_bits),
            time: 0,
            hints: Box::new([0; HINTS]),
            random: match replacement {
                Replacement::Lru => None,
                // Any seed works, as long as it is the same in every run.
                Replacement::Random => Some(fastrand::Rng::with_seed(1)),
            },
        }
    }

    /// Empties every place.
    pub fn clear(&mut self) {
        self.numbers.fill(NONE);
        self.uses.fill(0);
    }

    /// The place of `number`, which is probably present: the hint is tried first.
    #[inline]
    pub fn find(&mut self, number: u64) -> Option<usize> {
        let hint = self.hints[number as usize % HINTS] as usize;
        if self.numbers[hint] == number {
            return Some(hint);
        }
        self.search(number)
    }

    /// Whether the number in `place` has [`DIRTY`].
    #[inline]
    #[must_use]
    pub fn is_dirty_at(&self, place: usize) -> bool {
        self.uses[place] & DIRTY != 0
    }

    /// The place of `number`, which is probably absent.
    #[inline]
    pub fn search(&mut self, number: u64) -> Option<usize> {
        let first = self.first(number);
        let place = first + position(&self.numbers[first..first + self.ways], number)?;
        self.hint(number, place);
        Some(place)
    }

    fn hint(&mut self, number: u64, place: usize) {
        self.hints[number as usize % HINTS] = place as u32;
    }

    /// Makes the number in `place` the most recently used, adds `flags` to it, and clears
    /// [`PREFETCHED`]. Returns the flags as they were.
    #[inline]
    pub fn touch(&mut self, place: usize, flags: u64) -> u64 {
        self.time += 1;
        let before = self.uses[place];
        self.uses[place] = self.time << FLAGS | before & DIRTY | flags;
        before & (DIRTY | PREFETCHED)
    }

    /// Puts a number that is not present in an empty place or in a victim's.
    #[inline]
    pub fn insert(&mut self, number: u64, flags: u64) -> Option<Victim> {
        self.insert_within(0..self.ways, number, flags)
    }

    /// The same within some of the set's ways, at least one.
    #[inline]
    pub fn insert_within(&mut self, ways: Range<usize>, number: u64, flags: u64) -> Option<Victim> {
        let first = self.first(number) + ways.start;
        let uses = &self.uses[first..first + ways.len()];
        let (mut way, mut oldest) = (0, u64::MAX);
        for (other, used) in uses.iter().enumerate() {
            if *used < oldest {
                (way, oldest) = (other, *used);
            }
        }
        if oldest != 0 {
            if let Some(random) = &mut self.random {
                way = random.usize(..ways.len());
            }
        }
        let place = first + way;
        self.hint(number, place);
        self.time += 1;
        let before = std::mem::replace(&mut self.uses[place], self.time << FLAGS | flags);
        let replaced = std::mem::replace(&mut self.numbers[place], number);
        (before != 0).then_some(Victim {
            number: replaced,
            dirty: before & DIRTY != 0,
        })
    }

    /// Clears a number's [`DIRTY`]. Returns whether it had that.
    #[inline]
    pub fn clean(&mut self, number: u64) -> bool {
        let Some(place) = self.search(number) else {
            return false;
        };
        let dirty = self.uses[place] & DIRTY != 0;
        self.uses[place] &= !DIRTY;
        dirty
    }

    /// Removes a number, if it is present.
    #[inline]
    pub fn remove(&mut self, number: u64) -> Option<Victim> {
        let place = self.search(number)?;
        let dirty = self.uses[place] & DIRTY != 0;
        self.numbers[place] = NONE;
        self.uses[place] = 0;
        Some(Victim { number, dirty })
    }

    /// The first place of the number's set.
    #[inline]
    fn first(&self, number: u64) -> usize {
        self.index.of(number) * self.ways
    }
}

/// Where `number` is in a set. Four comparisons at once and one branch for all of them are
/// faster than four branches: misses compare with the whole set.
#[inline]
fn position(set: &[u64], number: u64) -> Option<usize> {
    let fours = set.chunks_exact(4);
    let rest = fours.remainder();
    for (at, four) in fours.clone().enumerate() {
        let [a, b, c, d] = [0, 1, 2, 3].map(|way| four[way] == number);
        if a | b | c | d {
            return Some(
                4 * at
                    + if a {
                        0
                    } else if b {
                        1
                    } else if c {
                        2
                    } else {
                        3
                    },
            );
        }
    }
    let at = rest.iter().position(|held| *held == number)?;
    Some(4 * fours.len() + at)
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
