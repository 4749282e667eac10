// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between user and kernel memory, by the CPU and by a DMA engine: the time of one copy, the bandwidth of all
//! channels, the slowdown of an application on another CPU, and a trace of every copy on the machine.

pub mod bandwidth;
pub mod breakeven;
mod copier;
pub mod dat;
pub mod latency;
mod load;
pub mod pollution;
pub mod trace;
mod victim;

use std::cell::Cell;
use std::path::{Path, PathBuf};

use memwarden_copies::cftu::{
    self, Channel, Copier, Copy, Direction, Info, Policy, PolicyKind, Session,
};
use memwarden_copies::{Providers, provide_copies};
use memwarden_platform::free_memory::{self, FreeMemory};
use memwarden_platform::names::unknown;
use memwarden_platform::units::{Time, size_text};
use memwarden_platform::{Root, cpus};
use memwarden_run::studies::{Device, is_the_engines};
use memwarden_run::{Summary, Whole};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantArray};

use crate::{Error, Interrupt};

pub use load::{HEAVY_LOAD, Load};
pub use memwarden_copies::cftu::NULL;

/// Upper limit of the bytes in one request: it finishes within about a second on any machine, so Ctrl-C takes effect.
const REQUEST_BYTES: u64 = 256 << 20;

/// What copies: the CPU, or DMA under a policy for its channels.
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
pub enum Engine {
    /// The CPU.
    Cpu,
    /// DMA, a channel for each CPU.
    DmaExclusive,
    /// DMA, any channel for any CPU.
    DmaShared,
    /// DMA, a channel for each CPU; for part of the time only the high-priority channels run.
    DmaPriority,
}

impl Engine {
    /// A DMA engine.
    #[must_use]
    pub fn is_dma(self) -> bool {
        self != Self::Cpu
    }

    fn policy(self) -> PolicyKind {
        match self {
            Self::Cpu => PolicyKind::Off,
            Self::DmaExclusive => PolicyKind::Exclusive,
            Self::DmaShared => PolicyKind::Shared,
            Self::DmaPriority => PolicyKind::Priority,
        }
    }

    /// The engine as the device's request encodes it.
    fn of_request(self) -> cftu::Engine {
        if self.is_dma() {
            cftu::Engine::Dma
        } else {
            cftu::Engine::Cpu
        }
    }
}

/// Direction of a copy, and whether the caches are flushed first.
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
pub enum Operation {
    /// Out of user memory.
    From,
    /// Into user memory.
    To,
    /// Out of user memory; the cache lines of source and destination are dropped first.
    #[serde(rename = "from_nc")]
    #[strum(serialize = "from_nc")]
    FromUncached,
    /// Into user memory; the cache lines of source and destination are dropped first.
    #[serde(rename = "to_nc")]
    #[strum(serialize = "to_nc")]
    ToUncached,
    /// Alternately out of user memory and into it.
    #[serde(rename = "from+to")]
    #[strum(serialize = "from+to")]
    Both,
}

impl Operation {
    /// `count` copies of `bytes` bytes each.
    fn copies(self, engine: Engine, bytes: u64, count: usize) -> Vec<Copy> {
        let one = |number: usize| {
            let direction = match self {
                Self::From | Self::FromUncached => Direction::From,
                Self::To | Self::ToUncached => Direction::To,
                Self::Both if number % 2 == 0 => Direction::From,
                Self::Both => Direction::To,
            };
            let uncached = matches!(self, Self::FromUncached | Self::ToUncached);
            Copy::new(direction, engine.of_request(), bytes).uncached(uncached)
        };
        (0..count).map(one).collect()
    }
}

/// Settings of the policies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Policies {
    /// CPUs share channels if there are more CPUs than channels.
    pub fold: bool,
    /// Time of each priority window in which only the high channels run; 0 keeps the module's value.
    pub quantum_high_ns: u64,
    /// The rest of the window; 0 keeps the module's value.
    pub quantum_low_ns: u64,
    /// The high channels; empty means the first.
    pub high: Vec<u32>,
    /// Trusts the driver that its engine copied correctly; otherwise the CPU compares the data if the driver may hide
    /// errors.
    pub no_compare: bool,
}

impl Policies {
    fn of(&self, engine: Engine) -> Policy {
        let policy = Policy {
            fold: self.fold,
            ..Policy::new(engine.policy())
        };
        // The module accepts window settings only with the priority policy.
        if engine != Engine::DmaPriority {
            return policy;
        }
        Policy {
            quantum_high_ns: self.quantum_high_ns,
            quantum_low_ns: self.quantum_low_ns,
            high: self.high.iter().fold(0, |bits, number| bits | 1 << number),
            ..policy
        }
    }

