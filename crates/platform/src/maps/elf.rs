// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contents of an ELF file: which parts belong at which addresses.

use std::fs::File;
use std::path::PathBuf;

use object::elf::{FileHeader32, FileHeader64};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, FileKind, elf};
use schemars::JsonSchema;
use serde::Serialize;

/// More sections than any real program; a corrupt file may claim 2^32, and the table is read at once.
const MOST_SECTIONS: u32 = 65_536;

/// A loaded part of the file: a program header of type `PT_LOAD`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Offset in the file.
    pub offset: u64,
    /// Size in the file.
    pub file_bytes: u64,
    /// Its link-time address.
    pub address: u64,
    /// Size in memory: the part beyond the file's contents is zero, such as `.bss`.
    pub memory_bytes: u64,
    /// Alignment of its addresses.
    pub alignment: u64,
    /// True for code.
    pub execute: bool,
    /// True for data that the process may change.
    pub write: bool,
}

/// A section that occupies memory when the file is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Name, such as `.text`.
    pub name: String,
    /// Its link-time address.
    pub address: u64,
    /// Size in memory.
    pub bytes: u64,
    /// Its offset in the file; `None` for zero-initialised sections such as `.bss`.
    pub offset: Option<u64>,
}

/// An ELF file's header, segments and sections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    /// 32 or 64.
    pub bits: u8,
    /// The architecture in its header.
    pub machine: Machine,
    /// True if it is position-independent: a library or a PIE (`ET_DYN`), not a program with fixed addresses.
    pub movable: bool,
    /// The dynamic loader that it requests.
    pub interpreter: Option<PathBuf>,
    /// The loaded segments, in the file's order.
    pub segments: Vec<Segment>,
    /// Sections in the segments; empty if the file has no section headers.
    pub sections: Vec<Section>,
    /// Address and length of the part that becomes read-only after relocation (`PT_GNU_RELRO`).
    pub relro: Option<(u64, u64)>,
}

/// An instruction set, by the number in an ELF header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Machine {
    /// x86-64; with 32 bits its x32 variant.
    #[serde(rename = "x86-64")]
    X86_64,
    /// 32-bit x86.
    #[serde(rename = "i386")]
    I386,
    /// 64-bit Arm.
    Arm64,
    /// 32-bit Arm.
    Arm,
    /// RISC-V.
    RiscV,
    /// Another architecture.
    Other,
}

impl Machine {
    /// Its usual name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86-64",
            Self::I386 => "i386",
            Self::Arm64 => "arm64",
            Self::Arm => "arm",
            Self::RiscV => "riscv",
            Self::Other => "other",
        }
    }
}

impl Elf {
    /// Reads an open file.
    ///
    /// # Errors
    /// Reason why the ELF file is invalid; `Ok(None)` if the file does not begin as an ELF file.
    pub fn read(file: File) -> Result<Option<Self>, String> {
        let data = ReadCache::new(file);
        let magic: Option<&[u8]> = object::ReadRef::read_bytes_at(&data, 0, 4).ok();
        if magic != Some(&elf::ELFMAG) {
            return Ok(None);
        }
        match FileKind::parse(&data) {
            Ok(FileKind::Elf32) => parse::<FileHeader32<Endianness>>(&data, 32),
            Ok(FileKind::Elf64) => parse::<FileHeader64<Endianness>>(&data, 64),
            Ok(_) => Err("an ELF file of an unknown class".to_owned()),
            Err(error) => Err(error.to_string()),
        }
        .map(Some)
    }

    /// The link-time addresses from the first to the last segment, in whole pages.
    #[must_use]
    pub fn span(&self, page_bytes: u64) -> Option<(u64, u64)> {
        let start = self.segments.iter().map(|segment| segment.address).min()?;
        let end = self.segments.iter().map(Segment::end).max()?;
        Some((round_down(start, page_bytes), round_up(end, page_bytes)))
    }

