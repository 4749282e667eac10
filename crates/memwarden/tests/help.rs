// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of every verb's `--help`.

mod verbs;

use verbs::{each, is_group};

/// The width of a usual terminal.
const WIDTH: usize = 80;

#[test]
fn every_verb_and_group_ends_with_two_examples_at_least() {
    let (mut seen, mut groups) = (0, 0);
    let (mut lacking, mut wide) = (Vec::new(), Vec::new());
    each(&[], &mut |verb, text| {
        seen += 1;
        groups += usize::from(is_group(text));
        let (_, examples) = text.rsplit_once("Examples:\n").unwrap_or_default();
        let count = examples
            .lines()
            .filter(|line| line.starts_with("  memwarden "))
            .count();
        if count < 2 {
            lacking.push(verb.join(" "));
        }
        let too_wide = |line: &&str| line.chars().count() > WIDTH;
        wide.extend(examples.lines().filter(too_wide).map(str::to_owned));
    });
    assert!(seen > 45 && groups > 6, "{seen} verbs, {groups} groups");
    assert!(lacking.is_empty(), "no two examples: {lacking:?}");
    assert!(wide.is_empty(), "wider than {WIDTH} columns: {wide:#?}");
}
