// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole runs: random traffic with the checker, figures derived by hand, and the controller's
//! own rules.

use crate::dram::Checker;
use crate::dram::checks::{analytical, check_traffic, saturate};
use crate::dram::command::{Command, Kind, Observer};
use crate::dram::mapping::{AddressMap, Location};
use crate::dram::memory_file::names;
use crate::dram::{Controller, ControllerSettings, Memory};
use crate::main_memory::{Arrival, Done, MainMemory};

#[derive(Default)]
struct Recorder(Vec<Command>);

impl Observer for Recorder {
    fn command(&mut self, _channel: usize, command: &Command) {
        self.0.push(*command);
    }
}

#[test]
fn random_traffic_breaks_no_rule() {
    for name in names() {
        for (ranks, bank_hash) in [(1, false), (2, true)] {
            let mut memory = Memory::named(name).unwrap();
            memory.organisation.ranks = ranks;
            memory.mapping.bank_hash = bank_hash;
            let report = check_traffic(&memory, 50_000, ranks).unwrap();
            assert!(report.commands >= 50_000);
            assert_eq!(
                report.violation_count, 0,
                "{name}: {}",
                report.violations[0]
            );
        }
    }
}

#[test]
fn what_can_be_worked_out_by_hand_holds() {
    for name in names() {
        for check in analytical(&Memory::named(name).unwrap(), 20_000).unwrap() {
            assert!(check.holds(), "{check:?}");
        }
    }
}

#[test]
fn the_published_worst_case_of_ddr2_is_1280_mb_s() {
    let memory = Memory::named("ddr2-800").unwrap();
    assert!((memory.peak_bytes_per_s() - 6.4e9).abs() < 1.0);
    let worst = memory.organisation.burst_bytes() as f64 * 1e6 / memory.timings.trc as f64;
    assert!((worst - 1280.0).abs() < 1e-9);
}

fn ddr4() -> (Memory, AddressMap) {
    let memory = Memory::named("ddr4-2400").unwrap();
    let map = AddressMap::new(&memory.organisation, &memory.mapping).unwrap();
    (memory, map)
}

fn row(map: &AddressMap, row: u32, column: u32) -> u64 {
    map.address(&Location {
        row,
        column,
        ..Location::default()
    })
}

fn arrival(id: u32, address: u64, write: bool, at_ps: u64) -> Arrival {
    Arrival {
        id,
        core: 1,
        address,
        write,
        at_ps,
    }
}

#[test]
fn no_more_row_hits_than_the_cap_go_before_an_older_request() {
    let (memory, map) = ddr4();
    let settings = ControllerSettings {
        row_hit_cap: 3,
        ..ControllerSettings::default()
    };
    let recorder = Recorder::default();
    let mut controller = Controller::observed(&memory, &settings, recorder).unwrap();
    // The first opens row 1; the second waits for row 2, with ten hits behind it.
    for id in 0..12 {
        let address = row(&map, if id == 1 { 2 } else { 1 }, id);
        controller.push(arrival(id, address, false, 0));
    }
    let mut done = Vec::new();
    controller.advance(2_000_000, &mut done);
    let place = done.iter().position(|done| done.id == 1);
    assert_eq!(place, Some(4), "after the first and three hits: {done:?}");
    assert_eq!(done.len(), 12);
}

#[test]
fn a_read_gets_its_line_from_a_write_that_waits() {
    let (memory, map) = ddr4();
    let mut controller = Controller::new(&memory, &ControllerSettings::default()).unwrap();
    controller.push(arrival(1, row(&map, 1, 0), true, 0));
    controller.push(arrival(2, row(&map, 1, 0), false, 10));
    controller.push(arrival(3, row(&map, 1, 0), true, 20));
    let mut done: Vec<Done> = Vec::new();
    controller.advance(1_000_000, &mut done);
    let ids: Vec<u32> = done.iter().map(|done| done.id).collect();
    assert_eq!(ids, [3, 2, 1]);
    let statistics = controller.statistics();
    assert_eq!((statistics.forwarded, statistics.merged), (1, 1));
    assert_eq!((statistics.reads, statistics.writes), (0, 1));
    assert_eq!(statistics.bytes_by_core[1], 64);
}

