// SPDX-License-Identifier: MIT OR Apache-2.0
//! The module's `control` file: one setting per line.

use memwarden_platform::cpus::CpuSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Error;

/// What happens when all active cores have used their budgets before the period ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BestEffort {
    /// Every core waits for the next period: strict reservation.
    #[default]
    None,
    /// All throttled cores run unregulated until the period ends.
    Spare,
    /// A new period begins at once, which shares the surplus in proportion to the budgets.
    Proportional,
}

impl BestEffort {
    /// The value of the module's `exclusive` setting.
    pub fn exclusive(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Spare => 2,
            Self::Proportional => 5,
        }
    }

    /// The word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Spare => "spare",
            Self::Proportional => "proportional",
        }
    }
}

/// The regulator's current settings and state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Control {
    /// The machine's guaranteed bandwidth in MiB/s.
    #[serde(rename = "maxbw_mib_s")]
    pub maxbw_mib_s: u64,
    /// Length of a period in microseconds.
    pub period_us: u64,
    /// Whether cores donate and reclaim budget.
    pub reclaim: bool,
    /// What happens when all active cores have used their budgets.
    pub best_effort: BestEffort,
    /// The smallest number of events that a core reclaims at a time.
    pub qmin: u64,
    /// The event that counts reads: a name, or a raw code such as `0x17`.
    pub event: String,
    /// The event that counts write-backs; `None` if they are not counted.
    pub write_event: Option<String>,
    /// One budget covers reads and write-backs together: `limit` and all figures of reads refer to their sum.
    #[serde(default)]
    pub combined: bool,
    /// Bytes that one event stands for.
    pub bytes_per_event: u64,
    /// The kernel's own traffic is not counted.
    pub user_only: bool,
    /// How a throttled core waits: `wait` or `poll`.
    pub idle: String,
    /// CPUs to regulate, online or not; the others run unregulated.
    #[serde(default)]
    pub cpus: CpuSet,
    /// Cores that are never throttled.
    pub rt: CpuSet,
    /// Cores that ran anything in this period.
    pub active: CpuSet,
    /// Cores that are throttled at this moment.
    pub throttled: CpuSet,
    /// Cores that are online and regulated.
    pub online: CpuSet,
    /// Sum of all budgets in MiB/s.
    #[serde(rename = "guaranteed_mib_s")]
    pub guaranteed_mib_s: u64,
}

impl Control {
    /// Whether write-backs are counted and have separate budgets.
    #[must_use]
    pub fn has_write_budgets(&self) -> bool {
        self.write_event.is_some() && !self.combined
    }

    /// Parses the file. Unknown keys are ignored.
    ///
    /// # Errors
    /// When a required setting is missing or malformed.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let value = |key: &'static str| {
            text.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(name, _)| name.trim() == key)
                .map(|(_, value)| value.trim())
                .ok_or(Error::Unreadable {
                    file: "control",
                    line: format!("{key} is missing"),
                })
        };
        let bad = |key: &str, value: &str| Error::Unreadable {
            file: "control",
            line: format!("{key}: {value}"),
        };
        let number = |key| {
            let text = value(key)?;
            text.parse::<u64>().map_err(|_| bad(key, text))
        };
        let set = |key| {
            let text = value(key)?;
            if text == "none" {
                return Ok(CpuSet::default());
            }
            text.parse::<CpuSet>().map_err(|_| bad(key, text))
        };
        let best_effort = match number("exclusive")? {
            0 => BestEffort::None,
            2 => BestEffort::Spare,
            5 => BestEffort::Proportional,
            other => return Err(bad("exclusive", &other.to_string())),
        };
        Ok(Self {
            maxbw_mib_s: number("maxbw")?,
            period_us: number("period_us")?,
            reclaim: number("reclaim")? != 0,
            best_effort,
            qmin: number("qmin")?,
            event: event(value("event")?),
            // The line has the read event's name; only the code identifies the write event.
            write_event: Some(value("write_event")?)
                .filter(|name| *name != "none")
                .and_then(|text| text.split_whitespace().last())
                .map(str::to_owned),
            // An older module has no such line.
            combined: value("combined").is_ok_and(|text| text != "0"),
            bytes_per_event: number("bytes_per_event")?,
            user_only: number("user_only")? != 0,
            idle: value("idle")?.to_owned(),
            cpus: set("cpus")?,
            rt: set("rt")?,
            active: set("active")?,
            throttled: set("throttled")?,
            online: set("online")?,
            guaranteed_mib_s: number("guaranteed_mb")?,
        })
    }
}

/// The event as `--event` takes it: the name without its code, the code of a raw event, or a list of events.
fn event(value: &str) -> String {
    let (name, code) = value.split_once(' ').unwrap_or((value, ""));
    if name == "raw" {
        code.to_owned()
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the module prints for four idle cores.
    pub(crate) const SAMPLE: &str = "maxbw: 1200\nperiod_us: 1000\nreclaim: 1\nexclusive: 5\nqmin: 10\n\
        event: page-faults 0x2\nwrite_event: none\nbytes_per_event: 4096\nuser_only: 0\nidle: wait\ncpus: 0-3\nrt: none\n\
        active: 0-1,3\nthrottled: none\nonline: 0-3\nguaranteed_mb: 1300\n";

    #[test]
    fn every_setting_is_read() {
        let control = Control::parse(SAMPLE).unwrap();
        assert_eq!(control.maxbw_mib_s, 1200);
        assert_eq!(control.best_effort, BestEffort::Proportional);
        assert!(control.reclaim);
        assert_eq!(
            (control.event.as_str(), control.write_event),
            ("page-faults", None)
        );
        let written = SAMPLE.replace("write_event: none", "write_event: armv8 0x18");
        let written = Control::parse(&written).unwrap().write_event;
        assert_eq!(written.as_deref(), Some("0x18"));
        assert!(!control.combined);
        let combined = SAMPLE.replace("user_only", "combined: 1\nuser_only");
        assert!(Control::parse(&combined).unwrap().combined);
        assert_eq!(control.active.to_string(), "0-1,3");
        assert_eq!(control.rt.len(), 0);
        assert_eq!(control.guaranteed_mib_s, 1300);
    }

    #[test]
    fn a_missing_setting_is_named() {
        let text = SAMPLE.replace("qmin: 10\n", "");
        assert!(
            Control::parse(&text)
                .unwrap_err()
                .to_string()
                .contains("qmin")
        );
        let text = SAMPLE.replace("exclusive: 5", "exclusive: 7");
        assert!(
            Control::parse(&text)
                .unwrap_err()
                .to_string()
                .contains("exclusive: 7")
        );
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "\\PC*", at in 0usize..SAMPLE.len(), with in "\\PC{0,5}") {
            let _ = Control::parse(&text);
            let mut damaged = SAMPLE.to_owned();
            damaged.replace_range(at..=at, &with);
            let _ = Control::parse(&damaged);
        }
    }
}
