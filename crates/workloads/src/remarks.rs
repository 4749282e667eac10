// SPDX-License-Identifier: MIT OR Apache-2.0
//! Remarks on a figure: whether it is of memory or of a cache, and what else it includes.

use memwarden_platform::cache;
use memwarden_platform::units::size_text;
use memwarden_platform::{Root, mapping};

use crate::bandwidth::Access;
use crate::{BufferConfig, LINE_BYTES};

/// Multiple of the last-level cache from which a buffer counts as memory: of lines touched in order or at random, at
/// most a quarter can still be in the cache.
const MEMORY_FACTOR: u64 = 4;

/// Buffer size from which a workload on `cpu` measures memory, not cache; none if the caches are unknown.
#[must_use]
pub fn memory_bytes(root: &Root, cpu: usize) -> Option<u64> {
    Some(cache::last_level(root, cpu)?.size_bytes? * MEMORY_FACTOR)
}

/// Remarks on a `latency` figure taken on `cpu`.
#[must_use]
pub fn latency(
    root: &Root,
    cpu: usize,
    buffer: &BufferConfig,
    lines: u64,
    sequential: bool,
) -> Vec<String> {
    let mut remarks = vec![cache_or_memory(
        root,
        cpu,
        buffer,
        lines * LINE_BYTES as u64,
    )];
    if sequential {
        remarks.push("in address order: hardware prefetchers hide most of the latency".to_owned());
    // 2048 pages are the reach of a large second-level TLB.
    } else if !buffer.huge_pages && buffer.bytes / mapping::page_bytes() > 2048 {
        remarks.push(format!(
            "the buffer has {} pages, more than a TLB holds: TLB misses are part of the figure (-x, huge pages, leaves them out)",
            size_text(mapping::page_bytes() as u64)
        ));
    }
    remarks
}

/// Remarks on a `bandwidth` figure taken on `cpu`, where `footprint` bytes of
/// lines were touched over and over.
#[must_use]
pub fn bandwidth(
    root: &Root,
    cpu: usize,
    access: &Access,
    buffer: &BufferConfig,
    footprint: u64,
) -> Vec<String> {
    match access {
        Access::FreshPages => vec![access.traffic().to_owned()],
        Access::Buffer(_) | Access::Screen => {
            let mut remarks = vec![cache_or_memory(root, cpu, buffer, footprint)];
            // In a cache the lines cause no traffic of memory.
            if !fits_in_cache(root, cpu, footprint) {
                remarks.push(access.traffic().to_owned());
            }
            remarks
        }
    }
}

/// True if the last-level cache is known to hold the touched lines.
fn fits_in_cache(root: &Root, cpu: usize, footprint: u64) -> bool {
    let bytes = cache::last_level(root, cpu).and_then(|last| last.size_bytes);
    bytes.is_some_and(|bytes| footprint <= bytes)
}

fn cache_or_memory(root: &Root, cpu: usize, buffer: &BufferConfig, footprint: u64) -> String {
    let touched = size_text(footprint);
    let Some(last) = cache::last_level(root, cpu) else {
        return format!("cache sizes are unknown here: {touched} may be cache or memory");
    };
    let bytes = last.size_bytes.unwrap_or(0);
    // The buffer size whose touched part is large enough; with a stride or a bank mask only a part is touched.
    let enough =
        u128::from(bytes * MEMORY_FACTOR) * buffer.bytes as u128 / u128::from(footprint.max(1));
    let mib = enough.div_ceil(1 << 20);
    if footprint <= bytes {
        format!(
            "{touched} fits in this machine's {last} (CPUs {}): this is cache, not memory; -m {mib}M would be memory",
            last.cpus
        )
    } else if footprint < bytes * MEMORY_FACTOR {
        format!(
            "{touched} is not much more than this machine's {last} (CPUs {}): this is partly cache; -m {mib}M would be memory",
            last.cpus
        )
    } else {
        format!(
            "{touched} is far more than this machine's {last} (CPUs {}): this is memory",
            last.cpus
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine_with_l3(size: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let index = directory
            .path()
            .join("sys/devices/system/cpu/cpu0/cache/index3");
        std::fs::create_dir_all(&index).unwrap();
        for (file, text) in [
            ("level", "3"),
            ("type", "Unified"),
            ("size", size),
            ("shared_cpu_list", "0-7"),
        ] {
            std::fs::write(index.join(file), format!("{text}\n")).unwrap();
        }
        directory
    }

    #[test]
    fn a_figure_says_whether_it_is_cache_or_memory() {
        for (l3, mib, says) in [
            (
                "307200K",
                16,
                "16 MiB fits in this machine's L3 300 MiB (CPUs 0-7): this is cache, not memory; -m 1200M would be memory",
            ),
            (
                "8192K",
                16,
                "16 MiB is not much more than this machine's L3 8 MiB (CPUs 0-7): this is partly cache; -m 32M would be memory",
            ),
            (
                "512K",
                16,
                "16 MiB is far more than this machine's L3 512 KiB (CPUs 0-7): this is memory",
            ),
        ] {
            let machine = machine_with_l3(l3);
            let buffer = BufferConfig {
                bytes: mib << 20,
                ..Default::default()
            };
            assert_eq!(
                cache_or_memory(&Root::at(machine.path()), 0, &buffer, (mib << 20) as u64),
                says
            );
        }
    }

    #[test]
    fn the_traffic_of_memory_is_explained_only_if_there_is_some() {
        let machine = machine_with_l3("8192K");
        let remarks = |mib: usize| {
            let buffer = BufferConfig {
                bytes: mib << 20,
                ..Default::default()
            };
            let access = Access::named("read").unwrap();
            bandwidth(
                &Root::at(machine.path()),
                0,
                &access,
                &buffer,
                (mib << 20) as u64,
            )
        };
        assert_eq!(remarks(1).len(), 1);
        assert!(remarks(64)[1].contains("from memory"));
    }

    #[test]
    fn a_machine_without_cache_sizes_is_not_guessed_at() {
        let empty = tempfile::tempdir().unwrap();
        let remark = cache_or_memory(
            &Root::at(empty.path()),
            0,
            &BufferConfig::default(),
            1 << 24,
        );
        assert!(remark.contains("unknown"), "{remark}");
    }
}
