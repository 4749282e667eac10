// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each timing rule by itself: the controller's earliest time is the rule's, and the checker
//! reports a command that is a clock too early, but not one that is on time.

use crate::dram::Memory;
use crate::dram::checker::Checker;
use crate::dram::command::Command;
use crate::dram::command::Kind::{self, Activate, Precharge, PrechargeAll, Read, Refresh, Write};
use crate::dram::ready::ReadyTimes;

/// Banks of DDR4-2400 with two ranks: four per group, four groups per rank.
const BANK: usize = 0;
const SAME_GROUP: usize = 1;
const OTHER_GROUP: usize = 4;
const OTHER_RANK: usize = 16;
const BURST: u64 = 4;

fn memory() -> Memory {
    two_ranks("ddr4-2400")
}

fn two_ranks(name: &str) -> Memory {
    let mut memory = Memory::named(name).unwrap();
    memory.organisation.ranks = 2;
    memory
}

fn command(kind: Kind, bank: usize, at_ps: u64) -> Command {
    Command {
        at_ps,
        kind,
        rank: (bank / 16) as u32,
        group: (bank / 4 % 4) as u32,
        bank: (bank % 4) as u32,
        row: 7,
    }
}

fn found(memory: &Memory, rule: &str, commands: &[Command]) -> bool {
    let mut checker = Checker::new(memory);
    for command in commands {
        checker.check(0, command);
    }
    let violations = &checker.report().violations;
    violations.iter().any(|violation| violation.rule == rule)
}

/// `then` may follow `first` after this many clocks, also by the checker's rule.
fn gap(rule: &str, first: (Kind, usize), then: (Kind, usize), clocks: u64) {
    gap_of(&memory(), rule, first, then, clocks);
}

fn gap_of(memory: &Memory, rule: &str, first: (Kind, usize), then: (Kind, usize), clocks: u64) {
    let tck = memory.timings.tck;
    let begin_ps = 1000 * tck;
    let mut ready = ReadyTimes::new(memory);
    ready.issue(first.0, first.1, begin_ps);
    let earliest_ps = ready.earliest(then.0, then.1);
    assert_eq!((earliest_ps - begin_ps) / tck, clocks, "{rule}");
    let first = command(first.0, first.1, begin_ps);
    let then = |at_ps| command(then.0, then.1, at_ps);
    assert!(
        found(memory, rule, &[first, then(earliest_ps - tck)]),
        "{rule} is broken"
    );
    assert!(
        !found(memory, rule, &[first, then(earliest_ps)]),
        "{rule} is kept"
    );
}

#[test]
fn trcd() {
    gap("tRCD", (Activate, BANK), (Read, BANK), 17);
    gap("tRCD", (Activate, BANK), (Write, BANK), 17);
}

#[test]
fn tras() {
    gap("tRAS", (Activate, BANK), (Precharge, BANK), 39);
    gap("tRAS", (Activate, BANK), (PrechargeAll, BANK), 39);
}

#[test]
fn trc() {
    gap("tRC", (Activate, BANK), (Activate, BANK), 56);
    gap("tRC", (Activate, BANK), (Refresh, BANK), 56);
}

#[test]
fn trp() {
    gap("tRP", (Precharge, BANK), (Activate, BANK), 17);
    gap("tRP", (PrechargeAll, BANK), (Activate, OTHER_GROUP), 17);
    gap("tRP", (Precharge, OTHER_GROUP), (Refresh, BANK), 17);
    gap("tRP", (PrechargeAll, BANK), (Refresh, BANK), 17);
}

#[test]
fn tccd_s() {
    gap("tCCD_S", (Read, BANK), (Read, OTHER_GROUP), 4);
    gap("tCCD_S", (Write, BANK), (Write, OTHER_GROUP), 4);
}

#[test]
fn tccd_l() {
    gap("tCCD_L", (Read, BANK), (Read, SAME_GROUP), 6);
}

#[test]
fn tccd_l_wr() {
    gap("tCCD_L_WR", (Write, BANK), (Write, SAME_GROUP), 6);
}

#[test]
fn trrd_s() {
    gap("tRRD_S", (Activate, BANK), (Activate, OTHER_GROUP), 4);
}

#[test]
fn trrd_l() {
    gap("tRRD_L", (Activate, BANK), (Activate, SAME_GROUP), 6);
}

