// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pins the measuring thread to one CPU.

use memwarden_platform::affinity;
use memwarden_platform::cpus::CpuSet;

use crate::Error;

/// Keeps the calling thread on one CPU until dropped.
pub(crate) struct Pinned {
    pub(crate) cpu: usize,
    before: CpuSet,
}

impl Pinned {
    /// Pins to the last CPU that the thread may run on: the first CPU handles most interrupts.
    pub(crate) fn to_last() -> Result<Self, Error> {
        let last = affinity::get()?.iter().last();
        Self::to(last.unwrap_or(0))
    }

    /// Pins to `cpu`.
    pub(crate) fn to(cpu: usize) -> Result<Self, Error> {
        let before = affinity::get()?;
        affinity::pin(cpu)?;
        Ok(Self { cpu, before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A failure to restore the CPUs does no harm.
        let _ = affinity::set(self.before.clone());
    }
}
