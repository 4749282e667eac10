// SPDX-License-Identifier: MIT OR Apache-2.0
//! A description of this machine, for `run.json` and for `doctor`.

use serde::{Deserialize, Serialize};

use crate::cache::{self, Cache};
use crate::cpus::{self, CpuSet};
use crate::hugepage::{self, Pool};
use crate::mapping::page_bytes;
use crate::{Result, Root};

/// The machine. An unknown property is `None`, never a guess.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// The CPU's name, such as `AMD EPYC 7763` or `Cortex-A53 (0x41:0xd03)`.
    pub cpu_model: Option<String>,
    /// The instruction set that memwarden was built for.
    pub architecture: String,
    /// Number of online CPUs.
    pub cores: usize,
    /// The online CPUs.
    pub online: CpuSet,
    /// True if two online CPUs share a core.
    pub smt: Option<bool>,
    /// The caches, each once.
    pub caches: Vec<Cache>,
    /// All memory that the kernel manages.
    pub memory_bytes: Option<u64>,
    /// Size of a normal page.
    pub page_bytes: usize,
    /// The pools of huge pages.
    pub huge_pages: Vec<Pool>,
    /// `always`, `madvise` or `never`.
    pub transparent_huge_pages: Option<String>,
    /// The kernel's release, such as `6.12.38-amd64`.
    pub kernel: Option<String>,
    /// The kernel's build, such as `#1 SMP PREEMPT_DYNAMIC ...`.
    pub kernel_version: Option<String>,
    /// The frequency governors in use; `None` without cpufreq.
    pub governor: Option<String>,
    /// True on a hypervisor or an emulator.
    pub virtualised: Option<bool>,
    /// Name of the hypervisor or emulator, or of the board or machine.
    pub platform: Option<String>,
}

impl Host {
    /// Describes this machine.
    pub fn gather() -> Result<Self> {
        Self::gather_in(&Root::system())
    }

    /// Describes the machine whose `/proc` and `/sys` are below `root`.
    pub fn gather_in(root: &Root) -> Result<Self> {
        let online = cpus::online_in(root)?;
        Ok(Self {
            cpu_model: cpu_model(root),
            architecture: std::env::consts::ARCH.to_owned(),
            cores: online.len(),
            smt: smt(root),
            caches: cache::topology(root)?,
            memory_bytes: meminfo(root, "MemTotal"),
            page_bytes: page_bytes(),
            huge_pages: hugepage::pools(root),
            transparent_huge_pages: hugepage::transparent(root),
            kernel: root.text("/proc/sys/kernel/osrelease"),
            kernel_version: root.text("/proc/sys/kernel/version"),
            governor: governor(root, &online),
            virtualised: virtualised(root),
            platform: platform(root),
            online,
        })
    }
}

/// A figure of `/proc/meminfo` in bytes, such as `MemAvailable`.
#[must_use]
pub fn meminfo(root: &Root, name: &str) -> Option<u64> {
    let text = root.text("/proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// True if simultaneous multithreading is on.
#[must_use]
pub fn smt(root: &Root) -> Option<bool> {
    match root.text("/sys/devices/system/cpu/smt/active")?.as_str() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// The governors of the online CPUs, each once, joined by commas.
#[must_use]
pub fn governor(root: &Root, online: &CpuSet) -> Option<String> {
    let mut governors: Vec<String> = online
        .iter()
        .filter_map(|cpu| {
            root.text(&format!(
                "/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"
            ))
        })
        .collect();
    governors.sort();
    governors.dedup();
    (!governors.is_empty()).then(|| governors.join(","))
}

/// A field of the first CPU in `/proc/cpuinfo`.
pub(crate) fn cpuinfo(root: &Root, field: &str) -> Option<String> {
    root.text("/proc/cpuinfo")?.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == field).then(|| value.trim().to_owned())
    })
}

