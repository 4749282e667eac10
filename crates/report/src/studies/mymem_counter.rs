// SPDX-License-Identifier: MIT OR Apache-2.0
//! Increments that several workers lose on a counter, by lock and device.

use memwarden_run::Metric;
use memwarden_run::studies::mymem_counter::{Case, Summary};

use super::mymem::place;
use crate::Table;
use crate::by_size::distinct;
use crate::number::{
    NOT_MEASURED, capitalised, count, counted, interval, optional, optional_percent, order, percent,
};

pub(crate) const QUESTION: &str = "Several workers increment one counter in a device's memory: each reads it, adds one, \
    and writes it back. How many increments are lost without a lock, with a mutex around, and when the device adds?";

/// The lock's name in a legend or a cell.
fn lock_name(lock: &str) -> &str {
    if lock == "none" { "no lock" } else { lock }
}

/// `C device, 8 workers`.
fn who(case: &Case) -> String {
    let workers = counted(case.workers as usize, "worker");
    format!("{workers} {}", place(&case.subject))
}

/// The largest |counted - expected| / expected of the runs, 0 to 1.
fn largest(case: &Case) -> Option<f64> {
    case.error.as_ref()?.max
}

fn by_largest(a: &&Case, b: &&Case) -> std::cmp::Ordering {
    order(largest(a), largest(b))
}

pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let measured = || summary.cases.iter().filter(|c| largest(c).is_some());
    let bare = without_lock(&measured().filter(|c| c.lock == "none").collect::<Vec<_>>());
    let locked = with_lock(&measured().filter(|c| c.lock != "none").collect::<Vec<_>>());
    let parts: Vec<String> = [bare, locked].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| capitalised(&parts.join("; ")) + ".")
}

fn without_lock(cases: &[&Case]) -> Option<String> {
    let worst = cases.iter().copied().max_by(by_largest)?;
    Some(if cases.iter().all(|case| case.wrong_runs == 0) {
        let most = cases.iter().map(|case| case.workers).max()?;
        format!(
            "without a lock no increment was lost, with up to {}",
            counted(most as usize, "worker")
        )
    } else {
        format!(
            "without a lock {} lost up to {} of the increments",
            who(worst),
            percent(largest(worst)?)
        )
    })
}

fn with_lock(cases: &[&Case]) -> Option<String> {
    let locks = distinct(cases.iter().map(|case| case.lock.as_str()));
    let wrong: Vec<&&Case> = cases.iter().filter(|case| case.wrong_runs > 0).collect();
    if let Some(first) = wrong.first() {
        return Some(format!(
            "with {} updates were lost, which is a fault ({}; {} in all)",
            first.lock,
            who(first),
            counted(wrong.len(), "case")
        ));
    }
    let runs: u64 = cases.iter().map(|case| case.runs).sum();
    let runs = counted(usize::try_from(runs).unwrap_or(usize::MAX), "run");
    (!locks.is_empty())
        .then(|| format!("with {} none was lost, in {runs}", locks.join(" and with ")))
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    let cases: Vec<&Case> = summary
        .cases
        .iter()
        .filter(|case| case.count.is_some())
        .collect();
    if cases.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new("The counter at the end")
        .words("Lock")
        .words("Device")
        .figures("workers", "")
        .figures("expected", "")
        .figures("counted", "")
        .figures("error", "of expected")
        .figures("95 % interval", "of expected")
        .figures("an increment", "ns")
        .figures("runs", "")
        .figures("wrong", "runs");
    let missing = Metric::default();
    for case in &cases {
        let Case {
            name: _,
            guard: (),
            subject,
            lock,
            workers,
            // The expected count includes it.
            increments: _,
            expected,
            count: counted,
            error,
            increment,
            runs,
            wrong_runs,
        } = case;
        let error = error.as_ref().unwrap_or(&missing);
        let increment = increment.as_ref().unwrap_or(&missing);
        let ends = error
            .median_ci95
            .map(|[low, high]| format!("[{}, {}]", percent(low), percent(high)));
        table.row(vec![
            lock_name(lock).into(),
            subject.clone(),
            count(Some((*workers).into())),
            count(Some(*expected)),
            optional(counted.as_ref().and_then(|m| m.median)),
            optional_percent(error.median),
            ends.unwrap_or_else(|| interval(None)),
            optional(increment.median),
            count(Some(*runs)),
            count(Some(*wrong_runs)),
        ]);
    }
    // A single run has no interval.
    table.drop_columns_of(NOT_MEASURED);
    vec![table.caption(
        "The error is |counted - expected| / expected. An increment's time is the whole run's time over the increments \
         of all workers. Medians over the runs.",
    )]
}

