// SPDX-License-Identifier: MIT OR Apache-2.0
//! Charts: misses by mapping and order, misses over the locality, and times.

use memwarden_run::Recorded;
use memwarden_run::studies::mmap::{Case, Summary};

use super::{Share, alone, caption, mappings};
use crate::Figure;
use crate::by_size::{sizes, texts};
use crate::generic::file_name;
use crate::number::{figure, percent};
use crate::plot::{Axis, Bar, BarChart, CI95, Chart, Colour, Group, Line, Point, XyChart};

/// The charted counters of each mapping: share and count.
const DRAWN: [(Share, &str); 4] = [
    (
        ("L1D load misses", |case| case.l1d_load_miss_share),
        "L1-dcache-load-misses",
    ),
    (
        ("DTLB load misses", |case| case.dtlb_load_miss_share),
        "dTLB-load-misses",
    ),
    (
        ("L2 refills", |case| case.l2_refill_share),
        "l2d_cache_refill",
    ),
    (
        ("LLC load misses", |case| case.llc_load_miss_share),
        "LLC-load-misses",
    ),
];

pub(crate) fn figures(summary: &Summary, _: &Recorded) -> Vec<Figure> {
    let mut figures = Vec::new();
    for ((what, share), event) in DRAWN {
        let what = match (event, summary.whole.l1d_lines) {
            ("L1-dcache-load-misses", true) => "lines into the L1D",
            _ => what,
        };
        figures.extend(bars(summary, what, "share", "%", &share));
        let of_count = |case: &Case| case.count(event);
        figures.extend(bars(summary, what, "count", "", &of_count));
        figures.extend(sweep(summary, (what, share)));
    }
    figures.extend(times(summary));
    figures
}

fn localities(summary: &Summary) -> Vec<u64> {
    sizes(summary.cases.iter().map(|case| case.locality))
}

/// Groups are mappings, bars are orders, at the largest locality.
fn bars(
    summary: &Summary,
    what: &str,
    kind: &str,
    unit: &str,
    value: &dyn Fn(&Case) -> Option<f64>,
) -> Option<Figure> {
    let at = *localities(summary).last()?;
    let orders = texts(summary, |case| &case.access);
    let groups = mappings(summary).into_iter().map(|mapping| Group {
        label: mapping.into(),
        bars: orders
            .iter()
            .enumerate()
            .filter_map(|(series, order)| {
                let case = alone(summary).find(|case| {
                    case.mapping == mapping && case.access == *order && case.locality == at
                })?;
                let value = value(case);
                let shown = value.map(|value| if unit == "%" { value * 100.0 } else { value });
                let text = value.map(|value| {
                    if unit == "%" {
                        percent(value)
                    } else {
                        figure(value)
                    }
                });
                Some(Bar {
                    series,
                    value: shown,
                    interval: None,
                    text: text.unwrap_or_else(|| "not measured".into()),
                })
            })
            .collect(),
    });
    let groups = once(groups.collect());
    let some = groups
        .iter()
        .flat_map(|g| &g.bars)
        .any(|bar| bar.value.is_some());
    let chart = BarChart {
        title: format!("{what} by mapping and access ({kind}, locality {at})"),
        axis: Axis::new(what, unit),
        series: orders
            .iter()
            .enumerate()
            .map(|(n, order)| ((*order).into(), Colour::nth(n)))
            .collect(),
        groups,
        ..BarChart::default()
    };
    some.then(|| {
        Figure::new(
            &format!("{}-{kind}", file_name(what)),
            caption(summary, ""),
            Chart::Bars(chart),
        )
    })
}

/// A single group if all have the same figures, as with a model, which knows addresses and not mappings.
fn once(mut groups: Vec<Group>) -> Vec<Group> {
    let shown = |group: &Group| -> Vec<(usize, String)> {
        let bars = group.bars.iter();
        bars.map(|bar| (bar.series, bar.text.clone())).collect()
    };
    let count = groups.len();
    if count > 1 && groups.iter().all(|group| shown(group) == shown(&groups[0])) {
        groups.truncate(1);
        groups[0].label = match count {
            2 => "both mappings".into(),
            _ => format!("all {count} mappings"),
        };
    }
    groups
}

