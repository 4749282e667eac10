// SPDX-License-Identifier: MIT OR Apache-2.0
//! memwarden's own source tree: the modules and the guest's files come from it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};

/// Characters that the kernel's makefiles, or the shell lines in them, take for syntax in a path.
const SYNTAX: &str = ":#$&;|<>()'\"`\\";

/// Further ones in the path of modules outside the kernel's tree.
const SYNTAX_OF_MODULES: &str = ",%=";

/// The root of a checkout.
#[derive(Debug, Clone)]
pub struct Source {
    root: PathBuf,
}

impl Source {
    /// Looks above the running program, then above the current directory; `MEMWARDEN_SOURCE` comes before both.
    ///
    /// # Errors
    /// When no checkout is found.
    pub fn find() -> Result<Self> {
        let given = std::env::var_os("MEMWARDEN_SOURCE").map(PathBuf::from);
        let program = std::env::current_exe().ok();
        let here = std::env::current_dir().ok();
        [given, program, here]
            .iter()
            .flatten()
            .flat_map(|start| start.ancestors())
            .find(|folder| folder.join("lab/init").is_file() && folder.join("policy").is_dir())
            .map(|root| Self {
                root: root.to_owned(),
            })
            .ok_or(Error::NoSource)
    }

    /// The checkout's folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Refuses a checkout or a cache at a path with which make can't build, before a build of minutes ends in make's words.
    ///
    /// # Errors
    /// One line with the path and its first bad character.
    pub fn check(&self, cache: &Cache) -> Result<()> {
        let refuse = |what: &str, path: &Path, remedy: &str, refused: &str| {
            let shown = path.to_string_lossy();
            let is_bad = |letter: &char| letter.is_whitespace() || refused.contains(*letter);
            shown.chars().find(is_bad).map_or(Ok(()), |bad| {
                Err(Error::BadInput(format!(
                    "{what} {shown}: make can't build kernel modules with {bad:?} in a path: {remedy} a path without \
                     whitespace and without {refused}"
                )))
            })
        };
        let of_modules = format!("{SYNTAX_OF_MODULES}{SYNTAX}");
        refuse("checkout", &self.root, "move it to", &of_modules)?;
        refuse("cache", cache.root(), "set XDG_CACHE_HOME to", SYNTAX)
    }

    /// A folder for the lab's builds, created if it is missing.
    pub(crate) fn built(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.join("target/lab").join(name);
        fs::create_dir_all(&path).on("create", &path)?;
        Ok(path)
    }

    /// The module folders (those with a Kbuild), relative to the root, sorted.
    pub(crate) fn module_folders(&self) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = ["kernel", "lab"]
            .iter()
            .filter_map(|room| fs::read_dir(self.root.join(room)).ok())
            .flatten()
            .flatten()
            .filter(|entry| entry.path().join("Kbuild").is_file())
            .filter_map(|entry| Some(entry.path().strip_prefix(&self.root).ok()?.to_owned()))
            .collect();
        folders.sort();
        folders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_make_cannot_take_is_refused_in_one_line() {
        let refusal = |checkout: &str, cache: &str| {
            let root = PathBuf::from(checkout);
            let error = Source { root }.check(&Cache::at(cache.into()));
            error.map_or_else(|error| error.to_string(), |()| String::new())
        };
        let fine = "/home/u/Prüfung_1.2+x@y-{z}~";
        assert_eq!(refusal(fine, fine), "");
        // Headers in such a folder are usable.
        assert_eq!(refusal(fine, "/a,b%c=d"), "");
        for bad in [
            "/a b", "/a\tb", "/a:b", "/a%b", "/a,b", "/a=b", "/a'b", "/a(b",
        ] {
            let said = refusal(&format!("{bad}/c"), fine);
            assert!(said.starts_with(&format!("checkout {bad}/c: ")), "{said}");
            assert!(!said.contains('\n'), "{said}");
        }
        let said = refusal(fine, "/a b/memwarden");
        assert!(said.starts_with("cache /a b/memwarden: make can't build kernel modules with ' '"));
        assert!(said.contains("set XDG_CACHE_HOME to"), "{said}");
    }

    /// All C files of a module except its KUnit tests, concatenated.
    fn sources_of(module: &Path) -> String {
        let files = fs::read_dir(module)
            .unwrap()
            .map(|file| file.unwrap().path());
        files
            .filter(|file| file.extension().is_some_and(|end| end == "c"))
            .filter(|file| !file.to_string_lossy().ends_with("-test.c"))
            .map(|file| fs::read_to_string(file).unwrap())
            .collect()
    }

    #[test]
    fn every_module_has_the_workspaces_version() {
        let source = Source::find().unwrap();
        let header = source.root().join("kernel/include/memwarden/version.h");
        let defined = format!(
            "#define MEMWARDEN_VERSION \"{}\"\n",
            env!("CARGO_PKG_VERSION")
        );
        assert!(fs::read_to_string(header).unwrap().contains(&defined));
        let mut modules = source.module_folders();
        // The policy's tests and the lab's modules are not installed.
        modules.retain(|folder| folder.starts_with("kernel") && !folder.ends_with("policy-test"));
        assert!(modules.len() >= 6, "{modules:?}");
        for module in modules {
            let text = sources_of(&source.root().join(&module));
            let named = text.matches("\nMODULE_VERSION(MEMWARDEN_VERSION);").count();
            assert!(named >= 1, "{}", module.display());
        }
    }
}
