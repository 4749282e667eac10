// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard run`: a command under budgets, everything put back behind it.

use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use memwarden_guard::Session;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Run;

/// What a shell adds to a signal's number to make an exit code of it.
const SIGNAL_EXIT: i32 = 128;

pub(super) fn run(args: &Run) -> anyhow::Result<ExitCode> {
    // Caught from here on: whatever comes, the session ends in order.
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT]).context("catching signals")?;
    let guard = memwarden_guard::running().or_else(|_| args.options.guard(true))?;
    let mut session = Session::begin(guard, &args.options.start_options())?;
    if !session.took_over() && !args.options.no_self_test {
        super::prove(session.guard())?;
    }
    args.budgets.apply(session.guard())?;

    let (program, arguments) = args.command.split_first().context("no command")?;
    let mut child = Command::new(program)
        .args(arguments)
        .spawn()
        .with_context(|| format!("starting {program}"))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let handle = signals.handle();
    let passing = std::thread::spawn(move || {
        // A terminal's Ctrl-C reaches the command without us.
        let from_terminal = std::io::stdin().is_terminal();
        for signal in signals.forever() {
            let keyboard = from_terminal && matches!(signal, SIGINT | SIGQUIT);
            if let (Some(pid), Some(signal), false) =
                (pid, Signal::from_named_raw(signal), keyboard)
            {
                let _ = kill_process(pid, signal);
            }
        }
    });
    let status = child
        .wait()
        .with_context(|| format!("waiting for {program}"));
    handle.close();
    let _ = passing.join();
    session.end()?;
    let status = status?;
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| SIGNAL_EXIT + signal))
        .unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
