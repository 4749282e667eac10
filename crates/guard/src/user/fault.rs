// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults on purpose, so that what is promised of a broken regulator can be tried on a real one.

/// Names the fault: `stuck:CPU`, `panic:CPU`, `mute:CPU` or `blind:CPU`. For tests alone.
pub(crate) const VARIABLE: &str = "MEMWARDEN_TEST_FAULT";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stuck,
    Panic,
    /// Stuck before it regulates.
    Mute,
    /// Its counter of refills does not count.
    Blind,
}

/// A core's thread that goes wrong the first time that it holds its core, or before.
#[derive(Debug)]
pub(crate) struct Fault {
    kind: Kind,
    cpu: usize,
}

impl Fault {
    /// What the environment asks for.
    pub fn from_environment() -> Option<Self> {
        Self::parse(&std::env::var(VARIABLE).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let (kind, cpu) = text.split_once(':')?;
        let kind = match kind {
            "stuck" => Kind::Stuck,
            "panic" => Kind::Panic,
            "mute" => Kind::Mute,
            "blind" => Kind::Blind,
            _ => return None,
        };
        Some(Self {
            kind,
            cpu: cpu.parse().ok()?,
        })
    }

    /// Called by each core's thread before it regulates.
    pub fn strike_at_start(&self, cpu: usize) {
        if cpu == self.cpu && self.kind == Kind::Mute {
            spin();
        }
    }

    /// Whether the counter of this core's refills is to be taken for lost.
    pub fn blinds(&self, cpu: usize) -> bool {
        cpu == self.cpu && self.kind == Kind::Blind
    }

    /// Called by each core's thread when it takes hold.
    pub fn strike(&self, cpu: usize) {
        if cpu == self.cpu {
            self.go_wrong();
        }
    }

    /// Called by a group's regulator, which has one thread, when the group is stopped.
    pub fn go_wrong(&self) {
        match self.kind {
            Kind::Stuck => spin(),
            Kind::Panic => panic!("the fault that {VARIABLE} asked for"),
            Kind::Mute | Kind::Blind => {}
        }
    }
}

fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_meant_is_a_fault() {
        for text in ["", "stuck", "stuck:", "stuck:x", "hang:1"] {
            assert!(Fault::parse(text).is_none(), "{text}");
        }
        let fault = Fault::parse("panic:1").unwrap();
        assert_eq!((fault.kind, fault.cpu), (Kind::Panic, 1));
        fault.strike(0);
        assert!(std::panic::catch_unwind(move || fault.strike(1)).is_err());
    }
}
