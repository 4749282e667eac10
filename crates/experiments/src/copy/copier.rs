// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread on one CPU that repeats a copy until it is told to end: the aggressor of an application.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memwarden_copies::cftu::Session;
use memwarden_platform::affinity;

use super::{Engine, Moved, Operation, copy};
use crate::threads::{Ends, joined, started};
use crate::{Error, Interrupt};

/// Copies in one request: enough that system calls are rare, few enough that a request is short.
const AT_MOST: u64 = 64;

/// Upper limit of the bytes in one request.
const BYTES_AT_MOST: u64 = 16 << 20;

/// The copy to repeat.
#[derive(Debug, Clone, Copy)]
pub(super) struct Repeated {
    pub(super) operation: Operation,
    pub(super) engine: Engine,
    pub(super) bytes: u64,
}

/// Copies that were made beside the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Made {
    /// Copies while the work was done.
    pub(super) copies: u64,
    /// Bytes that the copier moved, those before the work began included.
    pub(super) moved: Moved,
}

/// Runs `work` while a thread on `cpu` copies; returns the work's result and the copies made.
pub(super) fn beside<T>(
    repeated: Repeated,
    cpu: usize,
    session: &mut dyn Session,
    interrupt: &Interrupt,
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<(T, Made), Error> {
    let (stop, made) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let copier = started(scope, || {
            let result = affinity::pin(cpu).map_err(Error::from).and_then(|()| {
                let Repeated {
                    operation,
                    engine,
                    bytes,
                } = repeated;
                let count = (BYTES_AT_MOST / bytes.max(1)).clamp(1, AT_MOST);
                // Alternating directions need an even number.
                let count = count.next_multiple_of(2);
                let mut copies =
                    operation.copies(engine, bytes, usize::try_from(count).unwrap_or(2));
                let mut moved = Moved::default();
                while !stop.load(Ordering::Relaxed) {
                    copy(session, &mut copies, interrupt)?;
                    moved.add(&copies);
                    made.fetch_add(count, Ordering::Release);
                }
                Ok(moved)
            });
            // The work must not wait for a copier that has failed.
            stop.store(true, Ordering::Relaxed);
            made.fetch_max(1, Ordering::Release);
            result
        })?;
        let ends = Ends(&stop);
        // Wait for the first copies, so that the copier is active before the work begins.
        while made.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        let before = made.load(Ordering::Acquire);
        let done = if stop.load(Ordering::Relaxed) {
            None
        } else {
            Some(work())
        };
        let copies = made.load(Ordering::Acquire) - before;
        drop(ends);
        let copied = joined(copier);
        match (copied, done) {
            (Ok(moved), Some(done)) => Ok((done?, Made { copies, moved })),
            (Err(error), _) => Err(error),
            // The copier ends by itself only on an error.
            (Ok(_), None) => Err(Error::Interrupted),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::{Bench, Policies};
    use super::*;

    const SMALL: Repeated = Repeated {
        operation: Operation::Both,
        engine: Engine::Cpu,
        bytes: 16,
    };

    #[test]
    fn copies_are_made_beside_the_work_and_end_with_it() {
        let bench = Bench::open(Path::new("null"), &Policies::default()).unwrap();
        let mut session = bench.session(16, true).unwrap();
        let cpu = affinity::get().unwrap().iter().next().unwrap();
        // On a busy machine the copier may get no CPU for a while.
        let work = || {
            let copies = || bench.copier.statistics().unwrap().copies;
            let enough = copies() + 2 * (AT_MOST + 1);
            while copies() < enough {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(7)
        };
        let interrupt = Interrupt::default();
        let (seven, made) = beside(SMALL, cpu, session.as_mut(), &interrupt, work).unwrap();
        assert_eq!(seven, 7);
        assert!(made.copies > 0);
        let all = bench.copier.statistics().unwrap();
        assert_eq!(made.moved.bytes, all.cpu_bytes);
        assert_eq!(made.moved.by_engine, 0);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(bench.copier.statistics().unwrap().copies, all.copies);
    }

    #[test]
    fn a_copier_that_fails_is_the_error() {
        let bench = Bench::open(Path::new("null"), &Policies::default()).unwrap();
        let mut session = bench.session(16, true).unwrap();
        let interrupt = Interrupt::default();
        let message = beside(SMALL, 8191, session.as_mut(), &interrupt, || Ok(()))
            .unwrap_err()
            .to_string();
        assert!(message.contains("8191"), "{message}");
    }
}
