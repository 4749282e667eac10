// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kind of a region, from its name and flags.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Counts, Region};
use crate::units::size_text;

/// Kind of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Part of a loaded program or library.
    Elf,
    /// The zero-initialised data of a program or library, beyond its file's contents.
    Bss,
    /// A file mapped as data.
    File,
    /// Memory of brk(2).
    Heap,
    /// The first thread's stack.
    Stack,
    /// Another thread's stack.
    ThreadStack,
    /// Private memory without a file.
    Anonymous,
    /// Addresses without access: reserved, or a guard.
    NoAccess,
    /// Memory without a file that is shared with child processes.
    SharedAnonymous,
    /// Memory of memfd_create(2).
    Memfd,
    /// Memory of shmget(2).
    SysvShm,
    /// Memory of shm_open(3).
    PosixShm,
    /// Pages of hugetlbfs.
    HugePages,
    /// A device's memory, or memory from its driver.
    Device,
    /// Mapped by the kernel: vdso, vvar, vsyscall, rings.
    Kernel,
}

impl Kind {
    /// True for private memory, which could be part of an object or a stack.
    pub(super) fn is_private_memory(self) -> bool {
        matches!(self, Self::Anonymous | Self::NoAccess | Self::Heap)
    }
}

/// The kind by name and flags only, with its description.
pub(super) fn of(region: &Region) -> (Kind, String) {
    let name = region.name.as_deref().map(std::ffi::OsStr::to_string_lossy);
    let name = name.as_deref();
    if let Some(counts) = &region.counts {
        if is_hugetlb(counts) {
            let pages = match counts.page_bytes {
                Some(bytes) => format!("huge pages of {}", size_text(bytes)),
                None => "huge pages".to_owned(),
            };
            let words = match name {
                None | Some("/anon_hugepage (deleted)") => pages,
                Some(name) => format!("{pages}: {name}"),
            };
            return (Kind::HugePages, words);
        }
    }
    let Some(name) = name else {
        return if region.permissions.none() {
            (Kind::NoAccess, "no access: reserved, or a guard".to_owned())
        } else {
            (Kind::Anonymous, "anonymous".to_owned())
        };
    };
    let inside = |prefix: &str| name.strip_prefix(prefix)?.strip_suffix(']');
    if !region.has_file() {
        let kernel = |words: &str| (Kind::Kernel, words.to_owned());
        return match name {
            "[heap]" => (Kind::Heap, "heap (brk)".to_owned()),
            "[stack]" => (Kind::Stack, "stack of the first thread".to_owned()),
            "[vdso]" => kernel("vdso: system calls that need not enter the kernel"),
            "[vvar]" | "[vvar_vclock]" => kernel("vvar: the kernel's data that the vdso reads"),
            "[vsyscall]" => kernel("vsyscall: the vdso's predecessor, at a fixed address"),
            "[vectors]" => kernel("vectors: exception vectors and helpers"),
            "[sigpage]" => kernel("sigpage: what a signal handler returns to"),
            "[uprobes]" => kernel("uprobes: instructions that probes displaced"),
            _ => match (inside("[anon:"), inside("[stack:")) {
                (Some(name), _) => (Kind::Anonymous, format!("anonymous, named {name}")),
                (_, Some(thread)) => (Kind::ThreadStack, format!("stack of thread {thread}")),
                _ => kernel(&format!("the kernel's: {name}")),
            },
        };
    }
    if let Some(name) = inside("[anon_shmem:") {
        return (
            Kind::SharedAnonymous,
            format!("shared anonymous memory, named {name}"),
        );
    }
    // The kernel's own tmpfs has no device (major 0); elsewhere such a name is an ordinary file's.
    if region.device.0 == 0 {
        if let Some(name) = name.strip_suffix(" (deleted)") {
            if let Some(name) = name.strip_prefix("/memfd:") {
                return (Kind::Memfd, format!("memfd {name}"));
            }
            if let Some(key) = name.strip_prefix("/SYSV") {
                return (
                    Kind::SysvShm,
                    format!("System V shared memory, key 0x{key}"),
                );
            }
            match name {
                "/dev/zero" => {
                    return (Kind::SharedAnonymous, "shared anonymous memory".to_owned());
                }
                "/[aio]" => {
                    return (
                        Kind::Kernel,
                        "ring of asynchronous I/O (io_setup)".to_owned(),
                    );
                }
                _ => {}
            }
        }
    }
    if name.starts_with("/dev/shm/") {
        (Kind::PosixShm, format!("POSIX shared memory {name}"))
    } else if name == "/dev/zero" {
        (Kind::Anonymous, "anonymous (by /dev/zero)".to_owned())
    } else if name.starts_with("/dev/") {
        (Kind::Device, format!("device {name}"))
    } else if name.starts_with('/') {
        (Kind::File, "file".to_owned())
    } else {
        // Such as anon_inode:[perf_event], anon_inode:[io_uring], socket:[4711].
        (Kind::Kernel, format!("the kernel's: {name}"))
    }
}

