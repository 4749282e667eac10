// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices whose module is not in the kernel yet.

use std::path::Path;
use std::process::Command;

use crate::mymem::{C_DEVICE, IN_KERNEL, RUST_DEVICE};
use crate::{Error, Result};

/// The module that makes a device's file.
pub(crate) fn module_of(path: &Path) -> Option<&'static str> {
    let modules = [
        (C_DEVICE, "mymem"),
        (RUST_DEVICE, "mymem_rust"),
        (IN_KERNEL, "mymem_test"),
    ];
    modules
        .into_iter()
        .find(|(device, _)| path == Path::new(device))
        .map(|(_, module)| module)
}

/// A module that was loaded for us. It is unloaded when this goes, unless somebody else has come to use it.
#[derive(Debug)]
#[must_use = "the module is unloaded when this goes"]
pub struct Loaded {
    module: &'static str,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // Refused when it is in use: then it is no longer ours to unload.
        let _ = Command::new("modprobe").args(["-r", self.module]).output();
    }
}

/// Sees to it that the device's file is there: loads its module if it is not.
///
/// # Errors
/// When it isn't there and no module makes it, or modprobe can't load that.
pub fn provide(path: &Path) -> Result<Option<Loaded>> {
    if path.exists() {
        return Ok(None);
    }
    let module = module_of(path).ok_or_else(|| Error::missing(path))?;
    let failed = |reason: String| Error::NotLoaded {
        path: path.into(),
        module,
        reason,
    };
    let output = Command::new("modprobe")
        .arg(module)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        // The last line is the reason; a chain of modules is named before it.
        let last = said.lines().rev().find(|line| !line.trim().is_empty());
        let said = last.map_or_else(
            || output.status.to_string(),
            |line| line.trim().trim_start_matches("modprobe: ").to_owned(),
        );
        return Err(failed(said));
    }
    let loaded = Loaded { module };
    if path.exists() {
        return Ok(Some(loaded));
    }
    Err(failed("it was loaded, but made no such device".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_provided_and_another_path_is_not_guessed_at() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(provide(file.path()).unwrap().is_none());
        let message = provide(Path::new("/nonexistent/mymem"))
            .unwrap_err()
            .to_string();
        assert_eq!(
            message,
            "/nonexistent/mymem is not there: give the path of a memory device, such as /dev/mymem"
        );
        assert_eq!(module_of(Path::new("/dev/mymem_rust")), Some("mymem_rust"));
    }
}
