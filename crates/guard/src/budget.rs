// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets: the user's request, the line written to the kernel module, and the table that the module prints.

use std::collections::BTreeMap;
use std::fmt;

use memwarden_platform::units::{parse_count, parse_whole_rate};
use serde::{Deserialize, Serialize};

use crate::Error;

/// The traffic that a budget limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// Refills: lines that the core reads from memory, including those that it fetches before it writes them.
    Read,
    /// Write-backs.
    Write,
}

/// The unit of a request's amounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// MiB/s.
    Mb,
    /// Events a period.
    Events,
    /// Percent of `maxbw`.
    Percent,
    /// Shares of `maxbw`.
    Weight,
}

/// One core's amount in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Amount {
    /// A budget in the request's unit. Never 0: a core without any events would never run again.
    Limited(u64),
    /// No budget: the core is counted and never throttled.
    Max,
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(amount) => amount.fmt(f),
            Self::Max => f.write_str("max"),
        }
    }
}

/// New budgets, for one core or for the first online cores in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The core; `None` means the online cores in order.
    pub cpu: Option<usize>,
    /// Unit of the amounts.
    pub unit: Unit,
    /// One amount per core.
    pub amounts: Vec<Amount>,
}

impl Request {
    /// Parses a list such as `1000,100,max`; rates and counts can have a unit (`1G`, `20K`).
    ///
    /// # Errors
    /// When the list is empty, or an amount is 0, negative or not a number.
    pub fn parse(unit: Unit, list: &str) -> Result<Self, Error> {
        let amounts = list
            .split(',')
            .map(|word| parse_amount(unit, word.trim(), list))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            cpu: None,
            unit,
            amounts,
        })
    }

    /// The same request for a single core.
    ///
    /// # Errors
    /// When there is more than one amount.
    pub fn for_cpu(self, cpu: usize) -> Result<Self, Error> {
        if self.amounts.len() != 1 {
            return Err(Error::BadInput(format!(
                "{} budgets for CPU {cpu}: give one",
                self.amounts.len()
            )));
        }
        Ok(Self {
            cpu: Some(cpu),
            ..self
        })
    }

    /// A request of a budget in events a period for one core.
    pub fn events_for_cpu(cpu: usize, events: Events) -> Self {
        Self {
            cpu: Some(cpu),
            unit: Unit::Events,
            amounts: vec![events.map_or(Amount::Max, Amount::Limited)],
        }
    }

    /// The line to write to the module's `limit` file.
    pub fn to_line(&self) -> String {
        let mut words = Vec::with_capacity(self.amounts.len() + 2);
        if let Some(cpu) = self.cpu {
            words.push(format!("cpu{cpu}"));
        }
        match self.unit {
            Unit::Mb => words.push("mb".into()),
            Unit::Percent => words.push("pct".into()),
            Unit::Weight => words.push("weight".into()),
            Unit::Events => {}
        }
        words.extend(self.amounts.iter().map(ToString::to_string));
        words.join(" ")
    }
}

fn parse_amount(unit: Unit, word: &str, list: &str) -> Result<Amount, Error> {
    if word == "max" {
        return Ok(Amount::Max);
    }
    let amount = match unit {
        Unit::Mb => parse_whole_rate(word).ok(),
        Unit::Events => parse_count(word).ok(),
        // Digits only: u64's parser would accept a plus sign.
        Unit::Percent | Unit::Weight if word.bytes().all(|byte| byte.is_ascii_digit()) => {
            word.parse().ok()
        }
        Unit::Percent | Unit::Weight => None,
    };
    let what = match unit {
        Unit::Mb => "whole MB/s above 0 (or 512M, 1G)",
        Unit::Events => "whole numbers above 0 (or 20K)",
        Unit::Percent | Unit::Weight => "whole numbers above 0",
    };
    match amount {
        Some(amount) if amount > 0 => Ok(Amount::Limited(amount)),
        _ => Err(Error::BadInput(format!(
            "budget `{word}` in `{list}`: give {what}, or max for no budget"
        ))),
    }
}

/// Why a guard that was started with `combined` refuses a budget for writes.
pub const COMBINED_ALONE: &str =
    "the guard has one budget for reads and write-backs together (combined): set that one";

