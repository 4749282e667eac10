// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard run --cgroup`: runs a command in a control group with a budget.

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use clap::ValueEnum;
use memwarden_guard::budget::Request;
use memwarden_guard::group::{GroupGuard, GroupOptions, StopWith, Summary};
use memwarden_guard::meaning_of;
use schemars::JsonSchema;
use serde::Serialize;
use signal_hook::iterator::Signals;

use super::supervise::Printed;
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
        Ok((summary, failures)) => {
            for failure in failures {
                errln!("memwarden: {failure}");
            }
            summary
        }
        Err(error) if args.json => {
            let lost = Lost {
                cgroup: &folder,
                held: false,
                lost: error.to_string(),
            };
            errln!("{}", serde_json::to_string(&Printed::Lost(lost))?);
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => return Err(error.into()),
    };
    if args.json {
        errln!("{}", serde_json::to_string(&Printed::Group(&summary))?);
    } else {
        errln!("{}", text(&summary));
    }
    Ok(supervise::exit_code(status))
}

/// The summary of a group whose regulation ended before the command; its figures are lost.
#[derive(Serialize, JsonSchema)]
pub struct Lost<'a> {
    #[serde(with = "memwarden_platform::text_or_bytes")]
    #[schemars(with = "memwarden_platform::text_or_bytes::Form")]
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

/// One line, as for cores; the summary in JSON has more.
fn text(summary: &Summary) -> String {
    let terms = &summary.terms;
    let budget = terms.budget_mib_s.zip(terms.budget_events);
    let mut text = format!(
        "memwarden: {:.3} s, event {}; {} {:.1} ",
        summary.duration_s,
        terms.event,
        terms.cgroup.display(),
        summary.achieved_mib_s,
    );
    let nothing = if summary.used_events == 0 {
        format!(
            "; nothing was counted: event {} may not count on this machine; `memwarden doctor` lists events that do",
            terms.event
        )
    } else {
        String::new()
    };
    let Some((mib_s, events)) = budget else {
        return text + "MB/s, no budget" + &nothing;
    };
    let share = |value: Option<f64>| value.map(|value| format!("{:.1} %", 100.0 * value / mib_s));
    text += &format!(
        "of {mib_s:.1} MB/s, stopped ({}) {:.1} % of the time, ",
        terms.stop_with.word(),
        100.0 * summary.stopped_share
    );
    if let Some(worst) = share(summary.worst_second_mib_s) {
        let least = share(summary.least_second_mib_s).map(|least| format!(", least {least}"));
        text += &format!(
            "worst second {worst} of the budget{}, ",
            least.unwrap_or_default()
        );
    }
    text += &format!(
        "worst period {} of {events} events, {} of {} periods missed; ",
        summary.worst_period_events, summary.missed_periods, summary.periods
    );
    let held = summary.not_held.as_ref().map_or_else(
        || "held".to_owned(),
        |why| format!("it was NOT held: {why}"),
    );
    text + &held + &nothing
}

#[cfg(test)]
mod tests {
    use memwarden_guard::group::{Spread, Terms};

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
    fn the_summary_is_one_line() {
        assert_eq!(
            text(&summary()),
            "memwarden: 2.000 s, event page-faults; /sys/fs/cgroup/a 101.6 of 97.7 MB/s, stopped (freezer) 80.0 % of the \
             time, worst second 105.0 % of the budget, least 98.0 %, worst period 34 of 25 events, 1 of 2000 periods \
             missed; held"
        );
    }

    #[test]
    fn it_says_why_a_group_was_not_held() {
        let text = text(&Summary {
            held: false,
            not_held: Some("nothing was counted".into()),
            ..summary()
        });
        assert!(
            text.ends_with("missed; it was NOT held: nothing was counted"),
            "{text}"
        );
    }

    #[test]
    fn a_run_without_a_whole_second_has_no_worst_one() {
        let text = text(&Summary {
            worst_second_mib_s: None,
            least_second_mib_s: None,
            ..summary()
        });
        assert!(text.contains("of the time, worst period 34"), "{text}");
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
