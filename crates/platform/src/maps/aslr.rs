// SPDX-License-Identifier: MIT OR Apache-2.0
//! The addresses of a process's parts, and those that they would have without address space layout randomisation.
//!
//! The defaults are the kernel's: `ELF_ET_DYN_BASE`, `STACK_TOP` and `DEFAULT_MAP_WINDOW` of
//! arch/x86/include/asm/ and arch/arm64/include/asm/, `mmap_base()` of arch/x86/mm/mmap.c and mm/util.c, and
//! load_elf_binary() of fs/binfmt_elf.c.

use schemars::JsonSchema;
use serde::Serialize;

use super::Address;
use super::elf::{Elf, Machine, round_down, round_up};

/// Bits of a personality (personality(2)).
const ADDR_NO_RANDOMIZE: u64 = 0x0004_0000;
const ADDR_COMPAT_LAYOUT: u64 = 0x0020_0000;

/// Minimum gap below the stack's top for its growth (`MIN_GAP`, `SIZE_128M`).
const LEAST_STACK_GAP: u64 = 128 << 20;

/// Guard pages below a stack (`stack_guard_gap`'s default).
const GUARD_PAGES: u64 = 256;

/// Maximum random offset of a stack on arm64: 0x3ffff pages of 4 KiB (`STACK_RND_MASK`).
const ARM64_STACK_RANDOM: u64 = 1 << 30;

/// Effect of randomisation on a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Aslr {
    /// kernel.randomize_va_space: 0 none; 1 stack, mappings and PIEs; 2 also the heap. It applies to programs started
    /// now.
    pub randomize_va_space: Option<i64>,
    /// The process's personality, in hexadecimal; null without permission to trace it.
    pub personality: Option<String>,
    /// True if the personality has ADDR_NO_RANDOMIZE, as after `setarch -R`.
    pub addr_no_randomize: Option<bool>,
    /// True if any part was moved; null if no default is known.
    pub moved: Option<bool>,
    /// Program, heap, mappings, stack.
    pub bases: Vec<Base>,
}

/// Start or end of one part of the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Base {
    /// The part.
    pub part: &'static str,
    /// Its address; null if the process has none.
    pub address: Option<Address>,
    /// Its address without randomisation; null if unknown.
    pub default_address: Option<Address>,
    /// The address minus the default address.
    pub moved_bytes: Option<i64>,
    /// Reason why a figure is null, or a limitation of it.
    pub note: Option<String>,
}

/// The known facts of the process.
pub(super) struct Facts<'a> {
    /// The program's file, and its load offset.
    pub program: Option<(&'a Elf, u64)>,
    /// Start of the heap.
    pub heap: Option<u64>,
    /// End of the first thread's stack.
    pub stack_end: Option<u64>,
    /// End of the highest mapping below the stack.
    pub mappings_end: Option<u64>,
    /// Address of the vdso.
    pub vdso: Option<u64>,
    /// Size of a page.
    pub page_bytes: u64,
    /// kernel.randomize_va_space.
    pub setting: Option<i64>,
    /// vm.legacy_va_layout.
    pub legacy_layout: Option<i64>,
    /// The personality of the process.
    pub personality: Option<u64>,
    /// Soft limit of its stack; the inner `None` means unlimited.
    pub stack_limit: Option<Option<u64>>,
}

/// Compares the actual addresses with the defaults.
pub(super) fn examine(facts: &Facts) -> Aslr {
    let layout = layout(facts);
    let program = program(facts, &layout);
    let bases = vec![
        heap(facts, &program),
        heap_in_program(facts),
        mappings(facts, &layout),
        base(
            "stack's end",
            facts.stack_end,
            layout.clone().map(|layout| layout.top),
        ),
        base(
            "vdso",
            facts.vdso,
            Err("it is put beside the stack or the mappings, by the kernel's version".to_owned()),
        ),
    ];
    let bases: Vec<Base> = std::iter::once(program).chain(bases).collect();
    let no_randomize = facts.personality.map(|bits| bits & ADDR_NO_RANDOMIZE != 0);
    // By default the heap follows the program, so its unrandomised address is always known.
    let mut known = bases.iter().filter_map(|base| base.moved_bytes).peekable();
    let moved = known
        .peek()
        .is_some()
        .then(|| known.any(|bytes| bytes != 0));
    Aslr {
        randomize_va_space: facts.setting,
        personality: facts.personality.map(|bits| format!("{bits:#010x}")),
        addr_no_randomize: no_randomize,
        moved: if no_randomize == Some(true) {
            Some(false)
        } else {
            moved
        },
        bases,
    }
}

