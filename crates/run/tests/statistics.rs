// SPDX-License-Identifier: MIT OR Apache-2.0
//! The statistics against plain reference implementations.

use memwarden_run::statistics::{
    Metric, median, nearest_rank, ratio_of_medians, share_ci95, widened,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap());
    sorted
}

/// The literal definition: the smallest value such that at least p percent of the samples are not above it.
fn percentile_by_definition(samples: &[f64], p_thousandths: usize) -> f64 {
    let at_or_below = |v: f64| samples.iter().filter(|s| **s <= v).count();
    sorted(samples)
        .into_iter()
        .find(|v| at_or_below(*v) * 100_000 >= p_thousandths * samples.len())
        .unwrap()
}

fn near(a: f64, b: f64, scale: f64) -> bool {
    (a - b).abs() <= 1e-9 * scale.max(1e-300)
}

proptest! {
    #[test]
    fn percentiles_are_nearest_rank(samples in vec(-1e6..1e6f64, 1..300)) {
        let m = Metric::from_samples("x", &samples);
        let found = [m.p50, m.p90, m.p99, m.p999, m.max].map(Option::unwrap);
        prop_assert_eq!(found, [50_000, 90_000, 99_000, 99_900, 100_000].map(|p| percentile_by_definition(&samples, p)));
        prop_assert_eq!(m.min, sorted(&samples).first().copied());
        prop_assert_eq!(m.samples, samples.len() as u64);
    }

    #[test]
    fn mean_and_stdev_are_the_textbook_s(samples in vec(-1e6..1e6f64, 2..300)) {
        let n = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / n;
        let stdev = (samples.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
        let m = Metric::from_samples("x", &samples);
        prop_assert!(near(m.mean.unwrap(), mean, 1e6));
        prop_assert!(near(m.stdev.unwrap(), stdev, 1e6));
    }

    #[test]
    fn the_order_of_samples_does_not_matter(samples in vec(-1e6..1e6f64, 1..60)) {
        let reversed: Vec<f64> = samples.iter().rev().copied().collect();
        prop_assert_eq!(Metric::from_samples("x", &samples), Metric::from_samples("x", &reversed));
    }

    #[test]
    fn whatever_is_not_finite_stays_out(samples in vec(any::<f64>(), 0..50)) {
        let finite = samples.iter().filter(|v| v.is_finite()).count();
        let m = Metric::from_samples("x", &samples);
        prop_assert_eq!(m.samples, finite as u64);
        prop_assert_eq!(m.note.is_some(), finite == 0 || finite < samples.len());
        let figures = [m.median, m.mean, m.stdev, m.min, m.p50, m.p90, m.p99, m.p999, m.max];
        prop_assert!(figures.iter().flatten().all(|v| v.is_finite()));
        prop_assert_eq!(m.median.is_some() && m.mean.is_some(), finite > 0);
    }

    #[test]
    fn a_metric_survives_json(samples in vec(any::<f64>(), 0..20)) {
        let m = Metric::from_samples("x", &samples);
        let text = serde_json::to_string(&m).unwrap();
        prop_assert_eq!(serde_json::from_str::<Metric>(&text).unwrap(), m);
    }

    #[test]
    fn a_ratio_scales_with_its_samples(samples in vec(1.0..1e3f64, 5..60), factor in 0.01..100.0f64) {
        let scaled: Vec<f64> = samples.iter().map(|v| v * factor).collect();
        let ratio = ratio_of_medians(&scaled, &samples);
        let [low, high] = ratio.ci95.unwrap();
        prop_assert!(near(ratio.ratio.unwrap(), factor, factor));
        prop_assert!(low <= factor * (1.0 + 1e-9) && factor <= high * (1.0 + 1e-9));
    }
}

proptest! {
    // Thousands of resamples a case: fewer cases than the default 256 keep this under a second.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_interval_holds_the_median_and_stays_within_the_samples(samples in vec(-1e6..1e6f64, 2..1200)) {
        let m = Metric::from_samples("x", &samples);
        let [low, high] = m.median_ci95.unwrap();
        let median = m.median.unwrap();
        prop_assert!(m.min.unwrap() <= low && low <= median && median <= high && high <= m.max.unwrap());
    }
}

#[test]
fn known_values() {
    // The example of the nearest-rank definition: 15, 20, 35, 40, 50.
    let samples = [15.0, 20.0, 35.0, 40.0, 50.0];
    assert_eq!(
        [5.0, 30.0, 40.0, 50.0, 100.0].map(|p| nearest_rank(&samples, p)),
        [15.0, 20.0, 20.0, 35.0, 50.0]
    );
    let thousand: Vec<f64> = (1..=1000).map(f64::from).collect();
    assert_eq!(nearest_rank(&thousand, 99.9), 999.0);
    assert_eq!(median(&[1.0, 2.0]), 1.5);
    assert_eq!(median(&[f64::MIN, f64::MAX]), 0.0);
    let one = Metric::from_samples("x", &[7.0]);
    assert_eq!(
        (one.median, one.stdev, one.median_ci95),
        (Some(7.0), None, None)
    );
    let none = Metric::from_samples("x", &[]);
    assert_eq!(none.note.as_deref(), Some("not measured: no samples"));
    assert_eq!(ratio_of_medians(&[1.0, 2.0], &[0.0, 0.0]).ratio, None);
    assert_eq!(ratio_of_medians(&[], &[1.0]).ratio, None);
}

