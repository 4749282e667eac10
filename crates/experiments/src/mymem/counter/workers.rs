// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers of workers, as a list with ranges.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use memwarden_platform::ranges;
use serde::{Deserialize, Serialize};

use crate::Error;

/// At most 100 workers: the course's largest number, and more than the CPUs of usual machines.
const LIMITS: RangeInclusive<usize> = 1..=100;

/// Numbers of workers, each 1 to 100; reads and prints as `1-8,16,50`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Workers(BTreeSet<usize>);

impl Workers {
    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        // The limits fit into u32.
        self.0.iter().map(|&number| number as u32)
    }

    /// True if the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<u32> for Workers {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        Self(numbers.into_iter().map(|number| number as usize).collect())
    }
}

impl FromStr for Workers {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |word: &str, why: &str| {
            Error::BadInput(format!(
                "workers `{word}`: {why} (give 1 to 100, or a list such as 1-8,16,50)"
            ))
        };
        let number = |word: &str| match word.parse() {
            Ok(number) if LIMITS.contains(&number) => Ok(number),
            Ok(_) => Err(bad(word, "out of range")),
            Err(_) => Err(bad(word, "not a number")),
        };
        let mut numbers = BTreeSet::new();
        for word in text.split(',') {
            ranges::add(&mut numbers, word, number, || bad(word, "runs backwards"))?;
        }
        Ok(Self(numbers))
    }
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ranges::write(f, &self.0)
    }
}

impl TryFrom<String> for Workers {
    type Error = Error;

    /// An empty text in a file is an empty list.
    fn try_from(text: String) -> Result<Self, Error> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        text.parse()
    }
}

impl From<Workers> for String {
    fn from(workers: Workers) -> Self {
        workers.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reads_as_it_prints() {
        for (text, printed) in [
            ("1-8,16,50,100", "1-8,16,50,100"),
            ("4,1,3,2,4", "1-4"),
            ("7", "7"),
        ] {
            let workers: Workers = text.parse().unwrap();
            assert_eq!(workers.to_string(), printed);
        }
    }

    #[test]
    fn bad_lists_say_why() {
        for (text, why) in [
            ("", "workers ``: not a number"),
            ("0", "workers `0`: out of range"),
            ("1-101", "workers `101`: out of range"),
            ("8-1", "workers `8-1`: runs backwards"),
            ("1,,2", "workers ``: not a number"),
            ("-3", "workers ``: not a number"),
            ("many", "workers `many`: not a number"),
        ] {
            let message = text.parse::<Workers>().unwrap_err().to_string();
            assert!(message.starts_with(why), "{text}: {message}");
        }
    }
}
