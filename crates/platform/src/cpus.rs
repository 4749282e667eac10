// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets of CPUs, in the kernel's list format (`0-3,5`).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Result, Root, ranges};

/// 8192 is the largest CONFIG_NR_CPUS of any Linux architecture;
/// a larger number is a typing error, and a range up to it would fill memory.
pub const LIMIT: usize = 8192;

/// A set of CPU numbers, read and printed as `0-3,5`, also in JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
pub struct CpuSet(BTreeSet<usize>);

impl CpuSet {
    /// True if `cpu` is in the set.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// Number of CPUs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid =
            |why: String| Error::Invalid(format!("CPU list `{text}`: {why} (write it as 0-3,5)"));
        let number = |word: &str| -> Result<usize> {
            if word.is_empty() || !word.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(invalid(format!("`{word}` is not a CPU number")));
            }
            match word.parse() {
                Ok(cpu) if cpu < LIMIT => Ok(cpu),
                _ => Err(invalid(format!(
                    "`{word}` is beyond any machine's {LIMIT} CPUs"
                ))),
            }
        };
        let mut cpus = BTreeSet::new();
        for word in text.trim().split(',').map(str::trim) {
            if word.is_empty() {
                if text.trim().is_empty() {
                    break;
                }
                return Err(invalid("an empty entry".into()));
            }
            ranges::add(&mut cpus, word, number, || {
                invalid(format!("`{word}` runs backwards"))
            })?;
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ranges::write(f, &self.0)
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> Self {
        set.to_string()
    }
}

impl TryFrom<String> for CpuSet {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

/// The online CPUs.
pub fn online() -> Result<CpuSet> {
    online_in(&Root::system())
}

/// Checks that all these CPUs are online.
pub fn check_online(cpus: &CpuSet) -> Result<()> {
    let online = online()?;
    match cpus.iter().find(|cpu| !online.contains(*cpu)) {
        Some(cpu) => Err(Error::Invalid(format!(
            "CPU {cpu} is not online: this machine has CPUs {online}"
        ))),
        None => Ok(()),
    }
}

/// The CPUs of this machine, including offline ones.
pub fn present() -> Result<CpuSet> {
    Root::system()
        .read("/sys/devices/system/cpu/present")?
        .parse()
}

/// The online CPUs, below `root`.
pub fn online_in(root: &Root) -> Result<CpuSet> {
    root.read("/sys/devices/system/cpu/online")?.parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_print_in_their_shortest_form() {
        for (typed, printed) in [
            ("0-3,5", "0-3,5"),
            ("3,2,1,0", "0-3"),
            ("0,2,4", "0,2,4"),
            ("0-1,1-2", "0-2"),
            ("7", "7"),
            ("", ""),
            (" 0-1\n", "0-1"),
        ] {
            assert_eq!(typed.parse::<CpuSet>().unwrap().to_string(), printed);
        }
    }

    #[test]
    fn bad_lists_say_why() {
        for (text, why) in [
            ("a", "not a CPU number"),
            ("-1", "not a CPU number"),
            ("1-", "not a CPU number"),
            ("3-1", "runs backwards"),
            ("1,,2", "an empty entry"),
            ("1,", "an empty entry"),
            ("8192", "beyond any machine"),
            ("0-99999999999999999999", "beyond any machine"),
            ("+1", "not a CPU number"),
        ] {
            let message = text.parse::<CpuSet>().unwrap_err().to_string();
            assert!(message.contains(why), "{text}: {message}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_printed_set_reads_back_the_same(cpus in proptest::collection::btree_set(0..LIMIT, 0..64)) {
            let set: CpuSet = cpus.into_iter().collect();
            proptest::prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }

        #[test]
        fn any_text_is_a_set_or_an_error(text in ".*") {
            let _ = text.parse::<CpuSet>();
        }
    }
}