    /// The required alignment of its load address.
    #[must_use]
    pub fn alignment(&self) -> u64 {
        let alignments = self.segments.iter().map(|segment| segment.alignment);
        alignments.max().unwrap_or(1).max(1)
    }
}

impl Segment {
    /// The link-time address after the last byte in memory.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.memory_bytes)
    }
}

/// Rounds `value` down to a multiple of `unit`, a power of two.
pub(super) fn round_down(value: u64, unit: u64) -> u64 {
    value & !(unit - 1)
}

/// Rounds `value` up to a multiple of `unit`, a power of two.
pub(super) fn round_up(value: u64, unit: u64) -> u64 {
    round_down(value.saturating_add(unit - 1), unit)
}

fn parse<H: FileHeader<Endian = Endianness>>(
    data: &ReadCache<File>,
    bits: u8,
) -> Result<Elf, String> {
    let failed = |error: object::read::Error| error.to_string();
    let header = H::parse(data).map_err(failed)?;
    let endian = header.endian().map_err(failed)?;
    let mut segments = Vec::new();
    let (mut interpreter, mut relro) = (None, None);
    for program in header.program_headers(endian, data).map_err(failed)? {
        let address = program.p_vaddr(endian).into();
        let memory_bytes = program.p_memsz(endian).into();
        match program.p_type(endian) {
            elf::PT_LOAD if memory_bytes > 0 => {
                let flags = program.p_flags(endian);
                let alignment: u64 = program.p_align(endian).into();
                segments.push(Segment {
                    offset: program.p_offset(endian).into(),
                    file_bytes: program.p_filesz(endian).into(),
                    address,
                    memory_bytes,
                    alignment: if alignment.is_power_of_two() {
                        alignment
                    } else {
                        1
                    },
                    execute: flags.contains(elf::PF_X),
                    write: flags.contains(elf::PF_W),
                });
            }
            elf::PT_INTERP => {
                let path = program.interpreter(endian, data).map_err(failed)?;
                interpreter =
                    path.map(|path| PathBuf::from(String::from_utf8_lossy(path).as_ref()));
            }
            elf::PT_GNU_RELRO => relro = Some((address, memory_bytes)),
            _ => {}
        }
    }
    Ok(Elf {
        bits,
        machine: match header.e_machine(endian) {
            elf::EM_X86_64 => Machine::X86_64,
            elf::EM_386 => Machine::I386,
            elf::EM_AARCH64 => Machine::Arm64,
            elf::EM_ARM => Machine::Arm,
            elf::EM_RISCV => Machine::RiscV,
            _ => Machine::Other,
        },
        movable: header.e_type(endian) == elf::ET_DYN,
        interpreter,
        sections: sections(header, endian, data, &segments)?,
        segments,
        relro,
    })
}

/// The sections in a segment's memory, in the order of their addresses.
fn sections<H: FileHeader<Endian = Endianness>>(
    header: &H,
    endian: Endianness,
    data: &ReadCache<File>,
    segments: &[Segment],
) -> Result<Vec<Section>, String> {
    let failed = |error: object::read::Error| error.to_string();
    let count = header.shnum(endian, data).map_err(failed)?;
    if count > MOST_SECTIONS {
        return Err(format!(
            "{count} section headers, more than the {MOST_SECTIONS} that any program has"
        ));
    }
    let table = header.sections(endian, data).map_err(failed)?;
    let mut sections = Vec::new();
    for section in table.iter() {
        let flags = section.sh_flags(endian);
        let address: u64 = section.sh_addr(endian).into();
        let bytes: u64 = section.sh_size(endian).into();
        let zero = section.sh_type(endian) == elf::SHT_NOBITS;
        let allocated = flags.contains(elf::SHF_ALLOC);
        // Each thread has its own `.tbss`; its addresses here overlap the following sections.
        let per_thread = zero && flags.contains(elf::SHF_TLS);
        if !allocated || per_thread || bytes == 0 {
            continue;
        }
        let loaded = segments.iter().any(|segment| {
            (segment.address..segment.end()).contains(&address)
                && address
                    .checked_add(bytes)
                    .is_some_and(|end| end <= segment.end())
        });
        if !loaded {
            continue;
        }
        let name = table.section_name(endian, section).map_err(failed)?;
        sections.push(Section {
            name: String::from_utf8_lossy(name).into_owned(),
            address,
            bytes,
            offset: (!zero).then(|| section.sh_offset(endian).into()),
        });
    }
    sections.sort_by_key(|section| section.address);
    Ok(sections)
}

