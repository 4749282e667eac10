// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes, rates, counts and times as typed on the command line.
//!
//! [`RULE`] is the rule; every option that takes one of these is parsed here.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::IntoDeserializer;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, Result};

/// The rule, for the program's help.
pub const RULE: &str = "Numbers on the command line can have a unit:
  sizes   K, M, G (2^10, 2^20, 2^30 bytes); a bare number is KiB, or bytes where the help says so
  rates   MB/s are 2^20 bytes a second; K, M, G as for sizes: 512M is 512, 1G is 1024
  counts  K, M, G (10^3, 10^6, 10^9)
  times   ns, us, ms, s, m, h, such as 500us or 2.5s; a bare number is seconds for the length of a run or an interval";

/// A size in bytes from `16384` (KiB, the traditional unit of these tools),
/// `64K`, `64M` or `1G` (powers of two, optionally followed by `iB` or `B`).
pub fn parse_size(text: &str) -> Result<usize> {
    parse(text, 10, "a size is KiB, or has a unit: 16384, 64M, 1G")
}

/// A size in bytes from `4096` (bytes), `64K`, `64M` or `1G`, like [`parse_size`].
pub fn parse_bytes(text: &str) -> Result<u64> {
    parse(text, 0, "a size is bytes, or has a unit: 4096, 64K, 2M").map(|bytes| bytes as u64)
}

/// Parses a size; a number without a unit is shifted by `plain`. `how` is the syntax hint of an error.
fn parse(text: &str, plain: u32, how: &str) -> Result<usize> {
    let invalid = |why: &str| Error::Invalid(format!("{why} ({how})"));
    let (digits, unit) = split(text);
    let shift = match unit {
        "" => plain,
        unit => binary(unit).ok_or_else(|| invalid("unknown unit"))?,
    };
    if digits.starts_with('-') {
        return Err(invalid("a size cannot be negative"));
    }
    let number = whole(digits).map_err(invalid)?;
    match number.checked_mul(1 << shift).map(isize::try_from) {
        Some(Ok(0)) => Err(invalid("a size cannot be 0")),
        // Pointer arithmetic is defined up to isize::MAX bytes.
        Some(Ok(bytes)) => Ok(bytes.unsigned_abs()),
        _ => Err(invalid("too large a size")),
    }
}

/// A number's digits and its unit.
fn split(text: &str) -> (&str, &str) {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    (digits, &text[digits.len()..])
}

/// The power of two of a size's unit.
fn binary(unit: &str) -> Option<u32> {
    match unit.to_ascii_lowercase().as_str() {
        "k" | "kb" | "kib" => Some(10),
        "m" | "mb" | "mib" => Some(20),
        "g" | "gb" | "gib" => Some(30),
        _ => None,
    }
}

/// Digits only: the standard parser would accept a plus sign.
fn whole(digits: &str) -> std::result::Result<u64, &'static str> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("not a number");
    }
    digits.parse().map_err(|_| "too large a number")
}

/// A rate in MB/s (2^20 bytes a second) from `1000` or `0.5` (MB/s), `512M` or `1G`; above 0.
pub fn parse_rate(text: &str) -> Result<f64> {
    let how = "a rate is MB/s, or has a unit: 1000, 0.5, 512M, 1G";
    let invalid = |why: &str| Error::Invalid(format!("{why} ({how})"));
    let (number, unit) = split(text);
    let plain = number
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value: f64 = match number.parse() {
        Ok(value) if plain => value,
        _ if number.starts_with('-') => return Err(invalid("a rate cannot be negative")),
        _ => return Err(invalid("not a number")),
    };
    let shift = match unit {
        "" => 20,
        unit => binary(unit).ok_or_else(|| invalid("unknown unit"))?,
    };
    let mib_s = value * f64::from(1 << shift) / f64::from(1 << 20);
    if mib_s == 0.0 {
        return Err(invalid("a rate cannot be 0"));
    }
    if !mib_s.is_finite() {
        return Err(invalid("too large a number"));
    }
    Ok(mib_s)
}

/// A rate in whole MB/s, like [`parse_rate`].
pub fn parse_whole_rate(text: &str) -> Result<u64> {
    let how = "a rate is whole MB/s, or has a unit: 1000, 512M, 1G";
    let invalid = |why: &str| Error::Invalid(format!("{why} ({how})"));
    let (digits, unit) = split(text);
    let number = whole(digits).map_err(invalid)?;
    let mib_s = match unit {
        "" => Some(number),
        unit => match binary(unit).ok_or_else(|| invalid("unknown unit"))? {
            10 if number % 1024 != 0 => return Err(invalid("not whole MB/s")),
            10 => Some(number >> 10),
            shift => number.checked_mul(1 << (shift - 20)),
        },
    };
    match mib_s.ok_or_else(|| invalid("too large a number"))? {
        0 => Err(invalid("a rate cannot be 0")),
        mib_s => Ok(mib_s),
    }
}

