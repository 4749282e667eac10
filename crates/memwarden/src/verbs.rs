// SPDX-License-Identifier: MIT OR Apache-2.0
//! One file a verb: its arguments, and the function that carries it out.

pub mod bandwidth;
pub mod doctor;
#[cfg(feature = "host")]
pub mod lab;
pub mod latency;
mod workload;
