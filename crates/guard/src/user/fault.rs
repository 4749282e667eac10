// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate faults, so that tests can check what happens when a real regulator breaks.

/// Selects the fault: `stuck:CPU`, `panic:CPU`, `mute:CPU` or `blind:CPU`. For tests only.
pub(crate) const VARIABLE: &str = "MEMWARDEN_TEST_FAULT";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stuck,
    Panic,
    /// Stuck before it regulates.
    Mute,
    /// The refill counter does not count.
    Blind,
}

/// A fault of a core's thread. It occurs when the thread first holds its core, or earlier.
#[derive(Debug)]
pub(crate) struct Fault {
    kind: Kind,
    cpu: usize,
}

impl Fault {
    /// The fault that the environment requests.
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

    /// True if this core's refill counter must be treated as lost.
    pub fn blinds(&self, cpu: usize) -> bool {
        cpu == self.cpu && self.kind == Kind::Blind
    }

    /// Called by each core's thread when it holds its core.
    pub fn strike(&self, cpu: usize) {
        if cpu == self.cpu {
            self.go_wrong();
        }
    }

    /// Called by a group's regulator, which has a single thread, when the group is stopped.
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
