// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets per bank, and buffers in one bank, on memories whose figures can be derived by hand.

use super::*;
use crate::main_memory::{Arrival, Done};
use crate::workload::InBank;

const BANKS: usize = 4;
const BUDGET: u64 = 100;

/// Consecutive lines are in consecutive banks; each line takes the same time.
#[derive(Debug)]
struct Banked(FixedMemory);

impl MainMemory for Banked {
    fn has_room(&self, address: u64, write: bool) -> bool {
        self.0.has_room(address, write)
    }

    fn push(&mut self, arrival: Arrival) {
        self.0.push(arrival);
    }

    fn next_event_ps(&self) -> u64 {
        self.0.next_event_ps()
    }

    fn advance(&mut self, until_ps: u64, done: &mut Vec<Done>) {
        self.0.advance(until_ps, done);
    }

    fn banks(&self) -> usize {
        BANKS
    }

    fn bank_of(&self, address: u64) -> usize {
        (address / 64) as usize % BANKS
    }
}

fn guard(budgets: &[u64]) -> Guard {
    Guard {
        budgets: budgets.iter().map(|read| [*read, UNLIMITED]).collect(),
        combined: false,
        best_effort: BestEffort::None,
        reclaim: false,
        period_ps: MS,
        per_bank: true,
    }
}

fn banked(
    settings: &MachineSettings,
    workloads: Vec<Box<dyn Workload>>,
    guard: Option<&Guard>,
) -> Machine<Banked> {
    let memory = Banked(wide());
    Machine::new(settings, memory, workloads, guard, REACTION, 1).unwrap()
}

fn one_bank(workload: Box<dyn Workload>, bank: usize) -> Box<dyn Workload> {
    Box::new(InBank::new(workload, bank))
}

#[test]
fn a_stream_in_one_bank_gets_one_budget_and_one_in_all_banks_gets_them_all() {
    let refills = |workload| {
        let mut machine = banked(&settings(1), vec![workload], Some(&guard(&[BUDGET])));
        machine.advance(50 * MS - 1);
        machine.counts(0)
    };
    for store in [false, true] {
        let one = refills(one_bank(stream(2 * MIB, store), 2));
        assert_eq!(one.refills, 50 * BUDGET, "{one:?}");
        assert_eq!(one.overflows, 50);
        assert_eq!(one.throttled_ps, 0);
        assert!(one.held_ps > 45 * MS && one.held_back >= 50, "{one:?}");
        let all = refills(stream(8 * MIB, store));
        assert_eq!(all.refills, 50 * BUDGET * BANKS as u64, "{all:?}");
        assert_eq!(all.overflows, 50 * BANKS as u64);
    }
}

#[test]
fn a_line_that_waits_does_not_stop_those_of_other_banks() {
    #[derive(Debug)]
    struct Mostly(u64);
    impl Workload for Mostly {
        fn next(&mut self, _now_ps: u64) -> Step {
            self.0 += 1;
            // The first lines use up bank 0, the next three wait, all others are in bank 1.
            let bank = u64::from(self.0 > BUDGET + 3);
            Step::Touch {
                work_ps: 0,
                offset: (self.0 * BANKS as u64 + bank) * 64 % (8 * MIB),
                store: false,
                depends: false,
            }
        }
        fn buffer_bytes(&self) -> u64 {
            8 * MIB
        }
    }
    let budgets = guard(&[BUDGET]);
    let mut machine = banked(&settings(1), vec![Box::new(Mostly(0))], Some(&budgets));
    machine.advance(MS - 1);
    let counts = machine.counts(0);
    assert_eq!(counts.refills, 2 * BUDGET, "{counts:?}");
    // Three wait for bank 0, and the other places are filled by lines of bank 1.
    assert_eq!(counts.held_back, 8, "{counts:?}");
    machine.advance(MS + MS / 2);
    assert_eq!(machine.counts(0).refills, 2 * BUDGET + 3 + BUDGET);
}

#[test]
fn requests_that_wait_leave_the_shared_cache_to_others() {
    let mut settings = settings(2);
    settings.shared.mshrs = 4;
    let touches = |other: Box<dyn Workload>| {
        let workloads = vec![one_bank(chase(4 * MIB), 0), other];
        let mut machine = banked(&settings, workloads, Some(&guard(&[UNLIMITED, 1])));
        machine.advance(20 * MS);
        assert_eq!(machine.counts(0).held_back, 0);
        machine.counts(0).touches
    };
    let alone = touches(Box::new(Idle));
    let beside = touches(one_bank(stream(4 * MIB, false), 0));
    // One line of the other core in each period.
    assert!(beside * 1000 > alone * 995, "{beside} of {alone}");
}

#[test]
fn budgets_that_are_never_used_up_change_nothing() {
    let run = |guard: Option<&Guard>| {
        let narrow = Banked(FixedMemory::new(MEMORY, 10 * NS, 16));
        let workloads = vec![
            chase(4 * MIB),
            one_bank(stream(MIB, true), 1),
            stream(8 * MIB, true),
        ];
        let mut machine =
            Machine::new(&settings(3), narrow, workloads, guard, REACTION, 3).unwrap();
        machine.advance(10 * MS);
        [0, 1, 2].map(|core| machine.counts(core))
    };
    let without = run(None);
    assert_eq!(run(Some(&guard(&[1 << 20; 3]))), without);
    assert_eq!(run(Some(&guard(&[UNLIMITED; 3]))), without);
    assert_ne!(run(Some(&guard(&[UNLIMITED, 10, 10]))), without);
}

