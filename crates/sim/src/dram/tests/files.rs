// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory files and address mappings.

use std::path::Path;

use proptest::prelude::*;

use crate::dram::checks::saturate;
use crate::dram::mapping::{AddressMap, Location, Mapping, MappingError};
use crate::dram::memory_file::names;
use crate::dram::{Checker, Controller, ControllerSettings, Memory, MemoryError, PagePolicy};
use crate::dram::{Standard, Timings};

const DDR4: &str = include_str!("../../../memories/ddr4-2400.toml");

fn faults(text: &str) -> String {
    Memory::parse(Path::new("my.toml"), text)
        .unwrap_err()
        .to_string()
}

#[test]
fn every_memory_is_there_and_moves_lines_of_64_bytes() {
    for name in names() {
        let memory = Memory::named(name).unwrap();
        assert_eq!(memory.organisation.burst_bytes(), 64, "{name}");
        assert_eq!(memory.name.to_lowercase(), name);
    }
    let error = Memory::named("ddr1").unwrap_err();
    assert!(matches!(error, MemoryError::Unknown { .. }));
}

#[test]
fn every_wrong_field_is_named_with_its_line_and_range() {
    let text = DDR4
        .replace("rows = 65536", "rows = 65537")
        .replace("tras = 32000", "tras = \"long\"")
        .replace("trfc = 350000", "trfcc = 350000");
    let line = |start: &str| {
        1 + text
            .lines()
            .position(|line| line.starts_with(start))
            .unwrap()
    };
    let told = faults(&text);
    for (start, what) in [
        (
            "rows",
            "organisation.rows: is 65537: has to be a power of two from 2 to 4194304",
        ),
        (
            "tras",
            "timings.tras: has to be whole ps, or \"Nck\" in clocks, from 100 to 200000",
        ),
        ("trfcc", "timings.trfcc: is not known"),
        ("[timings]", "timings.trfc: is missing: has to be"),
    ] {
        let expected = format!("my.toml line {}, {what}", line(start));
        assert!(told.contains(&expected), "{expected}\nnot in\n{told}");
    }
    assert_eq!(told.lines().count(), 4, "{told}");
}

#[test]
fn fields_that_contradict_each_other_are_named() {
    let told = faults(&DDR4.replace("trc = 46160", "trc = 20000"));
    assert!(
        told.contains("timings.trc: is 20000: has to be at least tras = 32000"),
        "{told}"
    );
    let told = faults(&DDR4.replace("\"row\", ", "\"row:3\", "));
    assert!(
        told.contains("row has 3 bits in the order, and 16 in the organisation"),
        "{told}"
    );
    assert!(faults("name = [").contains("my.toml line 1, syntax"));
}

#[test]
fn a_burst_takes_a_clock_at_least() {
    let lpddr5 = include_str!("../../../memories/lpddr5-6400.toml");
    let text = lpddr5.replace("burst_length = 16", "burst_length = 4");
    let told = faults(&text);
    assert!(
        told.contains("organisation.burst_length: is 4: has to be at least 8, a clock's transfers"),
        "{told}"
    );
    let allowed = lpddr5.replace("burst_length = 16", "burst_length = 8");
    assert!(Memory::parse(Path::new("my.toml"), &allowed).is_ok());
    let mut memory = Memory::named("lpddr5-6400").unwrap();
    memory.organisation.burst_length = 4;
    let error = Controller::new(&memory, &ControllerSettings::default()).err();
    assert_eq!(
        error.unwrap().to_string(),
        "burst_length is 4: has to be from 8 to 32"
    );
}

