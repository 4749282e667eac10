// SPDX-License-Identifier: MIT OR Apache-2.0
//! Colours on a terminal only, and not under NO_COLOR.

use std::process::Command;

const ESCAPE: char = '\u{1b}';

/// What a terminal shows of a command line; `script` (bsdutils) has a terminal for it.
fn on_a_terminal(line: &str, no_color: bool) -> String {
    let program = env!("CARGO_BIN_EXE_memwarden");
    let mut script = Command::new("script");
    script
        .args(["-qec", &format!("'{program}' {line}"), "/dev/null"])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR");
    if no_color {
        script.env("NO_COLOR", "1");
    }
    let output = script.output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn in_a_pipe(line: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memwarden"));
    let output = command
        .args(line.split(' '))
        .env("TERM", "xterm")
        .env("CLICOLOR_FORCE", "1")
        .env_remove("NO_COLOR")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8(text).unwrap()
}

#[test]
fn errors_and_verdicts_have_colours_on_a_terminal_only() {
    let error = "mmap --outer 0";
    for (line, word) in [(error, "memwarden:"), ("doctor", "The guard can")] {
        let coloured = on_a_terminal(line, false);
        let before = coloured.split(word).next().unwrap();
        assert!(
            before.ends_with('m') && before.contains(ESCAPE),
            "{coloured:?}"
        );
        for plain in [on_a_terminal(line, true), in_a_pipe(line)] {
            assert!(plain.contains(word), "{plain:?}");
            assert!(!plain.contains(ESCAPE), "{plain:?}");
        }
    }
}
