// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds and boots an emulated machine, arm64 or amd64, with a real Linux kernel, runs one command in it with
//! memwarden's kernel modules available, and returns the results.
//!
//! - [`Machine`]: the settings, [`Machine::run`] and [`Machine::shell`].
//! - [`STOCK`], [`Kernel`], [`Headers`]: Debian's kernels and headers, fetched and cached, never installed.
//! - [`Flavour`], [`build_tree`]: the lab's own kernel, and kernels built from a user's source tree.
//! - [`Emulator`]: the lab's own emulator, whose CPUs run at the same time.
//! - [`check_modules`]: builds the modules with all warnings against a kernel's headers.
//! - [`Cache`]: what is kept between runs.
//!
//! How it works, and what an emulator can and cannot show, is in docs/lab.md.

mod architecture;
mod board;
mod build;
mod cache;
mod console;
mod debian;
mod device_tree;
mod digest;
mod emulator;
mod error;
mod frame;
mod guest;
mod headers;
mod initramfs;
mod kernel;
mod machine;
mod memory;
mod modules;
mod own;
mod packages;
mod program;
mod source;
mod stock;

pub use architecture::Architecture;
pub use board::Board;
pub use cache::{Cache, Entry, size as size_on_disk};
pub use console::Step;
pub use emulator::{BuiltEmulator, Emulator};
pub use error::{Error, Result};
pub use guest::GuestProgram;
pub use headers::Headers;
pub use kernel::Kernel;
pub use machine::{Clock, KernelChoice, LabFacts, LabOutcome, Machine, Memory, interrupted_by};
pub use memory::ModelledMemory;
pub use modules::{Check, check as check_modules};
pub use own::{Built, Flavour, build_tree};
pub use packages::is_package_name;
pub use source::Source;
pub use stock::{STOCK, Stock};
