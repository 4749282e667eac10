// SPDX-License-Identifier: MIT OR Apache-2.0
//! Walks over a mapping, in random or sequential order.
//!
//! An outer step picks a place and walks the span of lines there, as many times as the locality says; it stores to
//! every eighth line and loads the others. The walk is also available as a list of accesses ([`Walk::steps`] and
//! [`span`]), for cache models.

#![allow(unsafe_code)]

use memwarden_platform::clock;
use memwarden_platform::mapping::Mapping;

use crate::splitmix::SplitMix;
use crate::{Descriptor, Error, LINE_BYTES, Limit, Result, Stop};

/// Lines of a span: 32 KiB, the L1D size of most machines.
pub const SPAN_LINES: usize = 512;

/// Every eighth line is stored to, the others are loaded.
const STORE_EVERY: usize = 8;

/// Settings of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walk {
    /// Lines of the mapping.
    pub lines: usize,
    /// Outer steps.
    pub outer: u64,
    /// Walks over the span in each step.
    pub locality: u64,
    /// Seed of the random places; without it the spans follow each other, and the first follows the last.
    pub random: Option<u64>,
}

/// An access to a line of the mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Load,
    /// A store.
    Store,
}

/// The result of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Begin, on the monotonic clock.
    pub begin_ns: u64,
    /// Duration.
    pub elapsed_ns: u64,
    /// Completed outer steps: fewer than requested if stopped.
    pub steps: u64,
}

/// An endless sequence of the steps' first lines.
struct Places {
    last: usize,
    next: usize,
    random: Option<SplitMix>,
}

impl Places {
    fn next(&mut self) -> usize {
        if let Some(random) = &mut self.random {
            return random.below(self.last + 1);
        }
        let place = self.next;
        self.next = if place + SPAN_LINES > self.last {
            0
        } else {
            place + SPAN_LINES
        };
        place
    }
}

impl Walk {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn check(&self) -> Result<()> {
        if self.lines < SPAN_LINES {
            return Err(Error::Invalid(format!(
                "a mapping of {} lines is smaller than a span of {SPAN_LINES} ({} KiB)",
                self.lines,
                SPAN_LINES * LINE_BYTES / 1024
            )));
        }
        for (option, value) in [("outer", self.outer), ("locality", self.locality)] {
            let limit = DESCRIPTOR.limit(option);
            if !limit.contains(&value) {
                return Err(Error::Invalid(format!(
                    "--{option} {value}: give {} to {}",
                    limit.start(),
                    limit.end()
                )));
            }
        }
        Ok(())
    }

    /// Number of loads.
    #[must_use]
    pub fn loads(&self) -> u64 {
        self.of_each_step(SPAN_LINES - SPAN_LINES / STORE_EVERY)
    }

    /// Number of stores.
    #[must_use]
    pub fn stores(&self) -> u64 {
        self.of_each_step(SPAN_LINES / STORE_EVERY)
    }

    fn of_each_step(&self, lines: usize) -> u64 {
        self.outer * self.locality * lines as u64
    }

    fn places(&self) -> Places {
        Places {
            last: self.lines - SPAN_LINES,
            next: 0,
            random: self.random.map(SplitMix::new),
        }
    }

    /// Walks over the mapping until the walk is complete or stopped.
    ///
    /// # Errors
    /// When the mapping is too small.
    pub fn run(&self, mapping: &Mapping, stop: &Stop) -> Result<Outcome> {
        self.check()?;
        if mapping.bytes() / LINE_BYTES < self.lines {
            return Err(Error::Invalid(
                "the mapping is smaller than the walk".into(),
            ));
        }
        let mut places = self.places();
        let mut steps = 0;
        let begin_ns = clock::monotonic_ns();
        while steps < self.outer && !stop.requested() {
            let place = places.next();
            // SAFETY: a place is followed by a whole span, and the mapping has that many lines.
            let span = unsafe { mapping.start().add(place * LINE_BYTES) };
            for _ in 0..self.locality {
                // SAFETY: as above; the mapping's owner waits until the walk ends.
                unsafe { walk(span) };
            }
            steps += 1;
        }
        Ok(Outcome {
            begin_ns,
            elapsed_ns: clock::monotonic_ns() - begin_ns,
            steps,
        })
    }

    /// The first line of each outer step's span.
    pub fn steps(&self) -> impl Iterator<Item = usize> {
        let mut places = self.places();
        (0..self.outer).map(move |_| places.next())
    }
}

/// The access to each line of a span, in every walk over it.
#[must_use]
pub fn span() -> [Access; SPAN_LINES] {
    std::array::from_fn(|line| {
        if stores_to(line) {
            Access::Store
        } else {
            Access::Load
        }
    })
}

/// The instruction of the loop that accesses a line of a span, as a number from 0: the loop has one for each line of a group.
#[must_use]
pub fn instruction(line: usize) -> u64 {
    (line % STORE_EVERY) as u64
}

fn stores_to(line: usize) -> bool {
    line % STORE_EVERY == STORE_EVERY - 1
}

