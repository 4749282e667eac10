// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wanted settings of a guard, and the changes that they require.

use std::collections::BTreeMap;
use std::fmt;

use crate::budget::{Amount, Events, Request, Unit};
use crate::claims::of_period;
use crate::{BestEffort, Error, Regulator, Resource, Settings, Wish};

/// One core's budget: as requested, and in events a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    unit: Unit,
    amount: Amount,
    events: Events,
}

impl Budget {
    /// A budget in events a period; `None` means no budget.
    pub fn events(events: Events) -> Self {
        Self {
            unit: Unit::Events,
            amount: events.map_or(Amount::Max, Amount::Limited),
            events,
        }
    }

    /// A budget in MiB/s, with the events a period that it amounts to.
    pub fn mb(mb_s: u64, events: u64) -> Self {
        Self {
            unit: Unit::Mb,
            amount: Amount::Limited(mb_s),
            events: Some(events),
        }
    }

    fn request(self, cpu: usize) -> Request {
        Request {
            cpu: Some(cpu),
            unit: self.unit,
            amounts: vec![self.amount],
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.amount, self.unit) {
            (Amount::Max, _) => f.write_str("no budget"),
            (Amount::Limited(mb_s), Unit::Mb) => write!(f, "{mb_s} MB/s"),
            (Amount::Limited(events), _) => write!(f, "{events} events a period"),
        }
    }
}

/// The wanted settings; those without a value are left alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Length of a period in microseconds.
    pub period_us: Option<u64>,
    /// The machine's guaranteed bandwidth in MiB/s.
    pub maxbw_mib_s: Option<u64>,
    /// What happens when all active cores have used their budgets.
    pub best_effort: Option<BestEffort>,
    /// Whether cores donate and reclaim budget.
    pub reclaim: Option<bool>,
    /// Read budgets by core.
    pub read: BTreeMap<usize, Budget>,
    /// Write budgets by core.
    pub write: BTreeMap<usize, Budget>,
    /// Exemption by core: true means never throttled.
    pub rt: BTreeMap<usize, bool>,
}

/// One setting that has to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The period in microseconds.
    Period(u64),
    /// The guaranteed bandwidth in MiB/s.
    Maxbw(u64),
    /// What happens when all active cores have used their budgets.
    BestEffort(BestEffort),
    /// Whether cores donate and reclaim budget.
    Reclaim(bool),
    /// A core's budget.
    Budget(Resource, usize, Budget),
    /// A core's exemption.
    Rt(usize, bool),
}

impl Change {
    /// The core that the change concerns, if it concerns only one.
    pub fn cpu(&self) -> Option<usize> {
        match self {
            Self::Budget(_, cpu, _) | Self::Rt(cpu, _) => Some(*cpu),
            _ => None,
        }
    }

    fn apply(&self, guard: &mut dyn Regulator) -> Result<(), Error> {
        match self {
            Self::Period(us) => guard.set_period(*us),
            Self::Maxbw(mib_s) => guard.set_maxbw(*mib_s),
            Self::BestEffort(mode) => guard.set_mode(Some(*mode), None),
            Self::Reclaim(reclaim) => guard.set_mode(None, Some(*reclaim)),
            Self::Budget(resource, cpu, budget) => {
                guard.set_budgets(*resource, &budget.request(*cpu))
            }
            Self::Rt(cpu, rt) => guard.set_rt(*cpu, *rt),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Period(us) => write!(f, "period {us} us"),
            Self::Maxbw(mib_s) => write!(f, "maxbw {mib_s} MB/s"),
            Self::BestEffort(mode) => write!(f, "best effort {}", mode.word()),
            Self::Reclaim(reclaim) => write!(f, "reclaim {}", if *reclaim { "on" } else { "off" }),
            Self::Budget(Resource::Read, cpu, budget) => write!(f, "CPU{cpu} {budget}"),
            Self::Budget(Resource::Write, cpu, budget) => write!(f, "CPU{cpu} write {budget}"),
            Self::Rt(cpu, true) => write!(f, "CPU{cpu} never throttled"),
            Self::Rt(cpu, false) => write!(f, "CPU{cpu} throttled as others"),
        }
    }
}

