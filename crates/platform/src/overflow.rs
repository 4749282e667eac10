// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters that report an overflow after a number of events on a CPU, and detection of other tasks on the CPU
//! meanwhile.
//!
//! Source: perf_event_open(2), and kernel/events/core.c for details not in the manual (see [`OverflowCounter::arm`]).

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys as perf;
use perf_event_open_sys::bindings;

use crate::mapping::{map_shared, page_bytes};
use crate::{Error, Result, Root, holders, pmu};

/// The event: perf's type and config numbers (`linux/perf_event.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventCode {
    /// `PERF_TYPE_*`.
    pub kind: u32,
    /// The event's number within that type.
    pub config: u64,
    /// Additional parameter of some PMU events, such as the mask of Intel's offcore responses; 0 otherwise.
    pub config1: u64,
    /// Second additional parameter.
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

    /// A raw event of the CPU's PMU, with the number in its manual.
    #[must_use]
    pub fn raw(config: u64) -> Self {
        Self::of(bindings::PERF_TYPE_RAW, config)
    }

    /// True if the CPU counts the event; the kernel counts all others.
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

    /// `PERF_COUNT_SW_PAGE_FAULTS_MIN`: those of them that read nothing from a disk.
    pub const MINOR_FAULTS: Self = Self::of(
        bindings::PERF_TYPE_SOFTWARE,
        bindings::PERF_COUNT_SW_PAGE_FAULTS_MIN as u64,
    );

    /// `PERF_COUNT_SW_DUMMY`, which counts nothing.
    const DUMMY: Self = Self::of(
        bindings::PERF_TYPE_SOFTWARE,
        bindings::PERF_COUNT_SW_DUMMY as u64,
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
    /// Tasks of this control group (an open directory of its hierarchy), while on the CPU.
    Group(BorrowedFd<'a>),
}

/// Longest distance to an overflow, in events: does not occur within years.
pub const FAR: u64 = 1 << 50;

/// `PERF_SAMPLE_TIME` of linux/perf_event.h; its type in the bindings varies.
const SAMPLE_TIME: u64 = 1 << 2;

/// `PERF_FORMAT_TOTAL_TIME_ENABLED` and `PERF_FORMAT_TOTAL_TIME_RUNNING` of linux/perf_event.h; their type in the bindings
/// varies.
const TIMES: u64 = 1 << 0 | 1 << 1;

/// How often an event may be found standing still before it counts as removed, and for how long. Checks are counted as well
/// as nanoseconds, because a virtual machine may stand still between two checks; perf's clock then stands, too. The time
/// is that of two ticks at 100 Hz, within which the slowest of perf's clocks advances.
const STILL_LOOKS: u32 = 2;
const STILL_NS: u64 = 20_000_000;

/// Data pages of a buffer; a power of two. They hold two thousand overflows: more than occur while a group is stopped
/// for some milliseconds.
const COUNTER_PAGES: usize = 8;
/// Data pages for about a thousand context switches a period.
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
    // SAFETY: a descriptor that the kernel just created for us.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Reads an event with [`TIMES`]; `None` if it is pinned and not on the PMU.
fn read_event(file: &File) -> Result<Option<Reading>> {
    let mut values = [0_u64; 3];
    // SAFETY: 24 bytes that are ours to be written.
    let got = unsafe {
        libc::read(
            file.as_raw_fd(),
            values.as_mut_ptr().cast(),
            size_of_val(&values),
        )
    };
    let [events, enabled_ns, running_ns] = values;
    match got {
        24 => Ok(Some(Reading {
            events,
            enabled_ns,
            running_ns,
        })),
        // A pinned event that is not on the PMU reads as end of file.
        0 => Ok(None),
        _ => Err(Error::last("read a counter")),
    }
}

fn check(rc: i32, what: &str) -> Result<()> {
    if rc == 0 {
        Ok(())
    } else {
        Err(Error::last(what))
    }
}

/// An event on one CPU that can report after a given number of further events.
///
/// Its descriptor is readable (`poll`) after an overflow. Once open, it allocates nothing.
#[derive(Debug)]
pub struct OverflowCounter {
    file: File,
    buffer: Buffer,
    /// Count and distance at the last arm; arming again without new events is skipped.
    armed: Option<(u64, u64)>,
}

/// What a counter reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// Events since the counter was opened.
    pub events: u64,
    /// Time for which the event was enabled. For a group: only while the CPU ran the group.
    pub enabled_ns: u64,
    /// The part of that time for which the event counted.
    pub running_ns: u64,
}

