// SPDX-License-Identifier: MIT OR Apache-2.0

use proptest::prelude::*;

use super::*;
use crate::dram::Memory;

fn reader(bytes: &[u8]) -> Result<Reader, TraceError> {
    Reader::new(Box::new(Cursor::new(bytes.to_vec())), Path::new("my.trace"))
}

fn read(bytes: &[u8]) -> Result<Vec<Request>, String> {
    let all = reader(bytes).and_then(Iterator::collect);
    all.map_err(|error: TraceError| error.to_string())
}

fn written(requests: &[Request], format: Format) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), format).unwrap();
    for request in requests {
        writer.write(request).unwrap();
    }
    writer.finish().unwrap()
}

fn request(address: u64, write: bool, at_ps: Option<u64>) -> Request {
    Request {
        address,
        write,
        at_ps,
    }
}

#[test]
fn a_text_has_a_request_a_line() {
    let text = b"# of a board\n\nR 0x1f40 0\r\n \tW 8000 12.5 # late\nR 0XFF 12.501\nW 0 13";
    assert_eq!(
        read(text).unwrap(),
        [
            request(0x1f40, false, Some(0)),
            request(8000, true, Some(12_500)),
            request(255, false, Some(12_501)),
            request(0, true, Some(13_000)),
        ]
    );
    assert_eq!(read(b"").unwrap(), []);
    assert_eq!(read(b"R 1").unwrap(), [request(1, false, None)]);
}

#[test]
fn a_bad_line_is_told_with_its_number_and_what_is_allowed() {
    for (line, expected) in [
        ("r 1", "\"r\" is not a kind: has to be R or W"),
        ("READ 1", "\"READ\" is not a kind: has to be R or W"),
        (
            "R",
            "1 column: has to be R or W, an address, and optionally a time",
        ),
        (
            "R 1 2 3",
            "\"3\" is one column too many: has to be R or W, an address, and optionally a time",
        ),
        (
            "R 0x",
            "\"0x\" is not an address: has to be a byte address, decimal or with 0x, from 0 to 0xffffffffffffffff",
        ),
        ("R ff", "\"ff\" is not an address"),
        ("R -1", "\"-1\" is not an address"),
        ("R +1", "\"+1\" is not an address"),
        ("R 18446744073709551616", "is not an address"),
        ("R 0x10000000000000000", "is not an address"),
        (
            "R 1 1.2345",
            "\"1.2345\" is not a time: has to be in ns, from 0 to 1000000000000000, with at most three decimals",
        ),
        ("R 1 -5", "\"-5\" is not a time"),
        ("R 1 1.", "\"1.\" is not a time"),
        ("R 1 .5", "\".5\" is not a time"),
        ("R 1 1e3", "\"1e3\" is not a time"),
        ("R 1 1000000000000000.001", "is not a time"),
        ("R 1 18446744073709551615", "is not a time"),
        ("\u{1b}[31m 1", "\"\\x1b[31m\" is not a kind"),
        (
            "R 1 1.9",
            "the time 1.9 ns goes back: has to be at least 2 ns, the previous request's time",
        ),
        (
            "R 1",
            "has no time, and those before have: all have to, or none",
        ),
    ] {
        let text = format!("# two lines before\nW 1 2\n{line}\nR 7 7\n");
        let told = read(text.as_bytes()).unwrap_err();
        let why = told.strip_prefix("my.trace line 3: ");
        assert!(
            why.is_some_and(|why| why.contains(expected)),
            "{line}: {told}"
        );
    }
    let told = read(b"R 1\nR 2 2").unwrap_err();
    assert!(told.starts_with("my.trace line 2: has a time"), "{told}");
}

#[test]
fn a_line_without_end_is_not_kept() {
    let mut text = b"R 1\nR ".to_vec();
    text.resize(1 << 20, b'1');
    let told = read(&text).unwrap_err();
    assert_eq!(
        told,
        "my.trace line 2: is longer than 4096 bytes, the most that a line has"
    );
}

#[test]
fn the_first_fault_ends_a_trace() {
    let mut reader = reader(b"R 1\nX 2\nR 3\n").unwrap();
    assert!(reader.next().unwrap().is_ok());
    assert!(reader.next().unwrap().is_err());
    assert!(reader.next().is_none());
}

#[test]
fn an_address_beyond_the_memory_is_told_with_its_range() {
    let requests = [request(0xfff, false, None), request(0x1000, true, None)];
    for (format, place) in [(Format::Text, "line 3"), (Format::Binary, "byte 36")] {
        let reader = reader(&written(&requests, format)).unwrap();
        let outcome: Vec<_> = reader.within(0x1000).collect();
        assert!(outcome[0].is_ok());
        assert_eq!(
            outcome[1].as_ref().unwrap_err().to_string(),
            format!(
                "my.trace {place}: address 0x1000 is beyond the memory: has to be from 0 to 0xfff"
            )
        );
    }
}

