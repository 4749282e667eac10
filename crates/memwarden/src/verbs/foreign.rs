// SPDX-License-Identifier: MIT OR Apache-2.0
//! A user's command that a verb runs: its exit code, and the signals that it receives without us.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, IsTerminal};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};

use memwarden_experiments::{Error, Interrupt};
use signal_hook::consts::{SIGINT, SIGQUIT};

/// A shell's exit code for a signal is this plus the signal's number.
const SIGNAL_EXIT: i32 = 128;

/// A shell's exit codes for a command that is missing, and for one that can't be executed.
const MISSING: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// A command that could not be started.
#[derive(Debug)]
pub struct NotStarted {
    program: String,
    source: io::Error,
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "starting {}", self.program)
    }
}

impl std::error::Error for NotStarted {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl NotStarted {
    /// For `map_err`.
    pub fn of(program: &OsStr) -> impl FnOnce(io::Error) -> Self {
        let program = program.to_string_lossy().into_owned();
        |source| Self { program, source }
    }

    /// The exit code, as in a shell.
    pub fn exit_code(&self) -> u8 {
        not_started(&self.source)
    }
}

fn not_started(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => MISSING,
        _ => NOT_EXECUTABLE,
    }
}

/// A signal ended the verb; with what happened to its work.
#[derive(Debug)]
pub struct Interrupted(pub &'static str);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted: {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

/// The exit code of this program after an error.
pub fn exit_code_of(error: &anyhow::Error) -> ExitCode {
    if let Some(error) = error.downcast_ref::<NotStarted>() {
        return ExitCode::from(error.exit_code());
    }
    let by_signal = || after_signal(Interrupt::last().unwrap_or(SIGINT));
    match error.downcast_ref() {
        Some(Error::Interrupted) => return by_signal(),
        Some(Error::Process {
            action: "starting",
            source,
            ..
        }) => return ExitCode::from(not_started(source)),
        _ => {}
    }
    if error.is::<Interrupted>() {
        return by_signal();
    }
    #[cfg(feature = "host")]
    if let Some(memwarden_lab::Error::Interrupted) = error.downcast_ref() {
        return memwarden_lab::interrupted_by().map_or_else(by_signal, after_signal);
    }
    ExitCode::FAILURE
}

/// Checks that the program exists, before the work that it is started for begins.
pub fn check_program(program: &OsStr) -> io::Result<()> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Path::new(program).metadata().map(drop);
    }
    // Without PATH these are execvp's own.
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    match env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
        true => Ok(()),
        false => Err(rustix::io::Errno::NOENT.into()),
    }
}

/// The exit code after an orderly end by a signal.
pub fn after_signal(signal: i32) -> ExitCode {
    ExitCode::from(u8::try_from(SIGNAL_EXIT + signal).unwrap_or(1))
}

/// The exit code of work that goes on until it is interrupted, or until its time is over.
pub fn after(interrupt: &Interrupt) -> ExitCode {
    interrupt.signal().map_or(ExitCode::SUCCESS, after_signal)
}

/// The exit code, as in a shell.
pub fn exit_code(status: ExitStatus) -> i32 {
    let by_signal = || status.signal().map(|signal| SIGNAL_EXIT + signal);
    status.code().or_else(by_signal).unwrap_or(1)
}

/// True if the command receives the signal itself: a terminal's keys signal the whole group, other signals only us.
pub fn knows_of(signal: i32) -> bool {
    matches!(signal, SIGINT | SIGQUIT) && std::io::stdin().is_terminal()
}
