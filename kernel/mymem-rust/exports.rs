// SPDX-License-Identifier: GPL-2.0-only
//! The functions that other modules call, as mymem_rust.h declares them.

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use kernel::ffi::{c_int, c_void};
use kernel::prelude::*;
use kernel::sync::Arc;

use crate::Device;

/// The device while the module is loaded. A module that calls us keeps us loaded, and was not linked before our init
/// was over, so that it finds the device here.
static DEVICE: AtomicPtr<Device> = AtomicPtr::new(ptr::null_mut());

/// As long as this exists, the functions below find the device.
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
    // SAFETY: null, or a device that is there until the module is unloaded, and callers keep the module loaded.
    unsafe { DEVICE.load(Ordering::Acquire).as_ref() }.ok_or(ENODEV)
}

/// # Safety
///
/// `to` points at `count` bytes of the kernel's memory that are the caller's alone.
#[no_mangle]
pub(crate) unsafe extern "C" fn mymem_rust_read(to: *mut c_void, count: usize, pos: i64) -> isize {
    moved(device().and_then(|device| {
        let (_, count) = device.admit(pos, count, Ok(0))?;
        // SAFETY: these are no more bytes than the caller promises.
        let to = unsafe { bytes_mut(to, count) };
        device.read_to(to, pos)
    }))
}

/// # Safety
///
/// `from` points at `count` initialised bytes of kernel memory that do not change meanwhile.
#[no_mangle]
pub(crate) unsafe extern "C" fn mymem_rust_write(
    from: *const c_void,
    count: usize,
    pos: i64,
) -> isize {
    moved(device().and_then(|device| {
        let (_, count) = device.admit(pos, count, Err(ENOSPC))?;
        // SAFETY: these are no more bytes than the caller promises.
        let from = unsafe { bytes(from, count) };
        device.write_from(from, pos)
    }))
}

/// # Safety
///
/// `operand` points at a word that is the caller's alone.
#[no_mangle]
pub(crate) unsafe extern "C" fn mymem_rust_fetch_add(offset: i64, operand: *mut u64) -> c_int {
    // SAFETY: that is what the caller promises.
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
/// As for `slice::from_raw_parts_mut`, but that for no bytes any pointer will do.
unsafe fn bytes_mut<'a>(start: *mut c_void, count: usize) -> &'a mut [MaybeUninit<u8>] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: that is what the caller promises.
    unsafe { core::slice::from_raw_parts_mut(start.cast(), count) }
}

/// # Safety
///
/// As for `slice::from_raw_parts`, but that for no bytes any pointer will do.
unsafe fn bytes<'a>(start: *const c_void, count: usize) -> &'a [u8] {
    if count == 0 {
        return &[];
    }
    // SAFETY: that is what the caller promises.
    unsafe { core::slice::from_raw_parts(start.cast(), count) }
}

fn moved(outcome: Result<usize>) -> isize {
    match outcome {
        Ok(count) => count as isize,
        Err(error) => error.to_errno() as isize,
    }
}
