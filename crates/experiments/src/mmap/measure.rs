// SPDX-License-Identifier: MIT OR Apache-2.0
//! One run of a case: map, fill, start the competitor, flush, walk, read the counters.

use memwarden_platform::counters::groups::Reading;
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::mapping::Mapping;
use memwarden_platform::mapping::kind::Mapped;
use memwarden_platform::usage::Usage;
use memwarden_platform::{affinity, clock, data_cache};
use memwarden_run::studies::mmap::Competitor as End;
use memwarden_workloads::Stop;
use memwarden_workloads::mapped::{Outcome, Walk};

use super::config::{Access, Compete, Config, Flush, Way};
use super::counting::Counter;
use super::rival::Rival;
use crate::pinned::Pinned;
use crate::{Error, Interrupt};

/// One case to measure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) way: Way,
    pub(super) access: Access,
    pub(super) locality: u64,
    pub(super) compete: Compete,
}

impl Plan {
    pub(super) fn name(&self) -> String {
        let beside = match self.compete {
            Compete::None => String::new(),
            other => format!(", beside {other}"),
        };
        format!(
            "{}, {}, locality {}{beside}",
            self.way.0.text, self.access, self.locality
        )
    }
}

/// The result of a run.
pub(super) struct Taken {
    pub(super) outcome: Outcome,
    pub(super) usage: Usage,
    pub(super) setup: Setup,
    pub(super) synced: Option<Synced>,
    pub(super) reading: Option<Reading>,
    pub(super) rival: Option<End>,
    /// Address of the mapping, and its bytes in huge pages.
    pub(super) base: u64,
    pub(super) huge_bytes: u64,
}

/// Cost of the mapping before its walk.
#[derive(Default)]
pub(super) struct Setup {
    pub(super) map_ns: u64,
    /// The first write to each page.
    pub(super) touch_ns: u64,
    pub(super) touch: Usage,
}

/// The mapping written back, before its walk and after it.
pub(super) struct Synced {
    pub(super) before: WriteBack,
    pub(super) after: WriteBack,
}

/// One msync, and the share of the written bytes that a reader of the file sees before and after it.
pub(super) struct WriteBack {
    pub(super) took_ns: u64,
    pub(super) seen_shares: Option<[f64; 2]>,
}

impl WriteBack {
    fn of(mapped: &Mapped) -> Result<Self, Error> {
        let before = mapped.seen_in_file()?;
        let begin_ns = clock::monotonic_ns();
        mapped.sync()?;
        let took_ns = clock::monotonic_ns() - begin_ns;
        let after = mapped.seen_in_file()?;
        Ok(Self {
            took_ns,
            seen_shares: before.zip(after).map(|(before, after)| [before, after]),
        })
    }
}

/// State that all runs share.
pub(super) struct Bench<'a> {
    pub(super) config: &'a Config,
    pub(super) pinned: &'a Pinned,
    /// CPUs of a background program.
    pub(super) elsewhere: &'a CpuSet,
    /// The buffer that is read to empty the caches.
    pub(super) other: Option<Mapping>,
    pub(super) interrupt: &'a Interrupt,
}

impl Bench<'_> {
    pub(super) fn run(
        &self,
        plan: &Plan,
        walk: &Walk,
        counter: &mut Counter,
    ) -> Result<Taken, Error> {
        self.interrupt.check()?;
        let config = self.config;
        let bytes = usize::try_from(config.size_bytes).unwrap_or(usize::MAX);
        let start = |wanted| match plan.compete {
            compete if compete == wanted => {
                Rival::start(config, compete, self.elsewhere, self.interrupt)
            }
            _ => Ok(None),
        };
        // Start a program before the mapping exists: starting one write-protects the parent's pages for a moment, and
        // each then costs a fault. A fork copies the mapping; there such faults are part of what is measured.
        let program = start(Compete::Background)?;
        let mut mapped = Mapped::new(plan.way.0, bytes, &config.directory())?;
        let setup = Self::first_touch(&mapped)?;
        mapped.fill(1);
        let written_back = || config.msync.then(|| WriteBack::of(&mapped)).transpose();
        // Check before a competitor takes memory: reading the whole mapping swaps its pages back in, and the walk would
        // then find them in memory.
        let synced_before = written_back()?;
        let huge_bytes = mapped.huge_bytes();
        let mut rival = program.map_or_else(|| start(Compete::Fork), |one| Ok(Some(one)))?;
        if let Some(rival) = &mut rival {
            rival.fill(self.interrupt)?;
        }
        match (config.flush, &self.other) {
            (Flush::Off, _) => {}
            (Flush::Read, Some(other)) => data_cache::read_through(other),
            _ => data_cache::flush(mapped.mapping()),
        }
        self.interrupt.check()?;

        let stop: Stop = self.interrupt.into();
        let before = Usage::of_thread()?;
        let times = counter.start()?;
        let outcome = walk.run(mapped.mapping(), &stop)?;
        let reading = counter.stop(times.as_ref())?;
        let usage = Usage::of_thread()?.since(&before);

        self.interrupt.check()?;
        let here = affinity::current()?;
        if here != self.pinned.cpu {
            return Err(Error::BadInput(format!(
                "pinned to CPU {} and found on CPU {here}: the thread's affinity was changed meanwhile",
                self.pinned.cpu
            )));
        }
        let rival = rival.map(Rival::end);
        let synced = synced_before
            .zip(written_back()?)
            .map(|(before, after)| Synced { before, after });
        Ok(Taken {
            outcome,
            usage,
            setup,
            synced,
            reading,
            rival,
            base: mapped.mapping().start() as u64,
            huge_bytes,
        })
    }

    /// Writes to each page once.
    fn first_touch(mapped: &Mapped) -> Result<Setup, Error> {
        let before = Usage::of_thread()?;
        let begin_ns = clock::monotonic_ns();
        mapped.touch();
        Ok(Setup {
            map_ns: mapped.call_ns(),
            touch_ns: clock::monotonic_ns() - begin_ns,
            touch: Usage::of_thread()?.since(&before),
        })
    }
}
