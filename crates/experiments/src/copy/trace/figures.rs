// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cases and figures of a trace.

use std::path::Path;

use memwarden_copies::trace::{Function, FunctionStatistics, NULL, SizeStatistics, Source};
use memwarden_platform::{Root, symbols};
use memwarden_run::studies::copy_trace::{Caller, Case, Summary, Whole};
use memwarden_run::{Metric, Sample};

use super::{Config, Traced, counted};
use crate::copy::bytes_text;

/// Sizes of a function that get a case of their own; a longer table is unreadable.
const SIZES: usize = 64;

/// A median below this multiple of the clock's step is mostly clock error.
const COARSE: f64 = 5.0;

/// Callers in the kernel to list.
const CALLERS: usize = 32;

/// Fills in cases and figures; returns the samples: the counts of each CPU and the sampled times.
pub(super) fn fill(summary: &mut Summary, traced: &Traced) -> Vec<Sample> {
    let mut samples = counted(traced);
    let first_ns = traced
        .statistics
        .iter()
        .filter_map(FunctionStatistics::first_ns)
        .min();
    let base_ns = first_ns.unwrap_or(0);
    let all = || traced.functions.iter().zip(&traced.statistics);
    for (function, statistics) in all() {
        summary.cases.push(whole(*function, statistics, traced));
    }
    for (function, statistics) in all() {
        let mut add = |name: String, bytes: Option<u64>, size: &SizeStatistics| {
            samples.extend(times(&name, size, base_ns));
            summary.cases.push(Case {
                name,
                kind: "size".into(),
                size_bytes: Some(bytes),
                ..sums(*function, size)
            });
        };
        for (bytes, size) in statistics.sizes().into_iter().take(SIZES) {
            add(
                format!("{function}, {}", bytes_text(bytes)),
                Some(bytes),
                size,
            );
        }
        let behind = statistics.sizes_behind(SIZES);
        if behind.calls > 0 {
            add(format!("{function}, other sizes"), None, &behind);
        }
    }
    summary.whole = Whole {
        source: traced.info.source.name().into(),
        merged: traced.info.merged,
        addresses: traced.info.addresses,
        ring_records: traced.info.records.into(),
        cpus: traced.cpus.len() as u64,
        elapsed_s: Some(traced.elapsed.as_secs_f64()),
        clock_base_ns: base_ns,
        clock_step_ns: Some(traced.info.clock_step_ns()),
        missed: traced.missed,
        command_exit_code: traced.exit_code,
        callers: callers(traced),
    };
    samples
}

/// A function's case.
fn whole(function: Function, statistics: &FunctionStatistics, traced: &Traced) -> Case {
    let rings = || traced.rings.iter().filter(|ring| ring.function == function);
    let by_size: Vec<[u64; 2]> = {
        let mut sizes = statistics.sizes();
        sizes.sort_unstable_by_key(|(bytes, _)| *bytes);
        sizes
            .iter()
            .map(|(bytes, size)| [*bytes, size.calls])
            .collect()
    };
    Case {
        name: function.to_string(),
        kind: "function".into(),
        recorded: Some(rings().map(|ring| ring.counts.recorded).sum()),
        dropped: Some(rings().map(|ring| ring.counts.dropped).sum()),
        calls_by_size: Some(by_size),
        calls_of_other_sizes: Some(statistics.other_sizes().calls),
        ..sums(function, &statistics.total())
    }
}

/// Sums and times of the copies of one size.
fn sums(function: Function, size: &SizeStatistics) -> Case {
    Case {
        function: function.to_string(),
        calls: size.calls,
        bytes: size.bytes,
        not_copied_bytes: size.left_bytes,
        engine_calls: size.engine_calls,
        engine_bytes: size.engine_bytes,
        time: Some(time(size)),
        ..Case::default()
    }
}

/// The times: percentiles over the sampled copies, everything else over all copies.
fn time(size: &SizeStatistics) -> Metric {
    let picked: Vec<f64> = size
        .sampled()
        .iter()
        .map(|one| one.elapsed_ns as f64)
        .collect();
    if picked.is_empty() {
        return Metric::unmeasured("time_ns", "no copy was seen");
    }
    Metric {
        min: Some(size.min_ns as f64),
        max: Some(size.max_ns as f64),
        mean: size.mean_ns(),
        stdev: size.stdev_ns(),
        ..Metric::from_samples("time_ns", &picked)
    }
}

fn times(name: &str, size: &SizeStatistics, base_ns: u64) -> impl Iterator<Item = Sample> {
    (0..).zip(size.sampled()).map(move |(number, one)| {
        Sample::new(name, number, "copy", "time_ns", "ns", one.elapsed_ns as f64)
            .on_cpu(one.cpu)
            .at_ns(one.before_ns.saturating_sub(base_ns))
    })
}

