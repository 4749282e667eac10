// SPDX-License-Identifier: MIT OR Apache-2.0
//! Passes the source revision to the program, which records it in each run; outside a git work tree there is none.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let revision = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_default();
    println!("cargo::rustc-env=MEMWARDEN_GIT_REVISION={revision}");
    // This log grows with every commit, checkout and reset; `HEAD` itself changes only with the branch's name.
    if let Some(log) = git(&[
        "rev-parse",
        "--path-format=absolute",
        "--git-path",
        "logs/HEAD",
    ]) {
        if Path::new(&log).is_file() {
            println!("cargo::rerun-if-changed={log}");
        }
    }
}

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
