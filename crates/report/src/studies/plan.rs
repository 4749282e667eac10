// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a deadline to budgets: the recommended setting, the other settings, and the numbers that would spoil it.

use std::collections::BTreeSet;

use memwarden_run::GuardSettings;
use memwarden_run::studies::plan::{Case, Choice, Outcome, Summary, Verdict, Verified, Whole};

use crate::Table;
use crate::number::{NOT_MEASURED, bytes, capitalised, counted, percent, time_text};
use crate::table::Rows;

pub(crate) const QUESTION: &str = "A task reads its frame once a period and must finish each time before its deadline. \
    Which budgets achieve that while the load beside it keeps as much bandwidth as possible? The figures are a \
    model's.";

/// A figure with a fixed number of decimals, so that the figures of a column align.
fn fixed(value: f64, digits: usize) -> String {
    format!("{value:.digits$}")
}

fn unguarded(summary: &Summary) -> Option<&Case> {
    summary.cases.iter().find(|case| case.name == "no guard")
}

fn of_unguarded(case: &Case, summary: &Summary) -> Option<f64> {
    let all = unguarded(summary)?.load_mib_s;
    (all > 0.0).then(|| case.load_mib_s / all)
}

/// A time of the settings, in microseconds.
fn time_of(us: u64) -> String {
    time_text(us as f64 * 1e3)
}

/// `670,250,250,250 MB/s, spare, in periods of 2 ms`.
fn setting(case: &Case) -> String {
    let Some(guard) = &case.guard else {
        return "no guard".into();
    };
    let period = time_of(guard.period_us.unwrap_or_default());
    let budgets = guard.budgets_text();
    match guard.best_effort.as_str() {
        "none" => format!("{budgets} MB/s in periods of {period}"),
        shared => format!("{budgets} MB/s, {shared}, in periods of {period}"),
    }
}

/// The changes that spoil the choice: `work.frame_ps 26300 -> 28930`.
fn spoilers(choice: &Choice) -> Vec<String> {
    let missed = choice.sensitivity.iter().filter(|one| !one.case.reached);
    missed
        .map(|one| format!("{} {} -> {}", one.number, one.is, one.were))
        .collect()
}

/// `1.28 ms before its deadline`.
fn ends(case: &Case) -> String {
    let side = if case.margin_ms < 0.0 {
        "after"
    } else {
        "before"
    };
    format!("{} ms {side} its deadline", fixed(case.margin_ms.abs(), 2))
}

/// `none of 20 jobs is late, which leaves up to 13.9 % possible (95 % confidence)`.
fn shown(choice: &Choice, whole: &Whole) -> String {
    let late = match choice.late {
        0 => "none".to_owned(),
        late => late.to_string(),
    };
    let tested = match choice.candidate {
        0 | 1 => String::new(),
        nth => format!(", {nth} candidates tested"),
    };
    format!(
        "{late} of {} jobs {} late, which leaves up to {} possible ({} confidence{tested})",
        choice.jobs,
        if choice.late > 1 { "are" } else { "is" },
        percent(choice.most_late),
        percent(whole.confidence)
    )
}

fn verdict(choice: &Choice, whole: &Whole) -> String {
    match choice.verdict {
        Verdict::Robust => {
            let numbers: BTreeSet<&str> = choice
                .sensitivity
                .iter()
                .map(|one| one.number.as_str())
                .collect();
            let some = match choice.untried.len() {
                0 => String::new(),
                untried => format!(" ({untried} not tried)"),
            };
            // The share in each run, while the setting itself must show it with a confidence.
            let shares = match whole.miss_ratio {
                0.0 => String::new(),
                share => format!(
                    ": with each change at most {} of these jobs are late, which no confidence covers",
                    percent(share)
                ),
            };
            let any = match numbers.len() {
                1 => "the platform's uncertain number".to_owned(),
                several => format!("any of the platform's {several} uncertain numbers"),
            };
            format!(
                "robust: in {} jobs the goal is still reached with {any} at least 10 % lower or higher{some}{shares}",
                choice.jobs,
            )
        }
        Verdict::Fragile => {
            let spoilers = spoilers(choice);
            let spoil = if spoilers.len() == 1 {
                "spoils"
            } else {
                "each spoil"
            };
            format!("fragile: {} {spoil} it", spoilers.join(", "))
        }
        Verdict::Unknown => {
            "not known: no uncertain number of the platform ([fit]) was tried".into()
        }
    }
}

pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let alone = summary.cases.iter().find(|case| case.name == "alone")?;
    let whole = &summary.whole;
    let Some(choice) = &whole.recommended else {
        return Some(format!(
            "No setting reaches the goal; alone, the longest job ends {}.",
            ends(alone)
        ));
    };
    let case = &choice.case;
    let mut text = if case.guard.is_none() {
        let shown = shown(choice, whole);
        let verdict = verdict(choice, whole);
        match choice.verdict {
            Verdict::Fragile => format!(
                "The task reaches its goal without a guard ({shown}), but that is {verdict}"
            ),
            _ => format!("Nothing has to be regulated: {shown}. That is {verdict}"),
        }
    } else {
        let kept = of_unguarded(case, summary).map_or_else(String::new, |share| {
            format!(", and the load keeps {}", percent(share))
        });
        format!(
            "With {} the longest job ends {}{kept}. The setting is {}",
            setting(case),
            ends(case),
            verdict(choice, whole)
        )
    };
    match (&whole.robust, choice.verdict) {
        (Some(robust), _) => {
            let kept = of_unguarded(&robust.case, summary).map_or_else(String::new, |share| {
                format!(", at {} of the load", percent(share))
            });
            text += &format!("; {} is robust{kept}", setting(&robust.case));
        }
        (None, Verdict::Fragile) => text += "; no setting that was tried is robust",
        (None, _) => {}
    }
    Some(text + ".")
}

/// Adds the columns of a setting's figures.
fn with_figures<T>(rows: Rows<T>, summary: &Summary, of: impl Fn(&T) -> &Case) -> Rows<T> {
    let share = |case: &Case| of_unguarded(case, summary);
    rows.figures("missed", "%", |one| fixed(100.0 * of(one).miss_share, 1))
        .figures("p99", "ms", |one| fixed(of(one).p99_ms, 2))
        .figures("margin", "ms", |one| fixed(of(one).margin_ms, 2))
        .figures("load", "MB/s", |one| fixed(of(one).load_mib_s, 0))
        .figures("of unguarded", "%", |one| {
            share(of(one)).map_or_else(|| NOT_MEASURED.into(), |share| fixed(100.0 * share, 1))
        })
        .figures("memory", "GB/s", |one| {
            fixed(of(one).traffic.memory_gb_s, 2)
        })
        .figures("of peak", "%", |one| {
            fixed(100.0 * of(one).traffic.memory_peak_share, 1)
        })
}

