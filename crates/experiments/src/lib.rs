// SPDX-License-Identifier: MIT OR Apache-2.0
//! The experiments; each one writes a run folder.
#![deny(missing_docs)]

mod case_notes;
mod child;
pub mod copy;
mod error;
mod group;
pub mod guard_bench;
mod guarding;
mod guards;
mod host;
pub mod interfere;
mod interrupt;
pub mod loads;
pub mod mmap;
pub mod mymem;
mod pinned;
pub mod plan;
pub mod program;
mod proof;
pub mod realtime;
mod request;
pub mod schema;
mod settings;
mod simulated;
mod threads;
pub mod traffic;
mod workload;

pub use child::Child;
pub use error::Error;
pub use guarding::GuardSpec;
pub use interrupt::Interrupt;
pub use memwarden_guard::Backend;
pub use proof::{CoreProof, Proof};
pub use request::RunRequest;
pub use settings::Settings;
pub use simulated::Simulated;
pub use traffic::KnownTraffic;
pub use workload::Workload;

/// An observer of an experiment's progress.
pub trait Progress {
    /// Step `done` of `total` begins.
    fn step(&mut self, done: usize, total: usize, what: &str);
}

/// An observer that ignores progress.
impl Progress for () {
    fn step(&mut self, _: usize, _: usize, _: &str) {}
}
