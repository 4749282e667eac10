// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interference experiment: a victim alone and beside aggressors, without and with a guard.

use memwarden_run::studies::interfere::{Case, Core, Summary};
use memwarden_run::title::{FEW_CORES, kinds as company};
use memwarden_run::{GuardSettings, Metric};

use crate::Table;
use crate::number::{
    NOT_MEASURED, TOO_FEW_RUNS, count, counted, figure, interval, name_and_unit, optional,
    optional_percent, optional_times, order, percent, time_unit, times,
};

pub(crate) const QUESTION: &str = "How much does a program slow down when the other cores move memory as fast as they \
    can, and does a budget on each of those cores give it its speed back? The victim runs alone, then beside each kind \
    of aggressor, without and with the guard.";

/// The metric of a program: its samples are jobs, not runs.
const JOB_TIME: &str = "job_time_ns";

/// `no guard`, or the guard's settings: `guard 1000,100,max, spare sharing`.
pub(crate) fn guard_text(guard: Option<&GuardSettings>) -> String {
    guard.map_or_else(
        || "no guard".into(),
        |guard| format!("guard {}", guard.title()),
    )
}

/// The case without a guard in which the victim slowed down most.
fn worst(summary: &Summary) -> Option<&Case> {
    let hurt = summary
        .cases
        .iter()
        .filter(|c| c.guard.is_none() && !c.aggressors.is_empty());
    let key = |c: &Case| (c.slowdown.unwrap_or(0.0), c.aggressors.len());
    hurt.filter(|c| c.slowdown.is_some())
        .max_by(|a, b| order(key(a), key(b)))
}

/// The guarded case with the same aggressors; of several, the one with the smallest slowdown.
fn guarded_like<'a>(summary: &'a Summary, case: &Case) -> Option<&'a Case> {
    let same = summary.cases.iter().filter(|c| {
        c.guard.is_some() && !c.is_long() && company(&c.aggressors) == company(&case.aggressors)
    });
    same.filter(|c| c.slowdown.is_some())
        .min_by(|a, b| order(a.slowdown, b.slowdown))
}

fn beside(case: &Case) -> String {
    let kinds = company(&case.aggressors);
    let count = case.aggressors.len();
    let kind = kinds
        .strip_prefix(&format!("{count} \u{d7} "))
        .unwrap_or(&kinds);
    format!("{} ({kind})", counted(count, "aggressor"))
}

pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let text = slowed_down(summary)?;
    Some(match summary.whole.victim_in_cache {
        Some(true) => format!("{text} {CACHE}"),
        _ => text,
    })
}

/// Note for a victim whose buffer is small.
const CACHE: &str = "The last-level cache holds a good part of the victim's buffer: this is interference in that \
    cache, \
    not in memory (--victim-memory).";

fn slowed_down(summary: &Summary) -> Option<String> {
    let Some(worst) = worst(summary) else {
        let case = summary
            .cases
            .iter()
            .filter(|c| c.guard.is_some() && c.slowdown.is_some())
            .max_by(|a, b| order(a.slowdown, b.slowdown))?;
        let slowdown = times(case.slowdown?);
        let text = format!(
            "Beside {} the victim, guarded, slowed down {slowdown} times{}{}.",
            beside(case),
            too_few([case]),
            kept(summary)
        );
        return Some(text);
    };
    let company = beside(worst);
    let best = guarded_like(summary, worst);
    let guarded = best.and_then(|case| case.slowdown);
    let too_few = too_few([Some(worst), best].into_iter().flatten());
    let without = match not_slowed_down(worst) {
        None => times(worst.slowdown?),
        Some(not) => {
            let end = match guarded {
                Some(with) => format!(
                    " without the guard; with it {} times{too_few}{}",
                    times(with),
                    kept(summary)
                ),
                None => format!("{too_few}; no guard ran{}", kept(summary)),
            };
            return Some(format!("With {company} the victim {not}{end}."));
        }
    };
    Some(match guarded {
        Some(with) => format!(
            "With {company} the victim slowed down {without} times without the guard and {} times with it{too_few}{}.",
            times(with),
            kept(summary)
        ),
        None => format!(
            "With {company} the victim slowed down {without} times{too_few}; no guard ran{}.",
            kept(summary)
        ),
    })
}

