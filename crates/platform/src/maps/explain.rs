// SPDX-License-Identifier: MIT OR Apache-2.0
//! The regions of a process with their explanations, from the results of the folder's other files.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;

use schemars::JsonSchema;
use serde::Serialize;

use super::aslr::{self, Aslr, Facts};
use super::elf::{Elf, Machine, Section};
use super::files::{self, Mapped};
use super::identity::{self, Identity};
use super::kind::{self, Kind};
use super::objects::{self, part_by_address, part_by_offset};
use super::usage::{Totals, Usage};
use super::{Address, Region, parse};
use crate::{Result, Root, mapping};

/// A process's mappings, explained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Explanation {
    /// The process.
    pub process: Process,
    /// The regions, in the order of their addresses.
    pub regions: Vec<Explained>,
    /// Sums.
    pub totals: Totals,
    /// The loaded programs and libraries.
    pub objects: Vec<Object>,
    /// Effect of randomisation.
    pub aslr: Aslr,
    /// Facts that could not be determined, with the reasons.
    pub notes: Vec<String>,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Process {
    /// Its ID.
    pub pid: u32,
    /// Its short name.
    pub name: String,
    /// Its program's file; null if hidden.
    pub program: Option<String>,
    /// Its program's architecture.
    pub architecture: Option<Machine>,
    /// 32 or 64.
    pub bits: Option<u8>,
    /// Size of a normal page.
    pub page_bytes: u64,
    /// `/proc/PID/smaps`, or `/proc/PID/maps` if the kernel has no counts.
    pub source: String,
}

/// A region with its explanation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Explained {
    /// The first byte.
    pub start_address: Address,
    /// The byte after the last.
    pub end_address: Address,
    /// The length.
    pub size_bytes: u64,
    /// Permissions as the kernel prints them, `rw-p`.
    pub permissions: String,
    /// Its kind.
    pub kind: Kind,
    /// Its kind in words.
    pub what: String,
    /// The last column of maps as the kernel printed it.
    pub name: Option<String>,
    /// The file's real name.
    pub file: Option<String>,
    /// Offset of the region in the file; null without a file.
    pub file_offset_bytes: Option<u64>,
    /// True if the file has been deleted or replaced since; null without a file.
    pub deleted: Option<bool>,
    /// The thread that owns the stack, if not the first thread.
    pub thread: Option<u32>,
    /// The ELF sections in the region.
    pub sections: Vec<Part>,
    /// Usage of its pages.
    #[serde(flatten)]
    pub usage: Usage,
}

/// A section, or the part of a section that lies in a region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Part {
    /// Name, such as `.text`.
    pub name: String,
    /// The first byte in the region.
    pub start_address: Address,
    /// Number of bytes in the region.
    pub size_bytes: u64,
    /// True if this is the whole section.
    pub whole: bool,
}

/// Role of an object in its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The program.
    Program,
    /// The program's dynamic loader.
    Loader,
    /// Loaded by the program or the loader.
    Library,
}

/// A loaded ELF file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Object {
    /// Its file.
    pub file: String,
    /// Its role in the process.
    pub role: Role,
    /// True if it can be loaded at any address.
    pub movable: bool,
    /// Link-time address of the first page of its first segment.
    pub link_address: Address,
    /// Actual address of that page.
    pub load_address: Address,
    /// The load address minus the link address.
    pub moved_bytes: i64,
}

/// The regions of one file, with the parsed file.
struct Group {
    mapped: Mapped,
    regions: Vec<usize>,
    elf: Option<Elf>,
    loaded: Vec<objects::Loaded>,
}