fn cpu_model(root: &Root) -> Option<String> {
    if let Some(name) = cpuinfo(root, "model name") {
        return Some(name);
    }
    let (implementer, part) = (
        cpuinfo(root, "CPU implementer")?,
        cpuinfo(root, "CPU part")?,
    );
    // MIDR_EL1 implementer and part numbers, as in the kernel's
    // arch/arm64/include/asm/cputype.h.
    let name = match (implementer.as_str(), part.as_str()) {
        ("0x41", "0xd03") => "Cortex-A53",
        ("0x41", "0xd05") => "Cortex-A55",
        ("0x41", "0xd07") => "Cortex-A57",
        ("0x41", "0xd08") => "Cortex-A72",
        ("0x41", "0xd09") => "Cortex-A73",
        ("0x41", "0xd0a") => "Cortex-A75",
        ("0x41", "0xd0b") => "Cortex-A76",
        ("0x41", "0xd0c") => "Neoverse-N1",
        ("0x41", "0xd40") => "Neoverse-V1",
        ("0x41", "0xd41") => "Cortex-A78",
        ("0x41", "0xd49") => "Neoverse-N2",
        ("0x41", "0xd4f") => "Neoverse-V2",
        // The ID of QEMU's "max" CPU: implementer 0 is reserved for software.
        ("0x00", "0x051") => "QEMU max",
        _ => return Some(format!("arm64 CPU {implementer}:{part}")),
    };
    Some(format!("{name} ({implementer}:{part})"))
}

/// Machine names of emulators and hypervisors.
const VIRTUAL: [&str; 8] = [
    "QEMU",
    "KVM",
    "VMware",
    "VirtualBox",
    "Xen",
    "Bochs",
    "Virtual Machine",
    "dummy-virt",
];

/// Names of virtual machines in DMI, on processors without a bit for it: systemd's list (src/basic/virt.c), and Hetzner's.
const VIRTUAL_IN_DMI: [&str; 9] = [
    "Amazon EC2",
    "Google Compute Engine",
    "Hetzner vServer",
    "OpenStack",
    "KubeVirt",
    "Parallels",
    "BHYVE",
    "Hyper-V",
    "Apple Virtualization",
];

pub(crate) fn virtualised(root: &Root) -> Option<bool> {
    let platform = platform(root);
    if platform
        .as_ref()
        .is_some_and(|name| VIRTUAL.iter().any(|word| name.contains(word)))
        || root.has("/sys/hypervisor/type")
        || root.has("/proc/device-tree/hypervisor")
    {
        return Some(true);
    }
    // x86 CPUs have a bit that hypervisors set (CPUID 1, ECX 31); other architectures have none.
    if let Some(flags) = cpuinfo(root, "flags") {
        return Some(flags.split(' ').any(|flag| flag == "hypervisor"));
    }
    match dmi(root) {
        Some(name) => virtual_by_dmi(root, &name),
        // A board with a device tree and no known virtual name counts as real.
        None => platform.map(|_| false),
    }
}

/// Whether DMI describes a virtual machine; `None` if it doesn't tell: clouds choose their own names.
fn virtual_by_dmi(root: &Root, name: &str) -> Option<bool> {
    // "SMBIOS table describes a virtual machine": bit 4 of byte 2 of the BIOS characteristics' extension (SMBIOS 7.1.2.2),
    // which only root can read. A hypervisor need not set it.
    let bios = root.bytes("/sys/firmware/dmi/entries/0-0/raw");
    let extension = bios.and_then(|bios| bios.get(0x13).copied());
    if extension.is_some_and(|byte| byte & 1 << 4 != 0) {
        return Some(true);
    }
    // The instances of EC2 without a hypervisor have the same vendor.
    if name.starts_with("Amazon EC2") && name.contains(".metal") {
        return Some(false);
    }
    let known = VIRTUAL_IN_DMI.iter().any(|word| name.contains(word));
    known.then_some(true)
}

/// The vendor and the product in DMI.
fn dmi(root: &Root) -> Option<String> {
    let names = ["sys_vendor", "product_name"]
        .iter()
        .filter_map(|file| root.text(&format!("/sys/class/dmi/id/{file}")))
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    (!names.is_empty()).then_some(names)
}

