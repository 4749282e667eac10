// SPDX-License-Identifier: MIT OR Apache-2.0
//! A set-associative array of numbers: lines in a cache, pages in a TLB.

use std::ops::Range;

use crate::geometry::Replacement;
use crate::ways::{Many, Set};

/// The line differs from the next level's copy.
pub const DIRTY: u64 = 1;
/// A prefetch brought the line, and no access has used it since.
pub const PREFETCHED: u64 = 2;
/// Number of flag bits below a number.
pub(crate) const FLAGS: u32 = 2;

/// Not a number, and not a number with flags: lines and pages have fewer bits.
pub const NONE: u64 = u64::MAX;

/// More than the lines of an L1D, and few enough to stay in the L1D of the host.
const HINTS: usize = 1024;

/// Numbers with their flags, and the order of their last uses.
#[derive(Debug, Clone)]
pub struct Sets {
    table: Table,
    index: Index,
    ways: usize,
    /// For a number's lowest bits, the last place of a number with those bits: the first place
    /// to search, before the whole set.
    hints: Option<Box<[u32; HINTS]>>,
    /// A victim is a random one, or else the least recently used one.
    random: Option<fastrand::Rng>,
}

/// The sets. A place's number is its set's number times 8, 16 or the ways, plus its way.
#[derive(Debug, Clone)]
enum Table {
    /// Up to eight ways.
    Eight(Box<[Set<8>]>),
    /// Up to sixteen.
    Sixteen(Box<[Set<16>]>),
    Many(Many),
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
    /// `sets * ways` empty places, at least one.
    ///
    /// # Panics
    /// If there are more places than memory has addresses.
    #[must_use]
    pub fn new(sets: u64, ways: usize, replacement: Replacement) -> Self {
        let count = usize::try_from(sets).expect("a geometry that was checked");
        Self {
            table: match ways {
                ..=8 => Table::Eight(vec![Set::empty(ways); count].into_boxed_slice()),
                9..=16 => Table::Sixteen(vec![Set::empty(ways); count].into_boxed_slice()),
                _ => Table::Many(Many::empty(count * ways)),
            },
            index: Index::new(sets),
            ways,
            hints: Some(Box::new([0; HINTS])),
            random: match replacement {
                Replacement::Lru => None,
                // Any seed works, as long as it is the same in every run.
                Replacement::Random => Some(fastrand::Rng::with_seed(1)),
            },
        }
    }

    /// The same without hints, for a cache in which numbers are only searched.
    #[must_use]
    pub fn without_hints(mut self) -> Self {
        self.hints = None;
        self
    }

    /// Empties every place.
    pub fn clear(&mut self) {
        match &mut self.table {
            Table::Eight(sets) => sets.fill(Set::empty(self.ways)),
            Table::Sixteen(sets) => sets.fill(Set::empty(self.ways)),
            Table::Many(many) => many.clear(),
        }
    }

    /// The place of `number`, which is probably present: the hint is tried first.
    #[inline]
    pub fn find(&mut self, number: u64) -> Option<usize> {
        if let Some(hints) = &self.hints {
            let hint = hints[number as usize % HINTS] as usize;
            if (*self.place(hint) ^ number << FLAGS) >> FLAGS == 0 {
                return Some(hint);
            }
        }
        let place = self.search(number)?;
        self.hint(number, place);
        Some(place)
    }

    /// Whether the number in `place` has [`DIRTY`].
    #[inline]
    #[must_use]
    pub fn is_dirty_at(&mut self, place: usize) -> bool {
        *self.place(place) & DIRTY != 0
    }

    /// The place of `number`, which is probably absent.
    #[inline]
    #[must_use]
    pub fn search(&self, number: u64) -> Option<usize> {
        let Index::Masked(mask) = &self.index else {
            return self.search_in(number, self.index.of(number));
        };
        let set = mask.of(number);
        match &self.table {
            Table::Eight(sets) => Some(8 * set + sets[set].find(number << FLAGS)?),
            Table::Sixteen(sets) => Some(16 * set + sets[set].find(number << FLAGS)?),
            Table::Many(_) => self.search_in(number, set),
        }
    }

    /// Not inlined: a division or a loop needs registers that the frequent path would have to save.
    #[inline(never)]
    fn search_in(&self, number: u64, set: usize) -> Option<usize> {
        match &self.table {
            Table::Eight(sets) => Some(8 * set + sets[set].find(number << FLAGS)?),
            Table::Sixteen(sets) => Some(16 * set + sets[set].find(number << FLAGS)?),
            Table::Many(many) => {
                let mut places = self.ways * set..self.ways * (set + 1);
                places.find(|place| (many.places[*place] ^ number << FLAGS) >> FLAGS == 0)
            }
        }
    }

    #[inline]
    fn place(&mut self, place: usize) -> &mut u64 {
        match &mut self.table {
            Table::Eight(sets) => sets[place / 8].place(place % 8),
            Table::Sixteen(sets) => sets[place / 16].place(place % 16),
            Table::Many(many) => &mut many.places[place],
        }
    }

    #[inline]
    fn hint(&mut self, number: u64, place: usize) {
        if let Some(hints) = &mut self.hints {
            hints[number as usize % HINTS] = place as u32;
        }
    }

    /// Makes the number in `place` the most recently used, adds `flags` to it, and clears
    /// [`PREFETCHED`]. Returns the flags as they were.
    #[inline(never)]
    pub fn touch(&mut self, place: usize, flags: u64) -> u64 {
        let ordered = self.random.is_none();
        match &mut self.table {
            Table::Eight(sets) => sets[place / 8].reuse(place % 8, flags, ordered),
            Table::Sixteen(sets) => sets[place / 16].reuse(place % 16, flags, ordered),
            Table::Many(many) => many.reuse(place, flags),
        }
    }

