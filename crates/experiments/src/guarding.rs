// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guard settings in the form of the command line: `1000,100,100,100+spare+reclaim`.

use std::fmt;
use std::str::FromStr;

use memwarden_guard::budget::{Amount, Request, Unit};
use memwarden_guard::{BestEffort, Error as GuardError, Regulator, Resource, Settings, units};
use memwarden_platform::as_text;
use memwarden_platform::cpus::CpuSet;
use memwarden_run::{GuardSettings, title};

use crate::Error;

/// Budgets in the order of the cores, sharing, reclaim, and whether each bank has these budgets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardSpec {
    budgets: Request,
    /// Sharing after all cores have used their budgets.
    pub best_effort: BestEffort,
    /// Donation and reclaim.
    pub reclaim: bool,
    /// Each core has its budget in each bank of the memory: on a simulated machine.
    pub per_bank: bool,
}

impl GuardSpec {
    /// The settings in the words of the report's tables, for a machine with `cores` cores:
    /// `1000,100,max, spare sharing`.
    pub fn title(&self, cores: usize) -> String {
        let mut amounts: Vec<String> = self.budgets.amounts.iter().map(Amount::to_string).collect();
        amounts.resize(amounts.len().max(cores), Amount::Max.to_string());
        let unit = match self.budgets.unit {
            Unit::Events => "events:",
            _ => "",
        };
        title::guard(
            &format!("{unit}{}", title::budgets(&amounts)),
            self.best_effort.word(),
            self.reclaim,
            self.per_bank,
        )
    }

    /// Refuses more budgets than there are cores.
    pub(crate) fn check_fits(&self, online: &CpuSet) -> Result<(), Error> {
        let (budgets, cores) = (self.budgets.amounts.len(), online.len());
        if budgets > cores {
            return Err(Error::BadInput(format!(
                "guard `{self}`: {budgets} budgets for {cores} cores ({online})"
            )));
        }
        Ok(())
    }

    /// Checks that a real machine's guard supports the settings.
    ///
    /// # Errors
    /// When they are budgets per bank.
    pub fn check_real(&self) -> Result<(), Error> {
        if self.per_bank {
            return Err(Error::BadInput(format!(
                "guard `{self}`: budgets per bank need counters for each core and bank in the memory controller, which \
                 this machine lacks; leave out +per-bank, or use a model (--on sim:PLATFORM)"
            )));
        }
        Ok(())
    }

    /// Checks that the settings agree with each other.
    ///
    /// # Errors
    /// When budgets per bank have proportional sharing.
    pub fn check(&self) -> Result<(), Error> {
        if self.per_bank && self.best_effort == BestEffort::Proportional {
            return Err(Error::BadInput(format!(
                "guard `{self}`: a bank's period cannot begin before the others'; with +per-bank give +spare instead of \
                 +ps, or neither"
            )));
        }
        Ok(())
    }

    /// Applies the settings to the guard of a real machine. Cores beyond the list have no budget.
    ///
    /// # Errors
    /// When they are budgets per bank, or the guard refuses.
    pub fn apply(&self, guard: &mut dyn Regulator) -> Result<(), Error> {
        self.check_real()?;
        self.set(guard)
    }

    /// The same without that check.
    pub(crate) fn set(&self, guard: &mut dyn Regulator) -> Result<(), Error> {
        let settings = guard.settings()?;
        let online = &settings.control.online;
        self.check_fits(online)?;
        lift_others(guard, &settings)?;
        let mut budgets = self.budgets.clone();
        budgets.amounts.resize(online.len(), Amount::Max);
        guard.set_budgets(Resource::Read, &budgets)?;
        guard.set_mode(Some(self.best_effort), Some(self.reclaim))?;
        Ok(())
    }

    /// Lifts the budgets and exemptions of all cores.
    ///
    /// # Errors
    /// When the guard refuses.
    pub fn lift(guard: &mut dyn Regulator) -> Result<(), GuardError> {
        let settings = guard.settings()?;
        for cpu in settings.control.online.iter() {
            guard.set_budgets(Resource::Read, &Request::events_for_cpu(cpu, None))?;
        }
        lift_others(guard, &settings)?;
        guard.set_mode(Some(BestEffort::None), Some(false))
    }
}

/// Lifts what no [`GuardSpec`] sets, and a guard that was running already may have: budgets for writes, and exemptions.
fn lift_others(guard: &mut dyn Regulator, settings: &Settings) -> Result<(), GuardError> {
    for (&cpu, events) in &settings.write_budget_events {
        if events.is_some() {
            guard.set_budgets(Resource::Write, &Request::events_for_cpu(cpu, None))?;
        }
    }
    let control = &settings.control;
    for cpu in control
        .rt
        .iter()
        .filter(|cpu| control.online.contains(*cpu))
    {
        guard.set_rt(cpu, false)?;
    }
    Ok(())
}

/// The settings as a summary records them: budgets as requested, and the events that the guard derived from them.
pub(crate) fn describe(backend: &str, settings: &Settings, asked: &GuardSpec) -> GuardSettings {
    let control = &settings.control;
    GuardSettings {
        backend: backend.into(),
        budget_mib_s: settings
            .read_budget_events
            .values()
            .enumerate()
            .map(|(core, events)| match asked.budgets.amounts.get(core) {
                Some(Amount::Limited(mib_s)) if asked.budgets.unit == Unit::Mb => {
                    Some(*mib_s as f64)
                }
                _ => events.map(|events| {
                    units::mib_s(events as f64, control.period_us, control.bytes_per_event)
                }),
            })
            .collect(),
        best_effort: control.best_effort.word().into(),
        reclaim: control.reclaim,
        period_us: Some(control.period_us),
        event: Some(control.event.clone()),
        bytes_per_event: Some(control.bytes_per_event),
        budget_events: Some(settings.read_budget_events.values().copied().collect()),
        per_bank: asked.per_bank,
        ..GuardSettings::default()
    }
}

