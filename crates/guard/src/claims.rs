// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes that use a running guard, and their cores. Each process has a record in the runtime folder and locks
//! it while it lives. The lock tells a killed process from a live one.
//!
//! Records are read and written under one lock (`claims.lock`), so that two processes that begin or end at the same
//! time see each other.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::budget::Events;
use crate::control::Control;
use crate::user::places::Places;
use crate::{Error, Settings, file_lock};

/// Pause between two attempts to take the lock.
const PAUSE: Duration = Duration::from_millis(20);
/// Attempts, for one minute at least: another process may hold the lock while it tests the guard.
const TRIES: u32 = 3000;

/// One core's budgets in events a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Budgets {
    pub read: Events,
    /// `None` where writes are not counted.
    pub write: Option<Events>,
}

impl Budgets {
    /// The budgets of a core; `None` if the guard doesn't regulate it.
    pub fn of(settings: &Settings, cpu: usize) -> Option<Self> {
        Some(Self {
            read: *settings.read_budget_events.get(&cpu)?,
            write: settings.write_budget_events.get(&cpu).copied(),
        })
    }

    /// The same rates with another period.
    pub fn over(self, from_us: u64, to_us: u64) -> Self {
        let over = |events: Events| events.map(|events| of_period(events, from_us, to_us));
        Self {
            read: over(self.read),
            write: self.write.map(over),
        }
    }
}

/// A budget's events in a period of `to_us`, from those in one of `from_us`. At least one.
pub(crate) fn of_period(events: u64, from_us: u64, to_us: u64) -> u64 {
    if from_us == to_us || from_us == 0 {
        return events;
    }
    let scaled = u128::from(events) * u128::from(to_us) / u128::from(from_us);
    u64::try_from(scaled).unwrap_or(u64::MAX).max(1)
}

/// A process that uses the guard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub pid: u32,
    /// Its subcommand, such as `guard run`.
    pub verb: String,
    /// [`crate::Regulator::instance`] of the guard.
    pub guard: String,
    /// The guard was started for such a process; the last of them stops it.
    pub stops: bool,
    /// The claim covers the whole guard: every budget and every setting.
    pub whole: bool,
    /// Other processes may change its cores' budgets.
    pub yields: bool,
    /// Its cores, with their budgets before any firm claim; `None` for one that has been offline since.
    pub before: BTreeMap<usize, Option<Budgets>>,
    /// Of its cores that other processes held and yielded, the budgets before those claims: they are restored once
    /// these processes have ended.
    #[serde(default)]
    pub origin: BTreeMap<usize, Option<Budgets>>,
    /// The period, in microseconds, to which all these budgets refer; 0 if it is not known.
    #[serde(default)]
    pub period_us: u64,
    /// Period, maxbw, mode and exemptions to restore, too.
    #[serde(default)]
    pub control: Option<Control>,
}

impl Claim {
    /// A core's budgets in `of`, which is `before` or `origin`, for a period of `period_us`.
    pub fn budgets(
        &self,
        of: &BTreeMap<usize, Option<Budgets>>,
        cpu: usize,
        period_us: u64,
    ) -> Option<Option<Budgets>> {
        let budgets = of.get(&cpu)?;
        Some(budgets.map(|budgets| budgets.over(self.period_us, period_us)))
    }

    /// Names the process in a message.
    pub fn holder(&self) -> String {
        format!("`memwarden {}` (pid {})", self.verb, self.pid)
    }
}

/// The claims, under a lock that allows changes by this process only.
#[derive(Debug)]
pub(crate) struct Locked {
    places: Places,
    _lock: File,
}

/// A claim of this process. Its record is locked until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    record: PathBuf,
    _lock: File,
}

impl Locked {
    /// Waits for the lock.
    ///
    /// # Errors
    /// When the process may not use the runtime folder, or another process holds the lock for more than a minute.
    pub fn wait(places: &Places) -> Result<Self, Error> {
        Self::wait_unless(places, &|| false)
    }

