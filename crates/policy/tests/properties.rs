// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random interleavings of all operations of hosts, timers, counters and users on 1 to 8 cores, with the rules checked
//! after each. Kicks are delivered late and in any order; timers are lost or late.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memwarden_policy::{Action, BestEffort, Core, Policy, Resource, UNLIMITED};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    /// The core's timer; `percent` of the assigned events were used.
    Elapse {
        idle: bool,
        percent: u64,
    },
    /// The counter overflows, `late` events late.
    Overflow {
        resource: Resource,
        late: u64,
    },
    /// A period with a stop is settled, with any figures.
    Settle {
        resource: Resource,
        used: u64,
        held: u64,
    },
    Active,
    /// The host begins no period for the core for a while; the core may also be idle.
    Rest {
        idle: bool,
    },
    Join {
        idle: bool,
    },
    Release,
    Online,
    Offline,
    Budget {
        resource: Resource,
        events: u64,
    },
    Rt(bool),
    Mode(BestEffort),
    Reclaim(bool),
    Qmin(u64),
    /// Every pending kick arrives.
    Deliver,
}

fn resource() -> impl Strategy<Value = Resource> {
    prop_oneof![4 => Just(Resource::Read), 1 => Just(Resource::Write)]
}

fn events() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 1..1000_u64,
        1 => Just(1),
        1 => Just(UNLIMITED - 1),
        2 => Just(UNLIMITED),
        1 => prop_oneof![Just(0), Just(UNLIMITED + 1), Just(u64::MAX)],
    ]
}

/// Events that a period may have used.
fn settled() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0..3000_u64, 1 => any::<u64>()]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (prop::bool::weighted(0.2), 0..=100_u64)
            .prop_map(|(idle, percent)| Op::Elapse { idle, percent }),
        20 => (resource(), prop_oneof![3 => Just(0), 1 => 0..300_u64])
            .prop_map(|(resource, late)| Op::Overflow { resource, late }),
        2 => (resource(), settled(), settled())
            .prop_map(|(resource, used, held)| Op::Settle { resource, used, held }),
        3 => Just(Op::Active),
        4 => any::<bool>().prop_map(|idle| Op::Rest { idle }),
        4 => any::<bool>().prop_map(|idle| Op::Join { idle }),
        4 => Just(Op::Release),
        2 => Just(Op::Online),
        2 => Just(Op::Offline),
        2 => (resource(), events())
            .prop_map(|(resource, events)| Op::Budget { resource, events }),
        1 => any::<bool>().prop_map(Op::Rt),
        1 => prop::sample::select(&BestEffort::ALL[..]).prop_map(Op::Mode),
        1 => any::<bool>().prop_map(Op::Reclaim),
        1 => events().prop_map(Op::Qmin),
        4 => Just(Op::Deliver),
    ]
}

/// Events assigned to one core in one period.
#[derive(Clone, Copy, Debug)]
struct Grant {
    core: usize,
    epoch: u64,
    budget: [u64; 2],
    assigned: [u64; 2],
}

#[derive(Default)]
struct Host {
    used: [u64; 2],
    joins: u32,
    releases: u32,
    next_budget: [u64; 2],
    /// The core's offer since it began to rest.
    offers: [u64; 2],
    rt: bool,
}

struct Model {
    policy: Arc<Policy>,
    cores: Vec<Core>,
    hosts: Vec<Host>,
    grants: Vec<Grant>,
    withdrawn: BTreeMap<u64, [u64; 2]>,
    released: BTreeSet<u64>,
    mode: BestEffort,
    qmin: u64,
}

impl Model {
    fn new(budgets: &[u64]) -> Model {
        let policy = Policy::new();
        let mut model = Model {
            cores: budgets
                .iter()
                .map(|_| Core::new(&policy).unwrap())
                .collect(),
            policy,
            hosts: Vec::new(),
            grants: Vec::new(),
            withdrawn: BTreeMap::new(),
            released: BTreeSet::new(),
            mode: BestEffort::None,
            qmin: 0,
        };
        for (core, &budget) in budgets.iter().enumerate() {
            let settings = model.cores[core].settings();
            settings.set_budget(Resource::Read, budget).unwrap();
            model.hosts.push(Host {
                next_budget: [budget, UNLIMITED],
                ..Host::default()
            });
            model.apply(core, &Op::Online);
        }
        model
    }

