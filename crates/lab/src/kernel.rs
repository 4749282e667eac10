// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel to boot: one of Debian's, or a build tree.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::architecture::Architecture;
use crate::cache::Cache;
use crate::debian::Apt;
use crate::error::{Error, OnFile, Result};
use crate::headers::Headers;
use crate::program;
use crate::stock::Stock;

/// Parts of a kernel that newer Debian releases have in separate packages.
const PARTS: [&str; 3] = ["linux-base-", "linux-binary-", "linux-modules-"];

/// Paths of the image and the modules in newer and in older packages.
const IMAGES: [&str; 2] = ["usr/lib/modules/RELEASE/vmlinuz", "boot/vmlinuz-RELEASE"];
const MODULES: [&str; 2] = ["usr/lib/modules/RELEASE", "lib/modules/RELEASE"];

/// A kernel that can be booted and that modules can be built for.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// What `uname -r` says in the guest.
    pub release: String,
    /// Package and version, or the build tree's path.
    pub origin: String,
    /// The bootable image.
    pub(crate) image: PathBuf,
    /// Where the kernel's own modules are, compressed or not.
    pub(crate) modules: PathBuf,
    /// The headers that its modules are built against.
    pub(crate) headers: Headers,
}

/// The newest version of a series as last resolved, so that apt is asked only when its lists changed.
#[derive(Debug, Serialize, Deserialize)]
struct Newest {
    lists_changed_s: u64,
    release: String,
    kernel: String,
}

impl Newest {
    fn path(cache: &Cache, stock: &Stock, architecture: Architecture) -> PathBuf {
        let name = match architecture {
            Architecture::Arm64 => format!("newest-{}.json", stock.name),
            Architecture::Amd64 => format!("newest-{}-{architecture}.json", stock.name),
        };
        cache.root().join(name)
    }

    /// The note, if its kernel is still in the cache.
    fn read(cache: &Cache, stock: &Stock, architecture: Architecture) -> Option<Self> {
        let text = fs::read_to_string(Self::path(cache, stock, architecture)).ok()?;
        let note: Self = serde_json::from_str(&text).ok()?;
        cache.names("kernel").contains(&note.kernel).then_some(note)
    }

    fn write(&self, cache: &Cache, stock: &Stock, architecture: Architecture) -> Result<()> {
        let path = Self::path(cache, stock, architecture);
        let text = serde_json::to_string(self).unwrap_or_default();
        fs::write(&path, text).on("write", &path)
    }
}

impl Kernel {
    /// One of Debian's kernels, newest version of its series, fetched if need be.
    ///
    /// # Errors
    /// When apt does not know it, or it cannot be fetched or unpacked.
    pub fn stock(
        cache: &Cache,
        stock: &Stock,
        architecture: Architecture,
        say: &dyn Fn(&str),
    ) -> Result<Self> {
        // The headers were fetched before the note was written; those for another compiler were not.
        let noted = |note: &Newest, apt: &Apt| {
            let headers = Headers::of_release(cache, apt, &note.release, architecture, say)?;
            Self::at(cache, note, headers)
        };
        let note = Newest::read(cache, stock, architecture);
        let apt = match stock.apt(cache, say) {
            Ok(apt) => apt,
            Err(error) => return noted(&note.ok_or(error)?, &Apt::Machine),
        };
        let lists_changed_s = apt.lists_changed_s();
        if let Some(note) = &note {
            if note.lists_changed_s == lists_changed_s {
                return noted(note, &apt);
            }
        }
        let meta = match apt.find(&stock.image(architecture)) {
            Ok(meta) => meta,
            // Without apt's lists (offline, or removed) the cached version is used.
            Err(error) => return noted(&note.ok_or(error)?, &apt),
        };
        let image = meta.dependency("linux-image-")?.to_owned();
        let release = image.trim_start_matches("linux-image-").to_owned();
        let package = apt.find(&format!("{image}:{architecture}"))?;
        let name = package.cache_name();
        cache.entry("kernel", &name, |folder, _| {
            say(&format!("fetching the kernel {release} (about 100 MB)"));
            package.unpack_to(folder)?;
            for part in PARTS {
                if let Ok(part) = package.dependency(part) {
                    apt.find(&format!("{part}:{architecture}"))?
                        .unpack_to(folder)?;
                }
            }
            Ok(())
        })?;
        let note = Newest {
            lists_changed_s,
            release,
            kernel: name,
        };
        let kernel = Self::at(
            cache,
            &note,
            Headers::of_release(cache, &apt, &note.release, architecture, say)?,
        )?;
        note.write(cache, stock, architecture)?;
        Ok(kernel)
    }

    /// The release of a series in the cache, if it was fetched.
    #[must_use]
    pub fn cached_release(
        cache: &Cache,
        stock: &Stock,
        architecture: Architecture,
    ) -> Option<String> {
        Newest::read(cache, stock, architecture).map(|note| note.release)
    }

    fn at(cache: &Cache, note: &Newest, headers: Headers) -> Result<Self> {
        let entry = cache.root().join("kernel").join(&note.kernel);
        let find = |places: &[&str]| {
            places
                .iter()
                .map(|place| entry.join(place.replace("RELEASE", &note.release)))
                .find(|path| path.exists())
                .ok_or_else(|| {
                    Error::BadInput(format!(
                        "package {} has none of {}: its layout is not known",
                        note.kernel,
                        places.join(", ")
                    ))
                })
        };
        Ok(Self {
            release: note.release.clone(),
            origin: note.kernel.clone(),
            image: find(&IMAGES)?,
            modules: find(&MODULES)?,
            headers,
        })
    }

