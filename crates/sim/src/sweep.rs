// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many independent runs, on all CPUs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// How often the caller is told the progress.
const TOLD_EVERY: Duration = Duration::from_millis(50);

/// Runs `run` on each of `all`, on as many threads as there are CPUs, and returns the results
/// in order. `told` is called from time to time, on the calling thread, with the number of
/// finished runs. When it returns false, no more runs begin.
///
/// # Errors
/// When runs are missing: the results of the others, which are the first ones.
pub fn sweep<T: Sync, R: Send>(
    all: &[T],
    run: impl Fn(&T) -> R + Sync,
    mut told: impl FnMut(usize) -> bool,
) -> Result<Vec<R>, Vec<R>> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let results: Mutex<Vec<Option<R>>> = Mutex::new(all.iter().map(|_| None).collect());
    let kept = || {
        results
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    };
    let caller = thread::current();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(all.len()))
            .map(|_| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(one) = all.get(index) else { break };
                        let result = run(one);
                        kept()[index] = Some(result);
                        done.fetch_add(1, Ordering::Release);
                        caller.unpark();
                    }
                    caller.unpark();
                })
            })
            .collect();
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            if !told(done.load(Ordering::Acquire)) {
                stop.store(true, Ordering::Relaxed);
            }
            thread::park_timeout(TOLD_EVERY);
        }
    });
    // Runs begin in order, and each that has begun is finished: none is missing in between.
    let results: Vec<R> = std::mem::take(&mut *kept())
        .into_iter()
        .map_while(|result| result)
        .collect();
    if results.len() == all.len() {
        Ok(results)
    } else {
        Err(results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_what_was_asked() {
        let all: Vec<u64> = (0..100).collect();
        let mut last = 0;
        let squares = sweep(
            &all,
            |n| n * n,
            |done| {
                assert!(done >= last);
                last = done;
                true
            },
        );
        assert_eq!(squares, Ok(all.iter().map(|n| n * n).collect()));
    }

    #[test]
    fn the_callback_may_end_the_sweep_and_the_first_results_are_kept() {
        let all: Vec<u64> = (0..1000).collect();
        let slow = |n: &u64| {
            thread::sleep(Duration::from_millis(20));
            *n
        };
        let first = sweep(&all, slow, |done| done == 0).unwrap_err();
        assert!((1..1000).contains(&first.len()), "{}", first.len());
        assert_eq!(first, all[..first.len()]);
    }

    #[test]
    fn nothing_is_done_at_once() {
        assert_eq!(sweep(&[(); 0], |()| 1, |_| true), Ok(vec![]));
    }
}
