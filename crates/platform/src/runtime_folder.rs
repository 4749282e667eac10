// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folder for this program's locks and records while the machine runs. Only root may use it, so no other user can
//! hold a lock there.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// The runtime folder of a machine.
pub const FOLDER: &str = "/run/memwarden";

/// Creates a runtime folder, if it doesn't exist.
///
/// # Errors
/// When this process may not create it.
pub fn create(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}
