// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets on the command line.

use std::process::ExitCode;

use crate::verbs::output::errln;
use anyhow::bail;
use memwarden_guard::budget::{Amount, COMBINED_ALONE, Request, Unit};
use memwarden_guard::{Control, Regulator, Resource, Settings, Wish, units};
use memwarden_platform::cpus::{self, CpuSet};

/// The budget of each core, in exactly one unit; `max` instead of a number lifts it.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("budgets").args(["mb", "events", "weights", "percent"]))]
#[command(group = clap::ArgGroup::new("any").args(["mb", "events", "weights", "percent", "write_mb"]).required(true).multiple(true))]
pub(super) struct Budgets {
    /// Set the budget of only this core
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// MB/s (2^20 bytes a second) for each core, or with a unit, such as 1000,100,100,100 or 1G,512M
    #[arg(long, value_name = "LIST", value_parser = |text: &str| parse(Unit::Mb, text), allow_hyphen_values = true)]
    mb: Option<Request>,
    /// Events a period for each core
    #[arg(long, value_name = "LIST", value_parser = |text: &str| parse(Unit::Events, text), allow_hyphen_values = true)]
    events: Option<Request>,
    /// Shares of maxbw, such as 4,1,1,1
    #[arg(long, value_name = "LIST", value_parser = |text: &str| parse(Unit::Weight, text), allow_hyphen_values = true)]
    weights: Option<Request>,
    /// Percent of maxbw, such as 50,10,10,10
    #[arg(long, value_name = "LIST", value_parser = |text: &str| parse(Unit::Percent, text), allow_hyphen_values = true)]
    percent: Option<Request>,
    /// MB/s of write-backs for each core
    #[arg(long, value_name = "LIST", value_parser = |text: &str| parse(Unit::Mb, text), allow_hyphen_values = true)]
    write_mb: Option<Request>,
}

fn parse(unit: Unit, text: &str) -> Result<Request, String> {
    Request::parse(unit, text).map_err(|error| error.to_string())
}

impl Budgets {
    /// Sets the budgets. Names the cores that the list left out, and warns if the memory can't guarantee the sum.
    pub(super) fn set(&self, guard: &mut dyn Regulator) -> anyhow::Result<ExitCode> {
        self.apply(guard)?;
        let settings = guard.settings()?;
        self.say_left_out(&settings, None)?;
        if let Some(warning) = warning(&settings) {
            errln!("memwarden: {warning}");
        }
        Ok(ExitCode::SUCCESS)
    }

    pub(super) fn apply(&self, guard: &mut dyn Regulator) -> anyhow::Result<()> {
        self.hand_out(guard, |request| Ok(vec![request.clone()]))
    }

    /// Refuses more budgets than cores, of `cpus` if given, otherwise of the machine, before a guard is started for them.
    pub(super) fn check_count(&self, cpus: Option<&CpuSet>) -> anyhow::Result<()> {
        for request in self.read().into_iter().chain(&self.write_mb) {
            match cpus {
                Some(cpus) => drop(each_of(request, cpus)?),
                None => at_most_one_a_core(request, &cpus::online()?)?,
            }
        }
        Ok(())
    }

    /// Sets the budgets of these cores, in order; a single budget applies to each of them.
    pub(super) fn apply_to(&self, guard: &mut dyn Regulator, cpus: &CpuSet) -> anyhow::Result<()> {
        let online = guard.settings()?.control.online;
        if !cpus.iter().all(|cpu| online.contains(cpu)) {
            bail!("--cpus {cpus}: the guard regulates cores {online}");
        }
        self.hand_out(guard, |request| each_of(request, cpus))
    }

    fn hand_out(
        &self,
        guard: &mut dyn Regulator,
        parts: impl Fn(&Request) -> anyhow::Result<Vec<Request>>,
    ) -> anyhow::Result<()> {
        let control = guard.settings()?.control;
        if self.write_mb.is_some() && control.combined {
            bail!("--write-mb: {COMBINED_ALONE}");
        }
        if self.write_mb.is_some() && control.write_event.is_none() {
            bail!(
                "--write-mb: event {} counts no write-backs; start the guard with --write-event CODE",
                control.event
            );
        }
        for (resource, request) in [
            (Resource::Read, self.read()),
            (Resource::Write, self.write_mb.as_ref()),
        ] {
            let Some(request) = request else { continue };
            for part in parts(request)? {
                guard.set_budgets(resource, &self.addressed(&part, &control)?)?;
            }
        }
        Ok(())
    }

