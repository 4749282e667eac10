// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limit of this process's open files (RLIMIT_NOFILE).
//!
//! The usual soft limit is 1024. It is that low for programs that call select(2), whose sets have no more files.

#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

/// The soft limit before the first [`raise`] that changed it.
static BEFORE: OnceLock<libc::rlim_t> = OnceLock::new();

/// Allows as many open files as the hard limit does: for this process, which does not call select(2). A process that it
/// starts needs [`as_before`].
pub fn raise() {
    let Ok(limit) = get() else { return };
    if limit.rlim_cur >= limit.rlim_max {
        return;
    }
    let all = libc::rlimit {
        rlim_cur: limit.rlim_max,
        ..limit
    };
    // If it fails, the files may suffice.
    if set(&all).is_ok() {
        BEFORE.get_or_init(|| limit.rlim_cur);
    }
}

/// Gives the process of `command` the limit that this one had before [`raise`].
pub fn as_before(command: &mut Command) {
    let Some(&before) = BEFORE.get() else { return };
    let restore = move || {
        let limit = get()?;
        set(&libc::rlimit {
            rlim_cur: before.min(limit.rlim_max),
            ..limit
        })
    };
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(restore) };
}

fn get() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the record is ours to be written.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } {
        0 => Ok(limit),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set(limit: &libc::rlimit) -> io::Result<()> {
    // SAFETY: the record is ours, and the kernel only reads it.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, std::ptr::from_ref(limit)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_may_open_what_the_hard_limit_allows_and_its_children_what_it_could() {
        let before = get().unwrap();
        let lower = before.rlim_max - 1;
        set(&libc::rlimit {
            rlim_cur: lower,
            ..before
        })
        .unwrap();
        raise();
        let raised = get().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -Sn"]);
        as_before(&mut command);
        let of_child = command.output().unwrap().stdout;
        set(&before).unwrap();
        assert_eq!(raised.rlim_cur, before.rlim_max);
        assert_eq!(
            String::from_utf8(of_child).unwrap().trim(),
            lower.to_string()
        );
    }
}
