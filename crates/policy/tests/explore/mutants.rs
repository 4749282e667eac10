// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults put into copies of `policy.c` on purpose, to prove that the explorer
//! finds them. `build.rs` reads this list too.

/// One faulty copy of the policy.
pub struct Mutant {
    /// Prefix of its symbols.
    pub name: &'static str,
    /// What is wrong with it.
    #[allow(dead_code)]
    pub what: &'static str,
    /// Text to be found exactly once, and what to put in its place.
    pub edits: &'static [(&'static str, &'static str)],
}

/// The faulty copies.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "torn_take",
        what: "two takers can be given the same events: store in place of swap",
        edits: &[(
            "} while (!mw_cas(pool, &word, word - taken));",
            "} while (mw_store(pool, word - taken), false);",
        )],
    },
];