    /// The resulting budgets of each core: of `cpus` if given, otherwise of the cores in their order.
    pub(super) fn wishes(
        &self,
        control: &Control,
        cpus: Option<&CpuSet>,
    ) -> anyhow::Result<Vec<Wish>> {
        let mut wishes = Vec::new();
        for (resource, request) in [
            (Resource::Read, self.read()),
            (Resource::Write, self.write_mb.as_ref()),
        ] {
            let Some(request) = request else { continue };
            let cores: Vec<(usize, Amount)> = match (self.cpu, cpus) {
                (Some(cpu), _) => request
                    .amounts
                    .iter()
                    .map(|&amount| (cpu, amount))
                    .collect(),
                (None, Some(cpus)) => {
                    let one = |part: Request| Some((part.cpu?, *part.amounts.first()?));
                    each_of(request, cpus)?
                        .into_iter()
                        .filter_map(one)
                        .collect()
                }
                (None, None) => control
                    .online
                    .iter()
                    .zip(request.amounts.iter().copied())
                    .collect(),
            };
            wishes.extend(cores.into_iter().map(|(cpu, amount)| Wish {
                cpu,
                resource,
                events: events(request.unit, amount, control),
            }));
        }
        Ok(wishes)
    }

    /// Names the cores that the list could have given a budget, if they have none now: of `cpus` if given, otherwise of
    /// the guard.
    pub(super) fn say_left_out(
        &self,
        settings: &Settings,
        cpus: Option<&CpuSet>,
    ) -> anyhow::Result<()> {
        if let Some(line) = self.left_out(settings, cpus)? {
            errln!("memwarden: {line}");
        }
        Ok(())
    }

    fn left_out(
        &self,
        settings: &Settings,
        cpus: Option<&CpuSet>,
    ) -> anyhow::Result<Option<String>> {
        if self.cpu.is_some() {
            return Ok(None);
        }
        let wishes = self.wishes(&settings.control, cpus)?;
        Ok(settings.without_budget(|cpu| {
            cpus.is_some_and(|cpus| !cpus.contains(cpu))
                || wishes.iter().any(|wish| wish.cpu == cpu)
        }))
    }

    /// True for weights, which depend on the other cores.
    pub(super) fn are_shares(&self) -> bool {
        self.weights.is_some()
    }

    /// The budget of a group as a whole.
    pub(super) fn of_a_group(&self) -> anyhow::Result<&Request> {
        self.mb
            .as_ref()
            .or(self.events.as_ref())
            .ok_or_else(|| anyhow::anyhow!("--cgroup takes its budget as --mb or --events"))
    }

    fn read(&self) -> Option<&Request> {
        self.mb
            .as_ref()
            .or(self.events.as_ref())
            .or(self.weights.as_ref())
            .or(self.percent.as_ref())
    }

    /// The request for the addressed cores, checked against the machine.
    fn addressed(&self, request: &Request, control: &Control) -> anyhow::Result<Request> {
        let request = match self.cpu {
            Some(cpu) if !control.online.contains(cpu) => {
                bail!("--cpu {cpu}: the guard regulates cores {}", control.online)
            }
            Some(cpu) => request.clone().for_cpu(cpu)?,
            None => request.clone(),
        };
        at_most_one_a_core(&request, &control.online)?;
        if request.unit == Unit::Mb {
            for amount in &request.amounts {
                at_least_one_event(*amount, control)?;
            }
        }
        Ok(request)
    }
}

fn at_most_one_a_core(request: &Request, cores: &CpuSet) -> anyhow::Result<()> {
    let (given, count) = (request.amounts.len(), cores.len());
    if given > count {
        bail!("{given} budgets for {count} cores ({cores}): give at most one a core");
    }
    Ok(())
}

/// The budget in events a period, by the guard's conversion; none for a weight.
fn events(unit: Unit, amount: Amount, control: &Control) -> Option<u64> {
    let of_mib_s =
        |mib_s| units::events_per_period(mib_s, control.period_us, control.bytes_per_event);
    match (unit, amount) {
        (Unit::Weight, _) | (_, Amount::Max) => None,
        (Unit::Events, Amount::Limited(events)) => Some(events),
        (Unit::Mb, Amount::Limited(mib_s)) => Some(of_mib_s(mib_s)),
        (Unit::Percent, Amount::Limited(percent)) => {
            Some(of_mib_s(control.maxbw_mib_s).saturating_mul(percent) / 100)
        }
    }
}

