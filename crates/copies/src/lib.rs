// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients of the kernel's copying devices, which measure copies between user space and the kernel.
#![deny(missing_docs)]

pub mod cftu;
mod error;
mod file_lock;
mod load;
pub mod mymem;
pub mod trace;

pub use error::Error;
pub use load::{Loaded, Providers, provide, provide_copies, provide_exclusive, provide_trace};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
