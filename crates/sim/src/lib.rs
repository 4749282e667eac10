// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory system as a model: the interference between a victim and its aggressors on a
//! machine that isn't available, regulated by the real policy.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`settings`] | cores and caches, as plain data |
//! | [`workload`] | the cores' workloads, those of the real experiments, as steps |
//! | [`machine`] | cores that share a cache and a memory, simulated event by event |
//! | [`emulated`] | the same caches and memory, behind cores that an emulator executes |
//! | [`regulator`] | `policy/` over the simulated cores, and the cost of its reactions |
//! | [`main_memory`] | the interface between the last cache and the memory |
//! | [`dram`] | a DRAM and its controller, the checker of its commands, its checks |
//! | [`platform`] | machines with a name, as TOML files: all of the above as data |
//! | [`cases`] | the published figures of these machines, and the same cases in the model |
//! | [`calibrate`] | fits the numbers that no datasheet gives to figures published without a guard |
//! | [`plan`] | from a deadline to budgets |
//! | [`sweep`] | many runs on all CPUs |
//! | [`trace`] | a memory's requests as a file, text or binary |
//! | [`replay`] | a trace through a controller, and its result |
//! | [`traced`] | a trace as a core's workload; a machine's memory requests as a trace |
//! | `bank_regulator` | `policy/` over each bank of the memory separately |
//! | `lines` | where lines are and how they move, for `machine` and `emulated` |
//! | `shared` | the cache that the cores share, and its lines in flight |
//! | `private` | a core's private parts: TLB, caches, prefetcher, pages |
//!
//! The only clock is simulated time in ps: the same settings and seed give the same run.
//!
//! # What is modelled
//! - *Cores* by the number of lines that they may have in flight. An in-order core waits for
//!   each load; other cores wait only if the next address depends on the load. Cores don't wait
//!   for stores.
//! - *Caches*: write-allocate, write-back, least recently used, by physical lines; a workload's
//!   pages are spread over memory at random. The shared cache has a limited number of lines in
//!   flight and of write-backs, for all cores together; both can make a core wait for another
//!   core's misses.
//! - *The regulator*: refills and write-backs are counted for each core, and `policy/`, the
//!   source that the kernel module compiles, decides. Its interrupts, its throttling and its
//!   timer take the times in the settings. With budgets per bank the memory system counts and
//!   holds requests back, exactly and at no cost.
//!
//! # What is not modelled
//! - Instructions: a workload gives the time of its work between two accesses.
//! - Coherence: workloads share no memory.
//! - The order of two accesses within a cache's hit time of each other: a core looks up the
//!   shared cache when its access begins.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod bank_regulator;
mod lines;
mod private;
mod shared;

pub mod calibrate;
pub mod cases;
pub mod dram;
pub mod emulated;
pub mod machine;
pub mod main_memory;
pub mod plan;
pub mod platform;
pub mod regulator;
pub mod replay;
pub mod settings;
pub mod sweep;
pub mod trace;
pub mod traced;
pub mod workload;

pub use machine::{CoreCounts, Machine, MachineError};
pub use main_memory::{FixedMemory, MainMemory};
pub use memwarden_machines::Fault;
pub use memwarden_policy::{BestEffort, UNLIMITED};
pub use platform::Platform;
pub use regulator::{Guard, Reaction};
pub use settings::MachineSettings;
pub use workload::Workload;
