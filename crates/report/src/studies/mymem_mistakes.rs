// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mistakes with a memory device, and the device's reaction.

use memwarden_run::studies::mymem_mistakes::{Case, Summary};

use crate::Table;
use crate::by_size::distinct;
use crate::number::{capitalised, counted, percent};

pub(crate) const QUESTION: &str = "Mistakes that a program can make with a memory device, each provoked once: its \
    descriptor is closed while workers use it, an offset lies beyond the end, several programs have it open, a counter \
    is incremented by two \
    calls. What does the device do about each?";

fn lost(summary: &Summary, by_device: bool) -> Option<f64> {
    let of = |case: &&Case| {
        case.lost_share.is_some() && case.done.contains("MYMEM_FETCH_ADD") == by_device
    };
    let shares = summary
        .cases
        .iter()
        .filter(of)
        .filter_map(|case| case.lost_share);
    shares.max_by(f64::total_cmp)
}

pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let judged = summary.cases.iter().filter_map(|case| case.as_expected);
    let (all, right) = judged.fold((0, 0), |(all, right), one| {
        (all + 1, right + usize::from(one))
    });
    let mut parts = Vec::new();
    match all {
        0 if summary.cases.is_empty() => return None,
        0 => parts.push("a file stood in for the device, so nothing is judged".to_owned()),
        _ if right == all => parts.push(format!(
            "all {} had the expected result",
            counted(all, "mistake")
        )),
        _ => parts.push(format!(
            "{right} of {} had the expected result",
            counted(all, "mistake")
        )),
    }
    if let Some(share) = lost(summary, false) {
        parts.push(format!(
            "an increment by two calls lost up to {} of the updates",
            percent(share)
        ));
    }
    if let Some(share) = lost(summary, true) {
        let share = if share == 0.0 {
            "none".to_owned()
        } else {
            percent(share)
        };
        parts.push(format!("one by the device lost {share}"));
    }
    Some(capitalised(&parts.join("; ")) + ".")
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    let subjects = distinct(summary.cases.iter().map(|case| case.subject.as_str()));
    let table = |subject: &str| {
        let cases = summary.cases.iter().filter(|case| case.subject == subject);
        Table::of(format!("Mistakes: {subject}"), cases)
            .words("Mistake", |case| case.mistake.clone())
            .words("what was done", |case| case.done.clone())
            .words("expected", |case| case.expected.clone())
            .words("found", |case| case.found.clone())
            .words("as expected", |case| match case.as_expected {
                Some(true) => "yes".into(),
                Some(false) => "NO".into(),
                None => "-".into(),
            })
            .table()
    };
    subjects.into_iter().map(table).collect()
}

#[cfg(feature = "html")]
pub(crate) fn figures(summary: &Summary, _: &memwarden_run::Recorded) -> Vec<crate::Figure> {
    use crate::plot::{Axis, Bar, BarChart, Chart, Colour, Group};
    let subjects = distinct(summary.cases.iter().map(|case| case.subject.as_str()));
    let groups = subjects.into_iter().map(|subject| Group {
        label: subject.into(),
        bars: summary
            .cases
            .iter()
            .filter(|case| case.subject == subject)
            .filter_map(|case| {
                let share = case.lost_share?;
                Some(Bar {
                    series: usize::from(case.done.contains("MYMEM_FETCH_ADD")),
                    value: Some(100.0 * share),
                    interval: None,
                    text: percent(share),
                })
            })
            .collect(),
    });
    let chart = BarChart {
        title: "Updates lost on a counter".into(),
        axis: Axis::new("lost", "% of the updates"),
        series: vec![
            ("by two calls".into(), Colour::nth(0)),
            ("by the device".into(), Colour::nth(1)),
        ],
        groups: groups.collect(),
        ..BarChart::default()
    };
    vec![crate::Figure::new(
        "lost-updates",
        "An increment by two calls reads the counter and writes it back; another worker can write it in between.",
        Chart::Bars(chart),
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_that_was_not_tried_is_not_counted() {
        let case = |as_expected| Case {
            subject: "C device".into(),
            as_expected,
            ..Case::default()
        };
        let mut summary = Summary::new("mymem-mistakes", "native");
        summary.cases = [Some(true), None, Some(true)].map(case).into();
        let said = |summary: &Summary| finding(summary).unwrap();
        assert_eq!(said(&summary), "All 2 mistakes had the expected result.");
        summary.cases.push(case(Some(false)));
        assert_eq!(said(&summary), "2 of 3 mistakes had the expected result.");
    }
}
