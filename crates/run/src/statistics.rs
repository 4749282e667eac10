// SPDX-License-Identifier: MIT OR Apache-2.0
//! The statistics of every report.
//!
//! - Percentiles are by the nearest-rank definition: the p-th percentile of n sorted samples is the one at rank
//!   ceil(p/100 x n), counted from 1. It is always a measured value; there is no interpolation. With few samples
//!   the high percentiles equal the maximum.
//! - The median is the middle sample, or the mean of the two middle ones; `p50` is by nearest rank, which for an even
//!   number of samples is the lower of the two.
//! - The standard deviation is the sample's, with n - 1; of a single sample it is null.
//! - Confidence intervals are 95 % percentile bootstrap intervals of the median (Efron and Tibshirani, An Introduction
//!   to the Bootstrap, 1993, chapter 13), drawn from a generator with a fixed seed: the same samples give the same
//!   interval. With fewer than 6 samples no distribution-free interval reaches 95 %: it is then at most the range.
//! - The interval of a share (deadlines missed of all deadlines) is Wilson's score interval, 95 %: it is right for few
//!   events and for none, for which a bootstrap interval would have no width.
//! - Outliers are kept. A figure that is not finite is never returned: it is null with a note.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Resamples of a bootstrap. The interval's ends are the 2.5 % and 97.5 % quantiles of the resampled medians. The share
/// of resamples below such a quantile has a standard error of sqrt(0.025 x 0.975 / 4000) = 0.25 %, so the interval
/// covers 95 +- 0.35 %: more exact than a few samples are.
const RESAMPLES: usize = 4000;

/// Above this number of samples a resample is not drawn sample by sample: see [`Resampler`].
const DRAWN_ONE_BY_ONE: usize = 1000;

/// An arbitrary constant, so that results are reproducible.
const SEED: u64 = 1;

/// Figures of one distribution: a metric object of summary.json.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// The quantity, with its unit in the name: `latency_ns`.
    pub metric: String,
    /// Number of samples.
    pub samples: u64,
    /// Median.
    pub median: Option<f64>,
    /// 95 % confidence interval of the median.
    #[serde(default)]
    pub median_ci95: Option<[f64; 2]>,
    /// Arithmetic mean.
    pub mean: Option<f64>,
    /// Standard deviation of the sample (n - 1).
    pub stdev: Option<f64>,
    /// Smallest.
    pub min: Option<f64>,
    /// 50th percentile, nearest rank.
    pub p50: Option<f64>,
    /// 90th percentile, nearest rank.
    pub p90: Option<f64>,
    /// 99th percentile, nearest rank.
    pub p99: Option<f64>,
    /// 99.9th percentile, nearest rank.
    #[serde(default)]
    pub p999: Option<f64>,
    /// Largest.
    pub max: Option<f64>,
    /// Reason why a figure is null, or another remark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Metric {
    /// Summarises samples of the metric `name`. Samples that are not finite are left out; the note gives their number.
    pub fn from_samples(name: impl Into<String>, samples: &[f64]) -> Self {
        let sorted = sorted_finite(samples);
        let dropped = samples.len() - sorted.len();
        let note = match (sorted.len(), dropped) {
            (0, 0) => Some("not measured: no samples".to_owned()),
            (0, _) => Some(format!(
                "not measured: none of the {dropped} samples is a finite number"
            )),
            (_, 0) => None,
            _ => Some(format!(
                "{dropped} of {} samples are not finite numbers and are left out",
                samples.len()
            )),
        };
        let metric = Self {
            metric: name.into(),
            samples: sorted.len() as u64,
            note,
            ..Self::default()
        };
        if sorted.is_empty() {
            return metric;
        }
        let percentile = |p| Some(nearest_rank(&sorted, p));
        let mean = mean(&sorted);
        let stdev = stdev(&sorted, mean);
        Self {
            median: Some(median(&sorted)),
            median_ci95: median_ci95(&sorted),
            mean: Some(mean),
            stdev: stdev.filter(|s| s.is_finite()),
            min: percentile(0.0),
            p50: percentile(50.0),
            p90: percentile(90.0),
            p99: percentile(99.0),
            p999: percentile(99.9),
            max: percentile(100.0),
            ..metric
        }
    }

    /// A metric that could not be measured, with the reason.
    pub fn unmeasured(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            metric: name.into(),
            note: Some(reason.into()),
            ..Self::default()
        }
    }
}

/// A ratio of two medians.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ratio {
    /// The ratio; null if a median is missing or the lower one is 0.
    pub ratio: Option<f64>,
    /// Its 95 % confidence interval.
    pub ci95: Option<[f64; 2]>,
}

impl Ratio {
    /// True if the interval excludes 1: the difference exceeds what the samples' spread explains.
    pub fn differs(&self) -> bool {
        self.ci95.is_some_and(|[low, high]| low > 1.0 || high < 1.0)
    }
}

/// Median of `over` divided by the median of `under`, with a bootstrap interval in which both are resampled.
pub fn ratio_of_medians(over: &[f64], under: &[f64]) -> Ratio {
    let (over, under) = (sorted_finite(over), sorted_finite(under));
    if over.is_empty() || under.is_empty() {
        return Ratio::default();
    }
    let ratio = Some(median(&over) / median(&under)).filter(|r| r.is_finite());
    if ratio.is_none() || over.len() < 2 || under.len() < 2 {
        return Ratio { ratio, ci95: None };
    }
    let mut rng = fastrand::Rng::with_seed(SEED);
    let (mut a, mut b) = (Resampler::new(&over), Resampler::new(&under));
    let mut ratios: Vec<f64> = (0..RESAMPLES)
        .map(|_| a.median(&mut rng) / b.median(&mut rng))
        .collect();
    Ratio {
        ratio,
        ci95: interval(&mut ratios),
    }
}