    fn check(&self) -> Result<(), Error> {
        for (option, quantum) in [
            ("--quantum-high", self.quantum_high_ns),
            ("--quantum-low", self.quantum_low_ns),
        ] {
            if quantum != 0 && !cftu::QUANTUM_NS.contains(&quantum) {
                let text = |ns| Time::ns(ns).text();
                return Err(Error::BadInput(format!(
                    "{option} {}: give {} to {}",
                    text(quantum),
                    text(*cftu::QUANTUM_NS.start()),
                    text(*cftu::QUANTUM_NS.end())
                )));
            }
        }
        if let Some(number) = self.high.iter().find(|number| **number >= 64) {
            return Err(Error::BadInput(format!(
                "--high {number}: channels are 0 to 63"
            )));
        }
        Ok(())
    }
}

/// The open device with all that was changed for the measurement; when dropped, the previous policy is restored and the
/// modules that were loaded for it are unloaded.
///
/// The module has one policy for all its users, so it is reserved: a second measurement is refused. A program that sets
/// a policy without reserving it is noticed by the module's count.
struct Bench {
    copier: Box<dyn Copier>,
    info: Info,
    path: PathBuf,
    policies: Policies,
    /// How often the policy had been set, by any program, after the last time here.
    times_set: Cell<u64>,
    // Dropped last: an open device holds a reference to its module.
    providers: Providers,
}

impl Bench {
    fn open(path: &Path, policies: &Policies) -> Result<Self, Error> {
        // A policy needs a channel for each CPU of the machine, not only for those that we may run on.
        let parameters: &[&str] = if policies.no_compare {
            &["compare=0"]
        } else {
            &[]
        };
        let providers = provide_copies(path, cpus::online()?.len(), parameters)?;
        let copier = cftu::open(path)?;
        Self::of(copier, path, policies, providers)
    }

    fn of(
        copier: Box<dyn Copier>,
        path: &Path,
        policies: &Policies,
        providers: Providers,
    ) -> Result<Self, Error> {
        // Before the policy is read: the one of another measurement is not the one to restore.
        copier.reserve_policy()?;
        let times_set = Cell::new(copier.statistics()?.policies);
        let info = copier.info()?;
        if policies.no_compare && info.compares {
            return Err(Error::BadInput(
                "--no-compare: cftu is already loaded and compares what its engine copies: unload it first (modprobe \
                 -r cftu)"
                    .into(),
            ));
        }
        Ok(Self {
            info,
            copier,
            path: path.into(),
            policies: policies.clone(),
            times_set,
            providers,
        })
    }

    /// Selects the engine and policy for the copies that follow.
    fn choose(&self, engine: Engine) -> Result<(), Error> {
        self.undisturbed()?;
        let set = self.copier.set_policy(&self.policies.of(engine));
        match set {
            Ok(()) => self.times_set.set(self.times_set.get() + 1),
            // One that the module begins to set and then cannot counts, too.
            Err(_) => self.times_set.set(self.copier.statistics()?.policies),
        }
        Ok(set?)
    }

    /// Fails if another program has set the policy: copies since then may have been made by another engine than the one
    /// chosen here.
    fn undisturbed(&self) -> Result<(), Error> {
        let others = self.set_by_others()?;
        if others == 0 {
            return Ok(());
        }
        let plural = if others == 1 { "" } else { "s" };
        Err(Error::workload(
            format!("copies with {}", self.path.display()),
            format!(
                "another program set the policy {others} time{plural} meanwhile, so the engine of the last copies is \
                 unknown; end that program, and measure again"
            ),
        ))
    }

    /// How often other programs have set the policy since it was set here.
    fn set_by_others(&self) -> Result<u64, Error> {
        let times = self.copier.statistics()?.policies;
        Ok(times.saturating_sub(self.times_set.get()))
    }

    /// The engines to measure: `wanted`, or all if it is empty; unavailable ones are then left out with a note.
    fn engines<W: Whole>(
        &self,
        wanted: &[Engine],
        summary: &mut Summary<W>,
    ) -> Result<Vec<Engine>, Error> {
        if !wanted.is_empty() {
            for engine in wanted {
                self.choose(*engine)?;
            }
            return Ok(wanted.into());
        }
        let mut engines = Vec::new();
        for &engine in Engine::VARIANTS {
            match self.choose(engine) {
                Ok(()) => engines.push(engine),
                Err(error) => summary.note(format!("Left out: {engine}. {error}.")),
            }
        }
        Ok(engines)
    }

