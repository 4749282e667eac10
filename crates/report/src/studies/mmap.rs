// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cost of a mapping: random and sequential walks, sweeps of the locality, and competition.

#[cfg(feature = "html")]
mod charts;

use std::collections::BTreeSet;

use memwarden_run::Metric;
use memwarden_run::statistics::{FEWEST_FOR_RATIO, widened};
use memwarden_run::studies::mmap::{Case, CountedBy, Summary};

use crate::Table;
#[cfg(feature = "html")]
use crate::by_size::texts;
use crate::number::{
    NOT_MEASURED, TOO_FEW_RUNS, capitalised, count, figure, optional, percent, times,
};
use crate::table::Rows;

pub(crate) const QUESTION: &str = "Memory is mapped in several ways and walked over, at random places and in order: each \
    place's 32 KiB several times, every eighth line written and the others read. What does that do to caches, TLB and pages, \
    and what does a competitor change?";

fn median(metric: &Option<Metric>) -> Option<f64> {
    metric.as_ref()?.median
}

fn alone(summary: &Summary) -> impl Iterator<Item = &Case> {
    summary.cases.iter().filter(|case| !case.competes())
}

/// The source of the counters, in the words of the tables' captions.
fn counted_by(summary: &Summary) -> String {
    match summary.whole.counted_by {
        Some(CountedBy::Model) => {
            let assumed = summary.whole.assumed.as_ref();
            let assumed = match assumed.is_some_and(|all| !all.is_empty()) {
                true => " (partly assumed: see the notes)",
                false => "",
            };
            let geometry = summary.whole.geometry_text.as_deref();
            format!(
                "MODELLED, not measured: {}{assumed}.",
                geometry.unwrap_or("a model")
            )
        }
        Some(CountedBy::Hardware) => "Counted by the machine.".into(),
        None => String::new(),
    }
}

fn modelled(summary: &Summary) -> bool {
    summary.whole.counted_by == Some(CountedBy::Model)
}

/// The mapping whose random and sequential walks are compared: the last one of the summary.
fn compared(summary: &Summary) -> Option<[&Case; 2]> {
    let of = |access: &str| alone(summary).filter(|case| case.access == access).last();
    let random = of("random")?;
    let sequential = alone(summary).filter(|case| {
        case.access == "sequential"
            && case.mapping == random.mapping
            && case.locality == random.locality
    });
    Some([random, sequential.last()?])
}

pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(cases) = compared(summary) {
        let both = |shares: [Option<f64>; 2], what: &str| {
            let [Some(random), Some(sequential)] = shares else {
                return None;
            };
            let (random, sequential) = (percent(random), percent(sequential));
            Some(format!("{random} {what} ({sequential} in order)"))
        };
        let l1d = cases.map(|case| case.l1d_load_miss_share);
        let dtlb = cases.map(|case| case.dtlb_load_miss_share);
        let figures = match summary.whole.l1d_lines {
            false => vec![both(l1d, "of the L1D's loads"), both(dtlb, "of the DTLB's")],
            true => vec![both(dtlb, "of the DTLB's loads")],
        };
        let figures: Vec<String> = figures.into_iter().flatten().collect();
        let model = match modelled(summary) {
            true => "by the model ",
            false => "",
        };
        if !figures.is_empty() {
            parts.push(format!("at random {model}{} missed", figures.join(" and ")));
        }
        if summary.whole.l1d_lines {
            let lines = both(l1d, "of the accesses");
            parts.extend(
                lines.map(|share| format!("at random {model}lines came into the L1D for {share}")),
            );
        }
        parts.extend(times_as_long(cases));
    }
    let mapping = compared(summary).map(|cases| cases[0].mapping.as_str());
    let walks = match (mapping, parts.is_empty()) {
        (_, true) => None,
        (Some(mapping), _) => Some(format!("On {mapping}, {}.", parts.join("; "))),
        (None, _) => Some(capitalised(&parts.join("; ")) + "."),
    };
    let sentences: Vec<String> = [walks, competitors(summary)]
        .into_iter()
        .flatten()
        .collect();
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// What competitors of all mappings changed.
fn competitors(summary: &Summary) -> Option<String> {
    let mut parts = Vec::new();
    let company = || summary.cases.iter().filter(|case| case.competes());
    // A summary of an earlier version has a slowdown of walks whose competitor was dead, too.
    let beside = || company().filter(|case| case.beside() > 0);
    // Of many cases without an effect, some exclude 1 by chance.
    let all = beside().filter(|case| case.slowdown_ci95.is_some()).count();
    let worst = beside()
        .filter_map(|case| {
            let slowdown = case.slowdown?;
            let interval = case.slowdown_ci95.map(|ends| widened(slowdown, ends, all));
            Some((slowdown, interval, case))
        })
        .filter(|(_, interval, _)| interval.is_none_or(|[low, _]| low > 1.0))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let many = match all {
        0 | 1 => String::new(),
        all => format!(", widened for {all} cases"),
    };
    match worst {
        Some((_, Some([_, high]), case)) if times(high) == "1.00" => parts.push(format!(
            "beside a competitor ({}) a walk took longer than alone, but by less than 0.5 %",
            case.compete
        )),
        Some((slowdown, interval, case)) => parts.push(format!(
            "beside a competitor ({}) a walk took up to {} times as long as alone{}, on {}, {}, locality {}",
            case.compete,
            times(slowdown),
            interval.map_or_else(
                || TOO_FEW_RUNS.into(),
                |[low, high]| format!(
                    " (95 % interval {} to {}{many})",
                    times(low),
                    times(high)
                )
            ),
            case.mapping,
            case.access,
            case.locality
        )),
        None if all > 0 => {
            parts.push("no competitor is shown to slow a walk down".to_owned());
        }
        None => {}
    }
    // Each mapping has all kinds.
    let kinds: BTreeSet<&str> = company().map(|case| case.compete.as_str()).collect();
    for kind in kinds {
        let of_kind = || company().filter(|case| case.compete == kind);
        let ended = of_kind().filter(|case| case.beside() == 0 && case.competitors.is_some());
        match (ended.count(), of_kind().count()) {
            (0, _) => {}
            (ended, all) if ended == all => parts.push(format!(
                "a competitor ({kind}) had always ended before the walk began"
            )),
            (ended, all) => parts.push(format!(
                "in {ended} of {all} cases a competitor ({kind}) had always ended before the walk began"
            )),
        }
    }
    (!parts.is_empty()).then(|| capitalised(&parts.join("; ")) + ".")
}

/// ` (95 % interval 1.03 to 1.09)`.
fn within([low, high]: [f64; 2]) -> String {
    format!(" (95 % interval {} to {})", times(low), times(high))
}

/// Ratio of the random walk's time to the sequential walk's. Its interval is computed from the medians' intervals, from
/// the closest ends to the farthest: wider than a bootstrapped interval, but it needs only the summary. If it contains
/// 1, no difference is shown.
fn times_as_long([random, sequential]: [&Case; 2]) -> Option<String> {
    let ratio = median(&random.time)? / median(&sequential.time)?;
    let ends = |case: &Case| {
        let enough = |time: &&Metric| time.samples >= FEWEST_FOR_RATIO as u64;
        case.time.as_ref().filter(enough)?.median_ci95
    };
    let Some(([random_low, random_high], [sequential_low, sequential_high])) =
        ends(random).zip(ends(sequential))
    else {
        return Some(format!(
            "at random the walk took {} times as long as in order{TOO_FEW_RUNS}",
            times(ratio)
        ));
    };
    let interval = [random_low / sequential_high, random_high / sequential_low];
    Some(if interval[0] <= 1.0 && interval[1] >= 1.0 {
        format!(
            "the walk is not shown to take longer in either order{}",
            within(interval)
        )
    } else if interval.iter().all(|end| times(*end) == "1.00") {
        "the walk took as long in either order, within 0.5 %".into()
    } else {
        format!(
            "at random the walk took {} times as long as in order{}",
            times(ratio),
            within(interval)
        )
    })
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    if summary.cases.is_empty() {
        return Vec::new();
    }
    let all = [
        shares(summary),
        counts(summary),
        setup(summary),
        write_back(summary),
        usage(summary),
        competition(summary),
    ];
    all.into_iter()
        .filter(|table| !table.rows.is_empty())
        .collect()
}

