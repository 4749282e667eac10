// SPDX-License-Identifier: MIT OR Apache-2.0
//! `-a triad`: STREAM's triad with one word a line: a = b + 3c.

#![allow(unsafe_code)]

use super::{INITIAL, Kind};
use crate::Descriptor;

/// STREAM's scalar is 3.0; on integers the result can be checked exactly.
const SCALAR: u64 = 3;

/// Loads from lines of the second and third array, one store to a line of the first.
///
/// # Safety
/// The three arrays have `lines` lines each, `stride` words apart.
#[inline(never)]
unsafe fn touch(arrays: [*mut u64; 3], lines: usize, stride: usize) -> u64 {
    for line in 0..lines {
        // SAFETY: the caller's promise. Volatile: all accesses are made, alone.
        unsafe {
            let b = arrays[1].add(line * stride).read_volatile();
            let c = arrays[2].add(line * stride).read_volatile();
            arrays[0]
                .add(line * stride)
                .write_volatile(b.wrapping_add(SCALAR.wrapping_mul(c)));
        }
    }
    0
}

pub(super) static KIND: Kind = Kind {
    descriptor: Descriptor {
        name: "triad",
        help: "a = b + 3c, one word a line, each array a third of the buffer",
        limits: &[],
    },
    traffic: "three lines counted, two read and one written; the cache also reads the written line before it writes it \
        back: memory sees four lines",
    arrays: 3,
    touch,
    sum_per_line: 0,
    word_after: |_| INITIAL[1] + SCALAR * INITIAL[2],
};