    /// The channels' counters so far.
    fn channels(&self) -> Result<Vec<Channel>, Error> {
        let all = (0..self.info.channels).map(|number| Ok(self.copier.channel(number)?));
        all.collect()
    }

    /// A session for one thread, with memory for copies of up to `bytes` bytes.
    fn session(&self, bytes: u64, pinned: bool) -> Result<Box<dyn Session>, Error> {
        fits(1, bytes, free_memory::free(&Root::system()))?;
        Ok(self.copier.open(bytes, pinned)?)
    }

    /// A session for each of `count` threads.
    fn sessions(&self, count: usize, bytes: u64) -> Result<Vec<Box<dyn Session>>, Error> {
        fits(count as u64, bytes, free_memory::free(&Root::system()))?;
        let open = |_| Ok(self.copier.open(bytes, true)?);
        (0..count).map(open).collect()
    }

    /// Checks that data copied out and back is unchanged.
    fn check(&self, session: &mut dyn Session, engine: Engine, bytes: u64) -> Result<(), Error> {
        self.undisturbed()?;
        Ok(cftu::check(
            session,
            engine.of_request(),
            bytes,
            &self.path,
        )?)
    }

    /// The device as the run folder records it.
    fn device(&self) -> Device {
        Device {
            channels: self.info.channels,
            provider: self.info.provider.clone(),
            poll_bytes: self.info.poll_bytes,
            align_bytes: self.info.align_bytes.into(),
            can_pause: self.info.can_pause,
            compares: self.info.compares,
        }
    }

    /// Adds the notes on the machine's engine that a reader needs; fails if the copies may be of another engine.
    fn tell<W: Whole>(&self, summary: &mut Summary<W>) -> Result<(), Error> {
        self.undisturbed()?;
        if self.path == Path::new(cftu::NULL) {
            summary.note(
                "No kernel was involved (--device null): the process made all copies itself, whatever engine is named. \
                 The figures only exercise the commands.",
            );
        } else if self.providers.are_software() || self.info.provider.contains("swdma") {
            summary.note(
                "The channels are swdma's, which are kernel threads: a CPU does the work of an engine. The figures \
                 exercise the copy path and the policies; they don't show what an engine saves.",
            );
        }
        if self.info.compares {
            summary.note(format!(
                "{} is not known to report errors: the CPU compares what the engine copied, within the times and through \
                 its caches.",
                self.info.provider
            ));
        } else if self.policies.no_compare && self.path != Path::new(cftu::NULL) {
            summary.note(format!(
                "{} was trusted to copy correctly: the CPU compared nothing (--no-compare).",
                self.info.provider
            ));
        }
        Ok(())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // The policy of another program that set it later is left in place.
        if self.set_by_others().is_ok_and(|times| times == 0) {
            let _ = self.copier.set_policy(&self.info.policy);
        }
    }
}

/// Refuses copies that would start the OOM killer: each thread has user memory and a region of its own, and the check of
/// the data has a copy of it.
fn fits(threads: u64, bytes: u64, free: Option<FreeMemory>) -> Result<(), Error> {
    let needed = bytes.saturating_mul(2 * threads + 1);
    match free {
        Some(free) if needed > free.bytes => Err(Error::BadInput(format!(
            "copies of {} on {threads} CPU{} need {} of memory, more than the {free}: choose smaller sizes",
            size_text(bytes),
            if threads == 1 { "" } else { "s" },
            size_text(needed),
        ))),
        _ => Ok(()),
    }
}

/// Makes the copies, in requests that are short enough to interrupt.
fn copy(
    session: &mut dyn Session,
    copies: &mut [Copy],
    interrupt: &Interrupt,
) -> Result<(), Error> {
    let longest = copies.iter().map(Copy::bytes).max().unwrap_or(1).max(1);
    let most = usize::try_from(REQUEST_BYTES / longest).unwrap_or(usize::MAX);
    let most = most.clamp(1, cftu::MAX_BATCH);
    let mut left = copies;
    while !left.is_empty() {
        interrupt.check()?;
        let part = most.min(left.len());
        // A signal ends a request early. Unless the signal was for us, request the remaining copies again.
        let made = session.copy(&mut left[..part])?;
        left = &mut left[made..];
    }
    interrupt.check()
}

/// The engine's share of the bytes that it was asked to copy.
fn engine_share(copies: &[Copy]) -> f64 {
    let mut moved = Moved::default();
    moved.add(copies);
    moved.engine_share()
}

