// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings, cores that come and go, and late calls.

use std::sync::Arc;

use memwarden_policy::{
    Action, BestEffort, Core, CoreSettings, Error, Policy, Resource, UNLIMITED,
};

fn online(policy: &Arc<Policy>, budget: u64) -> Core {
    let mut core = Core::new(policy).unwrap();
    core.settings().set_budget(Resource::Read, budget).unwrap();
    core.online();
    core
}

#[test]
fn handles_cross_threads_as_their_types_say() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    send::<Core>();
    send::<CoreSettings>();
    sync::<CoreSettings>();
    send::<Arc<Policy>>();
    sync::<Arc<Policy>>();
}

#[test]
fn a_refused_setting_changes_nothing_and_says_why() {
    let policy = Policy::new();
    let core = online(&policy, 7);
    let settings = core.settings();
    for bad in [0, UNLIMITED + 1, u64::MAX] {
        let refusal = settings.set_budget(Resource::Read, bad);
        assert_eq!(refusal, Err(Error::Budget(bad)));
        assert_eq!(settings.budget(Resource::Read), 7);
    }
    policy.set_qmin(9).unwrap();
    assert_eq!(policy.set_qmin(u64::MAX), Err(Error::Qmin(u64::MAX)));
    assert_eq!(policy.qmin(), 9);
    for bad in [1, 3, 4, 6, u64::MAX] {
        let refusal = BestEffort::try_from(bad).unwrap_err().to_string();
        assert!(refusal.contains(&bad.to_string()), "{refusal}");
    }
    assert!("exclusive".parse::<BestEffort>().is_err());
}

#[test]
fn settings_read_back_as_written() {
    let policy = Policy::new();
    let core = Core::new(&policy).unwrap();
    let settings = core.settings();
    for budget in [1, 16384, UNLIMITED] {
        settings.set_budget(Resource::Write, budget).unwrap();
        assert_eq!(settings.budget(Resource::Write), budget);
    }
    for mode in BestEffort::ALL {
        policy.set_best_effort(mode);
        assert_eq!(policy.best_effort(), mode);
        assert_eq!(BestEffort::try_from(mode as u64), Ok(mode));
        assert_eq!(mode.to_string().parse(), Ok(mode));
    }
    for on in [true, false] {
        policy.set_reclaim(on);
        assert_eq!(policy.reclaim(), on);
        settings.set_rt(on);
        assert_eq!(settings.rt(), on);
    }
}

#[test]
fn a_new_budget_counts_from_the_next_period_on() {
    let policy = Policy::new();
    let mut core = online(&policy, 100);
    core.settings().set_budget(Resource::Read, 40).unwrap();
    assert_eq!(core.until_overflow(Resource::Read), 100);
    assert_eq!(
        core.period_begin(core.epoch() + 1, false, [9, 0]),
        Action::Run
    );
    assert_eq!(core.until_overflow(Resource::Read), 40);
}

/// A host that learns which period the core has joined before it sets the budgets.
#[test]
fn a_period_that_is_joined_and_then_opened_has_the_budget_set_in_between() {
    let policy = Policy::new();
    let (mut first, mut late) = (online(&policy, 100), online(&policy, 100));
    assert_eq!(first.period_begin(7, false, [9, 0]), Action::Run);
    assert_eq!(late.overflow(Resource::Read, 100), Action::Throttle);
    assert_eq!(late.period_join(5, false, [110, 0]), Action::Run);
    assert_eq!(late.epoch(), 7);
    late.settings().set_budget(Resource::Read, 40).unwrap();
    late.period_open();
    assert!(!late.is_throttled());
    let account = late.account(Resource::Read);
    assert_eq!(
        (account.budget, account.assigned, account.used),
        (40, 40, 0)
    );
    assert_eq!((account.total_used, account.total_assigned), (110, 100));
    assert_eq!(late.period_join(7, false, [1, 0]), Action::Continue);
    assert_eq!(late.until_overflow(Resource::Read), 40);
}

#[test]
fn a_dropped_core_leaves_the_census() {
    let policy = Policy::new();
    let core = online(&policy, 100);
    let offline = Core::new(&policy).unwrap();
    assert_eq!(policy.census().online, 1);
    drop(offline);
    assert_eq!(policy.census().online, 1);
    drop(core);
    assert_eq!(policy.census().online, 0);
    assert_eq!(policy.census().active, 0);
}

#[test]
fn coming_online_twice_counts_once() {
    let policy = Policy::new();
    let mut core = online(&policy, 100);
    assert_eq!(core.overflow(Resource::Read, 60), Action::Run);
    core.online();
    assert_eq!(policy.census().online, 1);
    assert_eq!(core.until_overflow(Resource::Read), 40);
}

/// A kick, a timer or a counter's interrupt may reach a core just after it went offline; it must neither corrupt the
/// census nor fill the pool.
#[test]
fn a_call_that_comes_after_the_core_has_left_changes_nothing() {
    for mode in BestEffort::ALL {
        let policy = Policy::new();
        policy.set_best_effort(mode);
        policy.set_reclaim(true);
        let mut stays = online(&policy, 100);
        let mut gone = online(&policy, 1000);
        assert_eq!(gone.offline(), Action::Continue);
        // The remaining core is a period ahead, so that there is a period to join.
        let begun = stays.period_begin(stays.epoch() + 1, false, [100, 0]);
        assert_eq!(begun, Action::Run);
        let census = policy.census();

        let late = gone.period_begin(gone.epoch(), false, [0, 0]);
        assert_eq!(late, Action::Continue);
        let late = gone.period_begin(gone.epoch(), true, [0, 0]);
        assert_eq!(late, Action::Continue);
        let late = gone.period_begin(gone.epoch() + 1, true, [0, 0]);
        assert_eq!(late, Action::Continue);
        assert_eq!(gone.overflow(Resource::Read, 2000), Action::Continue);
        assert_eq!(gone.release(), Action::Continue);
        assert_eq!(gone.offline(), Action::Continue);
        gone.active();

        assert_eq!(policy.census(), census);
        assert_eq!(policy.pool(Resource::Read), 0);
        assert!(!gone.is_throttled());
    }
}

/// Spare sharing lasts until the period's end: a core that uses up its budget after the release continues, too, and no
/// core is released twice.
#[test]
fn in_a_released_period_no_core_is_throttled_and_none_released_again() {
    let policy = Policy::new();
    policy.set_best_effort(BestEffort::Spare);
    let mut cores: Vec<Core> = (0..3).map(|_| online(&policy, 100)).collect();
    let begun = cores[0].period_begin(1, false, [0, 0]);
    assert_eq!(begun, Action::Run);
    for idle in &mut cores[1..] {
        let begun = idle.period_begin(idle.epoch() + 1, true, [0, 0]);
        assert_eq!(begun, Action::Run);
    }
    let action = cores[0].overflow(Resource::Read, 100);
    assert_eq!(action, Action::ReleaseAll);

    // Two cores wake; both run out, one after the other.
    cores[1].active();
    cores[2].active();
    for woken in &mut cores[1..] {
        assert_eq!(woken.overflow(Resource::Read, 100), Action::Run);
        assert_eq!(woken.until_overflow(Resource::Read), UNLIMITED);
    }
    for core in &mut cores {
        assert_eq!(core.offline(), Action::Continue);
    }
}