/// 95 % interval of the probability of a hit, from `hits` in `of` independent trials; `None` without a trial.
///
/// The score interval of E. B. Wilson, Probable Inference, the Law of Succession, and Statistical Inference, Journal of
/// the American Statistical Association 22(158), 1927.
pub fn share_ci95(hits: u64, of: u64) -> Option<[f64; 2]> {
    // The 97.5 % quantile of the normal distribution.
    const Z: f64 = 1.959_963_984_540_054;
    if of == 0 {
        return None;
    }
    let n = of as f64;
    let share = hits.min(of) as f64 / n;
    let shrink = 1.0 + Z * Z / n;
    let middle = (share + Z * Z / (2.0 * n)) / shrink;
    let half = Z / shrink * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    // At the ends the formula gives 0 and 1 except for rounding.
    let low = if hits == 0 { 0.0 } else { middle - half };
    let high = if hits >= of { 1.0 } else { middle + half };
    Some([low, high])
}

/// The value at rank ceil(percentile/100 x n), from 1, of sorted samples: the nearest-rank definition.
///
/// # Panics
/// `sorted` is empty.
pub fn nearest_rank(sorted: &[f64], percentile: f64) -> f64 {
    assert!(!sorted.is_empty(), "the percentile of nothing");
    let n = sorted.len();
    // In integers, thousandths of a percent: 99.9 % of 1000 must be rank 999, although binary cannot represent 0.999.
    let parts = (percentile.clamp(0.0, 100.0) * 1000.0).round() as u128;
    let rank = (parts * n as u128).div_ceil(100_000);
    sorted[usize::try_from(rank).unwrap_or(n).clamp(1, n) - 1]
}

/// The middle one of sorted samples, or the mean of the two middle ones.
///
/// # Panics
/// `sorted` is empty.
pub fn median(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    let (low, high) = (sorted[(n - 1) / 2], sorted[n / 2]);
    // Not (low + high) / 2, which may overflow, and not low / 2 + high / 2, which loses the smallest numbers.
    if low == high {
        low
    } else {
        low + (high / 2.0 - low / 2.0)
    }
}

/// The finite samples, sorted. Minus zero becomes zero, so that it is never printed.
fn sorted_finite(samples: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = samples
        .iter()
        .filter(|v| v.is_finite())
        .map(|v| v + 0.0)
        .collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// By running updates (Welford 1962), which neither overflow nor cancel.
fn mean(sorted: &[f64]) -> f64 {
    let mut mean = 0.0;
    for (i, v) in sorted.iter().enumerate() {
        let n = (i + 1) as f64;
        mean += v / n - mean / n;
    }
    mean.clamp(sorted[0], sorted[sorted.len() - 1])
}

fn stdev(sorted: &[f64], mean: f64) -> Option<f64> {
    let n = sorted.len();
    (n > 1)
        .then(|| (sorted.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1) as f64).sqrt())
}

fn median_ci95(sorted: &[f64]) -> Option<[f64; 2]> {
    if sorted.len() < 2 {
        return None;
    }
    let mut rng = fastrand::Rng::with_seed(SEED);
    let mut resampler = Resampler::new(sorted);
    let mut medians: Vec<f64> = (0..RESAMPLES).map(|_| resampler.median(&mut rng)).collect();
    interval(&mut medians)
}

/// The 2.5 % and 97.5 % quantiles.
fn interval(values: &mut [f64]) -> Option<[f64; 2]> {
    values.sort_unstable_by(f64::total_cmp);
    let ends = [nearest_rank(values, 2.5), nearest_rank(values, 97.5)];
    ends.iter().all(|v| v.is_finite()).then_some(ends)
}

/// Draws medians of resamples.
///
/// The middle of a resample of n draws from n sorted samples is the sample of rank ceil(n x U), where U is the median
/// of n uniform numbers: a Beta variable with mean 1/2 and variance 1/(4(n+2)). For many samples that rank is drawn
/// directly (Beta by its normal limit, off by less than 1/n), so that a million samples cost no more than a thousand.
struct Resampler<'a> {
    sorted: &'a [f64],
    drawn: Vec<u32>,
}

impl<'a> Resampler<'a> {
    fn new(sorted: &'a [f64]) -> Self {
        Self {
            sorted,
            drawn: vec![
                0;
                if sorted.len() > DRAWN_ONE_BY_ONE {
                    0
                } else {
                    sorted.len()
                }
            ],
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )]
    fn median(&mut self, rng: &mut fastrand::Rng) -> f64 {
        let n = self.sorted.len();
        if n > DRAWN_ONE_BY_ONE {
            let spread = 0.5 / (n as f64 + 2.0).sqrt();
            let rank = ((0.5 + spread * gaussian(rng)).clamp(0.0, 1.0) * n as f64).ceil() as usize;
            return self.sorted[rank.clamp(1, n) - 1];
        }
        for index in &mut self.drawn {
            *index = rng.u32(0..n as u32);
        }
        let (below, high, _) = self.drawn.select_nth_unstable(n / 2);
        let high = *high as usize;
        let low = if n % 2 == 1 {
            high
        } else {
            below.iter().copied().max().unwrap_or(0) as usize
        };
        median(&[self.sorted[low], self.sorted[high]])
    }
}

/// A standard normal number (Box and Muller 1958).
fn gaussian(rng: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.f64()).cos()
}