    /// Waits for the lock, until `interrupted` returns true.
    ///
    /// # Errors
    /// As for [`Locked::wait`]; [`Error::Interrupted`] if it was interrupted.
    pub fn wait_unless(places: &Places, interrupted: &dyn Fn() -> bool) -> Result<Self, Error> {
        places.create()?;
        let path = places.folder().join("claims.lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::PermissionDenied => Error::NotRoot("the guard"),
                _ => Error::file("opening", &path)(error),
            })?;
        for _ in 0..TRIES {
            if file_lock::try_lock(&lock).map_err(Error::file("locking", &path))? {
                return Ok(Self {
                    places: places.clone(),
                    _lock: lock,
                });
            }
            if interrupted() {
                return Err(Error::Interrupted);
            }
            thread::sleep(PAUSE);
        }
        Err(Error::System(
            "another memwarden has been starting the guard for a minute: try again".into(),
        ))
    }

    /// The claims of live processes on this guard, and those of killed ones, both without `own`. Removes the claims of
    /// killed processes on an earlier guard: their budgets ended with that guard.
    pub fn others(&self, guard: &str, own: Option<&Held>) -> (Vec<Claim>, Vec<Claim>) {
        let (mut living, mut left) = (Vec::new(), Vec::new());
        for (record, claim, lives) in read_all(&self.places) {
            if own.is_some_and(|own| own.record == record) {
                continue;
            }
            if lives {
                // A live process that claimed an earlier guard notices the change itself.
                if claim.guard == guard {
                    living.push(claim);
                }
            } else if claim.guard == guard {
                left.push(claim);
            } else {
                let _ = fs::remove_file(record);
            }
        }
        (living, left)
    }

    /// Removes the claims of killed processes.
    pub fn sweep(&self) {
        for (record, _, lives) in read_all(&self.places) {
            if !lives {
                let _ = fs::remove_file(record);
            }
        }
    }

    /// Writes a claim of this process and removes `old`.
    pub fn write(&self, claim: &Claim, old: Option<Held>) -> Result<Held, Error> {
        // A process may use several guards, one after another.
        let number = (0..).find(|number| !self.record(claim.pid, *number).exists());
        let record = self.record(claim.pid, number.unwrap_or(0));
        // The record gets its name only when it is complete and locked.
        let unfinished = record.with_extension("new");
        let text = serde_json::to_vec(claim).expect("plain text and numbers");
        let write = || {
            fs::write(&unfinished, text)?;
            let file = File::open(&unfinished)?;
            file_lock::lock(&file)?;
            fs::rename(&unfinished, &record)?;
            Ok(file)
        };
        let lock = write().map_err(Error::file("writing", &record))?;
        if let Some(old) = old {
            self.remove(old);
        }
        Ok(Held {
            record,
            _lock: lock,
        })
    }

    /// Ends a claim.
    pub fn remove(&self, held: Held) {
        let _ = fs::remove_file(&held.record);
    }

    fn record(&self, pid: u32, number: u32) -> PathBuf {
        let name = format!("claim-{pid}-{number}.json");
        self.places.folder().join(name)
    }
}

/// Whether a live process other than `but` uses the running guard.
pub(crate) fn in_use(places: &Places, but: u32) -> bool {
    let guard = places.instance();
    read_all(places)
        .iter()
        .any(|(_, claim, lives)| *lives && claim.pid != but && claim.guard == guard)
}

/// Every claim, and whether its process lives.
fn read_all(places: &Places) -> Vec<(PathBuf, Claim, bool)> {
    let entries = fs::read_dir(places.folder()).into_iter().flatten();
    let read = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_str()?;
        if !name.starts_with("claim-") || !name.ends_with(".json") {
            return None;
        }
        let record = entry.path();
        let file = File::open(&record).ok()?;
        let lives = file_lock::is_locked(&file);
        let claim = serde_json::from_reader(&file).ok()?;
        Some((record, claim, lives))
    };
    entries.flatten().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_the_lock_ends_at_a_signal() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places::below(folder.path().into());
        let held = Locked::wait_unless(&places, &|| true).unwrap();
        let waited = Locked::wait_unless(&places, &|| true);
        assert!(matches!(waited, Err(Error::Interrupted)), "{waited:?}");
        drop(held);
        assert!(Locked::wait(&places).is_ok());
    }
}
