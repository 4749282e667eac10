// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trees that out-of-tree modules are built against.
//!
//! Debian's headers expect to be in /usr/src of their own Debian release, with its compiler. The lab keeps them in the
//! cache, for one of [`COMPILERS`], and adapts them once, when it unpacks them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::architecture::Architecture;
use crate::cache::Cache;
use crate::debian::Apt;
use crate::digest;
use crate::error::{Error, OnFile, Result};
use crate::program;
use crate::stock::Stock;

/// Compilers for modules; the first that is installed is used, as in scripts/install-packages. The first compiled Debian
/// 12's kernels; the last is any version.
const COMPILERS: [&str; 5] = ["gcc-12", "gcc-13", "gcc-14", "gcc-15", "gcc"];

/// Options of a newer Debian's kernel that must be off here: features that not all of [`COMPILERS`] have, and Rust, whose
/// compiled core only the kernel's own rustc can read. gcc 12 does not align cold functions; without the option of "sane"
/// alignment the kernel marks none as cold, so that ftrace finds all of a module's functions aligned.
const NOT_HERE: [&str; 6] = [
    "CONFIG_CC_HAS_ASSUME",
    "CONFIG_CC_HAS_COUNTED_BY",
    "CONFIG_CC_HAS_COUNTED_BY_PTR",
    "CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT",
    "CONFIG_CC_HAS_SANE_FUNCTION_ALIGNMENT",
    "CONFIG_RUST",
];

/// A tree that out-of-tree modules are built against.
#[derive(Debug, Clone)]
pub struct Headers {
    /// The kernel's release.
    pub release: String,
    /// The kernel's architecture.
    pub architecture: Architecture,
    /// The folder for `make -C`.
    pub(crate) path: PathBuf,
    /// The major version of clang, if that built the kernel; gcc otherwise.
    pub(crate) clang: Option<u32>,
}

impl Headers {
    /// The folder for `make -C`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The newest headers of one of Debian's kernels, made ready to build modules on this machine for that
    /// architecture.
    ///
    /// # Errors
    /// When apt does not know them, or they cannot be fetched or unpacked.
    pub fn debian(
        cache: &Cache,
        stock: &Stock,
        architecture: Architecture,
        say: &dyn Fn(&str),
    ) -> Result<Self> {
        let apt = stock.apt(cache, say)?;
        let meta = apt.find(&format!("{}:{architecture}", stock.headers(architecture)))?;
        let release = meta
            .dependency("linux-headers-")?
            .trim_start_matches("linux-headers-");
        Self::of_release(cache, &apt, release, architecture, say)
    }

    /// The headers of a release. A release has one version, so a cached one is as good as apt's.
    pub(crate) fn of_release(
        cache: &Cache,
        apt: &Apt,
        release: &str,
        architecture: Architecture,
        say: &dyn Fn(&str),
    ) -> Result<Self> {
        let package = format!("linux-headers-{release}");
        // Headers that were adapted in another way stay until `lab clean`: another checkout may use them.
        let compiler = compiler(architecture, program::is_installed)?;
        let adapted = digest::short(NOT_HERE.iter().chain(&[compiler]));
        let (of_package, as_now) = (format!("{package}_{architecture}_"), format!("_{adapted}"));
        let kept = |name: &String| name.starts_with(&of_package) && name.ends_with(&as_now);
        let entry = match cache.names("headers").into_iter().find(kept) {
            Some(name) => cache.root().join("headers").join(name),
            None => {
                let found = apt.find(&format!("{package}:{architecture}"))?;
                let name = format!("{}{as_now}", found.cache_name());
                cache.entry("headers", &name, |folder, home| {
                    say(&format!("fetching the headers of {release}"));
                    found.unpack_to(folder)?;
                    // The build tools run here, so theirs is this machine's architecture.
                    for prefix in ["linux-headers-", "linux-kbuild-"] {
                        apt.find(found.dependency(prefix)?)?.unpack_to(folder)?;
                    }
                    adapt(&folder.join("usr/src").join(&package), home, compiler)?;
                    let tools = newer_tools(&folder.join("usr/lib"))?;
                    if tools.is_empty() {
                        return Ok(());
                    }
                    run_with(&apt.libc(cache, say)?, &tools)
                })?
            }
        };
        Ok(Self {
            release: release.to_owned(),
            architecture,
            path: entry.join("usr/src").join(package),
            clang: None,
        })
    }
}

/// The first of [`COMPILERS`] that is installed for an architecture.
fn compiler(
    architecture: Architecture,
    is_installed: impl Fn(&str) -> bool,
) -> Result<&'static str> {
    let command = |compiler: &str| format!("{}-{compiler}", architecture.gnu());
    COMPILERS
        .into_iter()
        .find(|compiler| is_installed(&command(compiler)))
        .ok_or_else(|| Error::MissingProgram {
            program: command(COMPILERS[0]),
        })
}

