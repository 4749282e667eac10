// SPDX-License-Identifier: MIT OR Apache-2.0
//! A budget for a control group (cgroup v2), wherever its threads run.
//!
//! ```text
//! GroupGuard --lease, plan-->  supervisor: holds the claim on the group, releases the group in any case
//!                                  | parent of, shared memory
//!                              regulator: one real-time thread, policy/, two perf counters per CPU
//! ```
//!
//! The supervisor and the regulator are those of [`crate::user`], with another charge. If the supervisor is killed, the
//! regulator, [`GroupGuard`] or `memwarden guard stop` ([`put_back_all`]) restores the group.

mod claim;
mod counters;
mod figures;
mod folder;
mod ledger;
mod regulator;
mod shares;
mod stopper;

use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use memwarden_platform::Root;
use serde::{Deserialize, Serialize};

use crate::budget::Request;
use crate::user::launch::launch;
use crate::user::places::Places;
use crate::user::supervisor;
use crate::user::wire::Plan;
use crate::{Error, StartOptions};
use claim::{Claim, Held, Sweep, sweep};

pub use figures::{Spread, Summary, Terms};
pub(crate) use regulator::regulate;
pub use stopper::StopWith;

/// How long to wait for the end, which takes a period and some tens of milliseconds.
const END: Duration = Duration::from_secs(10);

/// What a group's supervisor and regulator are started with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupPlan {
    /// The group's folder.
    #[serde(with = "memwarden_platform::text_or_bytes")]
    pub path: PathBuf,
    /// Where the remaining processes go when a created group is removed.
    #[serde(with = "memwarden_platform::text_or_bytes")]
    pub home: PathBuf,
    pub stop_with: StopWith,
    /// A single amount.
    pub amount: Request,
    /// Passed from the supervisor to the regulator.
    pub claim: Option<Claim>,
}

/// A supervisor's charge: one group.
pub(crate) struct Charge<'a> {
    plan: &'a Plan,
    places: &'a Places,
    held: Option<Held>,
}

impl<'a> Charge<'a> {
    pub fn take(plan: &'a Plan, places: &'a Places) -> Self {
        Self {
            plan,
            places,
            held: None,
        }
    }
}

impl supervisor::Charge for Charge<'_> {
    fn threads(&self) -> usize {
        1
    }

    fn thread(&self, _index: usize) -> String {
        "the group's regulator".into()
    }

    fn begin(&mut self) -> Result<Plan, Error> {
        let mut plan = self.plan.clone();
        if let Some(group) = &mut plan.group {
            let held = Held::take(self.places, group)?;
            group.claim = Some(held.claim.clone());
            self.held = Some(held);
        }
        Ok(plan)
    }

    fn free(&self, words: &[AtomicU64]) -> Result<(), Error> {
        let stopped = words[0].load(Ordering::Acquire) != 0;
        let held = self.held.as_ref();
        held.map_or(Ok(()), |held| held.give_back(stopped))
    }

    fn ended(&self, why: Option<&str>) {
        if let Some(why) = why {
            eprintln!("memwarden: the regulator of a group ended: {why}");
        }
    }
}

/// A group's budget and how it is enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupOptions {
    /// The group's folder: absolute, or relative to the mount point of cgroup2. A missing group is
    /// created, and removed at the end.
    pub cgroup: PathBuf,
    /// A single amount, in MB/s or events per period.
    pub amount: Request,
    /// How the group is stopped when its budget is used up.
    pub stop_with: StopWith,
    /// Event, bytes per event, period, and whether the kernel's traffic counts. Write-backs and `maxbw` have no effect.
    pub start: StartOptions,
}

/// A regulated group. It is released when this is dropped or this process ends.
#[derive(Debug)]
pub struct GroupGuard {
    path: PathBuf,
    lease: Option<ChildStdin>,
    said: Receiver<Vec<String>>,
    /// What the regulator said, if it has ended before it was told to.
    early: Option<Vec<String>>,
}

