// SPDX-License-Identifier: MIT OR Apache-2.0
//! The measuring thread on one CPU.

use memwarden_platform::affinity;
use memwarden_platform::cpus::CpuSet;

use crate::Error;

/// The calling thread on one CPU, until this is dropped.
pub(crate) struct Pinned {
    pub(crate) cpu: usize,
    before: CpuSet,
}

impl Pinned {
    /// On the last CPU that it may run on: the first has most of the machine's interrupts.
    pub(crate) fn to_last() -> Result<Self, Error> {
        let last = affinity::get()?.iter().last();
        Self::to(last.unwrap_or(0))
    }

    /// On that CPU.
    pub(crate) fn to(cpu: usize) -> Result<Self, Error> {
        let before = affinity::get()?;
        affinity::pin(cpu)?;
        Ok(Self { cpu, before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Where the rest of the process runs is of no consequence.
        let _ = affinity::set(self.before.clone());
    }
}
