// SPDX-License-Identifier: MIT OR Apache-2.0
//! memwarden's own source tree: the modules and the guest's files come from it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, OnFile, Result};

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
