// SPDX-License-Identifier: MIT OR Apache-2.0
//! The OOM killer: a process's score, and the number of kills.

#![allow(unsafe_code)]

use crate::{Error, Result, Root};

const SCORE: &str = "/proc/self/oom_score_adj";

/// The score that exempts a process from the OOM killer. A process needs CAP_SYS_RESOURCE to lower its own score; root
/// has that outside containers.
pub const NEVER: i32 = -1000;

/// The score of the OOM killer's first choice.
pub const FIRST: i32 = 1000;

/// This process's score; restored when dropped.
#[derive(Debug)]
pub struct Score {
    before: String,
}

impl Score {
    /// Sets the score.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set(score: i32) -> Result<Self> {
        let before = Root::system().read(SCORE)?;
        std::fs::write(SCORE, score.to_string()).map_err(|source| {
            Error::system(
                format!("set oom_score_adj to {score} (a lower one needs CAP_SYS_RESOURCE)"),
                source,
            )
        })?;
        Ok(Self { before })
    }
}

impl Drop for Score {
    fn drop(&mut self) {
        // The kernel accepts the process's previous score.
        let _ = std::fs::write(SCORE, &self.before);
    }
}

/// Sets this process's score permanently, by three system calls and nothing else: for use between fork and exec.
/// Raising it always works.
pub fn be_first() {
    // SAFETY: C strings and a descriptor of our own; all three are safe after fork.
    unsafe {
        let fd = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY);
        if fd >= 0 {
            libc::write(fd, c"1000".as_ptr().cast(), 4);
            libc::close(fd);
        }
    }
}

/// Processes that the OOM killer has killed since boot; `None` before Linux 4.13.
#[must_use]
pub fn kills(root: &Root) -> Option<u64> {
    let text = root.text("/proc/vmstat")?;
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_put_back() {
        let read = || Root::system().read(SCORE).unwrap();
        let before = read();
        // Any process may raise its score and lower it again to the previous value.
        let score = Score::set(FIRST).unwrap();
        assert_eq!(read(), "1000");
        drop(score);
        assert_eq!(read(), before);
    }

    #[test]
    fn kills_are_counted_where_the_kernel_does() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("proc")).unwrap();
        std::fs::write(folder.path().join("proc/vmstat"), "pgfault 3\noom_kill 5\n").unwrap();
        assert_eq!(kills(&Root::at(folder.path())), Some(5));
        assert_eq!(kills(&Root::at("/nonexistent")), None);
    }
}
