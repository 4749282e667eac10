// SPDX-License-Identifier: MIT OR Apache-2.0
//! The perf events that this machine counts, found by opening and trying each.
//!
//! Events are opened for a thread on one CPU. For a thread on any CPU the kernel chooses one PMU, and on a machine with
//! several kinds of core the event counts on the cores of that PMU only (kernel/events/core.c, `perf_init_event()`).

#![allow(unsafe_code)]

pub mod groups;

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};

use perf_event_open_sys as perf;
use perf_event_open_sys::bindings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::groups::{Group, Reading};
use crate::cpus::CpuSet;
use crate::mapping::{Mapping, page_bytes};
use crate::{Error, Result, Root, affinity, pmu, processor};

/// The source of an event's count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The CPU's performance monitoring unit.
    Hardware,
    /// The kernel.
    Software,
}

/// An event that the guard or a report may want.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// perf's name for it.
    pub name: &'static str,
    /// The source of its count.
    pub source: Source,
    kind: u32,
    config: u64,
}

/// Config of a cache event: the cache, the operation and the result.
const fn cache(which: u32, operation: u32, result: u32) -> u64 {
    which as u64 | (operation as u64) << 8 | (result as u64) << 16
}

/// The events to try, in the order of display.
pub const EVENTS: [Event; 9] = {
    const fn hardware(name: &'static str, config: u32) -> Event {
        Event {
            name,
            source: Source::Hardware,
            kind: bindings::PERF_TYPE_HARDWARE,
            config: config as u64,
        }
    }
    const fn cached(name: &'static str, config: u64) -> Event {
        Event {
            name,
            source: Source::Hardware,
            kind: bindings::PERF_TYPE_HW_CACHE,
            config,
        }
    }
    const fn software(name: &'static str, config: u32) -> Event {
        Event {
            name,
            source: Source::Software,
            kind: bindings::PERF_TYPE_SOFTWARE,
            config: config as u64,
        }
    }
    use bindings as b;
    [
        hardware("cycles", b::PERF_COUNT_HW_CPU_CYCLES),
        hardware("instructions", b::PERF_COUNT_HW_INSTRUCTIONS),
        hardware("cache-references", b::PERF_COUNT_HW_CACHE_REFERENCES),
        hardware("cache-misses", b::PERF_COUNT_HW_CACHE_MISSES),
        cached(
            "LLC-load-misses",
            cache(
                b::PERF_COUNT_HW_CACHE_LL,
                b::PERF_COUNT_HW_CACHE_OP_READ,
                b::PERF_COUNT_HW_CACHE_RESULT_MISS,
            ),
        ),
        cached(
            "LLC-store-misses",
            cache(
                b::PERF_COUNT_HW_CACHE_LL,
                b::PERF_COUNT_HW_CACHE_OP_WRITE,
                b::PERF_COUNT_HW_CACHE_RESULT_MISS,
            ),
        ),
        cached(
            "dTLB-load-misses",
            cache(
                b::PERF_COUNT_HW_CACHE_DTLB,
                b::PERF_COUNT_HW_CACHE_OP_READ,
                b::PERF_COUNT_HW_CACHE_RESULT_MISS,
            ),
        ),
        software("page-faults", b::PERF_COUNT_SW_PAGE_FAULTS),
        software("context-switches", b::PERF_COUNT_SW_CONTEXT_SWITCHES),
    ]
};

/// Arm's own events that perf's generic names do not cover (Arm Architecture Reference Manual, D11.11).
pub const OF_ARM: [Event; 4] = {
    const fn raw(name: &'static str, config: u64) -> Event {
        Event {
            name,
            source: Source::Hardware,
            kind: bindings::PERF_TYPE_RAW,
            config,
        }
    }
    [
        raw("l2d_cache", 0x16),
        raw("l2d_cache_refill", 0x17),
        raw("ll_cache_rd", 0x36),
        raw("ll_cache_miss_rd", 0x37),
    ]
};

/// The events for references to and misses of the cache that `cpu` shares with others. On Arm, perf's cache-references
/// and cache-misses are those of the L1D.
#[must_use]
pub fn of_last_level(root: &Root, cpu: usize) -> [&'static str; 2] {
    if !cfg!(target_arch = "aarch64") {
        return ["cache-references", "cache-misses"];
    }
    match crate::cache::last_level(root, cpu).map(|cache| cache.level) {
        Some(3..) => ["ll_cache_rd", "ll_cache_miss_rd"],
        _ => ["l2d_cache", "l2d_cache_refill"],
    }
}

