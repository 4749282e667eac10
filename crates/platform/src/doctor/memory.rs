// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of what lies between a core and memory, and of what else moves bytes.

use std::os::unix::fs::FileExt;

use super::{Finding, Level, Patient};
use crate::hugepage::Pool;
use crate::units::size_text;
use crate::{cache, hugepage, machine};

pub(super) fn caches(patient: &Patient) -> Finding {
    let caches = cache::topology(patient.root).unwrap_or_default();
    let known: Vec<String> = caches
        .iter()
        .filter(|cache| cache.size_bytes.is_some())
        .map(ToString::to_string)
        .collect();
    if known.is_empty() {
        return Finding::new(
            Level::Unknown,
            "caches",
            "the kernel does not report their sizes",
            "runs cannot report whether they measured cache or memory: choose -m well above the size in the CPU's \
             manual",
        );
    }
    // Sorted by level and kind, so that equal ones are adjacent.
    let text: Vec<String> = known
        .chunk_by(|a, b| a == b)
        .map(|equal| format!("{} x {}", equal.len(), equal[0]))
        .collect();
    Finding::new(
        Level::Ok,
        "caches",
        text.join(", "),
        "runs report whether they measured cache or memory",
    )
}

/// Intel's MSR_MISC_FEATURE_CONTROL ("Disclosure of hardware prefetcher control
/// on some Intel processors"): each of bits 0 to 3 turns one prefetcher off.
const INTEL_PREFETCH_CONTROL: u64 = 0x1a4;

pub(super) fn prefetchers(patient: &Patient) -> Finding {
    let name = "prefetchers";
    let hides =
        "prefetchers hide the latency of sequential accesses, and fetch lines that no load needs";
    match machine::cpuinfo(patient.root, "vendor_id").as_deref() {
        Some("GenuineIntel") => {}
        Some(_) => {
            return Finding::new(Level::Unknown, name, "Linux does not report them", hides)
                .change("the firmware's setup, if it has a switch");
        }
        None => {
            return Finding::new(Level::Unknown, name, "Linux does not report them", hides)
                .change("the firmware (a Cortex-A53's CPUACTLR_EL1 can be written only from EL3)");
        }
    }
    let mut register = [0; 8];
    let read = std::fs::File::open(patient.root.path("/dev/cpu/0/msr"))
        .and_then(|file| file.read_exact_at(&mut register, INTEL_PREFETCH_CONTROL));
    if read.is_err() {
        return Finding::new(Level::Unknown, name, "register 0x1a4 cannot be read", hides)
            .change("modprobe msr, then run as root; wrmsr -a 0x1a4 0xf turns them off");
    }
    match u64::from_le_bytes(register) & 0xf {
        0xf => Finding::new(Level::Ok, name, "off", "only requested lines are fetched"),
        off => Finding::new(
            Level::Limited,
            name,
            format!("{} of 4 on", 4 - off.count_ones()),
            hides,
        )
        .change("wrmsr -a 0x1a4 0xf"),
    }
}

/// Enough for the workloads' buffers, which are well above a last-level cache.
const RESERVED_BYTES: u64 = 128 << 20;

/// The remedy that adds huge pages to the pool. They are taken from all other programs: at most a quarter of the available
/// memory.
fn reserve(pool: &Pool, pools: &[Pool], available: Option<u64>) -> String {
    let page = pool.page_bytes;
    let most = available.map_or(u64::MAX, |bytes| bytes / 4 / page);
    if most == 0 {
        let smaller = pools.iter().rfind(|other| other.page_bytes < page);
        return format!(
            "end other programs{}: one page is more than a quarter of the available memory",
            smaller
                .map(|other| format!(
                    ", or boot with default_hugepagesz={}K",
                    other.page_bytes >> 10
                ))
                .unwrap_or_default()
        );
    }
    let pages = RESERVED_BYTES.div_ceil(page).min(most);
    format!("echo {} > /proc/sys/vm/nr_hugepages", pool.total + pages)
}

