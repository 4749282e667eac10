// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands with their output: those of the guide that repeat on any machine, and invalid input.
//!
//! `TRYCMD=overwrite cargo test -p memwarden --test transcripts` writes the present output into these files; read the
//! difference before you commit it. In a file `[..]` matches any text in a line, and a line `...` any lines.
#![cfg(feature = "host")]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use trycmd::TestCases;

const PROGRAM: &str = env!("CARGO_BIN_EXE_memwarden");

/// The commands run in this process's folder, so one test at a time chooses it.
static FOLDER: Mutex<()> = Mutex::new(());

/// A file, relative to this crate.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Runs the commands of some files in a new folder, filled by `fill`. Returns the names of what is there afterwards.
fn run(files: &[PathBuf], fill: impl Fn(&Path)) -> Vec<String> {
    let _lock = FOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    let (folder, runtime) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fill(folder.path());
    std::env::set_current_dir(folder.path()).unwrap();
    let cases = TestCases::new();
    cases
        .register_bin("memwarden", Path::new(PROGRAM))
        .env("MEMWARDEN_RUNTIME_DIR", runtime.path().to_string_lossy());
    for file in files {
        cases.case(file);
    }
    // This runs them.
    drop(cases);
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Whether this process may regulate control groups.
fn as_root() -> bool {
    rustix::process::geteuid().is_root()
        && fs::read_to_string("/proc/mounts").is_ok_and(|mounts| mounts.contains(" cgroup2 "))
}

#[test]
fn invalid_input_is_refused_with_a_line_that_names_it() {
    let mut files = vec![file("tests/refusals.trycmd")];
    if as_root() {
        files.push(file("tests/refusals-as-root.trycmd"));
    } else {
        println!("skipped: refusals-as-root.trycmd: needs root and a mounted cgroup2");
    }
    let names = run(&files, |folder| {
        fs::write(folder.join("nonsense.toml"), "nonsense\n").unwrap();
        fs::write(folder.join("bytes.toml"), "command = [\"cat\", [256]]\n").unwrap();
        fs::create_dir(folder.join("empty")).unwrap();
    });
    let filled = ["bytes.toml", "empty", "nonsense.toml"];
    assert_eq!(names, filled, "left behind");
}

/// A file of `trycmd` is UTF-8, so it can't contain these.
#[test]
fn arguments_that_are_no_text_are_refused_with_a_line_that_names_them() {
    let cafe = OsStr::from_bytes(b"caf\xe9");
    let no_text = r#"memwarden: "caf\xE9": not UTF-8, where an option takes text only;"#;
    for (words, answer) in [
        ("trace copies --device", no_text),
        ("guard run --cgroup a --mb 9 --event", no_text),
    ] {
        let output = Command::new(PROGRAM)
            .args(words.split(' '))
            .args([cafe, "--".as_ref(), "true".as_ref()])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words}: {said}");
        assert!(said.starts_with(answer), "{words}: {said}");
        assert!(output.stdout.is_empty(), "{words}");
    }
}

#[test]
fn the_guide_shows_what_its_commands_print() {
    run(&[file("../../docs/sim.md")], |_| ());
}

#[test]
fn so_do_its_pages_whose_commands_take_minutes() {
    if std::env::var_os("FULL").is_none() {
        return println!(
            "skipped: README.md, interfere.md and plan.md: their models run for minutes; FULL=1 compares them"
        );
    }
    let pages = [
        "../../README.md",
        "../../docs/interfere.md",
        "../../docs/plan.md",
    ];
    // One after the other: two pages have the same commands, whose run folders have the time as their name.
    for page in pages {
        run(&[file(page)], |_| ());
    }
}
