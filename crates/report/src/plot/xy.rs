// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lines and points over an axis of figures.

use std::collections::BTreeSet;

use super::scale::{Kind, Scale, Way};
use super::svg::{Anchor, Canvas, FONT, Key, Side, width_of};
use super::{Axis, Colour, Drawing, Layout, Reference};

/// Width of a mark, pixels.
const MARK: f64 = 13.0;

/// Lines and points, with error bars.
#[derive(Clone, Debug, Default)]
pub struct XyChart {
    /// What it shows.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines.
    pub lines: Vec<Line>,
    /// Reference lines across the chart.
    pub references: Vec<Reference>,
    /// Meaning of the error bars.
    pub whiskers: &'static str,
    /// Label only these places of the x axis: budgets, numbers of CPUs. An axis of sizes has powers of two instead.
    pub x_ticks: Vec<f64>,
    /// Start the y axis at the lowest figure instead of 0.
    pub y_from_data: bool,
    /// Shift lines with points at the same places by some pixels, so that none hides another.
    pub apart: bool,
    /// Draw each point alone, on a stem from the x axis: counts of many single values. No line joins them, since there
    /// is nothing between two values. Of points that nearly overlap, only the tallest has a mark.
    pub stems: bool,
}

/// A line with its points.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its meaning.
    pub name: String,
    /// Its colour and mark.
    pub colour: Colour,
    /// Its points, from left to right.
    pub points: Vec<Point>,
}

/// One point.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Horizontal position.
    pub x: f64,
    /// Vertical position.
    pub y: f64,
    /// The ends of the error bar.
    pub interval: Option<[f64; 2]>,
}

impl Point {
    /// A point without an error bar.
    pub fn at(x: f64, y: f64) -> Self {
        let interval = None;
        Self { x, y, interval }
    }
}

/// The horizontal positions of the points of all lines, in ascending order.
pub fn places(lines: &[Line]) -> Vec<f64> {
    let points = lines.iter().flat_map(|line| &line.points);
    let mut places: Vec<f64> = points.map(|point| point.x).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    places
}

impl Point {
    /// The low end of the error bar, or the point itself.
    fn lowest(&self) -> f64 {
        self.interval.map_or(self.y, |[low, _]| low.min(self.y))
    }

    /// The high end of the error bar, or the point itself. A rate in a time of 0 is infinite.
    fn highest(&self) -> f64 {
        self.interval.map_or(self.y, |[_, high]| high.max(self.y))
    }
}

