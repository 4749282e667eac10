// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults of the classic module, with one test for each fault in its decisions. Faults in counters, threads and files
//! are tested with those parts.

mod simulation;

use memwarden_policy::{Action, BestEffort, Core, Error, MAX_CORES, Policy, Resource, UNLIMITED};
use simulation::{ENDLESS, IDLE, Load, Simulation};

const BUSY: Load = Load {
    rate: 10,
    need: ENDLESS,
};

fn core(policy: &std::sync::Arc<Policy>, budget: u64) -> Core {
    let mut core = Core::new(policy).unwrap();
    let settings = core.settings();
    settings.set_budget(Resource::Read, budget).unwrap();
    core.online();
    core
}

#[test]
fn fault_1_an_idle_core_leaves_the_active_mask() {
    let cores = [(600, BUSY), (200, BUSY), (500, BUSY)];
    let mut host = Simulation::new(BestEffort::Spare, false, &cores);
    host.run(1);
    host.cores[2].load = IDLE;
    host.run(1);
    assert_eq!(host.policy.census().active, 2);
    let before = host.releases;
    host.run(10);
    assert_eq!(host.releases - before, 10, "sharing starts in every period");
}

#[test]
fn fault_1_a_core_that_wakes_counts_again_at_once() {
    let policy = Policy::new();
    policy.set_best_effort(BestEffort::Spare);
    let mut busy = core(&policy, 100);
    let mut woken = core(&policy, 100);
    assert_eq!(
        busy.period_begin(busy.epoch() + 1, false, [0; 2]),
        Action::Run
    );
    assert_eq!(
        woken.period_begin(woken.epoch() + 1, true, [0; 2]),
        Action::Run
    );
    assert_eq!(policy.census().active, 1);
    woken.active();
    assert_eq!(policy.census().active, 2);
    assert_eq!(busy.overflow(Resource::Read, 100), Action::Throttle);
}

#[test]
fn fault_2_a_donor_can_not_use_what_it_gave_away() {
    let policy = Policy::new();
    policy.set_reclaim(true);
    let mut donor = core(&policy, 600);
    let mut taker = core(&policy, 200);
    let period = |donor: &mut Core, taker: &mut Core| {
        let begun = donor.period_begin(donor.epoch() + 1, false, [100, 0]);
        assert_eq!(begun, Action::Run);
        let begun = taker.period_begin(taker.epoch() + 1, false, [200, 0]);
        assert_eq!(begun, Action::Run);
    };
    for _ in 0..20 {
        period(&mut donor, &mut taker);
    }
    // The donor's overflow comes when it has used what it kept, not one budget later.
    assert_eq!(donor.until_overflow(Resource::Read), 104);
    let mut used = 200;
    while taker.overflow(Resource::Read, used) == Action::Run {
        used += taker.until_overflow(Resource::Read);
    }
    assert_eq!(used, 696, "the taker has everything that was given");
    assert_eq!(donor.overflow(Resource::Read, 103), Action::Run);
    assert_eq!(donor.until_overflow(Resource::Read), 1);
    assert_eq!(donor.overflow(Resource::Read, 104), Action::Throttle);
}

/// One answer lets the host stop, set and start the counter.
#[test]
fn fault_3_the_next_overflow_point_comes_with_the_decision() {
    let policy = Policy::new();
    let mut core = core(&policy, 1000);
    assert_eq!(core.until_overflow(Resource::Read), 1000);
    // One event early, as counters may be: the remainder follows at once.
    assert_eq!(core.overflow(Resource::Read, 999), Action::Run);
    assert_eq!(core.until_overflow(Resource::Read), 1);
    core.settings().set_budget(Resource::Read, 500).unwrap();
    let begun = core.period_begin(core.epoch() + 1, false, [999, 0]);
    assert_eq!(begun, Action::Run);
    assert_eq!(core.until_overflow(Resource::Read), 500);
}

#[test]
fn fault_4_a_real_time_core_is_never_throttled() {
    for mode in BestEffort::ALL {
        for reclaim in [false, true] {
            let policy = Policy::new();
            policy.set_best_effort(mode);
            policy.set_reclaim(reclaim);
            let mut rt = core(&policy, 100);
            let mut other = core(&policy, 100);
            rt.settings().set_rt(true);
            for resource in Resource::ALL {
                let action = rt.overflow(resource, 5000);
                assert_ne!(action, Action::Throttle, "{mode} {reclaim}");
                assert!(!rt.is_throttled());
            }
            assert_eq!(rt.account(Resource::Read).used, 5000, "counted");
            assert_eq!(policy.census().exhausted, 1, "and exhausted for the others");
            let _ = other.offline();
        }
    }
}

