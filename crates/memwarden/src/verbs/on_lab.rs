// SPDX-License-Identifier: MIT OR Apache-2.0
//! An experiment on the emulated machine: the same command in the guest, and its run folder brought home.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use memwarden_lab::{Clock, KernelChoice, LabOutcome, Machine};
use memwarden_run::{Existing, LabFacts, Recorded};

/// Where the guest leaves the run folder: below what is carried back.
const GUEST_FOLDER: &str = "run";

/// Which emulated machine, where an experiment leaves the choice.
#[derive(clap::Args)]
pub struct MachineArgs {
    /// The lab's kernel: own, own-debug, stock, or the path of a build tree [default: own]
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<KernelChoice>,
    /// How time passes in the lab: counted (one ns an instruction, repeatable) or free [default: counted]
    #[arg(long, value_name = "CLOCK", value_parser = parse_clock)]
    clock: Option<Clock>,
    /// The lab's CPUs [default: 4]
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
}

impl MachineArgs {
    /// The machine; its lab timer is the clock's own.
    pub fn machine(&self) -> anyhow::Result<Machine> {
        let clock = self.clock.unwrap_or(Clock::Counted);
        let kernel = match &self.kernel {
            Some(kernel) => kernel.clone(),
            None => "own".parse()?,
        };
        Ok(Machine {
            kernel,
            clock,
            tick_us: clock.default_tick_us(),
            cpus: self.cpus.unwrap_or(4),
            ..machine()
        })
    }

    /// The first option given: it means nothing on this machine.
    pub fn given(&self) -> Option<&'static str> {
        let given = [
            ("--kernel", self.kernel.is_some()),
            ("--clock", self.clock.is_some()),
            ("--cpus", self.cpus.is_some()),
        ];
        given.into_iter().find(|(_, is)| *is).map(|(name, _)| name)
    }
}

fn parse_clock(text: &str) -> Result<Clock, String> {
    match text {
        "counted" => Ok(Clock::Counted),
        "free" => Ok(Clock::Free),
        _ => Err("give counted or free".into()),
    }
}

/// A machine on which an experiment runs: what its command prints is not shown, the host prints the same.
pub fn machine() -> Machine {
    Machine {
        live: false,
        ..Machine::default()
    }
}

/// Boots `machine`, runs `command` with a run folder to write to, and returns what came home.
pub fn run(machine: &Machine, mut command: Vec<String>) -> anyhow::Result<Home> {
    let carried = tempfile::tempdir().context("making a folder for the results")?;
    let results = carried.path().join("results");
    command.extend(["--out".into(), GUEST_FOLDER.into()]);
    let outcome = machine.run(&command, Some(&results))?;
    let complete = results.join(GUEST_FOLDER).is_dir();
    check(&outcome, &command, complete)?;
    let mut recorded = Recorded::read(&results.join(GUEST_FOLDER))?;
    recorded.run.command_line = std::env::args().collect();
    recorded.run.target = "lab".into();
    recorded.summary.target = "lab".into();
    recorded.run.lab = Some(facts(&outcome));
    Ok(Home {
        recorded,
        outcome,
        _carried: carried,
    })
}

/// A run that came home.
pub struct Home {
    /// The run, to be added to.
    pub recorded: Recorded,
    /// The boot that it was made in.
    pub outcome: LabOutcome,
    _carried: tempfile::TempDir,
}

impl Home {
    /// Gives the run folder its place.
    pub fn keep(&self, out: Option<&Path>, existing: Existing) -> anyhow::Result<PathBuf> {
        let folder = self.recorded.adopt(out, existing)?;
        // The guest's own log: what the kernel said meanwhile is part of the evidence.
        let _ = std::fs::copy(&self.outcome.console, folder.join("console.log"));
        Ok(folder)
    }
}

/// A run folder gets its name when it is complete: then the command has come to its end, and an exit code other than
/// 0 is its verdict on the figures, which the host gives again.
fn check(outcome: &LabOutcome, command: &[String], complete: bool) -> anyhow::Result<()> {
    if let Some(fault) = outcome.kernel_faults.first() {
        bail!(
            "the guest's kernel complained: {fault}; its log is in {}",
            outcome.console.display()
        );
    }
    match outcome.exit_code {
        Some(0) => Ok(()),
        Some(_) if complete => Ok(()),
        Some(code) => {
            let said = outcome
                .stderr
                .lines()
                .rev()
                .find(|line| !line.trim().is_empty());
            let said = said
                .unwrap_or("it said nothing")
                .trim_start_matches("memwarden: ");
            bail!(
                "in the guest: {said} (exit code {code} of `{}`)",
                command.join(" ")
            )
        }
        None => bail!(
            "the guest did not say how the command ended; its log is in {}",
            outcome.console.display()
        ),
    }
}

fn facts(outcome: &LabOutcome) -> LabFacts {
    let lab = &outcome.lab;
    let mut facts = LabFacts {
        kernel: lab.kernel.clone(),
        machine: lab.machine.to_owned(),
        qemu_version: lab.qemu.clone(),
        clock: serde_json::to_value(lab.clock)
            .ok()
            .and_then(|clock| Some(clock.as_str()?.to_owned()))
            .unwrap_or_default(),
        ..LabFacts::default()
    };
    if let Ok(serde_json::Value::Object(all)) = serde_json::to_value(lab) {
        let known = ["kernel", "machine", "qemu", "clock"];
        facts.more = all
            .into_iter()
            .filter(|(key, _)| !known.contains(&key.as_str()))
            .collect();
    }
    facts.more.insert("boot_s".into(), outcome.boot_s.into());
    facts
}
