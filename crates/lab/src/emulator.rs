// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lab's own emulator: Debian's QEMU source with our patches, built once and kept.
//!
//! In Debian's binary all CPUs share one instruction-counted clock and take turns. In the lab's, each CPU has its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::build::{self, Watched};
use crate::cache::Cache;
use crate::debian::{Apt, SourcePackage};
use crate::digest;
use crate::error::{Error, OnFile, Result};
use crate::machine::interrupt_flag;
use crate::program;
use crate::source::Source;

/// The source package, with whose name its cache entries begin.
const PACKAGE: &str = "qemu";

/// The series of QEMU that our patches are for, and the folder that they are in.
const SERIES: &str = "7.2";

/// The program to build and keep.
const PROGRAM: &str = "qemu-system-aarch64";

/// File with the facts of the build, beside the program.
const FACTS: &str = "memwarden.json";

/// TCG for arm64, the machines and devices of `lab/qemu/memwarden.mak`, and nothing else.
const CONFIGURE: [&str; 15] = [
    "--target-list=aarch64-softmmu",
    "--without-default-features",
    "--without-default-devices",
    "--with-devices-aarch64=memwarden",
    "--enable-tcg",
    "--enable-fdt=system",
    "--enable-virtfs",
    "--enable-attr",
    "--enable-cap-ng",
    "--disable-docs",
    "--disable-tools",
    "--disable-debug-info",
    "--disable-qom-cast-debug",
    "--disable-werror",
    "--with-git-submodules=ignore",
];

/// The facts of a build, kept beside the program.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct BuiltEmulator {
    /// Debian's version of the source.
    pub source: String,
    /// Our patches, in order, applied after Debian's.
    pub patches: Vec<String>,
    /// Wall-clock seconds of configuring and compiling.
    pub build_s: f64,
    /// Objects that were compiled.
    pub objects: u64,
    /// The program's size in bytes.
    pub program_bytes: u64,
}

/// A built emulator.
#[derive(Debug, Clone)]
pub struct Emulator {
    /// The program.
    pub program: PathBuf,
    /// The facts of its build.
    pub built: BuiltEmulator,
}

/// The inputs of an emulator's build.
struct Recipe {
    package: SourcePackage,
    devices: PathBuf,
    patches: Vec<PathBuf>,
    digest: String,
}

impl Recipe {
    fn new(source: &Source, package: SourcePackage) -> Result<Self> {
        if !package.version.starts_with(SERIES) {
            return Err(Error::BadInput(format!(
                "lab/qemu has patches for QEMU {SERIES}, and the source package is {}: add a series of patches for it",
                package.version
            )));
        }
        let folder = source.root().join("lab/qemu");
        let devices = folder.join("memwarden.mak");
        let patches = build::series(&folder.join(SERIES))?;
        let mut parts = vec![package.version.clone().into_bytes()];
        parts.extend(CONFIGURE.map(|option| option.as_bytes().to_vec()));
        for file in patches.iter().chain([&devices]) {
            parts.push(fs::read(file).on("read", file)?);
        }
        let compiler = program::run(
            "ask the compiler for its version",
            program::command("gcc").arg("--version"),
        )?;
        parts.push(compiler.stdout);
        Ok(Self {
            package,
            devices,
            patches,
            digest: digest::short(parts),
        })
    }

    fn name(&self) -> String {
        let version = self.package.version.replace(['/', ':'], "_");
        format!("{PACKAGE}_{version}_{}", self.digest)
    }
}

impl Emulator {
    /// The lab's own emulator, built if it is not in the cache: minutes the first time.
    ///
    /// # Errors
    /// When a step fails, with the end of its output.
    pub fn own(cache: &Cache, source: &Source, say: &dyn Fn(&str)) -> Result<Self> {
        // Installed before the build, so that a stop by the user removes its partial files.
        let stop = interrupt_flag();
        let folder = Self::folder(cache, source, say).map_err(|error| {
            if stop.load(std::sync::atomic::Ordering::Relaxed) {
                Error::Interrupted
            } else {
                error
            }
        })?;
        let path = folder.join(FACTS);
        let text = fs::read(&path).on("read", &path)?;
        let built = serde_json::from_slice(&text).map_err(|error| {
            Error::BadInput(format!(
                "{}: {error}: remove the cache (memwarden lab clean)",
                path.display()
            ))
        })?;
        Ok(Self {
            program: folder.join(PROGRAM),
            built,
        })
    }

