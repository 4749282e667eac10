// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads the modules of devices that are missing.

use std::path::Path;
use std::process::Command;

use crate::cftu;
use crate::mymem::{C_DEVICE, IN_KERNEL, RUST_DEVICE};
use crate::trace::{self, Function};
use crate::{Error, Result};

/// The most channels of swdma: `CHANNELS_MAX` of the module.
const SOFTWARE_CHANNELS_MAX: usize = 64;

/// The module that creates a device's file.
pub(crate) fn module_of(path: &Path) -> Option<&'static str> {
    let modules = [
        (C_DEVICE, "mymem"),
        (RUST_DEVICE, "mymem_rust"),
        (IN_KERNEL, "mymem_test"),
        (cftu::DEVICE, "cftu"),
    ];
    if path.parent() == Some(Path::new(trace::DEVICES)) {
        return Some("copytrace");
    }
    modules
        .into_iter()
        .find(|(device, _)| path == Path::new(device))
        .map(|(_, module)| module)
}

/// A module that this process has loaded. Dropping it unloads the module, unless another process uses it by then.
#[derive(Debug)]
#[must_use = "the module is unloaded when this goes"]
pub struct Loaded {
    module: &'static str,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // Refused while the module is in use; its user can unload it later.
        let _ = Command::new("modprobe").args(["-r", self.module]).output();
    }
}

/// Loads the device's module if its file does not exist.
///
/// # Errors
/// When the file does not exist and no module creates it, or modprobe can't load the module.
pub fn provide(path: &Path) -> Result<Option<Loaded>> {
    provide_with(path, &[])
}

/// Loads the device's module, with the parameter `exclusive`, if its file does not exist.
///
/// # Errors
/// Like [`provide`].
pub fn provide_exclusive(path: &Path) -> Result<Option<Loaded>> {
    provide_with(path, &["exclusive=1"])
}

/// Like [`provide`], with module parameters.
fn provide_with(path: &Path, parameters: &[&str]) -> Result<Option<Loaded>> {
    if path.exists() {
        return Ok(None);
    }
    let module = module_of(path).ok_or_else(|| Error::missing(path))?;
    let failed = |reason: String| Error::NotLoaded {
        path: path.into(),
        module,
        reason,
    };
    let loaded = load(module, parameters).map_err(failed)?;
    if path.exists() {
        return Ok(Some(loaded));
    }
    Err(failed("it was loaded, but made no such device".into()))
}

/// The modules loaded for a measurement; they are unloaded in reverse order.
#[derive(Debug, Default)]
pub struct Providers {
    loaded: Vec<Loaded>,
    software: bool,
}

impl Providers {
    /// True if the channels are swdma's, which was loaded because the machine had no free channel.
    #[must_use]
    pub fn are_software(&self) -> bool {
        self.software
    }
}

impl Drop for Providers {
    fn drop(&mut self) {
        while self.loaded.pop().is_some() {}
    }
}

/// Loads cftu if `/dev/cftu` does not exist; if no DMA channel is free for it, loads swdma with `channels` channels first,
/// or with as many as it can have.
/// `parameters` are cftu's.
///
/// # Errors
/// When the device does not exist and no module creates it, or modprobe can't load the module.
pub fn provide_copies(path: &Path, channels: usize, parameters: &[&str]) -> Result<Providers> {
    let mut providers = Providers::default();
    if path == Path::new(cftu::NULL) {
        return Ok(providers);
    }
    match provide_with(path, parameters) {
        Ok(loaded) => providers.loaded.extend(loaded),
        // modprobe's text for ENODEV, which cftu returns if it finds no channel. If swdma is loaded already, its
        // channels are all taken, and loading it again does not help.
        Err(Error::NotLoaded { reason, .. })
            if reason.contains("No such device") && !Path::new("/sys/module/swdma").exists() =>
        {
            let software = load("swdma", &[&software_channels(channels)]).map_err(|said| {
                Error::NotLoaded {
                    path: path.into(),
                    module: "cftu",
                    reason: format!("{reason}; and no DMA channel in software: {said}"),
                }
            })?;
            providers.loaded.push(software);
            providers.software = true;
            providers.loaded.extend(provide_with(path, parameters)?);
        }
        Err(error) => return Err(error),
    }
    Ok(providers)
}

/// swdma's parameter for `wanted` channels.
fn software_channels(wanted: usize) -> String {
    format!("channels={}", wanted.min(SOFTWARE_CHANNELS_MAX))
}

/// Loads copytrace if its devices do not exist in the folder `path`.
///
/// # Errors
/// When they do not exist and copytrace can't be loaded.
pub fn provide_trace(path: &Path) -> Result<Option<Loaded>> {
    if path == Path::new(trace::NULL) {
        return Ok(None);
    }
    provide(&path.join(Function::From.device()))
}

/// Loads a module, or returns the reason of the failure.
fn load(module: &'static str, parameters: &[&str]) -> std::result::Result<Loaded, String> {
    let output = Command::new("modprobe")
        .arg(module)
        .args(parameters)
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(Loaded { module });
    }
    let said = String::from_utf8_lossy(&output.stderr);
    // The last line has the reason; lines before it name the modules that depend on each other.
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    Err(last.map_or_else(
        || output.status.to_string(),
        |line| line.trim().trim_start_matches("modprobe: ").to_owned(),
    ))
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
            "/nonexistent/mymem is not there: give the path of a device, such as /dev/mymem, /dev/cftu or /dev/copytrace"
        );
        assert_eq!(module_of(Path::new("/dev/mymem_rust")), Some("mymem_rust"));
        assert_eq!(module_of(Path::new("/dev/cftu")), Some("cftu"));
        let traced = Path::new(trace::DEVICES).join(Function::To.device());
        assert_eq!(module_of(&traced), Some("copytrace"));
    }

    #[test]
    fn swdma_is_asked_for_no_more_channels_than_it_takes() {
        let module = include_str!("../../../kernel/swdma/main.c");
        assert!(module.contains(&format!("#define CHANNELS_MAX {SOFTWARE_CHANNELS_MAX}\n")));
        assert_eq!(software_channels(4), "channels=4");
        assert_eq!(software_channels(96), "channels=64");
    }

    #[test]
    fn what_stands_in_for_a_device_needs_no_module() {
        let providers = provide_copies(Path::new("null"), 4, &[]).unwrap();
        assert!(providers.loaded.is_empty() && !providers.are_software());
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(
            provide_copies(file.path(), 4, &[])
                .unwrap()
                .loaded
                .is_empty()
        );
        assert!(provide_copies(Path::new("/nonexistent/cftu"), 4, &[]).is_err());
        assert!(provide_trace(Path::new("null")).unwrap().is_none());
        assert!(provide_trace(Path::new("/nonexistent")).is_err());
    }
}
