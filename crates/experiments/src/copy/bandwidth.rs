// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copy bandwidth of all CPUs at once, by size: by the CPUs themselves, and by the DMA channels under each policy.
//!
//! One thread on each CPU makes its copies, then makes more until the last thread has finished its own. All threads are
//! thus active during each thread's measured time.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memwarden_copies::cftu::{self, Channel, Copy, Session};
use memwarden_platform::{affinity, clock};
use memwarden_run::studies::copy_bandwidth::{
    Case, NAME, ROLE_OF_TOTAL, Share, Summary, Thread, Whole,
};
use memwarden_run::{Metric, Sample, title};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bench, Engine, Moved, Operation, Policies, bytes_text, copy, note_cpu_parts, powers};
use crate::request::finished;
use crate::settings::{check_sizes, check_within, not_empty, not_twice};
use crate::threads::{Gate, at_once};
use crate::{Error, Interrupt, RunRequest, Settings};

/// Copies in each extra request of a thread that waits for the others: few, so that the run ends soon.
const FILLERS: usize = 16;

/// The experiment's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The device, or `null`.
    pub device: PathBuf,
    /// The engines; empty means all available.
    pub engine: Vec<Engine>,
    /// Directions of the copies.
    pub operation: Vec<Operation>,
    /// Sizes of a copy, bytes.
    pub sizes: Vec<u64>,
    /// Copies that each thread makes.
    pub operations: u32,
    /// Runs of each case.
    pub repeat: u32,
    /// Settings of the policies.
    pub policy: Policies,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device: cftu::DEVICE.into(),
            engine: Vec::new(),
            operation: vec![Operation::From, Operation::To, Operation::Both],
            sizes: powers(1 << 10, 1 << 25),
            operations: 300,
            repeat: 1,
            policy: Policies::default(),
        }
    }
}

impl Settings for Config {
    type Whole = Whole;

    const COMMAND: &str = "copy bandwidth";

    /// The settings for the emulated machine: few copies, as its runs repeat exactly.
    fn for_lab() -> Self {
        Self {
            sizes: powers(1 << 10, 1 << 20),
            operations: 30,
            ..Self::default()
        }
    }

    fn check(&self) -> Result<(), Error> {
        let bad = |text: String| Err(Error::BadInput(text));
        check_sizes(&self.sizes, cftu::MAX_BYTES)?;
        not_empty(
            &self.operation,
            "no operation: give --operation from,to, for example",
        )?;
        let uncached = [Operation::FromUncached, Operation::ToUncached];
        if let Some(one) = self.operation.iter().find(|one| uncached.contains(one)) {
            return bad(format!(
                "--operation {one}: give from, to or from+to (latency has from_nc and to_nc)"
            ));
        }
        not_twice("--operation", &self.operation)?;
        not_twice("--engine", &self.engine)?;
        check_within("--operations", self.operations, 1..=1_000_000)?;
        check_within("--repeat", self.repeat, 1..=1000)?;
        self.policy.check()
    }
}

/// Runs the experiment and leaves its run folder.
///
/// # Errors
/// When a setting makes no sense here, the device is not there, refuses or gives other bytes back, or the run is
/// interrupted; what was measured is then in `DIR.partial`.
pub fn run(config: &Config, request: RunRequest) -> Result<(PathBuf, Summary), Error> {
    config.check()?;
    let interrupt = request.interrupt;
    let mut summary = Summary::new(NAME, "native");
    let bench = Bench::open(&config.device, &config.policy)?;
    let engines = bench.engines(&config.engine, &mut summary)?;
    let largest = config.sizes.iter().copied().max().unwrap_or(1);
    let cpus: Vec<usize> = affinity::get()?.iter().collect();
    let mut sessions = bench.sessions(cpus.len(), largest)?;
    let mut folder = request.begin(NAME, config)?;

    let base_ns = clock::monotonic_ns();
    let each = config.sizes.len() * config.operation.len() * config.repeat as usize;
    let mut steps = request.steps(each * engines.len());
    for &engine in &engines {
        bench.choose(engine)?;
        for &size in &config.sizes {
            bench.check(sessions[0].as_mut(), engine, size)?;
            for &operation in &config.operation {
                let name = format!("{operation}, {engine}, {}", bytes_text(size));
                let title = title::copies(&operation.to_string(), &engine.to_string(), size);
                let work = Work {
                    engine,
                    operation,
                    size,
                    operations: config.operations as usize,
                };
                let mut runs = Vec::new();
                let before = bench.channels()?;
                for repeat in 0..config.repeat {
                    steps.next(&title);
                    interrupt.check()?;
                    let parts = work.at_once(&cpus, &mut sessions, interrupt)?;
                    folder.append_all(&samples(&name, repeat, &parts, base_ns))?;
                    runs.push(parts);
                }
                let channels = ChannelParts::between(&before, &bench.channels()?);
                summary.cases.push(work.case(name, &runs, &channels));
            }
        }
        folder.flush()?;
    }
    steps.end();
    summary.whole = Whole {
        clock_base_ns: base_ns,
        operations: config.operations.into(),
        device: bench.device(),
    };
    bench.tell(&mut summary)?;
    remarks(config, cpus.len(), &mut summary);
    finished(folder, summary)
}

