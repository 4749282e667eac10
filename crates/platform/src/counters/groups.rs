// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of the data caches and the TLB, in groups whose events are counted over the same time.
//!
//! A PMU has few counters. If not all groups fit at once, the kernel multiplexes them and reports how long each one
//! counted;
//! the counts are then scaled to the whole time, and [`Reading::multiplexed`] is true.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;

use perf_event_open_sys as perf;
use perf_event_open_sys::bindings as b;

use super::{Event, OF_ARM, Source, cache, open_with};
use crate::{Error, Result};

pub(super) const FORMAT: u64 = (b::PERF_FORMAT_GROUP
    | b::PERF_FORMAT_TOTAL_TIME_ENABLED
    | b::PERF_FORMAT_TOTAL_TIME_RUNNING) as u64;

/// The events of a group.
type Names = &'static [(&'static str, u64)];

const ACCESS: u32 = b::PERF_COUNT_HW_CACHE_RESULT_ACCESS;
const MISS: u32 = b::PERF_COUNT_HW_CACHE_RESULT_MISS;
const READ: u32 = b::PERF_COUNT_HW_CACHE_OP_READ;
const WRITE: u32 = b::PERF_COUNT_HW_CACHE_OP_WRITE;
const PREFETCH: u32 = b::PERF_COUNT_HW_CACHE_OP_PREFETCH;
const L1D: u32 = b::PERF_COUNT_HW_CACHE_L1D;
const LLC: u32 = b::PERF_COUNT_HW_CACHE_LL;
const DTLB: u32 = b::PERF_COUNT_HW_CACHE_DTLB;

/// perf's generic cache events. Both counts of a miss ratio are in one group.
const GENERIC: [Names; 4] = [
    &[
        ("L1-dcache-loads", cache(L1D, READ, ACCESS)),
        ("L1-dcache-load-misses", cache(L1D, READ, MISS)),
        ("L1-dcache-stores", cache(L1D, WRITE, ACCESS)),
        ("L1-dcache-store-misses", cache(L1D, WRITE, MISS)),
    ],
    &[
        ("L1-dcache-prefetches", cache(L1D, PREFETCH, ACCESS)),
        ("L1-dcache-prefetch-misses", cache(L1D, PREFETCH, MISS)),
    ],
    &[
        ("dTLB-loads", cache(DTLB, READ, ACCESS)),
        ("dTLB-load-misses", cache(DTLB, READ, MISS)),
        ("dTLB-stores", cache(DTLB, WRITE, ACCESS)),
        ("dTLB-store-misses", cache(DTLB, WRITE, MISS)),
    ],
    &[
        ("LLC-loads", cache(LLC, READ, ACCESS)),
        ("LLC-load-misses", cache(LLC, READ, MISS)),
        ("LLC-stores", cache(LLC, WRITE, ACCESS)),
        ("LLC-store-misses", cache(LLC, WRITE, MISS)),
    ],
];

/// These include stores and prefetched lines.
const L2_OF_ARM: Names = &[
    (OF_ARM[0].name, OF_ARM[0].config),
    (OF_ARM[1].name, OF_ARM[1].config),
];

/// The groups for this machine, each with perf's type of its events.
fn wanted() -> Vec<(u32, Names)> {
    let mut wanted: Vec<_> = GENERIC.map(|names| (b::PERF_TYPE_HW_CACHE, names)).into();
    if cfg!(target_arch = "aarch64") {
        wanted.push((b::PERF_TYPE_RAW, L2_OF_ARM));
    }
    wanted
}

/// Counters of the calling thread, while it runs on one CPU.
#[derive(Debug)]
pub struct Groups {
    groups: Vec<Group>,
    refused: Vec<Refused>,
    user_only: bool,
}

/// Events that are counted over the same time.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) names: Vec<&'static str>,
    // The first one leads the group.
    pub(super) files: Vec<File>,
}

/// An event that this machine does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// perf's name for it.
    pub name: &'static str,
    /// The errno, in words.
    pub reason: String,
}

/// The counts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// Events by perf's name, scaled to the whole time; `None` if the group had no turn.
    pub counts: Vec<(&'static str, Option<f64>)>,
    /// Share of the time that the group with the shortest turn counted.
    pub running_share: f64,
}

