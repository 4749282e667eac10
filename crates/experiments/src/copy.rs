// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between user and kernel memory, by the CPU and by a DMA engine: what one takes, how much all channels move, what
//! the copies of one CPU do to another's application, and who copies how much on the whole machine.

pub mod bandwidth;
pub mod breakeven;
mod copier;
pub mod dat;
pub mod latency;
mod load;
pub mod pollution;
pub mod trace;
mod victim;

use std::path::{Path, PathBuf};

use memwarden_copies::cftu::{
    self, Channel, Copier, Copy, Direction, Info, Policy, PolicyKind, Session,
};
use memwarden_copies::{Providers, provide_copies};
use memwarden_platform::cpus;
use memwarden_platform::names::unknown;
use memwarden_run::studies::Device;
use memwarden_run::{Summary, Whole};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantArray};

use crate::{Error, Interrupt};

pub use load::{HEAVY_LOAD, Load};
pub use memwarden_copies::cftu::NULL;

/// Bytes that one request copies at most: on any machine it has an end within a second or so, and Ctrl-C its effect.
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
    /// DMA, a channel for each CPU, and part of the time the high ones' alone.
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

    /// As a request has it.
    fn of_request(self) -> cftu::Engine {
        if self.is_dma() {
            cftu::Engine::Dma
        } else {
            cftu::Engine::Cpu
        }
    }
}

/// From where to where, and through which caches.
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
    /// Out of user memory, both sides' cache lines dropped before.
    #[serde(rename = "from_nc")]
    #[strum(serialize = "from_nc")]
    FromUncached,
    /// Into user memory, both sides' cache lines dropped before.
    #[serde(rename = "to_nc")]
    #[strum(serialize = "to_nc")]
    ToUncached,
    /// By turns out of it and into it.
    #[serde(rename = "from+to")]
    #[strum(serialize = "from+to")]
    Both,
}

impl Operation {
    /// So many copies of so many bytes.
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
    /// With more CPUs than channels, CPUs share them.
    pub fold: bool,
    /// Of each of the priority policy's windows, the high channels' part; 0 is the module's.
    pub quantum_high_ns: u64,
    /// The rest of the window; 0 is the module's.
    pub quantum_low_ns: u64,
    /// The high channels; empty is the first.
    pub high: Vec<u32>,
    /// The driver's word is taken for what its engine copied; otherwise the CPU compares it where the driver may hide
    /// errors.
    pub no_compare: bool,
}

