// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notes that apply to any experiment.

use memwarden_run::title::printable_line;
use memwarden_run::{Run, Summary};

use crate::{number, studies};

/// How the figures are computed; part of every report.
pub const STATISTICS: &str = "Medians with 95 % bootstrap confidence intervals (4000 resamples, fixed seed; with fewer \
    than 6 samples the interval is the range at most; from 32 samples on it allows for samples that resemble the ones \
    before them). Percentiles are by the nearest-rank definition and so always a measured value. No outlier was \
    removed. A figure that could not be measured is n/a, never 0.";

/// Limits of an emulated machine without modelled memory.
pub const LAB_LIMITS: &str = "This ran on an emulated machine. It has no DRAM and so no contention for it, and each of \
    its cores runs at full speed: no workload slows down another, with or without a guard.";

/// What an emulated machine with modelled memory shows, and its limits.
pub const LAB_MODELLED: &str = "This ran on an emulated machine: the kernel, the regulator and the workloads are real; \
    the caches, the memory and the PMU's events are a model of a platform, fitted to published measurements without a \
    guard. An instruction takes a nanosecond, and a load or a fetched instruction that misses stalls its core. \
    Devices are not modelled, except the platform's DMA engine, whose speed is an assumption.";

/// What an emulated machine shows exactly.
pub const LAB_EXACT: &str = "The following are exact nonetheless, because the kernel, the regulator and the events are \
    real and counted, not modelled: budgets, events used in each period, throttled shares, overshoot, and the \
    instructions that the regulator adds.";

/// What an emulated machine shows of system calls and copies, and its limits.
pub const LAB_COPIES: &str = "This ran on an emulated machine: the kernel and the devices are real, the processor is \
    not.";

/// The same on the counted clock.
pub const LAB_COPIES_COUNTED: &str = "A nanosecond is one instruction, whatever its cost on a board: the figures \
    compare the instruction counts of the copy paths, not their speed, and show no effect of caches.";

/// What an emulated machine shows of mappings, and its limits.
pub const LAB_MAPPINGS: &str = "This ran on an emulated machine: the kernel is real, and so are faults, switches, \
    reclaim and the OOM killer; the processor is not. Times are the emulator's, and caches and TLBs are modelled.";

/// The clock that counts each CPU's instructions.
pub const LAB_COUNTED: &str = "Time is a count of instructions, and the CPUs run in parallel (the counted clock): the \
    same command gives the same figures again.";

/// The host's clock.
pub const LAB_FREE: &str = "Time followed the host's clock (the free clock): it is the emulator's run time with the \
    host's caches, and varies with the host's other work.";

/// Notes for a run on an emulated machine; none for other runs.
pub fn of_lab(run: &Run) -> Vec<&'static str> {
    if run.target != "lab" {
        return Vec::new();
    }
    let Some(lab) = &run.lab else {
        return Vec::new();
    };
    let experiment = run.experiment.as_str();
    let copies = experiment.starts_with("mymem-") || experiment.starts_with("copy-");
    let mapping = experiment.starts_with("mmap");
    // In runs from before November 2026 the CPUs of the counted clock shared one stream of instructions. Such a run's
    // own notes explain it.
    if lab.clock == "counted" && lab.more.contains_key("tick_us") {
        return if copies || mapping {
            Vec::new()
        } else {
            vec![LAB_EXACT]
        };
    }
    // "parallel" is the counted clock in runs from before November 2026.
    let counted = ["counted", "parallel"].contains(&lab.clock.as_str());
    let mut notes = if lab.more.contains_key("platform") {
        vec![LAB_MODELLED]
    } else if copies && counted {
        vec![LAB_COPIES, LAB_COPIES_COUNTED]
    } else if copies {
        vec![LAB_COPIES]
    } else if mapping {
        vec![LAB_MAPPINGS]
    } else {
        vec![LAB_LIMITS, LAB_EXACT]
    };
    notes.push(if counted { LAB_COUNTED } else { LAB_FREE });
    notes
}

/// All notes of a run, the experiment's own notes first, without characters that control a terminal.
pub fn of(run: &Run, summary: &Summary) -> Vec<String> {
    let notes = summary.notes.iter().map(|note| printable_line(note));
    let mut notes: Vec<String> = notes.collect();
    let mut add = |note: String| {
        let note = printable_line(&note);
        if !notes.contains(&note) {
            notes.push(note);
        }
    };
    for note in of_lab(run) {
        add(note.into());
    }
    if let Some(fault) = studies::fault(summary) {
        add(format!(
            "The figures do not match this version's study {} ({fault}): they are shown as recorded.",
            summary.experiment
        ));
    }
    for case in &summary.cases {
        for (key, metric) in case.metrics() {
            if let Some(note) = &metric.note {
                add(format!(
                    "{}, {}: {note}.",
                    case.title(&summary.experiment),
                    number::name_and_unit(key).0
                ));
            }
        }
        if let Some(note) = case.text("note") {
            add(format!("{}: {note}", case.title(&summary.experiment)));
        }
    }
    notes
}
