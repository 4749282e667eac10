// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes and times as people type them.

use std::time::Duration;

use crate::{Error, Result};

/// A size in bytes from `16384` (KiB, as the tools of this name always took it),
/// `64K`, `64M` or `1G` (powers of two, an optional `iB` or `B` behind).
pub fn parse_size(text: &str) -> Result<usize> {
    parse(text, 10, "a size is KiB, or has a unit: 16384, 64M, 1G")
}

/// A size in bytes from `4096` (bytes), `64K`, `64M` or `1G`, as [`parse_size`] has them.
pub fn parse_bytes(text: &str) -> Result<u64> {
    parse(text, 0, "a size is bytes, or has a unit: 4096, 64K, 2M").map(|bytes| bytes as u64)
}

/// Parses a size; a number without a unit is shifted by `plain`. `how` is the error's hint of the syntax.
fn parse(text: &str, plain: u32, how: &str) -> Result<usize> {
    let invalid = |why: &str| Error::Invalid(format!("{why} ({how})"));
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => plain,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err(invalid("unknown unit")),
    };
    if digits.starts_with('-') {
        return Err(invalid("a size cannot be negative"));
    }
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid("not a number"));
    }
    let number: usize = digits.parse().map_err(|_| invalid("too large a number"))?;
    match number.checked_mul(1 << shift) {
        Some(0) => Err(invalid("a size cannot be 0")),
        // Pointer arithmetic is defined up to isize::MAX bytes.
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(bytes),
        _ => Err(invalid("too large a size")),
    }
}

/// A size for people: `64 B`, `32 KiB`, `16 MiB`, `1.5 GiB`.
#[must_use]
pub fn size_text(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..1024 => return format!("{bytes} B"),
        1024..1_048_576 => (1_u64 << 10, "KiB"),
        1_048_576..1_073_741_824 => (1 << 20, "MiB"),
        _ => (1 << 30, "GiB"),
    };
    if bytes % unit == 0 {
        format!("{} {name}", bytes / unit)
    } else {
        #[allow(clippy::cast_precision_loss)]
        let value = bytes as f64 / unit as f64;
        format!("{value:.1} {name}")
    }
}

/// A time span from `5` or `0.5` (seconds), `100us`, `100ms`, `2s`, `1m`.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let invalid = |why: &str| {
        Error::Invalid(format!(
            "{why} (a time is seconds, or has a unit: 5, 0.5, 100ms, 50us)"
        ))
    };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "ns" => 1e-9,
        "m" | "min" => 60.0,
        _ => return Err(invalid("unknown unit")),
    };
    if digits.starts_with('-') {
        return Err(invalid("a time cannot be negative"));
    }
    if !digits
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        return Err(invalid("not a number"));
    }
    let number: f64 = digits.parse().map_err(|_| invalid("not a number"))?;
    // A century is longer than any measurement, and its nanoseconds fit 64 bits by far.
    match Duration::try_from_secs_f64(number * unit) {
        Ok(time) if time <= Duration::from_secs(100 * 365 * 86400) => Ok(time),
        _ => Err(invalid("too long a time")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_kib_unless_they_say() {
        for (text, bytes) in [
            ("16384", 16 << 20),
            ("1", 1024),
            ("64K", 64 << 10),
            ("64M", 64 << 20),
            ("64m", 64 << 20),
            ("2MiB", 2 << 20),
            ("1G", 1 << 30),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn bytes_are_bytes_unless_they_say() {
        for (text, bytes) in [("1", 1), ("4096", 4096), ("64K", 64 << 10), ("1G", 1 << 30)] {
            assert_eq!(parse_bytes(text).unwrap(), bytes, "{text}");
        }
        let message = parse_bytes("4x").unwrap_err().to_string();
        assert!(
            message.contains("unknown unit (a size is bytes"),
            "{message}"
        );
    }

    #[test]
    fn bad_sizes_say_why() {
        for (text, why) in [
            ("0", "cannot be 0"),
            ("0G", "cannot be 0"),
            ("-1", "negative"),
            ("", "not a number"),
            ("M", "not a number"),
            ("1.5G", "not a number"),
            ("12x", "unknown unit"),
            ("0x10", "not a number"),
            ("١٢", "not a number"),
            ("99999999999999999999", "too large a number"),
            ("9007199254740992G", "too large a size"),
            ("9007199254740992", "too large a size"),
        ] {
            let message = parse_size(text).unwrap_err().to_string();
            assert!(message.contains(why), "{text}: {message}");
        }
    }

    #[test]
    fn sizes_for_people() {
        for (bytes, text) in [
            (64, "64 B"),
            (32 << 10, "32 KiB"),
            (16 << 20, "16 MiB"),
            (3 << 29, "1.5 GiB"),
            (1 << 40, "1024 GiB"),
        ] {
            assert_eq!(size_text(bytes), text);
        }
    }

    #[test]
    fn times_are_seconds_unless_they_say() {
        for (text, nanoseconds) in [
            ("5", 5_000_000_000),
            ("0.5", 500_000_000),
            ("100ms", 100_000_000),
            ("50us", 50_000),
            ("0", 0),
        ] {
            assert_eq!(
                parse_duration(text).unwrap().as_nanos(),
                nanoseconds,
                "{text}"
            );
        }
        for (text, why) in [
            ("-1", "negative"),
            ("", "not a number"),
            ("soon", "unknown unit"),
            ("1.2.3", "not a number"),
            ("99999999999999", "too long"),
        ] {
            let message = parse_duration(text).unwrap_err().to_string();
            assert!(message.contains(why), "{text}: {message}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_size_or_an_error(text in ".*") {
            let _ = parse_size(&text);
            let _ = parse_bytes(&text);
            let _ = parse_duration(&text);
        }
    }
}
