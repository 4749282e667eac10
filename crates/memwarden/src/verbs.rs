// SPDX-License-Identifier: MIT OR Apache-2.0
//! One file for each verb: its arguments and its function.

pub mod bandwidth;
#[cfg(feature = "host")]
pub mod completions;
pub mod copy;
pub mod doctor;
mod experiment;
pub mod foreign;
pub mod guard;
pub mod interfere;
pub mod jobs;
#[cfg(feature = "host")]
pub mod lab;
pub mod latency;
#[cfg(feature = "host")]
pub mod manual;
pub mod maps;
pub mod mmap;
pub mod mymem;
mod numbers;
#[cfg(feature = "host")]
mod on_lab;
#[cfg(not(feature = "host"))]
#[path = "verbs/no_lab.rs"]
mod on_lab;
mod outcome;
pub mod output;
mod paint;
pub mod periodic;
#[cfg(feature = "host")]
pub mod plan;
pub mod realtime;
#[cfg(feature = "host")]
pub mod report;
#[cfg(feature = "host")]
pub mod schema;
#[cfg(feature = "host")]
pub mod sim;
mod terminal;
pub mod top;
pub mod trace;
pub mod traffic;
mod workload;
