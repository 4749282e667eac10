// SPDX-License-Identifier: MIT OR Apache-2.0
//! The competitor for memory: its start, its memory, and how it ended.
//!
//! The kernel kills it first when memory runs out, which is a result. It never outlives the measurement: it is killed
//! on every path out of this module, and by the kernel if this process dies.

use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use memwarden_platform::cpus::CpuSet;
use memwarden_platform::forked::{Ended, Forked};
use memwarden_platform::machine::meminfo;
use memwarden_platform::memory_group::MemoryGroup;
use memwarden_platform::process::{end_with_us, run_on, this_program};
use memwarden_platform::units::size_text;
use memwarden_platform::{Root, free_memory, mapping, oom};
use memwarden_run::studies::mmap::Competitor as End;
use memwarden_workloads::competitor::{self, Words};
use rustix::process::Signal;

use super::config::{Compete, Config};
use crate::{Error, Interrupt};

/// Interval between checks of the competitor.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A running competitor; killed when dropped.
pub(super) struct Rival {
    process: Process,
    words: Words,
    limit_bytes: u64,
    kills_before: Option<u64>,
    // Dropped after the process: a group with a process cannot be removed.
    group: Option<MemoryGroup>,
}

enum Process {
    Forked(Forked),
    Program(Program),
}

struct Program(Child);

impl Program {
    fn ended(&mut self) -> Option<Ended> {
        let status = self.0.try_wait().ok().flatten()?;
        Some(match status.signal() {
            Some(signal) => Ended::Killed(signal),
            None => Ended::Exited(status.code().unwrap_or(0)),
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn id(&self) -> u32 {
        match self {
            Self::Forked(forked) => forked.id(),
            Self::Program(program) => program.0.id(),
        }
    }

    fn ended(&mut self) -> Option<Ended> {
        match self {
            Self::Forked(forked) => forked.ended(),
            Self::Program(program) => program.ended(),
        }
    }
}

/// The default memory of a competitor: what is free, less a tenth of the machine's memory and less a mapping. A
/// background program starts before the mapping is filled, and a fork copies the mapping on write.
fn limit_bytes(config: &Config) -> Result<u64, Error> {
    if config.compete_limit_bytes != 0 {
        return Ok(config.compete_limit_bytes);
    }
    let root = Root::system();
    let known = |bytes: Option<u64>| {
        bytes.ok_or_else(|| {
            Error::BadInput(
                "the kernel does not report how much memory is free: give --compete-limit".into(),
            )
        })
    };
    let free = known(free_memory::free(&root).map(|free| free.bytes))?;
    let limit =
        free.saturating_sub(known(meminfo(&root, "MemTotal"))? / 10 + config.memory_bytes());
    if limit < mapping::page_bytes() as u64 {
        return Err(Error::BadInput(format!(
            "only {} of memory are free, no more than a competitor leaves: give --compete-limit",
            size_text(free)
        )));
    }
    Ok(limit)
}

impl Rival {
    /// Starts the competitor, which touches no memory yet. `elsewhere` are the CPUs of a background program.
    pub(super) fn start(
        config: &Config,
        compete: Compete,
        elsewhere: &CpuSet,
        interrupt: &Interrupt,
    ) -> Result<Option<Self>, Error> {
        if compete == Compete::None {
            return Ok(None);
        }
        let limit_bytes = limit_bytes(config)?;
        let group = match config.confine_bytes {
            0 => None,
            bytes => {
                let group = MemoryGroup::new(bytes, &|| interrupt.came())?;
                Some(group.ok_or(Error::Interrupted)?)
            }
        };
        let words = Words::create()?;
        let process = match compete {
            Compete::Fork => {
                let bytes = usize::try_from(limit_bytes).unwrap_or(usize::MAX);
                Process::Forked(competitor::fork(bytes, &words)?)
            }
            _ => Process::Program(program(limit_bytes, &words, elsewhere)?),
        };
        let kills_before = match &group {
            Some(group) => group.kills(),
            None => oom::kills(&Root::system()),
        };
        let rival = Self {
            process,
            words,
            limit_bytes,
            kills_before,
            group,
        };
        if let Some(group) = &rival.group {
            group.add(rival.process.id())?;
        }
        Ok(Some(rival))
    }

    /// Lets it take its memory, and waits until it has touched all of it or has ended.
    pub(super) fn fill(&mut self, interrupt: &Interrupt) -> Result<(), Error> {
        self.words.go();
        while self.words.passes() == 0 && self.process.ended().is_none() {
            interrupt.check()?;
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Ends the competitor, and tells how it ended.
    pub(super) fn end(mut self) -> End {
        let ended = self.process.ended();
        let kills = match &self.group {
            Some(group) => group.kills(),
            None => oom::kills(&Root::system()),
        };
        let more_kills =
            matches!((self.kills_before, kills), (Some(before), Some(now)) if now > before);
        let oom_killed = more_kills && ended == Some(Ended::Killed(Signal::KILL.as_raw()));
        let end = match (ended, self.words.failed()) {
            (None, _) => "was ended when the walk was done".to_owned(),
            (Some(_), Some(errno)) => format!(
                "got no memory: {}",
                std::io::Error::from_raw_os_error(errno)
            ),
            (Some(Ended::Killed(_)), _) if oom_killed => "was killed by the OOM killer".to_owned(),
            (Some(Ended::Killed(signal)), _) => format!("was killed by signal {signal}"),
            (Some(Ended::Exited(code)), _) => format!("ended by itself with code {code}"),
        };
        End {
            limit_bytes: self.limit_bytes,
            touched_bytes: self.words.touched_bytes(),
            passes: self.words.passes(),
            oom_killed,
            end,
        }
    }
}

/// Starts memwarden itself as a competitor.
fn program(limit_bytes: u64, words: &Words, cpus: &CpuSet) -> Result<Program, Error> {
    let failed = |source| Error::process("starting", "a competitor", source);
    let descriptor = words.hand_over()?.as_raw_fd();
    let mut command = this_program();
    command
        .args(["mmap", "compete"])
        .args(["--bytes", &limit_bytes.to_string()])
        .args(["--words", &descriptor.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    end_with_us(&mut command, Signal::KILL.as_raw());
    run_on(&mut command, cpus);
    command.spawn().map(Program).map_err(failed)
}