/// A count from `300`, `20K`, `1M` or `1G` (powers of ten).
pub fn parse_count(text: &str) -> Result<u64> {
    let how = "a count is a whole number, or has a unit: 300, 20K, 1M";
    let invalid = |why: &str| Error::Invalid(format!("{why} ({how})"));
    let (digits, unit) = split(text);
    let number = whole(digits).map_err(invalid)?;
    let scale = match unit {
        "" => 1,
        "k" | "K" => 1_000,
        "m" | "M" => 1_000_000,
        "g" | "G" => 1_000_000_000,
        _ => return Err(invalid("unknown unit")),
    };
    let count = number.checked_mul(scale);
    count.ok_or_else(|| invalid("too large a number"))
}

/// A size in readable form: `64 B`, `32 KiB`, `16 MiB`, `1.5 GiB`.
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
        let value = bytes as f64 / unit as f64;
        format!("{value:.1} {name}")
    }
}

/// A time from `5` or `0.5` (seconds), `100us`, `100ms`, `2s`, `1m`: for the length of a run and the like, of which a bare
/// number is seconds everywhere. A [`Time`] parsed from a text otherwise needs its unit.
pub fn parse_seconds(text: &str) -> Result<Time> {
    let how = "a time is seconds, or has a unit: 5, 0.5, 100ms, 50us";
    duration(text, Some(SECOND), how).map(Time)
}

/// A time from `30000` (nanoseconds), `30us` or `1ms`.
pub fn parse_nanoseconds(text: &str) -> Result<Time> {
    let how = "a time is nanoseconds, or has a unit: 30000, 30us, 1ms";
    duration(text, Some(1), how).map(Time)
}

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// A century: longer than any measurement, and its picoseconds fit into 128 bits.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86400);

/// Parses a time to the nanosecond; a number without a unit is multiplied by `plain`. `how` is the syntax hint of an
/// error.
fn duration(text: &str, plain: Option<u64>, how: &str) -> Result<Duration> {
    let invalid = |why: &str| Error::Invalid(format!("{why} ({how})"));
    let number = text.trim_end_matches(|c: char| c.is_alphabetic());
    let unit = match &text[number.len()..] {
        "" => plain.ok_or_else(|| invalid("no unit"))?,
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => SECOND,
        "m" | "min" => 60 * SECOND,
        "h" => 3600 * SECOND,
        _ => return Err(invalid("unknown unit")),
    };
    if number.starts_with('-') {
        return Err(invalid("a time cannot be negative"));
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() && fraction.is_empty() || !digits(whole) || !digits(fraction) {
        return Err(invalid("not a number"));
    }
    // The digits without the point, and the number of them behind it.
    let fraction = fraction.trim_end_matches('0');
    let behind = u32::try_from(fraction.len()).unwrap_or(u32::MAX);
    let all: u128 = format!("{whole}{fraction}")
        .parse()
        .map_err(|_| invalid("too many digits"))?;
    let scale = 10_u128
        .checked_pow(behind)
        .ok_or_else(|| invalid("too many digits"))?;
    let nanoseconds = all
        .checked_mul(unit.into())
        .ok_or_else(|| invalid("too long a time"))?;
    if nanoseconds % scale != 0 {
        return Err(invalid("a fraction of a nanosecond"));
    }
    let time = u64::try_from(nanoseconds / scale).map(Duration::from_nanos);
    time.ok()
        .filter(|time| *time <= LONGEST)
        .ok_or_else(|| invalid("too long a time"))
}

/// A buffer's size; in options and files `16384` (KiB), `64K`, `64M` or `1G`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(u64);

impl Size {
    /// A size of that many KiB.
    #[must_use]
    pub const fn kib(kib: u64) -> Self {
        Self(kib << 10)
    }

    /// The size, rounded down to whole KiB.
    #[must_use]
    pub const fn of_bytes(bytes: u64) -> Self {
        Self::kib(bytes >> 10)
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_size(text).map(|bytes| Self(bytes as u64))
    }
}

/// In a form that can be parsed: `8100K`, `16M`, `1G`.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 >> 10 {
            kib if kib % (1 << 20) == 0 => write!(f, "{}G", kib >> 20),
            kib if kib % (1 << 10) == 0 => write!(f, "{}M", kib >> 10),
            kib => write!(f, "{kib}K"),
        }
    }
}