/// What one thread did.
#[derive(Debug, Clone, Copy)]
struct Part {
    cpu: usize,
    /// The channel of all its copies; none if several channels or, for some copies, no channel made them.
    channel: Option<u32>,
    begin_ns: u64,
    elapsed_ns: u64,
    mib_s: f64,
    moved: Moved,
}

/// Each channel's share of the bytes that the engine copied, from the channels' counters.
struct ChannelParts(Vec<ChannelPart>);

struct ChannelPart {
    high: bool,
    bytes: u64,
}

impl ChannelParts {
    fn between(before: &[Channel], after: &[Channel]) -> Self {
        let part = |(before, after): (&Channel, &Channel)| ChannelPart {
            high: after.high,
            bytes: after.bytes - before.bytes,
        };
        Self(before.iter().zip(after).map(part).collect())
    }

    fn is_high(&self, channel: u32) -> bool {
        let one = usize::try_from(channel).ok().and_then(|at| self.0.get(at));
        one.is_some_and(|one| one.high)
    }

    /// Share of the copied bytes on the channels that `which` selects; none if the channels copied nothing.
    fn share(&self, which: impl Fn(&ChannelPart) -> bool) -> Option<f64> {
        let all: u64 = self.0.iter().map(|one| one.bytes).sum();
        let some = self.0.iter().filter(|one| which(one)).map(|one| one.bytes);
        (all > 0).then(|| some.sum::<u64>() as f64 / all as f64)
    }

    fn shares(&self) -> Vec<Share> {
        let all: u64 = self.0.iter().map(|one| one.bytes).sum();
        let value = |(channel, one): (u32, &ChannelPart)| Share {
            channel,
            high: one.high,
            share: (all > 0).then(|| one.bytes as f64 / all as f64),
        };
        (0..).zip(&self.0).map(value).collect()
    }
}

/// The work of each thread.
#[derive(Clone, Copy)]
struct Work {
    engine: Engine,
    operation: Operation,
    size: u64,
    operations: usize,
}

impl Work {
    /// Runs the work on one thread per CPU at the same time.
    fn at_once(
        self,
        cpus: &[usize],
        sessions: &mut [Box<dyn Session>],
        interrupt: &Interrupt,
    ) -> Result<Vec<Part>, Error> {
        let shared = Shared {
            left: AtomicUsize::new(cpus.len()),
            failed: AtomicBool::new(false),
        };
        let works = cpus.iter().zip(sessions).map(|(cpu, session)| {
            let shared = &shared;
            move |gate: &Gate| shared.work(self, *cpu, session.as_mut(), gate, interrupt)
        });
        at_once(works.collect())
    }

    fn part(self, cpu: usize, copies: &[Copy]) -> Part {
        let begin_ns = copies.first().map_or(0, Copy::begin_ns);
        let end_ns = copies.last().map_or(0, Copy::end_ns);
        let elapsed_ns = end_ns.saturating_sub(begin_ns);
        let mut moved = Moved::default();
        moved.add(copies);
        Part {
            cpu,
            channel: only_channel(copies),
            begin_ns,
            elapsed_ns,
            mib_s: mib_s(self.size, copies.len() as u64, elapsed_ns),
            moved,
        }
    }

