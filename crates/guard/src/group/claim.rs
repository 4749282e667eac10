// SPDX-License-Identifier: MIT OR Apache-2.0
//! Claims on groups. A claim is a record in the runtime folder of what must be restored. The supervisor locks it as
//! long as it lives. If the supervisor is killed, any process that finds the record restores the group.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::{Deserialize, Serialize};

use super::stopper::{NEXT_TO_NOTHING, StopWith, examine};
use super::{GroupPlan, folder};
use crate::user::places::Places;
use crate::{Error, file_lock};

/// Pause between two checks whether a supervisor has ended. Checks are counted instead of time, because a
/// virtual machine may stand still.
const LOOK: Duration = Duration::from_millis(5);
/// Checks after the order to end; they take at least 3 s. A supervisor ends within a period and some tens of
/// milliseconds, or never, because it was stopped (SIGSTOP).
const ASKED: u32 = 600;
/// Checks after a kill. A killed process ends once it has run again.
const KILLED: u32 = 600;
/// Checks while another process holds a dead supervisor's lock. A process that restores the group holds it only for a
/// moment, unless that process was stopped, too.
const LOOKED_AFTER: u32 = 100;

/// The state of a group before regulation, to be restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// The group's folder.
    #[serde(with = "memwarden_platform::text_or_bytes")]
    pub path: PathBuf,
    /// Identifies the group: another group may have been created at the same path.
    pub inode: u64,
    /// The group was created for this claim.
    pub made: bool,
    /// Where the group's processes go when it is removed.
    #[serde(with = "memwarden_platform::text_or_bytes")]
    pub home: PathBuf,
    /// The original `cpu.max`, if regulation uses that file.
    pub cpu_max: Option<String>,
    /// The supervisor's process ID.
    pub supervisor: u32,
}

impl Claim {
    fn group_exists(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| found.ino() == self.inode)
    }

    /// Makes the group run if its regulator may have left it stopped. Harmless if nothing is stopped; but a group that
    /// another process has frozen runs, too, since the file does not tell them apart.
    pub fn let_go(&self) -> Result<(), Error> {
        if !self.group_exists() {
            return Ok(());
        }
        let Some(before) = &self.cpu_max else {
            return folder::write(&self.path, "cgroup.freeze", "0");
        };
        // Another limit is another process's.
        match folder::read(&self.path, "cpu.max") {
            Ok(now) if now != NEXT_TO_NOTHING => Ok(()),
            _ => folder::write(&self.path, "cpu.max", before),
        }
    }

    /// Restores the group; removes it if it was created.
    pub fn put_back(&self) -> Result<(), Error> {
        self.let_go()?;
        if self.made && self.group_exists() {
            folder::empty_and_remove(&self.path, &self.home)?;
        }
        Ok(())
    }
}

/// A claim of this process, with its lock.
#[derive(Debug)]
pub(super) struct Held {
    pub claim: Claim,
    record: PathBuf,
    _lock: File,
}

fn record_of(places: &Places, inode: u64) -> PathBuf {
    places.folder().join(format!("group-{inode}.json"))
}

fn open(record: &Path) -> Result<File, Error> {
    File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(record)
        .map_err(Error::file("opening", record))
}

/// `None` if another process holds the lock.
fn lock(file: File, record: &Path) -> Result<Option<File>, Error> {
    let taken = file_lock::try_lock(&file).map_err(Error::file("locking", record))?;
    Ok(taken.then_some(file))
}

impl Held {
    /// Creates the group if it is missing, and claims it.
    ///
    /// # Errors
    /// When another process has claimed the group, or it cannot be stopped in the requested way.
    pub fn take(places: &Places, plan: &GroupPlan) -> Result<Self, Error> {
        let path = &plan.path;
        let mut made = match fs::create_dir(path) {
            Ok(()) => true,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(Error::file("making the group", path)(error)),
        };
        let outcome = Self::take_existing(places, plan, &mut made);
        if outcome.is_err() && made {
            let _ = fs::remove_dir(path);
        }
        outcome
    }

