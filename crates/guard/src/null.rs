// SPDX-License-Identifier: MIT OR Apache-2.0
//! The regulator that regulates nothing: it keeps its settings, counts no events and throttles no core.
//!
//! Code that needs a regulator runs with it on any machine, and a run with it shows the cost of the measurement itself.

use std::collections::BTreeMap;

use memwarden_platform::cpus::CpuSet;

use crate::budget::{COMBINED_ALONE, Request};
use crate::regulator::{Regulator, Settings, StartOptions};
use crate::reservations::{Basis, Reservations, guaranteed_mib_s};
use crate::{BestEffort, Control, CoreStatistics, Error, Resource};

/// Bytes of a cache line on the supported machines.
const LINE_BYTES: u64 = 64;

/// The null regulator.
#[derive(Debug, Clone)]
pub struct Null {
    cpus: CpuSet,
    state: Option<State>,
}

#[derive(Debug, Clone)]
struct State {
    settings: Settings,
    /// By [`Resource`].
    reservations: [Reservations; 2],
}

impl State {
    /// Takes these reservations; on an error nothing changes.
    fn take(&mut self, reservations: [Reservations; 2]) -> Result<(), Error> {
        let control = &self.settings.control;
        let basis = Basis {
            period_us: control.period_us,
            bytes_per_event: control.bytes_per_event,
            maxbw_mib_s: control.maxbw_mib_s,
        };
        let read = reservations[0].events(basis)?;
        let write = if control.combined {
            BTreeMap::new()
        } else {
            reservations[1].events(basis)?
        };
        self.settings.control.guaranteed_mib_s = guaranteed_mib_s(&read, basis);
        self.settings.read_budget_events = read;
        self.settings.write_budget_events = write;
        self.reservations = reservations;
        Ok(())
    }
}

impl Null {
    /// A regulator that pretends to regulate `cpus`.
    pub fn new(cpus: CpuSet) -> Self {
        Self { cpus, state: None }
    }

    fn state_mut(&mut self) -> Result<&mut State, Error> {
        self.state.as_mut().ok_or(Error::NotRunning)
    }

    fn control_mut(&mut self) -> Result<&mut Control, Error> {
        Ok(&mut self.state_mut()?.settings.control)
    }
}

