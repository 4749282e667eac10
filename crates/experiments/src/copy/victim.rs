// SPDX-License-Identifier: MIT OR Apache-2.0
//! The application that copies may slow down.

use memwarden_platform::clock;
use memwarden_workloads::automotive::{Application, Prepared};

use crate::Error;

/// An application with its input.
pub(super) struct Victim {
    name: &'static str,
    prepared: Prepared,
}

impl Victim {
    pub(super) fn new(application: &'static Application, seed: u64) -> Self {
        Self {
            name: application.name(),
            prepared: application.prepare(seed),
        }
    }

    /// Runs once; returns the clock before and after, ns.
    pub(super) fn run(&mut self) -> Result<[u64; 2], Error> {
        let begin_ns = clock::monotonic_ns();
        let checksum = self.prepared.run();
        let end_ns = clock::monotonic_ns();
        if checksum == self.prepared.checksum() {
            return Ok([begin_ns, end_ns]);
        }
        Err(Error::workload(
            self.name,
            "its result differs from the first run's: this machine's memory or CPU is faulty",
        ))
    }
}
