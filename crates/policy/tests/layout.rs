// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the handwritten FFI with the C compiler's layout.

#![allow(unsafe_code)]

use std::mem::{offset_of, size_of};

use memwarden_policy::events::{core_type, vendor};
use memwarden_policy::ffi::*;

unsafe extern "C" {
    static mw_layout: [usize; 0];
    static mw_layout_len: usize;
}

#[test]
fn rust_and_c_agree_on_every_size_offset_and_constant() {
    // SAFETY: both are constants of tests/c/layout.c; the length is the array's.
    let c = unsafe { std::slice::from_raw_parts((&raw const mw_layout).cast(), mw_layout_len) };
    let rust: &[usize] = &[
        size_of::<mw_event>(),
        offset_of!(mw_event, name),
        offset_of!(mw_event, source),
        offset_of!(mw_event, read),
        offset_of!(mw_event, write),
        offset_of!(mw_event, kind),
        offset_of!(mw_event, bytes),
        offset_of!(mw_event, includes),
        offset_of!(mw_event, sure),
        offset_of!(mw_event, combined),
        offset_of!(mw_event, read_too),
        offset_of!(mw_event, read_config1),
        7,
        4,
        2,
        vendor::INTEL as usize,
        vendor::HYGON as usize,
        core_type::SMALL as usize,
        core_type::LARGE as usize,
        size_of::<mw_processor>(),
        offset_of!(mw_processor, event),
        offset_of!(mw_processor, vendor),
        offset_of!(mw_processor, family),
        offset_of!(mw_processor, first),
        offset_of!(mw_processor, last),
        size_of::<mw_atomic64>(),
        size_of::<mw_account>(),
        offset_of!(mw_account, next_budget),
        offset_of!(mw_account, budget),
        offset_of!(mw_account, assigned),
        offset_of!(mw_account, used),
        offset_of!(mw_account, donated),
        offset_of!(mw_account, prediction),
        offset_of!(mw_account, shortfall),
        offset_of!(mw_account, stop),
        offset_of!(mw_account, owed),
        offset_of!(mw_account, repaid),
        offset_of!(mw_account, offered),
        offset_of!(mw_account, total_used),
        offset_of!(mw_account, total_assigned),
        offset_of!(mw_account, total_donated),
        offset_of!(mw_account, total_reclaimed),
        offset_of!(mw_account, reclaim_errors),
        size_of::<mw_core>(),
        offset_of!(mw_core, rt),
        offset_of!(mw_core, epoch),
        offset_of!(mw_core, online),
        offset_of!(mw_core, active),
        offset_of!(mw_core, exhausted),
        offset_of!(mw_core, throttled),
        offset_of!(mw_core, best_effort),
        offset_of!(mw_core, reclaim),
        offset_of!(mw_core, away),
        offset_of!(mw_core, resting),
        offset_of!(mw_core, offers_end),
        offset_of!(mw_core, account),
        size_of::<mw_policy>(),
        offset_of!(mw_policy, census),
        offset_of!(mw_policy, pool),
        offset_of!(mw_policy, offered),
        offset_of!(mw_policy, best_effort),
        offset_of!(mw_policy, reclaim),
        offset_of!(mw_policy, qmin),
        size_of::<mw_census>(),
        offset_of!(mw_census, epoch),
        offset_of!(mw_census, released),
        offset_of!(mw_census, online),
        offset_of!(mw_census, active),
        offset_of!(mw_census, exhausted),
        size_of::<u32>(),
        size_of::<u32>(),
        size_of::<bool>(),
        0,
        1,
        MW_RESOURCES,
        MW_NONE as usize,
        MW_SPARE as usize,
        MW_PROPORTIONAL as usize,
        MW_CONTINUE as usize,
        MW_RUN as usize,
        MW_THROTTLE as usize,
        MW_RELEASE_ALL as usize,
        MW_NEW_PERIOD as usize,
        MW_UNLIMITED as usize,
        MW_MAX_CORES as usize,
        MW_STOP_SHIFT as usize,
        size_of::<mw_split>(),
        MW_SPLIT,
    ];
    assert_eq!(rust, c);
}
