// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page faults of the calling thread, from getrusage.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use crate::{Error, Result};

/// Minor faults of the calling thread since it began.
pub fn minor() -> Result<u64> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: a valid pointer to a rusage, zeroed before.
    let (rc, usage) = unsafe {
        let rc = libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        (rc, usage.assume_init())
    };
    if rc != 0 {
        return Err(Error::last("count this thread's page faults"));
    }
    u64::try_from(usage.ru_minflt)
        .map_err(|_| Error::Invalid("the kernel counts a negative number of faults".into()))
}
