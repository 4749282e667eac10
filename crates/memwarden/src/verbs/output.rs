// SPDX-License-Identifier: MIT OR Apache-2.0
//! Standard output and standard error, whose readers may close them at any time (`| head -1`).
//!
//! A closed pipe is no error and ends nothing: a guard is still restored, a run folder still completed. For the same
//! reason SIGPIPE stays ignored. Any other failure, such as a full disk, is an error of standard output; failures of
//! standard error cannot be reported. `print!` and similar macros panic in all these cases, and a lint forbids them.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

use super::paint::{Paint, Tone};

/// Prints a line on standard output.
macro_rules! outln {
    ($($words:tt)*) => {
        $crate::verbs::output::print(&format!($($words)*))
    };
}

/// Prints a line on standard error.
macro_rules! errln {
    ($($words:tt)*) => {
        $crate::verbs::output::complain(format_args!($($words)*))
    };
}

pub(crate) use {errln, outln};

/// Prints a line on standard output and flushes it.
pub fn print(line: &str) -> Result<()> {
    write(&format!("{line}\n")).map(drop)
}

/// Prints text on standard output and flushes it; false if the pipe has no reader.
pub fn write(text: &str) -> Result<bool> {
    let mut out = io::stdout().lock();
    is_read(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
        .context("cannot write to standard output")
}

/// Prints the error that ends the program. It may quote a file of another origin.
pub fn fail(error: fmt::Arguments) {
    let name = Paint::of(&io::stderr()).word(Tone::Bad, "memwarden:");
    let error = memwarden_run::title::printable(&error.to_string());
    complain(format_args!("{name} {error}"));
}

/// Prints a line on standard error, if it has a reader. In one write, as other processes may write there, too.
pub fn complain(line: fmt::Arguments) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

fn is_read(written: io::Result<()>) -> io::Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_is_gone_is_no_error_and_a_full_disk_is() {
        assert!(is_read(Ok(())).unwrap());
        assert!(!is_read(Err(ErrorKind::BrokenPipe.into())).unwrap());
        assert!(is_read(Err(ErrorKind::StorageFull.into())).is_err());
    }
}