impl Policies {
    fn of(&self, engine: Engine) -> Policy {
        let policy = Policy {
            fold: self.fold,
            ..Policy::new(engine.policy())
        };
        // The module takes the windows' settings with no other policy.
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
                return Err(Error::BadInput(format!(
                    "{option} {quantum}: give {} to {} ns",
                    cftu::QUANTUM_NS.start(),
                    cftu::QUANTUM_NS.end()
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

/// The copier with all that was changed for measuring; dropped, its policy is as before, and modules that were loaded for
/// it are gone.
struct Bench {
    copier: Box<dyn Copier>,
    info: Info,
    path: PathBuf,
    policies: Policies,
    // Last: an open device keeps its module.
    providers: Providers,
}

impl Bench {
    fn open(path: &Path, policies: &Policies) -> Result<Self, Error> {
        // Policies want a channel for each CPU there is, whichever of them are ours.
        let parameters: &[&str] = if policies.no_compare {
            &["compare=0"]
        } else {
            &[]
        };
        let providers = provide_copies(path, cpus::online()?.len(), parameters)?;
        let copier = cftu::open(path)?;
        let info = copier.info()?;
        if policies.no_compare && info.compares {
            return Err(Error::BadInput(
                "--no-compare: cftu is loaded already, and compares what its engine copies: unload it first (modprobe -r cftu)"
                    .into(),
            ));
        }
        Ok(Self {
            info,
            copier,
            path: path.into(),
            policies: policies.clone(),
            providers,
        })
    }

    /// From now on copies go that way.
    fn choose(&self, engine: Engine) -> Result<(), Error> {
        Ok(self.copier.set_policy(&self.policies.of(engine))?)
    }

    /// The engines that are wanted; of all, when none is named, those that are not to be had are left out with a note.
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

    /// What each channel did until now.
    fn channels(&self) -> Result<Vec<Channel>, Error> {
        let all = (0..self.info.channels).map(|number| Ok(self.copier.channel(number)?));
        all.collect()
    }

    /// One thread's memory, for copies of at most so many bytes.
    fn session(&self, bytes: u64, pinned: bool) -> Result<Box<dyn Session>, Error> {
        Ok(self.copier.open(bytes, pinned)?)
    }

    /// A copy there and back is as it was.
    fn check(&self, session: &mut dyn Session, engine: Engine, bytes: u64) -> Result<(), Error> {
        Ok(cftu::check(
            session,
            engine.of_request(),
            bytes,
            &self.path,
        )?)
    }

    /// What a run says of the device.
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

    /// What a reader must know of the machine's engine.
    fn tell<W: Whole>(&self, summary: &mut Summary<W>) {
        if self.path == Path::new(cftu::NULL) {
            summary.note(
                "No kernel had a part in this (--device null): all copies were made within the process, whatever engine \
                 they are said to be by. The figures try the commands and tell nothing else.",
            );
        } else if self.providers.are_software() || self.info.provider.contains("swdma") {
            summary.note(
                "The channels are swdma's, threads of the kernel that copy: a CPU does what an engine would do beside the \
                 CPUs. Such figures show the way of a copy and the policies, not what an engine saves.",
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
                "The word of {} was taken for what the engine copied (--no-compare).",
                self.info.provider
            ));
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.copier.set_policy(&self.info.policy);
    }
}

/// Makes the copies, in requests of a bearable length.
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
        // A signal ends a request, and the rest is asked for anew, unless it was for us.
        let made = session.copy(&mut left[..part])?;
        left = &mut left[made..];
    }
    interrupt.check()
}

/// The share that the engine copied of what it was asked to.
fn engine_share(copies: &[Copy]) -> f64 {
    let mut moved = Moved::default();
    moved.add(copies);
    moved.engine_share()
}

/// What was copied, and how much of it the engine did.
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

    #[allow(clippy::cast_precision_loss)]
    fn engine_share(self) -> f64 {
        self.by_engine as f64 / self.bytes.max(1) as f64
    }
}

/// From here on a copy is said to be the engine's: what is less, the CPU had a part in.
const ENGINES: f64 = 0.995;

/// Whether the engine did what a case says is its work, by its share of the bytes.
fn is_the_engines(share: Option<f64>) -> bool {
    share.is_none_or(|share| share >= ENGINES)
}

/// Names the cases of an engine in which the CPU made a part of the copies, by their shares.
fn note_cpu_parts<'a>(cases: impl Iterator<Item = (&'a str, Option<f64>)>) -> Option<String> {
    let by_cpu: Vec<&str> = cases
        .filter(|(_, share)| !is_the_engines(*share))
        .map(|(name, _)| name)
        .collect();
    (!by_cpu.is_empty()).then(|| {
        format!(
            "The CPU made a part of what the engine was asked for (an end that it can't do, or a transfer that failed; the \
             case's engine_share says how much was the engine's): {}.",
            by_cpu.join("; ")
        )
    })
}

/// A size as a case has it.
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

    #[test]
    fn the_policy_is_put_back_and_its_settings_are_given() {
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
            bench.tell(&mut summary);
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
        bench.tell(&mut trusted);
        assert!(trusted.notes[0].starts_with("The word of bcm2835-dma was taken"));
        let software = told(cftu::DEVICE, "swdma", false);
        assert!(software.len() == 1 && software[0].starts_with("The channels are swdma's"));
        let null = told(cftu::NULL, cftu::NULL, false);
        assert!(null.len() == 1 && null[0].starts_with("No kernel had a part in this"));
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
