// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machines that can be emulated, and in what they differ.

use std::time::Duration;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::guest::Carry;
use crate::machine::{Clock, Machine};

/// The emulated machine's interrupt controller and our initial file system cope
/// with more; beyond this a boot on an emulator takes minutes.
const MAX_CPUS: u32 = 32;

/// Which machine is emulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Board {
    /// QEMU's own: any number of CPUs with a PMU, any memory, both clocks.
    #[default]
    Virt,
    /// A Raspberry Pi 3: four Cortex-A53, 1 GiB, the free clock. It has nothing but a serial line to carry results by.
    Raspi3b,
}

impl Board {
    /// As QEMU and the command line have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Virt => "virt",
            Self::Raspi3b => "raspi3b",
        }
    }

    /// The emulated CPU.
    pub(crate) fn cpu(self) -> &'static str {
        match self {
            Self::Virt => "max",
            Self::Raspi3b => "cortex-a53",
        }
    }

    /// The emulator's arguments that make it this machine.
    pub(crate) fn qemu(self) -> &'static [&'static str] {
        match self {
            // No seeds from the host in the device tree; Arm's own pointer
            // authentication is many times slower to emulate than QEMU's.
            Self::Virt => &[
                "-M",
                "virt,gic-version=3,dtb-randomness=off",
                "-cpu",
                "max,pauth-impdef=on",
            ],
            Self::Raspi3b => &["-M", "raspi3b"],
        }
    }

    /// How results come back.
    pub(crate) fn carry(self) -> Carry {
        match self {
            Self::Virt => Carry::Ninep,
            Self::Raspi3b => Carry::Serial,
        }
    }

    /// Whether the emulator ends when the guest powers off or panics.
    pub(crate) fn powers_off(self) -> bool {
        self != Self::Raspi3b
    }

    /// A boot prints something every few seconds even on a loaded host; a minute of silence is a guest that hangs. On
    /// the Raspberry Pi one is silent for most of that while its kernel patches itself.
    pub(crate) fn boot_silence(self) -> Duration {
        match self {
            Self::Virt => Duration::from_secs(60),
            Self::Raspi3b => Duration::from_secs(240),
        }
    }

    /// Refuses what this machine cannot have.
    pub(crate) fn check(self, machine: &Machine) -> Result<()> {
        let (cpus, memory) = (machine.cpus, machine.memory);
        if !(1..=MAX_CPUS).contains(&cpus) {
            return Err(Error::BadInput(format!(
                "--cpus {cpus}: the emulated machine has 1 to {MAX_CPUS} CPUs"
            )));
        }
        if self == Self::Raspi3b && (cpus, memory.mib(), machine.clock) != (4, 1024, Clock::Free) {
            return Err(Error::BadInput(
                "--machine raspi3b: it has the free clock, 4 CPUs and 1G of memory: give --clock free, --cpus 4, --memory 1G"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Refuses a shell where there is no second way beside it for what comes back.
    pub(crate) fn check_shell(self) -> Result<()> {
        match self.carry() {
            Carry::Ninep => Ok(()),
            Carry::Serial => Err(Error::BadInput(format!(
                "--machine {}: its serial line carries results, no shell: use lab run",
                self.name()
            ))),
        }
    }
}
