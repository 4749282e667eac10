// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the real C code, one atomic access at a time, along every schedule.
//!
//! Every call into the policy is a coroutine that stops before each atomic access. A *choice* lets one core make one
//! access, including all private work up to the next one, or start its next call. That call comes from its script, or
//! from a kick that another core sent. Depth-first search follows every choice, and backtracks by replaying from the
//! start.
//!
//! Two schedules that lead to the same state have the same future, so each state is expanded once. A state is every
//! byte of memory, every value that unfinished calls have read, and all books of the checker. The number of schedules
//! through a state is still counted.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Once;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use memwarden_policy::ffi::*;

pub const MAX_CORES: usize = 3;

/// One build of policy.c; tests/c/variant.c fills it in.
#[repr(C)]
pub struct Variant {
    policy_init: unsafe extern "C" fn(*mut mw_policy),
    core_init: unsafe extern "C" fn(*mut mw_core),
    set_budget: unsafe extern "C" fn(*mut mw_core, u32, u64) -> i32,
    set_best_effort: unsafe extern "C" fn(*mut mw_policy, u64) -> i32,
    set_reclaim: unsafe extern "C" fn(*mut mw_policy, u64) -> i32,
    set_rt: unsafe extern "C" fn(*mut mw_core, bool),
    core_online: unsafe extern "C" fn(*mut mw_policy, *mut mw_core),
    core_offline: unsafe extern "C" fn(*mut mw_policy, *mut mw_core) -> u32,
    core_active: unsafe extern "C" fn(*mut mw_policy, *mut mw_core),
    core_away: unsafe extern "C" fn(*mut mw_policy, *mut mw_core) -> u32,
    core_rest: unsafe extern "C" fn(*mut mw_policy, *mut mw_core),
    period_begin: unsafe extern "C" fn(*mut mw_policy, *mut mw_core, u64, bool, *const u64) -> u32,
    overflow: unsafe extern "C" fn(*mut mw_policy, *mut mw_core, u32, u64) -> u32,
    release: unsafe extern "C" fn(*mut mw_policy, *mut mw_core) -> u32,
    census_read: unsafe extern "C" fn(*const mw_policy) -> mw_census,
}

/// An entry of a core's script.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Uses up the assigned events, and this many more before the interrupt, repeatedly until the answer is not "run".
    RunOut(u64),
    /// The same for write-backs.
    RunOutWrites,
    /// The core's own timer, while the core is busy.
    Elapse,
    /// The core's own timer, while the core is idle.
    ElapseIdle,
    /// The core leaves idle.
    Wake,
    /// The core is idle, and begins no period for a while.
    Away,
    /// The core begins no period for a while.
    Rest,
    /// The host reads the clock and finds the core in its current period.
    Look,
    Online,
    Offline,
    SetMode(u64),
    /// Makes another core real-time, and kicks it.
    SetRt(usize),
    SetBudget(usize, u64),
}

/// A call into the policy, with all its arguments.
#[derive(Clone, Copy, Debug, Hash)]
enum Call {
    Overflow(u32, u64),
    /// The period's number, whether the core is idle, events used.
    Begin(u64, bool, [u64; MW_RESOURCES]),
    Release,
    Active,
    Away,
    Rest,
    Online,
    Offline,
    SetMode(u64),
    SetRt(usize),
    SetBudget(usize, u64),
}

#[derive(Clone, Copy, Hash)]
struct Memory {
    policy: mw_policy,
    cores: [mw_core; MAX_CORES],
}

type Routine = Coroutine<(), *const u64, u32, DefaultStack>;
type Stop = Yielder<(), *const u64>;

/// A call that has stopped before an atomic access.
struct Running {
    call: Call,
    routine: Routine,
    stop: *const Stop,
    /// The word of the next access.
    word: *const u64,
    /// A hash of every value that its accesses have read.
    met: u64,
}

/// The host's state of one core.
#[derive(Default)]
struct Host {
    script: &'static [Op],
    at: usize,
    joins: u8,
    releases: u8,
    idle: bool,
    used: [u64; MW_RESOURCES],
    running: Option<Running>,
}

/// Events assigned to one core in one period.
#[derive(Clone, Copy, Debug, Hash)]
struct Grant {
    core: usize,
    epoch: u64,
    budget: [u64; MW_RESOURCES],
    assigned: [u64; MW_RESOURCES],
}

