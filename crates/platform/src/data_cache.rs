// SPDX-License-Identifier: MIT OR Apache-2.0
//! Empties the data caches of a mapping's lines.

#![allow(unsafe_code)]

use crate::mapping::Mapping;

/// Distance of two flushes: no supported machine has shorter cache lines.
const STEP: usize = 64;

/// True if lines can be flushed by address from user space.
pub const BY_ADDRESS: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// Writes back and drops every line of `mapping` from all caches: `clflush` on x86-64, `dc civac` on arm64. Does
/// nothing on other architectures ([`BY_ADDRESS`]).
pub fn flush(mapping: &Mapping) {
    for offset in (0..mapping.bytes()).step_by(STEP) {
        // SAFETY: within the mapping, which is ours.
        flush_line(unsafe { mapping.start().add(offset) });
    }
    finish();
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn flush_line(line: *mut u8) {
    // SAFETY: clflush is part of every x86-64, and changes no memory.
    unsafe { core::arch::x86_64::_mm_clflush(line) };
}

#[cfg(target_arch = "x86_64")]
fn finish() {
    // SAFETY: a fence; part of every x86-64.
    unsafe { core::arch::x86_64::_mm_mfence() };
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn flush_line(line: *mut u8) {
    // SAFETY: Linux permits this in user space (SCTLR_EL1.UCI), and it changes no memory.
    unsafe {
        core::arch::asm!("dc civac, {line}", line = in(reg) line, options(nostack, preserves_flags))
    };
}

#[cfg(target_arch = "aarch64")]
fn finish() {
    // SAFETY: a barrier.
    unsafe { core::arch::asm!("dsb ish", options(nostack, preserves_flags)) };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn flush_line(_: *mut u8) {}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn finish() {}

/// Reads every line of `other` to evict everything else; `other` must be larger than the caches.
pub fn read_through(other: &Mapping) {
    for offset in (0..other.bytes()).step_by(STEP) {
        // SAFETY: within the mapping, which is ours and readable.
        unsafe { other.start().add(offset).read_volatile() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushing_changes_no_byte() {
        let mapping = Mapping::anonymous(1 << 20).unwrap();
        for offset in (0..mapping.bytes()).step_by(4096) {
            // SAFETY: within the mapping, which is ours and writable.
            unsafe { mapping.start().add(offset).write_volatile(7) };
        }
        flush(&mapping);
        read_through(&mapping);
        for offset in (0..mapping.bytes()).step_by(4096) {
            // SAFETY: as above.
            assert_eq!(unsafe { mapping.start().add(offset).read_volatile() }, 7);
        }
    }
}
