// SPDX-License-Identifier: MIT OR Apache-2.0
//! Marks the jobs of a program, for memwarden's `--jobs-by mark`. Copy this file beside `main.rs`:
//!
//! ```ignore
//! mod memwarden_job;
//! let begin = memwarden_job::begin();
//! decode_a_frame();
//! memwarden_job::end(begin);
//! ```
//!
//! `end_since(release, begin)` counts from a planned release. If memwarden doesn't run the program, or has ended, `end`
//! does nothing.
#![allow(dead_code)]

use std::ffi::{c_int, c_long};
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Write};
use std::mem::ManuallyDrop;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::io::{AsRawFd, FromRawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

#[repr(C)]
struct Timespec(c_long, c_long);

/// As large as the C library's `sigset_t`; bit `n - 1` is signal `n`.
#[repr(C)]
struct Signals([u64; 16]);

unsafe extern "C" {
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    fn fcntl(fd: c_int, command: c_int, ...) -> c_int;
    fn pthread_sigmask(how: c_int, set: *const Signals, before: *mut Signals) -> c_int;
    fn sigtimedwait(set: *const Signals, info: *mut (), limit: *const Timespec) -> c_int;
}

// Linux on x86, Arm and RISC-V.
const CLOCK_MONOTONIC: c_int = 1;
const F_SETFL: c_int = 4;
const O_NONBLOCK: c_int = 0o4000;
const SIG_BLOCK: c_int = 0;
const SIG_SETMASK: c_int = 2;
const SIGPIPE: u32 = 13;

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn begin() -> u64 {
    let mut now = Timespec(0, 0);
    // SAFETY: the timespec lives through the call.
    unsafe { clock_gettime(CLOCK_MONOTONIC, &mut now) };
    now.0 as u64 * 1_000_000_000 + now.1 as u64
}

pub fn end(begin: u64) {
    end_since(begin, begin);
}

pub fn end_since(release: u64, began: u64) {
    let end = begin();
    if let Some(marks) = pipe() {
        write(&marks, &format!("{release} {began} {end}\n"));
    }
}

/// The pipe's descriptor; -1 before the first mark, -2 if there is nothing to write to.
static MARKS: AtomicI32 = AtomicI32::new(-1);
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);

/// The pipe, which is never closed here: the program may have closed it, and its number may be that of another file.
fn pipe() -> Option<ManuallyDrop<File>> {
    let fd = MARKS.load(SeqCst);
    if fd >= 0 {
        // SAFETY: the file is not closed, and not used unless it is the pipe.
        let marks = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        let opened = (DEVICE.load(SeqCst), INODE.load(SeqCst));
        let is_opened = |now: Metadata| (now.dev(), now.ino()) == opened;
        if marks.metadata().is_ok_and(is_opened) {
            return Some(marks);
        }
    }
    let opened = if fd == -2 { None } else { open() };
    MARKS.store(
        opened.as_ref().map_or(-2, |marks| marks.as_raw_fd()),
        SeqCst,
    );
    opened
}

/// Opens memwarden's pipe; none if nothing reads it.
fn open() -> Option<ManuallyDrop<File>> {
    let path = std::env::var_os("MEMWARDEN_JOBS")?;
    // Without O_NONBLOCK, it would wait for a reader.
    let marks = File::options()
        .write(true)
        .custom_flags(O_NONBLOCK)
        .open(path)
        .ok()?;
    let opened = marks.metadata().ok()?;
    // Writes wait while the pipe is full, so that no mark is lost.
    // SAFETY: the call changes only the flags of this file.
    if !opened.file_type().is_fifo() || unsafe { fcntl(marks.as_raw_fd(), F_SETFL, 0) } != 0 {
        return None;
    }
    DEVICE.store(opened.dev(), SeqCst);
    INODE.store(opened.ino(), SeqCst);
    Some(ManuallyDrop::new(marks))
}

/// Writes without a SIGPIPE, which the program may have set to its default.
fn write(mut marks: &File, line: &str) {
    let mut sigpipe = Signals([0; 16]);
    sigpipe.0[0] = 1 << (SIGPIPE - 1);
    let mut before = Signals([0; 16]);
    // SAFETY: the sets live through the call.
    unsafe { pthread_sigmask(SIG_BLOCK, &sigpipe, &mut before) };
    let written = marks.write_all(line.as_bytes());
    if written.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        MARKS.store(-2, SeqCst);
        // SAFETY: as above; no information is asked for.
        unsafe { sigtimedwait(&sigpipe, null_mut(), &Timespec(0, 0)) };
    }
    // SAFETY: as above.
    unsafe { pthread_sigmask(SIG_SETMASK, &before, null_mut()) };
}