#[cfg(test)]
pub(super) mod samples {
    //! Small ELF files, written field by field after elf(5).

    /// A library of 64 or 32 bits: headers and `.text` in a code segment at 0, `.data` and `.bss` in a segment at
    /// 0x1e00 (file offset 0xe00), in a file of 4 KiB.
    pub fn library(bits: u8, little: bool) -> Vec<u8> {
        let wide = bits == 64;
        let mut file = vec![0; 4096];
        let mut at = 0;
        let mut put = |value: u64, bytes: usize| {
            let all = if little {
                value.to_le_bytes()[..bytes].to_vec()
            } else {
                value.to_be_bytes()[8 - bytes..].to_vec()
            };
            file[at..at + bytes].copy_from_slice(&all);
            at += bytes;
        };
        let word = if wide { 8 } else { 4 };
        for byte in [
            0x7f,
            0x45,
            0x4c,
            0x46,
            if wide { 2 } else { 1 },
            if little { 1 } else { 2 },
            1,
            0,
        ] {
            put(byte, 1);
        }
        put(0, 8);
        let machine = match (wide, little) {
            (true, true) => 62,
            (false, true) => 3,
            (true, false) => 183,
            (false, false) => 40,
        };
        let (header, program, section): (u64, u64, u64) =
            if wide { (64, 56, 64) } else { (52, 32, 40) };
        put(3, 2); // ET_DYN
        put(machine, 2);
        put(1, 4);
        put(0x200, word); // entry
        put(header, word); // program headers
        put(0xb00, word); // section headers
        put(0, 4);
        for value in [header, program, 3, section, 5, 4] {
            put(value, 2);
        }
        // type, flags, offset, address, file bytes, memory bytes, alignment
        for (kind, flags, offset, address, file_bytes, memory_bytes, alignment) in [
            (1, 5, 0, 0, 0x400, 0x400, 0x1000),
            (1, 6, 0xe00, 0x1e00, 0x200, 0x1400, 0x1000),
            (0x6474_e552, 4, 0xe00, 0x1e00, 0x100, 0x100, 1),
        ] {
            put(kind, 4);
            if wide {
                put(flags, 4);
            }
            put(offset, word);
            put(address, word);
            put(address, word);
            put(file_bytes, word);
            put(memory_bytes, word);
            if !wide {
                put(flags, 4);
            }
            put(alignment, word);
        }
        at = 0xa00;
        let names = b"\0.text\0.data\0.bss\0.names\0";
        file[at..at + names.len()].copy_from_slice(names);
        at = 0xb00;
        let mut put = |value: u64, bytes: usize| {
            let all = if little {
                value.to_le_bytes()[..bytes].to_vec()
            } else {
                value.to_be_bytes()[8 - bytes..].to_vec()
            };
            file[at..at + bytes].copy_from_slice(&all);
            at += bytes;
        };
        // name, type, flags, address, offset, size
        for (name, kind, flags, address, offset, bytes) in [
            (0, 0, 0, 0, 0, 0),
            (1, 1, 6, 0x200, 0x200, 0x200),
            (7, 1, 3, 0x1e00, 0xe00, 0x200),
            (13, 8, 3, 0x2000, 0x1000, 0x1200),
            (18, 3, 0, 0, 0xa00, 25),
        ] {
            put(name, 4);
            put(kind, 4);
            put(flags, word);
            put(address, word);
            put(offset, word);
            put(bytes, word);
            put(0, 4);
            put(0, 4);
            put(1, word);
            put(0, word);
        }
        file
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Option<Elf>, String> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Elf::read(file)
    }

