// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pins a thread to a CPU, and checks that it runs there.

#![allow(unsafe_code)]

use crate::cpus::{self, CpuSet};
use crate::{Error, Result};

/// 64-bit words of a kernel CPU mask of [`cpus::LIMIT`] CPUs.
const WORDS: usize = cpus::LIMIT / 64;

/// Pins the calling thread to `cpu`, and checks that it runs there.
pub fn pin(cpu: usize) -> Result<()> {
    let only: CpuSet = [cpu].into_iter().collect();
    cpus::check_online(&only)?;
    set(only)?;
    let (allowed, here) = (get()?, current()?);
    if allowed.iter().ne([cpu]) || here != cpu {
        return Err(Error::Invalid(format!(
            "pinned to CPU {cpu}, but running on CPU {here} and allowed on {allowed}: the thread's affinity was \
             changed meanwhile"
        )));
    }
    Ok(())
}

/// Restricts the calling thread to `set`.
pub fn set(set: CpuSet) -> Result<()> {
    set_mask(&mask(&set)).map_err(|source| {
        Error::system(
            format!("pin to CPU {set} (is it in this cgroup's cpuset?)"),
            source,
        )
    })
}

/// The kernel's form of a set.
pub(crate) type Mask = [u64; WORDS];

pub(crate) fn mask(set: &CpuSet) -> Mask {
    let mut mask = [0_u64; WORDS];
    for cpu in set.iter() {
        mask[cpu / 64] |= 1 << (cpu % 64);
    }
    mask
}

/// Makes one system call and nothing else, so that it can be called between fork and exec.
pub(crate) fn set_mask(mask: &Mask) -> std::io::Result<()> {
    // SAFETY: the mask is as long as we say, and the kernel only reads it.
    match unsafe { libc::sched_setaffinity(0, size_of_val(mask), mask.as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The CPUs that the calling thread may run on.
pub fn get() -> Result<CpuSet> {
    let mut mask = [0_u64; WORDS];
    // SAFETY: the mask is as long as we say, and ours to be written.
    let rc = unsafe { libc::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr().cast()) };
    if rc < 0 {
        return Err(Error::last("read this thread's CPU mask"));
    }
    Ok((0..cpus::LIMIT)
        .filter(|cpu| mask[cpu / 64] >> (cpu % 64) & 1 == 1)
        .collect())
}

/// The online CPUs on which this process may run: a container's cpuset, for example, excludes the others.
pub fn usable() -> Result<CpuSet> {
    let online = cpus::online()?;
    // Pins a thread to each of them: the affinity mask lacks the CPUs that isolcpus reserves, which are allowed.
    let try_all = || {
        online
            .iter()
            .filter(|&cpu| set([cpu].into_iter().collect()).is_ok())
            .collect()
    };
    std::thread::scope(|scope| scope.spawn(try_all).join())
        .map_err(|_| Error::Invalid("the thread that tries the CPUs failed".into()))
}

/// The CPU that the calling thread currently runs on.
pub fn current() -> Result<usize> {
    // SAFETY: takes nothing, touches nothing.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).map_err(|_| Error::last("ask which CPU this is"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_is_where_it_was_pinned() {
        std::thread::spawn(|| {
            let cpu = get().unwrap().iter().last().unwrap();
            pin(cpu).unwrap();
            assert_eq!(current().unwrap(), cpu);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_cpu_that_is_not_there_is_named() {
        let message = pin(8191).unwrap_err().to_string();
        assert!(
            message.starts_with("CPU 8191 is not online: this machine has CPUs 0"),
            "{message}"
        );
    }
}
