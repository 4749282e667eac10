// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slowdown of an application by the copies of another CPU.

use memwarden_run::Metric;
use memwarden_run::statistics::widened;
use memwarden_run::studies::copy_pollution::{Case, Summary};
use memwarden_run::title::sized;

use crate::Table;
use crate::number::{NOT_MEASURED, capitalised, count, interval, optional, percent, times};

pub(crate) const QUESTION: &str = "One CPU repeats a copy between user and kernel memory while another runs an application. \
    How much longer does the application take beside the CPU's copies, and beside those of a DMA engine, than without any?";

#[cfg(feature = "html")]
fn find<'a>(summary: &'a Summary, application: &str, system: &str, pair: &str) -> Option<&'a Case> {
    summary.cases.iter().find(|case| {
        case.application == application
            && case.system == system
            && case.pair.as_deref() == Some(pair)
    })
}

/// The largest slowdown of each system that its runs show, and how many cases became faster. Each interval is widened
/// for the number of cases: of many without an effect, some exclude 1 by chance.
pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let with_interval = |case: &&Case| case.slowdown.and(case.slowdown_ci95).is_some();
    let all = summary.cases.iter().filter(with_interval).count();
    let widened = |case: &Case| Some(widened(case.slowdown?, case.slowdown_ci95?, all));
    let part = |system: &str, copies: &str| {
        let cases = summary.cases.iter();
        let measured = cases
            .filter(|case| case.system == system)
            .filter_map(|case| Some((case.slowdown?, widened(case), case)));
        let measured: Vec<_> = measured.collect();
        let shown = measured.iter().filter(|(slowdown, widened, _)| {
            *slowdown > 1.0 && widened.is_none_or(|[low, _]| low > 1.0)
        });
        let Some((slowdown, widened, case)) = shown.max_by(|a, b| a.0.total_cmp(&b.0)) else {
            let none = format!("no application was shown to take longer beside {copies} copies");
            return (!measured.is_empty()).then_some(none);
        };
        let which = format!("{}, {}", case.application, sized(case.pair.as_ref()?));
        if widened.is_some_and(|[_, high]| times(high) == "1.00") {
            return Some(format!(
                "an application took longer beside {copies} copies, but by less than 0.5 % ({which})"
            ));
        }
        let interval = match widened {
            Some([low, high]) => format!("95 % interval {} to {}; ", times(*low), times(*high)),
            None => "too few runs for an interval; ".to_owned(),
        };
        Some(format!(
            "an application took up to {} times the time beside {copies} copies ({interval}{which})",
            times(*slowdown),
        ))
    };
    let parts = [part("cpu", "the CPU's"), part("dma", "the engine's")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let faster = summary.cases.iter().filter_map(widened);
    let faster = faster
        .filter(|[low, high]| *high < 1.0 && times(*low) != "1.00")
        .count();
    let faster = match faster {
        0 => String::new(),
        faster => format!(" In {faster} of {all} cases the application took less time."),
    };
    let remark = match all {
        0 | 1 => String::new(),
        all => format!("; intervals are widened for {all} cases"),
    };
    (!parts.is_empty()).then(|| {
        format!(
            "{} (medians, over those without copies{remark}).{faster}",
            capitalised(&parts.join(", and "))
        )
    })
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    if summary.cases.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new("Applications")
        .words("Application")
        .words("System")
        .words("Copy")
        .figures("median", "us")
        .figures("95 % interval", "us")
        .figures("mean", "us")
        .figures("longest", "us")
        .figures("slowdown", "times")
        .figures("95 % interval", "times")
        .figures("cache references", "")
        .figures("misses", "")
        .figures("missed", "")
        .figures("copies", "beside");
    let missing = Metric::default();
    let us = |ns: Option<f64>| optional(ns.map(|ns| ns / 1000.0));
    for case in &summary.cases {
        let Case {
            name: _,
            guard: (),
            victim,
            references,
            misses,
            miss_share,
            application,
            system,
            pair,
            copies,
            // In the notes if below 1.
            engine_share: _,
            running_share: _,
            slowdown,
            slowdown_ci95,
        } = case;
        let time = victim.as_ref().unwrap_or(&missing);
        let median = |metric: &Option<Metric>| metric.as_ref().and_then(|metric| metric.median);
        let missed = median(miss_share).map(percent);
        let slowdown = slowdown.map(times);
        table.row(vec![
            application.clone(),
            system.clone(),
            pair.as_deref().map_or_else(|| "-".into(), sized),
            us(time.median),
            interval(time.median_ci95.map(|ends| ends.map(|ns| ns / 1000.0))),
            us(time.mean),
            us(time.max),
            slowdown.unwrap_or_else(|| "-".into()),
            slowdown_ci95.map_or_else(
                || "-".into(),
                |[low, high]| format!("[{}, {}]", times(low), times(high)),
            ),
            optional(median(references)),
            optional(median(misses)),
            missed.unwrap_or_else(|| NOT_MEASURED.into()),
            copies.map_or_else(|| "-".into(), |copies| count(Some(copies))),
        ]);
    }
    vec![table.caption(
        "The slowdown is the median over the one without copies (ideal). Copies beside are those made during all of the \
         case's runs. Cache references, misses and their share are medians.",
    )]
}

