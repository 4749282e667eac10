// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared by the reports of transfers and copies: cases have a size, and charts have an axis of sizes.

use memwarden_run::{Metric, Summary, Whole};

use crate::number::{interval, optional};
use crate::table::Rows;

#[cfg(feature = "html")]
pub(crate) use charts::{SPREAD, chart, spread};

/// The distinct values, in their order.
pub(crate) fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for one in all {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}

/// The distinct texts of the cases, in the summary's order.
pub(crate) fn texts<W: Whole>(summary: &Summary<W>, of: fn(&W::Case) -> &str) -> Vec<&str> {
    distinct(summary.cases.iter().map(of))
}

/// Sizes in ascending order.
pub(crate) fn sizes(all: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sizes: Vec<u64> = all.collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Adds the columns of a distribution of times, ns: the median with its interval, percentiles and mean.
pub(crate) fn with_times<T>(rows: Rows<T>, time: impl Fn(&T) -> Option<&Metric>) -> Rows<T> {
    let ns = |item: &T, of: fn(&Metric) -> Option<f64>| optional(time(item).and_then(of));
    rows.figures("min", "ns", |one| ns(one, |time| time.min))
        .figures("median", "ns", |one| ns(one, |time| time.median))
        .figures("95 % interval", "ns", |one| {
            interval(time(one).and_then(|time| time.median_ci95))
        })
        .figures("90 %", "ns", |one| ns(one, |time| time.p90))
        .figures("99 %", "ns", |one| ns(one, |time| time.p99))
        .figures("mean", "ns", |one| ns(one, |time| time.mean))
        .figures("std. dev.", "ns", |one| ns(one, |time| time.stdev))
}

#[cfg(feature = "html")]
mod charts {
    use memwarden_run::Recorded;
    use memwarden_run::statistics::nearest_rank;

    use crate::plot::{Axis, Colour, Line, Point, XyChart};

    /// Meaning of the ends of [`spread`].
    pub(crate) const SPREAD: &str = "10th to 90th percentile";

    /// The 10th and the 90th percentile of a case's times, ns.
    pub(crate) fn spread(recorded: &Recorded, case: &str, role: &str) -> Option<[f64; 2]> {
        let mut times: Vec<f64> = recorded.values(case, role, "time_ns");
        times.sort_unstable_by(f64::total_cmp);
        (times.len() > 1).then(|| [10.0, 90.0].map(|p| nearest_rank(&times, p)))
    }

    /// A chart of lines over the sizes, with logarithmic axes and error bars with that meaning; none if no line has a
    /// point.
    pub(crate) fn chart(
        title: String,
        y: Axis,
        whiskers: &'static str,
        lines: impl Iterator<Item = (String, Vec<Point>)>,
    ) -> Option<XyChart> {
        let lines: Vec<Line> = lines
            .enumerate()
            .map(|(nth, (name, points))| Line {
                name,
                colour: Colour::nth(nth),
                points,
            })
            .filter(|line| !line.points.is_empty())
            .collect();
        (!lines.is_empty()).then(|| XyChart {
            title,
            x: Axis::sizes("size").log(),
            y: y.log(),
            lines,
            whiskers,
            apart: true,
            ..XyChart::default()
        })
    }
}
