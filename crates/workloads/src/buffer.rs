// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a workload: mapped, touched, and its lines selected.

#![allow(unsafe_code)]

use memwarden_platform::mapping::{Mapping, page_bytes};
use memwarden_platform::units::size_text;
use memwarden_platform::{Root, affinity, free_memory, pagemap, topology};

use crate::{Error, LINE_BYTES, Result, Stop};

/// Size and kind of the memory, and the selection of its lines.
#[derive(Debug, Clone)]
pub struct BufferConfig {
    /// Size of the buffer, bytes.
    pub bytes: usize,
    /// Use the reserved huge pages.
    pub huge_pages: bool,
    /// Distance between lines, bytes; a multiple of [`LINE_BYTES`].
    pub stride: usize,
    /// Only lines whose physical address agrees with the first line's in every
    /// bit of this mask: with the bank bits of the memory controller, lines of
    /// one DRAM bank.
    pub bank_mask: Option<u64>,
}

/// 16 MiB, the traditional default of these tools: larger than the last-level
/// cache of the boards that they were written for.
pub const DEFAULT_BYTES: usize = 16 << 20;

/// What a stop during the preparation comes before.
pub(crate) const PREPARED: &str = "the memory was prepared";

/// Lines prepared between looks at `stop`: about a tenth of a second of memory, a delay that is acceptable for Ctrl-C.
pub(crate) const LINES_A_LOOK: usize = 1 << 20;

impl Default for BufferConfig {
    fn default() -> Self {
        Self {
            bytes: DEFAULT_BYTES,
            huge_pages: false,
            stride: LINE_BYTES,
            bank_mask: None,
        }
    }
}

impl BufferConfig {
    /// Maps the buffer and touches every page, so that no page fault is measured; fails once `stop` is requested.
    pub(crate) fn map(&self, stop: &Stop) -> Result<Mapping> {
        self.map_with_order(0, stop)
    }

    /// The same for a workload that also needs `order_bytes` for the order of the lines.
    pub(crate) fn map_with_order(&self, order_bytes: u64, stop: &Stop) -> Result<Mapping> {
        if let Some(mask) = self.bank_mask {
            check_mask(mask)?;
        }
        if self.stride == 0 || self.stride % LINE_BYTES != 0 {
            return Err(Error::Invalid(format!(
                "stride {} is not a multiple of the {LINE_BYTES}-byte line",
                self.stride
            )));
        }
        if self.bytes < self.stride {
            return Err(Error::Invalid(format!(
                "the buffer of {} is smaller than the stride of {}",
                size_text(self.bytes as u64),
                size_text(self.stride as u64)
            )));
        }
        self.fits(&Root::system(), order_bytes)?;
        let mapping = if self.huge_pages {
            Mapping::huge(self.bytes)
        } else {
            Mapping::anonymous(self.bytes)
        }?;
        for offset in (0..mapping.bytes()).step_by(page_bytes()) {
            // The kernel zeroes a page in a time in which this look is nothing.
            stop.check_before(PREPARED)?;
            // SAFETY: within the mapping, which is ours and writable.
            unsafe { mapping.start().add(offset).write_volatile(0) };
        }
        Ok(mapping)
    }

    /// Refuses a buffer of normal pages that would start the OOM killer, the machine's or that of a control group.
    fn fits(&self, root: &Root, order_bytes: u64) -> Result<()> {
        let bytes = self.bytes as u64;
        match free_memory::free(root) {
            Some(free) if !self.huge_pages && bytes.saturating_add(order_bytes) > free.bytes => {
                let order = match order_bytes {
                    0 => String::new(),
                    order => format!(", with {} for the order of its lines,", size_text(order)),
                };
                Err(Error::Invalid(format!(
                    "the buffer of {}{order} is larger than the {free}: choose a smaller -m",
                    size_text(bytes)
                )))
            }
            _ => Ok(()),
        }
    }

    /// The selected lines of the mapped buffer.
    pub(crate) fn lines(&self, mapping: &Mapping) -> Result<Lines> {
        let Some(mask) = self.bank_mask else {
            return Ok(Lines::all(self.bytes / self.stride));
        };
        if self.stride != LINE_BYTES {
            return Err(Error::Invalid(
                "a stride and a bank mask exclude each other: the mask already chooses lines"
                    .into(),
            ));
        }
        let mut lines = same_bank(&pagemap::physical_pages(mapping)?, page_bytes(), mask);
        // A huge page may be larger than the requested size.
        lines
            .starts
            .retain(|start| (start + lines.run) * LINE_BYTES <= self.bytes);
        if lines.starts.is_empty() {
            return Err(Error::Invalid(format!(
                "no line of the buffer agrees with bank mask {mask:#x} (choose a larger -m)"
            )));
        }
        Ok(lines)
    }
}

