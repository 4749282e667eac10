// SPDX-License-Identifier: MIT OR Apache-2.0
//! State that all cores share.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::ffi;
use crate::words::{BestEffort, Error, MAX_CORES, Resource};

/// State that all cores share: modes, the census of cores, and the pools of donated events.
#[derive(Debug)]
pub struct Policy {
    raw: UnsafeCell<ffi::mw_policy>,
    /// Cores that exist: created and not dropped.
    cores: AtomicU32,
}

// SAFETY: every word of mw_policy is an atomic that policy.c accesses only atomically, and no code here creates a
// reference to one.
unsafe impl Sync for Policy {}

/// How many cores are online, active and exhausted: a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Census {
    /// Number of the global period; wraps at 2^21.
    pub epoch: u64,
    /// All cores run unregulated until the period's end.
    pub released: bool,
    /// Cores that take part.
    pub online: u32,
    /// Of these, cores that ran anything but idle in this period.
    pub active: u32,
    /// Of these, cores that have used their budget.
    pub exhausted: u32,
}

impl Policy {
    /// Starts with no cores, no donation and strict reservation.
    #[must_use]
    pub fn new() -> Arc<Policy> {
        let mut raw = MaybeUninit::uninit();
        // SAFETY: mw_policy_init() writes every field and keeps no pointer.
        let raw = unsafe {
            ffi::mw_policy_init(raw.as_mut_ptr());
            raw.assume_init()
        };
        Arc::new(Policy {
            raw: UnsafeCell::new(raw),
            cores: AtomicU32::new(0),
        })
    }

    pub(crate) fn raw(&self) -> *mut ffi::mw_policy {
        self.raw.get()
    }

    pub(crate) fn admit_core(&self) -> Result<(), Error> {
        self.cores
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |cores| {
                (cores < MAX_CORES).then_some(cores + 1)
            })
            .map(drop)
            .map_err(|_| Error::TooManyCores)
    }

    pub(crate) fn dismiss_core(&self) {
        self.cores.fetch_sub(1, Ordering::Relaxed);
    }

    /// Chooses what happens when all active cores have used their budgets; effective at the next overflow.
    pub fn set_best_effort(&self, mode: BestEffort) {
        // SAFETY: the pointer is good, and the word is an atomic.
        let refused = unsafe { ffi::mw_set_best_effort(self.raw(), mode as u64) };
        debug_assert_eq!(refused, 0, "every BestEffort is a mode");
    }

    /// The mode that was last set.
    #[must_use]
    pub fn best_effort(&self) -> BestEffort {
        // SAFETY: only a field's address is taken.
        let word = unsafe { &raw mut (*self.raw()).best_effort };
        BestEffort::try_from(load(word)).expect("policy.c refuses other modes")
    }

    /// Turns donation and reclaim on or off, from each core's next period on.
    pub fn set_reclaim(&self, on: bool) {
        // SAFETY: the pointer is good, and the word is an atomic.
        let refused = unsafe { ffi::mw_set_reclaim(self.raw(), u64::from(on)) };
        debug_assert_eq!(refused, 0, "0 and 1 are accepted");
    }

    /// Whether donation and reclaim are on.
    #[must_use]
    pub fn reclaim(&self) -> bool {
        // SAFETY: only a field's address is taken.
        let word = unsafe { &raw mut (*self.raw()).reclaim };
        load(word) != 0
    }

    /// Sets the smallest chunk that an overflow takes from the pool, in events; 0 means 1/16 of the taker's budget.
    ///
    /// # Errors
    /// [`Error::Qmin`] if `events` is more than [`UNLIMITED`](crate::UNLIMITED).
    pub fn set_qmin(&self, events: u64) -> Result<(), Error> {
        // SAFETY: the pointer is good, and the word is an atomic.
        match unsafe { ffi::mw_set_qmin(self.raw(), events) } {
            0 => Ok(()),
            _ => Err(Error::Qmin(events)),
        }
    }

    /// The smallest chunk that was last set, in events.
    #[must_use]
    pub fn qmin(&self) -> u64 {
        // SAFETY: only a field's address is taken.
        let word = unsafe { &raw mut (*self.raw()).qmin };
        load(word)
    }

    /// How many cores are online, active and exhausted.
    #[must_use]
    pub fn census(&self) -> Census {
        // SAFETY: the pointer is good; one atomic load.
        let census = unsafe { ffi::mw_census_read(self.raw()) };
        Census {
            epoch: census.epoch,
            released: census.released,
            online: census.online,
            active: census.active,
            exhausted: census.exhausted,
        }
    }

    /// Events that were donated in this period and not yet taken.
    #[must_use]
    pub fn pool(&self, resource: Resource) -> u64 {
        // SAFETY: the pointer is good; one atomic load.
        unsafe { ffi::mw_pool_read(self.raw(), resource as u32) }
    }
}

/// Reads a word that policy.c may change concurrently.
pub(crate) fn load(word: *mut ffi::mw_atomic64) -> u64 {
    // SAFETY: `word` lies in a live mw_policy or mw_core, is aligned as a u64, and is accessed only atomically once it
    // is shared.
    unsafe { AtomicU64::from_ptr(word.cast()) }.load(Ordering::Acquire)
}
