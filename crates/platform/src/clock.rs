// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clock of all measurements: CLOCK_MONOTONIC_RAW, which NTP does not slew.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use crate::{Error, Result};

/// Nanoseconds of CLOCK_MONOTONIC_RAW.
#[must_use]
#[inline]
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC_RAW)
}

/// The clock's resolution in nanoseconds, as the kernel reports it.
#[must_use]
pub fn resolution() -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: a valid pointer to a timespec, which was zeroed before.
    let time = unsafe {
        libc::clock_getres(libc::CLOCK_MONOTONIC_RAW, time.as_mut_ptr());
        time.assume_init()
    };
    nanoseconds(time)
}

/// Cost of one reading of the clock, in nanoseconds: the mean over the best
/// of several batches, because an interrupt in a batch is not the clock's cost.
#[must_use]
pub fn cost() -> f64 {
    // 256 readings take 6 us with a vDSO and 60 us with a system call: long
    // compared with the clock's step, short compared with a scheduler tick.
    const READINGS: u32 = 256;
    (0..16)
        .map(|_| {
            let start = now_ns();
            for _ in 0..READINGS {
                std::hint::black_box(now_ns());
            }
            now_ns() - start
        })
        .min()
        .map_or(f64::NAN, |best| {
            let best = best as f64;
            best / f64::from(READINGS)
        })
}

/// The shortest time above 0 between two readings of the clock, in nanoseconds: its step, or the cost of a reading if
/// that is longer. ([`resolution`] is what the kernel reports, 1 ns even if the hardware counts in steps of 40.)
#[must_use]
pub fn shortest_ns() -> u64 {
    // 4096 readings take about 0.1 ms with a vDSO: long compared with an interrupt, which lengthens only a few of them.
    const READINGS: u32 = 4096;
    (0..READINGS)
        .map(|_| {
            let start = now_ns();
            now_ns() - start
        })
        .filter(|ns| *ns > 0)
        .min()
        .unwrap_or_else(resolution)
}

/// Nanoseconds of CLOCK_MONOTONIC, the clock that [`sleep_until`] takes.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// CPU time of the calling thread, in nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Sleeps until CLOCK_MONOTONIC shows `deadline_ns`, or a signal arrives.
///
/// (CLOCK_MONOTONIC_RAW cannot be slept on.)
pub fn sleep_until(deadline_ns: u64) -> Result<()> {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(deadline_ns / 1_000_000_000).unwrap_or(libc::time_t::MAX),
        // Below 10^9, so it fits.
        tv_nsec: (deadline_ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: the timespec lives through the call; the remainder is not requested.
    let rc = unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &raw const time,
            std::ptr::null_mut(),
        )
    };
    match rc {
        0 | libc::EINTR => Ok(()),
        errno => Err(Error::system(
            "sleep",
            std::io::Error::from_raw_os_error(errno),
        )),
    }
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: a valid pointer to a timespec; it is read only if it was filled.
    let time = unsafe {
        let rc = libc::clock_gettime(clock, time.as_mut_ptr());
        assert_eq!(rc, 0, "this kernel lacks clock {clock}");
        time.assume_init()
    };
    nanoseconds(time)
}

#[inline]
fn nanoseconds(time: libc::timespec) -> u64 {
    // Never negative: both clocks count up from 0 at boot.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_moves_forward_and_reading_it_costs_something() {
        let before = now_ns();
        assert!(cost() > 0.0);
        assert!(now_ns() > before);
        assert!(resolution() > 0);
        assert!(shortest_ns() >= resolution());
    }

    #[test]
    fn a_sleep_lasts_at_least_until_its_deadline() {
        let deadline = monotonic_ns() + 100_000;
        sleep_until(deadline).unwrap();
        assert!(monotonic_ns() >= deadline);
    }
}
