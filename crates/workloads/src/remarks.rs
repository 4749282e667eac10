// SPDX-License-Identifier: MIT OR Apache-2.0
//! Remarks on a figure: whether it is of memory or of a cache, and what else it includes.

use memwarden_platform::units::size_text;
use memwarden_platform::{Root, cache, mapping, topology};

use crate::bandwidth::Access;
use crate::{BufferConfig, LINE_BYTES, Placement, latency};

/// Multiple of the last-level cache from which a buffer counts as memory: of lines touched in order or at random, at
/// most a quarter can still be in the cache.
const MEMORY_FACTOR: u64 = 4;

/// Buffer size from which a workload on `cpu` measures memory, not cache; none if the caches are unknown.
#[must_use]
pub fn memory_bytes(root: &Root, cpu: usize) -> Option<u64> {
    Some(cache::last_level(root, cpu)?.size_bytes? * MEMORY_FACTOR)
}

/// Remarks on a `latency` figure.
#[must_use]
pub fn latency(root: &Root, config: &latency::Config, outcome: &latency::Outcome) -> Vec<String> {
    let buffer = &config.buffer;
    let mut remarks = vec![cache_or_memory(
        root,
        outcome.cpu,
        buffer,
        outcome.lines * LINE_BYTES as u64,
    )];
    if config.sequential {
        remarks.push("in address order: hardware prefetchers hide most of the latency".to_owned());
    } else if !buffer.huge_pages {
        remarks.extend(tlb_misses(
            buffer.bytes as u64,
            outcome.huge_bytes,
            mapping::page_bytes() as u64,
            outcome.touched_pages,
        ));
    }
    remarks
}

/// A remark on a buffer of which this share is on other NUMA nodes than that of `cpu`.
#[must_use]
pub fn remote_memory(root: &Root, cpu: usize, remote_share: Option<f64>) -> Option<String> {
    let percent = (remote_share? * 100.0).round();
    if percent < 1.0 {
        return None;
    }
    let node = topology::node(root, cpu)?;
    Some(format!(
        "{percent:.0} % of the buffer is in the memory of other NUMA nodes than CPU{cpu}'s node {node}: remote accesses are \
         part of the figure (numactl --membind={node} allows local memory only)"
    ))
}

/// A remark on a figure under SCHED_FIFO, of a loop that never sleeps: for a part of each second the kernel runs other
/// tasks instead.
#[must_use]
pub fn pauses(root: &Root, cpu: usize, placement: &Placement) -> Option<String> {
    placement.fifo_priority?;
    // Linux 6.12 and later, on kernels that tell: nanoseconds.
    let server = format!("/sys/kernel/debug/sched/fair_server/cpu{cpu}");
    let of_server = |file| root.number(&format!("{server}/{file}"));
    if let Some((runtime, period)) = of_server("runtime").zip(of_server("period")) {
        return (runtime > 0).then(|| {
            format!(
                "SCHED_FIFO: for {} ms of each {} ms the fair server runs ordinary tasks that wait for CPU{cpu}: such pauses \
                 are part of the figure (echo 0 >{server}/runtime prevents them)",
                runtime / 1_000_000,
                period / 1_000_000
            )
        });
    }
    let number = |file| root.number(&format!("/proc/sys/kernel/{file}"));
    let (runtime, period) = number("sched_rt_runtime_us").zip(number("sched_rt_period_us"))?;
    (0..period).contains(&runtime).then(|| {
        format!(
            "SCHED_FIFO: for {} ms of each {} ms the kernel stops real-time tasks (from Linux 6.12 on, only if ordinary \
             tasks wait for CPU{cpu}): such pauses are part of the figure (before 6.12, sysctl \
             kernel.sched_rt_runtime_us=-1 prevents them)",
            (period - runtime) / 1000,
            period / 1000
        )
    })
}