impl GroupGuard {
    /// Starts regulation, also of processes that are already in the group.
    ///
    /// # Errors
    /// When the group cannot be created, counted or stopped, is already regulated, or contains this process.
    pub fn start(options: &GroupOptions) -> Result<Self, Error> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::NotRoot("a budget for a control group"));
        }
        let root = Root::system();
        let path = folder::resolve(&root, &options.cgroup)?;
        let own = folder::own(&root, &path);
        if own.as_ref().is_some_and(|own| own.starts_with(&path)) {
            return Err(Error::BadInput(format!(
                "--cgroup {}: this process runs in it, and would stop itself; give another group",
                options.cgroup.display()
            )));
        }
        let parent = path.parent().map(Path::to_owned);
        let places = Places::of_system();
        places.create()?;
        let plan = Plan {
            options: options.start.clone(),
            tied: true,
            group: Some(GroupPlan {
                home: own.or(parent).unwrap_or_default(),
                path: path.clone(),
                stop_with: options.stop_with,
                amount: options.amount.clone(),
                claim: None,
            }),
        };
        let left = places.clone();
        // A killed supervisor cannot release the group, and its regulator may hang.
        let after = move || {
            let _ = sweep(&left, Sweep::LetGo);
        };
        let program = Path::new("/proc/self/exe");
        let launched = launch(program, &places, &plan, "the group's regulator", after)?;
        let (tell, said) = mpsc::channel();
        // Reads until both processes have ended. After that, none can stop the group.
        std::thread::spawn(move || {
            let lines = launched.said.into_iter().flatten();
            let _ = tell.send(lines.map_while(Result::ok).collect());
        });
        let lease = launched.lease;
        Ok(Self {
            path,
            lease,
            said,
            early: None,
        })
    }

    /// The group's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// Ends regulation. The group is released, and removed if it was created; its remaining
    /// processes continue without limits. Returns the summary, and what could not be restored.
    ///
    /// # Errors
    /// When regulation ended earlier, with the reason, or when the group of another dead supervisor cannot be restored.
    pub fn end(mut self) -> Result<(Summary, Vec<String>), Error> {
        self.finish()
    }

    /// Why regulation has ended, if it has: the group's tasks continue without a budget.
    pub fn ended(&mut self) -> Option<String> {
        if self.early.is_none() {
            self.early = self.said.try_recv().ok();
        }
        self.early.as_deref().map(why_ended)
    }

    fn finish(&mut self) -> Result<(Summary, Vec<String>), Error> {
        if let Some(why) = self.ended() {
            self.lease = None;
            sweep(&Places::of_system(), Sweep::PutBack)?;
            return Err(self.ended_early(&why));
        }
        self.lease = None;
        let places = Places::of_system();
        let said = self.said.recv_timeout(END).map_err(|_| {
            Error::System(format!(
                "the regulator of {} does not end (its log: {}); `memwarden guard stop` releases the group",
                self.path.display(),
                places.log().display()
            ))
        });
        let swept = sweep(&places, Sweep::PutBack);
        let said = said?;
        swept?;
        // The processes may have begun to end before the command did.
        if said.iter().any(|line| line == supervisor::STOPPED) {
            return Err(self.ended_early(supervisor::STOPPED));
        }
        let summary = said.iter().find_map(|line| serde_json::from_str(line).ok());
        let Some(summary) = summary else {
            return Err(self.ended_early(&why_ended(&said)));
        };
        let failures = said.into_iter().filter(|line| !line.starts_with('{'));
        Ok((summary, failures.collect()))
    }

    fn ended_early(&self, why: &str) -> Error {
        Error::Regulator(format!(
            "regulation of {} ended before the command: {why}",
            self.path.display()
        ))
    }
}

/// Why a regulator ended that was not told to by its client, from its last lines.
fn why_ended(said: &[String]) -> String {
    let reason = said.iter().find(|line| !line.starts_with('{'));
    reason
        .map_or("its regulator was killed", String::as_str)
        .into()
}

impl Drop for GroupGuard {
    fn drop(&mut self) {
        if self.lease.is_some() {
            let _ = self.finish();
        }
    }
}

/// Ends the regulation of every group, and restores what killed regulators left. Returns the number of groups.
///
/// # Errors
/// When a group cannot be released or removed; all others are.
pub fn put_back_all() -> Result<usize, Error> {
    sweep(&Places::of_system(), Sweep::EndAll)
}
