// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the kernel modules for one kernel, in a copy of their sources.
//!
//! The copy keeps the checkout clean and lets several kernels' builds stand side
//! by side. It holds kernel/, policy/ and lab/ as they lie in the checkout, since
//! the modules reach the policy's sources by a relative path.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::architecture::Architecture;
use crate::cache::{self, Cache};
use crate::digest;
use crate::error::{OnFile, Result};
use crate::headers::Headers;
use crate::program;
use crate::source::Source;

/// Suffixes of make's products, which are not copied from a checkout with a build in it.
const PRODUCTS: [&str; 6] = ["o", "ko", "mod", "cmd", "symvers", "order"];

/// The file in a tree of modules that keeps the digest of what they were made from.
const MADE_FROM: &str = ".made-from";

/// All modules for one kernel.
#[derive(Debug)]
pub(crate) struct Modules {
    /// Their files.
    pub files: Vec<PathBuf>,
    /// The digest of what they were made from; none if the kernel's tree may have changed, which only make can tell.
    pub made_from: Option<String>,
}

/// Builds all modules. Only what changed is compiled, and make, which takes seconds to find that nothing did, is not
/// started for a kernel in the cache if all sources are those of the last build.
///
/// # Errors
/// With the compiler's message when a module does not build.
pub(crate) fn build(source: &Source, headers: &Headers, cache: &Cache) -> Result<Modules> {
    // Kernels of one release may be configured differently, so each tree needs separate objects.
    let digest = digest::short([headers.path.as_os_str().as_encoded_bytes()]);
    let tree = source.built(&format!("modules/{}-{digest}", headers.release))?;
    let _lock = cache::lock(&tree.join("lock"))?;
    let mut made_from = mirror(source, &tree)?;
    list_folders(source, &tree)?;
    made_from.push(headers.path.display().to_string());
    made_from.push(compiler(headers)?);
    let in_cache = headers.path.starts_with(cache.root());
    let made_from = in_cache.then(|| digest::hex(made_from));
    let stamp = tree.join(MADE_FROM);
    let are_there = products(&tree).is_ok();
    if !are_there || made_from.is_none() || fs::read_to_string(&stamp).ok() != made_from {
        // Not left beside the objects of a build that failed.
        fs::write(&stamp, "").on("write", &stamp)?;
        program::run(
            &format!("build the modules for {}", headers.release),
            &mut make(headers, &tree, &[]),
        )?;
        fs::write(&stamp, made_from.as_deref().unwrap_or_default()).on("write", &stamp)?;
    }
    let files = products(&tree)?;
    Ok(Modules { files, made_from })
}

/// The compiler's name and version.
fn compiler(headers: &Headers) -> Result<String> {
    let name = match (headers.clang, headers.architecture) {
        (Some(version), _) => format!("clang-{version}"),
        (None, Architecture::Arm64) => "aarch64-linux-gnu-gcc".to_owned(),
        (None, Architecture::Amd64) => "gcc".to_owned(),
    };
    let version = program::run(
        "build the modules",
        program::command(&name).arg("--version"),
    )?;
    Ok(String::from_utf8_lossy(&version.stdout).into_owned())
}

/// One kernel's build with all warnings on.
#[derive(Debug, Clone)]
pub struct Check {
    /// The kernel's release.
    pub release: String,
    /// The kernel's.
    pub architecture: Architecture,
    /// Warnings and errors, one a line; empty when the build is clean.
    pub complaints: Vec<String>,
    /// Everything that make said.
    pub log: PathBuf,
    /// It is an earlier build of the same sources with the same compilers.
    pub kept: bool,
}

/// Options of make for a check. CLIPPY is for kernels that were built with Rust; others don't heed it. No object is kept, so
/// none needs what a debugger wants. Debian's headers for Linux 7.2 and later lack the script that tests sparse, so their make
/// switches it off without `KBUILD_CHECKSRC`; and sparse 0.6.4 does not know what is defined in `CF`.
const WARNINGS: [&str; 7] = [
    "--keep-going",
    "W=1",
    "C=2",
    "KBUILD_CHECKSRC=2",
    "CF=-D__typeof_unqual__=__typeof__ '-D__builtin_strlen(s)=(sizeof(s)-1)'",
    "CLIPPY=1",
    "KCFLAGS=-g0",
];

