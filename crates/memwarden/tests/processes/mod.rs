// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts the program, finds a regulator's processes, and waits for conditions.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The program with these arguments; its regulators keep their files in `folder`.
pub fn memwarden(folder: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memwarden"));
    command
        .args(line.split(' '))
        .env("MEMWARDEN_RUNTIME_DIR", folder)
        .stdin(Stdio::null());
    command
}

/// Waits until `holds` returns true.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A numeric field of /proc/PID/stat, numbered as in proc(5).
pub fn stat(pid: u32, field: usize) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let from_the_third = stat.rsplit_once(')').unwrap().1;
    let value = from_the_third.split_whitespace().nth(field - 3).unwrap();
    value.parse().unwrap()
}

/// The processes of the regulator with files in `folder`: the supervisor is the one that is not the other's child.
pub fn supervisor_and_regulator(folder: &Path) -> (Pid, Pid) {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let read = |file| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let ours = read("environ").contains(folder.to_str().unwrap());
        if ours && read("cmdline").contains("user-regulator") {
            let parent: i32 = read("stat")
                .rsplit_once(')')
                .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok())
                .unwrap();
            // What `ps` and `top` show.
            assert_eq!(read("comm"), "memwarden\n");
            assert!(read("cmdline").starts_with("memwarden\0"));
            assert!(!read("cmdline").contains('{'), "{}", read("cmdline"));
            found.push((pid, parent));
        }
    }
    let child = |of: i32| found.iter().find(|(_, parent)| *parent == of);
    let (supervisor, regulator) = found
        .iter()
        .find_map(|(pid, _)| Some((*pid, child(*pid)?.0)))
        .unwrap_or_else(|| panic!("no pair among {found:?}"));
    (
        Pid::from_raw(supervisor).unwrap(),
        Pid::from_raw(regulator).unwrap(),
    )
}

/// The command of `guard run`, as opposed to the regulator's supervisor or a child that will become it.
pub fn child_of(pid: u32) -> Option<Pid> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(path).ok()?;
    let mut pids = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    let is_command = |pid: &i32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&str> = line.split('\0').collect();
        !line.is_empty() && !matches!(words[1..], ["guard", "run" | "user-regulator", ..])
    };
    Pid::from_raw(pids.find(is_command)?)
}
