// SPDX-License-Identifier: MIT OR Apache-2.0
//! The deadline case: a real-time task alone and beside a load, under each guard setting.

use memwarden_run::studies::realtime::{Case, Summary, Whole};
use memwarden_run::title::on_cpus;
use memwarden_run::{Aggressor, Metric};

use super::interfere::{guard_cell, guard_text};
use crate::Table;
use crate::number::{
    NOT_MEASURED, bytes, count, counted, figure, interval, optional, optional_percent,
    optional_times, order, percent, times,
};
use crate::table::Rows;

pub(crate) const QUESTION: &str = "A real-time task goes over a frame of memory once a period and must finish each \
    time before its deadline. How often is it late while a load on another core moves memory, and which budgets bring \
    that to nothing?";

/// Nanoseconds in a millisecond.
const MS: f64 = 1e6;

/// Nanoseconds in a microsecond.
const US: f64 = 1e3;

/// The load beside the task: `alone`, `screen`, `bandwidth:write on 3 CPUs`.
fn company(case: &Case) -> String {
    on_cpus(&case.aggressors)
}

/// Missed deadlines and their total number.
#[derive(Clone, Copy)]
struct Deadlines {
    missed: f64,
    of: f64,
}

impl Deadlines {
    fn of(case: &Case) -> Option<Self> {
        Some(Self {
            missed: case.misses? as f64,
            of: case.releases.filter(|n| *n > 0)? as f64,
        })
    }

    fn share(self) -> f64 {
        self.missed / self.of
    }

    fn text(self) -> String {
        if self.missed == 0.0 {
            format!("none of {} deadlines", figure(self.of))
        } else {
            format!("{} of {} deadlines", figure(self.missed), figure(self.of))
        }
    }
}

/// Sort key of a case: misses first, then the 99th percentile.
fn badness(case: &Case) -> Option<(f64, f64)> {
    let slow = case.victim.as_ref().and_then(|m| m.p99).unwrap_or(0.0);
    Some((Deadlines::of(case)?.share(), slow))
}

fn by_badness(a: &&Case, b: &&Case) -> std::cmp::Ordering {
    order(badness(a), badness(b))
}

/// True if the intervals of the miss ratios overlap.
fn alike(a: &Case, b: &Case) -> bool {
    match (a.miss_share_ci95, b.miss_share_ci95) {
        (Some(a), Some(b)) => a[0] <= b[1] && b[0] <= a[1],
        _ => false,
    }
}

/// The load with the largest effect: by misses if they differ from those of the task alone, otherwise by the median.
fn worst<'a>(loads: impl Iterator<Item = &'a Case>, alone: Option<&Case>) -> Option<&'a Case> {
    let loads: Vec<_> = loads.collect();
    let late = loads
        .iter()
        .copied()
        .filter(|case| alone.is_none_or(|alone| !alike(case, alone)));
    let slow = |a: &&Case, b: &&Case| order(a.slowdown, b.slowdown);
    late.max_by(by_badness)
        .or_else(|| loads.iter().copied().max_by(slow))
}

pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let measured = || summary.cases.iter().filter(|c| Deadlines::of(c).is_some());
    let beside = |guarded: bool| {
        measured().filter(move |c| !c.aggressors.is_empty() && c.guard.is_some() == guarded)
    };
    let alone = measured().find(|c| c.aggressors.is_empty());
    let worst = worst(beside(false), alone);
    let case = worst
        .or_else(|| beside(true).max_by(by_badness))
        .or(alone)?;
    let mut text = if case.aggressors.is_empty() {
        format!("Alone the task missed {}", Deadlines::of(case)?.text())
    } else {
        let missed = Deadlines::of(case)?.text();
        format!("Beside {} the task missed {missed}", company(case))
    };
    text += &match &case.guard {
        None => " without the guard".to_owned(),
        guard => format!(" with {}", guard_text(guard.as_ref())),
    };
    if let Some(alone) = alone.filter(|_| !case.aggressors.is_empty()) {
        let missed = Deadlines::of(alone)?;
        let missed = missed.text().replace(" deadlines", "");
        // Fewer misses than alone are no difference either: other work of the machine varies.
        let verdict = if alike(case, alone) && case.guard.is_none() {
            ", no difference shown"
        } else {
            ""
        };
        text += &format!(" (alone {missed}{verdict})");
    }
    if case.guard.is_none() && !case.aggressors.is_empty() {
        let same = beside(true).filter(|c| company(c) == company(case));
        match same.min_by(by_badness) {
            Some(best) => {
                let missed = Deadlines::of(best)?.text().replace(" deadlines", "");
                text += &format!(", and {missed} with {}", guard_text(best.guard.as_ref()));
            }
            None => text += "; no guard ran",
        }
    }
    if let (Some(ratio), Some([low, high])) = (case.slowdown, case.slowdown_ci95) {
        if !case.aggressors.is_empty() && case.guard.is_none() {
            text += &format!(
                "; unguarded, its median job took {} times as long as alone (95 % interval {} to {})",
                times(ratio),
                times(low),
                times(high)
            );
        }
    }
    Some(text + ".")
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    let cases: Vec<_> = summary
        .cases
        .iter()
        .filter(|c| c.victim.is_some())
        .collect();
    if cases.is_empty() {
        return Vec::new();
    }
    let mut tables = vec![deadlines(summary, &cases), job_times(&cases)];
    let loads = loads(summary, &cases);
    if !loads.rows.is_empty() {
        tables.push(loads);
    }
    tables.push(apart(&cases));
    tables
}

