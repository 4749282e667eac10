// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lab's own kernel: Debian's source with our patches and options, built once and kept.
//!
//! Stock kernels have no Rust, and no checkers of memory and locks. A build is kept in the cache under a hash of its inputs,
//! reduced to the files that a boot and module builds need.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Instant;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::architecture::Architecture;
use crate::build::{self, Watched};
use crate::cache::Cache;
use crate::debian::{Apt, Package};
use crate::digest;
use crate::error::{Error, OnFile, Result};
use crate::kernel::{self, Kernel};
use crate::machine::interrupt_flag;
use crate::program;
use crate::source::Source;

/// The package with the source; its tarball has the same name.
const SOURCE_PACKAGE: &str = "linux-source-6.12";

/// The C compiler for the kernel and its modules. With Rust, 6.12 supports KASAN with clang only, and one back end for both
/// languages makes their times comparable.
const LLVM: &str = "LLVM=-19";

/// Makes the kernel's C declarations known to Rust; Debian's version is older than the kernel requires.
const BINDGEN: &str = "0.72.1";

/// Programs that a build calls, besides those that build memwarden itself.
const PROGRAMS: [&str; 11] = [
    "bc",
    "bison",
    "cargo",
    "clang-19",
    "flex",
    "ld.lld-19",
    "llvm-objcopy-19",
    "make",
    "patch",
    "perl",
    "rustc",
];

/// Files not unpacked from the source: code of other architectures, large drivers (only their Kconfig is read), and
/// documentation. tar's `*` matches across folders.
const NOT_UNPACKED: [&str; 15] = [
    "linux-source-6.12/Documentation/*.rst",
    "linux-source-6.12/arch/mips/*.[chS]",
    "linux-source-6.12/arch/powerpc/*.[chS]",
    "linux-source-6.12/arch/riscv/*.[chS]",
    "linux-source-6.12/arch/s390/*.[chS]",
    "linux-source-6.12/arch/sparc/*.[chS]",
    "linux-source-6.12/arch/x86/*.[chS]",
    "linux-source-6.12/arch/*.dts*",
    "linux-source-6.12/drivers/gpu/drm/*.[ch]",
    "linux-source-6.12/drivers/media/*.[ch]",
    "linux-source-6.12/drivers/net/ethernet/*.[ch]",
    "linux-source-6.12/drivers/net/wireless/*.[ch]",
    "linux-source-6.12/sound/*.[ch]",
    "linux-source-6.12/tools/perf",
    "linux-source-6.12/tools/testing",
];

/// Settings that make builds reproducible.
const REPEATABLE: [&str; 3] = [
    "KBUILD_BUILD_TIMESTAMP=2026-01-01",
    "KBUILD_BUILD_USER=memwarden",
    "KBUILD_BUILD_HOST=lab",
];

/// A variant of the lab's own kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// Without debug checks, the fastest.
    Plain,
    /// With the checkers of memory, arithmetic and locks: KASAN, kmemleak, UBSAN, lockdep.
    Debug,
    /// With the drivers of a real Raspberry Pi 3.
    RaspberryPi3,
}

impl Flavour {
    /// Files in lab/config/; later ones override earlier ones.
    fn fragments(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &["base.config", "rust.config"],
            Self::Debug => &["base.config", "rust.config", "debug.config"],
            Self::RaspberryPi3 => &["base.config", "rust.config", "raspberry-pi-3.config"],
        }
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "own",
            Self::Debug => "own-debug",
            Self::RaspberryPi3 => "own-raspberry-pi-3",
        })
    }
}

/// The facts of a build, kept beside the kernel.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Built {
    /// The output of `uname -r`.
    pub release: String,
    /// Debian's version of the source.
    pub source: String,
    /// Patches that were applied, in order.
    pub patches: Vec<String>,
    /// Wall-clock seconds of configuring and compiling.
    pub build_s: f64,
    /// Objects that were compiled.
    pub objects: u64,
    /// The image's size in bytes.
    pub image_bytes: u64,
}

