// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard run`: runs a command under budgets, and restores everything afterwards.

use std::ffi::OsString;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, bail};
use memwarden_guard::{Hold, Session, meaning, running};
use memwarden_platform::cpus::{self, CpuSet};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::summary::Watch;
use super::{Run, enter, group};
use crate::verbs::foreign::{self, NotStarted};
use crate::verbs::output::errln;

/// Interval between checks that the command is still guarded: short enough to read every second of the statistics.
const LOOK: Duration = Duration::from_millis(500);

pub(super) fn run(args: &Run) -> anyhow::Result<ExitCode> {
    // Caught from here on, so that the session ends in order after any signal.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT]).context("catching signals")?;
    if let Some(cpus) = &args.cpus {
        all_online(cpus)?;
    }
    if let Some(cgroup) = &args.cgroup {
        return group::run(args, cgroup, signals);
    }
    let choose = || running().or_else(|_| args.options.guard(true));
    let mut session = Session::share(choose, &args.options.start_options())?;
    if session.took_over() {
        args.options.suit(session.regulator())?;
    }
    args.options
        .say(&meaning(&session.regulator().settings()?.control))?;
    if !session.took_over() && !args.options.no_self_test {
        super::prove(session.guard(), args.options.write_event.is_some())?;
    }
    let cores = take(args, &mut session)?;
    let mut watch = Watch::begin(&session, cores)?;
    let place = enter::Place::of(args, None);
    let status = command(&args.command, &place, signals, &mut || {
        watch.look(&session);
    })?;
    let summary = watch.end(&session);
    if args.json {
        errln!("{}", serde_json::to_string(&summary)?);
    } else {
        errln!("memwarden: {}", summary.text());
    }
    let ended = session.end();
    if summary.lost.is_some() {
        // The reason was printed, and there is nothing to restore.
        return Ok(ExitCode::FAILURE);
    }
    ended?;
    Ok(exit_code(status))
}

/// Sets the budgets; returns their cores.
fn take(args: &Run, session: &mut Session) -> anyhow::Result<Vec<usize>> {
    let control = session.regulator().settings()?.control;
    if args.budgets.are_shares() {
        if let Some(other) = session.another()? {
            bail!(
                "--weights: {other} already has budgets, which weights would change: give --mb, --events or --percent"
            );
        }
    }
    let wishes = args.budgets.wishes(&control, args.cpus.as_ref())?;
    session.take(&wishes, Hold::Firm, |guard| match &args.cpus {
        Some(cpus) => args.budgets.apply_to(guard, cpus),
        None => args.budgets.apply(guard),
    })?;
    let mut cores: Vec<usize> = wishes.iter().map(|wish| wish.cpu).collect();
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}

/// Checks that all are online: the kernel would silently ignore an offline one.
fn all_online(cpus: &CpuSet) -> anyhow::Result<()> {
    let online = cpus::online()?;
    if let Some(cpu) = cpus.iter().find(|cpu| !online.contains(*cpu)) {
        bail!("--cpus {cpus}: CPU {cpu} is not online; this machine has CPUs {online}");
    }
    Ok(())
}

/// Runs the command at its place until it ends, and calls `look` every [`LOOK`]; passes signals on to it.
pub(super) fn command(
    command: &[OsString],
    place: &enter::Place,
    mut signals: Signals,
    look: &mut dyn FnMut(),
) -> anyhow::Result<ExitStatus> {
    let (program, arguments) = command.split_first().context("no command")?;
    let mut child = if place.is_anywhere() {
        Command::new(program).args(arguments).spawn()
    } else {
        place.command(command).spawn()
    }
    .map_err(NotStarted::of(program))?;
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
    let (tell, ended) = mpsc::channel();
    let waiting = std::thread::spawn(move || {
        let _ = tell.send(child.wait());
    });
    let status = loop {
        match ended.recv_timeout(LOOK) {
            Ok(status) => break status,
            Err(RecvTimeoutError::Timeout) => look(),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("waiting for {}", program.to_string_lossy())
            }
        }
    };
    let _ = waiting.join();
    handle.close();
    let _ = passing.join();
    status.with_context(|| format!("waiting for {}", program.to_string_lossy()))
}

/// The command's exit code, as in a shell.
pub(super) fn exit_code(status: ExitStatus) -> ExitCode {
    ExitCode::from(u8::try_from(foreign::exit_code(status)).unwrap_or(1))
}
