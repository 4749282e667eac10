// SPDX-License-Identifier: MIT OR Apache-2.0
//! A DRAM and its controller.

pub mod command;
pub mod mapping;
pub mod memory;
pub mod memory_file;

pub use memory::{Memory, Organisation, Standard, Timings};
pub use memory_file::MemoryError;
