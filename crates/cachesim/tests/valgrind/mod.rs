// SPDX-License-Identifier: MIT OR Apache-2.0
//! valgrind's cachegrind over the streams of walk.c.

use std::path::{Path, PathBuf};
use std::process::Command;

use memwarden_cachesim::Geometry;
use memwarden_cachesim::geometry::CacheGeometry;

/// Compiles the program; the error says what is missing.
pub fn program(folder: &Path) -> Result<PathBuf, &'static str> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return Err("valgrind is not installed");
    }
    let binary = folder.join("walk");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/walk.c");
    let compiled = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-o"])
        .arg(&binary)
        .arg(source)
        .output()
        .map_err(|_| "no C compiler is installed")?;
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success() && said.is_empty(), "{said}");
    Ok(binary)
}

/// A cache in the form of cachegrind's options: bytes, ways, bytes per line.
fn option(name: &str, cache: &CacheGeometry, line_bytes: u64) -> String {
    format!("--{name}={},{},{line_bytes}", cache.size_bytes, cache.ways)
}

/// The buffer's address, and cachegrind's totals by event.
pub fn watch(
    binary: &Path,
    geometry: &Geometry,
    arguments: [&str; 4],
) -> (u64, Vec<(String, u64)>) {
    let out = binary.with_extension("out");
    let run = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=yes"])
        .arg(format!("--cachegrind-out-file={}", out.display()))
        .arg("--I1=32768,8,64")
        .arg(option("D1", &geometry.l1d, geometry.line_bytes))
        .arg(option("LL", &geometry.llc, geometry.line_bytes))
        .arg(binary)
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    let buffer = String::from_utf8(run.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let text = std::fs::read_to_string(out).unwrap();
    let line = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key))
            .unwrap()
    };
    let events = line("events:").split_whitespace().map(str::to_owned);
    let totals = line("summary:")
        .split_whitespace()
        .map(|total| total.parse().unwrap());
    (buffer, events.zip(totals).collect())
}
