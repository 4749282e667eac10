// SPDX-License-Identifier: MIT OR Apache-2.0
//! The final summary of `memwarden guard run`: each core's traffic against its budget, and whether it was held.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::verbs::output::errln;
use memwarden_guard::budget::Events;
use memwarden_guard::statistics::ResourceStatistics;
use memwarden_guard::units::mib_s;
use memwarden_guard::{CoreStatistics, Error, Meaning, Session, Settings, meaning};
use schemars::JsonSchema;
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
    /// The most events of a period in the seconds that were read: reads, write-backs.
    worst: BTreeMap<usize, [u64; 2]>,
    /// Cores that a reading showed with another budget than before.
    changed: BTreeSet<usize>,
    /// Cores that a reading showed offline or unregulated.
    offline: BTreeSet<usize>,
    lost: Option<String>,
}

/// The result.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Summary {
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

/// A core.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CoreSummary {
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
    /// null if write-backs have no separate budgets.
    write: Option<WriteSummary>,
    /// Reason why the core was not held.
    not_held: Option<String>,
}

/// A core's write-backs.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WriteSummary {
    budget_mib_s: Option<f64>,
    achieved_mib_s: f64,
    budget_events: Events,
    /// null if unknown.
    worst_period_events: Option<u64>,
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
            changed: BTreeSet::new(),
            offline: BTreeSet::new(),
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
        for &cpu in &self.cores {
            if !same_budgets(&self.settings, &settings, cpu) {
                errln!("memwarden: the budget of CPU{cpu} was changed while the command runs");
                self.changed.insert(cpu);
            }
        }
        let other_period = settings.control.period_us != self.settings.control.period_us;
        self.settings = settings;
        self.latest = read(session)?;
        self.latest_at = Instant::now();
        if other_period {
            self.forget_worst();
        } else {
            self.note_worst();
        }
        self.note_offline();
        Ok(())
    }

    fn note_worst(&mut self) {
        let since = self.began.elapsed().as_nanos();
        for core in self.latest.values() {
            let last = &core.last_second;
            // A second that began before the command does not count.
            if u128::from(last.ns) * 2 <= since {
                let [read, write] = self.worst.entry(core.cpu).or_default();
                *read = (*read).max(core.read.last_second.used_max);
                if let Some(of) = &core.write {
                    *write = (*write).max(of.last_second.used_max);
                }
            }
        }
    }

    /// The period has another length: what earlier ones used says nothing about its budget. The regulator has forgotten
    /// their largest use, too.
    fn forget_worst(&mut self) {
        self.worst.clear();
        for core in self.before.values_mut() {
            core.read.used_max = 0;
            if let Some(write) = &mut core.write {
                write.used_max = 0;
            }
        }
    }

    fn note_offline(&mut self) {
        let online = |cpu| self.latest.get(cpu).is_some_and(|core| core.online);
        let missing: Vec<usize> = self
            .cores
            .iter()
            .filter(|cpu| !online(cpu))
            .copied()
            .collect();
        self.offline.extend(missing);
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
            .map(|&cpu| self.core(cpu, duration_s))
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

    fn core(&self, cpu: usize, duration_s: f64) -> CoreSummary {
        // The regulator may not report a core that it doesn't regulate.
        let unknown = || CoreStatistics {
            cpu,
            ..CoreStatistics::default()
        };
        let after = self.latest.get(&cpu).cloned().unwrap_or_else(unknown);
        let before = self.before.get(&cpu).cloned().unwrap_or_else(unknown);
        let since = after.since(&before);
        let worst = self.worst.get(&cpu).copied().unwrap_or_default();
        let rate = |events| self.rate(events, duration_s);
        let write = since.write.as_ref().map(|of| WriteSummary {
            budget_mib_s: self.budget_mib_s(of.budget),
            achieved_mib_s: rate(of.used),
            budget_events: of.budget,
            worst_period_events: worst_period(before.write.as_ref(), of, worst[1]),
        });
        let not_held = if self.offline.contains(&cpu) {
            Some("it was offline or not regulated".into())
        } else {
            not_held(&since, self.changed.contains(&cpu))
        };
        CoreSummary {
            cpu,
            budget_mib_s: self.budget_mib_s(since.read.budget),
            achieved_mib_s: rate(since.read.used),
            throttled_ratio: since.throttled_share(self.settings.control.period_us),
            budget_events: since.read.budget,
            worst_period_events: worst_period(Some(&before.read), &since.read, worst[0]),
            periods: since.periods,
            missed_periods: since.missed_periods,
            unregulated_periods: since.unregulated_periods,
            write,
            not_held,
        }
    }

    fn budget_mib_s(&self, budget: Events) -> Option<f64> {
        let control = &self.settings.control;
        budget.map(|events| mib_s(events as f64, control.period_us, control.bytes_per_event))
    }

    fn rate(&self, events: u64, duration_s: f64) -> f64 {
        if duration_s > 0.0 {
            let bytes = events as f64 * self.settings.control.bytes_per_event as f64;
            bytes / duration_s / f64::from(1 << 20)
        } else {
            0.0
        }
    }
}

