// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard's own figures: accuracy, overshoot, reaction, overhead, boundaries, scaling, sharing.

use memwarden_run::{Case, Summary};

use crate::Table;
use crate::generic::table_of;
use crate::number::{figure, percent};

pub(crate) const QUESTION: &str = "How well does the guard do its work: how near do the cores come to their budgets, how \
    far past them before the throttle holds, how quickly does it take hold and let go, what does it cost, does it keep \
    its periods, and does any of that grow with the number of CPUs?";

/// Figures in the order of the report, with their headings.
const FIGURES: [(&str, &str); 9] = [
    ("accuracy", "Accuracy: events achieved against the budget"),
    (
        "hold",
        "Hold: mean, worst second and largest period of long runs",
    ),
    (
        "overshoot",
        "Overshoot: events past the budget before the throttle holds",
    ),
    (
        "reaction",
        "Reaction: overflow to throttled, release to running",
    ),
    (
        "overhead",
        "Overhead: what an armed guard that never throttles costs",
    ),
    ("boundaries", "Boundaries: periods begun late or missed"),
    (
        "scaling",
        "Scaling: overflow to throttled, by number of CPUs",
    ),
    ("sharing", "Sharing: what best effort and reclaim hand out"),
    (
        "pmu",
        "Through the PMU: overflow interrupts of a hardware counter",
    ),
];

fn of<'a>(summary: &'a Summary, figure: &str) -> Vec<&'a Case> {
    summary
        .cases
        .iter()
        .filter(|c| c.text("figure") == Some(figure))
        .collect()
}

/// Relative error of the achieved events: as told, or from the mean.
fn error_share(case: &Case) -> Option<f64> {
    let from_mean =
        || Some(case.metric("achieved_events")?.mean? / case.number("budget_events")? - 1.0);
    case.number("error_share")
        .or_else(from_mean)
        .filter(|v| v.is_finite())
}

/// Of several regulators, the kernel module's: the others are compared with it.
pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let by = |case: &Case, name| case.text("backend") == Some(name);
    let (module, others): (Vec<_>, Vec<_>) = summary
        .cases
        .iter()
        .cloned()
        .partition(|case| by(case, "module"));
    if module.is_empty() || !others.iter().any(|case| by(case, "user")) {
        return of_one(summary);
    }
    let mut summary = summary.clone();
    summary.cases = module;
    of_one(&summary).map(|text| format!("The kernel module: {text}"))
}

/// The long run that was furthest from its budget.
fn held(summary: &Summary) -> Option<String> {
    let (share, case) = of(summary, "hold")
        .into_iter()
        .filter_map(|case| Some((case.number("error_share")?, case)))
        .max_by(|a, b| a.0.abs().total_cmp(&b.0.abs()))?;
    let budget = case.number("budget_events")?;
    let number = |key: &str| case.number(key).map_or_else(|| "?".into(), figure);
    Some(format!(
        "over {} s they came to {} of {} events a period (worst second {}, largest period {})",
        number("seconds"),
        figure(budget * (1.0 + share)),
        figure(budget),
        number("worst_second_events"),
        number("largest_period_events"),
    ))
}

fn of_one(summary: &Summary) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    let errors = of(summary, "accuracy")
        .into_iter()
        .filter_map(error_share)
        .map(f64::abs);
    if let Some(worst) = errors.max_by(f64::total_cmp) {
        parts.push(if worst == 0.0 {
            "regulated cores achieved exactly their budgets".into()
        } else {
            format!(
                "regulated cores came within {} of their budgets",
                percent(worst)
            )
        });
    }
    parts.extend(held(summary));
    let greatest = |figure: &str, key: &str| {
        let cases = of(summary, figure).into_iter();
        cases
            .filter_map(|c| c.metric(key)?.p999)
            .max_by(f64::total_cmp)
    };
    match (
        greatest("overshoot", "overshoot_events"),
        greatest("reaction", "throttle_latency_ns"),
    ) {
        (Some(events), Some(ns)) => parts.push(format!(
            "the throttle held after at most {} events and {} us in 99.9 % of the periods",
            figure(events),
            figure(ns / 1000.0)
        )),
        (Some(events), None) => {
            parts.push(format!(
                "the throttle held after at most {} events in 99.9 % of the periods",
                figure(events)
            ));
        }
        (None, Some(ns)) => {
            parts.push(format!(
                "the throttle held within {} us in 99.9 % of the periods",
                figure(ns / 1000.0)
            ));
        }
        (None, None) => {}
    }
    if let Some((share, period)) = longest_period(summary, "overhead", "overhead_share") {
        parts.push(format!(
            "an armed guard cost {} at a period of {period} us",
            percent(share)
        ));
    }
    let missed = of(summary, "boundaries")
        .into_iter()
        .filter_map(|c| c.number("missed_share"));
    if let Some(worst) = missed.max_by(f64::total_cmp) {
        parts.push(format!(
            "{} of the period boundaries were missed at worst",
            percent(worst)
        ));
    }
    if let [(fewest, few_ns), .., (most, most_ns)] = scaling(summary).as_slice() {
        parts.push(format!(
            "the throttle held {} us after the overflow with {fewest} CPUs and {} us with {most}",
            figure(few_ns / 1000.0),
            figure(most_ns / 1000.0)
        ));
    }
    let judged: Vec<_> = summary
        .cases
        .iter()
        .filter_map(|c| c.text("reached"))
        .filter(|r| *r != "-")
        .collect();
    let reached = judged.iter().filter(|r| **r == "yes").count();
    let verdict = match judged.len() {
        0 => String::new(),
        1 if reached == 1 => "; the target was reached".into(),
        n if n == reached => format!("; all {n} targets were reached"),
        n => format!("; {reached} of {n} targets were reached"),
    };
    let text = match parts.as_slice() {
        // Parts that have no figure of their own to tell: sharing, the PMU.
        [] => match judged.len() {
            0 => return None,
            n => return Some(format!("{reached} of {n} targets were reached.")),
        },
        [one] => one.clone(),
        [all @ .., last] => format!("{}, and {last}", all.join(", ")),
    };
    let mut letters = text.chars();
    let first = letters.next()?.to_uppercase();
    Some(format!("{first}{}{verdict}.", letters.as_str()))
}

