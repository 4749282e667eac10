// SPDX-License-Identifier: MIT OR Apache-2.0
//! A foreign program and its descendants, in a process group that is ended as a whole.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use memwarden_platform::process::{end_with_us, group_cpu_time};
use memwarden_platform::{Root, file_limit, process};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use crate::Error;

/// Time that a program gets to clean up after the signal to end, before it is killed.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Interval between checks that the group is gone.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A running program; ended when dropped, with all its descendants.
#[derive(Debug)]
pub(crate) struct Group {
    /// The first process, which gives the group its number.
    pub leader: Child,
    what: String,
}

impl Group {
    /// Starts `command` as leader of a new process group, so that Ctrl-C on a terminal does not reach it.
    pub fn start(mut command: Command, what: &str) -> Result<Self, Error> {
        command.process_group(0);
        file_limit::as_before(&mut command);
        end_with_us(&mut command, Signal::TERM.as_raw());
        let leader = command
            .spawn()
            .map_err(|source| Error::process("starting", what, source))?;
        Ok(Self {
            leader,
            what: what.to_owned(),
        })
    }

    /// CPU time of the leader.
    pub fn leader_cpu_time(&self) -> Option<Duration> {
        process::cpu_time(&Root::system(), self.leader.id())
    }

    /// CPU time of all processes of the group.
    pub fn cpu_time(&self) -> Duration {
        group_cpu_time(&Root::system(), self.leader.id())
    }

    /// Exit status of the leader if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.leader
            .try_wait()
            .map_err(|source| Error::process("watching", &self.what, source))
    }

    /// Ends all processes of the group: signals first, then kills the remaining ones.
    pub fn end(&mut self) {
        let Some(group) = i32::try_from(self.leader.id()).ok().and_then(Pid::from_raw) else {
            return;
        };
        let asked = Instant::now();
        let _ = kill_process_group(group, Signal::TERM);
        while !self.is_gone(group) && asked.elapsed() < END_WITHIN {
            std::thread::sleep(LOOK_EVERY);
        }
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.leader.wait();
        // A killed process disappears once its parent, by now init, has waited for it.
        while !self.is_gone(group) && asked.elapsed() < 2 * END_WITHIN {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// True if the group has no process. Waits for the leader, which would otherwise stay in the group as a zombie.
    fn is_gone(&mut self, group: Pid) -> bool {
        let waited_for = matches!(self.leader.try_wait(), Ok(Some(_)) | Err(_));
        waited_for && test_kill_process_group(group) == Err(rustix::io::Errno::SRCH)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Group {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Group::start(command, script).unwrap()
    }

    fn gone(group: &Group) -> bool {
        let id = i32::try_from(group.leader.id())
            .ok()
            .and_then(Pid::from_raw);
        test_kill_process_group(id.unwrap()).is_err()
    }

    #[test]
    fn what_a_program_has_started_ends_with_it() {
        for script in ["sleep 1000 & sleep 1000 & wait", "sleep 1000 & exit 3"] {
            let mut group = shell(script);
            group.end();
            assert!(gone(&group), "{script}");
        }
    }

    #[test]
    fn it_is_known_how_and_that_it_ended() {
        let mut group = shell("exit 3");
        let status = loop {
            if let Some(status) = group.ended().unwrap() {
                break status;
            }
            std::thread::sleep(LOOK_EVERY);
        };
        assert_eq!(status.code(), Some(3));
        assert!(shell("sleep 1000").ended().unwrap().is_none());
    }
}
