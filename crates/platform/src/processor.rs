// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processors of this machine, and their events for memory traffic.

use std::collections::HashMap;
use std::fmt;

use memwarden_policy::events::{self, Event, Kind, core_type, vendor};

use serde::{Serialize, Serializer};

use crate::cpus::CpuSet;
use crate::{Result, Root, cpus, pmu};

/// Identity of a processor, in the form of [`events::Processor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// Arm's implementer number, or one of [`vendor`].
    pub maker: u32,
    /// CPUID's family; 0 for Arm.
    pub family: u32,
    /// CPUID's model, or the part number of `MIDR_EL1`.
    pub model: u32,
    /// The core type of a hybrid, one of [`core_type`]; 0 for others.
    #[serde(rename = "core_type", serialize_with = "as_letter")]
    pub core: u32,
}

fn as_letter<S: Serializer>(core: &u32, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    core_type::letter(*core).serialize(serializer)
}

/// Reason why a processor's own event is unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The processor is not in the table.
    NotInTable,
    /// It has no event that counts memory traffic.
    HasNone,
}

/// A processor without a usable event of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unknown {
    /// One of its CPUs.
    pub cpu: usize,
    /// Its identity; `None` if the machine does not name its processors, such as POWER.
    pub identity: Option<Identity>,
    /// The reason.
    pub why: Why,
}

impl Unknown {
    /// Events that may count memory traffic on it.
    #[must_use]
    pub fn to_try(&self) -> &'static str {
        let Some(identity) = self.identity else {
            return "cache-misses (of a level that the machine's perf chooses)";
        };
        match identity.maker {
            vendor::INTEL => "0x412e or cache-misses (misses of the last level)",
            vendor::AMD | vendor::HYGON => {
                "0x4843+0xff72 (data and prefetches from DRAM) or cache-misses (of the L2)"
            }
            _ => "armv8 (refills of the L2), 0x2a or 0x37 (of an L3)",
        }
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.identity {
            Some(Identity {
                maker,
                family,
                model,
                ..
            }) => write!(
                f,
                "CPU{} (maker {maker:#x}, family {family:#x}, model {model:#x}) ",
                self.cpu
            )?,
            None => write!(f, "CPU{} (of an unknown kind) ", self.cpu)?,
        }
        match self.why {
            Why::NotInTable => f.write_str("is not in the table of events"),
            Why::HasNone => f.write_str("counts no memory traffic in its cores"),
        }
    }
}

/// The processors below a root, with `/proc/cpuinfo` read once: the kernel writes all CPUs' blocks at each reading.
struct Described<'a> {
    root: &'a Root,
    riscv: bool,
    /// Fields of the CPUs' blocks, by CPU number.
    blocks: HashMap<usize, Vec<(String, String)>>,
}

impl<'a> Described<'a> {
    fn of(root: &'a Root) -> Self {
        let info = root.text("/proc/cpuinfo").unwrap_or_default();
        Self {
            root,
            riscv: info.contains("isa\t\t: rv"),
            blocks: info.split("\n\n").filter_map(block).collect(),
        }
    }

    /// Identity of a CPU; `None` if the machine does not report it.
    fn identity(&self, cpu: usize) -> Option<Identity> {
        let midr = format!("/sys/devices/system/cpu/cpu{cpu}/regs/identification/midr_el1");
        if let Some(midr) = self.root.text(&midr) {
            let digits = midr.trim_start_matches("0x").trim_start_matches('0');
            let midr = u32::from_str_radix(digits, 16).unwrap_or(0);
            return Some(Identity {
                maker: midr >> 24,
                family: 0,
                model: midr >> 4 & 0xfff,
                core: core_type::ANY,
            });
        }
        let own = self.blocks.get(&cpu)?;
        let field = |name: &str| {
            let (_, value) = own.iter().find(|(key, _)| key == name)?;
            Some(value.as_str())
        };
        let hex = |name| {
            let digits = field(name)?.trim_start_matches("0x");
            u32::from_str_radix(digits, 16).ok()
        };
        // 32-bit Arm has no MIDR in sysfs.
        if let (Some(maker), Some(model)) = (hex("CPU implementer"), hex("CPU part")) {
            return Some(Identity {
                maker,
                family: 0,
                model,
                core: core_type::ANY,
            });
        }
        let maker = match field("vendor_id")? {
            "GenuineIntel" => vendor::INTEL,
            "AuthenticAMD" => vendor::AMD,
            "HygonGenuine" => vendor::HYGON,
            _ => 0,
        };
        let number = |name| field(name).and_then(|text| text.parse().ok());
        Some(Identity {
            maker,
            family: number("cpu family")?,
            model: number("model")?,
            core: match pmu::of_cpu(self.root, cpu).as_deref() {
                Some(pmu) if pmu::SMALL_CORES.contains(&pmu) => core_type::SMALL,
                Some(pmu::LARGE_CORES) => core_type::LARGE,
                _ => core_type::ANY,
            },
        })
    }

    /// The event for memory traffic of a CPU's processor.
    fn own_event(&self, cpu: usize) -> std::result::Result<Event, Unknown> {
        if self.riscv {
            return Ok(events::named("riscv").expect("the table has perf's names"));
        }
        let identity = self.identity(cpu);
        let unknown = |why| Err(Unknown { cpu, identity, why });
        match identity.and_then(|of| events::of(of.maker, of.family, of.model, of.core)) {
            None => unknown(Why::NotInTable),
            Some(event) if event.kind == Kind::None => unknown(Why::HasNone),
            Some(event) => Ok(event),
        }
    }
}