    fn apply(&mut self, i: usize, op: &Op) {
        match *op {
            Op::Elapse { idle, percent } => {
                // Use without an overflow: at most the assigned events.
                for resource in Resource::ALL {
                    let r = resource as usize;
                    let account = self.cores[i].account(resource);
                    let could = account.assigned.min(1 << 20);
                    self.hosts[i].used[r] = self.hosts[i].used[r].max(could * percent / 100);
                }
                self.begin(i, self.cores[i].epoch() + 1, idle);
            }
            Op::Join { idle } => {
                if self.hosts[i].joins > 0 {
                    self.hosts[i].joins -= 1;
                    self.begin(i, self.cores[i].epoch(), idle);
                }
            }
            Op::Release => {
                if self.hosts[i].releases > 0 {
                    self.hosts[i].releases -= 1;
                    self.release(i);
                }
            }
            Op::Overflow { resource, late } => self.overflow(i, resource, late),
            Op::Settle {
                resource,
                used,
                held,
            } => {
                let before = self.cores[i].account(resource);
                self.cores[i].settle_stop(resource, used, held, before.allowed());
                let account = self.cores[i].account(resource);
                assert!(account.stop <= account.assigned / 2);
                let of_a_stop = before.allowed() + before.budget / 2;
                let past = held.min(used).saturating_sub(of_a_stop);
                let expected = match before.budget {
                    UNLIMITED => 0,
                    _ if past == 0 => before.owed,
                    budget => before.owed.saturating_add(past).min(1024 * budget),
                };
                assert_eq!(account.owed, expected);
            }
            Op::Active => self.cores[i].active(),
            Op::Rest { idle } => self.rest(i, idle),
            Op::Online => {
                if !self.cores[i].is_online() {
                    self.cores[i].online();
                    self.hosts[i].used = [0; 2];
                    self.granted(i);
                }
            }
            Op::Offline => self.offline(i),
            Op::Budget { resource, events } => {
                let settings = self.cores[i].settings();
                let fits = (1..=UNLIMITED).contains(&events);
                assert_eq!(settings.set_budget(resource, events).is_ok(), fits);
                if fits {
                    self.hosts[i].next_budget[resource as usize] = events;
                }
                let now = self.hosts[i].next_budget[resource as usize];
                assert_eq!(settings.budget(resource), now);
            }
            Op::Rt(rt) => {
                self.cores[i].settings().set_rt(rt);
                self.hosts[i].rt = rt;
                if rt {
                    self.release(i);
                }
            }
            Op::Mode(mode) => {
                self.policy.set_best_effort(mode);
                self.mode = mode;
            }
            Op::Reclaim(on) => self.policy.set_reclaim(on),
            Op::Qmin(events) => {
                let fits = events <= UNLIMITED;
                assert_eq!(self.policy.set_qmin(events).is_ok(), fits);
                if fits {
                    self.qmin = events;
                }
                assert_eq!(self.policy.qmin(), self.qmin);
            }
            Op::Deliver => self.deliver(),
        }
        self.check();
    }

    fn begin(&mut self, i: usize, number: u64, idle: bool) {
        let before = Resource::ALL.map(|r| self.cores[i].account(r));
        let was = (self.cores[i].is_online(), self.cores[i].epoch());
        let census = self.policy.census();
        let used = self.hosts[i].used;
        let (away, resting) = (self.cores[i].is_away(), self.cores[i].is_resting());
        let action = self.cores[i].period_begin(number, idle, used);
        assert!(!was.0 || !self.cores[i].is_resting() && !self.cores[i].is_away());
        if !was.0 || number == was.1 && was.1 == census.epoch {
            assert_eq!(action, Action::Continue, "nothing to begin");
            assert!(self.policy.census() == census || away);
            return;
        }
        assert_ne!(action, Action::Continue);
        assert_ne!(action, Action::Throttle);
        let core = &self.cores[i];
        assert!(!core.is_throttled(), "throttled past a period's begin");
        assert!(!core.is_best_effort() && !core.is_exhausted());
        assert_eq!(core.is_active(), !idle);
        for resource in Resource::ALL {
            let r = resource as usize;
            let after = core.account(resource);
            if resting && before[r].offered > 0 {
                assert_eq!(after.budget, before[r].budget);
                assert_eq!(after.donated, before[r].offered);
            } else {
                assert_eq!(after.budget, self.hosts[i].next_budget[r]);
            }
            assert_eq!(after.total_used, before[r].total_used + used[r]);
            assert_eq!(after.shortfall, 0);
            assert_eq!(after.donated + after.assigned, after.budget);
            assert!(after.repaid <= after.owed && after.repaid <= after.assigned);
            // Half the old prediction, plus half the used events, plus the shortfall.
            let average = (before[r].prediction + used[r].min(UNLIMITED)) / 2;
            let expected = match before[r].repaid {
                0 => average + before[r].shortfall,
                _ => before[r].prediction,
            };
            assert!(
                after.prediction.abs_diff(expected) <= 1,
                "{before:?} used {used:?} {after:?}"
            );
        }
        self.hosts[i].used = [0; 2];
        self.granted(i);
        self.obey(i, action);
    }