impl FromStr for GuardSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut words = text.split('+');
        let list = words.next().unwrap_or_default();
        let (unit, list) = match list.strip_prefix("events:") {
            Some(list) => (Unit::Events, list),
            None => (Unit::Mb, list),
        };
        let mut spec = Self {
            budgets: Request::parse(unit, list)?,
            best_effort: BestEffort::None,
            reclaim: false,
            per_bank: false,
        };
        for word in words {
            match word {
                "spare" => spec.best_effort = BestEffort::Spare,
                "ps" => spec.best_effort = BestEffort::Proportional,
                "reclaim" => spec.reclaim = true,
                "per-bank" => spec.per_bank = true,
                _ => {
                    return Err(Error::BadInput(format!(
                        "guard `{text}`: `+{word}` is not known; give +spare, +ps, +reclaim or +per-bank"
                    )));
                }
            }
        }
        spec.check()?;
        Ok(spec)
    }
}

as_text!(GuardSpec);

impl fmt::Display for GuardSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.budgets.unit == Unit::Events {
            f.write_str("events:")?;
        }
        for (index, amount) in self.budgets.amounts.iter().enumerate() {
            write!(f, "{}{amount}", if index > 0 { "," } else { "" })?;
        }
        match self.best_effort {
            BestEffort::None => {}
            BestEffort::Spare => f.write_str("+spare")?,
            BestEffort::Proportional => f.write_str("+ps")?,
        }
        if self.reclaim {
            f.write_str("+reclaim")?;
        }
        if self.per_bank {
            f.write_str("+per-bank")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwarden_guard::{Null, StartOptions};
    use proptest::prelude::*;

    #[test]
    fn settings_print_as_they_were_typed() {
        for text in [
            "1000,100,100,100",
            "600,200+ps",
            "600,200+spare+reclaim",
            "max,5",
            "events:25,25+reclaim",
            "max,100+per-bank",
            "max,100+spare+reclaim+per-bank",
        ] {
            assert_eq!(text.parse::<GuardSpec>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "none",
            "100+",
            "100+fast",
            "0",
            "100,,1",
            "+spare",
            "events:",
            "mb:1",
            "100+per-bank+ps",
            "100+per_bank",
        ] {
            assert!(text.parse::<GuardSpec>().is_err(), "{text}");
        }
    }

    #[test]
    fn settings_reach_the_guard_and_are_lifted_again() {
        let mut guard = Null::new([0, 1, 2].into_iter().collect());
        guard.start(&StartOptions::default()).unwrap();
        let spec: GuardSpec = "1000,100+ps+reclaim".parse().unwrap();
        spec.apply(&mut guard).unwrap();
        let described = describe("null", &guard.settings().unwrap(), &spec);
        assert_eq!(described.budget_mib_s.len(), 3);
        assert_eq!(described.budget_mib_s[0], Some(1000.0));
        assert_eq!(described.budget_mib_s[2], None);
        assert_eq!(described.best_effort, "proportional");
        assert!(described.reclaim);
        GuardSpec::lift(&mut guard).unwrap();
        assert!(
            guard
                .settings()
                .unwrap()
                .read_budget_events
                .values()
                .all(Option::is_none)
        );
        assert!(
            "1,1,1,1"
                .parse::<GuardSpec>()
                .unwrap()
                .apply(&mut guard)
                .unwrap_err()
                .to_string()
                .contains("4 budgets")
        );
    }

    #[test]
    fn a_guards_write_budgets_and_exemptions_are_no_part_of_a_case() {
        let mut guard = Null::new([0, 1, 2].into_iter().collect());
        guard.start(&StartOptions::default()).unwrap();
        let writes = Request::parse(Unit::Mb, "1000,50").unwrap();
        let spec: GuardSpec = "1000,100".parse().unwrap();
        for spec in [Some(spec), None] {
            guard.set_budgets(Resource::Write, &writes).unwrap();
            guard.set_rt(1, true).unwrap();
            let earlier = guard.settings().unwrap();
            match spec {
                Some(spec) => spec.apply(&mut guard).unwrap(),
                None => GuardSpec::lift(&mut guard).unwrap(),
            }
            let now = guard.settings().unwrap();
            assert!(now.write_budget_events.values().all(Option::is_none));
            assert!(now.control.rt.is_empty(), "{}", now.control.rt);
            guard.restore(&earlier).unwrap();
            assert_eq!(guard.settings().unwrap(), earlier);
        }
    }

    #[test]
    fn budgets_per_bank_are_refused_by_every_real_guard() {
        let mut guard = Null::new([0, 1].into_iter().collect());
        guard.start(&StartOptions::default()).unwrap();
        let spec: GuardSpec = "max,100+per-bank".parse().unwrap();
        let refused = spec.apply(&mut guard).unwrap_err().to_string();
        assert!(refused.contains("`max,100+per-bank`"), "{refused}");
        assert!(refused.contains("--on sim:PLATFORM"), "{refused}");
        assert!(!refused.contains('\n'));
        let settings = guard.settings().unwrap();
        assert!(settings.read_budget_events.values().all(Option::is_none));
        spec.set(&mut guard).unwrap();
        assert!(describe("sim", &guard.settings().unwrap(), &spec).per_bank);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "\\PC*") {
            let _ = text.parse::<GuardSpec>();
        }
    }
}
