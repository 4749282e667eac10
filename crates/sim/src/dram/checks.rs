// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the model with figures derived by hand, and runs random traffic through the
//! checker.

use schemars::JsonSchema;
use serde::Serialize;

use super::checker::{CheckReport, Checker};
use super::command::Observer;
use super::controller::{Controller, ControllerError, ControllerSettings, PagePolicy};
use super::mapping::{AddressMap, Location};
use super::memory::Memory;
use super::statistics::Statistics;
use crate::main_memory::{Arrival, Done, MainMemory, NEVER_PS};

/// A figure derived by hand, beside the model's.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Check {
    /// The figure's description, with its unit.
    pub name: String,
    /// The value derived from the datasheet.
    pub expected: f64,
    /// The model's value.
    pub found: f64,
    /// The largest allowed difference, relative to the expected value.
    pub within: f64,
}

impl Check {
    /// The difference relative to the expected.
    #[must_use]
    pub fn difference(&self) -> f64 {
        (self.found - self.expected).abs() / self.expected
    }

    /// Whether the difference is within the allowed one.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.difference() <= self.within
    }
}

/// Feeds a memory as fast as it accepts lines, and waits for all of them. Returns the time at
/// which the last one is done, ps. `request` gives each line's address and kind.
pub fn saturate<O: Observer>(
    controller: &mut Controller<O>,
    count: u64,
    mut request: impl FnMut(u64) -> (u64, bool),
) -> u64 {
    let mut done: Vec<Done> = Vec::with_capacity(4096);
    let (mut pushed, mut finished, mut now_ps, mut last_ps) = (0, 0, 0, 0);
    let mut next = request(0);
    while finished < count {
        while pushed < count && controller.has_room(next.0, next.1) {
            controller.push(Arrival {
                id: pushed as u32,
                core: (pushed & 3) as usize,
                address: next.0,
                write: next.1,
                at_ps: now_ps,
            });
            pushed += 1;
            next = request(pushed);
        }
        let next_ps = controller.next_event_ps();
        if next_ps == NEVER_PS {
            break;
        }
        now_ps = now_ps.max(next_ps);
        controller.advance(now_ps, &mut done);
        finished += done.len() as u64;
        last_ps = done.last().map_or(last_ps, |done| done.at_ps);
        done.clear();
    }
    last_ps
}

/// Runs random traffic through the checker until it has judged `commands`: phases of random and
/// of sequential lines, of reads and of writes, dense and with pauses, with each page policy,
/// including hot rows.
///
/// # Errors
/// When no controller is possible for that memory.
pub fn check_traffic(
    memory: &Memory,
    commands: u64,
    seed: u64,
) -> Result<CheckReport, ControllerError> {
    let policies = [
        PagePolicy::Open,
        PagePolicy::Closed,
        PagePolicy::Timeout { idle_ps: 100_000 },
    ];
    let mut report = CheckReport::default();
    for (index, page_policy) in policies.into_iter().enumerate() {
        let settings = ControllerSettings {
            page_policy,
            // One run in three has writes that wait for a pause.
            write_idle_ps: [0, 200_000, 0][index],
            ..ControllerSettings::default()
        };
        let checker = Checker::new(memory);
        let mut controller = Controller::observed(memory, &settings, checker)?;
        traffic(
            &mut controller,
            memory,
            commands / 3 + 1,
            seed ^ index as u64,
        );
        let part = controller.into_observer().into_report();
        report.commands += part.commands;
        report.violation_count += part.violation_count;
        report.violations.extend(part.violations);
    }
    Ok(report)
}

