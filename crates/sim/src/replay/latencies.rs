// SPDX-License-Identifier: MIT OR Apache-2.0
//! A histogram of many requests' latencies, of constant size.

/// Buckets per power of two: a quantile is at most 0.8 % too high.
const PARTS_BITS: u32 = 7;
const PARTS: u64 = 1 << PARTS_BITS;
const BUCKETS: usize = (u64::BITS - PARTS_BITS + 1) as usize * PARTS as usize;

/// Counts of latencies, in buckets whose width grows with the latency.
#[derive(Debug, Clone)]
pub struct Latencies {
    buckets: Box<[u64]>,
    count: u64,
    sum_ps: u128,
    most_ps: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            buckets: vec![0; BUCKETS].into(),
            count: 0,
            sum_ps: 0,
            most_ps: 0,
        }
    }
}

/// The first buckets are 1 ps wide; above them there are this many per power of two.
fn bucket(latency_ps: u64) -> usize {
    let shift = (u64::BITS - PARTS_BITS - 1).saturating_sub(latency_ps.leading_zeros());
    (u64::from(shift) * PARTS + (latency_ps >> shift)) as usize
}

/// The largest value in a bucket.
fn most_in(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / PARTS).saturating_sub(1);
    let begin = bucket - shift * PARTS;
    (begin << shift) + ((1 << shift) - 1)
}

impl Latencies {
    /// Counts one.
    #[inline]
    pub fn add(&mut self, latency_ps: u64) {
        self.buckets[bucket(latency_ps)] += 1;
        self.count += 1;
        self.sum_ps += u128::from(latency_ps);
        self.most_ps = self.most_ps.max(latency_ps);
    }

    /// Their mean, ps, if there are any.
    #[must_use]
    pub fn mean_ps(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_ps as f64 / self.count as f64)
    }

    /// The latency that this share of requests does not exceed, ps, or up to 0.8 % more.
    #[must_use]
    pub fn quantile_ps(&self, share: f64) -> Option<u64> {
        let rank = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut below = 0;
        let place = self.buckets.iter().position(|count| {
            below += count;
            below >= rank
        });
        place.map(|bucket| most_in(bucket).min(self.most_ps))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn none_have_no_mean_and_no_quantile() {
        let none = Latencies::default();
        assert_eq!((none.mean_ps(), none.quantile_ps(0.5)), (None, None));
    }

    #[test]
    fn every_bucket_begins_where_the_one_before_ends() {
        for index in 0..BUCKETS - 1 {
            let most = most_in(index);
            assert_eq!((bucket(most), bucket(most + 1)), (index, index + 1));
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(most_in(BUCKETS - 1), u64::MAX);
    }

    proptest! {
        #[test]
        fn a_quantile_is_at_most_a_bucket_above(
            mut all in proptest::collection::vec(0..1_u64 << 40, 1..200),
            share in 0.0..=1.0_f64,
        ) {
            let mut latencies = Latencies::default();
            for one in &all {
                latencies.add(*one);
            }
            all.sort_unstable();
            let length = all.len() as f64;
            let rank = ((length * share).ceil() as usize).max(1);
            let exact = all[rank - 1];
            let found = latencies.quantile_ps(share).unwrap();
            prop_assert!(found >= exact && found <= exact + exact / 128, "{found} {exact}");
            prop_assert!(found <= *all.last().unwrap());
            let mean = all.iter().sum::<u64>() as f64 / all.len() as f64;
            prop_assert!((latencies.mean_ps().unwrap() - mean).abs() <= 1e-9 * mean);
        }
    }
}
