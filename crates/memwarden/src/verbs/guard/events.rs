// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard events`: lists the known events that count memory traffic, by processor.

use std::process::ExitCode;

use memwarden_policy::events::{self, Event, Kind, Processor, Sure, core_type, vendor};
use schemars::JsonSchema;
use serde::Serialize;

use crate::verbs::output::outln;
use crate::verbs::terminal::{lines, table};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Events whose name contains this, such as cortex or zen [default: all]
    #[arg(value_name = "WORD", default_value = "", hide_default_value = true)]
    word: String,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let chosen: Vec<Event> = events::all()
        .filter(|event| event.name.contains(&args.word))
        .collect();
    if chosen.is_empty() {
        anyhow::bail!(
            "no event has `{}` in its name; `memwarden guard events` lists all",
            args.word
        );
    }
    if args.json {
        let all: Printed = chosen.iter().map(listed).collect();
        outln!("{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut all = table(&[
        "event",
        "maker",
        "processors",
        "reads",
        "writes",
        "both",
        "bytes",
        "counts",
        "known by",
        "source",
    ]);
    for event in &chosen {
        let (makers, models) = processors(event);
        all.add_row(vec![
            event.name.to_owned(),
            makers,
            models,
            reads(event),
            event.write.map_or("-".into(), |code| format!("{code:#x}")),
            event
                .combined
                .map_or("-".into(), |code| format!("{code:#x}")),
            event.bytes.map_or("page".into(), |bytes| bytes.to_string()),
            counts(event),
            sure(event.sure).into(),
            event.source.to_owned(),
        ]);
    }
    outln!("{}", lines(all, 0..0))?;
    outln!(
        "Processors are part numbers of MIDR_EL1 (Arm) or family:models of CPUID, in hexadecimal; of a hybrid, (P) or \
         (E) is the core type. Counts: what the reads include besides lines that loads wait for."
    )?;
    Ok(ExitCode::SUCCESS)
}

/// What `--json` prints.
pub type Printed = Vec<Listed>;

/// An event.
#[derive(Serialize, JsonSchema)]
pub struct Listed {
    event: &'static str,
    /// The processors whose own event it is.
    processors: Vec<Row>,
    /// How a counter is requested.
    asked_for_by: &'static str,
    read: u64,
    read_config1: u64,
    read_too: Option<u64>,
    /// The code that counts write-backs.
    write: Option<u64>,
    /// The code that counts both.
    combined: Option<u64>,
    /// Bytes of an event; null is a page.
    bytes: Option<u32>,
    /// Whether the reads include prefetches.
    prefetches: bool,
    /// Whether they include the lines that writes fetch.
    writes_fetched: bool,
    /// Whether they include hits in a shared cache.
    shared_cache_hits: bool,
    known_by: &'static str,
    source: &'static str,
}

/// Processors of one maker.
#[derive(Serialize, JsonSchema)]
pub struct Row {
    maker: String,
    maker_id: u32,
    family: u32,
    first: u32,
    last: u32,
    /// Of a hybrid processor: P or E.
    core_type: Option<&'static str>,
}

fn listed(event: &Event) -> Listed {
    let includes = event.includes;
    let row = |row: Processor| Row {
        maker: maker(row.vendor),
        maker_id: row.vendor,
        family: row.family,
        first: row.first,
        last: row.last,
        core_type: core_type::letter(row.core),
    };
    Listed {
        event: event.name,
        processors: of(event).map(row).collect(),
        asked_for_by: kind(event.kind),
        read: event.read,
        read_config1: event.read_config1,
        read_too: event.read_too,
        write: event.write,
        combined: event.combined,
        bytes: event.bytes,
        prefetches: includes.prefetches,
        writes_fetched: includes.writes,
        shared_cache_hits: includes.shared_hits,
        known_by: sure(event.sure),
        source: event.source,
    }
}

fn of(event: &Event) -> impl Iterator<Item = Processor> {
    let name = event.name;
    events::processors().filter(move |row| row.event == name)
}

fn maker(vendor: u32) -> String {
    match vendor {
        vendor::ARM => "Arm".into(),
        0x42 => "Broadcom".into(),
        0x43 => "Cavium".into(),
        0x46 => "Fujitsu".into(),
        0x48 => "HiSilicon".into(),
        0x4e => "NVIDIA".into(),
        0x50 => "Ampere (APM)".into(),
        0x51 => "Qualcomm".into(),
        0x61 => "Apple".into(),
        0x6d => "Microsoft".into(),
        0xc0 => "Ampere".into(),
        vendor::INTEL => "Intel".into(),
        vendor::AMD => "AMD".into(),
        vendor::HYGON => "Hygon".into(),
        other => format!("{other:#x}"),
    }
}

/// The makers and models of the processors whose own event this is.
fn processors(event: &Event) -> (String, String) {
    let mut makers: Vec<String> = Vec::new();
    let mut models = Vec::new();
    for row in of(event) {
        let maker = maker(row.vendor);
        if !makers.contains(&maker) {
            makers.push(maker);
        }
        let family = match row.family {
            0 => String::new(),
            family => format!("{family:x}:"),
        };
        let last = match row.last {
            last if last == row.first => String::new(),
            last => format!("-{last:x}"),
        };
        let core = core_type::letter(row.core).map_or(String::new(), |core| format!("({core})"));
        models.push(format!("{family}{:x}{last}{core}", row.first));
    }
    let or_none = |words: Vec<String>| match words.is_empty() {
        true => "-".to_owned(),
        false => words.join(" "),
    };
    (or_none(makers), or_none(models))
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Raw => "raw code",
        Kind::CacheMisses => "perf's cache-misses",
        Kind::LastLevelReadMisses => "perf's LLC-load-misses",
        Kind::PageFaults => "perf's page-faults",
        Kind::MinorFaults => "perf's minor-faults",
        Kind::Cycles => "perf's cycles",
        Kind::Instructions => "perf's instructions",
        Kind::None => "nothing",
    }
}

fn reads(event: &Event) -> String {
    match event.kind {
        Kind::Raw => event.read_codes(),
        Kind::None => "none".into(),
        other => kind(other).trim_start_matches("perf's ").into(),
    }
}

fn counts(event: &Event) -> String {
    let includes = event.includes;
    let words: Vec<&str> = [
        (includes.prefetches, "prefetches"),
        (includes.writes, "lines to write"),
        (includes.shared_hits, "hits behind the core"),
    ]
    .into_iter()
    .filter_map(|(is, word)| is.then_some(word))
    .collect();
    words.join(", ")
}

fn sure(sure: Sure) -> &'static str {
    match sure {
        Sure::Seen => "self-test",
        Sure::Listed => "kernel's list",
        Sure::Manual => "manual",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_which_processors_it_is_for() {
        let row = |name| processors(&events::named(name).unwrap());
        assert_eq!(row("cortex-a78"), ("Arm".into(), "d41-d42 d4b".into()));
        assert_eq!(
            row("neoverse-n2"),
            ("Arm Microsoft".into(), "d49 d49".into())
        );
        assert_eq!(row("haswell"), ("Intel".into(), "6:3c 6:3f 6:45-46".into()));
        assert_eq!(
            row("gracemont").1,
            "6:97(E) 6:9a(E) 6:b7(E) 6:ba(E) 6:bf(E) 6:be"
        );
        assert_eq!(row("arrowlake").1, "6:c5-c6(P)");
        assert_eq!(row("page-faults"), ("-".into(), "-".into()));
        for event in events::all() {
            let told = listed(&event);
            assert_eq!(told.event, event.name);
            assert_eq!(told.processors.len(), of(&event).count());
        }
    }
}