/// Explains the mappings of process `pid`.
///
/// # Errors
/// There is no such process, it has no mappings, it may not be inspected, or it ended meanwhile.
pub fn explain(root: &Root, pid: u32) -> Result<Explanation> {
    let identity = Identity::of(root, pid)?;
    let (source, regions) = read(root, pid)?;
    let mut notes = Vec::new();
    if source.ends_with("/maps") {
        notes.push(
            "this kernel counts no pages (CONFIG_PROC_PAGE_MONITOR): there is no /proc/PID/smaps"
                .to_owned(),
        );
    }
    let sizes = regions
        .iter()
        .filter_map(|region| region.counts.as_ref()?.page_bytes);
    let page_bytes = sizes
        .filter(|bytes| bytes.is_power_of_two())
        .min()
        .unwrap_or(mapping::page_bytes() as u64);
    let exe = identity::program(root, pid);
    let groups = groups(root, pid, &regions, exe.as_deref(), page_bytes, &mut notes);
    let program = groups
        .iter()
        .filter(|group| exe.is_some() && regions[group.regions[0]].name == exe)
        .find_map(|group| Some((group.elf.as_ref()?, group.loaded.first()?)));
    let bits = program.map(|(elf, _)| elf.bits);
    let loader = bits.and_then(|bits| identity::loader(root, pid, bits));

    let mut explained: Vec<Explained> = regions.iter().map(plain).collect();
    for group in &groups {
        describe(group, &regions, &mut explained);
    }
    stacks(root, pid, &mut explained, &mut notes);

    let heap = explained.iter().find(|region| region.kind == Kind::Heap);
    let named = |name: &str| {
        let name = Some(OsStr::new(name));
        regions.iter().find(|region| region.name.as_deref() == name)
    };
    let stack = named("[stack]");
    let facts = Facts {
        program: program.map(|(elf, loaded)| (elf, loaded.bias)),
        heap: identity.heap.or(heap.map(|region| region.start_address.0)),
        stack_end: stack.map(|region| region.end),
        mappings_end: stack.and_then(|stack| {
            let below = regions.iter().filter(|region| region.end <= stack.start);
            below.map(|region| region.end).max()
        }),
        vdso: named("[vdso]").map(|region| region.start),
        page_bytes,
        setting: root.number("/proc/sys/kernel/randomize_va_space"),
        legacy_layout: root.number("/proc/sys/vm/legacy_va_layout"),
        personality: identity::personality(root, pid),
        stack_limit: identity::stack_limit(root, pid),
    };
    if facts.personality.is_none() {
        notes.push(format!(
            "/proc/{pid}/personality cannot be read: run as root, or as the same user with kernel.yama.ptrace_scope 0"
        ));
    }
    let objects = list_objects(&groups, program, loader, page_bytes);
    let explanation = Explanation {
        process: Process {
            pid,
            name: identity.name.clone(),
            program: exe.as_ref().map(|name| name.to_string_lossy().into_owned()),
            architecture: program.map(|(elf, _)| elf.machine),
            bits,
            page_bytes,
            source,
        },
        totals: Totals::of(&explained, &mut notes),
        regions: explained,
        objects,
        aslr: aslr::examine(&facts),
        notes,
    };
    identity.still(root, pid)?;
    Ok(explanation)
}

/// Reads the regions; returns them with the path that was read.
fn read(root: &Root, pid: u32) -> Result<(String, Vec<Region>)> {
    let mut path = format!("/proc/{pid}/smaps");
    let text = fs::read(root.path(&path)).or_else(|error| {
        if error.kind() != ErrorKind::NotFound {
            return Err(error);
        }
        path = format!("/proc/{pid}/maps");
        fs::read(root.path(&path))
    });
    let text = text.map_err(|source| identity::failed(pid, &path, source))?;
    let regions = parse(&text, &path)?;
    if regions.is_empty() {
        // A process loses its memory before its entry in /proc.
        return Err(identity::ended(pid));
    }
    Ok((path, regions))
}

/// The mapped files, in the order of their first regions.
fn groups(
    root: &Root,
    pid: u32,
    regions: &[Region],
    exe: Option<&OsStr>,
    page_bytes: u64,
    notes: &mut Vec<String>,
) -> Vec<Group> {
    let mut order: Vec<Vec<usize>> = Vec::new();
    let mut seen: BTreeMap<((u32, u32), u64), usize> = BTreeMap::new();
    for (index, region) in regions.iter().enumerate() {
        if !matches!(
            kind::of(region).0,
            Kind::File | Kind::Memfd | Kind::PosixShm
        ) {
            continue;
        }
        let group = *seen
            .entry((region.device, region.inode))
            .or_insert_with(|| {
                order.push(Vec::new());
                order.len() - 1
            });
        order[group].push(index);
    }
    order
        .into_iter()
        .map(|indices| {
            let mut mapped = files::find(root, pid, &regions[indices[0]], exe);
            let has_code = indices
                .iter()
                .any(|index| regions[*index].permissions.execute);
            let name = mapped.name.to_string_lossy().into_owned();
            let elf = match std::mem::replace(&mut mapped.file, Err(String::new())) {
                Ok(file) => Elf::read(file).unwrap_or_else(|why| {
                    notes.push(format!(
                        "{name}: not an ELF file that can be understood: {why}"
                    ));
                    None
                }),
                Err(why) => {
                    // Data files have no sections to report.
                    if has_code {
                        notes.push(format!("{name}: its sections are not known: {why}"));
                    }
                    None
                }
            };
            if elf.as_ref().is_some_and(|elf| elf.sections.is_empty()) {
                notes.push(format!("{name}: it has no section headers (stripped)"));
            }
            let members: Vec<_> = indices
                .iter()
                .map(|index| (*index, &regions[*index]))
                .collect();
            let loaded = elf
                .as_ref()
                .map(|elf| objects::loaded(elf, &members, page_bytes))
                .unwrap_or_default();
            Group {
                mapped,
                regions: indices,
                elf,
                loaded,
            }
        })
        .collect()
}

