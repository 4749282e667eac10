// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory above `/proc`, `/sys` and `/lib`: the machine's root, or a saved tree.

use std::path::PathBuf;

use crate::{Error, Result};

/// The directory under which `/proc`, `/sys` and the like are looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// This machine.
    #[must_use]
    pub fn system() -> Self {
        Self(PathBuf::from("/"))
    }

    /// A saved tree.
    #[must_use]
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// True for this machine.
    #[must_use]
    pub fn is_system(&self) -> bool {
        *self == Self::system()
    }

    /// `path` (with or without its leading slash) below this root.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// The file's text without surrounding white space.
    pub fn read(&self, path: &str) -> Result<String> {
        std::fs::read_to_string(self.path(path))
            .map(|text| text.trim().to_owned())
            .map_err(|source| Error::system(format!("read {path}"), source))
    }

    /// Like [`Root::read`]; `None` if the file is missing or unreadable.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        self.read(path).ok()
    }

    /// The file's bytes; `None` if the file is missing or unreadable. For file names, which may be any bytes.
    #[must_use]
    pub fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        std::fs::read(self.path(path)).ok()
    }

    /// The file's content as a number; `None` if the file is missing or has none.
    #[must_use]
    pub fn number(&self, path: &str) -> Option<i64> {
        self.text(path)?.parse().ok()
    }

    /// True if the path exists.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The names in a directory, sorted; empty if there is no such directory.
    #[must_use]
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(path)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }
}
