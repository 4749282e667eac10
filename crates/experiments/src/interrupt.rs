// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ctrl-C and other signals to end: the experiment ends its children, restores the guard and keeps its results.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use memwarden_workloads::Stop;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::Error;

/// The longest sleep between two checks.
const SLICE: Duration = Duration::from_millis(200);

/// Lets an interrupt stop a walk of the memory workloads.
impl From<&Interrupt> for Stop {
    fn from(interrupt: &Interrupt) -> Self {
        Self::on(Arc::clone(&interrupt.came))
    }
}

/// The number of the last signal that any instance caught; 0 if none.
static LAST: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// Set by a signal. Further signals change nothing: an immediate exit would leave the guard as it is.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    came: Arc<AtomicBool>,
    /// The number of the last signal that this instance caught; 0 if none.
    signal: Arc<AtomicUsize>,
    /// Checks left before it acts as if a signal had come; 0 for no limit.
    #[cfg(test)]
    checks: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Catches SIGINT, SIGTERM, SIGHUP and SIGQUIT from now on.
    ///
    /// # Errors
    /// When the signals can't be caught.
    pub fn catch() -> Result<Self, Error> {
        Self::by(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT])
    }

    /// Like [`Interrupt::catch`], but leaves SIGHUP to the caller: for a service, it means to read a file again.
    ///
    /// # Errors
    /// When the signals can't be caught.
    pub fn catch_but_hangup() -> Result<Self, Error> {
        Self::by(&[SIGINT, SIGTERM, SIGQUIT])
    }

    fn by(signals: &[i32]) -> Result<Self, Error> {
        let caught = Self::default();
        let last = LAST.get_or_init(Arc::default);
        for &signal in signals {
            let catch = |source| Error::process("catching", format!("signal {signal}"), source);
            // Store the numbers first: a thread that sees `came` may read them at once.
            let number = usize::try_from(signal).unwrap_or(0);
            for place in [&caught.signal, last] {
                signal_hook::flag::register_usize(signal, Arc::clone(place), number)
                    .map_err(catch)?;
            }
            signal_hook::flag::register(signal, Arc::clone(&caught.came)).map_err(catch)?;
        }
        // A signal between two registrations stored the first number only.
        let signal = caught.signal.load(Ordering::SeqCst);
        if signal != 0 {
            last.store(signal, Ordering::SeqCst);
            caught.came.store(true, Ordering::Relaxed);
        }
        Ok(caught)
    }

    /// True if a signal came.
    pub fn came(&self) -> bool {
        self.came.load(Ordering::Relaxed)
    }

    /// The number of the last signal that this instance caught.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        let number = i32::try_from(self.signal.load(Ordering::SeqCst)).ok();
        number.filter(|number| *number != 0)
    }

    /// The number of the last signal that this process caught.
    #[must_use]
    pub fn last() -> Option<i32> {
        let number = i32::try_from(LAST.get()?.load(Ordering::SeqCst)).ok();
        number.filter(|number| *number != 0)
    }

    /// Acts as if a signal had come.
    #[cfg(test)]
    pub(crate) fn set(&self) {
        self.came.store(true, Ordering::Relaxed);
    }

    /// Progress that acts as if a signal had come once `steps` are done.
    #[cfg(test)]
    pub(crate) fn after(&self, steps: usize) -> impl crate::Progress + use<> {
        struct After(Interrupt, usize);
        impl crate::Progress for After {
            fn step(&mut self, done: usize, _: usize, _: &str) {
                if done >= self.1 {
                    self.0.set();
                }
            }
        }
        After(self.clone(), steps)
    }

    /// Acts as if a signal had come before the check after `checks` of them.
    #[cfg(test)]
    pub(crate) fn after_checks(checks: usize) -> Self {
        let interrupt = Self::default();
        interrupt.checks.store(checks + 1, Ordering::Relaxed);
        interrupt
    }

    /// Fails if a signal came.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if a signal came.
    pub fn check(&self) -> Result<(), Error> {
        #[cfg(test)]
        if self.checks.load(Ordering::Relaxed) > 0
            && self.checks.fetch_sub(1, Ordering::Relaxed) == 1
        {
            self.set();
        }
        if self.came() {
            Err(Error::Interrupted)
        } else {
            Ok(())
        }
    }

    /// Waits for `time`, or until a signal comes.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if a signal came.
    pub fn wait(&self, time: Duration) -> Result<(), Error> {
        let begun = Instant::now();
        while let Some(left) = time
            .checked_sub(begun.elapsed())
            .filter(|left| !left.is_zero())
        {
            self.check()?;
            std::thread::sleep(left.min(SLICE));
        }
        Ok(())
    }
}