impl Regulator for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn start(&mut self, options: &StartOptions) -> Result<(), Error> {
        if let Some(running) = &self.state {
            return Err(Error::AlreadyRunning {
                event: running.settings.control.event.clone(),
                period_us: running.settings.control.period_us,
            });
        }
        let budgets: BTreeMap<_, _> = self.cpus.iter().map(|cpu| (cpu, None)).collect();
        let reservations = Reservations::unlimited(&self.cpus);
        let settings = Settings {
            control: Control {
                maxbw_mib_s: options.maxbw_mib_s.unwrap_or(0),
                period_us: options.period_us,
                reclaim: false,
                best_effort: BestEffort::None,
                qmin: 0,
                event: "null".into(),
                write_event: Some("null".into()),
                combined: options.combined,
                bytes_per_event: options.bytes_per_event.unwrap_or(LINE_BYTES),
                user_only: options.user_only,
                idle: "wait".into(),
                cpus: self.cpus.clone(),
                rt: CpuSet::default(),
                active: CpuSet::default(),
                throttled: CpuSet::default(),
                online: self.cpus.clone(),
                guaranteed_mib_s: 0,
            },
            read_budget_events: budgets.clone(),
            write_budget_events: if options.combined {
                BTreeMap::new()
            } else {
                budgets
            },
        };
        self.state = Some(State {
            settings,
            reservations: [reservations.clone(), reservations],
        });
        Ok(())
    }

    fn is_running(&self) -> bool {
        self.state.is_some()
    }

    fn settings(&self) -> Result<Settings, Error> {
        let state = self.state.as_ref().ok_or(Error::NotRunning)?;
        Ok(state.settings.clone())
    }

    fn set_budgets(&mut self, resource: Resource, request: &Request) -> Result<(), Error> {
        let state = self.state_mut()?;
        if resource == Resource::Write && state.settings.control.combined {
            return Err(Error::BadInput(COMBINED_ALONE.into()));
        }
        let index = resource as usize;
        let mut reservations = state.reservations.clone();
        reservations[index] = reservations[index].with(request, &state.settings.control.online)?;
        state.take(reservations)
    }

    fn set_mode(
        &mut self,
        best_effort: Option<BestEffort>,
        reclaim: Option<bool>,
    ) -> Result<(), Error> {
        let control = self.control_mut()?;
        control.best_effort = best_effort.unwrap_or(control.best_effort);
        control.reclaim = reclaim.unwrap_or(control.reclaim);
        Ok(())
    }

    fn set_maxbw(&mut self, maxbw_mib_s: u64) -> Result<(), Error> {
        let state = self.state_mut()?;
        let before = std::mem::replace(&mut state.settings.control.maxbw_mib_s, maxbw_mib_s);
        state
            .take(state.reservations.clone())
            .inspect_err(|_| state.settings.control.maxbw_mib_s = before)
    }

    fn set_period(&mut self, period_us: u64) -> Result<(), Error> {
        let state = self.state_mut()?;
        let before = std::mem::replace(&mut state.settings.control.period_us, period_us);
        state
            .take(state.reservations.clone())
            .inspect_err(|_| state.settings.control.period_us = before)
    }

    fn set_rt(&mut self, cpu: usize, rt: bool) -> Result<(), Error> {
        let control = self.control_mut()?;
        control.rt = control
            .rt
            .iter()
            .filter(|other| *other != cpu)
            .chain(rt.then_some(cpu))
            .collect();
        Ok(())
    }

    fn statistics(&self) -> Result<Vec<CoreStatistics>, Error> {
        let settings = self.settings()?;
        Ok(settings
            .control
            .online
            .iter()
            .map(|cpu| CoreStatistics {
                cpu,
                online: true,
                rt: settings.control.rt.contains(cpu),
                ..CoreStatistics::default()
            })
            .collect())
    }

    fn reset_statistics(&mut self) -> Result<(), Error> {
        self.state_mut().map(|_| ())
    }

    fn stop(&mut self) -> Result<(), Error> {
        self.state.take().map(|_| ()).ok_or(Error::NotRunning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Unit;

    fn started() -> Null {
        let mut guard = Null::new([0, 1, 2, 3].into_iter().collect());
        guard
            .start(&StartOptions {
                maxbw_mib_s: Some(1200),
                ..StartOptions::default()
            })
            .unwrap();
        guard
    }

    #[test]
    fn what_was_set_is_shown_and_restored() {
        let mut guard = started();
        let before = guard.settings().unwrap();
        guard
            .set_budgets(
                Resource::Read,
                &Request::parse(Unit::Mb, "1000,100").unwrap(),
            )
            .unwrap();
        guard
            .set_budgets(
                Resource::Write,
                &Request::parse(Unit::Weight, "3,1").unwrap(),
            )
            .unwrap();
        guard.set_mode(Some(BestEffort::Spare), Some(true)).unwrap();
        guard.set_rt(2, true).unwrap();
        guard.set_period(500).unwrap();
        let after = guard.settings().unwrap();
        assert_eq!(
            after.read_budget_events,
            BTreeMap::from([(0, Some(8192)), (1, Some(819)), (2, None), (3, None)])
        );
        assert_eq!(after.control.rt.to_string(), "2");
        guard.restore(&before).unwrap();
        let mut restored = guard.settings().unwrap();
        restored.control.guaranteed_mib_s = before.control.guaranteed_mib_s;
        assert_eq!(restored, before);
    }

    #[test]
    fn a_refused_budget_changes_nothing() {
        let mut guard = started();
        let before = guard.settings().unwrap();
        assert!(
            guard
                .set_budgets(
                    Resource::Read,
                    &Request::parse(Unit::Mb, "1,1,1,1,1").unwrap()
                )
                .is_err()
        );
        assert!(
            guard
                .set_budgets(Resource::Read, &Request::events_for_cpu(9, Some(1)))
                .is_err()
        );
        assert_eq!(guard.settings().unwrap(), before);
    }

    #[test]
    fn it_runs_once_at_a_time() {
        let mut guard = started();
        assert!(matches!(
            guard.start(&StartOptions::default()),
            Err(Error::AlreadyRunning { .. })
        ));
        guard.stop().unwrap();
        assert!(matches!(guard.statistics(), Err(Error::NotRunning)));
        assert!(matches!(guard.stop(), Err(Error::NotRunning)));
    }
}