/// A source in each check's tree: without its warning sparse did not run.
const SPARSE_RUNS: &str = "#ifdef __CHECKER__\n#warning sparse runs\n#endif\n";

/// What the cache keeps: the logs of clean builds, by what they were made from.
const CHECKS: &str = "checks";

/// The log in an entry of [`CHECKS`].
const LOG: &str = "log";

/// Builds all modules from nothing with `W=1`, sparse and clippy. With `again`, also if the cache has a clean build of the
/// same sources by the same compilers.
///
/// # Errors
/// When the build cannot be tried at all; a build that fails is in the answer.
pub fn check(source: &Source, headers: &Headers, cache: &Cache, again: bool) -> Result<Check> {
    let name = format!("{}-{}", headers.release, headers.architecture);
    let tree = source.built(&format!("check/{name}"))?;
    let _lock = cache::lock(&tree.join("lock"))?;
    let mut check = Check {
        release: headers.release.clone(),
        architecture: headers.architecture,
        complaints: Vec::new(),
        log: tree.join(LOG),
        kept: false,
    };
    let sources = mirror(source, &tree)?;
    let entry = format!(
        "{name}_{}",
        digest::short(checked_from(&sources, &tree, headers)?)
    );
    // Only a kernel in the cache is certain to be the same.
    let in_cache = headers.path.starts_with(cache.root());
    if in_cache && !again && cache.names(CHECKS).contains(&entry) {
        check.log = cache.root().join(CHECKS).join(&entry).join(LOG);
        check.kept = true;
        return Ok(check);
    }
    for room in ["kernel", "lab"] {
        let stale = tree.join(room);
        if stale.exists() {
            fs::remove_dir_all(&stale).on("remove", &stale)?;
        }
    }
    mirror(source, &tree)?;
    list_folders(source, &tree)?;
    fs::write(tree.join("sparse.c"), SPARSE_RUNS).on("write", &tree)?;
    let output = make(headers, &tree, &WARNINGS)
        .output()
        .map_err(|source| program::not_started("check the modules", "make", &source))?;
    let log = [output.stdout, output.stderr].concat();
    let log = String::from_utf8_lossy(&log);
    check.complaints = complaints(&log);
    if !output.status.success() {
        check.complaints.push("make failed".to_owned());
    }
    fs::write(&check.log, log.as_bytes()).on("write", &check.log)?;
    if in_cache && check.complaints.is_empty() {
        cache.entry(CHECKS, &entry, |folder, place| {
            // The kernel's earlier one: sources seldom return to what they were.
            for other in cache.names(CHECKS) {
                if other.starts_with(&format!("{name}_")) {
                    cache::remove_entry(&place.with_file_name(other))?;
                }
            }
            let path = folder.join(LOG);
            fs::write(&path, log.as_bytes()).on("write", &path)
        })?;
    }
    Ok(check)
}

/// All that a check's result depends on: the sources, without pages of text, the kernel, the compilers, and this file.
fn checked_from(sources: &[String], tree: &Path, headers: &Headers) -> Result<Vec<String>> {
    // Other checkouts have other trees.
    let tree = format!("{}/", tree.display());
    let mut parts: Vec<String> = (sources.iter())
        .map(|file| file.trim_start_matches(&tree).to_owned())
        .filter(|file| !file.contains(".md "))
        .collect();
    parts.push(headers.path.display().to_string());
    parts.push(compiler(headers)?);
    // A tool that is missing fails in the build, if the build needs it.
    for tool in ["sparse", "rustc", "clippy-driver"] {
        let version = program::command(tool).arg("--version").output();
        let version = version.map(|said| said.stdout).unwrap_or_default();
        parts.push(String::from_utf8_lossy(&version).into_owned());
    }
    parts.push(include_str!("modules.rs").to_owned());
    Ok(parts)
}

