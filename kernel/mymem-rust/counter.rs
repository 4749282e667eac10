// SPDX-License-Identifier: GPL-2.0-only
//! Workers that increment the device's first word together, and lose increments without a lock.

use core::fmt::Write;
use core::sync::atomic::{AtomicBool, Ordering};
use kernel::prelude::*;
use kernel::sync::{new_condvar, new_mutex, Arc, CondVar, Mutex};

use crate::threads::{Thread, Work};
use crate::throughput::now_ns;
use crate::{client, Outcome};

/// Kernel threads, one for each worker.
const WORKERS_MAX: usize = 256;

/// How the increments are synchronised.
#[derive(Clone, Copy)]
pub(crate) enum Lock {
    None,
    Mutex,
    FetchAdd,
}

impl Lock {
    pub(crate) fn parse(word: &str) -> Result<Self> {
        match word {
            "none" => Ok(Self::None),
            "mutex" => Ok(Self::Mutex),
            "fetch-add" => Ok(Self::FetchAdd),
            _ => Err(EINVAL),
        }
    }
}

/// The state that the workers share.
#[pin_data]
struct Shared {
    increments: u64,
    lock: Lock,
    #[pin]
    turn: Mutex<()>,
    stop: AtomicBool,
    #[pin]
    left: Mutex<Left>,
    #[pin]
    changed: CondVar,
}

/// Number of running workers, and the first error of a worker that has ended.
struct Left {
    workers: usize,
    begun: bool,
    error: Option<Error>,
}

/// Each of `workers` adds 1 to the word at offset 0, `increments` times.
pub(crate) fn count(workers: usize, increments: u64, lock: Lock, outcome: &mut Outcome) -> Result {
    if workers > WORKERS_MAX {
        return Err(EINVAL);
    }
    let expected = increments.checked_mul(workers as u64).ok_or(EINVAL)?;
    client::write(&0u64.to_ne_bytes(), 0)?;
    let shared: Arc<Shared> = Arc::pin_init(
        pin_init!(Shared {
            increments,
            lock,
            turn <- new_mutex!(()),
            stop: AtomicBool::new(false),
            left <- new_mutex!(Left { workers: 0, begun: false, error: None }),
            changed <- new_condvar!(),
        }),
        GFP_KERNEL,
    )?;
    let mut threads = KVec::with_capacity(workers, GFP_KERNEL)?;
    let started = start(&shared, workers, &mut threads);
    let before = now_ns();
    {
        let mut left = shared.left.lock();
        left.workers = threads.len();
        left.begun = true;
        // Workers that were started before an error only have to end.
        shared.stop.store(started.is_err(), Ordering::Relaxed);
    }
    shared.changed.notify_all();
    let waited = wait(&shared);
    let elapsed = now_ns() - before;
    drop(threads);
    started?;
    waited?;
    if let Some(error) = shared.left.lock().error {
        return Err(error);
    }
    let mut word = [0; 8];
    client::read(&mut word, 0)?;
    let actual = u64::from_ne_bytes(word);
    writeln!(outcome, "{expected} {actual} {elapsed}").map_err(|_| ENOMEM)
}

/// Starts the workers; they wait for the start signal.
fn start(shared: &Arc<Shared>, workers: usize, threads: &mut KVec<Thread<Shared>>) -> Result {
    for number in 0..workers {
        threads.push(Thread::start(shared.clone(), number as u32)?, GFP_KERNEL)?;
    }
    Ok(())
}

impl Work for Shared {
    fn work(&self) {
        let outcome = begin(self);
        let mut left = self.left.lock();
        left.workers -= 1;
        if let Err(error) = outcome {
            left.error.get_or_insert(error);
        }
        drop(left);
        self.changed.notify_all();
    }
}

/// Waits until the last worker is done. A signal makes them stop, and the result is then EINTR.
fn wait(shared: &Shared) -> Result {
    let mut left = shared.left.lock();
    let mut outcome = Ok(());
    while left.workers > 0 {
        if outcome.is_ok() && shared.changed.wait_interruptible(&mut left) {
            shared.stop.store(true, Ordering::Relaxed);
            outcome = Err(EINTR);
        } else if outcome.is_err() {
            shared.changed.wait(&mut left);
        }
    }
    outcome
}

fn begin(shared: &Shared) -> Result {
    {
        let mut left = shared.left.lock();
        while !left.begun {
            shared.changed.wait(&mut left);
        }
    }
    for _ in 0..shared.increments {
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        match shared.lock {
            Lock::None => increment()?,
            Lock::Mutex => {
                let _turn = shared.turn.lock();
                increment()?;
            }
            Lock::FetchAdd => {
                client::fetch_add(0, 1)?;
            }
        }
    }
    Ok(())
}

/// Reads the word, adds 1, writes it back; another worker may do the same in between.
fn increment() -> Result {
    let mut word = [0; 8];
    client::read(&mut word, 0)?;
    let next = u64::from_ne_bytes(word).wrapping_add(1);
    client::write(&next.to_ne_bytes(), 0)
}
