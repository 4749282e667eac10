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

/// The C structure at a fixed address, shared by a [`Core`] and its [`CoreSettings`].
#[derive(Debug)]
struct Shared(UnsafeCell<ffi::mw_core>);

// SAFETY: CoreSettings accesses only `rt` and `next_budget`, which are atomics in both languages. Only the one Core
// accesses everything else, and Core isn't Sync. No reference to the structure is ever created.
unsafe impl Sync for Shared {}
// SAFETY: the structure holds no pointer and nothing that is bound to a thread.
unsafe impl Send for Shared {}

/// One core's state; one thread at a time uses it.
#[derive(Debug)]
pub struct Core {
    policy: Arc<Policy>,
    shared: Arc<Shared>,
    not_sync: PhantomData<Cell<()>>,
}

/// Settings of a core that any thread may change at any time.
#[derive(Clone, Debug)]
pub struct CoreSettings {
    shared: Arc<Shared>,
}

/// One resource's books. All counts are events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// This period's reservation.
    pub budget: u64,
    /// Assigned to this core in this period so far.
    pub assigned: u64,
    /// Counted in this period, as last reported by the host.
    pub used: u64,
    /// Own events that went to the pool and were not taken back.
    pub donated: u64,
    /// Expected need of a period, rounded up.
    pub prediction: u64,
    /// Reservation left unused by a premature throttle in this period.
    pub shortfall: u64,
    /// Events that a stop is expected to use, from an overflow to the end of its period. The overflow is charged with
    /// them.
    pub stop: u64,
    /// Used past the budgets of earlier periods, and not yet repaid.
    pub owed: u64,
    /// The part of `assigned` that repays `owed` and is not available to tasks.
    pub repaid: u64,
    /// Given to the pool of each period that begins without the core while it rests.
    pub offered: u64,
    /// Used in all ended periods.
    pub total_used: u64,
    /// Assigned in all ended periods that had a limit.
    pub total_assigned: u64,
    /// Given to the pool.
    pub total_donated: u64,
    /// Taken from the pool, own donations included.
    pub total_reclaimed: u64,
    /// Throttles that came before the own reservation was used.
    pub reclaim_errors: u64,
}

impl Account {
    /// Events of this period for the core's tasks and its stop: the assigned events without those that repay `owed`.
    #[must_use]
    pub fn allowed(&self) -> u64 {
        self.assigned - self.repaid
    }
}

impl Core {
    /// Creates an offline core without limits.
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

    /// The settings that other threads may change.
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

    /// Takes part from now on, in the middle of a period, with a whole budget. Does nothing if the core is online.
    pub fn online(&mut self) {
        // SAFETY: both pointers are valid, and `&mut self` of the one Core makes this the only call for it.
        unsafe { ffi::mw_core_online(self.policy.raw(), self.raw()) }
    }

    /// Leaves the census and the pool, and ends a throttle.
    ///
    /// Returns [`Action::ReleaseAll`] or [`Action::NewPeriod`] if the other cores were waiting for this core alone,
    /// else [`Action::Continue`].
    pub fn offline(&mut self) -> Action {
        // SAFETY: as in online().
        Action::from_c(unsafe { ffi::mw_core_offline(self.policy.raw(), self.raw()) })
    }

    /// The core has left idle. Cheap if the core already counts as active.
    pub fn active(&mut self) {
        // SAFETY: as in online().
        unsafe { ffi::mw_core_active(self.policy.raw(), self.raw()) }
    }

    /// The core is idle, and its host will begin no period for it. No period presumes it active until [`Core::active`]
    /// or [`Core::period_begin`].
    ///
    /// Returns [`Action::ReleaseAll`] or [`Action::NewPeriod`] if the other cores were waiting for this core alone,
    /// else [`Action::Continue`].
    pub fn away(&mut self) -> Action {
        // SAFETY: as in online().
        Action::from_c(unsafe { ffi::mw_core_away(self.policy.raw(), self.raw()) })
    }

    /// The host will begin no period for the core for a while. The core must use no more than 1/32 of its budget in
    /// each. With reclaim on, the rest is donated in every period until [`Core::period_begin`].
    pub fn rest(&mut self) {
        // SAFETY: as in online().
        unsafe { ffi::mw_core_rest(self.policy.raw(), self.raw()) }
    }

    /// Ends the core's period and begins the next; the core is not throttled afterwards.
    ///
    /// `idle`: the core is idle now. `used`: events counted in the ended period, by resource.
    ///
    /// `number`: number of the period that the host's clock is in; only the low 21 bits count. The first core to reach
    /// it opens the period; the other cores join.
    ///
    /// Returns [`Action::Run`] normally, and [`Action::Continue`] if the core is already in that period. Returns
    /// [`Action::ReleaseAll`] or [`Action::NewPeriod`] if this core is idle and the other cores were waiting for it
    /// alone; this core has then begun the period, too.
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

    /// Like [`Core::period_begin`], but leaves the new period's books to [`Core::period_open`], so that the budgets may
    /// depend on the period that the core joins ([`Core::epoch`]): `number` is only the earliest one. Unless this
    /// returns [`Action::Continue`], the host sets the budgets and calls [`Core::period_open`] next.
    pub fn period_join(
        &mut self,
        number: u64,
        idle: bool,
        used: [u64; ffi::MW_RESOURCES],
    ) -> Action {
        // SAFETY: as in period_begin().
        Action::from_c(unsafe {
            ffi::mw_period_join(self.policy.raw(), self.raw(), number, idle, used.as_ptr())
        })
    }

    /// Opens the books of the period that the core has joined by [`Core::period_join`] or [`Core::online`].
    pub fn period_open(&mut self) {
        // SAFETY: as in online().
        unsafe { ffi::mw_period_open(self.policy.raw(), self.raw()) }
    }

