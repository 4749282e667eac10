// SPDX-License-Identifier: GPL-2.0-only
//! /dev/mymem_test: measures mymem_rust from inside the kernel.
//!
//! A write is one command and returns when the command is done; a read from the start then returns its result:
//! - `throughput SIZE TRIALS`: a line `WRITE_NS READ_NS` for each trial. The written bytes are random, and generated
//!   outside the timing.
//! - `counter WORKERS INCREMENTS none|mutex|fetch-add`: the line `EXPECTED ACTUAL ELAPSED_NS`, after that number of
//!   workers have each added 1 to the word at offset 0, INCREMENTS times.
//!
//! There is one result for all open files: lock the file (flock(2)) from the command to the last read of its result, as
//! memwarden does.
//!
//! EINVAL for any other command, EBUSY while another command runs, EINTR if a signal came (also one that stops the
//! writer: send the command again), ENOMEM if the memory is short, and EIO if the bytes read differ from those written.
#![deny(unsafe_op_in_unsafe_fn)]
#![deny(clippy::undocumented_unsafe_blocks)]

use core::fmt::Write;
use kernel::c_str;
use kernel::prelude::*;
use kernel::sync::{new_mutex, Arc, Mutex};
use kernel::uaccess::{UserPtr, UserSlice};

mod client;
mod counter;
mod misc;
mod threads;
mod throughput;

use misc::{Operations, Registration};

module! {
    type: Module,
    name: "mymem_test",
    author: "The memwarden authors",
    description: "Measures mymem_rust from inside the kernel",
    license: "GPL",
}

/// Longer than the longest command.
const LINE_MAX: usize = 128;

/// The result of a command, as text.
pub(crate) struct Outcome(VVec<u8>);

impl Write for Outcome {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.0
            .extend_from_slice(text.as_bytes(), GFP_KERNEL)
            .map_err(|_| core::fmt::Error)
    }
}

#[pin_data]
struct Test {
    /// The result of the last command that succeeded.
    #[pin]
    outcome: Mutex<VVec<u8>>,
    running: core::sync::atomic::AtomicBool,
}

impl Test {
    fn command(&self, line: &str) -> Result<VVec<u8>> {
        let mut words = line.split_ascii_whitespace();
        let mut outcome = Outcome(VVec::new());
        match words.next() {
            Some("throughput") => {
                let size = number(words.next())?;
                let trials = number(words.next())?;
                end(words.next())?;
                throughput::measure(size, trials, &mut outcome)?;
            }
            Some("counter") => {
                let workers = number(words.next())?;
                let increments = number(words.next())?;
                let lock = counter::Lock::parse(words.next().ok_or(EINVAL)?)?;
                end(words.next())?;
                counter::count(workers, increments as u64, lock, &mut outcome)?;
            }
            _ => return Err(EINVAL),
        }
        Ok(outcome.0)
    }
}

fn number(word: Option<&str>) -> Result<usize> {
    word.and_then(|word| word.parse().ok())
        .filter(|&number| number > 0)
        .ok_or(EINVAL)
}

fn end(word: Option<&str>) -> Result {
    word.map_or(Ok(()), |_| Err(EINVAL))
}

impl Operations for Test {
    const NAME: &'static CStr = c_str!("mymem_test");

    fn read(&self, to: UserPtr, count: usize, at: i64) -> Result<usize> {
        let outcome = self.outcome.lock();
        let at = usize::try_from(at).map_err(|_| EINVAL)?;
        let left = outcome.as_slice().get(at..).unwrap_or_default();
        let part = &left[..usize::min(count, left.len())];
        UserSlice::new(to, part.len()).writer().write_slice(part)?;
        Ok(part.len())
    }

    fn write(&self, from: UserPtr, count: usize, _at: i64) -> Result<usize> {
        if count > LINE_MAX {
            return Err(EINVAL);
        }
        let mut line = KVec::new();
        UserSlice::new(from, count).read_all(&mut line, GFP_KERNEL)?;
        let line = core::str::from_utf8(&line).map_err(|_| EINVAL)?;
        if self
            .running
            .swap(true, core::sync::atomic::Ordering::Acquire)
        {
            return Err(EBUSY);
        }
        let outcome = self.command(line);
        self.running
            .store(false, core::sync::atomic::Ordering::Release);
        *self.outcome.lock() = outcome?;
        Ok(count)
    }

    fn seek(&self, _position: i64, offset: i64, whence: u32) -> Result<i64> {
        match whence {
            kernel::bindings::SEEK_SET if offset >= 0 => Ok(offset),
            _ => Err(EINVAL),
        }
    }
}

struct Module {
    _registration: Registration<Test>,
}

impl kernel::Module for Module {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let test = Arc::pin_init(
            pin_init!(Test {
                outcome <- new_mutex!(VVec::new()),
                running: core::sync::atomic::AtomicBool::new(false),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self {
            _registration: Registration::new(test)?,
        })
    }
}
