// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults that are put into copies of `policy.c`, to prove that the explorer finds them. `build.rs` also reads this
//! list.

/// One faulty copy of the policy.
pub struct Mutant {
    /// Prefix of the copy's symbols.
    pub name: &'static str,
    /// What is wrong with the copy.
    #[allow(dead_code)]
    pub what: &'static str,
    /// Pairs of a text that occurs exactly once, and its replacement.
    #[allow(dead_code)]
    pub edits: &'static [(&'static str, &'static str)],
}

/// The faulty copies, in the order of the functions that they change.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "torn_take",
        what: "two takers can get the same events: store in place of swap",
        edits: &[(
            "} while (!mw_cas(pool, &word, word - taken));",
            "} while (mw_store(pool, word - taken), false);",
        )],
    },
    Mutant {
        name: "take_any_epoch",
        what: "a late core takes events of the next period",
        edits: &[(
            "if (word_epoch(word) != epoch || !(word & POOL_MASK))",
            "if (!(word & POOL_MASK))",
        )],
    },
    Mutant {
        name: "take_unbooked",
        what: "events leave the pool, but no core gets them",
        edits: &[("\taccount->assigned += taken;\n", "")],
    },
    Mutant {
        name: "donate_late",
        what: "a late donor throws the pool back into an old period",
        edits: &[(
            "\t\tif (epoch_before(epoch, word_epoch(word)))\n\t\t\treturn 0;\n",
            "",
        )],
    },
    Mutant {
        name: "donate_and_keep",
        what: "a donor keeps what it gives",
        edits: &[(
            "\taccount->assigned = account->budget - account->donated;\n",
            "\taccount->assigned = account->budget;\n",
        )],
    },
    Mutant {
        name: "open_wipes",
        what: "a core that opens the pools late wipes out donations",
        edits: &[(
            "\twhile (epoch_before(word_epoch(word), epoch))\n\t\tif",
            "\tfor (;;)\n\t\tif",
        )],
    },
    Mutant {
        name: "torn_exhaust",
        what: "two exhausted cores can overwrite each other",
        edits: &[(
            "} while (!mw_cas(&policy->census, &word, census_pack(&census)));\n\n\tcore->active = true;\n\tif (action",
            "} while (mw_store(&policy->census, census_pack(&census)), false);\n\n\tcore->active = true;\n\tif (action",
        )],
    },
    Mutant {
        name: "decide_afterwards",
        what: "the decision is taken after the swap, from a second look",
        edits: &[
            (
                "} while (!mw_cas(&policy->census, &word, census_pack(&census)));\n\n\tcore->active = true;\n\tif (action",
                "} while (!mw_cas(&policy->census, &word, census_pack(&census)));\n\n\tcensus = mw_census_read(policy);\n\taction = share_best_effort(mode, &census);\n\tif (action != MW_CONTINUE)\n\t\tmw_store(&policy->census, census_pack(&census));\n\tcore->active = true;\n\tif (action",
            ),
            (
                "\t\taction = census.released ? MW_RUN :\n\t\t\t\t\t   share_best_effort(mode, &census);\n",
                "",
            ),
        ],
    },
    Mutant {
        name: "exhaust_any_epoch",
        what: "a late core counts as exhausted in the next period",
        edits: &[(
            "\t\tif (census.epoch != core->epoch)\n\t\t\treturn MW_CONTINUE;\n",
            "",
        )],
    },
    Mutant {
        name: "release_again",
        what: "a released period is released again",
        edits: &[(
            "\t\taction = census.released ? MW_RUN :\n\t\t\t\t\t   share_best_effort(mode, &census);\n",
            "\t\taction = census.released && all_exhausted(&census) ?\n\t\t\tMW_RELEASE_ALL : share_best_effort(mode, &census);\n",
        )],
    },
    Mutant {
        name: "wake_any_epoch",
        what: "a core that wakes late is counted twice",
        edits: &[(
            "\t\tif (!core->away && census.epoch != core->epoch)\n\t\t\tbreak;\n",
            "",
        )],
    },
    Mutant {
        name: "idle_stays_active",
        what: "an idle core stays in the census forever",
        edits: &[(
            "\t\tif (idle) {\n\t\t\tcensus.active--;\n",
            "\t\tif (idle) {\n",
        )],
    },
    Mutant {
        name: "torn_begin",
        what: "two cores that begin at once can overwrite each other",
        edits: &[(
            "\t\t\tbreak;\n\t} while (!mw_cas(&policy->census, &word, census_pack(&census)));\n\n\t/* Open the pools",
            "\t\t\tbreak;\n\t} while (mw_store(&policy->census, census_pack(&census)), false);\n\n\t/* Open the pools",
        )],
    },
    Mutant {
        name: "opened_twice",
        what: "the second core opens the period again",
        edits: &[(
            "if (epoch_before(census.epoch, number & EPOCH_MASK)) {",
            "if (census.epoch != core->epoch ||\n\t\t    epoch_before(census.epoch, number & EPOCH_MASK)) {",
        )],
    },
    Mutant {
        name: "idle_is_silent",
        what: "an idle core leaves without telling the cores that wait for it",
        edits: &[(
            "\t\t\tcensus.active--;\n\t\t\taction = share_best_effort(mode, &census);\n",
            "\t\t\tcensus.active--;\n\t\t\taction = mode && false;\n",
        )],
    },
    Mutant {
        name: "offline_is_silent",
        what: "a core goes offline without telling the cores that wait for it",
        edits: &[(
            "\t\t\tcensus.exhausted--;\n\t\taction = share_best_effort(mode, &census);\n",
            "\t\t\tcensus.exhausted--;\n\t\taction = mode && false;\n",
        )],
    },
    Mutant {
        name: "offline_any_epoch",
        what: "a core that goes offline late spoils the next period",
        edits: &[(
            "\t\tlater = census.epoch != core->epoch;\n",
            "\t\tlater = false;\n",
        )],
    },
    Mutant {
        name: "torn_online",
        what: "a core that comes online overwrites what others just did",
        edits: &[(
            "\t\tcensus.online++;\n\t\tcensus.active++;\n\t} while (!mw_cas(&policy->census, &word, census_pack(&census)));",
            "\t\tcensus.online++;\n\t\tcensus.active++;\n\t} while (mw_store(&policy->census, census_pack(&census)), false);",
        )],
    },
    Mutant {
        name: "torn_offer",
        what: "two cores that rest at once can overwrite each other",
        edits: &[(
            "\twhile (events && !mw_cas(offered, &sum, sum + events))\n\t\t;\n",
            "\tif (events)\n\t\tmw_store(offered, sum + events);\n",
        )],
    },
    Mutant {
        name: "offer_and_keep",
        what: "a core that stops resting has its whole budget, and other cores still have its offer",
        edits: &[(
            "if (offered && epoch_before(core->offers_end, core->epoch))",
            "if (offered)",
        )],
    },
    Mutant {
        name: "offer_ends_early",
        what: "a period that opens while an offer is taken back still has it",
        edits: &[(
            "\tcore->offers_end = word_epoch(mw_load(&policy->census));\n",
            "\tcore->offers_end = core->epoch;\n",
        )],
    },
    Mutant {
        name: "rest_unopened",
        what: "a period that leaves a core its whole budget has its offer, too",
        edits: &[("\tpools_open(policy, core->epoch);\n", "")],
    },
    Mutant {
        name: "offline_offers",
        what: "an offline core still offers",
        edits: &[(
            "\t\tpools_open(policy, census.epoch);\n\tif (core->resting)\n\t\tstop_offering(policy, core);\n\tfor (r",
            "\t\tpools_open(policy, census.epoch);\n\tfor (r",
        )],
    },
    Mutant {
        name: "away_is_silent",
        what: "a core goes away without telling the cores that wait for it",
        edits: &[(
            "\t\t\tcensus.active--;\n\t\taction = share_best_effort(mode, &census);\n\t} while (!mw_cas(&policy->census, &word, census_pack(&census)));\n\n\tcore->active = false;\n",
            "\t\t\tcensus.active--;\n\t\taction = mode && false;\n\t} while (!mw_cas(&policy->census, &word, census_pack(&census)));\n\n\tcore->active = false;\n",
        )],
    },
    Mutant {
        name: "away_twice",
        what: "a core that is away leaves the census again when it goes offline",
        edits: &[("\t\tif (!core->away) {\n", "\t\tif (true) {\n")],
    },
];
