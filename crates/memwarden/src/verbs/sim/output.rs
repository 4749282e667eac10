// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file that appears when it is complete, or not at all.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tempfile::NamedTempFile;

/// A file on its way: removed when this goes and it wasn't kept.
pub struct Output<'a> {
    path: &'a Path,
    replace: bool,
    file: NamedTempFile,
}

/// The folder that a file is in.
pub fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Nothing but a plain file is replaced, and that only on request.
fn may_write(path: &Path, replace: bool) -> Result<()> {
    let shown = path.display();
    match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("looking at {shown}")),
        Ok(found) if !found.is_file() => bail!("{shown} is there, and no plain file"),
        Ok(_) if !replace => {
            bail!("{shown} exists already: choose another --output, or --replace it")
        }
        Ok(_) => Ok(()),
    }
}

impl<'a> Output<'a> {
    /// Begins it beside where it is to be.
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

    /// What to write to.
    pub fn file(&self) -> &File {
        self.file.as_file()
    }

    /// What it does, for an error.
    pub fn writing(&self) -> String {
        format!("writing {}", self.path.display())
    }

    /// It is complete: puts it where it is to be.
    pub fn keep(self) -> Result<()> {
        let writing = self.writing();
        let kept = if self.replace {
            self.file.persist(self.path)
        } else {
            // Somebody may have made it in the meantime.
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
        assert!(error.to_string().contains("no plain file"), "{error}");
        assert!(may_write(&folder.path().join("new"), false).is_ok());
    }
}