/// True if the region's pages are from hugetlbfs, which `Rss` does not include.
pub(super) fn is_hugetlb(counts: &Counts) -> bool {
    counts.has("ht") == Some(true)
        || counts.shared_hugetlb_bytes.unwrap_or(0) + counts.private_hugetlb_bytes.unwrap_or(0) > 0
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn of_line(rest: &str) -> (Kind, String) {
        let text = format!("1000-2000 {rest}\n");
        of(&parse(text.as_bytes(), "smaps").unwrap()[0])
    }

    #[test]
    fn every_name_that_the_kernel_gives_is_known() {
        for (rest, kind, words) in [
            ("rw-p 0 00:00 0 ", Kind::Anonymous, "anonymous"),
            (
                "---p 0 00:00 0 ",
                Kind::NoAccess,
                "no access: reserved, or a guard",
            ),
            ("rw-p 0 00:00 0 [heap]", Kind::Heap, "heap (brk)"),
            (
                "rw-p 0 00:00 0 [stack]",
                Kind::Stack,
                "stack of the first thread",
            ),
            (
                "rw-p 0 00:00 0 [stack:17]",
                Kind::ThreadStack,
                "stack of thread 17",
            ),
            (
                "r--p 0 00:00 0 [vvar_vclock]",
                Kind::Kernel,
                "vvar: the kernel's data that the vdso reads",
            ),
            (
                "--xp 0 00:00 0 [vsyscall]",
                Kind::Kernel,
                "vsyscall: the vdso's predecessor, at a fixed address",
            ),
            (
                "rw-p 0 00:00 0 [to come]",
                Kind::Kernel,
                "the kernel's: [to come]",
            ),
            (
                "rw-p 0 00:00 0 [anon:glibc: malloc]",
                Kind::Anonymous,
                "anonymous, named glibc: malloc",
            ),
            (
                "rw-s 0 00:01 9 [anon_shmem:x]",
                Kind::SharedAnonymous,
                "shared anonymous memory, named x",
            ),
            (
                "rw-s 0 00:01 9 /dev/zero (deleted)",
                Kind::SharedAnonymous,
                "shared anonymous memory",
            ),
            (
                "rw-p 0 00:06 9 /dev/zero",
                Kind::Anonymous,
                "anonymous (by /dev/zero)",
            ),
            (
                "rw-s 0 00:01 9 /memfd:a b (deleted)",
                Kind::Memfd,
                "memfd a b",
            ),
            (
                "rw-s 0 00:01 9 /SYSV0000002a (deleted)",
                Kind::SysvShm,
                "System V shared memory, key 0x0000002a",
            ),
            (
                "rw-s 0 00:1a 9 /dev/shm/x",
                Kind::PosixShm,
                "POSIX shared memory /dev/shm/x",
            ),
            (
                "rw-s 0 00:06 9 /dev/dri/card0",
                Kind::Device,
                "device /dev/dri/card0",
            ),
            (
                "rw-s 0 00:0f 9 anon_inode:[perf_event]",
                Kind::Kernel,
                "the kernel's: anon_inode:[perf_event]",
            ),
            (
                "rw-s 0 00:0e 9 /[aio] (deleted)",
                Kind::Kernel,
                "ring of asynchronous I/O (io_setup)",
            ),
            ("r--p 0 08:01 9 /etc/x", Kind::File, "file"),
            // Files with similar names.
            ("r--p 0 08:01 9 /memfd:x (deleted)", Kind::File, "file"),
            ("r--p 0 08:01 9 /[heap]", Kind::File, "file"),
            ("r--p 0 08:01 9 /tmp/dev/shm/x", Kind::File, "file"),
        ] {
            assert_eq!(of_line(rest), (kind, words.to_owned()), "{rest}");
        }
    }

    #[test]
    fn huge_pages_are_known_by_their_flag_or_their_counts() {
        for counts in ["VmFlags: rd wr ht", "Private_Hugetlb: 2048 kB"] {
            let rest =
                |name: &str| format!("rw-p 0 00:0f 9 {name}\nKernelPageSize: 2048 kB\n{counts}");
            for (name, words) in [
                ("/anon_hugepage (deleted)", "huge pages of 2 MiB"),
                ("/mnt/huge/x", "huge pages of 2 MiB: /mnt/huge/x"),
            ] {
                assert_eq!(of_line(&rest(name)), (Kind::HugePages, words.to_owned()));
            }
        }
    }
}
