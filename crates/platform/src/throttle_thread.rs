// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduling class with which the memguard module holds a core.
//!
//! The module exposes nothing of it, but the kernel shows each thread's policy. kernel/memguard/README.md compares the
//! classes.

use std::fs::File;
use std::io::{BufRead, BufReader};

use crate::Root;
use crate::task::{SCHED_DEADLINE, SCHED_FIFO, Task};

/// A class of throttle threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Before every task and the fair server.
    Deadline,
    /// Subject to real-time throttling, the fair server, and tasks of a higher priority.
    Fifo,
}

/// The class of the loaded module's threads; `None` if /proc shows none.
#[must_use]
pub fn class(root: &Root) -> Option<Class> {
    let mut found = None;
    for process in root.names("/proc") {
        if !process.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let line = root.bytes(&format!("/proc/{process}/stat"));
        let Some(task) = line.and_then(|line| Task::parse(&line)) else {
            continue;
        };
        if !task.is_of_kernel || !task.name.starts_with("memguard/") {
            continue;
        }
        match task.policy {
            SCHED_FIFO => return Some(Class::Fifo),
            SCHED_DEADLINE => found = Some(Class::Deadline),
            _ => {}
        }
    }
    found
}

/// Whether the kernel has schedutil, which is always built in and which [`Class::Deadline`] needs; `None` if the kernel's
/// symbols cannot be read.
#[must_use]
pub fn kernel_has_schedutil(root: &Root) -> Option<bool> {
    let file = File::open(root.path("/proc/kallsyms")).ok()?;
    let mut lines = 0;
    for line in BufReader::new(file).split(b'\n').map_while(Result::ok) {
        lines += 1;
        let line = String::from_utf8_lossy(&line);
        // A build with CFI or LTO appends a suffix.
        let name = line.split_whitespace().nth(2);
        if name.is_some_and(|name| name == "sugov_start" || name.starts_with("sugov_start.")) {
            return Some(true);
        }
    }
    (lines > 0).then_some(false)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn symbols_tell_whether_the_kernel_has_schedutil() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        assert_eq!(kernel_has_schedutil(&root), None);
        fs::create_dir(folder.path().join("proc")).unwrap();
        let write = |text: &str| fs::write(root.path("/proc/kallsyms"), text).unwrap();
        write("0000000000000000 T vfs_read\n0000000000000000 t __pfx_sugov_start\n");
        assert_eq!(kernel_has_schedutil(&root), Some(false));
        write("0000000000000000 T vfs_read\n0000000000000000 t sugov_start.cfi_jt\n");
        assert_eq!(kernel_has_schedutil(&root), Some(true));
        write("");
        assert_eq!(kernel_has_schedutil(&root), None);
    }
}
