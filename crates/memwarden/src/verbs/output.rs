// SPDX-License-Identifier: MIT OR Apache-2.0
//! Standard output and standard error, whose readers may go away at any time (`| head -1`).
//!
//! A closed pipe is no error and ends nothing: a guard is still put back, a run folder still completed. SIGPIPE stays
//! ignored for the same reason. Whatever else goes wrong, such as a full disk, is an error of standard output; standard
//! error has no place for its own. `print!` and its kin panic in all of these cases, and a lint keeps them out.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

/// A line on standard output.
macro_rules! outln {
    ($($words:tt)*) => {
        $crate::verbs::output::print(&format!($($words)*))
    };
}

/// A line on standard error.
macro_rules! errln {
    ($($words:tt)*) => {
        $crate::verbs::output::complain(format_args!($($words)*))
    };
}

pub(crate) use {errln, outln};

/// A line on standard output, on its way when this returns.
pub fn print(line: &str) -> Result<()> {
    write(&format!("{line}\n")).map(drop)
}

/// Text on standard output, on its way when this returns; false when the pipe has no reader.
pub fn write(text: &str) -> Result<bool> {
    let mut out = io::stdout().lock();
    is_read(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
        .context("cannot write to standard output")
}

/// A line on standard error, if it has a reader: in one piece, since other processes may write there, too.
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