    fn folder(cache: &Cache, source: &Source, say: &dyn Fn(&str)) -> Result<PathBuf> {
        let package = match Apt::sources(cache, say).and_then(|apt| apt.find_source(PACKAGE)) {
            Ok(package) => package,
            // Without apt's lists (offline, or removed) a cached emulator of another version is used.
            Err(error) => {
                let name = cache.names("own").into_iter().rfind(|name| {
                    name.strip_prefix(PACKAGE)
                        .is_some_and(|rest| rest.starts_with('_'))
                });
                let name = name.ok_or(error)?;
                say(&format!(
                    "apt has no package lists: using {name} from the cache"
                ));
                return Ok(cache.root().join("own").join(name));
            }
        };
        let recipe = Recipe::new(source, package)?;
        cache.entry("own", &recipe.name(), |folder, _| {
            make(&recipe, folder, say)
        })
    }
}

/// Fills `folder` with the program.
fn make(recipe: &Recipe, folder: &Path, say: &dyn Fn(&str)) -> Result<()> {
    let tree = folder.join(".tree");
    let objects = folder.join(".objects");
    for path in [&tree, &objects] {
        fs::create_dir(path).on("create", path)?;
    }
    say("fetching the emulator's source (24 MB)");
    recipe.package.unpack_to(&tree)?;
    let what = format!("{PACKAGE} {}", recipe.package.version);
    for patch in build::series(&tree.join("debian/patches"))? {
        build::apply(&patch, &tree, &what)?;
    }
    for patch in &recipe.patches {
        say(&format!("applying {}", name_of(patch)));
        build::apply(patch, &tree, &what)?;
    }
    let devices = tree.join("configs/devices/aarch64-softmmu/memwarden.mak");
    fs::copy(&recipe.devices, &devices).on("write", &devices)?;
    let log = folder.join(".log");
    let started = Instant::now();
    // Its reasons are in its output, its failure in its errors.
    program::run(
        "configure the emulator",
        program::command("sh")
            .args(["-c", "exec ../.tree/configure \"$@\" 2>&1", "configure"])
            .args(CONFIGURE)
            .current_dir(&objects),
    )?;
    let watched = Watched {
        what: "the emulator",
        tree: &objects,
        log: &log,
        // "[12/1042] Compiling C object libqom.fa.p/qom_object.c.o"
        is_object: |line| line.starts_with('[') && line.ends_with(".o"),
        say,
    };
    let count = watched.run(
        program::command("ninja")
            .arg("-C")
            .arg(&objects)
            .arg(PROGRAM),
    )?;
    let program = folder.join(PROGRAM);
    program::run(
        "strip the emulator",
        program::command("strip")
            .arg("-o")
            .arg(&program)
            .arg(objects.join(PROGRAM)),
    )?;
    let facts = BuiltEmulator {
        source: what,
        patches: recipe.patches.iter().map(|patch| name_of(patch)).collect(),
        build_s: started.elapsed().as_secs_f64(),
        objects: count,
        program_bytes: fs::metadata(&program).on("read", &program)?.len(),
    };
    for path in [&tree, &objects] {
        fs::remove_dir_all(path).on("remove", path)?;
    }
    fs::remove_file(&log).on("remove", &log)?;
    let path = folder.join(FACTS);
    let text = serde_json::to_string_pretty(&facts).unwrap_or_default();
    fs::write(&path, text).on("write", &path)
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(version: &str) -> SourcePackage {
        let uris = format!(
            "'u' qemu_{version}.dsc 1 x\n'u' qemu_1.orig.tar.xz 1 x\n'u' qemu_{version}.debian.tar.xz 1 x\n"
        );
        SourcePackage::parse(&Apt::Machine, PACKAGE, &uris).unwrap()
    }

    #[test]
    fn another_qemu_is_refused_in_one_line() {
        let source = Source::find().unwrap();
        let Err(error) = Recipe::new(&source, package("10.0.2+ds-2")) else {
            panic!("taken");
        };
        let said = error.to_string();
        assert!(
            said.contains("QEMU 7.2, and the source package is 10.0.2") && !said.contains('\n'),
            "{said}"
        );
    }

    #[test]
    fn what_goes_into_it_is_in_its_name() {
        let source = Source::find().unwrap();
        let recipe = |version| Recipe::new(&source, package(version)).unwrap();
        let (one, same, other) = (recipe("7.2-1"), recipe("7.2-1"), recipe("7.2-2"));
        assert_eq!(one.name(), same.name());
        assert_ne!(one.digest, other.digest);
        assert!(!one.patches.is_empty());
    }
}