fn titled<'a>(title: &str, cases: impl Iterator<Item = &'a Case>) -> Rows<&'a Case> {
    Table::of(title, cases)
        .words("Mapping", |case| case.mapping.clone())
        .words("Access", |case| case.access.clone())
        .figures("locality", "", |case| count(Some(case.locality)))
        .words("beside", |case| match case.competes() {
            true => case.compete.clone(),
            false => "-".into(),
        })
}

/// The median of a metric in a unit that is `by` times the metric's.
fn over(metric: &Option<Metric>, by: f64) -> String {
    optional(median(metric).map(|value| value / by))
}

/// The mark of counts from counters that took turns.
fn mark(case: &Case) -> &'static str {
    if case.multiplexed == Some(true) {
        "*"
    } else {
        ""
    }
}

/// A count with its mark.
fn marked(case: &Case, count: Option<String>) -> String {
    count.map_or_else(|| NOT_MEASURED.into(), |text| text + mark(case))
}

const MARKED: &str = " * estimated: the counters took turns.";

fn caption(summary: &Summary, text: &str) -> String {
    let marked = summary.cases.iter().any(|case| !mark(case).is_empty());
    let by = counted_by(summary);
    let space = if by.is_empty() { "" } else { " " };
    format!("{by}{space}{text}{}", if marked { MARKED } else { "" })
}