    #[test]
    fn all_classes_and_byte_orders_say_the_same() {
        for (bits, little, machine) in [
            (64, true, Machine::X86_64),
            (32, true, Machine::I386),
            (64, false, Machine::Arm64),
            (32, false, Machine::Arm),
        ] {
            let elf = read(&samples::library(bits, little)).unwrap().unwrap();
            assert_eq!((elf.bits, elf.machine), (bits, machine));
            assert!(elf.movable);
            assert_eq!(elf.interpreter, None);
            assert_eq!(elf.relro, Some((0x1e00, 0x100)));
            assert_eq!(elf.span(4096), Some((0, 0x4000)));
            assert_eq!(elf.alignment(), 4096);
            let segments = elf.segments.iter();
            let segments: Vec<_> = segments
                .map(|one| (one.offset, one.address, one.execute, one.write))
                .collect();
            assert_eq!(
                segments,
                [(0, 0, true, false), (0xe00, 0x1e00, false, true)]
            );
            let sections = elf.sections.iter();
            let sections: Vec<_> = sections
                .map(|one| (one.name.as_str(), one.address, one.bytes, one.offset))
                .collect();
            assert_eq!(
                sections,
                [
                    (".text", 0x200, 0x200, Some(0x200)),
                    (".data", 0x1e00, 0x200, Some(0xe00)),
                    (".bss", 0x2000, 0x1200, None),
                ]
            );
        }
    }

    #[test]
    fn what_does_not_begin_as_an_elf_file_is_none() {
        for bytes in [&b""[..], b"\x7fEL", b"#!/bin/sh\n", &[0; 4096]] {
            assert_eq!(read(bytes), Ok(None));
        }
    }

    #[test]
    fn a_corrupt_file_says_why() {
        let good = samples::library(64, true);
        for (what, at, bytes) in [
            ("program headers beyond the end", 32, &[0xff_u8; 8][..]),
            ("section headers beyond the end", 40, &[0xff; 8]),
            ("a class that there is not", 4, &[9]),
            ("a size of program headers that there is not", 54, &[1, 0]),
            ("no section 4096 that has the names", 62, &[0, 0x10]),
        ] {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            assert!(read(&bad).is_err(), "{what}");
        }
        assert!(read(&good[..70]).is_err());
        assert!(read(&good[..4]).is_err());
        // If the number of sections does not fit into the header, it is in the first section's size.
        let mut many = good;
        many[60..62].copy_from_slice(&[0, 0]);
        many[0xb00 + 32..0xb00 + 40].copy_from_slice(&0xffff_ffff_u64.to_le_bytes());
        let message = read(&many).unwrap_err();
        assert!(message.contains("4294967295 section headers"), "{message}");
    }

    #[test]
    fn the_running_test_has_what_programs_have() {
        let file = File::open("/proc/self/exe").unwrap();
        let elf = Elf::read(file).unwrap().unwrap();
        for name in [".text", ".data", ".bss"] {
            assert!(
                elf.sections.iter().any(|section| section.name == name),
                "{name}"
            );
        }
        assert!(elf.sections.iter().all(|section| section.name != ".tbss"));
    }

    proptest::proptest! {
        #[test]
        fn any_change_is_a_file_or_an_error(
            wide: bool, little: bool, changes in proptest::collection::vec((0_usize..0xd00, 0_u8..), 1..12),
        ) {
            let mut bytes = samples::library(if wide { 64 } else { 32 }, little);
            for (at, value) in changes {
                bytes[at] = value;
            }
            if let Ok(Some(elf)) = read(&bytes) {
                let _ = elf.span(4096);
                let _ = elf.alignment();
            }
        }
    }
}
