// SPDX-License-Identifier: GPL-2.0-only
//! The module's parameters. Linux 6.12 has no module parameters for Rust: device-shim.c declares them.

use kernel::ffi::c_ulong;

extern "C" {
    static mymem_rust_size: c_ulong;
    static mymem_rust_strict: bool;
    static mymem_rust_exclusive: bool;
}

/// Bytes of memory.
pub(crate) fn size() -> usize {
    // SAFETY: set before the module's init is called, and never again (mode 0444).
    unsafe { mymem_rust_size }
}

/// Whether a range that passes the end is refused.
pub(crate) fn strict() -> bool {
    // SAFETY: as in `size`.
    unsafe { mymem_rust_strict }
}

/// Whether only one process at a time may open the device.
pub(crate) fn exclusive() -> bool {
    // SAFETY: as in `size`.
    unsafe { mymem_rust_exclusive }
}
