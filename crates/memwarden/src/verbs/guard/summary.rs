// SPDX-License-Identifier: MIT OR Apache-2.0
//! The final summary of `memwarden guard run`: each core's traffic against its budget, and whether it was held.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::verbs::output::errln;
use memwarden_guard::budget::Events;
use memwarden_guard::units::mib_s;
use memwarden_guard::{CoreStatistics, Error, Meaning, Session, Settings, meaning};
use serde::Serialize;

/// Relative excess over its budget from which a core was not held.
const TOLERANCE: f64 = 0.01;

/// Watches the guard while the command runs.
pub(super) struct Watch {
    cores: Vec<usize>,
    began: Instant,
    settings: Settings,
    backend: &'static str,
    before: BTreeMap<usize, CoreStatistics>,
    /// The last readings.
    latest: BTreeMap<usize, CoreStatistics>,
    latest_at: Instant,
    /// The most events of a period in the seconds that were read.
    worst: BTreeMap<usize, u64>,
    lost: Option<String>,
}

/// The result.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    backend: &'static str,
    event: String,
    memory_traffic: bool,
    bytes_per_event: u64,
    period_us: u64,
    duration_s: f64,
    /// True if every core was held to its budget until the end.
    held: bool,
    /// Reason why the guard ended before the command did.
    pub lost: Option<String>,
    cores: Vec<CoreSummary>,
}

#[derive(Debug, Serialize)]
struct CoreSummary {
    cpu: usize,
    budget_mib_s: Option<f64>,
    achieved_mib_s: f64,
    throttled_ratio: Option<f64>,
    budget_events: Events,
    /// null if unknown.
    worst_period_events: Option<u64>,
    periods: u64,
    missed_periods: u64,
    unregulated_periods: u64,
    /// Reason why the core was not held.
    not_held: Option<String>,
}

impl Watch {
    /// Starts watching these cores.
    pub fn begin(session: &Session, cores: Vec<usize>) -> Result<Self, Error> {
        let settings = session.regulator().settings()?;
        let before = read(session)?;
        let now = Instant::now();
        Ok(Self {
            cores,
            began: now,
            settings,
            backend: session.regulator().name(),
            latest: before.clone(),
            before,
            latest_at: now,
            worst: BTreeMap::new(),
            lost: None,
        })
    }

    /// Checks whether the command is still guarded; reports once if it isn't.
    pub fn look(&mut self, session: &Session) {
        if self.lost.is_some() {
            return;
        }
        match self.read(session) {
            Ok(()) => {}
            Err(_) if session.lives() => {}
            Err(error) => {
                let why = match error {
                    Error::NotRunning => "it was stopped".to_owned(),
                    error => error.to_string(),
                };
                errln!(
                    "memwarden: the guard has ended, and the command continues without a budget: {why}"
                );
                self.lost = Some(why);
            }
        }
    }

    fn read(&mut self, session: &Session) -> Result<(), Error> {
        let settings = session.regulator().settings()?;
        if !session.lives() {
            return Err(Error::System("another guard was started".into()));
        }
        for cpu in &self.cores {
            let budget = |settings: &Settings| {
                (
                    settings.read_budget_events.get(cpu).copied(),
                    settings.write_budget_events.get(cpu).copied(),
                )
            };
            if budget(&settings) != budget(&self.settings) {
                errln!("memwarden: the budget of CPU{cpu} was changed while the command runs");
            }
        }
        self.settings = settings;
        self.latest = read(session)?;
        self.latest_at = Instant::now();
        let since = self.began.elapsed().as_nanos();
        for core in self.latest.values() {
            let last = &core.last_second;
            // A second that began before the command does not count.
            if u128::from(last.ns) * 2 <= since {
                let worst = self.worst.entry(core.cpu).or_default();
                *worst = (*worst).max(core.read.last_second.used_max);
            }
        }
        Ok(())
    }