/// What the finding adds to the slowdowns of these cases, if one has no interval.
fn too_few<'a>(cases: impl IntoIterator<Item = &'a Case>) -> &'static str {
    let mut cases = cases.into_iter();
    match cases.any(|case| case.slowdown_ci95.is_none()) {
        true => TOO_FEW_RUNS,
        false => "",
    }
}

/// How the victim of a case fared, if its runs show no slowdown.
fn not_slowed_down(case: &Case) -> Option<String> {
    let slowdown = times(case.slowdown?);
    match case.slowdown_ci95 {
        Some([low, high]) if low <= 1.0 && high >= 1.0 => Some(format!(
            "was not shown to slow down ({slowdown} times, 95 % interval {} to {})",
            times(low),
            times(high)
        )),
        None if case.slowdown? < 1.0 => Some(format!("had a slowdown of {slowdown} times")),
        _ if case.slowdown? < 1.0 => Some(format!("did not slow down ({slowdown} times)")),
        _ => None,
    }
}

/// The regulated cores, each with its case.
fn cores(summary: &Summary) -> impl Iterator<Item = (&Case, &Core)> {
    let guarded = summary.cases.iter().filter(|c| c.guard.is_some());
    guarded.flat_map(|case| case.cores.iter().flatten().map(move |core| (case, core)))
}

/// The end of the sentence about the budgets; empty if they were not measured.
fn kept(summary: &Summary) -> String {
    if let Some(failed) = failed(summary) {
        return failed;
    }
    // Best-effort sharing allows cores to exceed their budgets.
    let strict = |(case, _): &(&Case, &Core)| {
        let guard = case.guard.as_ref();
        guard.is_none_or(|g| g.best_effort == "none" && !g.reclaim)
    };
    let measured = cores(summary).filter(strict).filter_map(|(_, core)| {
        let budget = core.budget_events.filter(|budget| *budget > 0)?;
        Some((core, budget, core.largest_period_events?))
    });
    let fullest = measured.max_by(|a, b| {
        let share = |(_, budget, largest): &(&Core, u64, u64)| *largest as f64 / *budget as f64;
        share(a).total_cmp(&share(b))
    });
    let Some((core, budget, largest)) = fullest else {
        return String::new();
    };
    let of = format!(
        "{} of {} events",
        figure(largest as f64),
        figure(budget as f64)
    );
    if largest <= budget && !cores(summary).all(|(_, core)| core.recorded_whole()) {
        format!(
            "; in the recorded periods, which are not all, every regulated core kept to its budget (largest period: {of})"
        )
    } else if largest <= budget {
        format!("; every regulated core kept to its budget (largest period: {of})")
    } else if core.overshoot_max.is_some_and(|o| largest <= budget + o) {
        format!(
            "; the fullest core passed its budget by no more than its measured overshoot (largest period: {of}, CPU {})",
            core.cpu
        )
    } else {
        format!(
            "; CPU {} passed its budget (largest period: {of})",
            core.cpu
        )
    }
}

/// Cores that were not held, with the figures of the worst one.
fn failed(summary: &Summary) -> Option<String> {
    let failed = || cores(summary).filter(|(_, core)| core.held == Some(false));
    let excess = |core: &Core| {
        let budget = core.budget_events.filter(|budget| *budget > 0)?;
        Some(core.largest_period_events? as f64 / budget as f64)
    };
    let (case, worst) = failed().max_by(|(_, a), (_, b)| {
        let of = |core: &Core| excess(core).unwrap_or(0.0);
        of(a).total_cmp(&of(b))
    })?;
    let cases: std::collections::BTreeSet<&str> =
        failed().map(|(case, _)| case.name.as_str()).collect();
    Some(format!(
        "; the guard did NOT hold in {}: worst was CPU {} in `{}`, {} of {} events in one period, {} of {} periods above \
         the budget",
        counted(cases.len(), "case"),
        worst.cpu,
        case.title(),
        count(worst.largest_period_events),
        count(worst.budget_events),
        count(worst.periods_over_budget),
        count(worst.periods),
    ))
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    let victims: Vec<_> = summary
        .cases
        .iter()
        .filter(|c| c.victim.is_some())
        .collect();
    if victims.is_empty() {
        return Vec::new();
    }
    let mut tables = vec![victim_table(&victims)];
    let aggressors = aggressor_table(summary);
    if !aggressors.rows.is_empty() {
        tables.push(aggressors);
    }
    let budgets = budget_table(summary);
    if !budgets.rows.is_empty() {
        tables.push(budgets);
    }
    tables
}