/// The number and the fields of a CPU's block in /proc/cpuinfo; `None` for other blocks.
fn block(text: &str) -> Option<(usize, Vec<(String, String)>)> {
    let fields: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .collect();
    let number =
        |(key, value): &(String, String)| (key == "processor").then(|| value.parse().ok())?;
    Some((fields.iter().find_map(number)?, fields))
}

/// A machine's CPUs of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Processors {
    /// Their identity.
    #[serde(flatten)]
    pub identity: Identity,
    /// The PMU that counts their raw events: one for each core type of a hybrid. `None` without a PMU.
    pub pmu: Option<String>,
    /// Those that are online.
    pub cpus: CpuSet,
}

/// The machine's kinds of processor.
///
/// # Errors
/// When the online CPUs can't be read.
pub fn kinds(root: &Root) -> Result<Vec<Processors>> {
    let described = Described::of(root);
    let mut kinds: Vec<Processors> = Vec::new();
    for cpu in cpus::online_in(root)?.iter() {
        let Some(identity) = described.identity(cpu) else {
            continue;
        };
        let pmu = pmu::of_cpu(root, cpu);
        let same = |kind: &&mut Processors| kind.identity == identity && kind.pmu == pmu;
        match kinds.iter_mut().find(same) {
            Some(kind) => kind.cpus = kind.cpus.iter().chain([cpu]).collect(),
            None => kinds.push(Processors {
                identity,
                pmu,
                cpus: [cpu].into_iter().collect(),
            }),
        }
    }
    Ok(kinds)
}

/// The event for memory traffic of a CPU's processor.
///
/// # Errors
/// When the processor is not in the table, or has no such event.
pub fn own_event(root: &Root, cpu: usize) -> std::result::Result<Event, Unknown> {
    Described::of(root).own_event(cpu)
}

/// The events of these CPUs that are online, each with its CPUs.
///
/// # Errors
/// When the online CPUs can't be read; or the first CPU without an event.
pub fn own_events(
    root: &Root,
    cpus: Option<&CpuSet>,
) -> Result<std::result::Result<Vec<(Event, CpuSet)>, Unknown>> {
    let described = Described::of(root);
    let mut kinds: Vec<(Event, Vec<usize>)> = Vec::new();
    let online = cpus::online_in(root)?;
    for cpu in online
        .iter()
        .filter(|cpu| cpus.is_none_or(|cpus| cpus.contains(*cpu)))
    {
        let event = match described.own_event(cpu) {
            Ok(event) => event,
            Err(unknown) => return Ok(Err(unknown)),
        };
        match kinds.iter_mut().find(|(kind, _)| *kind == event) {
            Some((_, cpus)) => cpus.push(cpu),
            None => kinds.push((event, vec![cpu])),
        }
    }
    Ok(Ok(kinds
        .into_iter()
        .map(|(event, cpus)| (event, cpus.into_iter().collect()))
        .collect()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::inotify;

    use super::*;

    const CPUS: usize = 64;

    /// A machine with 64 CPUs of one kind.
    fn machine(folder: &tempfile::TempDir) -> Root {
        let root = Root::at(folder.path());
        fs::create_dir_all(root.path("/proc")).unwrap();
        fs::create_dir_all(root.path("/sys/devices/system/cpu")).unwrap();
        fs::write(root.path("/sys/devices/system/cpu/online"), "0-63\n").unwrap();
        let block = |cpu| {
            format!(
                "processor\t: {cpu}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n\n"
            )
        };
        let info: String = (0..CPUS).map(block).collect();
        fs::write(root.path("/proc/cpuinfo"), info).unwrap();
        root
    }

    /// How often `read` opens the machine's /proc/cpuinfo.
    fn readings(root: &Root, read: impl FnOnce(&Root)) -> usize {
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        // The kernel merges an event with an equal one before it, so the end of each reading is watched, too.
        let what = inotify::WatchFlags::OPEN | inotify::WatchFlags::CLOSE_NOWRITE;
        inotify::add_watch(&watch, root.path("/proc/cpuinfo"), what).unwrap();
        read(root);
        let mut buffer = [std::mem::MaybeUninit::uninit(); 8192];
        let mut events = inotify::Reader::new(&watch, &mut buffer);
        let mut opened = 0;
        while let Ok(event) = events.next() {
            opened += usize::from(event.events().contains(inotify::ReadFlags::OPEN));
        }
        opened
    }

    #[test]
    fn cpuinfo_is_read_once_for_all_cpus() {
        let folder = tempfile::tempdir().unwrap();
        let root = machine(&folder);
        let all: CpuSet = (0..CPUS).collect();
        let read = readings(&root, |root| {
            let events = own_events(root, None).unwrap().unwrap();
            assert_eq!(events.len(), 1);
            assert_eq!((events[0].0.name, &events[0].1), ("skylake-x", &all));
        });
        assert_eq!(read, 1);
        let read = readings(&root, |root| {
            let kinds = kinds(root).unwrap();
            assert_eq!(kinds.len(), 1);
            assert_eq!(kinds[0].cpus, all);
        });
        assert_eq!(read, 1);
    }
}