#[cfg(feature = "html")]
pub(crate) use charts::figures;

#[cfg(feature = "html")]
mod charts {
    use memwarden_run::Recorded;
    use memwarden_run::studies::mymem_counter::{Case, Summary};

    use super::lock_name;
    use crate::Figure;
    use crate::by_size::{distinct, texts};
    use crate::generic::file_name;
    use crate::plot::{Axis, Chart, Colour, Line, Point, XyChart, places};

    /// Explains why points are not exactly over their numbers.
    const SET_APART: &str =
        "Medians of the runs. Lines are shifted slightly, so that none at 0 hides another.";

    /// Ratio of the most to the fewest workers from which the axis is logarithmic.
    const MANY: u64 = 10;

    pub(crate) fn figures(summary: &Summary, _: &Recorded) -> Vec<Figure> {
        let subjects = texts(summary, |case| &case.subject);
        let mut figures = Vec::new();
        if subjects.len() > 1 {
            let lines = subjects.iter().enumerate().map(|(i, subject)| {
                let bare = |case: &&Case| case.subject == *subject && case.lock == "none";
                line(subject, i, summary.cases.iter().filter(bare))
            });

            let chart = chart("Percent error without a lock, by device", lines.collect());
            figures.extend(chart.map(|chart| Figure::new("error-no-lock", SET_APART, chart)));
        }
        for subject in subjects {
            let mine = || summary.cases.iter().filter(|case| case.subject == subject);
            let locks = distinct(mine().map(|case| case.lock.as_str()));
            let lines = locks.iter().enumerate().map(|(i, name)| {
                line(lock_name(name), i, mine().filter(|case| case.lock == *name))
            });
            let name = format!("error-{}", file_name(subject));
            let title = format!("Percent error by number of workers: {subject}");
            let chart = chart(&title, lines.collect());
            figures.extend(chart.map(|chart| Figure::new(&name, SET_APART, chart)));
        }
        figures
    }

    fn line<'a>(name: &str, nth: usize, cases: impl Iterator<Item = &'a Case>) -> Line {
        let point = |case: &Case| {
            let spread = case.error.as_ref().filter(|metric| metric.samples > 1);
            Some(Point {
                x: case.workers.into(),
                y: case.error.as_ref()?.median? * 100.0,
                interval: spread
                    .and_then(|metric| Some([metric.min? * 100.0, metric.max? * 100.0])),
            })
        };
        let mut points: Vec<Point> = cases.filter_map(point).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Line {
            name: name.into(),
            colour: Colour::nth(nth),
            points,
        }
    }

    fn chart(title: &str, mut lines: Vec<Line>) -> Option<Chart> {
        lines.retain(|line| !line.points.is_empty());
        let workers = places(&lines);
        let x = Axis::new("workers", "");
        let many = *workers.last()? >= MANY as f64 * workers[0];
        Some(Chart::Xy(XyChart {
            title: title.into(),
            x: if many { x.log() } else { x },
            y: Axis::new("error", "%"),
            lines,
            whiskers: "lowest to highest run",
            x_ticks: workers,
            apart: true,
            ..XyChart::default()
        }))
    }
}