#[test]
fn twr() {
    gap("tWR", (Write, BANK), (Precharge, BANK), 12 + BURST + 18);
    gap(
        "tWR",
        (Write, OTHER_GROUP),
        (PrechargeAll, BANK),
        12 + BURST + 18,
    );
}

#[test]
fn twtr_s() {
    gap("tWTR_S", (Write, BANK), (Read, OTHER_GROUP), 12 + BURST + 3);
}

#[test]
fn twtr_l() {
    gap("tWTR_L", (Write, BANK), (Read, SAME_GROUP), 12 + BURST + 9);
}

#[test]
fn trtp() {
    gap("tRTP", (Read, BANK), (Precharge, BANK), 9);
    gap("tRTP", (Read, OTHER_GROUP), (PrechargeAll, BANK), 9);
}

#[test]
fn trtw() {
    gap("tRTW", (Read, BANK), (Write, OTHER_GROUP), 11);
}

/// DDR5's write preamble takes a clock more than DDR4's, and its standard counts a preamble in
/// addition to the two clocks.
#[test]
fn a_ddr5_write_after_a_read_waits_for_its_preamble() {
    const WRITE_PREAMBLE: u64 = 2;
    let memory = Memory::named("ddr5-4800").unwrap();
    let clocks = 40 + 8 + 2 + WRITE_PREAMBLE - 38;
    gap_of(&memory, "tRTW", (Read, BANK), (Write, OTHER_GROUP), clocks);
}

/// 13.333 ns are 32.05 clocks of 416 ps, which the standard's rule rounds to 32: four ACTs one
/// tRRD_S of 8 clocks apart fill the window.
#[test]
fn four_ddr5_acts_fill_their_window() {
    let clocks = Memory::named("ddr5-4800").unwrap().timings.in_clocks();
    assert_eq!(clocks.tfaw, 32 * clocks.tck);
    assert_eq!(clocks.tfaw, 4 * clocks.trrd_s);
}

#[test]
fn trtrs() {
    gap("tRTRS", (Read, BANK), (Read, OTHER_RANK), BURST + 2);
    gap("tRTRS", (Write, BANK), (Write, OTHER_RANK), BURST + 2);
    gap(
        "tRTRS",
        (Read, BANK),
        (Write, OTHER_RANK),
        17 + BURST + 2 - 12,
    );
    gap(
        "tRTRS",
        (Write, BANK),
        (Read, OTHER_RANK),
        12 + BURST + 2 - 17,
    );
}

#[test]
fn trfc() {
    // 350 ns are 420.2 clocks.
    gap("tRFC", (Refresh, BANK), (Activate, OTHER_GROUP), 421);
    gap("tRFC", (Refresh, BANK), (Refresh, BANK), 421);
}

#[test]
fn tfaw() {
    let memory = memory();
    let tck = memory.timings.tck;
    let begin_ps = 1000 * tck;
    let mut ready = ReadyTimes::new(&memory);
    let mut commands: Vec<Command> = Vec::new();
    for index in 0..4 {
        let at_ps = begin_ps + index as u64 * 4 * tck;
        ready.issue(Activate, 4 * index, at_ps);
        commands.push(command(Activate, 4 * index, at_ps));
    }
    // 21 ns are 25.2 clocks.
    assert_eq!(ready.earliest(Activate, SAME_GROUP), begin_ps + 26 * tck);
    assert_eq!(
        ready.earliest(Activate, OTHER_RANK),
        0,
        "each rank has its own"
    );
    for (clocks, broken) in [(25, true), (26, false)] {
        commands.push(command(Activate, SAME_GROUP, begin_ps + clocks * tck));
        assert_eq!(found(&memory, "tFAW", &commands), broken);
        commands.pop();
    }
}

#[test]
fn trefi() {
    let memory = memory();
    let last_ps = 9 * memory.timings.trefi;
    let late_ps = (last_ps + 1).next_multiple_of(memory.timings.tck);
    assert!(found(&memory, "tREFI", &[command(Activate, BANK, late_ps)]));
    let refreshed = [command(Refresh, BANK, 0), command(Activate, BANK, last_ps)];
    assert!(!found(&memory, "tREFI", &refreshed));
}

