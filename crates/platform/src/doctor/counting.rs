// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of the counters: which events count, and which settings of perf limit them.

use memwarden_policy::events::{Event, Kind};

use super::{Finding, Level, Patient};
use crate::counters::{Source, Trial};
use crate::cpus::CpuSet;
use crate::mapping;
use crate::processor::{self, Unknown};

/// The remedy for a refusal for want of permission. Docker's seccomp filter refuses perf_event_open with EPERM; the
/// kernel's own answer to an ordinary user is EACCES.
const PERMIT: &str =
    "run as root; in a container allow perf_event_open (CAP_PERFMON, and its seccomp filter)";

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

pub(super) fn pmu(patient: &Patient) -> Finding {
    let hardware = || {
        patient
            .live
            .counters
            .events
            .iter()
            .filter(|found| found.source == Source::Hardware)
    };
    let counting = names(
        hardware()
            .filter(|found| found.counts())
            .map(|found| found.event.as_str()),
    );
    if counting.is_empty() {
        let denied = hardware().find_map(|found| match &found.trial {
            Trial::Denied { reason } => Some(reason),
            _ => None,
        });
        if let Some(reason) = denied {
            return Finding::new(
                Level::Unknown,
                "PMU",
                format!("opening hardware events is not permitted ({reason})"),
                "it is unknown whether there is a PMU; without permission nothing is counted",
            )
            .change(PERMIT);
        }
        let reason = hardware()
            .find_map(|found| match &found.trial {
                Trial::NotSupported { reason } => Some(reason.clone()),
                _ => None,
            })
            .unwrap_or_else(|| "all stay at 0".into());
        return Finding::new(
            Level::Missing,
            "PMU",
            format!("no hardware event counts ({reason})"),
            "traffic cannot be counted in cache lines; the guard can regulate page faults, which the kernel counts",
        )
        .change("run on the machine itself, or give the virtual machine a PMU (QEMU with KVM: -cpu host,pmu=on)");
    }
    // These occur in any trial; other events may legitimately stay at 0.
    let silent = names(
        hardware()
            .filter(|found| found.trial == Trial::CountsNothing)
            .map(|found| found.event.as_str())
            .filter(|name| ["cycles", "instructions"].contains(name)),
    );
    let refused = names(
        hardware()
            .filter(|found| {
                matches!(
                    found.trial,
                    Trial::NotSupported { .. } | Trial::Denied { .. }
                )
            })
            .map(|found| found.event.as_str()),
    );
    let mut found = format!("counts {counting}");
    if !silent.is_empty() {
        found += &format!("; {silent} opens but counts nothing");
    }
    if !refused.is_empty() {
        found += &format!("; not supported: {refused}");
    }
    if silent.is_empty() && refused.is_empty() {
        Finding::new(Level::Ok, "PMU", found, "hardware events can be counted")
    } else {
        Finding::new(
            Level::Limited,
            "PMU",
            found,
            "figures that need the other events are reported as not supported",
        )
    }
}

/// The event by which the guard can regulate memory traffic here.
enum Traffic {
    /// The events of the processors.
    Own(Vec<(Event, CpuSet)>),
    /// There is a PMU, but its traffic event is unknown.
    Unknown(Unknown),
    /// The kernel's page faults, as there is no PMU.
    PageFaults,
    /// No event.
    None,
}

fn traffic(patient: &Patient) -> Traffic {
    let counts = |name| {
        let event = patient.live.counters.event(name);
        event.is_some_and(crate::counters::Found::counts)
    };
    if counts("LLC-load-misses") || counts("cache-misses") {
        match processor::own_events(patient.root, None) {
            Ok(Ok(events)) => return Traffic::Own(events),
            Ok(Err(unknown)) => return Traffic::Unknown(unknown),
            Err(_) => {}
        }
    }
    if counts("page-faults") {
        Traffic::PageFaults
    } else {
        Traffic::None
    }
}

