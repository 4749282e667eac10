// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets on the command line.

use std::process::ExitCode;

use anyhow::bail;
use memwarden_guard::budget::{Amount, Request, Unit};
use memwarden_guard::{Control, Regulator, Resource, Settings, units};

/// What each core may move. Exactly one unit; `max` in place of a number lifts the budget.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("budgets").args(["mb", "events", "weights", "percent"]))]
#[command(group = clap::ArgGroup::new("any").args(["mb", "events", "weights", "percent", "write_mb"]).required(true).multiple(true))]
pub(super) struct Budgets {
    /// Set one core alone
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// MB/s (2^20 bytes a second) for each core, such as 1000,100,100,100
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
    /// Sets them, with a warning when memory can't guarantee their sum.
    pub(super) fn set(&self, guard: &mut dyn Regulator) -> anyhow::Result<ExitCode> {
        self.apply(guard)?;
        let settings = guard.settings()?;
        if let Some(warning) = warning(&settings) {
            eprintln!("memwarden: {warning}");
        }
        Ok(ExitCode::SUCCESS)
    }

    pub(super) fn apply(&self, guard: &mut dyn Regulator) -> anyhow::Result<()> {
        let control = guard.settings()?.control;
        let read = self
            .mb
            .as_ref()
            .or(self.events.as_ref())
            .or(self.weights.as_ref())
            .or(self.percent.as_ref());
        if self.write_mb.is_some() && control.write_event.is_none() {
            bail!(
                "--write-mb: event {} counts no write-backs; start the guard with --write-event CODE",
                control.event
            );
        }
        for (resource, request) in [
            (Resource::Read, read),
            (Resource::Write, self.write_mb.as_ref()),
        ] {
            let Some(request) = request else { continue };
            let request = self.addressed(request, &control)?;
            guard.set_budgets(resource, &request)?;
        }
        Ok(())
    }

    /// The request for the cores that are meant, checked against the machine.
    fn addressed(&self, request: &Request, control: &Control) -> anyhow::Result<Request> {
        let request = match self.cpu {
            Some(cpu) if !control.online.contains(cpu) => {
                bail!("--cpu {cpu}: the guard regulates cores {}", control.online)
            }
            Some(cpu) => request.clone().for_cpu(cpu)?,
            None => request.clone(),
        };
        let (given, cores) = (request.amounts.len(), control.online.len());
        if given > cores {
            bail!(
                "{given} budgets for {cores} cores ({}): give at most one a core",
                control.online
            );
        }
        if request.unit == Unit::Mb {
            for amount in &request.amounts {
                at_least_one_event(*amount, control)?;
            }
        }
        Ok(request)
    }
}

/// Refuses less than one event a period: such a core would never run again.
pub fn at_least_one_event(amount: Amount, control: &Control) -> anyhow::Result<()> {
    let Amount::Limited(mb) = amount else {
        return Ok(());
    };
    let events = |mb| units::events_per_period(mb, control.period_us, control.bytes_per_event);
    if events(mb) > 0 {
        return Ok(());
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let least = units::mib_s(1.0, control.period_us, control.bytes_per_event).ceil() as u64;
    bail!(
        "{mb} MB/s is less than one event of {} bytes in a period of {} us: give {least} or more, or a longer period",
        control.bytes_per_event,
        control.period_us
    )
}

fn warning(settings: &Settings) -> Option<String> {
    let control = &settings.control;
    (control.maxbw_mib_s > 0 && control.guaranteed_mib_s > control.maxbw_mib_s).then(|| {
        format!(
            "the budgets sum up to {} MB/s, more than the {} MB/s that memory is said to give in the worst case \
             (maxbw): a core may then get less than its budget. `memwarden guard calibrate` measures maxbw",
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

    fn set(line: &str) -> Result<Settings, String> {
        let mut guard = Null::new((0..4).collect());
        let options = StartOptions {
            maxbw_mib_s: Some(1200),
            bytes_per_event: Some(4096),
            ..StartOptions::default()
        };
        guard.start(&options).map_err(|error| error.to_string())?;
        let words = std::iter::once("set").chain(line.split(' '));
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        cli.budgets
            .apply(&mut guard)
            .map_err(|error| format!("{error:#}"))?;
        Ok(guard.settings().unwrap_or_else(|error| panic!("{error}")))
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