/// The explanation of a region by itself.
fn plain(region: &Region) -> Explained {
    let (kind, what) = kind::of(region);
    let text = |name: &OsStr| name.to_string_lossy().into_owned();
    Explained {
        start_address: Address(region.start),
        end_address: Address(region.end),
        size_bytes: region.bytes(),
        permissions: region.permissions.to_string(),
        kind,
        what,
        name: region.name.as_deref().map(text),
        file: None,
        file_offset_bytes: region.has_file().then_some(region.offset),
        deleted: None,
        thread: None,
        sections: Vec::new(),
        usage: Usage::of(region, kind),
    }
}

/// Explains the parts of a file that its regions and the adjacent memory contain.
fn describe(group: &Group, regions: &[Region], explained: &mut [Explained]) {
    let name = group.mapped.name.to_string_lossy().into_owned();
    for index in &group.regions {
        let region = &mut explained[*index];
        if region.kind == Kind::File {
            region.what = format!("file {name}{}", remark(group));
            region.deleted = Some(group.mapped.deleted);
        }
        region.file = Some(name.clone());
    }
    let Some(elf) = &group.elf else { return };
    let ours = |index: &usize| group.loaded.iter().any(|one| one.regions.contains(index));
    for index in group.regions.iter().filter(|index| !ours(index)) {
        let parts = elf.sections.iter().filter_map(|section| {
            let (start, bytes) = part_by_offset(section, &regions[*index])?;
            Some(part(section, start, bytes))
        });
        explained[*index].sections = parts.collect();
    }
    for loaded in &group.loaded {
        for index in &loaded.regions {
            explained[*index].kind = Kind::Elf;
            explained[*index].what =
                words(elf, loaded.bias, &regions[*index], &name, &remark(group));
        }
        for (region, explained) in regions.iter().zip(explained.iter_mut()) {
            // Memory beyond the file's contents follows it; the kernel may merge a heap with that memory.
            let beside = explained.kind.is_private_memory() && explained.sections.is_empty();
            let in_file = explained.kind == Kind::Elf && explained.file.as_ref() == Some(&name);
            if !(beside || in_file) {
                continue;
            }
            let parts: Vec<Part> = elf
                .sections
                .iter()
                .filter_map(|section| {
                    let (start, bytes) = part_by_address(section, loaded.bias, region)?;
                    Some(part(section, start, bytes))
                })
                .collect();
            let in_segment = elf.segments.iter().any(|segment| {
                let start = segment.address.wrapping_add(loaded.bias);
                let end = start.saturating_add(segment.memory_bytes);
                start < region.end && region.start < end
            });
            if beside && in_segment && !region.permissions.none() {
                if explained.kind == Kind::Heap {
                    explained.what =
                        format!("{}, and zero-initialised data of {name}", explained.what);
                } else {
                    explained.kind = Kind::Bss;
                    explained.what = format!("zero-initialised data of {name}");
                }
                explained.file = Some(name.clone());
            }
            if !parts.is_empty() {
                explained.sections = parts;
            }
        }
    }
}

fn remark(group: &Group) -> String {
    let remark = if group.mapped.deleted {
        " (deleted or replaced since)"
    } else {
        ""
    };
    remark.to_owned()
}

fn part(section: &Section, start: u64, bytes: u64) -> Part {
    Part {
        name: section.name.clone(),
        start_address: Address(start),
        size_bytes: bytes,
        whole: bytes == section.bytes,
    }
}

/// Purpose of a part of a loaded file.
fn words(elf: &Elf, bias: u64, region: &Region, name: &str, remark: &str) -> String {
    let permissions = region.permissions;
    let in_relro = elf.relro.is_some_and(|(address, bytes)| {
        let start = address.wrapping_add(bias);
        region.end > start && region.start < start.saturating_add(bytes)
    });
    let what = if permissions.none() {
        "no access: between segments of"
    } else if permissions.execute && permissions.write {
        "code that may be written, of"
    } else if permissions.execute {
        "code of"
    } else if permissions.write {
        "data of"
    } else if in_relro {
        "data that became constant after relocation (RELRO), of"
    } else {
        "constants of"
    };
    format!("{what} {name}{remark}")
}