/// [`guard_text`] for a column with the heading `guard`.
pub(super) fn guard_cell(guard: Option<&GuardSettings>) -> String {
    guard.map_or_else(|| "none".into(), GuardSettings::title)
}

/// The victim's metric.
fn metric_of<'a>(mut cases: impl Iterator<Item = &'a Case>) -> &'a str {
    let metric = cases.find_map(|c| c.victim.as_ref());
    metric.map_or("", |metric| metric.metric.as_str())
}

/// A metric in words, its unit, and its divisor to get that unit: the times of a program are in the unit that suits the
/// shortest median.
fn in_unit<'a>(metric: &str, cases: impl Iterator<Item = &'a Case>) -> (String, &'static str, f64) {
    let (name, unit) = name_and_unit(metric);
    if metric != JOB_TIME {
        return (name, unit, 1.0);
    }
    let medians = cases.filter_map(|case| case.victim.as_ref()?.median);
    let (divisor, unit) = time_unit(medians.min_by(f64::total_cmp).unwrap_or_default());
    (name, unit, divisor)
}

fn victim_table(cases: &[&Case]) -> Table {
    let metric = metric_of(cases.iter().copied());
    let (name, unit, divisor) = in_unit(metric, cases.iter().copied());
    let of = |case: &Case, of: fn(&Metric) -> Option<f64>| {
        let value = case.victim.as_ref().and_then(of);
        optional(value.map(|value| value / divisor))
    };
    let ends = |case: &Case| {
        let ends = case.victim.as_ref()?.median_ci95?;
        Some(ends.map(|end| end / divisor))
    };
    let samples = |case: &Case| case.victim.as_ref().map_or(0, |m| m.samples);
    let mut rows = Table::of(format!("The victim: {name}"), cases)
        .words("Beside it", |case| company(&case.aggressors))
        .words("Guard", |case| guard_cell(case.guard.as_ref()))
        .figures("slowdown", "times", |case| optional_times(case.slowdown))
        .figures("median", unit, |case| of(case, |m| m.median))
        .figures("95 % interval", unit, |case| interval(ends(case)))
        .figures("st. dev.", unit, |case| of(case, |m| m.stdev))
        .figures("min", unit, |case| of(case, |m| m.min));
    // With the few runs of a workload it equals the maximum.
    if metric == JOB_TIME {
        rows = rows.figures("99 %", unit, |case| of(case, |m| m.p99));
    }
    let rows = rows.figures("max", unit, |case| of(case, |m| m.max));
    let first = cases.first().map_or(0, |case| samples(case));
    if cases.iter().all(|case| samples(case) == first) {
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let caption = format!("{} in each case.", counted(first, "sample"));
        return rows.table().caption(caption);
    }
    rows.figures("samples", "", |case| samples(case).to_string())
        .table()
}

/// Mean of the measured values.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), v| (sum + v, count + 1));
    (count > 0).then(|| sum / count as f64)
}

fn each_mib_s(case: &Case) -> Option<f64> {
    mean(case.aggressors.iter().filter_map(|a| a.mib_s))
}

fn throttled(case: &Case) -> Option<f64> {
    mean(case.aggressors.iter().filter_map(|a| a.throttled_share))
}

fn held_back(case: &Case) -> Option<f64> {
    mean(case.aggressors.iter().filter_map(|a| a.held_back_share))
}

fn aggressor_table(summary: &Summary) -> Table {
    let share = |share: Option<f64>| share.map_or_else(|| "-".into(), percent);
    let together = |case: &Case| case.aggressors.iter().map(|a| a.mib_s).sum::<Option<f64>>();
    let cases = summary.cases.iter().filter(|c| !c.aggressors.is_empty());
    let mut table = Table::of("Aggressors: achieved bandwidth", cases)
        .words("Aggressors", |case| company(&case.aggressors))
        .words("Guard", |case| guard_cell(case.guard.as_ref()))
        .figures("each", "MiB/s", |case| optional(each_mib_s(case)))
        .figures("together", "MiB/s", |case| optional(together(case)))
        .figures("throttled", "of the time", |case| share(throttled(case)))
        .figures("held back", "of the time", |case| share(held_back(case)))
        .table();
    table.drop_columns_of("-");
    table.caption("Mean over the aggressors of a case; MiB/s as MemGuard and IsolBench count them.")
}

