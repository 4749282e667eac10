// SPDX-License-Identifier: GPL-2.0-only
//! Memory that user space reads, writes and maps, behind a lock.
//!
//! A program may map the memory and change it at any moment. So Rust code never has a reference to its contents: bytes
//! are only copied, by functions that tolerate concurrent changes, and words are changed by atomic operations. All
//! functions check the range that they are given.
//!
//! The lock is held while user memory is copied, and a task may wait for it during a page fault. So [`Memory::map`],
//! which runs under mmap_lock, doesn't take it.

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use kernel::bindings;
use kernel::ffi::{c_int, c_void};
use kernel::prelude::*;
use kernel::types::Opaque;
use kernel::uaccess::UserPtr;

use crate::misc::Area;

/// Bytes copied between two calls of cond_resched(): a fraction of a millisecond.
const STRETCH: usize = 1 << 20;

extern "C" {
    fn mymem_shim_allocate(size: usize) -> *mut c_void;
    fn mymem_shim_free(memory: *mut c_void);
    fn mymem_shim_map(area: *mut c_void, memory: *mut c_void) -> c_int;
    fn mymem_shim_lock_init(lock: *mut bindings::rw_semaphore);
    fn mymem_shim_fetch_add(word: *mut c_void, operand: u64) -> u64;
    fn mymem_shim_compare_exchange(word: *mut c_void, expected: u64, desired: u64) -> u64;
    fn mymem_shim_offer_cpu();
}

/// The memory. Readers share the lock, a writer has it alone.
#[pin_data(PinnedDrop)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    size: usize,
    #[pin]
    lock: Opaque<bindings::rw_semaphore>,
}

// SAFETY: the memory belongs to no thread, and is only accessed as described at the top of this file.
unsafe impl Send for Memory {}
// SAFETY: as above; the lock is designed for many threads.
unsafe impl Sync for Memory {}

impl Memory {
    /// `size` bytes of 0. ENOMEM if the machine does not have that much memory left.
    pub(crate) fn new(size: usize) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            // SAFETY: may be called from any context that may sleep, and modules are loaded in one.
            start: NonNull::new(unsafe { mymem_shim_allocate(size) }.cast()).ok_or(ENOMEM)?,
            size,
            // SAFETY: the slot is a semaphore's, not in use, and pinned.
            lock <- unsafe {
                kernel::init::pin_init_from_closure(|slot: *mut Opaque<bindings::rw_semaphore>| {
                    mymem_shim_lock_init(Opaque::raw_get(slot));
                    Ok::<(), Error>(())
                })
            },
        })
    }

    /// The size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Waits for the right to read; EINTR if the caller is killed.
    pub(crate) fn reader(&self) -> Result<Reader<'_>> {
        // SAFETY: the semaphore was initialised by `new`.
        match unsafe { bindings::down_read_killable(self.lock.get()) } {
            0 => Ok(Reader {
                memory: self,
                _task: PhantomData,
            }),
            _ => Err(EINTR),
        }
    }

    /// Waits for the right to write; EINTR if the caller is killed.
    pub(crate) fn writer(&self) -> Result<Writer<'_>> {
        // SAFETY: the semaphore was initialised by `new`.
        match unsafe { bindings::down_write_killable(self.lock.get()) } {
            0 => Ok(Writer {
                memory: self,
                _task: PhantomData,
            }),
            _ => Err(EINTR),
        }
    }

    /// Maps the range that the area requests; EINVAL if it isn't inside.
    pub(crate) fn map(&self, area: &mut Area) -> Result {
        // SAFETY: the kernel lends the area for this call; the memory was allocated for mapping, and remains until the
        // module is unloaded, which the mapping prevents.
        let err = unsafe { mymem_shim_map(area.as_raw().cast(), self.start.as_ptr().cast()) };
        kernel::error::to_result(err)
    }

    /// The address of the byte at `at`, if `count` bytes from it on are inside.
    fn range(&self, at: usize, count: usize) -> Result<*mut u8> {
        if at > self.size || count > self.size - at {
            return Err(EINVAL);
        }
        Ok(self.start.as_ptr().wrapping_add(at))
    }

    /// EINVAL for a 64-bit word that isn't aligned, or isn't inside.
    pub(crate) fn check_word(&self, at: usize) -> Result {
        self.word(at).map(|_| ())
    }

    /// The address of the word at `at`, aligned.
    fn word(&self, at: usize) -> Result<*mut c_void> {
        if at % size_of::<u64>() != 0 {
            return Err(EINVAL);
        }
        Ok(self.range(at, size_of::<u64>())?.cast())
    }
}