/// Adapts headers to their place in the cache and to the compiler for modules.
fn adapt(headers: &Path, home: &Path, compiler: &str) -> Result<()> {
    let sources = format!("{}/usr/src/", home.display());
    edit(&headers.join("Makefile"), |text| {
        text.replace("/usr/src/", &sources)
    })?;
    edit(&headers.join(".kernelvariables"), |text| {
        // Otherwise a newer kernel warns of a missing or different pahole, which is not used here.
        with_compiler(text, compiler) + "override PAHOLE_VERSION = $(CONFIG_PAHOLE_VERSION)\n"
    })?;
    for file in ["include/config/auto.conf", "include/generated/autoconf.h"] {
        edit(&headers.join(file), without_options)?;
    }
    // Holds the kernel's types for modules' own type information, which needs a
    // further tool (pahole) and which nothing here reads.
    let types = headers.join("vmlinux");
    if types.exists() {
        fs::remove_file(&types).on("remove", &types)?;
    }
    Ok(())
}

fn edit(path: &Path, change: impl Fn(&str) -> String) -> Result<()> {
    let text = fs::read_to_string(path).on("read", path)?;
    fs::write(path, change(&text)).on("write", path)
}

/// `CC = $(CROSS_COMPILE)gcc-14` -> `CC = $(CROSS_COMPILE)gcc-12`
fn with_compiler(variables: &str, compiler: &str) -> String {
    let lines = variables.lines().map(|line| {
        let named = line
            .starts_with("CC =")
            .then(|| line.rfind("gcc-"))
            .flatten();
        match named {
            Some(at) => format!("{}{compiler}\n", &line[..at]),
            None => format!("{line}\n"),
        }
    });
    lines.collect()
}

/// auto.conf has `CONFIG_X=y`, autoconf.h `#define CONFIG_X 1`.
fn without_options(config: &str) -> String {
    let is_here = |line: &&str| !line.split(['=', ' ']).any(|word| NOT_HERE.contains(&word));
    config
        .lines()
        .filter(is_here)
        .fold(String::new(), |kept, line| kept + line + "\n")
}

/// The build tools in `folder` that need a newer C library than the machine's.
fn newer_tools(folder: &Path) -> Result<Vec<PathBuf>> {
    let said = program::run(
        "ask for the C library's version",
        program::command("getconf").arg("GNU_LIBC_VERSION"),
    )?;
    let said = String::from_utf8_lossy(&said.stdout);
    let machine = said
        .trim()
        .rsplit('.')
        .next()
        .and_then(|minor| minor.parse().ok())
        .ok_or_else(|| Error::BadInput(format!("getconf GNU_LIBC_VERSION: {said}: not known")))?;
    let mut newer = programs(folder);
    newer.retain(|tool| fs::read(tool).is_ok_and(|content| newest_glibc(&content) > machine));
    Ok(newer)
}

/// Makes build tools run with the C library at `libc`. Libraries that it lacks come from the machine.
fn run_with(libc: &Path, tools: &[PathBuf]) -> Result<()> {
    let loader = libc.join(Architecture::HOST.loader());
    let (libc, loader) = (libc.display(), loader.display());
    for tool in tools {
        let moved = PathBuf::from(format!("{}.elf", tool.display()));
        fs::rename(tool, &moved).on("rename to", &moved)?;
        let script =
            format!("#!/bin/sh\nexec '{loader}' --library-path '{libc}' \"$0.elf\" \"$@\"\n");
        fs::write(tool, script).on("write", tool)?;
        fs::set_permissions(tool, PermissionsExt::from_mode(0o755))
            .on("set permissions of", tool)?;
    }
    Ok(())
}

/// Every ELF file below a folder that may be executed.
fn programs(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let (path, Ok(facts)) = (entry.path(), entry.metadata()) else {
            continue;
        };
        if facts.is_dir() {
            found.extend(programs(&path));
        } else if facts.is_file()
            && facts.permissions().mode() & 0o111 != 0
            && fs::read(&path).is_ok_and(|content| content.starts_with(b"\x7fELF"))
        {
            found.push(path);
        }
    }
    found
}