/// The share of the mapping's pages on other NUMA nodes than that of this thread's CPU; none on a machine with one node.
///
/// A first touch takes a page of the own node, but Linux takes one of the next node rather than drop cached files.
pub(crate) fn remote_share(mapping: &Mapping) -> Option<f64> {
    let first = mapping.start().addr() as u64;
    let range = first..first + mapping.bytes() as u64;
    topology::remote_share(&Root::system(), affinity::current().ok()?, range)
}

/// Lines of a buffer, as runs of `run` consecutive ones with a distance of `stride`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lines {
    /// The number of each run's first line.
    pub(crate) starts: Vec<usize>,
    /// Lines in a run.
    pub(crate) run: usize,
}

impl Lines {
    /// The first `count` lines.
    pub(crate) fn all(count: usize) -> Self {
        Self {
            starts: vec![0],
            run: count,
        }
    }

    /// The number of the line at a place in the order of [`iter`](Self::iter).
    pub(crate) fn at(&self, place: usize) -> usize {
        match self.starts[..] {
            // Without a division.
            [start] => start + place,
            _ => self.starts[place / self.run] + place % self.run,
        }
    }

    /// Number of lines.
    pub(crate) fn len(&self) -> usize {
        self.starts.len() * self.run
    }

    /// Number of pages that contain these lines, `stride` bytes apart.
    pub(crate) fn pages(&self, stride: usize, page_bytes: usize) -> usize {
        let page = |line: usize| line * stride / page_bytes;
        let runs = self
            .starts
            .iter()
            .map(|start| (*start, start + self.run - 1));
        let (mut pages, mut counted) = (0, None);
        for (first, last) in runs {
            // Lines are in the order of their addresses.
            let new = usize::from(counted != Some(page(first)));
            pages += if stride < page_bytes {
                page(last) - page(first) + new
            } else {
                self.run
            };
            counted = Some(page(last));
        }
        pages
    }

    /// The number of each line.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.starts
            .iter()
            .flat_map(|&start| start..start + self.run)
    }
}

fn check_mask(mask: u64) -> Result<()> {
    if mask.trailing_zeros() < LINE_BYTES.trailing_zeros() || mask == 0 {
        return Err(Error::Invalid(format!(
            "bank mask {mask:#x} has a bit inside a {LINE_BYTES}-byte line (or none at all): bank bits are bit 6 and up"
        )));
    }
    Ok(())
}

