// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process's mappings: /proc/PID/maps and /proc/PID/smaps, read and explained.
//!
//! This file reads the two formats; the folder beside it explains the regions:
//! the sections of ELF files, the owners of stacks, and the addresses without
//! address space layout randomisation.
//!
//! A mapped file's name may be any bytes, and an error names the line. The crate `procfs` reads
//! text only, and its errors have no line, so the two formats are parsed here.

mod aslr;
mod elf;
mod explain;
mod files;
mod identity;
mod kind;
mod objects;
mod usage;

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};

use crate::{Error, Result};

pub use aslr::{Aslr, Base};
pub use elf::{Elf, Machine, Section, Segment};
pub use explain::{Explained, Explanation, Object, Part, Process, Role, explain};
pub use kind::Kind;
pub use usage::{Sum, Totals, Usage};

/// An address in a process. In JSON it is a string, `"0x7ffe12345000"`: JSON numbers lose bits beyond 2^53.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl JsonSchema for Address {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Address".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The permitted accesses to a region, and whether its writes are shared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub execute: bool,
    /// Writes go to the mapped object (MAP_SHARED), not to a copy (MAP_PRIVATE).
    pub shared: bool,
}

impl Permissions {
    fn parse(text: &[u8]) -> Option<Self> {
        let [read, write, execute, shared] = *text else {
            return None;
        };
        let flag = |found: u8, letter: u8| match found {
            b'-' => Some(false),
            found if found == letter => Some(true),
            _ => None,
        };
        Some(Self {
            read: flag(read, b'r')?,
            write: flag(write, b'w')?,
            execute: flag(execute, b'x')?,
            shared: match shared {
                b's' => true,
                b'p' => false,
                _ => return None,
            },
        })
    }

    /// True if no access is permitted.
    #[must_use]
    pub fn none(self) -> bool {
        !(self.read || self.write || self.execute)
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |set: bool, letter: char| if set { letter } else { '-' };
        write!(
            f,
            "{}{}{}{}",
            letter(self.read, 'r'),
            letter(self.write, 'w'),
            letter(self.execute, 'x'),
            if self.shared { 's' } else { 'p' }
        )
    }
}

/// The counts of smaps for one region. `None` means that this kernel does not print the line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// The size of the region's pages (`KernelPageSize`).
    pub page_bytes: Option<u64>,
    /// Pages in memory (`Rss`), without huge pages of hugetlbfs.
    pub resident_bytes: Option<u64>,
    /// Pages in memory, each divided by the number of processes that map it (`Pss`).
    pub proportional_bytes: Option<u64>,
    /// Clean pages that other processes map, too.
    pub shared_clean_bytes: Option<u64>,
    /// Dirty pages that other processes map, too.
    pub shared_dirty_bytes: Option<u64>,
    /// Clean pages that no other process maps.
    pub private_clean_bytes: Option<u64>,
    /// Dirty pages that no other process maps.
    pub private_dirty_bytes: Option<u64>,
    /// Pages without a file; in a private mapping of a file, the copies of written pages (`Anonymous`).
    pub anonymous_bytes: Option<u64>,
    /// Pages in swap.
    pub swapped_bytes: Option<u64>,
    /// Pages of hugetlbfs that other processes map, too.
    pub shared_hugetlb_bytes: Option<u64>,
    /// Pages of hugetlbfs that no other process maps.
    pub private_hugetlb_bytes: Option<u64>,
    /// Two letters each (`VmFlags`; Documentation/filesystems/proc.rst lists them).
    pub flags: Vec<String>,
}