/// Finds the stacks of threads that wait in the kernel.
fn stacks(root: &Root, pid: u32, explained: &mut [Explained], notes: &mut Vec<String>) {
    let threads = identity::threads(root, pid);
    for (thread, pointer) in threads.waiting {
        let region = explained
            .iter_mut()
            .find(|region| (region.start_address.0..region.end_address.0).contains(&pointer));
        if let Some(region) = region {
            if region.kind == Kind::Anonymous {
                region.kind = Kind::ThreadStack;
                region.what = format!("stack of thread {thread} ({})", region.what);
                region.thread = Some(thread);
            }
        }
    }
    if threads.unknown > 0 {
        notes.push(format!(
            "{} threads were running or may not be traced: the kernel reports the stack only of a waiting thread",
            threads.unknown
        ));
    }
}

fn list_objects(
    groups: &[Group],
    program: Option<(&Elf, &objects::Loaded)>,
    loader: Option<u64>,
    page_bytes: u64,
) -> Vec<Object> {
    let mut objects = Vec::new();
    for group in groups {
        let Some((elf, (link, _))) = group
            .elf
            .as_ref()
            .and_then(|elf| Some((elf, elf.span(page_bytes)?)))
        else {
            continue;
        };
        for loaded in &group.loaded {
            let load = link.wrapping_add(loaded.bias);
            let is_program = program.is_some_and(|(_, one)| std::ptr::eq(one, loaded));
            objects.push(Object {
                file: group.mapped.name.to_string_lossy().into_owned(),
                role: if is_program {
                    Role::Program
                } else if loader == Some(load) {
                    Role::Loader
                } else {
                    Role::Library
                },
                movable: elf.movable,
                link_address: Address(link),
                load_address: Address(load),
                moved_bytes: loaded.bias as i64,
            });
        }
    }
    objects.sort_by_key(|object| object.load_address);
    objects
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::super::elf::samples::library;
    use super::*;

    /// A saved tree with process 7, in which `/lib/l` is a small library of 32 or 64 bits.
    fn process(bits: u8) -> (tempfile::TempDir, Root, u64) {
        let folder = tempfile::tempdir().unwrap();
        for directory in ["proc/7/task/7", "proc/sys/kernel", "lib"] {
            fs::create_dir_all(folder.path().join(directory)).unwrap();
        }
        let root = Root::at(folder.path());
        let mut stat = vec!["0"; 50];
        stat[0] = "S";
        fs::write(
            root.path("/proc/7/stat"),
            format!("7 (p) {}", stat.join(" ")),
        )
        .unwrap();
        fs::write(root.path("/proc/sys/kernel/randomize_va_space"), "2\n").unwrap();
        symlink("/lib/l", root.path("/proc/7/exe")).unwrap();
        fs::write(root.path("/lib/l"), library(bits, true)).unwrap();
        let inode = fs::metadata(root.path("/lib/l")).unwrap().ino();
        (folder, root, inode)
    }

    const COUNTS: &str = "KernelPageSize: 4 kB\nRss: 4 kB\nPss: 4 kB\nShared_Clean: 0 kB\nShared_Dirty: 0 kB\n\
        Private_Clean: 0 kB\nPrivate_Dirty: 4 kB\nAnonymous: 4 kB\nSwap: 0 kB\nVmFlags: rd mr\n";

    /// Code, data, `.bss` beyond the file, and a plain region; each with one resident dirty page.
    fn smaps(inode: u64) -> String {
        [
            format!("70000000-70001000 r-xp 00000000 08:01 {inode} /lib/l"),
            format!("70001000-70002000 rw-p 00000000 08:01 {inode} /lib/l"),
            "70002000-70004000 rw-p 00000000 00:00 0 ".to_owned(),
            "70005000-70007000 rw-p 00000000 00:00 0 ".to_owned(),
            format!("70008000-70009000 r--p 00000000 08:01 {inode} /lib/l"),
        ]
        .map(|line| format!("{line}\n{COUNTS}"))
        .concat()
    }

    fn sections(region: &Explained) -> Vec<(&str, u64, u64, bool)> {
        let parts = region.sections.iter();
        parts
            .map(|part| {
                (
                    part.name.as_str(),
                    part.start_address.0,
                    part.size_bytes,
                    part.whole,
                )
            })
            .collect()
    }

    #[test]
    fn sections_are_found_in_files_of_either_class_and_in_the_memory_behind_them() {
        for bits in [32, 64] {
            let (_folder, root, inode) = process(bits);
            fs::write(root.path("/proc/7/smaps"), smaps(inode)).unwrap();
            let found = explain(&root, 7).unwrap();
            let kinds: Vec<_> = found.regions.iter().map(|region| region.kind).collect();
            assert_eq!(
                kinds,
                [Kind::Elf, Kind::Elf, Kind::Bss, Kind::Anonymous, Kind::File]
            );
            assert_eq!(
                sections(&found.regions[0]),
                [(".text", 0x7000_0200, 0x200, true)]
            );
            assert_eq!(
                sections(&found.regions[1]),
                [(".data", 0x7000_1e00, 0x200, true)]
            );
            assert_eq!(
                sections(&found.regions[2]),
                [(".bss", 0x7000_2000, 0x1200, true)]
            );
            assert_eq!(sections(&found.regions[3]), []);
            // Mapped as data, it has everything in that page of the file.
            assert_eq!(
                sections(&found.regions[4]),
                [
                    (".text", 0x7000_8200, 0x200, true),
                    (".data", 0x7000_8e00, 0x200, true)
                ]
            );
            assert_eq!(found.objects.len(), 1);
            assert_eq!(found.objects[0].role, Role::Program);
            assert_eq!(found.objects[0].load_address, Address(0x7000_0000));
            assert_eq!(found.process.bits, Some(bits));
            assert_eq!(found.totals.file.dirty_bytes, Some(12 << 10));
            assert_eq!(found.totals.anonymous.resident_bytes, Some(8 << 10));
            assert_eq!(found.totals.shared.resident_bytes, Some(0));
            assert_eq!(found.totals.all.regions, 5);
        }
    }

    #[test]
    fn a_heap_that_grew_together_with_bss_is_both() {
        let (_folder, root, inode) = process(64);
        let text = smaps(inode).replace(
            "70002000-70004000 rw-p 00000000 00:00 0 ",
            "70002000-70005000 rw-p 00000000 00:00 0 [heap]",
        );
        fs::write(root.path("/proc/7/smaps"), text).unwrap();
        let found = explain(&root, 7).unwrap();
        assert_eq!(found.regions[2].kind, Kind::Heap);
        assert!(
            found.regions[2]
                .what
                .contains("zero-initialised data of /lib/l")
        );
        assert_eq!(
            sections(&found.regions[2]),
            [(".bss", 0x7000_2000, 0x1200, true)]
        );
    }

    #[test]
    fn a_kernel_without_counts_has_maps_and_no_figure() {
        let (_folder, root, inode) = process(64);
        let maps = format!("70000000-70001000 r-xp 00000000 08:01 {inode} /lib/l\n");
        fs::write(root.path("/proc/7/maps"), maps).unwrap();
        let found = explain(&root, 7).unwrap();
        assert_eq!(found.regions[0].usage, Usage::default());
        assert_eq!(found.totals.all.resident_bytes, None);
        assert!(
            found
                .notes
                .iter()
                .any(|note| note.contains("CONFIG_PROC_PAGE_MONITOR"))
        );
        assert_eq!(sections(&found.regions[0]).len(), 1);
    }

    #[test]
    fn a_corrupt_file_is_a_note_and_no_failure() {
        let (_folder, root, inode) = process(64);
        fs::write(root.path("/proc/7/smaps"), smaps(inode)).unwrap();
        fs::write(root.path("/lib/l"), &library(64, true)[..100]).unwrap();
        let found = explain(&root, 7).unwrap();
        assert!(
            found
                .notes
                .iter()
                .any(|note| note.starts_with("/lib/l: not an ELF file"))
        );
        assert!(
            found
                .regions
                .iter()
                .all(|region| region.sections.is_empty())
        );
        assert_eq!((found.process.architecture, found.aslr.moved), (None, None));
    }

    #[test]
    fn a_file_that_was_deleted_is_said_to_be() {
        let (_folder, root, inode) = process(64);
        let text = smaps(inode).replace("/lib/l", "/lib/gone (deleted)");
        fs::write(root.path("/proc/7/smaps"), text).unwrap();
        let found = explain(&root, 7).unwrap();
        assert_eq!(found.regions[0].deleted, Some(true));
        assert_eq!(found.regions[0].file.as_deref(), Some("/lib/gone"));
        assert!(
            found
                .notes
                .iter()
                .any(|note| note.contains("deleted or replaced since: root can"))
        );
    }

    #[test]
    fn a_process_whose_mappings_are_gone_has_ended() {
        let (_folder, root, _) = process(64);
        for write_empty in [false, true] {
            if write_empty {
                fs::write(root.path("/proc/7/smaps"), "").unwrap();
            }
            let message = explain(&root, 7).unwrap_err().to_string();
            assert!(message.contains("process 7 ended while"), "{message}");
        }
    }
}
