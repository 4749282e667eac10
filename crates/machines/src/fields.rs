// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fields of a machine's file.

use toml::de::{DeTable, DeValue};

use crate::{Fault, Half};

/// A value of a file that is not a table.
pub(crate) struct Leaf<'t, 'i> {
    /// Its name with those of the tables around it, such as `machine.core.mshrs`.
    pub path: String,
    /// The byte at which its name begins.
    pub at: usize,
    value: &'t DeValue<'i>,
}

/// The type of a field.
#[derive(Debug, Clone, Copy)]
enum Holds {
    Whole(u64, u64),
    /// One of these numbers.
    Numbers(&'static [u64]),
    Flag,
    Text,
    Words(&'static [&'static str]),
    /// Where a TLB holds pages of 2 MiB: a word, or a table with the number of entries.
    Pages(&'static [&'static str]),
    /// Numbers of ways of a cache, for each core.
    Partitions,
    /// A page policy.
    Policy,
}

/// A field.
struct Known {
    path: &'static str,
    holds: Holds,
    /// Whether it may be missing: it belongs to an optional table, or has a default.
    optional: bool,
    /// The half that it belongs to; `None` for both.
    half: Option<Half>,
}

const fn whole(path: &'static str, min: u64, max: u64) -> Known {
    of(path, Holds::Whole(min, max))
}

const fn of(path: &'static str, holds: Holds) -> Known {
    Known {
        path,
        holds,
        optional: false,
        half: None,
    }
}

const fn optional(known: Known) -> Known {
    Known {
        optional: true,
        ..known
    }
}

const fn times(known: Known) -> Known {
    Known {
        half: Some(Half::Times),
        ..known
    }
}

const fn counters(known: Known) -> Known {
    Known {
        half: Some(Half::Counters),
        ..known
    }
}

/// CPU types of the lab's emulator that have a PMU and no instructions whose accesses it cannot
/// see.
const CPUS: [&str; 4] = ["cortex-a53", "cortex-a72", "cortex-a76", "neoverse-n1"];

/// An address bit chooses between two channels, so only powers of two use all of them.
const CHANNELS: [u64; 5] = [1, 2, 4, 8, 16];

const REPLACEMENTS: [&str; 2] = ["lru", "random"];

/// A microsecond in ps: longer than any delay between a core and its memory.
const US: u64 = 1_000_000;
/// A second in ps.
const S: u64 = 1_000_000 * US;
const SIZE: u64 = 1 << 30;
/// The largest number of pages in a TLB.
const MAX_PAGES: u64 = 65536;

/// The longest time for which writes may wait for a pause of the reads, ps.
pub const MAX_IDLE_PS: u64 = 1000 * US;

/// Optional tables; if one of a table's fields is present, all must be. A table comes before the
/// one around it.
const GROUPS: [&str; 10] = [
    "counters.dtlb.huge.",
    "counters.next_line.",
    "counters.prefetcher.",
    "counters.stlb.huge.",
    "counters.stlb.",
    "counters.stride.",
    "machine.core.l1i.",
    "machine.core.l2.",
    "machine.core.prefetcher.",
    "machine.dma.",
];