    /// The path of a board's device tree, one of those in Debian's kernel.
    pub(crate) fn device_tree(&self, board: &str) -> PathBuf {
        let root = self.image.ancestors().nth(2).unwrap_or(&self.image);
        root.join(format!("usr/lib/linux-image-{}", self.release))
            .join(board)
    }

    /// A kernel that the user built: the build tree with its image.
    ///
    /// # Errors
    /// When the folder is not such a tree.
    pub fn built(tree: &Path, architecture: Architecture) -> Result<Self> {
        let refuse = |why: &str| {
            let target = architecture.image_target();
            let own = match architecture {
                Architecture::Arm64 => ", `stock:NAME`, `own`, `own-debug` or `own-raspberry-pi-3`",
                Architecture::Amd64 => " or `stock:NAME`",
            };
            Error::BadInput(format!(
                "--kernel {}: {why}; give the build tree of an {architecture} kernel (built with `make {target} modules`), `stock`{own}",
                tree.display()
            ))
        };
        let tree = tree.canonicalize().map_err(|_| refuse("no such folder"))?;
        let image = tree.join(architecture.image());
        if !image.is_file() {
            return Err(refuse(&format!("it has no {}", architecture.image())));
        }
        let release =
            release(&tree).map_err(|_| refuse("it has no include/config/kernel.release"))?;
        let config =
            fs::read_to_string(tree.join(".config")).map_err(|_| refuse("it has no .config"))?;
        Ok(Self {
            origin: tree.display().to_string(),
            image,
            modules: tree.clone(),
            headers: Headers {
                release: release.clone(),
                architecture,
                path: tree,
                clang: clang(&config),
            },
            release,
        })
    }
}

impl Kernel {
    /// The headers that its modules are built against; of a kernel that was built here, its build tree.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.headers
    }
}

/// The kernel's release in a build tree.
pub(crate) fn release(tree: &Path) -> Result<String> {
    let path = tree.join("include/config/kernel.release");
    Ok(fs::read_to_string(&path)
        .on("read", &path)?
        .trim()
        .to_owned())
}

/// `CONFIG_CLANG_VERSION=190107` -> 19; gcc's trees have 0 there.
fn clang(config: &str) -> Option<u32> {
    let version = config
        .lines()
        .find_map(|line| line.strip_prefix("CONFIG_CLANG_VERSION="))?;
    let major = version.parse::<u32>().ok()? / 10_000;
    (major > 0).then_some(major)
}

/// The files of the named modules and of all that they need, dependencies first.
/// A module that is not there as a file is taken to be built in.
pub(crate) fn module_files(modules: &Path, names: &[&str]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let all = all_modules(modules);
    for name in names {
        collect(name, &all, &mut files)?;
    }
    Ok(files)
}

fn collect(name: &str, all: &[(String, PathBuf)], files: &mut Vec<PathBuf>) -> Result<()> {
    let Some((_, file)) = all.iter().find(|(known, _)| known == name) else {
        return Ok(());
    };
    if files.contains(file) {
        return Ok(());
    }
    let needs = program::run(
        &format!("read the dependencies of {}", file.display()),
        program::command("modinfo")
            .args(["-F", "depends"])
            .arg(file),
    )?;
    for need in String::from_utf8_lossy(&needs.stdout).trim().split(',') {
        if !need.is_empty() {
            collect(need, all, files)?;
        }
    }
    files.push(file.clone());
    Ok(())
}

/// Every module below a folder by name, sorted by path.
fn all_modules(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else if let Some(name) = module_name(&path) {
                found.push((name, path));
            }
        }
    }
    found.sort();
    found
}

/// `.../virtio-rng.ko.xz` -> `virtio_rng`
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let stem = file
        .strip_suffix(".xz")
        .unwrap_or(file)
        .strip_suffix(".ko")?;
    Some(stem.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_names_lose_suffix_and_dash() {
        let name = |path: &str| module_name(Path::new(path));
        assert_eq!(name("/a/virtio-rng.ko.xz").as_deref(), Some("virtio_rng"));
        assert_eq!(name("/a/9p.ko").as_deref(), Some("9p"));
        assert_eq!(name("/a/9p.c"), None);
    }

    #[test]
    fn a_folder_that_is_no_kernel_is_refused_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let (arm64, amd64) = (Architecture::Arm64, Architecture::Amd64);
        for (path, architecture, why) in [
            (folder.path().join("absent"), arm64, "no such folder"),
            (
                folder.path().to_owned(),
                arm64,
                "it has no arch/arm64/boot/Image; give the build tree of an arm64 kernel",
            ),
            (
                folder.path().to_owned(),
                amd64,
                "it has no arch/x86/boot/bzImage; give the build tree of an amd64 kernel (built with `make bzImage modules`), `stock` or `stock:NAME`",
            ),
        ] {
            let said = Kernel::built(&path, architecture).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
            assert!(!said.contains('\n'), "{said}");
        }
    }

    #[test]
    fn a_tree_says_which_compiler_built_it() {
        assert_eq!(clang("CONFIG_X=y\nCONFIG_CLANG_VERSION=190107\n"), Some(19));
        assert_eq!(clang("CONFIG_CLANG_VERSION=0\n"), None);
        assert_eq!(clang(""), None);
    }
}
