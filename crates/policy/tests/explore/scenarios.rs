// SPDX-License-Identifier: MIT OR Apache-2.0
//! The small cases. Budgets are tiny, because only the order of accesses matters.

use memwarden_policy::ffi::{MW_NONE, MW_PROPORTIONAL, MW_SPARE, MW_UNLIMITED};

use crate::engine::Op::{
    Away, Elapse, ElapseIdle, Look, Offline, Online, Rest, RunOut, RunOutWrites, SetBudget,
    SetMode, SetRt, Wake,
};
use crate::engine::{Scenario, World};

const MODES: [u64; 3] = [MW_NONE, MW_SPARE, MW_PROPORTIONAL];
const HARD: [u64; 1] = [MW_NONE];

const PLAIN: Scenario = Scenario {
    name: "",
    mode: MW_NONE,
    reclaim: false,
    budgets: &[60, 20],
    write_budget: MW_UNLIMITED,
    predictions: &[60, 20],
    prelude: &[],
    scripts: &[],
    finally: |_| Ok(()),
};

/// Core 0 needs 9 of its 12 events and donates 2; a chunk is one event.
const DONOR: Scenario = Scenario {
    reclaim: true,
    budgets: &[12, 15],
    predictions: &[9, 15],
    ..PLAIN
};

/// Core 0 uses almost nothing: it keeps one event of 3, and offers 2.
const RESTING: Scenario = Scenario {
    budgets: &[3, 15],
    predictions: &[2, 15],
    prelude: &[(0, Rest)],
    ..DONOR
};

const THREE: Scenario = Scenario {
    budgets: &[60, 20, 20],
    predictions: &[60, 20, 20],
    ..PLAIN
};

const THREE_DONORS: Scenario = Scenario {
    reclaim: true,
    budgets: &[12, 15, 15],
    predictions: &[9, 15, 15],
    ..THREE
};

/// Best effort started exactly once, and no core is left waiting.
fn shared_once(world: &World) -> Result<(), String> {
    let books = &world.books;
    let mode = world.mode();
    let announced = (books.release_all, books.new_period);
    let expected = match mode {
        MW_SPARE => (1, 0),
        MW_PROPORTIONAL => (0, 1),
        _ => (0, 0),
    };
    if announced != expected {
        return Err(format!("announced {announced:?}, not {expected:?}"));
    }
    let waiting = world.waiting();
    if mode != MW_NONE && !waiting.is_empty() {
        return Err(format!("cores {waiting:?} are left waiting"));
    }
    Ok(())
}

/// Every case in each of its modes.
pub fn all() -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut add = |modes: &[u64], scenario: Scenario| {
        all.extend(modes.iter().map(|&mode| Scenario { mode, ..scenario }));
    };
    two_cores(&mut add);
    three_cores(&mut add);
    all
}