    fn take_existing(places: &Places, plan: &GroupPlan, made: &mut bool) -> Result<Self, Error> {
        let path = &plan.path;
        let inode = fs::metadata(path)
            .map_err(Error::file("looking at", path))?
            .ino();
        let record = record_of(places, inode);
        let mut file = lock(open(&record)?, &record)?.ok_or_else(|| {
            Error::BadInput(format!(
                "{} is regulated already: another `memwarden guard run --cgroup` runs",
                path.display()
            ))
        })?;
        let mut text = String::new();
        let _ = file.read_to_string(&mut text);
        if let Ok(earlier) = serde_json::from_str::<Claim>(&text) {
            if earlier.path == *path {
                // The earlier regulator was killed together with its supervisor.
                earlier.let_go()?;
                *made |= earlier.made;
            }
        }
        let outcome = Self::examine(plan).and_then(|cpu_max| {
            let claim = Claim {
                path: path.clone(),
                inode,
                made: *made,
                home: plan.home.clone(),
                cpu_max,
                supervisor: std::process::id(),
            };
            let text = serde_json::to_vec(&claim).expect("text, bytes and numbers");
            file.set_len(0)
                .and_then(|()| file.rewind())
                .and_then(|()| file.write_all(&text))
                .map_err(Error::file("writing", &record))?;
            Ok(claim)
        });
        match outcome {
            Ok(claim) => Ok(Self {
                claim,
                record,
                _lock: file,
            }),
            Err(error) => {
                let _ = fs::remove_file(&record);
                Err(error)
            }
        }
    }

    fn examine(plan: &GroupPlan) -> Result<Option<String>, Error> {
        examine(&plan.path, StopWith::Freezer)?;
        if folder::is_frozen(&plan.path) {
            return Err(Error::BadInput(format!(
                "{0} is frozen by another process: `echo 0 > {0}/cgroup.freeze` releases it",
                plan.path.display()
            )));
        }
        examine(&plan.path, plan.stop_with)
    }

    /// Restores the group and ends the claim. `stopped`: the regulator may have left the group stopped.
    pub fn give_back(&self, stopped: bool) -> Result<(), Error> {
        let outcome = if stopped || self.claim.made {
            self.claim.put_back()
        } else {
            Ok(())
        };
        let _ = fs::remove_file(&self.record);
        outcome
    }
}

/// What a [`sweep`] does with a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// Groups of dead supervisors run again; their records stay.
    LetGo,
    /// Groups of dead supervisors are restored.
    PutBack,
    /// Groups of living supervisors are restored, too; each supervisor is first ordered to end.
    EndAll,
}

/// Goes through all records. Returns the number of groups that it dealt with.
///
/// # Errors
/// The first group that cannot be restored, after all others have been.
pub(crate) fn sweep(places: &Places, what: Sweep) -> Result<usize, Error> {
    let mut done = 0;
    let mut first = Ok(());
    for entry in fs::read_dir(places.folder())
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with("group-") || !name.ends_with(".json") {
            continue;
        }
        match settle(&entry.path(), what) {
            Ok(true) => done += 1,
            Ok(false) => {}
            Err(error) if first.is_ok() => first = Err(error),
            Err(_) => {}
        }
    }
    first.map(|()| done)
}

fn settle(record: &Path, what: Sweep) -> Result<bool, Error> {
    let read = || {
        let text = fs::read(record).ok()?;
        serde_json::from_slice::<Claim>(&text).ok()
    };
    let Ok(file) = File::open(record) else {
        // The holder has just removed it.
        return Ok(false);
    };
    let lock = match lock(file, record)? {
        Some(lock) => Some(lock),
        None if what != Sweep::EndAll => return Ok(false),
        None => match end(record, read().map(|claim| claim.supervisor))? {
            Ended::InOrder => return Ok(true),
            Ended::Locked(lock) => Some(lock),
            Ended::Dead => None,
        },
    };
    let Some(claim) = read() else {
        // The holder was killed before it had written its claim; it has created the group at most.
        let _ = fs::remove_file(record);
        return Ok(false);
    };
    if what == Sweep::LetGo {
        return claim.let_go().map(|()| true);
    }
    let outcome = claim.put_back();
    let _ = fs::remove_file(record);
    drop(lock);
    outcome.map(|()| true)
}

/// What became of a supervisor that was ordered to end.
enum Ended {
    /// It restored everything.
    InOrder,
    /// It restored nothing, and this process has taken its lock.
    Locked(File),
    /// It restored nothing, and a process that was stopped while it restored the group holds the
    /// lock. To restore twice is harmless.
    Dead,
}