/// Finds out that the kernel has removed a CPU's events.
///
/// When a CPU goes offline, perf takes its events off the CPU, and does not put them back when the CPU is online again
/// (kernel/events/core.c, `perf_event_exit_cpu`). A suspended machine takes all CPUs but one offline, too. Such an event
/// keeps its count, reports no overflow and no error, and cannot be enabled. Only its time stands still.
#[derive(Debug, Default)]
pub struct Standstill {
    running_ns: u64,
    since_ns: u64,
    looks: u32,
}

impl Standstill {
    /// True if the event was removed. `running_ns` is what an event of a whole CPU reads at `now_ns`: it has to be one
    /// that always counts.
    pub fn found(&mut self, running_ns: u64, now_ns: u64) -> bool {
        if running_ns != self.running_ns || self.since_ns == 0 {
            *self = Self {
                running_ns,
                since_ns: now_ns,
                looks: 0,
            };
            return false;
        }
        self.looks += 1;
        self.looks >= STILL_LOOKS && now_ns.saturating_sub(self.since_ns) >= STILL_NS
    }

    /// When the event was first found at its present time.
    #[must_use]
    pub fn since_ns(&self) -> u64 {
        self.since_ns
    }
}

impl OverflowCounter {
    /// Opens the event on `cpu`; it counts at once and does not overflow yet.
    ///
    /// # Errors
    /// When the kernel refuses: no such event, no free counter, no permission.
    pub fn open(cpu: usize, code: EventCode, of: Of<'_>, user_only: bool) -> Result<Self> {
        let mut attributes = attributes(code);
        if code.kind == bindings::PERF_TYPE_RAW {
            let own = pmu::raw_type(&Root::system(), cpu);
            attributes.type_ = own.unwrap_or(code.kind);
        }
        attributes.__bindgen_anon_1.sample_period = FAR;
        attributes.__bindgen_anon_2.wakeup_events = 1;
        attributes.sample_type = SAMPLE_TIME;
        attributes.set_use_clockid(1);
        attributes.clockid = libc::CLOCK_MONOTONIC;
        attributes.set_exclude_kernel(u64::from(user_only));
        attributes.set_exclude_hv(u64::from(user_only));
        // A pinned hardware counter or none: a multiplexed counter would miss events.
        let own = code.is_hardware() && matches!(of, Of::Cpu);
        attributes.set_pinned(u64::from(own));
        // A group's counter can't be pinned; these times tell whether it was multiplexed. A CPU's tell whether it still
        // counts ([`Standstill`]).
        attributes.read_format = TIMES;
        let system = |source| {
            Error::system(
                match code.config1 {
                    0 => format!("count event {}:{:#x} on CPU {cpu}", code.kind, code.config),
                    mask => format!(
                        "count event {}:{:#x}:config1={mask:#x} on CPU {cpu}",
                        code.kind, code.config
                    ),
                },
                source,
            )
        };
        let file = open(&mut attributes, cpu, of).map_err(system)?;
        let buffer = Buffer::map(&file, COUNTER_PAGES).map_err(system)?;
        Ok(Self {
            file,
            buffer,
            armed: None,
        })
    }