    /// The core has used the events that it was armed for; `used`: events in this period so far.
    pub fn overflow(&mut self, resource: Resource, used: u64) -> Action {
        // SAFETY: as in online().
        Action::from_c(unsafe {
            ffi::mw_overflow(self.policy.raw(), self.raw(), resource as u32, used)
        })
    }

    /// Sets the events that a stop uses, from its overflow to the period's end, before the first stop.
    pub fn expect_stop(&mut self, resource: Resource, events: u64) {
        // SAFETY: as in online().
        unsafe { ffi::mw_expect_stop(self.raw(), resource as u32, events) }
    }

    /// Like [`Core::settle_stop`], for a period that teaches nothing about stops. Returns the part of `used` that is
    /// not owed.
    pub fn owe(&mut self, resource: Resource, used: u64, held: u64, allowed: u64) -> u64 {
        // SAFETY: as in online().
        unsafe { ffi::mw_owe(self.raw(), resource as u32, used, held, allowed) }
    }

    /// Settles a period that ended with a stop by `resource`. `used`: its events. `held`: the part of them counted when
    /// the core was held, or `used` if it never was. `allowed`: [`Account::allowed`] at its end. Later periods
    /// compensate for what the period used too much or too little.
    ///
    /// Call it before [`Core::period_begin`], or between [`Core::period_join`] and [`Core::period_open`]: the budget of
    /// the ended period limits what a stop may use.
    pub fn settle_stop(&mut self, resource: Resource, used: u64, held: u64, allowed: u64) {
        // SAFETY: as in online().
        unsafe { ffi::mw_settle_stop(self.raw(), resource as u32, used, held, allowed) }
    }

    /// Releases a throttled core, if there is a reason to. A late call changes nothing.
    ///
    /// Returns [`Action::Run`] if the core was throttled and now runs, else [`Action::Continue`].
    pub fn release(&mut self) -> Action {
        // SAFETY: as in online().
        Action::from_c(unsafe { ffi::mw_release(self.policy.raw(), self.raw()) })
    }

    /// Events that the core may use before the next overflow: at least 1, or [`UNLIMITED`](crate::UNLIMITED) if the
    /// core runs unregulated.
    #[must_use]
    pub fn until_overflow(&self, resource: Resource) -> u64 {
        // SAFETY: the pointer is valid, and no other thread writes what is read.
        unsafe { ffi::mw_until_overflow(self.raw(), resource as u32) }
    }

    /// The books of one resource.
    #[must_use]
    pub fn account(&self, resource: Resource) -> Account {
        // SAFETY: only the owner of this Core writes the fields that are read; `next_budget`, which other threads
        // write, isn't read.
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

    /// Number of the period that the core is in.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        // SAFETY: written by the owner of this Core alone.
        unsafe { (*self.raw()).epoch }
    }

    /// True if the core takes part.
    #[must_use]
    pub fn is_online(&self) -> bool {
        // SAFETY: written by the owner of this Core alone.
        unsafe { (*self.raw()).online }
    }

    /// True if the core counts as active in its period.
    #[must_use]
    pub fn is_active(&self) -> bool {
        // SAFETY: written by the owner of this Core alone.
        unsafe { (*self.raw()).active }
    }

    /// True if the core is idle and not in the census.
    #[must_use]
    pub fn is_away(&self) -> bool {
        // SAFETY: written by the owner of this Core alone.
        unsafe { (*self.raw()).away }
    }

    /// True if the core rests: its host begins no periods for it.
    #[must_use]
    pub fn is_resting(&self) -> bool {
        // SAFETY: written by the owner of this Core alone.
        unsafe { (*self.raw()).resting }
    }

    /// True if the core has used its budget in its period.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        // SAFETY: written by the owner of this Core alone.
        unsafe { (*self.raw()).exhausted }
    }

    /// True if the host has to block the core.
    #[must_use]
    pub fn is_throttled(&self) -> bool {
        // SAFETY: written by the owner of this Core alone.
        unsafe { (*self.raw()).throttled }
    }

    /// True if the core runs unregulated until the period's end.
    #[must_use]
    pub fn is_best_effort(&self) -> bool {
        // SAFETY: written by the owner of this Core alone.
        unsafe { (*self.raw()).best_effort }
    }

    fn raw(&self) -> *mut ffi::mw_core {
        self.shared.0.get()
    }
}

/// A dropped core goes offline, so that no other core waits for it. Call [`Core::offline`] first to learn what the
/// other cores must do: otherwise cores that wait for this core alone wait until their period ends.
impl Drop for Core {
    fn drop(&mut self) {
        let _ = self.offline();
        self.policy.dismiss_core();
    }
}

impl CoreSettings {
    /// Reserves events per period, from the core's next period on.
    ///
    /// # Errors
    /// [`Error::Budget`] unless `events` is from 1 to [`UNLIMITED`](crate::UNLIMITED).
    pub fn set_budget(&self, resource: Resource, events: u64) -> Result<(), Error> {
        // SAFETY: the pointer is good, and the word is an atomic.
        match unsafe { ffi::mw_set_budget(self.shared.0.get(), resource as u32, events) } {
            0 => Ok(()),
            _ => Err(Error::Budget(events)),
        }
    }

    /// The budget that was last set, in events per period.
    #[must_use]
    pub fn budget(&self, resource: Resource) -> u64 {
        // SAFETY: only a field's address is taken.
        let word =
            unsafe { &raw mut (*self.shared.0.get()).account[resource as usize].next_budget };
        load(word)
    }

    /// Exempts the core from throttling; its events are still counted. If the core is throttled now, it must call
    /// [`Core::release`].
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
