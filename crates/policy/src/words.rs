// SPDX-License-Identifier: MIT OR Apache-2.0
//! The types that host and policy exchange.

use std::fmt;
use std::str::FromStr;

use crate::ffi;

/// The budget that means "no limit", in events per period.
pub const UNLIMITED: u64 = ffi::MW_UNLIMITED;

/// The largest number of cores that one [`Policy`](crate::Policy) can count.
pub const MAX_CORES: u32 = ffi::MW_MAX_CORES;

/// What is counted and budgeted. As an index: 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// Last-level-cache refills.
    Read = 0,
    /// Write-backs.
    Write = 1,
}

impl Resource {
    /// Both, in the order of every array that is indexed by resource.
    pub const ALL: [Resource; ffi::MW_RESOURCES] = [Resource::Read, Resource::Write];
}

/// What happens when all active cores have used their budgets. The numbers are those of the classic `exclusive`
/// setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BestEffort {
    /// All cores wait for the period's end.
    #[default]
    None = 0,
    /// Throttled cores run unregulated until the period's end.
    Spare = 2,
    /// A new period begins at once on all cores.
    Proportional = 5,
}

impl BestEffort {
    /// Every mode.
    pub const ALL: [BestEffort; 3] = [
        BestEffort::None,
        BestEffort::Spare,
        BestEffort::Proportional,
    ];
}

impl TryFrom<u64> for BestEffort {
    type Error = Error;

    fn try_from(number: u64) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|mode| *mode as u64 == number)
            .ok_or_else(|| Error::BestEffort(number.to_string()))
    }
}

impl fmt::Display for BestEffort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            BestEffort::None => "none",
            BestEffort::Spare => "spare",
            BestEffort::Proportional => "proportional",
        })
    }
}

impl FromStr for BestEffort {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.to_string() == word)
            .ok_or_else(|| Error::BestEffort(word.to_owned()))
    }
}

/// What the host has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "cores wait for what an action asks for"]
pub enum Action {
    /// Nothing changed; leave counters as they are.
    Continue,
    /// Run; the next overflow comes after [`until_overflow`](crate::Core::until_overflow) more events.
    Run,
    /// Block this core until [`period_begin`](crate::Core::period_begin) or [`release`](crate::Core::release) returns
    /// [`Action::Run`].
    Throttle,
    /// This core continues unregulated; have every other core call [`release`](crate::Core::release). If the core has
    /// become idle or gone offline, have every core call it.
    ReleaseAll,
    /// A new period is open. Make its number ([`census`](crate::Policy::census)) the number of the period that begins
    /// now. Have every core, including this one, call [`period_begin`](crate::Core::period_begin).
    NewPeriod,
}

impl Action {
    pub(crate) fn from_c(action: u32) -> Action {
        match action {
            ffi::MW_CONTINUE => Action::Continue,
            ffi::MW_RUN => Action::Run,
            ffi::MW_THROTTLE => Action::Throttle,
            ffi::MW_RELEASE_ALL => Action::ReleaseAll,
            ffi::MW_NEW_PERIOD => Action::NewPeriod,
            unknown => unreachable!("policy.c has no action {unknown}"),
        }
    }
}

/// A setting that was refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a valid budget, in events per period.
    #[error("budget of {0} events per period: has to be from 1 to {UNLIMITED}")]
    Budget(u64),
    /// Not a valid chunk, in events.
    #[error("smallest chunk (qmin) of {0} events: has to be at most {UNLIMITED}")]
    Qmin(u64),
    /// Not a best-effort mode.
    #[error("best-effort mode {0}: has to be none (0), spare (2) or proportional (5)")]
    BestEffort(String),
    /// The policy can't count one more core.
    #[error("a policy can count at most {MAX_CORES} cores, and already has that many")]
    TooManyCores,
}