#[test]
fn a_ratio_of_fewer_than_five_samples_has_no_interval() {
    let (few, enough) = ([3.0, 3.1, 3.2, 3.3], [1.0, 1.1, 1.2, 1.3, 1.4]);
    let (few, enough) = (&few[..], &enough[..]);
    for (over, under) in [(few, enough), (enough, few), (few, few)] {
        let ratio = ratio_of_medians(over, under);
        assert!(ratio.ratio.is_some() && ratio.ci95.is_none());
        assert!(!ratio.differs());
    }
    assert!(ratio_of_medians(enough, enough).ci95.is_some());
}

/// 400 sets of uniform numbers: the interval of their median contains the true median about 95 times in 100.
#[test]
fn the_interval_covers_what_it_says() {
    for (n, times) in [(5, 400), (25, 400), (2001, 400)] {
        let mut state = 7u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let held = (0..times)
            .filter(|_| {
                let samples: Vec<f64> = (0..n).map(|_| next()).collect();
                let [low, high] = Metric::from_samples("x", &samples).median_ci95.unwrap();
                low <= 0.5 && 0.5 <= high
            })
            .count();
        assert!(
            (times * 91 / 100..=times * 99 / 100).contains(&held),
            "{held} of {times} with {n} samples"
        );
    }
}

/// Each sample keeps a share of the previous one's distance from the median: an autoregressive process of first order.
#[test]
fn the_interval_covers_what_it_says_when_samples_depend_on_each_other() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut noise = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
    for (n, kept) in [(200, 0.5), (1000, 0.9), (20_000, 0.9), (20_000, 0.99)] {
        let times = 100;
        let held = (0..times)
            .filter(|_| {
                let mut at = noise() / f64::sqrt(1.0 - kept * kept);
                let samples: Vec<f64> = (0..n)
                    .map(|_| {
                        at = kept * at + noise();
                        at
                    })
                    .collect();
                let [low, high] = Metric::from_samples("x", &samples).median_ci95.unwrap();
                low <= 0.0 && 0.0 <= high
            })
            .count();
        assert!(
            (times * 90 / 100..=times).contains(&held),
            "{held} of {times} with {n} samples that keep {kept}"
        );
    }
}

/// A ratio's interval, too: both runs are of one process each, and nothing differs.
#[test]
fn two_runs_of_one_process_each_seldom_differ_by_chance() {
    let mut random = fastrand::Rng::with_seed(5);
    let mut run = || {
        let mut at = 0.0;
        (0..1000)
            .map(|_| {
                at = 0.9 * at + random.f64() - 0.5;
                100.0 + at
            })
            .collect::<Vec<f64>>()
    };
    let differ = (0..100)
        .filter(|_| ratio_of_medians(&run(), &run()).differs())
        .count();
    assert!(differ <= 12, "{differ} of 100");
}

/// Wilson's interval contains the shares p whose binomial is within 1.96 standard deviations of the observed share.
#[test]
fn the_interval_of_a_share_is_wilson_s() {
    for (hits, of) in [
        (0u32, 10u32),
        (1, 10),
        (5, 10),
        (10, 10),
        (3, 1000),
        (280, 1000),
    ] {
        // Spread as evenly as possible, so that no neighbours resemble each other.
        let trials: Vec<bool> = (0..of)
            .map(|t| t * hits / of != (t + 1) * hits / of)
            .collect();
        let [low, high] = share_ci95(&trials).unwrap();
        let (n, seen) = (f64::from(of), f64::from(hits) / f64::from(of));
        assert!(low <= seen && seen <= high && low >= 0.0 && high <= 1.0);
        for end in [low, high].into_iter().filter(|p| *p > 0.0 && *p < 1.0) {
            let deviations = (seen - end).abs() / (end * (1.0 - end) / n).sqrt();
            assert!(
                (deviations - 1.96).abs() < 1e-4,
                "{hits} of {of}: {deviations}"
            );
        }
    }
    // No miss in 1000 jobs means below 0.4 %, not "never".
    assert!((share_ci95(&[false; 1000]).unwrap()[1] - 0.00383).abs() < 1e-5);
    assert_eq!(share_ci95(&[]), None);
}

/// Late jobs come in rows of about ten, a tenth of all are late.
#[test]
fn the_interval_of_a_share_covers_what_it_says_when_misses_come_in_rows() {
    let mut random = fastrand::Rng::with_seed(11);
    let times = 300;
    let held = (0..times)
        .filter(|_| {
            let mut late = false;
            let trials: Vec<bool> = (0..2000)
                .map(|_| {
                    let ends = if late { 0.1 } else { 0.1 / 9.0 };
                    late ^= random.f64() < ends;
                    late
                })
                .collect();
            let [low, high] = share_ci95(&trials).unwrap();
            low <= 0.1 && 0.1 <= high
        })
        .count();
    assert!(held >= times * 90 / 100, "{held} of {times}");
}

/// The normal distribution's quantiles of 0.9975 and 0.975 are 2.8070 and 1.9600: tables of any textbook.
#[test]
fn an_interval_is_widened_for_the_number_of_cases() {
    assert_eq!(
        widened(1.1, [1.0, 1.2], 1).map(f64::to_bits),
        [1.0_f64, 1.2].map(f64::to_bits)
    );
    let [low, high] = widened(2.0, [2.0 / 0.1_f64.exp(), 2.0 * 0.1_f64.exp()], 10);
    for end in [(2.0 / low).ln(), (high / 2.0).ln()] {
        assert!((end - 0.1 * 2.8070 / 1.9600).abs() < 1e-4, "{end}");
    }
}
