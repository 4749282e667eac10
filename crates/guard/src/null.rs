// SPDX-License-Identifier: MIT OR Apache-2.0
//! The regulator that regulates nothing: it keeps its settings, counts nothing and throttles nobody.
//!
//! Whatever is built on a regulator runs against it on any machine, and a run with it shows what the
//! measuring itself costs.

use std::collections::BTreeMap;

use memwarden_platform::cpus::CpuSet;

use crate::budget::{Amount, Request, Unit};
use crate::regulator::{Regulator, Settings, StartOptions};
use crate::units::{events_per_period, mib_s};
use crate::{BestEffort, Control, CoreStatistics, Error, Resource};

/// Bytes of a cache line on the machines that this runs on.
const LINE_BYTES: u64 = 64;

/// The regulator.
#[derive(Debug, Clone)]
pub struct Null {
    cpus: CpuSet,
    settings: Option<Settings>,
}

impl Null {
    /// One that pretends to regulate `cpus`.
    pub fn new(cpus: CpuSet) -> Self {
        Self {
            cpus,
            settings: None,
        }
    }

    fn settings_mut(&mut self) -> Result<&mut Settings, Error> {
        self.settings.as_mut().ok_or(Error::NotRunning)
    }
}

impl Regulator for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn start(&mut self, options: &StartOptions) -> Result<(), Error> {
        if let Some(running) = &self.settings {
            return Err(Error::AlreadyRunning {
                event: running.control.event.clone(),
                period_us: running.control.period_us,
            });
        }
        let budgets: BTreeMap<_, _> = self.cpus.iter().map(|cpu| (cpu, None)).collect();
        self.settings = Some(Settings {
            control: Control {
                maxbw_mib_s: options.maxbw_mib_s.unwrap_or(0),
                period_us: options.period_us,
                reclaim: false,
                best_effort: BestEffort::None,
                qmin: 0,
                event: "null".into(),
                write_event: Some("null".into()),
                bytes_per_event: options.bytes_per_event.unwrap_or(LINE_BYTES),
                user_only: options.user_only,
                idle: "wait".into(),
                rt: CpuSet::default(),
                active: CpuSet::default(),
                throttled: CpuSet::default(),
                online: self.cpus.clone(),
                guaranteed_mib_s: 0,
            },
            read_budget_events: budgets.clone(),
            write_budget_events: budgets,
        });
        Ok(())
    }

    fn is_running(&self) -> bool {
        self.settings.is_some()
    }

    fn settings(&self) -> Result<Settings, Error> {
        self.settings.clone().ok_or(Error::NotRunning)
    }

    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    fn set_budgets(&mut self, resource: Resource, request: &Request) -> Result<(), Error> {
        let settings = self.settings_mut()?;
        let control = &settings.control;
        let weights: u64 = request
            .amounts
            .iter()
            .map(|amount| match amount {
                Amount::Limited(weight) => *weight,
                Amount::Max => 0,
            })
            .sum();
        let to_events = |amount: Amount| match amount {
            Amount::Max => None,
            Amount::Limited(events) if request.unit == Unit::Events => Some(events),
            Amount::Limited(amount) => {
                let mib_s = match request.unit {
                    Unit::Percent => control.maxbw_mib_s * amount / 100,
                    Unit::Weight => control.maxbw_mib_s * amount / weights.max(1),
                    Unit::Mb | Unit::Events => amount,
                };
                Some(events_per_period(
                    mib_s,
                    control.period_us,
                    control.bytes_per_event,
                ))
            }
        };
        let cpus: Vec<usize> = match request.cpu {
            Some(cpu) => vec![cpu],
            None => control.online.iter().collect(),
        };
        if request.amounts.len() > cpus.len()
            || cpus.iter().any(|cpu| !control.online.contains(*cpu))
        {
            return Err(Error::BadInput(
                "more budgets than cores, or a core that is not online".into(),
            ));
        }
        let new: Vec<_> = cpus
            .into_iter()
            .zip(request.amounts.iter().map(|amount| to_events(*amount)))
            .collect();
        if new.iter().any(|(_, events)| *events == Some(0)) {
            return Err(Error::BadInput(
                "a budget of less than one event a period".into(),
            ));
        }
        let budgets = match resource {
            Resource::Read => &mut settings.read_budget_events,
            Resource::Write => &mut settings.write_budget_events,
        };
        budgets.extend(new);
        let sum: u64 = settings.read_budget_events.values().flatten().sum();
        settings.control.guaranteed_mib_s = mib_s(
            sum as f64,
            settings.control.period_us,
            settings.control.bytes_per_event,
        ) as u64;
        Ok(())
    }

    fn set_mode(
        &mut self,
        best_effort: Option<BestEffort>,
        reclaim: Option<bool>,
    ) -> Result<(), Error> {
        let control = &mut self.settings_mut()?.control;
        control.best_effort = best_effort.unwrap_or(control.best_effort);
        control.reclaim = reclaim.unwrap_or(control.reclaim);
        Ok(())
    }

    fn set_maxbw(&mut self, maxbw_mib_s: u64) -> Result<(), Error> {
        self.settings_mut()?.control.maxbw_mib_s = maxbw_mib_s;
        Ok(())
    }

    fn set_period(&mut self, period_us: u64) -> Result<(), Error> {
        self.settings_mut()?.control.period_us = period_us;
        Ok(())
    }

    fn set_rt(&mut self, cpu: usize, rt: bool) -> Result<(), Error> {
        let control = &mut self.settings_mut()?.control;
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
        self.settings_mut().map(|_| ())
    }

    fn stop(&mut self) -> Result<(), Error> {
        self.settings.take().map(|_| ()).ok_or(Error::NotRunning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            BTreeMap::from([(0, Some(16384)), (1, Some(1638)), (2, None), (3, None)])
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
