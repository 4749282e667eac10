// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes and times as typed on the command line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Error as _, IntoDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, Result};

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
        #[allow(clippy::cast_precision_loss)]
        let value = bytes as f64 / unit as f64;
        format!("{value:.1} {name}")
    }
}

/// A time from `5` or `0.5` (seconds), `100us`, `100ms`, `2s`, `1m`.
pub fn parse_duration(text: &str) -> Result<Duration> {
    duration(
        text,
        Some(SECOND),
        "a time is seconds, or has a unit: 5, 0.5, 100ms, 50us",
    )
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
    /// No time.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// A time of that many milliseconds.
    #[must_use]
    pub const fn ms(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
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

/// In a form that can be parsed, in the largest unit that gives at least 1: `500us`, `20ms`, `2.5s`.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.0.as_nanos();
        let (unit, name) = match nanoseconds {
            0 => (1, "s"),
            1..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "us"),
            1_000_000..1_000_000_000 => (1_000_000, "ms"),
            _ => (1_000_000_000, "s"),
        };
        write!(f, "{}", nanoseconds / unit)?;
        let rest = nanoseconds % unit;
        if rest != 0 {
            let width = unit.ilog10() as usize;
            let digits = format!("{rest:0width$}");
            write!(f, ".{}", digits.trim_end_matches('0'))?;
        }
        f.write_str(name)
    }
}

/// Both are text in files.
macro_rules! as_text {
    ($type:ty, $what:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(
                &self,
                serializer: S,
            ) -> std::result::Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(
                deserializer: D,
            ) -> std::result::Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(|error| {
                    D::Error::custom(format!(concat!($what, " `{}`: {}"), text, error))
                })
            }
        }
    };
}
as_text!(Size, "size");
as_text!(Time, "time");

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
            (
                "9999999999999999999999999999999999999999",
                "too many digits",
            ),
            ("0.0000000001", "a fraction of a nanosecond"),
            (".", "not a number"),
            ("1,5", "not a number"),
            ("1 s", "not a number"),
        ] {
            let message = parse_duration(text).unwrap_err().to_string();
            assert!(message.contains(why), "{text}: {message}");
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
            let _ = parse_duration(&text);
            let _ = text.parse::<Time>();
        }
    }
}
