// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies by function, size and caller.

use memwarden_run::Metric;
use memwarden_run::studies::copy_trace::{Caller, Case, Summary};

use crate::Table;
use crate::number::{NOT_MEASURED, bytes, figure, optional, percent};

pub(crate) const QUESTION: &str = "Every copy between user and kernel memory on the whole machine was recorded: its \
    size, its time, and its caller in the kernel. Which callers copy how much, and how often?";

/// Rows of a function's sizes; the summary has more.
const SIZES: usize = 12;

/// A function, and its form without checks.
const PAIRS: [(&str, &str, &str); 2] = [
    ("from", "__from", "from user memory"),
    ("to", "__to", "to user memory"),
];

/// A function by its name in C.
fn function_text(name: &str) -> &str {
    match name {
        "from" => "copy_from_user",
        "to" => "copy_to_user",
        "__from" => "__copy_from_user",
        "__to" => "__copy_to_user",
        other => other,
    }
}

/// The functions' own cases.
fn functions(summary: &Summary) -> impl Iterator<Item = &Case> {
    of_kind(summary, "function")
}

fn of_kind<'a>(summary: &'a Summary, kind: &'a str) -> impl Iterator<Item = &'a Case> {
    let cases = summary.cases.iter();
    cases.filter(move |case| case.kind == kind)
}

/// Cases of one function's sizes, most calls first.
fn sizes<'a>(summary: &'a Summary, function: &'a str) -> impl Iterator<Item = &'a Case> {
    of_kind(summary, "size").filter(move |case| case.function == function)
}

/// The size of a case that has one.
fn size(case: &Case) -> Option<u64> {
    case.size_bytes.flatten()
}

/// A share; none of a total of 0.
fn share(part: u64, all: u64) -> String {
    if all == 0 {
        NOT_MEASURED.into()
    } else {
        percent(part as f64 / all as f64)
    }
}

fn whole(count: u64) -> String {
    figure(count as f64)
}

/// For each direction: number and bytes of copies, the most frequent size, and whether any copy was lost.
pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let elapsed = summary.whole.elapsed_s?;
    let mut parts = Vec::new();
    for (plain, bare, way) in PAIRS {
        let of_pair = || functions(summary).filter(|case| [plain, bare].contains(&&*case.function));
        if of_pair().next().is_some() {
            let calls = of_pair().map(|case| case.calls).sum();
            let moved = of_pair().map(|case| case.bytes).sum();
            let noun = if calls == 1 { "copy" } else { "copies" };
            parts.push(format!("{} {noun} {way} ({})", whole(calls), bytes(moved)));
        }
    }
    if parts.is_empty() {
        return None;
    }
    let mut text = format!(
        "In {} s there were {}",
        figure(elapsed),
        parts.join(" and ")
    );
    let dropped: u64 = functions(summary).filter_map(|case| case.dropped).sum();
    let missed = summary.whole.missed;
    text += &match dropped + missed {
        0 => "; none was lost".to_owned(),
        lost => format!("; {} more were lost", whole(lost)),
    };
    Some(text + ".")
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    let mut tables = vec![totals(summary)];
    tables.extend(functions(summary).map(|case| by_size(summary, &case.function)));
    tables.push(callers(summary));
    tables.retain(|table| !table.rows.is_empty());
    tables
}

