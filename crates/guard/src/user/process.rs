// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the process of every regulator does: it ends with its supervisor, and a panic ends it at once.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use memwarden_platform::clock::monotonic_ns;
use memwarden_platform::shared::SharedWords;
use memwarden_platform::{file_limit, sched};
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::WATCHDOG_PRIORITY;
use crate::Error;

/// How often the watcher checks.
const LOOK: Duration = Duration::from_millis(20);

/// Without a heartbeat from the supervisor for this long, and for this many checks, the regulator ends. If the machine
/// stood still, as during a suspend, the watcher may be the first of both to run again.
const SUPERVISOR_LOST_NS: u64 = 1_000_000_000;
const SUPERVISOR_LOST_LOOKS: u32 = 5;

/// Heartbeat value with which the supervisor orders the regulator to end.
pub(super) const ASKED_TO_END: u64 = u64::MAX;

/// Stack size of a thread; small, because all memory is locked.
const STACK_BYTES: usize = 256 << 10;

/// Called at the start of the process. Returns the flag that orders the process to end, and the words shared with the
/// supervisor. The last word is the supervisor's heartbeat.
///
/// # Errors
/// When the system refuses one of the safety measures.
pub(crate) fn enter(words: OwnedFd) -> Result<(Arc<AtomicBool>, Arc<SharedWords>), Error> {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("memwarden: the user-space regulator panicked: {panic}");
        std::process::abort();
    }));
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Error::System(format!("cannot catch signal {signal}: {error}")))?;
    }
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(|errno| {
        Error::System(format!(
            "cannot request a signal at the supervisor's end: {errno}"
        ))
    })?;
    // A regulator has four files for each CPU, and starts no process.
    file_limit::raise();
    sched::lock_memory().map_err(Error::platform)?;
    let words = SharedWords::from_descriptor(words).map_err(Error::platform)?;
    Ok((stop, Arc::new(words)))
}

/// Starts a thread that ends the regulator when its supervisor has ended or orders it to. However the regulator ends,
/// the thread calls `free`, because nothing else would release what a stuck thread holds.
pub(crate) fn start_watcher(
    words: Arc<SharedWords>,
    stop: &Arc<AtomicBool>,
    free: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let begun = Arc::new(Mailbox::default());
    let told = Arc::clone(&begun);
    let parent = rustix::process::getppid();
    let stop = Arc::clone(stop);
    let watch = move || {
        let outcome = sched::set_fifo(WATCHDOG_PRIORITY);
        let failed = outcome.is_err();
        told.put(outcome);
        if failed {
            return;
        }
        let beat = words.last().expect("one word more than threads");
        let mut heartbeat = Heartbeat::default();
        while !stop.load(Ordering::Acquire) {
            thread::sleep(LOOK);
            let sign = beat.load(Ordering::Acquire);
            if sign == ASKED_TO_END {
                stop.store(true, Ordering::Release);
                break;
            }
            if heartbeat.is_lost(sign, monotonic_ns()) || rustix::process::getppid() != parent {
                stop.store(true, Ordering::Release);
                eprintln!(
                    "memwarden: the supervisor of the user-space regulator has ended; regulation ends"
                );
            }
        }
        // Called at this priority, because an ordinary thread may have to wait for a throttled core.
        free();
    };
    let thread = spawn("watcher", watch)?;
    begun.wait().map_err(Error::platform)?;
    Ok(thread)
}

/// The supervisor's heartbeat, as the watcher finds it.
#[derive(Debug, Default)]
struct Heartbeat {
    late_looks: u32,
}

impl Heartbeat {
    /// True if there has been no heartbeat for too long. The last one was at `beat_ns`.
    fn is_lost(&mut self, beat_ns: u64, now_ns: u64) -> bool {
        if now_ns.saturating_sub(beat_ns) > SUPERVISOR_LOST_NS {
            self.late_looks += 1;
        } else {
            self.late_looks = 0;
        }
        self.late_looks >= SUPERVISOR_LOST_LOOKS
    }
}

/// Messages between the regulator's threads, whatever their priorities.
///
/// The standard library's channel is unsuitable: while a sender writes its message, the receiver spins. With a higher
/// priority on the sender's CPU, the receiver would spin forever. A thread that waits for a mutex sleeps.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    messages: Mutex<VecDeque<T>>,
    came: Condvar,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self {
            messages: Mutex::default(),
            came: Condvar::new(),
        }
    }
}

impl<T> Mailbox<T> {
    pub fn put(&self, message: T) {
        self.messages().push_back(message);
        self.came.notify_one();
    }

    /// Waits for the next message.
    pub fn wait(&self) -> T {
        let mut messages = self.messages();
        loop {
            if let Some(message) = messages.pop_front() {
                return message;
            }
            messages = self
                .came
                .wait(messages)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next message, if there is one.
    pub fn take(&self) -> Option<T> {
        self.messages().pop_front()
    }

    fn messages(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a thread with a small stack.
pub(crate) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    thread::Builder::new()
        .name(name.into())
        .stack_size(STACK_BYTES)
        .spawn(body)
        .map_err(|error| Error::System(format!("cannot start a thread: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_supervisor_without_a_heartbeat_is_lost_after_a_second() {
        let mut heartbeat = Heartbeat::default();
        let lost = (1..).find(|look| heartbeat.is_lost(20 * MS, look * 20 * MS));
        assert_eq!(lost, Some(56));
    }

    #[test]
    fn no_supervisor_is_lost_when_the_machine_stood_still() {
        let mut heartbeat = Heartbeat::default();
        // A suspend of five seconds, after which the supervisor is the second to run, again and again.
        for since_ms in [0, 6000, 12_000] {
            for (beat_ms, now_ms) in [(10, 20), (10, 5040), (10, 5060), (5070, 5080)] {
                assert!(!heartbeat.is_lost((since_ms + beat_ms) * MS, (since_ms + now_ms) * MS));
            }
        }
    }

    #[test]
    fn messages_come_in_their_order_and_are_waited_for() {
        let mailbox = Arc::new(Mailbox::default());
        assert_eq!(mailbox.take(), None);
        let other = Arc::clone(&mailbox);
        let sender = thread::spawn(move || (0..1000).for_each(|number| other.put(number)));
        for number in 0..1000 {
            assert_eq!(mailbox.wait(), number);
        }
        sender.join().unwrap();
        assert_eq!(mailbox.take(), None);
    }
}
