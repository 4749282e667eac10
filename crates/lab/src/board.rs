// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machines that can be emulated, and their differences.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use crate::architecture::Architecture;
use crate::error::{Error, Result};
use crate::guest::Carry;
use crate::machine::{Clock, KernelChoice, Machine};
use crate::own::Flavour;

/// The interrupt controller and the initial file system support more CPUs, but a boot would take minutes.
const MAX_CPUS: u32 = 32;

/// The Cortex-A53 cores of a ZCU102; QEMU would make further CPUs its two Cortex-R5 cores.
const ZCU102_CPUS: u32 = 4;

/// The memory at address 0. More memory would be elsewhere, and QEMU describes only one range to the kernel.
const ZCU102_MEMORY_MIB: u64 = 2048;

/// Which machine is emulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Board {
    /// QEMU's virt machine: any number of CPUs with a PMU, any memory size, either clock.
    #[default]
    Virt,
    /// A Raspberry Pi 3: four Cortex-A53, 1 GiB, the free clock. Results come over its serial line.
    Raspi3b,
    /// A Xilinx ZCU102: up to four Cortex-A53, up to 2 GiB, either clock, sixteen DMA channels. Results come over the
    /// serial line here too.
    Zcu102,
    /// A PC (QEMU's q35) with amd64 CPUs: any number of them, any memory, either clock, no PMU. Debian's kernels only.
    Amd64,
}