#[test]
fn an_idle_rank_is_refreshed_every_trefi() {
    let (memory, _) = ddr4();
    let settings = ControllerSettings::default();
    let mut controller = Controller::observed(&memory, &settings, Recorder::default()).unwrap();
    controller.advance(100 * memory.timings.trefi + 1_000_000, &mut Vec::new());
    let commands = controller.into_observer().0;
    assert_eq!(commands.len(), 100);
    assert!(commands.iter().all(|command| command.kind == Kind::Refresh));
}

/// The controller's mean rate: after 10^6 tREFI no rank owes more than eight.
#[test]
fn a_rank_never_owes_more_than_eight_refreshes() {
    let mut memory = Memory::named("ddr4-2400").unwrap();
    memory.organisation.ranks = 2;
    let settings = ControllerSettings::default();
    let mut controller = Controller::observed(&memory, &settings, Checker::new(&memory)).unwrap();
    let trefi = memory.timings.in_clocks().trefi;
    controller.advance(1_000_000 * trefi, &mut Vec::new());
    assert!(controller.statistics().refreshes >= 2 * (1_000_000 - 8));
    let report = controller.into_observer().into_report();
    assert_eq!(report.violation_count, 0, "{:?}", report.violations);
}

#[test]
fn the_same_requests_give_the_same_run() {
    let (memory, _) = ddr4();
    let run = || {
        let mut random = fastrand::Rng::with_seed(7);
        let settings = ControllerSettings::default();
        let mut controller = Controller::observed(&memory, &settings, Recorder::default()).unwrap();
        saturate(&mut controller, 5000, |_| {
            (random.u64(..1 << 30), random.bool())
        });
        controller.into_observer().0
    };
    assert_eq!(run(), run());
}

/// Random lines as fast as they are accepted, a share of them writes: commands, and GB/s.
fn random_lines(write_share: f64) -> (Vec<Command>, f64) {
    const LINES: u64 = 20_000;
    let (memory, _) = ddr4();
    let settings = ControllerSettings::default();
    let mut controller = Controller::observed(&memory, &settings, Recorder::default()).unwrap();
    let mut random = fastrand::Rng::with_seed(11);
    let lines = memory.organisation.capacity_bytes() / 64;
    let end_ps = saturate(&mut controller, LINES, |_| {
        (random.u64(..lines) * 64, random.f64() < write_share)
    });
    (
        controller.into_observer().0,
        (LINES * 64) as f64 * 1e3 / end_ps as f64,
    )
}

#[test]
fn a_row_that_was_opened_before_the_turn_is_used_before_it_is_closed() {
    let (commands, _) = random_lines(0.2);
    let count = |kinds: &[Kind]| {
        let of_kind = |command: &&Command| kinds.contains(&command.kind);
        commands.iter().filter(of_kind).count()
    };
    let data = count(&[Kind::Read, Kind::Write]);
    let opened = count(&[Kind::Activate]);
    // Refreshes close rows before their use.
    let refreshed = 16 * count(&[Kind::Refresh]);
    assert!(opened <= data + refreshed, "{opened} ACTs for {data} lines");
}

#[test]
fn rows_of_the_next_turn_are_opened_while_data_of_this_one_go() {
    let (commands, _) = random_lines(0.2);
    let data: Vec<usize> = (0..commands.len())
        .filter(|at| matches!(commands[*at].kind, Kind::Read | Kind::Write))
        .collect();
    let turns = data
        .windows(2)
        .filter(|two| commands[two[0]].kind != commands[two[1]].kind);
    let (mut all, mut ready) = (0, 0);
    for two in turns {
        let place = |command: &Command| (command.group, command.bank);
        let first = &commands[two[1]];
        all += 1;
        // The row of the turn's first line was opened before the last line of the previous
        // turn.
        ready += usize::from(
            commands[two[0]..two[1]]
                .iter()
                .all(|command| command.kind != Kind::Activate || place(command) != place(first)),
        );
    }
    assert!(all > 100 && ready * 4 > all * 3, "{ready} of {all} turns");
}

