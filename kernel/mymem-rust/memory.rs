// SPDX-License-Identifier: GPL-2.0-only
//! Memory that user space reads, writes and maps, behind a lock.
//!
//! A program may have it mapped and change it at any moment, so that Rust never has a reference to what is in it: it is
//! only copied, by functions that don't mind, and words are changed by atomic operations. All of them check the range
//! that they are given.
//!
//! The lock is held while user memory is copied, and may be waited for under a page fault; so [`Memory::map`], which
//! runs under mmap_lock, doesn't take it.

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use kernel::bindings;
use kernel::ffi::{c_int, c_void};
use kernel::prelude::*;
use kernel::types::Opaque;
use kernel::uaccess::UserPtr;

use crate::misc::Area;

/// What is copied between two offers to other tasks: a fraction of a millisecond.
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

/// The memory. Readers share it, a writer is alone.
#[pin_data(PinnedDrop)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    size: usize,
    #[pin]
    lock: Opaque<bindings::rw_semaphore>,
}

// SAFETY: the memory belongs to no thread, and is only touched as this file's head says.
unsafe impl Send for Memory {}
// SAFETY: as above; the lock is made for many threads.
unsafe impl Sync for Memory {}

impl Memory {
    /// `size` bytes of 0. ENOMEM where the machine has not so many left.
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

    /// In bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Waits for the right to read; EINTR when the caller is killed meanwhile.
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

    /// Waits for the right to write; EINTR when the caller is killed meanwhile.
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

    /// Maps what the area asks for; EINVAL when that isn't inside.
    pub(crate) fn map(&self, area: &mut Area) -> Result {
        // SAFETY: the area is lent to us for this; the memory was made to be mapped, and remains until the module is
        // unloaded, which the mapping prevents.
        let err = unsafe { mymem_shim_map(area.as_raw().cast(), self.start.as_ptr().cast()) };
        kernel::error::to_result(err)
    }

    /// The address of the byte at `at`, when `count` bytes from there on are inside.
    fn range(&self, at: usize, count: usize) -> Result<*mut u8> {
        if at > self.size || count > self.size - at {
            return Err(EINVAL);
        }
        Ok(self.start.as_ptr().wrapping_add(at))
    }

    /// EINVAL for a 64-bit word that isn't aligned, or inside.
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

/// The right to read, of the task that asked for it.
pub(crate) struct Reader<'a> {
    memory: &'a Memory,
    _task: PhantomData<*mut ()>,
}

impl Reader<'_> {
    /// Copies to user memory. EFAULT when some of that isn't there; what lay before may have been copied.
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

    /// Copies to the kernel's memory.
    pub(crate) fn copy_to_kernel(&self, at: usize, to: &mut [MaybeUninit<u8>]) -> Result {
        let from = self.memory.range(at, to.len())?;
        let count = to.len();
        let to = to.as_mut_ptr();
        in_stretches(count, |done, part| {
            // SAFETY: both ranges are checked, and don't overlap, as `to` is borrowed alone.
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
        // SAFETY: taken by `Memory::reader`, in this very task.
        unsafe { bindings::up_read(self.memory.lock.get()) };
    }
}

/// The right to write, of the task that asked for it.
pub(crate) struct Writer<'a> {
    memory: &'a Memory,
    _task: PhantomData<*mut ()>,
}

impl Writer<'_> {
    /// Copies from user memory. EFAULT when some of that isn't there; what lay before may have been copied.
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

    /// Copies from the kernel's memory.
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

    /// Adds to the 64-bit word at `at`, modulo 2^64; its value before. EINVAL for a word that isn't aligned, or inside.
    pub(crate) fn fetch_add(&self, at: usize, operand: u64) -> Result<u64> {
        let word = self.memory.word(at)?;
        // SAFETY: the word is inside and aligned, and all of Rust's own accesses to it are atomic or under the lock.
        Ok(unsafe { mymem_shim_fetch_add(word, operand) })
    }

    /// Replaces the 64-bit word at `at` if it is `expected`; its value before. Errors as `fetch_add`.
    pub(crate) fn compare_exchange(&self, at: usize, expected: u64, desired: u64) -> Result<u64> {
        let word = self.memory.word(at)?;
        // SAFETY: as in `fetch_add`.
        Ok(unsafe { mymem_shim_compare_exchange(word, expected, desired) })
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        // SAFETY: taken by `Memory::writer`, in this very task.
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
