// SPDX-License-Identifier: GPL-2.0-only
//! Safe wrappers of mymem_rust's exported functions, and of the kernel's free memory.

use kernel::error::to_result;
use kernel::ffi::{c_int, c_void};
use kernel::prelude::*;

extern "C" {
    fn mymem_rust_read(to: *mut c_void, count: usize, pos: i64) -> isize;
    fn mymem_rust_write(from: *const c_void, count: usize, pos: i64) -> isize;
    fn mymem_rust_fetch_add(offset: i64, operand: *mut u64) -> c_int;
    fn mymem_test_shim_has_memory(bytes: usize) -> bool;
}

/// Reads all of `to` from the device's offset `at`.
pub(crate) fn read(to: &mut [u8], at: i64) -> Result {
    // SAFETY: the slice is initialised and exclusively borrowed.
    whole(
        unsafe { mymem_rust_read(to.as_mut_ptr().cast(), to.len(), at) },
        to.len(),
    )
}

/// Writes all of `from` at the device's offset `at`.
pub(crate) fn write(from: &[u8], at: i64) -> Result {
    // SAFETY: the slice is initialised, and no other code changes it while it is borrowed.
    whole(
        unsafe { mymem_rust_write(from.as_ptr().cast(), from.len(), at) },
        from.len(),
    )
}

/// Adds to the word at `offset`. Returns its previous value.
pub(crate) fn fetch_add(offset: i64, mut operand: u64) -> Result<u64> {
    // SAFETY: the word is a local variable.
    to_result(unsafe { mymem_rust_fetch_add(offset, &mut operand) })?;
    Ok(operand)
}

/// True if `bytes` bytes can be allocated without ending a program.
pub(crate) fn has_memory(bytes: usize) -> bool {
    // SAFETY: it takes a number and has no effect.
    unsafe { mymem_test_shim_has_memory(bytes) }
}

/// EINVAL for a call that moved fewer bytes than requested: the device is too small.
fn whole(moved: isize, count: usize) -> Result {
    match usize::try_from(moved) {
        Ok(moved) if moved == count => Ok(()),
        Ok(_) => Err(EINVAL),
        Err(_) => Err(Error::from_errno(moved as c_int)),
    }
}
