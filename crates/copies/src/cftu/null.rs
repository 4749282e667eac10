// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies within this process, to test measurements on any machine. The times are those of copies in user space, and
//! the CPU does the engine's work.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memwarden_platform::clock::monotonic_ns;
use memwarden_platform::{affinity, cftu as raw, cpus};

use super::{
    Channel, Copier, Copy, Info, Memory, Policy, PolicyKind, QUANTUM_NS, Session, Statistics,
};
use crate::{Error, Result};

/// Simulated channels: few, so that a test can name them all; on larger machines one for each CPU, at most the bits of
/// a mask.
const CHANNELS: RangeInclusive<u32> = 4..=64;

/// Replaces the device. A clone is another client of the same.
#[derive(Debug, Clone)]
pub struct Null {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    cpus: u32,
    channels: u32,
    policy: Mutex<Policy>,
    opened: AtomicU32,
    /// Bytes of each channel.
    copied: Vec<AtomicU64>,
    statistics: Mutex<Statistics>,
}

impl Default for Null {
    fn default() -> Self {
        let cpus = cpus::online().map_or(1, |cpus| cpus.len());
        let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
        Self::of(cpus, cpus.clamp(*CHANNELS.start(), *CHANNELS.end()))
    }
}

impl Null {
    fn of(cpus: u32, channels: u32) -> Self {
        Self {
            state: Arc::new(State {
                cpus,
                channels,
                policy: Mutex::new(Policy::new(PolicyKind::Shared)),
                opened: AtomicU32::new(0),
                copied: (0..channels).map(|_| AtomicU64::new(0)).collect(),
                statistics: Mutex::new(Statistics::default()),
            }),
        }
    }
}

impl State {
    fn policy(&self) -> Policy {
        *self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the policy like `cftu_start()`.
    fn fits(&self, policy: &Policy) -> bool {
        let quantum = |ns| ns == 0 || QUANTUM_NS.contains(&ns);
        let windows = match policy.kind {
            PolicyKind::Priority => {
                let channels = u64::MAX >> (u64::BITS - self.channels);
                quantum(policy.quantum_high_ns)
                    && quantum(policy.quantum_low_ns)
                    && policy.high & !channels == 0
            }
            _ => policy.quantum_high_ns | policy.quantum_low_ns | policy.high == 0,
        };
        let own = matches!(policy.kind, PolicyKind::Exclusive | PolicyKind::Priority);
        windows && (!own || policy.fold || self.cpus <= self.channels)
    }
}

impl Copier for Null {
    fn info(&self) -> Result<Info> {
        Ok(Info {
            channels: self.state.channels,
            policy: self.state.policy(),
            can_pause: false,
            coherent: true,
            compares: false,
            min_bytes: 0,
            poll_bytes: 0,
            align_bytes: 1,
            provider: super::NULL.into(),
        })
    }

    fn reserve_policy(&self) -> Result<()> {
        // The process is its only user.
        Ok(())
    }

    fn set_policy(&self, policy: &Policy) -> Result<()> {
        if !self.state.fits(policy) {
            return Err(Error::Policy {
                kind: policy.kind,
                path: super::NULL.into(),
                channels: self.state.channels,
            });
        }
        let mut policy = *policy;
        if policy.kind == PolicyKind::Priority {
            let or = |given, usual| if given == 0 { usual } else { given };
            policy.quantum_high_ns = or(policy.quantum_high_ns, 30_000);
            policy.quantum_low_ns = or(policy.quantum_low_ns, 60_000);
            policy.high = or(policy.high, 1);
        }
        let chosen = self.state.policy.lock();
        *chosen.unwrap_or_else(PoisonError::into_inner) = policy;
        let statistics = self.state.statistics.lock();
        statistics.unwrap_or_else(PoisonError::into_inner).policies += 1;
        Ok(())
    }

    fn channel(&self, number: u32) -> Result<Channel> {
        Ok(Channel {
            name: format!("null{number}"),
            high: self.state.policy().high >> (number % self.state.channels) & 1 == 1,
            dead: false,
            transfers: 0,
            bytes: self.state.copied[(number % self.state.channels) as usize]
                .load(Ordering::Relaxed),
            errors: 0,
            timeouts: 0,
            paused_ns: 0,
        })
    }

    fn statistics(&self) -> Result<Statistics> {
        let statistics = self.state.statistics.lock();
        Ok(*statistics.unwrap_or_else(PoisonError::into_inner))
    }