/// The most frequent callers; none if the records have no caller.
fn callers(traced: &Traced) -> Vec<Caller> {
    let mut all: Vec<_> = traced
        .functions
        .iter()
        .zip(&traced.statistics)
        .flat_map(|(function, statistics)| {
            let callers = statistics.callers().into_iter();
            callers
                .filter(|(address, _)| *address != 0)
                .map(move |(address, caller)| (*function, address, caller))
        })
        .collect();
    all.sort_by_key(|(_, _, caller)| std::cmp::Reverse(caller.calls));
    all.truncate(CALLERS);
    let addresses: Vec<u64> = all.iter().map(|(_, address, _)| *address).collect();
    let symbols = symbols::of(&Root::system(), &addresses);
    all.iter()
        .zip(symbols)
        .map(|((function, address, caller), symbol)| Caller {
            function: function.to_string(),
            address: format!("{address:#018x}"),
            symbol,
            calls: caller.calls,
            bytes: caller.bytes,
        })
        .collect()
}

/// Explains which copies the trace could see.
fn source_text(traced: &Traced) -> &'static str {
    match (traced.info.source, traced.info.merged) {
        (Source::Hooks, _) => {
            "The kernel has hooks in the functions themselves: they saw all calls, including inlined ones and those \
             for reads and writes of files and sockets (iov_iter)."
        }
        (Source::Probes, true) => {
            "The kernel has no hooks: probes saw calls of the functions' common part. The __ forms, and those for \
             callers that must not sleep, count with the others; __from and __to have no counts. The times include the \
             cost of a probe."
        }
        (Source::Probes, false) => {
            "The kernel has no hooks: probes saw calls of functions, but no inlined copies: the __ forms, those for \
             callers that must not sleep, and those for reads and writes of files and sockets (iov_iter). The times \
             include the cost of a probe."
        }
    }
}

/// Adds the notes that a reader needs.
pub(super) fn remarks(summary: &mut Summary, config: &Config, traced: &Traced) {
    let of_kernel = config.device != Path::new(NULL);
    if of_kernel {
        summary.note(source_text(traced));
    } else {
        summary.note(
            "No kernel was involved (--device null): the records have a fixed pattern. The figures only exercise the \
             commands.",
        );
    }
    summary.note(
        "The trace includes all copies of the machine, its own too; a copy counts on the CPU where it ended.",
    );
    summary.note(
        "Minimum, mean, deviation and maximum are of all calls; medians and percentiles are of a uniform sample (in \
         samples.csv).",
    );
    let step_ns = traced.info.clock_step_ns();
    let coarse = summary.cases.iter().filter(|case| {
        let median = case.time.as_ref().and_then(|time| time.median);
        median.is_some_and(|ns| ns < COARSE * step_ns)
    });
    let coarse = coarse.count();
    if coarse > 0 {
        summary.note(format!(
            "The clock of the records has a step of {} ns, and a copy that takes less may show 0 ns. The medians of \
             {coarse} case{} are below five steps and no more exact.",
            (step_ns * 100.0).round() / 100.0,
            if coarse == 1 { "" } else { "s" }
        ));
    }
    let dropped: u64 = traced.rings.iter().map(|ring| ring.counts.dropped).sum();
    if dropped > 0 {
        summary.note(format!(
            "{dropped} copies found their ring full and count only in `dropped`. Load the module with larger rings \
             first (modprobe copytrace records={}), read more often (--every), or trace less (--ops).",
            u64::from(traced.info.records) * 4
        ));
    }
    if traced.missed > 0 {
        summary.note(format!(
            "The probes missed {} copies, for lack of space: they count only in `missed`.",
            traced.missed
        ));
    }
    if !traced.info.addresses {
        summary.note(
            "Callers are unknown: the kernel hides addresses from processes without CAP_PERFMON.",
        );
    }
    if of_kernel && summary.whole.callers.iter().any(|one| one.symbol.is_none()) {
        summary.note(
            "Some callers have no name: only root sees addresses in /proc/kallsyms (kernel.kptr_restrict).",
        );
    }
    for (function, statistics) in traced.functions.iter().zip(&traced.statistics) {
        let (sizes, callers) = (
            statistics.other_sizes().calls,
            statistics.other_callers().calls,
        );
        if sizes > 0 || callers > 0 {
            summary.note(format!(
                "{function}: too many different sizes or callers, so {sizes} calls count as size `other`, and \
                 {callers} count for no caller."
            ));
        }
    }
}