fn settings_table(title: &str, cases: &[&Case], summary: &Summary) -> Table {
    let period = |case: &Case| Some(time_of(case.guard.as_ref()?.period_us?));
    let rows = Table::of(title, cases)
        .words("Budgets (MB/s)", |case| {
            let guard = case.guard.as_ref();
            guard.map_or_else(|| case.name.clone(), GuardSettings::budgets_text)
        })
        .words("best effort", |case| {
            let guard = case.guard.as_ref();
            guard.map_or("-", |guard| &guard.best_effort).into()
        })
        .words("period", |case| period(case).unwrap_or_else(|| "-".into()));
    with_figures(rows, summary, |case| case).table()
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    let whole = &summary.whole;
    let mut tables = Vec::new();
    let choices: Vec<(&str, &Choice)> = [
        ("Recommended", &whole.recommended),
        ("Robust alternative", &whole.robust),
    ]
    .into_iter()
    .filter_map(|(name, choice)| Some((name, choice.as_ref()?)))
    .collect();
    for (title, choice) in &choices {
        let table = settings_table(title, &[&choice.case], summary);
        let enough = match whole.jobs_needed {
            Some(jobs) => format!(
                " At most {} late takes {jobs} jobs of the first candidate, all in time.",
                percent(whole.miss_ratio)
            ),
            None => String::new(),
        };
        tables.push(table.caption(format!(
            "It is {}. {}.{enough}",
            verdict(choice, whole),
            capitalised(&shown(choice, whole))
        )));
        if !choice.commands.is_empty() {
            let mut table = Table::new(format!("{title}: the commands")).words("On the board");
            for command in &choice.commands {
                table.row(vec![command.clone()]);
            }
            tables.push(table);
        }
    }
    if let Some(verified) = &whole.verified {
        tables.push(verified_table(verified));
    }
    let front = |case: &&Case| whole.front.contains(&case.name) || case.name == "alone";
    let mut best: Vec<&Case> = summary.cases.iter().filter(front).collect();
    best.sort_by(|a, b| b.load_mib_s.total_cmp(&a.load_mib_s));
    let tried = settings_table("The best of the settings that were tried", &best, summary);
    tables.push(tried.caption(format!(
        "{} on {}, {} ({} GB/s peak): {} each {}, in time within {}; {} a run. None of the {} that were tried has both \
         more load and an earlier longest job than one of these.",
        whole.task,
        whole.platform,
        whole.memory,
        fixed(whole.memory_peak_gb_s, 2),
        bytes(whole.frame_bytes),
        time_of(whole.period_us),
        time_of(whole.deadline_us - whole.margin_us.min(whole.deadline_us)),
        counted(usize::try_from(whole.jobs).unwrap_or(usize::MAX), "job"),
        counted(summary.cases.len().saturating_sub(2), "setting"),
    )));
    for (title, choice) in &choices {
        if choice.sensitivity.is_empty() {
            continue;
        }
        let title = format!("{title}: the same setting with other numbers");
        let rows = Table::of(title, &choice.sensitivity)
            .words("Number of the platform", |one| one.number.clone())
            .figures("is", "", |one| one.is.to_string())
            .figures("were", "", |one| one.were.to_string())
            .figures("change", "%", |one| change(one.is, one.were));
        let table = with_figures(rows, summary, |one| &one.case)
            .words("goal", |one| match one.case.reached {
                true => "reached".into(),
                false => "MISSED".into(),
            })
            .table();
        let untried = if choice.untried.is_empty() {
            String::new()
        } else {
            format!(" Not tried: {}.", choice.untried.join(", "))
        };
        tables.push(table.caption(format!(
            "Each number that is in no datasheet is lowered and raised by at least 10 %, in a run of {}.{untried}",
            counted(usize::try_from(choice.jobs).unwrap_or(usize::MAX), "job"),
        )));
    }
    tables
}

/// Relative change of a number, percent: `-10.0`.
fn change(is: u64, were: u64) -> String {
    format!("{:+.1}", 100.0 * (were as f64 / is as f64 - 1.0))
}

fn verified_table(verified: &Verified) -> Table {
    let rows: [(&str, Option<&Outcome>); 4] = [
        ("predicted, no guard", Some(&verified.predicted_unguarded)),
        ("measured, no guard", Some(&verified.unguarded)),
        ("predicted, with the setting", Some(&verified.predicted)),
        ("measured, with the setting", verified.guarded.as_ref()),
    ];
    let rows = rows
        .into_iter()
        .filter_map(|(name, one)| Some((name, one?)));
    let title = format!("Predicted against measured ({})", verified.place);
    Table::of(title, rows)
        .words("", |(name, _)| (*name).into())
        .figures("missed", "%", |(_, one)| fixed(100.0 * one.miss_share, 1))
        .figures("p99", "ms", |(_, one)| {
            one.p99_ms
                .map_or_else(|| NOT_MEASURED.into(), |ms| fixed(ms, 2))
        })
        .figures("load", "MB/s", |(_, one)| fixed(one.load_mib_s, 0))
        .figures("of unguarded", "%", |(_, one)| {
            fixed(100.0 * one.load_share, 1)
        })
        .table()
}

