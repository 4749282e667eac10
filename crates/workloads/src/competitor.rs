// SPDX-License-Identifier: MIT OR Apache-2.0
//! A competitor for memory: it maps a large area, touches all of it, and keeps touching it until it is killed.

#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use memwarden_platform::forked::Forked;
use memwarden_platform::mapping::page_bytes;
use memwarden_platform::oom;
use memwarden_platform::shared::SharedWords;

use crate::{Descriptor, Limit, Result};

/// Shared words through which the competitor and its parent communicate.
#[derive(Debug)]
pub struct Words(SharedWords);

const GO: usize = 0;
const TOUCHED: usize = 1;
const PASSES: usize = 2;
const FAILED: usize = 3;
const COUNT: usize = 4;

impl Words {
    /// Creates the words.
    ///
    /// # Errors
    /// When memory is short.
    pub fn create() -> Result<Self> {
        SharedWords::create(COUNT).map(Self)
    }

    /// Opens words that another process created.
    ///
    /// # Errors
    /// When the descriptor is missing or something else.
    pub fn inherited(descriptor: i32) -> Result<Self> {
        let words =
            SharedWords::from_descriptor(memwarden_platform::shared::inherited(descriptor)?)?;
        if words.len() < COUNT {
            return Err(crate::Error::Invalid(format!(
                "descriptor {descriptor} is not a competitor's"
            )));
        }
        Ok(Self(words))
    }

    /// Makes the words inheritable, under this descriptor, for a program that this process starts.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn hand_over(&self) -> Result<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        self.0.inherit()?;
        Ok(self.0.as_fd())
    }

    /// Lets the competitor begin.
    pub fn go(&self) {
        self.0[GO].store(1, Ordering::Release);
    }

    /// Bytes touched so far.
    #[must_use]
    pub fn touched_bytes(&self) -> u64 {
        self.0[TOUCHED].load(Ordering::Acquire)
    }

    /// Complete passes over its memory.
    #[must_use]
    pub fn passes(&self) -> u64 {
        self.0[PASSES].load(Ordering::Acquire)
    }

    /// The errno of a failed mapping.
    #[must_use]
    pub fn failed(&self) -> Option<i32> {
        let errno = self.0[FAILED].load(Ordering::Acquire);
        i32::try_from(errno).ok().filter(|errno| *errno != 0)
    }
}

/// Forks a child that competes for `bytes` once [`Words::go`] was called.
///
/// # Errors
/// When the process limit is reached.
pub fn fork(bytes: usize, words: &Words) -> Result<Forked> {
    let page = page_bytes();
    // SAFETY: the closure makes system calls, and touches its own memory and the words.
    unsafe { Forked::start(|| compete(bytes, page, &words.0)) }
}

/// Competes for `bytes` once [`Words::go`] was called. Returns, with 1, only if it gets no memory.
pub fn run(bytes: usize, words: &Words) -> i32 {
    compete(bytes, page_bytes(), &words.0)
}

/// Allocates nothing and takes no lock, as it also runs in forked processes.
fn compete(bytes: usize, page: usize, words: &[AtomicU64]) -> i32 {
    oom::be_first();
    while words[GO].load(Ordering::Acquire) == 0 {
        // SAFETY: plain numbers.
        unsafe { libc::usleep(200) };
    }
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing that exists.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            // Without NORESERVE the kernel might refuse more memory than it has; the experiment needs memory to run
            // out.
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        // SAFETY: the C library's own errno of this thread.
        let errno = unsafe { *libc::__errno_location() };
        words[FAILED].store(u64::from(errno.unsigned_abs()), Ordering::Release);
        return 1;
    }
    let start: *mut u8 = start.cast();
    loop {
        let mut offset = 0;
        while offset < bytes {
            // SAFETY: within the mapping, which is ours and writable.
            unsafe { start.add(offset).write_volatile(1) };
            offset += page;
            if words[PASSES].load(Ordering::Relaxed) == 0 {
                words[TOUCHED].store(offset.min(bytes) as u64, Ordering::Release);
            }
        }
        words[PASSES].fetch_add(1, Ordering::AcqRel);
    }
}

/// Its description for the command line.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "compete",
    help: "Maps memory and touches all of it repeatedly until it is killed",
    limits: &[Limit {
        option: "bytes",
        least: 1,
        most: 1 << 46,
    }],
};

#[cfg(test)]
mod tests {
    use memwarden_platform::forked::Ended;

    use super::*;

    #[test]
    fn a_fork_touches_all_that_it_was_told_to_and_ends_when_killed() {
        const BYTES: usize = 1 << 20;
        let words = Words::create().unwrap();
        let mut child = fork(BYTES, &words).unwrap();
        assert_eq!(words.touched_bytes(), 0);
        words.go();
        while words.passes() < 3 {
            assert_eq!(child.ended(), None);
            std::thread::yield_now();
        }
        assert_eq!(words.touched_bytes(), BYTES as u64);
        assert_eq!(words.failed(), None);
        assert_eq!(child.kill(), Some(Ended::Killed(libc::SIGKILL)));
    }

    #[test]
    fn one_that_gets_no_memory_says_so() {
        let words = Words::create().unwrap();
        let mut child = fork(1 << 55, &words).unwrap();
        words.go();
        while child.ended().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(child.ended(), Some(Ended::Exited(1)));
        assert_eq!(words.failed(), Some(libc::ENOMEM));
    }
}