fn totals(summary: &Summary) -> Table {
    let mut table = Table::new("All copies")
        .words("Function")
        .figures("calls", "")
        .figures("bytes", "")
        .figures("by an engine", "of the bytes")
        .figures("not copied", "bytes")
        .figures("mean", "ns")
        .figures("recorded", "")
        .figures("dropped", "");
    for case in functions(summary) {
        let Case {
            name: _,
            guard: (),
            kind: _,
            function,
            size_bytes: _,
            calls,
            bytes: moved,
            not_copied_bytes,
            // The bytes show it.
            engine_calls: _,
            engine_bytes,
            time,
            recorded,
            dropped,
            // In the charts.
            calls_by_size: _,
            calls_of_other_sizes: _,
        } = case;
        table.row(vec![
            function_text(function).into(),
            whole(*calls),
            bytes(*moved),
            share(*engine_bytes, *moved),
            whole(*not_copied_bytes),
            optional(time.as_ref().and_then(|time| time.mean)),
            whole(recorded.unwrap_or(0)),
            whole(dropped.unwrap_or(0)),
        ]);
    }
    let seen = match summary.whole.source.as_str() {
        "hooks" => "Seen by hooks in the kernel: all calls, inlined ones too.",
        "probes" if summary.whole.merged => {
            "Seen by probes, which can't distinguish the __ forms from the others."
        }
        "probes" => "Seen by probes, which don't see inlined calls.",
        _ => "",
    };
    table.caption(format!(
        "{seen} Dropped: the ring was full. Missed by the probes, in all: {}.",
        whole(summary.whole.missed)
    ))
}

fn by_size(summary: &Summary, function: &str) -> Table {
    let all: u64 = functions(summary)
        .filter(|case| case.function == function)
        .map(|case| case.calls)
        .sum();
    let known = sizes(summary, function).filter(|case| size(case).is_some());
    let known: Vec<&Case> = known.take(SIZES).collect();
    let ns =
        |case: &Case, of: fn(&Metric) -> Option<f64>| optional(case.time.as_ref().and_then(of));
    let title = format!("Sizes of {}", function_text(function));
    let table = Table::of(title, &known)
        // All digits: sizes 1102 and 1100 differ.
        .figures("size", "bytes", |case| {
            size(case).map_or_else(|| NOT_MEASURED.into(), whole)
        })
        .figures("calls", "", |case| whole(case.calls))
        .figures("share", "of the calls", |case| share(case.calls, all))
        .figures("min", "ns", |case| ns(case, |time| time.min))
        .figures("median", "ns", |case| ns(case, |time| time.median))
        .figures("90 %", "ns", |case| ns(case, |time| time.p90))
        .figures("99 %", "ns", |case| ns(case, |time| time.p99))
        .figures("max", "ns", |case| ns(case, |time| time.max))
        .figures("mean", "ns", |case| ns(case, |time| time.mean))
        .figures("std. dev.", "ns", |case| ns(case, |time| time.stdev))
        .table();
    let shown = known.iter().map(|case| case.calls).sum();
    let caption = match all.saturating_sub(shown) {
        0 => "That is all of them.".into(),
        others => format!(
            "The {} most frequent; {} calls had others.",
            known.len(),
            whole(others)
        ),
    };
    table.caption(caption)
}

fn callers(summary: &Summary) -> Table {
    let mut table = Table::new("Most frequent callers")
        .words("Caller")
        .words("Function")
        .figures("calls", "")
        .figures("bytes", "");
    for one in &summary.whole.callers {
        let Caller {
            function,
            address,
            symbol,
            calls,
            bytes: moved,
        } = one;
        table.row(vec![
            symbol.as_ref().unwrap_or(address).clone(),
            function_text(function).into(),
            whole(*calls),
            bytes(*moved),
        ]);
    }
    table.caption(
        "The return address: name and offset, or the number if the kernel reports no names.",
    )
}

#[cfg(feature = "html")]
pub(crate) use charts::figures;

#[cfg(feature = "html")]
mod charts {
    use std::collections::BTreeMap;

    use memwarden_run::Recorded;
    use memwarden_run::studies::copy_trace::{Case, Summary};

    use super::{PAIRS, function_text, functions, size, sizes};
    use crate::Figure;
    use crate::generic::file_name;
    use crate::plot::{Axis, Chart, Colour, Line, Point, XyChart};

    /// Name of the line with the sum of both functions.
    const TOGETHER: &str = "together";

