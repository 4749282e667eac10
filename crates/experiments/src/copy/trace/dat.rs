// SPDX-License-Identifier: MIT OR Apache-2.0
//! The classic layout: one file for each function, one tab-separated line for each record, written during the trace.
//!
//! `ring's CPU, event number, bytes, CPU that began it, clock before, clock after, elapsed ns, return address, CPU or DMA`

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use memwarden_copies::trace::{Function, Record};

use crate::Error;

/// Bytes of text that a thread buffers before a write: many lines per call, little memory.
const GATHERED: usize = 64 << 10;

/// The files; threads of all CPUs write to them.
pub(super) struct Files(Vec<(PathBuf, Mutex<File>)>);

impl Files {
    /// Creates the files in `folder`.
    pub(super) fn create(folder: &Path, functions: &[Function]) -> Result<Self, Error> {
        let file = |function: &Function| {
            let path = folder.join(name(*function));
            let file = File::create(&path).map_err(|error| failed(&path, &error))?;
            Ok((path, Mutex::new(file)))
        };
        functions
            .iter()
            .map(file)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    fn append(&self, nth: usize, text: &str) -> Result<(), Error> {
        let (path, file) = &self.0[nth];
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(text.as_bytes())
            .map_err(|error| failed(path, &error))
    }

    /// Checks that everything was written: the last chance to report a full disk.
    pub(super) fn finish(self) -> Result<(), Error> {
        for (path, file) in self.0 {
            let file = file.into_inner().unwrap_or_else(PoisonError::into_inner);
            file.sync_data().map_err(|error| failed(&path, &error))?;
        }
        Ok(())
    }
}

fn name(function: Function) -> &'static str {
    match function {
        Function::From => "mem_trace_from.dat",
        Function::To => "mem_trace_to.dat",
        Function::UnderscoreFrom => "__mem_trace_from.dat",
        Function::UnderscoreTo => "__mem_trace_to.dat",
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::BadInput(format!("--dat: writing {}: {error}", path.display()))
}

/// One thread's buffered lines.
pub(super) struct Lines<'a> {
    files: &'a Files,
    cpu: usize,
    text: String,
    outcome: Result<(), Error>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(files: &'a Files, cpu: usize) -> Self {
        Self {
            files,
            cpu,
            text: String::new(),
            outcome: Ok(()),
        }
    }

    /// Adds a line for the `nth` function's file; [`Lines::write`] reports errors.
    pub(super) fn add(&mut self, nth: usize, record: &Record) {
        line(&mut self.text, self.cpu, record);
        if self.text.len() >= GATHERED {
            self.flush(nth);
        }
    }

    /// Writes the buffered lines.
    pub(super) fn write(&mut self, nth: usize) -> Result<(), Error> {
        self.flush(nth);
        std::mem::replace(&mut self.outcome, Ok(()))
    }

    fn flush(&mut self, nth: usize) {
        if !self.text.is_empty() && self.outcome.is_ok() {
            self.outcome = self.files.append(nth, &self.text);
        }
        self.text.clear();
    }
}

fn line(text: &mut String, cpu: usize, record: &Record) {
    let by = if record.by_engine > 0 { "DMA" } else { "CPU" };
    let Record {
        number,
        bytes,
        before_ns,
        after_ns,
        caller,
        ..
    } = record;
    // Writing to a String can't fail.
    let _ = writeln!(
        text,
        "{cpu}\t{number}\t{bytes}\t{}\t{before_ns}\t{after_ns}\t{}\t{caller:#018x}\t{by}",
        record.cpu,
        record.elapsed_ns()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_line() {
        let record = Record {
            number: 1102,
            before_ns: 613_326_537_662,
            after_ns: 613_326_537_755,
            caller: 0xffff_ffff_8144_c129,
            bytes: 8,
            ..Record::default()
        };
        let mut text = String::new();
        line(&mut text, 0, &record);
        line(
            &mut text,
            3,
            &Record {
                by_engine: 8,
                cpu: 1,
                ..record
            },
        );
        assert_eq!(
            text,
            "0\t1102\t8\t0\t613326537662\t613326537755\t93\t0xffffffff8144c129\tCPU\n\
             3\t1102\t8\t1\t613326537662\t613326537755\t93\t0xffffffff8144c129\tDMA\n"
        );
    }

    #[test]
    fn lines_of_all_threads_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let functions = [Function::To, Function::UnderscoreFrom];
        let files = Files::create(folder.path(), &functions).unwrap();
        std::thread::scope(|scope| {
            for cpu in 0..4 {
                let files = &files;
                scope.spawn(move || {
                    let mut lines = Lines::new(files, cpu);
                    for number in 0..3000 {
                        let record = Record {
                            number,
                            ..Record::default()
                        };
                        lines.add(1, &record);
                    }
                    lines.write(1).unwrap();
                });
            }
        });
        files.finish().unwrap();
        let text = std::fs::read_to_string(folder.path().join("__mem_trace_from.dat")).unwrap();
        assert_eq!(text.lines().count(), 12_000);
        assert!(text.lines().all(|line| line.split('\t').count() == 9));
        let none = std::fs::read_to_string(folder.path().join("mem_trace_to.dat")).unwrap();
        assert!(none.is_empty());
    }

    #[test]
    fn a_full_disk_is_told_of() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let Ok(full) = full else {
            return; // a sandbox without it
        };
        let files = Files(vec![("/dev/full".into(), Mutex::new(full))]);
        let mut lines = Lines::new(&files, 0);
        lines.add(0, &Record::default());
        let message = lines.write(0).unwrap_err().to_string();
        assert!(
            message.starts_with("--dat: writing /dev/full: "),
            "{message}"
        );
    }
}
