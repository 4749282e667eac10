// SPDX-License-Identifier: MIT OR Apache-2.0
//! A core's PMU: its name, its type and its format fields, from sysfs.
//!
//! Source: Documentation/ABI/testing/sysfs-bus-event_source-devices-format; for a hybrid's types, perf_event_open(2).

use crate::Root;
use crate::cpus::CpuSet;

const DEVICES: &str = "/sys/bus/event_source/devices";

/// The PMUs of an Intel hybrid's small cores (Atom): some have two kinds of them.
pub const SMALL_CORES: [&str; 2] = ["cpu_atom", "cpu_lowpower"];
/// The PMU of an Intel hybrid's large cores (Core).
pub const LARGE_CORES: &str = "cpu_core";

/// The PMU that counts raw events on this CPU.
#[must_use]
pub fn of_cpu(root: &Root, cpu: usize) -> Option<String> {
    let mut pmus = root.names(DEVICES);
    pmus.sort();
    pmus.into_iter().find(|pmu| is_of_core(root, cpu, pmu))
}

/// The number with which raw events are requested on this CPU, if it isn't `PERF_TYPE_RAW`. That reaches only the large
/// cores of a hybrid; the small cores' PMUs have numbers of their own.
#[must_use]
pub fn raw_type(root: &Root, cpu: usize) -> Option<u32> {
    let pmu = of_cpu(root, cpu).filter(|pmu| SMALL_CORES.contains(&pmu.as_str()))?;
    root.text(&format!("{DEVICES}/{pmu}/type"))?
        .trim()
        .parse()
        .ok()
}

/// Whether perf's `L1-dcache-load-misses` counts on this CPU the lines that come into the L1D, for loads, stores and
/// prefetches (L1D.REPLACEMENT; L1D.REPL before Sandy Bridge), as the kernel programs it on Intel's cores from Nehalem to
/// Ice Lake (`arch/x86/events/intel/core.c`).
#[must_use]
pub fn l1d_misses_are_lines(root: &Root, cpu: usize) -> bool {
    const CORES: [&str; 8] = [
        "nehalem",
        "westmere",
        "sandybridge",
        "ivybridge",
        "haswell",
        "broadwell",
        "skylake",
        "icelake",
    ];
    let name =
        of_cpu(root, cpu).and_then(|pmu| root.text(&format!("{DEVICES}/{pmu}/caps/pmu_name")));
    name.is_some_and(|name| CORES.contains(&name.trim()))
}

/// The PMU that counts raw events on this CPU, and the bits of `config1` or `config2` that its events use.
#[must_use]
pub fn field_bits(root: &Root, cpu: usize, field: &str) -> (Option<String>, u64) {
    let Some(pmu) = of_cpu(root, cpu) else {
        return (None, 0);
    };
    let formats = format!("{DEVICES}/{pmu}/format");
    let names = root.names(&formats);
    let texts = names
        .iter()
        .filter_map(|name| root.text(&format!("{formats}/{name}")));
    let bits = texts.fold(0, |bits, text| bits | bits_of(text.trim(), field));
    (Some(pmu), bits)
}

/// Arm's PMUs have the core's name; x86's are `cpu`, or those of a hybrid. If there are several, each lists its CPUs.
fn is_of_core(root: &Root, cpu: usize, pmu: &str) -> bool {
    let arm = pmu.starts_with("armv") || pmu.starts_with("apple_");
    if !arm && !["cpu", LARGE_CORES].contains(&pmu) && !SMALL_CORES.contains(&pmu) {
        return false;
    }
    match root.text(&format!("{DEVICES}/{pmu}/cpus")) {
        Some(cpus) => cpus
            .trim()
            .parse::<CpuSet>()
            .is_ok_and(|cpus| cpus.contains(cpu)),
        None => true,
    }
}

/// The bits in `config1:0-37,63` if it describes that field.
fn bits_of(format: &str, field: &str) -> u64 {
    let Some((name, ranges)) = format.split_once(':') else {
        return 0;
    };
    if name != field {
        return 0;
    }
    let bits = ranges.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        (first <= last && last < 64).then(|| (u64::MAX >> (63 - last)) & (u64::MAX << first))
    });
    bits.fold(0, |all, some| all | some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hybrids_cores_have_a_pmu_of_each_type() {
        let folder = tempfile::tempdir().unwrap();
        let devices = folder.path().join(&DEVICES[1..]);
        for (pmu, number, cpus) in [
            ("cpu_atom", "10\n", Some("2-3")),
            ("cpu_lowpower", "11\n", Some("4")),
            (LARGE_CORES, "4\n", Some("0-1")),
            ("uncore_imc_0", "17\n", None),
        ] {
            std::fs::create_dir_all(devices.join(pmu)).unwrap();
            std::fs::write(devices.join(pmu).join("type"), number).unwrap();
            if let Some(cpus) = cpus {
                std::fs::write(devices.join(pmu).join("cpus"), cpus).unwrap();
            }
        }
        let root = Root::at(folder.path());
        let pmus: Vec<_> = (0..6).map(|cpu| of_cpu(&root, cpu)).collect();
        let pmus: Vec<_> = pmus.iter().map(Option::as_deref).collect();
        let (core, atom, low) = (Some(LARGE_CORES), Some("cpu_atom"), Some("cpu_lowpower"));
        assert_eq!(pmus, [core, core, atom, atom, low, None]);
        let types: Vec<_> = (0..6).map(|cpu| raw_type(&root, cpu)).collect();
        assert_eq!(types, [None, None, Some(10), Some(10), Some(11), None]);
    }

    #[test]
    fn lines_into_the_l1d_are_counted_on_some_cores() {
        for (name, lines) in [
            ("core2\n", false),
            ("nehalem\n", true),
            ("westmere\n", true),
            ("skylake\n", true),
            ("sapphire_rapids\n", false),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let caps = folder.path().join(&DEVICES[1..]).join("cpu/caps");
            std::fs::create_dir_all(&caps).unwrap();
            std::fs::write(caps.join("pmu_name"), name).unwrap();
            let root = Root::at(folder.path());
            assert_eq!(l1d_misses_are_lines(&root, 0), lines, "{name}");
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(!l1d_misses_are_lines(&Root::at(empty.path()), 0));
    }

    #[test]
    fn bits_of_a_format_are_those_of_its_ranges() {
        assert_eq!(bits_of("config1:0-1,63", "config1"), 0x8000_0000_0000_0003);
        assert_eq!(bits_of("config1:0-63", "config1"), u64::MAX);
        assert_eq!(bits_of("config:0-7", "config1"), 0);
        assert_eq!(bits_of("config1:9-3,64", "config1"), 0);
        assert_eq!(bits_of("garbage", "config1"), 0);
    }
}