/// Charts: the load against the longest job, and the margin with changed numbers.
#[cfg(feature = "html")]
pub(crate) fn figures(summary: &Summary, _: &memwarden_run::Recorded) -> Vec<crate::Figure> {
    use crate::plot::{Axis, Bar, BarChart, Chart, Colour, Group, Line, Point, Reference, XyChart};

    let whole = &summary.whole;
    let point = |case: &Case| Point::at(case.load_mib_s, case.worst_ms);
    let of_mode = |mode: &str, name: &str, colour: usize| {
        let with = |case: &&Case| {
            case.guard
                .as_ref()
                .is_some_and(|guard| guard.best_effort == mode)
        };
        let mut points: Vec<Point> = summary.cases.iter().filter(with).map(point).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Line {
            name: name.into(),
            colour: Colour::nth(colour),
            points,
        }
    };
    let single = |case: Option<&Case>, name: &str, colour: Colour| Line {
        name: name.into(),
        colour,
        points: case.map(point).into_iter().collect(),
    };
    let chosen = |choice: &'_ Option<Choice>| choice.as_ref().map(|choice| choice.case.clone());
    let mut lines = vec![
        of_mode("none", "budgets alone", 0),
        of_mode("spare", "spare", 1),
        of_mode("proportional", "proportional", 2),
        single(unguarded(summary), "no guard", Colour::UNGUARDED),
        single(
            chosen(&whole.recommended).as_ref(),
            "recommended",
            Colour::GUARDED,
        ),
        single(
            chosen(&whole.robust).as_ref(),
            "robust alternative",
            Colour::nth(5),
        ),
    ];
    lines.retain(|line| !line.points.is_empty());
    let ms = |us: u64| us as f64 / 1e3;
    let limit = whole.deadline_us - whole.margin_us.min(whole.deadline_us);
    let mut references = vec![Reference::new(ms(whole.deadline_us), "deadline")];
    if whole.margin_us > 0 {
        references.insert(0, Reference::new(ms(limit), "deadline less the margin"));
    }
    let tried = XyChart {
        title: "The load's traffic and the longest job's time".into(),
        x: Axis::new("load", "MB/s"),
        y: Axis::new("longest job", "ms"),
        lines,
        references,
        y_from_data: true,
        ..XyChart::default()
    };
    let mut figures = vec![crate::Figure::new(
        "settings",
        "Each point is a tried setting; lines join those with the same sharing. Good settings are at the bottom right.",
        Chart::Xy(tried),
    )];
    for (title, name, choice) in [
        ("recommended setting", "sensitivity", &whole.recommended),
        ("robust alternative", "sensitivity-robust", &whole.robust),
    ] {
        let Some(choice) = choice
            .as_ref()
            .filter(|choice| !choice.sensitivity.is_empty())
        else {
            continue;
        };
        let mut groups: Vec<Group> = Vec::new();
        for one in &choice.sensitivity {
            let bar = Bar {
                series: usize::from(one.were > one.is),
                value: Some(one.case.margin_ms),
                interval: None,
                text: format!("{} ms", fixed(one.case.margin_ms, 2)),
            };
            Group::add(&mut groups, one.number.clone(), bar);
        }
        let chart = BarChart {
            title: format!("Margin of the {title} if a number of the platform is wrong"),
            axis: Axis::new("from the longest job's end to its deadline", "ms"),
            series: vec![
                ("at least 10 % less".into(), Colour::nth(0)),
                ("at least 10 % more".into(), Colour::nth(1)),
            ],
            groups,
            reference: Some(Reference {
                value: ms(whole.margin_us),
                label: if whole.margin_us > 0 {
                    "the requested margin"
                } else {
                    "deadline"
                }
                .into(),
            }),
            ..BarChart::default()
        };
        figures.push(crate::Figure::new(
            name,
            "Bars to the left of the line are of a job that is late.",
            Chart::Bars(chart),
        ));
    }
    figures
}

