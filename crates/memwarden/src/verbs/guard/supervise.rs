// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard run`: runs a command under budgets, and restores everything afterwards.

use std::ffi::OsString;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, bail};
use memwarden_experiments::Interrupt;
use memwarden_guard::{Hold, Session, meaning, running};
use memwarden_platform::cpus;
use rustix::process::{Pid, Signal, kill_process};
use schemars::JsonSchema;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::summary::{Summary, Watch};
use super::{Run, enter, group};
use crate::verbs::foreign::{self, Interrupted, NotStarted};
use crate::verbs::output::errln;

/// Interval between checks that the command is still guarded: short enough to read every second of the statistics.
const LOOK: Duration = Duration::from_millis(500);

/// A signal came before the command.
const NOT_STARTED: Interrupted = Interrupted("the command was not started");

/// What `--json` prints on standard error.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Printed<'a> {
    /// With budgets of cores.
    Cores(&'a Summary),
    /// With a budget of a group.
    Group(&'a memwarden_guard::group::Summary),
    /// If a group's regulation ended before the command.
    Lost(group::Lost<'a>),
}

pub(super) fn run(args: &Run) -> anyhow::Result<ExitCode> {
    // Caught from here on, so that the session ends in order after any signal. The interrupt ends the set-up; the
    // signals are passed on to the command. The interrupt comes first, or a signal between the two would only be seen
    // at the command, after a wait.
    let interrupt = Interrupt::catch()?;
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT]).context("catching signals")?;
    if let Some(cpus) = &args.cpus {
        // The kernel would silently ignore an offline one.
        cpus::check_online(cpus).with_context(|| format!("--cpus {cpus}"))?;
    }
    let program = args.command.first().context("no command")?;
    foreign::check_program(program).map_err(NotStarted::of(program))?;
    if let Some(cgroup) = &args.cgroup {
        interrupt.check()?;
        return group::run(args, cgroup, signals);
    }
    args.budgets.check_count(args.cpus.as_ref())?;
    let options = args.options.start_options();
    let choose = || {
        running().or_else(|_| {
            let guard = args.options.guard(true)?;
            args.options.check_start(guard.as_ref(), &options)?;
            Ok(guard)
        })
    };
    let shared = Session::share_unless(choose, &options, &|| interrupt.came());
    let mut session = unless(&interrupt, shared)?;
    if session.took_over() {
        args.options.suit(session.regulator())?;
    }
    args.options
        .say(&meaning(&session.regulator().settings()?.control))?;
    super::say_class(session.regulator());
    if !session.took_over() && !args.options.no_self_test {
        let writes = args.options.write_event.is_some();
        let proven = super::prove(session.guard(), writes, &interrupt);
        unless(&interrupt, proven)?;
    }
    let cores = take(args, &mut session)?;
    let mut watch = Watch::begin(&session, cores)?;
    let place = enter::Place::of(args, None);
    let status = command(&args.command, &place, signals, &mut || {
        watch.look(&session);
    })?;
    let summary = watch.end(&session);
    if args.json {
        errln!("{}", serde_json::to_string(&Printed::Cores(&summary))?);
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

/// The outcome of a step before the command, unless a signal came.
fn unless<T, E>(interrupt: &Interrupt, outcome: Result<T, E>) -> anyhow::Result<T>
where
    anyhow::Error: From<E>,
{
    if interrupt.came() {
        return Err(NOT_STARTED.into());
    }
    Ok(outcome?)
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
    let settings = session.regulator().settings()?;
    args.budgets.say_left_out(&settings, args.cpus.as_ref())?;
    let mut cores: Vec<usize> = wishes.iter().map(|wish| wish.cpu).collect();
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}

/// Runs the command at its place until it ends, and calls `look` every [`LOOK`]; passes signals on to it. Does not start
/// it if a signal is pending.
pub(super) fn command(
    command: &[OsString],
    place: &enter::Place,
    mut signals: Signals,
    look: &mut dyn FnMut(),
) -> anyhow::Result<ExitStatus> {
    let (program, arguments) = command.split_first().context("no command")?;
    if signals.pending().next().is_some() {
        return Err(NOT_STARTED.into());
    }
    let mut child = if place.is_anywhere() {
        Command::new(program).args(arguments).spawn()
    } else {
        place.command(command).spawn()
    }
    .map_err(NotStarted::of(program))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pass_on = move |signal| {
        if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
            let _ = kill_process(pid, signal);
        }
    };
    // The command may not have existed yet when a terminal's key signalled the group.
    signals.pending().for_each(pass_on);
    let handle = signals.handle();
    let passing = std::thread::spawn(move || {
        signals
            .forever()
            .filter(|signal| !foreign::knows_of(*signal))
            .for_each(pass_on);
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

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::SIGUSR1;
    use signal_hook::low_level::raise;

    #[test]
    fn a_signal_before_the_command_keeps_it_from_starting() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("started");
        let touch = ["touch".into(), file.clone().into_os_string()];
        let anywhere = enter::Place::default();
        let signals = Signals::new([SIGUSR1]).unwrap();
        raise(SIGUSR1).unwrap();
        let outcome = command(&touch, &anywhere, signals, &mut || {});
        assert!(outcome.unwrap_err().is::<Interrupted>());
        assert!(!file.exists());
        let signals = Signals::new([SIGUSR1]).unwrap();
        assert!(
            command(&touch, &anywhere, signals, &mut || {})
                .unwrap()
                .success()
        );
        assert!(file.exists());
    }
}
