// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel to boot, and the header trees that modules are built against.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::debian::Package;
use crate::error::{Error, OnFile, Result};
use crate::program;

/// Where apt keeps what it knows; newer than our note of the newest versions
/// means that the note may be stale.
const APT_LISTS: &str = "/var/lib/apt/lists";

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
    /// What its modules are built against.
    pub(crate) headers: Headers,
}

/// A tree that out-of-tree modules are built against.
#[derive(Debug, Clone)]
pub struct Headers {
    /// The kernel's release.
    pub release: String,
    /// `arm64` or `amd64`.
    pub architecture: String,
    /// The folder for `make -C`.
    pub(crate) path: PathBuf,
    /// The major version of clang, if that built the kernel; gcc otherwise.
    pub(crate) clang: Option<u32>,
}

/// The newest packages as last resolved, so that apt is asked only when its lists changed.
#[derive(Debug, Serialize, Deserialize)]
struct Newest {
    lists_changed_s: u64,
    release: String,
    kernel: String,
}

impl Kernel {
    /// Debian's stock arm64 kernel of the 6.12 series, newest version, fetched if need be.
    ///
    /// # Errors
    /// When apt does not know it, or it cannot be fetched or unpacked.
    pub fn stock(cache: &Cache, say: &dyn Fn(&str)) -> Result<Self> {
        if let Some(kernel) = Self::noted(cache, say, true)? {
            return Ok(kernel);
        }
        let meta = match Package::find("linux-image-6.12-arm64:arm64") {
            Ok(meta) => meta,
            // Without apt's lists (offline, or removed) what is there has to do.
            Err(error) => return Self::noted(cache, say, false)?.ok_or(error),
        };
        let image = meta.dependency("linux-image-")?.to_owned();
        let release = image.trim_start_matches("linux-image-").to_owned();
        let package = Package::find(&format!("{image}:arm64"))?;
        let name = package.cache_name();
        let kernel = Self::from_cache(cache, &name, &release, say, |folder, _| {
            say(&format!("fetching the kernel {release} (about 95 MB)"));
            package.unpack_to(folder)
        })?;
        let note = Newest {
            lists_changed_s: lists_changed_s(),
            release,
            kernel: name,
        };
        let path = cache.root().join("newest.json");
        let text = serde_json::to_string(&note).unwrap_or_default();
        fs::write(&path, text).on("write", &path)?;
        Ok(kernel)
    }

    fn noted(cache: &Cache, say: &dyn Fn(&str), only_fresh: bool) -> Result<Option<Self>> {
        let Ok(text) = fs::read_to_string(cache.root().join("newest.json")) else {
            return Ok(None);
        };
        let Ok(note) = serde_json::from_str::<Newest>(&text) else {
            return Ok(None);
        };
        let stale = note.lists_changed_s != lists_changed_s();
        if (only_fresh && stale) || !cache.names("kernel").contains(&note.kernel) {
            return Ok(None);
        }
        let kernel = Self::from_cache(cache, &note.kernel, &note.release, say, |_, _| {
            Err(Error::UnknownPackage(note.kernel.clone()))
        })?;
        Ok(Some(kernel))
    }

    fn from_cache(
        cache: &Cache,
        name: &str,
        release: &str,
        say: &dyn Fn(&str),
        make: impl FnOnce(&Path, &Path) -> Result<()>,
    ) -> Result<Self> {
        let path = cache.entry("kernel", name, make)?;
        Ok(Self {
            release: release.to_owned(),
            origin: name.to_owned(),
            image: path.join("boot").join(format!("vmlinuz-{release}")),
            modules: path.join("lib/modules").join(release),
            headers: Headers::debian(cache, &format!("linux-headers-{release}"), "arm64", say)?,
        })
    }

    /// A board's device tree, of those that come with Debian's kernel.
    pub(crate) fn device_tree(&self, board: &str) -> PathBuf {
        let root = self.image.ancestors().nth(2).unwrap_or(&self.image);
        root.join(format!("usr/lib/linux-image-{}", self.release))
            .join(board)
    }

