// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard run --cgroup`: runs a command in a control group with a budget.

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use clap::ValueEnum;
use memwarden_guard::budget::Request;
use memwarden_guard::group::{GroupGuard, GroupOptions, Spread, StopWith, Summary};
use memwarden_guard::meaning_of;
use serde::Serialize;
use signal_hook::iterator::Signals;

use super::{BackendName, Run, enter, supervise};
use crate::verbs::output::errln;

/// How a group is stopped.
#[derive(Clone, Copy, ValueEnum)]
pub(super) enum StopWithName {
    /// The group's freezer: every thread stops at once
    Freezer,
    /// Minimal CPU bandwidth: slower, and each stop lets 1 ms of CPU time through
    CpuMax,
}

pub(super) fn run(args: &Run, cgroup: &Path, signals: Signals) -> anyhow::Result<ExitCode> {
    if matches!(args.options.backend, BackendName::Module) {
        bail!("--backend module: only user space regulates groups; leave the option out");
    }
    let meaning = meaning_of(&args.options.start_options())?;
    args.options.check(&meaning)?;
    let mut guard = GroupGuard::start(&GroupOptions {
        cgroup: cgroup.to_owned(),
        amount: amount(args.budgets.of_a_group()?)?,
        stop_with: match args.stop_with {
            StopWithName::Freezer => StopWith::Freezer,
            StopWithName::CpuMax => StopWith::CpuMax,
        },
        start: args.options.start_options(),
    })?;
    args.options.say(&meaning)?;
    let place = enter::Place::of(args, Some(guard.folder()));
    let folder = guard.folder().to_owned();
    let mut lost = false;
    let status = supervise::command(&args.command, &place, signals, &mut || {
        if lost {
            return;
        }
        if let Some(why) = guard.ended() {
            lost = true;
            errln!(
                "memwarden: regulation of {} has ended, and the command continues without a budget: {why}",
                folder.display()
            );
        }
    });
    let summary = guard.end();
    let status = status?;
    let summary = match summary {
        Ok(summary) => summary,
        Err(error) if args.json => {
            let lost = Lost {
                cgroup: &folder,
                held: false,
                lost: error.to_string(),
            };
            errln!("{}", serde_json::to_string(&lost)?);
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => return Err(error.into()),
    };
    if args.json {
        errln!("{}", serde_json::to_string(&summary)?);
    } else {
        errln!("{}", text(&summary));
    }
    Ok(supervise::exit_code(status))
}

/// The summary of a group whose regulation ended before the command; its figures are lost.
#[derive(Serialize)]
struct Lost<'a> {
    #[serde(with = "memwarden_platform::text_or_bytes")]
    cgroup: &'a Path,
    held: bool,
    /// Why it ended.
    lost: String,
}

/// One budget for the whole group.
fn amount(request: &Request) -> anyhow::Result<Request> {
    let given = request.amounts.len();
    if given != 1 {
        bail!("{given} budgets for one group: give one, which all of its threads share");
    }
    Ok(request.clone())
}