impl Reading {
    /// No counts yet.
    pub(super) fn empty() -> Self {
        Self {
            counts: Vec::new(),
            running_share: 1.0,
        }
    }

    /// True if groups took turns, so that counts are estimates.
    #[must_use]
    pub fn multiplexed(&self) -> bool {
        self.running_share < 1.0
    }
}

impl Groups {
    /// Opens every event that `cpu` counts, stopped. The thread is pinned to it: on others nothing is counted.
    ///
    /// # Errors
    /// When the CPU does not count loads of the L1D; with the reason of the first refusal.
    pub fn open(cpu: usize) -> Result<Self> {
        let with = |user_only| Self::of(Some(cpu), user_only, &wanted());
        let (groups, first) = with_or_without_kernel(GENERIC[0][0].0, with);
        match first {
            None => Ok(groups),
            Some(reason) => Err(Error::Invalid(format!(
                "this machine counts no {}: {reason}",
                GENERIC[0][0].0
            ))),
        }
    }

    fn of(cpu: Option<usize>, user_only: bool, wanted: &[(u32, Names)]) -> Self {
        let mut all = Self {
            groups: Vec::new(),
            refused: Vec::new(),
            user_only,
        };
        for (kind, names) in wanted {
            let mut group = Group {
                names: Vec::new(),
                files: Vec::new(),
            };
            for (name, config) in *names {
                let event = Event {
                    name,
                    source: Source::Hardware,
                    kind: *kind,
                    config: *config,
                };
                let leader = group.files.first().map_or(-1, AsRawFd::as_raw_fd);
                match open_with(&event, cpu, user_only, leader, FORMAT) {
                    Ok(file) => {
                        group.names.push(name);
                        group.files.push(file);
                    }
                    // The event may not fit into the group, although the machine can count it alone.
                    Err(error) => match open_with(&event, cpu, user_only, -1, FORMAT) {
                        Ok(file) if leader != -1 => all.groups.push(Group {
                            names: vec![name],
                            files: vec![file],
                        }),
                        _ => all.refused.push(Refused {
                            name,
                            reason: error.to_string(),
                        }),
                    },
                }
            }
            if !group.files.is_empty() {
                all.groups.push(group);
            }
        }
        all
    }

    /// The events that this machine does not count, with the reasons.
    #[must_use]
    pub fn refused(&self) -> &[Refused] {
        &self.refused
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
        self.tell(perf::ioctls::RESET)?;
        self.tell(perf::ioctls::ENABLE)
    }

    /// Stops, and returns the counts since the start.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn stop(&mut self, before: &Times) -> Result<Reading> {
        self.tell(perf::ioctls::DISABLE)?;
        let mut reading = Reading::empty();
        for (group, before) in self.groups.iter().zip(&before.0) {
            group.add_to(&mut reading, *before)?;
        }
        Ok(reading)
    }

    /// Times enabled and counted of each group so far; call it before the start.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn times(&self) -> Result<Times> {
        let times = self.groups.iter().map(Group::times);
        times.collect::<Result<_>>().map(Times)
    }

    fn tell(&self, request: unsafe fn(i32, u32) -> i32) -> Result<()> {
        self.groups.iter().try_for_each(|group| group.tell(request))
    }
}

/// Times enabled and counted of each group, nanoseconds.
#[derive(Debug, Clone)]
pub struct Times(Vec<[u64; 2]>);

impl Group {
    /// Makes a request for the whole group.
    pub(super) fn tell(&self, request: unsafe fn(i32, u32) -> i32) -> Result<()> {
        let Some(leader) = self.files.first() else {
            return Ok(());
        };
        // SAFETY: these requests take a plain number.
        match unsafe { request(leader.as_raw_fd(), b::PERF_IOC_FLAG_GROUP) } {
            0 => Ok(()),
            _ => Err(Error::last("switch a group of counters")),
        }
    }

    /// Times enabled and counted so far, ns.
    pub(super) fn times(&self) -> Result<[u64; 2]> {
        let words = self.read()?;
        Ok([words[1], words[2]])
    }

