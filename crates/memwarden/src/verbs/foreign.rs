// SPDX-License-Identifier: MIT OR Apache-2.0
//! Somebody's command that a verb runs: how it ended, and which signals it has without us.

use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use signal_hook::consts::{SIGINT, SIGQUIT};

/// What a shell adds to a signal's number to make an exit code of it.
const SIGNAL_EXIT: i32 = 128;

/// The exit code, as a shell would give it.
pub fn exit_code(status: ExitStatus) -> i32 {
    let by_signal = || status.signal().map(|signal| SIGNAL_EXIT + signal);
    status.code().or_else(by_signal).unwrap_or(1)
}

/// A terminal's keys reach a command without us; all other signals are sent to us alone.
pub fn knows_of(signal: i32) -> bool {
    matches!(signal, SIGINT | SIGQUIT) && std::io::stdin().is_terminal()
}