impl XyChart {
    pub(super) fn draw(&self, layout: Layout) -> Drawing {
        let mut canvas = Canvas::new(layout.width());
        let top = canvas.legend(&self.keys(), 0.0);
        canvas.text("mw-soft", Anchor::Start, 0.0, top + FONT, &self.y.text());
        let top = top + FONT + 17.0;
        let bottom = top + if layout == Layout::Wide { 290.0 } else { 220.0 };

        let ys = || {
            let points = self.lines.iter().flat_map(|l| &l.points);
            points
                .flat_map(|p| [p.y].into_iter().chain(p.interval.into_iter().flatten()))
                .chain(self.references.iter().map(|r| r.value))
        };
        let shown = |v: &f64| v.is_finite() && (self.y.kind == Kind::Linear || *v > 0.0);
        let start = match self.y.kind {
            // Stems show counts.
            Kind::Log if self.stems => 1.0,
            Kind::Linear if !self.y_from_data => 0.0,
            _ => f64::INFINITY,
        };
        let low = ys().filter(shown).fold(start, f64::min);
        let high = ys().filter(shown).fold(f64::NEG_INFINITY, f64::max);
        let low = if low.is_finite() { low } else { 0.0 };
        let y = Scale::new(&self.y, Way::Up, low, high.max(low), bottom, top, 5);
        let left = y
            .ticks
            .iter()
            .map(|t| width_of(&self.y.tick(*t)))
            .fold(0.0, f64::max)
            + 10.0;
        let right = canvas.width() - 16.0;
        for tick in &y.ticks {
            let at = y.at(*tick);
            canvas.line("mw-grid", left, at, right, at);
            canvas.text(
                "mw-soft",
                Anchor::End,
                left - 8.0,
                at + 4.5,
                &self.y.tick(*tick),
            );
        }

        let xs = || {
            self.lines
                .iter()
                .flat_map(|l| &l.points)
                .map(|p| p.x)
                .chain(self.x_ticks.iter().copied())
        };
        let (x_low, x_high) = (
            xs().fold(f64::INFINITY, f64::min),
            xs().fold(f64::NEG_INFINITY, f64::max),
        );
        let x_low = if x_low.is_finite() { x_low } else { 0.0 };
        // Where the axis begins and ends at points, their marks stay clear of its ends.
        let exact = self.x.sizes || !self.x_ticks.is_empty();
        let inset = if exact { 24.0 } else { 0.0 };
        let x = Place::new(self, x_low, x_high.max(x_low), left + inset, right - inset);
        for tick in x.ticks() {
            canvas.line("mw-axis", x.at(*tick), bottom, x.at(*tick), bottom + 5.0);
        }
        let labels = x.ticks().iter();
        let labels = labels.map(|tick| (x.at(*tick), self.x.tick(*tick)));
        canvas.labels_below(labels, bottom + FONT + 9.0);
        canvas.line("mw-axis", left, bottom, right, bottom);
        let middle = left.midpoint(right);
        canvas.text(
            "mw-soft",
            Anchor::Middle,
            middle,
            bottom + 2.0 * FONT + 16.0,
            &self.x.text(),
        );

        for reference in &self.references {
            let at = y.at(reference.value);
            canvas.line("mw-ref", left, at, right, at);
        }
        if self.stems {
            for line in &self.lines {
                self.stems_of(line, &mut canvas, &x, &y, bottom);
            }
        } else {
            self.lines_and_points(&mut canvas, &x, &y);
        }
        for reference in &self.references {
            let at = y.at(reference.value);
            // Below its line, as figures tend to lie on or above it, unless another line's label is there.
            let close = |other: &Reference| (1.0..18.0).contains(&(y.at(other.value) - at));
            let place = if at + 16.0 < bottom && !self.references.iter().any(close) {
                at + 15.0
            } else {
                at - 6.0
            };
            canvas.text(
                "mw-ink mw-halo",
                Anchor::End,
                right,
                place,
                &reference.label,
            );
        }
        canvas.finish(bottom + 2.0 * FONT + 24.0, &self.title)
    }

    /// The legend: lines, error bars, and the arrows of those that a logarithmic axis cannot show completely.
    fn keys(&self) -> Vec<(String, Key)> {
        let lines = self.lines.iter();
        let mut keys: Vec<_> = lines
            .map(|line| (line.name.clone(), Key::Mark(line.colour)))
            .collect();
        let points = || self.lines.iter().flat_map(|line| &line.points);
        if points().any(|point| point.interval.is_some()) {
            keys.push((self.whiskers.into(), Key::Whisker(Way::Up)));
        }
        if self.y.kind == Kind::Log && points().any(|point| point.lowest() <= 0.0) {
            keys.push(Side::Bottom.key());
        }
        if points().any(|point| point.highest().is_infinite()) {
            keys.push(Side::Top.key());
        }
        keys
    }

    fn lines_and_points(&self, canvas: &mut Canvas, x: &Place<'_>, y: &Scale) {
        let shifts = self.shifts(x);
        for (line, shift) in self.lines.iter().zip(&shifts) {
            let place = |p: &Point| (x.at(p.x) + shift, y.at(p.y));
            let places: Vec<_> = line.points.iter().map(place).collect();
            canvas.polyline(&format!("mw-line {}", line.colour.stroke()), &places);
        }
        for (line, shift) in self.lines.iter().zip(&shifts) {
            for point in &line.points {
                let (px, py) = (x.at(point.x) + shift, y.at(point.y));
                if let Some(ends) = point.interval {
                    canvas.whisker(Way::Up, px, ends.map(|end| y.at(end)));
                }
                canvas.marker(line.colour, px, py, &self.tip(line, point));
                if y.lacks(point.lowest()) {
                    canvas.beyond(Side::Bottom, px, y.origin() - 5.0);
                }
                if point.highest().is_infinite() {
                    canvas.beyond(Side::Top, px, y.at(f64::INFINITY) + 5.0);
                }
            }
        }
    }

    fn tip(&self, line: &Line, point: &Point) -> String {
        let (x, y) = (self.x.tick(point.x), self.y.tick(point.y));
        format!("{}, {x}: {y}", line.name)
    }

