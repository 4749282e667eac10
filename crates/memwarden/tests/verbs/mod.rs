// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verbs, as the program's own help lists them.

use std::process::Command;

/// The help of a verb.
fn help(verb: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memwarden"));
    let output = command.args(verb).arg("--help").output().unwrap();
    assert!(output.status.success(), "{verb:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The verbs listed in a help text.
fn listed(help: &str) -> Vec<&str> {
    let commands = help
        .split_once("\nCommands:\n")
        .map_or("", |(_, rest)| rest);
    let lines = commands.lines().take_while(|line| line.starts_with("  "));
    let names = lines
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").collect()
}

/// True for a group of verbs, which does nothing by itself.
pub fn is_group(help: &str) -> bool {
    let usage = help.split_once("Usage: ").map_or("", |(_, rest)| rest);
    let line = usage.lines().next().unwrap_or_default();
    line.ends_with(" <COMMAND>") && !line.contains("[OPTIONS]")
}

/// Calls `judge` with every verb and every group of verbs from `verb` on, and its help.
pub fn each(verb: &[&str], judge: &mut dyn FnMut(&[&str], &str)) {
    let text = help(verb);
    let below = listed(&text);
    judge(verb, &text);
    for name in below {
        each(&[verb, &[name]].concat(), judge);
    }
}