    fn rest(&mut self, i: usize, idle: bool) {
        if !self.cores[i].is_online() || self.cores[i].is_exhausted() {
            return;
        }
        let rested = self.cores[i].is_resting();
        let begun = self.cores[i].epoch() == self.policy.census().epoch;
        self.cores[i].rest();
        assert_eq!(self.cores[i].is_resting(), rested || begun);
        if !self.cores[i].is_resting() {
            return;
        }
        self.hosts[i].offers = Resource::ALL.map(|r| self.cores[i].account(r).offered);
        for resource in Resource::ALL {
            let account = self.cores[i].account(resource);
            let kept = account.budget - account.offered;
            assert!(account.offered == 0 || kept == (account.budget / 32).max(1));
            assert!(rested || account.offered == 0 || account.owed == 0);
        }
        if idle {
            let action = self.cores[i].away();
            assert!(self.cores[i].is_away());
            self.obey(i, action);
        }
    }

    fn overflow(&mut self, i: usize, resource: Resource, late: u64) {
        let r = resource as usize;
        let before = self.cores[i].account(resource);
        let free = self.cores[i].until_overflow(resource) == UNLIMITED;
        let throttled = self.cores[i].is_throttled();
        if before.budget == UNLIMITED {
            assert!(free, "an unlimited core never overflows");
            return;
        }
        if !self.cores[i].is_online() || free && !throttled {
            return;
        }
        let left = before.allowed().saturating_sub(before.stop);
        let used = self.hosts[i].used[r].max(left) + late;
        self.hosts[i].used[r] = used;
        let census = self.policy.census();
        // A core that is away returns first; a later period presumes it active.
        let was_active = self.cores[i].is_active() || self.cores[i].is_away();
        let epoch = self.cores[i].epoch();
        let returns = u32::from(self.cores[i].is_away());
        let action = self.cores[i].overflow(resource, used);
        let core = &self.cores[i];
        let after = core.account(resource);
        if throttled {
            assert_eq!(action, Action::Throttle);
            return;
        }
        let taken = after.total_reclaimed - before.total_reclaimed;
        assert_eq!(after.assigned, before.assigned + taken);
        // Own donations are taken back first.
        assert_eq!(after.donated, before.donated.saturating_sub(taken));
        match action {
            Action::Run if !core.is_exhausted() => {
                let left = after.allowed() - used - after.stop;
                assert_eq!(core.until_overflow(resource), left);
            }
            Action::Run => {
                let shared = core.is_best_effort() && census.released;
                assert!(shared || self.hosts[i].rt, "ran on without a reason");
                assert_eq!(core.until_overflow(resource), UNLIMITED);
            }
            Action::Throttle => {
                assert!(!self.hosts[i].rt, "a real-time core was throttled");
                assert!(core.is_throttled());
            }
            Action::ReleaseAll | Action::NewPeriod => {}
            Action::Continue => panic!("an overflow needs an answer"),
        }
        let early = after.reclaim_errors - before.reclaim_errors;
        if early > 0 {
            assert_eq!(early, 1);
            let spoken_for = used + after.stop + after.repaid;
            assert_eq!(after.shortfall, after.budget - spoken_for);
            assert!(core.is_exhausted() && after.donated > 0);
        }
        self.grants
            .iter_mut()
            .rev()
            .find(|grant| grant.core == i)
            .unwrap()
            .assigned[r] = after.assigned;
        // The core that makes the last active core exhausted returns what follows.
        let active = census.active + returns + u32::from(!was_active);
        let counted = census.epoch == epoch && self.cores[i].is_exhausted();
        if counted && !census.released && census.exhausted + 1 == active {
            let expected = match self.mode {
                BestEffort::None if self.hosts[i].rt => Action::Run,
                BestEffort::None => Action::Throttle,
                BestEffort::Spare => Action::ReleaseAll,
                BestEffort::Proportional => Action::NewPeriod,
            };
            assert_eq!(action, expected, "a lost wake-up");
        }
        self.obey(i, action);
    }

