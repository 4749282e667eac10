// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages in use while other pages stream through: counts how often pages in use must be read back.
//!
//! Each hot page is read once between the parts of a pass over the cold pages. With less memory than both need, the
//! kernel must reclaim pages, and the faults show which ones.

#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use memwarden_platform::forked::{Ended, Forked};
use memwarden_platform::mapping::{Mapping, page_bytes};
use memwarden_platform::shared::SharedWords;
use memwarden_platform::usage::Usage;

use crate::{Descriptor, Error, Limit, Result, Stop};

/// Parts of a pass over the cold pages; the hot pages are used once in each part.
const PARTS: usize = 64;

/// Sizes and passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Bytes of the hot pages.
    pub hot_bytes: usize,
    /// Bytes of the cold pages.
    pub cold_bytes: usize,
    /// Counted passes; one pass before them warms up.
    pub rounds: u64,
}

/// The result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Hot pages that were read back from the swap.
    pub hot_major_faults: u64,
    /// Touches of hot pages.
    pub hot_touches: u64,
    /// Cold pages that were read back from the swap.
    pub cold_major_faults: u64,
    /// Touches of cold pages.
    pub cold_touches: u64,
}

impl Config {
    /// Checks the sizes.
    ///
    /// # Errors
    /// When there are too few pages.
    pub fn check(&self) -> Result<()> {
        let page = page_bytes();
        if self.hot_bytes < page || self.cold_bytes < page * PARTS {
            return Err(Error::Invalid(format!(
                "give at least one page in use and {PARTS} that stream through"
            )));
        }
        Ok(())
    }
}

/// The same workload in a child process, which begins on request. Its memory is separate, so that it can be limited.
#[derive(Debug)]
pub struct Running {
    child: Forked,
    words: SharedWords,
}

/// Indices of the shared words: permission to begin, completion, and the result.
const GO: usize = 0;
const DONE: usize = 1;
const FIGURES: usize = 2;

impl Running {
    /// Starts the child, which maps nothing yet.
    ///
    /// # Errors
    /// When the settings are invalid, or the process limit is reached.
    pub fn start(config: Config, stop: &Stop) -> Result<Self> {
        config.check()?;
        let words = SharedWords::create(FIGURES + 4)?;
        let work = || {
            while words[GO].load(Ordering::Acquire) == 0 {
                // SAFETY: plain numbers.
                unsafe { libc::usleep(200) };
            }
            let Ok(outcome) = run(&config, stop) else {
                return 1;
            };
            let figures = [
                outcome.hot_major_faults,
                outcome.hot_touches,
                outcome.cold_major_faults,
                outcome.cold_touches,
            ];
            for (word, figure) in words[FIGURES..].iter().zip(figures) {
                word.store(figure, Ordering::Relaxed);
            }
            words[DONE].store(1, Ordering::Release);
            0
        };
        // SAFETY: the closure maps and touches its own memory, calls getrusage, and writes the words. It allocates only
        // for error texts, after a failed system call.
        let child = unsafe { Forked::start(work) }?;
        Ok(Self { child, words })
    }

    /// Its process ID.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Lets the child begin.
    pub fn go(&self) {
        self.words[GO].store(1, Ordering::Release);
    }

    /// How the child ended, with the result if it was complete; `None` while it runs.
    pub fn ended(&mut self) -> Option<(Ended, Option<Outcome>)> {
        let ended = self.child.ended()?;
        let word = |number: usize| self.words[FIGURES + number].load(Ordering::Relaxed);
        let done = self.words[DONE].load(Ordering::Acquire) == 1;
        let outcome = done.then(|| Outcome {
            hot_major_faults: word(0),
            hot_touches: word(1),
            cold_major_faults: word(2),
            cold_touches: word(3),
        });
        Some((ended, outcome))
    }
}

/// Uses the hot pages while the cold pages stream through.
///
/// # Errors
/// When memory is short, or the settings are invalid.
pub fn run(config: &Config, stop: &Stop) -> Result<Outcome> {
    config.check()?;
    let page = page_bytes();
    let (hot, cold) = (filled(config.hot_bytes)?, filled(config.cold_bytes)?);
    let (hot_pages, part_pages) = (hot.bytes() / page, cold.bytes() / page / PARTS);
    let mut outcome = Outcome::default();
    for round in 0..=config.rounds {
        for part in 0..PARTS {
            if stop.requested() {
                return Ok(outcome);
            }
            let before = Usage::of_thread()?;
            for number in part * part_pages..(part + 1) * part_pages {
                // SAFETY: within the mapping, which is ours and writable.
                unsafe { cold.start().add(number * page).write_volatile(2) };
            }
            let between = Usage::of_thread()?;
            for number in 0..hot_pages {
                // SAFETY: within the mapping, which is ours and readable.
                unsafe { hot.start().add(number * page).read_volatile() };
            }
            let after = Usage::of_thread()?;
            if round > 0 {
                outcome.cold_major_faults += between.since(&before).major_faults;
                outcome.cold_touches += part_pages as u64;
                outcome.hot_major_faults += after.since(&between).major_faults;
                outcome.hot_touches += hot_pages as u64;
            }
        }
    }
    Ok(outcome)
}

fn filled(bytes: usize) -> Result<Mapping> {
    let mapping = Mapping::anonymous(bytes)?;
    // SAFETY: the whole mapping, which is ours and writable.
    unsafe { mapping.start().write_bytes(1, mapping.bytes()) };
    Ok(mapping)
}

/// Its description for the command line.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "in-use",
    help: "Uses some pages while others stream through, and counts those that must be read back",
    limits: &[Limit {
        option: "rounds",
        least: 1,
        most: 10_000,
    }],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touches_are_as_many_as_the_formula_says() {
        let page = page_bytes();
        let config = Config {
            hot_bytes: 3 * page,
            cold_bytes: 2 * PARTS * page,
            rounds: 2,
        };
        let outcome = run(&config, &Stop::new()).unwrap();
        assert_eq!(outcome.hot_touches, 3 * 64 * 2);
        assert_eq!(outcome.cold_touches, 2 * 64 * 2);
        let mut running = Running::start(config, &Stop::new()).unwrap();
        running.go();
        let ended = loop {
            if let Some(ended) = running.ended() {
                break ended;
            }
            std::thread::yield_now();
        };
        assert_eq!(ended.0, Ended::Exited(0));
        assert_eq!(ended.1.map(|outcome| outcome.hot_touches), Some(3 * 64 * 2));
        let stop = Stop::new();
        stop.request();
        assert_eq!(run(&config, &stop).unwrap(), Outcome::default());
        let nothing = Config {
            hot_bytes: 0,
            ..config
        };
        assert!(run(&nothing, &stop).is_err());
    }
}