impl Board {
    /// Name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Virt => "virt",
            Self::Raspi3b => "raspi3b",
            Self::Zcu102 => "zcu102",
            Self::Amd64 => "amd64",
        }
    }

    /// Architecture of its CPUs.
    #[must_use]
    pub fn architecture(self) -> Architecture {
        match self {
            Self::Virt | Self::Raspi3b | Self::Zcu102 => Architecture::Arm64,
            Self::Amd64 => Architecture::Amd64,
        }
    }

    /// The emulated CPU.
    pub(crate) fn cpu(self) -> &'static str {
        match self {
            Self::Virt | Self::Amd64 => "max",
            Self::Raspi3b | Self::Zcu102 => "cortex-a53",
        }
    }

    /// The kernel that it boots unless `--kernel` names another: Debian's, if that has the drivers.
    #[must_use]
    pub fn default_kernel(self) -> KernelChoice {
        match self {
            Self::Virt | Self::Raspi3b | Self::Amd64 => KernelChoice::default(),
            Self::Zcu102 => KernelChoice::Own(Flavour::Plain),
        }
    }

    /// The kernel's parameters for its console.
    pub(crate) fn console(self) -> &'static str {
        match self {
            Self::Virt | Self::Raspi3b => "console=ttyAMA0",
            // The port's driver loads late: with all checkers on and a busy host, after a minute of silence.
            Self::Zcu102 => "console=ttyPS0 earlycon",
            Self::Amd64 => "console=ttyS0",
        }
    }

    /// The emulator's arguments that make it this machine.
    pub(crate) fn qemu(self) -> &'static [&'static str] {
        match self {
            // No seeds from the host in the device tree; Arm's own pointer authentication is many times slower to
            // emulate than QEMU's.
            Self::Virt => &[
                "-M",
                "virt,gic-version=3,dtb-randomness=off",
                "-cpu",
                "max,pauth-impdef=on",
            ],
            Self::Raspi3b => &["-M", "raspi3b"],
            Self::Zcu102 => &["-M", "xlnx-zcu102"],
            // Each step of a string instruction counts as an instruction. With these features the kernel would clear a
            // page by bytes, in 4096 steps; without them it uses words.
            Self::Amd64 => &["-M", "q35", "-cpu", "max,erms=off,fsrm=off"],
        }
    }

    /// How the guest returns results.
    pub(crate) fn carry(self) -> Carry {
        match self {
            Self::Virt | Self::Amd64 => Carry::Ninep,
            Self::Raspi3b | Self::Zcu102 => Carry::Serial,
        }
    }

    /// The serial ports for the command's output and errors, as the guest's kernel names them, if results return by 9p.
    pub(crate) fn ports(self) -> [&'static str; 2] {
        match self {
            Self::Virt | Self::Raspi3b | Self::Zcu102 => ["ttyS0", "ttyS1"],
            // The first one is its console.
            Self::Amd64 => ["ttyS1", "ttyS2"],
        }
    }

    /// True if each CPU has its own counted clock, as in the lab's own emulator, which is for arm64 only. In Debian's
    /// emulator all CPUs share one clock and take turns.
    pub(crate) fn has_quantum(self) -> bool {
        self.architecture() == Architecture::Arm64
    }

    /// True if it has a real-time clock, which QEMU sets.
    pub(crate) fn has_clock(self) -> bool {
        match self {
            Self::Virt | Self::Amd64 => true,
            Self::Raspi3b | Self::Zcu102 => false,
        }
    }

    /// True if the emulator ends when the guest powers off or panics.
    pub(crate) fn powers_off(self) -> bool {
        self != Self::Raspi3b
    }

    /// Silence after which a boot counts as hung. A boot prints something every few seconds even on a loaded host, so a
    /// minute is enough. On a Raspberry Pi the kernel is silent for most of a minute while it patches itself. On a
    /// ZCU102 a kernel with all checkers on is silent until its port's driver loads.
    pub(crate) fn boot_silence(self) -> Duration {
        match self {
            Self::Virt | Self::Amd64 => Duration::from_secs(60),
            Self::Raspi3b | Self::Zcu102 => Duration::from_secs(240),
        }
    }

    /// Refuses settings that this machine does not support.
    pub(crate) fn check(self, machine: &Machine) -> Result<()> {
        let (cpus, memory) = (machine.cpus, machine.memory);
        if !(1..=MAX_CPUS).contains(&cpus) {
            return Err(Error::BadInput(format!(
                "--cpus {cpus}: the emulated machine has 1 to {MAX_CPUS} CPUs"
            )));
        }
        if machine.mte && self != Self::Virt {
            return Err(Error::BadInput(format!(
                "--mte: the CPUs of the machine {} have no MTE: leave --machine out",
                self.name()
            )));
        }
        if self == Self::Amd64 {
            if let KernelChoice::Own(_) = machine.kernel {
                return Err(Error::BadInput(
                    "--machine amd64: the lab's own kernels are for arm64: give --kernel stock, stock:NAME or a build tree"
                        .to_owned(),
                ));
            }
        }
        if self == Self::Raspi3b && (cpus, memory.mib(), machine.clock) != (4, 1024, Clock::Free) {
            return Err(Error::BadInput(
                "--machine raspi3b: it has the free clock, 4 CPUs and 1G of memory: give --clock free, --cpus 4, --memory 1G"
                    .to_owned(),
            ));
        }
        if self == Self::Zcu102 && !(1..=ZCU102_CPUS).contains(&cpus) {
            return Err(Error::BadInput(format!(
                "--cpus {cpus}: a zcu102 has 1 to {ZCU102_CPUS} CPUs"
            )));
        }
        if self == Self::Zcu102 && memory.mib() > ZCU102_MEMORY_MIB {
            return Err(Error::BadInput(format!(
                "--memory {memory}: a zcu102 has up to {}G here",
                ZCU102_MEMORY_MIB / 1024
            )));
        }
        Ok(())
    }

    /// Refuses a shell on a board whose only serial line carries the results.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_machine_refuses_what_it_cannot_have() {
        let machine = |board, clock, cpus, memory: &str| Machine {
            board,
            clock,
            cpus,
            memory: memory.parse().unwrap(),
            ..Machine::default()
        };
        let (counted, free) = (Clock::Counted, Clock::Free);
        for (board, clock, cpus, memory, expected) in [
            (Board::Virt, counted, 32, "64G", None),
            (
                Board::Virt,
                free,
                33,
                "1G",
                Some("--cpus 33: the emulated machine has 1 to 32 CPUs"),
            ),
            (Board::Raspi3b, free, 4, "1G", None),
            (
                Board::Raspi3b,
                counted,
                4,
                "1G",
                Some("--machine raspi3b: it has the free clock"),
            ),
            (
                Board::Raspi3b,
                free,
                2,
                "1G",
                Some("--machine raspi3b: it has the free clock"),
            ),
            (Board::Zcu102, counted, 1, "256M", None),
            (Board::Zcu102, free, 4, "2G", None),
            (Board::Zcu102, free, 0, "1G", Some("--cpus 0: ")),
            (
                Board::Zcu102,
                free,
                5,
                "1G",
                Some("--cpus 5: a zcu102 has 1 to 4 CPUs"),
            ),
            (Board::Amd64, free, 32, "64G", None),
            (Board::Amd64, counted, 1, "256M", None),
            (
                Board::Amd64,
                counted,
                33,
                "1G",
                Some("--cpus 33: the emulated machine has 1 to 32 CPUs"),
            ),
            (
                Board::Zcu102,
                free,
                4,
                "2049M",
                Some("--memory 2049M: a zcu102 has up to 2G here"),
            ),
        ] {
            let said = machine(board, clock, cpus, memory).check();
            match expected {
                None => said.unwrap(),
                Some(start) => {
                    let said = said.unwrap_err().to_string();
                    assert!(said.starts_with(start) && !said.contains('\n'), "{said}");
                }
            }
        }
    }

    #[test]
    fn an_amd64_machine_has_none_of_our_kernels() {
        let machine = |kernel: &str| Machine {
            board: Board::Amd64,
            kernel: kernel.parse().unwrap(),
            ..Machine::default()
        };
        Board::Amd64.check(&machine("stock:6.1-rt")).unwrap();
        for kernel in ["own", "own-debug", "own-raspberry-pi-3"] {
            let said = Board::Amd64.check(&machine(kernel)).unwrap_err();
            let said = said.to_string();
            let expected = "--machine amd64: the lab's own kernels are for arm64: give";
            assert!(said.starts_with(expected) && !said.contains('\n'), "{said}");
        }
    }

    #[test]
    fn a_shell_is_refused_where_results_come_over_the_console() {
        Board::Virt.check_shell().unwrap();
        Board::Amd64.check_shell().unwrap();
        for board in [Board::Raspi3b, Board::Zcu102] {
            let said = board.check_shell().unwrap_err().to_string();
            let expected = format!(
                "--machine {}: its serial line carries results",
                board.name()
            );
            assert!(
                said.starts_with(&expected) && !said.contains('\n'),
                "{said}"
            );
        }
    }
}
