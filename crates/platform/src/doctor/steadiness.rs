// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of what makes figures vary from run to run.

use super::{Finding, Level, Patient};
use crate::cpus;
use crate::machine;

pub(super) fn virtualised(patient: &Patient) -> Finding {
    let name = "virtualised";
    let platform = machine::platform(patient.root)
        .map(|name| format!(" ({name})"))
        .unwrap_or_default();
    match machine::virtualised(patient.root) {
        Some(false) => Finding::new(
            Level::Ok,
            name,
            format!("no{platform}"),
            "time and memory are this kernel's own",
        ),
        Some(true) => Finding::new(
            Level::Limited,
            name,
            format!("yes{platform}"),
            "other guests share the caches and the memory, and time can be stolen: take medians of many runs",
        ),
        None => Finding::new(
            Level::Unknown,
            name,
            format!("not reported by the machine{platform}"),
            "a hypervisor's other guests would share the memory",
        ),
    }
}

pub(super) fn isolated(patient: &Patient) -> Finding {
    let name = "isolated CPUs";
    match patient.root.text("/sys/devices/system/cpu/isolated") {
        Some(cpus) if !cpus.is_empty() => Finding::new(
            Level::Ok,
            name,
            cpus,
            "the scheduler puts no other task there",
        ),
        _ => Finding::new(
            Level::Limited,
            name,
            "none",
            "the scheduler may run other tasks on the measured CPUs",
        )
        .change("add to the kernel's command line: isolcpus=LIST nohz_full=LIST"),
    }
}

pub(super) fn smt(patient: &Patient) -> Finding {
    match machine::smt(patient.root) {
        Some(false) => Finding::new(Level::Ok, "SMT", "off", "each CPU is a core of its own"),
        Some(true) => Finding::new(
            Level::Limited,
            "SMT",
            "on",
            "two CPUs share a core and its first caches: more than memory is contended for",
        )
        .change("echo off > /sys/devices/system/cpu/smt/control"),
        None => Finding::new(
            Level::Unknown,
            "SMT",
            "not reported by the kernel",
            "CPUs that share a core would contend for more than memory",
        ),
    }
}

pub(super) fn governor(patient: &Patient) -> Finding {
    let name = "frequency governor";
    let online = cpus::online_in(patient.root).unwrap_or_default();
    match machine::governor(patient.root, &online) {
        Some(governor) if governor == "performance" => Finding::new(Level::Ok, name, governor, "the frequency is fixed"),
        Some(governor) => Finding::new(Level::Limited, name, governor, "the frequency follows the load, and figures with it")
            .change("for f in /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor; do echo performance > $f; done"),
        None => Finding::new(Level::Unknown, name, "no cpufreq here", "the firmware or the hypervisor sets the frequency"),
    }
}

pub(super) fn boost(patient: &Patient) -> Finding {
    let name = "frequency boost";
    let (general, intel) = (
        "/sys/devices/system/cpu/cpufreq/boost",
        "/sys/devices/system/cpu/intel_pstate/no_turbo",
    );
    let (on, command) = match (patient.root.number(general), patient.root.number(intel)) {
        (Some(boost), _) => (boost != 0, format!("echo 0 > {general}")),
        (None, Some(no_turbo)) => (no_turbo == 0, format!("echo 1 > {intel}")),
        (None, None) => {
            return Finding::new(
                Level::Unknown,
                name,
                "no setting here",
                "boosted cores slow down when their neighbours work",
            );
        }
    };
    if on {
        Finding::new(
            Level::Limited,
            name,
            "on",
            "a core slows down when its neighbours work, which looks like interference",
        )
        .change(command)
    } else {
        Finding::new(
            Level::Ok,
            name,
            "off",
            "a core's speed does not depend on its neighbours",
        )
    }
}

pub(super) fn clock(patient: &Patient) -> Finding {
    let source = patient
        .root
        .text("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    match source.as_deref() {
        // The sources that the vDSO can read without a system call.
        Some(name @ ("tsc" | "arch_sys_counter" | "kvm-clock" | "hyperv_clocksource_tsc_page")) => {
            Finding::new(Level::Ok, "clock", name, "reading the time takes no system call")
        }
        Some(name) => Finding::new(Level::Limited, "clock", name, "reading the time is a system call, or worse: short runs measure the clock")
            .change("add to the kernel's command line: clocksource=tsc (if /sys/devices/system/clocksource/clocksource0/available_clocksource has it)"),
        None => Finding::new(Level::Unknown, "clock", "not reported by the kernel", "reading the time may be slow"),
    }
}
