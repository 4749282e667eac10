// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two ways to stop a group: the freezer, and almost no CPU bandwidth.
//!
//! The group's owner may use the same file, to pause a container, say. [`Stopper`] leaves what another process wrote.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::inotify;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::folder;
use crate::Error;

/// The smallest limit that the kernel accepts: 1 ms of CPU time per second (kernel/sched/core.c, tg_set_cfs_bandwidth:
/// quota and period are at least 1 ms, the period is at most 1 s).
pub(super) const NEXT_TO_NOTHING: &str = "1000 1000000";

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
    with: StopWith,
    go: String,
    /// This stopper has stopped the group.
    stopped: bool,
    /// `None` if this kernel has no inotify, or no more of it.
    writes: Option<Writes>,
}

impl Stopper {
    /// `cpu_max` is the original content of `cpu.max`.
    pub fn open(path: &Path, with: StopWith, cpu_max: Option<&str>) -> Result<Self, Error> {
        let place = path.join(with.file());
        let file = File::options()
            .read(true)
            .write(true)
            .open(&place)
            .map_err(Error::file("opening", &place))?;
        let go = match with {
            StopWith::Freezer => "0",
            StopWith::CpuMax => cpu_max.unwrap_or("max"),
        };
        Ok(Self {
            file,
            with,
            go: go.into(),
            stopped: false,
            writes: Writes::of(&place),
        })
    }

    /// What the file holds while the group is stopped.
    fn stop_text(&self) -> &'static str {
        match self.with {
            StopWith::Freezer => "1",
            StopWith::CpuMax => NEXT_TO_NOTHING,
        }
    }

    /// Stops the group. If another process has stopped it, it is left to that process.
    pub fn stop(&mut self) -> Result<(), String> {
        let before = self.read()?;
        if before == self.stop_text() {
            return Ok(());
        }
        // The group's owner may have changed its limit.
        if self.with == StopWith::CpuMax {
            self.go = before;
        }
        self.write(self.stop_text())?;
        self.stopped = true;
        // The own write.
        self.written();
        Ok(())
    }

    /// Releases the group if this stopper has stopped it. If another process has written the file since, its value stays:
    /// it has released the group, or stopped it for itself.
    pub fn go(&mut self) -> Result<(), String> {
        if !self.stopped {
            return Ok(());
        }
        let others = match self.with {
            StopWith::Freezer => self.written(),
            StopWith::CpuMax => self.read().is_ok_and(|now| now != NEXT_TO_NOTHING),
        };
        if !others {
            self.write(&self.go)?;
        }
        self.stopped = false;
        Ok(())
    }

    /// True if the file was written since the last call.
    fn written(&self) -> bool {
        self.writes.as_ref().is_some_and(Writes::take)
    }

    fn read(&self) -> Result<String, String> {
        let mut text = [0; 64];
        let length = self
            .file
            .read_at(&mut text, 0)
            .map_err(|error| format!("reading the group's {}: {error}", self.with.file()))?;
        Ok(String::from_utf8_lossy(&text[..length]).trim().to_owned())
    }

    fn write(&self, text: &str) -> Result<(), String> {
        self.file
            .write_all_at(text.as_bytes(), 0)
            .map_err(|error| format!("writing `{text}` to the group: {error}"))
    }
}

/// The writes to a file, by any process.
#[derive(Debug)]
struct Writes(OwnedFd);

impl Writes {
    fn of(file: &Path) -> Option<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let watch = inotify::init(flags).ok()?;
        inotify::add_watch(&watch, file, inotify::WatchFlags::MODIFY).ok()?;
        Some(Self(watch))
    }

    /// True if there were any since the last call.
    fn take(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 512];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        let mut any = false;
        while reader.next().is_ok() {
            any = true;
        }
        any
    }
}

