// SPDX-License-Identifier: MIT OR Apache-2.0
//! Safe interface to `policy/`: the regulator's decisions, from the same source that the kernel module compiles.
//!
//! A host (user-space regulator, simulator) counts events and keeps time. It creates one [`Policy`], and one [`Core`]
//! for each core that it regulates. It calls the library when a period ends or a counter overflows, and carries out the
//! returned [`Action`]. Counts are events; a budget is events per period.
//!
//! The types enforce the calling rules. A [`Core`] belongs to one thread at a time (`Send`, not `Sync`, `&mut self` for
//! every change); every thread may use [`Policy`] and [`CoreSettings`] at any time.
//!
//! ```
//! use memwarden_policy::{Action, Core, Policy, Resource};
//!
//! let policy = Policy::new();
//! let mut core = Core::new(&policy)?;
//! core.settings().set_budget(Resource::Read, 1000)?;
//! core.online();
//! assert_eq!(core.until_overflow(Resource::Read), 1000);
//! assert_eq!(core.overflow(Resource::Read, 1000), Action::Throttle);
//! assert_eq!(core.period_begin(1, false, [1000, 0]), Action::Run);
//! # Ok::<(), memwarden_policy::Error>(())
//! ```
//!
//! ```compile_fail
//! fn shared<T: Sync>(_: T) {}
//! let policy = memwarden_policy::Policy::new();
//! shared(memwarden_policy::Core::new(&policy).unwrap());
//! ```
#![deny(missing_docs)]

#[doc(hidden)]
#[allow(non_camel_case_types)]
pub mod ffi;

mod core;
pub mod events;
mod policy;
mod split;
mod words;

pub use crate::core::{Account, Core, CoreSettings};
pub use crate::policy::{Census, Policy};
pub use crate::split::Split;
pub use crate::words::{Action, BestEffort, Error, MAX_CORES, Resource, UNLIMITED};