/// Result of trying an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Trial {
    /// It counted the work of a short trial.
    Counts {
        /// Events counted in the trial.
        count: u64,
        /// Only user space can be counted (see perf_event_paranoid).
        user_only: bool,
    },
    /// It opened and stayed at 0. For cycles, instructions and page faults the
    /// counter is broken; other events may just not have occurred.
    CountsNothing,
    /// This process may not count it, so it is unknown whether the machine does.
    Denied {
        /// The errno, in words.
        reason: String,
    },
    /// The kernel refused it.
    NotSupported {
        /// The errno, in words.
        reason: String,
    },
}

/// An event and the result of trying it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Found {
    /// perf's name for the event.
    pub event: String,
    /// The source of its count.
    pub source: Source,
    /// The result.
    #[serde(flatten)]
    pub trial: Trial,
}

impl Found {
    /// True if the event counted in its trial.
    #[must_use]
    pub fn counts(&self) -> bool {
        matches!(self.trial, Trial::Counts { .. })
    }

    /// True if this process may not count the event.
    #[must_use]
    pub fn denied(&self) -> bool {
        matches!(self.trial, Trial::Denied { .. })
    }
}

/// The counters of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counters {
    /// All PMUs with a driver, by perf's name.
    pub pmus: Vec<String>,
    /// The events of [`EVENTS`] with their results. With several kinds of core, each event's worst result.
    pub events: Vec<Found>,
    /// Cycle counters that can run at once: the PMU's general-purpose counters that no other user holds; `None` without
    /// a PMU. With several kinds of core, the smallest number.
    pub hardware_counters: Option<usize>,
}

impl Counters {
    /// The event with that name, if it was tried.
    #[must_use]
    pub fn event(&self, name: &str) -> Option<&Found> {
        self.events.iter().find(|found| found.event == name)
    }
}

/// Tries every event of [`EVENTS`] on one CPU of each kind of core.
#[must_use]
pub fn probe() -> Counters {
    let kinds = processor::kinds(&Root::system()).unwrap_or_default();
    let kinds: Vec<CpuSet> = kinds.into_iter().map(|kind| kind.cpus).collect();
    probe_on(&kinds)
}

/// Tries every event of [`EVENTS`] on one CPU of each set; if none of them may be used, on any CPU.
#[must_use]
pub fn probe_on(sets: &[CpuSet]) -> Counters {
    let mut tried: Vec<Tried> = sets.iter().filter_map(Tried::on_one_of).collect();
    if tried.is_empty() {
        tried.push(Tried::on(None));
    }
    worst(tried)
}

/// The results on one CPU.
struct Tried {
    cpu: Option<usize>,
    /// In the order of [`EVENTS`].
    trials: Vec<Trial>,
    hardware_counters: Option<usize>,
}

impl Tried {
    /// On the first of these CPUs to which a thread can be pinned; `None` if there is none.
    fn on_one_of(cpus: &CpuSet) -> Option<Self> {
        // In a separate thread, whose affinity ends with it.
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let cpu = cpus.iter().find(|cpu| affinity::pin(*cpu).is_ok())?;
                Some(Self::on(Some(cpu)))
            });
            thread.join().ok()?
        })
    }

    /// On the calling thread, which is pinned to `cpu`.
    fn on(cpu: Option<usize>) -> Self {
        let trials: Vec<Trial> = EVENTS.iter().map(|event| attempt(event, cpu)).collect();
        let cycles = matches!(trials[0], Trial::Counts { .. });
        Self {
            cpu,
            hardware_counters: cycles.then(|| at_once(&EVENTS[0], cpu)),
            trials,
        }
    }
}

