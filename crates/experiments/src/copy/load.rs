// SPDX-License-Identifier: MIT OR Apache-2.0
//! The background load of copy measurements. It is fixed, so that two runs with it are comparable.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use memwarden_platform::affinity;
use memwarden_platform::names::unknown;
use memwarden_platform::units::Size;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantArray};

use crate::workload::{Task, Until};
use crate::{Child, Error, Interrupt, Workload};

/// Description of `heavy`.
pub const HEAVY_LOAD: &str = "on every other CPU, a process that repeatedly writes one word of each line of 16 MiB \
    (bandwidth -a write -m 16M), and a thread that writes and reads 1 MiB of a file in memory, which the kernel copies";

/// Larger than the last-level cache of the boards that the workload was written for.
const BUFFER: Size = Size::kib(16 << 10);

/// Larger than a first-level cache, yet one pass takes less than a millisecond, so the thread ends soon.
const FILE_BYTES: usize = 1 << 20;

/// Time in which a workload must report that it runs; it touches its buffer first.
const BEGINS_WITHIN: Duration = Duration::from_secs(60);

/// The load beside the copies.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    EnumString,
    VariantArray,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown::<Self>)]
pub enum Load {
    /// No load from us.
    Idle,
    /// [`HEAVY_LOAD`].
    Heavy,
}

impl Load {
    /// Checks that the load can run on `others`, all CPUs but the measured one.
    pub(super) fn check(self, others: &[usize]) -> Result<(), Error> {
        if self == Self::Heavy && others.is_empty() {
            return Err(Error::BadInput(
                "--load heavy: it needs other CPUs, and there is only one".into(),
            ));
        }
        Ok(())
    }

    /// Starts the load on `others`; it ends when the returned value is dropped.
    pub(super) fn start(self, others: &[usize], interrupt: &Interrupt) -> Result<Running, Error> {
        self.check(others)?;
        let mut running = Running::default();
        if self == Self::Idle {
            return Ok(running);
        }
        for &cpu in others {
            let task = Task {
                cpu,
                memory: Some(BUFFER),
                until: Until::Told,
            };
            let arguments = Workload::Bandwidth("write".into()).arguments(task);
            let mut child = Child::start(&arguments, true)?;
            child.wait_ready(BEGINS_WITHIN, interrupt)?;
            running.processes.push(child);
            running.copy_on(cpu)?;
        }
        Ok(running)
    }
}

/// The running load; ends when dropped.
#[derive(Debug, Default)]
pub(super) struct Running {
    // Killed when they are dropped.
    processes: Vec<Child>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    stop: Arc<AtomicBool>,
}

impl Running {
    /// Checks that every part still runs; otherwise the copies were measured beside a smaller load.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        for child in &mut self.processes {
            child.check()?;
        }
        match self.threads.iter().position(JoinHandle::is_finished) {
            None => Ok(()),
            Some(ended) => {
                let reason = match self.threads.swap_remove(ended).join() {
                    Ok(Err(error)) => error.to_string(),
                    _ => "it ended".into(),
                };
                Err(Error::workload("copying thread of --load heavy", reason))
            }
        }
    }

    fn copy_on(&mut self, cpu: usize) -> Result<(), Error> {
        let failed = |source: io::Error| {
            Error::process("starting", "the copying thread of --load heavy", source)
        };
        let file = rustix::fs::memfd_create("memwarden-load", rustix::fs::MemfdFlags::CLOEXEC)
            .map_err(|errno| failed(errno.into()))?;
        let stop = Arc::clone(&self.stop);
        let thread = std::thread::Builder::new().spawn(move || {
            // Without the pin the thread is still a load.
            let _ = affinity::pin(cpu);
            keep_copying(&File::from(file), &stop)
        });
        self.threads.push(thread.map_err(failed)?);
        Ok(())
    }
}

fn keep_copying(file: &File, stop: &AtomicBool) -> io::Result<()> {
    let mut buffer = vec![1; FILE_BYTES];
    while !stop.load(Ordering::Relaxed) {
        file.write_all_at(&buffer, 0)?;
        file.read_exact_at(&mut buffer, 0)?;
    }
    Ok(())
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_machine_gets_no_load_and_one_cpu_no_heavy_one() {
        let interrupt = Interrupt::default();
        let idle = Load::Idle.start(&[], &interrupt).unwrap();
        assert!(idle.processes.is_empty() && idle.threads.is_empty());
        let message = Load::Heavy.start(&[], &interrupt).unwrap_err().to_string();
        assert!(message.contains("only one"), "{message}");
    }

    #[test]
    fn the_copying_thread_ends_with_the_load() {
        let mut running = Running::default();
        running.copy_on(0).unwrap();
        running.check().unwrap();
        drop(running);
    }

    #[test]
    fn a_load_that_has_ended_is_an_error() {
        let mut running = Running::default();
        let full = std::thread::spawn(|| Err(io::Error::other("no space")));
        while !full.is_finished() {
            std::thread::yield_now();
        }
        running.threads.push(full);
        let message = running.check().unwrap_err().to_string();
        assert!(message.contains("no space"), "{message}");
    }
}