/// A chart over the localities, one line for each order of the first mapping.
fn sweep(summary: &Summary, (what, share): Share) -> Option<Figure> {
    let localities = localities(summary);
    let mapping = *mappings(summary).first()?;
    if localities.len() < 2 {
        return None;
    }
    let lines = texts(summary, |case| &case.access).into_iter().enumerate();
    let lines = lines.map(|(n, order)| Line {
        name: order.into(),
        colour: Colour::nth(n),
        points: localities
            .iter()
            .filter_map(|at| {
                let case = alone(summary).find(|case| {
                    case.mapping == mapping && case.access == *order && case.locality == *at
                })?;
                Some(Point::at(*at as f64, share(case)? * 100.0))
            })
            .collect(),
    });
    let lines: Vec<Line> = lines.filter(|line| !line.points.is_empty()).collect();
    let chart = XyChart {
        title: format!("{what} by locality, {mapping}"),
        x: Axis::new("locality: walks over each 32 KiB", "").log(),
        y: Axis::new(what, "%"),
        x_ticks: localities.iter().map(|at| *at as f64).collect(),
        lines,
        apart: true,
        ..XyChart::default()
    };
    (!chart.lines.is_empty()).then(|| {
        Figure::new(
            &format!("{}-by-locality", file_name(what)),
            caption(summary, ""),
            Chart::Xy(chart),
        )
    })
}

/// Time of each walk, with its 95 % interval.
fn times(summary: &Summary) -> Option<Figure> {
    let at = *localities(summary).last()?;
    let orders = texts(summary, |case| &case.access);
    let company = texts(summary, |case| &case.compete);
    let mut series = Vec::new();
    for who in &company {
        for order in &orders {
            series.push((*who, *order));
        }
    }
    let groups = mappings(summary).into_iter().map(|mapping| Group {
        label: mapping.into(),
        bars: series
            .iter()
            .enumerate()
            .filter_map(|(n, (who, order))| {
                let case = summary.cases.iter().find(|case| {
                    case.mapping == mapping
                        && case.access == *order
                        && case.compete == *who
                        && case.locality == at
                })?;
                let time = case.time.as_ref()?;
                Some(Bar {
                    series: n,
                    value: time.median.map(|ns| ns / 1e6),
                    interval: time.median_ci95.map(|ends| ends.map(|ns| ns / 1e6)),
                    text: time
                        .median
                        .map_or_else(|| "not measured".into(), |ns| figure(ns / 1e6)),
                })
            })
            .collect(),
    });
    let named = series.iter().enumerate().map(|(n, (who, order))| {
        let name = if *who == "none" {
            (*order).to_owned()
        } else {
            format!("{order}, beside {who}")
        };
        (name, Colour::nth(n))
    });
    let chart = BarChart {
        title: format!("Time of a walk by mapping and access (locality {at})"),
        axis: Axis::new("time", "ms"),
        series: named.collect(),
        groups: groups.collect(),
        whiskers: CI95,
        ..BarChart::default()
    };
    let beside = summary.cases.iter().any(Case::competes);
    let more = if beside {
        " Alone and beside a competitor."
    } else {
        ""
    };
    Some(Figure::new(
        "time",
        format!("Measured on the real walk: medians.{more}"),
        Chart::Bars(chart),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_show_the_same_become_one() {
        let group = |label: &str, texts: [&str; 2]| Group {
            label: label.into(),
            bars: (0..)
                .zip(texts)
                .map(|(series, text)| Bar {
                    series,
                    value: Some(1.0),
                    interval: None,
                    text: text.into(),
                })
                .collect(),
        };
        let same = once(vec![group("a", ["1", "2"]), group("b", ["1", "2"])]);
        assert_eq!((same.len(), same[0].label.as_str()), (1, "both mappings"));
        assert_eq!(
            once(vec![group("a", ["1", "2"]), group("b", ["1", "3"])]).len(),
            2
        );
        assert_eq!(once(vec![group("a", ["1", "2"])])[0].label, "a");
    }
}
