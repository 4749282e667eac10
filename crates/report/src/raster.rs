// SPDX-License-Identifier: MIT OR Apache-2.0
//! PNG files of the plots, through `rsvg-convert`: a built-in rasteriser would double this project's compile time.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use memwarden_run::Recorded;

use crate::plot::Layout;
use crate::{Error, figures};

/// Pixels for each CSS pixel: sharp on paper and on high-resolution screens.
const ZOOM: &str = "2";

/// Writes `plots/*.png` into the run folder and returns their paths.
///
/// # Errors
/// The folder cannot be read or written, or `rsvg-convert` is missing or fails.
pub fn png_of_plots(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let recorded = Recorded::read(directory)?;
    let plots = directory.join("plots");
    fs::create_dir_all(&plots).map_err(|source| Error::Io {
        action: "create",
        path: plots.clone(),
        source,
    })?;
    let mut written = Vec::new();
    for figure in figures(&recorded) {
        let path = plots.join(format!("{}.png", figure.name));
        convert(&figure.chart.draw(Layout::Wide).plain(), &path)?;
        written.push(path);
    }
    Ok(written)
}

fn convert(svg: &str, path: &Path) -> Result<(), Error> {
    let failed = |why: String| Error::Raster(format!("make {}: {why}", path.display()));
    let child = Command::new("rsvg-convert")
        .args(["--format", "png", "--zoom", ZOOM, "--output"])
        .arg(path)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            failed("rsvg-convert is not installed: apt-get install librsvg2-bin (the .svg files are complete)".into())
        }
        _ => failed(format!("start rsvg-convert: {e}")),
    })?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin
            .write_all(svg.as_bytes())
            .map_err(|e| failed(format!("feed rsvg-convert: {e}")))?;
    }
    let output = child
        .wait_with_output()
        .map_err(|e| failed(format!("wait for rsvg-convert: {e}")))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(failed(format!(
        "rsvg-convert: {}",
        why.lines().next().unwrap_or("failed")
    )))
}