/// The maximum since the last reset, unless that precedes the command: then the maximum of the readings.
fn worst_period(
    before: Option<&ResourceStatistics>,
    after: &ResourceStatistics,
    readings: u64,
) -> Option<u64> {
    if after.used_max > before.map_or(0, |before| before.used_max) {
        Some(after.used_max)
    } else {
        Some(readings).filter(|worst| *worst > 0)
    }
}

/// Whether a core has the same budgets. A change of the period alone changes the events, but not the rate.
fn same_budgets(before: &Settings, now: &Settings, cpu: usize) -> bool {
    let periods = [before, now].map(|settings| u128::from(settings.control.period_us));
    let same = |before: Option<Events>, now: Option<Events>| match (before, now) {
        (Some(Some(before)), Some(Some(now))) if periods[0] != periods[1] => {
            // Each budget is rounded to a whole event.
            let scaled = [
                u128::from(before) * periods[1],
                u128::from(now) * periods[0],
            ];
            scaled[0].abs_diff(scaled[1]) <= periods[0].max(periods[1])
        }
        (before, now) => before == now,
    };
    let of = |settings: &Settings| {
        [
            settings.read_budget_events.get(&cpu).copied(),
            settings.write_budget_events.get(&cpu).copied(),
        ]
    };
    let (before, now) = (of(before), of(now));
    same(before[0], now[0]) && same(before[1], now[1])
}

fn read(session: &Session) -> Result<BTreeMap<usize, CoreStatistics>, Error> {
    let cores = session.regulator().statistics()?;
    Ok(cores.into_iter().map(|core| (core.cpu, core)).collect())
}

/// Reason why a regulated core was not held over this time, or none if it was. `changed`: another process changed one
/// of its budgets.
fn not_held(since: &CoreStatistics, changed: bool) -> Option<String> {
    if since.unregulated_periods > 0 {
        return Some(format!(
            "its counter did not count in {} periods",
            since.unregulated_periods
        ));
    }
    if changed {
        return Some("its budget was changed while the command ran".into());
    }
    let write = since.write.as_ref();
    if since.read.budget.is_none() && write.is_none_or(|write| write.budget.is_none()) {
        return None;
    }
    if since.rt {
        return Some("it is never throttled (rt)".into());
    }
    if since.best_effort_periods > 0 {
        // With best-effort sharing it may exceed its budget.
        return None;
    }
    let reasons: Vec<String> = [
        (Some(&since.read), "its budget"),
        (write, "its write budget"),
    ]
    .into_iter()
    .filter_map(|(of, budget)| Some(format!("{:.0} % past {budget}", excess_percent(of?)?)))
    .collect();
    (!reasons.is_empty()).then(|| reasons.join(", "))
}

/// Events beyond the assigned ones, in percent of these; none if the core was held.
fn excess_percent(of: &ResourceStatistics) -> Option<f64> {
    // The periods at both ends are only partly the command's.
    let allowed = of.assigned as f64 * (1.0 + TOLERANCE) + of.budget? as f64;
    (of.used as f64 > allowed).then(|| 100.0 * (of.used as f64 / of.assigned.max(1) as f64 - 1.0))
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
            "CPU{} {:.1} of {budget}, throttled {throttled}, worst period {worst}{of} events, {} of {} periods missed{}",
            self.cpu,
            self.achieved_mib_s,
            self.missed_periods,
            self.periods + self.missed_periods,
            self.write
                .as_ref()
                .map(WriteSummary::text)
                .unwrap_or_default(),
        )
    }
}

