// SPDX-License-Identifier: GPL-2.0-only
//! A misc device whose operations are safe Rust.
//!
//! Linux 6.12 has no abstraction of misc devices; misc-shim.c is the C half. The device exists as long as its
//! [`Registration`]; the kernel keeps the module loaded while the device is open or mapped.

use core::marker::PhantomData;
use kernel::error::{from_err_ptr, from_result};
use kernel::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::uaccess::UserPtr;

/// The operations of a device. Any number of threads may call them at the same time.
pub(crate) trait Operations: Send + Sync + Sized + 'static {
    /// The device is /dev/NAME.
    const NAME: &'static CStr;

    /// Called when the device is opened.
    fn open(&self) -> Result {
        Ok(())
    }

    /// The last descriptor of an `open` that succeeded is closed.
    fn release(&self) {}

    /// Copies up to `count` bytes from the offset `at` to user memory. Returns the number of bytes.
    fn read(&self, to: UserPtr, count: usize, at: i64) -> Result<usize>;

    /// Copies up to `count` bytes from user memory to the offset `at`. Returns the number of bytes.
    fn write(&self, from: UserPtr, count: usize, at: i64) -> Result<usize>;

    /// The new position of a seek from `position`; `whence` is that of lseek(2).
    fn seek(&self, _position: i64, _offset: i64, _whence: u32) -> Result<i64> {
        Err(ESPIPE)
    }

    /// A request; `writable` tells whether the device was opened for writing.
    fn ioctl(&self, _writable: bool, _command: u32, _argument: UserPtr) -> Result {
        Err(ENOTTY)
    }

    /// Maps the device.
    fn map(&self, _area: &mut Area) -> Result {
        Err(ENODEV)
    }
}

/// A process's address range that is about to be mapped.
#[repr(transparent)]
pub(crate) struct Area(kernel::types::Opaque<kernel::bindings::vm_area_struct>);

impl Area {
    /// For the C function that fills it in.
    #[allow(dead_code)] // mymem_test maps nothing.
    pub(crate) fn as_raw(&mut self) -> *mut kernel::bindings::vm_area_struct {
        self.0.get()
    }
}

/// The same as in misc-shim.h.
#[repr(C)]
struct Table {
    open: unsafe extern "C" fn(*const c_void) -> c_int,
    release: unsafe extern "C" fn(*const c_void),
    read: unsafe extern "C" fn(*const c_void, *mut c_void, usize, i64) -> isize,
    write: unsafe extern "C" fn(*const c_void, *const c_void, usize, i64) -> isize,
    seek: unsafe extern "C" fn(*const c_void, i64, i64, c_int) -> i64,
    ioctl: unsafe extern "C" fn(*const c_void, bool, c_uint, c_ulong) -> c_long,
    map: unsafe extern "C" fn(*const c_void, *mut kernel::bindings::vm_area_struct) -> c_int,
}

extern "C" {
    fn misc_shim_register(
        name: *const kernel::ffi::c_char,
        operations: *const Table,
        state: *const c_void,
    ) -> *mut c_void;
    fn misc_shim_deregister(shim: *mut c_void);
}

/// A registered device. Dropping this unregisters it.
pub(crate) struct Registration<T: Operations> {
    shim: *mut c_void,
    state: *const c_void,
    _device: PhantomData<Arc<T>>,
}

// SAFETY: the shim is not bound to a thread, and the device can be sent since its operations can.
unsafe impl<T: Operations> Send for Registration<T> {}
// SAFETY: a shared reference gives access to nothing.
unsafe impl<T: Operations> Sync for Registration<T> {}

impl<T: Operations> Registration<T> {
    const TABLE: Table = Table {
        open: open::<T>,
        release: release::<T>,
        read: read::<T>,
        write: write::<T>,
        seek: seek::<T>,
        ioctl: ioctl::<T>,
        map: map::<T>,
    };

