// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machines that come with the program, and what is said of a file with errors.

use super::*;

const PI: &str = include_str!("../machines/raspberry-pi-3.toml");
const I5: &str = include_str!("../machines/i5-2467m.toml");

/// A half of a machine's file, by its name or text.
fn read(path: &str, text: &str, half: Half) -> Result<(), Error> {
    File::read(Path::new(path), text, half)?.finish()
}

/// What is said of a changed file.
fn said(text: &str, half: Half) -> Vec<String> {
    let error = read("mine.toml", text, half).unwrap_err();
    error.to_string().lines().map(str::to_owned).collect()
}

fn line_of(text: &str, word: &str) -> usize {
    text[..text.find(word).unwrap()].matches('\n').count() + 1
}

#[test]
fn every_machine_has_a_half_and_is_refused_for_the_other() {
    let [counters, times] = [Half::Counters, Half::Times].map(names);
    assert_eq!(counters, ["i5-2467m", "raspberry-pi-3", "xeon-w3530"]);
    assert_eq!(
        times,
        [
            "raspberry-pi-3",
            "raspberry-pi-4",
            "xeon-6426y",
            "xeon-w3530"
        ]
    );
    for (name, text) in BUILT_IN {
        let halves = [(Half::Counters, &counters), (Half::Times, &times)];
        assert!(halves.iter().any(|(_, names)| names.contains(&name)));
        for (half, names) in halves {
            match read(name, text, half) {
                Ok(()) => assert!(names.contains(&name), "{name}"),
                Err(Error::Without { .. }) => assert!(!names.contains(&name), "{name}"),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_missing_half_is_one_line_with_the_machines_that_have_it() {
    assert_eq!(
        said(I5, Half::Times),
        [
            "mine.toml: the file has no [memory] and no times, which a simulation needs; these platforms have them: \
             raspberry-pi-3, raspberry-pi-4, xeon-6426y, xeon-w3530"
        ]
    );
    let pi_4 = include_str!("../machines/raspberry-pi-4.toml");
    assert_eq!(
        said(pi_4, Half::Counters),
        [
            "mine.toml: the file has no [counters], which the modelled counters need; these platforms have one: i5-2467m, \
             raspberry-pi-3, xeon-w3530"
        ]
    );
}

#[test]
fn a_name_is_looked_up_and_a_path_is_read() {
    let (path, text) = find("i5-2467m", Half::Times).unwrap();
    assert_eq!((path, text.as_ref()), (PathBuf::from("i5-2467m"), I5));
    assert_eq!(
        find("vax", Half::Counters).unwrap_err().to_string(),
        "there is no platform \"vax\"; there are i5-2467m, raspberry-pi-3, xeon-w3530, or give a file"
    );
    for file in ["./vax", "vax.toml"] {
        let error = find(file, Half::Times).unwrap_err();
        assert!(matches!(error, Error::Read { .. }), "{error}");
    }
}

/// A half that is there is checked, whichever is requested.
#[test]
fn the_errors_of_both_halves_are_listed_by_line() {
    let text = PI
        .replace("ways = 10", "ways = 0")
        .replace("read_depth = 32", "read_depth = 0")
        .replace("streams = 2", "streams = 0");
    let expected = [
        (
            "streams = 2",
            "machine.core.prefetcher.streams: has to be a whole number from 1 to 64",
        ),
        (
            "ways = 10",
            "counters.dtlb.ways: has to be a whole number from 1 to 65536",
        ),
        (
            "read_depth = 32",
            "controller.read_depth: has to be a whole number from 1 to 1024",
        ),
    ];
    let expected =
        expected.map(|(word, why)| format!("mine.toml line {}, {why}", line_of(PI, word)));
    for half in [Half::Counters, Half::Times] {
        assert_eq!(said(&text, half), expected);
    }
    assert_eq!(
        said("name = 1\n[", Half::Times)[0].split(", ").next(),
        Some("mine.toml line 2")
    );
}

#[test]
fn fields_that_do_not_go_together_are_listed_by_line() {
    let text = PI
        .replace("size_bytes = 524288", "size_bytes = 524289")
        .replace("tlb_entries = 512", "tlb_entries = 511");
    let expected = [
        (
            "tlb_entries = 512",
            "machine.core.tlb_entries: has to be a multiple of the 4 ways",
        ),
        (
            "size_bytes = 524288",
            "machine.shared.cache.size_bytes: has to be a multiple of 16 ways of 64 bytes",
        ),
    ];
    let expected =
        expected.map(|(word, why)| format!("mine.toml line {}, {why}", line_of(PI, word)));
    assert_eq!(said(&text, Half::Times), expected);
}

#[test]
fn a_missing_field_is_named_at_the_table_around_it() {
    let text = I5.replace("[machine.core.l1d]\nsize_bytes = 32768\nways = 8\n", "");
    let line = line_of(&text, "tlb_entries = ");
    let found = said(&text, Half::Counters);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].starts_with(&format!(
            "mine.toml line {line}, machine.core.l1d.size_bytes: is missing: "
        )),
        "{found:?}"
    );
    // Of a file without both halves, the fields of the requested one are missing.
    let head = &I5[..I5.find("[counters]").unwrap()];
    let found = said(head, Half::Counters);
    assert!(
        found.iter().all(|line| line.contains("counters.dtlb.")),
        "{found:?}"
    );
    let found = said(head, Half::Times);
    assert!(found[0].contains("memory.name: is missing"), "{found:?}");
}

#[test]
fn a_pipe_or_a_device_is_no_machine_as_its_file_is_read_again() {
    let Error::Read { path, source } = find("/dev/null", Half::Counters).unwrap_err() else {
        panic!("another error");
    };
    assert_eq!(path, Path::new("/dev/null"));
    assert!(source.to_string().starts_with("not a regular file"));
}