const KNOWN: &[Known] = &[
    of("name", Holds::Text),
    times(optional(of("emulated_as", Holds::Words(&CPUS)))),
    times(of("memory.name", Holds::Text)),
    times(optional(of("memory.channels", Holds::Numbers(&CHANNELS)))),
    times(whole("machine.cores", 1, 32)),
    whole("machine.line_bytes", 16, 4096),
    times(whole("machine.memory_bytes", 1 << 20, 1 << 36)),
    times(of("machine.core.in_order", Holds::Flag)),
    times(whole("machine.core.issue_ps", 50, US)),
    times(whole("machine.core.mshrs", 1, 64)),
    times(whole("machine.core.prefetch_mshrs", 0, 64)),
    whole("machine.core.tlb_entries", 0, MAX_PAGES),
    times(whole("machine.core.page_walk_ps", 0, US)),
    whole("machine.core.l1d.size_bytes", 1024, SIZE),
    whole("machine.core.l1d.ways", 1, 64),
    times(whole("machine.core.l1d.hit_ps", 50, US)),
    times(whole("machine.core.l1i.size_bytes", 1024, SIZE)),
    times(whole("machine.core.l1i.ways", 1, 64)),
    times(whole("machine.core.l1i.prefetch_lines", 0, 64)),
    whole("machine.core.l2.size_bytes", 1024, SIZE),
    whole("machine.core.l2.ways", 1, 64),
    times(whole("machine.core.l2.hit_ps", 50, US)),
    of("machine.core.prefetcher.into", Holds::Words(&["l1d", "l2"])),
    whole("machine.core.prefetcher.streams", 1, 64),
    whole("machine.core.prefetcher.trigger_steps", 1, 64),
    whole("machine.core.prefetcher.degree", 1, 64),
    whole("machine.core.prefetcher.distance", 1, 64),
    whole("machine.shared.cache.size_bytes", 1024, SIZE),
    whole("machine.shared.cache.ways", 1, 64),
    times(whole("machine.shared.cache.hit_ps", 50, US)),
    times(whole("machine.shared.mshrs", 1, 256)),
    times(whole("machine.shared.write_backs", 1, 256)),
    times(optional(of("machine.shared.partitions", Holds::Partitions))),
    of("machine.shared.inclusive", Holds::Flag),
    times(whole("machine.shared.to_memory_ps", 0, US)),
    times(whole("machine.shared.from_memory_ps", 0, US)),
    times(optional(whole("machine.shared.port_ps", 0, US))),
    times(whole("machine.dma.outstanding", 1, 64)),
    times(whole("machine.dma.port_ps", 0, US)),
    times(of("machine.dma.coherent", Holds::Flag)),
    times(optional(whole("controller.read_depth", 1, 1024))),
    times(optional(whole("controller.write_depth", 1, 1024))),
    times(optional(whole("controller.row_hit_cap", 0, 1 << 20))),
    times(optional(whole("controller.write_high", 1, 1024))),
    times(optional(whole("controller.write_low", 0, 1023))),
    times(optional(whole("controller.writes_per_drain", 1, 1 << 20))),
    times(optional(whole("controller.reads_per_turn", 1, 1 << 20))),
    times(optional(whole("controller.write_idle_ps", 0, MAX_IDLE_PS))),
    times(optional(of("controller.page_policy", Holds::Policy))),
    counters(optional(of(
        "counters.l1d_replacement",
        Holds::Words(&REPLACEMENTS),
    ))),
    counters(optional(of(
        "counters.l2_replacement",
        Holds::Words(&REPLACEMENTS),
    ))),
    counters(optional(of(
        "counters.llc_replacement",
        Holds::Words(&REPLACEMENTS),
    ))),
    counters(optional(of(
        "counters.l1d_writes",
        Holds::Words(&["back", "through"]),
    ))),
    counters(optional(of("counters.adjacent_line", Holds::Flag))),
    counters(optional(of(
        "counters.perf_events",
        Holds::Words(&["demand", "sandy-bridge"]),
    ))),
    counters(whole("counters.dtlb.entries", 1, MAX_PAGES)),
    counters(whole("counters.dtlb.ways", 1, MAX_PAGES)),
    counters(of("counters.dtlb.huge", Holds::Pages(&["shared"]))),
    counters(whole("counters.dtlb.huge.entries", 1, MAX_PAGES)),
    counters(whole("counters.dtlb.huge.ways", 1, MAX_PAGES)),
    counters(whole("counters.stlb.ways", 1, MAX_PAGES)),
    counters(of(
        "counters.stlb.huge",
        Holds::Pages(&["shared", "nowhere"]),
    )),
    counters(whole("counters.stlb.huge.entries", 1, MAX_PAGES)),
    counters(whole("counters.stlb.huge.ways", 1, MAX_PAGES)),
    counters(of("counters.prefetcher.into", Holds::Words(&["l1d", "l2"]))),
    counters(whole("counters.prefetcher.streams", 1, 64)),
    counters(whole("counters.prefetcher.trigger_steps", 1, 64)),
    counters(whole("counters.prefetcher.degree", 1, 64)),
    counters(whole("counters.prefetcher.distance", 1, 64)),
    counters(whole("counters.next_line.recent", 1, 1024)),
    counters(whole("counters.stride.instructions", 1, 65536)),
    counters(whole("counters.stride.largest_bytes", 1, 4096)),
    counters(whole("counters.stride.repeats", 1, 64)),
    times(whole("reaction.overflow_ps", 0, 1000 * US)),
    times(whole("reaction.throttle_ps", 0, 1000 * US)),
    times(whole("reaction.release_ps", 0, 1000 * US)),
    times(whole("reaction.period_overhead_ps", 0, 1000 * US)),
    times(whole("work.chase_ps", 0, US)),
    times(whole("work.line_ps", 0, US)),
    times(whole("work.frame_ps", 0, US)),
    times(of("work.frame_depends", Holds::Flag)),
    times(whole("work.xserver_ps", 0, US)),
    times(whole("work.xserver_draw_ps", 0, S)),
    times(whole("work.xserver_pause_ps", 0, S)),
    times(whole("work.xserver_bytes", 64, SIZE)),
    times(optional(whole("work.xserver_burst_bytes", 64, SIZE))),
];

