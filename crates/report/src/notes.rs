// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a reader must know, whatever the experiment.

use memwarden_run::{Run, Summary};

use crate::number;

/// How the figures were made, for every report.
pub const STATISTICS: &str = "Medians with 95 % bootstrap confidence intervals (4000 resamples, fixed seed; with fewer \
    than 6 samples the interval is the range at most). Percentiles are by the nearest-rank definition: always a value \
    that was measured. No outlier was removed. A figure that could not be measured is n/a, never 0.";

/// What an emulated machine cannot show.
pub const LAB_LIMITS: &str = "This ran on an emulated machine. It has no DRAM, so no contention for it: what its cores \
    share is the emulator's own execution, in which they take turns. The victim's slowdown therefore shows that \
    throttling the others gives capacity back to it; it is not a figure in nanoseconds of any board.";

/// What an emulated machine shows exactly.
pub const LAB_EXACT: &str = "Exact all the same, because the kernel, the regulator and the events are the real ones and \
    counted, not modelled: budgets, events achieved in each period, throttled shares, overshoot, and the instructions \
    that the regulator adds.";

/// What an emulated machine shows of system calls and copies, and what not.
pub const LAB_COPIES: &str = "This ran on an emulated machine: the kernel and the devices are the real ones, the processor \
    is not. On the counted clock a nanosecond is an instruction, whatever that would cost on a board: the figures compare \
    the lengths of the ways to and from the memory, not their speed, and caches count for nothing.";

/// What an emulated machine shows of mappings, and what not.
pub const LAB_MAPPINGS: &str = "This ran on an emulated machine: the kernel is the real one, and so are faults, switches, and \
    what reclaim and the OOM killer do; the processor is not. Times are the emulator's, and caches and TLBs are nobody's but a \
    model's.";

/// What a reader must know of a run on an emulated machine.
pub fn of_lab(experiment: &str) -> &'static [&'static str] {
    if experiment.starts_with("mymem-") || experiment.starts_with("copy-") {
        &[LAB_COPIES]
    } else if experiment.starts_with("mmap") {
        &[LAB_MAPPINGS]
    } else {
        &[LAB_LIMITS, LAB_EXACT]
    }
}

/// All notes of a run: the experiment's own first.
pub fn of(run: &Run, summary: &Summary) -> Vec<String> {
    let mut notes = summary.notes.clone();
    let mut add = |note: String| {
        if !notes.contains(&note) {
            notes.push(note);
        }
    };
    if run.target == "lab" {
        for note in of_lab(&run.experiment) {
            add((*note).into());
        }
        match run.lab.as_ref().map(|lab| lab.clock.as_str()) {
            Some("counted") => add("Time is a count of instructions here (the counted clock): the same command gives \
                 the same figures again."
                .into()),
            Some("free") => add("Time followed the host's clock here (the free clock): figures vary with what else \
                 the host does."
                .into()),
            _ => {}
        }
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