    /// Makes `number` the most recently used, adds `flags` to it and clears [`PREFETCHED`], if it is present. Returns the flags as
    /// they were.
    #[inline]
    pub fn reuse(&mut self, number: u64, flags: u64) -> Option<u64> {
        let key = number << FLAGS;
        let ordered = self.random.is_none();
        if let Some(hints) = &self.hints {
            let hint = hints[number as usize % HINTS] as usize;
            let before = match &mut self.table {
                Table::Eight(sets) => sets[hint / 8].reuse_if(hint % 8, key, flags, ordered),
                Table::Sixteen(sets) => sets[hint / 16].reuse_if(hint % 16, key, flags, ordered),
                Table::Many(_) => None,
            };
            if before.is_some() {
                return before;
            }
        }
        let place = self.search(number)?;
        self.hint(number, place);
        Some(self.touch(place, flags))
    }

    /// The same for a number that is probably absent.
    #[inline]
    pub fn reuse_if_present(&mut self, number: u64, flags: u64) -> Option<u64> {
        let place = self.search(number)?;
        Some(self.touch(place, flags))
    }

    /// Puts a number that is not present in an empty place or in a victim's.
    #[inline]
    pub fn insert(&mut self, number: u64, flags: u64) -> Option<Victim> {
        let (Index::Masked(mask), None) = (&self.index, &self.random) else {
            return self.insert_within(0..self.ways, number, flags);
        };
        let set = mask.of(number);
        let key = number << FLAGS;
        let (place, before) = match &mut self.table {
            Table::Eight(sets) => {
                let way = sets[set].take_oldest(self.ways);
                (8 * set + way, sets[set].put(way, key, flags))
            }
            Table::Sixteen(sets) => {
                let way = sets[set].take_oldest(self.ways);
                (16 * set + way, sets[set].put(way, key, flags))
            }
            Table::Many(_) => return self.insert_within(0..self.ways, number, flags),
        };
        self.hint(number, place);
        victim(before)
    }

    /// The same within some of the set's ways, at least one.
    #[inline(never)]
    pub fn insert_within(
        &mut self,
        among: Range<usize>,
        number: u64,
        flags: u64,
    ) -> Option<Victim> {
        let set = self.index.of(number);
        let key = number << FLAGS;
        let ways = self.ways;
        let random = &mut self.random;
        let (place, before) = match &mut self.table {
            Table::Eight(sets) => {
                let way = sets[set].victim_among(among, ways, random);
                (8 * set + way, sets[set].put(way, key, flags))
            }
            Table::Sixteen(sets) => {
                let way = sets[set].victim_among(among, ways, random);
                (16 * set + way, sets[set].put(way, key, flags))
            }
            Table::Many(many) => {
                let place =
                    many.victim_among(ways * set + among.start..ways * set + among.end, random);
                (
                    place,
                    std::mem::replace(&mut many.places[place], key | flags),
                )
            }
        };
        self.hint(number, place);
        victim(before)
    }

    /// Clears a number's [`DIRTY`]. Returns whether it had that.
    #[inline]
    pub fn clean(&mut self, number: u64) -> bool {
        let Some(place) = self.search(number) else {
            return false;
        };
        let place = self.place(place);
        let dirty = *place & DIRTY != 0;
        *place &= !DIRTY;
        dirty
    }

    /// Removes a number, if it is present.
    #[inline]
    pub fn remove(&mut self, number: u64) -> Option<Victim> {
        let place = self.search(number)?;
        victim(self.empty(place))
    }

    #[inline(never)]
    fn empty(&mut self, place: usize) -> u64 {
        match &mut self.table {
            Table::Eight(sets) => sets[place / 8].empty_way(place % 8, self.ways),
            Table::Sixteen(sets) => sets[place / 16].empty_way(place % 16, self.ways),
            Table::Many(many) => many.empty_place(place),
        }
    }
}

#[inline]
fn victim(before: u64) -> Option<Victim> {
    (before != NONE).then_some(Victim {
        number: before >> FLAGS,
        dirty: before & DIRTY != 0,
    })
}

/// The set of a number: its remainder by the number of sets.
#[derive(Debug, Clone, Copy)]
enum Index {
    /// For a power of two: no division is needed.
    Masked(Mask),
    /// (Multiplying by a reciprocal made no measurable difference.)
    Divided { sets: u64 },
}

#[derive(Debug, Clone, Copy)]
struct Mask(u64);

impl Index {
    fn new(sets: u64) -> Self {
        if sets.is_power_of_two() {
            Self::Masked(Mask(sets - 1))
        } else {
            Self::Divided { sets }
        }
    }

    #[inline]
    fn of(self, number: u64) -> usize {
        match self {
            Self::Masked(mask) => mask.of(number),
            Self::Divided { sets } => (number % sets) as usize,
        }
    }
}

impl Mask {
    #[inline]
    fn of(self, number: u64) -> usize {
        (number & self.0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_the_remainder_whatever_the_number_of_sets() {
        for sets in (1..=130).chain([4096, 53248, 3 * 4096, 1 << 40, (1 << 40) - 1]) {
            let index = Index::new(sets);
            let edges = [0, 1, sets - 1, sets, sets + 1, u64::MAX >> 4, 7 * sets - 1];
            let random = std::iter::repeat_with(|| fastrand::u64(..1 << 60)).take(1000);
            for number in edges.into_iter().chain(random) {
                assert_eq!(index.of(number) as u64, number % sets, "{number} % {sets}");
            }
        }
    }

    #[test]
    fn the_least_recently_used_goes() {
        let mut sets = Sets::new(1, 3, Replacement::Lru);
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
            let mut sets = Sets::new(1, 4, replacement);
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
            let mut sets = Sets::new(1, 4, replacement);
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
