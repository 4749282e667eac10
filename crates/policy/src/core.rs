// SPDX-License-Identifier: MIT OR Apache-2.0
//! One core: its budgets, its books, and the calls that only it may make.

#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::Arc;

use crate::ffi;
use crate::policy::{Policy, load};
use crate::words::{Action, Error, Resource};

/// The C structure at an address of its own, shared by a [`Core`] and its
/// [`CoreSettings`].
#[derive(Debug)]
struct Shared(UnsafeCell<ffi::mw_core>);

// SAFETY: CoreSettings touches only `rt` and `next_budget`, which are atomics on
// both sides; everything else is touched only through the one Core, which isn't
// Sync. No reference to the structure is ever made.
unsafe impl Sync for Shared {}
// SAFETY: the structure holds no pointer and nothing bound to a thread.
unsafe impl Send for Shared {}

/// One core's state, touched by one thread at a time.
#[derive(Debug)]
pub struct Core {
    policy: Arc<Policy>,
    shared: Arc<Shared>,
    not_sync: PhantomData<Cell<()>>,
}

/// What anyone may set for a core at any time.
#[derive(Clone, Debug)]
pub struct CoreSettings {
    shared: Arc<Shared>,
}

/// One resource's books. Counts are events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// This period's reservation.
    pub budget: u64,
    /// Handed out to this core in this period so far.
    pub assigned: u64,
    /// Counted in this period, as last told by the host.
    pub used: u64,
    /// Own events that went to the pool and were not taken back.
    pub donated: u64,
    /// Expected need of a period, rounded up.
    pub prediction: u64,
    /// Reservation left unused by a throttle too early in this period.
    pub shortfall: u64,
    /// What a stop is expected to take: events from an overflow to the end of its period, charged with the overflow.
    pub stop: u64,
    /// Taken past the budgets of earlier periods, and not yet made up for.
    pub owed: u64,
    /// Of `assigned`, what goes off `owed`: no task gets it.
    pub repaid: u64,
    /// Given to the pool of each period that begins without the core, while it rests.
    pub offered: u64,
    /// Used in all ended periods.
    pub total_used: u64,
    /// Handed out in all ended periods that had a limit.
    pub total_assigned: u64,
    /// Given to the pool.
    pub total_donated: u64,
    /// Taken from the pool, own donations included.
    pub total_reclaimed: u64,
    /// Budgets exhausted before the own reservation was used.
    pub reclaim_errors: u64,
}

impl Account {
    /// What the period leaves the core and its stop: what is handed out so far, but for what goes off `owed`.
    #[must_use]
    pub fn allowed(&self) -> u64 {
        self.assigned - self.repaid
    }
}

impl Core {
    /// An offline core without limits.
    ///
    /// # Errors
    /// [`Error::TooManyCores`] when the policy can't count one more.
    pub fn new(policy: &Arc<Policy>) -> Result<Core, Error> {
        policy.admit_core()?;
        let mut raw = MaybeUninit::uninit();
        // SAFETY: mw_core_init() writes every field and keeps no pointer.
        let raw = unsafe {
            ffi::mw_core_init(raw.as_mut_ptr());
            raw.assume_init()
        };
        Ok(Core {
            policy: Arc::clone(policy),
            shared: Arc::new(Shared(UnsafeCell::new(raw))),
            not_sync: PhantomData,
        })
    }

    /// What other threads may set.
    #[must_use]
    pub fn settings(&self) -> CoreSettings {
        CoreSettings {
            shared: Arc::clone(&self.shared),
        }
    }

    /// The policy that this core belongs to.
    #[must_use]
    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Take part from now on, in the middle of a period, with a whole budget.
    /// Does nothing on a core that is online.
    pub fn online(&mut self) {
        // SAFETY: both pointers are good, and `&mut self` of the one Core makes
        // this the only call for it.
        unsafe { ffi::mw_core_online(self.policy.raw(), self.raw()) }
    }

    /// Leave: masks, count and pool, and stop being throttled.
    ///
    /// Asks for [`Action::ReleaseAll`] or [`Action::NewPeriod`] if the others
    /// were waiting for this core alone, else [`Action::Continue`].
    pub fn offline(&mut self) -> Action {
        // SAFETY: as in online().
        Action::from_c(unsafe { ffi::mw_core_offline(self.policy.raw(), self.raw()) })
    }

