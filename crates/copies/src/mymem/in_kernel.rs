// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurements from inside the kernel: one write sends a command, and reads return its result.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Count, Lock, Trial, open};
use crate::{Error, Result, file_lock};

/// The most trials of one command: `TRIALS_MAX` of the module.
const TRIALS_MAX: u32 = 100_000;

/// A client of `/dev/mymem_test`.
#[derive(Debug)]
pub struct InKernel {
    file: File,
    path: PathBuf,
}

impl InKernel {
    /// Opens the device for this client alone: it has one result for all open files.
    ///
    /// # Errors
    /// When it is missing or the kernel refuses, or another client has it.
    pub fn open(path: &Path) -> Result<Self> {
        let file = open(path)?;
        file_lock::reserve(&file, path)?;
        Ok(Self {
            file,
            path: path.into(),
        })
    }

    /// Writes and reads `bytes` bytes `trials` times. A command that a signal ends is sent again, unless `given_up`.
    ///
    /// # Errors
    /// When the kernel refuses, or the result is not one line for each trial.
    pub fn throughput(
        &self,
        bytes: u64,
        trials: u32,
        given_up: impl Fn() -> bool,
    ) -> Result<Vec<Trial>> {
        let mut all = Vec::new();
        let mut left = trials;
        while left > 0 {
            let part = left.min(TRIALS_MAX);
            let command = format!("throughput {bytes} {part}");
            let answer = self.ask(&command, &given_up)?;
            let measured =
                trials_of(&answer, part).map_err(|what| self.unreadable(&command, what))?;
            all.extend(measured);
            left -= part;
        }
        Ok(all)
    }

    /// Runs `workers` kernel threads that increment the counter `increments` times each. A command that a signal ends is
    /// sent again, unless `given_up`.
    ///
    /// # Errors
    /// When the kernel refuses, or the result is not one line.
    pub fn count(
        &self,
        workers: u32,
        increments: u64,
        lock: Lock,
        given_up: impl Fn() -> bool,
    ) -> Result<Count> {
        let command = format!("counter {workers} {increments} {lock}");
        let answer = self.ask(&command, &given_up)?;
        count_of(&answer, workers, increments).map_err(|what| self.unreadable(&command, what))
    }

    /// Runs one command, which is complete when the write returns, and reads its whole result.
    fn ask(&self, command: &str, given_up: &dyn Fn() -> bool) -> Result<String> {
        let line = format!("{command}\n");
        let action = || format!("`{command}` to");
        // Every signal ends a command, also one that stops this process and continues it.
        match uninterrupted(given_up, || (&self.file).write(line.as_bytes())) {
            Ok(moved) if moved == line.len() => {}
            Ok(moved) => {
                return Err(Error::Short {
                    action: action(),
                    path: self.path.clone(),
                    moved,
                });
            }
            Err(reason) => return Err(Error::refused(action(), &self.path, reason)),
        }
        let mut answer = Vec::new();
        let mut part = [0; 16384];
        loop {
            let at = answer.len() as u64;
            let read = self.file.read_at(&mut part, at).map_err(|reason| {
                Error::refused(
                    format!("reading the result of `{command}` from"),
                    &self.path,
                    reason,
                )
            })?;
            if read == 0 {
                break;
            }
            answer.extend_from_slice(&part[..read]);
        }
        String::from_utf8(answer).map_err(|_| self.unreadable(command, "no text".into()))
    }

    fn unreadable(&self, command: &str, what: String) -> Error {
        Error::Unreadable {
            path: self.path.clone(),
            command: command.into(),
            what,
        }
    }
}

/// Repeats a call that a signal ended, unless `given_up`.
fn uninterrupted(
    given_up: &dyn Fn() -> bool,
    mut call: impl FnMut() -> io::Result<usize>,
) -> io::Result<usize> {
    loop {
        match call() {
            Err(reason) if reason.kind() == io::ErrorKind::Interrupted && !given_up() => {}
            outcome => return outcome,
        }
    }
}

/// Parses trials from lines `WRITE_NS READ_NS`, or returns what is wrong.
fn trials_of(answer: &str, trials: u32) -> std::result::Result<Vec<Trial>, String> {
    let measured = answer
        .lines()
        .map(|line| match numbers(line) {
            Some([write_ns, read_ns]) => Ok(Trial { write_ns, read_ns }),
            None => Err(format!("`{line}`")),
        })
        .collect::<std::result::Result<Vec<_>, _>>()?;
    if measured.len() == trials as usize {
        Ok(measured)
    } else {
        Err(format!("{} lines for {trials} trials", measured.len()))
    }
}