/// The machine's name: DMI on PCs and servers, the device tree on boards.
pub(crate) fn platform(root: &Root) -> Option<String> {
    if let Some(dmi) = dmi(root) {
        return Some(dmi);
    }
    // Device-tree strings end in NUL; `compatible` is a list of them, most
    // specific first.
    let strings = |file: &str| {
        let text = root
            .text(&format!("/proc/device-tree/{file}"))
            .unwrap_or_default();
        text.split('\0')
            .map(|word| word.trim().to_owned())
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
    };
    let mut names = strings("model");
    names.extend(strings("compatible"));
    names.dedup();
    (!names.is_empty()).then(|| names.join(", "))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A saved tree with these files.
    pub(crate) fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = Root::at(directory.path());
        (directory, root)
    }

    #[test]
    fn machines_are_told_apart() {
        let tree = "proc/device-tree";
        for (files, virtual_one, name) in [
            (
                vec![
                    (format!("{tree}/model"), "linux,dummy-virt\0"),
                    (format!("{tree}/compatible"), "linux,dummy-virt\0"),
                ],
                Some(true),
                Some("linux,dummy-virt"),
            ),
            (
                vec![
                    (format!("{tree}/model"), "Raspberry Pi 3 Model B\0"),
                    (
                        format!("{tree}/compatible"),
                        "raspberrypi,3-model-b\0brcm,bcm2837\0",
                    ),
                ],
                Some(false),
                Some("Raspberry Pi 3 Model B, raspberrypi,3-model-b, brcm,bcm2837"),
            ),
            (
                vec![("sys/class/dmi/id/sys_vendor".into(), "QEMU")],
                Some(true),
                Some("QEMU"),
            ),
            (
                vec![("proc/cpuinfo".into(), "flags : fpu hypervisor")],
                Some(true),
                None,
            ),
            (
                vec![("proc/cpuinfo".into(), "flags : fpu")],
                Some(false),
                None,
            ),
            (vec![], None, None),
        ] {
            let files: Vec<(&str, &str)> = files
                .iter()
                .map(|(path, text)| (path.as_str(), *text))
                .collect();
            let (_directory, root) = machine(&files);
            assert_eq!(virtualised(&root), virtual_one, "{files:?}");
            assert_eq!(platform(&root).as_deref(), name, "{files:?}");
        }
    }

    #[test]
    fn clouds_are_told_apart_without_a_hypervisor_bit() {
        let x86 = ("proc/cpuinfo", "flags : fpu");
        let arm = ("proc/cpuinfo", "CPU part : 0xd40");
        // The BIOS's SMBIOS entry, without and with the bit of a virtual machine.
        let real = ("sys/firmware/dmi/entries/0-0/raw", "\0".repeat(0x18));
        let mut virtual_one = real.clone();
        virtual_one.1.replace_range(0x13..0x14, "\x1c");
        for (cpu, vendor, product, bios, is) in [
            (arm, "Amazon EC2", "c7g.large", None, Some(true)),
            (arm, "Amazon EC2", "c7g.metal", None, Some(false)),
            (arm, "Google", "Google Compute Engine", None, Some(true)),
            (arm, "Hetzner", "vServer", None, Some(true)),
            (
                arm,
                "OpenStack Foundation",
                "OpenStack Nova",
                None,
                Some(true),
            ),
            (arm, "QEMU", "KVM Virtual Machine", None, Some(true)),
            (
                arm,
                "Microsoft Corporation",
                "Virtual Machine",
                None,
                Some(true),
            ),
            (arm, "Another Cloud", "a1", None, None),
            (arm, "Another Cloud", "a1", Some(&virtual_one), Some(true)),
            (arm, "WIWYNN", "Mt.Jade Server", Some(&real), None),
            (x86, "Amazon EC2", "m5.metal", None, Some(false)),
            (x86, "Google", "Google Compute Engine", None, Some(false)),
            (x86, "Another Vendor", "Server", None, Some(false)),
        ] {
            let mut files = vec![
                cpu,
                ("sys/class/dmi/id/sys_vendor", vendor),
                ("sys/class/dmi/id/product_name", product),
            ];
            files.extend(bios.map(|(path, bytes)| (*path, bytes.as_str())));
            let (_directory, root) = machine(&files);
            assert_eq!(virtualised(&root), is, "{files:?}");
        }
    }

    #[test]
    fn arm_cpus_have_names() {
        for (part, name) in [
            ("0xd03", "Cortex-A53 (0x41:0xd03)"),
            ("0xfff", "arm64 CPU 0x41:0xfff"),
        ] {
            let (_directory, root) = machine(&[(
                "proc/cpuinfo",
                &format!("CPU implementer\t: 0x41\nCPU part\t: {part}"),
            )]);
            assert_eq!(cpu_model(&root).as_deref(), Some(name));
        }
    }

    #[test]
    fn this_machine_can_be_described() {
        let host = Host::gather().unwrap();
        assert_eq!(host.cores, host.online.len());
        let text = serde_json::to_string(&host).unwrap();
        assert_eq!(serde_json::from_str::<Host>(&text).unwrap(), host);
    }
}