/// One core's budget as the module stores it: events a period, `None` for unlimited.
pub type Events = Option<u64>;

/// Parses the table of a `limit` file: events a period by core.
///
/// # Errors
/// When a line that begins with `CPU` has no number or `max` after its colon.
pub fn parse_limit(text: &str) -> Result<BTreeMap<usize, Events>, Error> {
    let mut budgets = BTreeMap::new();
    for line in text.lines() {
        let Some(rest) = line.trim().strip_prefix("CPU") else {
            continue;
        };
        let bad = || Error::Unreadable {
            file: "limit",
            line: line.to_owned(),
        };
        let (cpu, rest) = rest.split_once(':').ok_or_else(bad)?;
        let cpu = cpu.trim().parse().map_err(|_| bad())?;
        let word = rest.split_whitespace().next().ok_or_else(bad)?;
        let events = match word {
            "max" => None,
            number => Some(number.parse().map_err(|_| bad())?),
        };
        budgets.insert(cpu, events);
    }
    Ok(budgets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_becomes_the_line_that_scripts_have_always_written() {
        let request = Request::parse(Unit::Mb, "1000,100,100,max").unwrap();
        assert_eq!(request.to_line(), "mb 1000 100 100 max");
        assert_eq!(
            Request::parse(Unit::Mb, "100")
                .unwrap()
                .for_cpu(3)
                .unwrap()
                .to_line(),
            "cpu3 mb 100"
        );
        assert_eq!(
            Request::parse(Unit::Events, "16384,5").unwrap().to_line(),
            "16384 5"
        );
        assert_eq!(
            Request::parse(Unit::Weight, "4,1").unwrap().to_line(),
            "weight 4 1"
        );
        assert_eq!(
            Request::parse(Unit::Percent, "50").unwrap().to_line(),
            "pct 50"
        );
    }

    #[test]
    fn bad_budgets_are_refused() {
        for list in [
            "",
            "0",
            "-1",
            "+1",
            "1,,2",
            "1.5",
            "x",
            "1 2",
            "18446744073709551616",
            "1,0",
            "0x10",
            "1,",
            "Max",
        ] {
            assert!(Request::parse(Unit::Mb, list).is_err(), "{list}");
        }
        assert!(Request::parse(Unit::Mb, "1,2").unwrap().for_cpu(0).is_err());
    }

    #[test]
    fn the_classic_table_is_read() {
        let text = "cpu  |budget (MB/s,pct,weight)\n-------------------------------\n\
                    CPU0: 16384 (1000MB/s, 77 pct, w0)\nCPU1: max\nCPU3: 1638 (100MB/s, 7 pct, w0)\n";
        let budgets = parse_limit(text).unwrap();
        assert_eq!(
            budgets,
            BTreeMap::from([(0, Some(16384)), (1, None), (3, Some(1638))])
        );
        assert_eq!(Request::events_for_cpu(1, None).to_line(), "cpu1 max");
    }

    proptest! {
        #[test]
        fn tables_round_trip(budgets in prop::collection::btree_map(0usize..512, prop::option::of(1u64..), 0..16)) {
            let mut text = String::from("cpu  |budget (MB/s,pct,weight)\n-----\n");
            for (cpu, events) in &budgets {
                let events = events.map_or(Amount::Max, Amount::Limited);
                text += &format!("CPU{cpu}: {events} (1MB/s, 0 pct, w0)\n");
            }
            prop_assert_eq!(parse_limit(&text).unwrap(), budgets);
        }

        #[test]
        fn requests_round_trip(amounts in prop::collection::vec(prop::option::of(1u64..), 1..9)) {
            let amounts: Vec<_> = amounts.into_iter().map(|a| a.map_or(Amount::Max, Amount::Limited)).collect();
            let list = amounts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            prop_assert_eq!(Request::parse(Unit::Events, &list).unwrap().amounts, amounts);
        }

        #[test]
        fn garbage_never_panics(text in "\\PC*", table in "(CPU[0-9x:]{0,4} ?[0-9max]{0,30}.?\n){0,4}") {
            let _ = Request::parse(Unit::Mb, &text);
            let _ = parse_limit(&text);
            let _ = parse_limit(&table);
        }
    }
}
