// SPDX-License-Identifier: MIT OR Apache-2.0
//! Groups the mappings of an ELF file into loaded objects, and finds their load offsets.

use std::collections::{BTreeMap, BTreeSet};

use super::Region;
use super::elf::{Elf, Section, Segment, round_down, round_up};

/// One loaded instance of a file. A file may be loaded several times, and also be mapped as data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loaded {
    /// Load address minus link-time address, modulo 2^64.
    pub bias: u64,
    /// Indices of its regions.
    pub regions: Vec<usize>,
}

/// Evidence for a bias.
#[derive(Default)]
struct Evidence {
    regions: usize,
    fitting: usize,
    code: bool,
    segments: BTreeSet<usize>,
}

/// The loaded objects of the regions of one file, each with its index.
///
/// Adjacent segments share a page of the file, so two segments may explain the same region; the bias that explains most
/// regions is right. A file without a code region at the address of its code is mapped as data.
pub(super) fn loaded(elf: &Elf, regions: &[(usize, &Region)], page_bytes: u64) -> Vec<Loaded> {
    let mut rest = regions.to_vec();
    let mut found = Vec::new();
    while let Some(bias) = best_bias(elf, &rest, page_bytes) {
        let span = elf.span(page_bytes);
        let (ours, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(_, region)| {
            let explained = elf
                .segments
                .iter()
                .any(|segment| bias_of(segment, region, page_bytes) == Some(bias));
            // The loader maps the whole span at once, then removes access to the gaps between segments.
            let gap = region.permissions.none()
                && span.is_some_and(|(start, end)| {
                    (start..end).contains(&region.start.wrapping_sub(bias))
                });
            explained || gap
        });
        rest = others;
        found.push(Loaded {
            bias,
            regions: ours.iter().map(|(index, _)| *index).collect(),
        });
    }
    found
}

fn best_bias(elf: &Elf, regions: &[(usize, &Region)], page_bytes: u64) -> Option<u64> {
    let mut biases: BTreeMap<u64, Evidence> = BTreeMap::new();
    for (_, region) in regions {
        let mut counted = BTreeSet::new();
        for (index, segment) in elf.segments.iter().enumerate() {
            let Some(bias) = bias_of(segment, region, page_bytes) else {
                continue;
            };
            if !elf.movable && bias != 0 {
                continue;
            }
            let evidence = biases.entry(bias).or_default();
            evidence.regions += usize::from(counted.insert(bias));
            let allowed = region.permissions;
            let fits = allowed.execute == segment.execute && (!allowed.write || segment.write);
            evidence.fitting += usize::from(fits);
            evidence.code |= segment.execute && allowed.execute;
            evidence.segments.insert(index);
        }
    }
    let has_code = elf.segments.iter().any(|segment| segment.execute);
    let in_file = elf.segments.iter().filter(|one| one.file_bytes > 0).count();
    biases
        .into_iter()
        .filter(|(_, evidence)| {
            if has_code {
                evidence.code
            } else {
                evidence.segments.len() == in_file
            }
        })
        .max_by_key(|(bias, evidence)| {
            (evidence.regions, evidence.fitting, std::cmp::Reverse(*bias))
        })
        .map(|(bias, _)| bias)
}

/// The bias of the file if `region` begins in `segment`.
fn bias_of(segment: &Segment, region: &Region, page_bytes: u64) -> Option<u64> {
    let from = round_down(segment.offset, page_bytes);
    let to = round_up(segment.offset.checked_add(segment.file_bytes)?, page_bytes);
    // The kernel maps pages: a segment whose offset in its page differs from the file's cannot be mapped.
    let mappable = segment.file_bytes > 0
        && segment.offset % page_bytes == segment.address % page_bytes
        && (from..to).contains(&region.offset);
    mappable.then(|| {
        region
            .start
            .wrapping_sub(region.offset - from)
            .wrapping_sub(round_down(segment.address, page_bytes))
    })
}

/// The part of `section` in the region, with the file's `bias`: first byte and length.
pub(super) fn part_by_address(section: &Section, bias: u64, region: &Region) -> Option<(u64, u64)> {
    overlap(
        section.address.wrapping_add(bias),
        section.bytes,
        region.start,
        region.bytes(),
    )
}

/// The same for a file that is mapped as data, by the section's offset in the file.
pub(super) fn part_by_offset(section: &Section, region: &Region) -> Option<(u64, u64)> {
    let (offset, bytes) = overlap(
        section.offset?,
        section.bytes,
        region.offset,
        region.bytes(),
    )?;
    Some((region.start + (offset - region.offset), bytes))
}

