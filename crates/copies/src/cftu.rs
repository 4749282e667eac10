// SPDX-License-Identifier: MIT OR Apache-2.0
//! `/dev/cftu`: copies between user memory and a region of kernel memory, by the CPU or by a DMA engine.
//!
//! A measurement uses a [`Copier`] and the [`Session`]s that it opens: the [`Device`], or [`Null`], which copies within
//! this process, to test measurements without the module.

mod device;
mod null;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;

use memwarden_platform::cftu as raw;

use crate::Result;

pub use device::{Device, Pinned};
pub use memwarden_platform::cftu::{Memory, Statistics};
pub use null::Null;

/// The device's file.
pub const DEVICE: &str = "/dev/cftu";

/// The option's value for [`Null`], instead of a path.
pub const NULL: &str = "null";

/// The largest region, and the longest copy: `CFTU_REGION_MAX`, `CFTU_LENGTH_MAX`.
pub const MAX_BYTES: u64 = 1 << 30;

/// The most copies in one request: `CFTU_BATCH_MAX`.
pub const MAX_BATCH: usize = 65_536;

/// Either part of the priority policy's window: `CFTU_QUANTUM_MIN_NS` to `CFTU_QUANTUM_MAX_NS`.
pub const QUANTUM_NS: RangeInclusive<u64> = 1000..=1_000_000_000;

/// Which channel a copy takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyKind {
    /// No engine: the CPU copies.
    Off,
    /// The channel of its CPU.
    Exclusive,
    /// The least loaded channel.
    Shared,
    /// The channel of its CPU; only high channels copy for a part of the time.
    Priority,
}

impl PolicyKind {
    /// All policies, in the header's order.
    const ALL: [Self; 4] = [Self::Off, Self::Exclusive, Self::Shared, Self::Priority];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Priority => "priority",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A policy with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The policy.
    pub kind: PolicyKind,
    /// CPUs may share a channel if there are more CPUs than channels.
    pub fold: bool,
    /// Priority: the first part of each window, for the high channels only; 0 is the module's 30 us.
    pub quantum_high_ns: u64,
    /// Priority: the rest of the window; 0 is the module's 60 us.
    pub quantum_low_ns: u64,
    /// Priority: the high channels, a bit each; 0 is the first.
    pub high: u64,
}

impl Policy {
    /// The policy with the module's default settings.
    #[must_use]
    pub fn new(kind: PolicyKind) -> Self {
        Self {
            kind,
            fold: false,
            quantum_high_ns: 0,
            quantum_low_ns: 0,
            high: 0,
        }
    }

    fn record(&self) -> raw::Policy {
        raw::Policy {
            policy: PolicyKind::ALL
                .iter()
                .position(|kind| *kind == self.kind)
                .and_then(|index| u32::try_from(index).ok())
                .unwrap_or(0),
            flags: u32::from(self.fold),
            quantum_high_ns: self.quantum_high_ns,
            quantum_low_ns: self.quantum_low_ns,
            high: self.high,
        }
    }
}

/// Properties of the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// DMA channels that it holds.
    pub channels: u32,
    /// The policy in force.
    pub policy: Policy,
    /// The engine can pause a transfer; otherwise low copies wait for their part of the window.
    pub can_pause: bool,
    /// The engine snoops the CPUs' caches.
    pub coherent: bool,
    /// The CPU compares source and target, since the engine's driver is not known to report errors.
    pub compares: bool,
    /// Shorter copies of other modules go by CPU.
    pub min_bytes: u64,
    /// The largest copy whose end is polled for; longer ones wait for an interrupt.
    pub poll_bytes: u64,
    /// The engine's alignment of addresses and lengths, in bytes.
    pub align_bytes: u32,
    /// The channels' driver.
    pub provider: String,
}

