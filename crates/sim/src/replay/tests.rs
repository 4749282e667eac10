// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::dram::PagePolicy;
use crate::dram::checks::saturate;
use crate::dram::command::Command;
use crate::dram::mapping::{AddressMap, Location};
use crate::dram::memory_file::names;
use crate::main_memory::NEVER_PS;
use crate::trace::{Pattern, Patterned};

fn ddr4() -> Memory {
    Memory::named("ddr4-2400").unwrap()
}

fn replayed(memory: &Memory, requests: impl IntoIterator<Item = Request>) -> Replay {
    let mut requests = requests.into_iter().map(Ok);
    replay(memory, &ControllerSettings::default(), &mut requests, true).unwrap()
}

fn read(address: u64, at_ps: Option<u64>) -> Request {
    Request {
        address,
        write: false,
        at_ps,
    }
}

#[test]
fn one_read_takes_the_idle_latency_whenever_it_comes() {
    let idle_ps = (17 + 17 + 4) * 833;
    for at_ps in [None, Some(0), Some(833_000), Some(833_000_000)] {
        let replay = replayed(&ddr4(), [read(4096, at_ps)]);
        assert_eq!((replay.reads, replay.writes), (1, 0));
        assert_eq!(replay.timed, at_ps.is_some());
        assert_eq!(replay.time_ps, idle_ps);
        assert_eq!(replay.read_latencies.quantile_ps(0.5), Some(idle_ps));
        // Nothing happens before the trace, such as a hundred refreshes.
        assert_eq!(
            (replay.activity.activates, replay.activity.refreshes),
            (1, 0)
        );
        assert_eq!(replay.statistics.refreshes, 0);
    }
}

#[test]
fn a_request_that_waits_for_room_waits_since_its_time() {
    let memory = ddr4();
    let settings = ControllerSettings {
        read_depth: 1,
        ..ControllerSettings::default()
    };
    // Two rows of a bank: the second is accepted when the first was read.
    let map = AddressMap::new(&memory.organisation, &memory.mapping).unwrap();
    let rows = [0, 1].map(|row| {
        map.address(&Location {
            row,
            ..Location::default()
        })
    });
    let mut trace = rows.into_iter().map(|address| Ok(read(address, Some(0))));
    let replay = replay(&memory, &settings, &mut trace, false).unwrap();
    assert_eq!(replay.statistics.row_conflicts, 1);
    assert_eq!(replay.read_latencies.quantile_ps(1.0), Some(replay.time_ps));
    assert!(replay.check.is_none());
}

/// The times of a clock that began long before the trace.
#[test]
fn times_count_from_the_first_request() {
    let requests = |begin_ps: u64| {
        (0..1000_u64).map(move |index| Request {
            address: index * 7919 % (1 << 20) * 64,
            write: index % 3 == 0,
            at_ps: Some(begin_ps + index * 50_000),
        })
    };
    let memory = ddr4();
    let from_0 = replayed(&memory, requests(0));
    // 100 days, and no whole number of the memory's clock.
    let later = replayed(&memory, requests(100 * 86_400 * 1_000_000_000_000 + 1));
    assert_eq!(later.time_ps, from_0.time_ps);
    assert_eq!(later.statistics, from_0.statistics);
    assert_eq!(later.activity, from_0.activity);
    let mean = |replay: &Replay| replay.read_latencies.mean_ps();
    assert_eq!(mean(&later), mean(&from_0));
}

#[test]
fn as_fast_as_they_are_taken_is_what_saturates() {
    for name in names() {
        let memory = Memory::named(name).unwrap();
        let requests: Vec<Request> = Patterned::new(Pattern::Random, &memory, 0.2, 7)
            .take(20_000)
            .collect();
        let replay = replayed(&memory, requests.iter().copied());
        let settings = ControllerSettings::default();
        let mut controller = Controller::new(&memory, &settings).unwrap();
        let count = requests.len() as u64;
        let end_ps = saturate(&mut controller, count, |index| {
            let request = requests[(index as usize).min(requests.len() - 1)];
            (request.address, request.write)
        });
        assert_eq!(replay.time_ps, end_ps, "{name}");
        // In the original run four cores make the requests.
        let statistics = Statistics {
            bytes_by_core: replay.statistics.bytes_by_core.clone(),
            ..controller.statistics()
        };
        assert_eq!(replay.statistics, statistics, "{name}");
        assert_eq!(replay.reads + replay.writes, count);
        assert_eq!(replay.check.unwrap().violation_count, 0);
    }
}

