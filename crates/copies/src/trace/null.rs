// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records of a fixed pattern, to test traces on any machine.
//!
//! Each ring begins with [`BATCH`] records and gets as many at each wait, up to [`MOST`]. Record n copies the n-th size
//! of [`SIZES`] and takes 20 ns plus 1 ns for each 16 bytes; n % 3 chooses its caller. Every 10th record is by an
//! engine, and every 50th leaves its last 4 bytes uncopied. Records are 1000 ns apart. `to` drops one record for each
//! batch.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Control, Counts, Function, Info, Opened, Reader, Record, Source, Tracer, Waits};
use crate::{Error, Result};

/// Records that a ring gets at once.
const BATCH: u64 = 100;

/// Total records of a ring.
const MOST: u64 = 1000;

/// Sizes of the copies in order, bytes.
const SIZES: [u64; 8] = [8, 64, 8, 1102, 8, 4096, 64, 65_536];

/// The callers of the copies.
const CALLERS: [u64; 3] = [
    0xffff_8000_8044_c129,
    0xffff_8000_8012_0040,
    0xffff_8000_8099_9990,
];

/// Replaces the devices.
#[derive(Debug, Clone, Copy)]
pub struct Null;

impl Tracer for Null {
    fn info(&self) -> Info {
        Info {
            source: Source::Hooks,
            merged: false,
            addresses: true,
            records: 4096,
            ticks_hz: 1_000_000_000,
        }
    }

    fn open(&self, cpu: usize, functions: &[Function], end: BorrowedFd<'_>) -> Result<Opened> {
        let waits = Waits::new()
            .and_then(|waits| waits.add(&end).map(|()| waits))
            .map_err(waiting)?;
        let cpu = u32::try_from(cpu).unwrap_or(0);
        let ring = |function: &Function| Ring {
            function: *function,
            cpu,
            started: false,
            recorded: 0,
            read: 0,
            dropped: 0,
        };
        let rings: Arc<Mutex<Vec<Ring>>> =
            Arc::new(Mutex::new(functions.iter().map(ring).collect()));
        Ok(Opened {
            reader: Box::new(Reading {
                rings: Rings(Arc::clone(&rings)),
                waits,
            }),
            control: Box::new(Rings(rings)),
        })
    }
}

#[derive(Debug)]
struct Ring {
    function: Function,
    cpu: u32,
    started: bool,
    recorded: u64,
    read: u64,
    dropped: u64,
}

impl Ring {
    fn fill(&mut self) {
        if !self.started || self.recorded >= MOST {
            return;
        }
        self.recorded += BATCH;
        self.dropped += u64::from(self.function == Function::To);
    }
}

/// Record `number` of a ring.
fn record(number: u64, cpu: u32) -> Record {
    let nth = |count: usize| usize::try_from(number).unwrap_or(0) % count;
    let bytes = SIZES[nth(SIZES.len())];
    let before_ns = 1_000_000 + number * 1000;
    Record {
        number,
        before_ns,
        after_ns: before_ns + 20 + bytes / 16,
        caller: CALLERS[nth(CALLERS.len())],
        bytes,
        left: if number % 50 == 49 { 4 } else { 0 },
        by_engine: if number % 10 == 9 { bytes } else { 0 },
        cpu,
    }
}

struct Rings(Arc<Mutex<Vec<Ring>>>);

impl Rings {
    fn lock(&self) -> MutexGuard<'_, Vec<Ring>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn waiting(reason: io::Error) -> Error {
    Error::refused("waiting for", Path::new(super::NULL), reason)
}

/// The rings for the reading thread.
struct Reading {
    rings: Rings,
    waits: Waits,
}

impl Reader for Reading {
    fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.waits.wait(timeout).map_err(waiting)?;
        self.rings.lock().iter_mut().for_each(Ring::fill);
        Ok(())
    }

    fn read(&mut self, nth: usize, each: &mut dyn FnMut(&Record)) -> usize {
        let ring = &mut self.rings.lock()[nth];
        let mut count = 0;
        while ring.read < ring.recorded {
            each(&record(ring.read, ring.cpu));
            ring.read += 1;
            count += 1;
        }
        count
    }
}

impl Control for Rings {
    fn start(&self) -> Result<()> {
        for ring in self.lock().iter_mut() {
            ring.started = true;
            ring.fill();
        }
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.lock().iter_mut().for_each(|ring| ring.started = false);
        Ok(())
    }

    fn stop(&self) -> Result<()> {
        self.close()
    }

    fn counts(&self, nth: usize) -> Result<Counts> {
        let ring = &self.lock()[nth];
        Ok(Counts {
            recorded: ring.recorded,
            dropped: ring.dropped,
            missed: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// The rings of one CPU, and the pipe whose end ends the waits.
    fn opened(cpu: usize, functions: &[Function]) -> (Opened, UnixStream) {
        let (end, writer) = UnixStream::pair().unwrap();
        (Null.open(cpu, functions, end.as_fd()).unwrap(), writer)
    }

    #[test]
    fn every_record_is_read_once_and_accounted_for() {
        let (opened, _writer) = opened(3, &[Function::From, Function::To]);
        let Opened {
            mut reader,
            control,
        } = opened;
        let mut records = Vec::new();
        let mut take = |reader: &mut dyn Reader| {
            reader.read(1, &mut |record| records.push(*record));
        };
        take(reader.as_mut());
        control.start().unwrap();
        take(reader.as_mut());
        reader.wait(Duration::ZERO).unwrap();
        control.stop().unwrap();
        reader.wait(Duration::ZERO).unwrap();
        take(reader.as_mut());
        take(reader.as_mut());
        assert_eq!(records.len(), 200);
        assert!(
            (0..)
                .zip(&records)
                .all(|(n, record)| record.number == n && record.cpu == 3)
        );
        let counts = control.counts(1).unwrap();
        assert_eq!((counts.recorded, counts.dropped), (200, 2));
        assert_eq!(control.counts(0).unwrap().dropped, 0);
        assert_eq!(reader.read(0, &mut |_| ()), 200);
    }

    #[test]
    fn the_pattern_is_as_described() {
        let three = record(3, 0);
        assert_eq!((three.bytes, three.elapsed_ns()), (1102, 88));
        assert_eq!(record(9, 0).by_engine, record(9, 0).bytes);
        assert_eq!((record(49, 0).left, record(48, 0).left), (4, 0));
    }

    #[test]
    fn it_comes_to_an_end() {
        let (opened, _writer) = opened(0, &[Function::From]);
        let Opened {
            mut reader,
            control,
        } = opened;
        control.start().unwrap();
        for _ in 0..20 {
            reader.wait(Duration::ZERO).unwrap();
        }
        assert_eq!(control.counts(0).unwrap().recorded, MOST);
    }
}