    /// Events since the counter was opened.
    ///
    /// # Errors
    /// When the event got no counter, as others hold all of them.
    pub fn read(&self) -> Result<u64> {
        if let Some(reading) = self.read_if_counting()? {
            return Ok(reading.events);
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

    /// The counter's reading; `None` while it does not count, because a pinned event lost its counter to another user or
    /// to an error of the PMU. [`OverflowCounter::revive`] tries to get a counter again.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_if_counting(&self) -> Result<Option<Reading>> {
        read_event(&self.file)
    }

    /// Share of the group's time on the CPU for which the event counted: below 1 if the event had to share the CPU's
    /// counters with others, and so missed events. 1 without such time, and for a counter of a whole CPU, which is
    /// pinned.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn counted_share(&self) -> Result<f64> {
        Ok(match self.read_if_counting()? {
            Some(reading) if reading.enabled_ns > 0 => {
                reading.running_ns as f64 / reading.enabled_ns as f64
            }
            _ => 1.0,
        })
    }

    /// Requests a counter again after the event has lost its own: enabling an event clears its error state.
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

    /// Makes the counter overflow after `events` more events (at least 1).
    ///
    /// Call it on the counter's CPU, so that nothing is counted between the steps. Setting the period of a running
    /// software event would make it overflow at the next event, whatever the period: perf clears the remaining count
    /// and counts up to 0. Stopped, set and started, it begins a whole period. A counter that was lost cannot overflow
    /// and is left as it is.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn arm(&mut self, events: u64) -> Result<()> {
        let events = events.clamp(1, FAR);
        let Some(Reading { events: count, .. }) = self.read_if_counting()? else {
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

    /// Time of the first overflow since the last call, nanoseconds of CLOCK_MONOTONIC.
    pub fn take(&mut self) -> Option<u64> {
        self.take_span().map(|(first, _)| first)
    }

    /// Times of the first and the last overflow since the last call, nanoseconds of CLOCK_MONOTONIC. Overflows beyond
    /// the buffer's capacity are unknown.
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
    /// Opens it for `cpu`, switched off; `watcher` is the thread that will query it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn open(cpu: usize, watcher: u32) -> Result<Self> {
        let mut attributes = attributes(EventCode::DUMMY);
        attributes.set_context_switch(1);
        attributes.set_disabled(1);
        let system =
            |source| Error::system(format!("watch the context switches of CPU {cpu}"), source);
        let file = open(&mut attributes, cpu, Of::Cpu).map_err(system)?;
        let buffer = Buffer::map(&file, WITNESS_PAGES).map_err(system)?;
        Ok(Self {
            file,
            buffer,
            watcher,
            on: false,
        })
    }

    /// Switches it on or off; switched off, it costs nothing.
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

    /// True if another task ran since the last call; `None` while switched off.
    pub fn others_ran(&mut self) -> Option<bool> {
        let mut others = false;
        let watcher = self.watcher;
        self.buffer.drain(|record| match record.kind {
            bindings::PERF_RECORD_SWITCH_CPU_WIDE => {
                // u32 next_prev_pid, u32 next_prev_tid: the other task of the switch.
                let task = if cfg!(target_endian = "little") {
                    (record.word(0) >> 32) as u32
                } else {
                    record.word(0) as u32
                };
                others |= task != 0 && task != watcher;
            }
            // More switches than the buffer holds.
            bindings::PERF_RECORD_LOST => others = true,
            _ => {}
        });
        self.on.then_some(others)
    }
}

/// An event of a CPU that counts nothing and always runs: it shows whether the kernel has removed the CPU's events. A
/// group's own events cannot show it, since their times advance only while the CPU runs the group.
#[derive(Debug)]
pub struct Presence {
    file: File,
    still: Standstill,
}

impl Presence {
    /// Opens it on `cpu`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn open(cpu: usize) -> Result<Self> {
        let mut attributes = attributes(EventCode::DUMMY);
        attributes.read_format = TIMES;
        let system = |source| Error::system(format!("watch CPU {cpu}"), source);
        let file = open(&mut attributes, cpu, Of::Cpu).map_err(system)?;
        Ok(Self {
            file,
            still: Standstill::default(),
        })
    }

    /// True if the kernel has removed the CPU's events. It needs more than one call to find out.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn is_lost(&mut self, now_ns: u64) -> Result<bool> {
        let running_ns = read_event(&self.file)?.map_or(0, |reading| reading.running_ns);
        Ok(self.still.found(running_ns, now_ns))
    }
}