fn base(part: &'static str, address: Option<u64>, default: Result<u64, String>) -> Base {
    let moved = match (address, &default) {
        (Some(address), Ok(default)) => Some(address.wrapping_sub(*default) as i64),
        _ => None,
    };
    Base {
        part,
        address: address.map(Address),
        default_address: default.as_ref().ok().copied().map(Address),
        moved_bytes: moved,
        note: match (address, default) {
            (None, _) => Some("the process has none, or it is unknown".to_owned()),
            (_, Err(why)) => Some(why),
            _ => None,
        },
    }
}

/// The end of a process's address space, and the reference points of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    /// End of the stack.
    top: u64,
    /// Load address of position-independent programs.
    program: u64,
}

fn layout(facts: &Facts) -> Result<Layout, String> {
    let (elf, _) = facts
        .program
        .ok_or("the program's file cannot be read: its architecture is not known")?;
    match (elf.machine, elf.bits) {
        (Machine::X86_64, 64) => {
            let top = (1 << 47) - 4096;
            Ok(Layout {
                top,
                program: top / 3 * 2,
            })
        }
        (Machine::Arm64, 64) => {
            let end = facts
                .stack_end
                .ok_or("arm64 has address spaces of several sizes, which only the stack reveals")?;
            // CONFIG_ARM64_VA_BITS; with 52 bits, programs get 48 unless they request more.
            let bits = [36_u32, 39, 42, 47, 48].into_iter().find(|bits| {
                let top = 1_u64 << bits;
                end <= top && top - end <= ARM64_STACK_RANDOM
            });
            let bits = bits.ok_or("the stack is at no known address of arm64 kernels")?;
            Ok(Layout {
                top: 1 << bits,
                program: (2 << bits) / 3,
            })
        }
        (machine, bits) => Err(format!(
            "the defaults are known for 64-bit x86-64 and arm64 processes, not for {bits}-bit {}",
            machine.name()
        )),
    }
}

/// Address of the program's first segment.
fn program(facts: &Facts, layout: &Result<Layout, String>) -> Base {
    let part = "program";
    let Some((elf, bias)) = facts.program else {
        return base(part, None, Err(String::new()));
    };
    let Some((start, _)) = elf.span(facts.page_bytes) else {
        return base(part, None, Err(String::new()));
    };
    let address = Some(start.wrapping_add(bias));
    if !elf.movable {
        let mut fixed = base(part, address, Ok(start));
        fixed.note = Some("linked for this address: not a PIE, it cannot be moved".to_owned());
        return fixed;
    }
    if elf.interpreter.is_none() {
        let why = "a PIE without a dynamic loader is put among the mappings, or at the base of PIEs, by the kernel's \
                   version";
        return base(part, address, Err(why.to_owned()));
    }
    let default = layout.clone().map(|layout| {
        let unit = facts.page_bytes.max(elf.alignment());
        round_down(round_down(layout.program, facts.page_bytes), unit).wrapping_add(start)
    });
    base(part, address, default)
}

/// The page after the program's last byte, where the heap starts without randomisation.
fn program_end(facts: &Facts) -> Option<u64> {
    let (elf, bias) = facts.program?;
    let (_, end) = elf.span(facts.page_bytes)?;
    Some(end.wrapping_add(bias))
}

fn heap_address(facts: &Facts) -> Option<u64> {
    facts.heap.map(|heap| round_up(heap, facts.page_bytes))
}

fn heap(facts: &Facts, program: &Base) -> Base {
    let default = match (program_end(facts), program.moved_bytes) {
        (Some(end), Some(moved)) => Ok(end.wrapping_sub(moved as u64)),
        _ => Err("it begins where the program ends, whose own default is not known".to_owned()),
    };
    base("heap", heap_address(facts), default)
}

/// The heap relative to the program, which was moved itself: the additional effect of randomize_va_space 2.
fn heap_in_program(facts: &Facts) -> Base {
    let movable_alone = facts
        .program
        .is_some_and(|(elf, _)| elf.movable && elf.interpreter.is_none());
    let default = if movable_alone {
        Err(
            "the heap of a PIE without a dynamic loader is put elsewhere, by the kernel's version"
                .to_owned(),
        )
    } else {
        program_end(facts).ok_or_else(|| "the program's end is not known".to_owned())
    };
    base("heap, from the program's end", heap_address(facts), default)
}

