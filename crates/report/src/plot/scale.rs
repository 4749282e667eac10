// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps figures to positions, and chooses the ticks.

/// Linear or logarithmic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Equal differences have equal distances.
    #[default]
    Linear,
    /// Equal ratios have equal distances; only positive figures can be shown.
    Log,
}

/// Maps figures to positions.
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
    /// A scale that shows `low` to `high`, widened to round numbers, between the positions `from` and `to`, with about
    /// `ticks` ticks.
    pub fn new(kind: Kind, low: f64, high: f64, from: f64, to: f64, ticks: usize) -> Self {
        let (low, high, ticks) = match kind {
            Kind::Linear => linear_ticks(low, high, ticks),
            Kind::Log => log_ticks(low, high),
        };
        Self {
            kind,
            low,
            high,
            from,
            to,
            ticks,
        }
    }

    /// A scale exactly from `low` to `high`, with the ticks in between.
    pub fn exact(kind: Kind, low: f64, high: f64, from: f64, to: f64, ticks: usize) -> Self {
        let wide = Self::new(kind, low, high, from, to, ticks);
        if high <= low || (kind == Kind::Log && low <= 0.0) {
            return wide;
        }
        let slack = (high - low) * 1e-9;
        let ticks = wide
            .ticks
            .iter()
            .copied()
            .filter(|t| *t >= low - slack && *t <= high + slack)
            .collect();
        Self {
            low,
            high,
            ticks,
            ..wide
        }
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

    /// The start of the scale: 0, or the lowest decade.
    pub fn origin(&self) -> f64 {
        self.at(if self.kind == Kind::Linear {
            0.0
        } else {
            self.low
        })
    }
}

/// Steps of 1, 2 or 5 times a power of ten.
fn linear_ticks(low: f64, high: f64, count: usize) -> (f64, f64, Vec<f64>) {
    let high = if high > low {
        high
    } else {
        low + low.abs().max(1.0)
    };
    #[allow(clippy::cast_precision_loss)]
    let rough = (high - low) / count.max(1) as f64;
    let decade = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|m| m * decade)
        .into_iter()
        .find(|s| *s >= rough * 0.999)
        .unwrap_or(rough);
    let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
    #[allow(clippy::cast_possible_truncation)]
    let ticks = (first as i64..=last as i64)
        .map(|i| rounded(i as f64 * step, step))
        .collect();
    (first * step, last * step, ticks)
}

/// Rounds to the step: 3 x 0.1 gives 0.3, not 0.30000000000000004.
fn rounded(value: f64, step: f64) -> f64 {
    let unit = 10f64.powf(step.log10().floor() - 1.0);
    let digits = (-unit.log10()).ceil().clamp(0.0, 12.0);
    let factor = 10f64.powf(digits);
    (value * factor).round() / factor
}

/// Decades, with 2 and 5 between them if there are few. The ends are at such a number, not always at a decade.
fn log_ticks(low: f64, high: f64) -> (f64, f64, Vec<f64>) {
    let low = if low > 0.0 { low } else { 1.0 };
    let high = if high > low { high } else { low * 10.0 };
    let (first, last) = ((low.log10() + 1e-9).floor(), (high.log10() - 1e-9).ceil());
    let steps: &[f64] = if last - first <= 3.0 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    #[allow(clippy::cast_possible_truncation)]
    let all: Vec<f64> = (first as i32..=last as i32)
        .flat_map(|d| steps.iter().map(move |s| s * 10f64.powi(d)))
        .collect();
    let start = all.iter().rposition(|t| *t <= low * 1.000_001).unwrap_or(0);
    let end = all
        .iter()
        .position(|t| *t >= high * 0.999_999)
        .unwrap_or(all.len() - 1);
    let ticks = all[start..=end].to_vec();
    (ticks[0], ticks[ticks.len() - 1], ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let scale = Scale::new(Kind::Linear, low, high, 0.0, 100.0, 5);
            assert!(
                scale.ticks[0] <= low && *scale.ticks.last().unwrap() >= high,
                "{low} {high} {:?}",
                scale.ticks
            );
            assert!((2..=9).contains(&scale.ticks.len()), "{:?}", scale.ticks);
        }
        assert_eq!(
            Scale::new(Kind::Linear, 0.0, 0.5, 0.0, 1.0, 5).ticks,
            [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
        );
        assert_eq!(
            Scale::new(Kind::Log, 5.0, 200.0, 0.0, 1.0, 5).ticks,
            [5.0, 10.0, 20.0, 50.0, 100.0, 200.0]
        );
        assert_eq!(
            Scale::new(Kind::Log, 3.0, 2e6, 0.0, 1.0, 5).ticks.first(),
            Some(&1.0)
        );
    }

    #[test]
    fn a_logarithmic_scale_spreads_ratios_evenly() {
        let scale = Scale::new(Kind::Log, 1.0, 100.0, 0.0, 10.0, 5);
        assert!((scale.at(10.0) - 5.0).abs() < 1e-9);
        assert_eq!(scale.at(0.0), 0.0);
    }
}
