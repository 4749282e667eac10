// SPDX-License-Identifier: MIT OR Apache-2.0
//! A memory's energy, from the currents of its data sheet: the method of Micron's technical
//! notes TN-46-03 (DDR), TN-41-01 (DDR3) and TN-40-07 (DDR4), applied to counted commands.
//!
//! | part | a chip's energy | for each |
//! | --- | --- | --- |
//! | activates | V x (IDD0 x tRC - IDD3N x tRAS - IDD2N x (tRC - tRAS)) | ACT, with its PRE |
//! | reads, writes | V x (IDD4R - IDD3N) x burst, V x (IDD4W - IDD3N) x burst | RD, WR |
//! | refresh | V x (IDD5 - IDD2N) x tRFC | REF |
//! | standby | V x IDD3N, V x IDD2N | time with a bank of the rank open, with none |
//!
//! The notes count a refresh's current above IDD3N. Here the rank's banks are closed during a
//! refresh, so its standby current is IDD2N. Not included are the data pins with their
//! termination, power-down, which the controller doesn't use, and supplies that a memory's file
//! doesn't have, such as DDR4's VPP and the VDDCA of LPDDR2.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::memory::{Memory, Supply};
use super::statistics::Statistics;

/// Energy of 1 uA at 1 mV in a ps, uJ.
const UJ: f64 = 1e-15;

/// The currents of a memory's chips.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Currents {
    /// Chips of a rank.
    pub chips: u64,
    /// By supply name.
    #[serde(flatten)]
    pub supplies: BTreeMap<String, Supply>,
}

/// Counts of everything that consumes energy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Activity {
    /// ACTs.
    pub activates: u64,
    /// RDs.
    pub reads: u64,
    /// WRs.
    pub writes: u64,
    /// REFs of a rank.
    pub refreshes: u64,
    /// Time with an open bank, over all ranks, ps.
    pub open_ps: u64,
}

impl Activity {
    /// The memory's activity up to a time, ps.
    #[must_use]
    pub fn until(statistics: &Statistics, at_ps: u64) -> Self {
        Self {
            activates: statistics.activates,
            reads: statistics.reads,
            writes: statistics.writes,
            refreshes: statistics.refreshes,
            open_ps: statistics.open.until(at_ps),
        }
    }

    /// The activity since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            activates: self.activates - before.activates,
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            refreshes: self.refreshes - before.refreshes,
            open_ps: self.open_ps - before.open_ps,
        }
    }
}

impl std::iter::Sum for Activity {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            activates: sum.activates + one.activates,
            reads: sum.reads + one.reads,
            writes: sum.writes + one.writes,
            refreshes: sum.refreshes + one.refreshes,
            open_ps: sum.open_ps + one.open_ps,
        })
    }
}

/// The energy by part, uJ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct Energy {
    /// ACTs with their PREs.
    pub activates_uj: f64,
    /// RDs.
    pub reads_uj: f64,
    /// WRs.
    pub writes_uj: f64,
    /// REFs.
    pub refresh_uj: f64,
    /// Standby of all chips.
    pub standby_uj: f64,
}

impl Energy {
    /// The sum.
    #[must_use]
    pub fn total_uj(&self) -> f64 {
        self.activates_uj + self.reads_uj + self.writes_uj + self.refresh_uj + self.standby_uj
    }

    /// The mean power over a time, mW.
    #[must_use]
    pub fn mean_mw(&self, time_ps: u64) -> f64 {
        self.total_uj() * 1e9 / time_ps.max(1) as f64
    }
}

