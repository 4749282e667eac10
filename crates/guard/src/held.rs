// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells in words whether a core was held to its budget, from its statistics.

use memwarden_platform::cpus::CpuSet;

use crate::statistics::{CoreStatistics, ResourceStatistics};
use crate::user::places::Places;
use crate::{BestEffort, Settings};

/// The promised accuracy, 1 %: how far a second's events may exceed the assigned ones, as a share of them.
const WITHIN: f64 = 0.01;

/// Failures to regulate this core, one sentence each; empty if it was held to its budget or needn't be. `online` are the
/// CPUs that the kernel has online, read after the statistics: a core that goes offline between the two is no failure.
#[must_use]
pub fn failings(settings: &Settings, core: &CoreStatistics, online: &CpuSet) -> Vec<String> {
    let cpu = core.cpu;
    let mut failings = Vec::new();
    if !core.online {
        if online.contains(cpu) {
            failings.push(format!(
                "CPU{cpu} is not held: it is online, but the guard does not regulate it; the kernel log or {} says why",
                Places::of_system().log().display()
            ));
        }
        return failings;
    }
    if core.unregulated_periods > 0 {
        failings.push(format!(
            "CPU{cpu} was not regulated in {} periods: its counter did not count (another user of the PMU, an error or \
             a suspend took it)",
            core.unregulated_periods
        ));
    }
    // A real-time core exceeds its budget on purpose, and so does any core with best-effort sharing.
    if core.rt || settings.control.best_effort != BestEffort::None {
        return failings;
    }
    let write = core.write.as_ref().map(|write| ("write-backs", write));
    for (events, of) in [Some(("events", &core.read)), write].into_iter().flatten() {
        // A smaller debt comes from a stop that took more events than expected.
        if of.budget.is_some_and(|budget| of.owed > budget) {
            failings.push(format!(
                "CPU{cpu} repays {} {events} that its tasks used beyond the budget before a throttle stopped the core \
                 (slowest: {:.1} ms): the kernel does not preempt that code; until then, its tasks hardly run",
                of.owed,
                core.throttle_latency_ns_max as f64 / 1e6
            ));
        }
        if exceeded(of) {
            let second = &of.last_second;
            failings.push(format!(
                "CPU{cpu} was not held: {} {events} used of {} assigned in the last second, {} of them in one period",
                second.used, second.assigned, second.used_max
            ));
        }
    }
    failings
}

/// Whether the last second's events exceed the assigned ones by more than the promised accuracy. Without a budget, no
/// events are assigned.
fn exceeded(of: &ResourceStatistics) -> bool {
    let second = &of.last_second;
    of.over_periods > 0
        && second.assigned > 0
        && second.used as f64 > second.assigned as f64 * (1.0 + WITHIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::ResourceLastSecond;
    use crate::{Null, Regulator, StartOptions};

    fn settings(best_effort: BestEffort) -> Settings {
        let mut guard = Null::new((0..3).collect());
        guard.start(&StartOptions::default()).unwrap();
        guard.set_mode(Some(best_effort), None).unwrap();
        guard.settings().unwrap()
    }

    fn core(used: u64, assigned: u64) -> CoreStatistics {
        CoreStatistics {
            cpu: 2,
            online: true,
            read: ResourceStatistics {
                over_periods: 40,
                last_second: ResourceLastSecond {
                    used,
                    assigned,
                    used_max: 265,
                },
                ..ResourceStatistics::default()
            },
            ..CoreStatistics::default()
        }
    }

    /// The failings of a core while CPUs 0 to 2 are online.
    fn failings(settings: &Settings, core: &CoreStatistics) -> Vec<String> {
        super::failings(settings, core, &(0..3).collect())
    }

    #[test]
    fn a_core_that_is_online_and_not_regulated_is_named() {
        let strict = settings(BestEffort::None);
        let unregulated = CoreStatistics {
            cpu: 2,
            ..CoreStatistics::default()
        };
        let told = failings(&strict, &unregulated);
        assert!(
            told[0]
                .starts_with("CPU2 is not held: it is online, but the guard does not regulate it"),
            "{told:?}"
        );
        assert!(super::failings(&strict, &unregulated, &(0..2).collect()).is_empty());
    }

    #[test]
    fn a_core_that_was_not_held_is_named_with_its_figures() {
        let strict = settings(BestEffort::None);
        assert_eq!(
            failings(&strict, &core(44_160, 20_620)),
            [
                "CPU2 was not held: 44160 events used of 20620 assigned in the last second, 265 of them in one period"
            ]
        );
        // Within the promised accuracy, and without a budget.
        assert!(failings(&strict, &core(20_800, 20_620)).is_empty());
        assert!(failings(&strict, &core(44_160, 0)).is_empty());
        // A budget that was set within this second: no limited period had too many events.
        let mut fresh = core(44_160, 20_620);
        fresh.read.over_periods = 0;
        assert!(failings(&strict, &fresh).is_empty());
    }

    #[test]
    fn a_core_that_stands_still_says_why() {
        let strict = settings(BestEffort::None);
        let mut slow = core(20_620, 20_620);
        slow.read.budget = Some(1638);
        slow.throttle_latency_ns_max = 4_082_368;
        slow.read.owed = 1000;
        assert!(failings(&strict, &slow).is_empty());
        slow.read.owed = 15_005;
        assert_eq!(
            failings(&strict, &slow),
            [
                "CPU2 repays 15005 events that its tasks used beyond the budget before a throttle stopped the core \
                 (slowest: 4.1 ms): the kernel does not preempt that code; until then, its tasks hardly run"
            ]
        );
    }

    #[test]
    fn a_core_that_may_pass_its_budget_is_not_reported() {
        let sharing = settings(BestEffort::Spare);
        assert!(failings(&sharing, &core(44_160, 20_620)).is_empty());
        let mut rt = core(44_160, 20_620);
        rt.rt = true;
        assert!(failings(&settings(BestEffort::None), &rt).is_empty());
        rt.unregulated_periods = 7;
        let told = failings(&sharing, &rt);
        assert!(told[0].starts_with("CPU2 was not regulated in 7 periods: "));
    }
}
