// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requests of /dev/cftu (`kernel/include/uapi/memwarden/cftu.h`), and the memory that they refer to.
//!
//! The kernel writes to the addresses in a request. Here they are always inside a [`Memory`] that the caller lends for
//! the call, so that no request can reach other memory.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::mapping::{Mapping, page_bytes};

/// `CFTU_VERSION`.
pub const VERSION: u32 = 2;

/// `CFTU_NO_CHANNEL`.
pub const NO_CHANNEL: u32 = u32::MAX;

/// `CFTU_UNCACHED`.
pub const UNCACHED: u32 = 1;

/// `struct cftu_info`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs)] // documented in the header
pub struct Info {
    pub version: u32,
    pub channels: u32,
    pub policy: u32,
    pub flags: u32,
    pub min_bytes: u64,
    pub poll_bytes: u64,
    pub region_bytes: u64,
    pub quantum_high_ns: u64,
    pub quantum_low_ns: u64,
    pub high: u64,
    pub align_bytes: u32,
    pub reserved: u32,
    pub provider: [u8; 32],
}

/// `struct cftu_policy`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs)]
pub struct Policy {
    pub policy: u32,
    pub flags: u32,
    pub quantum_high_ns: u64,
    pub quantum_low_ns: u64,
    pub high: u64,
}

/// `struct cftu_region`.
#[repr(C)]
struct Region {
    bytes: u64,
}

/// `struct cftu_pin`.
#[repr(C)]
struct Pin {
    address: u64,
    bytes: u64,
    flags: u32,
    id: u32,
}

/// `struct cftu_copy`; the address is an offset in a [`Memory`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Copy {
    /// Offset in the memory; converted to an address during the request.
    pub at: u64,
    pub offset: u64,
    pub bytes: u64,
    pub direction: u32,
    pub engine: u32,
    pub flags: u32,
    pub pin: u32,
    pub not_copied: u64,
    pub engine_bytes: u64,
    pub begin_ns: u64,
    pub end_ns: u64,
    pub cpu: u32,
    pub channel: u32,
}

/// `struct cftu_batch`.
#[repr(C)]
struct Batch {
    copies: u64,
    count: u32,
    reserved: u32,
    done: u64,
}

/// `struct cftu_channel`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs)]
pub struct Channel {
    pub channel: u32,
    pub flags: u32,
    pub name: [u8; 32],
    pub transfers: u64,
    pub segments: u64,
    pub bytes: u64,
    pub errors: u64,
    pub timeouts: u64,
    pub recoveries: u64,
    pub paused_ns: u64,
    pub cpus: u64,
    pub mismatches: u64,
    pub held_pages: u64,
}

/// `struct cftu_statistics`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Statistics {
    pub copies: u64,
    pub engine_bytes: u64,
    pub cpu_bytes: u64,
    pub asked_bytes: u64,
    pub off_bytes: u64,
    pub small_bytes: u64,
    pub context_bytes: u64,
    pub unpinned_bytes: u64,
    pub aligned_bytes: u64,
    pub refused_bytes: u64,
    pub failed_bytes: u64,
    pub policies: u64,
    pub kernel_copies: u64,
    pub kernel_engine_bytes: u64,
    pub mismatches: u64,
    pub held_pages: u64,
}

/// `CFTU_IOCTL_TYPE`.
const TYPE: u32 = 0xBC;

const INFO: libc::Ioctl = libc::_IOR::<Info>(TYPE, 1);
const POLICY: libc::Ioctl = libc::_IOW::<Policy>(TYPE, 2);
const REGION: libc::Ioctl = libc::_IOW::<Region>(TYPE, 3);
const PIN: libc::Ioctl = libc::_IOWR::<Pin>(TYPE, 4);
const UNPIN: libc::Ioctl = libc::_IOW::<u32>(TYPE, 5);
const COPY: libc::Ioctl = libc::_IOWR::<Copy>(TYPE, 6);
const BATCH: libc::Ioctl = libc::_IOWR::<Batch>(TYPE, 7);
const CHANNEL: libc::Ioctl = libc::_IOWR::<Channel>(TYPE, 8);
const STATISTICS: libc::Ioctl = libc::_IOR::<Statistics>(TYPE, 9);

/// User memory for copies: whole pages, all mapped.
#[derive(Debug)]
pub struct Memory {
    mapping: Mapping,
    bytes: usize,
}