impl Info {
    /// `None` if the module was built with another header.
    fn of(record: &raw::Info) -> Option<Self> {
        let kind = PolicyKind::ALL.get(record.policy as usize)?;
        (record.version == raw::VERSION).then(|| Self {
            channels: record.channels,
            policy: Policy {
                kind: *kind,
                fold: record.flags & 4 != 0,
                quantum_high_ns: record.quantum_high_ns,
                quantum_low_ns: record.quantum_low_ns,
                high: record.high,
            },
            can_pause: record.flags & 1 != 0,
            coherent: record.flags & 2 != 0,
            compares: record.flags & 0x10 != 0,
            min_bytes: record.min_bytes,
            poll_bytes: record.poll_bytes,
            align_bytes: record.align_bytes,
            provider: text(&record.provider),
        })
    }
}

/// A channel's counts since the module was loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Channel {
    /// Name in /sys/class/dma.
    pub name: String,
    /// It is high in the priority policy.
    pub high: bool,
    /// It was lost: no copy uses it.
    pub dead: bool,
    /// Transfers submitted.
    pub transfers: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Transfers that failed; the CPU copied them.
    pub errors: u64,
    /// Transfers that did not end in time; the CPU copied them.
    pub timeouts: u64,
    /// Time that the priority policy held it back.
    pub paused_ns: u64,
}

impl Channel {
    fn of(record: &raw::Channel) -> Self {
        Self {
            name: text(&record.name),
            high: record.flags & 1 != 0,
            dead: record.flags & 2 != 0,
            transfers: record.transfers,
            bytes: record.bytes,
            errors: record.errors,
            timeouts: record.timeouts,
            paused_ns: record.paused_ns,
        }
    }
}

/// A zero-terminated name in a fixed array.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

/// The direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Out of user memory, as copy_from_user().
    From,
    /// Into user memory, as copy_to_user().
    To,
}

/// The copying engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// The CPU.
    Cpu,
    /// The engine, by the policy in force.
    Dma,
}

/// One copy and its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy(raw::Copy);

impl Copy {
    /// A copy of `bytes` between the start of the user memory and the start of the region.
    #[must_use]
    pub fn new(direction: Direction, engine: Engine, bytes: u64) -> Self {
        Self(raw::Copy {
            bytes,
            direction: u32::from(direction == Direction::To),
            engine: u32::from(engine == Engine::Dma),
            ..raw::Copy::default()
        })
    }

    /// The same copy, with the cache lines of both sides flushed before the timing.
    #[must_use]
    pub fn uncached(mut self, uncached: bool) -> Self {
        self.0.flags = if uncached { raw::UNCACHED } else { 0 };
        self
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// CLOCK_MONOTONIC before the copy.
    #[must_use]
    pub fn begin_ns(&self) -> u64 {
        self.0.begin_ns
    }

    /// CLOCK_MONOTONIC after the copy.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.0.end_ns
    }

    /// True once it was made; a request that a signal or an error ends leaves the rest unmade.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.0.end_ns > 0
    }

    /// Its duration.
    #[must_use]
    pub fn elapsed_ns(&self) -> u64 {
        self.0.end_ns.saturating_sub(self.0.begin_ns)
    }

    /// Bytes that the engine copied; the CPU copied the rest.
    #[must_use]
    pub fn engine_bytes(&self) -> u64 {
        self.0.engine_bytes
    }

    /// The CPU that began it.
    #[must_use]
    pub fn cpu(&self) -> u32 {
        self.0.cpu
    }

    /// The channel of its last part.
    #[must_use]
    pub fn channel(&self) -> Option<u32> {
        (self.0.channel != raw::NO_CHANNEL).then_some(self.0.channel)
    }
}

/// A client that makes copies.
pub trait Copier: Sync {
    /// The available engine, channels and limits.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn info(&self) -> Result<Info>;

    /// Reserves the policy, of which the module has one for all its users, for this client: another client that reserves
    /// it is refused, until this one is dropped.
    ///
    /// # Errors
    /// When another client has reserved it.
    fn reserve_policy(&self) -> Result<()>;

    /// Sets the policy.
    ///
    /// # Errors
    /// When it doesn't fit the channels.
    fn set_policy(&self, policy: &Policy) -> Result<()>;