#[test]
fn a_bad_record_is_told_with_its_byte() {
    let timed = [request(64, true, Some(7)), request(128, false, Some(9))];
    let whole = written(&timed, Format::Binary);
    assert_eq!(whole.len(), 16 + 2 * 20);
    for (at, byte, expected) in [
        (8, 2, "byte 8: version 2: has to be 1"),
        (12, 1, "byte 12: 0x1: has to be 0"),
        (
            24,
            4,
            "byte 16: flags 0x4: has to be the sum of 1 for a write and 2 with a time, or 0",
        ),
        (
            24,
            1,
            "byte 16: the time is 7 ps: without the flag 2 it has to be from 0 to 0",
        ),
        (
            35,
            0xff,
            "byte 16: the time is 18374686479671623687 ps: with the flag 2 it has to be from 0 to 1000000000000000000",
        ),
        (
            48,
            6,
            "byte 36: the time 0.006 ns goes back: has to be at least 0.007 ns, the previous request's time",
        ),
    ] {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        assert_eq!(read(&bytes).unwrap_err(), format!("my.trace {expected}"));
    }
    for (length, expected) in [
        (9, "byte 9: the header ends after 9 of 16"),
        (15, "byte 15: the header ends after 15 of 16"),
        (17, "byte 16: the last record has 1 of its 20 bytes"),
        (55, "byte 36: the last record has 19 of its 20 bytes"),
    ] {
        assert_eq!(
            read(&whole[..length]).unwrap_err(),
            format!("my.trace {expected}")
        );
    }
    // With less than its magic it is a text, and an invalid one.
    assert!(read(&whole[..7]).unwrap_err().contains("is not a kind"));
    assert_eq!(read(&whole[..16]).unwrap(), []);
}

#[test]
fn a_missing_file_is_named() {
    let error = Reader::open(Path::new("/nonexistent.trace")).err().unwrap();
    assert!(error.to_string().contains("/nonexistent.trace"));
}

#[test]
fn every_fifth_is_a_write_at_a_share_of_a_fifth() {
    let memory = Memory::named("ddr4-2400").unwrap();
    let stream = Patterned::new(Pattern::Stream, &memory, 0.2, 1);
    for (index, request) in stream.take(1000).enumerate() {
        assert_eq!(request.write, index % 5 == 4, "{index}");
        assert_eq!(request.address, 64 * index as u64);
    }
    for (share, writes) in [(0.0, 0), (0.37, 3700), (1.0, 10_000)] {
        let random = Patterned::new(Pattern::Random, &memory, share, 1);
        let found = random.take(10_000).filter(|request| request.write).count();
        assert!(found.abs_diff(writes) <= 1, "{share}: {found}");
    }
}

#[test]
fn a_stream_goes_round_and_random_lines_depend_on_the_seed() {
    let mut memory = Memory::named("ddr4-2400").unwrap();
    memory.organisation.rows = 2;
    let capacity_bytes = memory.organisation.capacity_bytes();
    let lines = (capacity_bytes / 64) as usize;
    let mut stream = Patterned::new(Pattern::Stream, &memory, 0.0, 1);
    assert_eq!(stream.nth(lines).unwrap().address, 0);
    let random = |seed| -> Vec<Request> {
        let random = Patterned::new(Pattern::Random, &memory, 0.0, seed);
        random.take(100).collect()
    };
    assert_eq!(random(1), random(1));
    assert_ne!(random(1), random(2));
    assert!(
        random(1)
            .iter()
            .all(|request| request.address < capacity_bytes)
    );
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let one = (any::<u64>(), any::<bool>(), 0..=MAX_PS);
    (proptest::collection::vec(one, 0..50), any::<bool>()).prop_map(|(all, timed)| {
        let mut times: Vec<u64> = all.iter().map(|one| one.2).collect();
        times.sort_unstable();
        let requests = all.iter().zip(times);
        requests
            .map(|((address, write, _), at_ps)| request(*address, *write, timed.then_some(at_ps)))
            .collect()
    })
}

proptest! {
    #[test]
    fn a_trace_is_the_same_as_text_and_as_binary(requests in requests()) {
        let text = read(&written(&requests, Format::Text)).unwrap();
        prop_assert_eq!(&text, &requests);
        let binary = read(&written(&text, Format::Binary)).unwrap();
        prop_assert_eq!(&binary, &requests);
        prop_assert_eq!(
            written(&binary, Format::Text),
            written(&requests, Format::Text)
        );
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>, binary: bool) {
        let begin: &[u8] = if binary { b"\x89MWT\r\n\x1a\n\x01\0\0\0\0\0\0\0" } else { b"" };
        let _ = read(&[begin, &bytes].concat());
    }
}