    pub(crate) fn figures(summary: &Summary, _: &Recorded) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (plain, bare, way) in PAIRS {
            if let Some(chart) = calls(summary, plain, bare, way) {
                let together = match &chart {
                    Chart::Xy(chart) if chart.lines[0].name == TOGETHER => {
                        " The sum of both functions is drawn at sizes that both have."
                    }
                    _ => "",
                };
                let caption = format!(
                    "Number of copies of each size. Both axes are logarithmic, so copies of 0 bytes are not shown.{together}"
                );
                figures.push(Figure::new(
                    &format!("calls-{}", file_name(plain)),
                    caption,
                    chart,
                ));
            }
        }
        if let Some(chart) = times(summary) {
            let caption = "The median of each size, of the 64 most frequent sizes of each function. Both axes are \
                 logarithmic.";
            figures.push(Figure::new("time-by-size", caption, chart));
        }
        figures
    }

    /// Calls by size of the case's function.
    fn calls_by_size(case: &Case) -> BTreeMap<u64, u64> {
        let all = case.calls_by_size.iter().flatten();
        all.map(|[bytes, calls]| (*bytes, *calls)).collect()
    }

    /// Both functions of one direction, and their sum.
    fn calls(summary: &Summary, plain: &str, bare: &str, way: &str) -> Option<Chart> {
        let mut together: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut lines = Vec::new();
        for (nth, name) in [plain, bare].into_iter().enumerate() {
            let mut cases = functions(summary);
            let Some(case) = cases.find(|case| case.function == name) else {
                continue;
            };
            let mine = calls_by_size(case);
            for (bytes, calls) in &mine {
                together.entry(*bytes).or_default().push(*calls);
            }
            lines.push(line(function_text(name), nth, &mine));
        }
        let of_both = together.into_iter().filter(|(_, calls)| calls.len() > 1);
        let sums = of_both.map(|(bytes, calls)| (bytes, calls.iter().sum()));
        // Draw the tallest points first, so that they hide none.
        lines.insert(0, line(TOGETHER, 2, &sums.collect()));
        lines.retain(|line| !line.points.is_empty());
        chart(format!("Copies {way}, by size"), "calls", "", lines).map(|chart| {
            Chart::Xy(XyChart {
                stems: true,
                ..chart
            })
        })
    }

    fn line(name: &str, nth: usize, calls: &BTreeMap<u64, u64>) -> Line {
        let points = calls.iter().filter(|(bytes, _)| **bytes > 0);
        Line {
            name: name.into(),
            colour: Colour::nth(nth),
            points: points
                .map(|(bytes, calls)| Point::at(*bytes as f64, *calls as f64))
                .collect(),
        }
    }

    fn times(summary: &Summary) -> Option<Chart> {
        let names = functions(summary).map(|case| case.function.as_str());
        let lines = names.enumerate().map(|(nth, name)| {
            let mut points: Vec<Point> = sizes(summary, name).filter_map(time).collect();
            points.sort_unstable_by(|a, b| a.x.total_cmp(&b.x));
            Line {
                name: function_text(name).into(),
                colour: Colour::nth(nth),
                points,
            }
        });
        let lines = lines.filter(|line| !line.points.is_empty()).collect();
        let chart = chart(
            "Time of a copy, by size".into(),
            "time of a copy",
            "ns",
            lines,
        );
        chart.map(|chart| {
            Chart::Xy(XyChart {
                whiskers: "shortest to 99th percentile",
                ..chart
            })
        })
    }

    /// None for copies of 0 bytes, which have no place on a logarithmic axis.
    fn time(case: &Case) -> Option<Point> {
        let bytes = size(case).filter(|bytes| *bytes > 0)?;
        let time = case.time.as_ref()?;
        let ends = [time.min?, time.p99?];
        Some(Point {
            x: bytes as f64,
            y: time.median?,
            interval: Some(ends),
        })
    }

    fn chart(title: String, label: &str, unit: &str, lines: Vec<Line>) -> Option<XyChart> {
        (!lines.is_empty()).then(|| XyChart {
            title,
            x: Axis::sizes("size").log(),
            y: Axis::new(label, unit).log(),
            lines,
            ..XyChart::default()
        })
    }
}
