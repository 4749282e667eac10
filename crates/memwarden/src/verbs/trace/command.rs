// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command that runs during a trace.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use memwarden_experiments::copy::trace::Beside;
use memwarden_experiments::{Error, Interrupt};
use memwarden_platform::file_limit;
use rustix::process::{Pid, Signal, kill_process};

use crate::verbs::foreign;

/// Time in which a command must end after the signal.
const END_WITHIN: Duration = Duration::from_secs(10);

/// A command; when dropped, it is told to end and waited for.
pub(super) struct Command<'a> {
    words: &'a [OsString],
    /// Standard output is reserved for the summary.
    output_is_taken: bool,
    interrupt: &'a Interrupt,
    child: Option<Child>,
}

impl<'a> Command<'a> {
    pub(super) fn new(
        words: &'a [OsString],
        output_is_taken: bool,
        interrupt: &'a Interrupt,
    ) -> Self {
        Self {
            words,
            output_is_taken,
            interrupt,
            child: None,
        }
    }

    fn failed(&self, action: &'static str, source: io::Error) -> Error {
        Error::process(
            action,
            self.words
                .join(OsStr::new(" "))
                .to_string_lossy()
                .into_owned(),
            source,
        )
    }

    /// Checks that the program exists, before the trace begins.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.words.first() {
            Some(program) => {
                foreign::check_program(program).map_err(|error| self.failed("starting", error))
            }
            None => Ok(()),
        }
    }

    fn spawn(&self) -> io::Result<Child> {
        let Some((program, arguments)) = self.words.split_first() else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        let mut command = std::process::Command::new(program);
        command.args(arguments);
        file_limit::as_before(&mut command);
        if self.output_is_taken {
            command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
        }
        command.spawn()
    }
}

impl Beside for Command<'_> {
    fn start(&mut self) -> Result<(), Error> {
        let child = self
            .spawn()
            .map_err(|error| self.failed("starting", error))?;
        self.child = Some(child);
        Ok(())
    }

    fn ended(&mut self) -> Result<Option<i32>, Error> {
        let Some(child) = &mut self.child else {
            return Ok(None);
        };
        let status = child.try_wait();
        let status = status.map_err(|error| self.failed("waiting for", error))?;
        Ok(status.map(foreign::exit_code))
    }

    fn end(&mut self) -> Result<i32, Error> {
        let interrupt = self.interrupt;
        let Some(child) = &mut self.child else {
            return Ok(0);
        };
        let status = end(child, interrupt);
        let status = status.map_err(|error| self.failed("waiting for", error))?;
        Ok(foreign::exit_code(status))
    }
}

/// Passes on the signal that ended us, or tells the command to end, and waits for it; kills it if it does not end.
fn end(child: &mut Child, interrupt: &Interrupt) -> io::Result<ExitStatus> {
    if let Some(status) = child.try_wait()? {
        return Ok(status);
    }
    let came = interrupt.signal();
    let signal = came.and_then(Signal::from_named_raw);
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let (Some(pid), false) = (pid, came.is_some_and(foreign::knows_of)) {
        let _ = kill_process(pid, signal.unwrap_or(Signal::TERM));
    }
    let deadline = Instant::now() + END_WITHIN;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            child.kill()?;
            return child.wait();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Drop for Command<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = end(child, self.interrupt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(words: &[&str]) -> i32 {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let interrupt = Interrupt::default();
        let mut command = Command::new(&words, true, &interrupt);
        assert!(command.ended().unwrap().is_none());
        command.start().unwrap();
        loop {
            if let Some(code) = command.ended().unwrap() {
                return code;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_exit_code_is_a_shell_s() {
        assert_eq!(code(&["sh", "-c", "exit 7"]), 7);
        assert_eq!(code(&["sh", "-c", "kill -TERM $$"]), 143);
        assert_eq!(code(&["true"]), 0);
    }

    #[test]
    fn one_that_goes_on_is_ended_and_says_by_what() {
        let words = ["sleep", "1000"].map(OsString::from);
        let interrupt = Interrupt::default();
        let mut command = Command::new(&words, false, &interrupt);
        command.start().unwrap();
        assert_eq!(command.end().unwrap(), 143);
    }

    #[test]
    fn one_that_is_not_there_is_named() {
        let words = ["/nonexistent/make".into()];
        let interrupt = Interrupt::default();
        let error = Command::new(&words, false, &interrupt).start().unwrap_err();
        assert_eq!(error.to_string(), "starting /nonexistent/make");
    }

    #[test]
    fn none_is_left_behind() {
        let words = ["sleep", "1000"].map(OsString::from);
        let interrupt = Interrupt::default();
        let mut command = Command::new(&words, false, &interrupt);
        command.start().unwrap();
        let id = command.child.as_ref().unwrap().id();
        drop(command);
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists());
    }
}