    /// The counts of one channel.
    ///
    /// # Errors
    /// When there is no such channel.
    fn channel(&self, number: u32) -> Result<Channel>;

    /// The counts of all copies.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn statistics(&self) -> Result<Statistics>;

    /// Allocates user memory and a region of `bytes` bytes each, for one thread's copies. With `pinned` the user memory
    /// is pinned now, otherwise by each copy.
    ///
    /// # Errors
    /// When the kernel has too little memory, or may not pin it.
    fn open(&self, bytes: u64, pinned: bool) -> Result<Box<dyn Session>>;
}

/// The user memory and the region of one thread.
pub trait Session: Send {
    /// The user memory.
    fn memory(&mut self) -> &mut Memory;

    /// Makes the copies in one request, in order, and returns how many it made: fewer than all after a signal, or if the
    /// process was stopped meanwhile.
    ///
    /// # Errors
    /// When the kernel refuses one, or does not copy all bytes.
    fn copy(&mut self, copies: &mut [Copy]) -> Result<usize>;
}

/// The device at `path`, or [`Null`] for `null`.
///
/// # Errors
/// When the device is missing, refuses, or belongs to another module.
pub fn open(path: &Path) -> Result<Box<dyn Copier>> {
    if path == Path::new(NULL) {
        return Ok(Box::new(Null::default()));
    }
    Ok(Box::new(Device::open(path)?))
}

/// Copies bytes to the region and back, and compares them. A copier that corrupts data is not worth measuring.
///
/// # Errors
/// When the copier refuses, or the bytes differ.
pub fn check(session: &mut dyn Session, engine: Engine, bytes: u64, path: &Path) -> Result<()> {
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut random = fastrand::Rng::with_seed(bytes);
    let mut sent = vec![0; length];
    random.fill(&mut sent);
    session.memory().as_mut_slice()[..length].copy_from_slice(&sent);
    one_copy(session, Copy::new(Direction::From, engine, bytes))?;
    for (here, sent) in session.memory().as_mut_slice().iter_mut().zip(&sent) {
        *here = !sent;
    }
    one_copy(session, Copy::new(Direction::To, engine, bytes))?;
    let back = &session.memory().as_slice()[..length];
    match back.iter().zip(&sent).position(|(back, sent)| back != sent) {
        None => Ok(()),
        Some(first) => Err(crate::Error::OtherBytes {
            path: path.into(),
            bytes: length,
            first,
            wrote: sent[first],
            got: back[first],
        }),
    }
}

/// Makes one copy; retries after signals.
fn one_copy(session: &mut dyn Session, copy: Copy) -> Result<()> {
    while session.copy(&mut [copy])? == 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_numbered_as_in_the_header() {
        let number = |kind| Policy::new(kind).record().policy;
        assert_eq!(PolicyKind::ALL.map(number), [0, 1, 2, 3]);
        let folded = Policy {
            fold: true,
            ..Policy::new(PolicyKind::Exclusive)
        };
        assert_eq!(folded.record().flags, 1);
    }

    #[test]
    fn another_module_s_answer_is_not_taken() {
        let mut record = raw::Info {
            version: raw::VERSION,
            policy: 3,
            flags: 2 | 4 | 0x10,
            ..raw::Info::default()
        };
        record.provider[..5].copy_from_slice(b"swdma");
        let info = Info::of(&record).unwrap();
        assert_eq!(info.provider, "swdma");
        assert_eq!(info.policy.kind, PolicyKind::Priority);
        assert!(info.coherent && info.compares && !info.can_pause && info.policy.fold);
        record.version += 1;
        assert_eq!(Info::of(&record), None);
        (record.version, record.policy) = (raw::VERSION, 4);
        assert_eq!(Info::of(&record), None);
    }

    #[test]
    fn a_name_may_fill_its_room() {
        assert_eq!(text(b"dma0chan1\0\0"), "dma0chan1");
        assert_eq!(text(b"abc"), "abc");
    }
}