/// A share with its column heading.
type Share = (&'static str, fn(&Case) -> Option<f64>);

const SHARES: [Share; 7] = [
    ("L1D loads missed", |case| case.l1d_load_miss_share),
    ("L1D stores missed", |case| case.l1d_store_miss_share),
    ("L1D prefetches missed", |case| case.l1d_prefetch_miss_share),
    ("L2 loads missed", |case| case.l2_load_miss_share),
    ("L2 accesses refilled", |case| case.l2_refill_share),
    ("LLC loads missed", |case| case.llc_load_miss_share),
    ("DTLB loads missed", |case| case.dtlb_load_miss_share),
];

fn shares(summary: &Summary) -> Table {
    let known = |case: &&Case| SHARES.iter().any(|(_, share)| share(case).is_some());
    let mut rows = titled("Miss ratios", summary.cases.iter().filter(known));
    for (name, share) in SHARES {
        let name = match (name, summary.whole.l1d_lines) {
            ("L1D loads missed", true) => "lines into the L1D",
            _ => name,
        };
        rows = rows.figures(name, "", |case| marked(case, share(case).map(percent)));
    }
    let mut table = rows.table();
    table.drop_columns_of(NOT_MEASURED);
    table.caption(caption(summary, "Of what each was asked for."))
}

const COUNTS: [(&str, &str); 14] = [
    ("L1D loads", "L1-dcache-loads"),
    ("misses", "L1-dcache-load-misses"),
    ("L1D stores", "L1-dcache-stores"),
    ("misses", "L1-dcache-store-misses"),
    ("L1D prefetches", "L1-dcache-prefetches"),
    ("misses", "L1-dcache-prefetch-misses"),
    ("L2 prefetches", "L2-prefetches"),
    ("misses", "L2-prefetch-misses"),
    ("L2 accesses", "l2d_cache"),
    ("refills", "l2d_cache_refill"),
    ("LLC loads", "LLC-loads"),
    ("misses", "LLC-load-misses"),
    ("DTLB loads", "dTLB-loads"),
    ("misses", "dTLB-load-misses"),
];

fn counts(summary: &Summary) -> Table {
    let known = |case: &&Case| COUNTS.iter().any(|(_, event)| case.count(event).is_some());
    let mut rows = titled("Counters", summary.cases.iter().filter(known));
    for (name, event) in COUNTS {
        rows = rows.figures(name, "", |case| marked(case, case.count(event).map(figure)));
    }
    let outer = |case: &&Case| count(case.counted_outer);
    let mut table = rows.figures("outer steps", "counted", outer).table();
    table.drop_columns_of(NOT_MEASURED);
    table.caption(caption(summary, "Medians."))
}

/// Reasons for the page faults at the first write, and during the walk.
fn reasons(case: &Case) -> String {
    let some = |metric: &Option<Metric>| median(metric).is_some_and(|count| count > 0.0);
    let mut reasons = Vec::new();
    if some(&case.touch_minor_faults) || some(&case.touch_major_faults) {
        reasons.push(match (case.file, case.private) {
            (true, true) => "first write: copy-on-write of the file's page",
            (true, false) => "first write: the file's page is mapped and marked dirty",
            (false, _) => "first write: a new page of zeros",
        });
    }
    if some(&case.minor_faults) {
        if case.private && case.compete == "fork" {
            reasons.push(match case.beside() {
                0 => "walk: first write since the fork, which had ended: the page is no longer shared, and not copied",
                _ => "walk: copy-on-write of pages shared with the fork",
            });
        } else if case.file && !case.private && case.msync_before.is_some() {
            reasons.push("walk: msync left the pages clean, and a write marks them dirty");
        }
    }
    if reasons.is_empty() {
        "-".into()
    } else {
        reasons.join("; ")
    }
}

/// Cost of a mapping before its walk.
fn setup(summary: &Summary) -> Table {
    let cases = summary.cases.iter().filter(|case| case.map.is_some());
    let huge = |case: &Case| figure(case.huge_bytes as f64 / f64::from(1 << 20));
    titled("Cost of the mapping", cases)
        .figures("mmap()", "us", |case| over(&case.map, 1e3))
        .figures("first touch", "ms", |case| over(&case.touch, 1e6))
        .figures("soft faults", "", |case| over(&case.touch_minor_faults, 1.0))
        .figures("hard faults", "", |case| over(&case.touch_major_faults, 1.0))
        .figures("in huge pages", "MiB", |case| huge(case))
        .figures("walk", "ms", |case| over(&case.time, 1e6))
        .figures("soft faults", "walk", |case| over(&case.minor_faults, 1.0))
        .figures("hard faults", "walk", |case| over(&case.major_faults, 1.0))
        .words("why pages fault", |case| reasons(case))
        .table()
        .caption(
            "Medians. First touch is a write to each page of the new mapping. Soft faults (minor) need no disk; hard ones \
             (major) wait for it, or find no page of the file in memory.",
        )
}

/// Bytes that msync writes back, and what a reader of the file sees.
fn write_back(summary: &Summary) -> Table {
    let cases = summary.cases.iter().filter(|case| case.msync.is_some());
    let seen = |shares: Option<[f64; 2]>, which: usize| {
        shares.map_or_else(|| "-".into(), |both| percent(both[which]))
    };
    titled("Written back by msync", cases)
        .figures("msync", "ms, before the walk", |case| {
            over(&case.msync_before, 1e6)
        })
        .figures("file has", "before it", |case| seen(case.seen_before, 0))
        .figures("file has", "after it", |case| seen(case.seen_before, 1))
        .figures("msync", "ms, after the walk", |case| over(&case.msync, 1e6))
        .figures("file has", "before it", |case| seen(case.seen_after, 0))
        .figures("file has", "after it", |case| seen(case.seen_after, 1))
        .table()
        .caption(
            "The share of the bytes written into the mapping that a reader of the file sees there. A reader sees writes to \
             a shared mapping at once, and msync writes them to disk; it never sees writes to a private one.",
        )
}

fn usage(summary: &Summary) -> Table {
    titled("Time and getrusage", summary.cases.iter())
        .figures("time", "ms", |case| over(&case.time, 1e6))
        .figures("user", "ms", |case| over(&case.user_us, 1e3))
        .figures("system", "ms", |case| over(&case.system_us, 1e3))
        .figures("soft faults", "", |case| over(&case.minor_faults, 1.0))
        .figures("hard faults", "", |case| over(&case.major_faults, 1.0))
        .figures("switches", "voluntary", |case| over(&case.voluntary_switches, 1.0))
        .figures("switches", "involuntary", |case| over(&case.involuntary_switches, 1.0))
        .figures("blocks in", "", |case| over(&case.blocks_in, 1.0))
        .figures("blocks out", "", |case| over(&case.blocks_out, 1.0))
        .figures("peak memory", "MiB", |case| over(&case.max_rss_kib, 1024.0))
        .table()
        .caption(
            "Medians, measured only during the real walk. Peak memory is that of the process since its start. Blocks are \
             of 512 bytes.",
        )
}

fn competition(summary: &Summary) -> Table {
    let over_alone = |case: &Case, of: fn(&Case) -> &Option<Metric>| {
        if case.beside() < case.repeats {
            return "-".into();
        }
        let same = |other: &&Case| {
            other.mapping == case.mapping
                && other.access == case.access
                && other.locality == case.locality
        };
        let before = alone(summary).find(same).and_then(|base| median(of(base)));
        let ratio = median(of(case)).zip(before.filter(|before| *before > 0.0));
        ratio.map_or_else(|| "-".into(), |(mine, before)| times(mine / before))
    };
    let rivals = |case: &Case| case.competitors.clone().unwrap_or_default();
    let took = |case: &Case| {
        let mut touched: Vec<u64> = rivals(case).iter().map(|one| one.touched_bytes).collect();
        touched.sort_unstable();
        let middle = touched.get(touched.len() / 2);
        optional(middle.map(|bytes| *bytes as f64 / f64::from(1 << 20)))
    };
    let walks = |case: &Case| case.time.as_ref().map_or(0, |time| time.samples);
    let cases = summary.cases.iter().filter(|case| case.competes());
    titled("Competition", cases)
        .figures("time", "over alone", |case| over_alone(case, |c| &c.time))
        .figures("user", "over alone", |case| over_alone(case, |c| &c.user_us))
        .figures("involuntary switches", "over alone", |case| {
            over_alone(case, |c| &c.involuntary_switches)
        })
        .figures("completed walks", "", |case| walks(case).to_string())
        .figures("begun beside it", "", |case| case.beside().to_string())
        .figures("killed by the OOM killer", "competitors", |case| {
            count(case.oom_kills)
        })
        .figures("it took", "MiB", |case| took(case))
        .words("the last competitor", |case| {
            rivals(case).last().map_or("-", |rival| rival.end.as_str()).into()
        })
        .table()
        .caption(
            "Ratios of medians to the same walk alone; - if that was not measured, or was 0, or if a competitor had ended \
             before its walk began. The competitor's memory is a median. The kernel kills it first when memory runs out, \
             which is a result.",
        )
}

/// The mappings with walks of their own, in the summary's order.
#[cfg(feature = "html")]
fn mappings(summary: &Summary) -> Vec<&str> {
    texts(summary, |case| &case.mapping)
}

#[cfg(feature = "html")]
pub(crate) use charts::figures;

#[cfg(test)]
mod tests {
    use memwarden_run::studies::mmap::Competitor;

    use super::*;

    fn walk(low: f64, high: f64) -> Case {
        Case {
            time: Some(Metric {
                samples: 5,
                median: Some(f64::midpoint(low, high)),
                median_ci95: Some([low, high]),
                ..Metric::default()
            }),
            ..Case::default()
        }
    }

    #[test]
    fn an_order_that_makes_no_difference_for_certain_is_said_to_make_none() {
        let said = |random, sequential| times_as_long([&random, &sequential]).unwrap();
        assert_eq!(
            said(walk(90.0, 110.0), walk(95.0, 105.0)),
            "the walk is not shown to take longer in either order (95 % interval 0.86 to 1.16)"
        );
        assert_eq!(
            said(walk(198.0, 202.0), walk(99.0, 101.0)),
            "at random the walk took 2.00 times as long as in order (95 % interval 1.96 to 2.04)"
        );
        assert_eq!(
            said(walk(1000.0, 1001.0), walk(998.0, 999.0)),
            "the walk took as long in either order, within 0.5 %"
        );
        let mut few = walk(2.0, 2.0);
        few.time.as_mut().unwrap().median_ci95 = None;
        assert!(said(few, walk(1.0, 1.0)).ends_with("(too few runs for an interval)"));
    }

    #[test]
    fn a_fault_is_put_down_to_what_causes_it() {
        let some = |count| {
            Some(Metric {
                median: Some(count),
                ..Metric::default()
            })
        };
        let mut case = Case {
            file: true,
            private: true,
            touch_minor_faults: some(16.0),
            minor_faults: some(0.0),
            ..Case::default()
        };
        assert_eq!(
            reasons(&case),
            "first write: copy-on-write of the file's page"
        );
        case.touch_minor_faults = some(0.0);
        assert_eq!(reasons(&case), "-", "populated");
        case.minor_faults = some(3.0);
        case.compete = "fork".into();
        assert!(reasons(&case).contains("the fork, which had ended"));
        case.competitors = Some(vec![Competitor {
            passes: 1,
            ..Competitor::default()
        }]);
        assert_eq!(
            reasons(&case),
            "walk: copy-on-write of pages shared with the fork"
        );
        case.private = false;
        case.msync_before = some(1.0);
        assert!(reasons(&case).contains("msync left the pages clean"));
    }

    #[test]
    fn a_competitor_is_named_only_where_it_slows_the_walk_down_for_certain() {
        let beside = |passes, interval| {
            let mut summary = Summary::new("mmap", "native");
            summary.cases.push(Case {
                mapping: "SHARED file".into(),
                access: "random".into(),
                locality: 16,
                compete: "fork".into(),
                competitors: Some(vec![Competitor {
                    passes,
                    ..Competitor::default()
                }]),
                slowdown: Some(1.2),
                slowdown_ci95: interval,
                ..Case::default()
            });
            finding(&summary).unwrap()
        };
        let finding = |interval| beside(1, interval);
        assert_eq!(
            beside(0, Some([1.1, 1.5])),
            "A competitor (fork) had always ended before the walk began."
        );
        assert_eq!(
            finding(Some([0.9, 1.5])),
            "No competitor is shown to slow a walk down."
        );
        assert!(finding(Some([1.1, 1.5])).contains("(fork)"));
        assert_eq!(
            finding(None),
            "Beside a competitor (fork) a walk took up to 1.20 times as long as alone (too few runs for an interval), on \
             SHARED file, random, locality 16."
        );
    }

    #[test]
    fn a_competitors_effect_is_that_of_the_mapping_which_had_it() {
        let mut summary = Summary::new("mmap", "native");
        let mappings = ["PRIVATE|ANONYMOUS", "SHARED|ANONYMOUS"];
        for mapping in mappings {
            for access in ["random", "sequential"] {
                summary.cases.push(Case {
                    mapping: mapping.into(),
                    access: access.into(),
                    compete: "none".into(),
                    locality: 1,
                    ..walk(99.0, 101.0)
                });
            }
        }
        for (mapping, compete, slowdown, passes) in [
            (mappings[0], "fork", 5.67, 1),
            (mappings[0], "background", 1.0, 0),
            (mappings[1], "fork", 1.01, 0),
            (mappings[1], "background", 1.0, 0),
        ] {
            summary.cases.push(Case {
                mapping: mapping.into(),
                access: "random".into(),
                compete: compete.into(),
                locality: 1,
                competitors: Some(vec![Competitor {
                    passes,
                    ..Competitor::default()
                }]),
                slowdown: Some(slowdown),
                slowdown_ci95: Some([slowdown, slowdown]),
                ..walk(99.0, 101.0)
            });
        }
        assert_eq!(
            finding(&summary).unwrap(),
            "On SHARED|ANONYMOUS, the walk is not shown to take longer in either order (95 % interval 0.98 to 1.02). \
             Beside a competitor (fork) a walk took up to 5.67 times as long as alone (95 % interval 5.67 to 5.67), on \
             PRIVATE|ANONYMOUS, random, locality 1; a competitor (background) had always ended before the walk began; in \
             1 of 2 cases a competitor (fork) had always ended before the walk began."
        );
    }

    #[test]
    fn three_walks_in_each_order_have_no_interval() {
        let walk = |access: &str, ms: f64, samples: u32| Case {
            access: access.into(),
            compete: "none".into(),
            time: Some(Metric::from_samples(
                "time_ns",
                &(0..samples)
                    .map(|n| ms * 1e6 + f64::from(n))
                    .collect::<Vec<_>>(),
            )),
            ..Case::default()
        };
        let said = |samples| {
            times_as_long([
                &walk("random", 2.0, samples),
                &walk("sequential", 1.0, samples),
            ])
        };
        assert_eq!(
            said(4).unwrap(),
            "at random the walk took 2.00 times as long as in order (too few runs for an interval)"
        );
        assert!(said(5).unwrap().ends_with("(95 % interval 2.00 to 2.00)"));
    }
}