/// The changes as `a, b, c`, for a line of a log.
pub fn list(changes: &[Change]) -> String {
    let words: Vec<String> = changes.iter().map(ToString::to_string).collect();
    words.join(", ")
}

impl Wanted {
    /// The budgets in the form that a session takes.
    pub(crate) fn wishes(&self) -> Vec<Wish> {
        let of = |resource, budgets: &BTreeMap<usize, Budget>| {
            let wish = |(&cpu, budget): (&usize, &Budget)| Wish {
                cpu,
                resource,
                events: budget.events,
            };
            budgets.iter().map(wish).collect::<Vec<_>>()
        };
        [
            of(Resource::Read, &self.read),
            of(Resource::Write, &self.write),
        ]
        .concat()
    }

    /// Whether a core has a budget here, or `max`.
    pub(crate) fn has_budget(&self, cpu: usize) -> bool {
        self.read.contains_key(&cpu) || self.write.contains_key(&cpu)
    }

    /// The changes that these settings require of `settings`, in an order in which each one is valid beside the settings
    /// that still have their old values. Those of offline cores wait until the cores are online.
    pub fn changes(&self, settings: &Settings) -> Vec<Change> {
        let control = &settings.control;
        let period_us = self.period_us.filter(|us| *us != control.period_us);
        let maxbw = self.maxbw_mib_s.filter(|bw| *bw != control.maxbw_mib_s);
        let basis = [
            period_us.map(|us| (us > control.period_us, Change::Period(us))),
            maxbw.map(|bw| (bw > control.maxbw_mib_s, Change::Maxbw(bw))),
        ];
        // A budget in MB/s or percent has more events with a longer period or a larger maxbw: no old budget becomes too
        // small if these come first. A shorter period or a smaller maxbw must find the new budgets.
        let (raised, lowered): (Vec<_>, Vec<_>) =
            basis.into_iter().flatten().partition(|(raise, _)| *raise);
        // The events of the old budget change with the basis, so equal events don't mean equal budgets.
        let new_basis = period_us.is_some() || maxbw.is_some();
        let mut changes: Vec<Change> = raised.into_iter().map(|(_, change)| change).collect();
        for (resource, wanted, now) in [
            (Resource::Read, &self.read, &settings.read_budget_events),
            (Resource::Write, &self.write, &settings.write_budget_events),
        ] {
            for (&cpu, &budget) in wanted {
                let other = now.get(&cpu).is_some_and(|events| {
                    *events != budget.events || new_basis && events.is_some()
                });
                if other {
                    changes.push(Change::Budget(resource, cpu, budget));
                }
            }
        }
        changes.extend(lowered.into_iter().map(|(_, change)| change));
        for (&cpu, &rt) in &self.rt {
            if control.online.contains(cpu) && control.rt.contains(cpu) != rt {
                changes.push(Change::Rt(cpu, rt));
            }
        }
        let mode = self.best_effort.filter(|mode| *mode != control.best_effort);
        changes.extend(mode.map(Change::BestEffort));
        let reclaim = self.reclaim.filter(|reclaim| *reclaim != control.reclaim);
        changes.extend(reclaim.map(Change::Reclaim));
        changes
    }

