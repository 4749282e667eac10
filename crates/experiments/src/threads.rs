// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads of an experiment: a thread that can't start ends the others instead of leaving them waiting.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use crate::Error;

/// The result of a thread; its panic goes on here.
pub(crate) fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Starts a thread. [`Scope::spawn`] panics if the system refuses, and the scope then waits for the other threads.
pub(crate) fn started<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Error> {
    let thread = Builder::new().spawn_scoped(scope, work);
    thread.map_err(|reason| {
        Error::workload(
            "starting a thread",
            format!("{reason}; its limits are ulimit -u, the control group's pids.max, and memory"),
        )
    })
}

/// Runs each of `works` on a thread of its own; returns their results in order. Each waits at the gate until all
/// threads are there.
pub(crate) fn at_once<T: Send>(
    works: Vec<impl FnOnce(&Gate) -> Result<T, Error> + Send>,
) -> Result<Vec<T>, Error> {
    let gate = Gate::of(works.len());
    std::thread::scope(|scope| {
        let threads: Result<Vec<_>, Error> = works
            .into_iter()
            .map(|work| started(scope, || work(&gate)))
            .collect();
        let threads = threads.inspect_err(|_| gate.abandon())?;
        threads.into_iter().map(joined).collect()
    })
}

/// Where threads wait for each other before they begin. Unlike a [`std::sync::Barrier`] it can be abandoned.
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    missing: usize,
    abandoned: bool,
}

impl Gate {
    /// A gate that opens once `threads` threads wait at it.
    fn of(threads: usize) -> Self {
        Self {
            state: Mutex::new(State {
                missing: threads,
                abandoned: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Waits for the other threads. Fails if one of them could not be started.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.missing = state.missing.saturating_sub(1);
        self.changed.notify_all();
        while state.missing > 0 && !state.abandoned {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.abandoned {
            return Err(Error::workload(
                "threads that begin together",
                "one of them could not be started",
            ));
        }
        Ok(())
    }

    /// Lets the waiting threads fail.
    fn abandon(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.abandoned = true;
        self.changed.notify_all();
    }
}

/// Sets its flag when dropped, also after an error: threads that look at the flag end.
pub(crate) struct Ends<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn threads_begin_together() {
        let there = AtomicUsize::new(0);
        let works = (0..5)
            .map(|number| {
                let there = &there;
                move |gate: &Gate| {
                    there.fetch_add(1, Ordering::Relaxed);
                    gate.wait()?;
                    Ok::<_, Error>((number, there.load(Ordering::Relaxed)))
                }
            })
            .collect();
        let expected: Vec<_> = (0..5).map(|number| (number, 5)).collect();
        assert_eq!(at_once(works).unwrap(), expected);
    }

    #[test]
    fn an_abandoned_gate_holds_no_thread() {
        let gate = Gate::of(3);
        std::thread::scope(|scope| {
            let waiting = [(), ()].map(|()| scope.spawn(|| gate.wait()));
            gate.abandon();
            for one in waiting {
                let message = joined(one).unwrap_err().to_string();
                assert!(message.ends_with("could not be started"), "{message}");
            }
        });
    }
}
