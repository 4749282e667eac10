// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requests of the devices in /dev/copytrace (`kernel/include/uapi/memwarden/copytrace.h`), and the rings of
//! records that they provide.
//!
//! A ring is shared with the kernel, which writes to it at any time. Here it is accessed only through atomics: a record
//! is read after its sequence, and the kernel does not overwrite it until the tail says that it was read.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::mapping::map_shared;

/// `COPYTRACE_VERSION`.
pub const VERSION: u32 = 1;

/// `COPYTRACE_PROBES`, a source; `COPYTRACE_HOOKS` is 0.
pub const PROBES: u32 = 1;

/// `COPYTRACE_MERGED`.
pub const MERGED: u32 = 1;

/// `COPYTRACE_NO_ADDRESSES`.
pub const NO_ADDRESSES: u32 = 2;

/// Records that are read before their space is freed: the ring is full only briefly, and the kernel's cache line with
/// the tail is not invalidated at each record.
const GIVE_BACK: usize = 256;

/// `struct copytrace_info`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)] // documented in the header
pub struct Info {
    pub version: u32,
    pub source: u32,
    pub cpus: u32,
    pub records: u32,
    pub ring_bytes: u64,
    pub records_at: u32,
    pub flags: u32,
    pub ticks_hz: u64,
}

/// `struct copytrace_counts`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub recorded: u64,
    pub dropped: u64,
    pub missed: u64,
}

/// `struct copytrace_record`, read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Record {
    /// Number in this ring, from 0: its sequence minus one.
    pub number: u64,
    /// Time on the counter that all CPUs share.
    pub before_ns: u64,
    pub after_ns: u64,
    /// Return address; 0 if the ring was claimed without CAP_PERFMON.
    pub caller: u64,
    pub bytes: u64,
    pub left: u64,
    pub by_engine: u64,
    pub cpu: u32,
}

impl Record {
    /// Its duration; never negative, although the clocks of two CPUs may differ slightly.
    #[must_use]
    pub fn elapsed_ns(&self) -> u64 {
        self.after_ns.saturating_sub(self.before_ns)
    }
}

/// `struct copytrace_record`, in its layout in a ring.
#[repr(C)]
#[derive(Debug, Default)]
struct Slot {
    sequence: AtomicU64,
    before: AtomicU64,
    after: AtomicU64,
    caller: AtomicU64,
    bytes: AtomicU64,
    left: AtomicU64,
    by_engine: AtomicU64,
    cpu: AtomicU32,
    reserved: AtomicU32,
}

impl Slot {
    /// Record `number`, if it is complete.
    fn record(&self, number: u64, ticks: Ticks) -> Option<Record> {
        // Acquire: the fields read below were written before the sequence.
        if self.sequence.load(Ordering::Acquire) != number.wrapping_add(1) {
            return None;
        }
        let of = |field: &AtomicU64| field.load(Ordering::Relaxed);
        Some(Record {
            number,
            before_ns: ticks.to_ns(of(&self.before)),
            after_ns: ticks.to_ns(of(&self.after)),
            caller: of(&self.caller),
            bytes: of(&self.bytes),
            left: of(&self.left),
            by_engine: of(&self.by_engine),
            cpu: self.cpu.load(Ordering::Relaxed),
        })
    }
}

/// Converts the counter's ticks to time.
#[derive(Debug, Clone, Copy)]
struct Ticks {
    hz: u64,
}

/// Nanoseconds in a second.
const NS: u64 = 1_000_000_000;

impl Ticks {
    fn to_ns(self, ticks: u64) -> u64 {
        // In two steps, as the full product would overflow.
        let seconds_ns = (ticks / self.hz).saturating_mul(NS);
        seconds_ns.saturating_add(ticks % self.hz * NS / self.hz)
    }
}

/// `COPYTRACE_IOCTL_TYPE`.
const TYPE: u32 = 0xBE;