/// Bytes copied, and the bytes of them that the engine copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Moved {
    bytes: u64,
    by_engine: u64,
}

impl Moved {
    fn add(&mut self, copies: &[Copy]) {
        self.bytes += copies.iter().map(Copy::bytes).sum::<u64>();
        self.by_engine += copies.iter().map(Copy::engine_bytes).sum::<u64>();
    }

    fn engine_share(self) -> f64 {
        self.by_engine as f64 / self.bytes.max(1) as f64
    }
}

/// Lists the cases of an engine in which the CPU copied a part, with their shares.
fn note_cpu_parts(cases: impl Iterator<Item = (String, Option<f64>)>) -> Option<String> {
    let by_cpu: Vec<String> = cases
        .filter(|(_, share)| !is_the_engines(*share))
        .map(|(title, _)| title)
        .collect();
    (!by_cpu.is_empty()).then(|| {
        format!(
            "The CPU copied a part of what the engine was asked for (an end that the engine can't copy, or a transfer \
             that failed; engine_share has the engine's share of each case): {}.",
            by_cpu.join("; ")
        )
    })
}

/// A size as it appears in a case's name.
fn bytes_text(bytes: u64) -> String {
    let plural = if bytes == 1 { "" } else { "s" };
    format!("{bytes} byte{plural}")
}