/// Checks that the group can be stopped in this way. Returns the content of `cpu.max` if that is the way.
///
/// # Errors
/// When the group lacks the file, the file cannot be read, or `cpu.max.burst` is not 0.
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
        StopWith::CpuMax => {
            // The kernel refuses a quota below the burst. The file is missing before Linux 5.14.
            let burst = folder::read(path, "cpu.max.burst").unwrap_or_default();
            if !matches!(burst.as_str(), "" | "0") {
                return Err(Error::BadInput(format!(
                    "{0} has a cpu.max.burst of {burst} us, with which cpu.max cannot stop it: \
                     `echo 0 > {0}/cpu.max.burst`, or use --stop-with freezer",
                    path.display()
                )));
            }
            folder::read(path, "cpu.max")
                .map(Some)
                .map_err(Error::file("reading", path.join("cpu.max")))
        }
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
            let mut stopper = Stopper::open(path, with, saved.as_deref()).unwrap();
            stopper.stop().unwrap();
            let now = folder::read(path, with.file()).unwrap();
            assert!(now.starts_with(stopped), "{now}");
            stopper.go().unwrap();
            let now = folder::read(path, with.file()).unwrap();
            assert!(now.starts_with(before), "{now}");
        }
    }

    #[test]
    fn a_group_with_a_burst_is_stopped_by_the_freezer_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        for (file, text) in [
            ("cgroup.freeze", "0\n"),
            ("cpu.max", "50000 100000\n"),
            ("cpu.max.burst", "0\n"),
        ] {
            fs::write(path.join(file), text).unwrap();
        }
        assert!(examine(path, StopWith::CpuMax).is_ok());
        fs::write(path.join("cpu.max.burst"), "20000\n").unwrap();
        let message = examine(path, StopWith::CpuMax).unwrap_err().to_string();
        assert!(message.contains("cpu.max.burst of 20000 us"), "{message}");
        assert!(examine(path, StopWith::Freezer).is_ok());
    }

    /// A group's folder with both files, and its stopper.
    fn rig(with: StopWith) -> (tempfile::TempDir, Stopper) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.freeze"), "0\n").unwrap();
        fs::write(folder.path().join("cpu.max"), "max 100000\n").unwrap();
        let saved = examine(folder.path(), with).unwrap();
        let stopper = Stopper::open(folder.path(), with, saved.as_deref()).unwrap();
        (folder, stopper)
    }

    #[test]
    fn a_group_that_another_process_froze_stays_frozen() {
        let (folder, mut stopper) = rig(StopWith::Freezer);
        let now = || folder::read(folder.path(), "cgroup.freeze").unwrap();
        let other = |text: &str| fs::write(folder.path().join("cgroup.freeze"), text).unwrap();
        stopper.stop().unwrap();
        stopper.go().unwrap();
        assert_eq!(now(), "0");
        // Frozen while it runs, for several periods.
        other("1");
        for _ in 0..3 {
            stopper.stop().unwrap();
            stopper.go().unwrap();
            assert_eq!(now(), "1");
        }
        other("0");
        stopper.stop().unwrap();
        assert_eq!(now(), "1");
        stopper.go().unwrap();
        assert_eq!(now(), "0");
        if stopper.writes.is_none() {
            return eprintln!("skipped: no inotify");
        }
        // Frozen while it is stopped.
        stopper.stop().unwrap();
        other("1");
        stopper.go().unwrap();
        assert_eq!(now(), "1");
        stopper.stop().unwrap();
        stopper.go().unwrap();
        assert_eq!(now(), "1");
        // Released while it is stopped.
        other("0");
        stopper.stop().unwrap();
        other("0");
        stopper.go().unwrap();
        assert_eq!(now(), "0");
        stopper.stop().unwrap();
        assert_eq!(now(), "1");
    }

    #[test]
    fn a_limit_that_another_process_sets_is_the_one_to_restore() {
        let (folder, mut stopper) = rig(StopWith::CpuMax);
        let now = || folder::read(folder.path(), "cpu.max").unwrap();
        // As the kernel does, which keeps nothing of the previous text.
        let other = |text: &str| fs::write(folder.path().join("cpu.max"), text).unwrap();
        let stop = |stopper: &mut Stopper| {
            stopper.stop().unwrap();
            assert!(now().starts_with(NEXT_TO_NOTHING), "{}", now());
            other(NEXT_TO_NOTHING);
        };
        stop(&mut stopper);
        stopper.go().unwrap();
        assert!(now().starts_with("max 100000"), "{}", now());
        // While it runs.
        other("50000 100000");
        stop(&mut stopper);
        stopper.go().unwrap();
        assert!(now().starts_with("50000 100000"), "{}", now());
        // While it is stopped.
        stop(&mut stopper);
        other("7000 10000");
        stopper.go().unwrap();
        assert_eq!(now(), "7000 10000");
        stop(&mut stopper);
        stopper.go().unwrap();
        assert!(now().starts_with("7000 10000"), "{}", now());
    }
}
