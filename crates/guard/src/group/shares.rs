// SPDX-License-Identifier: MIT OR Apache-2.0
//! Divides a group's remaining events among the alarms of its CPUs.
//!
//! A CPU's alarm rings at the last event of its share. While no alarm has rung, a CPU with share `s` has counted at
//! most `s - 1` events. So the sum stays below the remaining events if the shares, each reduced by one, add up to less.
//! That is the only rule ([`are_sound`]). Within it, a CPU that recently used more gets a larger share. With equal
//! shares, a group that runs on one CPU of many would ring that CPU's alarm over and over.

/// Fills `shares` for `left` events (at least 1), of which `margin` are expected before the alarms are set. `weights`
/// are the recent events of each CPU.
pub(super) fn split(left: u64, margin: u64, weights: &[u64], shares: &mut [u64]) {
    let spare = left.saturating_sub(1).saturating_sub(margin);
    // Plus one, because an idle CPU may become busy.
    let weight = |used: u64| u128::from(used) + 1;
    let sum: u128 = weights.iter().copied().map(weight).sum();
    let mut given = 0;
    let mut heaviest = 0;
    for (index, (share, used)) in shares.iter_mut().zip(weights).enumerate() {
        let part = u64::try_from(u128::from(spare) * weight(*used) / sum).unwrap_or(0);
        *share = 1 + part;
        given += part;
        if weights[index] > weights[heaviest] {
            heaviest = index;
        }
    }
    if let Some(share) = shares.get_mut(heaviest) {
        *share += spare - given;
    }
}

/// True if an alarm rings before `left` events pass unnoticed.
pub(super) fn are_sound(left: u64, shares: &[u64]) -> bool {
    let unseen: u128 = shares.iter().map(|share| u128::from(share - 1)).sum();
    unseen < u128::from(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shares(left: u64, margin: u64, weights: &[u64]) -> Vec<u64> {
        let mut shares = vec![0; weights.len()];
        split(left, margin, weights, &mut shares);
        shares
    }

    #[test]
    fn a_cpu_that_used_more_gets_more_and_none_gets_nothing() {
        assert_eq!(shares(25, 0, &[0]), [25]);
        assert_eq!(shares(25, 0, &[0, 0]), [13, 13]);
        assert_eq!(shares(25, 0, &[23, 0]), [25, 1]);
        assert_eq!(shares(101, 0, &[48, 48, 0, 0]), [50, 50, 2, 2]);
        assert_eq!(shares(1, 0, &[9, 9]), [1, 1]);
        assert_eq!(shares(25, 5, &[0, 0]), [11, 10]);
        assert_eq!(shares(3, 9, &[7, 0]), [1, 1]);
    }

    proptest! {
        #[test]
        fn shares_are_sound_and_waste_nothing(
            left in 1u64..1 << 50, margin in 0u64..1000, weights in prop::collection::vec(0u64..=u64::MAX, 1..64),
        ) {
            let shares = shares(left, margin, &weights);
            prop_assert!(are_sound(left, &shares));
            let unseen: u64 = shares.iter().map(|share| share - 1).sum();
            prop_assert_eq!(unseen, (left - 1).saturating_sub(margin));
        }

        /// Whatever each CPU does, the sum stays below `left` until an alarm rings.
        #[test]
        fn no_sum_passes_unseen(
            left in 1u64..10_000, weights in prop::collection::vec(0u64..1000, 1..9), order in prop::collection::vec(any::<prop::sample::Index>(), 0..20_000),
        ) {
            let shares = shares(left, 0, &weights);
            let mut counts = vec![0; shares.len()];
            for step in order {
                let cpu = step.index(shares.len());
                counts[cpu] += 1;
                if counts[cpu] == shares[cpu] {
                    break;
                }
                prop_assert!(counts.iter().sum::<u64>() < left);
            }
        }

        /// A group that behaves as before needs a few checks per period, not one per event.
        #[test]
        fn few_looks_are_needed(budget in 1u64..1 << 30, cpus in 1usize..64, busy in 0usize..64) {
            let busy = busy % cpus;
            let (mut left, mut looks) = (budget, 0);
            let mut weights = vec![0; cpus];
            weights[busy] = budget;
            while left > 0 {
                left -= shares(left, 0, &weights)[busy].min(left);
                looks += 1;
            }
            prop_assert!(looks <= 40 * cpus.ilog2() + 40, "{looks}");
        }
    }

    #[test]
    fn events_that_came_meanwhile_can_make_shares_unsound() {
        let shares = shares(25, 0, &[0, 0]);
        assert!(are_sound(25, &shares));
        assert!(!are_sound(24, &shares));
    }
}
