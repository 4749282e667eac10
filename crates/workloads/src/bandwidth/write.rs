// SPDX-License-Identifier: MIT OR Apache-2.0
//! `-a write`: stores one word in each line.

#![allow(unsafe_code)]

use super::Kind;
use crate::Descriptor;

/// Neither 0 nor the line's initial value.
const WRITTEN: u64 = 0x5a5a_5a5a;

/// One store a line.
///
/// # Safety
/// The first array has `lines` lines, `stride` words apart.
#[inline(never)]
unsafe fn touch(arrays: [*mut u64; 3], lines: usize, stride: usize) -> u64 {
    for line in 0..lines {
        // SAFETY: the caller's promise. Volatile: each store is made, alone.
        unsafe { arrays[0].add(line * stride).write_volatile(WRITTEN) };
    }
    0
}

pub(super) static KIND: Kind = Kind {
    descriptor: Descriptor {
        name: "write",
        help: "store one word a line",
        limits: &[],
    },
    traffic: "a cache allocates the line that is written to: memory sees a read and later a write-back of each line, \
              twice the bytes counted here",
    arrays: 1,
    touch,
    sum_per_line: 0,
    word_after: |_| WRITTEN,
};