impl Leaf<'_, '_> {
    /// Whether it is the field of that path, or a field of the table of that path.
    fn is_or_is_in(&self, path: &str) -> bool {
        let rest = self.path.strip_prefix(path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

impl Holds {
    fn allows(self, value: &DeValue) -> bool {
        match self {
            Self::Whole(min, max) => {
                number(value).is_some_and(|number| (min..=max).contains(&number))
            }
            Self::Numbers(numbers) => number(value).is_some_and(|number| numbers.contains(&number)),
            Self::Flag => value.as_bool().is_some(),
            Self::Text => value.as_str().is_some_and(|text| !text.is_empty()),
            Self::Words(words) | Self::Pages(words) => {
                value.as_str().is_some_and(|text| words.contains(&text))
            }
            Self::Partitions => {
                let way = Self::Whole(1, 64);
                let ways = value.as_array();
                ways.is_some_and(|ways| ways.iter().all(|ways| way.allows(ways.get_ref())))
            }
            Self::Policy => value
                .as_str()
                .is_some_and(|text| ["open", "closed"].contains(&text)),
        }
    }

    fn what(self) -> String {
        match self {
            Self::Whole(min, max) if min == max => format!("has to be {min}"),
            Self::Whole(min, max) => format!("has to be a whole number from {min} to {max}"),
            Self::Numbers(numbers) => {
                let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
                format!("has to be one of {}", numbers.join(", "))
            }
            Self::Flag => "has to be true or false".into(),
            Self::Text => "has to be a text".into(),
            Self::Words(words) => format!("has to be one of {}", words.join(", ")),
            Self::Pages(words) => format!(
                "has to be {}, or a table with entries and ways",
                words.join(", ")
            ),
            Self::Partitions => "has to be a list of whole numbers from 1 to 64".into(),
            Self::Policy => {
                "has to be \"open\", \"closed\" or a table page_policy.timeout with idle_ps".into()
            }
        }
    }
}

/// All errors in single fields.
pub(crate) fn judge(text: &str, leaves: &[Leaf], halves: &[Half]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for Leaf { path, at, value } in leaves {
        if let Some(fitted) = path.strip_prefix("fit.") {
            let known = KNOWN.iter().find(|known| known.path == fitted);
            let range = value.as_array().filter(|array| array.len() == 2);
            let allowed = match (known.map(|known| known.holds), range) {
                (Some(Holds::Whole(min, max)), Some(range)) => {
                    let holds = Holds::Whole(min, max);
                    range.iter().all(|bound| holds.allows(bound.get_ref()))
                }
                _ => false,
            };
            if !allowed {
                let why = match known.map(|known| known.holds) {
                    Some(Holds::Whole(min, max)) => {
                        format!("has to be [LEAST, MOST] between {min} and {max}")
                    }
                    Some(Holds::Numbers(_)) => "cannot be fitted".into(),
                    _ => "is not a number of a platform: name one by its path, in quotes".into(),
                };
                faults.push(Fault::at(text, *at, path, why));
            }
            continue;
        }
        if path == "controller.page_policy.timeout.idle_ps" {
            let holds = Holds::Whole(0, S);
            if !holds.allows(value) {
                faults.push(Fault::at(text, *at, path, holds.what()));
            }
            continue;
        }
        match KNOWN.iter().find(|known| known.path == path) {
            None => {
                let table = path.rsplit_once('.').map_or("", |(table, _)| table);
                let there = KNOWN.iter().filter_map(|known| {
                    let (group, name) = known.path.rsplit_once('.').unwrap_or(("", known.path));
                    (group == table).then_some(name)
                });
                let there: Vec<&str> = there.collect();
                let why = if there.is_empty() {
                    "is not known".to_owned()
                } else {
                    format!("is not known; known are {}", there.join(", "))
                };
                faults.push(Fault::at(text, *at, path, why));
            }
            Some(known) if !known.holds.allows(value) => {
                faults.push(Fault::at(text, *at, path, known.holds.what()));
            }
            Some(_) => {}
        }
    }
    for known in KNOWN {
        let there = |path: &str| leaves.iter().any(|leaf| leaf.path.starts_with(path));
        let group = GROUPS.iter().find(|group| known.path.starts_with(**group));
        let wanted = known.half.is_none_or(|half| halves.contains(&half))
            && group.map_or(!known.optional, |group| there(group));
        let found = leaves.iter().any(|leaf| leaf.is_or_is_in(known.path));
        if wanted && !found {
            let why = format!("is missing: {}", known.holds.what());
            faults.push(Fault::at(
                text,
                place_of_table(leaves, known.path),
                known.path,
                why,
            ));
        }
    }
    faults
}

/// Where a missing field belongs: the begin of its table, or of the first table around it that is
/// there.
fn place_of_table(leaves: &[Leaf], path: &str) -> usize {
    let mut path = path;
    while let Some((table, _)) = path.rsplit_once('.') {
        let inside = leaves.iter().filter(|leaf| leaf.is_or_is_in(table));
        if let Some(at) = inside.map(|leaf| leaf.at).min() {
            return at;
        }
        path = table;
    }
    0
}

/// Errors in several fields together: the field, and the reason. Each field by itself is valid.
pub(crate) fn together(leaves: &[Leaf]) -> Vec<(String, String)> {
    let get = |path: &str| {
        let leaf = leaves.iter().find(|leaf| leaf.path == path);
        leaf.and_then(|leaf| number(leaf.value))
    };
    let there = |path: &str| leaves.iter().any(|leaf| leaf.is_or_is_in(path));
    let mut wrong = Vec::new();
    let mut fault = |path: &str, why: String| wrong.push((path.to_owned(), why));
    let line = get("machine.line_bytes").unwrap_or(0);
    if !line.is_power_of_two() {
        fault("machine.line_bytes", "has to be a power of two".into());
        return wrong;
    }
    for cache in [
        "machine.core.l1d",
        "machine.core.l1i",
        "machine.core.l2",
        "machine.shared.cache",
    ] {
        let size = format!("{cache}.size_bytes");
        if let (Some(bytes), Some(ways)) = (get(&size), get(&format!("{cache}.ways"))) {
            if bytes % (line * ways) != 0 {
                let why = format!("has to be a multiple of {ways} ways of {line} bytes");
                fault(&size, why);
            }
        }
    }
    let tlb = "machine.core.tlb_entries";
    for (entries, ways) in [
        ("counters.dtlb.entries", "counters.dtlb.ways"),
        ("counters.dtlb.huge.entries", "counters.dtlb.huge.ways"),
        ("counters.stlb.huge.entries", "counters.stlb.huge.ways"),
        (tlb, "counters.stlb.ways"),
    ] {
        if let (Some(pages), Some(ways)) = (get(entries), get(ways)) {
            if pages == 0 || pages % ways != 0 {
                let why = format!("has to be a multiple of the {ways} ways");
                fault(entries, why);
            }
        }
    }
    if let Some(dtlb) = get("counters.dtlb.entries") {
        if !there("counters.stlb") && get(tlb) != Some(dtlb) {
            let why = format!(
                "has to be {dtlb}, the entries of the DTLB, or there has to be a [counters.stlb]"
            );
            fault(tlb, why);
        }
    }
    if there("counters.l2_replacement") && !there("machine.core.l2") {
        let why = "needs a table [machine.core.l2]";
        fault("counters.l2_replacement", why.into());
    }
    if there("counters.prefetcher") && there("machine.core.prefetcher") {
        let why = "is for a machine whose [machine.core.prefetcher] is left out, since it is off \
                   in the simulation";
        fault("counters.prefetcher.into", why.into());
    }
    wrong
}

/// Whether a file has a half.
pub(crate) fn has(file: &DeTable, half: Half) -> bool {
    match half {
        Half::Counters => file.contains_key("counters"),
        Half::Times => leaves(file).iter().any(|leaf| {
            let known = KNOWN.iter().find(|known| leaf.is_or_is_in(known.path));
            let half = known.and_then(|known| known.half);
            half == Some(Half::Times) || leaf.is_or_is_in("fit")
        }),
    }
}

/// Why a file could not have that value at this path, if it couldn't.
#[must_use]
pub fn refuses(path: &str, value: u64) -> Option<String> {
    let known = KNOWN.iter().find(|known| known.path == path)?;
    match known.holds {
        Holds::Whole(min, max) if !(min..=max).contains(&value) => Some(known.holds.what()),
        Holds::Numbers(numbers) if !numbers.contains(&value) => Some(known.holds.what()),
        _ => None,
    }
}

fn number(value: &DeValue) -> Option<u64> {
    let number = value.as_integer()?;
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// All values except tables.
pub(crate) fn leaves<'t, 'i>(file: &'t DeTable<'i>) -> Vec<Leaf<'t, 'i>> {
    let mut leaves = Vec::new();
    flatten("", file, &mut leaves);
    leaves
}

fn flatten<'t, 'i>(prefix: &str, table: &'t DeTable<'i>, leaves: &mut Vec<Leaf<'t, 'i>>) {
    for (key, value) in table {
        let path = format!("{prefix}{}", key.get_ref());
        match value.get_ref() {
            DeValue::Table(inner) => flatten(&format!("{path}."), inner, leaves),
            value => leaves.push(Leaf {
                path,
                at: key.span().start,
                value,
            }),
        }
    }
}
