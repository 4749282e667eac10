// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps figures to positions, and chooses the ticks.

use super::Axis;
use super::svg::{FONT, width_of};

/// Linear or logarithmic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Equal differences have equal distances.
    #[default]
    Linear,
    /// Equal ratios have equal distances; only positive figures can be shown.
    Log,
}

/// Direction of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From left to right.
    Across,
    /// From the bottom to the top.
    Up,
}

/// Maps figures to positions.
#[derive(Clone, Debug)]
pub struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    /// Figures with a tick.
    pub ticks: Vec<f64>,
}

impl Scale {
    /// A scale that shows `low` to `high`, widened to ticks, between the positions `from` and `to`, with about `count`
    /// ticks whose labels do not overlap.
    pub fn new(
        axis: &Axis,
        way: Way,
        low: f64,
        high: f64,
        from: f64,
        to: f64,
        count: usize,
    ) -> Self {
        let of = |ticks: Vec<f64>| Self {
            kind: axis.kind,
            low: ticks[0],
            high: ticks[ticks.len() - 1],
            from,
            to,
            ticks,
        };
        Self::densest_that_fits(axis, way, candidates(axis, low, high, count), of)
    }

    /// A scale exactly from `low` to `high`, with the ticks in between; widened if there are fewer than two.
    pub fn exact(
        axis: &Axis,
        way: Way,
        low: f64,
        high: f64,
        from: f64,
        to: f64,
        count: usize,
    ) -> Self {
        if high <= low || (axis.kind == Kind::Log && low <= 0.0) {
            return Self::new(axis, way, low, high, from, to, count);
        }
        let slack = (high - low) * 1e-9;
        let of = |mut ticks: Vec<f64>| {
            ticks.retain(|t| *t >= low - slack && *t <= high + slack);
            Self {
                kind: axis.kind,
                low,
                high,
                from,
                to,
                ticks,
            }
        };
        let scale = Self::densest_that_fits(axis, way, candidates(axis, low, high, count), of);
        if scale.ticks.len() < 2 {
            return Self::new(axis, way, low, high, from, to, count);
        }
        scale
    }

    /// The scale of the densest ticks whose labels fit, or of the coarsest that are at least two.
    fn densest_that_fits(
        axis: &Axis,
        way: Way,
        candidates: Vec<Vec<f64>>,
        of: impl Fn(Vec<f64>) -> Self,
    ) -> Self {
        let mut scales = candidates.into_iter().map(of);
        let mut scale = scales.next().expect("an axis has ticks");
        for coarser in scales {
            if scale.labels_fit(axis, way) || coarser.ticks.len() < 2 {
                break;
            }
            scale = coarser;
        }
        scale
    }

    /// True if no tick's label overlaps the next one's.
    fn labels_fit(&self, axis: &Axis, way: Way) -> bool {
        let half = |tick: f64| match way {
            Way::Across => (width_of(&axis.tick(tick)) + BETWEEN_LABELS) / 2.0,
            Way::Up => FONT * 0.75,
        };
        self.ticks.windows(2).all(|pair| {
            (self.at(pair[1]) - self.at(pair[0])).abs() >= half(pair[0]) + half(pair[1])
        })
    }

