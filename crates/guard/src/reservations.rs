// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets in their requested units, and their conversion to events a period.
//!
//! A budget keeps its unit, so that its events are computed anew for another period or guaranteed bandwidth, as in
//! `kernel/memguard/settings.c`.

use std::collections::BTreeMap;

use memwarden_platform::cpus::CpuSet;

use crate::Error;
use crate::budget::{Amount, Events, Request, Unit};
use crate::units::{events_per_period, mib_s};

/// The values that a budget's events depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Basis {
    pub period_us: u64,
    pub bytes_per_event: u64,
    pub maxbw_mib_s: u64,
}

/// One resource's budgets, by core.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reservations(BTreeMap<usize, (Unit, Amount)>);

impl Reservations {
    /// No budget for any of `cpus`.
    pub fn unlimited(cpus: &CpuSet) -> Self {
        Self(
            cpus.iter()
                .map(|cpu| (cpu, (Unit::Events, Amount::Max)))
                .collect(),
        )
    }

    /// Applies a request to one core of `online`, or to the first ones in order.
    pub fn with(&self, request: &Request, online: &CpuSet) -> Result<Self, Error> {
        let mut new = self.clone();
        let count = request.amounts.len();
        let cpus: Vec<usize> = match request.cpu {
            Some(cpu) if !online.contains(cpu) => {
                return Err(Error::BadInput(format!(
                    "a budget for CPU {cpu}: the guard regulates cores {online}"
                )));
            }
            Some(cpu) => vec![cpu],
            None => online.iter().collect(),
        };
        if count > cpus.len() {
            return Err(Error::BadInput(format!(
                "{count} budgets for {} cores ({online})",
                cpus.len()
            )));
        }
        for (cpu, amount) in cpus.into_iter().zip(&request.amounts) {
            new.0.insert(cpu, (request.unit, *amount));
        }
        Ok(new)
    }

    /// Events a period, by core.
    pub fn events(&self, basis: Basis) -> Result<BTreeMap<usize, Events>, Error> {
        let weights: u64 = self
            .0
            .values()
            .map(|reservation| match *reservation {
                (Unit::Weight, Amount::Limited(weight)) => weight,
                _ => 0,
            })
            .sum();
        let of_mib_s = |mib_s| events_per_period(mib_s, basis.period_us, basis.bytes_per_event);
        self.0
            .iter()
            .map(|(&cpu, &(unit, amount))| {
                let events = match (unit, amount) {
                    (_, Amount::Max) => return Ok((cpu, None)),
                    (Unit::Events, Amount::Limited(events)) => events,
                    (Unit::Mb, Amount::Limited(mib_s)) => of_mib_s(mib_s),
                    (Unit::Percent, Amount::Limited(percent)) => {
                        of_mib_s(basis.maxbw_mib_s).saturating_mul(percent) / 100
                    }
                    (Unit::Weight, Amount::Limited(weight)) => {
                        of_mib_s(basis.maxbw_mib_s).saturating_mul(weight) / weights.max(1)
                    }
                };
                if events == 0 {
                    return Err(Error::BadInput(format!(
                        "CPU {cpu}'s budget would be less than one event a period: give more, or a longer period"
                    )));
                }
                Ok((cpu, Some(events)))
            })
            .collect()
    }
}

/// Sum of the limited budgets, in MiB/s.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
pub(crate) fn guaranteed_mib_s(events: &BTreeMap<usize, Events>, basis: Basis) -> u64 {
    let sum: u64 = events.values().flatten().sum();
    mib_s(sum as f64, basis.period_us, basis.bytes_per_event).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASIS: Basis = Basis {
        period_us: 1000,
        bytes_per_event: 64,
        maxbw_mib_s: 1200,
    };

    fn online() -> CpuSet {
        [0, 1, 3].into_iter().collect()
    }

    fn request(unit: Unit, list: &str) -> Request {
        Request::parse(unit, list).unwrap()
    }

    #[test]
    fn each_unit_comes_to_its_events() {
        let none = Reservations::unlimited(&online());
        for (unit, list, expected) in [
            (Unit::Mb, "1000,100", [Some(16384), Some(1638), None]),
            (Unit::Events, "5,max,7", [Some(5), None, Some(7)]),
            (Unit::Percent, "50,10", [Some(9830), Some(1966), None]),
            (Unit::Weight, "4,1,1", [Some(13106), Some(3276), Some(3276)]),
        ] {
            let events = none.with(&request(unit, list), &online()).unwrap();
            let events = events.events(BASIS).unwrap();
            assert_eq!(events.into_values().collect::<Vec<_>>(), expected, "{list}");
        }
    }

    #[test]
    fn a_budget_keeps_its_unit_when_the_period_changes() {
        let set = Reservations::unlimited(&online());
        let set = set.with(&request(Unit::Mb, "1000"), &online()).unwrap();
        let half = Basis {
            period_us: 500,
            ..BASIS
        };
        assert_eq!(set.events(half).unwrap()[&0], Some(8192));
        assert_eq!(guaranteed_mib_s(&set.events(half).unwrap(), half), 1000);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let none = Reservations::unlimited(&online());
        for (list, cpu, expected) in [
            ("1,1,1,1", None, "4 budgets for 3 cores"),
            ("1", Some(2), "CPU 2: the guard regulates cores 0-1"),
        ] {
            let mut request = request(Unit::Mb, list);
            request.cpu = cpu;
            let message = none.with(&request, &online()).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
        let tiny = Basis {
            period_us: 50,
            bytes_per_event: 4096,
            ..BASIS
        };
        let set = none.with(&request(Unit::Mb, "1"), &online()).unwrap();
        assert!(
            set.events(tiny)
                .unwrap_err()
                .to_string()
                .contains("CPU 0's budget")
        );
    }
}
