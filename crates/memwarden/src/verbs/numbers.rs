// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parsers of options that are numbers, within limits; their syntax is in `memwarden_platform::units`.

use std::fmt::Display;
use std::ops::RangeInclusive;

use memwarden_platform::Error;
use memwarden_platform::units::{Time, parse_bytes, parse_count};

/// A count, such as `300`, `20K` or `1M`.
pub fn count<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let count = parse_count(text).map_err(|error| error.to_string())?;
    T::try_from(count).map_err(|_| format!("{count} is too large a number"))
}

/// For `value_parser`: a count within limits.
pub fn count_in<T: TryFrom<u64>>(
    limits: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let count: u64 = count(text)?;
        T::try_from(within(&limits, count)?).map_err(|_| format!("{count} is too large a number"))
    }
}

/// For `value_parser`: bytes within limits, such as `64` or `4K`.
pub fn bytes_in(
    limits: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
        within(&limits, bytes)
    }
}

fn within(limits: &RangeInclusive<u64>, number: u64) -> Result<u64, String> {
    let (least, most) = (*limits.start(), *limits.end());
    if limits.contains(&number) {
        Ok(number)
    } else if most == u64::MAX {
        Err(format!("{number} is not in {least}.."))
    } else {
        Err(format!("{number} is not in {least}..={most}"))
    }
}

/// For `value_parser`: a time that `parse` reads, within limits; `why` explains the shortest one.
pub fn time_in(
    parse: fn(&str) -> Result<Time, Error>,
    limits: RangeInclusive<Time>,
    why: impl Display,
) -> impl Fn(&str) -> Result<Time, String> + Clone + Send + Sync + 'static {
    let why = why.to_string();
    move |text| {
        let time = parse(text).map_err(|error| error.to_string())?;
        if limits.contains(&time) {
            return Ok(time);
        }
        Err(why.clone())
    }
}