#[pinned_drop]
impl PinnedDrop for Memory {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: `new` allocated it, and it is not mapped: a mapping keeps the module loaded.
        unsafe { mymem_shim_free(self.start.as_ptr().cast()) };
    }
}

/// A task's right to read.
pub(crate) struct Reader<'a> {
    memory: &'a Memory,
    _task: PhantomData<*mut ()>,
}

impl Reader<'_> {
    /// Copies to user memory. EFAULT if some of it isn't present; bytes before it may have been copied.
    pub(crate) fn copy_to_user(&self, at: usize, to: UserPtr, count: usize) -> Result {
        let from = self.memory.range(at, count)?;
        in_stretches(count, |done, part| {
            let to = to.wrapping_add(done) as *mut c_void;
            // SAFETY: the range is inside the memory; copy_to_user checks the user's address itself.
            match unsafe { bindings::copy_to_user(to, from.wrapping_add(done).cast(), part) } {
                0 => Ok(()),
                _ => Err(EFAULT),
            }
        })
    }

    /// Copies to kernel memory.
    pub(crate) fn copy_to_kernel(&self, at: usize, to: &mut [MaybeUninit<u8>]) -> Result {
        let from = self.memory.range(at, to.len())?;
        let count = to.len();
        let to = to.as_mut_ptr();
        in_stretches(count, |done, part| {
            // SAFETY: both ranges are checked, and don't overlap, since `to` is exclusively borrowed.
            unsafe {
                bindings::memcpy(
                    to.wrapping_add(done).cast(),
                    from.wrapping_add(done).cast(),
                    part,
                )
            };
            Ok(())
        })
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        // SAFETY: `Memory::reader` took it, in this task.
        unsafe { bindings::up_read(self.memory.lock.get()) };
    }
}

/// A task's right to write.
pub(crate) struct Writer<'a> {
    memory: &'a Memory,
    _task: PhantomData<*mut ()>,
}

impl Writer<'_> {
    /// Copies from user memory. EFAULT if some of it isn't present; bytes before it may have been copied.
    pub(crate) fn copy_from_user(&self, at: usize, from: UserPtr, count: usize) -> Result {
        let to = self.memory.range(at, count)?;
        in_stretches(count, |done, part| {
            let from = from.wrapping_add(done) as *const c_void;
            // SAFETY: the range is inside the memory; copy_from_user checks the user's address itself.
            match unsafe { bindings::copy_from_user(to.wrapping_add(done).cast(), from, part) } {
                0 => Ok(()),
                _ => Err(EFAULT),
            }
        })
    }

    /// Copies from kernel memory.
    pub(crate) fn copy_from_kernel(&self, at: usize, from: &[u8]) -> Result {
        let to = self.memory.range(at, from.len())?;
        in_stretches(from.len(), |done, part| {
            // SAFETY: both ranges are checked, and don't overlap, as no reference into the memory exists.
            unsafe {
                bindings::memcpy(
                    to.wrapping_add(done).cast(),
                    from.as_ptr().wrapping_add(done).cast(),
                    part,
                )
            };
            Ok(())
        })
    }

    /// Adds to the 64-bit word at `at`, modulo 2^64. Returns its previous value. EINVAL for a word that isn't aligned
    /// or isn't inside.
    pub(crate) fn fetch_add(&self, at: usize, operand: u64) -> Result<u64> {
        let word = self.memory.word(at)?;
        // SAFETY: the word is inside and aligned, and all of Rust's own accesses to it are atomic or under the lock.
        Ok(unsafe { mymem_shim_fetch_add(word, operand) })
    }

    /// Replaces the 64-bit word at `at` if it is `expected`. Returns its previous value. Errors as for `fetch_add`.
    pub(crate) fn compare_exchange(&self, at: usize, expected: u64, desired: u64) -> Result<u64> {
        let word = self.memory.word(at)?;
        // SAFETY: as in `fetch_add`.
        Ok(unsafe { mymem_shim_compare_exchange(word, expected, desired) })
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        // SAFETY: `Memory::writer` took it, in this task.
        unsafe { bindings::up_write(self.memory.lock.get()) };
    }
}

/// Calls `copy(done, part)` for parts that sum up to `count`.
fn in_stretches(count: usize, mut copy: impl FnMut(usize, usize) -> Result) -> Result {
    let mut done = 0;
    while done < count {
        let part = usize::min(count - done, STRETCH);
        copy(done, part)?;
        done += part;
        // SAFETY: a task that holds a semaphore may be scheduled.
        unsafe { mymem_shim_offer_cpu() };
    }
    Ok(())
}
