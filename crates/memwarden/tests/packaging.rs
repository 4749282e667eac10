// SPDX-License-Identifier: MIT OR Apache-2.0
//! Additional contents of packages: manual pages and completions.

use std::fs;
use std::process::Command;

fn memwarden(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_memwarden"))
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The verbs listed in a help text, except `help`.
fn listed(help: &str) -> impl Iterator<Item = &str> {
    help.lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter(|line| !line.starts_with("    "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|verb| *verb != "help")
}

#[test]
fn every_listed_verb_has_a_page_and_no_hidden_one() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    memwarden(&["manual", pages.to_str().unwrap()]);
    let mut expected = vec!["memwarden.1".to_owned()];
    for verb in listed(&memwarden(&["--help"])) {
        expected.push(format!("memwarden-{verb}.1"));
        for below in listed(&memwarden(&[verb, "--help"])) {
            expected.push(format!("memwarden-{verb}-{below}.1"));
        }
    }
    assert!(expected.len() > 40, "{expected:?}");
    let mut found: Vec<String> = fs::read_dir(&pages)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    let page = fs::read_to_string(pages.join("memwarden-guard-run.1")).unwrap();
    assert!(
        page.contains(".SH EXAMPLES\n.nf\nmemwarden guard run"),
        "{page}"
    );
}

#[test]
fn pages_that_cannot_be_written_are_said() {
    let output = Command::new(env!("CARGO_BIN_EXE_memwarden"))
        .args(["manual", "/dev/null/man1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.starts_with("memwarden: cannot write the manual pages to /dev/null/man1: "),
        "{said}"
    );
}

/// Bash's completions for these words, the last of which is incomplete.
fn completed(script: &str, words: &[&str]) -> Vec<String> {
    let asked = format!(
        "{script}\nCOMP_WORDS=({}) COMP_CWORD={}\n_memwarden memwarden '{}' '{}'\necho \"${{COMPREPLY[@]}}\"",
        words.join(" "),
        words.len() - 1,
        words[words.len() - 1],
        words[words.len() - 2],
    );
    let output = Command::new("bash").args(["-c", &asked]).output().unwrap();
    let answer = String::from_utf8(output.stdout).unwrap();
    answer.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_completes_verbs_options_and_their_values() {
    let script = memwarden(&["completions", "bash"]);
    assert_eq!(completed(&script, &["memwarden", "gu"]), ["guard"]);
    assert_eq!(completed(&script, &["memwarden", "guard", "sh"]), ["show"]);
    assert_eq!(
        completed(&script, &["memwarden", "guard", "start", "--require"]),
        ["--require-memory-event"]
    );
    assert_eq!(
        completed(&script, &["memwarden", "guard", "start", "--backend", "m"]),
        ["module"]
    );
}

#[test]
fn no_shell_is_offered_a_hidden_verb() {
    for shell in ["bash", "zsh", "fish"] {
        let script = memwarden(&["completions", shell]);
        assert!(script.contains("calibrate"), "{shell}");
        assert!(!script.contains("user-regulator"), "{shell}");
    }
}
