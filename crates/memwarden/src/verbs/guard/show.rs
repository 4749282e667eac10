// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard show`: settings and statistics.

use std::process::ExitCode;

use memwarden_guard::{Control, CoreStatistics, Regulator, Settings, units};
use serde_json::{Value, json};

use crate::verbs::output::{self, outln};
use crate::verbs::terminal::{number, table};

pub(super) fn show(guard: &dyn Regulator, as_json: bool) -> anyhow::Result<ExitCode> {
    let (settings, cores) = (guard.settings()?, guard.statistics()?);
    if as_json {
        outln!("{:#}", document(guard.name(), &settings, &cores))?;
    } else {
        output::write(&text(guard.name(), &settings, &cores))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Everything, as `--json` prints it.
pub fn document(backend: &str, settings: &Settings, cores: &[CoreStatistics]) -> Value {
    json!({ "backend": backend, "settings": settings, "cores": cores })
}

fn text(name: &str, settings: &Settings, cores: &[CoreStatistics]) -> String {
    let control = &settings.control;
    let mut rows = table(&[
        "core",
        "budget MB/s",
        "events",
        "used MB/s",
        "throttled",
        "periods",
        "missed",
        "reclaimed",
        "donated",
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
    format!(
        "{name}: event {} of {} bytes{}, period {} us, best effort {}, reclaim {}\n\
         budgets sum up to {}; never throttled: {}; active: {}; throttled: {}\n{rows}\n",
        control.event,
        control.bytes_per_event,
        if control.user_only {
            ", user space alone"
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

/// Of all budgets, against what memory is said to give.
fn sum(control: &Control) -> String {
    let sum = control.guaranteed_mib_s;
    match control.maxbw_mib_s {
        0 => format!("{sum} MB/s (maxbw is not set: memwarden guard calibrate)"),
        most => format!("{sum} of {most} MB/s"),
    }
}

#[allow(clippy::cast_precision_loss)]
fn row(settings: &Settings, core: &CoreStatistics) -> Vec<String> {
    let control = &settings.control;
    let mib_s = |events: f64| {
        number(
            units::mib_s(events, control.period_us, control.bytes_per_event),
            1,
        )
    };
    let periods = core.periods + core.missed_periods;
    vec![
        format!("CPU{}{}", core.cpu, if core.rt { " rt" } else { "" }),
        core.read
            .budget
            .map_or("max".into(), |events| mib_s(events as f64)),
        core.read
            .budget
            .map_or("max".into(), |events| events.to_string()),
        if periods == 0 {
            "-".into()
        } else {
            mib_s(core.read.used as f64 / periods as f64)
        },
        core.throttled_share(control.period_us)
            .map_or("-".into(), |share| {
                format!("{} %", number(share * 100.0, 1))
            }),
        core.periods.to_string(),
        core.missed_periods.to_string(),
        core.read.reclaimed.to_string(),
        core.read.donated.to_string(),
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

    #[test]
    fn a_core_a_line_with_budget_and_use() {
        let mut guard = Null::new((0..2).collect());
        guard.start(&StartOptions::default()).unwrap();
        guard
            .set_budgets(Resource::Read, &Request::parse(Unit::Mb, "1000").unwrap())
            .unwrap();
        let mut cores = guard.statistics().unwrap();
        cores[0].periods = 100;
        cores[0].throttled_ns = 25_000_000;
        cores[0].read.budget = Some(16384);
        cores[0].read.used = 1_638_400;
        let text = text("null", &guard.settings().unwrap(), &cores);
        let line = text.lines().find(|line| line.contains("CPU0")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "CPU0", "1000.0", "16384", "1000.0", "25.0", "%", "100", "0", "0", "0", "0", "0.0",
                "us"
            ]
        );
        assert!(text.contains("CPU1") && text.contains("max"));
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
            let cores = guard.statistics().unwrap();
            let text = text("null", &guard.settings().unwrap(), &cores);
            assert!(text.contains(expected), "{text}");
        }
    }
}
