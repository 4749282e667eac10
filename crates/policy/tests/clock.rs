// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host's clock: it may jump, and cores may read it late.

use memwarden_policy::{Action, BestEffort, Core, Policy, Resource};

/// After a pause of the machine or the regulator the clock is ahead by any number of periods, of which the epoch shows
/// only 21 bits.
#[test]
fn a_clock_that_leaps_stops_neither_periods_nor_reclaim() {
    for leap in [
        2,
        1 << 10,
        1 << 19,
        1 << 20,
        (1 << 20) + 1,
        1_500_000,
        2_090_000,
    ] {
        let policy = Policy::new();
        policy.set_reclaim(true);
        let mut cores: Vec<Core> = (0..2)
            .map(|_| {
                let mut core = Core::new(&policy).unwrap();
                core.settings().set_budget(Resource::Read, 100).unwrap();
                core.online();
                core
            })
            .collect();
        let mut number = 1;
        let mut period = |number: u64| {
            for (core, used) in cores.iter_mut().zip([9, 100]) {
                let begun = core.period_begin(number, false, [used, 0]);
                assert_eq!(begun, Action::Run, "leap of {leap} periods");
            }
            assert_eq!(policy.census().epoch, number & 0x1f_ffff);
            policy.pool(Resource::Read)
        };
        while number < 20 {
            period(number);
            number += 1;
        }
        number += leap;
        assert_eq!(period(number), 90, "leap of {leap} periods");
        assert_eq!(period(number + 1), 90);
    }
}

/// Best effort may have opened a period that the clock has not reached: a core with the older number joins it.
#[test]
fn a_number_that_is_a_little_behind_joins_the_later_period() {
    let policy = Policy::new();
    policy.set_best_effort(BestEffort::Proportional);
    let mut cores: Vec<Core> = (0..2)
        .map(|_| {
            let mut core = Core::new(&policy).unwrap();
            core.settings().set_budget(Resource::Read, 100).unwrap();
            core.online();
            core
        })
        .collect();
    for round in 1..200 {
        assert_eq!(cores[0].overflow(Resource::Read, 100), Action::Throttle);
        assert_eq!(cores[1].overflow(Resource::Read, 100), Action::NewPeriod);
        for core in &mut cores {
            // The clock is still at 0.
            let begun = core.period_begin(0, false, [100, 0]);
            assert_eq!(begun, Action::Run);
            assert_eq!(core.epoch(), round);
            let begun = core.period_begin(0, false, [100, 0]);
            assert_eq!(begun, Action::Continue);
        }
    }
}