/// A time with its unit; in options and files `500us`, `20ms` or `2.5s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(Duration);

impl Time {
    /// The longest time that can be given.
    pub const LONGEST: Self = Self(LONGEST);

    /// No time.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// A time of that many milliseconds.
    #[must_use]
    pub const fn ms(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }

    /// A time of that many microseconds.
    #[must_use]
    pub const fn us(us: u64) -> Self {
        Self(Duration::from_micros(us))
    }

    /// A time of that many nanoseconds.
    #[must_use]
    pub const fn ns(ns: u64) -> Self {
        Self(Duration::from_nanos(ns))
    }

    /// The time.
    #[must_use]
    pub const fn duration(self) -> Duration {
        self.0
    }

    /// The time in nanoseconds, which fit into 64 bits.
    #[must_use]
    pub const fn as_ns(self) -> u64 {
        self.0.as_secs() * SECOND + self.0.subsec_nanos() as u64
    }

    /// The time in whole microseconds.
    #[must_use]
    pub const fn as_us(self) -> u64 {
        self.as_ns() / 1000
    }

    /// True if the time is zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0.is_zero()
    }
}

impl FromStr for Time {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let how = "a time is a number and a unit, such as 500us, 20ms or 2.5s";
        duration(text, None, how).map(Self)
    }
}

impl Time {
    /// The number and the unit, in the largest unit that gives at least 1.
    fn parts(self) -> (String, &'static str) {
        let nanoseconds = self.0.as_nanos();
        let (unit, name) = match nanoseconds {
            0 => (1, "s"),
            1..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "us"),
            1_000_000..1_000_000_000 => (1_000_000, "ms"),
            _ => (1_000_000_000, "s"),
        };
        let (whole, rest) = (nanoseconds / unit, nanoseconds % unit);
        let width = unit.ilog10() as usize;
        let number = match rest {
            0 => whole.to_string(),
            rest => format!("{whole}.{rest:0width$}")
                .trim_end_matches('0')
                .to_owned(),
        };
        (number, name)
    }

    /// The time for people: `500 us`, `20 ms`, `2.5 s`.
    #[must_use]
    pub fn text(self) -> String {
        let (number, unit) = self.parts();
        format!("{number} {unit}")
    }
}

/// In a form that can be parsed, in the largest unit that gives at least 1: `500us`, `20ms`, `2.5s`.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = self.parts();
        write!(f, "{number}{unit}")
    }
}

crate::as_text!(Size, |text, error| format!("size `{text}`: {error}"));
crate::as_text!(Time, |text, error| format!("time `{text}`: {error}"));

/// For serde's `with`: an optional size, which is an empty text in files.
pub mod or_empty {
    use super::*;

    /// Serialises the size.
    pub fn serialize<S: Serializer>(
        size: &Option<Size>,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        match size {
            Some(size) => size.serialize(serializer),
            None => serializer.serialize_str(""),
        }
    }

