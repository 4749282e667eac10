// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file that appears only when it is complete.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tempfile::NamedTempFile;

/// A file being written; removed when dropped unless kept.
pub struct Output<'a> {
    path: &'a Path,
    replace: bool,
    file: NamedTempFile,
}

/// The directory of a file.
pub fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Refuses to replace anything but a plain file, and that without `replace`.
fn may_write(path: &Path, replace: bool) -> Result<()> {
    let shown = path.display();
    match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("looking at {shown}")),
        Ok(found) if !found.is_file() => bail!("{shown} exists and is not a plain file"),
        Ok(_) if !replace => {
            bail!("{shown} exists already: choose another --output, or --replace it")
        }
        Ok(_) => Ok(()),
    }
}

impl<'a> Output<'a> {
    /// Begins the file beside its final path.
    pub fn begin(path: &'a Path, replace: bool) -> Result<Self> {
        may_write(path, replace)?;
        let folder = folder(path);
        if !folder.is_dir() {
            bail!(
                "writing {}: there is no folder {}",
                path.display(),
                folder.display()
            );
        }
        let file = tempfile::Builder::new()
            .prefix(".memwarden-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(Self {
            path,
            replace,
            file,
        })
    }

    /// The temporary file to write to.
    pub fn file(&self) -> &File {
        self.file.as_file()
    }

    /// What is being attempted, for an error.
    pub fn writing(&self) -> String {
        format!("writing {}", self.path.display())
    }

    /// Moves the complete file to its final path.
    pub fn keep(self) -> Result<()> {
        let writing = self.writing();
        let kept = if self.replace {
            self.file.persist(self.path)
        } else {
            // Another process may have created the file in the meantime.
            self.file.persist_noclobber(self.path)
        };
        kept.map_err(|error| error.error).context(writing)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let error = may_write(folder.path(), true).unwrap_err();
        assert!(error.to_string().contains("not a plain file"), "{error}");
        assert!(may_write(&folder.path().join("new"), false).is_ok());
    }
}
