// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of every verb's `--help`.

mod verbs;

use verbs::each;

#[test]
fn every_verb_ends_with_two_examples_at_least() {
    let mut seen = 0;
    let mut lacking = Vec::new();
    each(&[], &mut |verb, text| {
        seen += 1;
        let (_, examples) = text.rsplit_once("Examples:\n").unwrap_or_default();
        let count = examples
            .lines()
            .filter(|line| line.starts_with("  memwarden "))
            .count();
        if count < 2 {
            lacking.push(verb.join(" "));
        }
    });
    assert!(seen > 40, "{seen} verbs");
    assert!(lacking.is_empty(), "no two examples: {lacking:?}");
}
