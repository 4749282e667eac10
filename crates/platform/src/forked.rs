// SPDX-License-Identifier: MIT OR Apache-2.0
//! A child process that is a copy of this one, and never outlives it.

#![allow(unsafe_code)]

use crate::{Error, Result};

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It exited with this code.
    Exited(i32),
    /// This signal killed it.
    Killed(i32),
}

/// A running child. Dropping it kills the child.
#[derive(Debug)]
pub struct Forked {
    pid: libc::pid_t,
    ended: Option<Ended>,
}

impl Forked {
    /// Forks a child that runs `work` and exits with its result. The kernel kills the child when the calling thread
    /// ends.
    ///
    /// # Safety
    /// `work` runs in a child of a process with several threads: it may make system calls and use its own memory, but
    /// must not allocate, lock or panic (signal-safety(7)).
    ///
    /// # Errors
    /// When the kernel can't create a process.
    pub unsafe fn start(work: impl FnOnce() -> i32) -> Result<Self> {
        let parent = std::process::id();
        // SAFETY: the child makes only calls that are safe after fork, as the caller promises.
        match unsafe { libc::fork() } {
            -1 => Err(Error::last("fork")),
            0 => {
                // SAFETY: plain numbers, safe after fork; _exit runs no exit handlers of the parent.
                unsafe {
                    let asked = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    // The parent may have ended before prctl took effect.
                    let orphan = u32::try_from(libc::getppid()) != Ok(parent);
                    let code = if asked != 0 || orphan { 1 } else { work() };
                    libc::_exit(code)
                }
            }
            pid => Ok(Self { pid, ended: None }),
        }
    }

    /// Its process ID.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// How it ended, or `None` while it runs.
    pub fn ended(&mut self) -> Option<Ended> {
        self.wait(libc::WNOHANG)
    }

    /// Kills it, unless it has ended, and returns how it ended.
    pub fn kill(&mut self) -> Option<Ended> {
        if self.ended().is_none() {
            // SAFETY: the child has not been waited for, so the process ID is still its own.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        }
        self.wait(0)
    }

    fn wait(&mut self, flags: i32) -> Option<Ended> {
        let mut status = 0;
        while self.ended.is_none() {
            // SAFETY: our own child, and a place for its status.
            match unsafe { libc::waitpid(self.pid, &raw mut status, flags) } {
                0 => return None,
                pid if pid == self.pid && libc::WIFSIGNALED(status) => {
                    self.ended = Some(Ended::Killed(libc::WTERMSIG(status)));
                }
                pid if pid == self.pid => {
                    self.ended = Some(Ended::Exited(libc::WEXITSTATUS(status)));
                }
                _ if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
                // Other code has already waited for the child.
                _ => return None,
            }
        }
        self.ended
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_ends_as_it_was_told_and_is_no_longer_there() {
        // SAFETY: the child does nothing.
        let mut child = unsafe { Forked::start(|| 7) }.unwrap();
        while child.ended().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(child.kill(), Some(Ended::Exited(7)));

        let sleep = || {
            loop {
                // SAFETY: a system call without arguments.
                unsafe { libc::pause() };
            }
        };
        // SAFETY: the child makes one system call.
        let mut child = unsafe { Forked::start(sleep) }.unwrap();
        assert_eq!(child.ended(), None);
        assert_eq!(child.kill(), Some(Ended::Killed(libc::SIGKILL)));
        let pid = child.id();
        drop(child);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