#[test]
fn fault_4_a_throttled_core_made_real_time_is_let_go() {
    let policy = Policy::new();
    let mut core = core(&policy, 100);
    assert_eq!(core.overflow(Resource::Read, 100), Action::Throttle);
    core.settings().set_rt(true);
    assert_eq!(core.release(), Action::Run);
    assert_eq!(core.until_overflow(Resource::Read), UNLIMITED);
}

/// All counted events are charged, including those without an overflow.
#[test]
fn fault_5_every_event_that_the_host_counts_is_charged() {
    let policy = Policy::new();
    let mut core = core(&policy, 1000);
    assert_eq!(core.overflow(Resource::Read, 1500), Action::Throttle);
    let begun = core.period_begin(core.epoch() + 1, false, [1700, 30]);
    assert_eq!(begun, Action::Run);
    assert_eq!(core.account(Resource::Read).total_used, 1700);
    assert_eq!(core.account(Resource::Write).total_used, 30);
}

/// Reclaim accesses only the taker and the pool. tests/explore covers two cores in the pool at once.
#[test]
fn fault_6_reclaim_touches_no_other_core() {
    let policy = Policy::new();
    policy.set_reclaim(true);
    let mut donor = core(&policy, 600);
    let mut taker = core(&policy, 200);
    for _ in 0..20 {
        let begun = donor.period_begin(donor.epoch() + 1, false, [0, 0]);
        assert_eq!(begun, Action::Run);
        let begun = taker.period_begin(taker.epoch() + 1, false, [200, 0]);
        assert_eq!(begun, Action::Run);
    }
    let before = format!("{:?}", Resource::ALL.map(|r| donor.account(r)));
    assert_eq!(taker.overflow(Resource::Read, 200), Action::Run);
    let after = format!("{:?}", Resource::ALL.map(|r| donor.account(r)));
    assert_eq!(before, after);
    // The donor may even be gone.
    drop(donor);
    let _ = taker.overflow(Resource::Read, 10_000);
}

#[test]
fn fault_6_takers_on_real_threads_never_get_an_event_twice() {
    const CORES: u64 = 4;
    let policy = Policy::new();
    policy.set_reclaim(true);
    let barrier = std::sync::Barrier::new(CORES as usize);
    for _ in 0..200 {
        let granted: u64 = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..CORES)
                .map(|i| {
                    let mut core = core(&policy, 1000);
                    let barrier = &barrier;
                    scope.spawn(move || {
                        // Half of the cores donate nearly everything; the other half want everything.
                        let need = if i % 2 == 0 { 0 } else { 1000 };
                        for _ in 0..12 {
                            let _ = core.period_begin(core.epoch() + 1, false, [need, 0]);
                        }
                        barrier.wait();
                        let _ = core.period_begin(core.epoch() + 1, false, [need, 0]);
                        barrier.wait();
                        let mut used = core.account(Resource::Read).assigned;
                        while core.overflow(Resource::Read, used) == Action::Run {
                            used = core.account(Resource::Read).assigned;
                        }
                        let epoch = core.epoch();
                        barrier.wait();
                        (core, epoch, used)
                    })
                })
                .collect();
            let ended: Vec<_> = workers.into_iter().map(|w| w.join().unwrap()).collect();
            let last = ended.iter().map(|(_, epoch, _)| *epoch).max().unwrap();
            let of_last = ended.iter().filter(|(_, epoch, _)| *epoch == last);
            of_last
                .map(|(_, _, used)| *used)
                .sum::<u64>()
                .saturating_sub(1000 * ended.iter().filter(|e| e.1 == last).count() as u64)
        });
        assert_eq!(granted, 0, "more than the sum of the budgets");
    }
}

#[test]
fn a_core_that_others_have_left_behind_does_not_rest() {
    let policy = Policy::new();
    policy.set_reclaim(true);
    let mut late = core(&policy, 640);
    let mut other = core(&policy, 200);
    let begun = other.period_begin(other.epoch() + 1, false, [200, 0]);
    assert_eq!(begun, Action::Run);
    late.rest();
    assert!(!late.is_resting());
    assert_eq!(late.account(Resource::Read).offered, 0);
    let begun = late.period_begin(late.epoch() + 1, false, [640, 0]);
    assert_eq!(begun, Action::Run);
    // This period's pool has none of the late core's events.
    assert_eq!(policy.pool(Resource::Read), 0);
    assert_eq!(late.until_overflow(Resource::Read), 640);
    late.rest();
    assert_eq!(late.account(Resource::Read).offered, 620);
}

