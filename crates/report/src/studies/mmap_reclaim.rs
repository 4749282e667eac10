// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the second chance of pages in use is worth.

use memwarden_run::{Case, Metric, Summary};

use crate::Table;
use crate::number::{NOT_MEASURED, bytes, figure, interval, optional, percent, times};

pub(crate) const QUESTION: &str = "Some pages are in use while others pass through, with too little memory for both. How \
    often must the pages in use be fetched back, when the kernel gives pages in use a second chance (vm.reclaim_active 0) \
    and when it does not (1)?";

fn with_switch(summary: &Summary, value: u64) -> Option<&Case> {
    let is = |case: &&Case| {
        case.value("reclaim_active")
            .and_then(serde_json::Value::as_u64)
            == Some(value)
    };
    summary.cases.iter().find(is)
}

fn faults(summary: &Summary, value: u64) -> Option<f64> {
    with_switch(summary, value)?
        .metric("hot_major_faults")?
        .median
}

pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let (off, on) = (faults(summary, 0)?, faults(summary, 1)?);
    let ratio = if off > 0.0 {
        format!(", {} times as often", times(on / off))
    } else {
        String::new()
    };
    Some(format!(
        "Pages in use had to be fetched back {} times with vm.reclaim_active 0, and {} times with 1{ratio} (medians).",
        figure(off),
        figure(on)
    ))
}

/// A row for each figure, a column for each position of the switch.
pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    let Some(first) = summary.cases.first() else {
        return Vec::new();
    };
    let mut table = Table::new("Pages in use while others pass through").words("Figure");
    for case in &summary.cases {
        table = table.figures(case.name.clone(), "");
    }
    type Shown = fn(&Metric) -> String;
    let rows: [(&str, &str, Shown); 6] = [
        (
            "major faults on pages in use, median",
            "hot_major_faults",
            |m| optional(m.median),
        ),
        ("95 % interval", "hot_major_faults", |m| {
            interval(m.median_ci95)
        }),
        ("fewest and most", "hot_major_faults", |m| {
            format!("{} - {}", optional(m.min), optional(m.max))
        }),
        ("share of their uses", "hot_fault_share", |m| {
            m.median.map_or_else(|| NOT_MEASURED.into(), percent)
        }),
        (
            "major faults on the others, median",
            "cold_major_faults",
            |m| optional(m.median),
        ),
        ("share of theirs", "cold_fault_share", |m| {
            m.median.map_or_else(|| NOT_MEASURED.into(), percent)
        }),
    ];
    let missing = Metric::default();
    for (name, key, shown) in rows {
        let mut row = vec![name.to_owned()];
        let cells = summary.cases.iter();
        row.extend(cells.map(|case| shown(case.metric(key).unwrap_or(&missing))));
        table.row(row);
    }
    let size = |key: &str| {
        let count = first.value(key).and_then(serde_json::Value::as_u64);
        count.map_or_else(|| NOT_MEASURED.into(), bytes)
    };
    vec![table.caption(format!(
        "{} in use, {} that pass through, {} of memory.",
        size("hot_bytes"),
        size("cold_bytes"),
        size("memory_bytes")
    ))]
}

#[cfg(feature = "html")]
pub(crate) fn figures(summary: &Summary, _: &memwarden_run::Recorded) -> Vec<crate::Figure> {
    use crate::plot::{Axis, Bar, BarChart, Chart, Colour, Group};
    let bar = |case: &Case, series: usize, key: &str| {
        let metric = case.metric(key)?;
        Some(Bar {
            series,
            value: metric.median,
            interval: metric.median_ci95,
            text: metric.median.map_or_else(|| "not measured".into(), figure),
        })
    };
    let groups = summary.cases.iter().map(|case| Group {
        label: case.name.clone(),
        bars: ["hot_major_faults", "cold_major_faults"]
            .iter()
            .enumerate()
            .filter_map(|(series, key)| bar(case, series, key))
            .collect(),
    });
    let chart = BarChart {
        title: "Pages that had to be read back from the swap".into(),
        axis: Axis::new("major faults", ""),
        series: vec![
            ("pages in use".into(), Colour::nth(0)),
            ("pages that pass through".into(), Colour::nth(1)),
        ],
        groups: groups.collect(),
        ..BarChart::default()
    };
    vec![crate::Figure::new(
        "major-faults",
        "Medians with their 95 % intervals.",
        Chart::Bars(chart),
    )]
}