    /// Ends the watch after the command has ended.
    pub fn end(mut self, session: &Session) -> Summary {
        self.look(session);
        let control = &self.settings.control;
        let Meaning { memory_traffic, .. } = meaning(control);
        let duration_s = self.latest_at.duration_since(self.began).as_secs_f64();
        let cores: Vec<CoreSummary> = self
            .cores
            .iter()
            .filter_map(|cpu| Some((self.before.get(cpu)?, self.latest.get(cpu)?)))
            .map(|(before, after)| self.core(before, after, duration_s))
            .collect();
        Summary {
            backend: self.backend,
            event: control.event.clone(),
            memory_traffic,
            bytes_per_event: control.bytes_per_event,
            period_us: control.period_us,
            duration_s,
            held: self.lost.is_none() && cores.iter().all(|core| core.not_held.is_none()),
            lost: self.lost,
            cores,
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn core(
        &self,
        before: &CoreStatistics,
        after: &CoreStatistics,
        duration_s: f64,
    ) -> CoreSummary {
        let control = &self.settings.control;
        let since = after.since(before);
        let bytes = since.read.used as f64 * control.bytes_per_event as f64;
        let budget_events = after.read.budget;
        // The maximum since the last reset, unless that precedes the command: then the maximum of the readings.
        let worst = if after.read.used_max > before.read.used_max {
            Some(after.read.used_max)
        } else {
            self.worst
                .get(&after.cpu)
                .copied()
                .filter(|worst| *worst > 0)
        };
        CoreSummary {
            cpu: after.cpu,
            budget_mib_s: budget_events
                .map(|events| mib_s(events as f64, control.period_us, control.bytes_per_event)),
            achieved_mib_s: if duration_s > 0.0 {
                bytes / duration_s / f64::from(1 << 20)
            } else {
                0.0
            },
            throttled_ratio: since.throttled_share(control.period_us),
            budget_events,
            worst_period_events: worst,
            periods: since.periods,
            missed_periods: since.missed_periods,
            unregulated_periods: since.unregulated_periods,
            not_held: not_held(&since),
        }
    }
}

fn read(session: &Session) -> Result<BTreeMap<usize, CoreStatistics>, Error> {
    let cores = session.regulator().statistics()?;
    Ok(cores.into_iter().map(|core| (core.cpu, core)).collect())
}

/// Reason why a core was not held over this time, or none if it was.
#[allow(clippy::cast_precision_loss)]
fn not_held(since: &CoreStatistics) -> Option<String> {
    if since.unregulated_periods > 0 {
        return Some(format!(
            "its counter did not count in {} periods",
            since.unregulated_periods
        ));
    }
    let read = &since.read;
    let budget = read.budget?;
    if since.rt {
        return Some("it is never throttled (rt)".into());
    }
    if since.best_effort_periods > 0 {
        // With best-effort sharing it may exceed its budget.
        return None;
    }
    // The periods at both ends are only partly the command's.
    let allowed = read.assigned as f64 * (1.0 + TOLERANCE) + budget as f64;
    (read.used as f64 > allowed).then(|| {
        let past = read.used as f64 / read.assigned.max(1) as f64 - 1.0;
        format!("{:.0} % past its budget", 100.0 * past)
    })
}

impl Summary {
    /// The summary as one line.
    pub fn text(&self) -> String {
        let cores: Vec<String> = self.cores.iter().map(CoreSummary::text).collect();
        let kind = if self.memory_traffic {
            ""
        } else {
            ", which is not memory traffic"
        };
        let mut text = format!(
            "{:.3} s, event {}{kind}; {}",
            self.duration_s,
            self.event,
            cores.join("; ")
        );
        for core in &self.cores {
            if let Some(why) = &core.not_held {
                text += &format!("; CPU{} was NOT held: {why}", core.cpu);
            }
        }
        if let Some(why) = &self.lost {
            text += &format!("; NOT held to the end, the guard ended before the command: {why}");
        }
        text
    }
}

impl CoreSummary {
    fn text(&self) -> String {
        let budget = self.budget_mib_s.map_or_else(
            || "no budget".to_owned(),
            |budget| format!("{budget:.1} MB/s"),
        );
        let throttled = self
            .throttled_ratio
            .map_or_else(|| "-".to_owned(), |ratio| format!("{:.1} %", 100.0 * ratio));
        let worst = self
            .worst_period_events
            .map_or_else(|| "-".to_owned(), |events| events.to_string());
        let of = self
            .budget_events
            .map_or_else(String::new, |events| format!(" of {events}"));
        format!(
            "CPU{} {:.1} of {budget}, throttled {throttled}, worst period {worst}{of} events, {} of {} periods missed",
            self.cpu,
            self.achieved_mib_s,
            self.missed_periods,
            self.periods + self.missed_periods,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn since(used: u64) -> CoreStatistics {
        let mut core = CoreStatistics {
            cpu: 1,
            periods: 1000,
            ..CoreStatistics::default()
        };
        core.read.budget = Some(25);
        core.read.assigned = 25_000;
        core.read.used = used;
        core
    }

    #[test]
    fn a_core_is_held_within_a_percent_and_counted_in_every_period() {
        assert_eq!(not_held(&since(25_250)), None);
        assert_eq!(not_held(&since(30_000)).unwrap(), "20 % past its budget");
        let mut uncounted = since(7);
        uncounted.unregulated_periods = 3;
        assert!(not_held(&uncounted).unwrap().contains("3 periods"));
        let mut best_effort = since(30_000);
        best_effort.best_effort_periods = 1;
        assert_eq!(not_held(&best_effort), None);
        let mut free = since(30_000);
        free.read.budget = None;
        assert_eq!(not_held(&free), None);
        let mut rt = since(7);
        rt.rt = true;
        assert!(not_held(&rt).unwrap().contains("never throttled"));
    }

    #[test]
    fn the_line_says_what_was_not_held_and_why() {
        let core = CoreSummary {
            cpu: 1,
            budget_mib_s: Some(97.7),
            achieved_mib_s: 117.2,
            throttled_ratio: Some(0.8),
            budget_events: Some(25),
            worst_period_events: None,
            periods: 999,
            missed_periods: 1,
            unregulated_periods: 0,
            not_held: Some("20 % past its budget".into()),
        };
        let summary = Summary {
            backend: "user",
            event: "page-faults".into(),
            memory_traffic: false,
            bytes_per_event: 4096,
            period_us: 1000,
            duration_s: 1.0,
            held: false,
            lost: Some("it was stopped".into()),
            cores: vec![core],
        };
        assert_eq!(
            summary.text(),
            "1.000 s, event page-faults, which is not memory traffic; CPU1 117.2 of 97.7 MB/s, throttled 80.0 %, \
             worst period - of 25 events, 1 of 1000 periods missed; CPU1 was NOT held: 20 % past its budget; \
             NOT held to the end, the guard ended before the command: it was stopped"
        );
    }
}