    /// Draws one line's stems, the tallest in each column of pixels, with marks on the tallest of those that overlap.
    fn stems_of(&self, line: &Line, canvas: &mut Canvas, x: &Place<'_>, y: &Scale, bottom: f64) {
        let mut tallest: Vec<(f64, &Point)> = line.points.iter().map(|p| (x.at(p.x), p)).collect();
        // Positions grow downward.
        tallest.sort_by(|a, b| y.at(a.1.y).total_cmp(&y.at(b.1.y)));
        let mut columns = BTreeSet::new();
        tallest.retain(|(px, _)| columns.insert(px.floor() as i64));
        let class = format!("mw-stem {}", line.colour.stroke());
        for (px, point) in &tallest {
            // Keep the smallest stem visible.
            canvas.line(&class, *px, bottom, *px, y.at(point.y).min(bottom - 3.0));
        }
        let mut marked: Vec<f64> = Vec::new();
        for (px, point) in tallest {
            if marked.iter().all(|other| (other - px).abs() > MARK) {
                marked.push(px);
                canvas.marker(line.colour, px, y.at(point.y), &self.tip(line, point));
            }
        }
    }

    /// Horizontal shift of each line: 9 pixels from line to line, so that two marks barely touch, or less, so that all
    /// lines fit into three fifths of the narrowest gap between places.
    fn shifts(&self, x: &Place<'_>) -> Vec<f64> {
        let count = self.lines.len();
        if !self.apart {
            return vec![0.0; count];
        }
        let mut places: Vec<f64> = self
            .lines
            .iter()
            .flat_map(|l| &l.points)
            .map(|p| x.at(p.x))
            .collect();
        places.sort_unstable_by(f64::total_cmp);
        places.dedup();
        let gaps = places.windows(2).map(|pair| pair[1] - pair[0]);
        let narrowest = gaps.fold(f64::INFINITY, f64::min);
        let step = (narrowest * 0.6 / count.max(1) as f64).min(9.0);
        (0..count)
            .map(|i| (i as f64 - (count as f64 - 1.0) / 2.0) * step)
            .collect()
    }
}

/// Positions on the x axis: a scale with its own ticks, or one that begins and ends at the given figures.
enum Place<'a> {
    Scale(Scale),
    Given {
        ticks: &'a [f64],
        kind: Kind,
        low: f64,
        high: f64,
        from: f64,
        to: f64,
    },
}

impl<'a> Place<'a> {
    fn new(chart: &'a XyChart, low: f64, high: f64, from: f64, to: f64) -> Self {
        if chart.x.sizes {
            return Self::Scale(Scale::exact(&chart.x, Way::Across, low, high, from, to, 6));
        }
        if chart.x_ticks.is_empty() {
            return Self::Scale(Scale::new(&chart.x, Way::Across, low, high, from, to, 6));
        }
        let kind = if low > 0.0 {
            chart.x.kind
        } else {
            Kind::Linear
        };
        Self::Given {
            ticks: &chart.x_ticks,
            kind,
            low,
            high,
            from,
            to,
        }
    }

    fn at(&self, value: f64) -> f64 {
        match self {
            Self::Scale(scale) => scale.at(value),
            Self::Given {
                low,
                high,
                from,
                to,
                ..
            } if high <= low => from.midpoint(*to),
            Self::Given {
                kind: Kind::Linear,
                low,
                high,
                from,
                to,
                ..
            } => from + (value - low) / (high - low) * (to - from),
            Self::Given {
                low,
                high,
                from,
                to,
                ..
            } => from + (value / low).ln() / (high / low).ln() * (to - from),
        }
    }