#[cfg(feature = "html")]
pub(crate) use charts::figures;

#[cfg(feature = "html")]
mod charts {
    use memwarden_run::Recorded;
    use memwarden_run::studies::copy_pollution::Summary;

    use super::{find, sized, times};
    use crate::Figure;
    use crate::by_size::{distinct, texts};
    use crate::generic::file_name;
    use crate::plot::{Axis, Bar, BarChart, CI95, Chart, Colour, Group, Reference};

    /// Systems with a slowdown.
    const SYSTEMS: [&str; 2] = ["cpu", "dma"];

    /// One chart for each copy; groups are applications, bars systems.
    pub(crate) fn figures(summary: &Summary, _: &Recorded) -> Vec<Figure> {
        let pairs = summary.cases.iter().filter_map(|case| case.pair.as_deref());
        distinct(pairs)
            .into_iter()
            .map(|pair| {
                let groups = texts(summary, |case| &case.application);
                let groups = groups.into_iter().map(|application| Group {
                    label: application.into(),
                    bars: (0..)
                        .zip(SYSTEMS)
                        .filter_map(|(series, system)| {
                            let case = find(summary, application, system, pair)?;
                            Some(Bar {
                                series,
                                value: case.slowdown,
                                interval: case.slowdown_ci95,
                                text: case.slowdown.map_or_else(|| "not measured".into(), times),
                            })
                        })
                        .collect(),
                });
                let chart = BarChart {
                    title: format!("Slowdown of each application beside copies {}", sized(pair)),
                    axis: Axis::new("time over that without copies", ""),
                    series: (0..)
                        .zip(SYSTEMS)
                        .map(|(n, name)| (name.into(), Colour::nth(n)))
                        .collect(),
                    groups: groups.collect(),
                    reference: Some(Reference::new(1.0, "without copies")),
                    whiskers: CI95,
                    ..BarChart::default()
                };
                Figure::new(
                    &format!("slowdown-{}", file_name(pair)),
                    "Ratios of medians.",
                    Chart::Bars(chart),
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(ratios: &[(f64, [f64; 2])]) -> String {
        let mut summary = Summary::new("copy-pollution", "native");
        for (slowdown, interval) in ratios {
            summary.cases.push(Case {
                application: "susan".into(),
                system: "cpu".into(),
                pair: Some("to:16".into()),
                slowdown: Some(*slowdown),
                slowdown_ci95: Some(*interval),
                ..Case::default()
            });
        }
        finding(&summary).unwrap().replace('\u{a0}', " ")
    }

    #[test]
    fn a_slowdown_must_exceed_what_so_many_cases_have_by_chance() {
        let chance = (1.02, [1.004, 1.036]);
        let mut many = vec![chance];
        assert_eq!(
            said(&many),
            "An application took up to 1.02 times the time beside the CPU's copies (95 % interval 1.00 to 1.04; susan, to \
             user memory, 16 B) (medians, over those without copies)."
        );
        many.extend([(1.0, [0.99, 1.01]); 65]);
        assert_eq!(
            said(&many),
            "No application was shown to take longer beside the CPU's copies (medians, over those without copies; \
             intervals are widened for 66 cases)."
        );
        many.push((2.0, [1.9, 2.1]));
        assert!(said(&many).starts_with("An application took up to 2.00 times the time"));
    }

    #[test]
    fn small_and_negative_effects_are_said_to_be_such() {
        assert!(said(&[(1.003, [1.002, 1.004])]).starts_with(
            "An application took longer beside the CPU's copies, but by less than 0.5 % (susan,"
        ));
        assert!(
            said(&[(0.8, [0.79, 0.81])])
                .ends_with(" In 1 of 1 cases the application took less time.")
        );
    }
}
