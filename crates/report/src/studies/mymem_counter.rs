// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counter: what is lost of the increments of several workers, by lock and device.

use memwarden_run::{Case, Metric, Summary};

use super::mymem::{count, place};
use crate::Table;
use crate::number::{NOT_MEASURED, counted, figure, interval, optional, percent};

pub(crate) const QUESTION: &str = "Several workers increment one counter in a device's memory: each reads it, adds one, \
    and writes it back. How many increments are lost without a lock, with a mutex around, and when the device adds?";

fn lock(case: &Case) -> &str {
    case.text("lock").unwrap_or("none")
}

/// The lock as a series or a cell has it.
fn lock_name(lock: &str) -> &str {
    if lock == "none" { "no lock" } else { lock }
}

fn wrong_runs(case: &Case) -> u64 {
    count(case, "wrong_runs").unwrap_or(0)
}

/// `C device, 8 workers`.
fn who(case: &Case) -> String {
    let workers = count(case, "workers").and_then(|n| usize::try_from(n).ok());
    let workers = counted(workers.unwrap_or(0), "worker");
    format!("{workers} {}", place(case.text("subject").unwrap_or("?")))
}

/// The largest |counted - expected| / expected of its runs, 0 to 1.
fn largest(case: &Case) -> Option<f64> {
    case.metric("error")?.max
}

fn by_largest(a: &&Case, b: &&Case) -> std::cmp::Ordering {
    largest(a)
        .partial_cmp(&largest(b))
        .unwrap_or(std::cmp::Ordering::Equal)
}

pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let measured = || summary.cases.iter().filter(|c| largest(c).is_some());
    let bare = without_lock(&measured().filter(|c| lock(c) == "none").collect::<Vec<_>>());
    let locked = with_lock(&measured().filter(|c| lock(c) != "none").collect::<Vec<_>>());
    let parts: Vec<String> = [bare, locked].into_iter().flatten().collect();
    let mut letters = parts.first()?.chars();
    let first = letters.next()?.to_uppercase();
    let rest = &parts[1..];
    let rest: String = rest.iter().map(|part| format!("; {part}")).collect();
    Some(format!("{first}{}{rest}.", letters.as_str()))
}

