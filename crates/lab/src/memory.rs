// SPDX-License-Identifier: MIT OR Apache-2.0
//! A modelled memory for the emulated CPUs: one of the simulator's platforms, as a library for the emulator, and as
//! cache properties in the guest's device tree.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use memwarden_sim::Platform;
use memwarden_sim::settings::CacheSettings;

use crate::error::{Error, OnFile, Result};
use crate::program;
use crate::source::Source;

/// The library's package.
const PACKAGE: &str = "memwarden-memory-model";

/// The engine is the first device on the emulated machine's platform bus.
const ENGINE_IS_COHERENT: &str =
    "\n/ { platform-bus@c000000 { dma-controller@0 { dma-coherent; }; }; };\n";

/// A seed for the kernel's random numbers, as from a board's firmware.
const SEED: &str = include_str!("../../../lab/seed.dtsi");

/// A platform whose caches and memory the emulated machine has.
#[derive(Debug, Clone)]
pub struct ModelledMemory {
    name: String,
    cpu: String,
    platform: Platform,
    /// It differs from the platform of its name.
    changed: bool,
}

impl ModelledMemory {
    /// Loads a platform by its name or file, like `sim:PLATFORM`.
    ///
    /// # Errors
    /// When there is no such platform, or its file does not say which CPU executes for its cores.
    pub fn find(name: &str) -> Result<Self> {
        let bad = |why: String| Error::BadInput(format!("platform {name}: {why}"));
        let platform = Platform::find(name).map_err(|error| bad(error.with_causes()))?;
        let cpu = platform.emulated_as.clone().ok_or_else(|| {
            bad("its file has no `emulated_as`: the CPU that executes in the lab, such as cortex-a53".into())
        })?;
        Ok(Self {
            name: name.to_owned(),
            cpu,
            platform,
            changed: false,
        })
    }

    /// The same without its prefetcher.
    #[must_use]
    pub fn without_prefetcher(mut self) -> Self {
        self.platform.machine.core.prefetcher = None;
        self.name.push_str(" without its prefetcher");
        self.changed = true;
        self
    }

    /// The platform's name as requested, and its changes.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The emulated CPU.
    pub(crate) fn cpu(&self) -> &str {
        &self.cpu
    }