/// The first mapping of a process ends where the kernel begins to map downwards; a later one is higher only on request.
fn mappings(facts: &Facts, layout: &Result<Layout, String>) -> Base {
    let default = layout.clone().and_then(|layout| {
        if facts.legacy_layout.is_some_and(|value| value != 0)
            || facts
                .personality
                .is_some_and(|bits| bits & ADDR_COMPAT_LAYOUT != 0)
        {
            return Err("with the legacy layout mappings grow upwards".to_owned());
        }
        let limit = facts
            .stack_limit
            .ok_or("it depends on the stack's limit, and /proc/PID/limits cannot be read")?
            .ok_or("it depends on the stack's limit, which is none: then kernels differ")?;
        let gap = limit
            .saturating_add(GUARD_PAGES * facts.page_bytes)
            .clamp(LEAST_STACK_GAP, layout.top / 6 * 5);
        Ok(round_up(layout.top - gap, facts.page_bytes))
    });
    let mut found = base("mappings' end", facts.mappings_end, default);
    if found.note.is_none() {
        found.note = Some(
            "the end of the highest mapping: the kernel's own base is there, or above it if that one was unmapped"
                .to_owned(),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::elf::Segment;
    use super::*;

    /// A program from 0 to 0xbfff with a dynamic loader.
    fn pie(machine: Machine) -> Elf {
        Elf {
            bits: 64,
            machine,
            movable: true,
            interpreter: Some(PathBuf::from("/lib/ld.so")),
            segments: vec![Segment {
                offset: 0,
                file_bytes: 0xa100,
                address: 0,
                memory_bytes: 0xb234,
                alignment: 0x1000,
                execute: true,
                write: true,
            }],
            sections: Vec::new(),
            relro: None,
        }
    }

    fn facts(elf: &Elf, bias: u64) -> Facts<'_> {
        Facts {
            program: Some((elf, bias)),
            heap: Some(bias + 0xc000),
            stack_end: Some(0x7fff_ffff_f000),
            mappings_end: Some(0x7fff_f7ff_f000),
            vdso: Some(0x7fff_f7fc_8000),
            page_bytes: 4096,
            setting: Some(2),
            legacy_layout: Some(0),
            personality: Some(ADDR_NO_RANDOMIZE),
            stack_limit: Some(Some(8 << 20)),
        }
    }

    fn part<'a>(aslr: &'a Aslr, name: &str) -> &'a Base {
        aslr.bases.iter().find(|base| base.part == name).unwrap()
    }

    #[test]
    fn without_randomisation_nothing_is_moved_on_x86_64() {
        let elf = pie(Machine::X86_64);
        let aslr = examine(&facts(&elf, 0x5555_5555_4000));
        for (name, address) in [
            ("program", 0x5555_5555_4000),
            ("heap", 0x5555_5556_0000),
            ("heap, from the program's end", 0x5555_5556_0000),
            ("mappings' end", 0x7fff_f7ff_f000),
            ("stack's end", 0x7fff_ffff_f000),
        ] {
            let base = part(&aslr, name);
            assert_eq!(base.default_address, Some(Address(address)), "{name}");
            assert_eq!(base.moved_bytes, Some(0), "{name}");
        }
        assert_eq!(part(&aslr, "vdso").default_address, None);
        assert_eq!(
            (aslr.moved, aslr.addr_no_randomize),
            (Some(false), Some(true))
        );
        assert_eq!(aslr.personality.as_deref(), Some("0x00040000"));
    }

    #[test]
    fn what_was_moved_is_told_in_bytes_and_with_its_direction() {
        let elf = pie(Machine::X86_64);
        let facts = Facts {
            heap: Some(0x5620_e047_d000 + 0xc000 + 0x12_3000),
            stack_end: Some(0x7ffd_6bd7_4000),
            mappings_end: Some(0x7f78_bbdd_d000),
            personality: Some(0),
            ..facts(&elf, 0x5620_e047_d000)
        };
        let aslr = examine(&facts);
        for (name, moved) in [
            ("program", 0x5620_e047_d000_i64 - 0x5555_5555_4000),
            ("heap", 0x5620_e047_d000 + 0x12_3000 - 0x5555_5555_4000),
            ("heap, from the program's end", 0x12_3000),
            ("mappings' end", 0x7f78_bbdd_d000 - 0x7fff_f7ff_f000),
            ("stack's end", 0x7ffd_6bd7_4000 - 0x7fff_ffff_f000),
        ] {
            assert_eq!(part(&aslr, name).moved_bytes, Some(moved), "{name}");
        }
        assert_eq!(
            (aslr.moved, aslr.addr_no_randomize),
            (Some(true), Some(false))
        );
    }

    #[test]
    fn arm64_has_address_spaces_of_several_sizes() {
        let elf = pie(Machine::Arm64);
        for (stack_end, top, program) in [
            (0xffff_c1b2_3000, 1_u64 << 48, 0xaaaa_aaaa_a000),
            (1 << 48, 1 << 48, 0xaaaa_aaaa_a000),
            (0x7f_f1b2_3000, 1 << 39, 0x55_5555_5000),
        ] {
            let facts = Facts {
                stack_end: Some(stack_end),
                mappings_end: Some(top - (128 << 20)),
                ..facts(&elf, 0)
            };
            let aslr = examine(&facts);
            let default = |name| part(&aslr, name).default_address;
            assert_eq!(default("stack's end"), Some(Address(top)));
            assert_eq!(default("program"), Some(Address(program)));
            assert_eq!(part(&aslr, "mappings' end").moved_bytes, Some(0));
        }
        let nowhere = Facts {
            stack_end: Some(0x1234_5000),
            ..facts(&elf, 0)
        };
        let aslr = examine(&nowhere);
        let base = part(&aslr, "program");
        assert_eq!(base.default_address, None);
        assert!(
            base.note
                .as_ref()
                .unwrap()
                .contains("no known address of arm64")
        );
    }

    #[test]
    fn a_larger_stack_puts_mappings_lower() {
        let elf = pie(Machine::X86_64);
        let with = |stack_limit| Facts {
            stack_limit,
            ..facts(&elf, 0x5555_5555_4000)
        };
        let aslr = examine(&with(Some(Some(1 << 30))));
        assert_eq!(
            part(&aslr, "mappings' end").default_address,
            Some(Address(0x7fff_ffff_f000 - (1 << 30) - (1 << 20)))
        );
        for (limit, why) in [(Some(None), "which is none"), (None, "cannot be read")] {
            let aslr = examine(&with(limit));
            let base = part(&aslr, "mappings' end");
            assert_eq!((base.default_address, base.moved_bytes), (None, None));
            assert!(base.note.as_ref().unwrap().contains(why));
        }
        for (legacy_layout, personality) in
            [(Some(1), Some(0)), (Some(0), Some(ADDR_COMPAT_LAYOUT))]
        {
            let facts = Facts {
                legacy_layout,
                personality,
                ..facts(&elf, 0)
            };
            let aslr = examine(&facts);
            let note = &part(&aslr, "mappings' end").note;
            assert!(note.as_ref().unwrap().contains("legacy layout"));
        }
    }

    #[test]
    fn a_program_with_fixed_addresses_stays_and_its_heap_may_not() {
        let mut elf = pie(Machine::X86_64);
        (elf.movable, elf.segments[0].address) = (false, 0x40_0000);
        let facts = Facts {
            heap: Some(0x40_c000 + 0x5000),
            ..facts(&elf, 0)
        };
        let aslr = examine(&facts);
        let program = part(&aslr, "program");
        assert_eq!(program.moved_bytes, Some(0));
        assert!(program.note.as_ref().unwrap().contains("not a PIE"));
        assert_eq!(part(&aslr, "heap").moved_bytes, Some(0x5000));
    }

    #[test]
    fn what_cannot_be_known_is_null_with_a_reason() {
        let mut elf = pie(Machine::X86_64);
        elf.interpreter = None;
        let aslr = examine(&facts(&elf, 0x7fff_f7f0_0000));
        for name in ["program", "heap", "heap, from the program's end"] {
            let base = part(&aslr, name);
            assert_eq!(
                (base.default_address, base.moved_bytes),
                (None, None),
                "{name}"
            );
            assert!(base.address.is_some() && base.note.is_some(), "{name}");
        }
        elf = pie(Machine::I386);
        elf.bits = 32;
        let aslr = examine(&facts(&elf, 0x5655_5000));
        let base = part(&aslr, "stack's end");
        assert_eq!(base.moved_bytes, None);
        assert!(base.note.as_ref().unwrap().contains("32-bit i386"));

        let nothing = Facts {
            program: None,
            heap: None,
            stack_end: None,
            mappings_end: None,
            vdso: None,
            page_bytes: 4096,
            setting: None,
            legacy_layout: None,
            personality: None,
            stack_limit: None,
        };
        let aslr = examine(&nothing);
        assert_eq!(
            (aslr.moved, aslr.randomize_va_space, aslr.personality),
            (None, None, None)
        );
        assert!(
            aslr.bases
                .iter()
                .all(|base| base.address.is_none() && base.note.is_some())
        );
    }

    #[test]
    fn a_program_that_asks_for_large_alignment_gets_it() {
        let mut elf = pie(Machine::X86_64);
        elf.segments[0].alignment = 2 << 20;
        let aslr = examine(&facts(&elf, 0x5555_5540_0000));
        assert_eq!(part(&aslr, "program").moved_bytes, Some(0));
    }
}
