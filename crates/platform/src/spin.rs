// SPDX-License-Identifier: MIT OR Apache-2.0
//! Busy waiting on the CPU.

#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;

/// The longest sleep of [`wait_for_change`], in nanoseconds: Linux lets Arm's event stream tick at 10 kHz.
pub const COARSE_NS: u64 = 200_000;

/// Waits for a moment, short compared with a microsecond.
#[inline]
pub fn relax() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint without operands. (`spin_loop` is an ISB there, which an emulator does not take as a hint to run
    // another CPU.)
    unsafe {
        std::arch::asm!("yield", options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    std::hint::spin_loop();
}

/// Waits for a moment or, on CPUs that can sleep in user space, for up to [`COARSE_NS`]. Returns at once when another
/// CPU writes `word`, if its value was `seen`.
#[inline]
pub fn wait_for_change(word: &AtomicU64, seen: u64) {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads one aligned word; the monitor that LDAXR sets wakes WFE when another CPU writes it (Arm ARM, B2.10
    // and D1.6: "Wait For Event").
    unsafe {
        let value: u64;
        std::arch::asm!("ldaxr {value}, [{word}]", value = out(reg) value, word = in(reg) word.as_ptr(), options(nostack, readonly));
        if value == seen {
            std::arch::asm!("wfe", options(nomem, nostack, preserves_flags));
        }
        std::arch::asm!("clrex", options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    {
        let _ = (word, seen);
        std::hint::spin_loop();
    }
}