/// The warnings and errors in what make said, one of which is that sparse did not run.
fn complaints(log: &str) -> Vec<String> {
    const RUNS: &str = "warning: sparse runs";
    let mut complaints: Vec<String> = (log.lines())
        .filter(|line| is_complaint(line) && !line.contains(RUNS))
        .map(str::to_owned)
        .collect();
    if !log.contains(RUNS) {
        complaints.push("sparse did not run".to_owned());
    }
    complaints
}

fn is_complaint(line: &str) -> bool {
    // rustc's summary of warnings that were counted already.
    let is_summary = line.starts_with("warning: ") && line.ends_with(" emitted");
    [
        "warning:",
        "error:",
        "error[",
        "WARNING:",
        "ERROR:",
        "undefined!",
    ]
    .iter()
    .any(|word| line.contains(word))
        && !is_summary
}

fn make(headers: &Headers, tree: &Path, flags: &[&str]) -> Command {
    let (architecture, prefix) = match headers.architecture {
        Architecture::Arm64 => ("arm64", "aarch64-linux-gnu-"),
        Architecture::Amd64 => ("x86_64", ""),
    };
    // Modules are built by the compiler that built the kernel.
    let compiler = match headers.clang {
        Some(version) => format!("LLVM=-{version}"),
        None => format!("CROSS_COMPILE={prefix}"),
    };
    let mut make = program::make();
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    make.arg("-s")
        .arg(format!("-j{jobs}"))
        .arg("-C")
        .arg(&headers.path)
        .arg(format!("M={}", tree.display()))
        .arg(format!("ARCH={architecture}"))
        .arg(compiler)
        .args(flags)
        .arg("modules");
    make
}

/// Brings `tree` up to the checkout's sources. A file with the same content is
/// not touched, so that make sees what changed and nothing else. Returns each file's name and digest.
fn mirror(source: &Source, tree: &Path) -> Result<Vec<String>> {
    let mut mirrored = Vec::new();
    for room in ["kernel", "policy", "lab"] {
        mirror_folder(&source.root().join(room), &tree.join(room), &mut mirrored)?;
    }
    // A folder's files are read in no order.
    mirrored.sort();
    Ok(mirrored)
}

/// Makes all modules one build: make reads a kernel's rules and symbols once, and no core waits between two modules.
fn list_folders(source: &Source, tree: &Path) -> Result<()> {
    let mut rule = "obj-m :=".to_owned();
    for folder in source.module_folders() {
        rule += &format!(" {}/", folder.display());
    }
    // Only a check has the source.
    rule += "\nalways-$(if $(wildcard $(src)/sparse.c),y) += sparse.o\n";
    let path = tree.join("Kbuild");
    fs::write(&path, rule).on("write", &path)
}

fn mirror_folder(from: &Path, to: &Path, mirrored: &mut Vec<String>) -> Result<()> {
    if !from.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(to).on("create", to)?;
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(from).on("read", from)? {
        let entry = entry.on("read", from)?;
        let path = entry.path();
        if !is_source(&path) {
            continue;
        }
        names.insert(entry.file_name());
        let copy = to.join(entry.file_name());
        if path.is_dir() {
            mirror_folder(&path, &copy, mirrored)?;
            continue;
        }
        let content = fs::read(&path).on("read", &path)?;
        mirrored.push(format!("{} {}\n", copy.display(), digest::hex([&content])));
        if fs::read(&copy).ok().as_ref() != Some(&content) {
            fs::write(&copy, content).on("write", &copy)?;
        }
    }
    // A source that is gone must not be compiled from the copy.
    for entry in fs::read_dir(to).on("read", to)? {
        let entry = entry.on("read", to)?;
        let path = entry.path();
        let gone = is_source(&path) && !names.contains(&entry.file_name());
        if gone && path.is_file() && !path.to_string_lossy().ends_with(".mod.c") {
            fs::remove_file(&path).on("remove", &path)?;
        }
    }
    Ok(())
}