const INFO: libc::Ioctl = libc::_IOR::<Info>(TYPE, 1);
const CLAIM: libc::Ioctl = libc::_IOW::<u32>(TYPE, 2);
const START: libc::Ioctl = libc::_IO(TYPE, 3);
const STOP: libc::Ioctl = libc::_IO(TYPE, 4);
const COUNTS: libc::Ioctl = libc::_IOR::<Counts>(TYPE, 5);
const CLOSE: libc::Ioctl = libc::_IO(TYPE, 6);

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

/// Claims the ring of `cpu` for the file and empties it.
///
/// # Errors
/// EBUSY if another file has claimed it; EINVAL if there is no such ring, or the file has one; ENOMEM if memory is
/// short.
pub fn claim(device: &impl AsFd, cpu: u32) -> io::Result<()> {
    let mut record = cpu;
    // SAFETY: the record is the request's own.
    unsafe { request(device, CLAIM, &raw mut record) }
}

/// Starts recording copies in the file's ring.
///
/// # Errors
/// EINVAL before a claim; EBUSY if another module traces copies.
pub fn start(device: &impl AsFd) -> io::Result<()> {
    // SAFETY: the request takes no record.
    unsafe { request::<()>(device, START, std::ptr::null_mut()) }
}

/// Stops recording copies that end from now on; records in progress may still be written. Returns at once.
///
/// # Errors
/// EINVAL before a claim.
pub fn close(device: &impl AsFd) -> io::Result<()> {
    // SAFETY: the request takes no record.
    unsafe { request::<()>(device, CLOSE, std::ptr::null_mut()) }
}

/// Ends recording; afterwards the ring's contents are complete. May take some hundredths of a second.
///
/// # Errors
/// EINVAL before a claim.
pub fn stop(device: &impl AsFd) -> io::Result<()> {
    // SAFETY: the request takes no record.
    unsafe { request::<()>(device, STOP, std::ptr::null_mut()) }
}

/// Records that the file's ring has taken and dropped.
///
/// # Errors
/// EINVAL before a claim.
pub fn counts(device: &impl AsFd) -> io::Result<Counts> {
    let mut record = Counts::default();
    // SAFETY: the record is the request's own.
    unsafe { request(device, COUNTS, &raw mut record) }?;
    Ok(record)
}

/// Files to wait for: rings, of which one is ready when it is a quarter full, and others.
///
/// It is an epoll set. A wait in epoll_wait(2) copies nothing between user and kernel memory, so a trace of all copies has
/// none of its own waits. In poll(2) and nanosleep(2) it would.
#[derive(Debug)]
pub struct Waits {
    set: OwnedFd,
}

impl Waits {
    /// No files.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes a plain number.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that the kernel just created for us.
        let set = unsafe { OwnedFd::from_raw_fd(set) };
        Ok(Self { set })
    }

    /// Adds a file, which is ready when it can be read or its other end is closed.
    ///
    /// # Errors
    /// When the kernel refuses, or the file's driver has no waits.
    pub fn add(&self, file: &impl AsFd) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        let (set, file) = (self.set.as_raw_fd(), file.as_fd().as_raw_fd());
        // SAFETY: the record is ours, and the kernel only reads it.
        match unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, file, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until one of the files is ready, for at most `timeout`; returns true if one is. A signal ends the wait.
    ///
    /// # Errors
    /// When the kernel refuses, or a file has no ring.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        const MOST: usize = 8;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST];
        // Rounded up: a caller that waits for the rest of a millisecond would otherwise get a wait of none, again and
        // again.
        let timeout_ms = i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
        let set = self.set.as_raw_fd();
        // SAFETY: this number of records, ours to be written during the call.
        let ready = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), MOST as i32, timeout_ms) };
        match usize::try_from(ready) {
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
                error => Err(error),
            },
            Ok(ready) => {
                let failed = |event: &libc::epoll_event| event.events & libc::EPOLLERR as u32 != 0;
                if events[..ready].iter().any(failed) {
                    return Err(io::Error::from_raw_os_error(libc::EINVAL));
                }
                Ok(ready > 0)
            }
        }
    }
}