fn two_cores(add: &mut impl FnMut(&[u64], Scenario)) {
    add(
        &MODES,
        Scenario {
            name: "two cores: the last two run out at once",
            scripts: &[&[RunOut(0)], &[RunOut(0)]],
            finally: shared_once,
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: one by reads, one by writes, at once",
            write_budget: 5,
            scripts: &[&[RunOut(0), RunOutWrites], &[RunOutWrites]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: run out against the other's timer",
            scripts: &[&[RunOut(0)], &[Elapse]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: run out against the other's timer and its running out",
            scripts: &[&[RunOut(0)], &[Elapse, RunOut(0)]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: both timers at once",
            scripts: &[&[Elapse], &[Elapse]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: both run out and both timers",
            scripts: &[&[RunOut(0), Elapse], &[RunOut(0), Elapse]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: run out against the other's being found idle",
            prelude: &[(0, Elapse)],
            scripts: &[&[RunOut(0)], &[ElapseIdle]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: the other wakes while the last one runs out",
            prelude: &[(0, Elapse), (1, ElapseIdle)],
            scripts: &[&[RunOut(0)], &[Wake]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: the other wakes and runs out beside the last one",
            prelude: &[(0, Elapse), (1, ElapseIdle)],
            scripts: &[&[RunOut(0)], &[Wake, RunOut(0)]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: an idle core runs out by interrupts",
            prelude: &[(0, Elapse), (1, ElapseIdle)],
            scripts: &[&[RunOut(0)], &[RunOut(0), Wake]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: wake against the other's timer",
            prelude: &[(0, Elapse), (1, ElapseIdle)],
            scripts: &[&[Elapse, RunOut(0)], &[Wake]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: offline against running out",
            scripts: &[&[RunOut(0)], &[Offline]],
            finally: |world| {
                if world.books.release_all + world.books.new_period == 0 && world.mode() != MW_NONE
                {
                    return Err("the one that stays was not told".into());
                }
                Ok(())
            },
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: an exhausted core goes offline while the other runs out",
            prelude: &[(1, RunOut(0))],
            scripts: &[&[RunOut(0)], &[Offline]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: offline against the other's timer",
            scripts: &[&[Elapse], &[Offline]],
            ..DONOR
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: an exhausted core goes offline against the other's timer",
            prelude: &[(1, RunOut(0))],
            scripts: &[&[Elapse, RunOut(0)], &[Offline]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: online against the other's timer",
            prelude: &[(1, Offline)],
            scripts: &[&[Elapse], &[Online]],
            ..DONOR
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: online against the last one's running out",
            prelude: &[(1, Offline)],
            scripts: &[&[RunOut(0)], &[Online, RunOut(0)]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: off and on again while the other runs out",
            scripts: &[&[RunOut(0)], &[Offline, Online]],
            ..PLAIN
        },
    );
    add(
        &HARD,
        Scenario {
            name: "two cores: the donor takes back against a taker",
            scripts: &[&[RunOut(0)], &[RunOut(1)]],
            ..DONOR
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: the donor takes back against a taker, to the end",
            scripts: &[&[RunOut(3)], &[RunOut(2)]],
            ..DONOR
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: the donor begins while a taker takes",
            scripts: &[&[Elapse], &[RunOut(0)]],
            ..DONOR
        },
    );
    add(
        &HARD,
        Scenario {
            name: "two cores: a late donor meets the next period",
            scripts: &[&[Elapse, RunOut(1)], &[Elapse, RunOut(1)]],
            ..DONOR
        },
    );
    add(
        &HARD,
        Scenario {
            name: "two cores: a donor is overtaken by a whole period",
            scripts: &[&[Elapse], &[Elapse, Elapse]],
            ..DONOR
        },
    );
    add(
        &HARD,
        Scenario {
            name: "two cores: both donate at once",
            predictions: &[9, 9],
            scripts: &[&[Elapse], &[Elapse]],
            ..DONOR
        },
    );
    add(
        &HARD,
        Scenario {
            name: "two cores: the donor goes offline against a taker",
            scripts: &[&[Offline], &[RunOut(0)]],
            ..DONOR
        },
    );
    add(
        &[MW_SPARE],
        Scenario {
            name: "two cores: a release reaches a core whose timer fires",
            prelude: &[(0, RunOut(0))],
            scripts: &[&[Elapse, RunOut(0)], &[RunOut(0)]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: made real-time while running out",
            scripts: &[&[RunOut(0)], &[SetRt(0), RunOut(0)]],
            ..PLAIN
        },
    );
    add(
        &[MW_NONE],
        Scenario {
            name: "two cores: a mode is chosen while the last two run out",
            scripts: &[&[RunOut(0)], &[SetMode(MW_SPARE), RunOut(0)]],
            ..PLAIN
        },
    );
    add(
        &HARD,
        Scenario {
            name: "two cores: a budget is set while a period begins",
            scripts: &[&[Elapse, RunOut(0)], &[SetBudget(0, 5), Elapse]],
            ..DONOR
        },
    );
    add(
        &HARD,
        Scenario {
            name: "two cores: a budget is set while a core comes online",
            prelude: &[(0, Offline)],
            scripts: &[&[Online, RunOut(0)], &[SetBudget(0, 5), Elapse]],
            ..DONOR
        },
    );
    resting_cores(add);
}

/// Cores whose host begins no period for them.
fn resting_cores(add: &mut impl FnMut(&[u64], Scenario)) {
    add(
        &HARD,
        Scenario {
            name: "two cores: a resting core begins again while the other opens a period",
            scripts: &[&[Elapse, RunOut(0)], &[Elapse, RunOut(1)]],
            ..RESTING
        },
    );
    add(
        &HARD,
        Scenario {
            name: "two cores: a resting core looks, and begins, against two periods",
            scripts: &[&[Look, Elapse, RunOut(0)], &[Elapse, RunOut(1), Elapse]],
            ..RESTING
        },
    );
    add(
        &HARD,
        Scenario {
            name: "two cores: a core goes to rest while the other opens a period",
            prelude: &[],
            scripts: &[&[Rest, Elapse, RunOut(0)], &[Elapse, RunOut(1)]],
            ..RESTING
        },
    );
    add(
        &HARD,
        Scenario {
            name: "two cores: a core begins and rests while the other opens that period",
            predictions: &[3, 15],
            prelude: &[],
            scripts: &[&[Elapse, Rest], &[Elapse, RunOut(1)]],
            ..RESTING
        },
    );
    add(
        &HARD,
        Scenario {
            name: "two cores: both rest and begin again",
            scripts: &[&[Elapse, Rest, Elapse], &[Rest, Elapse]],
            ..RESTING
        },
    );
    add(
        &HARD,
        Scenario {
            name: "two cores: a resting core goes offline while the other opens a period",
            scripts: &[&[Offline], &[Elapse, RunOut(1)]],
            ..RESTING
        },
    );
    add(
        &HARD,
        Scenario {
            name: "two cores: a resting core's budget is set while it begins",
            scripts: &[&[Elapse, RunOut(0)], &[SetBudget(0, 2), Elapse]],
            ..RESTING
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: run out against the other's going away",
            scripts: &[&[RunOut(0)], &[Away]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: an absent core wakes while the other runs out",
            prelude: &[(1, Away), (0, Elapse)],
            scripts: &[&[RunOut(0)], &[Wake, Elapse, RunOut(0)]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: away and back against the other's timer and its running out",
            scripts: &[&[Elapse, RunOut(0)], &[Away, Wake]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: an absent core's timer against the other's running out",
            prelude: &[(1, Away)],
            scripts: &[&[Elapse, RunOut(0)], &[ElapseIdle, Away]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "two cores: an absent core goes offline while the other runs out",
            prelude: &[(1, Away)],
            scripts: &[&[RunOut(0), Elapse], &[Offline, Online]],
            ..PLAIN
        },
    );
    add(
        &MODES,
        Scenario {
            name: "three cores: two run out while the third goes away",
            scripts: &[&[RunOut(0)], &[RunOut(0)], &[Away]],
            ..THREE
        },
    );
    add(
        &HARD,
        Scenario {
            name: "three cores: a resting donor begins beside two that open a period",
            budgets: &[3, 15, 15],
            predictions: &[2, 15, 15],
            prelude: &[(0, Rest)],
            scripts: &[&[Elapse], &[Elapse], &[RunOut(1)]],
            ..THREE_DONORS
        },
    );
}

fn three_cores(add: &mut impl FnMut(&[u64], Scenario)) {
    add(
        &MODES,
        Scenario {
            name: "three cores: all run out at once",
            scripts: &[&[RunOut(0)], &[RunOut(0)], &[RunOut(0)]],
            finally: shared_once,
            ..THREE
        },
    );
    add(
        &MODES,
        Scenario {
            name: "three cores: two run out while the third is found idle",
            prelude: &[(0, Elapse), (1, Elapse)],
            scripts: &[&[RunOut(0)], &[RunOut(0)], &[ElapseIdle]],
            ..THREE
        },
    );
    add(
        &MODES,
        Scenario {
            name: "three cores: two run out while the third goes offline",
            scripts: &[&[RunOut(0)], &[RunOut(0)], &[Offline]],
            ..THREE
        },
    );
    add(
        &MODES,
        Scenario {
            name: "three cores: two run out while the third comes online",
            prelude: &[(2, Offline)],
            scripts: &[&[RunOut(0)], &[RunOut(0)], &[Online]],
            ..THREE
        },
    );
    add(
        &MODES,
        Scenario {
            name: "three cores: two run out while the third's timer fires",
            scripts: &[&[RunOut(0)], &[RunOut(0)], &[Elapse]],
            ..THREE
        },
    );
    add(
        &MODES,
        Scenario {
            name: "three cores: two run out while the third wakes",
            prelude: &[(0, Elapse), (1, Elapse), (2, ElapseIdle)],
            scripts: &[&[RunOut(0)], &[RunOut(0)], &[Wake]],
            ..THREE
        },
    );
    add(
        &HARD,
        Scenario {
            name: "three cores: two takers and the donor",
            scripts: &[&[RunOut(0)], &[RunOut(1)], &[RunOut(2)]],
            ..THREE_DONORS
        },
    );
    add(
        &HARD,
        Scenario {
            name: "three cores: two takers while the donor begins",
            scripts: &[&[Elapse], &[RunOut(1)], &[RunOut(1)]],
            ..THREE_DONORS
        },
    );
    add(
        &HARD,
        Scenario {
            name: "three cores: two takers while the donor goes offline",
            scripts: &[&[Offline], &[RunOut(1)], &[RunOut(1)]],
            ..THREE_DONORS
        },
    );
    add(
        &MODES,
        Scenario {
            name: "three cores: two wake and one of them runs out beside a third",
            prelude: &[(0, Elapse), (1, ElapseIdle), (2, ElapseIdle)],
            scripts: &[&[RunOut(0)], &[Wake, RunOut(0)], &[Wake]],
            ..THREE
        },
    );
    add(
        &MODES,
        Scenario {
            name: "three cores: one runs out, one goes offline, one is found idle",
            prelude: &[(0, Elapse), (1, Elapse)],
            scripts: &[&[RunOut(0)], &[Offline], &[ElapseIdle]],
            ..THREE
        },
    );
}