impl WriteSummary {
    /// Empty without a budget for write-backs.
    fn text(&self) -> String {
        let (Some(budget), Some(events)) = (self.budget_mib_s, self.budget_events) else {
            return String::new();
        };
        let worst = self
            .worst_period_events
            .map_or_else(|| "-".to_owned(), |events| events.to_string());
        format!(
            ", write-backs {:.1} of {budget:.1} MB/s, worst period {worst} of {events} events",
            self.achieved_mib_s
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwarden_guard::budget::{Request, Unit};
    use memwarden_guard::{Null, Resource, StartOptions};

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
        assert_eq!(not_held(&since(25_250), false), None);
        assert_eq!(
            not_held(&since(30_000), false).unwrap(),
            "20 % past its budget"
        );
        let mut uncounted = since(7);
        uncounted.unregulated_periods = 3;
        assert!(not_held(&uncounted, false).unwrap().contains("3 periods"));
        let mut best_effort = since(30_000);
        best_effort.best_effort_periods = 1;
        assert_eq!(not_held(&best_effort, false), None);
        let mut free = since(30_000);
        free.read.budget = None;
        assert_eq!(not_held(&free, false), None);
        let mut rt = since(7);
        rt.rt = true;
        assert!(not_held(&rt, false).unwrap().contains("never throttled"));
    }

    #[test]
    fn write_backs_past_their_budget_are_not_held() {
        let of = |used| {
            let mut core = since(0);
            core.write = Some(core.read.clone());
            core.read.budget = None;
            core.write.as_mut().unwrap().used = used;
            core
        };
        assert_eq!(not_held(&of(25_250), false), None);
        assert_eq!(
            not_held(&of(30_000), false).unwrap(),
            "20 % past its write budget"
        );
        let mut rt = of(7);
        rt.rt = true;
        assert!(not_held(&rt, false).unwrap().contains("never throttled"));
        let mut both = of(30_000);
        both.read = both.write.clone().unwrap();
        assert_eq!(
            not_held(&both, false).unwrap(),
            "20 % past its budget, 20 % past its write budget"
        );
    }

    /// A session with a regulator of two cores, CPU1 with a read budget of 25 events.
    fn session() -> Session {
        let null = Null::new((0..2).collect());
        let mut session = Session::begin(Box::new(null), &StartOptions::default()).unwrap();
        set(&mut session, Resource::Read, Some(25));
        session
    }

    fn set(session: &mut Session, resource: Resource, events: Events) {
        let request = Request::events_for_cpu(1, events);
        session.guard().set_budgets(resource, &request).unwrap();
    }

    #[test]
    fn a_core_is_not_held_if_its_budget_was_lifted_or_changed_meanwhile() {
        let reason = |change: &dyn Fn(&mut Session)| {
            let mut session = session();
            let watch = Watch::begin(&session, vec![1]).unwrap();
            change(&mut session);
            let summary = watch.end(&session);
            assert_eq!(summary.held, summary.cores[0].not_held.is_none());
            summary.cores[0].not_held.clone()
        };
        assert_eq!(reason(&|_| {}), None);
        for (resource, events) in [
            (Resource::Read, None),
            (Resource::Read, Some(50)),
            (Resource::Write, Some(5)),
        ] {
            let reason = reason(&|session| set(session, resource, events));
            assert_eq!(
                reason.unwrap(),
                "its budget was changed while the command ran"
            );
        }
    }

    #[test]
    fn a_change_back_to_the_first_budget_is_remembered() {
        let mut session = session();
        let mut watch = Watch::begin(&session, vec![1]).unwrap();
        set(&mut session, Resource::Read, None);
        watch.look(&session);
        set(&mut session, Resource::Read, Some(25));
        assert!(!watch.end(&session).held);
    }

    #[test]
    fn another_period_with_the_same_rate_is_no_other_budget() {
        let mut session = session();
        let request = Request::parse(Unit::Mb, "100,100").unwrap();
        let guard = session.guard();
        guard.set_budgets(Resource::Read, &request).unwrap();
        let before = guard.settings().unwrap();
        guard.set_period(300).unwrap();
        let now = guard.settings().unwrap();
        assert_ne!(before.read_budget_events, now.read_budget_events);
        assert!(same_budgets(&before, &now, 1));
        // A budget in events is another rate.
        set(&mut session, Resource::Read, before.read_budget_events[&1]);
        let now = session.regulator().settings().unwrap();
        assert!(!same_budgets(&before, &now, 1));
    }

    #[test]
    fn the_worst_period_is_one_of_the_present_length() {
        let mut session = session();
        let mut watch = Watch::begin(&session, vec![1]).unwrap();
        watch.before.get_mut(&1).unwrap().read.used_max = 250;
        watch.worst.insert(1, [240, 0]);
        watch.look(&session);
        assert_eq!(watch.core(1, 1.0).worst_period_events, Some(240));
        session.guard().set_period(100).unwrap();
        watch.look(&session);
        assert_eq!(watch.core(1, 1.0).worst_period_events, None);
        watch.latest.get_mut(&1).unwrap().read.used_max = 26;
        assert_eq!(watch.core(1, 1.0).worst_period_events, Some(26));
    }

    #[test]
    fn a_chosen_core_that_is_not_regulated_is_not_held() {
        let session = session();
        // The regulator does not know CPU5.
        let summary = Watch::begin(&session, vec![1, 5]).unwrap().end(&session);
        let reasons: Vec<_> = summary.cores.iter().map(|core| &core.not_held).collect();
        assert_eq!(
            reasons,
            [&None, &Some("it was offline or not regulated".into())]
        );
        assert!(!summary.held);
        // A reading shows CPU1 offline; later ones show it online.
        let mut watch = Watch::begin(&session, vec![1]).unwrap();
        watch.latest.get_mut(&1).unwrap().online = false;
        watch.note_offline();
        assert!(!watch.end(&session).held);
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
            write: Some(WriteSummary {
                budget_mib_s: Some(48.8),
                achieved_mib_s: 3.1,
                budget_events: Some(12),
                worst_period_events: Some(9),
            }),
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
             worst period - of 25 events, 1 of 1000 periods missed, \
             write-backs 3.1 of 48.8 MB/s, worst period 9 of 12 events; CPU1 was NOT held: 20 % past its budget; \
             NOT held to the end, the guard ended before the command: it was stopped"
        );
    }
}