/// No gap is longer than nine tREFI, and still there are too few REFs.
#[test]
fn mean_trefi() {
    let memory = memory();
    let rounded_ps = memory.timings.in_clocks().trefi;
    let refreshes = |trefi_tenths: u64, count: u64| -> Vec<Command> {
        let at_ps = |index: u64| {
            (index * trefi_tenths * rounded_ps / 10).next_multiple_of(memory.timings.tck)
        };
        (1..=count)
            .map(|index| command(Refresh, BANK, at_ps(index)))
            .collect()
    };
    assert!(!found(&memory, "tREFI", &refreshes(89, 100)));
    assert!(found(&memory, "mean tREFI", &refreshes(89, 100)));
    // The first REF of these is on time: eight are owed.
    assert!(!found(&memory, "mean tREFI", &refreshes(89, 1)));
    assert!(found(&memory, "mean tREFI", &refreshes(89, 2)));
    assert!(!found(&memory, "mean tREFI", &refreshes(10, 1000)));
    // A REF in 1.01 tREFI: after 900 of them nine are owed.
    let seldom: Vec<Command> = (1..=900)
        .map(|index| command(Refresh, BANK, index * rounded_ps * 101 / 100 / 833 * 833))
        .collect();
    assert!(found(&memory, "mean tREFI", &seldom));
    assert!(!found(&memory, "mean tREFI", &seldom[..800]));
    // Eight that were postponed may follow the ninth at once, and the rank owes none.
    let late: Vec<Command> = (0..9)
        .map(|index| 9 * memory.timings.trefi / 833 * 833 + index * 1000 * 833)
        .map(|at_ps| command(Refresh, BANK, at_ps))
        .collect();
    assert!(!found(&memory, "mean tREFI", &late));
    assert!(!found(&memory, "tREFI", &late));
}

/// Like DDR4, LPDDR5 and HBM3 have sixteen banks per rank in four groups. Their data have a
/// separate clock: a burst of 16 takes two clocks of LPDDR5's CK, and four of HBM3's.
fn of_both(rule: &str, first: (Kind, usize), then: (Kind, usize), [lpddr5, hbm3]: [u64; 2]) {
    gap_of(&two_ranks("lpddr5-6400"), rule, first, then, lpddr5);
    gap_of(&two_ranks("hbm3-6400"), rule, first, then, hbm3);
}

#[test]
fn rows_of_lpddr5_and_hbm3() {
    of_both("tRCD", (Activate, BANK), (Read, BANK), [15, 23]);
    of_both("tRCD", (Activate, BANK), (Write, BANK), [15, 23]);
    of_both("tRAS", (Activate, BANK), (Precharge, BANK), [34, 55]);
    of_both("tRC", (Activate, BANK), (Activate, BANK), [49, 78]);
    of_both("tRP", (Precharge, BANK), (Activate, BANK), [15, 23]);
    of_both("tRP", (PrechargeAll, BANK), (Refresh, BANK), [15, 23]);
    of_both("tRRD_S", (Activate, BANK), (Activate, OTHER_GROUP), [4, 4]);
    of_both("tRRD_L", (Activate, BANK), (Activate, SAME_GROUP), [4, 6]);
    of_both("tRFC", (Refresh, BANK), (Activate, BANK), [168, 560]);
    of_both("tRTP", (Read, BANK), (Precharge, BANK), [6, 12]);
}

#[test]
fn data_of_lpddr5_and_hbm3() {
    of_both("tCCD_S", (Read, BANK), (Read, OTHER_GROUP), [2, 4]);
    of_both("tCCD_S", (Write, BANK), (Write, OTHER_GROUP), [2, 4]);
    of_both("tCCD_L", (Read, BANK), (Read, SAME_GROUP), [4, 8]);
    of_both("tCCD_L_WR", (Write, BANK), (Write, SAME_GROUP), [4, 8]);
    of_both("tRTW", (Read, BANK), (Write, OTHER_GROUP), [13, 24]);
    let written = |clocks: [u64; 2]| [9 + 2 + clocks[0], 8 + 4 + clocks[1]];
    let other_group = (Read, OTHER_GROUP);
    of_both("tWTR_S", (Write, BANK), other_group, written([5, 9]));
    of_both(
        "tWTR_L",
        (Write, BANK),
        (Read, SAME_GROUP),
        written([10, 15]),
    );
    of_both("tWR", (Write, BANK), (Precharge, BANK), written([28, 28]));
    of_both("tRTRS", (Read, BANK), (Read, OTHER_RANK), [2 + 2, 4 + 2]);
}