/// The inputs of a kernel's build.
struct Recipe {
    flavour: Flavour,
    version: String,
    patches: Vec<PathBuf>,
    fragments: Vec<PathBuf>,
    digest: String,
}

impl Recipe {
    fn new(source: &Source, flavour: Flavour, version: String) -> Result<Self> {
        let patches = build::series(&source.root().join("kernel/patches/6.12"))?;
        let fragments = fragments(source, flavour);
        let mut parts = vec![version.clone().into_bytes(), BINDGEN.into()];
        for file in patches.iter().chain(&fragments) {
            parts.push(fs::read(file).on("read", file)?);
        }
        for program in ["rustc", "clang-19"] {
            parts.push(said_version(program)?);
        }
        let digest = digest::short(parts);
        Ok(Self {
            flavour,
            version,
            patches,
            fragments,
            digest,
        })
    }

    /// A name for the cache.
    fn name(&self) -> String {
        let version = self.version.replace(['/', ':'], "_");
        format!("{}_{version}_{}", self.flavour, self.digest)
    }
}

fn fragments(source: &Source, flavour: Flavour) -> Vec<PathBuf> {
    let folder = source.root().join("lab/config");
    flavour
        .fragments()
        .iter()
        .map(|name| folder.join(name))
        .collect()
}

fn said_version(program: &str) -> Result<Vec<u8>> {
    let attempted = format!("ask {program} for its version");
    Ok(program::run(&attempted, program::command(program).arg("--version"))?.stdout)
}

/// The build tree of the own kernel, built if it is not in the cache.
///
/// # Errors
/// When a step fails, with the end of its output.
pub(crate) fn tree(
    cache: &Cache,
    source: &Source,
    flavour: Flavour,
    say: &dyn Fn(&str),
) -> Result<PathBuf> {
    let package = match package(cache, say) {
        Ok(package) => package,
        // Without apt's lists (offline, or removed) a cached kernel of another version is used.
        Err(error) => {
            let tree = newest(cache, flavour).ok_or(error)?;
            say(&format!(
                "apt has no package lists: using {} from the cache",
                name_of(&tree)
            ));
            return Ok(tree);
        }
    };
    let recipe = match Recipe::new(source, flavour, package.version.clone()) {
        Err(error @ Error::MissingProgram { .. }) => program::require(&PROGRAMS).and(Err(error)),
        recipe => recipe,
    }?;
    cache.entry("own", &recipe.name(), |folder, _| {
        program::require(&PROGRAMS)?;
        let bindgen = bindgen(cache, say)?;
        make(&recipe, &package, &bindgen, folder, say)
    })
}

/// The package with the source.
fn package(cache: &Cache, say: &dyn Fn(&str)) -> Result<Package> {
    Apt::debian_12(cache, say)?.find(SOURCE_PACKAGE)
}

/// Whether [`tree`] would find its kernel in the cache.
pub(crate) fn is_built(cache: &Cache, source: &Source, flavour: Flavour) -> bool {
    match package(cache, &|_| ()) {
        // If a compiler is missing, no kernel was built.
        Ok(package) => Recipe::new(source, flavour, package.version)
            .is_ok_and(|recipe| cache.names("own").contains(&recipe.name())),
        Err(_) => newest(cache, flavour).is_some(),
    }
}

/// The newest kernel of a flavour in the cache, from any recipe.
fn newest(cache: &Cache, flavour: Flavour) -> Option<PathBuf> {
    cache
        .names("own")
        .into_iter()
        .filter(|name| name.starts_with(&format!("{flavour}_")))
        .map(|name| cache.root().join("own").join(name))
        .max_by_key(|tree| {
            fs::metadata(tree.join(FACTS))
                .and_then(|facts| facts.modified())
                .ok()
        })
}

/// The facts of the build of a kernel in the cache.
pub(crate) fn built(tree: &Path) -> Result<Built> {
    let path = tree.join(FACTS);
    let text = fs::read(&path).on("read", &path)?;
    serde_json::from_slice(&text).map_err(|error| {
        Error::BadInput(format!(
            "{}: {error}: remove the cache (memwarden lab clean)",
            path.display()
        ))
    })
}