/// The minor version of the newest glibc 2 whose symbols a program names; 0 if none.
fn newest_glibc(program: &[u8]) -> u32 {
    const PREFIX: &[u8] = b"GLIBC_2.";
    program
        .windows(PREFIX.len())
        .enumerate()
        .filter(|(_, window)| *window == PREFIX)
        .filter_map(|(at, _)| {
            let digits = program[at + PREFIX.len()..]
                .iter()
                .take_while(|byte| byte.is_ascii_digit());
            String::from_utf8(digits.copied().collect())
                .ok()?
                .parse()
                .ok()
        })
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_adapted_to_their_place_and_compiler() {
        let folder = tempfile::tempdir().unwrap();
        let headers = folder.path();
        for (name, text) in [
            (
                "Makefile",
                "KBUILD_OUTPUT=/usr/src/a\ninclude /usr/src/c/Makefile\n",
            ),
            (
                ".kernelvariables",
                "CCACHE = ccache\nCC = $(if $(X),$(CCACHE)) $(CROSS_COMPILE)gcc-14\n",
            ),
            (
                "include/config/auto.conf",
                "CONFIG_RUST=y\nCONFIG_RUST_IS_AVAILABLE=y\n",
            ),
            (
                "include/generated/autoconf.h",
                "#define CONFIG_CC_HAS_ASSUME 1\n#define CONFIG_SMP 1\n",
            ),
            ("vmlinux", ""),
        ] {
            let path = headers.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        adapt(headers, Path::new("/home/x"), "gcc-12").unwrap();
        for (name, text) in [
            (
                "Makefile",
                "KBUILD_OUTPUT=/home/x/usr/src/a\ninclude /home/x/usr/src/c/Makefile\n",
            ),
            (
                ".kernelvariables",
                "CCACHE = ccache\nCC = $(if $(X),$(CCACHE)) $(CROSS_COMPILE)gcc-12\n\
                 override PAHOLE_VERSION = $(CONFIG_PAHOLE_VERSION)\n",
            ),
            ("include/config/auto.conf", "CONFIG_RUST_IS_AVAILABLE=y\n"),
            ("include/generated/autoconf.h", "#define CONFIG_SMP 1\n"),
        ] {
            assert_eq!(
                fs::read_to_string(headers.join(name)).unwrap(),
                text,
                "{name}"
            );
        }
        assert!(!headers.join("vmlinux").exists());
    }

    #[test]
    fn modules_are_compiled_by_the_first_compiler_for_their_architecture() {
        let with = |installed: &[&str], architecture| {
            compiler(architecture, |program| installed.contains(&program))
                .map_err(|error| error.to_string())
        };
        let (old, new) = ("aarch64-linux-gnu-gcc-12", "aarch64-linux-gnu-gcc-14");
        let other = "x86_64-linux-gnu-gcc-12";
        assert_eq!(with(&[new, old], Architecture::Arm64), Ok("gcc-12"));
        assert_eq!(with(&[new, other], Architecture::Arm64), Ok("gcc-14"));
        assert_eq!(with(&[new, other], Architecture::Amd64), Ok("gcc-12"));
        let missing = with(&[other, "gcc-12"], Architecture::Arm64).unwrap_err();
        assert_eq!(
            missing,
            "aarch64-linux-gnu-gcc-12 is not installed: run scripts/install-packages"
        );
    }

    #[test]
    fn a_program_names_the_newest_c_library_that_it_needs() {
        assert_eq!(newest_glibc(b"\x7fELF\0GLIBC_2.38\0GLIBC_2.2.5\0"), 38);
        assert_eq!(newest_glibc(b"#!/bin/sh\n"), 0);
        assert_eq!(newest_glibc(b"GLIBC_2."), 0);
    }

    #[test]
    fn only_tools_that_need_a_newer_c_library_run_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let tools = folder.path().join("usr/lib/linux-kbuild-1/scripts");
        fs::create_dir_all(&tools).unwrap();
        for (name, content) in [
            ("fixdep", "\x7fELF GLIBC_2.4"),
            ("modpost", "\x7fELF GLIBC_2.9999"),
        ] {
            fs::write(tools.join(name), content).unwrap();
            fs::set_permissions(tools.join(name), PermissionsExt::from_mode(0o755)).unwrap();
        }
        let libc = folder.path().join("libc");
        fs::create_dir(&libc).unwrap();
        // A stand-in for the loader that prints its arguments.
        let loader = libc.join(Architecture::HOST.loader());
        fs::write(&loader, "#!/bin/sh\necho \"$@\"\n").unwrap();
        fs::set_permissions(&loader, PermissionsExt::from_mode(0o755)).unwrap();
        let newer = newer_tools(folder.path()).unwrap();
        run_with(&libc, &newer).unwrap();
        assert!(!tools.join("fixdep.elf").exists());
        let modpost = tools.join("modpost");
        let said = program::run(
            "run it",
            program::command(modpost.to_str().unwrap()).args(["-m", "two words"]),
        )
        .unwrap();
        assert_eq!(
            String::from_utf8(said.stdout).unwrap(),
            format!(
                "--library-path {} {}.elf -m two words\n",
                libc.display(),
                modpost.display()
            )
        );
    }
}