    fn offline(&mut self, i: usize) {
        let online = self.cores[i].is_online();
        let epoch = self.cores[i].epoch();
        let donated = Resource::ALL.map(|r| self.cores[i].account(r).donated);
        let offered = Resource::ALL.map(|r| self.cores[i].account(r).offered);
        let before = Resource::ALL.map(|r| self.policy.pool(r));
        let same = self.policy.census().epoch == epoch;
        let action = self.cores[i].offline();
        if !online {
            assert_eq!(action, Action::Continue);
            return;
        }
        assert!(!self.cores[i].is_throttled());
        if same && action != Action::NewPeriod {
            let withdrawn = self.withdrawn.entry(epoch).or_default();
            for resource in Resource::ALL {
                let r = resource as usize;
                let taken = before[r] - self.policy.pool(resource);
                assert_eq!(taken, donated[r].min(before[r]));
                withdrawn[r] += taken;
            }
        }
        // Events of its offer that other cores have taken stay with them.
        if !same && action != Action::NewPeriod {
            let budget = Resource::ALL.map(|resource| {
                let r = resource as usize;
                let withdrawn = before[r] - self.policy.pool(resource);
                offered[r].saturating_sub(withdrawn)
            });
            self.grants.push(Grant {
                core: i,
                epoch: self.policy.census().epoch,
                budget,
                assigned: [0; 2],
            });
        }
        self.obey(i, action);
    }

    fn release(&mut self, i: usize) {
        let throttled = self.cores[i].is_throttled();
        let census = self.policy.census();
        let shared = census.released && census.epoch == self.cores[i].epoch();
        let action = self.cores[i].release();
        if throttled && (shared || self.hosts[i].rt) {
            assert_eq!(action, Action::Run);
            assert_eq!(self.cores[i].until_overflow(Resource::Read), UNLIMITED);
        } else {
            assert_eq!(action, Action::Continue, "a late release");
            assert_eq!(self.cores[i].is_throttled(), throttled);
        }
    }

    fn granted(&mut self, i: usize) {
        let core = &self.cores[i];
        let accounts = Resource::ALL.map(|resource| core.account(resource));
        self.grants.push(Grant {
            core: i,
            epoch: core.epoch(),
            budget: accounts.map(|account| account.budget),
            assigned: accounts.map(|account| account.assigned),
        });
    }

    fn obey(&mut self, from: usize, action: Action) {
        let online: Vec<usize> = (0..self.cores.len())
            .filter(|&i| self.cores[i].is_online())
            .collect();
        match action {
            Action::ReleaseAll => {
                let epoch = self.policy.census().epoch;
                assert!(self.released.insert(epoch), "released twice: {epoch}");
                for i in online {
                    self.hosts[i].releases += u32::from(i != from);
                }
            }
            Action::NewPeriod => {
                for i in online {
                    self.hosts[i].joins += 1;
                }
            }
            _ => {}
        }
    }

    fn deliver(&mut self) {
        for i in 0..self.cores.len() {
            while self.hosts[i].releases > 0 {
                self.hosts[i].releases -= 1;
                self.release(i);
            }
            while self.hosts[i].joins > 0 {
                self.hosts[i].joins -= 1;
                self.begin(i, self.cores[i].epoch(), false);
            }
        }
        // With every kick delivered, no core waits in a released period.
        let census = self.policy.census();
        for core in self.cores.iter().filter(|core| core.is_online()) {
            let here = core.epoch() == census.epoch;
            assert!(
                !(here && census.released && core.is_throttled()),
                "a lost wake-up"
            );
        }
    }

    fn check(&self) {
        let census = self.policy.census();
        let online = || self.cores.iter().filter(|core| core.is_online());
        let present = || online().filter(|core| !core.is_away());
        let here = |core: &&Core| core.epoch() == census.epoch;
        let count = |n: usize| u32::try_from(n).unwrap();
        assert_eq!(census.online, count(present().count()));
        let active = present().filter(|core| !here(core) || core.is_active());
        assert_eq!(census.active, count(active.count()));
        let exhausted = online().filter(|core| here(core) && core.is_exhausted());
        assert_eq!(census.exhausted, count(exhausted.count()));
        for core in online() {
            let reason = !core.is_best_effort() || self.released.contains(&core.epoch());
            assert!(reason, "unregulated for no reason");
            for resource in Resource::ALL {
                assert!(core.until_overflow(resource) >= 1);
            }
        }
        for resource in Resource::ALL {
            self.check_ledger(census.epoch, resource);
        }
    }