    /// The position of `value`, limited to the ends of the scale.
    pub fn at(&self, value: f64) -> f64 {
        let share = match self.kind {
            Kind::Linear => (value - self.low) / (self.high - self.low),
            Kind::Log if value > 0.0 => (value / self.low).ln() / (self.high / self.low).ln(),
            Kind::Log => 0.0,
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// True if the scale cannot show `value`: 0 or less on a logarithmic one.
    pub fn lacks(&self, value: f64) -> bool {
        self.kind == Kind::Log && value <= 0.0
    }

    /// The start of the scale: 0, or the lowest figure of a logarithmic one.
    pub fn origin(&self) -> f64 {
        self.at(if self.kind == Kind::Linear {
            0.0
        } else {
            self.low
        })
    }
}

/// Pixels between two labels.
const BETWEEN_LABELS: f64 = 9.0;

/// Steps of a linear axis, in units of its base's power.
const DECIMAL: [f64; 3] = [1.0, 2.0, 5.0];

/// Ticks that enclose `low` and `high`, the densest first.
fn candidates(axis: &Axis, low: f64, high: f64, count: usize) -> Vec<Vec<f64>> {
    match axis.kind {
        Kind::Linear => linear_candidates(low, high, count, axis.sizes),
        Kind::Log if axis.sizes => powers_of_two(low, high),
        Kind::Log => decades(low, high),
    }
}

/// Steps of 1, 2 or 5 times a power of ten, or, for bytes, of a power of two.
fn linear_candidates(low: f64, high: f64, count: usize, bytes: bool) -> Vec<Vec<f64>> {
    let high = if high > low {
        high
    } else {
        low + low.abs().max(1.0)
    };
    let rough = (high - low) / count.max(1) as f64;
    let decade = 10f64.powf(rough.log10().floor());
    let steps: Vec<f64> = if bytes {
        // No tick is a fraction of a byte.
        let first = rough.log2().max(0.0).ceil();
        (0..4).map(|n| (first + f64::from(n)).exp2()).collect()
    } else {
        let all = [1.0, 10.0, 100.0]
            .iter()
            .flat_map(|tens| DECIMAL.map(|m| m * tens * decade));
        all.filter(|step| *step >= rough * 0.999).take(4).collect()
    };
    let enclosing = |step: f64| {
        let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
        let ticks = (first as i64..=last as i64).map(|i| rounded(i as f64 * step, step));
        ticks.collect()
    };
    steps.into_iter().map(enclosing).collect()
}

/// Rounds to the step: 3 x 0.1 gives 0.3, not 0.30000000000000004.
fn rounded(value: f64, step: f64) -> f64 {
    let unit = 10f64.powf(step.log10().floor() - 1.0);
    let digits = (-unit.log10()).ceil().clamp(0.0, 12.0);
    let factor = 10f64.powf(digits);
    (value * factor).round() / factor
}

/// 1, 2 and 5 times each decade if there are few, decades, every second, third, fifth or tenth decade. The ends of the
/// first are at such a number, not always at a decade.
fn decades(low: f64, high: f64) -> Vec<Vec<f64>> {
    let low = if low > 0.0 && low.is_finite() {
        low
    } else {
        1.0
    };
    let high = if high > low { high } else { low * 10.0 };
    let (first, last) = ((low.log10() + 1e-9).floor(), (high.log10() - 1e-9).ceil());
    let (first, last) = (first as i32, last as i32);
    let every = |decades: i32, steps: &[f64]| {
        let (first, last) = (first.div_euclid(decades), -(-last).div_euclid(decades));
        let all =
            (first..=last).flat_map(|nth| steps.iter().map(move |s| s * 10f64.powi(nth * decades)));
        enclosing(all.collect(), low, high)
    };
    let mut all = Vec::new();
    if last - first <= 3 {
        all.push(every(1, &DECIMAL));
    }
    all.extend([1, 2, 3, 5, 10].map(|decades| every(decades, &[1.0])));
    all
}

/// Sizes in bytes: every power of two, or every second, fifth, tenth or twentieth: 1, 4, 16, 64, 256 KiB, 1 MiB.
fn powers_of_two(low: f64, high: f64) -> Vec<Vec<f64>> {
    let low = if low > 0.0 && low.is_finite() {
        low
    } else {
        1.0
    };
    // A single size is in the middle.
    let (low, high) = if high > low {
        (low, high)
    } else {
        (low / 2.0, low * 2.0)
    };
    let every = |step: f64| {
        let (first, last) = ((low.log2() / step).floor(), (high.log2() / step).ceil());
        let all = (first as i32..=last as i32).map(|power| (f64::from(power) * step).exp2());
        enclosing(all.collect(), low, high)
    };
    [1.0, 2.0, 5.0, 10.0, 20.0].map(every).into()
}

/// From the last tick up to `low` to the first from `high` on.
fn enclosing(all: Vec<f64>, low: f64, high: f64) -> Vec<f64> {
    let start = all.iter().rposition(|t| *t <= low * 1.000_001).unwrap_or(0);
    let end = all.iter().position(|t| *t >= high * 0.999_999);
    all[start..=end.unwrap_or(all.len() - 1)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linear(low: f64, high: f64) -> Scale {
        Scale::new(&Axis::default(), Way::Up, low, high, 300.0, 0.0, 5)
    }

    fn log(axis: &Axis, low: f64, high: f64, width: f64) -> Scale {
        let axis = axis.clone().log();
        Scale::new(&axis, Way::Across, low, high, 0.0, width, 6)
    }

    #[test]
    fn ticks_are_round_and_enclose_the_figures() {
        for (low, high) in [
            (0.0, 3.94),
            (0.0, 0.0),
            (0.0, 16384.0),
            (-0.02, 0.013),
            (0.0, 1e-9),
            (5.0, 5.0),
        ] {
            let scale = linear(low, high);
            assert!(
                scale.ticks[0] <= low && *scale.ticks.last().unwrap() >= high,
                "{low} {high} {:?}",
                scale.ticks
            );
            assert!((2..=9).contains(&scale.ticks.len()), "{:?}", scale.ticks);
        }
        assert_eq!(linear(0.0, 0.5).ticks, [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]);
        let plain = Axis::default();
        assert_eq!(
            log(&plain, 5.0, 200.0, 600.0).ticks,
            [5.0, 10.0, 20.0, 50.0, 100.0, 200.0]
        );
        assert_eq!(log(&plain, 3.0, 2e6, 600.0).ticks.first(), Some(&1.0));
    }

    #[test]
    fn labels_do_not_overlap_and_are_not_too_few() {
        let axes = [Axis::default(), Axis::sizes("size")];
        for (axis, sizes) in axes.iter().zip([false, true]) {
            for width in [280.0, 700.0] {
                for powers in 1..30 {
                    let (low, high) = (3.0, 3.0 * f64::from(powers).exp2());
                    let scales = [
                        log(axis, low, high, width),
                        Scale::exact(&axis.clone().log(), Way::Across, low, high, 0.0, width, 6),
                        Scale::new(axis, Way::Across, 0.0, high, 0.0, width, 6),
                    ];
                    for scale in scales {
                        let shown: Vec<String> =
                            scale.ticks.iter().map(|t| axis.tick(*t)).collect();
                        assert!(
                            scale.labels_fit(axis, Way::Across),
                            "{sizes} {width}: {shown:?}"
                        );
                        assert!(shown.len() >= 2, "{sizes} {width} {low} {high}: {shown:?}");
                        assert!(
                            powers < 3 || width < 700.0 || shown.len() >= 3,
                            "{sizes} {low} {high}: {shown:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn ticks_of_bytes_are_powers_of_two_or_multiples_of_one() {
        let axis = Axis::new("size", "bytes");
        let shown = |scale: &Scale| -> Vec<String> {
            let ticks = scale.ticks.iter();
            ticks
                .map(|t| axis.tick(*t).replace('\u{a0}', " "))
                .collect()
        };
        let wide = log(&axis, 1024.0, 4_194_304.0, 600.0);
        assert_eq!(
            shown(&wide),
            [
                "1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB", "4 MiB"
            ]
        );
        let narrow = log(&axis, 1.0, 1_048_576.0, 300.0);
        assert_eq!(shown(&narrow), ["1 B", "32 B", "1 KiB", "32 KiB", "1 MiB"]);
        assert_eq!(
            shown(&log(&axis, 4096.0, 4096.0, 600.0)),
            ["2 KiB", "4 KiB", "8 KiB"]
        );
        let linear = Scale::new(&axis, Way::Up, 0.0, 1_600_000.0, 300.0, 0.0, 5);
        assert_eq!(
            shown(&linear),
            ["0 B", "512 KiB", "1 MiB", "1.5 MiB", "2 MiB"]
        );
        let few = Scale::new(&axis, Way::Up, 0.0, 3.0, 300.0, 0.0, 5);
        assert_eq!(shown(&few), ["0 B", "1 B", "2 B", "3 B"]);
    }

    #[test]
    fn a_logarithmic_scale_spreads_ratios_evenly() {
        let scale = log(&Axis::default(), 1.0, 100.0, 600.0);
        assert!((scale.at(10.0) - 300.0).abs() < 1e-9);
        assert_eq!(scale.at(0.0), 0.0);
        assert!(scale.lacks(0.0) && !scale.lacks(0.5));
    }
}
