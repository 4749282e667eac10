// SPDX-License-Identifier: MIT OR Apache-2.0
//! From which size on the engine wins.

use memwarden_run::{Case, Figure, Summary};
use serde_json::Value;

use super::copy::operation_text;
use crate::Table;
use crate::by_size::size;
use crate::number::{NOT_MEASURED, bytes, interval, optional, times};

pub(crate) const QUESTION: &str = "From which size on is a copy by the DMA engine better than the CPU's: in its time, in the \
    CPU time that it costs the copying thread, and in what an application on another CPU loses?";

/// An answer's key in the summary, and what it is an answer by.
const ANSWERS: [(&str, &str, &str); 3] = [
    ("latency", "latency", "a copy's time"),
    ("cpu-time", "cpu_time", "the CPU time of the copying thread"),
    (
        "slowdown",
        "slowdown",
        "what another CPU's application loses",
    ),
];

fn value<'a>(summary: &'a Summary, key: &str, end: &str) -> Option<&'a Value> {
    match summary.whole.get(&format!("{key}_{end}"))? {
        Figure::Other(value) => Some(value),
        Figure::Metric(_) => None,
    }
}

fn answer(summary: &Summary, key: &str) -> Option<u64> {
    value(summary, key, "bytes")?.as_u64()
}

pub(crate) fn finding(summary: &Summary) -> Option<String> {
    if summary.cases.is_empty() {
        return None;
    }
    let engine = match summary.whole.get("engine") {
        Some(Figure::Other(value)) => value.as_str().unwrap_or("the engine"),
        _ => "the engine",
    };
    let parts = ANSWERS.map(|(_, key, by)| match answer(summary, key) {
        Some(size) => format!("from {} on by {by}", bytes(size)),
        None => format!("at no size by {by}"),
    });
    Some(format!("{engine} wins {}.", parts.join(", ")))
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    if summary.cases.is_empty() {
        return Vec::new();
    }
    let mut answers = Table::new("From which size on the engine wins")
        .words("By")
        .words("From")
        .words("Why there is none");
    for (_, key, by) in ANSWERS {
        let reason = value(summary, key, "reason").and_then(Value::as_str);
        answers.row(vec![
            by.into(),
            answer(summary, key).map_or_else(|| NOT_MEASURED.into(), bytes),
            reason.unwrap_or("-").into(),
        ]);
    }
    let mut tables = vec![answers];
    for (name, _, by) in ANSWERS {
        let mut table = Table::new(format!("By {by}"))
            .words("Size")
            .words("Copy")
            .figures("CPU", "ns")
            .figures("engine", "ns")
            .figures("ratio", "times")
            .figures("95 % interval", "times");
        let cases = summary.cases.iter();
        for case in cases.filter(|case| case.text("answer") == Some(name)) {
            let median = |key: &str| optional(case.metric(key).and_then(|m| m.median));
            table.row(vec![
                size(case).map_or_else(|| NOT_MEASURED.into(), bytes),
                operation_text(case.text("operation").unwrap_or("?")).into(),
                median("cpu"),
                median("dma"),
                case.number("ratio")
                    .map_or_else(|| NOT_MEASURED.into(), times),
                interval(ends(case)),
            ]);
        }
        if !table.rows.is_empty() {
            tables.push(table.caption("Medians; the ratio is the engine's over the CPU's."));
        }
    }
    tables
}

/// The interval of the ratio.
fn ends(case: &Case) -> Option<[f64; 2]> {
    let ends = case.value("ratio_ci95")?.as_array()?;
    Some([ends.first()?.as_f64()?, ends.get(1)?.as_f64()?])
}

/// A chart for each answer: the ratio by size, and where it is 1.
#[cfg(feature = "html")]
#[allow(clippy::cast_precision_loss)]
pub(crate) fn figures(summary: &Summary, _: &memwarden_run::Recorded) -> Vec<crate::Figure> {
    use crate::by_size::{self, texts};
    use crate::plot::{Axis, Chart, Point, Reference};

    let points = |name: &str, operation: &str| {
        summary
            .cases
            .iter()
            .filter(|case| {
                case.text("answer") == Some(name) && case.text("operation") == Some(operation)
            })
            .filter_map(|case| {
                Some(Point {
                    x: size(case)? as f64,
                    y: case.number("ratio").filter(|ratio| *ratio > 0.0)?,
                    interval: ends(case).filter(|ends| ends[0] > 0.0),
                })
            })
            .collect()
    };
    let chart = |(name, key, by): (&str, &str, &str)| {
        let operations = texts(summary, "operation").into_iter();
        let lines = operations.map(|one| (operation_text(one).to_owned(), points(name, one)));
        let title = format!("The engine over the CPU, by {by}");
        let mut chart = by_size::chart(summary, title, Axis::new("engine / CPU", ""), lines)?;
        chart.references = vec![Reference {
            value: 1.0,
            label: "as good as the CPU".into(),
        }];
        Some(crate::Figure::new(
            &format!("ratio-{}", key.replace('_', "-")),
            "Ratios of medians with their 95 % intervals; below the line the engine wins.",
            Chart::Xy(chart),
        ))
    };
    ANSWERS.into_iter().filter_map(chart).collect()
}
