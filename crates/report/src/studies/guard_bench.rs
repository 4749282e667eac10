// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard's own figures: accuracy, overshoot, reaction, overhead, boundaries, scaling, sharing.

use memwarden_run::studies::guard_bench::{
    Accuracy, Case, Figure as About, Hold, Overhead, Reached, Summary,
};
use memwarden_run::{Metric, Summary as Recorded};

use crate::Table;
use crate::generic::table_of;
use crate::number::{capitalised, figure, percent};

pub(crate) const QUESTION: &str = "How well does the guard regulate: how close do the cores come to their budgets, how \
    large is the overshoot before a throttle, how quickly does it throttle and release, what does it cost, does it \
    keep its periods, and does any of that grow with the number of CPUs?";

/// The figures in the report's order, with their headings.
const FIGURES: [(&str, &str); 9] = [
    ("accuracy", "Accuracy: events achieved against the budget"),
    (
        "hold",
        "Hold: mean, worst second and largest period of long runs",
    ),
    (
        "overshoot",
        "Overshoot: events past the budget before the throttle takes effect",
    ),
    (
        "reaction",
        "Reaction: overflow to throttled, release to running",
    ),
    (
        "overhead",
        "Overhead: cost of an armed guard that never throttles",
    ),
    ("boundaries", "Boundaries: periods begun late or missed"),
    (
        "scaling",
        "Scaling: overflow to throttled, by number of CPUs",
    ),
    (
        "sharing",
        "Sharing: events granted by best effort and reclaim",
    ),
    (
        "pmu",
        "Through the PMU: overflow interrupts of a hardware counter",
    ),
];

/// The cases of one figure, each with its typed figure.
macro_rules! of {
    ($summary:expr, $figure:ident) => {
        $summary.cases.iter().filter_map(|case| match &case.figure {
            Some(About::$figure(figure)) => Some((case, figure)),
            _ => None,
        })
    };
}

/// Relative error of the used events: as recorded, or computed from the mean.
fn error_share(accuracy: &Accuracy) -> Option<f64> {
    let mean = || accuracy.achieved_events.as_ref()?.mean;
    let from_mean = || Some(mean()? / accuracy.budget_events as f64 - 1.0);
    accuracy
        .error_share
        .or_else(from_mean)
        .filter(|v| v.is_finite())
}

/// Of several regulators, the finding is about the kernel module; the others are compared with it.
pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let by = |case: &Case, name| case.backend.as_deref() == Some(name);
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

/// The long run with the largest error against its budget.
fn held(summary: &Summary) -> Option<String> {
    let (share, hold) = of!(summary, Hold)
        .filter_map(|(_, hold)| Some((hold.error_share?, hold)))
        .max_by(|a, b| a.0.abs().total_cmp(&b.0.abs()))?;
    let Hold {
        budget_events,
        seconds,
        worst_second_events,
        largest_period_events,
        ..
    } = hold;
    let budget = *budget_events as f64;
    let number = |value: Option<f64>| value.map_or_else(|| "?".into(), figure);
    Some(format!(
        "over {} s they came to {} of {} events a period (worst second {}, largest period {})",
        number(*seconds),
        figure(budget * (1.0 + share)),
        figure(budget),
        number(*worst_second_events),
        number(largest_period_events.map(|events| events as f64)),
    ))
}

fn of_one(summary: &Summary) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    let errors = of!(summary, Accuracy)
        .filter_map(|(_, accuracy)| error_share(accuracy))
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
    let p999 = |metric: &Option<Metric>| metric.as_ref()?.p999;
    let overshoot = of!(summary, Overshoot).filter_map(|(_, one)| p999(&one.overshoot_events));
    let reaction = of!(summary, Reaction).filter_map(|(_, one)| p999(&one.throttle_latency_ns));
    match (
        overshoot.max_by(f64::total_cmp),
        reaction.max_by(f64::total_cmp),
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
    parts.extend(overhead(summary));
    let missed = of!(summary, Boundaries).filter_map(|(_, one)| one.missed_share);
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
        .filter_map(|case| case.reached)
        .filter(|reached| *reached != Reached::NoTarget)
        .collect();
    let reached = judged.iter().filter(|r| **r == Reached::Yes).count();
    let verdict = match judged.len() {
        0 => String::new(),
        1 if reached == 1 => "; the target was reached".into(),
        n if n == reached => format!("; all {n} targets were reached"),
        n => format!("; {reached} of {n} targets were reached"),
    };
    let text = match parts.as_slice() {
        // Parts without a figure in the finding: sharing, the PMU.
        [] => match judged.len() {
            0 => return None,
            n => return Some(format!("{reached} of {n} targets were reached.")),
        },
        [one] => one.clone(),
        [all @ .., last] => format!("{}, and {last}", all.join(", ")),
    };
    Some(format!("{}{verdict}.", capitalised(&text)))
}

