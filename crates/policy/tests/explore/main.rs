// SPDX-License-Identifier: MIT OR Apache-2.0
//! Explores every schedule of small cases on the real C code, one atomic access at a time. `engine.rs` runs the cases
//! in `scenarios.rs`. Run with `--nocapture` to see the number of schedules.

#![allow(unsafe_code)]

mod engine;
mod mutants;
mod scenarios;

use std::time::Instant;

use engine::{Seen, Variant, explore};
use mutants::MUTANTS;

macro_rules! variants {
    ($($name:ident: $symbol:ident),* $(,)?) => {
        unsafe extern "C" {
            $(static $symbol: Variant;)*
        }

        /// The build of policy.c with this name.
        fn variant(name: &str) -> &'static Variant {
            match name {
                // SAFETY: these are constants in tests/c/variant.c with the same layout.
                $(stringify!($name) => unsafe { &$symbol },)*
                _ => panic!("variants! does not list {name}"),
            }
        }
    };
}

variants! {
    whole: whole_variant,
    torn_take: torn_take_variant,
    take_any_epoch: take_any_epoch_variant,
    take_unbooked: take_unbooked_variant,
    donate_late: donate_late_variant,
    donate_and_keep: donate_and_keep_variant,
    open_wipes: open_wipes_variant,
    torn_exhaust: torn_exhaust_variant,
    decide_afterwards: decide_afterwards_variant,
    exhaust_any_epoch: exhaust_any_epoch_variant,
    release_again: release_again_variant,
    wake_any_epoch: wake_any_epoch_variant,
    idle_stays_active: idle_stays_active_variant,
    torn_begin: torn_begin_variant,
    opened_twice: opened_twice_variant,
    idle_is_silent: idle_is_silent_variant,
    offline_is_silent: offline_is_silent_variant,
    offline_any_epoch: offline_any_epoch_variant,
    torn_online: torn_online_variant,
    torn_offer: torn_offer_variant,
    offer_and_keep: offer_and_keep_variant,
    offer_ends_early: offer_ends_early_variant,
    rest_unopened: rest_unopened_variant,
    offline_offers: offline_offers_variant,
    away_is_silent: away_is_silent_variant,
    away_twice: away_twice_variant,
}

fn explore_named(prefix: &str) {
    let mut total = Seen::default();
    let begun = Instant::now();
    let mut count = 0;
    for scenario in scenarios::all() {
        if !scenario.name.starts_with(prefix) {
            continue;
        }
        let started = Instant::now();
        let seen = explore(variant("whole"), &scenario, true).unwrap_or_else(|broken| {
            panic!(
                "{} (mode {}): {}\nschedule: {}",
                scenario.name, scenario.mode, broken.rule, broken.schedule
            )
        });
        println!(
            "{:>20} schedules {:>7} states {:>4} ends {:>3} deep {:>6} ms  mode {} {}",
            seen.schedules,
            seen.states,
            seen.ends,
            seen.depth,
            started.elapsed().as_millis(),
            scenario.mode,
            scenario.name
        );
        total.schedules = total.schedules.saturating_add(seen.schedules);
        total.states += seen.states;
        count += 1;
    }
    assert!(count > 0, "no scenario is called {prefix}");
    println!(
        "{prefix}: {count} scenarios, {} schedules, {} states, {} ms",
        total.schedules,
        total.states,
        begun.elapsed().as_millis()
    );
}

#[test]
fn every_schedule_of_two_cores_keeps_the_rules() {
    explore_named("two cores");
}

#[test]
fn every_schedule_of_three_cores_keeps_the_rules() {
    explore_named("three cores");
}

/// Merging equal states only saves time: without it, the ends and the number of schedules are the same.
#[test]
fn merging_equal_states_loses_no_schedule() {
    let mut compared = 0;
    for scenario in scenarios::all() {
        let merged = explore(variant("whole"), &scenario, true).expect("kept");
        if merged.schedules > 10_000 {
            continue;
        }
        let plain = explore(variant("whole"), &scenario, false).expect("kept");
        assert_eq!(merged.schedules, plain.schedules, "{}", scenario.name);
        assert_eq!(merged.ends, plain.ends, "{}", scenario.name);
        compared += 1;
    }
    assert!(compared > 0);
}

#[test]
fn every_mutant_is_caught() {
    let mut missed = Vec::new();
    for mutant in MUTANTS {
        let caught = scenarios::all().into_iter().find_map(|scenario| {
            explore(variant(mutant.name), &scenario, true)
                .err()
                .map(|broken| (scenario, broken))
        });
        match caught {
            Some((scenario, broken)) => println!(
                "{}: {} (mode {}): {}\n    {}",
                mutant.name, scenario.name, scenario.mode, broken.rule, broken.schedule
            ),
            None => missed.push((mutant.name, mutant.what)),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
