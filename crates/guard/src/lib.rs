// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regulators of memory bandwidth: one trait, and what stands behind it.
//!
//! A regulator gives each core a budget of memory traffic a period and stops the core when it is used up.
//! [`Module`] is the client of the `memguard` kernel module, [`User`] of the regulator in user space; [`Null`]
//! regulates nothing, so that everything built on a regulator can be run and tested where none is at hand.
#![deny(missing_docs)]

mod backend;
pub mod budget;
pub mod control;
mod error;
mod event;
mod kernel_log;
mod module;
mod null;
mod regulator;
mod reservations;
pub mod rt_throttling;
pub mod self_test;
mod session;
pub mod statistics;
pub mod trace;
pub mod units;
pub mod user;

pub use backend::{Backend, running};
pub use budget::Resource;
pub use control::{BestEffort, Control};
pub use error::Error;
pub use module::{Module, ModuleSource};
pub use null::Null;
pub use regulator::{Recorder, Regulator, Settings, StartOptions};
pub use session::Session;
pub use statistics::CoreStatistics;
pub use user::User;
