// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian's programs in the guest: packages and their dependencies, unpacked over its root. They are not installed on
//! either side: their maintainer scripts do not run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::architecture::Architecture;
use crate::cache::Cache;
use crate::debian::Apt;
use crate::digest;
use crate::error::{OnFile, Result};
use crate::program;

/// Folders in usr/share that no program in the guest reads.
const LEFT_OUT: [&str; 6] = ["doc", "info", "lintian", "locale", "man", "bash-completion"];

/// A folder with the packages `names` and their dependencies, for the guest's root. They are fetched if the package
/// lists name a version that the cache does not have.
///
/// # Errors
/// When a package is not in the archive, or can't be fetched.
pub(crate) fn unpacked(
    cache: &Cache,
    names: &BTreeSet<String>,
    architecture: Architecture,
    say: &dyn Fn(&str),
) -> Result<PathBuf> {
    let lists = Apt::debian_12(cache, say)?;
    let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
    let wanted = wanted.join(" ");
    let listed = program::run(
        &format!("look up the packages {wanted} for {architecture}"),
        apt(&lists, architecture)
            .args(["--print-uris", "install"])
            .args(names),
    )?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    let files = files(&listed);
    let name = format!("{architecture}_{}", digest::short(&files));
    cache.entry("packages", &name, |folder, _| {
        say(&format!(
            "fetching {wanted} ({} packages for {architecture})",
            files.len()
        ));
        let archives = folder.join(".archives");
        let partial = archives.join("partial");
        fs::create_dir_all(&partial).on("create", &partial)?;
        program::run(
            &format!("fetch the packages {wanted} for {architecture}"),
            apt(&lists, architecture)
                .arg("-o")
                .arg(format!("Dir::Cache::archives={}", archives.display()))
                .args(["--download-only", "install"])
                .args(names),
        )?;
        for file in &files {
            program::run(
                &format!("unpack {file}"),
                program::command("dpkg-deb")
                    .arg("-x")
                    .arg(archives.join(file))
                    .arg(folder),
            )?;
        }
        fs::remove_dir_all(&archives).on("remove", &archives)?;
        for name in LEFT_OUT {
            let path = folder.join("usr/share").join(name);
            if path.is_dir() {
                fs::remove_dir_all(&path).on("remove", &path)?;
            }
        }
        Ok(())
    })
}

/// Whether this can be the name of a package (Debian Policy, section 5.6.7), and not an option or a file.
#[must_use]
pub fn is_package_name(name: &str) -> bool {
    let first =
        name.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit());
    first
        && name.chars().all(|letter| {
            letter.is_ascii_lowercase() || letter.is_ascii_digit() || "+-.".contains(letter)
        })
}

/// An apt-get for a machine on which nothing is installed yet, with these lists.
fn apt(lists: &Apt, architecture: Architecture) -> Command {
    let mut command = lists.with_lists("apt-get");
    command.args(["-qq", "-y", "--no-install-recommends"]);
    for option in [
        "Dir::State::status=/dev/null",
        &format!("APT::Architecture={architecture}"),
        &format!("APT::Architectures::={architecture}"),
        "APT::Sandbox::User=root",
        "Debug::NoLocking=1",
    ] {
        command.arg("-o").arg(option);
    }
    command
}

/// The file names in lines such as `'URI' libc6_2.36-9+deb12u14_arm64.deb 2324660 MD5Sum:...`.
fn files(uris: &str) -> BTreeSet<String> {
    uris.lines()
        .filter(|line| line.starts_with('\''))
        .filter_map(|line| line.split_whitespace().nth(1))
        .map(str::to_owned)
        .collect()
}

/// The path in the guest of a package's file: its `/bin`, `/sbin`, `/lib` and `/lib64` are those below `/usr`.
pub(crate) fn place(inside: &Path) -> PathBuf {
    let merged = ["bin", "sbin", "lib", "lib64"]
        .iter()
        .any(|name| inside.starts_with(name));
    if merged {
        Path::new("usr").join(inside)
    } else {
        inside.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_to_fetch_are_those_that_apt_lists() {
        let uris = "'http://x/b_1%2b1_arm64.deb' b_1+1_arm64.deb 23 SHA256:b\nnothing\n\
            'http://x/a_1_arm64.deb' a_1_arm64.deb 23 SHA256:a\n";
        let files: Vec<_> = files(uris).into_iter().collect();
        assert_eq!(files, ["a_1_arm64.deb", "b_1+1_arm64.deb"]);
    }

    #[test]
    fn options_and_paths_are_no_packages() {
        for name in ["linux-perf", "g++-12", "libc6", "0ad"] {
            assert!(is_package_name(name), "{name}");
        }
        for name in ["", "-y", "./x.deb", "Perf", "a b", "perf:amd64"] {
            assert!(!is_package_name(name), "{name}");
        }
    }

    #[test]
    fn what_was_beside_usr_is_below_it() {
        for (inside, in_guest) in [
            ("lib/ld-linux-aarch64.so.1", "usr/lib/ld-linux-aarch64.so.1"),
            (
                "lib64/ld-linux-x86-64.so.2",
                "usr/lib64/ld-linux-x86-64.so.2",
            ),
            ("bin/sh", "usr/bin/sh"),
            ("usr/bin/perf", "usr/bin/perf"),
            ("library/x", "library/x"),
            ("etc/x", "etc/x"),
        ] {
            assert_eq!(place(Path::new(inside)), Path::new(in_guest));
        }
    }
}