/// One request for each of these cores that has a budget.
fn each_of(request: &Request, cpus: &CpuSet) -> anyhow::Result<Vec<Request>> {
    let amounts = match request.amounts.as_slice() {
        [one] => vec![*one; cpus.len()],
        more => more.to_vec(),
    };
    if amounts.len() > cpus.len() {
        bail!(
            "{} budgets for {} cores (--cpus {cpus}): give at most one a core, or one for each of them",
            amounts.len(),
            cpus.len()
        );
    }
    let for_one = |(cpu, amount)| Request {
        cpu: Some(cpu),
        unit: request.unit,
        amounts: vec![amount],
    };
    Ok(cpus.iter().zip(amounts).map(for_one).collect())
}

/// Refuses less than one event a period, with which a core would never run again.
pub fn at_least_one_event(amount: Amount, control: &Control) -> anyhow::Result<()> {
    if let Amount::Limited(mb) = amount {
        units::some_events_per_period(mb, control.period_us, control.bytes_per_event)?;
    }
    Ok(())
}

fn warning(settings: &Settings) -> Option<String> {
    let control = &settings.control;
    (control.maxbw_mib_s > 0 && control.guaranteed_mib_s > control.maxbw_mib_s).then(|| {
        format!(
            "the budgets sum up to {} MB/s, more than the memory's worst-case {} MB/s (maxbw): a core may then get \
             less than its budget. `memwarden guard calibrate` measures maxbw",
            control.guaranteed_mib_s, control.maxbw_mib_s
        )
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use memwarden_guard::{Null, StartOptions};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        budgets: Budgets,
    }

    /// Four cores to which `apply` has given the budgets of `line`.
    fn set_by(
        line: &str,
        apply: impl FnOnce(&Budgets, &mut dyn Regulator) -> anyhow::Result<()>,
    ) -> Result<Settings, String> {
        let mut guard = Null::new((0..4).collect());
        let options = StartOptions {
            maxbw_mib_s: Some(1200),
            bytes_per_event: Some(4096),
            ..StartOptions::default()
        };
        guard.start(&options).map_err(|error| error.to_string())?;
        let words = std::iter::once("set").chain(line.split(' '));
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        apply(&cli.budgets, &mut guard).map_err(|error| format!("{error:#}"))?;
        Ok(guard.settings().unwrap_or_else(|error| panic!("{error}")))
    }

    fn set(line: &str) -> Result<Settings, String> {
        set_by(line, |budgets, guard| budgets.apply(guard))
    }

    #[test]
    fn budgets_reach_the_cores_that_are_meant() {
        let budgets = |line| {
            set(line)
                .unwrap()
                .read_budget_events
                .into_values()
                .collect::<Vec<_>>()
        };
        assert_eq!(
            budgets("--mb 1000,100,100,100"),
            [Some(256), Some(25), Some(25), Some(25)]
        );
        assert_eq!(budgets("--cpu 3 --mb 100"), [None, None, None, Some(25)]);
        assert_eq!(budgets("--events 5,max"), [Some(5), None, None, None]);
        assert_eq!(budgets("--weights 3,1"), [Some(230), Some(76), None, None]);
        assert_eq!(
            set("--write-mb 100").unwrap().write_budget_events[&0],
            Some(25)
        );
    }

    #[test]
    fn cores_that_a_list_leaves_without_a_budget_are_named() {
        for (cpus, line, expected) in [
            (None, "--mb 1000", Some("CPU1-3 have no budget")),
            (None, "--events 5,6,7", Some("CPU3 has no budget")),
            (None, "--events 5,6,max,7", None),
            (None, "--events 5,max", Some("CPU2-3 have no budget")),
            (None, "--write-mb 100", Some("CPU1-3 have no budget")),
            (
                None,
                "--mb 100 --write-mb 100,100",
                Some("CPU2-3 have no budget"),
            ),
            (None, "--weights 4,1,1,1", None),
            (None, "--weights 4,1", Some("CPU2-3 have no budget")),
            (None, "--percent 50,10,10,10", None),
            (None, "--cpu 3 --mb 100", None),
            (Some("2-3"), "--mb 200", None),
            (Some("1-3"), "--mb 200,100", Some("CPU3 has no budget")),
        ] {
            let cpus: Option<CpuSet> = cpus.map(|cpus: &str| cpus.parse().unwrap());
            let mut said = None;
            set_by(line, |budgets, guard| {
                match &cpus {
                    Some(cpus) => budgets.apply_to(guard, cpus)?,
                    None => budgets.apply(guard)?,
                }
                said = budgets.left_out(&guard.settings()?, cpus.as_ref())?;
                Ok(())
            })
            .unwrap();
            assert_eq!(said.as_deref(), expected, "{cpus:?} {line}");
        }
        // The others keep their budgets.
        set_by("--events 5", |budgets, guard| {
            for cpu in 1..4 {
                guard.set_budgets(Resource::Read, &Request::events_for_cpu(cpu, Some(9)))?;
            }
            budgets.apply(guard)?;
            assert_eq!(budgets.left_out(&guard.settings()?, None)?, None);
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn impossible_budgets_are_refused_with_the_remedy() {
        for (line, expected) in [
            ("--mb 1,1,1,1,1", "5 budgets for 4 cores (0-3)"),
            ("--mb 3", "give 4 or more"),
            ("--cpu 7 --mb 100", "--cpu 7: the guard regulates cores 0-3"),
            ("--cpu 1 --mb 100,100", "2 budgets for CPU 1: give one"),
        ] {
            let message = set(line).unwrap_err();
            assert!(message.contains(expected), "{line}: {message}");
        }
    }

    fn set_on(cpus: &str, line: &str) -> Result<Vec<Option<u64>>, String> {
        let cpus = cpus.parse().unwrap();
        let settings = set_by(line, |budgets, guard| budgets.apply_to(guard, &cpus))?;
        Ok(settings.read_budget_events.into_values().collect())
    }

    #[test]
    fn chosen_cores_get_budgets_in_order_and_the_others_none() {
        for (cpus, line, expected) in [
            ("2-3", "--mb 200", [None, None, Some(51), Some(51)]),
            ("1,3", "--mb 200,100", [None, Some(51), None, Some(25)]),
            ("1-3", "--events 5,max", [None, Some(5), None, None]),
            ("0,2", "--weights 3,1", [Some(230), None, Some(76), None]),
        ] {
            assert_eq!(set_on(cpus, line).unwrap(), expected, "{cpus} {line}");
        }
        for (cpus, line, expected) in [
            ("2-3", "--mb 1,1,1", "3 budgets for 2 cores (--cpus 2-3)"),
            (
                "3-4",
                "--mb 100",
                "--cpus 3-4: the guard regulates cores 0-3",
            ),
            ("2-3", "--mb 3", "give 4 or more"),
            ("2-3", "--write-mb 3", "give 4 or more"),
        ] {
            let message = set_on(cpus, line).unwrap_err();
            assert!(message.contains(expected), "{cpus} {line}: {message}");
        }
    }

    #[test]
    fn what_is_wished_for_is_what_the_guard_makes_of_it() {
        for (cpus, line) in [
            (None, "--mb 1000,max,100"),
            (None, "--cpu 2 --mb 100"),
            (None, "--percent 50,10"),
            (None, "--events 5,6 --write-mb 100"),
            (Some("1,3"), "--mb 200"),
            (Some("2-3"), "--events 7,max"),
        ] {
            let cpus: Option<CpuSet> = cpus.map(|cpus: &str| cpus.parse().unwrap());
            let mut wished = Vec::new();
            let settings = set_by(line, |budgets, guard| {
                wished = budgets.wishes(&guard.settings()?.control, cpus.as_ref())?;
                match &cpus {
                    Some(cpus) => budgets.apply_to(guard, cpus),
                    None => budgets.apply(guard),
                }
            })
            .unwrap();
            assert!(!wished.is_empty());
            for wish in wished {
                let budgets = match wish.resource {
                    Resource::Read => &settings.read_budget_events,
                    Resource::Write => &settings.write_budget_events,
                };
                assert_eq!(budgets[&wish.cpu], wish.events, "{line}: {wish:?}");
            }
        }
    }

    #[test]
    fn a_sum_past_maxbw_is_warned_of() {
        assert!(warning(&set("--mb 1000,100,50,25").unwrap()).is_none());
        assert!(
            warning(&set("--mb 1000,100,100,100").unwrap())
                .unwrap()
                .contains("calibrate")
        );
    }
}