    /// The core has left idle. Cheap when it already counts as active.
    pub fn active(&mut self) {
        // SAFETY: as in online().
        unsafe { ffi::mw_core_active(self.policy.raw(), self.raw()) }
    }

    /// The core idles, and its host will begin no period for it: no period presumes it active until
    /// [`Core::active`] or [`Core::period_begin`].
    ///
    /// Asks for [`Action::ReleaseAll`] or [`Action::NewPeriod`] if the others
    /// were waiting for this core alone, else [`Action::Continue`].
    pub fn away(&mut self) -> Action {
        // SAFETY: as in online().
        Action::from_c(unsafe { ffi::mw_core_away(self.policy.raw(), self.raw()) })
    }

    /// The host will begin no period for the core for a while, which takes no more than a 32nd of its budget in each.
    /// With reclaim on, the rest is donated in every period until [`Core::period_begin`].
    pub fn rest(&mut self) {
        // SAFETY: as in online().
        unsafe { ffi::mw_core_rest(self.policy.raw(), self.raw()) }
    }

    /// End the core's period and begin the next; not throttled afterwards.
    ///
    /// `idle`: the core runs nothing but idle at this moment. `used`: events
    /// counted in the ended period, by resource.
    ///
    /// `number`: of the period that the host's clock is in; only the low 21 bits
    /// count. The first core to come with it opens the period, the others join.
    ///
    /// [`Action::Run`] normally; [`Action::Continue`] if the core is in that
    /// period already; [`Action::ReleaseAll`] or [`Action::NewPeriod`] if this core is
    /// idle and the others were waiting for it alone (it has begun all the same).
    pub fn period_begin(
        &mut self,
        number: u64,
        idle: bool,
        used: [u64; ffi::MW_RESOURCES],
    ) -> Action {
        // SAFETY: as in online(); `used` has as many entries as C reads.
        Action::from_c(unsafe {
            ffi::mw_period_begin(self.policy.raw(), self.raw(), number, idle, used.as_ptr())
        })
    }

    /// The core has used what was handed out to it; `used` events in this
    /// period so far.
    pub fn overflow(&mut self, resource: Resource, used: u64) -> Action {
        // SAFETY: as in online().
        Action::from_c(unsafe {
            ffi::mw_overflow(self.policy.raw(), self.raw(), resource as u32, used)
        })
    }

    /// What a stop takes in events, from its overflow to the period's end: known before there was one.
    pub fn expect_stop(&mut self, resource: Resource, events: u64) {
        // SAFETY: as in online().
        unsafe { ffi::mw_expect_stop(self.raw(), resource as u32, events) }
    }

    /// As [`Core::settle_stop`], of a period from which nothing is to be learnt of stops. Returns what of `used` is not
    /// owed.
    pub fn owe(&mut self, resource: Resource, used: u64, held: u64, allowed: u64) -> u64 {
        // SAFETY: as in online().
        unsafe { ffi::mw_owe(self.raw(), resource as u32, used, held, allowed) }
    }

    /// A period with a stop by `resource` ended with `used` events, of which `held` were counted when the core was held
    /// (all of them if it never was) and which had [`Account::allowed`]. What was too much, or too little, is made up for
    /// by later periods.
    pub fn settle_stop(&mut self, resource: Resource, used: u64, held: u64, allowed: u64) {
        // SAFETY: as in online().
        unsafe { ffi::mw_settle_stop(self.raw(), resource as u32, used, held, allowed) }
    }

    /// Let a throttled core go, if there is a reason to. A call that comes late
    /// changes nothing.
    ///
    /// [`Action::Run`] if the core was throttled and now runs, else
    /// [`Action::Continue`].
    pub fn release(&mut self) -> Action {
        // SAFETY: as in online().
        Action::from_c(unsafe { ffi::mw_release(self.policy.raw(), self.raw()) })
    }

    /// Events that the core may use before the next overflow: at least 1;
    /// [`UNLIMITED`](crate::UNLIMITED) when it runs unregulated.
    #[must_use]
    pub fn until_overflow(&self, resource: Resource) -> u64 {
        // SAFETY: the pointer is good, and no other thread writes what is read.
        unsafe { ffi::mw_until_overflow(self.raw(), resource as u32) }
    }