/// One walk over a span.
///
/// # Safety
/// `span` is followed by [`SPAN_LINES`] lines that may be read and written.
#[inline(never)]
unsafe fn walk(span: *mut u8) {
    for group in (0..SPAN_LINES).step_by(STORE_EVERY) {
        for line in group..group + STORE_EVERY {
            // SAFETY: within the span; lines are aligned.
            unsafe {
                let word = span.add(line * LINE_BYTES).cast::<u64>();
                if stores_to(line) {
                    word.write_volatile(line as u64);
                } else {
                    word.read_volatile();
                }
            }
        }
    }
}

/// Its description for the command line.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "mmap",
    help: "Walks over spans of a mapping, at random places or one after the other",
    limits: &[
        Limit {
            option: "outer",
            least: 1,
            most: 1 << 32,
        },
        Limit {
            option: "locality",
            least: 1,
            most: 1 << 16,
        },
    ],
};

#[cfg(test)]
mod tests {
    use memwarden_platform::mapping::page_bytes;

    use super::*;

    fn all(walk: &Walk) -> Vec<(usize, Access)> {
        let mut all = Vec::new();
        for place in walk.steps() {
            for _ in 0..walk.locality {
                all.extend(
                    span()
                        .into_iter()
                        .enumerate()
                        .map(|(line, what)| (place + line, what)),
                );
            }
        }
        all
    }

    #[test]
    fn loads_and_stores_are_as_many_as_the_formula_says() {
        for random in [None, Some(5)] {
            for (lines, outer, locality) in [(512, 1, 1), (513, 3, 2), (4096, 9, 16)] {
                let walk = Walk {
                    lines,
                    outer,
                    locality,
                    random,
                };
                let all = all(&walk);
                let count = |what| all.iter().filter(|(_, one)| *one == what).count() as u64;
                assert_eq!(count(Access::Load), walk.loads());
                assert_eq!(count(Access::Store), walk.stores());
                assert_eq!(walk.loads() + walk.stores(), 512 * outer * locality);
                assert_eq!(walk.loads(), 7 * walk.stores());
                assert!(all.iter().all(|(line, _)| *line < lines));
            }
        }
    }

    #[test]
    fn in_order_each_line_comes_once_before_any_comes_again() {
        let walk = Walk {
            lines: 4 * 512,
            outer: 8,
            locality: 1,
            random: None,
        };
        let lines: Vec<usize> = all(&walk).into_iter().map(|(line, _)| line).collect();
        let once: Vec<usize> = (0..4 * 512).collect();
        assert_eq!(lines, [once.clone(), once].concat());
        // The remainder at the end is shorter than a span and is not walked.
        let walk = Walk {
            lines: 2 * 512 + 511,
            ..walk
        };
        assert!(all(&walk).iter().all(|(line, _)| *line < 2 * 512));
    }

    #[test]
    fn random_places_are_those_of_the_seed_and_reach_every_line() {
        let walk = |random| Walk {
            lines: 1024,
            outer: 20_000,
            locality: 1,
            random: Some(random),
        };
        let first = |walk: &Walk| walk.steps().collect::<Vec<_>>();
        assert_eq!(first(&walk(3)), first(&walk(3)));
        assert_ne!(first(&walk(3)), first(&walk(4)));
        let mut places = first(&walk(3));
        places.sort_unstable();
        places.dedup();
        // 513 places in 20000 tries: the chance to miss a given one is e^-39.
        assert_eq!(places, (0..=512).collect::<Vec<_>>());
    }

    #[test]
    fn the_memory_is_written_where_the_list_says_and_nowhere_else() {
        let mapping = Mapping::anonymous(64 * page_bytes()).unwrap();
        let walk = Walk {
            lines: mapping.bytes() / LINE_BYTES,
            outer: 3,
            locality: 2,
            random: Some(11),
        };
        let outcome = walk.run(&mapping, &Stop::new()).unwrap();
        assert_eq!(outcome.steps, 3);
        let mut expected = vec![0; walk.lines];
        for place in walk.steps() {
            for line in (7..SPAN_LINES).step_by(8) {
                expected[place + line] = line as u64;
            }
        }
        for (line, expected) in expected.into_iter().enumerate() {
            // SAFETY: within the mapping.
            let found = unsafe {
                mapping
                    .start()
                    .add(line * LINE_BYTES)
                    .cast::<u64>()
                    .read_volatile()
            };
            assert_eq!(found, expected, "line {line}");
        }
    }

    #[test]
    fn a_stopped_walk_ends_early_and_a_bad_one_is_refused() {
        let mapping = Mapping::anonymous(SPAN_LINES * LINE_BYTES).unwrap();
        let walk = Walk {
            lines: SPAN_LINES,
            outer: 1 << 20,
            locality: 16,
            random: None,
        };
        let stop = Stop::new();
        stop.request();
        assert_eq!(walk.run(&mapping, &stop).unwrap().steps, 0);
        for (bad, why) in [
            (Walk { lines: 511, ..walk }, "smaller than a span"),
            (Walk { outer: 0, ..walk }, "--outer 0: give 1 to"),
            (
                Walk {
                    locality: 0,
                    ..walk
                },
                "--locality 0: give 1 to",
            ),
            (
                Walk {
                    lines: 1 << 20,
                    ..walk
                },
                "smaller than the walk",
            ),
        ] {
            let message = bad.run(&mapping, &stop).unwrap_err().to_string();
            assert!(message.contains(why), "{message}");
        }
    }
}