impl Memory {
    /// Allocates `bytes` of zeros, at least one.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(bytes: usize) -> crate::Result<Self> {
        let bytes = bytes.max(1);
        let mapping = Mapping::anonymous(bytes.next_multiple_of(page_bytes()))?;
        for offset in (0..mapping.bytes()).step_by(page_bytes()) {
            // SAFETY: within the mapping, which is ours and writable.
            unsafe { mapping.start().add(offset).write_volatile(0) };
        }
        Ok(Self { mapping, bytes })
    }

    /// Its contents.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: within the mapping, which is ours; the kernel writes to it only in calls that borrow it mutably.
        unsafe { std::slice::from_raw_parts(self.mapping.start(), self.bytes) }
    }

    /// Its contents, mutable.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.start(), self.bytes) }
    }

    fn address(&self) -> u64 {
        self.mapping.start() as u64
    }

    /// True if the copy's bytes are inside the memory.
    fn holds(&self, copy: &Copy) -> bool {
        let end = copy.at.checked_add(copy.bytes);
        end.is_some_and(|end| end <= self.bytes as u64)
    }
}

/// The module's properties.
///
/// # Errors
/// The driver's errno; ENOTTY from a file of another driver. The same holds for all requests here.
pub fn info(device: &impl AsFd) -> io::Result<Info> {
    let mut record = Info::default();
    // SAFETY: the record is the request's own.
    unsafe { request(device, INFO, &raw mut record) }?;
    Ok(record)
}

/// Sets the policy.
///
/// # Errors
/// EINVAL if it doesn't fit the channels.
pub fn set_policy(device: &impl AsFd, policy: &Policy) -> io::Result<()> {
    let mut record = *policy;
    // SAFETY: the record is the request's own.
    unsafe { request(device, POLICY, &raw mut record) }
}

/// Replaces the file's region of kernel memory; 0 frees it.
///
/// # Errors
/// ENOMEM if memory is short.
pub fn set_region(device: &impl AsFd, bytes: u64) -> io::Result<()> {
    let mut record = Region { bytes };
    // SAFETY: the record is the request's own.
    unsafe { request(device, REGION, &raw mut record) }
}

/// Pins all of the memory for reading and writing. Returns the argument of [`unpin`].
///
/// # Errors
/// ENOMEM above RLIMIT_MEMLOCK.
pub fn pin(device: &impl AsFd, memory: &Memory) -> io::Result<u32> {
    const WRITABLE: u32 = 1;
    let mut record = Pin {
        address: memory.address(),
        bytes: memory.bytes as u64,
        flags: WRITABLE,
        id: 0,
    };
    // SAFETY: the record is the request's. The kernel keeps the pinned pages when the mapping is gone.
    unsafe { request(device, PIN, &raw mut record) }?;
    Ok(record.id)
}

/// Releases pinned memory.
///
/// # Errors
/// EINVAL for an unknown ID.
pub fn unpin(device: &impl AsFd, id: u32) -> io::Result<()> {
    let mut record = id;
    // SAFETY: the record is the request's own.
    unsafe { request(device, UNPIN, &raw mut record) }
}

/// Makes one copy from or to the memory, and stores its outcome in `copy`.
///
/// # Errors
/// EINVAL for a copy outside the memory or the region.
pub fn copy(device: &impl AsFd, memory: &mut Memory, copy: &mut Copy) -> io::Result<()> {
    if !memory.holds(copy) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut record = Copy {
        at: memory.address() + copy.at,
        ..*copy
    };
    // SAFETY: the record is the request's own, and the kernel writes only inside the memory, which is borrowed mutably
    // for the call.
    let result = unsafe { request(device, COPY, &raw mut record) };
    *copy = Copy {
        at: copy.at,
        ..record
    };
    result
}

/// Makes many copies in one request, in order, and returns how many it made.
///
/// # Errors
/// EINVAL if one is outside the memory, and then none is made; EINTR if a signal came.
pub fn batch(
    device: &impl AsFd,
    memory: &mut Memory,
    copies: &mut [Copy],
) -> (u64, io::Result<()>) {
    let count = u32::try_from(copies.len());
    let (Ok(count), true) = (count, copies.iter().all(|copy| memory.holds(copy))) else {
        return (0, Err(io::Error::from_raw_os_error(libc::EINVAL)));
    };
    let start = memory.address();
    copies.iter_mut().for_each(|copy| copy.at += start);
    let mut record = Batch {
        copies: copies.as_mut_ptr() as u64,
        count,
        reserved: 0,
        done: 0,
    };
    // SAFETY: the record is the request's own. It points to `count` copies, borrowed mutably, and each of them points
    // into the memory, which is borrowed mutably, too.
    let result = unsafe { request(device, BATCH, &raw mut record) };
    copies.iter_mut().for_each(|copy| copy.at -= start);
    (record.done, result)
}

/// The counts of channel `number`.
///
/// # Errors
/// EINVAL if there is no such channel.
pub fn channel(device: &impl AsFd, number: u32) -> io::Result<Channel> {
    let mut record = Channel {
        channel: number,
        ..Channel::default()
    };
    // SAFETY: the record is the request's own.
    unsafe { request(device, CHANNEL, &raw mut record) }?;
    Ok(record)
}