/// The overhead at the longest measured period, usually the default.
fn overhead(summary: &Summary) -> Option<String> {
    // A case without a target includes more than the guard's cost.
    let (share, one) = of!(summary, Overhead)
        .filter(|(case, _)| case.reached != Some(Reached::NoTarget))
        .filter_map(|(_, one)| Some((one.overhead_share?, one)))
        .max_by_key(|(_, one)| one.period_us)?;
    let period = figure(one.period_us as f64);
    let interval = one.overhead_share_ci95.map_or_else(String::new, |ends| {
        let [low, high] = ends.map(percent);
        format!(" (95 % interval {low} to {high})")
    });
    Some(if costs(one) {
        format!(
            "an armed guard cost {}{interval} at a period of {period} us",
            percent(share)
        )
    } else {
        format!("no cost of an armed guard was shown at a period of {period} us{interval}")
    })
}

/// True if the runs with a guard took longer by more than their spread. A few runs have no interval: then all of them
/// took longer than those without a guard.
fn costs(one: &Overhead) -> bool {
    let end = |metric: &Option<Metric>, of: fn(&Metric) -> Option<f64>| of(metric.as_ref()?);
    let shortest = end(&one.with_guard, |metric| metric.min);
    let longest = end(&one.without_guard, |metric| metric.max);
    match (one.overhead_share_ci95, shortest.zip(longest)) {
        (Some([low, _]), _) => low > 0.0,
        (None, Some((with, without))) => with > without,
        (None, None) => true,
    }
}

/// Numbers of CPUs with the median throttle latency in nanoseconds, fewest CPUs first.
fn scaling(summary: &Summary) -> Vec<(u64, f64)> {
    let mut points: Vec<_> = of!(summary, Scaling)
        .filter_map(|(_, one)| Some((one.cpus, one.throttle_latency_ns.as_ref()?.median?)))
        .collect();
    points.sort_by_key(|(cpus, _)| *cpus);
    points
}

/// Every figure of every case as recorded, in one table for each kind.
pub(crate) fn tables(recorded: &Recorded) -> Vec<Table> {
    let mut tables = Vec::new();
    for (name, title) in FIGURES {
        let is = |case: &&memwarden_run::Case| case.text("figure") == Some(name);
        let cases: Vec<_> = recorded.cases.iter().filter(is).collect();
        if !cases.is_empty() {
            tables.extend(table_of(title, &cases, &["figure"]));
        }
    }
    let named = |c: &&memwarden_run::Case| {
        !c.text("figure")
            .is_some_and(|f| FIGURES.iter().any(|(name, _)| *name == f))
    };
    let rest: Vec<_> = recorded.cases.iter().filter(named).collect();
    if !tables.is_empty() && !rest.is_empty() {
        tables.extend(table_of("Further figures", &rest, &[]));
    }
    tables
}

#[cfg(feature = "html")]
pub(crate) use charts::figures;

#[cfg(feature = "html")]
mod charts {
    use memwarden_run::Recorded;
    use memwarden_run::studies::guard_bench::{Case, Figure as About, Summary};

    use super::error_share;
    use crate::Figure;
    use crate::number::{figure, name_and_unit};
    use crate::plot::{
        Axis, Bar, BarChart, Chart, Colour, Group, Histogram, Line, Panel, Point, Reference,
        XyChart, places,
    };