/// The part of TLB misses in a figure of random places in a buffer, of which `huge_bytes` are in transparent huge pages
/// and the rest in pages of `page_bytes`. The places are in `touched_pages` of this size.
fn tlb_misses(bytes: u64, huge_bytes: u64, page_bytes: u64, touched_pages: u64) -> Option<String> {
    // The reach of a large second-level TLB.
    const PAGES: u64 = 2048;
    if touched_pages <= PAGES {
        return None;
    }
    let page = size_text(page_bytes);
    let percent = (u128::from(huge_bytes) * 100 / u128::from(bytes)).min(100);
    let rest = bytes.saturating_sub(huge_bytes);
    // The places are spread evenly over the buffer.
    let touched_rest = u128::from(touched_pages) * u128::from(rest) / u128::from(bytes);
    Some(if percent == 0 {
        format!(
            "the buffer has {page} pages, more than a TLB holds: TLB misses are part of the figure (-x, huge pages, leaves \
             them out)"
        )
    } else if touched_rest > u128::from(PAGES) {
        format!(
            "{percent} % of the buffer is in transparent huge pages, the rest in {page} pages, more than a TLB holds: TLB \
             misses are part of the figure (-x, reserved huge pages, leaves them out)"
        )
    } else {
        format!(
            "{percent} % of the buffer is in transparent huge pages: the figure has fewer TLB misses than one of {page} \
             pages"
        )
    })
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
    fn tlb_misses_depend_on_the_pages_that_the_buffer_has() {
        let said = |mib: u64, huge_mib: u64, page_kib: u64| {
            let (bytes, page) = (mib << 20, page_kib << 10);
            tlb_misses(bytes, huge_mib << 20, page, bytes / page).unwrap_or_default()
        };
        assert_eq!(said(8, 0, 4), "");
        let said_small = said(128, 0, 4);
        assert!(
            said_small.starts_with(
                "the buffer has 4 KiB pages, more than a TLB holds: TLB misses are part"
            )
        );
        // 2048 of these pages are 32 MiB.
        assert_eq!(said(32, 0, 16), "");
        assert!(said(33, 0, 16).starts_with("the buffer has 16 KiB pages"));
        assert_eq!(
            said(128, 126, 4),
            "98 % of the buffer is in transparent huge pages: the figure has fewer TLB misses than one of 4 KiB pages"
        );
        assert_eq!(
            said(128, 64, 4),
            "50 % of the buffer is in transparent huge pages, the rest in 4 KiB pages, more than a TLB holds: TLB misses \
             are part of the figure (-x, reserved huge pages, leaves them out)"
        );
        // Less than 1 %.
        assert_eq!(said(1024, 2, 4), said_small);
    }

    #[test]
    fn pages_without_a_line_of_the_chase_need_no_place_in_the_tlb() {
        let said = |touched_pages| tlb_misses(128 << 20, 0, 4096, touched_pages);
        assert_eq!(said(64), None);
        assert_eq!(said(2048), None);
        assert!(said(2049).unwrap().contains("TLB misses are part"));

        let config = latency::Config {
            buffer: BufferConfig {
                bytes: 16 << 20,
                stride: 1 << 20,
                ..BufferConfig::default()
            },
            iterations: Some(1),
            ..latency::Config::default()
        };
        let outcome = latency::run(&config, &crate::Stop::new(), &mut ()).unwrap();
        let remarks = latency(&Root::system(), &config, &outcome);
        assert!(
            remarks.iter().all(|remark| !remark.contains("TLB")),
            "{remarks:?}"
        );
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

    fn write(folder: &tempfile::TempDir, path: &str, text: &str) {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn pauses_of_real_time_tasks_are_told_with_what_prevents_them() {
        let machine = tempfile::tempdir().unwrap();
        let root = Root::at(machine.path());
        let under = |fifo_priority| {
            let placement = Placement {
                fifo_priority,
                ..Placement::default()
            };
            pauses(&root, 2, &placement)
        };
        assert_eq!(under(Some(50)), None);
        write(&machine, "proc/sys/kernel/sched_rt_period_us", "1000000\n");
        for (runtime, told) in [
            ("950000\n", true),
            ("0", true),
            ("1000000", false),
            ("-1", false),
        ] {
            write(&machine, "proc/sys/kernel/sched_rt_runtime_us", runtime);
            assert_eq!(under(Some(50)).is_some(), told, "{runtime}");
            assert_eq!(under(None), None);
        }
        write(&machine, "proc/sys/kernel/sched_rt_runtime_us", "950000");
        let said = under(Some(1)).unwrap();
        assert!(
            said.starts_with(
                "SCHED_FIFO: for 50 ms of each 1000 ms the kernel stops real-time tasks"
            ),
            "{said}"
        );
        // What the kernel's own server reports counts.
        let server = "sys/kernel/debug/sched/fair_server/cpu2";
        write(&machine, &format!("{server}/period"), "1000000000");
        write(&machine, &format!("{server}/runtime"), "40000000");
        let said = under(Some(1)).unwrap();
        assert!(
            said.starts_with("SCHED_FIFO: for 40 ms of each 1000 ms the fair server"),
            "{said}"
        );
        write(&machine, &format!("{server}/runtime"), "0");
        assert_eq!(under(Some(1)), None);
    }

    #[test]
    fn remote_memory_is_told_and_a_page_of_a_neighbour_is_not() {
        let machine = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(machine.path().join("sys/devices/system/cpu/cpu9/node1")).unwrap();
        let root = Root::at(machine.path());
        let said = |share| remote_memory(&root, 9, share);
        assert_eq!(
            said(Some(0.374)).unwrap(),
            "37 % of the buffer is in the memory of other NUMA nodes than CPU9's node 1: remote accesses are part of the \
             figure (numactl --membind=1 allows local memory only)"
        );
        assert_eq!(
            (said(Some(0.004)), said(Some(0.0)), said(None)),
            (None, None, None)
        );
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
