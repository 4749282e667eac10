// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which guard there is to talk to.

use memwarden_guard::{Module, ModuleSource, Regulator};

/// The guard that runs, or would: the one place that knows where to look for it.
pub fn installed() -> Box<dyn Regulator> {
    Box::new(Module::new(ModuleSource::Installed))
}

/// The guard that is running.
///
/// # Errors
/// Not running, no debugfs, not root: each says so in its own words.
pub fn running() -> Result<Box<dyn Regulator>, memwarden_guard::Error> {
    let guard = installed();
    guard.settings()?;
    Ok(guard)
}
