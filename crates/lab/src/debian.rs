// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian packages as sources of files: looked up, fetched and unpacked, never installed.

use std::path::Path;

use crate::error::{Error, OnFile, Result};
use crate::program;

/// What apt knows about a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    /// Name with architecture, as apt takes it.
    pub id: String,
    pub version: String,
    /// Names only, first alternative of each.
    pub depends: Vec<String>,
}

impl Package {
    /// The candidate version of `name:architecture`.
    pub fn find(id: &str) -> Result<Self> {
        let attempted = format!("look up package {id}");
        let shown = program::run(
            &attempted,
            program::command("apt-cache").args(["show", "--no-all-versions", id]),
        );
        let record = match shown {
            Ok(output) => output.stdout,
            Err(Error::Program { .. }) => return Err(Error::UnknownPackage(id.to_owned())),
            Err(error) => return Err(error),
        };
        Self::parse(id, &String::from_utf8_lossy(&record))
            .ok_or_else(|| Error::UnknownPackage(id.to_owned()))
    }

    fn parse(id: &str, record: &str) -> Option<Self> {
        let field = |name: &str| {
            record
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        };
        let depends = field("Depends")
            .unwrap_or_default()
            .split(", ")
            .filter_map(|one| one.split([' ', ':']).next())
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        Some(Self {
            id: id.to_owned(),
            version: field("Version")?.to_owned(),
            depends,
        })
    }

    /// The dependency whose name begins with `prefix`.
    pub fn dependency(&self, prefix: &str) -> Result<&str> {
        self.depends
            .iter()
            .find(|name| name.starts_with(prefix))
            .map(String::as_str)
            .ok_or_else(|| {
                Error::BadInput(format!(
                    "package {} {} depends on nothing named {prefix}*: its layout is not known",
                    self.id, self.version
                ))
            })
    }

    /// A name for the cache: what is in there and which version.
    pub fn cache_name(&self) -> String {
        let name = self.id.replace(':', "_");
        format!("{name}_{}", self.version.replace(['/', ':'], "_"))
    }

    /// Fetches the package and unpacks it into `folder`.
    pub fn unpack_to(&self, folder: &Path) -> Result<()> {
        let fetched = tempfile::Builder::new()
            .prefix(".fetch-")
            .tempdir_in(folder)
            .on("create a folder in", folder)?;
        program::run(
            &format!("fetch package {}", self.id),
            program::command("apt-get")
                .args(["download", "-q", &format!("{}={}", self.id, self.version)])
                .current_dir(fetched.path()),
        )?;
        for entry in fetched.path().read_dir().on("read", fetched.path())? {
            let archive = entry.on("read", fetched.path())?.path();
            program::run(
                &format!("unpack {}", archive.display()),
                program::command("dpkg-deb")
                    .arg("-x")
                    .arg(&archive)
                    .arg(folder),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = "Package: linux-headers-6.12.9+deb12-arm64\nArchitecture: arm64\n\
        Version: 6.12.9-1~deb12u1\nDepends: linux-base (>= 4.12~), \
        linux-headers-6.12.9+deb12-common (= 6.12.9-1~deb12u1), linux-image-a | linux-image-b, \
        linux-kbuild-6.12.9+deb12, gcc-12\nDescription: x\n";

    #[test]
    fn a_record_is_read() {
        let package = Package::parse("linux-headers-6.12.9+deb12-arm64:arm64", RECORD).unwrap();
        assert_eq!(package.version, "6.12.9-1~deb12u1");
        assert_eq!(
            package.dependency("linux-kbuild-").unwrap(),
            "linux-kbuild-6.12.9+deb12"
        );
        assert_eq!(package.dependency("linux-image-").unwrap(), "linux-image-a");
        assert!(package.dependency("python").is_err());
    }

    #[test]
    fn a_cache_name_is_one_path_component() {
        let package = Package {
            id: "busybox-static:arm64".to_owned(),
            version: "1:1.35.0-4+b1".to_owned(),
            depends: Vec::new(),
        };
        assert_eq!(package.cache_name(), "busybox-static_arm64_1_1.35.0-4+b1");
    }

    #[test]
    fn an_empty_record_is_no_package() {
        assert_eq!(Package::parse("x", ""), None);
    }
}