/// perf's ring buffer: the kernel writes at the head; we read up to it and move the tail.
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
    /// The 64-bit word with this index after the record's header.
    fn word(&self, index: u64) -> u64 {
        self.buffer.word(self.body + 8 * index)
    }
}

impl Buffer {
    fn map(file: &File, pages: usize) -> io::Result<Self> {
        let page = page_bytes();
        let bytes = (1 + pages) * page;
        let start = map_shared(file, bytes)?;
        Ok(Self {
            start: start.cast(),
            bytes,
            data: pages * page,
        })
    }

    fn head(&self) -> &bindings::perf_event_mmap_page {
        // SAFETY: the mapping's first page is this structure (perf_event_open(2), "MMAP layout"); fields that the
        // kernel writes concurrently are read only through the atomics below.
        unsafe { self.start.cast().as_ref() }
    }

    /// A 64-bit word of the data; records are aligned to such words.
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
        // SAFETY: both words are aligned, live as long as the mapping, and are accessed only atomically.
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
        // SAFETY: the whole mapping, created by us and unmapped only here.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity;
    use crate::clock::monotonic_ns;
    use crate::mapping::Mapping;

    /// Causes exactly `pages` faults on new pages.
    fn fault(pages: usize) {
        let mapping = Mapping::anonymous(pages * page_bytes()).unwrap();
        // One fault for each page: no huge page.
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

    const MS: u64 = 1_000_000;

    #[test]
    fn an_event_whose_time_stands_still_was_removed() {
        let mut still = Standstill::default();
        // Periods of 1 ms; the CPU goes offline in the fourth.
        let found = (1..100).find(|ms| still.found((ms * MS).min(3_500_000), ms * MS));
        assert_eq!(found, Some(24));
        // Periods of 100 ms.
        let mut still = Standstill::default();
        let found = (1..100).find(|n| still.found((n * 100 * MS).min(350 * MS), n * 100 * MS));
        assert_eq!(found, Some(6));
        // An event that was removed before its first reading.
        let mut still = Standstill::default();
        assert_eq!((1..100).find(|ms| still.found(0, ms * MS)), Some(21));
    }

    #[test]
    fn an_event_that_counts_is_never_taken_for_removed() {
        let mut still = Standstill::default();
        // Several readings within a step of perf's clock, which may advance at ticks of 10 ms only.
        assert!((1..10_000).all(|us| !still.found(us / 10_000, us * 1000)));
        let mut still = Standstill::default();
        assert!((1..2000).all(|ms| !still.found(ms / 10 * 10 * MS, ms * MS)));
        // The machine stood still for ten seconds, and perf's clock with it.
        for (running_ms, now_ms) in [(5, 5), (5, 10_005), (6, 10_006), (6, 20_000), (7, 20_001)] {
            assert!(!still.found(running_ms * MS, now_ms * MS));
        }
    }

    #[test]
    fn the_events_of_a_cpu_are_there_while_it_is_online() {
        let cpu = affinity::get().unwrap().iter().last().unwrap();
        let mut presence = match Presence::open(cpu) {
            Ok(presence) => presence,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let counter = OverflowCounter::open(cpu, EventCode::PAGE_FAULTS, Of::Cpu, false).unwrap();
        let mut still = Standstill::default();
        for _ in 0..30 {
            std::thread::sleep(std::time::Duration::from_millis(2));
            let now_ns = monotonic_ns();
            assert!(!presence.is_lost(now_ns).unwrap());
            let reading = counter.read_if_counting().unwrap().unwrap();
            assert!(!still.found(reading.running_ns, now_ns));
        }
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
