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
//! - A ratio of medians has an interval from [`FEWEST_FOR_RATIO`] samples on each side on.
//! - The interval of a share (deadlines missed of all deadlines) is Wilson's score interval, 95 %: it is right for few
//!   events and for none, for which a bootstrap interval would have no width.
//! - Consecutive samples of one process resemble each other: its pages, the frequency and the other cores' work are the
//!   same for both. From 32 samples on, both intervals count with the number of independent
//!   samples that would tell as much. Samples have to be given in the order of their measurement.
//! - Outliers are kept. A figure that is not finite is never returned: it is null with a note.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Resamples of a bootstrap. The interval's ends are the 2.5 % and 97.5 % quantiles of the resampled medians. The share
/// of resamples below such a quantile has a standard error of sqrt(0.025 x 0.975 / 4000) = 0.25 %, so the interval
/// covers 95 +- 0.35 %: more exact than a few samples are.
const RESAMPLES: usize = 4000;

/// Above this number of samples a resample is not drawn sample by sample: see [`Resampler`].
const DRAWN_ONE_BY_ONE: usize = 1000;

/// With fewer samples on a side, a ratio of medians has no interval: the range of n samples contains the median in
/// 1 - 2^(1-n) of all cases, of 2, 3 and 4 samples in 50, 75 and 87.5 %, of 5 in 93.75 %. Of two sets of 3 samples that
/// differ by chance only, one pair in ten has all samples of one set above all of the other.
pub const FEWEST_FOR_RATIO: usize = 5;

/// With fewer samples their dependence cannot be estimated, and they count as independent.
const FEWEST_FOR_DEPENDENCE: usize = 32;