/// The share at the longest period measured: the default one, as a rule.
fn longest_period(summary: &Summary, figure_name: &str, key: &str) -> Option<(f64, String)> {
    let cases = of(summary, figure_name).into_iter();
    // What has no target holds more than the guard.
    let (period, share) = cases
        .filter(|c| c.text("reached") != Some("-"))
        .filter_map(|c| Some((c.number("period_us")?, c.number(key)?)))
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some((share, figure(period)))
}

/// CPUs and the median of the throttle's latency in nanoseconds, fewest CPUs first.
fn scaling(summary: &Summary) -> Vec<(f64, f64)> {
    let mut points: Vec<_> = of(summary, "scaling")
        .into_iter()
        .filter_map(|c| Some((c.number("cpus")?, c.metric("throttle_latency_ns")?.median?)))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    let mut tables = Vec::new();
    for (name, title) in FIGURES {
        let cases = of(summary, name);
        if !cases.is_empty() {
            tables.extend(table_of(title, &cases, &["figure"]));
        }
    }
    let named = |c: &&Case| {
        !c.text("figure")
            .is_some_and(|f| FIGURES.iter().any(|(name, _)| *name == f))
    };
    let rest: Vec<_> = summary.cases.iter().filter(named).collect();
    if !tables.is_empty() && !rest.is_empty() {
        tables.extend(table_of("Further figures", &rest, &[]));
    }
    tables
}

#[cfg(feature = "html")]
pub(crate) use charts::figures;

#[cfg(feature = "html")]
mod charts {
    use memwarden_run::{Case, Recorded, Summary};
    use serde_json::Value;

    use super::{error_share, of};
    use crate::Figure;
    use crate::number::{figure, name_and_unit};
    use crate::plot::{
        Axis, Bar, BarChart, Chart, Colour, Group, Histogram, Line, Panel, Point, Reference,
        XyChart,
    };

    pub(crate) fn figures(summary: &Summary, recorded: &Recorded) -> Vec<Figure> {
        let mut figures = Vec::new();
        figures.extend(accuracy(summary));
        figures.extend(distribution(
            summary,
            recorded,
            "overshoot",
            "overshoot_events",
            "Events past the budget when the throttle held",
        ));
        figures.extend(distribution(
            summary,
            recorded,
            "overshoot",
            "overshoot_ns",
            "Time past the budget when the throttle held",
        ));
        figures.extend(distribution(
            summary,
            recorded,
            "reaction",
            "throttle_latency_ns",
            "From overflow to throttled",
        ));
        figures.extend(distribution(
            summary,
            recorded,
            "reaction",
            "release_latency_ns",
            "From release to running",
        ));
        let pmu = [
            (
                "overshoot_events",
                "Events past the budget, through the PMU",
            ),
            (
                "throttle_latency_ns",
                "From overflow to throttled, through the PMU",
            ),
        ];
        for (metric, title) in pmu {
            if let Some(figure) = distribution(summary, recorded, "pmu", metric, title) {
                figures.push(Figure {
                    name: format!("pmu-{}", figure.name),
                    ..figure
                });
            }
        }
        let cost = "What an armed guard costs";
        figures.extend(by_period(
            summary,
            "overhead",
            "overhead_share",
            cost,
            "instructions added",
        ));
        let missed = "Period boundaries missed";
        figures.extend(by_period(
            summary,
            "boundaries",
            "missed_share",
            missed,
            "boundaries missed",
        ));
        figures.extend(scaling(summary));
        figures.extend(sharing(summary));
        figures
    }