const FACTS: &str = "memwarden.json";

/// Fills `folder` with a build tree.
fn make(
    recipe: &Recipe,
    package: &Package,
    bindgen: &Path,
    folder: &Path,
    say: &dyn Fn(&str),
) -> Result<()> {
    say("fetching the kernel's source (about 140 MB)");
    let unpacked = folder.join(".package");
    fs::create_dir(&unpacked).on("create", &unpacked)?;
    package.unpack_to(&unpacked)?;
    say("unpacking the kernel's source");
    let tarball = unpacked.join(format!("usr/src/{SOURCE_PACKAGE}.tar.xz"));
    let mut tar = program::command("tar");
    tar.arg("-xf").arg(&tarball).arg("-C").arg(folder);
    tar.arg("--strip-components=1");
    for pattern in NOT_UNPACKED {
        tar.arg(format!("--exclude={pattern}"));
    }
    program::run("unpack the kernel's source", &mut tar)?;
    fs::remove_dir_all(&unpacked).on("remove", &unpacked)?;
    for patch in &recipe.patches {
        say(&format!("applying {}", name_of(patch)));
        let what = format!("{SOURCE_PACKAGE} {}", recipe.version);
        build::apply(patch, folder, &what)?;
    }
    let started = Instant::now();
    let missing = configure(folder, folder, bindgen, &recipe.fragments)?;
    if let Some(first) = missing.first() {
        return Err(Error::BadInput(format!(
            "lab/config: the kernel rejects {first}: an option that it depends on is not set"
        )));
    }
    let objects = compile(folder, folder, bindgen, say)?;
    let image = folder.join("arch/arm64/boot/Image");
    let facts = Built {
        release: kernel::release(folder)?,
        source: format!("{SOURCE_PACKAGE} {}", recipe.version),
        patches: recipe.patches.iter().map(|patch| name_of(patch)).collect(),
        build_s: started.elapsed().as_secs_f64(),
        objects,
        image_bytes: fs::metadata(&image).on("read", &image)?.len(),
    };
    reduce(folder, folder)?;
    let path = folder.join(FACTS);
    let text = serde_json::to_string_pretty(&facts).unwrap_or_default();
    fs::write(&path, text).on("write", &path)
}

/// Builds the user's source tree out of tree, in target/lab/kernel; the sources stay unchanged. Compiles changed files
/// only. Returns the build tree, for `--kernel PATH`, and the options that the tree does not know.
///
/// # Errors
/// When the folder is not a kernel source, or a step fails, with the end of its output.
pub fn build_tree(
    cache: &Cache,
    source: &Source,
    linux: &Path,
    flavour: Flavour,
    say: &dyn Fn(&str),
) -> Result<(PathBuf, Vec<String>)> {
    let refuse = |why: &str| {
        Error::BadInput(format!(
            "--linux {}: {why}; give the folder of a Linux source tree",
            linux.display()
        ))
    };
    let linux = linux.canonicalize().map_err(|_| refuse("no such folder"))?;
    if !linux.join("arch/arm64/Kconfig").is_file() {
        return Err(refuse("it has no arch/arm64/Kconfig"));
    }
    program::require(&PROGRAMS)?;
    let digest = digest::short([linux.as_os_str().as_encoded_bytes()]);
    let tree = source.built(&format!("kernel/{flavour}-{digest}"))?;
    let _lock = crate::cache::lock(&tree.join(".memwarden-lock"))?;
    let bindgen = bindgen(cache, say)?;
    let missing = configure(&linux, &tree, &bindgen, &fragments(source, flavour))?;
    compile(&linux, &tree, &bindgen, say)?;
    Ok((tree, missing))
}

