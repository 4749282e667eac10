// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters that report when so many events have happened on a CPU, and who had the CPU meanwhile.
//!
//! Source: perf_event_open(2), and kernel/events/core.c for what the manual leaves out (see [`OverflowCounter::arm`]).

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys as perf;
use perf_event_open_sys::bindings;

use crate::mapping::page_bytes;
use crate::{Error, Result, Root, holders};

/// What to count: perf's type and config numbers (`linux/perf_event.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventCode {
    /// `PERF_TYPE_*`.
    pub kind: u32,
    /// The event's number in that type.
    pub config: u64,
    /// What some events of a PMU take beside it, such as the mask of Intel's offcore responses; 0 elsewhere.
    pub config1: u64,
    /// The same.
    pub config2: u64,
}

impl EventCode {
    const fn of(kind: u32, config: u64) -> Self {
        Self {
            kind,
            config,
            config1: 0,
            config2: 0,
        }
    }

    /// A number of the CPU's own PMU, as its manual gives it.
    #[must_use]
    pub fn raw(config: u64) -> Self {
        Self::of(bindings::PERF_TYPE_RAW, config)
    }

    /// Whether the CPU counts it; the kernel counts the others.
    #[must_use]
    pub fn is_hardware(self) -> bool {
        self.kind != bindings::PERF_TYPE_SOFTWARE
    }

    /// `PERF_COUNT_HW_CACHE_MISSES`: on most CPUs, misses of the last-level cache.
    pub const CACHE_MISSES: Self = Self::hardware(bindings::PERF_COUNT_HW_CACHE_MISSES);
    /// `PERF_COUNT_HW_CACHE_LL`, read, miss: reads that miss the last level.
    pub const LAST_LEVEL_READ_MISSES: Self = Self::of(
        bindings::PERF_TYPE_HW_CACHE,
        (bindings::PERF_COUNT_HW_CACHE_LL
            | bindings::PERF_COUNT_HW_CACHE_OP_READ << 8
            | bindings::PERF_COUNT_HW_CACHE_RESULT_MISS << 16) as u64,
    );
    /// `PERF_COUNT_HW_CPU_CYCLES`.
    pub const CYCLES: Self = Self::hardware(bindings::PERF_COUNT_HW_CPU_CYCLES);
    /// `PERF_COUNT_HW_INSTRUCTIONS`.
    pub const INSTRUCTIONS: Self = Self::hardware(bindings::PERF_COUNT_HW_INSTRUCTIONS);
    /// `PERF_COUNT_SW_PAGE_FAULTS`, counted by the kernel on any machine.
    pub const PAGE_FAULTS: Self = Self::of(
        bindings::PERF_TYPE_SOFTWARE,
        bindings::PERF_COUNT_SW_PAGE_FAULTS as u64,
    );

    const fn hardware(config: u32) -> Self {
        Self::of(bindings::PERF_TYPE_HARDWARE, config as u64)
    }
}

/// The tasks whose events are counted.
#[derive(Debug, Clone, Copy)]
pub enum Of<'a> {
    /// Everything that runs on the CPU.
    Cpu,
    /// What tasks of this control group (an open folder of its hierarchy) do on the CPU.
    Group(BorrowedFd<'a>),
}

/// Longest distance to an overflow, in events: none within years.
pub const FAR: u64 = 1 << 50;

/// `PERF_SAMPLE_TIME` of linux/perf_event.h, whose type the bindings differ about.
const SAMPLE_TIME: u64 = 1 << 2;

/// Pages of a buffer besides its head; a power of two. Two thousand overflows: more than come while a group is stopped
/// in some milliseconds.
const COUNTER_PAGES: usize = 8;
/// Some thousand context switches a period.
const WITNESS_PAGES: usize = 16;

fn attributes(code: EventCode) -> bindings::perf_event_attr {
    let mut attributes = bindings::perf_event_attr {
        type_: code.kind,
        size: u32::try_from(size_of::<bindings::perf_event_attr>()).expect("some hundred bytes"),
        config: code.config,
        ..Default::default()
    };
    attributes.__bindgen_anon_3.config1 = code.config1;
    attributes.__bindgen_anon_4.config2 = code.config2;
    attributes
}

