// SPDX-License-Identifier: MIT OR Apache-2.0
//! `-a screen`: scrolls a frame buffer like a terminal. All rows of pixels move up by one row of text, and a new row of
//! text is drawn at the bottom.

#![allow(unsafe_code)]

use memwarden_platform::clock;
use memwarden_platform::mapping::Mapping;
use memwarden_platform::units::size_text;

use super::Load;
use crate::buffer::remote_share;
use crate::{BufferConfig, Descriptor, Error, LINE_BYTES, Result, Stop, ratio};

/// Bytes of a row of pixels: 1920 pixels of 4 bytes.
const ROW_BYTES: usize = 1920 * 4;

/// Rows of pixels in a row of text: the cell height of the VGA font, which consoles still use.
const TEXT_ROWS: usize = 16;

/// Rows of pixels between clock readings: 240 KiB, about as for the other kinds.
const ROWS_A_STEP: u64 = 32;

/// A frame buffer that scrolls.
pub(super) struct Screen {
    mapping: Mapping,
    rows: usize,
    /// Rows of pixels moved or drawn.
    done: u64,
}

/// The value drawn into a row of pixels in scroll number `scroll`: all differ, none is 0.
fn drawn(scroll: u64, row: usize) -> u64 {
    // An odd factor (2^64 over the golden ratio) permutes the numbers, so that they differ in more than the last byte.
    (scroll * TEXT_ROWS as u64 + (row % TEXT_ROWS) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Moves a row of pixels.
///
/// # Safety
/// Both are `ROW_BYTES` long and do not overlap.
#[inline(never)]
unsafe fn move_row(to: *mut u8, from: *const u8) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, ROW_BYTES) };
}

/// Draws a row of pixels.
///
/// # Safety
/// The row is `ROW_BYTES` long and aligned to 8.
#[inline(never)]
unsafe fn draw_row(to: *mut u8, value: u64) {
    for word in 0..ROW_BYTES / 8 {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<u64>().add(word).write(value) };
    }
}

impl Screen {
    pub(super) fn new(config: &BufferConfig, stop: &Stop) -> Result<Self> {
        if config.bank_mask.is_some() || config.stride != LINE_BYTES {
            return Err(Error::Invalid(
                "a screen is scrolled as a whole: neither a stride nor a bank mask applies".into(),
            ));
        }
        let rows = config.bytes / ROW_BYTES;
        if rows < 2 * TEXT_ROWS {
            return Err(Error::Invalid(format!(
                "{} is no screen: two rows of text take {} (choose a larger -m)",
                size_text(config.bytes as u64),
                size_text((2 * TEXT_ROWS * ROW_BYTES) as u64)
            )));
        }
        Ok(Self {
            mapping: config.map(stop)?,
            rows,
            done: 0,
        })
    }

    fn row(&self, row: usize) -> *mut u8 {
        self.mapping.start().wrapping_add(row * ROW_BYTES)
    }

    /// Contents of a row after that many complete scrolls: a value drawn at the bottom that has moved up since, or the
    /// initial 0.
    fn expected(&self, row: usize, scrolls: u64) -> u64 {
        let moves = (self.rows - 1 - row) / TEXT_ROWS;
        match scrolls.checked_sub(moves as u64 + 1) {
            Some(scroll) => drawn(scroll, self.first_drawn(row + moves * TEXT_ROWS)),
            None => 0,
        }
    }

    /// Index of a row within the drawn row of text.
    fn first_drawn(&self, row: usize) -> usize {
        row - (self.rows - TEXT_ROWS)
    }
}

impl Load for Screen {
    const UNIT: &'static str = "row";

    /// Bytes written; as many are read, except for the row of text that is drawn.
    fn unit_bytes(&self) -> u64 {
        ROW_BYTES as u64
    }

    fn most(&self) -> u64 {
        ROWS_A_STEP
    }

    fn pass(&self) -> u64 {
        self.rows as u64
    }

    fn step(&mut self, units: u64) -> Result<()> {
        for _ in 0..units {
            let row = (self.done % self.pass()) as usize;
            let scroll = self.done / self.pass();
            if row + TEXT_ROWS < self.rows {
                // SAFETY: two rows of the mapping, 16 apart.
                unsafe { move_row(self.row(row), self.row(row + TEXT_ROWS)) };
            } else {
                // SAFETY: a row of the mapping, which begins at a page.
                unsafe { draw_row(self.row(row), drawn(scroll, self.first_drawn(row))) };
            }
            self.done += 1;
        }
        Ok(())
    }

    fn remote_share(&self) -> Option<f64> {
        remote_share(&self.mapping)
    }

    fn verify(&self) -> Result<()> {
        let (scrolls, rest) = (self.done / self.pass(), self.done % self.pass());
        for row in 0..self.rows {
            let scrolls = scrolls + u64::from((row as u64) < rest);
            let expected = self.expected(row, scrolls);
            for word in [0, ROW_BYTES / 8 - 1] {
                // SAFETY: a word of a row of the mapping.
                let found = unsafe { self.row(row).cast::<u64>().add(word).read() };
                if found != expected {
                    return Err(Error::Invalid(format!(
                        "row {row} of the screen holds {found:#x} and not {expected:#x} after {scrolls} scrolls: \
                         figures withheld"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Time to move a row within the first-level cache.
    fn floor(&mut self) -> Result<f64> {
        let small = Mapping::anonymous(2 * ROW_BYTES)?;
        let (to, from) = (small.start(), small.start().wrapping_add(ROW_BYTES));
        // About 100 us: long compared with the clock's cost and short compared with a tick.
        let times = 512;
        let best = (0..4).map(|_| {
            let begin = clock::now_ns();
            for _ in 0..times {
                // SAFETY: the two rows of the small mapping.
                unsafe { move_row(to, from) };
            }
            clock::now_ns() - begin
        });
        Ok(ratio(best.min().unwrap_or(0), times))
    }
}

/// Traffic between cache and memory.
pub(super) const TRAFFIC: &str = "each line of the screen is counted when it is written; a line below it is read for \
    that, and the cache also reads the written line before it writes it back: memory sees three lines";

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "screen",
    help: "scroll a frame buffer of 1920 pixels a row by one row of text",
    limits: &[],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_any_number_of_rows_the_picture_is_what_scrolling_gives() {
        for rows in [32, 33, 47, 48, 100] {
            let config = BufferConfig {
                bytes: rows * ROW_BYTES,
                ..BufferConfig::default()
            };
            let mut screen = Screen::new(&config, &Stop::new()).unwrap();
            for units in [1, 15, 16, 17, 32, 31, 64, 200, 7] {
                screen.step(units).unwrap();
                screen.verify().unwrap();
            }
            // SAFETY: the first row of the mapping.
            unsafe { screen.row(0).cast::<u64>().write(1) };
            assert!(screen.verify().is_err());
        }
    }

    #[test]
    fn what_is_no_screen_is_refused() {
        let screen = |bytes, stride| {
            let config = BufferConfig {
                bytes,
                stride,
                ..BufferConfig::default()
            };
            Screen::new(&config, &Stop::new())
                .err()
                .unwrap()
                .to_string()
        };
        assert!(screen(4096, LINE_BYTES).contains("no screen"));
        assert!(screen(1 << 24, 128).contains("stride"));
    }
}