pub(super) fn huge_pages(patient: &Patient) -> Finding {
    let name = "huge pages";
    let pools = hugepage::pools(patient.root);
    let Some(default) = hugepage::default_bytes(patient.root).map(|bytes| bytes as u64) else {
        return Finding::new(
            Level::Missing,
            name,
            "not in this kernel",
            "-x does not work here",
        )
        .change("a kernel with CONFIG_HUGETLBFS");
    };
    let Some(pool) = pools.iter().find(|pool| pool.page_bytes == default) else {
        return Finding::new(
            Level::Missing,
            name,
            "no pool of the default size",
            "-x does not work here",
        )
        .change("a kernel with CONFIG_HUGETLBFS");
    };
    let size = size_text(pool.page_bytes);
    let reserve = reserve(pool, &pools, machine::meminfo(patient.root, "MemAvailable"));
    if pool.total == 0 {
        Finding::new(
            Level::Missing,
            name,
            format!("none reserved ({size} each)"),
            "-x does not work; latency has TLB misses in it",
        )
        .change(reserve)
    } else if pool.free == 0 {
        Finding::new(
            Level::Limited,
            name,
            format!("0 of {} free ({size} each)", pool.total),
            "-x does not work until some are free",
        )
        .change(reserve)
    } else {
        Finding::new(
            Level::Ok,
            name,
            format!("{} of {} free ({size} each)", pool.free, pool.total),
            "-x takes TLB misses out of the figures",
        )
    }
}

pub(super) fn transparent_huge_pages(patient: &Patient) -> Finding {
    let name = "transparent huge pages";
    match hugepage::transparent(patient.root) {
        Some(mode) if mode == "always" => Finding::new(
            Level::Limited,
            name,
            "always",
            "a fault may bring in a huge page, so page faults do not measure other programs' traffic",
        )
        .change("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
        Some(mode) => Finding::new(Level::Ok, name, mode, "a fault brings in one page, unless a program asks for more"),
        None => Finding::new(Level::Ok, name, "not in this kernel", "a fault brings in one page"),
    }
}

pub(super) fn dma(patient: &Patient) -> Finding {
    let channels = patient.root.names("/sys/class/dma");
    if channels.is_empty() {
        return Finding::new(Level::Missing, "DMA engines", "none", "copies by DMA have no engine here")
            .change("modprobe the driver of this machine's engine (ioatdma, ptdma, idxd, zynqmp_dma, bcm2835-dma)");
    }
    Finding::new(
        Level::Ok,
        "DMA engines",
        format!("{} channels", channels.len()),
        "copies can be tried on them (not every channel copies memory)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_pages_leave_memory_to_others() {
        let pool = |page_bytes, total| Pool {
            page_bytes,
            total,
            free: 0,
        };
        let pools = [pool(2 << 20, 0), pool(512 << 20, 0)];
        let command = |pages: u64| format!("echo {pages} > /proc/sys/vm/nr_hugepages");
        for (page_bytes, total, available, says) in [
            (2 << 20, 0, None, command(64)),
            (2 << 20, 64, None, command(128)),
            (2 << 20, 0, Some(64 << 20), command(8)),
            (32 << 20, 0, Some(16 << 30), command(4)),
            (512 << 20, 0, Some(16 << 30), command(1)),
            (512 << 20, 0, None, command(1)),
            (
                512 << 20,
                0,
                Some(1 << 30),
                "end other programs, or boot with default_hugepagesz=2048K: one page is more than a quarter of the \
                 available memory"
                    .into(),
            ),
            (
                2 << 20,
                0,
                Some(1 << 20),
                "end other programs: one page is more than a quarter of the available memory".into(),
            ),
        ] {
            let is = reserve(&pool(page_bytes, total), &pools, available);
            assert_eq!(is, says, "{page_bytes} {total} {available:?}");
        }
    }
}
