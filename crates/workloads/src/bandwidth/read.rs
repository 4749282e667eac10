// SPDX-License-Identifier: MIT OR Apache-2.0
//! `-a read`: loads one word of each line.

#![allow(unsafe_code)]

use super::Kind;
use crate::Descriptor;

/// x86-64 `add (%p),%sum; add %stride,%p; dec; jne`, arm64 `ldr; add; add; subs;
/// b.ne`: one load a line, no load depending on another.
///
/// # Safety
/// The first array has `lines` lines, `stride` words apart.
#[inline(never)]
unsafe fn touch(arrays: [*mut u64; 3], lines: usize, stride: usize) -> u64 {
    let mut sum = 0_u64;
    for line in 0..lines {
        // SAFETY: the caller's promise. Volatile: each load is made, alone.
        sum = sum.wrapping_add(unsafe { arrays[0].add(line * stride).read_volatile() });
    }
    sum
}

pub(super) static KIND: Kind = Kind {
    descriptor: Descriptor {
        name: "read",
        help: "load one word a line",
        limits: &[],
    },
    traffic: "each line is read from memory once",
    arrays: 1,
    touch,
    sum_per_line: super::INITIAL[0],
    word_after: |_| super::INITIAL[0],
};