#[allow(clippy::cast_precision_loss)]
fn text(summary: &Summary) -> String {
    let terms = &summary.terms;
    let budget = match (terms.budget_mib_s, terms.budget_events) {
        (Some(mib_s), Some(events)) => {
            let of = 100.0 * summary.achieved_mib_s / mib_s;
            let held = if summary.held { ", held" } else { "" };
            format!(
                "{of:.1} % of its {mib_s:.1} MB/s ({events} events of {} bytes each {} us){held}",
                terms.bytes_per_event, terms.period_us
            )
        }
        _ => "no budget".into(),
    };
    let mut lines = Vec::new();
    if let Some(why) = &summary.not_held {
        lines.push(format!("{} was NOT held: {why}", terms.cgroup.display()));
    }
    lines.push(format!(
        "{}: {:.1} MB/s over {:.3} s, {budget}; event {}, {} counted",
        terms.cgroup.display(),
        summary.achieved_mib_s,
        summary.duration_s,
        terms.event,
        summary.used_events,
    ));
    lines.push(format!(
        "stopped ({}) in {} of {} periods ({} missed), {:.1} % of the time; {:.1} looks a period",
        terms.stop_with.word(),
        summary.stopped_periods,
        summary.periods,
        summary.missed_periods,
        100.0 * summary.stopped_share,
        summary.looks_per_period,
    ));
    if let (Some(mib_s), Some(events)) = (terms.budget_mib_s, terms.budget_events) {
        let of = |value: f64, budget: f64| format!("{:.1} %", 100.0 * value / budget);
        let second = |what: &str, value: Option<f64>| {
            value.map(|value| format!("{what} second {} of the budget, ", of(value, mib_s)))
        };
        lines.push(format!(
            "{}{}worst period {} ({} events); held through {} periods for what it owed",
            second("worst", summary.worst_second_mib_s)
                .unwrap_or_else(|| "no whole second, ".into()),
            second("least", summary.least_second_mib_s).unwrap_or_default(),
            of(summary.worst_period_events as f64, events as f64),
            summary.worst_period_events,
            summary.held_periods,
        ));
    }
    if let (Some(used), Some(over), Some(ns)) = (
        summary.used_events_per_stopped_period,
        summary.overshoot_events,
        summary.stop_ns,
    ) {
        let us = |ns: u64| format!("{:.0}", ns as f64 / 1000.0);
        let Spread {
            median,
            p99,
            max,
            mean,
        } = over;
        lines.push(format!(
            "{used:.2} events in a period that was stopped; past what it was handed {mean:.2} on average, median {median}, \
             99 % {p99}, most {max}; it held after {} us (median), {} us (99 %), {} us (longest)",
            us(ns.median), us(ns.p99), us(ns.max),
        ));
    }
    if summary.used_events == 0 {
        lines.push(format!(
            "nothing was counted: event {} may not count on this machine; `memwarden doctor` lists events that do",
            terms.event
        ));
    }
    lines
        .iter()
        .map(|line| format!("memwarden: {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use memwarden_guard::group::Terms;

    use super::*;

    fn summary() -> Summary {
        Summary {
            terms: Terms {
                cgroup: "/sys/fs/cgroup/a".into(),
                event: "page-faults".into(),
                bytes_per_event: 4096,
                period_us: 1000,
                stop_with: StopWith::Freezer,
                budget_events: Some(25),
                budget_mib_s: Some(97.656_25),
            },
            held: true,
            not_held: None,
            duration_s: 2.0,
            periods: 2000,
            missed_periods: 1,
            used_events: 52_000,
            achieved_mib_s: 101.562_5,
            worst_second_mib_s: Some(102.539_062_5),
            least_second_mib_s: Some(95.703_125),
            worst_period_events: 34,
            stopped_periods: 1990,
            held_periods: 7,
            used_events_per_stopped_period: Some(26.0),
            stopped_share: 0.8,
            overshoot_events: Some(Spread {
                mean: 1.0,
                median: 1,
                p99: 2,
                max: 9,
            }),
            reaction_ns: None,
            stop_ns: Some(Spread {
                mean: 3e4,
                median: 30_000,
                p99: 60_000,
                max: 90_000,
            }),
            looks_per_period: 4.5,
        }
    }

    #[test]
    fn the_summary_says_what_was_given_and_what_was_taken() {
        let text = text(&summary());
        for expected in [
            "101.6 MB/s over 2.000 s, 104.0 % of its 97.7 MB/s (25 events of 4096 bytes each 1000 us), held; event",
            "stopped (freezer) in 1990 of 2000 periods (1 missed), 80.0 %",
            "worst second 105.0 % of the budget, least second 98.0 % of the budget, worst period 136.0 % (34 events); held \
             through 7 periods",
            "median 1, 99 % 2, most 9",
            "30 us (median), 60 us (99 %), 90 us (longest)",
        ] {
            assert!(text.contains(expected), "{text}");
        }
        assert!(!text.contains("nothing was counted"));
    }

    #[test]
    fn a_group_that_was_not_held_is_told_on_the_first_line() {
        let text = text(&Summary {
            held: false,
            not_held: Some("nothing was counted".into()),
            ..summary()
        });
        assert!(
            text.starts_with(
                "memwarden: /sys/fs/cgroup/a was NOT held: nothing was counted\nmemwarden: /sys/fs/cgroup/a: 101.6 MB/s"
            ),
            "{text}"
        );
        assert!(!text.contains(", held"), "{text}");
    }

    #[test]
    fn a_run_without_a_whole_second_says_so() {
        let text = text(&Summary {
            worst_second_mib_s: None,
            least_second_mib_s: None,
            ..summary()
        });
        assert!(text.contains("no whole second, worst period"), "{text}");
    }

    #[test]
    fn an_event_that_never_came_is_told() {
        let mut nothing = Summary {
            used_events: 0,
            stop_ns: None,
            ..summary()
        };
        (nothing.terms.budget_events, nothing.terms.budget_mib_s) = (None, None);
        let text = text(&nothing);
        assert!(
            text.contains("no budget") && text.contains("nothing was counted"),
            "{text}"
        );
    }
}
