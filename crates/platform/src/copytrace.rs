// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requests that the devices in /dev/copytrace take (`kernel/include/uapi/memwarden/copytrace.h`), and the rings of
//! records that they give out.
//!
//! A ring is shared with the kernel, which writes to it at any time. Here all of it is atomics: a record is read after its
//! sequence, and the kernel leaves it alone until the tail says that it was read.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// `COPYTRACE_VERSION`.
pub const VERSION: u32 = 1;

/// `COPYTRACE_PROBES`, a source; `COPYTRACE_HOOKS` is 0.
pub const PROBES: u32 = 1;

/// `COPYTRACE_MERGED`.
pub const MERGED: u32 = 1;

/// `COPYTRACE_NO_ADDRESSES`.
pub const NO_ADDRESSES: u32 = 2;

/// Records that are read before their room is given back: the ring is not full for long, and the kernel's line with the
/// tail is not taken from it at each record.
const GIVE_BACK: usize = 256;

/// `struct copytrace_info`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the header says what each is
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
    /// In this ring, from 0: its sequence less one.
    pub number: u64,
    /// Since the counter that all CPUs share was 0.
    pub before_ns: u64,
    pub after_ns: u64,
    /// 0 where the ring was claimed without CAP_PERFMON.
    pub caller: u64,
    pub bytes: u64,
    pub left: u64,
    pub by_engine: u64,
    pub cpu: u32,
}

impl Record {
    /// Its duration, at least 0, since the clocks of two CPUs may differ slightly.
    #[must_use]
    pub fn elapsed_ns(&self) -> u64 {
        self.after_ns.saturating_sub(self.before_ns)
    }
}