/// Each event's worst result.
fn worst(tried: Vec<Tried>) -> Counters {
    // No counter is less than any number.
    let hardware_counters = tried.iter().map(|tried| tried.hardware_counters).min();
    let several = tried.len() > 1;
    let mut events: Vec<Found> = Vec::new();
    for Tried { cpu, trials, .. } in tried {
        for (place, mut trial) in trials.into_iter().enumerate() {
            if let (true, Some(cpu), Trial::NotSupported { reason } | Trial::Denied { reason }) =
                (several, cpu, &mut trial)
            {
                *reason = format!("CPU {cpu}: {reason}");
            }
            match events.get_mut(place) {
                Some(found) => found.trial = found.trial.clone().or_worse(trial),
                None => events.push(Found {
                    event: EVENTS[place].name.to_owned(),
                    source: EVENTS[place].source,
                    trial,
                }),
            }
        }
    }
    Counters {
        pmus: Root::system().names("/sys/bus/event_source/devices"),
        hardware_counters: hardware_counters.flatten(),
        events,
    }
}

impl Trial {
    /// The worse result of two; for two that counted, the smaller count.
    fn or_worse(self, other: Self) -> Self {
        let rank = |trial: &Self| match trial {
            Self::NotSupported { .. } => 0,
            Self::Denied { .. } => 1,
            Self::CountsNothing => 2,
            Self::Counts { .. } => 3,
        };
        match (self, other) {
            (
                Self::Counts { count, user_only },
                Self::Counts {
                    count: other,
                    user_only: too,
                },
            ) => Self::Counts {
                count: count.min(other),
                user_only: user_only || too,
            },
            (one, other) if rank(&other) < rank(&one) => other,
            (one, _) => one,
        }
    }
}

/// Opens an event on the calling thread, stopped: it counts while the thread runs on `cpu`, or on the CPUs of the PMU
/// that the kernel chooses. `group` is a leader's file descriptor or -1.
fn open(event: &Event, cpu: Option<usize>, user_only: bool, group: i32) -> std::io::Result<File> {
    open_with(event, cpu, user_only, group, 0)
}