#[test]
fn refreshes_leave_time_for_a_request() {
    let line = 1 + DDR4
        .lines()
        .position(|line| line.starts_with("trefi"))
        .unwrap();
    for trefi in [350_000, 351_000, 360_000, 370_000, 411_501] {
        let told = faults(&DDR4.replace("trefi = 7800000", &format!("trefi = {trefi}")));
        // In clocks: tRFC 421, tRP 17, tRC 56; a read has 17 + 17 + 4, a write 17 + 12 + 4 + 18.
        let why = format!(
            "my.toml line {line}, timings.trefi: is {trefi}: has to be at least 411502, so that a rank has \
             time for a request between two REFs"
        );
        assert!(told.starts_with(&why), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}

/// With the smallest tREFI that its file may have, every memory serves its requests.
#[test]
fn the_least_trefi_serves_reads_and_writes() {
    for name in names() {
        for ranks in [1, 2] {
            let mut memory = Memory::named(name).unwrap();
            memory.organisation.ranks = ranks;
            memory.timings.trefi = memory.timings.least_trefi_ps(memory.burst_ps());
            memory.timings.trefi -= 1;
            let text = toml::to_string(&memory).unwrap();
            assert!(faults(&text).contains("timings.trefi: is "), "{name}");
            memory.timings.trefi += 1;
            let text = toml::to_string(&memory).unwrap();
            let memory = Memory::parse(Path::new("my.toml"), &text).unwrap();
            let lines = memory.organisation.capacity_bytes() / 64;
            for page_policy in [PagePolicy::Open, PagePolicy::Closed] {
                let settings = ControllerSettings {
                    page_policy,
                    ..ControllerSettings::default()
                };
                for share in [0, 1, 5, 10] {
                    let checker = Checker::new(&memory);
                    let mut controller = Controller::observed(&memory, &settings, checker).unwrap();
                    let mut random = fastrand::Rng::with_seed(share);
                    saturate(&mut controller, 2_000, |_| {
                        (random.u64(..lines) * 64, random.u64(..10) < share)
                    });
                    let statistics = controller.statistics();
                    let bytes: u64 = statistics.bytes_by_core.iter().sum();
                    let queued = statistics.forwarded + statistics.merged;
                    assert_eq!(bytes / 64 + queued, 2_000, "{name}");
                    let report = controller.into_observer().into_report();
                    assert_eq!(
                        report.violation_count, 0,
                        "{name}: {:?}",
                        report.violations[0]
                    );
                }
            }
        }
    }
}

/// A minimum time of a standard, max(nCK, ps), for the chips of these widths.
struct Formula {
    field: &'static str,
    widths: &'static [u64],
    clocks: u64,
    ps: u64,
}

/// The rule by which a standard rounds ps to clocks: it adds this, in thousandths of a clock, and
/// truncates.
fn rounded(ps: u64, tck: u64, standard: Standard) -> u64 {
    match standard {
        // JESD79-4, "Rounding Algorithms".
        Standard::Ddr4 => (ps * 1000 / tck + 974) / 1000,
        // JESD79-5 first takes 0.3 % off.
        Standard::Ddr5 => (ps * 997 / tck + 1000) / 1000,
        _ => ps.div_ceil(tck),
    }
}

const fn formula(field: &'static str, widths: &'static [u64], clocks: u64, ps: u64) -> Formula {
    Formula {
        field,
        widths,
        clocks,
        ps,
    }
}

const ALL: &[u64] = &[4, 8, 16];

/// JESD79-3F, DDR3-1333.
const DDR3: &[Formula] = &[
    formula("tccd_l", ALL, 4, 0),
    formula("tccd_l_wr", ALL, 4, 0),
    formula("trrd_l", &[4, 8], 4, 6000),
    formula("trrd_l", &[16], 4, 7500),
    formula("tfaw", &[4, 8], 0, 30_000),
    formula("tfaw", &[16], 0, 45_000),
    formula("twr", ALL, 0, 15_000),
    formula("twtr_l", ALL, 4, 7500),
    formula("trtp", ALL, 4, 7500),
];

/// JESD79-4B, DDR4-2400.
const DDR4_FORMULAS: &[Formula] = &[
    formula("tccd_s", ALL, 4, 0),
    formula("tccd_l", ALL, 5, 5000),
    formula("tccd_l_wr", ALL, 5, 5000),
    formula("trrd_s", &[4, 8], 4, 3300),
    formula("trrd_s", &[16], 4, 5300),
    formula("trrd_l", &[4, 8], 4, 4900),
    formula("trrd_l", &[16], 4, 6400),
    formula("tfaw", &[4], 16, 13_000),
    formula("tfaw", &[8], 20, 21_000),
    formula("tfaw", &[16], 28, 30_000),
    formula("twr", ALL, 0, 15_000),
    formula("twtr_s", ALL, 2, 2500),
    formula("twtr_l", ALL, 4, 7500),
    formula("trtp", ALL, 4, 7500),
];

/// JESD79-5, DDR5-4800. A write to an x4 chip may need an internal read-modify-write: tCCD_L_WR.
/// Full writes to wider chips need none: tCCD_L_WR2.
const DDR5: &[Formula] = &[
    formula("tccd_s", ALL, 8, 0),
    formula("tccd_l", ALL, 8, 5000),
    formula("tccd_l_wr", &[4], 32, 20_000),
    formula("tccd_l_wr", &[8, 16], 16, 10_000),
    formula("trrd_s", ALL, 8, 0),
    formula("trrd_l", ALL, 8, 5000),
    formula("tfaw", &[8], 32, 13_333),
    formula("twr", ALL, 0, 30_000),
    formula("twtr_s", ALL, 4, 2500),
    formula("twtr_l", ALL, 16, 10_000),
    formula("trtp", ALL, 12, 7500),
];

#[test]
fn times_are_those_of_the_standards_formulas_for_the_chips_width() {
    for (name, width, formulas) in [
        ("ddr3-1333", 8, DDR3),
        ("ddr4-2400", 8, DDR4_FORMULAS),
        ("ddr5-4800", 8, DDR5),
    ] {
        let memory = Memory::named(name).unwrap();
        let (tck, clocks) = (memory.timings.tck, memory.timings.in_clocks());
        for formula in formulas.iter().filter(|one| one.widths.contains(&width)) {
            let mut fields = Timings::FIELDS.iter();
            let field = fields.find(|field| field.name == formula.field).unwrap();
            let expected = rounded(formula.ps, tck, memory.standard).max(formula.clocks);
            let found = (field.get)(&clocks) / tck;
            assert_eq!(found, expected, "{name}, {}", formula.field);
        }
    }
}

#[test]
fn wrong_currents_are_named_and_may_be_left_out() {
    let told = faults(
        &DDR4
            .replace("mv = 1200", "mv = 12")
            .replace("chips = 8", "chips = 0"),
    );
    assert!(
        told.contains("currents.vdd.mv: is 12: has to be whole uA (mv: mV) from 100 to 5000"),
        "{told}"
    );
    assert!(
        told.contains("currents.chips: has to be the chips of a rank, from 1 to 64"),
        "{told}"
    );
    assert_eq!(told.lines().count(), 2, "{told}");
    let told = faults(&DDR4.replace("idd5 = ", "idd6 = "));
    assert!(told.contains("currents.vdd.idd6: is not known"), "{told}");
    assert!(told.contains("currents.vdd.idd5: is missing"), "{told}");
    let (without, _) = DDR4.split_once("[currents]").unwrap();
    let memory = Memory::parse(Path::new("my.toml"), without).unwrap();
    assert_eq!(memory.currents, None);
    let told = faults(&format!("{without}[currents]\nchips = 8\nvdd = 1\n"));
    assert!(
        told.contains("currents.vdd: has to be a supply's table"),
        "{told}"
    );
    assert!(
        told.contains("has to have a table for each supply"),
        "{told}"
    );
}

#[test]
fn a_mapping_names_every_bit_once() {
    let memory = Memory::named("ddr4-2400").unwrap();
    let error = |order: &[&str]| {
        let order = order.iter().map(|part| (*part).to_owned()).collect();
        let mapping = Mapping {
            order,
            bank_hash: false,
        };
        AddressMap::new(&memory.organisation, &mapping).unwrap_err()
    };
    assert_eq!(error(&["rows"]), MappingError::Unknown("rows".into()));
    let twice = ["row", "row", "bank", "bank_group", "column"];
    assert_eq!(error(&twice), MappingError::Twice("row"));
    let missing = error(&["row", "bank_group", "column"]);
    assert!(matches!(missing, MappingError::Bits { part: "bank", .. }));
}

proptest! {
    #[test]
    fn an_address_is_found_again(
        address in 0_u64..1 << 33,
        order in Just(vec![
            "row:5", "row", "rank", "bank:1", "bank", "bank_group", "column", "column:3", "channel",
        ]).prop_shuffle(),
        bank_hash: bool,
    ) {
        let mut memory = Memory::named("ddr4-2400").unwrap();
        memory.organisation.ranks = 2;
        memory.organisation.channels = 4;
        memory.organisation.rows /= 8;
        let order = order.into_iter().map(str::to_owned).collect();
        let map = AddressMap::new(&memory.organisation, &Mapping { order, bank_hash }).unwrap();
        let location = map.locate(address);
        prop_assert_eq!(map.address(&location), address & !63);
        prop_assert_eq!(map.channel(address), location.channel as usize);
        prop_assert!(u64::from(location.row) < memory.organisation.rows);
        prop_assert!(u64::from(location.column) < memory.organisation.bursts_per_row());
        // Mixed radix: as many numbers as banks, each for one channel, rank, group and bank.
        prop_assert_eq!(map.banks(), 4 * 2 * 4 * 4);
        let Location { channel, rank, group, bank, .. } = location;
        prop_assert_eq!(map.bank_of(address) as u32, ((channel * 2 + rank) * 4 + group) * 4 + bank);
    }
}
