// SPDX-License-Identifier: MIT OR Apache-2.0
//! A DRAM and its controller.
//!
//! ```
//! use memwarden_sim::MainMemory;
//! use memwarden_sim::dram::{Controller, ControllerSettings, Memory};
//! use memwarden_sim::main_memory::Arrival;
//!
//! let memory = Memory::named("ddr4-2400")?;
//! let mut controller = Controller::new(&memory, &ControllerSettings::default())?;
//! let read = Arrival { id: 1, core: 0, address: 4096, write: false, at_ps: 0 };
//! controller.push(read);
//! let mut done = Vec::new();
//! controller.advance(1_000_000, &mut done);
//! // tRCD and tCL, 17 clocks each, and the burst's four.
//! assert_eq!(done[0].at_ps, (17 + 17 + 4) * 833);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it is |
//! | --- | --- |
//! | [`memory`] | organisation and timings, as plain data |
//! | [`memory_file`] | the same as TOML files: nine that come with the program, and the user's own |
//! | [`mapping`] | which address bits choose channel, rank, bank, row and column |
//! | [`controller`] | queues, the order of requests, page policies, refresh; a [`MainMemory`] |
//! | [`ready`] | the controller's table of the earliest time of each command |
//! | [`command`] | the commands on the command bus, and their observers |
//! | [`checker`] | judges a command stream by a table of the standards' rules |
//! | [`checks`] | random traffic for the checker, and figures derived by hand |
//! | [`statistics`] | the controller's counts |
//! | [`energy`] | the energy of these commands, from the currents of data sheets |
//!
//! [`MainMemory`]: crate::MainMemory
//!
//! # What is modelled
//! - *Commands* at clock edges, one per clock on each channel, each as early as every rule
//!   allows. Of the commands that could go first, RD and WR go before ACT and PRE, then the
//!   older request's. Row hits go before older requests up to a cap.
//! - *Reads and writes* in turns. When a turn ends, requests whose rows are already open are
//!   still served, and free command slots open rows for the other direction meanwhile. A read
//!   finds its line among the waiting writes.
//! - *Refresh* of all banks of a rank, when it is due: from then on the rank's requests wait.
//!
//! # What is not modelled
//! - Requests of any size but one burst. All memories of this crate move 64 bytes per burst, and a
//!   platform's memory has to.
//! - tREFI in fractions of a clock: the controller rounds it up, and refreshes that much too seldom.
//! - Refresh of single banks, postponed or pulled in; power-down; self-refresh.
//! - LPDDR5's CAS command that synchronises WCK; HBM3's second burst of a line as a separate
//!   command, and the two clocks by which its data come later.
//! - The gap between two PREs (tPPD), commands of several clocks (LPDDR, DDR5), a
//!   longer tRP for all banks (LPDDR), tDQSCK, on-die termination.
//! - The controller's processing time: it decides in no time, and a write is done when its WR
//!   is issued.
//! - Data. The bytes that are read and written are not stored.

mod channel;
mod queue;

pub mod checker;
pub mod checks;
pub mod command;
pub mod controller;
pub mod energy;
pub mod mapping;
pub mod memory;
pub mod memory_file;
pub mod ready;
pub mod statistics;

pub use checker::{CheckReport, Checker, Violation};
pub use controller::{Controller, ControllerError, ControllerSettings, PagePolicy};
pub use energy::{Activity, Energy};
pub use memory::{Memory, Organisation, Standard, Timings};
pub use memory_file::MemoryError;
pub use statistics::Statistics;

#[cfg(test)]
mod tests;