    /// The figures of the case's runs.
    fn case(self, name: String, runs: &[Vec<Part>], parts: &ChannelParts) -> Case {
        let totals: Vec<f64> = runs.iter().map(|parts| total(parts)).collect();
        let all: Vec<f64> = runs.iter().flatten().map(|part| part.mib_s).collect();
        let thread = |index: usize| {
            let first = runs[0][index];
            let rates: Vec<f64> = runs.iter().map(|parts| parts[index].mib_s).collect();
            Thread {
                cpu: u32::try_from(first.cpu).unwrap_or(u32::MAX),
                channel: first.channel,
                high: first.channel.is_some_and(|number| parts.is_high(number)),
                mib_s: Metric::from_samples("mib_s", &rates).median,
            }
        };
        let threads = runs.first().map_or(0, Vec::len);
        Case {
            name,
            guard: (),
            operation: self.operation.to_string(),
            engine: self.engine.to_string(),
            size_bytes: self.size,
            operations: self.operations as u64,
            engine_share: Some(engine_share(runs.iter().flatten())),
            total: Some(Metric::from_samples("mib_s", &totals)),
            channel: Some(Metric::from_samples("mib_s", &all)),
            channels: (0..threads).map(thread).collect(),
            channel_shares: self.engine.is_dma().then(|| parts.shares()),
            // A share of what the engine copied; null when it copied nothing.
            high_share: (self.engine == Engine::DmaPriority).then(|| parts.share(|one| one.high)),
        }
    }
}

/// The channel, if the same one made all the copies.
fn only_channel(copies: &[Copy]) -> Option<u32> {
    let first = copies.first()?.channel()?;
    let all = copies.iter().all(|copy| copy.channel() == Some(first));
    all.then_some(first)
}

fn engine_share<'a>(parts: impl Iterator<Item = &'a Part>) -> f64 {
    let mut all = Moved::default();
    for part in parts {
        all.bytes += part.moved.bytes;
        all.by_engine += part.moved.by_engine;
    }
    all.engine_share()
}

/// State that the threads of one run share.
struct Shared {
    left: AtomicUsize,
    failed: AtomicBool,
}

impl Shared {
    fn work(
        &self,
        work: Work,
        cpu: usize,
        session: &mut dyn Session,
        gate: &Gate,
        interrupt: &Interrupt,
    ) -> Result<Part, Error> {
        let mut copies = work
            .operation
            .copies(work.engine, work.size, work.operations);
        let pinned = affinity::pin(cpu);
        // Reached after an error, too: the other threads wait at this gate.
        gate.wait()?;
        let copied = pinned
            .map_err(Error::from)
            .and_then(|()| copy(session, &mut copies, interrupt));
        if copied.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        self.left.fetch_sub(1, Ordering::Relaxed);
        copied?;
        let mut fillers = work.operation.copies(work.engine, work.size, FILLERS);
        while self.left.load(Ordering::Relaxed) > 0 && !self.failed.load(Ordering::Relaxed) {
            copy(session, &mut fillers, interrupt)?;
        }
        Ok(work.part(cpu, &copies))
    }
}

/// MB (2^20 bytes) a second; NaN if the clock did not advance.
pub(super) fn mib_s(bytes: u64, operations: u64, elapsed_ns: u64) -> f64 {
    if elapsed_ns == 0 {
        return f64::NAN;
    }
    bytes as f64 * operations as f64 / (elapsed_ns as f64 / 1e9) / f64::from(1 << 20)
}

/// The sum of the threads' rates; valid because all were active during each thread's time.
fn total(parts: &[Part]) -> f64 {
    parts.iter().map(|part| part.mib_s).sum()
}

/// Raw samples of one run.
fn samples(case: &str, repeat: u32, parts: &[Part], base_ns: u64) -> Vec<Sample> {
    let mut samples = Vec::new();
    for part in parts {
        let cpu = u32::try_from(part.cpu).unwrap_or(u32::MAX);
        let mut add = |metric: &str, unit: &str, value: Option<f64>| {
            samples.push(
                Sample::new(case, repeat, "channel", metric, unit, value)
                    .on_cpu(cpu)
                    .at_ns(part.begin_ns.saturating_sub(base_ns)),
            );
        };
        add("elapsed_ns", "ns", Some(part.elapsed_ns as f64));
        add("channel", "number", part.channel.map(f64::from));
        add(
            "mib_s",
            "MiB/s",
            Some(part.mib_s).filter(|rate| rate.is_finite()),
        );
    }
    let total = Some(total(parts)).filter(|rate| rate.is_finite());
    samples.push(Sample::new(
        case,
        repeat,
        ROLE_OF_TOTAL,
        "mib_s",
        "MiB/s",
        total,
    ));
    samples
}