/// The counts of all copies.
///
/// # Errors
/// As for [`info`].
pub fn statistics(device: &impl AsFd) -> io::Result<Statistics> {
    let mut record = Statistics::default();
    // SAFETY: the record is the request's own.
    unsafe { request(device, STATISTICS, &raw mut record) }?;
    Ok(record)
}

/// # Safety
/// `number` is a request for a `T`, and any bits that the kernel stores in it are a valid value; if the record points
/// to other memory, that memory may be read and written during the call.
unsafe fn request<T>(device: &impl AsFd, number: libc::Ioctl, record: *mut T) -> io::Result<()> {
    // SAFETY: as the caller promises.
    match unsafe { libc::ioctl(device.as_fd().as_raw_fd(), number, record) } {
        rc if rc < 0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::c_layout::{compare, constants, layout};

    #[test]
    fn requests_are_those_of_the_header() {
        let mut copy = layout!(
            "cftu_copy",
            Copy,
            offset,
            bytes,
            direction,
            engine,
            flags,
            pin,
            not_copied,
            engine_bytes,
            begin_ns,
            end_ns,
            cpu,
            channel
        );
        let at = std::mem::offset_of!(Copy, at) as u64;
        copy.push(("offsetof(struct cftu_copy, address)".into(), at));
        let values = [
            copy,
            layout!(
                "cftu_info",
                Info,
                version,
                channels,
                policy,
                flags,
                min_bytes,
                poll_bytes,
                region_bytes,
                quantum_high_ns,
                quantum_low_ns,
                high,
                align_bytes,
                reserved,
                provider
            ),
            layout!(
                "cftu_policy",
                Policy,
                policy,
                flags,
                quantum_high_ns,
                quantum_low_ns,
                high
            ),
            layout!("cftu_region", Region, bytes),
            layout!("cftu_pin", Pin, address, bytes, flags, id),
            layout!("cftu_batch", Batch, copies, count, reserved, done),
            layout!(
                "cftu_channel",
                Channel,
                channel,
                flags,
                name,
                transfers,
                segments,
                bytes,
                errors,
                timeouts,
                recoveries,
                paused_ns,
                cpus,
                mismatches,
                held_pages
            ),
            layout!(
                "cftu_statistics",
                Statistics,
                copies,
                engine_bytes,
                cpu_bytes,
                asked_bytes,
                off_bytes,
                small_bytes,
                context_bytes,
                unpinned_bytes,
                aligned_bytes,
                refused_bytes,
                failed_bytes,
                policies,
                kernel_copies,
                kernel_engine_bytes,
                mismatches,
                held_pages
            ),
            constants!(
                CFTU_VERSION = VERSION,
                CFTU_NO_CHANNEL = NO_CHANNEL,
                CFTU_UNCACHED = UNCACHED,
                CFTU_INFO = INFO,
                CFTU_POLICY = POLICY,
                CFTU_REGION = REGION,
                CFTU_PIN = PIN,
                CFTU_UNPIN = UNPIN,
                CFTU_COPY = COPY,
                CFTU_BATCH = BATCH,
                CFTU_CHANNEL = CHANNEL,
                CFTU_STATISTICS = STATISTICS,
            ),
        ];
        compare("cftu.h", &values);
    }

    #[test]
    fn a_copy_outside_the_memory_never_reaches_the_kernel() {
        let file = tempfile::tempfile().unwrap();
        let mut memory = Memory::new(100).unwrap();
        for (at, bytes) in [(0, 101), (101, 0), (u64::MAX, 2), (99, 2)] {
            let mut one = Copy {
                at,
                bytes,
                ..Copy::default()
            };
            let error = copy(&file, &mut memory, &mut one).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
            let (done, result) = batch(&file, &mut memory, &mut [one]);
            assert_eq!(done, 0);
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
        }
    }

    #[test]
    fn a_file_that_is_no_device_knows_no_such_request() {
        let file = tempfile::tempfile().unwrap();
        let mut memory = Memory::new(64).unwrap();
        let mut one = Copy {
            at: 8,
            bytes: 8,
            ..Copy::default()
        };
        let before = one;
        for error in [
            info(&file).unwrap_err(),
            set_policy(&file, &Policy::default()).unwrap_err(),
            set_region(&file, 1).unwrap_err(),
            pin(&file, &memory).unwrap_err(),
            unpin(&file, 1).unwrap_err(),
            copy(&file, &mut memory, &mut one).unwrap_err(),
            batch(&file, &mut memory, std::slice::from_mut(&mut one))
                .1
                .unwrap_err(),
            channel(&file, 0).unwrap_err(),
            statistics(&file).unwrap_err(),
        ] {
            assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        }
        assert_eq!(one, before);
    }

    #[test]
    fn memory_is_as_long_as_asked_and_zero() {
        let mut memory = Memory::new(5000).unwrap();
        assert_eq!(memory.as_slice(), [0; 5000]);
        memory.as_mut_slice()[4999] = 7;
        assert_eq!(memory.as_slice()[4999], 7);
    }
}