impl Counts {
    fn take(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        let field = match name {
            b"KernelPageSize" => &mut self.page_bytes,
            b"Rss" => &mut self.resident_bytes,
            b"Pss" => &mut self.proportional_bytes,
            b"Shared_Clean" => &mut self.shared_clean_bytes,
            b"Shared_Dirty" => &mut self.shared_dirty_bytes,
            b"Private_Clean" => &mut self.private_clean_bytes,
            b"Private_Dirty" => &mut self.private_dirty_bytes,
            b"Anonymous" => &mut self.anonymous_bytes,
            b"Swap" => &mut self.swapped_bytes,
            b"Shared_Hugetlb" => &mut self.shared_hugetlb_bytes,
            b"Private_Hugetlb" => &mut self.private_hugetlb_bytes,
            b"VmFlags" => {
                let text = String::from_utf8_lossy(value);
                self.flags = text.split_whitespace().map(str::to_owned).collect();
                return Some(());
            }
            // Unused fields, and fields of future kernels.
            _ => return Some(()),
        };
        let kilobytes = std::str::from_utf8(value).ok()?.trim().strip_suffix("kB")?;
        *field = Some(kilobytes.trim().parse::<u64>().ok()?.checked_mul(1024)?);
        Some(())
    }

    /// True if the kernel set this flag on the region; `None` if it does not report flags.
    #[must_use]
    pub fn has(&self, flag: &str) -> Option<bool> {
        (!self.flags.is_empty()).then(|| self.flags.iter().any(|found| found == flag))
    }
}

/// A line of maps, with the counts that smaps prints below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
    /// The permitted accesses.
    pub permissions: Permissions,
    /// Offset of the region in the file, bytes.
    pub offset: u64,
    /// Major and minor number of the file system's device; 0:0 without a file.
    pub device: (u32, u32),
    /// The file's inode number on that device; 0 without a file.
    pub inode: u64,
    /// The last column as the kernel printed it.
    ///
    /// A newline in it is printed as `\012` and a backslash unchanged, so that a file
    /// named `a\012b` cannot be distinguished from one with a newline; ` (deleted)` at the end
    /// is the kernel's remark or part of the name.
    pub name: Option<OsString>,
    /// Counts, only from smaps.
    pub counts: Option<Counts>,
}

impl Region {
    /// Parses a header line: `start-end perms offset major:minor inode   name`.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut rest = line;
        let mut word = || {
            let end = rest.iter().position(|byte| *byte == b' ')?;
            let word = &rest[..end];
            rest = &rest[end + 1..];
            Some(word)
        };
        let (start, end) = split(word()?, b'-')?;
        let permissions = Permissions::parse(word()?)?;
        let offset = hex(word()?)?;
        let (major, minor) = split(word()?, b':')?;
        // A region without a name ends with the inode; some kernels add padding.
        let inode_end = rest
            .iter()
            .position(|byte| *byte == b' ')
            .unwrap_or(rest.len());
        let inode = std::str::from_utf8(&rest[..inode_end]).ok()?;
        let inode = inode.parse().ok()?;
        // No name begins with a space, but names may end with spaces.
        let name = &rest[inode_end..];
        let first = name.iter().position(|byte| *byte != b' ');
        let (start, end) = (hex(start)?, hex(end)?);
        (start < end).then_some(Self {
            start,
            end,
            permissions,
            offset,
            device: (
                u32::try_from(hex(major)?).ok()?,
                u32::try_from(hex(minor)?).ok()?,
            ),
            inode,
            name: first.map(|first| OsString::from_vec(name[first..].to_vec())),
            counts: None,
        })
    }

    /// The length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// True if a file system holds the mapped object; a memfd and shared anonymous memory are files of tmpfs.
    #[must_use]
    pub fn has_file(&self) -> bool {
        self.inode != 0 || self.device != (0, 0)
    }

    /// True if `address` is in the region.
    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

fn split(word: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let middle = word.iter().position(|byte| *byte == at)?;
    Some((&word[..middle], &word[middle + 1..]))
}

fn hex(word: &[u8]) -> Option<u64> {
    if !word.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()
}