impl Memory {
    /// The energy of an activity in a time; none without the chips' currents.
    #[must_use]
    pub fn energy(&self, activity: &Activity, time_ps: u64) -> Option<Energy> {
        let currents = self.currents.as_ref()?;
        let t = &self.timings;
        let burst_ps = self.burst_ps() as f64;
        let (trc, tras, trfc) = (t.trc as f64, t.tras as f64, t.trfc as f64);
        let ranks = self.organisation.channels * self.organisation.ranks;
        let open_ps = activity.open_ps as f64;
        let closed_ps = (ranks * time_ps) as f64 - open_ps;
        let mut energy = Energy::default();
        for supply in currents.supplies.values() {
            let uj = currents.chips as f64 * supply.mv as f64 * UJ;
            let [idd0, idd2n, idd3n] =
                [supply.idd0, supply.idd2n, supply.idd3n].map(|ua| ua as f64);
            let above_standby = |ua: u64| ua as f64 - idd3n;
            let activate = idd0 * trc - idd3n * tras - idd2n * (trc - tras);
            energy.activates_uj += uj * activity.activates as f64 * activate;
            energy.reads_uj += uj * activity.reads as f64 * burst_ps * above_standby(supply.idd4r);
            energy.writes_uj +=
                uj * activity.writes as f64 * burst_ps * above_standby(supply.idd4w);
            energy.refresh_uj +=
                uj * activity.refreshes as f64 * trfc * (supply.idd5 as f64 - idd2n);
            energy.standby_uj += uj * (idd3n * open_ps + idd2n * closed_ps);
        }
        Some(energy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dram::checks::saturate;
    use crate::dram::memory_file::names;
    use crate::dram::{Controller, ControllerSettings, PagePolicy};
    use crate::main_memory::MainMemory;

    /// One chip with one supply of 1 V, and round times.
    fn simple() -> Memory {
        let mut memory = Memory::named("ddr4-2400").unwrap();
        memory.timings.tck = 1_000;
        memory.timings.tras = 30_000;
        memory.timings.trc = 50_000;
        memory.timings.trfc = 300_000;
        let supply = Supply {
            mv: 1_000,
            idd0: 60_000,
            idd2n: 30_000,
            idd3n: 40_000,
            idd4r: 140_000,
            idd4w: 120_000,
            idd5: 240_000,
        };
        memory.currents = Some(Currents {
            chips: 1,
            supplies: [("vdd".to_owned(), supply)].into(),
        });
        memory
    }

    fn close(found: f64, expected: f64) {
        assert!(
            (found - expected).abs() <= 1e-9 * expected,
            "{found} {expected}"
        );
    }

    #[test]
    fn each_part_is_what_the_notes_formulas_give_by_hand() {
        let activity = Activity {
            activates: 10,
            reads: 100,
            writes: 200,
            refreshes: 3,
            open_ps: 700_000,
        };
        let energy = simple().energy(&activity, 1_000_000).unwrap();
        // 1 V x 60 mA x 50 ns = 3000 pJ, less 40 x 30 = 1200 and 30 x 20 = 600: 1200 pJ an ACT.
        close(energy.activates_uj, 0.012);
        // A burst of 8 takes 4 clocks, 4 ns: 100 mA more, 400 pJ; 80 mA more, 320 pJ.
        close(energy.reads_uj, 0.040);
        close(energy.writes_uj, 0.064);
        // 210 mA more for 300 ns: 63 nJ.
        close(energy.refresh_uj, 0.189);
        // 40 mA for 700 ns and 30 mA for 300 ns: 28 and 9 nJ.
        close(energy.standby_uj, 0.037);
        close(energy.total_uj(), 0.342);
        // 342 nJ in 1 us.
        close(energy.mean_mw(1_000_000), 342.0);
    }

    #[test]
    fn an_activate_of_the_ddr4_dimm_is_its_data_sheets() {
        let activity = Activity {
            activates: 1_000_000,
            ..Activity::default()
        };
        let energy = Memory::named("ddr4-2400")
            .unwrap()
            .energy(&activity, 0)
            .unwrap();
        // (48 x 46.16 - 43 x 32 - 34 x 14.16) mA ns x 1.2 V = 429.888 pJ, of eight chips.
        close(energy.activates_uj, 8.0 * 429.888);
    }

    /// With the currents of a chip whose IDD3N is above IDD0, as of DDR5, an ACT would take less
    /// than nothing.
    #[test]
    fn no_part_of_a_memorys_energy_is_negative() {
        let activity = Activity {
            activates: 1,
            reads: 1,
            writes: 1,
            refreshes: 1,
            open_ps: 1,
        };
        for name in names() {
            let memory = Memory::named(name).unwrap();
            let Some(energy) = memory.energy(&activity, 1) else {
                continue;
            };
            for part in [
                energy.activates_uj,
                energy.reads_uj,
                energy.writes_uj,
                energy.refresh_uj,
                energy.standby_uj,
            ] {
                assert!(part >= 0.0, "{name}: {energy:?}");
            }
        }
    }

    #[test]
    fn more_chips_and_supplies_take_more() {
        let activity = Activity {
            reads: 5,
            ..Activity::default()
        };
        let one = simple();
        let mut more = one.clone();
        let currents = more.currents.as_mut().unwrap();
        currents.chips = 3;
        let supply = currents.supplies["vdd"];
        currents.supplies.insert("vdd2".into(), supply);
        let [one, more] = [one, more].map(|memory| memory.energy(&activity, 1_000).unwrap());
        close(more.total_uj(), 6.0 * one.total_uj());
        assert!(
            Memory::named("ddr5-4800")
                .unwrap()
                .energy(&activity, 1)
                .is_none()
        );
    }

    #[test]
    fn a_closed_row_takes_less_standby_and_each_moment_is_counted_once() {
        const END_PS: u64 = 1_000_000;
        for name in names() {
            let memory = Memory::named(name).unwrap();
            let activity = |page_policy, reads: u64, end_ps| {
                let settings = ControllerSettings {
                    page_policy,
                    ..ControllerSettings::default()
                };
                let mut controller = Controller::new(&memory, &settings).unwrap();
                let mut random = fastrand::Rng::with_seed(1);
                let lines = memory.organisation.capacity_bytes() / 64;
                let last_ps = saturate(&mut controller, reads, |_| {
                    (random.u64(..lines) * 64, false)
                });
                let end_ps = last_ps.max(end_ps);
                controller.advance(end_ps, &mut Vec::new());
                (Activity::until(&controller.statistics(), end_ps), end_ps)
            };
            let (open, end_ps) = activity(PagePolicy::Open, 1, END_PS);
            let (closed, _) = activity(PagePolicy::Closed, 1, END_PS);
            assert_eq!((open.activates, closed.activates), (1, 1), "{name}");
            // The row is opened at once; nothing else delays it.
            assert_eq!((open.open_ps, end_ps), (END_PS, END_PS), "{name}");
            let least_ps = memory.timings.in_clocks().tras;
            assert!((least_ps..END_PS / 2).contains(&closed.open_ps), "{name}");
            let (many, end_ps) = activity(PagePolicy::Closed, 5_000, 0);
            let ranks = memory.organisation.channels * memory.organisation.ranks;
            assert!(many.open_ps <= ranks * end_ps, "{name}");
            assert!(many.open_ps >= many.activates / 64 * least_ps, "{name}");
            assert_eq!(many.since(&many), Activity::default());
        }
    }
}
