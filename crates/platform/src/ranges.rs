// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets of numbers in the form `1-8,16`.

use std::collections::BTreeSet;
use std::fmt;

/// Adds `7` or `1-8` to the numbers. `number` reads one number; `backwards` is the error for `8-1`.
///
/// # Errors
/// The errors of `number` and `backwards`.
pub fn add<E>(
    numbers: &mut BTreeSet<usize>,
    word: &str,
    number: impl Fn(&str) -> Result<usize, E>,
    backwards: impl FnOnce() -> E,
) -> Result<(), E> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(backwards());
    }
    numbers.extend(first..=last);
    Ok(())
}

/// Writes the numbers in ascending order, consecutive ones as a range.
///
/// # Errors
/// The formatter's.
pub fn write(f: &mut fmt::Formatter<'_>, numbers: &BTreeSet<usize>) -> fmt::Result {
    let mut numbers = numbers.iter().copied().peekable();
    let mut separator = "";
    while let Some(first) = numbers.next() {
        let mut last = first;
        while numbers.next_if_eq(&(last + 1)).is_some() {
            last += 1;
        }
        if first == last {
            write!(f, "{separator}{first}")?;
        } else {
            write!(f, "{separator}{first}-{last}")?;
        }
        separator = ",";
    }
    Ok(())
}