#[cfg(test)]
mod tests {
    use memwarden_run::studies::plan::Sensitivity;

    use super::*;

    fn case(name: &str, margin_ms: f64) -> Case {
        Case {
            name: name.into(),
            margin_ms,
            load_mib_s: 800.0,
            reached: margin_ms >= 0.0,
            ..Case::default()
        }
    }

    fn choice(case: Case, changed_margin_ms: f64) -> Choice {
        let changed = Case {
            margin_ms: changed_margin_ms,
            reached: changed_margin_ms >= 0.0,
            ..case.clone()
        };
        Choice {
            case,
            jobs: 20,
            verdict: if changed.reached {
                Verdict::Robust
            } else {
                Verdict::Fragile
            },
            sensitivity: vec![Sensitivity {
                number: "machine.core.mshrs".into(),
                is: 3,
                were: 2,
                case: changed,
            }],
            ..Choice::default()
        }
    }

    fn summary(alone_ms: f64, recommended: Option<Choice>, robust: Option<Choice>) -> Summary {
        let mut summary = Summary::new("plan", "sim:x");
        summary.cases = vec![case("alone", alone_ms), case("no guard", 0.1)];
        summary.whole.confidence = 0.95;
        (summary.whole.recommended, summary.whole.robust) = (recommended, robust);
        summary
    }

    #[test]
    fn no_guard_has_a_verdict_and_an_alternative_too() {
        let mut guarded = choice(case("g", 0.5), 0.3);
        guarded.case.load_mib_s = 400.0;
        guarded.case.guard = Some(memwarden_run::GuardSettings {
            budget_mib_s: vec![Some(670.0), Some(700.0)],
            best_effort: "spare".into(),
            period_us: Some(1000),
            ..memwarden_run::GuardSettings::default()
        });
        let unguarded = choice(case("no guard", 0.1), -0.2);
        let said = finding(&summary(1.0, Some(unguarded), Some(guarded))).unwrap();
        assert!(
            said.starts_with("The task reaches its goal without a guard"),
            "{said}"
        );
        for part in [
            "but that is fragile: machine.core.mshrs 3 -> 2 spoils it; ",
            "670,700 MB/s, spare, in periods of 1 ms is robust, at 50\u{a0}% of the load.",
        ] {
            assert!(said.contains(part), "{said}");
        }
        let mut robust = choice(case("no guard", 0.1), 0.1);
        robust.untried = vec!["work.frame_ps (it is 0)".into()];
        let summary = summary(1.0, Some(robust), None);
        let said = finding(&summary).unwrap();
        assert!(said.starts_with("Nothing has to be regulated: "), "{said}");
        let part = "That is robust: in 20 jobs the goal is still reached with the platform's uncertain number at least 10 % \
                    lower or higher (1 not tried).";
        assert!(said.contains(part), "{said}");
        let mut share = summary.clone();
        share.whole.miss_ratio = 0.01;
        let said = finding(&share).unwrap();
        let part = "lower or higher (1 not tried): with each change at most 1\u{a0}% of these jobs are late, which no \
                    confidence covers.";
        assert!(said.contains(part), "{said}");
        let tables = tables(&summary);
        let table = tables.last().unwrap().to_text(None);
        assert!(table.contains("-33.3"), "{table}");
        for part in ["in a run of 20 jobs", "Not tried: work.frame_ps (it is 0)."] {
            assert!(table.contains(part), "{table}");
        }
    }

    #[test]
    fn a_job_that_is_late_ends_after_its_deadline() {
        let said = finding(&summary(-3.2, None, None)).unwrap();
        assert!(
            said.ends_with("the longest job ends 3.20 ms after its deadline."),
            "{said}"
        );
        let mut late = choice(case("g", -0.5), 0.3);
        late.case.guard = Some(memwarden_run::GuardSettings::default());
        let said = finding(&summary(3.2, Some(late), None)).unwrap();
        assert!(
            said.contains("the longest job ends 0.50 ms after its deadline"),
            "{said}"
        );
    }
}