/// The same with a read format.
fn open_with(
    event: &Event,
    cpu: Option<usize>,
    user_only: bool,
    group: i32,
    read_format: u64,
) -> std::io::Result<File> {
    let mut attributes = bindings::perf_event_attr {
        read_format,
        ..attributes(&Root::system(), event, cpu)
    };
    attributes.set_disabled(u64::from(group == -1));
    attributes.set_exclude_kernel(u64::from(user_only));
    attributes.set_exclude_hv(u64::from(user_only));
    let invalid = |_| std::io::Error::from(std::io::ErrorKind::InvalidInput);
    let cpu = cpu.map_or(Ok(-1), i32::try_from).map_err(invalid)?;
    let flags = bindings::PERF_FLAG_FD_CLOEXEC.into();
    // SAFETY: the attributes are valid for their stated size; 0 means this thread, -1 any CPU.
    let fd = unsafe { perf::perf_event_open(&raw mut attributes, 0, cpu, group, flags) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the kernel just created for us.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// The event's type and number. The kernel finds the PMU of perf's generic events by the CPU, and for raw events by the
/// type.
fn attributes(root: &Root, event: &Event, cpu: Option<usize>) -> bindings::perf_event_attr {
    let raw = cpu.filter(|_| event.kind == bindings::PERF_TYPE_RAW);
    let own = raw.and_then(|cpu| pmu::raw_type(root, cpu));
    bindings::perf_event_attr {
        type_: own.unwrap_or(event.kind),
        size: u32::try_from(size_of::<bindings::perf_event_attr>()).expect("some hundred bytes"),
        config: event.config,
        ..Default::default()
    }
}

fn attempt(event: &Event, cpu: Option<usize>) -> Trial {
    let denied = |error: &std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    let (opened, user_only) = match open(event, cpu, false, -1) {
        Err(error) if denied(&error) => (open(event, cpu, true, -1), true),
        opened => (opened, false),
    };
    match opened.and_then(|mut file| count(&mut file)) {
        Ok(0) => Trial::CountsNothing,
        Ok(count) => Trial::Counts { count, user_only },
        Err(error) if denied(&error) => Trial::Denied {
            reason: error.to_string(),
        },
        Err(error) => Trial::NotSupported {
            reason: error.to_string(),
        },
    }
}

/// Counts the event over a mix of work: new pages, and a walk over them.
fn count(file: &mut File) -> std::io::Result<u64> {
    let check = |rc: i32| {
        if rc == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    };
    // SAFETY: the ioctl takes a plain number.
    check(unsafe { perf::ioctls::ENABLE(file.as_raw_fd(), 0) })?;
    // 8 MiB: larger than most L2 caches, a few milliseconds, and thousands of faults.
    if let Ok(mapping) = Mapping::anonymous(8 << 20) {
        for _ in 0..2 {
            for offset in (0..mapping.bytes()).step_by(page_bytes().min(64)) {
                // SAFETY: within the mapping, which is ours and writable.
                unsafe { mapping.start().add(offset).write_volatile(1) };
            }
        }
    }
    // SAFETY: as above.
    check(unsafe { perf::ioctls::DISABLE(file.as_raw_fd(), 0) })?;
    let mut value = [0; 8];
    file.read_exact(&mut value)?;
    Ok(u64::from_ne_bytes(value))
}

/// Counters of this event that fit into one group and so run at once.
fn at_once(event: &Event, cpu: Option<usize>) -> usize {
    // The kernel checks that a group fits the PMU when a member is added. No PMU
    // has more than 32 (Arm's 31 and the cycle counter).
    const MOST: usize = 32;
    let user_only = open(event, cpu, false, -1).is_err();
    let Ok(leader) = open(event, cpu, user_only, -1) else {
        return 0;
    };
    let mut group = vec![leader];
    while group.len() < MOST {
        match open(event, cpu, user_only, group[0].as_raw_fd()) {
            Ok(member) => group.push(member),
            Err(_) => break,
        }
    }
    group.len()
}

/// Events counted together on the calling thread, while it runs on one CPU.
///
/// If other users of the PMU leave too few counters, the kernel counts for a part of the time: see [`Reading`].
#[derive(Debug)]
pub struct Counting {
    group: Group,
    user_only: bool,
    /// The group's times before the start.
    before: [u64; 2],
}

impl Counting {
    /// Opens events of [`EVENTS`] or [`OF_ARM`] by name, stopped; all of them or none. `cpu` is the one to which the
    /// thread is pinned: on others nothing is counted.
    ///
    /// # Errors
    /// The first event that this machine does not count, and the reason.
    pub fn open(names: &[&str], cpu: usize) -> Result<Self> {
        Self::of(names, cpu, false).or_else(|_| Self::of(names, cpu, true))
    }

    fn of(names: &[&str], cpu: usize, user_only: bool) -> Result<Self> {
        let mut group = Group::default();
        for name in names {
            let mut known = EVENTS.iter().chain(&OF_ARM);
            let event = known.find(|event| event.name == *name);
            let event = event.ok_or_else(|| Error::Invalid(format!("event {name}: not known")))?;
            let leader = group.files.first().map_or(-1, AsRawFd::as_raw_fd);
            let opened = open_with(event, Some(cpu), user_only, leader, groups::FORMAT);
            let file = opened.map_err(|source| Error::system(format!("count {name}"), source))?;
            group.files.push(file);
            group.names.push(event.name);
        }
        Ok(Self {
            group,
            user_only,
            before: [0; 2],
        })
    }

    /// True if the kernel's work is not counted, because of perf_event_paranoid.
    #[must_use]
    pub fn user_only(&self) -> bool {
        self.user_only
    }

    /// Starts counting from 0.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn start(&mut self) -> Result<()> {
        self.before = self.group.times()?;
        self.group.tell(perf::ioctls::RESET)?;
        self.group.tell(perf::ioctls::ENABLE)
    }

    /// Stops, and returns each event's count in the order of the names.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn stop(&mut self) -> Result<Reading> {
        self.group.tell(perf::ioctls::DISABLE)?;
        let mut reading = Reading::empty();
        self.group.add_to(&mut reading, self.before)?;
        Ok(reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;

    fn fault(pages: usize) {
        let mapping = Mapping::anonymous(pages * page_bytes()).unwrap();
        for page in 0..pages {
            // SAFETY: within the mapping, which is ours and writable.
            unsafe { mapping.start().add(page * page_bytes()).write_volatile(1) };
        }
    }

    /// The first CPUs that this thread may use; the thread is then pinned to the first of them.
    fn pinned() -> Vec<usize> {
        let cpus: Vec<usize> = affinity::get().unwrap().iter().collect();
        affinity::pin(cpus[0]).unwrap();
        cpus
    }

    #[test]
    fn what_is_counted_is_of_the_time_between() {
        let mut counting = Counting::open(&["page-faults"], pinned()[0]).unwrap();
        for pages in [64, 1] {
            counting.start().unwrap();
            fault(pages);
            let counts = counting.stop().unwrap();
            fault(500);
            let [("page-faults", Some(faults))] = counts.counts[..] else {
                panic!("{counts:?}");
            };
            assert!((1.0..400.0).contains(&faults), "{pages}: {counts:?}");
            assert!(!counts.multiplexed());
        }
        let message = Counting::open(&["z80-cycles"], 0).unwrap_err().to_string();
        assert_eq!(message, "event z80-cycles: not known");
    }

    #[test]
    fn what_is_counted_is_of_one_cpu() {
        let [_, other, ..] = pinned()[..] else {
            return;
        };
        let mut counting = Counting::open(&["page-faults"], other).unwrap();
        counting.start().unwrap();
        fault(64);
        let counts = counting.stop().unwrap();
        let [("page-faults", None | Some(0.0))] = counts.counts[..] else {
            panic!("{counts:?}");
        };
    }

    #[test]
    fn a_hybrids_events_are_those_of_each_core_type() {
        let devices = "sys/bus/event_source/devices";
        let block = "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 151";
        let (_directory, root) = machine(&[
            ("sys/devices/system/cpu/online", "0-2"),
            (
                "proc/cpuinfo",
                &(0..3)
                    .map(|cpu| format!("processor : {cpu}\n{block}\n\n"))
                    .collect::<String>(),
            ),
            (&format!("{devices}/cpu_core/cpus"), "0"),
            (&format!("{devices}/cpu_core/type"), "4"),
            (&format!("{devices}/cpu_atom/cpus"), "1-2"),
            (&format!("{devices}/cpu_atom/type"), "10"),
        ]);
        let kinds = processor::kinds(&root).unwrap();
        let kinds: Vec<String> = kinds.iter().map(|kind| kind.cpus.to_string()).collect();
        assert_eq!(kinds, ["0", "1-2"]);
        let kind = |event, cpu| attributes(&root, event, cpu).type_;
        let raw = [None, Some(0), Some(1)].map(|cpu| kind(&OF_ARM[0], cpu));
        assert_eq!(raw, [4, 4, 10]);
        assert_eq!(kind(&EVENTS[0], Some(1)), bindings::PERF_TYPE_HARDWARE);
    }

    /// A machine whose CPU 4 has no event but page faults must not seem to count on all CPUs.
    #[test]
    fn an_event_counts_if_each_kind_of_core_counts_it() {
        let counts = |count| Trial::Counts {
            count,
            user_only: false,
        };
        let refused = |reason: &str| Trial::NotSupported {
            reason: reason.into(),
        };
        let tried = |cpu, hardware: Trial, faults, hardware_counters| {
            let mut trials = vec![hardware; EVENTS.len()];
            trials[7] = faults;
            Tried {
                cpu: Some(cpu),
                trials,
                hardware_counters,
            }
        };
        let large = || tried(0, counts(9), counts(7), Some(6));
        let small = tried(4, refused("none"), counts(5), None);
        let both = worst(vec![large(), small]);
        assert_eq!(both.event("cycles").unwrap().trial, refused("CPU 4: none"));
        assert_eq!(both.event("page-faults").unwrap().trial, counts(5));
        assert_eq!(both.hardware_counters, None);
        let small = tried(4, Trial::CountsNothing, counts(9), Some(4));
        let both = worst(vec![large(), small]);
        assert_eq!(both.event("cycles").unwrap().trial, Trial::CountsNothing);
        assert_eq!(both.event("page-faults").unwrap().trial, counts(7));
        assert_eq!(both.hardware_counters, Some(4));
        // A machine of one kind.
        let alone = worst(vec![tried(0, refused("none"), counts(1), None)]);
        assert_eq!(alone.event("cycles").unwrap().trial, refused("none"));
    }

    #[test]
    fn every_event_is_tried_and_none_is_silently_missing() {
        let counters = probe();
        assert_eq!(counters.events.len(), EVENTS.len());
        for found in &counters.events {
            if let Trial::NotSupported { reason } | Trial::Denied { reason } = &found.trial {
                assert!(!reason.is_empty());
            }
        }
        let text = serde_json::to_string(&counters).unwrap();
        assert_eq!(serde_json::from_str::<Counters>(&text).unwrap(), counters);
    }
}
