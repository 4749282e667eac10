// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that this process can still use: what the machine has available, within the limits of its control groups. Of a
//! larger buffer the kernel kills the process instead of refusing the memory.

use std::fmt;
use std::path::Path;

use crate::Root;
use crate::machine::meminfo;
use crate::memory_group::{Version, place};
use crate::units::size_text;

/// Memory that this process can still use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeMemory {
    /// Its size.
    pub bytes: u64,
    /// The control group whose limit leaves less than the machine has available.
    pub group: Option<Limit>,
}

/// A control group's limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The group, such as `/system.slice/docker-1234.scope`.
    pub group: String,
    /// Its limit.
    pub bytes: u64,
}

/// As in `300 MiB of memory that is free`.
impl fmt::Display for FreeMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of memory that ", size_text(self.bytes))?;
        match &self.group {
            Some(Limit { group, bytes }) => write!(
                f,
                "control group {group} leaves (its limit is {})",
                size_text(*bytes)
            ),
            None => write!(f, "is free"),
        }
    }
}

/// The least of `MemAvailable` and of what the limit of each group leaves; `None` if the kernel reports neither.
#[must_use]
pub fn free(root: &Root) -> Option<FreeMemory> {
    let machine = meminfo(root, "MemAvailable").map(|bytes| FreeMemory { bytes, group: None });
    // The first of equal ones: the machine.
    machine
        .into_iter()
        .chain(headroom(root))
        .min_by_key(|free| free.bytes)
}

/// What the limits of this process's own group and the groups above it leave; `None` without a limit.
fn headroom(root: &Root) -> Option<FreeMemory> {
    let (place, version) = place(root).ok()?;
    let groups = root.text("/proc/self/cgroup")?;
    let own = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let ours = match version {
            Version::First => controllers.split(',').any(|one| one == "memory"),
            Version::Second => controllers.is_empty(),
        };
        ours.then_some(path)
    })?;
    // In a container the path may be the host's: then the mounted folder itself is the container's group.
    Path::new(own)
        .ancestors()
        .filter_map(|group| {
            let folder = place.join(group.strip_prefix("/").unwrap_or(group));
            Some(FreeMemory {
                bytes: left(&folder, version)?,
                group: Some(Limit {
                    group: group.display().to_string(),
                    bytes: limit(&folder, version)?,
                }),
            })
        })
        .min_by_key(|free| free.bytes)
}

fn number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// A group's limit; `None` if it has none.
fn limit(folder: &Path, version: Version) -> Option<u64> {
    match version {
        // No limit is the largest number of whole pages.
        Version::First => {
            number(&folder.join("memory.limit_in_bytes")).filter(|&bytes| bytes < 1 << 62)
        }
        Version::Second => number(&folder.join("memory.max")),
    }
}

/// What a group's limit leaves. As in `MemAvailable`, the page cache counts as free: the kernel reclaims it.
fn left(folder: &Path, version: Version) -> Option<u64> {
    let (used, reclaimable) = match version {
        Version::First => (
            "memory.usage_in_bytes",
            ["total_inactive_file", "total_active_file"],
        ),
        Version::Second => ("memory.current", ["inactive_file", "active_file"]),
    };
    let used = number(&folder.join(used))?;
    let statistics = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cached: u64 = statistics
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| reclaimable.contains(name))
        .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
        .sum();
    Some(limit(folder, version)?.saturating_sub(used.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;

    const SECOND: [(&str, &str); 4] = [
        ("proc/meminfo", "MemAvailable: 8192 kB\n"),
        ("proc/mounts", "cgroup2 /cg cgroup2 rw 0 0\n"),
        ("proc/self/cgroup", "1:cpu:/x\n0::/a/b\n"),
        ("cg/cgroup.controllers", "cpu memory"),
    ];

    fn of_second(files: &[(&str, &str)]) -> FreeMemory {
        let (_folder, root) = machine(&[&SECOND, files].concat());
        free(&root).unwrap()
    }

    #[test]
    fn the_least_limit_of_the_own_group_and_those_above_counts() {
        let own = [
            ("cg/a/b/memory.max", "4194304\n"),
            ("cg/a/b/memory.current", "1048576\n"),
        ];
        let found = of_second(&own);
        assert_eq!(
            found.to_string(),
            "3 MiB of memory that control group /a/b leaves (its limit is 4 MiB)"
        );
        let above = [
            ("cg/a/memory.max", "5242880\n"),
            ("cg/a/memory.current", "3145728\n"),
        ];
        let found = of_second(&[own, above].concat());
        assert_eq!(
            found.to_string(),
            "2 MiB of memory that control group /a leaves (its limit is 5 MiB)"
        );
    }

    #[test]
    fn a_group_without_a_limit_or_with_a_large_one_leaves_what_is_free() {
        for limit in ["max\n", "99999999\n"] {
            let found = of_second(&[
                ("cg/a/b/memory.max", limit),
                ("cg/a/b/memory.current", "1048576\n"),
            ]);
            assert_eq!(found.to_string(), "8 MiB of memory that is free");
        }
    }

    #[test]
    fn the_page_cache_of_a_group_is_free() {
        let found = of_second(&[
            ("cg/a/b/memory.max", "4194304\n"),
            ("cg/a/b/memory.current", "4194304\n"),
            (
                "cg/a/b/memory.stat",
                "anon 1048576\nfile 3145728\ninactive_file 1048576\nactive_file 1048576\n",
            ),
        ]);
        assert_eq!(found.bytes, 2 << 20);
    }

    /// The path is the host's, and the container's own group is mounted.
    #[test]
    fn a_container_is_limited_by_the_group_that_it_sees() {
        let (_folder, root) = machine(&[
            ("proc/meminfo", "MemAvailable: 8192 kB\n"),
            ("proc/mounts", "cgroup /v1 cgroup rw,memory 0 0\n"),
            ("proc/self/cgroup", "4:memory:/docker/1234\n0::/\n"),
            ("v1/memory.limit_in_bytes", "4194304\n"),
            ("v1/memory.usage_in_bytes", "1048576\n"),
        ]);
        let found = free(&root).unwrap();
        assert_eq!(
            (found.bytes, found.group.unwrap().bytes),
            (3 << 20, 4 << 20)
        );
    }

    #[test]
    fn without_figures_nothing_is_known() {
        let (_folder, root) = machine(&[]);
        assert_eq!(free(&root), None);
        let (_folder, root) = machine(&[
            ("proc/mounts", "cgroup /v1 cgroup rw,memory 0 0\n"),
            ("proc/self/cgroup", "4:memory:/\n"),
            ("v1/memory.limit_in_bytes", "9223372036854771712\n"),
            ("v1/memory.usage_in_bytes", "1048576\n"),
        ]);
        assert_eq!(free(&root), None);
    }
}