fn open(attributes: &mut bindings::perf_event_attr, cpu: usize, of: Of<'_>) -> io::Result<File> {
    let cpu = i32::try_from(cpu).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let (who, flags) = match of {
        Of::Cpu => (-1, 0),
        Of::Group(folder) => (folder.as_raw_fd(), bindings::PERF_FLAG_PID_CGROUP),
    };
    let flags = (bindings::PERF_FLAG_FD_CLOEXEC | flags).into();
    // SAFETY: the attributes are valid for their stated size; the descriptor outlives the call.
    let fd = unsafe { perf::perf_event_open(&raw mut *attributes, who, cpu, -1, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the kernel just made for us.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn check(rc: i32, what: &str) -> Result<()> {
    if rc == 0 {
        Ok(())
    } else {
        Err(Error::last(what))
    }
}

/// One event on one CPU, which can be told to report after so many more.
///
/// It is ready for reading (`poll`) when it has overflowed. Nothing here allocates once it is open.
#[derive(Debug)]
pub struct OverflowCounter {
    file: File,
    buffer: Buffer,
    /// Count and distance when last armed; an unused arm is not repeated.
    armed: Option<(u64, u64)>,
}

impl OverflowCounter {
    /// Opens the event on `cpu`, counting from now on and overflowing never.
    ///
    /// # Errors
    /// When the kernel refuses it: no such event, no free counter, no rights.
    pub fn open(cpu: usize, code: EventCode, of: Of<'_>, user_only: bool) -> Result<Self> {
        let mut attributes = attributes(code);
        attributes.__bindgen_anon_1.sample_period = FAR;
        attributes.__bindgen_anon_2.wakeup_events = 1;
        attributes.sample_type = SAMPLE_TIME;
        attributes.set_use_clockid(1);
        attributes.clockid = libc::CLOCK_MONOTONIC;
        attributes.set_exclude_kernel(u64::from(user_only));
        attributes.set_exclude_hv(u64::from(user_only));
        // A hardware counter of our own or none: one that is shared by turns would miss events.
        let own = code.is_hardware() && matches!(of, Of::Cpu);
        attributes.set_pinned(u64::from(own));
        let system = |source| Error::System {
            attempt: format!("count event {}:{:#x} on CPU {cpu}", code.kind, code.config),
            source,
        };
        let file = open(&mut attributes, cpu, of).map_err(system)?;
        let buffer = Buffer::map(&file, COUNTER_PAGES).map_err(system)?;
        Ok(Self {
            file,
            buffer,
            armed: None,
        })
    }

    /// Events counted since it was opened.
    ///
    /// # Errors
    /// When the event got no counter: others hold them all.
    pub fn read(&self) -> Result<u64> {
        if let Some(count) = self.read_if_counting()? {
            return Ok(count);
        }
        let others: Vec<String> = holders::others(&Root::system())
            .iter()
            .map(ToString::to_string)
            .collect();
        Err(Error::Invalid(format!(
            "there is no counter left: others hold all of this CPU ({})",
            if others.is_empty() {
                "none that /proc shows".into()
            } else {
                others.join(", ")
            }
        )))
    }

    /// Events counted since it was opened; `None` while it does not count, because a pinned event lost its counter to
    /// another user or to an error of the PMU. [`OverflowCounter::revive`] tries to get one again.
    ///
    /// # Errors
    /// When it cannot be read at all.
    pub fn read_if_counting(&self) -> Result<Option<u64>> {
        let mut value = 0_u64;
        // SAFETY: 8 bytes that are ours to be written.
        let got = unsafe {
            libc::read(
                self.file.as_raw_fd(),
                (&raw mut value).cast(),
                size_of::<u64>(),
            )
        };
        match got {
            8 => Ok(Some(value)),
            // A pinned event that could not be put on the PMU reads as the end of the file.
            0 => Ok(None),
            _ => Err(Error::last("read a counter")),
        }
    }

    /// Asks for a counter again after the event lost its own: starting an event clears its error state.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn revive(&mut self) -> Result<()> {
        self.armed = None;
        // SAFETY: takes a plain number.
        check(
            unsafe { perf::ioctls::ENABLE(self.file.as_raw_fd(), 0) },
            "start a counter",
        )
    }

    /// From here on, overflows after `events` more (at least 1).
    ///
    /// To be called on the counter's CPU, so that nothing is counted between the steps. Setting the period of a
    /// running software event makes it overflow at the very next event, whatever the period: perf clears what is left
    /// and counts up to 0. Stopped, set and started it begins a whole period. A counter that was lost has nothing to
    /// overflow, and stays as it is.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn arm(&mut self, events: u64) -> Result<()> {
        let events = events.clamp(1, FAR);
        let Some(count) = self.read_if_counting()? else {
            return Ok(());
        };
        if self.armed == Some((count, events)) {
            return Ok(());
        }
        let fd = self.file.as_raw_fd();
        // SAFETY: takes a plain number.
        check(unsafe { perf::ioctls::DISABLE(fd, 0) }, "stop a counter")?;
        // SAFETY: reads the number whose address it is given.
        let set = unsafe { perf::ioctls::PERIOD(fd, (&raw const events) as u64) };
        check(set, "set a counter's period")?;
        // SAFETY: takes a plain number.
        check(unsafe { perf::ioctls::ENABLE(fd, 0) }, "start a counter")?;
        self.armed = Some((count, events));
        Ok(())
    }

    /// When it first overflowed since the last call, by CLOCK_MONOTONIC in nanoseconds.
    pub fn take(&mut self) -> Option<u64> {
        self.take_span().map(|(first, _)| first)
    }

    /// When it first and last overflowed since the last call, by CLOCK_MONOTONIC in nanoseconds. Of more overflows than
    /// its buffer holds the later ones are unknown.
    pub fn take_span(&mut self) -> Option<(u64, u64)> {
        let mut span: Option<(u64, u64)> = None;
        self.buffer.drain(|record| {
            if record.kind == bindings::PERF_RECORD_SAMPLE {
                let when = record.word(0);
                span = Some((span.map_or(when, |(first, _)| first), when));
                // It goes on with the same period.
            }
        });
        if span.is_some() {
            self.armed = None;
        }
        span
    }
}

impl AsFd for OverflowCounter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Detects, by context switches, whether a CPU ran other tasks than its idle task and its watcher.
#[derive(Debug)]
pub struct IdleWitness {
    file: File,
    buffer: Buffer,
    watcher: u32,
    on: bool,
}

impl IdleWitness {
    /// Opens it for `cpu`, switched off; `watcher` is the thread that will ask.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn open(cpu: usize, watcher: u32) -> Result<Self> {
        let mut attributes = attributes(EventCode::of(
            bindings::PERF_TYPE_SOFTWARE,
            bindings::PERF_COUNT_SW_DUMMY.into(),
        ));
        attributes.set_context_switch(1);
        attributes.set_disabled(1);
        let system = |source| Error::System {
            attempt: format!("watch the context switches of CPU {cpu}"),
            source,
        };
        let file = open(&mut attributes, cpu, Of::Cpu).map_err(system)?;
        let buffer = Buffer::map(&file, WITNESS_PAGES).map_err(system)?;
        Ok(Self {
            file,
            buffer,
            watcher,
            on: false,
        })
    }

    /// Switches it on or off; off costs nothing.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn switch(&mut self, on: bool) -> Result<()> {
        if on == self.on {
            return Ok(());
        }
        let fd = self.file.as_raw_fd();
        // SAFETY: both take a plain number.
        let rc = unsafe {
            if on {
                perf::ioctls::ENABLE(fd, 0)
            } else {
                perf::ioctls::DISABLE(fd, 0)
            }
        };
        check(rc, "watch context switches")?;
        self.on = on;
        Ok(())
    }

    /// Whether another task ran since the last call; `None` while it is off.
    pub fn others_ran(&mut self) -> Option<bool> {
        let mut others = false;
        let watcher = self.watcher;
        self.buffer.drain(|record| match record.kind {
            bindings::PERF_RECORD_SWITCH_CPU_WIDE => {
                // u32 next_prev_pid, u32 next_prev_tid: the task on the switch's other side.
                #[allow(clippy::cast_possible_truncation)]
                let task = if cfg!(target_endian = "little") {
                    (record.word(0) >> 32) as u32
                } else {
                    record.word(0) as u32
                };
                others |= task != 0 && task != watcher;
            }
            // More switches than there was room for.
            bindings::PERF_RECORD_LOST => others = true,
            _ => {}
        });
        self.on.then_some(others)
    }
}