/// Parses the text of `path`, which is maps or smaps: in both, a region begins with the same line.
///
/// # Errors
/// A line that is neither a region nor a count; the message quotes it with its line number.
pub fn parse(text: &[u8], path: &str) -> Result<Vec<Region>> {
    let mut regions: Vec<Region> = Vec::new();
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    if text.is_empty() {
        return Ok(regions);
    }
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let invalid = |what: &str| {
            Error::Invalid(format!(
                "{path}, line {}: {what}: `{}`",
                index + 1,
                String::from_utf8_lossy(line).escape_debug()
            ))
        };
        let first_word = line.split(|byte| *byte == b' ').next().unwrap_or_default();
        if let Some(name) = first_word.strip_suffix(b":") {
            let Some(region) = regions.last_mut() else {
                return Err(invalid("a count before the first region"));
            };
            region
                .counts
                .get_or_insert_default()
                .take(name, &line[first_word.len()..])
                .ok_or_else(|| invalid("not a count in kB"))?;
        } else {
            regions.push(Region::parse(line).ok_or_else(|| invalid("not a region"))?);
        }
    }
    Ok(regions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Region {
        let mut regions = parse(line.as_bytes(), "maps").unwrap();
        assert_eq!(regions.len(), 1, "{line}");
        regions.remove(0)
    }

    fn name(line: &str) -> Option<String> {
        one(line).name.map(|name| name.to_str().unwrap().to_owned())
    }

    #[test]
    fn every_field_of_a_line_is_read() {
        let region = one(
            "7f4015796000-7f401596d000 r-xs 0001c000 fe:1f 326269                     /usr/lib/libc.so.6\n",
        );
        assert_eq!(region.start, 0x7f40_1579_6000);
        assert_eq!(region.end, 0x7f40_1596_d000);
        assert_eq!(region.permissions.to_string(), "r-xs");
        assert_eq!(region.offset, 0x1c000);
        assert_eq!(region.device, (0xfe, 0x1f));
        assert_eq!(region.inode, 326_269);
        assert_eq!(region.name.unwrap(), "/usr/lib/libc.so.6");
        assert_eq!(region.counts, None);
    }

    #[test]
    fn a_region_without_a_name_has_none() {
        for line in [
            "55555555f000-555555560000 rw-p 00000000 00:00 0 \n",
            "55555555f000-555555560000 rw-p 00000000 00:00 0",
            "55555555f000-555555560000 rw-p 00000000 00:00 0                  ",
        ] {
            assert_eq!(name(line), None);
            assert!(!one(line).has_file());
        }
    }

    #[test]
    fn a_name_keeps_its_spaces_escapes_and_remarks() {
        for expected in [
            "/tmp/a b",
            "/tmp/two  spaces",
            "/tmp/ends with a space ",
            "/tmp/new\\012line",
            "/tmp/x (deleted)",
            "/tmp/really (deleted) (deleted)",
            "/tmp/50-60 rw-p 00000000 00:00 0",
            "/tmp/Rss: 4 kB",
            "[heap]",
            "[anon:two words: and a colon]",
            "anon_inode:[perf_event]",
            "socket:[12345]",
            "/memfd:a name (deleted)",
        ] {
            let line = format!(
                "7f0000000000-7f0000001000 rw-p 00000000 00:01 42                  {expected}\n"
            );
            assert_eq!(name(&line).as_deref(), Some(expected));
            // Long lines have a single space before the name.
            let line = format!("7f0000000000-7f0000001000 rw-p 00000000 00:01 42 {expected}\n");
            assert_eq!(name(&line).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_name_need_not_be_unicode() {
        let mut line = b"1000-2000 r--p 00000000 08:01 7 /tmp/".to_vec();
        line.extend([0xff, 0xfe, b'\n']);
        let region = parse(&line, "maps").unwrap().remove(0);
        assert_eq!(region.name.unwrap().into_vec(), b"/tmp/\xff\xfe");
    }

    #[test]
    fn vsyscall_is_at_the_top_of_all_addresses() {
        let region = one(
            "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]",
        );
        assert_eq!(region.end, 0xffff_ffff_ff60_1000);
        assert_eq!(region.bytes(), 4096);
        assert!(region.permissions.execute && !region.permissions.read);
    }

    #[test]
    fn short_addresses_and_large_devices_are_read() {
        let region = one("00400000-00401000 ---p 100000000 103:fffff 18446744073709551615 /x");
        assert_eq!((region.start, region.end), (0x40_0000, 0x40_1000));
        assert_eq!(region.offset, 0x1_0000_0000);
        assert_eq!(region.device, (0x103, 0xf_ffff));
        assert_eq!(region.inode, u64::MAX);
        assert!(region.permissions.none());
    }

    #[test]
    fn counts_belong_to_the_region_above_them() {
        let text = b"1000-5000 rw-p 00000000 00:00 0                  [heap]\n\
            Size:                 16 kB\n\
            KernelPageSize:        4 kB\n\
            Rss:                  12 kB\n\
            Private_Dirty:         8 kB\n\
            Swap:                  4 kB\n\
            THPeligible:           0\n\
            ProtectionKey:         0\n\
            SomethingNew:     a word\n\
            VmFlags: rd wr mr mw me ac \n\
            5000-6000 r--p 00000000 08:01 9 /x\n\
            Rss:                   0 kB\n";
        let regions = parse(text, "smaps").unwrap();
        let counts = regions[0].counts.as_ref().unwrap();
        assert_eq!(counts.page_bytes, Some(4096));
        assert_eq!(counts.resident_bytes, Some(12288));
        assert_eq!(counts.private_dirty_bytes, Some(8192));
        assert_eq!(counts.swapped_bytes, Some(4096));
        assert_eq!(counts.shared_dirty_bytes, None);
        assert_eq!(
            (counts.has("wr"), counts.has("ht")),
            (Some(true), Some(false))
        );
        let counts = regions[1].counts.as_ref().unwrap();
        assert_eq!((counts.resident_bytes, counts.has("wr")), (Some(0), None));
    }

    #[test]
    fn a_process_without_mappings_has_no_regions() {
        assert_eq!(parse(b"", "maps").unwrap(), []);
    }

    #[test]
    fn what_is_no_region_is_named_with_its_line() {
        for text in [
            "1000-2000 rw-p 00000000 00:00 0 \nnonsense",
            "1000-2000 rw-p 00000000 00:00 0 \n2000-1000 rw-p 00000000 00:00 0 ",
            "1000-2000 rw-p 00000000 00:00 0 \n2000-2000 rw-p 00000000 00:00 0 ",
            "1000-2000 rw-p 00000000 00:00 0 \n2000-3000 rwzp 00000000 00:00 0 ",
            "1000-2000 rw-p 00000000 00:00 0 \n2000-3000 rw- 00000000 00:00 0 ",
            "1000-2000 rw-p 00000000 00:00 0 \n2000-3000 rw-p +1 00:00 0 ",
            "1000-2000 rw-p 00000000 00:00 0 \n2000-3000 rw-p 0 0000 0 ",
            "1000-2000 rw-p 00000000 00:00 0 \n2000-3000 rw-p 0 00:00 x",
            "1000-2000 rw-p 00000000 00:00 0 \nRss: 4",
            "1000-2000 rw-p 00000000 00:00 0 \nRss: -4 kB",
            "1000-2000 rw-p 00000000 00:00 0 \nRss: 18446744073709551615 kB",
        ] {
            let result = parse(text.as_bytes(), "/proc/7/smaps");
            let message = result.unwrap_err().to_string();
            assert!(
                message.starts_with("/proc/7/smaps, line 2: not a "),
                "{text}: {message}"
            );
        }
        let message = parse(b"Rss: 4 kB", "smaps").unwrap_err().to_string();
        assert!(message.contains("before the first region"), "{message}");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_regions_or_an_error(text in proptest::collection::vec(0_u8.., 0..200)) {
            let _ = parse(&text, "maps");
        }

        #[test]
        fn a_printed_region_reads_back_the_same(
            start in 0_u64..u64::MAX, inode: u64, offset: u64, major: u32, minor: u32,
            name in "[^ \n][^\n]{0,30}",
        ) {
            let line = format!("{start:08x}-{:08x} r-xs {offset:08x} {major:02x}:{minor:02x} {inode} {name}\n", start + 1);
            let region = one(&line);
            proptest::prop_assert_eq!((region.start, region.offset), (start, offset));
            proptest::prop_assert_eq!((region.device, region.inode), ((major, minor), inode));
            proptest::prop_assert_eq!(region.name.unwrap().into_string().unwrap(), name);
        }
    }
}
