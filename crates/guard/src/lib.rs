// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regulators of memory bandwidth: one trait and its implementations.
//!
//! A regulator gives each core a budget of memory traffic per period and stops the core when the budget is used up.
//! [`Module`] is the client of the `memguard` kernel module, [`User`] that of the regulator in user space. [`Null`]
//! regulates nothing, so that code that needs a regulator can run and be tested on any machine.
#![deny(missing_docs)]

mod backend;
pub mod budget;
pub mod budget_file;
mod claims;
pub mod control;
mod error;
mod event;
mod event_list;
pub mod fair_server;
mod file_lock;
pub mod group;
pub mod held;
pub mod keeper;
mod kernel_log;
pub mod metrics;
mod module;
mod null;
pub mod rates;
mod regulator;
mod reservations;
pub mod rt_throttling;
pub mod self_test;
mod session;
pub mod statistics;
pub mod throttle_class;
pub mod trace;
pub mod units;
pub mod user;
pub mod wanted;

pub use backend::{Backend, running};
pub use budget::Resource;
pub use budget_file::BudgetFile;
pub use control::{BestEffort, Control};
pub use error::Error;
pub use event::{Meaning, meaning, meaning_of};
pub use event_list::EventList;
pub use keeper::Keeper;
pub use module::{Module, ModuleSource};
pub use null::Null;
pub use regulator::{Recorder, Regulator, Settings, StartOptions, running_has};
pub use rt_throttling::FairServersOn;
pub use session::{Hold, Session, Wish};
pub use statistics::CoreStatistics;
pub use user::User;