/// Parses a count from one line `EXPECTED ACTUAL ELAPSED_NS`, or returns what is wrong.
fn count_of(answer: &str, workers: u32, increments: u64) -> std::result::Result<Count, String> {
    let Some([expected, actual, elapsed_ns]) = numbers(answer) else {
        return Err(format!("`{}`", answer.trim_end().replace('\n', " ")));
    };
    if u128::from(expected) != u128::from(workers) * u128::from(increments) {
        return Err(format!(
            "{expected} increments expected of {workers} x {increments}"
        ));
    }
    Ok(Count {
        expected,
        actual,
        elapsed_ns,
    })
}

/// Parses exactly `N` whole numbers.
fn numbers<const N: usize>(text: &str) -> Option<[u64; N]> {
    let words: Vec<u64> = text
        .split_ascii_whitespace()
        .map(|word| word.parse().ok())
        .collect::<Option<_>>()?;
    words.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_result_is_as_long_as_was_asked_for() {
        let trials = trials_of("70 64\n63 65\n", 2).unwrap();
        assert_eq!((trials[0].write_ns, trials[1].read_ns), (70, 65));
        for (answer, what) in [
            ("70 64\n", "1 lines for 2 trials"),
            ("70 64\n63\n", "`63`"),
            ("70 64\n63 -1\n", "`63 -1`"),
            ("", "0 lines for 2 trials"),
        ] {
            assert_eq!(trials_of(answer, 2).unwrap_err(), what);
        }
    }

    #[test]
    fn a_count_is_of_the_increments_asked_for() {
        let count = count_of("10 7 900\n", 2, 5).unwrap();
        assert_eq!(
            (count.expected, count.actual, count.elapsed_ns),
            (10, 7, 900)
        );
        for (answer, what) in [
            ("11 7 900\n", "11 increments expected of 2 x 5"),
            ("10 7\n", "`10 7`"),
            ("10 7 900\n10 7 900\n", "`10 7 900 10 7 900`"),
        ] {
            assert_eq!(count_of(answer, 2, 5).unwrap_err(), what);
        }
    }

    #[test]
    fn a_command_asks_for_no_more_trials_than_the_module_takes() {
        let module = include_str!("../../../../kernel/mymem-rust/throughput.rs");
        assert!(module.contains("const TRIALS_MAX: usize = 100_000;"));
        assert_eq!(TRIALS_MAX, 100_000);
        let file = tempfile::NamedTempFile::new().unwrap();
        let client = InKernel::open(file.path()).unwrap();
        let message = client.throughput(1, 100_001, || false).unwrap_err();
        let message = message.to_string();
        assert!(message.ends_with(": `throughput 1 100000`"), "{message}");
    }

    #[test]
    fn a_command_that_a_signal_ended_is_sent_again_until_it_is_given_up() {
        let times = Cell::new(0);
        let interrupted = |left: u32| {
            times.set(times.get() + 1);
            if times.get() > left {
                Ok(7)
            } else {
                Err(io::ErrorKind::Interrupted.into())
            }
        };
        let moved = uninterrupted(&|| false, || interrupted(3)).unwrap();
        assert_eq!((moved, times.take()), (7, 4));
        let reason = uninterrupted(&|| times.get() == 2, || interrupted(3)).unwrap_err();
        assert_eq!(
            (reason.kind(), times.take()),
            (io::ErrorKind::Interrupted, 2)
        );
        let refused = || Err(io::ErrorKind::PermissionDenied.into());
        let reason = uninterrupted(&|| false, refused).unwrap_err();
        assert_eq!(reason.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_second_client_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let first = InKernel::open(file.path()).unwrap();
        let message = InKernel::open(file.path()).unwrap_err().to_string();
        assert!(
            message.contains(": another process measures with it"),
            "{message}"
        );
        drop(first);
        InKernel::open(file.path()).unwrap();
    }

    #[test]
    fn a_file_does_not_pass_for_the_kernel_s_measurements() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let client = InKernel::open(file.path()).unwrap();
        // What was written is what is read.
        let message = client.throughput(64, 3, || false).unwrap_err().to_string();
        assert!(
            message.contains("answered `throughput 64 3`")
                && message.ends_with(": `throughput 64 3`"),
            "{message}"
        );
    }
}