fn overlap(start: u64, bytes: u64, window: u64, window_bytes: u64) -> Option<(u64, u64)> {
    let from = start.max(window);
    let to = start
        .checked_add(bytes)?
        .min(window.saturating_add(window_bytes));
    (from < to).then(|| (from, to - from))
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn segment(offset: u64, file_bytes: u64, address: u64, execute: bool, write: bool) -> Segment {
        Segment {
            offset,
            file_bytes,
            address,
            memory_bytes: file_bytes + if write { 0x3000 } else { 0 },
            alignment: 0x1000,
            execute,
            write,
        }
    }

    /// A library of constants, code and data; code and data share a page of the file.
    fn library() -> Elf {
        Elf {
            bits: 64,
            machine: super::super::elf::Machine::X86_64,
            movable: true,
            interpreter: None,
            segments: vec![
                segment(0, 0x1800, 0, false, false),
                segment(0x2000, 0x1e00, 0x2000, true, false),
                segment(0x3e00, 0x600, 0x4e00, false, true),
            ],
            sections: Vec::new(),
            relro: None,
        }
    }

    fn loaded_from(elf: &Elf, maps: &str) -> Vec<Loaded> {
        let regions = parse(maps.as_bytes(), "maps").unwrap();
        let indexed: Vec<_> = regions.iter().enumerate().collect();
        loaded(elf, &indexed, 0x1000)
    }

    const ONCE: &str = "\
        7f0000000000-7f0000002000 r--p 00000000 08:01 7 /l\n\
        7f0000002000-7f0000004000 r-xp 00002000 08:01 7 /l\n\
        7f0000004000-7f0000005000 r--p 00003000 08:01 7 /l\n\
        7f0000005000-7f0000006000 rw-p 00004000 08:01 7 /l\n";

    #[test]
    fn a_page_that_two_segments_share_does_not_mislead() {
        let found = loaded_from(&library(), ONCE);
        let expected = Loaded {
            bias: 0x7f00_0000_0000,
            regions: vec![0, 1, 2, 3],
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_file_loaded_twice_is_two_objects() {
        let text = format!("{ONCE}{}", ONCE.replace("7f00", "7f55"));
        let found = loaded_from(&library(), &text);
        let found: Vec<_> = found
            .iter()
            .map(|one| (one.bias, &one.regions[..]))
            .collect();
        assert_eq!(
            found,
            [
                (0x7f00_0000_0000, &[0, 1, 2, 3][..]),
                (0x7f55_0000_0000, &[4, 5, 6, 7])
            ]
        );
    }

    #[test]
    fn a_file_mapped_as_data_is_no_object() {
        let data = "7e0000000000-7e0000005000 r--p 00000000 08:01 7 /l\n";
        assert_eq!(loaded_from(&library(), data), []);
        // Its data is not part of the adjacent object either.
        let found = loaded_from(&library(), &format!("{data}{ONCE}"));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].regions, [1, 2, 3, 4]);
    }

    #[test]
    fn a_gap_between_segments_belongs_to_the_object() {
        let mut elf = library();
        elf.segments[2] = segment(0x3e00, 0x600, 0x20_3e00, false, true);
        let text = "\
            7f0000000000-7f0000002000 r--p 00000000 08:01 7 /l\n\
            7f0000002000-7f0000004000 r-xp 00002000 08:01 7 /l\n\
            7f0000004000-7f0000203000 ---p 00004000 08:01 7 /l\n\
            7f0000203000-7f0000205000 rw-p 00003000 08:01 7 /l\n";
        let found = loaded_from(&elf, text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].regions, [0, 1, 2, 3]);
    }

    #[test]
    fn a_program_with_fixed_addresses_is_where_it_was_linked_or_data() {
        let mut elf = library();
        elf.movable = false;
        for segment in &mut elf.segments {
            segment.address += 0x40_0000;
        }
        assert_eq!(loaded_from(&elf, ONCE), []);
        let found = loaded_from(&elf, &ONCE.replace("7f000000", "0040"));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].bias, 0);
    }

    #[test]
    fn a_library_of_data_alone_needs_all_its_segments() {
        let mut elf = library();
        elf.segments.remove(1);
        assert_eq!(
            loaded_from(&elf, "7e0000000000-7e0000002000 r--p 0 08:01 7 /l\n"),
            []
        );
        assert_eq!(loaded_from(&elf, ONCE).len(), 1);
    }

    #[test]
    fn a_section_is_where_its_address_or_its_offset_says() {
        let regions = parse(ONCE.as_bytes(), "maps").unwrap();
        let section = |address, bytes, offset| Section {
            name: ".data".into(),
            address,
            bytes,
            offset,
        };
        let data = section(0x4f00, 0x200, Some(0x3f00));
        let bias = 0x7f00_0000_0000;
        assert_eq!(
            part_by_address(&data, bias, &regions[2]),
            Some((0x7f00_0000_4f00, 0x100))
        );
        assert_eq!(
            part_by_address(&data, bias, &regions[3]),
            Some((0x7f00_0000_5000, 0x100))
        );
        assert_eq!(part_by_address(&data, bias, &regions[1]), None);
        assert_eq!(
            part_by_offset(&data, &regions[1]),
            Some((0x7f00_0000_3f00, 0x100))
        );
        assert_eq!(part_by_offset(&section(0, 16, None), &regions[0]), None);
        assert_eq!(
            part_by_address(&section(u64::MAX, 16, None), 0, &regions[0]),
            None
        );
    }
}
