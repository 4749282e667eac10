// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C library's `qsort`: words as strings, and points by their distance from the origin.
//!
//! These are the two kinds of input of MiBench's qsort (Guthaus et al., "MiBench: A free, commercially representative
//! embedded benchmark suite", WWC-4, 2001). The library's own function is called, with a function pointer that compares
//! two records, to be comparable with MiBench: Rust's sort would inline the comparison and move memory in another way.
//! The memory traffic therefore depends on the library. glibc's qsort is a merge sort with its own array from malloc
//! (of pointers if records are long), which is not in the footprint. musl's qsort sorts in place.
//!
//! No two different records compare as equal, so every correct sort gives the same order, stable or not.

#![allow(unsafe_code)]

use std::cmp::Ordering;
use std::ffi::{c_int, c_void};

use super::{Application, Checksum, Program};
use crate::Descriptor;
use crate::splitmix::SplitMix;

/// A record to sort, in its memory layout.
trait Record: Copy + Send {
    /// Order of two records.
    fn order(&self, other: &Self) -> Ordering;
    /// Its identity for a checksum.
    fn words(&self) -> [u64; 2];
}

/// Sorts records as a C program does.
fn qsort<R: Record>(records: &mut [R]) {
    /// # Safety
    /// Both point to records.
    unsafe extern "C" fn compare<R: Record>(a: *const c_void, b: *const c_void) -> c_int {
        // SAFETY: the caller's promise.
        let (a, b) = unsafe { (&*a.cast::<R>(), &*b.cast::<R>()) };
        a.order(b) as c_int
    }
    // SAFETY: the count and the size describe the slice, whose records may be moved as bytes. The comparison gets two
    // records, or copies with the same alignment; it is a total order and does not panic.
    unsafe {
        libc::qsort(
            records.as_mut_ptr().cast(),
            records.len(),
            size_of::<R>(),
            Some(compare::<R>),
        );
    }
}

/// Records in their initial order, and space for sorting them.
struct Sorting<Input, R> {
    inputs: Vec<Input>,
    /// Converts an input to its record.
    record: fn(&Input) -> R,
    records: Vec<R>,
}

impl<Input, R: Record> Sorting<Input, R> {
    fn new(inputs: Vec<Input>, record: fn(&Input) -> R) -> Self {
        Self {
            records: inputs.iter().map(record).collect(),
            record,
            inputs,
        }
    }

    fn sort(&mut self) {
        for (record, input) in self.records.iter_mut().zip(&self.inputs) {
            *record = (self.record)(input);
        }
        qsort(&mut self.records);
    }
}

impl<Input: Send, R: Record> Program for Sorting<Input, R> {
    fn run(&mut self) -> u64 {
        self.sort();
        let mut checksum = Checksum::default();
        for word in self.records.iter().flat_map(Record::words) {
            checksum.add(word);
        }
        checksum.value()
    }

    fn footprint_bytes(&self) -> usize {
        size_of_val(&self.inputs[..]) + size_of_val(&self.records[..])
    }
}

/// Words to sort.
const WORDS: usize = 10_000;

/// Bytes of a word: a char array of fixed length, as in a table in C. 10,000 words take 1.28 MB.
const WORD_BYTES: usize = 128;

/// A word of 2 to 15 letters, padded with zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
struct Word([u8; WORD_BYTES]);

impl Word {
    /// A word of one to five syllables, so that many share a prefix, as in a language.
    fn random(random: &mut SplitMix) -> Self {
        const FIRST: &[u8] = b"bdfgklmnprstvz";
        const VOWEL: &[u8] = b"aeiou";
        const LAST: &[u8] = b"lnrst";
        let mut word = [0; WORD_BYTES];
        let mut length = 0;
        let mut push = |letter| {
            word[length] = letter;
            length += 1;
        };
        for _ in 0..=random.below(5) {
            push(FIRST[random.below(FIRST.len())]);
            push(VOWEL[random.below(VOWEL.len())]);
            if random.below(3) == 0 {
                push(LAST[random.below(LAST.len())]);
            }
        }
        Self(word)
    }
}

impl Record for Word {
    fn order(&self, other: &Self) -> Ordering {
        // SAFETY: both end with a zero.
        let order = unsafe { libc::strcmp(self.0.as_ptr().cast(), other.0.as_ptr().cast()) };
        order.cmp(&0)
    }

    /// Its first 16 bytes, which hold all its letters.
    fn words(&self) -> [u64; 2] {
        let words = u128::from_le_bytes(self.0[..16].try_into().expect("16 bytes"));
        [words as u64, (words >> 64) as u64]
    }
}