/// The rows of a case: its cores; of many, the worst of each budget, with their number.
fn shown_cores(case: &Case) -> Vec<(&Core, usize)> {
    let cores = case.cores.as_deref().unwrap_or_default();
    if cores.len() <= FEW_CORES {
        return cores.iter().map(|core| (core, 1)).collect();
    }
    let mut shown: Vec<(&Core, usize)> = Vec::new();
    for core in cores {
        let of_budget =
            |(other, _): &&mut (&Core, usize)| other.budget_events == core.budget_events;
        match shown.iter_mut().find(of_budget) {
            Some((worst, count)) => {
                *count += 1;
                if order(badness(core), badness(worst)).is_gt() {
                    *worst = core;
                }
            }
            None => shown.push((core, 1)),
        }
    }
    shown
}

/// Larger for the worse of two cores with the same budget. A core without data may not have been held.
fn badness(core: &Core) -> (u8, Option<u64>, Option<u64>, Option<f64>) {
    let held = match core.held {
        Some(true) => 0,
        None => 1,
        Some(false) => 2,
    };
    (
        held,
        core.unregulated_periods,
        core.largest_period_events,
        core.mean_period_events,
    )
}

fn budget_table(summary: &Summary) -> Table {
    let mut table = Table::new("The budgets: events in a period")
        .words("Beside the victim")
        .words("Guard")
        .words("CPU")
        .figures("budget", "events")
        .figures("mean period", "events")
        .figures("worst second", "events")
        .figures("largest period", "events")
        .figures("periods", "")
        .figures("above budget", "periods")
        .words("held")
        .figures("throttled", "of the time")
        .figures("held back", "of the time");
    let guarded = || summary.cases.iter().filter(|case| case.guard.is_some());
    let rows = guarded().flat_map(|case| {
        let cores = shown_cores(case).into_iter();
        cores.map(move |(core, of)| (case, core, of))
    });
    for (case, core, of) in rows {
        let Core {
            cpu,
            budget_events,
            periods,
            largest_period_events,
            mean_period_events,
            worst_second_events,
            periods_over_budget,
            throttled_share,
            held_back_share,
            held,
            // In the notes and the finding.
            counted_periods: _,
            unregulated_periods: _,
            overshoot_max: _,
        } = core;
        table.row(vec![
            company(&case.aggressors),
            guard_cell(case.guard.as_ref()),
            match of {
                1 => cpu.to_string(),
                of => format!("{cpu} (worst of {of})"),
            },
            budget_events.map_or_else(|| "max".into(), |events| count(Some(events))),
            optional(*mean_period_events),
            optional(*worst_second_events),
            count(*largest_period_events),
            count(*periods),
            count(*periods_over_budget),
            match held {
                Some(true) => "yes".into(),
                Some(false) => "NO".into(),
                None => NOT_MEASURED.into(),
            },
            optional_percent(*throttled_share),
            optional_percent(*held_back_share),
        ]);
    }
    table.drop_columns_of(NOT_MEASURED);
    let many = |case: &Case| {
        case.cores
            .as_ref()
            .is_some_and(|cores| cores.len() > FEW_CORES)
    };
    if guarded().any(many) {
        return table.caption(
            "Of cores with the same budget, only the worst is shown: one that was not held, else one without data, else the one with \
             the most unregulated periods, else with the largest period. summary.json has all.",
        );
    }
    table
}

#[cfg(feature = "html")]
pub(crate) use charts::figures;

#[cfg(feature = "html")]
mod charts {
    use memwarden_run::Recorded;
    use memwarden_run::studies::interfere::{Case, Summary};

    use super::{company, each_mib_s, guard_text, in_unit, metric_of, throttled};
    use crate::Figure;
    use crate::number::{figure, percent, times};
    use crate::plot::{
        Axis, Bar, BarChart, CI95, Chart, Colour, Group, Line, Point, Reference, XyChart, places,
    };

