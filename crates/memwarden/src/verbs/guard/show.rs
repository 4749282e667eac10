// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard show`: settings and statistics.

use std::process::ExitCode;

use memwarden_guard::rates::Sample;
use memwarden_guard::{Control, CoreStatistics, Regulator, Settings, fair_server, units};
use memwarden_platform::Root;
use schemars::JsonSchema;
use serde::Serialize;

use crate::verbs::output::{self, outln};
use crate::verbs::terminal::{number, table};

pub(super) fn show(guard: &dyn Regulator, as_json: bool) -> anyhow::Result<ExitCode> {
    let sample = Sample::take(guard)?;
    if as_json {
        outln!(
            "{}",
            serde_json::to_string_pretty(&document(guard.name(), &sample))?
        )?;
    } else {
        for warning in fair_server::warnings(&Root::system(), &sample.cores) {
            outln!("{warning}")?;
        }
        if let Some(warning) = super::class_warning(guard) {
            outln!("{warning}")?;
        }
        output::write(&text(guard.name(), &sample))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What `--json` prints: all figures.
#[derive(Serialize, JsonSchema)]
pub struct Shown<'a> {
    /// The regulator: module, user or null.
    backend: &'a str,
    settings: &'a Settings,
    /// The statistics of each core.
    cores: &'a [CoreStatistics],
    /// Failures to regulate a core, one sentence each.
    failings: Vec<String>,
}

/// The document of a reading.
pub fn document<'a>(backend: &'a str, sample: &'a Sample) -> Shown<'a> {
    Shown {
        backend,
        settings: &sample.settings,
        cores: &sample.cores,
        failings: sample.failings(),
    }
}

fn text(name: &str, sample: &Sample) -> String {
    let Sample {
        settings, cores, ..
    } = sample;
    let control = &settings.control;
    let mut rows = table(&[
        "core",
        "budget MB/s",
        "events",
        "used MB/s",
        "last second",
        "worst period",
        "throttled",
        "last second",
        "periods",
        "over",
        "missed",
        "unregulated",
        "reclaimed",
        "donated",
        "a stop takes",
        "owed",
        "most over",
        "slowest stop",
    ]);
    for core in cores.iter().filter(|core| core.online) {
        rows.add_row(row(settings, core));
    }
    let set = |cpus: &memwarden_platform::cpus::CpuSet| {
        if cpus.is_empty() {
            "none".to_owned()
        } else {
            cpus.to_string()
        }
    };
    let failings: String = sample
        .failings()
        .iter()
        .map(|failing| format!("{failing}\n"))
        .collect();
    format!(
        "{failings}{name}: event {} of {} bytes{}{}, period {} us, best effort {}, reclaim {}\n\
         budgets sum up to {}; never throttled: {}; active: {}; throttled: {}\n{rows}\n",
        control.event,
        control.bytes_per_event,
        match (&control.write_event, control.combined) {
            (Some(event), true) => format!(" with write event {event} in one budget"),
            (None, true) => ", reads and write-backs in one budget".to_owned(),
            (_, false) => String::new(),
        },
        if control.user_only {
            ", user space only"
        } else {
            ""
        },
        control.period_us,
        control.best_effort.word(),
        if control.reclaim { "on" } else { "off" },
        sum(control),
        set(&control.rt),
        set(&control.active),
        set(&control.throttled),
    )
}

/// Sum of all budgets, compared with maxbw.
fn sum(control: &Control) -> String {
    let sum = control.guaranteed_mib_s;
    match control.maxbw_mib_s {
        0 => format!("{sum} MB/s (maxbw is not set: memwarden guard calibrate)"),
        most => format!("{sum} of {most} MB/s"),
    }
}

fn row(settings: &Settings, core: &CoreStatistics) -> Vec<String> {
    let control = &settings.control;
    let mib_s = |events: f64| {
        number(
            units::mib_s(events, control.period_us, control.bytes_per_event),
            1,
        )
    };
    let percent = |share: f64| format!("{} %", number(share * 100.0, 1));
    let none = || "-".to_owned();
    let second = &core.last_second;
    let period_ns = control.period_us as f64 * 1000.0;
    let in_second = (second.ns > 0).then_some(second.ns as f64);
    let budget = core.read.budget.filter(|events| *events > 0);
    let worst = core.read.used_max as f64;
    vec![
        format!("CPU{}{}", core.cpu, if core.rt { " rt" } else { "" }),
        core.read
            .budget
            .map_or("max".into(), |events| mib_s(events as f64)),
        core.read
            .budget
            .map_or("max".into(), |events| events.to_string()),
        core.per_period(core.read.used, control.period_us)
            .map_or_else(none, mib_s),
        in_second.map_or_else(none, |ns| {
            mib_s(core.read.last_second.used as f64 * period_ns / ns)
        }),
        match budget {
            _ if core.time_ns(control.period_us).is_none() => none(),
            None => mib_s(worst),
            Some(events) => format!("{} ({})", mib_s(worst), percent(worst / events as f64)),
        },
        core.throttled_share(control.period_us)
            .map_or_else(none, percent),
        in_second.map_or_else(none, |ns| percent(second.throttled_ns as f64 / ns)),
        core.periods.to_string(),
        core.read.over_periods.to_string(),
        core.missed_periods.to_string(),
        core.unregulated_periods.to_string(),
        core.read.reclaimed.to_string(),
        core.read.donated.to_string(),
        core.read.stop_events.to_string(),
        core.read.owed.to_string(),
        core.read.overshoot_max.to_string(),
        format!(
            "{} us",
            number(core.throttle_latency_ns_max as f64 / 1000.0, 1)
        ),
    ]
}

#[cfg(test)]
mod tests {
    use memwarden_guard::budget::{Request, Unit};
    use memwarden_guard::{Null, Resource, StartOptions};

    use super::*;

    /// A reading of a guard whose two cores are online.
    fn sample(guard: &Null) -> Sample {
        Sample {
            online: (0..2).collect(),
            ..Sample::take(guard).unwrap()
        }
    }

    #[test]
    fn a_core_that_is_online_and_not_regulated_is_on_top() {
        let mut guard = Null::new((0..2).collect());
        guard.start(&StartOptions::default()).unwrap();
        let mut sample = sample(&guard);
        sample.cores[1].online = false;
        let expected = "CPU1 is not held: it is online, but the guard does not regulate it";
        let text = text("null", &sample);
        assert!(text.starts_with(expected), "{text}");
        let object = document("null", &sample);
        assert!(object.failings[0].starts_with(expected));
    }

    #[test]
    fn a_core_a_line_with_budget_and_use() {
        let mut guard = Null::new((0..2).collect());
        guard.start(&StartOptions::default()).unwrap();
        guard
            .set_budgets(Resource::Read, &Request::parse(Unit::Mb, "1000").unwrap())
            .unwrap();
        let mut sample = sample(&guard);
        let cores = &mut sample.cores;
        cores[0].periods = 100;
        cores[0].throttled_ns = 25_000_000;
        cores[0].read.budget = Some(16384);
        cores[0].read.used = 1_638_400;
        cores[0].read.used_max = 24_576;
        cores[0].read.over_periods = 3;
        cores[0].read.stop_events = 210;
        cores[0].read.owed = 30;
        let text = super::text("null", &sample);
        let line = text.lines().find(|line| line.contains("CPU0")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "CPU0", "1000.0", "16384", "1000.0", "-", "1500.0", "(150.0", "%)", "25.0", "%",
                "-", "100", "3", "0", "0", "0", "0", "210", "30", "0", "0.0", "us"
            ]
        );
        // This second lasted 1.25 s: 1250 periods of 1000 events.
        let cores = &mut sample.cores;
        cores[0].last_second.ns = 1_250_000_000;
        cores[0].last_second.throttled_ns = 625_000_000;
        cores[0].read.last_second.used = 10_240_000;
        let text = super::text("null", &sample);
        let line = text.lines().find(|line| line.contains("CPU0")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words[4], words[10], words[11]), ("500.0", "50.0", "%"));
        assert!(text.contains("CPU1") && text.contains("max"));
    }

    #[test]
    fn totals_are_the_same_after_a_change_of_the_period() {
        let mut guard = Null::new((0..2).collect());
        guard.start(&StartOptions::default()).unwrap();
        for period_us in [1000, 10_000, 100] {
            guard.set_period(period_us).unwrap();
            let mut sample = sample(&guard);
            let core = &mut sample.cores[0];
            (core.periods, core.elapsed_ns) = (100, 100_000_000);
            core.throttled_ns = 90_000_000;
            core.read.used = 163_840;
            let text = super::text("null", &sample);
            let line = text.lines().find(|line| line.contains("CPU0")).unwrap();
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!((words[3], words[6]), ("100.0", "90.0"), "{line}");
        }
    }

    #[test]
    fn one_budget_over_both_is_told() {
        let mut guard = Null::new((0..2).collect());
        guard
            .start(&StartOptions {
                combined: true,
                ..StartOptions::default()
            })
            .unwrap();
        let text = text("null", &sample(&guard));
        assert!(
            text.contains("event null of 64 bytes with write event null in one budget"),
            "{text}"
        );
        let request = Request::parse(Unit::Mb, "100").unwrap();
        assert!(guard.set_budgets(Resource::Write, &request).is_err());
    }

    #[test]
    fn a_core_that_was_not_held_is_on_top() {
        let mut guard = Null::new((0..2).collect());
        guard.start(&StartOptions::default()).unwrap();
        let mut sample = sample(&guard);
        assert!(super::text("null", &sample).starts_with("null: "));
        let cores = &mut sample.cores;
        cores[1].read.over_periods = 24;
        cores[1].read.last_second.used = 44_160;
        cores[1].read.last_second.assigned = 20_620;
        let text = super::text("null", &sample);
        assert!(
            text.starts_with(
                "CPU1 was not held: 44160 events used of 20620 assigned in the last second"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_sum_is_told_of_what_memory_gives_only_where_that_is_known() {
        for (maxbw_mib_s, expected) in [
            (None, "budgets sum up to 1000 MB/s (maxbw is not set: "),
            (Some(1200), "budgets sum up to 1000 of 1200 MB/s; "),
        ] {
            let mut guard = Null::new((0..2).collect());
            let options = StartOptions {
                maxbw_mib_s,
                ..StartOptions::default()
            };
            guard.start(&options).unwrap();
            guard
                .set_budgets(Resource::Read, &Request::parse(Unit::Mb, "1000").unwrap())
                .unwrap();
            let text = text("null", &sample(&guard));
            assert!(text.contains(expected), "{text}");
        }
    }
}
