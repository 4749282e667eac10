// SPDX-License-Identifier: MIT OR Apache-2.0
//! Priorities: nice values, SCHED_FIFO, timer slack.

#![allow(unsafe_code)]

use crate::{Error, Result};

/// Sets the calling thread's nice value, -20 (most) to 19 (least CPU).
pub fn set_nice(nice: i32) -> Result<()> {
    if !(-20..=19).contains(&nice) {
        return Err(Error::Invalid(format!(
            "nice value {nice} is outside -20..19"
        )));
    }
    // SAFETY: plain numbers; 0 is the calling thread.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) } != 0 {
        return Err(Error::last(format!(
            "set nice value {nice} (values below the current one need root)"
        )));
    }
    Ok(())
}

/// Puts the calling thread under SCHED_FIFO with priority 1 to 99.
pub fn set_fifo(priority: i32) -> Result<()> {
    // SAFETY: these take a plain number and touch no memory of ours.
    let (least, most) = unsafe {
        (
            libc::sched_get_priority_min(libc::SCHED_FIFO),
            libc::sched_get_priority_max(libc::SCHED_FIFO),
        )
    };
    if !(least..=most).contains(&priority) {
        return Err(Error::Invalid(format!(
            "SCHED_FIFO priority {priority} is outside {least}..{most}"
        )));
    }
    set_policy(libc::SCHED_FIFO, priority)
        .map_err(|source| Error::system(format!("get SCHED_FIFO priority {priority} (needs root or CAP_SYS_NICE, and a cgroup with real-time time)"), source))
}

/// Puts the calling thread under SCHED_DEADLINE: `runtime_ns` of each `period_ns` are reserved for it, ahead of all
/// SCHED_FIFO threads and (from Linux 6.12 on) of the fair server, which lets ordinary threads run ahead of SCHED_FIFO.
/// Such a thread can't be pinned and can't start threads.
///
/// # Errors
/// When the kernel can't reserve the time, or the thread is pinned.
pub fn set_deadline(runtime_ns: u64, period_ns: u64) -> Result<()> {
    /// `struct sched_attr` (linux/sched/types.h), first version.
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime_ns: u64,
        deadline_ns: u64,
        period_ns: u64,
    }
    const SCHED_DEADLINE: u32 = 6;
    let attributes = Attributes {
        size: u32::try_from(size_of::<Attributes>()).expect("some tens of bytes"),
        policy: SCHED_DEADLINE,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime_ns,
        deadline_ns: period_ns,
        period_ns,
    };
    // SAFETY: the attributes are as long as they say and live through the call; 0 is the calling thread.
    let rc = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if rc == 0 {
        return Ok(());
    }
    Err(Error::last(format!(
        "get {runtime_ns} ns of each {period_ns} ns under SCHED_DEADLINE"
    )))
}

pub(crate) fn set_policy(policy: i32, priority: i32) -> std::io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the parameters live through the call; 0 is the calling thread.
    // A direct system call, because musl's wrapper refuses it.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            policy,
            &raw const parameters,
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Makes the calling thread's sleeps end on time instead of up to 50 us late (the
/// kernel's default slack for threads that are not real-time).
pub fn no_timer_slack() -> Result<()> {
    // SAFETY: plain numbers.
    if unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) } != 0 {
        return Err(Error::last("set the timer slack"));
    }
    Ok(())
}

/// Locks all current and future pages of the process in memory.
pub fn lock_memory() -> Result<()> {
    // SAFETY: plain numbers.
    if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
        return Err(Error::last(
            "lock memory (needs root or CAP_IPC_LOCK, or a higher `ulimit -l`)",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_time_than_there_is_is_refused() {
        let message = set_deadline(2_000_000, 1_000_000).unwrap_err().to_string();
        assert!(
            message.contains("2000000 ns of each 1000000 ns"),
            "{message}"
        );
    }

    #[test]
    fn priorities_out_of_range_are_refused() {
        for nice in [-21, 20, i32::MAX, i32::MIN] {
            assert!(
                set_nice(nice)
                    .unwrap_err()
                    .to_string()
                    .contains("outside -20..19")
            );
        }
        for priority in [0, -1, 100, i32::MAX] {
            assert!(
                set_fifo(priority)
                    .unwrap_err()
                    .to_string()
                    .contains("outside 1..99")
            );
        }
    }
}
