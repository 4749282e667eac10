// SPDX-License-Identifier: MIT OR Apache-2.0
//! A budget that belongs to a control group (cgroup v2), wherever its threads run.
//!
//! ```text
//! GroupGuard --lease, plan-->  supervisor: holds the claim on the group, lets it go whatever happens
//!                                  | parent of, words in shared memory
//!                              regulator: one real-time thread, policy/, two perf counters a CPU
//! ```
//!
//! Supervisor and regulator are those of [`crate::user`], with another charge. What a killed supervisor leaves, the
//! regulator puts back, or [`GroupGuard`], or `memwarden guard stop` ([`put_back_all`]).

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

/// Ending takes a period and some tens of milliseconds.
const END: Duration = Duration::from_secs(10);

/// What a group's supervisor and regulator are started with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupPlan {
    /// The group's folder.
    #[serde(with = "memwarden_platform::text_or_bytes")]
    pub path: PathBuf,
    /// Where processes go that are left in a group that was made.
    #[serde(with = "memwarden_platform::text_or_bytes")]
    pub home: PathBuf,
    pub stop_with: StopWith,
    /// One amount.
    pub amount: Request,
    /// What the supervisor tells the regulator.
    pub claim: Option<Claim>,
}

/// What a supervisor has in its charge: one group.
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

    fn free(&self) -> Result<(), Error> {
        self.held.as_ref().map_or(Ok(()), Held::give_back)
    }

    fn ended(&self, why: Option<&str>) {
        if let Some(why) = why {
            eprintln!("memwarden: the regulator of a group ended: {why}");
        }
    }
}

/// A group's budget and how it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupOptions {
    /// The group's folder: absolute, or below the place where cgroup2 is mounted. It is made where it is missing, and
    /// then removed at the end.
    pub cgroup: PathBuf,
    /// One amount, in MB/s or events a period.
    pub amount: Request,
    /// How the group is stopped when its budget is used.
    pub stop_with: StopWith,
    /// Event, bytes an event, period, whether the kernel's traffic counts. (Write-backs and `maxbw` have no meaning.)
    pub start: StartOptions,
}

/// A group that is regulated; dropped, or when this process ends, it is let go.
#[derive(Debug)]
pub struct GroupGuard {
    path: PathBuf,
    lease: Option<ChildStdin>,
    said: Receiver<Vec<String>>,
}

impl GroupGuard {
    /// Begins to regulate. Processes that are in the group already are regulated too.
    ///
    /// # Errors
    /// When the group can't be made, counted or stopped, is regulated already, or is this process's own.
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
        // A supervisor that is killed can't let the group go, and its regulator may hang.
        let after = move || {
            let _ = sweep(&left, Sweep::LetGo);
        };
        let program = Path::new("/proc/self/exe");
        let launched = launch(program, &places, &plan, "the group's regulator", after)?;
        let (tell, said) = mpsc::channel();
        // Until both are gone: then nobody stops the group any more.
        std::thread::spawn(move || {
            let lines = launched.said.into_iter().flatten();
            let _ = tell.send(lines.map_while(Result::ok).collect());
        });
        let lease = launched.lease;
        Ok(Self { path, lease, said })
    }

    /// The group's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// Ends regulation: the group is let go, and removed if it was made; processes left in it go on without limits.
    ///
    /// # Errors
    /// When regulation had ended before, and why; or when something can't be put back.
    pub fn end(mut self) -> Result<Summary, Error> {
        self.finish()
    }

    fn finish(&mut self) -> Result<Summary, Error> {
        self.lease = None;
        let places = Places::of_system();
        let said = self.said.recv_timeout(END).map_err(|_| {
            Error::System(format!(
                "the regulator of {} does not end (its log: {}); `memwarden guard stop` lets the group go",
                self.path.display(),
                places.log().display()
            ))
        });
        let swept = sweep(&places, Sweep::PutBack);
        let said = said?;
        swept?;
        let summary = said.iter().find_map(|line| serde_json::from_str(line).ok());
        let why = said
            .iter()
            .find(|line| !line.starts_with('{'))
            .map_or("its regulator was killed", String::as_str);
        summary.ok_or_else(|| {
            Error::Regulator(format!(
                "regulation of {} ended before the command: {why}",
                self.path.display()
            ))
        })
    }
}

impl Drop for GroupGuard {
    fn drop(&mut self) {
        if self.lease.is_some() {
            let _ = self.finish();
        }
    }
}

/// Ends the regulation of every group, and puts back what killed regulators left. Returns how many groups there were.
///
/// # Errors
/// When a group can't be let go or removed; all others are.
pub fn put_back_all() -> Result<usize, Error> {
    sweep(&Places::of_system(), Sweep::EndAll)
}
