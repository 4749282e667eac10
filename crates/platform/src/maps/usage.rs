// SPDX-License-Identifier: MIT OR Apache-2.0
//! Usage of a region's pages: resident, dirty or in swap; and sums.

use schemars::JsonSchema;
use serde::Serialize;

use super::explain::Explained;
use super::kind::{Kind, is_hugetlb};
use super::{Counts, Region};

/// A region's pages, from smaps. Null means that the kernel does not count them.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Usage {
    /// The size of the region's pages.
    pub page_bytes: Option<u64>,
    /// Pages in memory.
    pub resident_pages: Option<u64>,
    /// Resident bytes.
    pub resident_bytes: Option<u64>,
    /// Resident bytes that no other process maps.
    pub private_bytes: Option<u64>,
    /// Resident bytes that other processes map, too.
    pub shared_bytes: Option<u64>,
    /// Pages in memory, each divided by the number of processes that map it.
    pub proportional_bytes: Option<u64>,
    /// Pages that were written and, if they have a file, not yet written back.
    pub dirty_pages: Option<u64>,
    /// Dirty bytes.
    pub dirty_bytes: Option<u64>,
    /// Resident pages without a file; in a private mapping of a file, the copies of written pages.
    pub anonymous_bytes: Option<u64>,
    /// Pages in swap.
    pub swapped_pages: Option<u64>,
    /// Bytes in swap.
    pub swapped_bytes: Option<u64>,
}

impl Usage {
    /// The usage of a region from smaps.
    pub(super) fn of(region: &Region, kind: Kind) -> Self {
        let Some(counts) = &region.counts else {
            return Self::default();
        };
        // Pages without a struct page (a device's, the kernel's) and vsyscall are not counted: smaps prints 0 for them.
        let uncounted = counts.has("pf") == Some(true)
            || counts.has("io") == Some(true)
            || region.name.as_deref() == Some("[vsyscall]".as_ref());
        if uncounted {
            return Self {
                page_bytes: counts.page_bytes,
                ..Self::default()
            };
        }
        let mut usage = if kind == Kind::HugePages && is_hugetlb(counts) {
            Self::huge(counts)
        } else {
            Self::normal(counts)
        };
        let pages = |bytes: Option<u64>| bytes?.checked_div(counts.page_bytes?);
        usage.resident_pages = pages(usage.resident_bytes);
        usage.dirty_pages = pages(usage.dirty_bytes);
        usage.swapped_pages = pages(usage.swapped_bytes);
        usage
    }

    fn normal(counts: &Counts) -> Self {
        Self {
            page_bytes: counts.page_bytes,
            resident_bytes: counts.resident_bytes,
            private_bytes: both(counts.private_clean_bytes, counts.private_dirty_bytes),
            shared_bytes: both(counts.shared_clean_bytes, counts.shared_dirty_bytes),
            proportional_bytes: counts.proportional_bytes,
            dirty_bytes: both(counts.private_dirty_bytes, counts.shared_dirty_bytes),
            anonymous_bytes: counts.anonymous_bytes,
            swapped_bytes: counts.swapped_bytes,
            ..Self::default()
        }
    }

    /// For hugetlbfs the kernel counts only pages, outside `Rss`; it does not report which are dirty.
    fn huge(counts: &Counts) -> Self {
        Self {
            page_bytes: counts.page_bytes,
            resident_bytes: both(counts.private_hugetlb_bytes, counts.shared_hugetlb_bytes),
            private_bytes: counts.private_hugetlb_bytes,
            shared_bytes: counts.shared_hugetlb_bytes,
            swapped_bytes: counts.swapped_bytes,
            ..Self::default()
        }
    }
}

fn both(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one?.checked_add(other?)
}

/// Sums of regions. Each region belongs to one of the first four.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Totals {
    /// Files, including programs and libraries.
    pub file: Sum,
    /// Private memory without a file: heap, stacks, `.bss`.
    pub anonymous: Sum,
    /// Memory without a file on a disk that several processes may map: memfd, System V, POSIX, MAP_SHARED.
    pub shared: Sum,
    /// Regions of the kernel or of a device.
    pub kernel: Sum,
    /// All regions.
    pub all: Sum,
}

/// A sum over regions; null if the kernel counts none of them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Sum {
    /// Number of regions.
    pub regions: u64,
    /// Total length.
    pub size_bytes: u64,
    /// Resident bytes.
    pub resident_bytes: Option<u64>,
    /// Resident bytes that no other process maps.
    pub private_bytes: Option<u64>,
    /// Dirty bytes.
    pub dirty_bytes: Option<u64>,
    /// Bytes in swap.
    pub swapped_bytes: Option<u64>,
}

impl Sum {
    fn of<'a>(regions: impl Iterator<Item = &'a Explained>) -> Self {
        let add = |sum: &mut Option<u64>, value: Option<u64>| {
            if let Some(value) = value {
                *sum = Some(sum.unwrap_or(0).saturating_add(value));
            }
        };
        let mut sum = Self::default();
        for region in regions {
            sum.regions += 1;
            sum.size_bytes = sum.size_bytes.saturating_add(region.size_bytes);
            add(&mut sum.resident_bytes, region.usage.resident_bytes);
            add(&mut sum.private_bytes, region.usage.private_bytes);
            add(&mut sum.dirty_bytes, region.usage.dirty_bytes);
            add(&mut sum.swapped_bytes, region.usage.swapped_bytes);
        }
        if sum.regions == 0 {
            let none = Some(0);
            (sum.resident_bytes, sum.private_bytes) = (none, none);
            (sum.dirty_bytes, sum.swapped_bytes) = (none, none);
        }
        sum
    }
}