/// # Safety
/// `number` is a request for a `T` or without a record, and any bits that the kernel stores in it are a valid value.
unsafe fn request<T>(device: &impl AsFd, number: libc::Ioctl, record: *mut T) -> io::Result<()> {
    // SAFETY: as the caller promises.
    match unsafe { libc::ioctl(device.as_fd().as_raw_fd(), number, record) } {
        rc if rc < 0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The mapped ring of a file. One thread may read it, and it stays mapped after the file is closed.
#[derive(Debug)]
pub struct Ring {
    start: NonNull<u8>,
    bytes: usize,
    records: NonNull<Slot>,
    count: usize,
    ticks: Ticks,
    next: u64,
}

// SAFETY: the mapping holds only atomics and belongs to the process.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring that the file has claimed; `info` must be of the same device.
    ///
    /// # Errors
    /// EINVAL if the file has none, or `info` is inconsistent; otherwise the kernel's reason.
    pub fn map(device: &impl AsFd, info: &Info) -> io::Result<Self> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let bytes = usize::try_from(info.ring_bytes).map_err(|_| invalid())?;
        let at = info.records_at as usize;
        let count = info.records as usize;
        let end = count
            .checked_mul(size_of::<Slot>())
            .and_then(|records| records.checked_add(at));
        let fits = end.is_some_and(|end| end <= bytes)
            && at >= size_of::<AtomicU64>()
            && at % align_of::<Slot>() == 0
            && count.is_power_of_two()
            && (1..=u64::MAX / NS).contains(&info.ticks_hz);
        if !fits {
            return Err(invalid());
        }
        let start = map_shared(device, bytes)?;
        Ok(Self {
            start,
            bytes,
            // SAFETY: within the mapping, as just checked.
            records: unsafe { start.add(at) }.cast(),
            count,
            ticks: Ticks { hz: info.ticks_hz },
            next: 0,
        })
    }

    /// Takes all complete records, at most a full ring, and frees their space. Returns their number.
    pub fn read(&mut self, each: impl FnMut(&Record)) -> usize {
        // SAFETY: the mapping has this length, is page-aligned, lives as long as this, and any contents are valid.
        let (tail, slots) = unsafe {
            (
                self.start.cast::<AtomicU64>().as_ref(),
                std::slice::from_raw_parts(self.records.as_ptr(), self.count),
            )
        };
        read(tail, slots, self.ticks, &mut self.next, each)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, made by us and unmapped only here.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// [`Ring::read`]: `next` is the first unread record. The number of `slots` is a power of two.
fn read(
    tail: &AtomicU64,
    slots: &[Slot],
    ticks: Ticks,
    next: &mut u64,
    mut each: impl FnMut(&Record),
) -> usize {
    let mask = slots.len() - 1;
    let mut taken = 0;
    while taken < slots.len() {
        // The mask leaves a value that fits.
        let Some(record) = slots[*next as usize & mask].record(*next, ticks) else {
            break;
        };
        each(&record);
        *next += 1;
        taken += 1;
        if taken % GIVE_BACK == 0 {
            // Release: the kernel overwrites the records only after they were read.
            tail.store(*next, Ordering::Release);
        }
    }
    tail.store(*next, Ordering::Release);
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::c_layout::{compare, constants, layout};

    #[test]
    fn requests_and_records_are_those_of_the_header() {
        let values = [
            layout!(
                "copytrace_info",
                Info,
                version,
                source,
                cpus,
                records,
                ring_bytes,
                records_at,
                flags,
                ticks_hz
            ),
            layout!("copytrace_counts", Counts, recorded, dropped, missed),
            layout!(
                "copytrace_record",
                Slot,
                sequence,
                before,
                after,
                caller,
                bytes,
                left,
                by_engine,
                cpu,
                reserved
            ),
            constants!(
                COPYTRACE_VERSION = VERSION,
                COPYTRACE_PROBES = PROBES,
                COPYTRACE_MERGED = MERGED,
                COPYTRACE_NO_ADDRESSES = NO_ADDRESSES,
                COPYTRACE_INFO = INFO,
                COPYTRACE_CLAIM = CLAIM,
                COPYTRACE_START = START,
                COPYTRACE_STOP = STOP,
                COPYTRACE_COUNTS = COUNTS,
                COPYTRACE_CLOSE = CLOSE,
            ),
        ];
        compare("copytrace.h", &values);
    }

    /// 16 ns for each tick.
    const TICKS: Ticks = Ticks { hz: 62_500_000 };

    /// A ring in ordinary memory, with the kernel's side.
    struct Memory {
        tail: AtomicU64,
        slots: Vec<Slot>,
        next: u64,
    }

    impl Memory {
        fn new(records: usize) -> Self {
            Self {
                tail: AtomicU64::new(0),
                slots: (0..records).map(|_| Slot::default()).collect(),
                next: 0,
            }
        }

        /// Writes record `number` without its sequence.
        fn reserve(&self, number: u64) -> &Slot {
            let slot = &self.slots[usize::try_from(number).unwrap() % self.slots.len()];
            for (field, factor) in [
                (&slot.before, 100),
                (&slot.caller, 7),
                (&slot.bytes, 3),
                (&slot.left, 1),
                (&slot.by_engine, 2),
            ] {
                field.store(number * factor, Ordering::Relaxed);
            }
            slot.after.store(number * 100 + 25, Ordering::Relaxed);
            slot.cpu
                .store(u32::try_from(number).unwrap() + 1, Ordering::Relaxed);
            slot
        }

        fn write(&self, number: u64) {
            let slot = self.reserve(number);
            slot.sequence.store(number + 1, Ordering::Release);
        }

        fn read(&mut self) -> Vec<Record> {
            let mut records = Vec::new();
            let taken = read(&self.tail, &self.slots, TICKS, &mut self.next, |record| {
                records.push(*record);
            });
            assert_eq!(taken, records.len());
            records
        }

        fn numbers(&mut self) -> Vec<u64> {
            self.read().iter().map(|record| record.number).collect()
        }

        fn tail(&self) -> u64 {
            self.tail.load(Ordering::Acquire)
        }
    }

    #[test]
    fn ticks_of_years_are_ns() {
        let gigahertz = Ticks { hz: 2_999_999_999 };
        let year_s = 31_557_600;
        let ns = gigahertz.to_ns(gigahertz.hz * year_s);
        assert_eq!(ns, year_s * 1_000_000_000);
        assert_eq!(TICKS.to_ns(1), 16);
        assert_eq!(Ticks { hz: 1 }.to_ns(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_record_has_what_was_written() {
        let mut ring = Memory::new(64);
        ring.write(0);
        ring.write(1);
        let records = ring.read();
        assert_eq!(
            records[1],
            Record {
                number: 1,
                before_ns: 1600,
                after_ns: 2000,
                caller: 7,
                bytes: 3,
                left: 1,
                by_engine: 2,
                cpu: 2,
            }
        );
        assert_eq!(records[1].elapsed_ns(), 400);
        let backwards = Record {
            before_ns: 9,
            ..Record::default()
        };
        assert_eq!(backwards.elapsed_ns(), 0);
    }

    #[test]
    fn an_empty_ring_gives_nothing() {
        let mut ring = Memory::new(64);
        assert!(ring.numbers().is_empty());
        assert_eq!(ring.tail(), 0);
    }

    #[test]
    fn a_record_that_is_not_whole_stops_the_reading() {
        let mut ring = Memory::new(64);
        ring.write(0);
        let slot = ring.reserve(1);
        slot.sequence.store(0, Ordering::Relaxed);
        ring.write(2);
        assert_eq!(ring.numbers(), [0]);
        assert_eq!(ring.tail(), 1);
        ring.write(1);
        assert_eq!(ring.numbers(), [1, 2]);
        assert_eq!(ring.tail(), 3);
    }

    #[test]
    fn the_ring_goes_round_and_no_record_is_read_twice() {
        let mut ring = Memory::new(64);
        let mut written = 0;
        let mut expected = 0;
        for step in [64, 1, 63, 64, 0, 17, 40] {
            for _ in 0..step {
                ring.write(written);
                written += 1;
            }
            for number in ring.numbers() {
                assert_eq!(number, expected);
                expected += 1;
            }
            assert_eq!((ring.tail(), expected), (written, written));
        }
        assert!(ring.numbers().is_empty(), "those of the round before");
    }

    #[test]
    fn room_is_given_back_while_reading() {
        let mut ring = Memory::new(1024);
        for number in 0..1024 {
            ring.write(number);
        }
        let mut seen = Vec::new();
        read(&ring.tail, &ring.slots, TICKS, &mut ring.next, |record| {
            if record.number % 512 == 511 {
                seen.push(ring.tail.load(Ordering::Relaxed));
            }
        });
        assert_eq!(seen, [256, 768]);
        assert_eq!(ring.tail(), 1024);
    }

    #[test]
    fn one_reading_ends_even_when_the_writer_does_not() {
        let mut ring = Memory::new(64);
        for number in 0..64 {
            ring.write(number);
        }
        let mut taken = Vec::new();
        let count = read(&ring.tail, &ring.slots, TICKS, &mut ring.next, |record| {
            let slot = &ring.slots[usize::try_from(record.number).unwrap() % 64];
            slot.sequence.store(record.number + 65, Ordering::Release);
            taken.push(record.number);
        });
        assert_eq!((count, taken.len()), (64, 64));
    }

    #[test]
    fn a_reader_beside_a_writer_sees_whole_records_alone() {
        const ALL: u64 = 20_000;
        let Memory {
            tail,
            slots,
            mut next,
        } = Memory::new(64);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..ALL {
                    while number - tail.load(Ordering::Acquire) >= 64 {
                        std::thread::yield_now();
                    }
                    let slot = &slots[usize::try_from(number % 64).unwrap()];
                    slot.bytes.store(number ^ 0xff, Ordering::Relaxed);
                    slot.sequence.store(number + 1, Ordering::Release);
                }
            });
            let mut expected = 0;
            while expected < ALL {
                let taken = read(&tail, &slots, TICKS, &mut next, |record| {
                    assert_eq!((record.number, record.bytes), (expected, expected ^ 0xff));
                    expected += 1;
                });
                if taken == 0 {
                    std::thread::yield_now();
                }
            }
        });
    }

    #[test]
    fn a_file_that_is_no_device_knows_no_such_request() {
        let file = tempfile::tempfile().unwrap();
        for error in [
            info(&file).unwrap_err(),
            claim(&file, 0).unwrap_err(),
            start(&file).unwrap_err(),
            stop(&file).unwrap_err(),
            counts(&file).unwrap_err(),
        ] {
            assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        }
    }

    #[test]
    fn a_mapping_is_as_its_info_says_or_isn_t_made() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096 + 64 * 64).unwrap();
        let good = Info {
            records: 64,
            ring_bytes: 4096 + 64 * 64,
            records_at: 4096,
            ticks_hz: TICKS.hz,
            ..Info::default()
        };
        let mut ring = Ring::map(&file, &good).unwrap();
        assert_eq!(ring.read(|_| panic!("it is empty")), 0);
        let changes: [fn(&mut Info); 8] = [
            |info| info.records = 65,
            |info| info.records = 128,
            |info| info.records = 0,
            |info| info.records_at = 4097,
            |info| info.records_at = 0,
            |info| info.ring_bytes = u64::MAX,
            |info| info.ticks_hz = 0,
            |info| info.ticks_hz = u64::MAX,
        ];
        for change in changes {
            let mut info = good;
            change(&mut info);
            let error = Ring::map(&file, &info).unwrap_err();
            assert!(error.raw_os_error().is_some(), "{info:?}");
        }
    }

    #[test]
    fn a_wait_ends_after_its_time_or_when_a_file_is_ready() {
        let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        let waits = Waits::new().unwrap();
        waits.add(&reader).unwrap();
        for timeout in [Duration::from_micros(990), Duration::from_millis(1)] {
            let before = std::time::Instant::now();
            assert!(!waits.wait(timeout).unwrap());
            assert!(before.elapsed() >= timeout);
        }
        drop(writer);
        let long = Duration::from_secs(600);
        assert!(waits.wait(long).unwrap() && waits.wait(long).unwrap());
    }
}
