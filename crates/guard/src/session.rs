// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guard for the duration of one command or experiment. Whatever happens, its previous state is restored.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use crate::budget::Events;
use crate::claims::{Budgets, Claim, Held, Locked};
use crate::units::mib_s;
use crate::user::places::Places;
use crate::{Error, Regulator, Resource, Settings, StartOptions};

/// A running guard whose previous state is restored at the end: by [`Session::end`], or on drop, also after a panic.
///
/// Several processes may have sessions with the same guard, on different cores or with equal budgets. Each session's
/// changes are undone when it ends. A guard that was started for a session stops with the last one.
pub struct Session {
    guard: Box<dyn Regulator>,
    /// `None` if this session started the guard.
    earlier: Option<Settings>,
    open: bool,
    /// `None` if no other process can use the guard.
    shared: Option<Shared>,
}

/// This session's place among those of other processes.
struct Shared {
    places: Places,
    claim: Claim,
    held: Option<Held>,
    /// Held from the beginning until the cores are taken, so that no other session begins meanwhile.
    lock: Option<Locked>,
    /// Period, mode and exemptions are restored, too.
    settings: bool,
}

/// A budget that a session requests for a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// The core.
    pub cpu: usize,
    /// The traffic that the budget limits.
    pub resource: Resource,
    /// Events per period.
    pub events: Events,
}

/// How a session holds its cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Another session cannot give them other budgets.
    Firm,
    /// Another session can.
    Loose,
}

impl Session {
    /// Starts the guard, or takes over the running one and saves its settings. No other session can use it meanwhile.
    ///
    /// # Errors
    /// When the guard cannot be started or read, or another process has a session with it.
    pub fn begin(guard: Box<dyn Regulator>, options: &StartOptions) -> Result<Self, Error> {
        Self::begin_below(&Places::of_system(), guard, options)
    }

    fn begin_below(
        places: &Places,
        guard: Box<dyn Regulator>,
        options: &StartOptions,
    ) -> Result<Self, Error> {
        let lock = lock(places, guard.as_ref(), &|| false)?;
        let mut session = Self::open(places, lock, guard, options)?;
        session.take_all()?;
        Ok(session)
    }

