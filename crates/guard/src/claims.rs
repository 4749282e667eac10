// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes that use a running guard, and their cores: a record each in the runtime folder, locked by its process
//! as long as that lives. The lock tells a killed process from a living one.
//!
//! Records are read and written under one lock (`claims.lock`), so that two processes that begin or end at once see
//! each other.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::budget::Events;
use crate::user::places::Places;
use crate::{Error, Settings, file_lock};

/// Between two tries to get the lock.
const PAUSE: Duration = Duration::from_millis(20);
/// Tries, one minute at least: another process proves the guard meanwhile.
const TRIES: u32 = 3000;

/// One core's budgets in events a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Budgets {
    pub read: Events,
    /// `None` where writes are not counted.
    pub write: Option<Events>,
}

impl Budgets {
    /// Those of a core, if the guard has it.
    pub fn of(settings: &Settings, cpu: usize) -> Option<Self> {
        Some(Self {
            read: *settings.read_budget_events.get(&cpu)?,
            write: settings.write_budget_events.get(&cpu).copied(),
        })
    }
}

/// A process that uses the guard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub pid: u32,
    /// Its verb, such as `guard run`.
    pub verb: String,
    /// [`crate::Regulator::instance`] of the guard.
    pub guard: String,
    /// The guard was started for one such process: the last one stops it.
    pub stops: bool,
    /// It has the whole guard: every budget and every setting.
    pub whole: bool,
    /// Other processes may change its cores' budgets.
    pub yields: bool,
    /// Its cores, with what they had before any claim.
    pub before: BTreeMap<usize, Budgets>,
}

impl Claim {
    /// For a message.
    pub fn holder(&self) -> String {
        format!("`memwarden {}` (pid {})", self.verb, self.pid)
    }
}

/// The claims, while this process alone may change them.
#[derive(Debug)]
pub(crate) struct Locked {
    places: Places,
    _lock: File,
}

/// A claim of this process; its end ends the lock.
#[derive(Debug)]
pub(crate) struct Held {
    record: PathBuf,
    _lock: File,
}

impl Locked {
    /// Waits for it.
    ///
    /// # Errors
    /// Without the right to the runtime folder, or when another process has it for more than a minute.
    pub fn wait(places: &Places) -> Result<Self, Error> {
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
            thread::sleep(PAUSE);
        }
        Err(Error::System(
            "another memwarden has been starting the guard for a minute: try again".into(),
        ))
    }

    /// The claims of living processes on this guard, and those of killed ones; `own` is left out. What killed processes
    /// claimed of an earlier guard is removed: it took its budgets with it.
    pub fn others(&self, guard: &str, own: Option<&Held>) -> (Vec<Claim>, Vec<Claim>) {
        let (mut living, mut left) = (Vec::new(), Vec::new());
        for (record, claim, lives) in read_all(&self.places) {
            if own.is_some_and(|own| own.record == record) {
                continue;
            }
            if lives {
                // Of an earlier guard: its process sees that for itself.
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

    /// Writes a claim of this process, in place of `old`.
    pub fn write(&self, claim: &Claim, old: Option<Held>) -> Result<Held, Error> {
        // A process may have several guards, one after another.
        let number = (0..).find(|number| !self.record(claim.pid, *number).exists());
        let record = self.record(claim.pid, number.unwrap_or(0));
        // Complete and locked before it has its name.
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
    #[allow(clippy::unused_self)]
    pub fn remove(&self, held: Held) {
        let _ = fs::remove_file(&held.record);
    }

    fn record(&self, pid: u32, number: u32) -> PathBuf {
        let name = format!("claim-{pid}-{number}.json");
        self.places.folder().join(name)
    }
}

/// Whether a living process other than `but` uses the guard that runs.
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
