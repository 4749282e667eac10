// SPDX-License-Identifier: MIT OR Apache-2.0
//! What two CPUs share besides memory: a core, a package, a NUMA node.

use crate::Root;
use crate::cpus::CpuSet;

/// The other hardware threads of the core of `cpu`; empty if it has none, or the kernel does not report them.
#[must_use]
pub fn siblings(root: &Root, cpu: usize) -> CpuSet {
    let text = of_cpu(root, cpu, "thread_siblings_list");
    let threads: CpuSet = text.and_then(|text| text.parse().ok()).unwrap_or_default();
    threads.iter().filter(|&other| other != cpu).collect()
}

/// The package (socket) of `cpu`; none if the kernel does not know it.
#[must_use]
pub fn package(root: &Root, cpu: usize) -> Option<u32> {
    // The kernel prints -1 for an unknown one.
    of_cpu(root, cpu, "physical_package_id")?.parse().ok()
}

fn of_cpu(root: &Root, cpu: usize, file: &str) -> Option<String> {
    root.text(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/{file}"))
}

/// True if both CPUs are known to be in different packages.
fn apart(root: &Root, one: usize, other: usize) -> bool {
    let packages = package(root, one).zip(package(root, other));
    packages.is_some_and(|(one, other)| one != other)
}

/// The CPUs for a load beside `cpu`, of `among`: those of other cores in its package. Without any, those of other cores;
/// without any, all others.
#[must_use]
pub fn beside(root: &Root, cpu: usize, among: &CpuSet) -> CpuSet {
    let threads = siblings(root, cpu);
    let others = || among.iter().filter(|&other| other != cpu);
    let on_other_cores = || others().filter(|&other| !threads.contains(other));
    let near: CpuSet = on_other_cores()
        .filter(|&other| !apart(root, cpu, other))
        .collect();
    if !near.is_empty() {
        return near;
    }
    let far: CpuSet = on_other_cores().collect();
    if far.is_empty() {
        others().collect()
    } else {
        far
    }
}

/// Remarks on a load on `cpus` beside the measured `cpu`: on what they share besides memory, or do not share. `what` is
/// measured, such as `the victim`.
#[must_use]
pub fn remarks(root: &Root, what: &str, cpu: usize, cpus: &CpuSet) -> Vec<String> {
    let threads = siblings(root, cpu);
    let of_its_core: CpuSet = cpus
        .iter()
        .filter(|&other| threads.contains(other))
        .collect();
    let elsewhere: CpuSet = cpus
        .iter()
        .filter(|&other| apart(root, cpu, other))
        .collect();
    let mut remarks = Vec::new();
    if !of_its_core.is_empty() {
        remarks.push(format!(
            "{}: a hardware thread of the same core as {what}'s CPU{cpu}. They compete for the core's execution units and \
             first caches, too, so the figures beside it show more than interference in memory.",
            named(&of_its_core)
        ));
    }
    if !elsewhere.is_empty() {
        remarks.push(format!(
            "{}: in another package than {what}'s CPU{cpu}, usually with a last-level cache and a memory controller of its \
             own, so the figures may show less interference than cores of one package cause.",
            named(&elsewhere)
        ));
    }
    remarks
}

/// A remark on the CPUs of `usable` that [`beside`] left out of `cpus`, the default.
#[must_use]
pub fn left_out(
    root: &Root,
    what: &str,
    cpu: usize,
    cpus: &CpuSet,
    usable: &CpuSet,
) -> Option<String> {
    let others = usable.iter().filter(|&other| other != cpu);
    let out: CpuSet = others.filter(|&other| !cpus.contains(other)).collect();
    let threads = siblings(root, cpu);
    let of_its_core: CpuSet = out
        .iter()
        .filter(|&other| threads.contains(other))
        .collect();
    let elsewhere: CpuSet = out
        .iter()
        .filter(|&other| !threads.contains(other))
        .collect();
    let mut why = Vec::new();
    if !of_its_core.is_empty() {
        why.push(format!("{} (of the same core)", named(&of_its_core)));
    }
    if !elsewhere.is_empty() {
        why.push(format!("{} (in another package)", named(&elsewhere)));
    }
    (!why.is_empty()).then(|| {
        format!(
            "By default, CPUs that share {what}'s core or are in another package have no load: {}. --cpus includes them.",
            why.join(", ")
        )
    })
}

fn named(cpus: &CpuSet) -> String {
    let s = if cpus.len() == 1 { "" } else { "s " };
    format!("CPU{s}{cpus}")
}

/// The NUMA node of `cpu`; none without NUMA.
#[must_use]
pub fn node(root: &Root, cpu: usize) -> Option<usize> {
    let names = root.names(&format!("/sys/devices/system/cpu/cpu{cpu}"));
    let mut numbers = names.iter().filter_map(|name| name.strip_prefix("node"));
    numbers.find_map(|number| number.parse().ok())
}

/// The share of the mapping's pages in `range` that are on other NUMA nodes than that of `cpu`; none on a machine with one
/// node, or if the kernel does not report it.
#[must_use]
pub fn remote_share(root: &Root, cpu: usize, range: std::ops::Range<u64>) -> Option<f64> {
    let with_memory: CpuSet = root
        .text("/sys/devices/system/node/has_memory")?
        .parse()
        .ok()?;
    let node = node(root, cpu)?;
    if with_memory.len() < 2 && with_memory.contains(node) {
        return None;
    }
    remote(&root.text("/proc/self/numa_maps")?, node, range)
}

/// The same from the text of numa_maps. The kernel merges adjacent mappings of the same kind, and its lines have no end:
/// those that begin in the range, and the last one before it.
fn remote(numa_maps: &str, node: usize, range: std::ops::Range<u64>) -> Option<f64> {
    let start = |line: &str| u64::from_str_radix(line.split_whitespace().next()?, 16).ok();
    let lines = || {
        numa_maps
            .lines()
            .filter_map(|line| Some((start(line)?, line)))
    };
    let first = lines()
        .map(|(start, _)| start)
        .filter(|start| *start <= range.start)
        .max();
    let (mut all, mut local) = (0_u64, 0_u64);
    for (start, line) in lines() {
        if Some(start) != first && !range.contains(&start) {
            continue;
        }
        for word in line.split_whitespace() {
            let pages = word.strip_prefix('N').and_then(|word| word.split_once('='));
            let Some((on, pages)) = pages else { continue };
            let (Ok(on), Ok(pages)) = (on.parse::<usize>(), pages.parse::<u64>()) else {
                continue;
            };
            all += pages;
            local += if on == node { pages } else { 0 };
        }
    }
    (all > 0).then(|| (all - local) as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of CPUs with their threads, package and node.
    fn machine(cpus: &[(&str, i32, usize)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (cpu, (threads, package, node)) in cpus.iter().enumerate() {
            let cpu = folder
                .path()
                .join(format!("sys/devices/system/cpu/cpu{cpu}"));
            std::fs::create_dir_all(cpu.join("topology")).unwrap();
            std::fs::create_dir_all(cpu.join(format!("node{node}"))).unwrap();
            let file = |name: &str| cpu.join("topology").join(name);
            std::fs::write(file("thread_siblings_list"), format!("{threads}\n")).unwrap();
            std::fs::write(file("physical_package_id"), format!("{package}\n")).unwrap();
        }
        folder
    }

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    /// Two packages of two cores with two threads each: 0-3 and 4-7 are the first threads' and the second threads' CPUs.
    const TWO_PACKAGES: [(&str, i32, usize); 8] = [
        ("0,4", 0, 0),
        ("1,5", 0, 0),
        ("2,6", 1, 1),
        ("3,7", 1, 1),
        ("0,4", 0, 0),
        ("1,5", 0, 0),
        ("2,6", 1, 1),
        ("3,7", 1, 1),
    ];

    #[test]
    fn a_load_is_beside_a_core_not_on_it_and_in_its_package() {
        let folder = machine(&TWO_PACKAGES);
        let root = Root::at(folder.path());
        let beside = |cpu, among| beside(&root, cpu, &set(among)).to_string();
        assert_eq!(beside(0, "0-7"), "1,5");
        assert_eq!(beside(6, "0-7"), "3,7");
        // Other cores are left in the other package only, then none.
        assert_eq!(beside(0, "0,2-4,6-7"), "2-3,6-7");
        assert_eq!(beside(0, "0,4"), "4");
        assert_eq!(beside(0, "0"), "");
    }

    #[test]
    fn threads_of_one_core_and_cores_of_other_packages_are_told() {
        let folder = machine(&TWO_PACKAGES);
        let root = Root::at(folder.path());
        let told = |cpus| remarks(&root, "the victim", 0, &set(cpus));
        assert_eq!(told("1,5"), Vec::<String>::new());
        let threads = told("1,4-5");
        assert_eq!(threads.len(), 1);
        assert!(
            threads[0]
                .starts_with("CPU4: a hardware thread of the same core as the victim's CPU0."),
            "{threads:?}"
        );
        let both = told("1-7");
        assert!(both[1].starts_with("CPUs 2-3,6-7: in another package than the victim's CPU0"));
        assert_eq!(
            left_out(&root, "the victim", 0, &set("1,5"), &set("0-7")).unwrap(),
            "By default, CPUs that share the victim's core or are in another package have no load: CPU4 (of the same core), \
             CPUs 2-3,6-7 (in another package). --cpus includes them."
        );
        assert_eq!(
            left_out(&root, "the victim", 0, &set("1-7"), &set("0-7")),
            None
        );
    }

    #[test]
    fn a_machine_that_reports_no_topology_uses_all_cpus_and_tells_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let unknown = machine(&[("0", -1, 0), ("1", -1, 0), ("2", 0, 0)]);
        for folder in [&folder, &unknown] {
            let root = Root::at(folder.path());
            assert_eq!(beside(&root, 0, &set("0-2")), set("1-2"));
            assert!(remarks(&root, "the victim", 0, &set("1-2")).is_empty());
        }
    }

    const NUMA_MAPS: &str = "\
        5560c1a00000 default file=/usr/bin/x mapped=100 N0=100 kernelpagesize_kB=4\n\
        7f0000000000 default anon=2048 dirty=2048 active=0 N0=512 N1=1536 kernelpagesize_kB=4\n\
        7f0001000000 default anon=8 dirty=8 N2=8 kernelpagesize_kB=4\n\
        7ffc00000000 default stack anon=4 dirty=4 N0=4 kernelpagesize_kB=4\n";

    #[test]
    fn remote_pages_are_those_of_the_mapping_on_other_nodes() {
        let share = |node, from, to| remote(NUMA_MAPS, node, from..to);
        let buffer = 0x7f00_0000_0000;
        assert_eq!(share(0, buffer, buffer + 0x80_0000), Some(0.75));
        assert_eq!(share(1, buffer, buffer + 0x80_0000), Some(0.25));
        // Merged with the mapping before it.
        assert_eq!(share(0, buffer + 0x1000, buffer + 0x80_0000), Some(0.75));
        assert_eq!(share(2, 0x7f00_0100_0000, 0x7f00_0100_8000), Some(0.0));
        assert_eq!(share(0, 0, 1), None);
    }

    #[test]
    fn a_machine_with_one_node_has_no_remote_memory() {
        let folder = machine(&TWO_PACKAGES);
        let root = Root::at(folder.path());
        let file = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let range = 0x7f00_0000_0000..0x7f00_0080_0000;
        file("proc/self/numa_maps", NUMA_MAPS);
        assert_eq!(remote_share(&root, 0, range.clone()), None);
        file("sys/devices/system/node/has_memory", "0\n");
        assert_eq!(remote_share(&root, 0, range.clone()), None);
        // The only memory is on the other node.
        assert_eq!(remote_share(&root, 3, range.clone()), Some(0.25));
        file("sys/devices/system/node/has_memory", "0-1\n");
        assert_eq!(remote_share(&root, 0, range), Some(0.75));
    }
}
