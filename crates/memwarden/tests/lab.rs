// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lab's verbs on a cache of their own. Nothing is fetched, built or booted.

#![cfg(feature = "host")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const MEMWARDEN: &str = env!("CARGO_BIN_EXE_memwarden");

/// Runs a program with `home` for the caches.
fn run(program: &mut Command, home: &Path) -> Output {
    program
        .env("XDG_CACHE_HOME", home)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn lab(words: &[&str], home: &Path) -> Output {
    run(Command::new(MEMWARDEN).arg("lab").args(words), home)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_clean_that_is_killed_leaves_no_entry() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: no strace here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("memwarden");
    let left = || text(&lab(&["status", "--json"], folder.path()).stdout);
    // Before its second removal of a file, and before its third.
    for file in [2, 3] {
        for name in ["kernel/k_1", "own/qemu_1", "apt/bookworm"] {
            let entry = cache.join(name);
            fs::create_dir_all(&entry).unwrap();
            for file in ["a", "b", "c", "d"] {
                fs::write(entry.join(file), file).unwrap();
            }
        }
        assert!(left().contains("k_1") && left().contains("qemu_1"));
        let mut strace = Command::new("strace");
        strace
            .args(["-f", "-o", "/dev/null", "-e", "trace=unlinkat", "-e"])
            .arg(format!("inject=unlinkat:signal=KILL:when={file}"))
            .args([MEMWARDEN, "lab", "clean"]);
        let killed = run(&mut strace, folder.path());
        if text(&killed.stderr).contains("ptrace") {
            println!("skipped: strace is not permitted here");
            return;
        }
        assert!(!killed.status.success());
        for name in ["kernel/k_1", "own/qemu_1", "apt/bookworm"] {
            if let Ok(entry) = fs::read_dir(cache.join(name)) {
                assert_eq!(entry.count(), 4, "{name} is incomplete");
            }
        }
        assert!(lab(&["clean"], folder.path()).status.success());
        assert!(!left().contains("_1"));
    }
}

/// apt-get's own end without a connection is a success.
#[test]
fn package_lists_that_could_not_be_fetched_are_fetched_again() {
    if Command::new("apt-get").arg("--version").output().is_err() {
        println!("skipped: no apt here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let offline = folder.path().join("apt.conf");
    // The port of a service that no machine has any more.
    let proxy =
        "Acquire::http::Proxy::deb.debian.org \"http://127.0.0.1:9\";\nAcquire::Retries \"0\";\n";
    fs::write(&offline, proxy).unwrap();
    let mut qemu = Command::new(MEMWARDEN);
    qemu.args(["lab", "qemu"]).env("APT_CONFIG", &offline);
    for _ in 0..2 {
        let output = run(&mut qemu, folder.path());
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains("fetching Debian 12's lists"), "{said}");
        assert!(
            said.contains("apt-get failed with exit status: 100"),
            "{said}"
        );
    }
    let lists = folder.path().join("memwarden/apt/bookworm-sources");
    assert!(lists.is_dir() && !lists.join("updated").exists());
}

#[test]
fn a_checkout_or_a_cache_in_which_make_cannot_build_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let (good, bad) = (folder.path().join("ab"), folder.path().join("a b"));
    for checkout in [&good, &bad] {
        fs::create_dir_all(checkout.join("lab")).unwrap();
        fs::create_dir_all(checkout.join("policy")).unwrap();
        fs::write(checkout.join("lab/init"), "").unwrap();
    }
    for (source, home, named) in [
        (&bad, &good, format!("checkout {}", bad.display())),
        (&good, &bad, format!("cache {}/memwarden", bad.display())),
    ] {
        for words in [
            "run --guest none -- true",
            "prepare",
            "modules",
            "kernel",
            "qemu",
        ] {
            let mut refused = Command::new(MEMWARDEN);
            refused.arg("lab").args(words.split(' '));
            let output = run(refused.env("MEMWARDEN_SOURCE", source), home);
            let said = text(&output.stderr);
            assert!(!output.status.success(), "{words}");
            let start = format!("memwarden: {named}: make can't build kernel modules with ' '");
            assert!(said.starts_with(&start), "{words}: {said}");
            assert_eq!(said.lines().count(), 1, "{words}: {said}");
        }
        let made: Vec<_> = fs::read_dir(source).unwrap().collect();
        assert_eq!(made.len(), 2, "{made:?}");
    }
}