/// Writes the configuration: the fragments' options and their dependencies, and no others. Returns the lines that the
/// kernel rejected.
fn configure(
    linux: &Path,
    tree: &Path,
    bindgen: &Path,
    fragments: &[PathBuf],
) -> Result<Vec<String>> {
    let mut wanted = String::new();
    for file in fragments {
        wanted += &fs::read_to_string(file).on("read", file)?;
    }
    let path = tree.join(".memwarden-config");
    fs::write(&path, &wanted).on("write", &path)?;
    program::run(
        "configure the kernel",
        kernel_make(linux, tree, bindgen)
            .arg(format!("KCONFIG_ALLCONFIG={}", path.display()))
            .arg("allnoconfig"),
    )?;
    let config = tree.join(".config");
    let taken = fs::read_to_string(&config).on("read", &config)?;
    Ok(not_taken(&wanted, &taken))
}

/// The last setting of each option in `wanted` that differs from `.config`.
fn not_taken(wanted: &str, taken: &str) -> Vec<String> {
    let mut last: indexmap::IndexMap<&str, &str> = indexmap::IndexMap::new();
    for line in wanted.lines() {
        if let Some(option) = option(line) {
            last.insert(option, line);
        }
    }
    last.into_iter()
        .filter(|(option, line)| {
            let off = line.starts_with('#')
                && !taken.lines().any(|t| t.starts_with(&format!("{option}=")));
            !off && !taken.lines().any(|t| t == *line)
        })
        .map(|(_, line)| line.to_owned())
        .collect()
}

/// `CONFIG_X=y` and `# CONFIG_X is not set` -> `CONFIG_X`
fn option(line: &str) -> Option<&str> {
    let name = match line.strip_prefix("# ") {
        Some(rest) => rest.strip_suffix(" is not set")?,
        None => line.split_once('=')?.0,
    };
    name.starts_with("CONFIG_").then_some(name)
}

/// Compiles the image and the modules. Returns the number of objects compiled.
fn compile(linux: &Path, tree: &Path, bindgen: &Path, say: &dyn Fn(&str)) -> Result<u64> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut make = kernel_make(linux, tree, bindgen);
    make.arg(format!("-j{jobs}")).args(["Image", "modules"]);
    let watched = Watched {
        what: "the kernel",
        tree: linux,
        log: &tree.join(".memwarden-log"),
        // make names what it makes: "  CC      mm/vmscan.o", "  RUSTC L rust/core.o".
        is_object: |line| line.starts_with("  ") && line.ends_with(".o"),
        say,
    };
    watched.run(&mut make)
}

/// A make command for the sources in `linux` with output in `tree`, which may be the same folder.
fn kernel_make(linux: &Path, tree: &Path, bindgen: &Path) -> Command {
    let mut make = program::make();
    make.arg("-C").arg(linux).args(["ARCH=arm64", LLVM]);
    make.arg(format!("BINDGEN={}", bindgen.display()))
        .args(REPEATABLE);
    if tree != linux {
        make.arg(format!("O={}", tree.display()));
    }
    make
}

/// bindgen, built once.
fn bindgen(cache: &Cache, say: &dyn Fn(&str)) -> Result<PathBuf> {
    let entry = cache.entry("tools", &format!("bindgen-cli_{BINDGEN}"), |folder, _| {
        say("building bindgen");
        program::run(
            "build bindgen",
            program::command("cargo")
                // Without optimisation: it runs for seconds, but its optimised build takes minutes.
                .args([
                    "install",
                    "--quiet",
                    "--locked",
                    "--debug",
                    "--version",
                    BINDGEN,
                ])
                .arg("--root")
                .arg(folder)
                .arg("--target-dir")
                .arg(folder.join("target"))
                .arg("bindgen-cli")
                .env_remove("CARGO")
                .env_remove("RUSTFLAGS")
                .env_remove("RUSTUP_TOOLCHAIN"),
        )?;
        let objects = folder.join("target");
        fs::remove_dir_all(&objects).on("remove", &objects)
    })?;
    Ok(entry.join("bin/bindgen"))
}

/// Removes objects and sources that neither a boot nor a module build needs, two thirds of the tree.
fn reduce(root: &Path, folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).on("read", folder)? {
        let path = entry.on("read", folder)?.path();
        if path.is_dir() && !path.is_symlink() {
            reduce(root, &path)?;
            // Fails for a folder that isn't empty.
            let _ = fs::remove_dir(&path);
        } else if !is_kept(path.strip_prefix(root).unwrap_or(&path)) {
            fs::remove_file(&path).on("remove", &path)?;
        }
    }
    Ok(())
}