fn deadlines(summary: &Summary, cases: &[&Case]) -> Table {
    let interval = |case: &Case| {
        let ends = case.miss_share_ci95;
        ends.map(|[low, high]| format!("[{}, {}]", percent(low), percent(high)))
    };
    let mut table = beside_the_task("Deadlines", cases)
        .figures("missed", "", |case| count(case.misses))
        .figures("of", "", |case| count(case.releases))
        .figures("missed", "of all", |case| optional_percent(case.miss_share))
        .figures("95 % interval", "of all", |case| {
            interval(case).unwrap_or_else(|| NOT_MEASURED.into())
        })
        .figures("skipped", "", |case| count(case.skipped))
        .table();
    table.drop_columns_of("0");
    let skipped = if is_program(summary) {
        "A period in which no job begins counts as skipped and as a miss."
    } else {
        "A job is skipped when the one before it still runs at its release; it counts as a miss."
    };
    table.caption(format!(
        "{}The interval is Wilson's. {skipped}",
        task(summary)
    ))
}

/// A table of the cases that begins with the load and the guard.
fn beside_the_task<'a>(title: &str, cases: &[&'a Case]) -> Rows<&'a Case> {
    Table::of(title, cases.iter().copied())
        .words("Beside the task", |case| company(case))
        .words("Guard", |case| guard_cell(case.guard.as_ref()))
}

/// True if the task is a user's program.
fn is_program(summary: &Summary) -> bool {
    summary.whole.access.starts_with("cmd:")
}

/// The task in a sentence; empty if the run doesn't describe it.
fn task(summary: &Summary) -> String {
    let Whole {
        frame_bytes,
        period_ns: Some(period),
        deadline_ns: Some(deadline),
        access,
        // In the notes.
        self_test: _,
        // In the settings.
        real_time: _,
    } = &summary.whole
    else {
        return String::new();
    };
    let (period, deadline) = (figure(*period as f64 / MS), figure(*deadline as f64 / MS));
    match frame_bytes {
        Some(frame) => format!(
            "The task goes over {} every {period} ms and must finish within {deadline} ms. ",
            bytes(*frame)
        ),
        None if is_program(summary) => format!(
            "The task, `{access}`, has a job every {period} ms, which must finish within {deadline} ms. "
        ),
        None => String::new(),
    }
}

fn scaled(value: Option<f64>, unit: f64) -> String {
    optional(value.map(|v| v / unit))
}

fn job_times(cases: &[&Case]) -> Table {
    let ms =
        |case: &Case, of: fn(&Metric) -> Option<f64>| scaled(case.victim.as_ref().and_then(of), MS);
    beside_the_task("Job times, from release to end", cases)
        .figures("min", "ms", |case| ms(case, |m| m.min))
        .figures("median", "ms", |case| ms(case, |m| m.median))
        .figures("99 %", "ms", |case| ms(case, |m| m.p99))
        .figures("max", "ms", |case| ms(case, |m| m.max))
        .figures("median over alone", "times", |case| {
            optional_times(case.slowdown)
        })
        .figures("95 % interval", "times", |case| {
            interval(case.slowdown_ci95)
        })
        .table()
        .caption("Of the jobs that ran. \u{201c}Alone\u{201d} is the first case.")
}

/// Figures of the load, and the throttled times of load and task.
fn loads(summary: &Summary, cases: &[&Case]) -> Table {
    let mut table = Table::new("The load")
        .words("Load")
        .words("Guard")
        .words("CPU")
        .figures("moved", "MiB/s")
        .figures("CPU share", "of the time")
        .figures("throttled", "of the time")
        .figures("held back", "of the time")
        .figures("task throttled", "of the time");
    let share = |value: Option<f64>| value.map_or_else(|| "-".into(), percent);
    for case in cases {
        for load in &case.aggressors {
            let Aggressor {
                cpu,
                kind,
                mib_s,
                throttled_share,
                held_back_share,
                cpu_share,
                more: _,
            } = load;
            table.row(vec![
                kind.clone(),
                guard_cell(case.guard.as_ref()),
                cpu.to_string(),
                mib_s.map_or_else(|| "-".into(), figure),
                share(cpu_share.flatten()),
                share(*throttled_share),
                share(*held_back_share),
                share(case.throttled_share.flatten()),
            ]);
        }
    }
    table.drop_columns_of("-");
    table.caption(if summary.target.starts_with("sim:") {
        "While the task ran; CPU time as simulated."
    } else {
        "MiB/s from the load's start to its end. Shares of the time in which the task ran; CPU time as the kernel accounts for it."
    })
}