    /// Deserialises the size.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<Option<Size>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(None);
        }
        Size::deserialize(text.into_deserializer()).map(Some)
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
                u128::from(parse_seconds(text).unwrap().as_ns()),
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
            (
                "9999999999999999999999999999999999999999",
                "too many digits",
            ),
            ("0.0000000001", "a fraction of a nanosecond"),
            (".", "not a number"),
            ("1,5", "not a number"),
            ("1 s", "not a number"),
        ] {
            let message = parse_seconds(text).unwrap_err().to_string();
            assert!(message.contains(why), "{text}: {message}");
        }
    }

    #[test]
    fn rates_are_mb_s_of_2_20_bytes_unless_they_say() {
        for (text, mib_s) in [
            ("1000", 1000.0),
            ("0.5", 0.5),
            ("512M", 512.0),
            ("1G", 1024.0),
            ("1.5g", 1536.0),
            ("512K", 0.5),
        ] {
            assert!((parse_rate(text).unwrap() - mib_s).abs() < 1e-9, "{text}");
        }
        for (text, mib_s) in [("1000", 1000), ("512M", 512), ("1G", 1024), ("2048K", 2)] {
            assert_eq!(parse_whole_rate(text).unwrap(), mib_s, "{text}");
        }
        for (text, why) in [
            ("0", "cannot be 0"),
            ("-1", "negative"),
            ("", "not a number"),
            ("inf", "not a number"),
            ("1e3", "not a number"),
            ("10T", "unknown unit"),
        ] {
            let message = parse_rate(text).unwrap_err().to_string();
            assert!(message.contains(why), "{text}: {message}");
        }
        for (text, why) in [
            ("0", "cannot be 0"),
            ("0M", "cannot be 0"),
            ("-1", "not a number"),
            ("+1", "not a number"),
            ("1.5G", "not a number"),
            ("500K", "not whole MB/s"),
            ("99999999999999999999", "too large"),
            ("99999999999999999G", "too large"),
        ] {
            let message = parse_whole_rate(text).unwrap_err().to_string();
            assert!(message.contains(why), "{text}: {message}");
        }
    }

    #[test]
    fn counts_are_decimal() {
        for (text, count) in [("0", 0), ("300", 300), ("20K", 20_000), ("1m", 1_000_000)] {
            assert_eq!(parse_count(text).unwrap(), count, "{text}");
        }
        for (text, why) in [
            ("", "not a number"),
            ("-1", "not a number"),
            ("1Mi", "unknown unit"),
            ("1e3", "not a number"),
            ("99999999999999999G", "too large"),
        ] {
            let message = parse_count(text).unwrap_err().to_string();
            assert!(message.contains(why), "{text}: {message}");
        }
    }

    #[test]
    fn a_bare_quantum_is_nanoseconds() {
        for (text, ns) in [("30000", 30_000), ("30us", 30_000), ("0", 0)] {
            assert_eq!(parse_nanoseconds(text).unwrap().as_ns(), ns, "{text}");
        }
        assert!(parse_nanoseconds("1.5").is_err());
    }

    #[test]
    fn times_for_people() {
        for (us, text) in [
            (20_000, "20 ms"),
            (500, "500 us"),
            (2_500_000, "2.5 s"),
            (0, "0 s"),
        ] {
            assert_eq!(Time::us(us).text(), text);
        }
    }

    #[test]
    fn times_of_settings_have_a_unit() {
        for (text, nanoseconds, said) in [
            ("100us", 100_000, "100us"),
            ("0.5ms", 500_000, "500us"),
            (".5s", 500_000_000, "500ms"),
            ("2.5s", 2_500_000_000, "2.5s"),
            ("1500us", 1_500_000, "1.5ms"),
            ("1.000000001s", 1_000_000_001, "1.000000001s"),
            ("90m", 5_400_000_000_000, "5400s"),
            ("4h", 14_400_000_000_000, "14400s"),
            ("0ms", 0, "0s"),
        ] {
            let time: Time = text.parse().unwrap();
            assert_eq!(time.duration().as_nanos(), nanoseconds, "{text}");
            assert_eq!(time.to_string(), said, "{text}");
        }
        let message = "5".parse::<Time>().unwrap_err().to_string();
        assert!(
            message.starts_with("no unit (a time is a number and a unit"),
            "{message}"
        );
    }

    #[test]
    fn sizes_and_times_are_text_in_files() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Settings {
            frame: Size,
            period: Time,
            #[serde(with = "or_empty")]
            memory: Option<Size>,
        }
        for text in [
            r#"{"frame":"8100K","period":"20ms","memory":""}"#,
            r#"{"frame":"1G","period":"2.5s","memory":"16M"}"#,
        ] {
            let settings: Settings = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&settings).unwrap(), text);
        }
        for (text, why) in [
            (
                r#"{"frame":"","period":"1s","memory":""}"#,
                "size ``: not a number",
            ),
            (
                r#"{"frame":"1M","period":"20","memory":""}"#,
                "time `20`: no unit",
            ),
            (
                r#"{"frame":"1M","period":"1s","memory":"1Q"}"#,
                "size `1Q`: unknown unit",
            ),
        ] {
            let message = serde_json::from_str::<Settings>(text)
                .unwrap_err()
                .to_string();
            assert!(message.contains(why), "{message}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_said_is_parsed_as_the_same(kib in 1_u64..1 << 40, nanoseconds in 0..LONGEST.as_nanos() as u64) {
            let size = Size::kib(kib);
            proptest::prop_assert_eq!(size.to_string().parse::<Size>().unwrap(), size);
            let time = Time(Duration::from_nanos(nanoseconds));
            proptest::prop_assert_eq!(time.to_string().parse::<Time>().unwrap(), time);
        }

        #[test]
        fn any_text_is_a_size_or_an_error(text in ".*") {
            let _ = parse_size(&text);
            let _ = parse_bytes(&text);
            let _ = parse_seconds(&text);
            let _ = parse_rate(&text);
            let _ = parse_whole_rate(&text);
            let _ = parse_count(&text);
            let _ = text.parse::<Time>();
        }
    }
}