/// Points to sort.
const POINTS: usize = 50_000;

/// Coordinates are from -2^20 to below 2^20, so that a squared distance fits into 42 bits.
const COORDINATES: usize = 1 << 21;

/// A point in space; the unit is arbitrary.
type Point = [i32; 3];

fn random_point(random: &mut SplitMix) -> Point {
    [(); 3].map(|()| {
        let coordinate = i32::try_from(random.below(COORDINATES)).expect("below 2^21");
        coordinate - (1 << 20)
    })
}

/// A point with its distance: 24 bytes, so 50,000 take 1.2 MB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Distant {
    point: Point,
    /// The squared distance from the origin: an integer with the same order as the distance.
    squared: u64,
}

impl Distant {
    fn new(point: &Point) -> Self {
        let squares = point.map(|coordinate| u64::from(coordinate.unsigned_abs()).pow(2));
        Self {
            point: *point,
            squared: squares.iter().sum(),
        }
    }
}

impl Record for Distant {
    fn order(&self, other: &Self) -> Ordering {
        // Points at the same distance are ordered by their coordinates.
        let (own, others) = (self.squared, other.squared);
        own.cmp(&others).then_with(|| self.point.cmp(&other.point))
    }

    fn words(&self) -> [u64; 2] {
        let [x, y, z] = self.point.map(|axis| axis as u32);
        [u64::from(x) << 32 | u64::from(y), u64::from(z)]
    }
}

fn words(seed: u64) -> Sorting<Word, Word> {
    let mut random = SplitMix::new(seed);
    let words = (0..WORDS).map(|_| Word::random(&mut random));
    Sorting::new(words.collect(), |word| *word)
}

fn points(seed: u64) -> Sorting<Point, Distant> {
    let mut random = SplitMix::new(seed);
    let points = (0..POINTS).map(|_| random_point(&mut random));
    Sorting::new(points.collect(), Distant::new)
}

pub(super) static APPLICATIONS: [Application; 2] = [
    Application {
        descriptor: Descriptor {
            name: "qsort_small",
            help: "the C library's qsort of 10,000 words as strings",
            limits: &[],
        },
        program: |seed| Box::new(words(seed)),
    },
    Application {
        descriptor: Descriptor {
            name: "qsort_large",
            help: "the C library's qsort of 50,000 points by their distance from the origin",
            limits: &[],
        },
        program: |seed| Box::new(points(seed)),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_sorted_as_strings_and_none_is_lost() {
        for seed in 0..3 {
            let mut sorting = words(seed);
            sorting.sort();
            assert_eq!(sorting.records.len(), 10_000);
            // An independent source: Rust's sort on slices of bytes.
            let mut expected: Vec<_> = sorting.inputs.iter().map(|word| word.0).collect();
            expected.sort_unstable();
            assert!(sorting.records.iter().map(|word| word.0).eq(expected));
        }
    }

    #[test]
    fn points_are_sorted_by_distance_and_none_is_lost() {
        for seed in 0..3 {
            let mut sorting = points(seed);
            sorting.sort();
            assert_eq!(sorting.records.len(), 50_000);
            assert!(sorting.records.is_sorted_by_key(|record| record.squared));
            let distance =
                |point: &Point| -> i64 { point.map(|c| i64::from(c).pow(2)).iter().sum() };
            let mut expected = sorting.inputs.clone();
            expected.sort_unstable_by_key(|point| (distance(point), *point));
            assert!(
                sorting
                    .records
                    .iter()
                    .map(|record| record.point)
                    .eq(expected)
            );
        }
    }

    #[test]
    fn words_are_letters_and_then_zeros_and_the_checksum_sees_all_of_them() {
        for word in words(1).inputs {
            let length = word.0.iter().position(|letter| *letter == 0).unwrap();
            assert!((2..16).contains(&length), "{length} letters");
            assert!(word.0[..length].iter().all(u8::is_ascii_lowercase));
            assert!(word.0[length..].iter().all(|letter| *letter == 0));
        }
    }

    #[test]
    fn few_or_equal_records_are_sorted_too() {
        let far = |c| Distant::new(&[c, 0, 0]);
        for mut records in [vec![], vec![far(1)], vec![far(-2), far(2), far(0), far(2)]] {
            let mut expected = records.clone();
            expected.sort_by(Record::order);
            qsort(&mut records);
            assert_eq!(records, expected);
        }
    }
}
