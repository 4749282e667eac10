// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard run`: a command under budgets, everything put back behind it.

use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, bail};
use memwarden_guard::Session;
use memwarden_platform::cpus::{self, CpuSet};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{Run, enter, group};
use crate::verbs::foreign;

pub(super) fn run(args: &Run) -> anyhow::Result<ExitCode> {
    // Caught from here on: whatever comes, the session ends in order.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT]).context("catching signals")?;
    if let Some(cpus) = &args.cpus {
        all_online(cpus)?;
    }
    if let Some(cgroup) = &args.cgroup {
        return group::run(args, cgroup, signals);
    }
    let guard = memwarden_guard::running().or_else(|_| args.options.guard(true))?;
    let mut session = Session::begin(guard, &args.options.start_options())?;
    if !session.took_over() && !args.options.no_self_test {
        super::prove(session.guard())?;
    }
    match &args.cpus {
        Some(cpus) => args.budgets.apply_to(session.guard(), cpus)?,
        None => args.budgets.apply(session.guard())?,
    }
    let status = command(&args.command, &enter::Place::of(args, None), signals);
    session.end()?;
    Ok(exit_code(status?))
}

/// The kernel would leave out one that isn't, without a word.
fn all_online(cpus: &CpuSet) -> anyhow::Result<()> {
    let online = cpus::online()?;
    if let Some(cpu) = cpus.iter().find(|cpu| !online.contains(*cpu)) {
        bail!("--cpus {cpus}: CPU {cpu} is not online; this machine has CPUs {online}");
    }
    Ok(())
}

/// Runs the command in its place to its end; signals are passed on to it.
pub(super) fn command(
    command: &[String],
    place: &enter::Place,
    mut signals: Signals,
) -> anyhow::Result<ExitStatus> {
    let (program, arguments) = command.split_first().context("no command")?;
    let mut child = if place.is_anywhere() {
        Command::new(program).args(arguments).spawn()
    } else {
        place.command(command).spawn()
    }
    .with_context(|| format!("starting {program}"))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let handle = signals.handle();
    let passing = std::thread::spawn(move || {
        for signal in signals.forever() {
            let knows = foreign::knows_of(signal);
            if let (Some(pid), Some(signal), false) = (pid, Signal::from_named_raw(signal), knows) {
                let _ = kill_process(pid, signal);
            }
        }
    });
    let status = child
        .wait()
        .with_context(|| format!("waiting for {program}"));
    handle.close();
    let _ = passing.join();
    status
}

/// The command's, as a shell would give it.
pub(super) fn exit_code(status: ExitStatus) -> ExitCode {
    ExitCode::from(u8::try_from(foreign::exit_code(status)).unwrap_or(1))
}
