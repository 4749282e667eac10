// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two ways to stop a group: the freezer, and almost no CPU bandwidth.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::folder;
use crate::Error;

/// The smallest limit that the kernel accepts: 1 ms of CPU time per second (kernel/sched/core.c, tg_set_cfs_bandwidth:
/// quota and period are at least 1 ms, the period is at most 1 s).
const NEXT_TO_NOTHING: &str = "1000 1000000";

/// How a group is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StopWith {
    /// `cgroup.freeze`: every thread stops before it returns to user space.
    #[default]
    Freezer,
    /// `cpu.max`: the group gets almost no CPU bandwidth. Each stop lets up to 1 ms of CPU time through, and the
    /// scheduler checks only at its ticks.
    CpuMax,
}

impl StopWith {
    /// The name on the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Freezer => "freezer",
            Self::CpuMax => "cpu-max",
        }
    }

    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Freezer => "cgroup.freeze",
            Self::CpuMax => "cpu.max",
        }
    }
}

/// Stops and releases one group, with one write each.
#[derive(Debug)]
pub(super) struct Stopper {
    file: File,
    stop: String,
    go: String,
}

impl Stopper {
    /// `cpu_max` is the original content of `cpu.max`.
    pub fn open(path: &Path, with: StopWith, cpu_max: Option<&str>) -> Result<Self, Error> {
        let place = path.join(with.file());
        let file = File::options()
            .write(true)
            .open(&place)
            .map_err(Error::file("opening", &place))?;
        let (stop, go) = match with {
            StopWith::Freezer => ("1", "0"),
            StopWith::CpuMax => (NEXT_TO_NOTHING, cpu_max.unwrap_or("max")),
        };
        Ok(Self {
            file,
            stop: stop.into(),
            go: go.into(),
        })
    }

    pub fn stop(&self) -> Result<(), String> {
        self.write(&self.stop)
    }

    pub fn go(&self) -> Result<(), String> {
        self.write(&self.go)
    }

    fn write(&self, text: &str) -> Result<(), String> {
        self.file
            .write_all_at(text.as_bytes(), 0)
            .map_err(|error| format!("writing `{text}` to the group: {error}"))
    }
}

/// Checks that the group can be stopped in this way. Returns the content of `cpu.max` if that is the way.
///
/// # Errors
/// When the group lacks the file, or the file cannot be read.
pub(super) fn examine(path: &Path, with: StopWith) -> Result<Option<String>, Error> {
    let has = path.join(with.file()).exists();
    match with {
        StopWith::Freezer if !has => Err(Error::BadInput(format!(
            "{} has no cgroup.freeze: this kernel is older than 5.2, or this is not a cgroup2 folder",
            path.display()
        ))),
        StopWith::Freezer => Ok(None),
        StopWith::CpuMax if !has => Err(Error::BadInput(format!(
            "{} has no cpu.max: give it the cpu controller (echo +cpu > {}/cgroup.subtree_control; not possible while \
             the controller is mounted as cgroup v1), or use --stop-with freezer",
            path.display(),
            path.parent().unwrap_or(path).display()
        ))),
        StopWith::CpuMax => folder::read(path, "cpu.max")
            .map(Some)
            .map_err(Error::file("reading", path.join("cpu.max"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn each_way_writes_its_file_and_puts_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        for (with, before, stopped) in [
            (StopWith::Freezer, "0", "1"),
            (StopWith::CpuMax, "50000 100000", "1000 1000000"),
        ] {
            let message = examine(path, with).unwrap_err().to_string();
            assert!(message.contains(with.file()), "{message}");
            fs::write(path.join(with.file()), before).unwrap();
            let saved = examine(path, with).unwrap();
            let stopper = Stopper::open(path, with, saved.as_deref()).unwrap();
            stopper.stop().unwrap();
            let now = folder::read(path, with.file()).unwrap();
            assert!(now.starts_with(stopped), "{now}");
            stopper.go().unwrap();
            let now = folder::read(path, with.file()).unwrap();
            assert!(now.starts_with(before), "{now}");
        }
    }
}