/// The events that a guard would count, if known beforehand.
pub(super) fn traffic_event(patient: &Patient) -> Option<String> {
    match traffic(patient) {
        Traffic::Own(events) => {
            let names: Vec<_> = events.iter().map(|(event, _)| event.name).collect();
            Some(names.join(" and "))
        }
        Traffic::PageFaults => Some("page-faults".into()),
        Traffic::Unknown(_) | Traffic::None => None,
    }
}

/// What a guard regulates by page faults, on a kernel with pages of `page_bytes`.
fn by_faults(page_bytes: usize) -> String {
    format!(
        "the guard regulates the zeroing of new pages ({page_bytes} bytes a fault), not all traffic"
    )
}

pub(super) fn memory_traffic(patient: &Patient) -> Finding {
    let name = "memory traffic event";
    let faults = patient.live.counters.event("page-faults");
    match traffic(patient) {
        Traffic::None if faults.is_some_and(crate::counters::Found::denied) => Finding::new(
            Level::Unknown,
            name,
            "opening events is not permitted",
            "without permission there is no event to regulate by",
        )
        .change(PERMIT),
        Traffic::None => Finding::new(
            Level::Missing,
            name,
            "neither LLC misses nor page faults count",
            "no event to regulate by",
        )
        .change("run as root on a kernel with CONFIG_PERF_EVENTS"),
        Traffic::PageFaults => Finding::new(
            Level::Limited,
            name,
            "only page-faults",
            by_faults(mapping::page_bytes()),
        )
        .change("memwarden guard start --event page-faults, or a raw code from this CPU's manual: --event 0xRAW"),
        Traffic::Unknown(unknown) => Finding::new(
            Level::Limited,
            name,
            unknown.to_string(),
            "the guard needs an --event, and its self-test checks that it counts memory traffic",
        )
        .change(format!(
            "try memwarden guard start --event {}; memwarden guard events lists the known events",
            unknown.to_try()
        )),
        Traffic::Own(events) => {
            let one = events.len() == 1;
            let words: Vec<String> = events
                .iter()
                .map(|(event, cpus)| {
                    let whose = if one {
                        String::new()
                    } else {
                        format!("CPUs {cpus}: ")
                    };
                    let code = match event.kind {
                        Kind::Raw => format!("{} ({})", event.name, event.read_codes()),
                        _ => event.name.to_owned(),
                    };
                    match event.write {
                        Some(write) => format!("{whose}{code}, writes {write:#x}"),
                        None => format!("{whose}{code}: only reads"),
                    }
                })
                .collect();
            let meaning = if events.iter().all(|(event, _)| event.write.is_some()) {
                "reads and writes can have budgets; guard start proves both"
            } else if one {
                "this processor's cores have no event for writes to memory; guard start proves this one"
            } else {
                "not all of these processors have an event for writes to memory: only reads can have budgets; guard \
                 start proves each"
            };
            Finding::new(Level::Ok, name, words.join("; "), meaning)
        }
    }
}

pub(super) fn counters_at_once(patient: &Patient) -> Finding {
    let name = "counters at once";
    match patient.live.counters.hardware_counters {
        // The guard takes one for reads and one for writes; one remains for others.
        Some(number) if number >= 3 => Finding::new(
            Level::Ok,
            name,
            format!("{number}"),
            "enough for the guard (2) and another user of the PMU",
        ),
        Some(number) => Finding::new(
            Level::Limited,
            name,
            format!("{number}"),
            "the guard takes 2; more events than counters are multiplexed, that is, estimated",
        )
        .change("end other users of counters (the NMI watchdog, perf)"),
        None if patient
            .live
            .counters
            .event("cycles")
            .is_some_and(crate::counters::Found::denied) =>
        {
            Finding::new(
                Level::Unknown,
                name,
                "opening hardware events is not permitted",
                "it is unknown how many counters there are",
            )
            .change(PERMIT)
        }
        None => Finding::new(
            Level::Missing,
            name,
            "none",
            "there is no PMU to count with",
        ),
    }
}