/// Adds the notes that a reader needs.
fn remarks(config: &Config, threads: usize, summary: &mut Summary) {
    let engines = summary
        .cases
        .iter()
        .filter(|case| case.engine != Engine::Cpu.to_string());
    let note = note_cpu_parts(engines.map(|case| (case.title(), case.engine_share)));
    note.into_iter().for_each(|note| summary.note(note));
    let plural = if threads == 1 { "" } else { "s" };
    summary.note(format!(
        "{threads} thread{plural}, one on each CPU, started together with {} copies each and kept copying until the \
         last had finished its own: all were active during each thread's time. The total is the sum of their rates; MB \
         are 2^20 bytes.",
        config.operations
    ));
    summary.note(
        "The shares of a channel and of the high channels are of the bytes that all channels report. A thread has a \
         channel if that channel made all its copies.",
    );
    if config.operation.contains(&Operation::Both) {
        summary.note(
            "from+to alternates between copies out of user memory and into it, half of the operations each.",
        );
    }
}

#[cfg(test)]
mod tests {
    use memwarden_run::Recorded;

    use super::*;
    use crate::settings;
    use std::path::Path;

    #[test]
    fn every_thread_is_in_the_folder_and_the_total_is_their_sum() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        let config = Config {
            device: cftu::NULL.into(),
            sizes: vec![65_536],
            operations: 20,
            repeat: 2,
            ..Config::default()
        };
        run(
            &config,
            RunRequest::to(&out, &Interrupt::default(), &mut ()),
        )
        .unwrap();
        let run = Recorded::read(&out).unwrap();
        let summary: Summary = run.summary.typed().unwrap();
        let cpus = affinity::get().unwrap().len();
        // 3 operations, 4 engines; each repeat 3 figures a thread and the total.
        assert_eq!(run.summary.cases.len(), 12);
        assert_eq!(run.samples.len(), 12 * 2 * (3 * cpus + 1));
        for case in &summary.cases {
            let rates = run.values(&case.name, "channel", "mib_s");
            let totals = run.values(&case.name, ROLE_OF_TOTAL, "mib_s");
            assert!((rates.iter().sum::<f64>() - totals.iter().sum::<f64>()).abs() < 1e-3);
            assert_eq!(case.channels.len(), cpus);
        }
        let last = &summary.cases[11];
        assert_eq!(last.name, "from+to, dma-priority, 65536 bytes");
        assert!(
            last.high_share
                .flatten()
                .is_some_and(|share| share > 0.0 && share <= 1.0)
        );
        assert_eq!(summary.cases[0].high_share, None);
    }

    #[test]
    fn the_rate_is_bytes_times_operations_over_the_time() {
        // The figures of the classic layout's example.
        assert!((mib_s(1024, 300, 108_743) - 2_694.138_933).abs() < 1e-3);
        assert!(mib_s(1024, 300, 0).is_nan());
    }

    #[test]
    fn one_thread_s_failure_ends_all() {
        let bench = Bench::open(Path::new("null"), &Policies::default()).unwrap();
        let mut sessions: Vec<_> = (0..2).map(|_| bench.session(64, true).unwrap()).collect();
        let work = Work {
            engine: Engine::Cpu,
            operation: Operation::From,
            size: 64,
            operations: 10,
        };
        let cpu = affinity::get().unwrap().iter().next().unwrap();
        let message = work
            .at_once(&[cpu, 8191], &mut sessions, &Interrupt::default())
            .unwrap_err()
            .to_string();
        assert!(message.contains("8191"), "{message}");
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(with(|c| c.sizes.clear()).contains("--sizes 64"));
        assert!(with(|c| c.operations = 0).contains("--operations 0"));
        assert!(with(|c| c.repeat = 0).contains("--repeat 0"));
        assert!(with(|c| c.operation.clear()).contains("--operation from"));
        assert!(with(|c| c.operation.push(Operation::ToUncached)).contains("--operation to_nc"));
        let config = Config {
            engine: vec![Engine::DmaPriority],
            ..Config::for_lab()
        };
        let back = settings::tests::read(&config.to_toml().unwrap(), &Config::default()).unwrap();
        assert_eq!(back, config);
    }
}
