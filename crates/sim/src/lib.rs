// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory system as a model: what a victim and its company would do to each other
//! on a machine that isn't here, with the real regulator over them.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`settings`] | cores and caches, as plain data |
//! | [`workload`] | what the cores do: the real experiments' workloads, as steps |
//! | [`machine`] | cores that share a cache and a memory, run from event to event |
//! | [`emulated`] | the same caches and memory, behind cores that execute in an emulator |
//! | [`regulator`] | `policy/` over the simulated cores, and what reacting costs |
//! | [`main_memory`] | what is behind the last cache, as the caches see it |
//! | [`dram`] | a DRAM and its controller, the checker of its commands, its checks |
//! | [`platform`] | machines with a name, as TOML files: all of the above as data |
//! | [`cases`] | what was published of them, and the same cases in the model |
//! | [`calibrate`] | fits what no datasheet gives to what was published without a guard |
//! | [`plan`] | from a deadline to budgets |
//! | [`sweep`] | many runs at once |
//! | [`trace`] | a memory's requests as a file, text or binary |
//! | [`replay`] | a trace through a controller, and what came of it |
//! | [`traced`] | a trace as what a core does; what a machine asks of its memory |
//! | `lines` | where lines are and how they move, for both of these |
//! | `shared` | the cache that the cores share, and its lines under way |
//! | `private` | what a core has for itself: TLB, caches, prefetcher, pages |
//!
//! Time is in ps, and there is no other clock inside: the same settings and seed give
//! the same run.
//!
//! # What is modelled
//! - *Cores* by the lines that they may have under way: in order, one waits for each
//!   load; otherwise only where the next address comes of it. Stores wait for nobody.
//! - *Caches*: write-allocate, write-back, least recently used, by physical lines; a
//!   workload's pages are spread over memory at random. The shared cache has a limited
//!   number of lines under way, for all cores together, and a limited number of
//!   write-backs: a core can be held up by another's misses in both.
//! - *The regulator*: refills and write-backs are counted a core, and `policy/`, the
//!   source that the kernel module compiles, decides. Its interrupts, its throttling
//!   and its timer take the time that they are said to take.
//!
//! # What is not
//! - Instructions: a workload says how long it works between two accesses.
//! - Coherence: workloads share no memory.
//! - The order of two accesses within a cache's hit time of each other: a core looks
//!   the shared cache up when its access begins.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod faults;
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

pub use faults::Fault;
pub use machine::{CoreCounts, Machine, MachineError};
pub use main_memory::{FixedMemory, MainMemory};
pub use memwarden_policy::{BestEffort, UNLIMITED};
pub use platform::Platform;
pub use regulator::{Guard, Reaction};
pub use settings::MachineSettings;
pub use workload::Workload;
