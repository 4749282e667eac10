// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plots: small SVG charts with colours from CSS, so that one drawing suits light mode, dark mode and paper.
//!
//! No library draws what a run folder needs: `plotters` writes fixed colours into attributes (no dark mode),
//! `charts-rs`
//! and `eb_bars` support no error bars or logarithmic axes, `poloto` no grouped bars. A chart is plain data
//! ([`Chart`]);
//! [`Chart::draw`] lays it out for a [`Layout`], because text must not shrink with the screen.

mod bars;
mod histogram;
mod scale;
mod svg;
mod xy;

pub use bars::{Bar, BarChart, Group};
pub use histogram::{Histogram, Panel};
pub use scale::Kind;
pub use svg::{CHART_CSS, DARK, Drawing, LIGHT};
pub use xy::{Line, Point, XyChart, places};

/// An axis.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// Its quantity.
    pub label: String,
    /// The unit; empty for a count.
    pub unit: String,
    /// Linear or logarithmic.
    pub kind: Kind,
    /// The figures are bytes, written as sizes: `64 KiB`.
    pub sizes: bool,
}

impl Axis {
    /// A linear axis. Bytes are written as sizes, with their own unit at each tick.
    pub fn new(label: impl Into<String>, unit: impl Into<String>) -> Self {
        let unit = unit.into();
        if unit == "bytes" {
            return Self::sizes(label);
        }
        Self {
            label: label.into(),
            unit,
            kind: Kind::Linear,
            sizes: false,
        }
    }

    /// An axis of sizes in bytes.
    pub fn sizes(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            unit: String::new(),
            kind: Kind::Linear,
            sizes: true,
        }
    }

    /// The same axis, logarithmic.
    #[must_use]
    pub fn log(mut self) -> Self {
        self.kind = Kind::Log;
        self
    }

    fn text(&self) -> String {
        if self.unit.is_empty() {
            self.label.clone()
        } else {
            format!("{} ({})", self.label, self.unit)
        }
    }

    fn tick(&self, value: f64) -> String {
        if self.sizes {
            crate::number::bytes(value as u64)
        } else {
            crate::number::figure(value)
        }
    }
}

/// A colour of the palette, by its meaning. Shape or position always carries the same information as the colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour(usize);

impl Colour {
    /// Without a guard.
    pub const UNGUARDED: Self = Self(0);
    /// With a guard.
    pub const GUARDED: Self = Self(1);

    /// The n-th colour of a series without a fixed meaning.
    pub fn nth(n: usize) -> Self {
        Self([2, 3, 4, 1, 0, 5][n % 6])
    }

    /// The n-th colour beside the two with a fixed meaning; there are [`Colour::OTHERS`].
    pub fn other(n: usize) -> Self {
        Self(2 + n % Self::OTHERS)
    }

    /// Colours without a fixed meaning.
    pub const OTHERS: usize = 4;
}

/// Meaning of most error bars.
pub const CI95: &str = "95 % interval";

/// A line across a chart at one value: solo, a limit, a deadline.
#[derive(Clone, Debug)]
pub struct Reference {
    /// Position on the axis.
    pub value: f64,
    /// Its meaning.
    pub label: String,
}

impl Reference {
    /// A line at `value`, with its meaning.
    pub fn new(value: f64, label: impl Into<String>) -> Self {
        Self {
            value,
            label: label.into(),
        }
    }
}

/// Width of the drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// For a desktop screen or paper.
    Wide,
    /// For a phone.
    Narrow,
}

impl Layout {
    fn width(self) -> f64 {
        match self {
            Self::Wide => 800.0,
            Self::Narrow => 360.0,
        }
    }
}

/// Any chart.
#[derive(Clone, Debug)]
pub enum Chart {
    /// Groups of horizontal bars.
    Bars(BarChart),
    /// Lines and points.
    Xy(XyChart),
    /// Distributions, one under the other.
    Histogram(Histogram),
}

impl Chart {
    /// True if it has values and all are 0: a sentence then replaces the chart.
    pub fn is_zero(&self) -> bool {
        let values: Vec<f64> = match self {
            Self::Bars(chart) => {
                let bars = chart.groups.iter().flat_map(|group| &group.bars);
                bars.filter_map(|bar| bar.value).collect()
            }
            Self::Xy(chart) => {
                let points = chart.lines.iter().flat_map(|line| &line.points);
                points.map(|point| point.y).collect()
            }
            Self::Histogram(chart) => {
                let panels = chart.panels.iter();
                panels
                    .flat_map(|panel| panel.samples.iter().copied())
                    .collect()
            }
        };
        !values.is_empty() && values.iter().all(|value| *value == 0.0)
    }

    /// Draws it.
    pub fn draw(&self, layout: Layout) -> Drawing {
        match self {
            Self::Bars(chart) => chart.draw(layout),
            Self::Xy(chart) => chart.draw(layout),
            Self::Histogram(chart) => chart.draw(layout),
        }
    }
}