/// The sum that a region belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    File,
    Anonymous,
    Shared,
    Kernel,
}

fn class(region: &Explained) -> Class {
    match region.kind {
        Kind::Elf | Kind::File => Class::File,
        Kind::Bss
        | Kind::Heap
        | Kind::Stack
        | Kind::ThreadStack
        | Kind::Anonymous
        | Kind::NoAccess => Class::Anonymous,
        Kind::SharedAnonymous | Kind::Memfd | Kind::SysvShm | Kind::PosixShm => Class::Shared,
        Kind::HugePages if region.permissions.ends_with('s') => Class::Shared,
        Kind::HugePages => Class::Anonymous,
        Kind::Device | Kind::Kernel => Class::Kernel,
    }
}

impl Totals {
    /// Computes the sums, and adds a note on what they do not include.
    pub(super) fn of(regions: &[Explained], notes: &mut Vec<String>) -> Self {
        let huge = |region: &&Explained| region.kind == Kind::HugePages;
        if regions.iter().any(|region| huge(&region)) {
            notes.push(
                "huge pages of hugetlbfs are counted as resident; the kernel doesn't report which of them are dirty"
                    .to_owned(),
            );
        }
        // Without smaps there is already a note.
        let uncounted = |region: &&Explained| {
            region.usage.page_bytes.is_some() && region.usage.resident_bytes.is_none()
        };
        let count = regions.iter().filter(uncounted).count();
        if count > 0 {
            notes.push(format!(
                "the kernel counts no pages of {count} regions (vvar, vsyscall, devices): they are in no sum but the sizes"
            ));
        }
        let of = |wanted: Class| Sum::of(regions.iter().filter(|region| class(region) == wanted));
        Self {
            file: of(Class::File),
            anonymous: of(Class::Anonymous),
            shared: of(Class::Shared),
            kernel: of(Class::Kernel),
            all: Sum::of(regions.iter()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{kind, parse};
    use super::*;

    fn usage(header: &str, counts: &str) -> Usage {
        let text = format!("1000-9000 {header}\n{counts}\n");
        let region = parse(text.as_bytes(), "smaps").unwrap().remove(0);
        Usage::of(&region, kind::of(&region).0)
    }

    #[test]
    fn dirty_pages_are_those_of_ours_and_of_all() {
        let found = usage(
            "rw-s 0 08:01 9 /x",
            "KernelPageSize: 4 kB\nRss: 28 kB\nPss: 20 kB\nShared_Clean: 4 kB\nShared_Dirty: 8 kB\n\
             Private_Clean: 4 kB\nPrivate_Dirty: 12 kB\nAnonymous: 0 kB\nSwap: 4 kB\nVmFlags: rd wr",
        );
        assert_eq!(
            (found.resident_pages, found.resident_bytes),
            (Some(7), Some(28 << 10))
        );
        assert_eq!(
            (found.dirty_pages, found.dirty_bytes),
            (Some(5), Some(20 << 10))
        );
        assert_eq!(
            (found.private_bytes, found.shared_bytes),
            (Some(16 << 10), Some(12 << 10))
        );
        assert_eq!(
            (found.swapped_pages, found.anonymous_bytes),
            (Some(1), Some(0))
        );
    }

    #[test]
    fn huge_pages_are_resident_and_their_dirt_is_unknown() {
        let found = usage(
            "rw-p 0 00:0f 9 /anon_hugepage (deleted)",
            "KernelPageSize: 2048 kB\nRss: 0 kB\nShared_Clean: 0 kB\nShared_Dirty: 0 kB\nPrivate_Clean: 0 kB\n\
             Private_Dirty: 0 kB\nShared_Hugetlb: 0 kB\nPrivate_Hugetlb: 4096 kB\nSwap: 0 kB\nVmFlags: rd wr ht",
        );
        assert_eq!(
            (found.resident_pages, found.resident_bytes),
            (Some(2), Some(4 << 20))
        );
        assert_eq!((found.dirty_pages, found.dirty_bytes), (None, None));
    }

    #[test]
    fn what_the_kernel_does_not_count_is_unknown_and_never_0() {
        for (header, flags) in [
            ("r--p 0 00:00 0 [vvar]", "rd mr pf io de dd"),
            ("rw-s 0 00:06 9 /dev/mem", "rd wr io"),
            ("--xp 0 00:00 0 [vsyscall]", "ex"),
        ] {
            let found = usage(
                header,
                &format!("KernelPageSize: 4 kB\nRss: 0 kB\nSwap: 0 kB\nVmFlags: {flags}"),
            );
            let expected = Usage {
                page_bytes: Some(4096),
                ..Usage::default()
            };
            assert_eq!(found, expected, "{header}");
        }
        let region = parse(b"1000-2000 rw-p 0 00:00 0 ", "maps")
            .unwrap()
            .remove(0);
        assert_eq!(Usage::of(&region, Kind::Anonymous), Usage::default());
        // An old kernel does not print this line.
        assert_eq!(usage("rw-p 0 00:00 0 ", "Rss: 4 kB").dirty_bytes, None);
    }
}