/// perf's ring buffer: the kernel writes at the head, we read up to it and move the tail.
#[derive(Debug)]
struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
    data: usize,
}

// SAFETY: the mapping belongs to the process, and no other value holds its address.
unsafe impl Send for Buffer {}

struct Record<'a> {
    kind: u32,
    buffer: &'a Buffer,
    body: u64,
}

impl Record<'_> {
    /// The 64-bit word at this place behind the record's header.
    fn word(&self, index: u64) -> u64 {
        self.buffer.word(self.body + 8 * index)
    }
}

impl Buffer {
    fn map(file: &File, pages: usize) -> io::Result<Self> {
        let page = page_bytes();
        let bytes = (1 + pages) * page;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            start: NonNull::new(start.cast()).expect("the kernel maps nothing at 0 unasked"),
            bytes,
            data: pages * page,
        })
    }

    fn head(&self) -> &bindings::perf_event_mmap_page {
        // SAFETY: the mapping's first page is this structure (perf_event_open(2), "MMAP layout"); what the kernel
        // writes in it meanwhile is only read through the atomics below.
        unsafe { self.start.cast().as_ref() }
    }

    /// A 64-bit word of the data, which records are aligned to.
    fn word(&self, at: u64) -> u64 {
        let offset = usize::try_from(at % self.data as u64).expect("less than the buffer");
        // SAFETY: within the mapping's data, aligned to 8 bytes, written by the kernel before it moved the head.
        unsafe {
            self.start
                .add(self.bytes - self.data + offset)
                .cast::<u64>()
                .read_volatile()
        }
    }

    fn drain(&self, mut each: impl FnMut(&Record<'_>)) {
        // SAFETY: both words are aligned, live as long as the mapping, and are accessed atomically alone.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr((&raw const self.head().data_head).cast_mut()),
                AtomicU64::from_ptr((&raw const self.head().data_tail).cast_mut()),
            )
        };
        let end = head.load(Ordering::Acquire);
        let mut at = tail.load(Ordering::Relaxed);
        while at < end {
            // u32 type, u16 misc, u16 size.
            let header = self.word(at);
            let (kind, size) = if cfg!(target_endian = "little") {
                (header & 0xffff_ffff, header >> 48)
            } else {
                (header >> 32, header & 0xffff)
            };
            if size == 0 {
                break;
            }
            each(&Record {
                kind: u32::try_from(kind).expect("32 bits"),
                buffer: self,
                body: at + 8,
            });
            at += size;
        }
        tail.store(end, Ordering::Release);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, made by us and unmapped only here.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity;
    use crate::mapping::Mapping;

    /// Faults on exactly so many new pages.
    fn fault(pages: usize) {
        let mapping = Mapping::anonymous(pages * page_bytes()).unwrap();
        // One fault a page: not a huge one.
        // SAFETY: the whole mapping.
        unsafe {
            libc::madvise(
                mapping.start().cast(),
                mapping.bytes(),
                libc::MADV_NOHUGEPAGE,
            )
        };
        for page in 0..pages {
            // SAFETY: within the mapping, which is ours and writable.
            unsafe { mapping.start().add(page * page_bytes()).write_volatile(1) };
        }
    }

    fn counter() -> Option<OverflowCounter> {
        let cpu = affinity::get().unwrap().iter().last().unwrap();
        affinity::pin(cpu).unwrap();
        OverflowCounter::open(cpu, EventCode::PAGE_FAULTS, Of::Cpu, false)
            .map_err(|error| eprintln!("skipped: {error}"))
            .ok()
    }

    #[test]
    fn an_armed_counter_overflows_after_so_many_events_and_again() {
        std::thread::spawn(|| {
            let Some(mut counter) = counter() else { return };
            let before = counter.read().unwrap();
            counter.arm(1000).unwrap();
            fault(100);
            assert_eq!(counter.take(), None);
            fault(2000);
            assert!(counter.take().is_some());
            assert!(counter.read().unwrap() >= before + 2100);
            counter.arm(FAR).unwrap();
            fault(2000);
            assert_eq!(counter.take(), None);
            for _ in 0..3 {
                counter.arm(1000).unwrap();
                fault(1);
                assert_eq!(
                    counter.take(),
                    None,
                    "the next event is not the period's end"
                );
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn an_event_that_is_not_there_is_refused_by_name() {
        let nothing = EventCode::of(0xffff, 0x17);
        let message = OverflowCounter::open(0, nothing, Of::Cpu, false)
            .unwrap_err()
            .to_string();
        assert!(message.contains("65535:0x17 on CPU 0"), "{message}");
    }

    #[test]
    fn a_task_beside_the_watcher_is_seen() {
        std::thread::spawn(|| {
            let cpu = affinity::get().unwrap().iter().last().unwrap();
            affinity::pin(cpu).unwrap();
            // SAFETY: takes nothing, touches nothing.
            let own = u32::try_from(unsafe { libc::gettid() }).unwrap();
            let mut witness = match IdleWitness::open(cpu, own) {
                Ok(witness) => witness,
                Err(error) => return eprintln!("skipped: {error}"),
            };
            assert_eq!(witness.others_ran(), None);
            witness.switch(true).unwrap();
            std::thread::spawn(|| {}).join().unwrap();
            assert_eq!(witness.others_ran(), Some(true));
        })
        .join()
        .unwrap();
    }
}
