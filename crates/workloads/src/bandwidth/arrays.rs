// SPDX-License-Identifier: MIT OR Apache-2.0
//! A buffer divided into arrays, touched repeatedly by a [`Kind`]'s loop.

#![allow(unsafe_code)]

use memwarden_platform::clock;
use memwarden_platform::mapping::Mapping;

use super::{INITIAL, Kind, Load};
use crate::buffer::{LINES_A_LOOK, Lines, PREPARED, remote_share};
use crate::{BufferConfig, Error, LINE_BYTES, Result, Stop, ratio};

/// Lines between checks of `stop`: 256 KiB, about 10 us of fast memory and a few
/// milliseconds on a core throttled to 100 MB/s.
const LINES_A_STEP: u64 = 4096;

pub(super) struct Arrays {
    kind: &'static Kind,
    /// Owns the memory of `starts`.
    mapping: Mapping,
    starts: [*mut u64; 3],
    lines: Lines,
    stride: usize,
    /// The next line: its run, and its place within. Kept, so that no division stands between two loops.
    next: (usize, usize),
    done: u64,
    sum: u64,
}

impl Arrays {
    pub(super) fn new(kind: &'static Kind, config: &BufferConfig, stop: &Stop) -> Result<Self> {
        if kind.arrays > 1 && config.bank_mask.is_some() {
            return Err(Error::Invalid(format!(
                "{} works on several arrays, and a bank mask chooses lines of one: take read, write or readwrite",
                kind.descriptor.name
            )));
        }
        let share = BufferConfig {
            bytes: config.bytes / kind.arrays,
            ..config.clone()
        };
        let mapping = config.map(stop)?;
        let lines = share.lines(&mapping)?;
        if lines.len() == 0 {
            return Err(Error::Invalid(format!(
                "the buffer is smaller than a line for each of {} arrays",
                kind.arrays
            )));
        }
        // A multiple of the stride, so that each array begins at a cache line.
        let apart = share.bytes / config.stride * config.stride;
        // SAFETY: the offsets of the arrays in use lie within the mapping; those
        // of the others are never dereferenced, and wrapping_add is always safe.
        let starts =
            [0, 1, 2].map(|array| mapping.start().wrapping_add(array * apart).cast::<u64>());
        let arrays = Self {
            kind,
            mapping,
            starts,
            stride: config.stride / size_of::<u64>(),
            lines,
            next: (0, 0),
            done: 0,
            sum: 0,
        };
        for (array, initial) in INITIAL.into_iter().enumerate().take(kind.arrays) {
            for (place, line) in arrays.lines.iter().enumerate() {
                if place % LINES_A_LOOK == 0 {
                    stop.check_before(PREPARED)?;
                }
                // SAFETY: a line of an array in use.
                unsafe { arrays.word(array, line).write(initial) };
            }
        }
        Ok(arrays)
    }

    fn word(&self, array: usize, line: usize) -> *mut u64 {
        self.starts[array].wrapping_add(line * self.stride)
    }
}

impl Load for Arrays {
    const UNIT: &'static str = "line";

    fn unit_bytes(&self) -> u64 {
        (LINE_BYTES * self.kind.arrays) as u64
    }

    fn most(&self) -> u64 {
        LINES_A_STEP
    }

    fn pass(&self) -> u64 {
        self.lines.len() as u64
    }

    fn step(&mut self, units: u64) -> Result<()> {
        let mut left = units as usize;
        self.done += units;
        while left > 0 {
            let (run, within) = self.next;
            let lines = left.min(self.lines.run - within);
            let first = self.lines.starts[run] + within;
            let words = [0, 1, 2].map(|array| self.word(array, first));
            // SAFETY: `lines` lines from `first` on are within the run, and every
            // run is within the arrays.
            self.sum = self
                .sum
                .wrapping_add(unsafe { (self.kind.touch)(words, lines, self.stride) });
            left -= lines;
            self.next = match within + lines {
                within if within < self.lines.run => (run, within),
                _ if run + 1 < self.lines.starts.len() => (run + 1, 0),
                _ => (0, 0),
            };
        }
        Ok(())
    }

    fn remote_share(&self) -> Option<f64> {
        remote_share(&self.mapping)
    }

    fn verify(&self) -> Result<()> {
        let (passes, rest) = (self.done / self.pass(), self.done % self.pass());
        for (place, line) in self.lines.iter().enumerate() {
            let touches = passes + u64::from((place as u64) < rest);
            // SAFETY: a line of the first array.
            let word = unsafe { self.word(0, line).read() };
            let expected = if touches == 0 {
                INITIAL[0]
            } else {
                (self.kind.word_after)(touches)
            };
            if word != expected {
                return Err(Error::Invalid(format!(
                    "line {line} holds {word} and not {expected} after {touches} touches: figures withheld"
                )));
            }
        }
        if self.sum != self.kind.sum_per_line.wrapping_mul(self.done) {
            return Err(Error::Invalid(
                "what was read does not add up: figures withheld".into(),
            ));
        }
        Ok(())
    }

    fn floor(&mut self) -> Result<f64> {
        // 8 KiB over all arrays: fits the first-level cache of any core; 256 passes take
        // about 12 us, long compared with the clock's cost and short compared with a tick.
        let (lines, times) = (128 / self.kind.arrays, 256);
        let config = BufferConfig {
            bytes: lines * self.kind.arrays * LINE_BYTES,
            ..BufferConfig::default()
        };
        let mut small = Self::new(self.kind, &config, &Stop::new())?;
        let best = (0..4).map(|_| {
            let begin = clock::now_ns();
            small
                .step((lines * times) as u64)
                .map(|()| clock::now_ns() - begin)
        });
        let best = best
            .collect::<Result<Vec<u64>>>()?
            .into_iter()
            .min()
            .unwrap_or(0);
        Ok(ratio(best, (lines * times) as u64))
    }
}