/// The second RD or WR of an HBM3 line comes tCCD_L after the first: later commands count from
/// it.
#[test]
fn an_hbm3_line_ends_with_its_second_burst() {
    const TCCD_L: u64 = 4;
    const BURST: u64 = 2;
    const WR_TO_DATA: u64 = 8;
    let memory = Memory::named("hbm3-6400").unwrap();
    let clocks = memory.timings.in_clocks();
    let tck = clocks.tck;
    let of = |ps: u64| ps.div_ceil(tck);
    assert_eq!(clocks.tccd_l, 2 * TCCD_L * tck);
    assert_eq!(clocks.trtp / tck, TCCD_L + 8);
    let rl = clocks.tcl / tck;
    assert_eq!(clocks.tcwl / tck, WR_TO_DATA);
    assert_eq!(clocks.trtw / tck, TCCD_L + rl + BURST + 2 - WR_TO_DATA);
    // The model's burst of 16 ends before the second of the two bursts of 8.
    let early = TCCD_L + BURST - memory.burst_ps() / tck;
    assert_eq!(early, 2);
    assert_eq!(clocks.twr / tck, of(16_000) + early);
    assert_eq!(clocks.twtr_s / tck, of(4_000) + early);
    assert_eq!(clocks.twtr_l / tck, of(8_000) + early);
}

#[test]
fn the_peaks_of_lpddr5_and_hbm3_are_their_pins_rates() {
    for (name, gb_s) in [("lpddr5-6400", 51.2), ("hbm3-6400", 819.2)] {
        let peak = Memory::named(name).unwrap().peak_bytes_per_s();
        assert!((peak / 1e9 - gb_s).abs() < 1e-9, "{name}: {peak}");
    }
}

#[test]
fn five_acts_in_tfaw_are_found_of_lpddr5_and_hbm3() {
    for (name, clocks) in [("lpddr5-6400", 16), ("hbm3-6400", 26)] {
        let memory = two_ranks(name);
        let tck = memory.timings.tck;
        let mut ready = ReadyTimes::new(&memory);
        let mut commands = Vec::new();
        for index in 0..4 {
            let at_ps = (1000 + 4 * index as u64) * tck;
            ready.issue(Activate, 4 * index, at_ps);
            commands.push(command(Activate, 4 * index, at_ps));
        }
        // LPDDR5's tRRD from the fourth and its tFAW from the first end together.
        assert_eq!(ready.earliest(Activate, SAME_GROUP), (1000 + clocks) * tck);
        for (early, broken) in [(1, true), (0, false)] {
            let at_ps = (1000 + clocks - early) * tck;
            commands.push(command(Activate, SAME_GROUP, at_ps));
            assert_eq!(found(&memory, "tFAW", &commands), broken, "{name}");
            commands.pop();
        }
    }
}

#[test]
fn what_a_bank_cannot_do_is_found() {
    let memory = memory();
    let at = |kind, clocks: u64| command(kind, BANK, clocks * memory.timings.tck);
    let wrong_row = Command {
        row: 8,
        ..at(Read, 100)
    };
    for (rule, commands) in [
        (
            "ACT on an open bank",
            vec![at(Activate, 0), at(Activate, 100)],
        ),
        ("data of a closed bank", vec![at(Read, 0)]),
        (
            "data of a closed bank",
            vec![at(Activate, 0), at(Precharge, 50), at(Write, 100)],
        ),
        ("data of the wrong row", vec![at(Activate, 0), wrong_row]),
        (
            "REF with an open bank",
            vec![at(Activate, 0), at(Refresh, 100)],
        ),
        ("command bus", vec![at(Activate, 5), at(Precharge, 5)]),
        (
            "data bus",
            vec![at(Activate, 0), at(Read, 20), at(Read, 22)],
        ),
    ] {
        assert!(found(&memory, rule, &commands), "{rule}");
    }
    let off_the_edge = Command {
        at_ps: 1,
        ..at(Activate, 0)
    };
    assert!(found(&memory, "clock edge", &[off_the_edge]));
}
