// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every experiment is called with, besides its settings.

use std::path::{Path, PathBuf};

use memwarden_platform::machine;
use memwarden_run::{Existing, Run, RunFolder, Summary, Whole};
use serde::Serialize;

use crate::{Error, Interrupt, Progress, host};

/// A requested run: its folder, what ends it early, and the observer of its progress.
pub struct RunRequest<'a> {
    /// The run folder; none uses the default.
    pub out: Option<&'a Path>,
    /// What to do if the folder exists.
    pub existing: Existing,
    /// Ends the run; what was measured is then in `DIR.partial`.
    pub interrupt: &'a Interrupt,
    /// The observer.
    pub progress: &'a mut dyn Progress,
}

impl<'a> RunRequest<'a> {
    /// Requests a run.
    pub fn new(
        out: Option<&'a Path>,
        existing: Existing,
        interrupt: &'a Interrupt,
        progress: &'a mut dyn Progress,
    ) -> Self {
        Self {
            out,
            existing,
            interrupt,
            progress,
        }
    }

    /// A run into a new folder.
    #[cfg(test)]
    pub(crate) fn to(
        out: &'a Path,
        interrupt: &'a Interrupt,
        progress: &'a mut dyn Progress,
    ) -> Self {
        Self::new(Some(out), Existing::Refuse, interrupt, progress)
    }

    /// Begins the run folder with these settings and a description of this machine.
    pub(crate) fn begin(
        &self,
        experiment: &str,
        settings: &impl Serialize,
    ) -> Result<RunFolder, Error> {
        let mut record = Run::new(experiment, "native").with_settings(settings);
        record.host = host::record(&machine::Host::gather()?);
        Ok(RunFolder::create(self.out, record, self.existing)?)
    }

    /// Counts the steps of the run.
    pub(crate) fn steps(self, total: usize) -> Steps<'a> {
        Steps {
            progress: self.progress,
            done: 0,
            total,
        }
    }
}

/// Completes the run folder; returns its path with the summary.
pub(crate) fn finished<W: Whole>(
    folder: RunFolder,
    summary: Summary<W>,
) -> Result<(PathBuf, Summary<W>), Error> {
    Ok((folder.finish(&summary)?, summary))
}

/// The steps of a run, which an observer is told of.
pub(crate) struct Steps<'a> {
    progress: &'a mut dyn Progress,
    done: usize,
    total: usize,
}

impl Steps<'_> {
    /// The next step begins.
    pub fn next(&mut self, what: &str) {
        self.progress.step(self.done, self.total, what);
        self.done += 1;
    }

    /// Leaves out the next `count` steps.
    pub fn skip(&mut self, count: usize) {
        self.done += count;
    }

    /// All steps are done.
    pub fn end(self) {
        self.progress.step(self.total, self.total, "done");
    }
}