/// The dependence of more samples is estimated from the sums of that many groups of consecutive ones.
const GROUPS: usize = 4096;

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
            median_ci95: median_ci95(&Resampled::new(samples)),
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
    /// Its 95 % confidence interval; null with fewer than 5 samples on a side.
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
    let (over, under) = (Resampled::new(over), Resampled::new(under));
    if over.sorted.is_empty() || under.sorted.is_empty() {
        return Ratio::default();
    }
    let ratio = Some(median(&over.sorted) / median(&under.sorted)).filter(|r| r.is_finite());
    let fewest = over.sorted.len().min(under.sorted.len());
    if ratio.is_none() || fewest < FEWEST_FOR_RATIO {
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

/// The 95 % interval of a ratio, widened for one claim on the largest of `of` ratios (Bonferroni's correction). The
/// distances of its ends from the ratio are, as logarithms, those of the 95 % interval times the ratio of the normal
/// distribution's quantiles. If the 95 % interval is exact, one of `of` ratios without an effect excludes 1 in 5 % of all
/// runs at most; a bootstrap interval of few samples is too short, and so is this one.
pub fn widened(ratio: f64, [low, high]: [f64; 2], of: usize) -> [f64; 2] {
    if of < 2 || low <= 0.0 {
        return [low, high];
    }
    let factor = upper_quantile(0.025 / of as f64) / upper_quantile(0.025);
    let wider = |end: f64| ratio * (end / ratio).powf(factor);
    [wider(low).min(low), wider(high).max(high)]
}

/// The number that a standard normal one exceeds with the probability `p` below one half; off by less than 0.00045.
/// Formula 26.2.23 of M. Abramowitz and I. A. Stegun, Handbook of Mathematical Functions, 1964.
fn upper_quantile(p: f64) -> f64 {
    let t = (-2.0 * p.ln()).sqrt();
    let over = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let under = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    t - over / under
}

/// 95 % interval of the probability of a hit, from trials in the order in which they were made; `None` without a trial.
/// Trials that are all hits, or of which none is, count as independent, since nothing shows their dependence.
///
/// The score interval of E. B. Wilson, Probable Inference, the Law of Succession, and Statistical Inference, Journal of
/// the American Statistical Association 22(158), 1927.
pub fn share_ci95(trials: &[bool]) -> Option<[f64; 2]> {
    // The 97.5 % quantile of the normal distribution.
    const Z: f64 = 1.959_963_984_540_054;
    if trials.is_empty() {
        return None;
    }
    let (hits, of) = (trials.iter().filter(|hit| **hit).count(), trials.len());
    let share = hits as f64 / of as f64;
    let n = independent(
        trials.len(),
        trials.iter().map(|hit| f64::from(u8::from(*hit)) - share),
    );
    let shrink = 1.0 + Z * Z / n;
    let middle = (share + Z * Z / (2.0 * n)) / shrink;
    let half = Z / shrink * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    // At the ends the formula gives 0 and 1 except for rounding.
    let low = if hits == 0 { 0.0 } else { middle - half };
    let high = if hits == of { 1.0 } else { middle + half };
    Some([low, high])
}

/// The number of independent samples whose mean varies as much as that of `number` samples with these deviations from
/// the mean, in the order of measurement: the number divided by 1 + 2 times the sum of the autocorrelations. At most
/// `number`.
///
/// The sum ends before the first pair of neighbouring lags that is not positive, since what follows is noise: the
/// initial positive sequence of C. J. Geyer, Practical Markov Chain Monte Carlo, Statistical Science 7(4), 1992.
fn independent(number: usize, deviations: impl Iterator<Item = f64>) -> f64 {
    let n = number as f64;
    if number < FEWEST_FOR_DEPENDENCE {
        return n;
    }
    let size = number.div_ceil(GROUPS);
    let mut sums = vec![0.0; number.div_ceil(size)];
    let mut squares = 0.0;
    for (index, deviation) in deviations.enumerate() {
        sums[index / size] += deviation;
        squares += deviation * deviation;
    }
    let at_lag = |lag: usize| -> f64 { sums.iter().zip(&sums[lag..]).map(|(a, b)| a * b).sum() };
    let lags = (1..sums.len() / 2).step_by(2);
    // Lag 0 counts once, the others twice: before and after.
    let sum = lags
        .map(|lag| {
            if lag == 1 {
                at_lag(0) + 2.0 * at_lag(1)
            } else {
                2.0 * (at_lag(lag - 1) + at_lag(lag))
            }
        })
        .take_while(|pair| *pair > 0.0)
        .sum::<f64>();
    if sum > squares { n * squares / sum } else { n }
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

fn median_ci95(samples: &Resampled) -> Option<[f64; 2]> {
    if samples.sorted.len() < 2 {
        return None;
    }
    let mut rng = fastrand::Rng::with_seed(SEED);
    let mut resampler = Resampler::new(samples);
    let mut medians: Vec<f64> = (0..RESAMPLES).map(|_| resampler.median(&mut rng)).collect();
    interval(&mut medians)
}

/// The 2.5 % and 97.5 % quantiles.
fn interval(values: &mut [f64]) -> Option<[f64; 2]> {
    values.sort_unstable_by(f64::total_cmp);
    let ends = [nearest_rank(values, 2.5), nearest_rank(values, 97.5)];
    ends.iter().all(|v| v.is_finite()).then_some(ends)
}

/// Samples to draw from.
struct Resampled {
    sorted: Vec<f64>,
    /// Number of draws of a resample: the number of samples, if they are independent.
    draws: usize,
}

impl Resampled {
    /// Of samples in the order of their measurement. The median varies with the number of samples below it, so the
    /// dependence of the samples' sides counts, not that of the samples: outliers have no effect on it (the variance of
    /// a quantile of dependent samples: P. K. Sen, Journal of Multivariate Analysis 2(1), 1972).
    fn new(samples: &[f64]) -> Self {
        let sorted = sorted_finite(samples);
        if sorted.len() < FEWEST_FOR_DEPENDENCE {
            let draws = sorted.len();
            return Self { sorted, draws };
        }
        let middle = median(&sorted);
        let finite = samples.iter().filter(|sample| sample.is_finite());
        let sides = finite.map(|sample| match sample.total_cmp(&middle) {
            std::cmp::Ordering::Less => -1.0,
            std::cmp::Ordering::Equal => 0.0,
            std::cmp::Ordering::Greater => 1.0,
        });
        let draws = independent(sorted.len(), sides).round().max(1.0) as usize;
        Self { sorted, draws }
    }
}

/// Draws medians of resamples.
///
/// The middle of a resample of m draws from n sorted samples is the sample of rank ceil(n x U), where U is the median
/// of m uniform numbers: a Beta variable with mean 1/2 and variance 1/(4(m+2)). For many draws that rank is drawn
/// directly (Beta by its normal limit, off by less than 1/m), so that a million samples cost no more than a thousand.
struct Resampler<'a> {
    sorted: &'a [f64],
    draws: usize,
    drawn: Vec<u32>,
}

impl<'a> Resampler<'a> {
    fn new(samples: &'a Resampled) -> Self {
        let one_by_one = samples.draws <= DRAWN_ONE_BY_ONE;
        Self {
            sorted: &samples.sorted,
            draws: samples.draws,
            drawn: vec![0; if one_by_one { samples.draws } else { 0 }],
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )]
    fn median(&mut self, rng: &mut fastrand::Rng) -> f64 {
        let n = self.sorted.len();
        if self.draws > DRAWN_ONE_BY_ONE {
            let spread = 0.5 / (self.draws as f64 + 2.0).sqrt();
            let rank = ((0.5 + spread * gaussian(rng)).clamp(0.0, 1.0) * n as f64).ceil() as usize;
            return self.sorted[rank.clamp(1, n) - 1];
        }
        for index in &mut self.drawn {
            *index = rng.u32(0..n as u32);
        }
        let (below, high, _) = self.drawn.select_nth_unstable(self.draws / 2);
        let high = *high as usize;
        let low = if self.draws % 2 == 1 {
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
