// SPDX-License-Identifier: MIT OR Apache-2.0
//! `-a compare`: loads every word of each line and compares it with the previous one, like a program that searches a
//! picture for changes.

#![allow(unsafe_code)]

use super::Kind;
use crate::{Descriptor, LINE_BYTES};

/// Words in a line.
const WORDS: usize = LINE_BYTES / size_of::<u64>();

/// x86-64 `mov; cmp; setne; add`, arm64 `ldr; cmp; cinc`: about 27 instructions a line; one of its eight loads goes to
/// memory.
///
/// # Safety
/// The first array has `lines` lines, `stride` words apart.
#[inline(never)]
unsafe fn touch(arrays: [*mut u64; 3], lines: usize, stride: usize) -> u64 {
    let (mut changes, mut before) = (0, 0);
    for line in 0..lines {
        for word in 0..WORDS {
            // SAFETY: the caller's promise. Volatile: each load is made, alone.
            let now = unsafe { arrays[0].add(line * stride + word).read_volatile() };
            changes += u64::from(now != before);
            before = now;
        }
    }
    changes
}

pub(super) static KIND: Kind = Kind {
    descriptor: Descriptor {
        name: "compare",
        help: "load every word, and compare it with the previous one",
        limits: &[],
    },
    traffic: "each line is read from memory once",
    arrays: 1,
    touch,
    // The first word of a line differs from both neighbours, which are never written.
    sum_per_line: 2,
    word_after: |_| super::INITIAL[0],
};