#[test]
fn turns_cost_random_lines_less_than_two_percent() {
    let (_, reads) = random_lines(0.0);
    let (_, mixed) = random_lines(0.2);
    assert!(mixed > 0.98 * reads, "{mixed} of {reads} GB/s");
}

/// A read each 100 ns, and a write right after each: the order of the data commands.
fn reads_with_pauses(write_idle_ps: u64) -> Vec<Command> {
    let (memory, map) = ddr4();
    let settings = ControllerSettings {
        write_idle_ps,
        ..ControllerSettings::default()
    };
    let mut controller = Controller::observed(&memory, &settings, Recorder::default()).unwrap();
    for pair in 0..8u32 {
        let at_ps = u64::from(pair) * 100_000;
        controller.push(arrival(2 * pair, row(&map, 1, pair), false, at_ps));
        controller.push(arrival(
            2 * pair + 1,
            row(&map, 1, 100 + pair),
            true,
            at_ps + 50_000,
        ));
    }
    let mut done = Vec::new();
    controller.advance(3_000_000, &mut done);
    assert_eq!(done.len(), 16);
    let mut commands = controller.into_observer().0;
    commands.retain(|command| matches!(command.kind, Kind::Read | Kind::Write));
    commands
}

#[test]
fn writes_wait_for_a_pause_of_the_reads_that_is_long_enough() {
    let turns = |commands: &[Command]| {
        let pairs = commands.windows(2);
        pairs.filter(|two| two[0].kind != two[1].kind).count()
    };
    assert_eq!(turns(&reads_with_pauses(0)), 15, "each pause is a turn");
    let commands = reads_with_pauses(300_000);
    assert_eq!(turns(&commands), 1);
    let (last_read, first_write) = (commands[7].at_ps, commands[8].at_ps);
    assert!(first_write >= last_read + 300_000, "{commands:?}");
}

#[test]
fn a_full_write_queue_does_not_wait_for_a_pause_of_the_reads() {
    const IDLE_PS: u64 = 300_000;
    let (memory, map) = ddr4();
    let settings = ControllerSettings {
        write_idle_ps: IDLE_PS,
        ..ControllerSettings::default()
    };
    // One read, fewer than a turn of reads, and writes while the bus is idle after it.
    let first_write_ps = |writes: u32| {
        let mut controller = Controller::observed(&memory, &settings, Recorder::default()).unwrap();
        controller.push(arrival(0, row(&map, 1, 0), false, 0));
        for write in 1..=writes {
            controller.push(arrival(write, row(&map, 1, write), true, 100_000));
        }
        controller.advance(1_000_000, &mut Vec::new());
        let commands = controller.into_observer().0;
        let mut writes = commands.iter().filter(|one| one.kind == Kind::Write);
        writes.next().unwrap().at_ps
    };
    let full = u32::try_from(settings.write_high).unwrap();
    assert!(first_write_ps(full - 1) >= IDLE_PS);
    let at_ps = first_write_ps(full);
    assert!((100_000..150_000).contains(&at_ps), "{at_ps} ps");
}

#[test]
fn reads_are_served_while_writes_never_end() {
    let (memory, _) = ddr4();
    let mut controller = Controller::new(&memory, &ControllerSettings::default()).unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    let mut done = Vec::new();
    controller.push(arrival(u32::MAX, 1 << 20, false, 0));
    for id in 0..2000 {
        let address = random.u64(..1 << 30);
        while !controller.has_room(address, true) {
            controller.advance(controller.next_event_ps(), &mut done);
        }
        controller.push(arrival(
            id,
            address,
            true,
            done.last().map_or(0, |done| done.at_ps),
        ));
    }
    let place = done.iter().position(|done| done.id == u32::MAX);
    assert!(place.is_some_and(|place| place < 200), "{place:?}");
}