fn apart(cases: &[&Case]) -> Table {
    let jitter = |case: &Case, of: fn(&Metric) -> Option<f64>| {
        scaled(case.release_jitter.as_ref().and_then(of), US)
    };
    let job = |case: &Case, of: fn(&Metric) -> Option<f64>| {
        scaled(case.execution.as_ref().and_then(of), MS)
    };
    let table = beside_the_task("Release jitter and execution time", cases)
        .figures("jitter, median", "us", |case| jitter(case, |m| m.median))
        .figures("jitter, 99 %", "us", |case| jitter(case, |m| m.p99))
        .figures("jitter, max", "us", |case| jitter(case, |m| m.max))
        .figures("job, median", "ms", |case| job(case, |m| m.median))
        .figures("job, 99 %", "ms", |case| job(case, |m| m.p99))
        .figures("job, max", "ms", |case| job(case, |m| m.max))
        .table();
    let jobs = cases.iter().filter_map(|c| c.victim.as_ref());
    let most = jobs.map(|m| m.samples).max().unwrap_or(0);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    table.caption(format!(
        "Jitter is from the planned release to the job's start, the job from there to its end; {} at most in a case.",
        counted(most, "job")
    ))
}

#[cfg(feature = "html")]
pub(crate) use charts::figures;

#[cfg(feature = "html")]
mod charts {
    use memwarden_run::Recorded;
    use memwarden_run::studies::realtime::{Case, Summary};

    use super::{Deadlines, MS, US};
    use crate::Figure;
    use crate::number::{figure, percent};
    use crate::plot::{Axis, Chart, Colour, Histogram, Panel, Reference};

    /// Ratio of maximum to median from which an axis would squeeze the distribution.
    const LONG_TAIL: f64 = 8.0;

    pub(crate) fn figures(summary: &Summary, recorded: &Recorded) -> Vec<Figure> {
        let deadline = summary.whole.deadline_ns.map(|ns| ns as f64);
        let deadline =
            deadline.map(|ns| Reference::new(ns / MS, format!("deadline: {} ms", figure(ns / MS))));
        let times = distribution(
            summary,
            recorded,
            "response_ns",
            MS,
            ("job time", "ms"),
            ("Job times against the deadline", deadline),
            |case| {
                let missed = Deadlines::of(case).map(|d| percent(d.share()));
                missed.map_or_else(String::new, |share| format!(": {share} missed"))
            },
        );
        let jitter = distribution(
            summary,
            recorded,
            "release_jitter_ns",
            US,
            ("release jitter", "us"),
            ("From planned release to start", None),
            |_| String::new(),
        );
        let how = "The height of a bar is its share of the jobs that ran.";
        [
            times.map(|chart| {
                Figure::new(
                    "job-times",
                    format!("From planned release to end. {how}"),
                    chart,
                )
            }),
            jitter.map(|chart| Figure::new("release-jitter", how, chart)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// One panel for each case, over the same axis.
    fn distribution(
        summary: &Summary,
        recorded: &Recorded,
        metric: &str,
        unit: f64,
        (name, unit_name): (&str, &str),
        (title, reference): (&str, Option<Reference>),
        remark: impl Fn(&Case) -> String,
    ) -> Option<Chart> {
        let mut panels = Vec::new();
        for case in &summary.cases {
            let of_case = recorded
                .samples
                .iter()
                .filter(|s| s.case == case.name && s.metric == metric);
            let samples: Vec<f64> = of_case.filter_map(|s| Some(s.value? / unit)).collect();
            panels.push(Panel {
                label: format!("{}{}", case.title(), remark(case)),
                samples,
                colour: if case.guard.is_some() {
                    Colour::GUARDED
                } else {
                    Colour::UNGUARDED
                },
            });
        }
        let mut all: Vec<f64> = panels.iter().flat_map(|p| p.samples.clone()).collect();
        all.sort_unstable_by(f64::total_cmp);
        let (first, last) = (*all.first()?, *all.last()?);
        let tailed = first > 0.0 && last / memwarden_run::statistics::median(&all) > LONG_TAIL;
        let axis = Axis::new(name, unit_name);
        Some(Chart::Histogram(Histogram {
            title: title.into(),
            axis: if tailed { axis.log() } else { axis },
            series: [("no guard", Colour::UNGUARDED), ("guard", Colour::GUARDED)]
                .map(|(name, colour)| (name.into(), colour))
                .into(),
            panels,
            reference,
            tail: 99.0,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_period_without_a_job_is_not_called_an_overrun() {
        let caption = |access: &str| {
            let mut summary = Summary::new("realtime", "native");
            summary.whole.access = access.into();
            let case = Case::default();
            deadlines(&summary, &[&case]).caption
        };
        let overrun = "when the one before it still runs";
        assert!(caption("bandwidth:read").contains(overrun));
        let of_program = caption("cmd: ./player");
        assert!(!of_program.contains(overrun) && of_program.contains("no job begins"));
    }
}