    pub(crate) fn figures(summary: &Summary, recorded: &Recorded) -> Vec<Figure> {
        let mut figures = Vec::new();
        figures.extend(accuracy(summary));
        figures.extend(distribution(
            recorded,
            &names(summary, |about| matches!(about, About::Overshoot(_))),
            "overshoot_events",
            "Events past the budget when the throttle held",
        ));
        figures.extend(distribution(
            recorded,
            &names(summary, |about| matches!(about, About::Overshoot(_))),
            "overshoot_ns",
            "Time past the budget when the throttle held",
        ));
        figures.extend(distribution(
            recorded,
            &names(summary, |about| matches!(about, About::Reaction(_))),
            "throttle_latency_ns",
            "From overflow to throttled",
        ));
        figures.extend(distribution(
            recorded,
            &names(summary, |about| matches!(about, About::Reaction(_))),
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
            if let Some(figure) = distribution(
                recorded,
                &names(summary, |about| matches!(about, About::Pmu(_))),
                metric,
                title,
            ) {
                figures.push(Figure {
                    name: format!("pmu-{}", figure.name),
                    ..figure
                });
            }
        }
        let cost = "Cost of an armed guard";
        let overhead: Vec<Shared> = of!(summary, Overhead)
            .map(|(case, one)| Shared {
                variant: Variant::of(case, Some(&one.event), None),
                period_us: one.period_us,
                share: one.overhead_share,
                limit: one.limit_share,
            })
            .collect();
        figures.extend(by_period("overhead", &overhead, cost, "instructions added"));
        let missed = "Period boundaries missed";
        let boundaries: Vec<Shared> = of!(summary, Boundaries)
            .map(|(case, one)| Shared {
                variant: Variant::of(case, None, Some(one.cpus)),
                period_us: one.period_us,
                share: one.missed_share,
                limit: one.limit_share,
            })
            .collect();
        figures.extend(by_period(
            "boundaries",
            &boundaries,
            missed,
            "boundaries missed",
        ));
        figures.extend(scaling(summary));
        figures.extend(sharing(summary));
        figures
    }

    /// Names of the cases with this kind of figure.
    fn names(summary: &Summary, is: fn(&About) -> bool) -> Vec<&str> {
        let cases = summary.cases.iter();
        let cases = cases.filter(|case| case.figure.as_ref().is_some_and(is));
        cases.map(|case| case.name.as_str()).collect()
    }

    /// Distinguishes the lines of a chart: event, clock and number of CPUs, as far as they differ.
    struct Variant([String; 3]);

    impl Variant {
        fn of(case: &Case, event: Option<&str>, cpus: Option<u64>) -> Self {
            let cpus = match cpus {
                None => String::new(),
                Some(1) => "one core".into(),
                Some(cpus) => format!("{cpus} cores together"),
            };
            let clock = case.clock.clone().unwrap_or_default();
            Self([event.unwrap_or_default().to_owned(), clock, cpus])
        }

        fn name(&self, all: &[&Self]) -> String {
            let differing = self.0.iter().enumerate().filter(|(which, mine)| {
                !mine.is_empty() && all.iter().any(|other| other.0[*which] != **mine)
            });
            let words: Vec<&str> = differing.map(|(_, mine)| mine.as_str()).collect();
            if words.is_empty() {
                return "measured".into();
            }
            words.join(", ")
        }
    }

    /// One line for each variant.
    fn lines<'a>(points: impl Iterator<Item = (&'a Variant, Option<Point>)>) -> Vec<Line> {
        let points: Vec<_> = points.collect();
        let variants: Vec<&Variant> = points.iter().map(|(variant, _)| *variant).collect();
        let mut lines: Vec<Line> = Vec::new();
        for (variant, point) in points {
            let Some(point) = point else { continue };
            let name = variant.name(&variants);
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

    fn accuracy(summary: &Summary) -> Option<Figure> {
        let cases: Vec<_> = of!(summary, Accuracy)
            .map(|(case, one)| (Variant::of(case, Some(&one.event), Some(one.cpus)), one))
            .collect();
        let lines = lines(cases.iter().map(|(variant, one)| {
            let point =
                error_share(one).map(|share| Point::at(one.budget_events as f64, share * 100.0));
            (variant, point)
        }));
        let limit = cases.iter().find_map(|(_, one)| one.limit_share);
        let limit = limit.unwrap_or(0.01) * 100.0;
        let limits = [limit, -limit].map(|v| Reference::new(v, format!("{:+} %", v)));
        (!lines.is_empty()).then(|| {
            Figure::new(
                "accuracy",
                "Mean of the events used in a period over the budget, minus 1; the dashed lines are the limits.",
                Chart::Xy(XyChart {
                    title: "Used events against the budget".into(),
                    x: Axis::new("budget", "events per period").log(),
                    y: Axis::new("achieved over budget, less 1", "%"),
                    x_ticks: places(&lines),
                    lines,
                    references: limits.into(),
                    y_from_data: true,
                    ..XyChart::default()
                }),
            )
        })
    }

    /// Histograms of raw samples; logarithmic if the tail is long.
    fn distribution(
        recorded: &Recorded,
        cases: &[&str],
        metric: &str,
        title: &str,
    ) -> Option<Figure> {
        let mut panels = Vec::new();
        for case in cases {
            let of_case = |s: &&memwarden_run::Sample| s.case == *case && s.metric == metric;
            let samples: Vec<f64> = recorded
                .samples
                .iter()
                .filter(of_case)
                .filter_map(|s| s.value)
                .collect();
            if !samples.is_empty() {
                panels.push(Panel {
                    label: (*case).to_owned(),
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
        // A long tail would squeeze everything else against the axis.
        let tailed = low > 0.0 && high / memwarden_run::statistics::median(&sorted) > 5.0;
        let (name, unit) = name_and_unit(metric);
        let axis = Axis::new(name, unit);
        let axis = if tailed { axis.log() } else { axis };
        Some(Figure::new(
            &crate::generic::file_name(metric),
            "The height of a bar is its share of the samples.",
            Chart::Histogram(Histogram {
                title: title.into(),
                axis,
                series: vec![("samples".into(), Colour::nth(0))],
                panels,
                reference: None,
                tail: 99.9,
            }),
        ))
    }

    /// A share at one period length.
    struct Shared {
        variant: Variant,
        period_us: u64,
        share: Option<f64>,
        limit: Option<f64>,
    }

    /// A share over the period length, with the upper limits.
    fn by_period(which: &str, cases: &[Shared], title: &str, label: &str) -> Option<Figure> {
        let percent = |one: &Shared, share: Option<f64>| {
            share.map(|share| Point::at(one.period_us as f64, share * 100.0))
        };
        let mut lines = lines(
            cases
                .iter()
                .map(|one| (&one.variant, percent(one, one.share))),
        );
        if lines.is_empty() {
            return None;
        }
        let mut limits: Vec<Point> = cases
            .iter()
            .filter_map(|one| percent(one, one.limit))
            .collect();
        limits.sort_by(|a, b| a.x.total_cmp(&b.x));
        limits.dedup_by(|a, b| a.x.total_cmp(&b.x).is_eq());
        if !limits.is_empty() {
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
                x_ticks: places(&lines),
                lines,
                ..XyChart::default()
            }),
        ))
    }

    fn scaling(summary: &Summary) -> Option<Figure> {
        let cases: Vec<_> = of!(summary, Scaling).map(|(_, one)| one).collect();
        let (name, unit) = name_and_unit("throttle_latency_ns");
        let mut lines = Vec::new();
        let enough = cases.iter().any(|c| {
            let metric = c.throttle_latency_ns.as_ref();
            metric.is_some_and(|m| m.samples >= 100)
        });
        for (i, what) in ["median", "99 %", "max"].into_iter().enumerate() {
            if i == 1 && !enough {
                continue;
            }
            let mut points: Vec<Point> = cases
                .iter()
                .filter_map(|c| {
                    let m = c.throttle_latency_ns.as_ref()?;
                    let y = [m.median, m.p99, m.max][i]?;
                    Some(Point {
                        x: c.cpus as f64,
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
                    title: "Reaction by number of CPUs".into(),
                    x: Axis::new("CPUs", "").log(),
                    y: if low > 0.0 && high / low > 30.0 {
                        y.log()
                    } else {
                        y
                    },
                    x_ticks: places(&lines),
                    lines,
                    whiskers: "95 % interval of the median",
                    ..XyChart::default()
                }),
            )
        })
    }

    /// Events of each core with its budget.
    fn sharing(summary: &Summary) -> Option<Figure> {
        let mut groups = Vec::new();
        for (case, sharing) in of!(summary, Sharing) {
            for core in &sharing.cores {
                let Some(used) = core.used_events else {
                    continue;
                };
                let bar = |series, value: f64| Bar {
                    series,
                    value: Some(value),
                    interval: None,
                    text: figure(value),
                };
                let mut bars: Vec<_> = core
                    .budget_events
                    .map(|budget| bar(0, budget as f64))
                    .into_iter()
                    .collect();
                bars.push(bar(1, used));
                groups.push(Group {
                    label: format!("{}, CPU {}", case.name, core.cpu),
                    bars,
                });
            }
        }
        (!groups.is_empty()).then(|| {
            Figure::new(
                "sharing",
                "Events that each core used in a period, beside its budget.",
                Chart::Bars(BarChart {
                    title: "Events granted by sharing and reclaim".into(),
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