/// `struct copytrace_record`, as it lies in a ring.
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
    /// Record `number`, if it is whole.
    fn record(&self, number: u64, ticks: Ticks) -> Option<Record> {
        // Acquire: what is read after it is what was written before it.
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

/// What the counter's ticks are in time.
#[derive(Debug, Clone, Copy)]
struct Ticks {
    hz: u64,
}

/// In a second.
const NS: u64 = 1_000_000_000;

impl Ticks {
    fn to_ns(self, ticks: u64) -> u64 {
        // In two steps: the product of all would not fit.
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

/// What the module has.
///
/// # Errors
/// The driver's errno; ENOTTY from a file that is no such device. So it is for all requests here.
pub fn info(device: &impl AsFd) -> io::Result<Info> {
    let mut record = Info::default();
    // SAFETY: the record is the request's own.
    unsafe { request(device, INFO, &raw mut record) }?;
    Ok(record)
}

/// Gives the file the ring of that CPU, empty.
///
/// # Errors
/// EBUSY when another file has it; EINVAL when there is none, or the file has one; ENOMEM when there is no memory for it.
pub fn claim(device: &impl AsFd, cpu: u32) -> io::Result<()> {
    let mut record = cpu;
    // SAFETY: the record is the request's own.
    unsafe { request(device, CLAIM, &raw mut record) }
}

/// From now on copies are recorded in the file's ring.
///
/// # Errors
/// EINVAL before a claim; EBUSY when another module traces copies.
pub fn start(device: &impl AsFd) -> io::Result<()> {
    // SAFETY: the request takes no record.
    unsafe { request::<()>(device, START, std::ptr::null_mut()) }
}

/// No copy that ends from now on is; some may be being written yet. It takes no time.
///
/// # Errors
/// EINVAL before a claim.
pub fn close(device: &impl AsFd) -> io::Result<()> {
    // SAFETY: the request takes no record.
    unsafe { request::<()>(device, CLOSE, std::ptr::null_mut()) }
}

/// Ends recording: the ring's contents are then complete. May take some hundredths of a second.
///
/// # Errors
/// EINVAL before a claim.
pub fn stop(device: &impl AsFd) -> io::Result<()> {
    // SAFETY: the request takes no record.
    unsafe { request::<()>(device, STOP, std::ptr::null_mut()) }
}

/// What the file's ring took and what not.
///
/// # Errors
/// EINVAL before a claim.
pub fn counts(device: &impl AsFd) -> io::Result<Counts> {
    let mut record = Counts::default();
    // SAFETY: the record is the request's own.
    unsafe { request(device, COUNTS, &raw mut record) }?;
    Ok(record)
}

/// Waits until one of the files' rings is filled to a quarter, for so long at most; whether one is. A signal ends it.
///
/// # Errors
/// When the kernel refuses, or a file has no ring.
pub fn wait<F: AsFd>(devices: &[F], timeout: Duration) -> io::Result<bool> {
    let mut polled: Vec<libc::pollfd> = devices
        .iter()
        .map(|device| libc::pollfd {
            fd: device.as_fd().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    let count = libc::nfds_t::try_from(polled.len()).unwrap_or(0);
    // SAFETY: `count` records, ours to be written during the call.
    match unsafe { libc::poll(polled.as_mut_ptr(), count, timeout_ms) } {
        rc if rc < 0 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
        _ if polled.iter().any(|one| one.revents & libc::POLLERR != 0) => {
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        }
        ready => Ok(ready > 0),
    }
}

/// # Safety
/// `number` is a request for a `T`, or for nothing, and any bits that the kernel leaves in it are a value.
unsafe fn request<T>(device: &impl AsFd, number: libc::Ioctl, record: *mut T) -> io::Result<()> {
    // SAFETY: as the caller promises.
    match unsafe { libc::ioctl(device.as_fd().as_raw_fd(), number, record) } {
        rc if rc < 0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The ring of a file, mapped. It may be read by one thread, and stays when the file is closed.
#[derive(Debug)]
pub struct Ring {
    start: NonNull<u8>,
    bytes: usize,
    records: NonNull<Slot>,
    count: usize,
    ticks: Ticks,
    next: u64,
}

// SAFETY: what is in the mapping is atomics, and the mapping belongs to the process.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring that the file has claimed; `info` is of the same device.
    ///
    /// # Errors
    /// EINVAL when the file has none, or what `info` says can't be; else the kernel's reason.
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
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                device.as_fd().as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start: NonNull<u8> =
            NonNull::new(start.cast()).expect("the kernel maps nothing at 0 unasked");
        Ok(Self {
            start,
            bytes,
            // SAFETY: within the mapping, as was just seen.
            records: unsafe { start.add(at) }.cast(),
            count,
            ticks: Ticks { hz: info.ticks_hz },
            next: 0,
        })
    }

    /// Takes all records that are whole, at most as many as the ring has room for, and gives their room back. Returns how
    /// many.
    pub fn read(&mut self, each: impl FnMut(&Record)) -> usize {
        // SAFETY: the mapping is so long and aligned to a page, lives as long as this, and holds what may be anything.
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

/// [`Ring::read`]: `next` is the first that was not read yet. `slots` are a power of two.
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
        #[allow(clippy::cast_possible_truncation)] // the mask leaves what fits
        let Some(record) = slots[*next as usize & mask].record(*next, ticks) else {
            break;
        };
        each(&record);
        *next += 1;
        taken += 1;
        if taken % GIVE_BACK == 0 {
            // Release: the kernel writes there only after what was read of it.
            tail.store(*next, Ordering::Release);
        }
    }
    tail.store(*next, Ordering::Release);
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 16 ns each.
    const TICKS: Ticks = Ticks { hz: 62_500_000 };

    /// A ring in ordinary memory, and the kernel's side of it.
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

        /// Record `number` but for its sequence.
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
    fn the_requests_are_those_of_the_header() {
        for (request, number) in [
            (INFO, 0x8028_BE01),
            (CLAIM, 0x4004_BE02),
            (START, 0x0000_BE03),
            (STOP, 0x0000_BE04),
            (COUNTS, 0x8018_BE05),
            (CLOSE, 0x0000_BE06),
        ] {
            assert_eq!(request as u32, number, "{number:#x}");
        }
    }

    #[test]
    fn fields_are_where_the_header_has_them() {
        use std::mem::offset_of;
        assert_eq!(offset_of!(Info, records), 12);
        assert_eq!(offset_of!(Info, ring_bytes), 16);
        assert_eq!(offset_of!(Info, flags), 28);
        assert_eq!(offset_of!(Info, ticks_hz), 32);
        assert_eq!(offset_of!(Counts, missed), 16);
        assert_eq!(offset_of!(Slot, caller), 24);
        assert_eq!(offset_of!(Slot, by_engine), 48);
        assert_eq!(offset_of!(Slot, cpu), 56);
        assert_eq!(size_of::<Slot>(), 64);
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
    fn waiting_ends() {
        let (reader, _writer) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!wait(&[&reader], Duration::from_millis(1)).unwrap());
    }
}
