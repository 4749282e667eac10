// SPDX-License-Identifier: GPL-2.0-only
//! The functions for other modules, as declared in mymem_rust.h.

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use kernel::ffi::{c_int, c_void};
use kernel::prelude::*;
use kernel::sync::Arc;

use crate::Device;

/// The device while the module is loaded. A module that calls these functions keeps this module loaded, and is linked
/// only after this module's init, so it finds the device.
static DEVICE: AtomicPtr<Device> = AtomicPtr::new(ptr::null_mut());

/// While this exists, the functions below find the device.
pub(crate) struct Exported {
    _device: Arc<Device>,
}

impl Exported {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        DEVICE.store(
            ptr::from_ref::<Device>(&device).cast_mut(),
            Ordering::Release,
        );
        Self { _device: device }
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        DEVICE.store(ptr::null_mut(), Ordering::Release);
    }
}

fn device<'a>() -> Result<&'a Device> {
    // SAFETY: null, or a device that exists until the module is unloaded, and callers keep the module loaded.
    unsafe { DEVICE.load(Ordering::Acquire).as_ref() }.ok_or(ENODEV)
}

/// # Safety
///
/// `to` points at `count` bytes of kernel memory that only the caller accesses.
#[no_mangle]
pub(crate) unsafe extern "C" fn mymem_rust_read(to: *mut c_void, count: usize, pos: i64) -> isize {
    moved(device().and_then(|device| {
        let (_, count) = device.admit(pos, count, Ok(0))?;
        // SAFETY: at most the bytes that the caller promises.
        let to = unsafe { bytes_mut(to, count) };
        device.read_to(to, pos)
    }))
}

/// # Safety
///
/// `from` points at `count` initialised bytes of kernel memory that do not change during the call.
#[no_mangle]
pub(crate) unsafe extern "C" fn mymem_rust_write(
    from: *const c_void,
    count: usize,
    pos: i64,
) -> isize {
    moved(device().and_then(|device| {
        let (_, count) = device.admit(pos, count, Err(ENOSPC))?;
        // SAFETY: at most the bytes that the caller promises.
        let from = unsafe { bytes(from, count) };
        device.write_from(from, pos)
    }))
}

/// # Safety
///
/// `operand` points at a word that only the caller accesses.
#[no_mangle]
pub(crate) unsafe extern "C" fn mymem_rust_fetch_add(offset: i64, operand: *mut u64) -> c_int {
    // SAFETY: the caller promises this.
    let operand = unsafe { &mut *operand };
    let added = u64::try_from(offset)
        .map_err(|_| EINVAL)
        .and_then(|offset| device()?.fetch_add(offset, *operand));
    match added {
        Ok(before) => {
            *operand = before;
            0
        }
        Err(error) => error.to_errno(),
    }
}

/// # Safety
///
/// As for `slice::from_raw_parts_mut`, except that for 0 bytes any pointer is allowed.
unsafe fn bytes_mut<'a>(start: *mut c_void, count: usize) -> &'a mut [MaybeUninit<u8>] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: the caller promises this.
    unsafe { core::slice::from_raw_parts_mut(start.cast(), count) }
}

/// # Safety
///
/// As for `slice::from_raw_parts`, except that for 0 bytes any pointer is allowed.
unsafe fn bytes<'a>(start: *const c_void, count: usize) -> &'a [u8] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller promises this.
    unsafe { core::slice::from_raw_parts(start.cast(), count) }
}

fn moved(outcome: Result<usize>) -> isize {
    match outcome {
        Ok(count) => count as isize,
        Err(error) => error.to_errno() as isize,
    }
}
