// SPDX-License-Identifier: MIT OR Apache-2.0
//! The event that the benchmark's guard counts, and the number of events in a page.

use memwarden_guard::units::page_bytes;

use super::Part;
use crate::Error;
use crate::traffic::Counted;

/// Bytes of a refill.
const LINE_BYTES: u64 = 64;

/// The counted event. Budgets are given in the machine's pages, so that they mean the same bandwidth with every event.
#[derive(Debug, Clone)]
pub struct Event {
    pub(super) name: String,
    pub(super) user_only: bool,
    pub(super) counted: Counted,
}

impl Event {
    /// Page faults: the kernel counts them exactly, but they are no real memory traffic.
    #[must_use]
    pub fn page_faults() -> Self {
        Self {
            name: "page-faults".into(),
            user_only: false,
            counted: Counted::Faults,
        }
    }

    /// An event as `guard start --event` takes it; `user_only` leaves out the kernel's own events.
    ///
    /// # Errors
    /// When the event counts time: a budget of it is no bandwidth.
    pub fn named(name: &str, user_only: bool) -> Result<Self, Error> {
        let counted = Counted::by(name);
        if counted == Counted::Time {
            return Err(Error::BadInput(format!(
                "--event {name}: it counts time, not traffic; the part pmu measures it"
            )));
        }
        Ok(Self {
            name: name.to_owned(),
            user_only,
            counted,
        })
    }

    /// The event as `guard start --event` takes it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if the kernel's own events are left out.
    #[must_use]
    pub fn is_user_only(&self) -> bool {
        self.user_only
    }

    /// Checks that `part` can be measured with this event.
    ///
    /// # Errors
    /// When the part's figures are defined only for page faults or for cycles.
    pub(super) fn check(&self, part: Part) -> Result<(), Error> {
        let own = matches!(part, Part::Overhead | Part::Scaling | Part::Pmu);
        if own && self.counted != Counted::Faults {
            return Err(Error::BadInput(format!(
                "--event {}: the part {part} has a fixed event; --event is for {}",
                self.name,
                Part::OF_ANY_EVENT.map(|part| part.to_string()).join(", ")
            )));
        }
        Ok(())
    }

    /// Number of events that `pages` pages cause.
    pub(super) fn in_pages(&self, pages: u64) -> u64 {
        match self.counted {
            Counted::Lines => pages * (page_bytes() / LINE_BYTES),
            Counted::Faults | Counted::Time => pages,
        }
    }

    /// The event's name in a sentence.
    pub(super) fn word(&self) -> &'static str {
        match self.counted {
            Counted::Lines => "lines",
            Counted::Faults | Counted::Time => "faults",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bandwidth_is_the_same_whatever_counts_it() {
        let lines = Event::named("armv8", true).unwrap();
        let lines_a_page = memwarden_platform::mapping::page_bytes() as u64 / 64;
        assert_eq!(
            (lines.in_pages(25), lines.word()),
            (25 * lines_a_page, "lines")
        );
        let faults = Event::named("page-faults", false).unwrap();
        assert_eq!((faults.in_pages(25), faults.word()), (25, "faults"));
    }

    #[test]
    fn time_is_no_traffic_and_some_parts_have_their_event() {
        let error = Event::named("cycles", false).unwrap_err().to_string();
        assert!(error.contains("the part pmu"), "{error}");
        let lines = Event::named("0x17", false).unwrap();
        for boot in Part::ALL {
            let any = Part::OF_ANY_EVENT.contains(&boot.part);
            assert_eq!(lines.check(boot.part).is_ok(), any, "{}", boot.part);
            assert!(Event::page_faults().check(boot.part).is_ok());
        }
    }
}