    /// Adds the counts since a reset, before which the times were `before`.
    pub(super) fn add_to(&self, reading: &mut Reading, before: [u64; 2]) -> Result<()> {
        let words = self.read()?;
        // A reset of the counts does not reset the times.
        let [enabled, running] = [words[1] - before[0], words[2] - before[1]];
        reading.running_share = reading.running_share.min(share(running, enabled));
        for (name, count) in self.names.iter().zip(&words[3..]) {
            reading
                .counts
                .push((name, scaled(*count, enabled, running)));
        }
        Ok(())
    }

    /// Reads the number of events, the time enabled, the time counted, and the counts.
    fn read(&self) -> Result<Vec<u64>> {
        let mut bytes = vec![0; 8 * (3 + self.files.len())];
        (&self.files[0]).read_exact(&mut bytes).map_err(|source| {
            Error::system(
                format!("read the counters {}", self.names.join(", ")),
                source,
            )
        })?;
        let words = bytes.chunks_exact(8);
        Ok(words
            .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
            .collect())
    }
}

fn share(running: u64, enabled: u64) -> f64 {
    if enabled == 0 {
        return 1.0;
    }
    (running as f64 / enabled as f64).min(1.0)
}

/// Scales a count over a part of the time to the whole time.
fn scaled(count: u64, enabled: u64, running: u64) -> Option<f64> {
    match (enabled, running) {
        (0, _) => Some(count as f64),
        (_, 0) => None,
        _ if running >= enabled => Some(count as f64),
        _ => Some((count as f64 * (enabled as f64 / running as f64)).round()),
    }
}

/// Opens the groups with the kernel's work if permitted, otherwise without. Returns the reason if neither way offers
/// the event `needed`.
fn with_or_without_kernel(needed: &str, open: impl Fn(bool) -> Groups) -> (Groups, Option<String>) {
    let refusal = |groups: &Groups| {
        let refused = groups.refused.iter().find(|refused| refused.name == needed);
        refused.map(|refused| refused.reason.clone())
    };
    let all = open(false);
    if refusal(&all).is_none() {
        return (all, None);
    }
    let user = open(true);
    let reason = refusal(&user);
    (user, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Mapping, page_bytes};

    #[test]
    fn counts_of_part_of_the_time_are_scaled_and_said_to_be() {
        assert_eq!(scaled(100, 1000, 1000), Some(100.0));
        assert_eq!(scaled(100, 1000, 250), Some(400.0));
        assert_eq!(scaled(100, 1000, 0), None);
        assert_eq!(scaled(0, 0, 0), Some(0.0));
        let reading = |running| Reading {
            counts: Vec::new(),
            running_share: share(running, 1000),
        };
        assert!(!reading(1000).multiplexed());
        assert!(reading(999).multiplexed());
    }

    /// Uses the kernel's software counters, which have the same interface, as the machine may have no others.
    #[test]
    fn a_group_is_read_as_one() {
        const FAULTS: Names = &[
            ("page-faults", b::PERF_COUNT_SW_PAGE_FAULTS as u64),
            ("minor-faults", b::PERF_COUNT_SW_PAGE_FAULTS_MIN as u64),
            ("no such event", 0xffff),
        ];
        let with = |user_only| Groups::of(None, user_only, &[(b::PERF_TYPE_SOFTWARE, FAULTS)]);
        let (mut groups, reason) = with_or_without_kernel(FAULTS[0].0, with);
        assert_eq!(reason, None);
        assert_eq!(groups.groups.len(), 1);
        assert_eq!(groups.refused()[0].name, "no such event");
        for pages in [64, 8] {
            let before = groups.times().unwrap();
            groups.start().unwrap();
            let mapping = Mapping::anonymous(pages * page_bytes()).unwrap();
            for page in 0..pages {
                // SAFETY: within the mapping, which is ours and writable.
                unsafe { mapping.start().add(page * page_bytes()).write_volatile(1) };
            }
            let reading = groups.stop(&before).unwrap();
            let [(_, Some(faults)), (_, Some(minor))] = reading.counts[..] else {
                panic!("{reading:?}");
            };
            assert!((1.0..400.0).contains(&faults), "{pages}: {reading:?}");
            assert!(minor <= faults);
            assert!(!reading.multiplexed());
        }
    }

    #[test]
    fn a_machine_without_counters_says_why() {
        match Groups::open(0) {
            Ok(groups) => assert!(!groups.groups.is_empty()),
            Err(error) => assert!(error.to_string().contains("L1-dcache-loads: "), "{error}"),
        }
    }
}