#[test]
fn the_same_seed_gives_the_same_run_with_budgets_per_bank() {
    let run = |seed| {
        let workloads = vec![chase(4 * MIB), one_bank(stream(MIB, true), 1)];
        let mut machine = Machine::new(
            &settings(2),
            Banked(wide()),
            workloads,
            Some(&guard(&[500, 50])),
            REACTION,
            seed,
        )
        .unwrap();
        machine.advance(7 * MS);
        [0, 1].map(|core| machine.counts(core))
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn prefetches_stay_within_the_budget_of_every_bank_and_period() {
    use memwarden_cachesim::geometry::{PrefetchInto, Prefetcher};
    let mut settings = settings(1);
    settings.core.in_order = true;
    settings.core.prefetcher = Some(Prefetcher {
        into: PrefetchInto::L2,
        streams: 8,
        trigger_steps: 2,
        degree: 2,
        distance: 8,
    });
    let workloads = vec![stream(8 * MIB, false)];
    let mut machine = banked(&settings, workloads, Some(&guard(&[BUDGET])));
    machine.ended_periods();
    machine.advance(50 * MS);
    let periods = machine.ended_periods();
    assert_eq!(periods.len(), 50);
    assert!(machine.counts(0).prefetches > 1000);
    for period in &periods {
        assert!(period.used[0] <= BUDGET, "{period:?}");
        assert_eq!(period.assigned[0], BUDGET);
    }
    // In order, a core stops at the first bank that is used up; the others are nearly so.
    let refills = machine.counts(0).refills;
    assert!(refills >= 49 * BUDGET * 39 / 10, "{refills}");
}

#[test]
fn write_backs_count_against_a_combined_budget_of_their_bank() {
    let lines = |combined| {
        let guard = Guard {
            combined,
            ..guard(&[BUDGET])
        };
        let workloads = vec![one_bank(stream(2 * MIB, true), 3)];
        let mut machine = banked(&settings(1), workloads, Some(&guard));
        machine.advance(200 * MS);
        let before = machine.counts(0);
        machine.advance(300 * MS);
        machine.counts(0).since(&before)
    };
    let reads = lines(false);
    assert_eq!(reads.refills, 100 * BUDGET, "{reads:?}");
    assert!(reads.write_backs * 10 >= reads.refills * 9, "{reads:?}");
    let both = lines(true);
    let sum = both.refills + both.write_backs;
    // Lines that are in flight when the budget is used up still evict others.
    let most = 100 * (BUDGET + u64::from(settings(1).core.mshrs));
    assert!((100 * BUDGET..=most).contains(&sum), "{both:?}");
}

#[test]
fn with_reclaim_an_idle_cores_budget_in_a_bank_is_anothers() {
    let lines = |reclaim| {
        let guard = Guard {
            reclaim,
            ..guard(&[1000, 1000])
        };
        let workloads = vec![
            one_bank(stream(2 * MIB, false), 1),
            Box::new(Idle) as Box<_>,
        ];
        let mut machine = banked(&settings(2), workloads, Some(&guard));
        machine.advance(50 * MS);
        machine.counts(0).refills
    };
    assert!(lines(true) * 10 > lines(false) * 18);
}

#[test]
fn with_spare_sharing_a_bank_is_free_once_all_have_used_it_up() {
    let lines = |best_effort| {
        let guard = Guard {
            best_effort,
            ..guard(&[BUDGET, BUDGET])
        };
        let two = |bank| one_bank(stream(2 * MIB, false), bank);
        let mut machine = banked(&settings(2), vec![two(1), two(1)], Some(&guard));
        machine.advance(20 * MS - 1);
        machine.counts(0).refills
    };
    assert_eq!(lines(BestEffort::None), 20 * BUDGET);
    assert!(lines(BestEffort::Spare) > 40 * BUDGET);
}

#[test]
fn a_bank_or_sharing_that_is_not_possible_is_refused() {
    let new = |workload, guard: &Guard| {
        let memory = Banked(wide());
        Machine::new(
            &settings(1),
            memory,
            vec![workload],
            Some(guard),
            REACTION,
            1,
        )
        .err()
        .map(|error| error.to_string())
    };
    let small = || stream(MIB, false);
    assert_eq!(new(one_bank(small(), 3), &guard(&[1])), None);
    let refused = new(one_bank(small(), 4), &guard(&[1])).unwrap();
    assert!(
        refused.contains("bank 4, and the memory has banks 0 to 3"),
        "{refused}"
    );
    // A quarter of 64 MiB.
    let refused = new(one_bank(stream(17 * MIB, false), 0), &guard(&[1])).unwrap();
    assert!(refused.contains("smaller buffer"), "{refused}");
    let proportional = Guard {
        best_effort: BestEffort::Proportional,
        ..guard(&[1])
    };
    let refused = new(small(), &proportional).unwrap();
    assert!(refused.contains("proportional"), "{refused}");
    assert!(new(small(), &guard(&[0])).is_some());
}

#[test]
fn a_buffer_in_a_bank_has_that_banks_lines_only_and_each_once() {
    let memory = Banked(wide());
    let mut free: Vec<u32> = (0..1000).collect();
    let mut random = fastrand::Rng::with_seed(1);
    let mut all = Vec::new();
    for bank in [1, 1, 3] {
        let lines =
            placement::in_bank(&mut free, &memory, &settings(1), bank, MIB / 4, &mut random);
        let lines = lines.unwrap();
        assert_eq!(lines.len() as u64, MIB / 4 / 64);
        assert!(lines.iter().all(|line| memory.bank_of(line * 64) == bank));
        let follow = lines.windows(2).filter(|two| two[0] / 64 == two[1] / 64);
        assert!(
            follow.count() * 20 < lines.len(),
            "in few pages twice in a row"
        );
        all.extend(lines);
    }
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
    // A page has 16 lines of each bank.
    assert_eq!(free.len(), 1000 - 3 * 256);
}