    /// The emulator's arguments for its DMA engine, if it has one.
    pub(crate) fn engine(&self) -> &'static [&'static str] {
        match self.platform.machine.dma {
            Some(_) => &["-device", "bcm2835-dma"],
            None => &[],
        }
    }

    /// The largest number of CPUs that it supports.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        u32::try_from(self.platform.machine.cores).unwrap_or(u32::MAX)
    }

    /// The library, built if the checkout has changed.
    pub(crate) fn library(source: &Source, say: &dyn Fn(&str)) -> Result<PathBuf> {
        say("building the modelled memory");
        let target = program::cargo(
            "build the modelled memory",
            source,
            &["build", "--release", "--quiet", "--package", PACKAGE],
        )?;
        Ok(target
            .join("release")
            .join(format!("lib{}.so", PACKAGE.replace('-', "_"))))
    }

    /// The emulator's arguments for it. A changed platform is written to `folder`.
    pub(crate) fn qemu(&self, library: &Path, folder: &Path) -> Result<[String; 2]> {
        // The emulator may run in another folder, so a file's path must be absolute. A comma ends a property.
        let config = match Path::new(&self.name).canonicalize() {
            _ if self.changed => self.write_to(folder)?.display().to_string(),
            Ok(path) if path.is_file() => path.display().to_string(),
            _ => self.name.clone(),
        };
        let [library, config] =
            [library.display().to_string(), config].map(|text| text.replace(',', ",,"));
        Ok([
            "-object".to_owned(),
            format!("memory-model,id=memory,boot=off,library={library},config={config}"),
        ])
    }

    /// Writes the platform to a file, with an absolute path to its memory file.
    fn write_to(&self, folder: &Path) -> Result<PathBuf> {
        let mut platform = self.platform.clone();
        if platform.memory.name.ends_with(".toml") {
            let memory = platform.folder().join(&platform.memory.name);
            let memory = memory.canonicalize().on("find", &memory)?;
            platform.memory.name = memory.display().to_string();
        }
        let path = folder.join("platform.toml");
        fs::write(&path, platform.to_toml()).on("write", &path)?;
        Ok(path)
    }

    /// The device tree that the emulator makes for a machine with these `arguments`, with the caches and a seed added.
    pub(crate) fn device_tree(
        &self,
        emulator: &Path,
        arguments: &[String],
        cpus: u32,
        folder: &Path,
    ) -> Result<PathBuf> {
        let (made, text) = (folder.join("machine.dtb"), folder.join("machine.dts"));
        let attempted = "make the guest's device tree";
        program::run(
            attempted,
            program::command(&emulator.to_string_lossy())
                .args(arguments)
                .args(["-nodefaults", "-nographic", "-machine"])
                .arg(format!("dumpdtb={}", made.display())),
        )?;
        let source = program::run(
            attempted,
            program::command("dtc")
                .args(["-q", "-I", "dtb", "-O", "dts"])
                .arg(&made),
        )?;
        let more = self.caches(cpus) + self.coherence() + SEED;
        fs::write(&text, [&source.stdout, more.as_bytes()].concat()).on("write", &text)?;
        program::run(
            attempted,
            program::command("dtc")
                .args(["-q", "-I", "dts", "-O", "dtb", "-o"])
                .arg(&made)
                .arg(&text),
        )?;
        Ok(made)
    }

    /// The property of a coherent DMA engine in the device tree. For other engines, Linux maintains the caches.
    fn coherence(&self) -> &'static str {
        match self.platform.machine.dma {
            Some(dma) if dma.coherent => ENGINE_IS_COHERENT,
            _ => "",
        }
    }

    /// The caches in a device tree's syntax (Devicetree Specification 0.4, 3.8 and 3.9).
    fn caches(&self, cpus: u32) -> String {
        let machine = &self.platform.machine;
        let line = machine.line_bytes;
        let sizes = |prefix: &str, bytes: u64, ways: usize| {
            let sets = bytes / line / ways as u64;
            format!(
                "{prefix}cache-size = <{bytes}>; {prefix}cache-line-size = <{line}>; {prefix}cache-sets = <{sets}>;"
            )
        };
        let unified = |label: &str, level: u32, cache: &CacheSettings, next: &str| {
            format!(
                "{label}: {label}-cache {{ compatible = \"cache\"; cache-level = <{level}>; cache-unified; {}{next} }};\n",
                sizes("", cache.size_bytes, cache.ways)
            )
        };
        // If a level is described only in part, Linux ignores the levels beyond it.
        let core = &machine.core;
        let mut innermost = sizes("d-", core.l1d.size_bytes, core.l1d.ways);
        if let Some(l1i) = core.l1i {
            innermost = format!("{innermost} {}", sizes("i-", l1i.size_bytes, l1i.ways));
        }
        let mut text = "\n/ { cpus {\n".to_owned();
        let shared = if machine.core.l2.is_some() { 3 } else { 2 };
        text += &unified("shared", shared, &machine.shared.cache, "");
        for cpu in 0..cpus {
            // Sixteen CPUs in a cluster, as in the interrupt controller.
            let place = cpu / 16 * 0x100 + cpu % 16;
            let next = match &machine.core.l2 {
                Some(l2) => {
                    let label = format!("own{cpu}");
                    text += &unified(&label, 2, l2, " next-level-cache = <&shared>;");
                    label
                }
                None => "shared".to_owned(),
            };
            let _ = writeln!(
                text,
                "cpu@{place:x} {{ {innermost} next-level-cache = <&{next}>; }};"
            );
        }
        text + "}; };\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caches_are_the_platforms() {
        let pi = ModelledMemory::find("raspberry-pi-3").unwrap();
        let text = pi.caches(4);
        assert!(
            text.contains("cpu@3 { d-cache-size = <32768>; d-cache-line-size = <64>; d-cache-sets = <128>; i-cache-size = <32768>; i-cache-line-size = <64>; i-cache-sets = <256>; next-level-cache = <&shared>; };"),
            "{text}"
        );
        assert!(
            text.contains("cache-level = <2>; cache-unified; cache-size = <524288>;"),
            "{text}"
        );
    }

    #[test]
    fn a_platform_that_is_none_is_refused_in_one_line() {
        let said = ModelledMemory::find("pdp-11").unwrap_err().to_string();
        assert!(
            said.starts_with("platform pdp-11: there is no platform") && !said.contains('\n'),
            "{said}"
        );
    }

    #[test]
    fn a_comma_does_not_end_the_property() {
        let mut pi = ModelledMemory::find("raspberry-pi-3").unwrap();
        pi.name = "a,b".into();
        let [_, said] = pi.qemu(Path::new("/x,y.so"), Path::new("/")).unwrap();
        assert_eq!(
            said,
            "memory-model,id=memory,boot=off,library=/x,,y.so,config=a,,b"
        );
    }

    #[test]
    fn a_platform_without_its_prefetcher_is_told_by_a_file() {
        let pi = ModelledMemory::find("raspberry-pi-3").unwrap();
        let pi = pi.without_prefetcher();
        assert_eq!(pi.name(), "raspberry-pi-3 without its prefetcher");
        let folder = tempfile::tempdir().unwrap();
        let [_, said] = pi.qemu(Path::new("/x.so"), folder.path()).unwrap();
        let file = said.split_once("config=").unwrap().1;
        let told = Platform::find(file).unwrap();
        assert!(told.machine.core.prefetcher.is_none());
        assert!(told.controller().is_ok());
    }
}