/// `path` is relative to the tree's root.
fn is_kept(path: &Path) -> bool {
    let name = name_of(path);
    let end = path
        .extension()
        .map(|end| end.to_string_lossy().into_owned());
    let ends = |list: &[&str]| end.as_deref().is_some_and(|end| list.contains(&end));
    let depth = path.components().count();
    if ends(&["o", "a", "cmd"]) || name.ends_with(".cmd") {
        return false;
    }
    // The top folder's files: Makefile, .config, Module.symvers, System.map, vmlinux, modules.*
    depth == 1
        || path.starts_with("scripts")
        || path.starts_with("include")
        || path.starts_with("arch/arm64/include")
        || path == Path::new("arch/arm64/boot/Image")
        || path.starts_with("rust") && ends(&["rmeta", "so", "rs"])
        || ends(&["ko", "lds"])
        || name.starts_with("Makefile")
        || name.starts_with("Kbuild")
        || name.starts_with("Kconfig")
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

impl Kernel {
    /// Whether the lab's own kernel is in the cache.
    #[must_use]
    pub fn own_is_built(cache: &Cache, source: &Source, flavour: Flavour) -> bool {
        is_built(cache, source, flavour)
    }

    /// The lab's own kernel, built if it is not in the cache: minutes the first time.
    ///
    /// # Errors
    /// When a step fails, with the end of its output.
    pub fn own(
        cache: &Cache,
        source: &Source,
        flavour: Flavour,
        say: &dyn Fn(&str),
    ) -> Result<(Self, Built)> {
        // Installed before the build, so that a stop by the user removes its partial files.
        let stop = interrupt_flag();
        let tree = tree(cache, source, flavour, say).map_err(|error| {
            if stop.load(Ordering::Relaxed) {
                Error::Interrupted
            } else {
                error
            }
        })?;
        let mut kernel = Self::built(&tree, Architecture::Arm64)?;
        kernel.origin = name_of(&tree);
        Ok((kernel, built(&tree)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_was_not_taken_is_named() {
        let wanted = "# a comment\nCONFIG_A=y\nCONFIG_B=m\nCONFIG_V=\"x\"\n# CONFIG_C is not set\n# CONFIG_D is not set\nCONFIG_V=\"y\"\n";
        let taken = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_V=\"y\"\nCONFIG_D=y\n";
        assert_eq!(
            not_taken(wanted, taken),
            ["CONFIG_B=m", "# CONFIG_D is not set"]
        );
    }

    #[test]
    fn a_reduced_tree_keeps_what_modules_are_built_with() {
        for kept in [
            ".config",
            "Module.symvers",
            "vmlinux",
            "scripts/mod/modpost",
            "scripts/module.lds",
            "include/generated/autoconf.h",
            "arch/arm64/include/asm/page.h",
            "arch/arm64/Makefile",
            "arch/arm64/boot/Image",
            "rust/libkernel.rmeta",
            "rust/libmacros.so",
            "drivers/dma/dmatest.ko",
        ] {
            assert!(is_kept(Path::new(kept)), "{kept}");
        }
        for gone in [
            "mm/vmscan.c",
            "mm/vmscan.o",
            "mm/.vmscan.o.cmd",
            "scripts/mod/modpost.o",
            "drivers/dma/dmaengine.h",
        ] {
            assert!(!is_kept(Path::new(gone)), "{gone}");
        }
    }

    #[test]
    fn a_folder_that_is_no_source_is_refused_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let source = Source::find().unwrap();
        let cache = Cache::at(folder.path().join("cache"));
        for (linux, why) in [
            ("/no/such", "no such folder"),
            (
                folder.path().to_str().unwrap(),
                "it has no arch/arm64/Kconfig",
            ),
        ] {
            let said = build_tree(&cache, &source, Path::new(linux), Flavour::Plain, &|_| ())
                .unwrap_err()
                .to_string();
            assert!(said.contains(why) && !said.contains('\n'), "{said}");
        }
    }
}
