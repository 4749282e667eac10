// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requests of the memory devices besides read and write (`kernel/include/uapi/memwarden/mymem.h`).

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `struct mymem_fetch_add`.
#[repr(C)]
struct FetchAdd {
    offset: u64,
    operand: u64,
}

/// `struct mymem_compare_exchange`.
#[repr(C)]
struct CompareExchange {
    offset: u64,
    expected: u64,
    desired: u64,
}

/// `MYMEM_IOCTL_TYPE`.
const TYPE: u32 = 0xBB;

const FETCH_ADD: libc::Ioctl = libc::_IOWR::<FetchAdd>(TYPE, 1);

const COMPARE_EXCHANGE: libc::Ioctl = libc::_IOWR::<CompareExchange>(TYPE, 2);

/// Adds `operand` (modulo 2^64) to the 64-bit word at `offset` in the device's memory, and returns the word's previous
/// value.
///
/// # Errors
/// The driver's errno; ENOTTY from a file of another driver.
pub fn fetch_add(device: &impl AsFd, offset: u64, operand: u64) -> io::Result<u64> {
    let mut record = FetchAdd { offset, operand };
    // SAFETY: the record is the request's own, lives through the call, and any bits in it are a valid value.
    let rc = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), FETCH_ADD, &raw mut record) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(record.operand)
}

/// Replaces the 64-bit word at `offset` in the device's memory by `desired` if it is `expected`, and returns its
/// previous value: the word was replaced if that is `expected`.
///
/// # Errors
/// The driver's errno; ENOTTY from a file of another driver.
pub fn compare_exchange(
    device: &impl AsFd,
    offset: u64,
    expected: u64,
    desired: u64,
) -> io::Result<u64> {
    let mut record = CompareExchange {
        offset,
        expected,
        desired,
    };
    // SAFETY: the record is the request's own, lives through the call, and any bits in it are a valid value.
    let rc = unsafe {
        libc::ioctl(
            device.as_fd().as_raw_fd(),
            COMPARE_EXCHANGE,
            &raw mut record,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(record.expected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::c_layout::{compare, constants, layout};

    #[test]
    fn requests_are_those_of_the_header() {
        let values = [
            layout!("mymem_fetch_add", FetchAdd, offset, operand),
            layout!(
                "mymem_compare_exchange",
                CompareExchange,
                offset,
                expected,
                desired
            ),
            constants!(
                MYMEM_FETCH_ADD = FETCH_ADD,
                MYMEM_COMPARE_EXCHANGE = COMPARE_EXCHANGE,
            ),
        ];
        compare("mymem.h", &values);
    }

    #[test]
    fn a_file_that_is_no_device_knows_no_such_request() {
        let file = tempfile::tempfile().unwrap();
        for error in [
            fetch_add(&file, 0, 1).unwrap_err(),
            compare_exchange(&file, 0, 0, 1).unwrap_err(),
        ] {
            assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        }
    }
}