pub(super) fn page_faults(patient: &Patient) -> Finding {
    let name = "page-faults event";
    match patient
        .live
        .counters
        .event("page-faults")
        .map(|found| &found.trial)
    {
        Some(Trial::Counts {
            user_only: false, ..
        }) => Finding::new(
            Level::Ok,
            name,
            "counts",
            "the guard can be tried without a PMU",
        ),
        Some(Trial::Counts {
            user_only: true, ..
        }) => Finding::new(
            Level::Limited,
            name,
            "counts user space only",
            "faults in system calls are not counted",
        )
        .change("run as root"),
        Some(Trial::Denied { reason }) => Finding::new(
            Level::Missing,
            name,
            reason,
            "this process may not open perf events",
        )
        .change(PERMIT),
        Some(Trial::NotSupported { reason }) => {
            Finding::new(Level::Missing, name, reason, "perf events cannot be opened")
                .change("a kernel with CONFIG_PERF_EVENTS")
        }
        _ => Finding::new(
            Level::Missing,
            name,
            "opens but counts nothing",
            "this kernel's perf is broken",
        ),
    }
}

pub(super) fn paranoid(patient: &Patient) -> Finding {
    let name = "perf_event_paranoid";
    match patient.root.number("/proc/sys/kernel/perf_event_paranoid") {
        None => Finding::new(
            Level::Missing,
            name,
            "not there",
            "this kernel has no perf events",
        )
        .change("a kernel with CONFIG_PERF_EVENTS"),
        Some(level) if patient.live.root => Finding::new(
            Level::Ok,
            name,
            format!("{level}, and root is exempt"),
            "events may be opened on every CPU",
        ),
        Some(level) if level <= 0 => Finding::new(
            Level::Ok,
            name,
            format!("{level}"),
            "events may be opened on every CPU",
        ),
        Some(level) => {
            let meaning = match level {
                ..3 => "without root only this user's own processes can be counted",
                // A patch of these distributions; other kernels have no level above 2.
                3.. => {
                    "without root nothing can be counted on Debian's and Ubuntu's kernels; on others only this user's \
                     own processes"
                }
            };
            Finding::new(Level::Limited, name, format!("{level}"), meaning)
                .change("sysctl -w kernel.perf_event_paranoid=0")
        }
    }
}

pub(super) fn perf_throttle(patient: &Patient) -> Finding {
    let name = "perf's throttle";
    let (Some(rate), Some(percent)) = (
        patient
            .root
            .number("/proc/sys/kernel/perf_event_max_sample_rate"),
        patient
            .root
            .number("/proc/sys/kernel/perf_cpu_time_max_percent"),
    ) else {
        return Finding::new(
            Level::Unknown,
            name,
            "the settings do not exist",
            "without perf events there is nothing to throttle",
        );
    };
    // 100 and 0 both turn the time limit off.
    if rate >= 1_000_000 && [0, 100].contains(&percent) {
        return Finding::new(
            Level::Ok,
            name,
            format!("{rate} samples a second, no time limit"),
            "overflow interrupts are not dropped",
        );
    }
    Finding::new(
        Level::Limited,
        name,
        format!("{rate} samples a second, {percent} % of the time"),
        "perf drops overflow interrupts beyond that, and may lower the rate: a core can then exceed its budget \
         undetected",
    )
    // In this order: while the time limit is off, the kernel refuses to set the rate.
    .change("sysctl -w kernel.perf_event_max_sample_rate=1000000 && sysctl -w kernel.perf_cpu_time_max_percent=100")
}

pub(super) fn watchdog(patient: &Patient) -> Finding {
    let name = "NMI watchdog";
    match patient.root.number("/proc/sys/kernel/nmi_watchdog") {
        Some(1) => Finding::new(
            Level::Limited,
            name,
            "on",
            "it may occupy one hardware counter of every CPU",
        )
        .change("sysctl -w kernel.nmi_watchdog=0"),
        Some(_) => Finding::new(Level::Ok, name, "off", "it occupies no counter"),
        None => Finding::new(
            Level::Ok,
            name,
            "not in this kernel",
            "it occupies no counter",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_as_many_bytes_as_the_kernels_pages_have() {
        for (bytes, says) in [
            (4 << 10, "(4096 bytes a fault)"),
            (64 << 10, "(65536 bytes a fault)"),
        ] {
            assert!(by_faults(bytes).contains(says), "{}", by_faults(bytes));
        }
    }
}
