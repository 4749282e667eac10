// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notes that apply to any experiment.

use memwarden_run::{Run, Summary};

use crate::{number, studies};

/// How the figures are computed; part of every report.
pub const STATISTICS: &str = "Medians with 95 % bootstrap confidence intervals (4000 resamples, fixed seed; with fewer \
    than 6 samples the interval is the range at most). Percentiles are by the nearest-rank definition: always a value \
    that was measured. No outlier was removed. A figure that could not be measured is n/a, never 0.";

/// Limits of an emulated machine without modelled memory.
pub const LAB_LIMITS: &str = "This ran on an emulated machine. It has no DRAM, so no contention for it, and its \
    cores run at the same time, each at full speed: no workload slows another one down, with a guard or without.";

/// What an emulated machine with modelled memory shows, and its limits.
pub const LAB_MODELLED: &str = "This ran on an emulated machine: the kernel, the regulator and the workloads are the real \
    ones; the caches, the memory and the PMU's events behind its cores are a platform's in the model, fitted to what was published \
    of it without a guard. An instruction takes a nanosecond, and a load makes its core wait. Instruction fetches \
    take no part, nor do devices but for a platform's DMA engine, whose speed is an assumption.";

/// What an emulated machine shows exactly.
pub const LAB_EXACT: &str = "Exact all the same, because the kernel, the regulator and the events are the real ones and \
    counted, not modelled: budgets, events achieved in each period, throttled shares, overshoot, and the instructions \
    that the regulator adds.";

/// What an emulated machine shows of system calls and copies, and its limits.
pub const LAB_COPIES: &str = "This ran on an emulated machine: the kernel and the devices are the real ones, the processor \
    is not.";

/// The same on the counted clock.
pub const LAB_COPIES_COUNTED: &str = "A nanosecond is an instruction, whatever that would cost on a board: the figures \
    compare the lengths of the ways to and from the memory, not their speed, and caches count for nothing.";

/// What an emulated machine shows of mappings, and its limits.
pub const LAB_MAPPINGS: &str = "This ran on an emulated machine: the kernel is the real one, and so are faults, switches, and \
    what reclaim and the OOM killer do; the processor is not. Times are the emulator's, and caches and TLBs are a model's.";

/// The clock that counts each CPU's instructions.
pub const LAB_COUNTED: &str = "Time is a count of instructions here, and the CPUs run at the same time (the counted \
    clock): the same command gives the same figures again.";

/// The host's clock.
pub const LAB_FREE: &str = "Time followed the host's clock here (the free clock): it is what the emulator took, with the \
    host's own caches, and figures vary with what else the host does.";

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
    // own
    // notes explain it.
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

/// All notes of a run, the experiment's own notes first.
pub fn of(run: &Run, summary: &Summary) -> Vec<String> {
    let mut notes = summary.notes.clone();
    let mut add = |note: String| {
        if !notes.contains(&note) {
            notes.push(note);
        }
    };
    for note in of_lab(run) {
        add(note.into());
    }
    if let Some(fault) = studies::fault(summary) {
        add(format!(
            "The figures are not those of the study {} as this version knows it ({fault}): they are shown as they are.",
            summary.experiment
        ));
    }
    for case in &summary.cases {
        for (key, metric) in case.metrics() {
            if let Some(note) = &metric.note {
                add(format!(
                    "{}, {}: {note}.",
                    case.name,
                    number::name_and_unit(key).0
                ));
            }
        }
        if let Some(note) = case.text("note") {
            add(format!("{}: {note}", case.name));
        }
    }
    notes
}
