// SPDX-License-Identifier: MIT OR Apache-2.0
//! The size from which the engine wins.

use memwarden_run::studies::copy_breakeven::{Case, Summary, Whole};
use memwarden_run::title::{criterion, operation as operation_text};
use memwarden_run::{Metric, title};

use crate::Table;
use crate::number::{NOT_MEASURED, interval, optional, optional_times};

pub(crate) const QUESTION: &str = "From which size is a copy by the DMA engine better than one by the CPU: in time, in \
    CPU time of the copying thread, and in the slowdown of an application on another CPU?";

/// An answer: its key, its criterion in words, the size, and the reason if there is none.
type Answer<'a> = (&'static str, &'static str, Option<u64>, Option<&'a str>);

fn answers<'a>(whole: &'a Whole) -> [Answer<'a>; 3] {
    let Whole {
        latency_bytes,
        latency_reason,
        cpu_time_bytes,
        cpu_time_reason,
        slowdown_bytes,
        slowdown_reason,
        // In the finding, and in the settings.
        engine: _,
        device: _,
    } = whole;
    let answer = |key: &'static str, size: &Option<u64>, reason: &'a Option<String>| {
        (key, criterion(key), *size, reason.as_deref())
    };
    [
        answer("latency", latency_bytes, latency_reason),
        answer("cpu-time", cpu_time_bytes, cpu_time_reason),
        answer("slowdown", slowdown_bytes, slowdown_reason),
    ]
}

pub(crate) fn finding(summary: &Summary) -> Option<String> {
    if summary.cases.is_empty() {
        return None;
    }
    let engine = match summary.whole.engine.as_str() {
        "" => "the engine",
        engine => engine,
    };
    let parts = answers(&summary.whole).map(|(_, by, size, _)| match size {
        Some(size) => format!("from {} on by {by}", title::size(size)),
        None => format!("at no size by {by}"),
    });
    Some(format!("{engine} wins {}.", parts.join(", ")))
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    if summary.cases.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new("The size from which the engine wins")
        .words("By")
        .words("From")
        .words("Reason if there is none");
    for (_, by, size, reason) in answers(&summary.whole) {
        table.row(vec![
            by.into(),
            size.map_or_else(|| NOT_MEASURED.into(), title::size),
            reason.unwrap_or("-").into(),
        ]);
    }
    let mut tables = vec![table];
    for (name, by, _, _) in answers(&summary.whole) {
        let mut table = Table::new(format!("By {by}"))
            .words("Size")
            .words("Copy")
            .figures("CPU", "ns")
            .figures("engine", "ns")
            .figures("ratio", "times")
            .figures("95 % interval", "times");
        let cases = summary.cases.iter();
        for case in cases.filter(|case| case.answer == name) {
            let Case {
                name: _,
                guard: (),
                answer: _,
                cpu,
                dma,
                ratio,
                ratio_ci95,
                // In the notes if below 1.
                engine_share: _,
                operation,
                size_bytes,
            } = case;
            let median = |metric: &Option<Metric>| optional(metric.as_ref().and_then(|m| m.median));
            table.row(vec![
                title::size(*size_bytes),
                operation_text(operation).into(),
                median(cpu),
                median(dma),
                optional_times(*ratio),
                interval(*ratio_ci95),
            ]);
        }
        if !table.rows.is_empty() {
            tables.push(table.caption("Medians; the ratio is the engine's over the CPU's."));
        }
    }
    tables
}

/// One chart for each answer: the ratio by size, with a line at 1.
#[cfg(feature = "html")]
pub(crate) fn figures(summary: &Summary, _: &memwarden_run::Recorded) -> Vec<crate::Figure> {
    use crate::by_size::{self, texts};
    use crate::plot::{Axis, CI95, Chart, Point, Reference};

    let points = |name: &str, operation: &str| {
        summary
            .cases
            .iter()
            .filter(|case| case.answer == name && case.operation == operation)
            .filter_map(|case| {
                Some(Point {
                    x: case.size_bytes as f64,
                    y: case.ratio?,
                    interval: case.ratio_ci95,
                })
            })
            .collect()
    };
    let chart = |(name, by, _, _): Answer<'_>| {
        let operations = texts(summary, |case| &case.operation).into_iter();
        let lines = operations.map(|one| (operation_text(one).to_owned(), points(name, one)));
        let title = format!("The engine over the CPU, by {by}");
        let mut chart = by_size::chart(title, Axis::new("engine / CPU", ""), CI95, lines)?;
        chart.references = vec![Reference::new(1.0, "as good as the CPU")];
        Some(crate::Figure::new(
            &format!("ratio-{name}"),
            "Ratios of medians; below the line the engine wins.",
            Chart::Xy(chart),
        ))
    };
    answers(&summary.whole)
        .into_iter()
        .filter_map(chart)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_all_its_digits() {
        let mut summary = Summary::new("copy-breakeven", "native");
        summary.cases.push(Case::default());
        summary.whole.latency_bytes = Some(4097);
        let said = finding(&summary).unwrap();
        assert!(said.contains("from 4097\u{a0}B on"), "{said}");
        assert_eq!(tables(&summary)[0].rows[0][1], "4097\u{a0}B");
    }
}
