// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares every command and every line's end of mixed traffic with stored values: an
//! optimisation must change none of them. After a change of the model itself, the failing test
//! prints the file's new content.

use crate::dram::command::{Command, Observer};
use crate::dram::memory_file::names;
use crate::dram::{Controller, ControllerSettings, Memory, PagePolicy};
use crate::main_memory::{Arrival, Done, MainMemory, NEVER_PS};

/// FNV-1a over 64-bit words.
struct Hash(u64);

impl Hash {
    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3);
        self.0 ^= self.0 >> 29;
    }
}

impl Observer for Hash {
    fn command(&mut self, channel: usize, command: &Command) {
        let Command {
            at_ps,
            kind,
            rank,
            group,
            bank,
            row,
        } = *command;
        self.add(at_ps);
        self.add(channel as u64 * 8 + kind as u64);
        self.add(u64::from(rank << 16 | group << 8 | bank));
        self.add(row.into());
    }
}

struct Traffic {
    controller: Controller<Hash>,
    ends: Hash,
    ended: u32,
    now_ps: u64,
    done: Vec<Done>,
}

impl Traffic {
    fn hear(&mut self) {
        for done in self.done.drain(..) {
            self.ends.add(done.at_ps);
            self.ends.add(done.id.into());
            self.ended += 1;
        }
    }

    fn advance(&mut self, until_ps: u64) {
        self.now_ps = until_ps;
        self.controller.advance(until_ps, &mut self.done);
        self.hear();
    }

    fn go_on(&mut self) {
        let moved_ps = self.controller.go_on(NEVER_PS, &mut self.done);
        self.now_ps = self.now_ps.max(moved_ps.unwrap_or(0));
        self.hear();
    }
}

/// One hash of everything: phases of random and sequential lines, hot rows, reads, writes and
/// both, dense, with pauses, and with lines that are pushed before they arrive.
fn hash(memory: &Memory, settings: &ControllerSettings, seed: u64) -> u64 {
    const BEGIN: u64 = 0xcbf2_9ce4_8422_2325;
    let mut traffic = Traffic {
        controller: Controller::observed(memory, settings, Hash(BEGIN)).unwrap(),
        ends: Hash(BEGIN),
        ended: 0,
        now_ps: 0,
        done: Vec::new(),
    };
    let mut random = fastrand::Rng::with_seed(seed);
    let line_bytes = memory.organisation.burst_bytes();
    let lines = memory.organisation.capacity_bytes() / line_bytes;
    let (mut id, mut line) = (0, 0);
    for sequential in [0.0, 0.5, 1.0] {
        for write_share in [0.0, 0.2, 0.5, 1.0] {
            for (pause_ps, later_ps, span) in [
                (0, 1, lines),
                (0, 1, 4096),
                (30_000, 20_000, lines),
                (3_000_000, 1, lines),
            ] {
                for _ in 0..120 * memory.organisation.channels.min(4) {
                    line = if random.f64() < sequential {
                        (line + 1) % lines
                    } else {
                        random.u64(..span)
                    };
                    let write = random.f64() < write_share;
                    let address = line * line_bytes;
                    if pause_ps > 0 {
                        traffic.advance(traffic.now_ps + random.u64(..pause_ps));
                    }
                    while !traffic.controller.has_room(address, write) {
                        traffic.go_on();
                    }
                    id += 1;
                    traffic.controller.push(Arrival {
                        id,
                        core: 0,
                        address,
                        write,
                        at_ps: traffic.now_ps + random.u64(..later_ps),
                    });
                }
            }
        }
        while traffic.ended < id {
            traffic.go_on();
        }
    }
    let statistics = traffic.controller.statistics();
    let mut all = traffic.controller.into_observer();
    all.add(traffic.ends.0);
    for count in [
        statistics.reads,
        statistics.writes,
        statistics.forwarded,
        statistics.merged,
        statistics.row_hits,
        statistics.row_misses,
        statistics.row_conflicts,
        statistics.refreshes,
        statistics.read_latency_sum_ps,
        statistics.wait_sum_ps,
        statistics.queue_integral_ps,
    ] {
        all.add(count);
    }
    all.0
}

#[test]
fn every_command_is_the_one_that_it_was() {
    let settings = ControllerSettings::default();
    let policies = [
        ("open", settings),
        (
            "closed, short queues",
            ControllerSettings {
                page_policy: PagePolicy::Closed,
                read_depth: 5,
                write_depth: 6,
                write_high: 4,
                write_low: 1,
                row_hit_cap: 2,
                ..settings
            },
        ),
        (
            "timeout, writes in pauses",
            ControllerSettings {
                page_policy: PagePolicy::Timeout { idle_ps: 100_000 },
                write_idle_ps: 200_000,
                ..settings
            },
        ),
    ];
    let mut found = String::new();
    for name in names() {
        for (policy, settings) in &policies {
            for (ranks, bank_hash) in [(1, false), (2, true)] {
                let mut memory = Memory::named(name).unwrap();
                memory.organisation.ranks = ranks;
                memory.mapping.bank_hash = bank_hash;
                let hash = hash(&memory, settings, ranks);
                found += &format!("{hash:016x} {name}, {policy}, ranks: {ranks}\n");
            }
        }
    }
    assert!(found == include_str!("golden.txt"), "now:\n{found}");
}