/// The checker's books.
#[derive(Clone, Default, Hash)]
pub struct Books {
    grants: Vec<Grant>,
    /// Events that donors withdrew from the pool when they went offline, by epoch.
    withdrawn: Vec<(u64, u64)>,
    /// What each core has offered; a period that it has not begun may include it.
    offers: [[u64; MW_RESOURCES]; MAX_CORES],
    /// Epochs in which best effort released the cores.
    released: Vec<u64>,
    /// Calls that returned MW_RELEASE_ALL and MW_NEW_PERIOD.
    pub release_all: u32,
    pub new_period: u32,
    /// Swaps that opened an epoch for best effort.
    shared_openings: u32,
    /// The last epoch was opened for best effort, with a kick to all cores.
    last_was_shared: bool,
}

pub struct Scenario {
    pub name: &'static str,
    pub mode: u64,
    pub reclaim: bool,
    /// Budgets of reads; `write_budget` is that of writes.
    pub budgets: &'static [u64],
    pub write_budget: u64,
    /// Each core's predicted need at the start.
    pub predictions: &'static [u64],
    /// Executed in order before the cores run concurrently.
    pub prelude: &'static [(usize, Op)],
    pub scripts: &'static [&'static [Op]],
    /// Checked at the end, in addition to the rules for every scenario.
    pub finally: fn(&World) -> Result<(), String>,
}

