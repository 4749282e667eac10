// SPDX-License-Identifier: MIT OR Apache-2.0
//! One budget that two counters of a core use together: how the remaining events are split (`policy/split.c`).

#![allow(unsafe_code)]

use crate::ffi;

/// What two counters of one budget counted recently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split(ffi::mw_split);

impl Split {
    /// The number of events after which each counter interrupts, with `left` events (at least 1) of their sum
    /// remaining. `counted`: events of each counter since the last call.
    ///
    /// The shares add up to one more than `left`, so the sum stays below `left` until one counter interrupts. If `left`
    /// is [`UNLIMITED`](crate::UNLIMITED), neither counter interrupts.
    #[must_use]
    pub fn shares(&mut self, counted: [u64; ffi::MW_SPLIT], left: u64) -> [u64; ffi::MW_SPLIT] {
        let mut shares = [0; ffi::MW_SPLIT];
        // SAFETY: all three arrays have as many entries as C reads and writes.
        unsafe {
            ffi::mw_split_left(
                &raw mut self.0,
                counted.as_ptr(),
                left.max(1),
                shares.as_mut_ptr(),
            );
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::UNLIMITED;

    fn shares(counted: [u64; 2], left: u64) -> [u64; 2] {
        Split::default().shares(counted, left)
    }

    #[test]
    fn the_counter_that_counted_more_gets_more_and_none_gets_nothing() {
        assert_eq!(shares([0, 0], 101), [51, 51]);
        assert_eq!(shares([500, 500], 101), [51, 51]);
        assert_eq!(shares([300, 100], 101), [76, 26]);
        assert_eq!(shares([100, 300], 101), [26, 76]);
        assert_eq!(shares([1000, 0], 129), [127, 3]);
        assert_eq!(shares([0, 1000], 129), [3, 127]);
        assert_eq!(shares([9, 9], 1), [1, 1]);
        assert_eq!(shares([9, 9], UNLIMITED), [UNLIMITED, UNLIMITED]);
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut split = Split::default();
        assert_eq!(split.shares([1000, 0], 129), [127, 3]);
        for _ in 0..12 {
            let _ = split.shares([0, 100], 129);
        }
        assert_eq!(split.shares([0, 100], 129), [3, 127]);
    }

    /// One period of a core: of 1000 events `writes` are write-backs, and `late` more events come before an interrupt
    /// is served. Returns the events at its end, and the number of interrupts.
    fn period(split: &mut Split, budget: u64, writes: u64, late: u64) -> (u64, u32) {
        let (mut used, mut since, mut interrupts, mut phase) = (0, [0; 2], 0, 0);
        let mut share = split.shares([0; 2], budget);
        let mut late_for = None;
        loop {
            phase += writes;
            let kind = usize::from(phase >= 1000);
            phase %= 1000;
            used += 1;
            since[kind] += 1;
            if late_for.is_none() && since[kind] == share[kind] {
                late_for = Some(late);
            }
            match late_for {
                Some(0) => {}
                Some(more) => {
                    late_for = Some(more - 1);
                    continue;
                }
                None => {
                    assert!(used < budget, "{used} of {budget} unseen");
                    continue;
                }
            }
            interrupts += 1;
            if used >= budget {
                let _ = split.shares(since, budget);
                return (used, interrupts);
            }
            share = split.shares(std::mem::take(&mut since), budget - used);
            late_for = None;
        }
    }

    #[test]
    fn a_core_that_goes_on_as_it_did_is_interrupted_a_few_times() {
        for budget in [10, 163, 1638, 16_384, 163_840] {
            for writes in [0, 1, 10, 200, 333, 500, 700, 1000] {
                let mut split = Split::default();
                let (_, first) = period(&mut split, budget, writes, 0);
                assert!(first <= 20, "{budget} {writes}: {first}");
                for _ in 0..3 {
                    let (used, interrupts) = period(&mut split, budget, writes, 0);
                    assert_eq!(used, budget);
                    assert!(interrupts <= 6, "{budget} {writes}: {interrupts}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn shares_add_up_and_each_is_an_event_at_least(
            counted in any::<[[u64; 2]; 4]>(), left in 1..UNLIMITED,
        ) {
            let mut split = Split::default();
            for counted in counted {
                let [one, other] = split.shares(counted, left);
                prop_assert!(one >= 1 && other >= 1);
                prop_assert_eq!(one - 1 + other, left);
            }
        }

        /// Whatever each counter does, the sum stays below the remaining budget until one interrupts. A period exceeds
        /// its budget only by the events that come before the interrupt is served.
        #[test]
        fn no_sum_passes_unseen(
            budget in 1_u64..3000, kinds in prop::collection::vec(0_u64..=1000, 1..5), late in 0_u64..40,
        ) {
            let mut split = Split::default();
            for writes in kinds {
                let (used, _) = period(&mut split, budget, writes, late);
                prop_assert!(used >= budget && used <= budget + late);
            }
        }
    }
}