/// The lines that agree with the first one in every bit of `mask`, for pages at
/// these physical addresses.
///
/// Below the mask's lowest bit all lines agree, so they form runs of a fixed
/// length: at most a page, at least one line.
fn same_bank(pages: &[u64], page_bytes: usize, mask: u64) -> Lines {
    let run_bytes = page_bytes.min(1 << mask.trailing_zeros().min(62));
    let mut starts = Vec::new();
    for (page, address) in pages.iter().enumerate() {
        for offset in (0..page_bytes).step_by(run_bytes) {
            if (address + offset as u64) & mask == pages[0] & mask {
                starts.push((page * page_bytes + offset) / LINE_BYTES);
            }
        }
    }
    Lines {
        starts,
        run: run_bytes / LINE_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_bank_agree_in_the_mask_and_none_is_left_out() {
        let pages = [0x5000, 0x1000, 0x7000, 0x2000, 0xd000];
        for mask in [0x40, 0x100, 0x1000, 0x4000, 0x5040, 0x8000_0000_0000_0000] {
            let lines = same_bank(&pages, 4096, mask);
            let physical = |line: usize| pages[line / 64] + (line as u64 % 64) * 64;
            let chosen: Vec<usize> = lines.iter().collect();
            assert_eq!(chosen.len(), lines.len());
            let places: Vec<usize> = (0..lines.len()).map(|place| lines.at(place)).collect();
            assert_eq!(places, chosen, "mask {mask:#x}");
            let expected: Vec<usize> = (0..pages.len() * 64)
                .filter(|&line| physical(line) & mask == pages[0] & mask)
                .collect();
            assert_eq!(chosen, expected, "mask {mask:#x}");
        }
    }

    #[test]
    fn the_pages_of_lines_are_counted_once() {
        for (lines, stride, pages) in [
            (64, 64, 1),
            (65, 64, 2),
            (16, 4096, 16),
            (32, 2 << 20, 32),
            (9, 512, 2),
        ] {
            assert_eq!(
                Lines::all(lines).pages(stride, 4096),
                pages,
                "{lines} x {stride}"
            );
        }
        // Every second page; of each, half the lines.
        let pages = [0x4000, 0x1000, 0x4000, 0x5000, 0x8000];
        let lines = same_bank(&pages, 4096, 0x1040);
        assert_eq!((lines.len(), lines.pages(64, 4096)), (3 * 32, 3));
        let lines = same_bank(&pages, 4096, 0x1000);
        assert_eq!((lines.len(), lines.pages(64, 4096)), (3 * 64, 3));
    }

    #[test]
    fn masks_that_choose_nothing_are_refused() {
        for mask in [0, 1, 0x20, 0x61] {
            let config = BufferConfig {
                bank_mask: Some(mask),
                ..Default::default()
            };
            // Without physical addresses, which only root gets.
            let message = config.map(&Stop::new()).unwrap_err().to_string();
            assert!(message.contains("bit 6 and up"), "{message}");
        }
    }

    #[test]
    fn a_buffer_beyond_the_limit_of_a_control_group_is_refused() {
        let machine = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("proc/meminfo", "MemAvailable: 99999999 kB\n"),
            ("proc/mounts", "cgroup2 /cg cgroup2 rw 0 0\n"),
            ("proc/self/cgroup", "0::/box\n"),
            ("cg/cgroup.controllers", "memory\n"),
            ("cg/box/memory.max", "67108864\n"),
            ("cg/box/memory.current", "16777216\n"),
        ] {
            let path = machine.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = Root::at(machine.path());
        let fits = |mib: usize, order_mib: u64, huge_pages| {
            let config = BufferConfig {
                bytes: mib << 20,
                huge_pages,
                ..Default::default()
            };
            let order_bytes = order_mib << 20;
            let fits = config.fits(&root, order_bytes);
            fits.map_err(|error| error.to_string())
        };
        assert_eq!(fits(48, 0, false), Ok(()));
        assert_eq!(
            fits(49, 0, false).unwrap_err(),
            "the buffer of 49 MiB is larger than the 48 MiB of memory that control group /box leaves (its limit is \
             64 MiB): choose a smaller -m"
        );
        // Reserved huge pages are not the group's memory.
        assert_eq!(fits(49, 0, true), Ok(()));
        assert_eq!(fits(44, 4, false), Ok(()));
        let said = fits(48, 3, false).unwrap_err();
        assert!(
            said.starts_with(
                "the buffer of 48 MiB, with 3 MiB for the order of its lines, is larger"
            ),
            "{said}"
        );
    }

    #[test]
    fn a_stop_ends_the_touching_of_pages() {
        let stop = Stop::new();
        stop.request();
        let before = memwarden_platform::faults::minor().unwrap();
        let said = BufferConfig::default().map(&stop).unwrap_err().to_string();
        assert!(said.contains("nothing was measured"), "{said}");
        let faults = memwarden_platform::faults::minor().unwrap() - before;
        // 8 huge pages, or 4096 normal ones, would be the whole buffer; a few faults are this test's own.
        assert!(faults < 8, "{faults} faults");
    }

    #[test]
    fn impossible_buffers_are_refused() {
        for (config, why) in [
            (
                BufferConfig {
                    stride: 0,
                    ..Default::default()
                },
                "not a multiple",
            ),
            (
                BufferConfig {
                    stride: 100,
                    ..Default::default()
                },
                "not a multiple",
            ),
            (
                BufferConfig {
                    bytes: 1024,
                    stride: 4096,
                    ..Default::default()
                },
                "smaller than the stride",
            ),
            (
                BufferConfig {
                    bytes: 1 << 60,
                    ..Default::default()
                },
                "larger than",
            ),
        ] {
            let message = config.map(&Stop::new()).unwrap_err().to_string();
            assert!(message.contains(why), "{message}");
        }
    }
}