#[test]
fn at_their_times_they_take_as_long_as_the_times() {
    let memory = ddr4();
    let gap_ps = 100_000;
    let requests = (0..10_000).map(|index| read(index * 64, Some(index * gap_ps)));
    let replay = replayed(&memory, requests);
    assert!(replay.time_ps > 9_999 * gap_ps && replay.time_ps < 10_010 * gap_ps);
    let expected = 64e12 / gap_ps as f64;
    assert!((replay.bytes_per_s(&memory) / expected - 1.0).abs() < 0.01);
    assert_eq!(replay.check.unwrap().violation_count, 0);
}

#[test]
fn nothing_and_a_fault_are_told() {
    let settings = ControllerSettings::default();
    let none = replay(&ddr4(), &settings, &mut std::iter::empty(), false);
    assert!(matches!(none, Err(ReplayError::Empty)));
    let bad = ControllerSettings {
        read_depth: 0,
        ..settings
    };
    let error = replay(&ddr4(), &bad, &mut std::iter::empty(), false).unwrap_err();
    // The cause has its text once, and the error doesn't repeat it.
    let cause = std::error::Error::source(&error).unwrap();
    assert_eq!(
        [error.to_string(), cause.to_string()],
        [
            "the controller",
            "read_depth is 0: has to be from 1 to 1024"
        ]
    );
}

/// A pause is not simulated refresh by refresh, and a checker must see each refresh: both give
/// the same result.
#[test]
fn a_pause_that_is_skipped_changes_nothing() {
    let policies = [
        PagePolicy::Open,
        PagePolicy::Closed,
        PagePolicy::Timeout { idle_ps: 100_000 },
    ];
    for name in names() {
        for (ranks, page_policy) in [1, 2].into_iter().zip(policies.into_iter().cycle().skip(1)) {
            let mut memory = Memory::named(name).unwrap();
            memory.organisation.ranks = ranks;
            let settings = ControllerSettings {
                page_policy,
                ..ControllerSettings::default()
            };
            let lines = memory.organisation.capacity_bytes() / 64;
            let mut random = fastrand::Rng::with_seed(ranks);
            let mut at_ps = 0;
            let requests: Vec<Request> = (0..1_000)
                .map(|index| {
                    // Three requests, and a pause of up to 20 tREFI.
                    let pause_ps = if index % 3 == 0 {
                        20 * memory.timings.trefi
                    } else {
                        50_000
                    };
                    at_ps += random.u64(..pause_ps);
                    Request {
                        address: random.u64(..lines) * 64,
                        write: random.bool(),
                        at_ps: Some(at_ps),
                    }
                })
                .collect();
            let run = |check| {
                let mut trace = requests.iter().map(|request| Ok(*request));
                replay(&memory, &settings, &mut trace, check).unwrap()
            };
            let (skipping, checked) = (run(false), run(true));
            let case = format!("{name}, {ranks} ranks, {page_policy:?}");
            assert_eq!(skipping.time_ps, checked.time_ps, "{case}");
            assert_eq!(skipping.statistics, checked.statistics, "{case}");
            assert_eq!(skipping.activity, checked.activity, "{case}");
            let latencies = |replay: &Replay| {
                let all = &replay.read_latencies;
                (
                    all.mean_ps(),
                    [0.1, 0.5, 0.9, 1.0].map(|part| all.quantile_ps(part)),
                )
            };
            assert_eq!(latencies(&skipping), latencies(&checked), "{case}");
            assert_eq!(checked.check.unwrap().violation_count, 0, "{case}");
            let trefi = memory.timings.in_clocks().trefi;
            let channels = memory.organisation.channels;
            let periods = skipping.statistics.refreshes / ranks / channels;
            assert!(periods.abs_diff(skipping.time_ps / trefi) <= 1, "{case}");
        }
    }
}