fn is_source(path: &Path) -> bool {
    let hidden = path
        .file_name()
        .is_none_or(|name| name.to_string_lossy().starts_with('.'));
    let product = path
        .extension()
        .is_some_and(|end| PRODUCTS.iter().any(|product| end == *product));
    !hidden && !product
}

/// The modules that the last build made, all of which exist; one that is no longer built may still lie beside them.
fn products(tree: &Path) -> Result<Vec<PathBuf>> {
    let order = tree.join("modules.order");
    let order = fs::read_to_string(&order).on("read", &order)?;
    let mut files = Vec::new();
    for object in order.lines() {
        // Linux before 6.13 names them with the tree.
        let file = tree.join(object).with_extension("ko");
        fs::metadata(&file).on("find", &file)?;
        files.push(file);
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_follows_its_source_and_keeps_what_is_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("a"), folder.path().join("b"));
        fs::create_dir_all(from.join("sub")).unwrap();
        fs::write(from.join("sub/x.c"), "1").unwrap();
        fs::write(from.join("y.c"), "1").unwrap();
        fs::write(from.join("y.o"), "object").unwrap();
        let mirror_now = || {
            let mut mirrored = Vec::new();
            mirror_folder(&from, &to, &mut mirrored).unwrap();
            mirrored.sort();
            mirrored
        };
        let first = mirror_now();
        assert!(!to.join("y.o").exists());
        assert_eq!(first, mirror_now());
        let before = fs::metadata(to.join("y.c")).unwrap().modified().unwrap();

        fs::write(to.join("y.o"), "built here").unwrap();
        fs::write(to.join("y.mod.c"), "built here").unwrap();
        fs::remove_file(from.join("sub/x.c")).unwrap();
        assert_eq!(mirror_now(), first[1..]);
        assert!(to.join("y.o").exists() && to.join("y.mod.c").exists());
        assert!(!to.join("sub/x.c").exists());
        let after = fs::metadata(to.join("y.c")).unwrap().modified().unwrap();
        assert_eq!(before, after);
        fs::write(from.join("y.c"), "2").unwrap();
        assert_ne!(mirror_now(), first[1..]);
    }

    /// What a check of these sources depends on, in a checkout at `tree`.
    fn parts(tree: &str, text: &str) -> Option<Vec<String>> {
        let headers = Headers {
            path: "/cache/headers".into(),
            release: "6.12".into(),
            architecture: Architecture::Amd64,
            clang: None,
        };
        let sources = [
            format!("{tree}/kernel/x.c {text}\n"),
            format!("{tree}/kernel/README.md {tree}\n"),
        ];
        match checked_from(&sources, Path::new(tree), &headers) {
            Err(crate::error::Error::MissingProgram { program }) => {
                eprintln!("skipped: {program} is not installed");
                None
            }
            parts => Some(parts.unwrap()),
        }
    }

    #[test]
    fn a_check_holds_for_the_same_sources_in_any_checkout() {
        let Some(here) = parts("/a/check", "1") else {
            return;
        };
        assert_eq!(parts("/b/check", "1"), Some(here.clone()));
        assert_ne!(parts("/a/check", "2"), Some(here));
    }

    #[test]
    fn complaints_are_told_from_progress() {
        let runs = "/x/sparse.c:2:2: warning: sparse runs\n  CC [M]  x.o\n";
        assert!(complaints(runs).is_empty());
        assert_eq!(complaints("  CC [M]  x.o\n"), ["sparse did not run"]);
        assert_eq!(complaints(&format!("{runs}e: error: e\n")), ["e: error: e"]);
        assert!(is_complaint("x.c:1:2: warning: unused"));
        assert!(is_complaint("error[E0133]: call to unsafe function"));
        assert!(!is_complaint("warning: 2 warnings emitted"));
        assert!(is_complaint("ERROR: modpost: \"f\" [m.ko] undefined!"));
        assert!(!is_complaint("  CC [M]  x.o"));
        assert!(!is_complaint(
            "Skipping BTF generation for x.ko due to unavailability of vmlinux"
        ));
    }
}