    /// Registers the device. From now on its operations may be called.
    pub(crate) fn new(device: Arc<T>) -> Result<Self> {
        let state: *const c_void = Arc::into_raw(device).cast();
        // SAFETY: the name and the table exist as long as the module, and the state until `drop` has removed the
        // device.
        let shim = unsafe { misc_shim_register(T::NAME.as_char_ptr(), &Self::TABLE, state) };
        match from_err_ptr(shim) {
            Ok(shim) => Ok(Self {
                shim,
                state,
                _device: PhantomData,
            }),
            Err(error) => {
                // SAFETY: nothing was registered, so only this function has the state; `into_raw` made it.
                drop(unsafe { Arc::from_raw(state.cast::<T>()) });
                Err(error)
            }
        }
    }
}

impl<T: Operations> Drop for Registration<T> {
    fn drop(&mut self) {
        // SAFETY: `misc_shim_register` returned it, and it is not open: an open device keeps its module loaded.
        unsafe { misc_shim_deregister(self.shim) };
        // SAFETY: nothing calls the operations any more; `into_raw` made the pointer.
        drop(unsafe { Arc::from_raw(self.state.cast::<T>()) });
    }
}

// The operations in the table. C calls these with the state that `Registration::new` made from an `Arc<T>`, while the
// registration exists, so each may treat it as a shared reference. That is the meaning of "for the table".

/// # Safety
///
/// For the table.
unsafe extern "C" fn open<T: Operations>(state: *const c_void) -> c_int {
    // SAFETY: see above.
    let device = unsafe { &*state.cast::<T>() };
    from_result(|| device.open().map(|()| 0))
}

/// # Safety
///
/// For the table.
unsafe extern "C" fn release<T: Operations>(state: *const c_void) {
    // SAFETY: see above.
    unsafe { &*state.cast::<T>() }.release();
}

/// # Safety
///
/// For the table.
unsafe extern "C" fn read<T: Operations>(
    state: *const c_void,
    to: *mut c_void,
    count: usize,
    at: i64,
) -> isize {
    // SAFETY: see above.
    let device = unsafe { &*state.cast::<T>() };
    moved(device.read(to as UserPtr, count, at))
}

/// # Safety
///
/// For the table.
unsafe extern "C" fn write<T: Operations>(
    state: *const c_void,
    from: *const c_void,
    count: usize,
    at: i64,
) -> isize {
    // SAFETY: see above.
    let device = unsafe { &*state.cast::<T>() };
    moved(device.write(from as UserPtr, count, at))
}

/// # Safety
///
/// For the table.
unsafe extern "C" fn seek<T: Operations>(
    state: *const c_void,
    position: i64,
    offset: i64,
    whence: c_int,
) -> i64 {
    // SAFETY: see above.
    let device = unsafe { &*state.cast::<T>() };
    match u32::try_from(whence)
        .map_err(|_| EINVAL)
        .and_then(|whence| device.seek(position, offset, whence))
    {
        Ok(position) => position,
        Err(error) => error.to_errno().into(),
    }
}

/// # Safety
///
/// For the table.
unsafe extern "C" fn ioctl<T: Operations>(
    state: *const c_void,
    writable: bool,
    command: c_uint,
    argument: c_ulong,
) -> c_long {
    // SAFETY: see above.
    let device = unsafe { &*state.cast::<T>() };
    match device.ioctl(writable, command, argument) {
        Ok(()) => 0,
        Err(error) => error.to_errno() as c_long,
    }
}

/// # Safety
///
/// For the table.
unsafe extern "C" fn map<T: Operations>(
    state: *const c_void,
    area: *mut kernel::bindings::vm_area_struct,
) -> c_int {
    // SAFETY: see above.
    let device = unsafe { &*state.cast::<T>() };
    // SAFETY: the kernel lends the area, locked, for the duration of the call; `Area` has the same layout.
    let area = unsafe { &mut *area.cast::<Area>() };
    from_result(|| device.map(area).map(|()| 0))
}

/// The return value of read and write. The kernel never requests more than fits in `isize`.
fn moved(outcome: Result<usize>) -> isize {
    match outcome {
        Ok(count) => count as isize,
        Err(error) => error.to_errno() as isize,
    }
}