    /// Starts the guard that `choose` returns, or joins the sessions with the running one. Other sessions wait until
    /// this one has [taken](Session::take) its cores. Waits for the lock only until `interrupted` returns true; the
    /// guard is not started then.
    ///
    /// # Errors
    /// When the guard cannot be started or read, or another process holds the lock for more than a minute;
    /// [`Error::Interrupted`] if it was interrupted.
    pub fn share_unless(
        choose: impl Fn() -> Result<Box<dyn Regulator>, Error>,
        options: &StartOptions,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Self, Error> {
        Self::share_below(&Places::of_system(), choose, options, interrupted)
    }

    fn share_below(
        places: &Places,
        choose: impl Fn() -> Result<Box<dyn Regulator>, Error>,
        options: &StartOptions,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Self, Error> {
        let guard = choose()?;
        let lock = lock(places, guard.as_ref(), interrupted)?;
        // Another session may have started a guard while this one waited.
        let guard = if lock.is_some() { choose()? } else { guard };
        if interrupted() {
            return Err(Error::Interrupted);
        }
        Self::open(places, lock, guard, options)
    }

    fn open(
        places: &Places,
        lock: Option<Locked>,
        mut guard: Box<dyn Regulator>,
        options: &StartOptions,
    ) -> Result<Self, Error> {
        let runs = guard.is_running();
        if !runs {
            guard.start(options)?;
        }
        let mut session = Self {
            guard,
            earlier: None,
            open: true,
            shared: None,
        };
        if let Some(lock) = lock {
            let claim = Claim {
                pid: std::process::id(),
                verb: own_verb(),
                guard: session.guard.instance().unwrap_or_default(),
                stops: !runs,
                whole: false,
                yields: false,
                before: BTreeMap::new(),
                origin: BTreeMap::new(),
                period_us: 0,
                control: None,
            };
            session.shared = Some(Shared {
                places: places.clone(),
                claim,
                held: None,
                lock: Some(lock),
                settings: false,
            });
            session.join(runs)?;
        }
        if runs {
            session.earlier = Some(session.guard.settings()?);
        }
        Ok(session)
    }

    /// Looks for other sessions, and restores what killed ones left.
    fn join(&mut self, runs: bool) -> Result<(), Error> {
        let (guard, shared) = (self.guard.as_mut(), self.shared.as_mut());
        let Some((shared, lock)) = shared.and_then(|shared| {
            let lock = shared.lock.take()?;
            Some((shared, lock))
        }) else {
            return Ok(());
        };
        let outcome = if runs {
            let (living, left) = lock.others(&shared.claim.guard, None);
            shared.claim.stops = living.iter().chain(&left).any(|claim| claim.stops);
            put_back(guard, &left.iter().collect::<Vec<_>>(), &living)
        } else {
            Ok(())
        };
        lock.sweep();
        shared.lock = Some(lock);
        outcome
    }

    /// Takes the whole guard; its present settings are restored at the end.
    fn take_all(&mut self) -> Result<(), Error> {
        let Some(shared) = &mut self.shared else {
            return Ok(());
        };
        let Some(lock) = shared.lock.take() else {
            return Ok(());
        };
        let (living, _) = lock.others(&shared.claim.guard, None);
        if let Some(other) = living.first() {
            return Err(Error::BadInput(format!(
                "{} uses the guard, and this would change its budgets; wait until it ends",
                other.holder()
            )));
        }
        let settings = self.guard.settings()?;
        shared.claim.whole = true;
        shared.settings = true;
        shared.claim.before = settings
            .read_budget_events
            .keys()
            .map(|&cpu| (cpu, Budgets::of(&settings, cpu)))
            .collect();
        shared.claim.period_us = settings.control.period_us;
        shared.claim.control = Some(settings.control);
        shared.held = Some(lock.write(&shared.claim, None)?);
        Ok(())
    }

    /// Takes the cores of these wishes, in place of those that the session has, and calls `set` to set their budgets.
    ///
    /// # Errors
    /// When another session holds such a core at another budget or has the whole guard, or `set` fails.
    pub fn take<E: From<Error>>(
        &mut self,
        wishes: &[Wish],
        hold: Hold,
        set: impl FnOnce(&mut dyn Regulator) -> Result<(), E>,
    ) -> Result<(), E> {
        self.take_unless(wishes, hold, &|| false, |guard, _| set(guard))
    }

    /// Like [`Session::take`], but waits for the lock only until `interrupted` returns true. The cores stay as they are
    /// then. `set` also gets the cores that other sessions hold firmly. If it fails, the session keeps the cores that it
    /// had, unless these are its first.
    ///
    /// # Errors
    /// As for [`Session::take`]; [`Error::Interrupted`] if it was interrupted.
    pub fn take_unless<E: From<Error>>(
        &mut self,
        wishes: &[Wish],
        hold: Hold,
        interrupted: &dyn Fn() -> bool,
        set: impl FnOnce(&mut dyn Regulator, &BTreeSet<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(shared) = &mut self.shared else {
            return set(self.guard.as_mut(), &BTreeSet::new());
        };
        let lock = match shared.lock.take() {
            Some(lock) => lock,
            None => Locked::wait_unless(&shared.places, interrupted)?,
        };
        same_guard(self.guard.as_ref(), &shared.claim)?;
        let (living, _) = lock.others(&shared.claim.guard, shared.held.as_ref());
        if let Some(other) = living.iter().find(|other| other.whole) {
            return Err(Error::BadInput(format!(
                "{} uses the whole guard; wait until it ends",
                other.holder()
            ))
            .into());
        }
        let settings = self.guard.settings()?;
        for wish in wishes {
            compatible(wish, &living, &settings)?;
        }
        let mut new = Claim {
            before: BTreeMap::new(),
            origin: BTreeMap::new(),
            yields: hold == Hold::Loose,
            period_us: settings.control.period_us,
            control: match (&self.earlier, shared.settings) {
                (Some(earlier), true) => Some(earlier.control.clone()),
                _ => None,
            },
            ..shared.claim.clone()
        };
        for cpu in wishes.iter().map(|wish| wish.cpu) {
            let firm = living.iter().filter(|other| !other.yields);
            let known = firm.chain([&shared.claim]);
            let before = known
                .clone()
                .find_map(|claim| claim.budgets(&claim.before, cpu, new.period_us))
                .unwrap_or_else(|| Budgets::of(&settings, cpu));
            new.before.insert(cpu, before);
            let yielding = living.iter().filter(|other| other.yields);
            let origin = known
                .chain(yielding.clone())
                .find_map(|claim| claim.budgets(&claim.origin, cpu, new.period_us))
                .or_else(|| {
                    yielding
                        .clone()
                        .find_map(|claim| claim.budgets(&claim.before, cpu, new.period_us))
                });
            if let Some(origin) = origin {
                new.origin.insert(cpu, origin);
            }
        }
        let others = living.iter().filter(|other| !other.yields);
        let others = others
            .flat_map(|other| other.before.keys().copied())
            .collect();
        // While the budgets change, the session holds the cores that it had as well.
        let old = std::mem::replace(&mut shared.claim, new);
        let mut both = shared.claim.clone();
        for (cpu, budgets) in &old.before {
            let over = budgets.map(|it| it.over(old.period_us, both.period_us));
            both.before.entry(*cpu).or_insert(over);
        }
        let had = shared.held.take();
        let first = had.is_none();
        let held = lock.write(&both, had)?;
        let outcome = set(self.guard.as_mut(), &others);
        if outcome.is_err() && !first {
            shared.claim = old;
        }
        shared.held = Some(lock.write(&shared.claim, Some(held))?);
        outcome
    }

    /// Notes the budgets of claimed cores that were offline until now, to restore them at the end.
    ///
    /// # Errors
    /// As for [`Session::take_unless`].
    pub(crate) fn note_online(
        &mut self,
        settings: &Settings,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let Some(shared) = &mut self.shared else {
            return Ok(());
        };
        let period_us = settings.control.period_us;
        let missing = shared
            .claim
            .before
            .iter()
            .filter(|(_, budgets)| budgets.is_none());
        let found: Vec<(usize, Budgets)> = missing
            .filter_map(|(&cpu, _)| Some((cpu, Budgets::of(settings, cpu)?)))
            .collect();
        if found.is_empty() {
            return Ok(());
        }
        let lock = Locked::wait_unless(&shared.places, interrupted)?;
        for (cpu, budgets) in found {
            let budgets = budgets.over(period_us, shared.claim.period_us);
            shared.claim.before.insert(cpu, Some(budgets));
        }
        shared.held = Some(lock.write(&shared.claim, shared.held.take())?);
        Ok(())
    }

    /// `settings`, with the budgets of this session's cores as they were before any session.
    #[must_use]
    pub(crate) fn without_claims(&self, mut settings: Settings) -> Settings {
        if let Some(shared) = &self.shared {
            set_before(&mut settings, &[&shared.claim], &[]);
        }
        settings
    }

    /// Makes the session restore the period, the mode and the exemptions at the end, too.
    pub fn keep_settings(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.settings = true;
        }
    }

    /// Describes another process that has a session with this guard, if there is one.
    ///
    /// # Errors
    /// When this process may not use the runtime folder.
    pub fn another(&self) -> Result<Option<String>, Error> {
        let Some(shared) = &self.shared else {
            return Ok(None);
        };
        let waited = match &shared.lock {
            Some(_) => None,
            None => Some(Locked::wait(&shared.places)?),
        };
        let lock = shared.lock.as_ref().or(waited.as_ref());
        let others = lock.map(|lock| lock.others(&shared.claim.guard, shared.held.as_ref()));
        Ok(others.and_then(|(living, _)| Some(living.first()?.holder())))
    }

    /// True if the guard that this session began with is still running.
    pub fn lives(&self) -> bool {
        match &self.shared {
            Some(shared) => self.guard.instance().as_ref() == Some(&shared.claim.guard),
            None => self.guard.is_running(),
        }
    }

    /// True if the guard was running before this session.
    pub fn took_over(&self) -> bool {
        self.earlier.is_some()
    }

    /// The guard, for reading.
    pub fn regulator(&self) -> &dyn Regulator {
        self.guard.as_ref()
    }

    /// The guard, for changing its settings.
    pub fn guard(&mut self) -> &mut dyn Regulator {
        self.guard.as_mut()
    }

    /// Restores everything.
    ///
    /// # Errors
    /// When the guard refuses, or has ended.
    pub fn end(mut self) -> Result<(), Error> {
        self.close(false)
    }

    /// Like [`Session::end`]. If the guard refuses and still runs, the session continues: it keeps its cores, and its end
    /// can be tried again.
    ///
    /// # Errors
    /// When the guard refuses, or has ended. [`Session::lives`] says whether the session continues.
    pub fn try_end(&mut self) -> Result<(), Error> {
        self.close(true)
    }

    fn close(&mut self, or_continue: bool) -> Result<(), Error> {
        if !self.open {
            return Ok(());
        }
        self.open = or_continue;
        let lock = match &mut self.shared {
            None => None,
            Some(shared) => Some(match shared.lock.take() {
                Some(lock) => lock,
                None => Locked::wait(&shared.places)?,
            }),
        };
        let outcome = match (&self.shared, &lock, &self.earlier) {
            (Some(shared), Some(lock), _) => leave(self.guard.as_mut(), shared, lock),
            (_, _, Some(earlier)) => self.guard.restore(earlier),
            (_, _, None) => self.guard.stop(),
        };
        self.open = or_continue && outcome.is_err() && self.lives();
        let held = self.shared.as_mut().filter(|_| !self.open);
        if let Some((held, lock)) = held.and_then(|shared| shared.held.take()).zip(lock) {
            lock.remove(held);
        }
        outcome
    }
}

/// The lock of the claims, if other processes can use the guard.
fn lock(
    places: &Places,
    guard: &dyn Regulator,
    interrupted: &dyn Fn() -> bool,
) -> Result<Option<Locked>, Error> {
    match guard.instance() {
        Some(_) => Locked::wait_unless(places, interrupted).map(Some),
        None => Ok(None),
    }
}

/// The verb of this process: `guard run`, `interfere`.
fn own_verb() -> String {
    let mut words = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned());
    match (words.next(), words.next()) {
        (Some(verb), Some(action)) if verb == "guard" => format!("{verb} {action}"),
        (verb, _) => verb.unwrap_or_default(),
    }
}

/// Refuses a second, different budget for a core.
fn compatible(wish: &Wish, living: &[Claim], settings: &Settings) -> Result<(), Error> {
    let Wish {
        cpu,
        resource,
        events,
    } = *wish;
    let budgets = match resource {
        Resource::Read => &settings.read_budget_events,
        Resource::Write => &settings.write_budget_events,
    };
    let now = budgets.get(&cpu).copied().flatten();
    let firm = |claim: &&Claim| !claim.yields && claim.before.contains_key(&cpu);
    match living.iter().find(firm) {
        Some(other) if now != events => Err(Error::BadInput(format!(
            "CPU{cpu} has {} for {}, but {} was requested; wait until it ends, give the same budget, or choose other \
             cores with --cpus",
            budget(now, settings),
            other.holder(),
            budget(events, settings),
        ))),
        _ => Ok(()),
    }
}

fn budget(events: Events, settings: &Settings) -> String {
    let control = &settings.control;
    match events {
        None => "no budget".into(),
        Some(events) => format!(
            "a budget of {:.1} MB/s",
            mib_s(events as f64, control.period_us, control.bytes_per_event)
        ),
    }
}

/// An error if the guard is not the one of this claim.
fn same_guard(guard: &dyn Regulator, claim: &Claim) -> Result<(), Error> {
    if guard.instance().as_ref() == Some(&claim.guard) {
        return Ok(());
    }
    Err(Error::System(
        "the guard has ended and another one was started, which is left unchanged".into(),
    ))
}

/// Restores what was there before these claims: the budgets of cores that none of `living` holds firmly and, where a claim
/// has them, the other settings.
fn put_back(guard: &mut dyn Regulator, claims: &[&Claim], living: &[Claim]) -> Result<(), Error> {
    let mut outcome = Ok(());
    let mut note = |step: Result<(), Error>| {
        if outcome.is_ok() {
            outcome = step;
        }
    };
    if let Some(control) = claims.iter().find_map(|claim| claim.control.as_ref()) {
        let now = guard.settings()?;
        let is = &now.control;
        if (control.period_us, control.maxbw_mib_s) != (is.period_us, is.maxbw_mib_s) {
            // A budget of the longer period may be too small for the shorter one. Those of the earlier period are valid
            // with both, as a number of events.
            let mut target = now.clone();
            target.control.period_us = control.period_us;
            set_before(&mut target, claims, living);
            target.control.period_us = is.period_us;
            note(guard.restore(&target));
            // The other cores' budgets keep their unit.
            if control.period_us != is.period_us {
                note(guard.set_period(control.period_us));
            }
            // 0 means unknown, which can't be set.
            if control.maxbw_mib_s != is.maxbw_mib_s && control.maxbw_mib_s != 0 {
                note(guard.set_maxbw(control.maxbw_mib_s));
            }
        }
    }
    let mut target = guard.settings()?;
    if let Some(control) = claims.iter().find_map(|claim| claim.control.as_ref()) {
        target.control.rt = control.rt.clone();
        target.control.best_effort = control.best_effort;
        target.control.reclaim = control.reclaim;
    }
    set_before(&mut target, claims, living);
    note(guard.restore(&target));
    outcome
}

/// Sets the budgets from before these claims, for the period of `target`, on cores that none of `living` holds firmly.
fn set_before(target: &mut Settings, claims: &[&Claim], living: &[Claim]) {
    for claim in claims {
        for (&cpu, &before) in &claim.before {
            let holders = living
                .iter()
                .filter(|other| other.before.contains_key(&cpu));
            if holders.clone().any(|other| !other.yields) {
                continue;
            }
            // A process that yielded the core has its budget back.
            let origin = claim.origin.get(&cpu).filter(|_| holders.count() == 0);
            let Some(before) = origin.copied().unwrap_or(before) else {
                continue;
            };
            let before = before.over(claim.period_us, target.control.period_us);
            if let Some(read) = target.read_budget_events.get_mut(&cpu) {
                *read = before.read;
            }
            if let (Some(write), Some(before)) =
                (target.write_budget_events.get_mut(&cpu), before.write)
            {
                *write = before;
            }
        }
    }
}

fn leave(guard: &mut dyn Regulator, shared: &Shared, lock: &Locked) -> Result<(), Error> {
    let claim = &shared.claim;
    // If the guard has ended, this returns the reason.
    guard.settings()?;
    same_guard(guard, claim)?;
    let (living, _) = lock.others(&claim.guard, shared.held.as_ref());
    if living.is_empty() && claim.stops {
        return guard.stop();
    }
    put_back(guard, &[claim], &living)
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Err(error) = self.close(false) {
            let _ = writeln!(io::stderr(), "memwarden: cannot restore the guard: {error}");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::budget::{Request, Unit};
    use crate::statistics::CoreStatistics;
    use crate::{BestEffort, Null, Resource};
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;
    use std::rc::Rc;

    /// One guard with several handles, like the kernel module with several processes.
    #[derive(Clone)]
    pub(crate) struct Shared {
        null: Rc<RefCell<Null>>,
        offline: Rc<RefCell<BTreeSet<usize>>>,
        refuses: Rc<Cell<bool>>,
        keeps_exemptions: Rc<Cell<bool>>,
        in_use: Rc<Cell<bool>>,
        /// Number of starts; `None` for a guard that no other process can use.
        starts: Option<Rc<Cell<u32>>>,
    }

    impl Shared {
        /// A guard with two cores, not started.
        pub(crate) fn new() -> Self {
            Self {
                null: Rc::new(RefCell::new(Null::new((0..2).collect()))),
                offline: Rc::default(),
                refuses: Rc::default(),
                keeps_exemptions: Rc::default(),
                in_use: Rc::default(),
                starts: None,
            }
        }

        /// The same, for sessions of several processes.
        fn for_all() -> Self {
            Self {
                starts: Some(Rc::default()),
                ..Self::new()
            }
        }

        /// Takes the core offline, which loses its budget.
        pub(crate) fn unplug(&mut self, cpu: usize) {
            self.set_budgets(Resource::Read, &Request::events_for_cpu(cpu, None))
                .unwrap();
            self.offline.borrow_mut().insert(cpu);
        }

        /// Brings the core back online.
        pub(crate) fn plug(&self, cpu: usize) {
            self.offline.borrow_mut().remove(&cpu);
        }

        /// Behaves like a machine without the module.
        pub(crate) fn refuse_to_start(&self, refuse: bool) {
            self.refuses.set(refuse);
        }

        /// Refuses to throttle a core that is exempt.
        pub(crate) fn refuse_to_end_exemptions(&self, refuse: bool) {
            self.keeps_exemptions.set(refuse);
        }

        /// Behaves like a module that another program uses, and so cannot be unloaded.
        pub(crate) fn refuse_to_stop(&self, refuse: bool) {
            self.in_use.set(refuse);
        }
    }

    impl Regulator for Shared {
        fn name(&self) -> &'static str {
            "shared"
        }
        fn start(&mut self, options: &StartOptions) -> Result<(), Error> {
            if self.refuses.get() {
                return Err(Error::NoModuleSupport);
            }
            if let Some(starts) = &self.starts {
                starts.set(starts.get() + 1);
            }
            self.null.borrow_mut().start(options)
        }
        fn instance(&self) -> Option<String> {
            let starts = self.starts.as_ref()?.get().to_string();
            Some(if self.is_running() {
                starts
            } else {
                String::new()
            })
        }
        fn is_running(&self) -> bool {
            self.null.borrow().is_running()
        }
        fn settings(&self) -> Result<Settings, Error> {
            let mut settings = self.null.borrow().settings()?;
            let offline = self.offline.borrow();
            let control = &mut settings.control;
            control.online = control
                .online
                .iter()
                .filter(|cpu| !offline.contains(cpu))
                .collect();
            settings
                .read_budget_events
                .retain(|cpu, _| !offline.contains(cpu));
            settings
                .write_budget_events
                .retain(|cpu, _| !offline.contains(cpu));
            Ok(settings)
        }
        fn set_budgets(&mut self, resource: Resource, request: &Request) -> Result<(), Error> {
            self.null.borrow_mut().set_budgets(resource, request)
        }
        fn set_mode(
            &mut self,
            best_effort: Option<BestEffort>,
            reclaim: Option<bool>,
        ) -> Result<(), Error> {
            self.null.borrow_mut().set_mode(best_effort, reclaim)
        }
        fn set_maxbw(&mut self, maxbw_mib_s: u64) -> Result<(), Error> {
            self.null.borrow_mut().set_maxbw(maxbw_mib_s)
        }
        fn set_period(&mut self, period_us: u64) -> Result<(), Error> {
            self.null.borrow_mut().set_period(period_us)
        }
        fn set_rt(&mut self, cpu: usize, rt: bool) -> Result<(), Error> {
            if !rt && self.keeps_exemptions.get() {
                return Err(Error::BadInput(format!("CPU {cpu} stays exempt")));
            }
            self.null.borrow_mut().set_rt(cpu, rt)
        }
        fn statistics(&self) -> Result<Vec<CoreStatistics>, Error> {
            self.null.borrow().statistics()
        }
        fn reset_statistics(&mut self) -> Result<(), Error> {
            self.null.borrow_mut().reset_statistics()
        }
        fn stop(&mut self) -> Result<(), Error> {
            if self.in_use.get() {
                return Err(Error::System("the guard is in use".into()));
            }
            self.null.borrow_mut().stop()
        }
    }

    fn limit(session: &mut Session) {
        session
            .guard()
            .set_budgets(
                Resource::Read,
                &Request::parse(Unit::Events, "5,6").unwrap(),
            )
            .unwrap();
    }

    #[test]
    fn a_guard_that_it_started_is_stopped() {
        let guard = Shared::new();
        let mut session =
            Session::begin(Box::new(guard.clone()), &StartOptions::default()).unwrap();
        assert!(!session.took_over());
        limit(&mut session);
        session.end().unwrap();
        assert!(!guard.is_running());
    }

    #[test]
    fn a_guard_that_was_running_gets_its_settings_back_even_after_a_panic() {
        let mut guard = Shared::new();
        guard.start(&StartOptions::default()).unwrap();
        let before = guard.settings().unwrap();
        let handle = guard.clone();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let mut session = Session::begin(Box::new(handle), &StartOptions::default()).unwrap();
            assert!(session.took_over());
            limit(&mut session);
            panic!("the experiment fell over");
        }));
        assert!(panicked.is_err());
        assert_eq!(
            guard.settings().unwrap().read_budget_events,
            before.read_budget_events
        );
        assert!(guard.is_running());
    }

    #[test]
    fn a_shorter_period_and_a_larger_budget_come_back() {
        let mut guard = Shared::new();
        let options = StartOptions {
            bytes_per_event: Some(4096),
            ..StartOptions::default()
        };
        guard.start(&options).unwrap();
        let mb = |list| Request::parse(Unit::Mb, list).unwrap();
        guard.set_budgets(Resource::Read, &mb("100")).unwrap();
        let before = guard.settings().unwrap();
        let mut session = Session::begin(Box::new(guard.clone()), &options).unwrap();
        // Less than one event in the earlier period.
        session.guard().set_period(10_000).unwrap();
        let set = session.guard().set_budgets(Resource::Read, &mb("1"));
        set.unwrap();
        session.guard().set_mode(None, Some(true)).unwrap();
        session.end().unwrap();
        assert_eq!(guard.settings().unwrap(), before);
    }

    /// Of a guard that others can use, and of one that they can't.
    #[test]
    fn write_budgets_and_exemptions_come_back() {
        let processes = Processes::new();
        for mut guard in [Shared::new(), processes.guard.clone()] {
            guard.start(&StartOptions::default()).unwrap();
            let budgets = |list| Request::parse(Unit::Events, list).unwrap();
            let set = guard.set_budgets(Resource::Write, &budgets("5,6"));
            set.unwrap();
            guard.set_rt(1, true).unwrap();
            let before = guard.settings().unwrap();
            let options = StartOptions::default();
            let places = processes.places();
            let mut session =
                Session::begin_below(&places, Box::new(guard.clone()), &options).unwrap();
            let set = session
                .guard()
                .set_budgets(Resource::Write, &budgets("max,max"));
            set.unwrap();
            session.guard().set_rt(1, false).unwrap();
            session.end().unwrap();
            assert_eq!(guard.settings().unwrap(), before);
        }
    }

    /// Sessions of several processes: each claim has its own lock, in one process as in several.
    struct Processes {
        guard: Shared,
        folder: tempfile::TempDir,
    }

    impl Processes {
        fn new() -> Self {
            Self {
                guard: Shared::for_all(),
                folder: tempfile::tempdir().unwrap(),
            }
        }
        /// With a guard that runs and has these budgets in MB/s.
        fn with_budgets(mb_s: &str) -> Self {
            let mut processes = Self::new();
            processes.guard.start(&StartOptions::default()).unwrap();
            let set = processes.guard.set_budgets(Resource::Read, &mb(mb_s));
            set.unwrap();
            processes
        }
        fn places(&self) -> Places {
            Places::below(self.folder.path().into())
        }
        fn whole(&self) -> Result<Session, Error> {
            let guard = Box::new(self.guard.clone());
            Session::begin_below(&self.places(), guard, &StartOptions::default())
        }
        /// Like `guard run`.
        fn run(&self, cpu: usize, events: u64) -> Result<Session, Error> {
            self.hold(cpu, events, Hold::Firm)
        }
        fn hold(&self, cpu: usize, events: u64, hold: Hold) -> Result<Session, Error> {
            let choose = || Ok(Box::new(self.guard.clone()) as Box<dyn Regulator>);
            let options = StartOptions::default();
            let mut session = Session::share_below(&self.places(), choose, &options, &|| false)?;
            let wish = Wish {
                cpu,
                resource: Resource::Read,
                events: Some(events),
            };
            session.take(&[wish], hold, |guard| {
                guard.set_budgets(Resource::Read, &Request::events_for_cpu(cpu, Some(events)))
            })?;
            Ok(session)
        }
        fn budgets(&self) -> Vec<Events> {
            let settings = self.guard.settings().unwrap();
            settings.read_budget_events.into_values().collect()
        }
        /// Like a kill by the kernel: nothing is restored, and the lock is released.
        fn kill(&self, mut session: Session) {
            session.open = false;
        }
    }

    #[test]
    fn the_first_of_two_sessions_that_ends_leaves_the_other_its_budget() {
        let processes = Processes::new();
        let first = processes.run(0, 5).unwrap();
        let second = processes.run(1, 6).unwrap();
        first.end().unwrap();
        assert_eq!(processes.budgets(), [None, Some(6)]);
        let third = processes.run(0, 7).unwrap();
        second.end().unwrap();
        assert_eq!(processes.budgets(), [Some(7), None]);
        third.end().unwrap();
        assert!(!processes.guard.is_running());
    }

    #[test]
    fn a_core_has_one_budget_and_equal_ones_are_shared() {
        let processes = Processes::new();
        let first = processes.run(0, 5).unwrap();
        let refused = processes.run(0, 6).err().unwrap().to_string();
        assert!(
            refused.contains("CPU0 has a budget of 0.3 MB/s for"),
            "{refused}"
        );
        assert_eq!(processes.budgets(), [Some(5), None]);
        let second = processes.run(0, 5).unwrap();
        first.end().unwrap();
        assert_eq!(processes.budgets(), [Some(5), None]);
        second.end().unwrap();
        assert!(!processes.guard.is_running());
    }

    #[test]
    fn an_interrupted_session_starts_no_guard() {
        let processes = Processes::new();
        let choose = || Ok(Box::new(processes.guard.clone()) as Box<dyn Regulator>);
        let options = StartOptions::default();
        let outcome = Session::share_below(&processes.places(), choose, &options, &|| true);
        assert!(matches!(outcome.err(), Some(Error::Interrupted)));
        assert!(!processes.guard.is_running());
        processes.run(0, 5).unwrap().end().unwrap();
    }

    #[test]
    fn an_experiment_and_a_run_exclude_each_other() {
        let processes = Processes::new();
        let run = processes.run(0, 5).unwrap();
        assert!(processes.whole().is_err());
        assert_eq!(processes.budgets(), [Some(5), None]);
        run.end().unwrap();
        let whole = processes.whole().unwrap();
        assert!(processes.run(0, 5).is_err());
        assert!(processes.guard.is_running());
        whole.end().unwrap();
        assert!(!processes.guard.is_running());
    }

    #[test]
    fn what_a_killed_session_left_is_put_back_by_the_next() {
        let processes = Processes::new();
        let killed = processes.run(0, 5).unwrap();
        processes.kill(killed);
        assert_eq!(processes.budgets(), [Some(5), None]);
        let next = processes.run(1, 6).unwrap();
        assert_eq!(processes.budgets(), [None, Some(6)]);
        // The killed session had started the guard.
        next.end().unwrap();
        assert!(!processes.guard.is_running());
    }

    #[test]
    fn a_guard_that_was_started_anew_is_not_that_of_a_killed_session() {
        let mut processes = Processes::new();
        let killed = processes.run(0, 5).unwrap();
        processes.kill(killed);
        processes.guard.stop().unwrap();
        processes.guard.start(&StartOptions::default()).unwrap();
        processes
            .guard
            .set_budgets(Resource::Read, &Request::events_for_cpu(0, Some(9)))
            .unwrap();
        processes.run(1, 6).unwrap().end().unwrap();
        assert_eq!(processes.budgets(), [Some(9), None]);
        assert!(processes.guard.is_running());
    }

    #[test]
    fn a_session_sees_that_its_guard_was_ended() {
        let mut processes = Processes::new();
        let run = processes.run(0, 5).unwrap();
        assert!(run.lives());
        processes.guard.stop().unwrap();
        assert!(!run.lives());
        processes.guard.start(&StartOptions::default()).unwrap();
        assert!(!run.lives());
        assert!(run.end().is_err());
        assert!(processes.guard.is_running());
    }

    #[test]
    fn a_session_whose_guard_refuses_to_stop_continues_until_the_guard_ends() {
        let mut processes = Processes::new();
        let mut run = processes.run(0, 5).unwrap();
        processes.guard.refuse_to_stop(true);
        assert!(run.try_end().is_err());
        assert!(run.lives());
        // It still holds its core.
        assert!(processes.run(0, 6).is_err());
        processes.guard.refuse_to_stop(false);
        let other = processes.run(1, 7).unwrap();
        run.try_end().unwrap();
        run.try_end().unwrap();
        assert_eq!(processes.budgets(), [None, Some(7)]);
        other.end().unwrap();
        assert!(!processes.guard.is_running());

        let mut run = processes.run(0, 5).unwrap();
        processes.guard.stop().unwrap();
        processes.guard.start(&StartOptions::default()).unwrap();
        assert!(run.try_end().is_err());
        assert!(!run.lives());
        processes.run(0, 6).unwrap();

        // With no second try, the core is free.
        processes.guard.stop().unwrap();
        let run = processes.run(0, 5).unwrap();
        processes.guard.refuse_to_stop(true);
        assert!(run.end().is_err());
        processes.run(0, 6).unwrap();
    }

    #[test]
    fn a_core_that_is_held_loosely_can_be_taken() {
        let mut processes = Processes::new();
        processes.guard.start(&StartOptions::default()).unwrap();
        let kept = processes.hold(0, 5, Hold::Loose).unwrap();
        let run = processes.run(0, 6).unwrap();
        assert_eq!(processes.budgets(), [Some(6), None]);
        run.end().unwrap();
        // The keeper still holds the core.
        kept.end().unwrap();
        assert!(processes.guard.is_running());
    }

    /// Like `guard serve`: changes the period and core 0's budget, and restores both.
    fn serve(processes: &Processes, period_us: u64, mb_s: &str) -> Session {
        let choose = || Ok(Box::new(processes.guard.clone()) as Box<dyn Regulator>);
        let options = StartOptions::default();
        let mut session =
            Session::share_below(&processes.places(), choose, &options, &|| false).unwrap();
        session.keep_settings();
        let wish = Wish {
            cpu: 0,
            resource: Resource::Read,
            events: None,
        };
        let set = session.take(&[wish], Hold::Firm, |guard| {
            guard.set_period(period_us)?;
            guard.set_mode(Some(BestEffort::Spare), None)?;
            guard.set_budgets(Resource::Read, &mb(mb_s))
        });
        set.unwrap();
        session
    }

    fn mb(list: &str) -> Request {
        Request::parse(Unit::Mb, list).unwrap()
    }

    #[test]
    fn a_period_that_comes_back_changes_no_rate() {
        for period_us in [10_000, 100] {
            let processes = Processes::with_budgets("1000,1000");
            let before = processes.guard.settings().unwrap();
            let served = serve(&processes, period_us, "100");
            assert_ne!(processes.guard.settings().unwrap(), before);
            served.end().unwrap();
            assert_eq!(processes.guard.settings().unwrap(), before);
        }
    }

    #[test]
    fn a_killed_session_s_period_and_mode_come_back_with_its_budgets() {
        let processes = Processes::with_budgets("1000,1000");
        let before = processes.guard.settings().unwrap();
        let served = serve(&processes, 10_000, "100");
        processes.kill(served);
        processes.run(1, 7).unwrap().end().unwrap();
        assert_eq!(processes.guard.settings().unwrap(), before);
    }

    #[test]
    fn a_killed_experiment_s_mode_and_exemptions_come_back() {
        let mut processes = Processes::with_budgets("1000,1000");
        processes.guard.set_rt(1, true).unwrap();
        processes
            .guard
            .set_mode(Some(BestEffort::Spare), None)
            .unwrap();
        let before = processes.guard.settings().unwrap();
        let mut whole = processes.whole().unwrap();
        whole.guard().set_rt(1, false).unwrap();
        whole
            .guard()
            .set_mode(Some(BestEffort::None), None)
            .unwrap();
        processes.kill(whole);
        assert_ne!(processes.guard.settings().unwrap(), before);
        processes.run(0, 7).unwrap().end().unwrap();
        assert_eq!(processes.guard.settings().unwrap(), before);
    }

    #[test]
    fn a_run_s_budget_is_put_back_at_its_rate_if_the_period_changed_meanwhile() {
        let mut processes = Processes::with_budgets("1000,1000");
        let run = processes.run(1, 500).unwrap();
        processes.guard.set_period(2000).unwrap();
        run.end().unwrap();
        assert_eq!(processes.budgets(), [Some(32768), Some(32768)]);
    }

    #[test]
    fn a_session_whose_new_budgets_are_refused_keeps_the_cores_that_it_had() {
        let processes = Processes::new();
        let mut session = processes.run(0, 5).unwrap();
        let wish = Wish {
            cpu: 1,
            resource: Resource::Read,
            events: Some(6),
        };
        let refused = session.take(&[wish], Hold::Firm, |_| {
            Err(Error::BadInput("too few events".into()))
        });
        assert!(refused.is_err());
        assert!(processes.run(0, 6).is_err());
        processes.run(1, 7).unwrap().end().unwrap();
        session.end().unwrap();
    }

    #[test]
    fn a_new_claim_names_the_cores_that_others_hold() {
        let processes = Processes::new();
        let mut session = processes.run(0, 5).unwrap();
        let run = processes.run(1, 6).unwrap();
        let taken = session.take_unless(&[], Hold::Firm, &|| false, |_, others| {
            assert_eq!(*others, BTreeSet::from([1]));
            Ok::<_, Error>(())
        });
        taken.unwrap();
        run.end().unwrap();
    }

    #[test]
    fn a_core_that_comes_online_is_claimed_from_the_beginning() {
        let mut processes = Processes::new();
        processes.guard.start(&StartOptions::default()).unwrap();
        processes.guard.unplug(1);
        let mut session = processes.hold(1, 9, Hold::Firm).unwrap();
        processes.guard.plug(1);
        let refused = processes.run(1, 8).err().unwrap().to_string();
        assert!(refused.contains("CPU1 has "), "{refused}");
        let settings = processes.guard.settings().unwrap();
        session.note_online(&settings, &|| false).unwrap();
        let set = Request::events_for_cpu(1, Some(9));
        let set = session.guard().set_budgets(Resource::Read, &set);
        set.unwrap();
        let before = settings.read_budget_events;
        session.end().unwrap();
        let after = processes.guard.settings().unwrap();
        assert_eq!(after.read_budget_events, before);
    }

    #[test]
    fn the_last_holder_of_a_core_restores_what_was_there_before_all() {
        let mut processes = Processes::new();
        processes.guard.start(&StartOptions::default()).unwrap();
        let kept = processes.hold(0, 5, Hold::Loose).unwrap();
        let run = processes.run(0, 6).unwrap();
        kept.end().unwrap();
        assert_eq!(processes.budgets(), [Some(6), None]);
        run.end().unwrap();
        assert_eq!(processes.budgets(), [None, None]);

        let kept = processes.hold(0, 5, Hold::Loose).unwrap();
        processes.run(0, 6).unwrap().end().unwrap();
        assert_eq!(processes.budgets(), [Some(5), None]);
        kept.end().unwrap();
        assert_eq!(processes.budgets(), [None, None]);
    }

    #[test]
    fn a_session_takes_nothing_of_another_guard() {
        let mut processes = Processes::new();
        processes.guard.start(&StartOptions::default()).unwrap();
        let mut session = processes.run(0, 5).unwrap();
        processes.guard.stop().unwrap();
        processes.guard.start(&StartOptions::default()).unwrap();
        let taken = session.take(&[], Hold::Firm, |_| Ok::<_, Error>(()));
        assert!(taken.is_err());
    }
}