fn without_lock(cases: &[&Case]) -> Option<String> {
    let worst = cases.iter().copied().max_by(by_largest)?;
    Some(if cases.iter().all(|case| wrong_runs(case) == 0) {
        let most = cases.iter().filter_map(|c| count(c, "workers")).max()?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        format!(
            "without a lock no increment was lost, with up to {}",
            counted(most, "worker")
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
    let mut locks: Vec<&str> = Vec::new();
    for case in cases {
        if !locks.contains(&lock(case)) {
            locks.push(lock(case));
        }
    }
    let wrong: Vec<&&Case> = cases.iter().filter(|case| wrong_runs(case) > 0).collect();
    if let Some(first) = wrong.first() {
        return Some(format!(
            "with {} updates were lost, which is a fault ({}; {} in all)",
            lock(first),
            who(first),
            counted(wrong.len(), "case")
        ));
    }
    let runs: u64 = cases.iter().filter_map(|case| count(case, "runs")).sum();
    let runs = counted(usize::try_from(runs).unwrap_or(usize::MAX), "run");
    (!locks.is_empty())
        .then(|| format!("with {} none was lost, in {runs}", locks.join(" and with ")))
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    let cases: Vec<&Case> = summary
        .cases
        .iter()
        .filter(|case| case.metric("count").is_some())
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
        let error = case.metric("error").unwrap_or(&missing);
        let increment = case.metric("increment").unwrap_or(&missing);
        let ends = error
            .median_ci95
            .map(|[low, high]| format!("[{}, {}]", percent(low), percent(high)));
        table.row(vec![
            lock_name(lock(case)).into(),
            case.text("subject").unwrap_or(NOT_MEASURED).into(),
            optional(case.number("workers")),
            optional(case.number("expected")),
            optional(case.metric("count").and_then(|m| m.median)),
            error.median.map_or_else(|| NOT_MEASURED.into(), percent),
            ends.unwrap_or_else(|| interval(None)),
            optional(increment.median),
            optional(case.number("runs")),
            figure(case.number("wrong_runs").unwrap_or(0.0)),
        ]);
    }
    // One run has no interval.
    table.drop_columns_of(NOT_MEASURED);
    vec![table.caption(
        "The error is |counted - expected| / expected. An increment's time is that of the whole run over all increments, of \
         all workers together. Medians over the runs.",
    )]
}

#[cfg(feature = "html")]
pub(crate) use charts::figures;

#[cfg(feature = "html")]
mod charts {
    use memwarden_run::{Case, Recorded, Summary};

    use super::{lock, lock_name};
    use crate::Figure;
    use crate::generic::file_name;
    use crate::plot::{Axis, Chart, Colour, Line, Point, XyChart};
    use crate::studies::mymem::{count, subjects};

    /// Why points are not quite over their numbers.
    const SET_APART: &str = "Lines are set apart by a little, so that none at 0 hides another; bars \
        go from the lowest to the highest of several runs.";

    /// From here on numbers of workers are a matter of ratios.
    const MANY: u64 = 10;

    pub(crate) fn figures(summary: &Summary, _: &Recorded) -> Vec<Figure> {
        let subjects = subjects(summary);
        let mut figures = Vec::new();
        if subjects.len() > 1 {
            let lines = subjects.iter().enumerate().map(|(i, subject)| {
                let bare = |case: &&Case| is_of(case, subject) && lock(case) == "none";
                line(subject, i, summary.cases.iter().filter(bare))
            });

            let chart = chart("Percent error without a lock, by device", lines.collect());
            figures.extend(chart.map(|chart| Figure::new("error-no-lock", SET_APART, chart)));
        }
        for subject in subjects {
            let mut locks: Vec<&str> = Vec::new();
            for case in summary.cases.iter().filter(|case| is_of(case, subject)) {
                if !locks.contains(&lock(case)) {
                    locks.push(lock(case));
                }
            }
            let lines = locks.iter().enumerate().map(|(i, name)| {
                let locked = |case: &&Case| is_of(case, subject) && lock(case) == *name;
                line(lock_name(name), i, summary.cases.iter().filter(locked))
            });
            let name = format!("error-{}", file_name(subject));
            let title = format!("Percent error by number of workers: {subject}");
            let chart = chart(&title, lines.collect());
            figures.extend(chart.map(|chart| Figure::new(&name, SET_APART, chart)));
        }
        figures
    }

    fn is_of(case: &Case, subject: &str) -> bool {
        case.text("subject") == Some(subject)
    }

    #[allow(clippy::cast_precision_loss)]
    fn line<'a>(name: &str, nth: usize, cases: impl Iterator<Item = &'a Case>) -> Line {
        let point = |case: &Case| {
            let spread = case.metric("error").filter(|metric| metric.samples > 1);
            Some(Point {
                x: count(case, "workers")? as f64,
                y: case.metric("error")?.median? * 100.0,
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

    #[allow(clippy::cast_precision_loss)]
    fn chart(title: &str, mut lines: Vec<Line>) -> Option<Chart> {
        lines.retain(|line| !line.points.is_empty());
        let mut workers: Vec<f64> = lines
            .iter()
            .flat_map(|line| line.points.iter().map(|point| point.x))
            .collect();
        workers.sort_unstable_by(f64::total_cmp);
        workers.dedup();
        let x = Axis::new("workers", "");
        let many = *workers.last()? >= MANY as f64 * workers[0];
        Some(Chart::Xy(XyChart {
            title: title.into(),
            x: if many { x.log() } else { x },
            y: Axis::new("error", "%"),
            lines,
            x_ticks: workers,
            apart: true,
            ..XyChart::default()
        }))
    }
}