    pub(crate) fn figures(summary: &Summary, _: &Recorded) -> Vec<Figure> {
        of(summary)
    }

    pub(super) fn of(summary: &Summary) -> Vec<Figure> {
        let mut compared = summary.clone();
        compared.cases.retain(|case| !case.is_long());
        let summary = &compared;
        let mut figures = Vec::new();
        if summary.cases.iter().any(|c| c.victim.as_ref().is_some()) {
            figures.extend(victim(summary));
            figures.extend(slowdown(summary));
        }
        figures.extend(aggressors(summary));
        figures.extend(throttling(summary));
        figures
    }

    /// `no guard` and each guard setting, in the order in which they ran.
    fn settings(summary: &Summary) -> Vec<(String, Colour)> {
        let mut names: Vec<String> = Vec::new();
        for case in &summary.cases {
            let name = guard_text(case.guard.as_ref());
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let guards = names
            .iter()
            .filter(|n| *n != "no guard")
            .cloned()
            .collect::<Vec<_>>();
        names
            .into_iter()
            .map(|name| {
                let colour = match guards.iter().position(|g| *g == name) {
                    None => Colour::UNGUARDED,
                    Some(0) => Colour::GUARDED,
                    Some(n) => Colour::other(n - 1),
                };
                (name, colour)
            })
            .collect()
    }

    /// The settings in groups of at most one for each colour. The first guard has a colour of its own; then the others
    /// repeat. `no guard` is in each group, for comparison.
    fn by_colour(summary: &Summary) -> Vec<Vec<(String, Colour)>> {
        let (without, guards): (Vec<_>, Vec<_>) = settings(summary)
            .into_iter()
            .partition(|(_, colour)| *colour == Colour::UNGUARDED);
        let (first, more) = guards.split_at(guards.len().min(1 + Colour::OTHERS));
        let more = more.chunks(Colour::OTHERS);
        std::iter::once(first)
            .chain(more)
            .map(|group| without.iter().chain(group).cloned().collect())
            .collect()
    }

    /// Numbers the figures of one name. The first keeps the name of a single one, and so replaces the file of an earlier version.
    fn numbered(mut figures: Vec<Figure>) -> Vec<Figure> {
        for (n, figure) in (1..).zip(&mut figures).skip(1) {
            figure.name += &format!("-{n}");
        }
        figures
    }

    /// One group of bars for each set of aggressors, one bar for each guard setting; in as many charts as there are groups
    /// of settings.
    fn grouped(
        summary: &Summary,
        bar: impl Fn(&Case) -> Option<Bar>,
        figure: impl Fn(Vec<(String, Colour)>, Vec<Group>) -> Figure,
    ) -> Vec<Figure> {
        let mut figures = Vec::new();
        for series in by_colour(summary) {
            let mut groups: Vec<Group> = Vec::new();
            for case in &summary.cases {
                let name = guard_text(case.guard.as_ref());
                let place = series.iter().position(|s| s.0 == name);
                if let Some((series, mut bar)) = place.zip(bar(case)) {
                    bar.series = series;
                    Group::add(&mut groups, company(&case.aggressors), bar);
                }
            }
            if !groups.is_empty() {
                figures.push(figure(series, groups));
            }
        }
        numbered(figures)
    }

    fn victim(summary: &Summary) -> Vec<Figure> {
        let metric = metric_of(summary.cases.iter());
        let (name, unit, divisor) = in_unit(metric, summary.cases.iter());
        let bar = |case: &Case| {
            let m = case.victim.as_ref()?;
            let median = m.median.map(|median| median / divisor);
            let text = match (median, case.slowdown) {
                (None, _) => "not measured".into(),
                (Some(v), Some(s)) if !case.aggressors.is_empty() => {
                    format!("{} {unit}, {}\u{d7}", figure(v), times(s))
                }
                (Some(v), _) => format!("{} {unit}", figure(v)),
            };
            Some(Bar {
                series: 0,
                value: median,
                interval: m.median_ci95.map(|ends| ends.map(|end| end / divisor)),
                text,
            })
        };
        let solo = summary
            .cases
            .iter()
            .find(|c| c.aggressors.is_empty() && c.guard.is_none());
        let solo = solo.and_then(|c| Some(c.victim.as_ref()?.median? / divisor));
        grouped(summary, bar, |series, groups| {
            Figure::new(
                "victim",
                "Median of the victim in each case.",
                Chart::Bars(BarChart {
                    title: format!("The victim's {name}, alone and beside aggressors"),
                    axis: Axis::new(name.clone(), unit),
                    series,
                    groups,
                    reach: 0.0,
                    reference: solo.map(|value| {
                        Reference::new(value, format!("alone: {} {unit}", figure(value)))
                    }),
                    whiskers: CI95,
                }),
            )
        })
    }

    /// The kinds of aggressors; a case with several has none.
    fn kind_of(case: &Case) -> Option<&str> {
        let first = case.aggressors.first()?.kind.as_str();
        let same = case.aggressors.iter().all(|a| a.kind == first);
        same.then_some(first)
    }

    /// Slowdown against the number of aggressors: charts for each kind, with one line for each guard setting.
    fn slowdown(summary: &Summary) -> Vec<Figure> {
        let mut kinds: Vec<&str> = Vec::new();
        for kind in summary.cases.iter().filter_map(kind_of) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let groups = by_colour(summary);
        let mut figures = Vec::new();
        for kind in &kinds {
            for settings in &groups {
                let lines: Vec<Line> = settings
                    .iter()
                    .map(|(setting, colour)| Line {
                        name: setting.clone(),
                        colour: *colour,
                        points: points(summary, kind, setting),
                    })
                    .filter(|line| line.points.iter().any(|point| point.x > 0.0))
                    .collect();
                let ticks = places(&lines);
                if ticks.iter().filter(|tick| **tick > 0.0).count() >= 2 {
                    figures.push(chart(kind, lines, ticks));
                }
            }
        }
        numbered(figures)
    }

    /// The slowdowns beside aggressors of one kind, under one guard setting.
    fn points(summary: &Summary, kind: &str, setting: &str) -> Vec<Point> {
        let mut points = Vec::new();
        for case in &summary.cases {
            let alone = case.aggressors.is_empty();
            if guard_text(case.guard.as_ref()) != setting || !alone && kind_of(case) != Some(kind) {
                continue;
            }
            let unguarded = (alone && case.guard.is_none()).then_some(1.0);
            if let Some(y) = case.slowdown.or(unguarded) {
                points.push(Point {
                    x: case.aggressors.len() as f64,
                    y,
                    interval: case.slowdown_ci95.filter(|_| !alone),
                });
            }
        }
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        points
    }

    fn chart(kind: &str, lines: Vec<Line>, x_ticks: Vec<f64>) -> Figure {
        Figure::new(
            "slowdown",
            "The victim's median over its median alone.",
            Chart::Xy(XyChart {
                title: format!("The victim's slowdown by number of aggressors: {kind}"),
                x: Axis::new("aggressors", ""),
                y: Axis::new("slowdown of the victim", "times"),
                lines,
                references: vec![Reference::new(1.0, "as fast as alone")],
                whiskers: CI95,
                x_ticks,
                y_from_data: false,
                ..XyChart::default()
            }),
        )
    }

    fn aggressors(summary: &Summary) -> Vec<Figure> {
        let bar = |case: &Case| {
            let each = each_mib_s(case)?;
            let all = case.aggressors.iter().filter_map(|a| a.mib_s);
            let (low, high) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| {
                (l.min(v), h.max(v))
            });
            let spread = (case.aggressors.len() > 1).then_some([low, high]);
            Some(Bar {
                series: 0,
                value: Some(each),
                interval: spread,
                text: format!("{} MiB/s", figure(each)),
            })
        };
        grouped(summary, bar, |series, groups| {
            Figure::new(
                "aggressors",
                "Mean of the aggressors of a case.",
                Chart::Bars(BarChart {
                    title: "Achieved bandwidth of each aggressor".into(),
                    axis: Axis::new("bandwidth of each aggressor", "MiB/s"),
                    series,
                    groups,
                    whiskers: "slowest to fastest aggressor",
                    ..BarChart::default()
                }),
            )
        })
    }