/// Orders the supervisor that holds the claim to end, and kills it if it doesn't.
fn end(record: &Path, supervisor: Option<u32>) -> Result<Ended, Error> {
    let pid = supervisor.and_then(|pid| Pid::from_raw(pid as i32));
    // The process ID alone does not tell: it stays valid until the dead process's parent has waited for it.
    let process = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    let is_dead = || match &process {
        Some(Ok(process)) => {
            let mut ended = [PollFd::new(process, PollFlags::IN)];
            poll(&mut ended, Some(&Timespec::default())).is_ok_and(|ended| ended > 0)
        }
        Some(Err(errno)) => *errno == Errno::SRCH,
        None => false,
    };
    for (signal, patience) in [(Signal::TERM, ASKED), (Signal::KILL, KILLED)] {
        if let Some(pid) = pid {
            if !is_dead() {
                let _ = kill_process(pid, signal);
            }
        }
        let mut dead = 0;
        for _ in 0..patience {
            std::thread::sleep(LOOK);
            let Ok(file) = File::open(record) else {
                return Ok(Ended::InOrder);
            };
            if let Some(lock) = lock(file, record)? {
                return Ok(if record.exists() {
                    Ended::Locked(lock)
                } else {
                    Ended::InOrder
                });
            }
            dead += u32::from(is_dead());
            if dead > LOOKED_AFTER {
                return Ok(Ended::Dead);
            }
        }
    }
    Err(Error::System(format!(
        "the regulator of a group does not end ({})",
        record.display()
    )))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// A forked child holds all our locks until it executes another program. So a test that forks and a test
    /// that releases a lock take turns.
    static FORKS: Mutex<()> = Mutex::new(());

    /// A folder with the files of a group.
    fn group(folder: &Path) -> GroupPlan {
        let path = folder.join("cgroup/a");
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("cgroup.freeze"), "0\n").unwrap();
        fs::write(path.join("cpu.max"), "max 100000\n").unwrap();
        GroupPlan {
            path,
            home: folder.join("cgroup"),
            stop_with: StopWith::CpuMax,
            amount: crate::budget::Request::parse(crate::budget::Unit::Events, "5").unwrap(),
            claim: None,
        }
    }

    fn rig() -> (tempfile::TempDir, Places, GroupPlan) {
        let folder = tempfile::tempdir().unwrap();
        let places = Places::below(folder.path().join("run"));
        places.create().unwrap();
        let plan = group(folder.path());
        (folder, places, plan)
    }

    #[test]
    fn a_claimed_group_is_refused_to_others_until_it_is_given_back() {
        let _alone = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
        let (_folder, places, plan) = rig();
        let held = Held::take(&places, &plan).unwrap();
        assert!(!held.claim.made);
        let message = Held::take(&places, &plan).unwrap_err().to_string();
        assert!(message.contains("regulated already"), "{message}");
        // A sweep for what dead supervisors left does not touch it.
        assert_eq!(sweep(&places, Sweep::PutBack).unwrap(), 0);
        fs::write(plan.path.join("cpu.max"), "1000 1000000").unwrap();
        held.give_back(true).unwrap();
        assert_eq!(folder::read(&plan.path, "cpu.max").unwrap(), "max 100000");
        drop(held);
        assert!(Held::take(&places, &plan).is_ok());
    }

    #[test]
    fn a_group_of_any_name_is_claimed_and_put_back() {
        let _alone = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
        let (_folder, places, mut plan) = rig();
        let path = plan.path.with_file_name(OsStr::from_bytes(b"caf\xe9"));
        fs::rename(&plan.path, &path).unwrap();
        plan.path = path;
        plan.stop_with = StopWith::Freezer;
        // The plan as the supervisor receives it.
        let told = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<GroupPlan>(&told).unwrap(), plan);
        drop(Held::take(&places, &plan).unwrap());
        fs::write(plan.path.join("cgroup.freeze"), "1").unwrap();
        assert_eq!(sweep(&places, Sweep::LetGo).unwrap(), 1);
        assert!(!folder::is_frozen(&plan.path));
    }

    #[test]
    fn what_a_killed_one_left_is_put_back() {
        let _alone = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
        for (with, stopped, runs) in [
            (StopWith::Freezer, "1", "0"),
            (StopWith::CpuMax, NEXT_TO_NOTHING, "max 100000"),
        ] {
            let (_folder, places, mut plan) = rig();
            plan.stop_with = with;
            // Dropped without clean-up: the lock is gone, the record is not.
            drop(Held::take(&places, &plan).unwrap());
            let stop = || fs::write(plan.path.join(with.file()), stopped).unwrap();
            let now = || folder::read(&plan.path, with.file()).unwrap();
            stop();
            assert_eq!(sweep(&places, Sweep::LetGo).unwrap(), 1);
            assert_eq!(now(), runs);
            stop();
            // The next claim finds the state from before the killed one.
            let next = Held::take(&places, &plan).unwrap();
            assert_eq!(now(), runs);
            drop(next);
            stop();
            assert_eq!(sweep(&places, Sweep::EndAll).unwrap(), 1);
            assert_eq!(now(), runs);
            assert_eq!(sweep(&places, Sweep::EndAll).unwrap(), 0);
        }
    }

    #[test]
    fn what_another_process_did_to_the_group_is_left() {
        let _alone = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
        let (_folder, places, mut plan) = rig();
        // The regulator ended in order and left the group running; another process has frozen it.
        plan.stop_with = StopWith::Freezer;
        let held = Held::take(&places, &plan).unwrap();
        fs::write(plan.path.join("cgroup.freeze"), "1").unwrap();
        held.give_back(false).unwrap();
        drop(held);
        assert!(folder::is_frozen(&plan.path));
        fs::write(plan.path.join("cgroup.freeze"), "0").unwrap();
        // Another process has changed the limit.
        plan.stop_with = StopWith::CpuMax;
        let held = Held::take(&places, &plan).unwrap();
        fs::write(plan.path.join("cpu.max"), "50000 100000").unwrap();
        held.give_back(true).unwrap();
        assert_eq!(folder::read(&plan.path, "cpu.max").unwrap(), "50000 100000");
    }

    #[test]
    fn a_new_group_at_the_path_of_a_removed_one_is_left() {
        let _alone = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
        let (folder, places, mut plan) = rig();
        plan.stop_with = StopWith::Freezer;
        let held = Held::take(&places, &plan).unwrap();
        let record = held.record.clone();
        let claim = Claim {
            made: true,
            ..held.claim.clone()
        };
        drop(held);
        fs::write(&record, serde_json::to_vec(&claim).unwrap()).unwrap();
        fs::rename(&plan.path, folder.path().join("removed")).unwrap();
        let plan = group(folder.path());
        fs::write(plan.path.join("cgroup.freeze"), "1").unwrap();
        for what in [Sweep::LetGo, Sweep::EndAll] {
            sweep(&places, what).unwrap();
            assert!(folder::is_frozen(&plan.path), "{what:?}");
        }
        assert!(!record.exists());
    }

    /// A client was stopped while it released the group of its dead supervisor.
    #[test]
    fn a_client_stopped_with_the_lock_blocks_no_sweep() {
        let (_folder, places, mut plan) = rig();
        plan.stop_with = StopWith::Freezer;
        let forking = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        drop(forking);
        let held = Held::take(&places, &plan).unwrap();
        let claim = Claim {
            supervisor: dead.id(),
            ..held.claim.clone()
        };
        fs::write(&held.record, serde_json::to_vec(&claim).unwrap()).unwrap();
        fs::write(plan.path.join("cgroup.freeze"), "1").unwrap();
        assert_eq!(sweep(&places, Sweep::EndAll).unwrap(), 1);
        assert_eq!(folder::read(&plan.path, "cgroup.freeze").unwrap(), "0");
        assert!(!held.record.exists());
        // So far, the process was a zombie.
        dead.wait().unwrap();
    }

    #[test]
    fn a_group_frozen_by_another_process_is_refused_and_left() {
        let (_folder, places, plan) = rig();
        fs::write(plan.path.join("cgroup.freeze"), "1").unwrap();
        let message = Held::take(&places, &plan).unwrap_err().to_string();
        assert!(message.contains("frozen by another process"), "{message}");
        assert!(folder::is_frozen(&plan.path));
        assert_eq!(sweep(&places, Sweep::EndAll).unwrap(), 0);
        assert!(folder::is_frozen(&plan.path));
    }
}