#[test]
fn a_resting_core_takes_its_offer_back_with_reclaim_off() {
    let policy = Policy::new();
    policy.set_reclaim(true);
    let mut rests = core(&policy, 640);
    let mut other = core(&policy, 200);
    rests.rest();
    let begun = other.period_begin(other.epoch() + 1, false, [200, 0]);
    assert_eq!(begun, Action::Run);
    policy.set_reclaim(false);
    let begun = rests.period_begin(rests.epoch() + 1, false, [0, 0]);
    assert_eq!(begun, Action::Run);
    assert_eq!(rests.until_overflow(Resource::Read), 20);
    assert_eq!(rests.overflow(Resource::Read, 20), Action::Run);
    assert_eq!(rests.until_overflow(Resource::Read), 620);
    assert_eq!(rests.overflow(Resource::Read, 640), Action::Throttle);
}

#[test]
fn fault_8_no_setting_overflows_or_divides_by_zero() {
    let policy = Policy::new();
    policy.set_reclaim(true);
    let mut core = core(&policy, UNLIMITED - 1);
    assert_eq!(
        core.settings().set_budget(Resource::Read, 0),
        Err(Error::Budget(0))
    );
    policy.set_qmin(UNLIMITED).unwrap();
    for used in [u64::MAX, 0, u64::MAX, UNLIMITED, UNLIMITED - 1] {
        let _ = core.overflow(Resource::Read, used);
        let begun = core.period_begin(core.epoch() + 1, false, [used, used]);
        assert_eq!(begun, Action::Run);
        let account = core.account(Resource::Read);
        assert!(account.prediction <= 3 * UNLIMITED, "{account:?}");
        assert!(account.assigned <= UNLIMITED, "{account:?}");
        assert!(core.until_overflow(Resource::Read) >= 1);
    }
}

#[test]
fn fault_8_one_core_too_many_is_refused() {
    let policy = Policy::new();
    let mut cores: Vec<Core> = (0..MAX_CORES).map(|_| core(&policy, 10)).collect();
    assert!(matches!(Core::new(&policy), Err(Error::TooManyCores)));
    assert_eq!(policy.census().online, MAX_CORES);
    assert_eq!(policy.census().active, MAX_CORES);
    cores.pop();
    assert!(Core::new(&policy).is_ok());
}

#[test]
fn fault_8_a_core_that_goes_offline_leaves_and_returns_its_donation() {
    let policy = Policy::new();
    policy.set_reclaim(true);
    policy.set_best_effort(BestEffort::Spare);
    let mut donor = core(&policy, 600);
    let mut stays = core(&policy, 200);
    for _ in 0..20 {
        let begun = donor.period_begin(donor.epoch() + 1, false, [100, 0]);
        assert_eq!(begun, Action::Run);
        let begun = stays.period_begin(stays.epoch() + 1, false, [200, 0]);
        assert_eq!(begun, Action::Run);
    }
    assert_eq!(policy.pool(Resource::Read), 496);
    assert_eq!(donor.offline(), Action::Continue);
    assert_eq!(policy.pool(Resource::Read), 0);
    // The core is alone now: the end of its budget completes the condition.
    assert_eq!(stays.overflow(Resource::Read, 200), Action::ReleaseAll);
    donor.online();
    assert_eq!(donor.until_overflow(Resource::Read), 600);
}

/// Every figure that the policy collects is readable, so that a host can show it.
#[test]
fn fault_9_every_figure_that_is_collected_can_be_read() {
    let quiet = Load { rate: 1, need: 100 };
    let mut host = Simulation::new(BestEffort::None, true, &[(600, quiet), (200, BUSY)]);
    host.run(20);
    host.cores[0].load = Load {
        rate: 1,
        need: ENDLESS,
    };
    host.run(2);
    let donor = host.cores[0].core.account(Resource::Read);
    let taker = host.cores[1].core.account(Resource::Read);
    assert_eq!(donor.reclaim_errors, 1);
    assert!(donor.total_donated > 0 && taker.total_reclaimed > 0);
    assert!(taker.total_assigned >= taker.total_used);
    assert_eq!(donor.budget, 600);
    assert_eq!(donor.used, donor.assigned);
}
