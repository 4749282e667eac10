// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the scheduler tells of a task, in /proc/PID/stat (proc_pid_stat(5)).

/// `SCHED_FIFO` of linux/sched.h.
pub const SCHED_FIFO: u64 = 1;
/// `SCHED_RR`.
pub const SCHED_RR: u64 = 2;
/// `SCHED_DEADLINE`.
pub const SCHED_DEADLINE: u64 = 6;

/// Flag of a kernel thread (`PF_KTHREAD` of linux/sched.h).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// A task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its name; it may hold any characters.
    pub name: String,
    /// True for a thread of the kernel.
    pub is_of_kernel: bool,
    /// The CPU that it ran on last.
    pub cpu: usize,
    /// Its scheduling policy, such as [`SCHED_FIFO`].
    pub policy: u64,
}

impl Task {
    /// Parses a task's line.
    #[must_use]
    pub fn parse(line: &[u8]) -> Option<Self> {
        let line = String::from_utf8_lossy(line);
        let (name, rest) = line.split_once('(')?.1.rsplit_once(") ")?;
        // The fields from number 3 on.
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        let (flags, cpu, policy) = (number(9)?, number(39)?, number(41)?);
        Some(Self {
            name: name.to_owned(),
            is_of_kernel: flags & KERNEL_THREAD != 0,
            cpu: usize::try_from(cpu).unwrap_or(usize::MAX),
            policy,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_the_rest_of_the_line() {
        let rest = format!("S {} 5 0 1 0", "0 ".repeat(35).trim());
        let fields: Vec<&str> = rest.split(' ').collect();
        assert_eq!((fields[36], fields[38]), ("5", "1"));
        let task = Task::parse(format!("7 (a) R (b) {rest}\n").as_bytes()).unwrap();
        assert_eq!(
            (task.name.as_str(), task.cpu, task.policy),
            ("a) R (b", 5, SCHED_FIFO)
        );
        assert!(!task.is_of_kernel);
        assert_eq!(Task::parse(b"7 (short) S 1"), None);
    }
}