    fn throttling(summary: &Summary) -> Vec<Figure> {
        let bar = |case: &Case| {
            let share = throttled(case)?;
            Some(Bar {
                series: 0,
                value: Some(share * 100.0),
                interval: None,
                text: percent(share),
            })
        };
        grouped(summary, bar, |series, groups| {
            Figure::new(
                "throttled",
                "Share of the time in which the guard throttled an aggressor's core, mean over the aggressors.",
                Chart::Bars(BarChart {
                    title: "Throttled time of the aggressors".into(),
                    axis: Axis::new("throttled", "% of the time"),
                    series,
                    groups,
                    reach: 100.0,
                    ..BarChart::default()
                }),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use memwarden_run::Aggressor;
    use memwarden_run::studies::interfere::{Case, Whole};

    use super::*;

    #[test]
    fn budgets_per_bank_have_a_word_and_the_time_for_which_requests_were_held_back() {
        let mut summary = Summary::new("interfere", "sim:raspberry-pi-3");
        let case = |per_bank: bool| {
            let share = |of: bool| of.then_some(0.75);
            let aggressor = Aggressor {
                kind: "bandwidth:write".into(),
                mib_s: Some(30.0),
                throttled_share: share(!per_bank),
                held_back_share: share(per_bank),
                ..Aggressor::default()
            };
            Case {
                guard: Some(GuardSettings {
                    budget_mib_s: vec![None, Some(30.0)],
                    best_effort: "none".into(),
                    per_bank,
                    ..GuardSettings::default()
                }),
                aggressors: vec![aggressor],
                ..Case::default()
            }
        };
        summary.cases.push(case(false));
        let column = |summary: &Summary| {
            let table = aggressor_table(summary);
            table
                .rows
                .iter()
                .map(|row| row[1..].join(" "))
                .collect::<Vec<_>>()
        };
        let plain = column(&summary);
        assert!(plain[0].starts_with("max,30 "), "{plain:?}");
        summary.cases.push(case(true));
        let both = column(&summary);
        assert_eq!(both[0], format!("{} -", plain[0]));
        assert!(both[1].starts_with("max,30, per bank "), "{both:?}");
        assert!(both[1].contains(" - "), "{both:?}");
    }

    /// A run of these kinds of aggressors, one to three of each, without a guard and with each of these budgets.
    #[cfg(feature = "html")]
    fn run_of(kinds: &[&str], budgets: &[f64]) -> Summary {
        let mut summary = Summary::new("interfere", "native");
        let guards = budgets.iter().map(|budget| {
            Some(GuardSettings {
                budget_mib_s: vec![None, Some(*budget)],
                ..GuardSettings::default()
            })
        });
        for guard in std::iter::once(None).chain(guards) {
            let cases = kinds
                .iter()
                .flat_map(|kind| (1..=3).map(move |n| (*kind, n)));
            for (kind, n) in std::iter::once(("", 0)).chain(cases) {
                summary.cases.push(Case {
                    guard: guard.clone(),
                    victim: Some(Metric::from_samples("latency_ns", &[100.0 * n as f64])),
                    slowdown: (n > 0).then_some(n as f64),
                    aggressors: vec![
                        Aggressor {
                            kind: kind.into(),
                            ..Aggressor::default()
                        };
                        n
                    ],
                    ..Case::default()
                });
            }
        }
        summary
    }

    /// The lines of the slowdown charts.
    #[cfg(feature = "html")]
    fn slowdown_lines(summary: &Summary) -> Vec<(String, Vec<crate::plot::Line>)> {
        let figures = charts::of(summary).into_iter();
        let charts = figures.filter_map(|figure| match figure.chart {
            crate::plot::Chart::Xy(chart) => Some((figure.name, chart.lines)),
            _ => None,
        });
        charts.collect()
    }

    #[cfg(feature = "html")]
    #[test]
    fn no_two_lines_of_a_slowdown_chart_look_alike() {
        use crate::plot::Colour;

        let kinds = ["bandwidth:read", "bandwidth:write", "latency"];
        for guards in 1..=9 {
            let budgets: Vec<f64> = (1..=guards).map(f64::from).collect();
            let summary = run_of(&kinds, &budgets);
            let charts = slowdown_lines(&summary);
            let names: std::collections::BTreeSet<&String> =
                charts.iter().map(|(name, _)| name).collect();
            assert_eq!(names.len(), charts.len(), "{guards} guards");
            // As in runs of one kind, and of earlier versions, whose file it replaces.
            assert_eq!(charts[0].0, "slowdown");
            let mut guarded = 0;
            for (name, lines) in &charts {
                assert!(lines.len() <= 6, "{name}");
                // The shape of a mark belongs to its colour.
                for (n, line) in lines.iter().enumerate() {
                    let alike = |other: &crate::plot::Line| other.colour == line.colour;
                    assert!(!lines[..n].iter().any(alike), "{name}: {}", line.name);
                    let without = line.name == "no guard";
                    assert_eq!(line.colour == Colour::UNGUARDED, without, "{name}");
                    if line.colour == Colour::GUARDED {
                        assert_eq!(line.name, "guard max,1");
                    }
                    guarded += usize::from(!without);
                }
            }
            assert_eq!(
                guarded,
                kinds.len() * budgets.len(),
                "each line has a place"
            );
        }
        assert_eq!(
            slowdown_lines(&run_of(&kinds[..1], &[1.0]))[0].0,
            "slowdown"
        );
    }

    #[cfg(feature = "html")]
    #[test]
    fn no_two_bars_of_a_group_have_one_colour() {
        for guards in 1..=14 {
            let budgets: Vec<f64> = (1..=guards).map(f64::from).collect();
            let summary = run_of(&["bandwidth:read"], &budgets);
            let mut guarded = 0;
            for figure in charts::of(&summary) {
                let crate::plot::Chart::Bars(chart) = figure.chart else {
                    continue;
                };
                for group in &chart.groups {
                    let colours = group.bars.iter().map(|bar| chart.series[bar.series].1);
                    let colours: Vec<_> = colours.collect();
                    for (n, colour) in colours.iter().enumerate() {
                        assert!(
                            !colours[..n].contains(colour),
                            "{}: {guards} guards",
                            figure.name
                        );
                    }
                    let named = group.bars.iter().map(|bar| &chart.series[bar.series].0);
                    guarded += named.filter(|name| *name != "no guard").count();
                }
            }
            // Alone, and beside one, two and three.
            assert_eq!(guarded, 4 * budgets.len(), "each case has a place");
        }
    }

    /// Of 127 cores with one budget and one with another, two rows.
    #[test]
    fn of_many_cores_the_worst_of_each_budget_is_shown() {
        let rows = |cores: u32, worse: &[(u32, Option<bool>)]| {
            let held = |cpu| worse.iter().find(|(of, _)| *of == cpu);
            let core = |cpu: u32| Core {
                cpu,
                budget_events: Some(if cpu == 0 { 1000 } else { 100 }),
                largest_period_events: Some(if cpu == 77 { 99 } else { 50 }),
                held: held(cpu).map_or(Some(true), |(_, held)| *held),
                ..Core::default()
            };
            let mut summary = Summary::new("interfere", "native");
            summary.cases.push(Case {
                guard: Some(GuardSettings::default()),
                cores: Some((0..cores).map(core).collect()),
                ..Case::default()
            });
            let rows = budget_table(&summary).rows;
            let cpus = rows.into_iter().map(|row| row[2].clone());
            cpus.collect::<Vec<_>>()
        };
        assert_eq!(rows(16, &[]).len(), 16);
        assert_eq!(rows(128, &[]), ["0", "77 (worst of 127)"]);
        let without_data = (9, None);
        assert_eq!(rows(128, &[without_data]), ["0", "9 (worst of 127)"]);
        let not_held = (5, Some(false));
        for worse in [[without_data, not_held], [not_held, without_data]] {
            assert_eq!(rows(128, &worse), ["0", "5 (worst of 127)"]);
        }
    }

    #[test]
    fn a_victim_in_the_cache_is_told_in_the_finding() {
        let finding = |in_cache| {
            let mut summary = Summary::new("interfere", "native");
            summary.whole = Whole {
                victim_in_cache: in_cache,
                ..Whole::default()
            };
            summary.cases.push(Case {
                slowdown: Some(2.0),
                aggressors: vec![Aggressor::default()],
                ..Case::default()
            });
            finding(&summary).unwrap()
        };
        assert!(finding(Some(true)).contains("not in memory (--victim-memory)"));
        for memory in [Some(false), None] {
            assert!(finding(memory).ends_with("no guard ran."));
        }
    }
}