    /// These settings, and with their values in `base` those that only `before` has: this undoes them. Budgets of `base`
    /// keep their rates if these settings have another period.
    #[must_use]
    pub fn undoing(&self, before: &Self, base: &Settings) -> Self {
        fn left<T: Copy>(
            now: &BTreeMap<usize, T>,
            before: &BTreeMap<usize, T>,
            base: impl Fn(usize) -> T,
        ) -> BTreeMap<usize, T> {
            let gone = before.keys().filter(|cpu| !now.contains_key(cpu));
            let mut all: BTreeMap<_, _> = gone.map(|&cpu| (cpu, base(cpu))).collect();
            all.extend(now);
            all
        }
        let control = &base.control;
        let period_us = self.period_us.unwrap_or(control.period_us);
        let budget = |budgets: &BTreeMap<usize, Events>, cpu: usize| {
            let events = budgets.get(&cpu).copied().flatten();
            Budget::events(events.map(|events| of_period(events, control.period_us, period_us)))
        };
        Self {
            period_us: self
                .period_us
                .or(before.period_us.map(|_| control.period_us)),
            // 0 means unknown, which can't be set.
            maxbw_mib_s: self
                .maxbw_mib_s
                .or(before.maxbw_mib_s.map(|_| control.maxbw_mib_s))
                .filter(|maxbw| *maxbw > 0),
            best_effort: self
                .best_effort
                .or(before.best_effort.map(|_| control.best_effort)),
            reclaim: self.reclaim.or(before.reclaim.map(|_| control.reclaim)),
            read: left(&self.read, &before.read, |cpu| {
                budget(&base.read_budget_events, cpu)
            }),
            write: left(&self.write, &before.write, |cpu| {
                budget(&base.write_budget_events, cpu)
            }),
            rt: left(&self.rt, &before.rt, |cpu| control.rt.contains(cpu)),
        }
    }
}

