// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs without `--out` that begin in the same second. The default folder is relative, so this test has a process and a
//! working directory of its own.

use std::collections::BTreeSet;
use std::path::PathBuf;

use memwarden_run::{Existing, Run, RunFolder, Sample, Summary};

/// One run from begin to end; returns its folder.
fn run(existing: Existing) -> PathBuf {
    let mut folder = RunFolder::create(None, Run::new("interfere", "native"), existing).unwrap();
    folder
        .append(&Sample::new("solo", 0, "victim", "latency_ns", "ns", 1.0))
        .unwrap();
    let summary: Summary = Summary::new("interfere", "native");
    folder.finish(&summary).unwrap()
}

#[test]
fn runs_of_one_second_have_folders_of_their_own() {
    let temp = tempfile::tempdir().unwrap();
    std::env::set_current_dir(temp.path()).unwrap();
    // Two in progress at once, and after one another; --replace has no folder to replace.
    let first = RunFolder::create(None, Run::new("mmap", "native"), Existing::Refuse).unwrap();
    let second = RunFolder::create(None, Run::new("mmap", "native"), Existing::Replace).unwrap();
    assert_ne!(first.directory(), second.directory());
    drop((first, second));

    let mut all = BTreeSet::new();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(|| [Existing::Refuse, Existing::Replace, Existing::Refuse].map(run))
        })
        .collect();
    for thread in threads {
        all.extend(thread.join().unwrap());
    }
    assert_eq!(all.len(), 24);
    for directory in &all {
        assert!(directory.join("summary.json").is_file());
        let name = directory.file_name().unwrap().to_str().unwrap();
        // interfere-20261130T084416Z, or with a number from 2 on.
        let (time, number) = name["interfere-".len()..].split_once('Z').unwrap();
        assert_eq!(time.len(), "20261130T084416".len(), "{name}");
        let number = number.strip_prefix('-').map(str::parse::<u32>);
        assert!(
            number.is_none_or(|number| number.is_ok_and(|n| n >= 2)),
            "{name}"
        );
    }
    let left = std::fs::read_dir("out").unwrap().count();
    assert_eq!(left, 24, "no .partial stays");
    std::env::set_current_dir("/").unwrap();
}