    /// A kernel that somebody built: the build tree, with the image in it.
    ///
    /// # Errors
    /// When the folder is not such a tree.
    pub fn built(tree: &Path) -> Result<Self> {
        let refuse = |why: &str| {
            Error::BadInput(format!(
                "--kernel {}: {why}; give the build tree of an arm64 kernel (built with `make Image modules`), `stock`, `own`, `own-debug` or `own-raspberry-pi-3`",
                tree.display()
            ))
        };
        let tree = tree.canonicalize().map_err(|_| refuse("no such folder"))?;
        let image = tree.join("arch/arm64/boot/Image");
        if !image.is_file() {
            return Err(refuse("it has no arch/arm64/boot/Image"));
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
                architecture: "arm64".to_owned(),
                path: tree,
                clang: clang(&config),
            },
            release,
        })
    }
}

impl Kernel {
    /// What its modules are built against; the build tree of one that was built here.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.headers
    }
}

impl Headers {
    /// The folder for `make -C`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Debian's headers, made ready to build modules on this machine for that
    /// architecture. `package` is a package of headers or a meta package for one.
    ///
    /// # Errors
    /// When apt does not know them, or they cannot be fetched or unpacked.
    pub fn debian(
        cache: &Cache,
        package: &str,
        architecture: &str,
        say: &dyn Fn(&str),
    ) -> Result<Self> {
        let kept = |name: &String| name.starts_with(&format!("{package}_{architecture}_"));
        // A full name with release is one version for ever, as good as ours.
        if let Some(name) = cache.names("headers").into_iter().find(kept) {
            let release = package.trim_start_matches("linux-headers-");
            let path = cache.root().join("headers").join(name);
            return Ok(Self::at(&path, release, architecture));
        }
        let id = |name: &str| format!("{name}:{architecture}");
        let mut found = Package::find(&id(package))?;
        if found.dependency("linux-kbuild-").is_err() {
            let real = found.dependency("linux-headers-")?.to_owned();
            return Self::debian(cache, &real, architecture, say);
        }
        found.id = id(package);
        let release = package.trim_start_matches("linux-headers-");
        let path = cache.entry("headers", &found.cache_name(), |folder, home| {
            say(&format!("fetching the headers of {release}"));
            found.unpack_to(folder)?;
            // The build tools run here, so theirs is this machine's architecture.
            for prefix in ["linux-headers-", "linux-kbuild-"] {
                Package::find(found.dependency(prefix)?)?.unpack_to(folder)?;
            }
            relocate(&folder.join("usr/src").join(package), home)
        })?;
        Ok(Self::at(&path, release, architecture))
    }

    fn at(entry: &Path, release: &str, architecture: &str) -> Self {
        Self {
            release: release.to_owned(),
            architecture: architecture.to_owned(),
            path: entry.join(format!("usr/src/linux-headers-{release}")),
            clang: None,
        }
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

/// Makes headers that expect to be in /usr/src work where they are going to be.
fn relocate(headers: &Path, home: &Path) -> Result<()> {
    let makefile = headers.join("Makefile");
    let text = fs::read_to_string(&makefile).on("read", &makefile)?;
    let moved = text.replace(
        "include /usr/src/",
        &format!("include {}/usr/src/", home.display()),
    );
    fs::write(&makefile, moved).on("write", &makefile)?;
    // Holds the kernel's types for modules' own type information, which needs a
    // further tool (pahole) and which nothing here reads.
    let types = headers.join("vmlinux");
    if types.exists() {
        fs::remove_file(&types).on("remove", &types)?;
    }
    Ok(())
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

fn lists_changed_s() -> u64 {
    fs::metadata(APT_LISTS)
        .and_then(|facts| facts.modified())
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |age| age.as_secs())
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
        for (path, why) in [
            (folder.path().join("absent"), "no such folder"),
            (folder.path().to_owned(), "it has no arch/arm64/boot/Image"),
        ] {
            let said = Kernel::built(&path).unwrap_err().to_string();
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

    #[test]
    fn headers_are_relocated() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(
            folder.path().join("Makefile"),
            "include /usr/src/c/Makefile\n",
        )
        .unwrap();
        fs::write(folder.path().join("vmlinux"), "").unwrap();
        relocate(folder.path(), Path::new("/home/x")).unwrap();
        let text = fs::read_to_string(folder.path().join("Makefile")).unwrap();
        assert_eq!(text, "include /home/x/usr/src/c/Makefile\n");
        assert!(!folder.path().join("vmlinux").exists());
    }
}
