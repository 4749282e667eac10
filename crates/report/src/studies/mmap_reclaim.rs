// SPDX-License-Identifier: MIT OR Apache-2.0
//! Effect of the second chance for pages in use.

use memwarden_run::Metric;
use memwarden_run::statistics::FEWEST_FOR_RATIO;
use memwarden_run::studies::mmap_reclaim::{Case, Summary};

use crate::Table;
use crate::number::{TOO_FEW_RUNS, bytes, figure, interval, optional, optional_percent, times};

pub(crate) const QUESTION: &str = "Some pages are in use while others stream through, with too little memory for both. \
    How often must the pages in use be read back, when the kernel gives pages in use a second chance \
    (vm.reclaim_active 0) and when it does not (1)?";

fn faults(summary: &Summary, switch: u8) -> Option<&Metric> {
    let with_switch = |case: &&Case| case.reclaim_active == switch;
    let case = summary.cases.iter().find(with_switch)?;
    case.hot_major_faults.as_ref()
}

/// The ratio of the switch on to off, with its interval. A summary of an earlier version has none: its interval is then
/// from the closest ends of the medians' intervals to the farthest, which is wider.
fn ratio(summary: &Summary, off: &Metric, on: &Metric) -> Option<(f64, Option<[f64; 2]>)> {
    if let Some(ratio) = summary.whole.hot_ratio {
        return Some((ratio, summary.whole.hot_ratio_ci95));
    }
    let ratio = on.median? / off.median.filter(|off| *off > 0.0)?;
    let enough = off.samples.min(on.samples) >= FEWEST_FOR_RATIO as u64;
    let ends = on.median_ci95.zip(off.median_ci95).filter(|_| enough);
    let ends = ends.map(|(on, off)| [on[0] / off[1], on[1] / off[0]]);
    Some((ratio, ends.filter(|[_, high]| high.is_finite())))
}

pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let (off, on) = (faults(summary, 0)?, faults(summary, 1)?);
    let ratio = match ratio(summary, off, on) {
        None => String::new(),
        Some((ratio, None)) => format!(", {} times as often{TOO_FEW_RUNS}", times(ratio)),
        Some((_, Some([low, high]))) if low <= 1.0 && high >= 1.0 => format!(
            "; no difference is shown (95 % interval of the ratio {} to {})",
            times(low),
            times(high)
        ),
        Some((ratio, Some([low, high]))) => format!(
            ", {} times as often (95 % interval {} to {})",
            times(ratio),
            times(low),
            times(high)
        ),
    };
    let (off, on) = (off.median?, on.median?);
    Some(format!(
        "Pages in use were read back {} times with vm.reclaim_active 0, and {} times with 1{ratio} (medians).",
        figure(off),
        figure(on)
    ))
}

/// One row for each figure, one column for each position of the switch.
pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    let Some(first) = summary.cases.first() else {
        return Vec::new();
    };
    let mut table = Table::new("Pages in use while others stream through").words("Figure");
    for case in &summary.cases {
        table = table.figures(case.name.clone(), "");
    }
    type Of = fn(&Case) -> &Option<Metric>;
    type Shown = fn(&Metric) -> String;
    let rows: [(&str, Of, Shown); 6] = [
        (
            "major faults on pages in use, median",
            |case| &case.hot_major_faults,
            |m| optional(m.median),
        ),
        (
            "95 % interval",
            |case| &case.hot_major_faults,
            |m| interval(m.median_ci95),
        ),
        (
            "fewest and most",
            |case| &case.hot_major_faults,
            |m| format!("{} - {}", optional(m.min), optional(m.max)),
        ),
        (
            "share of their uses",
            |case| &case.hot_fault_share,
            |m| optional_percent(m.median),
        ),
        (
            "major faults on the others, median",
            |case| &case.cold_major_faults,
            |m| optional(m.median),
        ),
        (
            "share of theirs",
            |case| &case.cold_fault_share,
            |m| optional_percent(m.median),
        ),
    ];
    let missing = Metric::default();
    for (name, of, shown) in rows {
        let mut row = vec![name.to_owned()];
        let cells = summary.cases.iter();
        row.extend(cells.map(|case| shown(of(case).as_ref().unwrap_or(&missing))));
        table.row(row);
    }
    let Case {
        name: _,
        guard: (),
        reclaim_active: _,
        hot_bytes,
        cold_bytes,
        memory_bytes,
        // In the settings.
        rounds: _,
        // In the rows.
        hot_major_faults: _,
        hot_fault_share: _,
        cold_major_faults: _,
        cold_fault_share: _,
    } = first;
    vec![table.caption(format!(
        "{} in use, {} that stream through, {} of memory.",
        bytes(*hot_bytes),
        bytes(*cold_bytes),
        bytes(*memory_bytes)
    ))]
}

#[cfg(feature = "html")]
pub(crate) fn figures(summary: &Summary, _: &memwarden_run::Recorded) -> Vec<crate::Figure> {
    use crate::plot::{Axis, Bar, BarChart, CI95, Chart, Colour, Group};
    let bar = |series: usize, metric: &Option<Metric>| {
        let metric = metric.as_ref()?;
        Some(Bar {
            series,
            value: metric.median,
            interval: metric.median_ci95,
            text: metric.median.map_or_else(|| "not measured".into(), figure),
        })
    };
    let groups = summary.cases.iter().map(|case| Group {
        label: case.name.clone(),
        bars: [&case.hot_major_faults, &case.cold_major_faults]
            .into_iter()
            .enumerate()
            .filter_map(|(series, metric)| bar(series, metric))
            .collect(),
    });
    let chart = BarChart {
        title: "Pages that had to be read back from the swap".into(),
        axis: Axis::new("major faults", ""),
        series: vec![
            ("pages in use".into(), Colour::nth(0)),
            ("pages that stream through".into(), Colour::nth(1)),
        ],
        groups: groups.collect(),
        whiskers: CI95,
        ..BarChart::default()
    };
    vec![crate::Figure::new(
        "major-faults",
        "Medians.",
        Chart::Bars(chart),
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_claimed_only_where_its_interval_excludes_1() {
        let said = |on: f64, interval| {
            let case = |reclaim_active, faults| Case {
                reclaim_active,
                hot_major_faults: Some(Metric::from_samples("hot_major_faults", &[faults; 5])),
                ..Case::default()
            };
            let mut summary = Summary::new("mmap-reclaim", "native");
            summary.cases = vec![case(0, 10.0), case(1, on)];
            summary.whole.hot_ratio = Some(on / 10.0);
            summary.whole.hot_ratio_ci95 = interval;
            finding(&summary).unwrap()
        };
        let begin = "Pages in use were read back 10 times with vm.reclaim_active 0, and";
        assert_eq!(
            said(11.0, Some([0.9, 1.3])),
            format!(
                "{begin} 11 times with 1; no difference is shown (95 % interval of the ratio 0.90 to 1.30) (medians)."
            )
        );
        assert_eq!(
            said(30.0, Some([2.8, 3.1])),
            format!(
                "{begin} 30 times with 1, 3.00 times as often (95 % interval 2.80 to 3.10) (medians)."
            )
        );
        assert!(said(30.0, None).contains("3.00 times as often (too few runs"));
    }
}
