// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guard for the length of one command or experiment: whatever happens, it is left as it was found.

use crate::{Error, Regulator, Settings, StartOptions};

/// A running guard that is put back at the end: by [`Session::end`], or when dropped, panics included.
pub struct Session {
    guard: Box<dyn Regulator>,
    /// `None` when this session started the guard, and so stops it.
    earlier: Option<Settings>,
    open: bool,
}

impl Session {
    /// Starts the guard, or takes over the one that is running and remembers its settings.
    ///
    /// # Errors
    /// When it can't be started or read.
    pub fn begin(mut guard: Box<dyn Regulator>, options: &StartOptions) -> Result<Self, Error> {
        let earlier = if guard.is_running() {
            Some(guard.settings()?)
        } else {
            guard.start(options)?;
            None
        };
        Ok(Self {
            guard,
            earlier,
            open: true,
        })
    }

    /// The guard was running before this session.
    pub fn took_over(&self) -> bool {
        self.earlier.is_some()
    }

    /// The guard, to look at.
    pub fn regulator(&self) -> &dyn Regulator {
        self.guard.as_ref()
    }

    /// The guard, to be set.
    pub fn guard(&mut self) -> &mut dyn Regulator {
        self.guard.as_mut()
    }

    /// Puts everything back.
    ///
    /// # Errors
    /// When the guard refuses.
    pub fn end(mut self) -> Result<(), Error> {
        self.close()
    }

    fn close(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.open) {
            return Ok(());
        }
        match &self.earlier {
            Some(earlier) => self.guard.restore(earlier),
            None => self.guard.stop(),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            eprintln!("memwarden: putting the guard back as it was: {error}");
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

    /// One guard behind several handles, as the kernel's module is behind several processes.
    #[derive(Clone)]
    pub(crate) struct Shared {
        null: Rc<RefCell<Null>>,
        offline: Rc<RefCell<BTreeSet<usize>>>,
        refuses: Rc<Cell<bool>>,
    }

    impl Shared {
        /// Not started, with two cores.
        pub(crate) fn new() -> Self {
            Self {
                null: Rc::new(RefCell::new(Null::new((0..2).collect()))),
                offline: Rc::default(),
                refuses: Rc::default(),
            }
        }

        /// The core goes, and forgets its budget.
        pub(crate) fn unplug(&mut self, cpu: usize) {
            self.set_budgets(Resource::Read, &Request::events_for_cpu(cpu, None))
                .unwrap();
            self.offline.borrow_mut().insert(cpu);
        }

        /// It comes back.
        pub(crate) fn plug(&self, cpu: usize) {
            self.offline.borrow_mut().remove(&cpu);
        }

        /// What a machine does whose module is gone.
        pub(crate) fn refuse_to_start(&self, refuse: bool) {
            self.refuses.set(refuse);
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
            self.null.borrow_mut().start(options)
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
            self.null.borrow_mut().set_rt(cpu, rt)
        }
        fn statistics(&self) -> Result<Vec<CoreStatistics>, Error> {
            self.null.borrow().statistics()
        }
        fn reset_statistics(&mut self) -> Result<(), Error> {
            self.null.borrow_mut().reset_statistics()
        }
        fn stop(&mut self) -> Result<(), Error> {
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
}