    /// What distinguishes the lines of a chart: event, clock and number of CPUs, as far as they differ.
    fn variant(cases: &[&Case], case: &Case) -> String {
        let mut words = Vec::new();
        for key in ["event", "clock", "cpus", "mode"] {
            let text = |c: &Case| match c.value(key) {
                Some(Value::String(text)) => text.clone(),
                Some(Value::Number(n)) if key == "cpus" && n.as_u64() == Some(1) => {
                    "one core".into()
                }
                Some(Value::Number(n)) if key == "cpus" => format!("{n} cores together"),
                Some(Value::Number(n)) => format!("{n} {key}"),
                _ => String::new(),
            };
            let mine = text(case);
            if !mine.is_empty() && cases.iter().any(|c| text(c) != mine) {
                words.push(mine);
            }
        }
        words.join(", ")
    }

    /// One line for each variant, from `(x, y, interval)` of each case.
    fn lines(cases: &[&Case], point: impl Fn(&Case) -> Option<Point>) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for case in cases {
            let Some(point) = point(case) else { continue };
            let name = variant(cases, case);
            match lines.iter_mut().find(|l| l.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Line {
                    name,
                    colour: Colour::nth(lines.len()),
                    points: vec![point],
                }),
            }
        }
        for line in &mut lines {
            line.points.sort_by(|a, b| a.x.total_cmp(&b.x));
        }
        lines
    }

    fn ticks(lines: &[Line]) -> Vec<f64> {
        let mut ticks: Vec<f64> = lines
            .iter()
            .flat_map(|l| l.points.iter().map(|p| p.x))
            .collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        ticks
    }

    fn accuracy(summary: &Summary) -> Option<Figure> {
        let cases = of(summary, "accuracy");
        let lines = lines(&cases, |c| {
            Some(Point {
                x: c.number("budget_events")?,
                y: error_share(c)? * 100.0,
                interval: None,
            })
        });
        let limit = cases
            .iter()
            .find_map(|c| c.number("limit_share"))
            .unwrap_or(0.01)
            * 100.0;
        let limits = [limit, -limit].map(|v| Reference {
            value: v,
            label: format!("{:+} %", v),
        });
        (!lines.is_empty()).then(|| {
            Figure::new(
                "accuracy",
                "Mean of the events achieved in a period over the budget, less 1; between the dashed lines is near enough.",
                Chart::Xy(XyChart {
                    title: "How near the cores come to their budgets".into(),
                    x: Axis::new("budget", "events per period").log(),
                    y: Axis::new("achieved over budget, less 1", "%"),
                    x_ticks: ticks(&lines),
                    lines,
                    references: limits.into(),
                    y_from_data: true,
                    ..XyChart::default()
                }),
            )
        })
    }

    /// Histograms of raw samples; logarithmic when they have a long tail.
    fn distribution(
        summary: &Summary,
        recorded: &Recorded,
        which: &str,
        metric: &str,
        title: &str,
    ) -> Option<Figure> {
        let cases = of(summary, which);
        let mut panels = Vec::new();
        for case in cases {
            let of_case = |s: &&memwarden_run::Sample| s.case == case.name && s.metric == metric;
            let samples: Vec<f64> = recorded
                .samples
                .iter()
                .filter(of_case)
                .filter_map(|s| s.value)
                .collect();
            if !samples.is_empty() {
                panels.push(Panel {
                    label: case.name.clone(),
                    samples,
                    colour: Colour::nth(0),
                });
            }
        }
        if panels.is_empty() {
            return None;
        }
        let all = || panels.iter().flat_map(|p| p.samples.iter().copied());
        let mut sorted: Vec<f64> = all().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (low, high) = (sorted[0], sorted[sorted.len() - 1]);
        // A long tail would press everything else against the axis.
        let tailed = low > 0.0 && high / memwarden_run::statistics::median(&sorted) > 5.0;
        let (name, unit) = name_and_unit(metric);
        let axis = Axis::new(name, unit);
        let axis = if tailed { axis.log() } else { axis };
        Some(Figure::new(
            &crate::generic::file_name(metric),
            "Share of the samples; the line is the median, the dashed one the 99.9th percentile.",
            Chart::Histogram(Histogram {
                title: title.into(),
                axis,
                panels,
                reference: None,
                tail: 99.9,
            }),
        ))
    }

    /// A share against the period, with the limits to stay under.
    fn by_period(
        summary: &Summary,
        which: &str,
        key: &str,
        title: &str,
        label: &str,
    ) -> Option<Figure> {
        let cases = of(summary, which);
        let percent = |c: &Case, key: &str| {
            Some(Point {
                x: c.number("period_us")?,
                y: c.number(key)? * 100.0,
                interval: None,
            })
        };
        let mut lines = lines(&cases, |c| percent(c, key));
        if lines.is_empty() {
            return None;
        }
        let mut limits: Vec<Point> = cases
            .iter()
            .filter_map(|c| percent(c, "limit_share"))
            .collect();
        limits.sort_by(|a, b| a.x.total_cmp(&b.x));
        limits.dedup_by(|a, b| a.x.total_cmp(&b.x).is_eq());
        if !limits.is_empty() {
            if let [only] = lines.as_mut_slice() {
                only.name = "measured".into();
            }
            lines.push(Line {
                name: "limit to stay under".into(),
                colour: Colour::UNGUARDED,
                points: limits,
            });
        }
        Some(Figure::new(
            which,
            "Against the guard's period; the default is 1000 us.",
            Chart::Xy(XyChart {
                title: format!("{title}, by period"),
                x: Axis::new("period", "us").log(),
                y: Axis::new(label, "%"),
                x_ticks: ticks(&lines),
                lines,
                references: Vec::new(),
                y_from_data: false,
                ..XyChart::default()
            }),
        ))
    }

    fn scaling(summary: &Summary) -> Option<Figure> {
        let cases = of(summary, "scaling");
        let (name, unit) = name_and_unit("throttle_latency_ns");
        let mut lines = Vec::new();
        let enough = cases.iter().any(|c| {
            c.metric("throttle_latency_ns")
                .is_some_and(|m| m.samples >= 100)
        });
        for (i, what) in ["median", "99 %", "max"].into_iter().enumerate() {
            if i == 1 && !enough {
                continue;
            }
            let mut points: Vec<Point> = cases
                .iter()
                .filter_map(|c| {
                    let m = c.metric("throttle_latency_ns")?;
                    let y = [m.median, m.p99, m.max][i]?;
                    Some(Point {
                        x: c.number("cpus")?,
                        y,
                        interval: m.median_ci95.filter(|_| i == 0),
                    })
                })
                .collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            if !points.is_empty() {
                lines.push(Line {
                    name: what.into(),
                    colour: Colour::nth(i),
                    points,
                });
            }
        }
        let high = lines
            .iter()
            .flat_map(|l| &l.points)
            .map(|p| p.y)
            .fold(0.0, f64::max);
        let low = lines
            .iter()
            .flat_map(|l| &l.points)
            .map(|p| p.y)
            .fold(f64::INFINITY, f64::min);
        let y = Axis::new(name, unit);
        (!lines.is_empty()).then(|| {
            Figure::new(
                "scaling",
                "From overflow to throttled; a flat line does not grow with the number of CPUs.",
                Chart::Xy(XyChart {
                    title: "Reaction with more and more CPUs".into(),
                    x: Axis::new("CPUs", "").log(),
                    y: if low > 0.0 && high / low > 30.0 {
                        y.log()
                    } else {
                        y
                    },
                    x_ticks: ticks(&lines),
                    lines,
                    references: Vec::new(),
                    y_from_data: false,
                    ..XyChart::default()
                }),
            )
        })
    }

    /// Events of each core beside its budget.
    fn sharing(summary: &Summary) -> Option<Figure> {
        let mut groups = Vec::new();
        for case in of(summary, "sharing") {
            for core in case
                .value("cores")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                let number = |key: &str| core.get(key).and_then(Value::as_f64);
                let Some(used) = number("used_events") else {
                    continue;
                };
                let bar = |series, value: f64| Bar {
                    series,
                    value: Some(value),
                    interval: None,
                    text: figure(value),
                };
                let mut bars: Vec<_> = number("budget_events")
                    .map(|b| bar(0, b))
                    .into_iter()
                    .collect();
                bars.push(bar(1, used));
                let cpu = core.get("cpu").and_then(Value::as_u64).unwrap_or(0);
                groups.push(Group {
                    label: format!("{}, CPU {cpu}", case.name),
                    bars,
                });
            }
        }
        (!groups.is_empty()).then(|| {
            Figure::new(
                "sharing",
                "Events that each core used in a period, beside its budget.",
                Chart::Bars(BarChart {
                    title: "What sharing and reclaim hand out".into(),
                    axis: Axis::new("events per period", ""),
                    series: vec![
                        ("budget".into(), Colour::nth(5)),
                        ("used".into(), Colour::GUARDED),
                    ],
                    groups,
                    ..BarChart::default()
                }),
            )
        })
    }
}
