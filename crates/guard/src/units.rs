// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversion of budgets between MB/s and events a period, and the limits of the period.
//!
//! MB/s means MiB/s here, as in MemGuard: 1000 MB/s with a period of 1 ms and 64 bytes per event is 16384 events.

use memwarden_platform::mapping;
use memwarden_platform::units::Time;

use crate::Error;

/// Bytes in the MB of "MB/s".
pub const MIB: u64 = 1 << 20;

/// Bytes that one page-faults event stands for, as in the kernel module: the kernel zeroes a page. 4096 on most kernels,
/// 16 or 64 KiB on some of arm64.
#[must_use]
pub fn page_bytes() -> u64 {
    mapping::page_bytes() as u64
}

/// The shortest period in microseconds: below it, the work per period outweighs the regulated traffic.
pub const PERIOD_US_MIN: u64 = 50;

/// The longest period in microseconds: beyond it, users notice the stalls of a throttled core.
pub const PERIOD_US_MAX: u64 = 1_000_000;

/// Events a period that `mib_s` allows, rounded down as in the kernel module.
pub fn events_per_period(mib_s: u64, period_us: u64, bytes_per_event: u64) -> u64 {
    let bytes = u128::from(mib_s) * u128::from(MIB) * u128::from(period_us) / 1_000_000;
    u64::try_from(bytes / u128::from(bytes_per_event.max(1))).unwrap_or(u64::MAX)
}

/// Like [`events_per_period`], but at least 1: a core with a budget of 0 events would never run again.
///
/// # Errors
/// When the budget is less than one event; the message gives the smallest valid bandwidth.
pub fn some_events_per_period(
    mib_s_wanted: u64,
    period_us: u64,
    bytes_per_event: u64,
) -> Result<u64, Error> {
    let events = events_per_period(mib_s_wanted, period_us, bytes_per_event);
    if events > 0 {
        return Ok(events);
    }
    let least = mib_s(1.0, period_us, bytes_per_event).ceil() as u64;
    Err(Error::BadInput(format!(
        "{mib_s_wanted} MB/s is less than one event of {bytes_per_event} bytes in a period of {period_us} us: give \
         {least} or more, or a longer period"
    )))
}

/// The bandwidth of `events` events a period, in MiB/s.
pub fn mib_s(events: f64, period_us: u64, bytes_per_event: u64) -> f64 {
    if period_us == 0 {
        return 0.0;
    }
    events * bytes_per_event as f64 * 1e6 / (period_us as f64 * MIB as f64)
}

/// Whole microseconds of a period, within the regulator's limits.
///
/// # Errors
/// When it is not a whole number of microseconds within [`PERIOD_US_MIN`]..=[`PERIOD_US_MAX`].
pub fn period_us(period: Time) -> Result<u64, Error> {
    let period_us = period.as_us();
    if period.as_ns() % 1000 != 0 || !(PERIOD_US_MIN..=PERIOD_US_MAX).contains(&period_us) {
        return Err(Error::BadInput(format!(
            "period {period}: give whole microseconds between {PERIOD_US_MIN}us and {}ms",
            PERIOD_US_MAX / 1000
        )));
    }
    Ok(period_us)
}

/// Parses a period such as `1ms`, `500us` or `0.25ms`, within the limits of [`period_us`].
///
/// # Errors
/// When the text is not a time with a unit, or is outside these limits.
pub fn parse_period_us(text: &str) -> Result<u64, Error> {
    let time: Result<Time, _> = text.parse();
    period_us(time.map_err(|error| Error::BadInput(format!("period `{text}`: {error}")))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classic_budgets_are_the_classic_event_counts() {
        assert_eq!(events_per_period(1000, 1000, 64), 16384);
        assert_eq!(events_per_period(100, 1000, 64), 1638);
        assert_eq!(events_per_period(100, 1000, 4096), 25);
        assert!((mib_s(16384.0, 1000, 64) - 1000.0).abs() < 1e-9);
    }

    #[test]
    fn a_long_period_does_not_overflow() {
        assert_eq!(events_per_period(u64::MAX, PERIOD_US_MAX, 1), u64::MAX);
        assert_eq!(events_per_period(1_000_000, 1_000_000, 64), 16_384_000_000);
    }

    #[test]
    fn durations_need_a_unit_and_a_number() {
        for (text, expected_us) in [
            ("1ms", 1000),
            ("500us", 500),
            ("0.25ms", 250),
            ("1s", 1_000_000),
            (".5ms", 500),
        ] {
            assert_eq!(parse_period_us(text).unwrap(), expected_us, "{text}");
        }
        for text in [
            "",
            "1",
            "ms",
            "1 ms",
            "-1ms",
            "1m",
            "1.2.3ms",
            "0ms",
            "49us",
            "2s",
            "1.0005ms1",
            "1ns",
            "1.5us",
            "99999999999999999999s",
            "0.0000000001s",
            ".ms",
            "1e3us",
        ] {
            assert!(parse_period_us(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "\\PC*") {
            let _ = parse_period_us(&text);
        }

        #[test]
        fn whole_microseconds_come_back(us in PERIOD_US_MIN..=PERIOD_US_MAX) {
            prop_assert_eq!(parse_period_us(&format!("{us}us")).unwrap(), us);
        }

        #[test]
        fn events_never_exceed_the_bandwidth_asked(mb in 1u64..100_000, period in 50u64..1_000_000, bytes in 1u64..65536) {
            let events = events_per_period(mb, period, bytes);
            let back = mib_s(events as f64, period, bytes);
            let asked = mb as f64;
            prop_assert!(back <= asked * (1.0 + 1e-12));
        }
    }
}
