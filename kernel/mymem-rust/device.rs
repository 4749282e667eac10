// SPDX-License-Identifier: GPL-2.0-only
//! /dev/mymem_rust: kernel memory as a file, with the behaviour of ../mymem/device.c. All unsafe code is in `misc`,
//! `memory`, `parameters` and `exports`.
#![deny(unsafe_op_in_unsafe_fn)]
#![deny(clippy::undocumented_unsafe_blocks)]

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};
use kernel::c_str;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::uaccess::{UserPtr, UserSlice};

mod exports;
mod memory;
mod misc;
mod parameters;

use memory::Memory;
use misc::{Area, Operations, Registration};

module! {
    type: Module,
    name: "mymem_rust",
    author: "The memwarden authors",
    description: "Memory of the kernel as a device, in Rust",
    license: "GPL",
}

const SIZE_MAX: usize = 1 << 30;

// The same as in <memwarden/mymem.h>: _IOWR(0xBB, 1, two words) and _IOWR(0xBB, 2, three words).
const FETCH_ADD: u32 = kernel::ioctl::_IOWR::<[u64; 2]>(0xBB, 1);
const COMPARE_EXCHANGE: u32 = kernel::ioctl::_IOWR::<[u64; 3]>(0xBB, 2);

/// The device.
#[pin_data]
struct Device {
    #[pin]
    memory: Memory,
    strict: bool,
    exclusive: bool,
    opened: AtomicBool,
}

impl Device {
    /// How many of the `count` bytes from `at` on a call may access, and their offset in the memory. The result for a
    /// call that begins at the end of the memory is `at_end`.
    fn admit(&self, at: i64, count: usize, at_end: Result<usize>) -> Result<(usize, usize)> {
        let size = self.memory.size();
        let start = usize::try_from(at).map_err(|_| EINVAL)?;
        if start > size {
            return Err(EINVAL);
        }
        let left = size - start;
        match count {
            0 => Ok((start, 0)),
            _ if left == 0 => Ok((start, at_end?)),
            _ if count <= left => Ok((start, count)),
            _ if self.strict => Err(EINVAL),
            _ => Ok((start, left)),
        }
    }

    /// [`Operations::read`] for kernel memory.
    fn read_to(&self, to: &mut [MaybeUninit<u8>], at: i64) -> Result<usize> {
        let (start, count) = self.admit(at, to.len(), Ok(0))?;
        if count > 0 {
            self.memory
                .reader()?
                .copy_to_kernel(start, &mut to[..count])?;
        }
        Ok(count)
    }

    /// [`Operations::write`] from kernel memory.
    fn write_from(&self, from: &[u8], at: i64) -> Result<usize> {
        let (start, count) = self.admit(at, from.len(), Err(ENOSPC))?;
        if count > 0 {
            self.memory
                .writer()?
                .copy_from_kernel(start, &from[..count])?;
        }
        Ok(count)
    }

    /// Adds to the word at `offset`. Returns its previous value.
    fn fetch_add(&self, offset: u64, operand: u64) -> Result<u64> {
        let at = usize::try_from(offset).map_err(|_| EINVAL)?;
        self.memory.check_word(at)?;
        self.memory.writer()?.fetch_add(at, operand)
    }

    fn compare_exchange(&self, offset: u64, expected: u64, desired: u64) -> Result<u64> {
        let at = usize::try_from(offset).map_err(|_| EINVAL)?;
        self.memory.check_word(at)?;
        self.memory
            .writer()?
            .compare_exchange(at, expected, desired)
    }
}

impl Operations for Device {
    const NAME: &'static CStr = c_str!("mymem_rust");

    fn open(&self) -> Result {
        if self.exclusive && self.opened.swap(true, Ordering::Acquire) {
            return Err(EBUSY);
        }
        Ok(())
    }

    fn release(&self) {
        self.opened.store(false, Ordering::Release);
    }

    fn read(&self, to: UserPtr, count: usize, at: i64) -> Result<usize> {
        let (start, count) = self.admit(at, count, Ok(0))?;
        if count > 0 {
            self.memory.reader()?.copy_to_user(start, to, count)?;
        }
        Ok(count)
    }

    fn write(&self, from: UserPtr, count: usize, at: i64) -> Result<usize> {
        let (start, count) = self.admit(at, count, Err(ENOSPC))?;
        if count > 0 {
            self.memory.writer()?.copy_from_user(start, from, count)?;
        }
        Ok(count)
    }

    fn seek(&self, position: i64, offset: i64, whence: u32) -> Result<i64> {
        let size = i64::try_from(self.memory.size()).map_err(|_| EINVAL)?;
        let from = match whence {
            kernel::bindings::SEEK_SET => 0,
            kernel::bindings::SEEK_CUR => position,
            kernel::bindings::SEEK_END => size,
            _ => return Err(EINVAL),
        };
        from.checked_add(offset)
            .filter(|to| (0..=size).contains(to))
            .ok_or(EINVAL)
    }

    fn ioctl(&self, writable: bool, command: u32, argument: UserPtr) -> Result {
        match command {
            FETCH_ADD | COMPARE_EXCHANGE if !writable => Err(EBADF),
            FETCH_ADD => {
                let (mut reader, mut writer) =
                    UserSlice::new(argument, size_of::<[u64; 2]>()).reader_writer();
                let [offset, operand] = reader.read::<[u64; 2]>()?;
                let before = self.fetch_add(offset, operand)?;
                writer.write(&[offset, before])
            }
            COMPARE_EXCHANGE => {
                let (mut reader, mut writer) =
                    UserSlice::new(argument, size_of::<[u64; 3]>()).reader_writer();
                let [offset, expected, desired] = reader.read::<[u64; 3]>()?;
                let before = self.compare_exchange(offset, expected, desired)?;
                writer.write(&[offset, before, desired])
            }
            _ => Err(ENOTTY),
        }
    }

    fn map(&self, area: &mut Area) -> Result {
        self.memory.map(area)
    }
}

struct Module {
    // Fields are dropped in this order: first the device, so that it cannot be opened again.
    _registration: Registration<Device>,
    _exported: exports::Exported,
}

impl kernel::Module for Module {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let size = parameters::size();
        if size == 0 || size > SIZE_MAX {
            pr_err!("size={}: give 1 to {} bytes\n", size, SIZE_MAX);
            return Err(EINVAL);
        }
        let device = Arc::pin_init(
            try_pin_init!(Device {
                memory <- Memory::new(size),
                strict: parameters::strict(),
                exclusive: parameters::exclusive(),
                opened: AtomicBool::new(false),
            }),
            GFP_KERNEL,
        )
        .inspect_err(|_| pr_err!("size={}: not enough memory on this machine\n", size))?;
        let exported = exports::Exported::new(device.clone());
        let registration = Registration::new(device)
            .inspect_err(|error| pr_err!("no /dev/mymem_rust: error {}\n", -error.to_errno()))?;
        pr_info!("/dev/mymem_rust has {} bytes\n", size);
        Ok(Self {
            _registration: registration,
            _exported: exported,
        })
    }
}