/// The powers of two from `first` to `last` bytes.
#[must_use]
pub fn powers(first: u64, last: u64) -> Vec<u64> {
    (0..=30)
        .map(|power| 1 << power)
        .filter(|size| (first..=last).contains(size))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_options() {
        for &engine in Engine::VARIANTS {
            assert_eq!(engine.to_string().parse::<Engine>().unwrap(), engine);
        }
        for &operation in Operation::VARIANTS {
            assert_eq!(
                operation.to_string().parse::<Operation>().unwrap(),
                operation
            );
        }
        assert_eq!(
            "gpu".parse::<Engine>().unwrap_err().to_string(),
            "give one of cpu, dma-exclusive, dma-shared, dma-priority"
        );
    }

    #[test]
    fn both_is_by_turns() {
        let copies = Operation::Both.copies(Engine::DmaShared, 16, 3);
        let turn = |direction| Copy::new(direction, cftu::Engine::Dma, 16);
        assert_eq!(
            copies,
            [Direction::From, Direction::To, Direction::From].map(turn)
        );
    }

    /// A measurement, and another client of the same device.
    fn with_another() -> (Bench, cftu::Null) {
        let null = cftu::Null::default();
        let copier = Box::new(null.clone());
        let path = Path::new("/dev/cftu");
        let bench = Bench::of(copier, path, &Policies::default(), Providers::default()).unwrap();
        (bench, null)
    }

    #[test]
    fn the_policy_is_put_back() {
        let (bench, other) = with_another();
        let before = other.info().unwrap().policy;
        bench.choose(Engine::DmaExclusive).unwrap();
        bench.choose(Engine::Cpu).unwrap();
        assert_ne!(other.info().unwrap().policy, before);
        let mut summary: Summary = Summary::new("copy-latency", "native");
        bench.tell(&mut summary).unwrap();
        drop(bench);
        assert_eq!(other.info().unwrap().policy, before);
    }

    #[test]
    fn another_program_s_policy_is_an_error_and_stays() {
        let (bench, other) = with_another();
        bench.choose(Engine::Cpu).unwrap();
        let theirs = Policy::new(PolicyKind::Exclusive);
        other.set_policy(&theirs).unwrap();
        let mut session = bench.session(64, true).unwrap();
        let mut summary: Summary = Summary::new("copy-latency", "native");
        for error in [
            bench.choose(Engine::DmaShared).unwrap_err(),
            bench.check(session.as_mut(), Engine::Cpu, 64).unwrap_err(),
            bench.tell(&mut summary).unwrap_err(),
        ] {
            let message = error.to_string();
            assert!(
                message.starts_with(
                    "copies with /dev/cftu: another program set the policy 1 time meanwhile"
                ),
                "{message}"
            );
        }
        drop(bench);
        assert_eq!(other.info().unwrap().policy, theirs);
    }

    #[test]
    fn the_settings_of_a_policy_are_given() {
        let policies = Policies {
            high: vec![0, 2],
            quantum_high_ns: 50_000,
            ..Policies::default()
        };
        let bench = Bench::open(Path::new("null"), &policies).unwrap();
        bench.choose(Engine::DmaPriority).unwrap();
        let chosen = bench.copier.info().unwrap().policy;
        assert_eq!((chosen.high, chosen.quantum_high_ns), (0b101, 50_000));
    }

    #[test]
    fn a_summary_says_what_the_engine_is() {
        let told = |path: &str, provider: &str, compares| {
            let mut bench = Bench::open(Path::new("null"), &Policies::default()).unwrap();
            bench.path = path.into();
            bench.info.provider = provider.into();
            bench.info.compares = compares;
            let mut summary: Summary = Summary::new("copy-latency", "native");
            bench.tell(&mut summary).unwrap();
            assert_eq!(bench.device().compares, compares);
            summary.notes
        };
        let compared = "zynqmp_dma is not known to report errors: the CPU compares what the engine copied, within the \
                        times and through its caches.";
        assert_eq!(told(cftu::DEVICE, "zynqmp_dma", true), [compared]);
        assert!(told(cftu::DEVICE, "idxd", false).is_empty());
        let policies = Policies {
            no_compare: true,
            ..Policies::default()
        };
        let mut bench = Bench::open(Path::new("null"), &policies).unwrap();
        bench.path = cftu::DEVICE.into();
        bench.info.provider = "bcm2835-dma".into();
        bench.info.compares = false;
        let mut trusted: Summary = Summary::new("copy-latency", "native");
        bench.tell(&mut trusted).unwrap();
        assert!(trusted.notes[0].starts_with("bcm2835-dma was trusted"));
        let software = told(cftu::DEVICE, "swdma", false);
        assert!(software.len() == 1 && software[0].starts_with("The channels are swdma's"));
        let null = told(cftu::NULL, cftu::NULL, false);
        assert!(null.len() == 1 && null[0].starts_with("No kernel was involved"));
    }

    #[test]
    fn settings_of_the_windows_leave_no_engine_out() {
        let policies = Policies {
            high: vec![1],
            quantum_high_ns: 50_000,
            quantum_low_ns: 50_000,
            fold: true,
            no_compare: false,
        };
        for &engine in Engine::VARIANTS {
            let policy = policies.of(engine);
            let windows = (policy.quantum_high_ns, policy.quantum_low_ns, policy.high);
            let given = engine == Engine::DmaPriority;
            assert_eq!(
                windows,
                if given {
                    (50_000, 50_000, 2)
                } else {
                    (0, 0, 0)
                }
            );
            assert!(policy.fold, "{engine}");
        }
        let bench = Bench::open(Path::new("null"), &policies).unwrap();
        let mut summary: Summary = Summary::new("copy-latency", "native");
        assert_eq!(bench.engines(&[], &mut summary).unwrap(), Engine::VARIANTS);
        assert!(summary.notes.is_empty());
    }

    #[test]
    fn copies_that_do_not_fit_into_the_memory_are_refused() {
        let free = |mib: u64| {
            Some(FreeMemory {
                bytes: mib << 20,
                group: None,
            })
        };
        fits(1, 240 << 20, free(720)).unwrap();
        fits(4, 80 << 20, free(720)).unwrap();
        fits(1, 1 << 30, None).unwrap();
        for (threads, mib, text) in [
            (1, 240, "copies of 240 MiB on 1 CPU need 720 MiB of memory"),
            (4, 100, "copies of 100 MiB on 4 CPUs need 900 MiB of memory"),
        ] {
            let message = fits(threads, mib << 20, free(398)).unwrap_err().to_string();
            let expected = format!(
                "{text}, more than the 398 MiB of memory that is free: choose smaller sizes"
            );
            assert_eq!(message, expected);
        }
        let bench = Bench::open(Path::new("null"), &Policies::default()).unwrap();
        for refused in [
            bench.session(1 << 50, true).err(),
            bench.sessions(2, 1 << 50).err(),
        ] {
            let message = refused.unwrap().to_string();
            assert!(
                message.starts_with("copies of ") && message.ends_with(": choose smaller sizes"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_long_request_is_cut_and_an_interrupt_ends_it() {
        let bench = Bench::open(Path::new("null"), &Policies::default()).unwrap();
        let mut session = bench.session(4096, true).unwrap();
        let mut copies = Operation::To.copies(Engine::Cpu, 4096, 70_000);
        copy(session.as_mut(), &mut copies, &Interrupt::default()).unwrap();
        assert!(copies.iter().all(|copy| copy.end_ns() > 0));
        assert_eq!(bench.copier.statistics().unwrap().copies, 70_000);
    }

    #[test]
    fn powers_are_within_both_ends() {
        assert_eq!(powers(1, 8), [1, 2, 4, 8]);
        assert_eq!(powers(1024, 1 << 25).len(), 16);
    }
}
