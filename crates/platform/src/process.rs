// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other processes: their CPUs, their end with this process, and their CPU time.

#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::cpus::CpuSet;
use crate::{Result, Root, affinity, sched};

/// The name by which `ps` and `top` show this program's processes.
pub const TITLE: &str = "memwarden";
const TITLE_C: &std::ffi::CStr = c"memwarden";

/// A command that starts this program again: from its own file, even if that was replaced since, and under its name.
#[must_use]
pub fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(TITLE);
    command
}

/// Names the process [`TITLE`]; the kernel names one that [`this_program`] started `exe`.
pub fn set_title() {
    // A process that keeps its old name works just as well, so the result is ignored.
    // SAFETY: the name is a C string, which the kernel copies.
    unsafe { libc::prctl(libc::PR_SET_NAME, TITLE_C.as_ptr()) };
}

/// Makes the kernel send `signal` to the process of `command` when the thread that started it ends, for any reason.
///
/// This does not affect processes that the new process starts.
pub fn end_with_us(command: &mut Command, signal: i32) {
    let parent = std::process::id();
    let ask = move || {
        // SAFETY: plain numbers, and a call that is safe between fork and exec.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: takes nothing, touches nothing.
        if u32::try_from(unsafe { libc::getppid() }) != Ok(parent) {
            // The parent ended before the prctl, so nothing waits for this process.
            return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(ask) };
}

/// Restricts the process of `command` to `cpus`.
pub fn run_on(command: &mut Command, cpus: &CpuSet) {
    let mask = affinity::mask(cpus);
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(move || affinity::set_mask(&mask)) };
}

/// Starts the process of `command` on `cpus` if it may run there: for a program that pins itself later, and reports it if
/// that fails.
pub fn begin_on(command: &mut Command, cpus: &CpuSet) {
    let mask = affinity::mask(cpus);
    let begin = move || {
        _ = affinity::set_mask(&mask);
        Ok(())
    };
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(begin) };
}

/// Runs the process of `command` under SCHED_FIFO with `priority`, which may be below that of the starting thread.
pub fn run_fifo(command: &mut Command, priority: i32) {
    let set = move || sched::set_policy(libc::SCHED_FIFO, priority);
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(set) };
}

/// CPU times from /proc/PID/stat, in the kernel's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    group: u32,
    own: u64,
    awaited_children: u64,
}

impl Stat {
    /// Parses a line `42 (a name) S 1 42 ...`; the name may contain any byte.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        // proc(5) counts from 1, where our first field, the state, is number 3.
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            group: u32::try_from(number(5)?).ok()?,
            own: number(14)?.checked_add(number(15)?)?,
            awaited_children: number(16)?.checked_add(number(17)?)?,
        })
    }
}

/// CPU time of process `pid` since its start; `None` if it is gone. The kernel counts in hundredths of a second.
#[must_use]
pub fn cpu_time(root: &Root, pid: u32) -> Option<Duration> {
    let stat = Stat::parse(&root.text(&format!("/proc/{pid}/stat"))?)?;
    Some(time_of(stat.own))
}

/// CPU time of all processes of the group `group`, including children that they have waited for.
#[must_use]
pub fn group_cpu_time(root: &Root, group: u32) -> Duration {
    let ticks = root
        .names("/proc")
        .into_iter()
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|pid| Stat::parse(&root.text(&format!("/proc/{pid}/stat"))?))
        .filter(|stat| stat.group == group)
        .map(|stat| stat.own + stat.awaited_children)
        .sum();
    time_of(ticks)
}

fn time_of(ticks: u64) -> Duration {
    // SAFETY: takes a plain number.
    let a_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let a_second = u64::try_from(a_second)
        .ok()
        .filter(|n| *n > 0)
        .unwrap_or(100);
    Duration::from_nanos(ticks.saturating_mul(1_000_000_000 / a_second))
}

/// Locks all current memory of this process, so that no access waits for a disk.
pub fn lock_memory() -> Result<()> {
    // SAFETY: a plain number.
    if unsafe { libc::mlockall(libc::MCL_CURRENT) } != 0 {
        return Err(crate::Error::last(
            "lock memory (needs root, CAP_IPC_LOCK or a larger `ulimit -l`)",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_is_no_trouble() {
        let line = "42 (a) (b c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 30 20 20 0 1 0 5";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.group, stat.own, stat.awaited_children), (7, 300, 50));
        for text in ["", "42", "42 (a", "42 (a) S 1", "42 (a) S 1 x 7 0 -1"] {
            assert_eq!(Stat::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_group_is_all_its_processes_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        for (pid, group, own) in [(10, 10, 100), (11, 10, 50), (12, 12, 1000)] {
            let directory = folder.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&directory).unwrap();
            let line = format!("{pid} (x) R 1 {group} 1 0 -1 0 0 0 0 0 {own} 0 0 0 20 0 1 0 5\n");
            std::fs::write(directory.join("stat"), line).unwrap();
        }
        std::fs::create_dir_all(folder.path().join("proc/bus")).unwrap();
        let root = Root::at(folder.path());
        assert_eq!(group_cpu_time(&root, 10), time_of(150));
        assert_eq!(cpu_time(&root, 12), Some(time_of(1000)));
        assert_eq!(cpu_time(&root, 13), None);
    }

    #[test]
    fn a_started_process_is_where_it_was_put() {
        let last = affinity::get().unwrap().iter().last().unwrap();
        let mut command = Command::new("grep");
        command.args(["Cpus_allowed_list", "/proc/self/status"]);
        end_with_us(&mut command, libc::SIGTERM);
        run_on(&mut command, &[last].into_iter().collect());
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(
            text.split_whitespace().last(),
            Some(last.to_string().as_str())
        );
    }
}
