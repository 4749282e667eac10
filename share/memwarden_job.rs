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
//! `end_since(release, begin)` counts from a planned release. If memwarden doesn't run the program, `end` does nothing.
#![allow(dead_code)]

use std::{ffi::c_long, fs::File, io::Write, sync::OnceLock};

#[repr(C)]
struct Timespec(c_long, c_long);

unsafe extern "C" {
    fn clock_gettime(clock: i32, time: *mut Timespec) -> i32;
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn begin() -> u64 {
    let mut now = Timespec(0, 0);
    // SAFETY: the timespec lives through the call; clock 1 is CLOCK_MONOTONIC.
    unsafe { clock_gettime(1, &mut now) };
    now.0 as u64 * 1_000_000_000 + now.1 as u64
}

pub fn end(begin: u64) {
    end_since(begin, begin);
}

pub fn end_since(release: u64, began: u64) {
    static MARKS: OnceLock<Option<File>> = OnceLock::new();
    let end = begin();
    let open = || {
        File::options()
            .write(true)
            .open(std::env::var_os("MEMWARDEN_JOBS")?)
            .ok()
    };
    if let Some(mut marks) = MARKS.get_or_init(open).as_ref() {
        let _ = marks.write_all(format!("{release} {began} {end}\n").as_bytes());
    }
}