/// Makes all of these changes, or none.
///
/// # Errors
/// The first change that the guard refuses; those before it are undone. [`Error::NotUndone`] if they could not be.
pub fn apply(guard: &mut dyn Regulator, changes: &[Change]) -> Result<(), Error> {
    if changes.is_empty() {
        return Ok(());
    }
    let before = guard.settings()?;
    for change in changes {
        if let Err(refused) = change.apply(guard) {
            return Err(match guard.restore(&before) {
                Err(undo) if guard.is_running() => Error::NotUndone {
                    refused: Box::new(refused),
                    undo: Box::new(undo),
                },
                _ => refused,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::Shared;
    use crate::{Null, StartOptions};

    fn started() -> Null {
        let mut guard = Null::new((0..3).collect());
        guard.start(&StartOptions::default()).unwrap();
        guard
    }

    fn budgets() -> Wanted {
        Wanted {
            period_us: Some(500),
            best_effort: Some(BestEffort::Spare),
            reclaim: Some(true),
            maxbw_mib_s: Some(1200),
            read: BTreeMap::from([(0, Budget::mb(1000, 8192)), (7, Budget::events(Some(5)))]),
            rt: BTreeMap::from([(1, true), (7, true)]),
            ..Wanted::default()
        }
    }

    #[test]
    fn a_budget_that_is_undone_keeps_its_rate_with_another_period() {
        let mut guard = started();
        let set = guard.set_budgets(Resource::Read, &Request::events_for_cpu(1, Some(1000)));
        set.unwrap();
        let base = guard.settings().unwrap();
        let period = |period_us, read| Wanted {
            period_us,
            read,
            ..Wanted::default()
        };
        let before = period(Some(10_000), BTreeMap::from([(1, Budget::events(Some(7)))]));
        let now = period(Some(10_000), BTreeMap::new()).undoing(&before, &base);
        assert_eq!(now.read[&1], Budget::events(Some(10_000)));
        let now = Wanted::default().undoing(&before, &base);
        assert_eq!(now.read[&1], Budget::events(Some(1000)));
    }

    #[test]
    fn what_differs_is_changed_and_then_nothing_differs() {
        let mut guard = started();
        let wanted = budgets();
        let changes = wanted.changes(&guard.settings().unwrap());
        assert_eq!(
            list(&changes),
            "maxbw 1200 MB/s, CPU0 1000 MB/s, period 500 us, CPU1 never throttled, best effort spare, reclaim on"
        );
        apply(&mut guard, &changes).unwrap();
        assert_eq!(wanted.changes(&guard.settings().unwrap()), []);
    }

    #[test]
    fn a_refusal_leaves_all_as_it_was() {
        let mut guard = started();
        let before = guard.settings().unwrap();
        let changes = [
            Change::Period(500),
            Change::Reclaim(true),
            Change::Budget(Resource::Read, 9, Budget::events(Some(5))),
        ];
        assert!(apply(&mut guard, &changes).is_err());
        assert_eq!(guard.settings().unwrap(), before);
    }

    /// A guard whose events are pages, with this period and this budget in MB/s on CPU0.
    fn set(period_us: u64, mib_s: u64) -> Null {
        let mut guard = Null::new((0..2).collect());
        let options = StartOptions {
            bytes_per_event: Some(4096),
            period_us,
            ..StartOptions::default()
        };
        guard.start(&options).unwrap();
        let request = Request {
            cpu: Some(0),
            unit: Unit::Mb,
            amounts: vec![Amount::Limited(mib_s)],
        };
        guard.set_budgets(Resource::Read, &request).unwrap();
        guard
    }

    #[test]
    fn a_new_period_meets_no_budget_that_is_too_small_for_it() {
        // One MB/s is less than one page in a millisecond.
        let mut guard = set(10_000, 1);
        let mut wanted = Wanted {
            period_us: Some(1000),
            read: BTreeMap::from([(0, Budget::mb(100, 25))]),
            ..Wanted::default()
        };
        let changes = wanted.changes(&guard.settings().unwrap());
        assert_eq!(list(&changes), "CPU0 100 MB/s, period 1000 us");
        apply(&mut guard, &changes).unwrap();
        assert_eq!(wanted.changes(&guard.settings().unwrap()), []);

        wanted.period_us = Some(10_000);
        wanted.read.insert(0, Budget::mb(1, 2));
        let changes = wanted.changes(&guard.settings().unwrap());
        assert_eq!(list(&changes), "period 10000 us, CPU0 1 MB/s");
        apply(&mut guard, &changes).unwrap();
        assert_eq!(wanted.changes(&guard.settings().unwrap()), []);
    }

    #[test]
    fn a_budget_with_the_same_events_in_another_unit_is_set_with_the_period() {
        let mut guard = set(10_000, 100);
        let wanted = Wanted {
            period_us: Some(1000),
            read: BTreeMap::from([(0, Budget::events(Some(256)))]),
            ..Wanted::default()
        };
        let settings = guard.settings().unwrap();
        assert_eq!(settings.read_budget_events[&0], Some(256));
        apply(&mut guard, &wanted.changes(&settings)).unwrap();
        assert_eq!(wanted.changes(&guard.settings().unwrap()), []);
    }

    #[test]
    fn the_undo_meets_no_budget_that_is_too_small_for_the_period() {
        let mut guard = set(1000, 100);
        let before = guard.settings().unwrap();
        let changes = [
            Change::Period(10_000),
            Change::Budget(Resource::Read, 0, Budget::mb(1, 2)),
            Change::Budget(Resource::Read, 9, Budget::events(Some(5))),
        ];
        let error = apply(&mut guard, &changes).unwrap_err();
        assert!(matches!(error, Error::BadInput(_)), "{error}");
        assert_eq!(guard.settings().unwrap(), before);
    }

    #[test]
    fn an_undo_that_fails_in_one_setting_undoes_the_others_and_is_told() {
        let mut guard = Shared::new();
        guard.start(&StartOptions::default()).unwrap();
        guard.refuse_to_end_exemptions(true);
        let changes = [
            Change::Rt(0, true),
            Change::Reclaim(true),
            Change::Budget(Resource::Read, 9, Budget::events(Some(5))),
        ];
        let error = apply(&mut guard, &changes).unwrap_err();
        assert!(matches!(error, Error::NotUndone { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("CPU 9") && text.contains("stays exempt"),
            "{text}"
        );
        assert!(!guard.settings().unwrap().control.reclaim);
    }

    #[test]
    fn what_is_no_longer_wanted_is_undone() {
        let mut guard = started();
        let base = guard.settings().unwrap();
        let before = budgets();
        apply(&mut guard, &before.changes(&base)).unwrap();
        let now = Wanted {
            read: BTreeMap::from([(2, Budget::mb(100, 1638))]),
            ..Wanted::default()
        };
        let changes = now
            .undoing(&before, &base)
            .changes(&guard.settings().unwrap());
        assert_eq!(
            list(&changes),
            "period 1000 us, CPU0 no budget, CPU2 100 MB/s, CPU1 throttled as others, best effort none, reclaim off"
        );
    }
}
