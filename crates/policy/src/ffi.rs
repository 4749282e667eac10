// SPDX-License-Identifier: MIT OR Apache-2.0
//! `policy/policy.h`, translated by hand. `tests/layout.rs` compares it with the C compiler's layout; the header
//! documents everything.

#![allow(unsafe_code)]
#![allow(missing_docs)]

pub const MW_RESOURCES: usize = 2;
pub const MW_UNLIMITED: u64 = (1 << 40) - 1;
pub const MW_MAX_CORES: u32 = (1 << 14) - 1;
pub const MW_STOP_SHIFT: u32 = 8;

pub const MW_NONE: u64 = 0;
pub const MW_SPARE: u64 = 2;
pub const MW_PROPORTIONAL: u64 = 5;

pub const MW_CONTINUE: u32 = 0;
pub const MW_RUN: u32 = 1;
pub const MW_THROTTLE: u32 = 2;
pub const MW_RELEASE_ALL: u32 = 3;
pub const MW_NEW_PERIOD: u32 = 4;

#[repr(C)]
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct mw_atomic64 {
    pub value: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct mw_account {
    pub next_budget: mw_atomic64,
    pub budget: u64,
    pub assigned: u64,
    pub used: u64,
    pub donated: u64,
    pub prediction: u64,
    pub shortfall: u64,
    pub stop: u64,
    pub owed: u64,
    pub repaid: u64,
    pub offered: u64,
    pub total_used: u64,
    pub total_assigned: u64,
    pub total_donated: u64,
    pub total_reclaimed: u64,
    pub reclaim_errors: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct mw_core {
    pub rt: mw_atomic64,
    pub epoch: u64,
    pub online: bool,
    pub active: bool,
    pub exhausted: bool,
    pub throttled: bool,
    pub best_effort: bool,
    pub reclaim: bool,
    pub away: bool,
    pub resting: bool,
    pub offers_end: u64,
    pub account: [mw_account; MW_RESOURCES],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct mw_policy {
    pub census: mw_atomic64,
    pub pool: [mw_atomic64; MW_RESOURCES],
    pub offered: [mw_atomic64; MW_RESOURCES],
    pub best_effort: mw_atomic64,
    pub reclaim: mw_atomic64,
    pub qmin: mw_atomic64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct mw_census {
    pub epoch: u64,
    pub released: bool,
    pub online: u32,
    pub active: u32,
    pub exhausted: u32,
}

unsafe extern "C" {
    pub fn mw_policy_init(policy: *mut mw_policy);
    pub fn mw_core_init(core: *mut mw_core);

    pub fn mw_set_budget(core: *mut mw_core, resource: u32, events: u64) -> i32;
    pub fn mw_set_best_effort(policy: *mut mw_policy, mode: u64) -> i32;
    pub fn mw_set_reclaim(policy: *mut mw_policy, on: u64) -> i32;
    pub fn mw_set_qmin(policy: *mut mw_policy, events: u64) -> i32;
    pub fn mw_set_rt(core: *mut mw_core, rt: bool);

    pub fn mw_core_online(policy: *mut mw_policy, core: *mut mw_core);
    pub fn mw_core_offline(policy: *mut mw_policy, core: *mut mw_core) -> u32;
    pub fn mw_core_active(policy: *mut mw_policy, core: *mut mw_core);
    pub fn mw_core_away(policy: *mut mw_policy, core: *mut mw_core) -> u32;
    pub fn mw_core_rest(policy: *mut mw_policy, core: *mut mw_core);

    pub fn mw_period_begin(
        policy: *mut mw_policy,
        core: *mut mw_core,
        number: u64,
        idle: bool,
        used: *const u64,
    ) -> u32;
    pub fn mw_period_join(
        policy: *mut mw_policy,
        core: *mut mw_core,
        number: u64,
        idle: bool,
        used: *const u64,
    ) -> u32;
    pub fn mw_period_open(policy: *mut mw_policy, core: *mut mw_core);
    pub fn mw_overflow(policy: *mut mw_policy, core: *mut mw_core, resource: u32, used: u64)
    -> u32;
    pub fn mw_release(policy: *mut mw_policy, core: *mut mw_core) -> u32;

    pub fn mw_expect_stop(core: *mut mw_core, resource: u32, events: u64);
    pub fn mw_owe(core: *mut mw_core, resource: u32, used: u64, held: u64, allowed: u64) -> u64;
    pub fn mw_settle_stop(core: *mut mw_core, resource: u32, used: u64, held: u64, allowed: u64);
    pub fn mw_until_overflow(core: *const mw_core, resource: u32) -> u64;
    pub fn mw_census_read(policy: *const mw_policy) -> mw_census;
    pub fn mw_pool_read(policy: *const mw_policy, resource: u32) -> u64;
}

pub const MW_SPLIT: usize = 2;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub struct mw_split {
    pub recent: [u64; MW_SPLIT],
}

unsafe extern "C" {
    pub fn mw_split_left(split: *mut mw_split, counted: *const u64, left: u64, share: *mut u64);
}

#[repr(C)]
pub struct mw_event {
    pub name: *const std::ffi::c_char,
    pub source: *const std::ffi::c_char,
    pub read: u64,
    pub write: u64,
    pub kind: u32,
    pub bytes: u32,
    pub includes: u32,
    pub sure: u32,
    pub combined: u64,
    pub read_too: u64,
    pub read_config1: u64,
}

#[repr(C)]
pub struct mw_processor {
    pub event: *const std::ffi::c_char,
    pub vendor: u32,
    pub family: u32,
    pub first: u32,
    pub last: u32,
}

unsafe extern "C" {
    pub fn mw_events(count: *mut u32) -> *const mw_event;
    pub fn mw_processors(count: *mut u32) -> *const mw_processor;
    pub fn mw_event_named(name: *const std::ffi::c_char) -> *const mw_event;
    pub fn mw_small_cores(large: *const std::ffi::c_char) -> *const std::ffi::c_char;
    pub fn mw_event_of(vendor: u32, family: u32, model: u32, core: u32) -> *const mw_event;
}