    /// Assigned, remaining and withdrawn events add up to the budgets at the time when each core's period began. The
    /// pool may also include the offers of cores that have not begun the period; if there are offers, the sum may be
    /// smaller.
    fn check_ledger(&self, epoch: u64, resource: Resource) {
        let r = resource as usize;
        let (mut budgets, mut assigned) = (0, 0);
        for grant in self.grants.iter().filter(|grant| grant.epoch == epoch) {
            if grant.budget[r] != UNLIMITED {
                budgets += grant.budget[r];
                assigned += grant.assigned[r];
            }
        }
        let withdrawn = self.withdrawn.get(&epoch).map_or(0, |events| events[r]);
        let left = self.policy.pool(resource);
        let begun = |core| {
            self.grants
                .iter()
                .any(|grant| (grant.core, grant.epoch) == (core, epoch))
        };
        let absent = (0..self.hosts.len()).filter(|&core| !begun(core));
        let offered: u64 = absent.map(|core| self.hosts[core].offers[r]).sum();
        let total = assigned + left + withdrawn;
        assert!(
            total <= budgets + offered,
            "epoch {epoch}: {total} of {budgets} + {offered}"
        );
        if self.hosts.iter().all(|host| host.offers[r] == 0) {
            assert_eq!(total, budgets, "epoch {epoch}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_rules_hold_after_every_operation(
        budgets in prop::collection::vec(1..1000_u64, 1..=8),
        mode in prop::sample::select(&BestEffort::ALL[..]),
        reclaim in prop::bool::weighted(0.7),
        ops in prop::collection::vec((any::<prop::sample::Index>(), op()), 1..250),
    ) {
        let mut model = Model::new(&budgets);
        model.apply(0, &Op::Mode(mode));
        model.apply(0, &Op::Reclaim(reclaim));
        for (core, op) in ops {
            model.apply(core.index(budgets.len()), &op);
        }
        model.apply(0, &Op::Deliver);
    }

    /// The prediction reaches a steady need exactly, however far away it started.
    #[test]
    fn predictions_never_stick(need in 0..100_000_u64, start in 0..100_000_u64) {
        let policy = Policy::new();
        let mut core = Core::new(&policy).unwrap();
        core.online();
        for _ in 0..60 {
            let _ = core.period_begin(core.epoch() + 1, false, [start, 0]);
        }
        for _ in 0..60 {
            let _ = core.period_begin(core.epoch() + 1, false, [need, 0]);
        }
        prop_assert_eq!(core.account(Resource::Read).prediction, need);
    }
}

proptest! {
    /// Timers may be late, coincide, come in any order or not at all: a core that has handled its timer is in the
    /// clock's period.
    #[test]
    fn cores_never_fall_out_of_step(
        turns in prop::collection::vec((0..4_usize, 0..3_u64), 1..200),
    ) {
        let policy = Policy::new();
        let mut cores: Vec<Core> = (0..4)
            .map(|_| {
                let mut core = Core::new(&policy).unwrap();
                core.online();
                core
            })
            .collect();
        let mut number = 0;
        for (core, passed) in turns {
            number += passed;
            let action = cores[core].period_begin(number, false, [0, 0]);
            prop_assert_eq!(cores[core].epoch(), number);
            prop_assert!(matches!(action, Action::Run | Action::Continue));
        }
    }
}

/// An epoch has 21 bits; nothing breaks when it wraps.
#[test]
fn the_epoch_may_wrap() {
    let policy = Policy::new();
    policy.set_reclaim(true);
    policy.set_best_effort(BestEffort::Spare);
    let mut cores: Vec<Core> = (0..2)
        .map(|_| {
            let mut core = Core::new(&policy).unwrap();
            core.settings().set_budget(Resource::Read, 100).unwrap();
            core.online();
            core
        })
        .collect();
    let wrap = 1 << 21;
    for _ in 0..wrap - 8 {
        let next = cores[0].epoch() + 1;
        let _ = cores[0].period_begin(next, false, [9, 0]);
    }
    let _ = cores[1].period_begin(wrap - 8, false, [100, 0]);
    assert_eq!(policy.census().epoch, wrap - 8);
    for step in 1..32 {
        for (core, need) in cores.iter_mut().zip([9, 100]) {
            assert_eq!(
                core.period_begin(wrap - 8 + step, false, [need, 0]),
                Action::Run
            );
        }
        assert_eq!(policy.census().epoch, (wrap - 8 + step) % wrap);
        // Core 1 has 100 events of its own and 90 of core 0's.
        assert_eq!(policy.pool(Resource::Read), 90);
        assert_eq!(cores[1].overflow(Resource::Read, 189), Action::Run);
        assert_eq!(cores[1].overflow(Resource::Read, 190), Action::Throttle);
        assert_eq!(cores[0].overflow(Resource::Read, 100), Action::ReleaseAll);
        assert_eq!(cores[1].release(), Action::Run);
    }
}
