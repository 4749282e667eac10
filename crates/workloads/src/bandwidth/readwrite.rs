// SPDX-License-Identifier: MIT OR Apache-2.0
//! `-a readwrite`: loads one word of each line, adds one, stores it back.

#![allow(unsafe_code)]

use super::{INITIAL, Kind};
use crate::Descriptor;

/// One load and one store a line, to the same word.
///
/// # Safety
/// The first array has `lines` lines, `stride` words apart.
#[inline(never)]
unsafe fn touch(arrays: [*mut u64; 3], lines: usize, stride: usize) -> u64 {
    for line in 0..lines {
        // SAFETY: the caller's promise. Volatile: both accesses are made, alone.
        unsafe {
            let word = arrays[0].add(line * stride);
            word.write_volatile(word.read_volatile().wrapping_add(1));
        }
    }
    0
}

pub(super) static KIND: Kind = Kind {
    descriptor: Descriptor {
        name: "readwrite",
        help: "add one to one word a line",
        limits: &[],
    },
    traffic: "each line is read from memory and later written back: twice the bytes counted here",
    arrays: 1,
    touch,
    sum_per_line: 0,
    word_after: |touches| INITIAL[0].wrapping_add(touches),
};