    /// The books of one resource.
    #[must_use]
    pub fn account(&self, resource: Resource) -> Account {
        // SAFETY: every field that is read is written by the owner of this Core
        // alone; `next_budget`, which others write, isn't read.
        unsafe {
            let account = &raw const (*self.raw()).account[resource as usize];
            Account {
                budget: (*account).budget,
                assigned: (*account).assigned,
                used: (*account).used,
                donated: (*account).donated,
                prediction: (*account).prediction.div_ceil(16),
                shortfall: (*account).shortfall,
                stop: ((*account).stop >> ffi::MW_STOP_SHIFT).min((*account).assigned / 2),
                owed: (*account).owed,
                repaid: (*account).repaid,
                offered: (*account).offered,
                total_used: (*account).total_used,
                total_assigned: (*account).total_assigned,
                total_donated: (*account).total_donated,
                total_reclaimed: (*account).total_reclaimed,
                reclaim_errors: (*account).reclaim_errors,
            }
        }
    }

    /// Number of the period that this core is in.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        // SAFETY: written by the owner of this Core alone.
        unsafe { (*self.raw()).epoch }
    }

    /// Takes part.
    #[must_use]
    pub fn is_online(&self) -> bool {
        // SAFETY: written by the owner of this Core alone.
        unsafe { (*self.raw()).online }
    }

    /// Counts as active in its period.
    #[must_use]
    pub fn is_active(&self) -> bool {
        // SAFETY: written by the owner of this Core alone.
        unsafe { (*self.raw()).active }
    }

    /// Idle, and not in the census.
    #[must_use]
    pub fn is_away(&self) -> bool {
        // SAFETY: written by the owner of this Core alone.
        unsafe { (*self.raw()).away }
    }

    /// Begins no period for a while.
    #[must_use]
    pub fn is_resting(&self) -> bool {
        // SAFETY: written by the owner of this Core alone.
        unsafe { (*self.raw()).resting }
    }

    /// Has used its budget in its period.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        // SAFETY: written by the owner of this Core alone.
        unsafe { (*self.raw()).exhausted }
    }

    /// Has to be blocked by the host.
    #[must_use]
    pub fn is_throttled(&self) -> bool {
        // SAFETY: written by the owner of this Core alone.
        unsafe { (*self.raw()).throttled }
    }

    /// Runs unregulated until the period's end.
    #[must_use]
    pub fn is_best_effort(&self) -> bool {
        // SAFETY: written by the owner of this Core alone.
        unsafe { (*self.raw()).best_effort }
    }

    fn raw(&self) -> *mut ffi::mw_core {
        self.shared.0.get()
    }
}

/// A core that is dropped goes offline, so that nobody waits for it. Call
/// [`Core::offline`] to learn what the others have to be told; those that wait
/// for this core alone else wait for their period's end.
impl Drop for Core {
    fn drop(&mut self) {
        let _ = self.offline();
        self.policy.dismiss_core();
    }
}

impl CoreSettings {
    /// Reserve events per period, from the core's next period on.
    ///
    /// # Errors
    /// [`Error::Budget`] unless it is from 1 to
    /// [`UNLIMITED`](crate::UNLIMITED).
    pub fn set_budget(&self, resource: Resource, events: u64) -> Result<(), Error> {
        // SAFETY: the pointer is good, and the word is an atomic.
        match unsafe { ffi::mw_set_budget(self.shared.0.get(), resource as u32, events) } {
            0 => Ok(()),
            _ => Err(Error::Budget(events)),
        }
    }

    /// The budget last set, in events per period.
    #[must_use]
    pub fn budget(&self, resource: Resource) -> u64 {
        // SAFETY: only a field's address is taken.
        let word =
            unsafe { &raw mut (*self.shared.0.get()).account[resource as usize].next_budget };
        load(word)
    }

    /// Exempt the core from throttling; it is counted all the same. If it is
    /// throttled at this moment, have it call [`Core::release`].
    pub fn set_rt(&self, rt: bool) {
        // SAFETY: the pointer is good, and the word is an atomic.
        unsafe { ffi::mw_set_rt(self.shared.0.get(), rt) }
    }

    /// Whether the core is exempt from throttling.
    #[must_use]
    pub fn rt(&self) -> bool {
        // SAFETY: only a field's address is taken.
        let word = unsafe { &raw mut (*self.shared.0.get()).rt };
        load(word) != 0
    }
}
