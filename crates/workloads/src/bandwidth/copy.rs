// SPDX-License-Identifier: MIT OR Apache-2.0
//! `-a copy`: one word a line from the buffer's second half to its first.

#![allow(unsafe_code)]

use super::{INITIAL, Kind};
use crate::Descriptor;

/// One load from a line of the second array, one store to a line of the first.
///
/// # Safety
/// The first two arrays have `lines` lines each, `stride` words apart.
#[inline(never)]
unsafe fn touch(arrays: [*mut u64; 3], lines: usize, stride: usize) -> u64 {
    for line in 0..lines {
        // SAFETY: the caller's promise. Volatile: both accesses are made, alone.
        unsafe {
            let word = arrays[1].add(line * stride).read_volatile();
            arrays[0].add(line * stride).write_volatile(word);
        }
    }
    0
}

pub(super) static KIND: Kind = Kind {
    descriptor: Descriptor {
        name: "copy",
        help: "a = b, one word a line, each array half of the buffer",
        limits: &[],
    },
    traffic: "two lines counted, a read and a written one; the cache also reads the written line before it writes it \
        back: memory sees three lines",
    arrays: 2,
    touch,
    sum_per_line: 0,
    word_after: |_| INITIAL[1],
};