pub struct World {
    variant: &'static Variant,
    memory: Box<UnsafeCell<Memory>>,
    hosts: Vec<Host>,
    pub books: Books,
    steady_mode: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Turn {
    Step,
    Script,
    Join,
    Release,
}
type Choice = (usize, Turn);

thread_local! {
    static CURRENT: Cell<*const Stop> = const { Cell::new(std::ptr::null()) };
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

unsafe extern "C" {
    fn mw_explore_with(explorer: extern "C" fn(*const u64));
}

/// policy.c calls this before each atomic access.
extern "C" fn stop_before(word: *const u64) {
    let current = CURRENT.get();
    // Outside a coroutine, while a scenario is set up, nothing stops.
    if !current.is_null() {
        // SAFETY: `current` is the yielder of the coroutine that is running.
        unsafe { &*current }.suspend(word);
    }
}

fn watch_accesses() {
    static ONCE: Once = Once::new();
    // SAFETY: the function has the type that explore.c declares.
    ONCE.call_once(|| unsafe { mw_explore_with(stop_before) });
}

impl Call {
    fn perform(self, variant: &Variant, memory: *mut Memory, core: usize) -> u32 {
        // SAFETY: `memory` outlives every coroutine of its World, calls for one
        // core never overlap, and coroutines of one World share one thread.
        unsafe {
            let policy = &raw mut (*memory).policy;
            let cores: *mut mw_core = (&raw mut (*memory).cores).cast();
            let this = cores.add(core);
            match self {
                Call::Overflow(resource, used) => (variant.overflow)(policy, this, resource, used),
                Call::Begin(number, idle, used) => {
                    (variant.period_begin)(policy, this, number, idle, used.as_ptr())
                }
                Call::Release => (variant.release)(policy, this),
                Call::Active => {
                    (variant.core_active)(policy, this);
                    MW_CONTINUE
                }
                Call::Away => (variant.core_away)(policy, this),
                Call::Rest => {
                    (variant.core_rest)(policy, this);
                    MW_CONTINUE
                }
                Call::Online => {
                    (variant.core_online)(policy, this);
                    MW_CONTINUE
                }
                Call::Offline => (variant.core_offline)(policy, this),
                Call::SetMode(mode) => {
                    (variant.set_best_effort)(policy, mode);
                    MW_CONTINUE
                }
                Call::SetRt(other) => {
                    (variant.set_rt)(cores.add(other), true);
                    MW_CONTINUE
                }
                Call::SetBudget(other, events) => {
                    (variant.set_budget)(cores.add(other), 0, events);
                    MW_CONTINUE
                }
            }
        }
    }
}

impl World {
    fn new(variant: &'static Variant, scenario: &Scenario) -> World {
        watch_accesses();
        let blank_account = mw_account {
            next_budget: mw_atomic64 { value: 0 },
            budget: 0,
            assigned: 0,
            used: 0,
            donated: 0,
            prediction: 0,
            shortfall: 0,
            stop: 0,
            owed: 0,
            repaid: 0,
            offered: 0,
            total_used: 0,
            total_assigned: 0,
            total_donated: 0,
            total_reclaimed: 0,
            reclaim_errors: 0,
        };
        let zero = mw_atomic64 { value: 0 };
        let memory = Memory {
            policy: mw_policy {
                census: zero,
                pool: [zero; MW_RESOURCES],
                offered: [zero; MW_RESOURCES],
                best_effort: zero,
                reclaim: zero,
                qmin: zero,
            },
            cores: [mw_core {
                rt: zero,
                epoch: 0,
                online: false,
                active: false,
                exhausted: false,
                throttled: false,
                best_effort: false,
                reclaim: false,
                away: false,
                resting: false,
                offers_end: 0,
                account: [blank_account; MW_RESOURCES],
            }; MAX_CORES],
        };
        let mut world = World {
            variant,
            memory: Box::new(UnsafeCell::new(memory)),
            hosts: Vec::new(),
            books: Books::default(),
            steady_mode: Some(scenario.mode),
        };
        world.set_up(scenario);
        world
    }

    fn set_up(&mut self, scenario: &Scenario) {
        let memory = self.memory.get();
        // SAFETY: no coroutine is alive yet, and CURRENT is null.
        unsafe {
            let policy = &raw mut (*memory).policy;
            (self.variant.policy_init)(policy);
            (self.variant.set_best_effort)(policy, scenario.mode);
            (self.variant.set_reclaim)(policy, u64::from(scenario.reclaim));
            for (i, &budget) in scenario.budgets.iter().enumerate() {
                let core = &raw mut (*memory).cores[i];
                (self.variant.core_init)(core);
                (self.variant.set_budget)(core, 0, budget);
                (self.variant.set_budget)(core, 1, scenario.write_budget);
            }
        }
        for i in 0..scenario.budgets.len() {
            self.hosts.push(Host::default());
            self.alone(i, Call::Online);
        }
        for (i, &need) in scenario.predictions.iter().enumerate() {
            // SAFETY: as above. With a steady need the prediction stays the same.
            unsafe { (*memory).cores[i].account[0].prediction = need << 4 };
            let number = self.core(i).epoch + 1;
            self.alone(i, Call::Begin(number, false, [need, 0]));
        }
        for &(core, op) in scenario.prelude {
            if let Some(call) = self.call_of(core, op) {
                self.alone(core, call);
            }
        }
        for (host, script) in self.hosts.iter_mut().zip(scenario.scripts) {
            host.script = script;
        }
        if scenario
            .scripts
            .iter()
            .flat_map(|script| script.iter())
            .any(|op| matches!(op, Op::SetMode(_)))
        {
            self.steady_mode = None;
        }
    }

    /// A copy of the world; no call may be in progress.
    fn again(&self) -> World {
        World {
            variant: self.variant,
            memory: Box::new(UnsafeCell::new(self.memory())),
            hosts: self
                .hosts
                .iter()
                .map(|host| Host {
                    running: None,
                    ..*host
                })
                .collect(),
            books: self.books.clone(),
            steady_mode: self.steady_mode,
        }
    }

    /// Makes a call while no other core runs.
    fn alone(&mut self, core: usize, call: Call) {
        let before = self.memory();
        let action = call.perform(self.variant, self.memory.get(), core);
        self.watch(call, &before);
        self.finish(core, call, action);
    }

    fn memory(&self) -> Memory {
        // SAFETY: coroutines run only inside resume(), on this same thread.
        unsafe { *self.memory.get() }
    }

    fn core(&self, core: usize) -> mw_core {
        self.memory().cores[core]
    }

    /// The current best-effort mode.
    pub fn mode(&self) -> u64 {
        self.memory().policy.best_effort.value
    }

    /// Cores that are throttled.
    pub fn waiting(&self) -> Vec<usize> {
        (0..self.hosts.len())
            .filter(|&core| self.core(core).throttled)
            .collect()
    }

    fn census(&self) -> mw_census {
        // SAFETY: a plain read; nothing stops outside a coroutine.
        unsafe { (self.variant.census_read)(&raw const (*self.memory.get()).policy) }
    }

    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (core, host) in self.hosts.iter().enumerate() {
            if host.running.is_some() {
                choices.push((core, Turn::Step));
                continue;
            }
            if host.at < host.script.len() {
                choices.push((core, Turn::Script));
            }
            if host.joins > 0 {
                choices.push((core, Turn::Join));
            }
            if host.releases > 0 {
                choices.push((core, Turn::Release));
            }
        }
        choices
    }

    /// The call that a script entry makes now, if any: a core that is throttled or offline uses nothing.
    fn call_of(&mut self, core: usize, op: Op) -> Option<Call> {
        let state = self.core(core);
        let host = &mut self.hosts[core];
        let elapse = |host: &mut Host, idle| {
            host.idle = idle;
            Some(Call::Begin(state.epoch + 1, idle, host.used))
        };
        match op {
            Op::RunOut(_) | Op::RunOutWrites => {
                let (resource, past) = match op {
                    Op::RunOut(past) => (0, past),
                    _ => (1, 0),
                };
                let runs = state.online && !state.throttled;
                let account = &state.account[resource];
                if !runs || state.exhausted || state.best_effort || account.budget == MW_UNLIMITED {
                    return None;
                }
                host.used[resource] = account.assigned + past;
                Some(Call::Overflow(resource as u32, host.used[resource]))
            }
            Op::Elapse => state.online.then(|| elapse(host, false))?,
            Op::ElapseIdle => state.online.then(|| elapse(host, true))?,
            Op::Wake => {
                host.idle = false;
                Some(Call::Active)
            }
            Op::Away => {
                host.idle = true;
                Some(Call::Away)
            }
            Op::Rest => Some(Call::Rest),
            Op::Look => state
                .online
                .then_some(Call::Begin(state.epoch, host.idle, host.used)),
            Op::Online => Some(Call::Online),
            Op::Offline => Some(Call::Offline),
            Op::SetMode(mode) => Some(Call::SetMode(mode)),
            Op::SetRt(other) => Some(Call::SetRt(other)),
            Op::SetBudget(other, events) => Some(Call::SetBudget(other, events)),
        }
    }

    fn apply(&mut self, (core, turn): Choice) {
        let epoch = self.core(core).epoch;
        let host = &mut self.hosts[core];
        let call = match turn {
            Turn::Step => {
                self.resume(core);
                return;
            }
            Turn::Join => {
                host.joins -= 1;
                Some(Call::Begin(epoch, host.idle, host.used))
            }
            Turn::Release => {
                host.releases -= 1;
                Some(Call::Release)
            }
            Turn::Script => {
                let op = host.script[host.at];
                let call = self.call_of(core, op);
                self.hosts[core].at += 1;
                call
            }
        };
        if let Some(call) = call {
            self.start(core, call);
        }
    }

    /// Runs a call up to its first access and makes that access.
    fn start(&mut self, core: usize, call: Call) {
        let stack = STACKS
            .with_borrow_mut(Vec::pop)
            .unwrap_or_else(|| DefaultStack::new(64 << 10).expect("a stack for a coroutine"));
        let (variant, memory) = (self.variant, self.memory.get());
        let mut routine: Routine = Coroutine::with_stack(stack, move |stop: &Stop, ()| {
            CURRENT.set(stop);
            call.perform(variant, memory, core)
        });
        let result = routine.resume(());
        let stop = CURRENT.replace(std::ptr::null());
        match result {
            CoroutineResult::Yield(word) => {
                self.hosts[core].running = Some(Running {
                    call,
                    routine,
                    stop,
                    word,
                    met: 0,
                });
                self.resume(core);
            }
            CoroutineResult::Return(action) => {
                give_back(routine);
                self.finish(core, call, action);
            }
        }
    }

    /// Makes one access, and continues to the next one or to the call's end.
    fn resume(&mut self, core: usize) {
        let before = self.memory();
        let running = self.hosts[core].running.as_mut().expect("chosen to step");
        let mut met = DefaultHasher::new();
        running.met.hash(&mut met);
        // SAFETY: the word lies in `memory`; one thread.
        unsafe { *running.word }.hash(&mut met);
        running.met = met.finish();
        let call = running.call;
        CURRENT.set(running.stop);
        let result = running.routine.resume(());
        CURRENT.set(std::ptr::null());
        match result {
            CoroutineResult::Yield(word) => {
                running.word = word;
                self.watch(call, &before);
            }
            CoroutineResult::Return(action) => {
                let running = self.hosts[core].running.take().expect("just used");
                give_back(running.routine);
                self.watch(call, &before);
                self.finish(core, call, action);
            }
        }
    }

    /// Records what one access did to the shared words.
    fn watch(&mut self, call: Call, before: &Memory) {
        let after = self.memory();
        if before.policy.census != after.policy.census {
            let was = unpack(before.policy.census.value);
            let is = unpack(after.policy.census.value);
            let opened = is.epoch.wrapping_sub(was.epoch) & 0x1f_ffff;
            if opened > 0 {
                let own = matches!(call, Call::Begin(number, ..) if number == was.epoch + 1);
                let shared = opened as u32 - u32::from(own);
                self.books.shared_openings += shared;
                self.books.last_was_shared = shared > 0;
            }
            if is.released && !self.books.released.contains(&is.epoch) {
                self.books.released.push(is.epoch);
            }
        }
        if matches!(call, Call::Offline) {
            let was = before.policy.pool[0].value;
            let taken = was.wrapping_sub(after.policy.pool[0].value);
            // Opening a new epoch's pools is not a withdrawal.
            if taken > 0 && was >> 43 == after.policy.pool[0].value >> 43 {
                self.books.withdrawn.push((was >> 43, taken));
            }
        }
    }

    /// Carries out the action of a finished call, as a host does.
    fn finish(&mut self, core: usize, call: Call, action: u32) {
        let state = self.core(core);
        match call {
            Call::Begin(..) if action != MW_CONTINUE => self.grant(core, &state),
            Call::Online => self.grant(core, &state),
            Call::Rest => self.books.offers[core] = state.account.map(|account| account.offered),
            Call::Overflow(..) => {
                let assigned = state.account.map(|account| account.assigned);
                if let Some(grant) = self
                    .books
                    .grants
                    .iter_mut()
                    .rev()
                    .find(|grant| grant.core == core)
                {
                    grant.assigned = assigned;
                }
                // "Run" with a remaining limit: repeat the entry.
                if action == MW_RUN && !state.exhausted && !state.best_effort {
                    let host = &mut self.hosts[core];
                    host.at = host.at.saturating_sub(1);
                }
            }
            Call::SetRt(other) => self.hosts[other].releases += 1,
            _ => {}
        }
        match action {
            MW_RELEASE_ALL => {
                self.books.release_all += 1;
                self.kick(|other, host| host.releases += u8::from(other != core));
            }
            MW_NEW_PERIOD => {
                self.books.new_period += 1;
                self.kick(|_, host| host.joins += 1);
            }
            _ => {}
        }
    }

    fn kick(&mut self, mut send: impl FnMut(usize, &mut Host)) {
        let memory = self.memory();
        for (core, host) in self.hosts.iter_mut().enumerate() {
            if memory.cores[core].online {
                send(core, host);
            }
        }
    }

    fn grant(&mut self, core: usize, state: &mw_core) {
        self.hosts[core].used = [0; MW_RESOURCES];
        self.books.grants.push(Grant {
            core,
            epoch: state.epoch,
            budget: state.account.map(|account| account.budget),
            assigned: state.account.map(|account| account.assigned),
        });
        // Sorted by core, so that equal books compare equal whichever core began first.
        self.books.grants.sort_by_key(|grant| grant.core);
    }

    /// A 128-bit hash of everything that the future depends on.
    fn key(&self) -> u128 {
        let mut halves = [0_u64; 2];
        for (salt, half) in halves.iter_mut().enumerate() {
            let mut hash = DefaultHasher::new();
            salt.hash(&mut hash);
            self.memory().hash(&mut hash);
            self.books.hash(&mut hash);
            for host in &self.hosts {
                (host.at, host.joins, host.releases, host.idle, host.used).hash(&mut hash);
                match &host.running {
                    None => 0_u8.hash(&mut hash),
                    Some(running) => (running.call, running.met).hash(&mut hash),
                }
            }
            *half = hash.finish();
        }
        u128::from(halves[0]) << 64 | u128::from(halves[1])
    }

    /// Checks the rules that hold after every single access.
    fn check_always(&self) -> Result<(), String> {
        let census = self.census();
        if census.exhausted > census.active
            || census.active > census.online
            || census.online > self.hosts.len() as u32
        {
            return Err(format!("a field of the census ran over: {census:?}"));
        }
        if self.steady_mode == Some(MW_PROPORTIONAL) && complete(&census) {
            return Err(format!("all exhausted, and no new period: {census:?}"));
        }
        if self.hosts.iter().all(|host| host.running.is_none()) {
            self.check_between_calls(&census)?;
        }
        Ok(())
    }

    /// Checks the rules that hold while no call is in progress.
    fn check_between_calls(&self, census: &mw_census) -> Result<(), String> {
        let memory = self.memory();
        let cores = || memory.cores.iter().filter(|core| core.online);
        let here = |core: &&mw_core| core.epoch == census.epoch;
        let present = || cores().filter(|core| !core.away);
        let online = count(present().count());
        let active = count(present().filter(|core| !here(core) || core.active).count());
        let exhausted = count(cores().filter(|core| here(core) && core.exhausted).count());
        if (census.online, census.active, census.exhausted) != (online, active, exhausted) {
            return Err(format!(
                "census {census:?} but {online} online, {active} active, {exhausted} exhausted"
            ));
        }
        for core in cores().filter(|core| core.best_effort) {
            if !self.books.released.contains(&core.epoch) {
                return Err(format!("unregulated in epoch {} for no reason", core.epoch));
            }
        }
        for resource in 0..MW_RESOURCES {
            let resting = cores().filter(|core| core.resting);
            let offered: u64 = resting.map(|core| core.account[resource].offered).sum();
            if memory.policy.offered[resource].value != offered {
                return Err(format!(
                    "resting cores offer {offered}, and not {}",
                    memory.policy.offered[resource].value
                ));
            }
        }
        for pool in memory.policy.pool {
            if pool.value >> 43 != census.epoch {
                return Err(format!(
                    "pool {:#x} of another epoch: {census:?}",
                    pool.value
                ));
            }
        }
        self.check_ledger(&memory)
    }

    /// Assigned and remaining events of an epoch add up to the budgets, plus the offers of cores that have not begun
    /// it. An offer may be missing.
    fn check_ledger(&self, memory: &Memory) -> Result<(), String> {
        for resource in 0..MW_RESOURCES {
            let pool = memory.policy.pool[resource].value;
            for Grant { epoch, .. } in &self.books.grants {
                let (mut budgets, mut assigned) = (0, 0);
                for grant in &self.books.grants {
                    if grant.epoch == *epoch && grant.budget[resource] != MW_UNLIMITED {
                        budgets += grant.budget[resource];
                        assigned += grant.assigned[resource];
                    }
                }
                let withdrawn: u64 = self
                    .books
                    .withdrawn
                    .iter()
                    .filter(|(when, _)| when == epoch && resource == 0)
                    .map(|(_, events)| events)
                    .sum();
                let absent = (0..self.hosts.len()).filter(|&core| {
                    let mut grants = self.books.grants.iter();
                    !grants.any(|grant| grant.core == core && grant.epoch == *epoch)
                });
                let offered: u64 = absent.map(|core| self.books.offers[core][resource]).sum();
                let offers = self.books.offers.iter().any(|offer| offer[resource] > 0);
                let current = pool >> 43 == *epoch;
                let left = if current { pool & ((1 << 43) - 1) } else { 0 };
                let total = assigned + left + withdrawn;
                if total > budgets + offered || current && !offers && total != budgets {
                    return Err(format!(
                        "epoch {epoch}, resource {resource}: handed out {assigned}, \
                         left {left}, withdrawn {withdrawn}, budgets {budgets}, offered {offered}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks the rules that hold once every script and every kick is done.
    fn check_end(&mut self, scenario: &Scenario) -> Result<(), String> {
        let census = self.census();
        let memory = self.memory();
        for (core, state) in memory.cores.iter().enumerate() {
            if !state.online {
                if state.throttled {
                    return Err(format!("core {core} is throttled and offline"));
                }
                continue;
            }
            let here = state.epoch == census.epoch;
            let due = census.released || self.steady_mode == Some(MW_SPARE) && complete(&census);
            if here && state.throttled && due {
                return Err(format!("core {core} missed its release: {census:?}"));
            }
            let stopped = state.throttled || state.best_effort || state.rt.value != 0;
            if here && state.exhausted && !stopped {
                return Err(format!("core {core} runs on without a reason"));
            }
            if !here && self.books.last_was_shared {
                return Err(format!("core {core} missed the new period: {census:?}"));
            }
            if state.throttled && state.rt.value != 0 {
                return Err(format!("real-time core {core} is throttled"));
            }
        }
        self.check_decisions()?;
        (scenario.finally)(self)?;

        for core in 0..self.hosts.len() {
            if self.core(core).online {
                let used = self.hosts[core].used;
                let number = self.core(core).epoch + 1;
                self.alone(core, Call::Begin(number, false, used));
                if self.core(core).throttled {
                    return Err(format!("core {core} is throttled past a period's begin"));
                }
            }
        }
        self.check_always()
    }

    /// Checks that exactly one core announced each best-effort decision.
    fn check_decisions(&self) -> Result<(), String> {
        let books = &self.books;
        if books.new_period != books.shared_openings {
            return Err(format!(
                "{} new periods opened, {} announced",
                books.shared_openings, books.new_period
            ));
        }
        if books.release_all != count(books.released.len()) {
            return Err(format!(
                "{} epochs released, announced {} times",
                books.released.len(),
                books.release_all
            ));
        }
        Ok(())
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).expect("few")
}

fn complete(census: &mw_census) -> bool {
    census.exhausted > 0 && census.exhausted == census.active
}

/// Unpacks the census word as policy.h defines it.
fn unpack(word: u64) -> mw_census {
    let field = |shift: u32| (word >> shift & 0x3fff) as u32;
    mw_census {
        epoch: word >> 43,
        released: word >> 42 & 1 == 1,
        online: field(28),
        active: field(14),
        exhausted: field(0),
    }
}

fn give_back(routine: Routine) {
    STACKS.with_borrow_mut(|stacks| stacks.push(routine.into_stack()));
}

impl Drop for World {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            if let Some(mut running) = host.running.take() {
                // SAFETY: the abandoned frames belong to policy.c and perform(), and own nothing that must be dropped.
                unsafe { running.routine.force_reset() };
                give_back(running.routine);
            }
        }
    }
}

/// Statistics of an exploration.
#[derive(Debug, Default)]
pub struct Seen {
    /// Number of different complete schedules.
    pub schedules: u128,
    pub states: usize,
    /// The longest schedule, in choices.
    pub depth: usize,
    /// Number of different end states.
    pub ends: usize,
}

/// A schedule that breaks a rule.
#[derive(Debug)]
pub struct Broken {
    pub rule: String,
    pub schedule: String,
}

struct Node {
    key: u128,
    choices: Vec<Choice>,
    next: usize,
    schedules: u128,
}

/// Follows every schedule of a scenario; `merge` expands equal states once.
pub fn explore(
    variant: &'static Variant,
    scenario: &Scenario,
    merge: bool,
) -> Result<Seen, Broken> {
    let mut seen = Seen::default();
    let mut known: HashMap<u128, u128> = HashMap::new();
    let mut ends = std::collections::HashSet::new();
    let mut path: Vec<Node> = Vec::new();
    let begin = World::new(variant, scenario);
    let mut world = begin.again();
    loop {
        // Descend: the state is new, an end, or known.
        let key = world.key();
        let choices = world.choices();
        let broken = |rule, path: &[Node]| Broken {
            rule,
            schedule: describe(path),
        };
        let mut schedules = 0;
        if let (true, Some(through)) = (merge, known.get(&key)) {
            schedules = *through;
        } else {
            world.check_always().map_err(|rule| broken(rule, &path))?;
            if choices.is_empty() {
                ends.insert(key);
                world
                    .check_end(scenario)
                    .map_err(|rule| broken(rule, &path))?;
                schedules = 1;
                known.insert(key, 1);
            }
        }
        if schedules == 0 {
            world.apply(choices[0]);
            path.push(Node {
                key,
                choices,
                next: 1,
                schedules: 0,
            });
            seen.depth = seen.depth.max(path.len());
            continue;
        }
        // Backtrack to the last state with a remaining choice.
        loop {
            let Some(top) = path.last_mut() else {
                seen.schedules = schedules;
                seen.states = known.len();
                seen.ends = ends.len();
                return Ok(seen);
            };
            top.schedules += schedules;
            if top.next < top.choices.len() {
                top.next += 1;
                break;
            }
            schedules = top.schedules;
            known.insert(top.key, schedules);
            path.pop();
        }
        world = begin.again();
        for node in &path {
            world.apply(node.choices[node.next - 1]);
        }
    }
}

fn describe(path: &[Node]) -> String {
    path.iter()
        .map(|node| {
            let (core, turn) = node.choices[node.next - 1];
            match turn {
                Turn::Step => format!("{core}"),
                Turn::Script => format!("{core}:script"),
                Turn::Join => format!("{core}:join"),
                Turn::Release => format!("{core}:release"),
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}