    fn open(&self, bytes: u64, _: bool) -> Result<Box<dyn Session>> {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(Box::new(Opened {
            channel: self.state.opened.fetch_add(1, Ordering::Relaxed) % self.state.channels,
            state: Arc::clone(&self.state),
            memory: Memory::new(length)?,
            region: vec![0; length],
        }))
    }
}

struct Opened {
    state: Arc<State>,
    channel: u32,
    memory: Memory,
    region: Vec<u8>,
}

impl Session for Opened {
    fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    fn copy(&mut self, copies: &mut [Copy]) -> Result<usize> {
        let engine_is_on = self.state.policy().kind != PolicyKind::Off;
        let mut sum = Statistics::default();
        for Copy(copy) in &mut *copies {
            let length = usize::try_from(copy.bytes).unwrap_or(usize::MAX);
            let user = &mut self.memory.as_mut_slice()[..length];
            let kernel = &mut self.region[..length];
            copy.begin_ns = monotonic_ns();
            if copy.direction == 0 {
                kernel.copy_from_slice(user);
            } else {
                user.copy_from_slice(kernel);
            }
            copy.end_ns = monotonic_ns();
            copy.cpu = affinity::current()
                .ok()
                .and_then(|cpu| u32::try_from(cpu).ok())
                .unwrap_or(0);
            sum.copies += 1;
            if copy.engine == 1 && engine_is_on {
                (copy.engine_bytes, copy.channel) = (copy.bytes, self.channel);
                sum.engine_bytes += copy.bytes;
            } else {
                (copy.engine_bytes, copy.channel) = (0, raw::NO_CHANNEL);
                sum.cpu_bytes += copy.bytes;
            }
        }
        let copied = &self.state.copied[self.channel as usize];
        copied.fetch_add(sum.engine_bytes, Ordering::Relaxed);
        let statistics = self.state.statistics.lock();
        let mut statistics = statistics.unwrap_or_else(PoisonError::into_inner);
        statistics.copies += sum.copies;
        statistics.engine_bytes += sum.engine_bytes;
        statistics.cpu_bytes += sum.cpu_bytes;
        Ok(copies.len())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Direction, Engine, check};
    use super::*;

    #[test]
    fn it_copies_and_names_the_engine() {
        let null = Null::default();
        let mut session = null.open(5000, true).unwrap();
        for engine in [Engine::Cpu, Engine::Dma] {
            check(session.as_mut(), engine, 4097, Path::new("null")).unwrap();
        }
        let mut copies = [
            Copy::new(Direction::From, Engine::Cpu, 100),
            Copy::new(Direction::To, Engine::Dma, 5000),
        ];
        session.copy(&mut copies).unwrap();
        assert_eq!((copies[0].engine_bytes(), copies[0].channel()), (0, None));
        assert_eq!(
            (copies[1].engine_bytes(), copies[1].channel()),
            (5000, Some(0))
        );
        assert!(copies[1].begin_ns() >= copies[0].end_ns());
        let all = null.statistics().unwrap();
        assert_eq!(all.copies, 6);
        assert_eq!(all.engine_bytes, 2 * 4097 + 5000);
    }

    #[test]
    fn a_policy_is_refused_as_the_module_refuses_it() {
        let narrow = Null::of(4, 2);
        let windows = |kind, high, low, channels| Policy {
            quantum_high_ns: high,
            quantum_low_ns: low,
            high: channels,
            fold: true,
            ..Policy::new(kind)
        };
        for policy in [
            windows(PolicyKind::Off, 30_000, 0, 0),
            windows(PolicyKind::Exclusive, 0, 30_000, 0),
            windows(PolicyKind::Shared, 0, 0, 1),
            windows(PolicyKind::Priority, 999, 0, 0),
            windows(PolicyKind::Priority, 0, 1_000_000_001, 0),
            windows(PolicyKind::Priority, 0, 0, 0b100),
            Policy::new(PolicyKind::Exclusive),
            Policy::new(PolicyKind::Priority),
        ] {
            let message = narrow.set_policy(&policy).unwrap_err().to_string();
            let kind = policy.kind;
            let expected = format!("policy {kind} of null: it does not fit its 2 channels");
            assert!(message.starts_with(&expected), "{policy:?}: {message}");
            let untouched = Policy::new(PolicyKind::Shared);
            assert_eq!(narrow.info().unwrap().policy, untouched);
        }
        for policy in [
            windows(PolicyKind::Exclusive, 0, 0, 0),
            windows(PolicyKind::Priority, 1000, 1_000_000_000, 0b11),
        ] {
            narrow.set_policy(&policy).unwrap();
            assert_eq!(narrow.info().unwrap().policy, policy);
        }
        Null::of(2, 2)
            .set_policy(&Policy::new(PolicyKind::Exclusive))
            .unwrap();
        // The number of bits in a mask.
        Null::of(64, 64)
            .set_policy(&windows(PolicyKind::Priority, 0, 0, 1 << 63))
            .unwrap();
    }

    #[test]
    fn without_a_policy_the_cpu_copies() {
        let null = Null::default();
        null.set_policy(&Policy::new(PolicyKind::Off)).unwrap();
        let mut session = null.open(64, true).unwrap();
        let mut copy = [Copy::new(Direction::From, Engine::Dma, 64)];
        session.copy(&mut copy).unwrap();
        assert_eq!((copy[0].engine_bytes(), copy[0].channel()), (0, None));
    }

    #[test]
    fn other_bytes_are_found() {
        /// A copier that loses the data.
        struct Forgetful(Memory);
        impl Session for Forgetful {
            fn memory(&mut self) -> &mut Memory {
                &mut self.0
            }
            fn copy(&mut self, copies: &mut [Copy]) -> Result<usize> {
                Ok(copies.len())
            }
        }
        let mut session = Forgetful(Memory::new(64).unwrap());
        let message = check(&mut session, Engine::Cpu, 64, Path::new("/dev/x")).unwrap_err();
        let message = message.to_string();
        assert!(
            message.starts_with("/dev/x: of 64 bytes written, byte 0 came back as"),
            "{message}"
        );
    }
}