fn traffic(controller: &mut Controller<Checker>, memory: &Memory, commands: u64, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let line_bytes = memory.organisation.burst_bytes();
    let lines = memory.organisation.capacity_bytes() / line_bytes;
    let mut done = Vec::with_capacity(4096);
    let (mut now_ps, mut id, mut line) = (0, 0u32, 0);
    let (mut sequential, mut write_share, mut pause_ps, mut span) = (0.0, 0.2, 0, lines);
    while controller.observer().report().commands < commands {
        if id % 2000 == 0 {
            sequential = [0.0, 0.5, 0.98][random.usize(..3)];
            write_share = [0.0, 0.2, 0.5, 1.0][random.usize(..4)];
            pause_ps = [0, 0, 0, 20_000, 2_000_000][random.usize(..5)];
            span = [lines, lines, 4096.min(lines)][random.usize(..3)];
        }
        id = id.wrapping_add(1);
        line = if random.f64() < sequential {
            (line + 1) % lines
        } else {
            random.u64(..span)
        };
        let write = random.f64() < write_share;
        let address = line * line_bytes;
        if pause_ps > 0 {
            now_ps += random.u64(..pause_ps);
            controller.advance(now_ps, &mut done);
        }
        while !controller.has_room(address, write) {
            now_ps = now_ps.max(controller.next_event_ps());
            controller.advance(now_ps, &mut done);
        }
        done.clear();
        controller.push(Arrival {
            id,
            core: 0,
            address,
            write,
            // Some requests arrive later than they are pushed.
            at_ps: now_ps + random.u64(..3) * 7_001,
        });
    }
}

fn gb_s(bytes: u64, time_ps: u64) -> f64 {
    bytes as f64 * 1e3 / time_ps as f64
}

/// Little's law for a completed run, as a figure to compare.
fn little(name: &str, statistics: &Statistics) -> Check {
    Check {
        name: format!("{name}: waiting requests over time, their waits summed, us"),
        expected: statistics.wait_sum_ps as f64 / 1e6,
        found: statistics.queue_integral_ps as f64 / 1e6,
        within: 0.0,
    }
}

/// The checks of one memory: `lines` of traffic for each check, for streaming on each channel.
///
/// # Errors
/// When no controller is possible for that memory.
pub fn analytical(memory: &Memory, lines: u64) -> Result<Vec<Check>, ControllerError> {
    let settings = ControllerSettings::default();
    let line_bytes = memory.organisation.burst_bytes();
    let t = &memory.timings;
    let name = &memory.name;
    let burst_ps = memory.burst_ps();
    let mut checks = Vec::new();

    let mut idle = Controller::new(memory, &settings)?;
    let idle_ps = saturate(&mut idle, 1, |_| (0, false));
    checks.push(Check {
        name: format!("{name}: idle latency = tRCD + tCL + burst, ns"),
        expected: (t.trcd + t.tcl + burst_ps) as f64 / 1e3,
        found: idle_ps as f64 / 1e3,
        // The parts are rounded up to whole clocks, each by less than one.
        within: 2.0 * t.tck as f64 / (t.trcd + t.tcl + burst_ps) as f64,
    });

    let mut stream = Controller::new(memory, &settings)?;
    // This many for each channel, since refreshes depend on time.
    let streamed = lines * memory.organisation.channels;
    let stream_ps = saturate(&mut stream, streamed, |line| (line * line_bytes, false));
    let refreshed = 1.0 - t.trfc as f64 / t.trefi as f64;
    checks.push(Check {
        name: format!("{name}: streaming reads = peak less refresh, GB/s"),
        expected: memory.peak_bytes_per_s() / 1e9 * refreshed,
        found: gb_s(streamed * line_bytes, stream_ps),
        within: 0.02,
    });
    checks.push(little(&format!("{name}, streaming"), &stream.statistics()));

    let map = AddressMap::new(&memory.organisation, &memory.mapping)?;
    let mut conflicts = Controller::new(memory, &settings)?;
    let rows = memory.organisation.rows;
    let conflicts_ps = saturate(&mut conflicts, lines, |line| {
        let location = Location {
            row: (line % rows) as u32,
            ..Location::default()
        };
        (map.address(&location), false)
    });
    checks.push(Check {
        name: format!("{name}: row conflicts in one bank = line / tRC, between refreshes, GB/s"),
        expected: gb_s(line_bytes, t.trc) * refreshed,
        found: gb_s(lines * line_bytes, conflicts_ps),
        within: 0.02,
    });
    checks.push(little(
        &format!("{name}, row conflicts"),
        &conflicts.statistics(),
    ));

    let mut mixed = Controller::new(memory, &settings)?;
    let mut random = fastrand::Rng::with_seed(1);
    let all = memory.organisation.capacity_bytes() / line_bytes;
    saturate(&mut mixed, lines, |_| {
        (random.u64(..all) * line_bytes, random.u8(..5) == 0)
    });
    checks.push(little(&format!("{name}, random"), &mixed.statistics()));
    Ok(checks)
}
