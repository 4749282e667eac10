// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ctrl-C and its kin, so that an experiment ends in order: children ended, guard put back, results kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memwarden_workloads::Stop;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::Error;

/// A walk that must end, too.
impl From<&Interrupt> for Stop {
    fn from(interrupt: &Interrupt) -> Self {
        Self::on(Arc::clone(&interrupt.0))
    }
}

/// Set by a signal. More of them change nothing: to end at once would leave the guard as it is.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches SIGINT, SIGTERM and SIGHUP from now on.
    ///
    /// # Errors
    /// When the signals can't be caught.
    pub fn catch() -> Result<Self, Error> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let catch = |source| Error::Process {
                action: "catching",
                what: format!("signal {signal}"),
                source,
            };
            signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(catch)?;
        }
        Ok(Self(flag))
    }

    /// A signal came.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// As if a signal had come.
    #[cfg(test)]
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Ends what is going on when a signal came.
    ///
    /// # Errors
    /// [`Error::Interrupted`] when it did.
    pub fn check(&self) -> Result<(), Error> {
        if self.came() {
            Err(Error::Interrupted)
        } else {
            Ok(())
        }
    }
}
