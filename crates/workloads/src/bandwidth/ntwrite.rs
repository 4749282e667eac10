// SPDX-License-Identifier: MIT OR Apache-2.0
//! `-a ntwrite`: writes whole lines, bypassing the cache.

#![allow(unsafe_code)]

use super::Kind;
use crate::Descriptor;

/// Neither 0 nor the line's initial value.
const WRITTEN: u64 = 0x6b6b_6b6b;

/// Eight non-temporal stores a line. All eight words, because a partially written
/// line would be merged in memory by a read or a masked write, which is slower
/// and not the traffic that this kind is for.
///
/// # Safety
/// The first array has `lines` lines, `stride` words apart.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn touch(arrays: [*mut u64; 3], lines: usize, stride: usize) -> u64 {
    use std::arch::x86_64::{_mm_sfence, _mm_stream_si64};
    for line in 0..lines {
        for word in 0..8 {
            // SAFETY: the caller's promise, and a line has eight words.
            unsafe { _mm_stream_si64(arrays[0].add(line * stride + word).cast(), WRITTEN as i64) };
        }
    }
    // Non-temporal stores are weakly ordered; the fence completes them.
    // SAFETY: every x86-64 has SSE2.
    unsafe { _mm_sfence() };
    0
}

/// Four non-temporal stores of two words a line (STNP): a hint, which a core may
/// treat as a plain store.
///
/// # Safety
/// The first array has `lines` lines, `stride` words apart.
#[cfg(target_arch = "aarch64")]
#[inline(never)]
unsafe fn touch(arrays: [*mut u64; 3], lines: usize, stride: usize) -> u64 {
    for line in 0..lines {
        // SAFETY: the caller's promise, and a line has eight words.
        unsafe {
            std::arch::asm!(
                "stnp {word}, {word}, [{line}]",
                "stnp {word}, {word}, [{line}, #16]",
                "stnp {word}, {word}, [{line}, #32]",
                "stnp {word}, {word}, [{line}, #48]",
                line = in(reg) arrays[0].add(line * stride),
                word = in(reg) WRITTEN,
                options(nostack, preserves_flags),
            );
        }
    }
    0
}

pub(super) static KIND: Kind = Kind {
    descriptor: Descriptor {
        name: "ntwrite",
        help: "store whole lines with non-temporal stores",
        limits: &[],
    },
    traffic: "whole lines go past the cache: memory sees one write of each line and no read \
              (on arm64 it is a hint that the core may ignore)",
    arrays: 1,
    touch,
    sum_per_line: 0,
    word_after: |_| WRITTEN,
};
