// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams of accesses that several tests use.

use memwarden_cachesim::Access;

/// The walk of `memwarden mmap`: each of `outer` steps picks a base among `lines`
/// lines, then walks `span` consecutive ones `locality` times, storing to every
/// eighth and loading the rest.
#[derive(Debug, Clone, Copy)]
pub struct MmapWalk {
    pub lines: u64,
    pub outer: u64,
    pub locality: u64,
    pub span: u64,
    /// Seed of the bases; without a seed each base is the span after the previous one, and the
    /// first follows the last.
    pub random: Option<u64>,
}

impl MmapWalk {
    /// Calls `visit` with each line's number and the kind of access.
    pub fn feed(self, mut visit: impl FnMut(u64, Access)) {
        let mut state = self.random.unwrap_or(0);
        let mut base = 0;
        for step in 0..self.outer {
            if self.random.is_some() {
                state = next(state);
                base = (state >> 33) % (self.lines - self.span + 1);
            } else if step > 0 {
                base += self.span;
                if base + self.span > self.lines {
                    base = 0;
                }
            }
            for _ in 0..self.locality {
                for line in 0..self.span {
                    let access = if line % 8 == 7 {
                        Access::Store
                    } else {
                        Access::Load
                    };
                    visit(base + line, access);
                }
            }
        }
    }
}

/// Knuth's 64-bit linear congruential generator (MMIX): one line in Rust and in C,
/// so that a C program makes the same stream.
pub fn next(state: u64) -> u64 {
    state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407)
}
