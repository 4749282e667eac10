// SPDX-License-Identifier: GPL-2.0-only
//! Times writes and reads of one size.

use core::fmt::Write;
use kernel::prelude::*;
use kernel::time::Ktime;

use crate::{client, Outcome};

/// The lines of this many trials take a few megabytes.
const TRIALS_MAX: usize = 100_000;
/// The largest device's size.
const SIZE_MAX: usize = 1 << 30;

/// Writes and reads `size` bytes at offset 0, `trials` times.
pub(crate) fn measure(size: usize, trials: usize, outcome: &mut Outcome) -> Result {
    if size > SIZE_MAX || trials > TRIALS_MAX {
        return Err(EINVAL);
    }
    // Check the size before allocating a buffer for it.
    client::read(&mut [0], size as i64 - 1)?;
    // Unchecked, the OOM killer would end other programs before the allocation fails.
    if !client::has_memory(2 * size) {
        return Err(ENOMEM);
    }
    let mut written = VVec::from_elem(0, size, GFP_KERNEL)?;
    let mut read = VVec::from_elem(0, size, GFP_KERNEL)?;
    let mut random = Random::new();
    for _ in 0..trials {
        random.fill(&mut written);
        let before = now_ns();
        client::write(&written, 0)?;
        let between = now_ns();
        client::read(&mut read, 0)?;
        let after = now_ns();
        if read != written {
            return Err(EIO);
        }
        writeln!(outcome, "{} {}", between - before, after - between).map_err(|_| ENOMEM)?;
        if kernel::current!().signal_pending() {
            return Err(EINTR);
        }
    }
    Ok(())
}

/// The monotonic clock.
pub(crate) fn now_ns() -> i64 {
    Ktime::ktime_get().to_ns()
}

/// Marsaglia's xorshift64 (Journal of Statistical Software 8(14), 2003): enough to make buffers differ.
struct Random(u64);

impl Random {
    fn new() -> Self {
        Self(now_ns() as u64 | 1)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            part.copy_from_slice(&self.0.to_ne_bytes()[..part.len()]);
        }
    }
}