    fn ticks(&self) -> &[f64] {
        match self {
            Self::Scale(scale) => &scale.ticks,
            Self::Given { ticks, .. } => ticks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_bar_beyond_a_logarithmic_axis_has_an_arrow_and_the_legend_says_so() {
        let point = |y: f64, interval| Point {
            x: 1.0,
            y,
            interval: Some(interval),
        };
        let drawn = |points: Vec<Point>, y: Axis| {
            let line = Line {
                name: "mean".into(),
                colour: Colour::nth(0),
                points,
            };
            let chart = XyChart {
                y,
                lines: vec![line],
                whiskers: "95 % interval",
                ..XyChart::default()
            };
            chart.draw(Layout::Wide).inline("")
        };
        let below = || vec![point(5.0, [-1.0, 11.0]), point(3.0, [2.0, 4.0])];
        let beyond = "continues beyond the axis, to 0 or less";
        let log = drawn(below(), Axis::default().log());
        assert!(
            log.contains(beyond) && log.contains(">95 % interval<"),
            "{log}"
        );
        // One in the legend, one at the axis.
        assert_eq!(log.matches("<polygon class=\"mw-ink\"").count(), 2);
        assert_eq!(log.matches("mw-err").count(), 3 * 3);
        assert!(!drawn(below(), Axis::default()).contains(beyond));
        let rate = drawn(
            vec![point(5.0, [2.0, f64::INFINITY])],
            Axis::default().log(),
        );
        assert!(
            rate.contains("continues beyond the axis, without end"),
            "{rate}"
        );
        assert!(!rate.contains("inf") && !rate.contains("NaN"), "{rate}");
    }

    #[test]
    fn of_many_stems_the_tallest_have_marks() {
        let point = |x: u32| Point {
            x: f64::from(x),
            y: f64::from(if x == 700 { 9 } else { 1 + x % 2 }),
            interval: None,
        };
        let chart = XyChart {
            lines: vec![Line {
                name: "calls".into(),
                colour: Colour::nth(0),
                points: (1..=5000).map(point).collect(),
            }],
            stems: true,
            ..XyChart::default()
        };
        let drawn = chart.draw(Layout::Wide).inline("");
        let stems = drawn.matches("mw-stem").count();
        assert!((700..=800).contains(&stems), "one for each column: {stems}");
        let marks = drawn.matches("<title>calls, ").count();
        assert!((20..=70).contains(&marks), "{marks}");
        assert!(drawn.contains("<title>calls, 700: 9</title>"));
        assert!(!drawn.contains("polyline"));
    }

    #[test]
    fn the_number_under_the_last_tick_is_within_the_picture() {
        let point = |x: f64| Point {
            x,
            y: 1.0,
            interval: None,
        };
        let chart = XyChart {
            lines: vec![Line {
                name: "calls".into(),
                colour: Colour::nth(0),
                points: vec![point(0.0), point(100_000_000.0)],
            }],
            ..XyChart::default()
        };
        for layout in [Layout::Wide, Layout::Narrow] {
            let drawn = chart.draw(layout).inline("");
            let after = |text: &str, mark: &str| text.split_once(mark).unwrap().1.to_owned();
            let number =
                |text: &str| -> f64 { text.split(['"', ' ']).next().unwrap().parse().unwrap() };
            let width = number(&after(&drawn, "viewBox=\"0 0 "));
            let texts: Vec<&str> = drawn.split("text-anchor=\"middle\"").skip(1).collect();
            assert!(texts.len() > 2);
            for text in texts {
                let words = after(text, ">");
                let words = words.split('<').next().unwrap();
                let end = number(&after(text, " x=\"")) + width_of(words) / 2.0;
                assert!(end <= width + 0.1, "{words} ends at {end} of {width}");
            }
        }
    }

    #[test]
    fn lines_set_apart_stay_nearer_to_their_own_place_than_to_the_next() {
        let line = |x: &[f64]| Line {
            name: String::new(),
            colour: Colour::nth(0),
            points: x
                .iter()
                .map(|&x| Point {
                    x,
                    y: 1.0,
                    interval: None,
                })
                .collect(),
        };
        for (places, widest) in [
            (vec![1.0, 2.0, 100.0], 1.0),
            (vec![0.0, 100.0], 18.0),
            (vec![5.0], 18.0),
        ] {
            let mut chart = XyChart {
                lines: vec![line(&places), line(&places), line(&places)],
                x_ticks: places.clone(),
                ..XyChart::default()
            };
            let x = |chart: &XyChart| {
                let (low, high) = (places[0], places[places.len() - 1]);
                let x = Place::new(chart, low, high, low, high);
                chart.shifts(&x)
            };
            assert_eq!(x(&chart), [0.0; 3]);
            chart.apart = true;
            let shifts = x(&chart);
            assert!(shifts[0] < shifts[1] && shifts[1] < shifts[2], "{shifts:?}");
            assert!(
                shifts[1].abs() < 1e-9 && shifts[2] - shifts[0] <= widest,
                "{shifts:?}"
            );
        }
    }
}
