// SPDX-License-Identifier: MIT OR Apache-2.0
//! What reports of transfers and copies share: their cases have a size, and their charts one axis of sizes.

use memwarden_run::{Case, Summary};

use crate::number::figure;

#[cfg(feature = "html")]
pub(crate) use charts::{chart, spread};

/// Above this a time is told in microseconds.
const LONG_NS: f64 = 10_000.0;

/// The texts that cases have under `key`, in the summary's order.
pub(crate) fn texts<'a>(summary: &'a Summary, key: &str) -> Vec<&'a str> {
    let mut texts = Vec::new();
    for text in summary.cases.iter().filter_map(|case| case.text(key)) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
}

pub(crate) fn size(case: &Case) -> Option<u64> {
    case.value("size_bytes")?.as_u64()
}

/// Sizes, from the smallest.
pub(crate) fn sizes(summary: &Summary) -> Vec<u64> {
    let mut sizes: Vec<u64> = summary.cases.iter().filter_map(size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// A time in a sentence.
pub(crate) fn time_text(ns: f64) -> String {
    if ns < LONG_NS {
        format!("{} ns", figure(ns))
    } else {
        format!("{} us", figure(ns / 1000.0))
    }
}

#[cfg(feature = "html")]
mod charts {
    use memwarden_run::statistics::nearest_rank;
    use memwarden_run::{Recorded, Summary};

    use super::sizes;
    use crate::plot::{Axis, Colour, Line, Point, XyChart};

    /// The 10th and the 90th percentile of a case's times, ns; none where 0 has no place on a logarithmic axis.
    pub(crate) fn spread(recorded: &Recorded, case: &str, role: &str) -> Option<[f64; 2]> {
        let mut times: Vec<f64> = recorded.values(case, role, "time_ns");
        times.sort_unstable_by(f64::total_cmp);
        let ends = (times.len() > 1).then(|| [10.0, 90.0].map(|p| nearest_rank(&times, p)));
        ends.filter(|ends| ends[0] > 0.0)
    }

    /// Lines over the sizes, both axes logarithmic; none where no line has a point.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn chart(
        summary: &Summary,
        title: String,
        y: Axis,
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
            x_ticks: sizes(summary).iter().map(|size| *size as f64).collect(),
            apart: true,
            ..XyChart::default()
        })
    }
}
