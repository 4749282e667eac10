// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists of events for machines whose CPUs count different ones: `cortex-a55@0-3,cortex-a76@4-7`.

use std::fmt;
use std::str::FromStr;

use memwarden_platform::cpus::CpuSet;
use memwarden_policy::events::Event;

use crate::Error;

/// One event for all CPUs, or one for each group of CPUs, as the module's `g_hw_type=` takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventList(Vec<Entry>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    event: String,
    /// `None` means every CPU.
    cpus: Option<CpuSet>,
}

impl EventList {
    /// The same event on every CPU.
    #[must_use]
    pub fn all(event: &str) -> Self {
        Self(vec![Entry {
            event: event.into(),
            cpus: None,
        }])
    }

    /// Each of these events on its CPUs.
    #[must_use]
    pub fn by_cpu(events: &[(Event, CpuSet)]) -> Self {
        match events {
            [(event, _)] => Self::all(event.name),
            events => {
                let entry = |(event, cpus): &(Event, CpuSet)| Entry {
                    event: event.name.into(),
                    cpus: Some(cpus.clone()),
                };
                Self(events.iter().map(entry).collect())
            }
        }
    }

    /// The event of a CPU.
    #[must_use]
    pub fn of(&self, cpu: usize) -> Option<&str> {
        let has = |entry: &&Entry| entry.cpus.as_ref().is_none_or(|cpus| cpus.contains(cpu));
        self.0.iter().find(has).map(|entry| entry.event.as_str())
    }

    /// Each event once, with its CPUs; `None` means every CPU.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&CpuSet>)> {
        self.0
            .iter()
            .map(|entry| (entry.event.as_str(), entry.cpus.as_ref()))
    }
}

/// Whether both lists name the same event for each of these CPUs.
pub(crate) fn same_events(one: &str, other: &str, cpus: &CpuSet) -> bool {
    one == other
        || !cpus.is_empty()
            && cpus
                .iter()
                .all(|cpu| of_cpu(one, cpu) == of_cpu(other, cpu))
}

/// The event of a CPU in a list given as text; the text itself if it is no list or has no event for the CPU.
pub(crate) fn of_cpu(list: &str, cpu: usize) -> String {
    let parsed = list.parse::<EventList>().ok();
    let event = parsed.as_ref().and_then(|list| list.of(cpu));
    event.unwrap_or(list).to_owned()
}

impl FromStr for EventList {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if !text.contains(['@', ',']) {
            return Ok(Self::all(text));
        }
        let bad = |why: &str| {
            Error::BadInput(format!(
                "event `{text}`: {why}; give one event, or EVENT@FIRST-LAST for each kind of CPU, as in \
                 cortex-a55@0-3,cortex-a76@4-7"
            ))
        };
        let mut entries: Vec<Entry> = Vec::new();
        for word in text.split(',') {
            let (event, cpus) = word
                .split_once('@')
                .ok_or_else(|| bad(&format!("`{word}` has no CPUs")))?;
            let cpus: CpuSet = cpus.parse().map_err(|error| bad(&format!("{error}")))?;
            if cpus.is_empty() {
                return Err(bad(&format!("`{word}` has no CPUs")));
            }
            if let Some(cpu) = cpus.iter().find(|cpu| {
                let named =
                    |entry: &Entry| entry.cpus.as_ref().is_some_and(|set| set.contains(*cpu));
                entries.iter().any(named)
            }) {
                return Err(bad(&format!("CPU {cpu} is named twice")));
            }
            let known = entries.iter_mut().find(|entry| entry.event == event);
            match known.and_then(|entry| entry.cpus.as_mut()) {
                Some(set) => *set = set.iter().chain(cpus.iter()).collect(),
                None => entries.push(Entry {
                    event: event.into(),
                    cpus: Some(cpus),
                }),
            }
        }
        Ok(Self(entries))
    }
}

impl fmt::Display for EventList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        for entry in &self.0 {
            match &entry.cpus {
                None => words.push(entry.event.clone()),
                // A set of CPUs may have several ranges; each becomes an entry.
                Some(cpus) => words.extend(
                    cpus.to_string()
                        .split(',')
                        .map(|range| format!("{}@{range}", entry.event)),
                ),
            }
        }
        f.write_str(&words.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_has_its_event() {
        let list: EventList = "cortex-a55@0-3,0x2a@4,cortex-a55@6,0x2a@5".parse().unwrap();
        assert_eq!(list.to_string(), "cortex-a55@0-3,cortex-a55@6,0x2a@4-5");
        assert_eq!(
            [0, 3, 4, 5, 6, 7].map(|cpu| list.of(cpu)),
            [
                Some("cortex-a55"),
                Some("cortex-a55"),
                Some("0x2a"),
                Some("0x2a"),
                Some("cortex-a55"),
                None
            ]
        );
        let one: EventList = "armv8".parse().unwrap();
        assert_eq!(
            (one.of(77), one.to_string()),
            (Some("armv8"), "armv8".into())
        );
        assert_eq!(of_cpu("a@0,b@1", 1), "b");
        let cpus: CpuSet = [0, 1].into_iter().collect();
        assert!(same_events("b@1-3,a@0", "a@0,b@1", &cpus));
        assert!(same_events("a@0-3", "a", &cpus));
        assert!(!same_events("a@0,b@1", "a", &cpus));
        assert_eq!(
            of_cpu("refills of the last cache", 1),
            "refills of the last cache"
        );
    }

    #[test]
    fn a_list_that_is_none_is_refused_for_what_is_wrong_with_it() {
        for (text, why) in [
            ("a,b", "`a` has no CPUs"),
            ("a@0,b", "`b` has no CPUs"),
            ("a@", "`a@` has no CPUs"),
            ("a@0-1,b@1-2", "CPU 1 is named twice"),
            ("a@x", "not a CPU number"),
            ("a@3-1", "runs backwards"),
        ] {
            let said = text.parse::<EventList>().unwrap_err().to_string();
            assert!(said.contains(why), "{text}: {said}");
            assert!(!said.contains('\n'));
        }
    }
}