/// Refresh by refresh, this would take hours.
#[test]
fn the_longest_pause_that_a_trace_may_have_ends() {
    let end_ps = 1_000_000_000_000_000_000;
    for name in names() {
        let memory = Memory::named(name).unwrap();
        let replay = replay(
            &memory,
            &ControllerSettings::default(),
            &mut [0, end_ps]
                .map(|at_ps| Ok(read(0, Some(at_ps))))
                .into_iter(),
            false,
        );
        let replay = replay.unwrap();
        assert_eq!(replay.reads, 2, "{name}");
        let trefi = memory.timings.in_clocks().trefi;
        let expected = end_ps / trefi * memory.organisation.channels;
        // A refresh may be due while the second request is served.
        let refreshes = replay.statistics.refreshes;
        let later = memory.organisation.channels;
        assert!(
            (expected..=expected + later).contains(&refreshes),
            "{name}: {refreshes}"
        );
        assert_eq!(replay.activity.refreshes, refreshes);
    }
}

/// Commands of each channel.
struct Commands(Vec<Vec<Command>>);

impl Observer for Commands {
    fn command(&mut self, channel: usize, command: &Command) {
        self.0[channel].push(*command);
    }
}

/// The result of a trace event by event, all channels together.
fn by_events(
    mut controller: Controller<Commands>,
    requests: &[Request],
) -> (u64, u128, Controller<Commands>) {
    let (mut now_ps, mut end_ps, mut sum_ps) = (0, 0, 0);
    let mut done = Vec::new();
    let mut at = Vec::new();
    let mut ended = 0;
    let mut hear = |done: &mut Vec<Done>, at: &[(u64, bool)], ended: &mut usize| {
        for done in done.drain(..) {
            let (at_ps, write) = at[done.id as usize];
            end_ps = end_ps.max(done.at_ps);
            sum_ps += u128::from(if write { 0 } else { done.at_ps - at_ps });
            *ended += 1;
        }
    };
    for request in requests {
        let Request { address, write, .. } = *request;
        if request.at_ps.is_some_and(|at_ps| at_ps > now_ps) {
            now_ps = request.at_ps.unwrap_or(0);
            controller.advance(now_ps, &mut done);
        }
        while !controller.has_room(address, write) {
            now_ps = now_ps.max(controller.go_on(NEVER_PS, &mut done).unwrap());
        }
        hear(&mut done, &at, &mut ended);
        at.push((request.at_ps.unwrap_or(now_ps), write));
        controller.push(Arrival {
            id: at.len() as u32 - 1,
            core: 0,
            address,
            write,
            at_ps: now_ps,
        });
    }
    while ended < requests.len() {
        controller.go_on(NEVER_PS, &mut done).unwrap();
        hear(&mut done, &at, &mut ended);
    }
    (end_ps, sum_ps, controller)
}

#[test]
fn a_replay_is_the_same_as_event_by_event() {
    for name in names() {
        let memory = Memory::named(name).unwrap();
        let lines = memory.organisation.capacity_bytes() / 64;
        // Short queues and few lines: many merge into a waiting write as the queue is full.
        for (span, depth, timed) in [(lines, 32, false), (24, 2, false), (60, 3, true)] {
            let settings = ControllerSettings {
                read_depth: depth,
                write_depth: depth,
                write_high: depth,
                write_low: depth - 1,
                ..ControllerSettings::default()
            };
            let mut random = fastrand::Rng::with_seed(span);
            let mut next_ps = 0;
            let requests: Vec<Request> = (0..6_000)
                .map(|_| {
                    let at_ps = timed.then_some(next_ps);
                    next_ps += random.u64(..6_000);
                    Request {
                        address: random.u64(..span) * 64,
                        write: random.bool(),
                        at_ps,
                    }
                })
                .collect();
            let channels = memory.organisation.channels as usize;
            let new = || {
                let commands = Commands(vec![Vec::new(); channels]);
                Controller::observed(&memory, &settings, commands).unwrap()
            };
            let (end_ps, sum_ps, controller) = by_events(new(), &requests);
            let mut trace = requests.iter().map(|request| Ok(*request));
            let (replay, commands) = run(new(), &mut trace).unwrap();
            assert_eq!(replay.time_ps, end_ps, "{name}");
            assert_eq!(replay.statistics, controller.statistics(), "{name}");
            let mean_ps = sum_ps as f64 / replay.reads as f64;
            assert_eq!(replay.read_latencies.mean_ps(), Some(mean_ps), "{name}");
            assert!(commands.0 == controller.into_observer().0, "{name}");
            let in_queue = replay.statistics.merged + replay.statistics.forwarded;
            assert!(span == lines || in_queue > 100, "{name}: {in_queue}");
        }
    }
}
