// SPDX-License-Identifier: MIT OR Apache-2.0
//! Horizontal bars in groups: names of cases are long and screens narrow.

use super::scale::Scale;
use super::svg::{Anchor, Canvas, FONT, fit, width_of};
use super::{Axis, Colour, Drawing, Layout, Reference};

/// Groups of horizontal bars, with error bars.
#[derive(Clone, Debug, Default)]
pub struct BarChart {
    /// What it shows.
    pub title: String,
    /// The axis along the bars.
    pub axis: Axis,
    /// Names and colours of the bars within a group.
    pub series: Vec<(String, Colour)>,
    /// The groups, from the top.
    pub groups: Vec<Group>,
    /// Minimum end of the axis: 100 % for shares.
    pub reach: f64,
    /// A line across all bars.
    pub reference: Option<Reference>,
}

/// Bars to compare with each other.
#[derive(Clone, Debug)]
pub struct Group {
    /// Name of the group.
    pub label: String,
    /// The bars.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Index of its series.
    pub series: usize,
    /// Its length; none is drawn as not measured.
    pub value: Option<f64>,
    /// The ends of the error bar.
    pub interval: Option<[f64; 2]>,
    /// Text at its end.
    pub text: String,
}

const THICK: f64 = 20.0;
const BETWEEN_BARS: f64 = 4.0;
const BETWEEN_GROUPS: f64 = 16.0;

impl BarChart {
    pub(super) fn draw(&self, layout: Layout) -> Drawing {
        let mut canvas = Canvas::new(layout.width());
        let used = |i: usize| {
            self.groups
                .iter()
                .any(|g| g.bars.iter().any(|b| b.series == i))
        };
        let entries: Vec<(String, Colour)> = self
            .series
            .iter()
            .enumerate()
            .filter(|(i, _)| used(*i))
            .map(|(_, s)| s.clone())
            .collect();
        let mut top = canvas.legend(&entries, false, 0.0);

        let widest = self
            .groups
            .iter()
            .map(|g| width_of(&g.label))
            .fold(0.0, f64::max);
        // Labels that are too wide for a column stand above their bars.
        let beside = layout == Layout::Wide && widest <= 260.0;
        let left = if beside { widest + 12.0 } else { 0.0 };
        let room = self
            .groups
            .iter()
            .flat_map(|g| &g.bars)
            .map(|b| width_of(&b.text))
            .fold(0.0, f64::max);
        let right = canvas.width() - room.max(10.0) - 12.0;
        let high = self.extent().max(self.reach);
        let ticks = if beside { 6 } else { 4 };
        let scale = Scale::exact(self.axis.kind, self.low(), high, left, right, ticks);

        if self.reference.is_some() {
            top += FONT + 4.0;
        }
        let group_height = |g: &Group| {
            g.bars.len() as f64 * (THICK + BETWEEN_BARS) - BETWEEN_BARS
                + if beside { 0.0 } else { FONT + 7.0 }
        };
        let height: f64 = self
            .groups
            .iter()
            .map(|g| group_height(g) + BETWEEN_GROUPS)
            .sum();
        let bottom = top + height;
        for tick in &scale.ticks {
            let x = scale.at(*tick);
            canvas.line("mw-grid", x, top, x, bottom);
            canvas.text(
                "mw-soft",
                tick_anchor(x, &canvas),
                x,
                bottom + FONT + 5.0,
                &self.axis.tick(*tick),
            );
        }
        let mut place = top + BETWEEN_GROUPS / 2.0;
        let places: Vec<(&Group, f64)> = self
            .groups
            .iter()
            .map(|g| {
                let here = place;
                place += group_height(g) + BETWEEN_GROUPS;
                (g, here)
            })
            .collect();
        for (group, y) in &places {
            self.draw_bars(
                &mut canvas,
                group,
                &scale,
                y + if beside { 0.0 } else { FONT + 7.0 },
            );
        }
        if let Some(reference) = &self.reference {
            let x = scale.at(reference.value);
            canvas.line("mw-ref", x, top - 2.0, x, bottom);
        }
        for (group, y) in &places {
            draw_words(&mut canvas, group, &scale, *y, left, beside);
        }
        canvas.line("mw-axis", scale.origin(), top, scale.origin(), bottom);
        if let Some(reference) = &self.reference {
            let x = scale.at(reference.value);
            let half = width_of(&reference.label) / 2.0;
            let x = x.clamp(left + half, (canvas.width() - half).max(left + half));
            canvas.text("mw-ink", Anchor::Middle, x, top - 7.0, &reference.label);
        }
        let label = self.axis.text();
        canvas.text(
            "mw-soft",
            Anchor::Middle,
            left.midpoint(right),
            bottom + 2.0 * FONT + 12.0,
            &label,
        );
        canvas.finish(bottom + 2.0 * FONT + 20.0, &self.title)
    }

    fn draw_bars(&self, canvas: &mut Canvas, group: &Group, scale: &Scale, y: f64) {
        let mut y = y;
        for bar in &group.bars {
            let series = self.series.get(bar.series);
            let colour = series.map_or(Colour::nth(0), |s| s.1);
            let name = series.map_or("", |s| s.0.as_str());
            let tip = format!("{}, {name}: {}", group.label, bar.text);
            if let Some(value) = bar.value {
                let (from, to) = (scale.origin(), scale.at(value));
                canvas.rect(
                    &colour.fill(),
                    from.min(to),
                    y,
                    (to - from).abs(),
                    THICK,
                    &tip,
                );
                if let Some([low, high]) = bar.interval {
                    let (low, high, middle) = (scale.at(low), scale.at(high), y + THICK / 2.0);
                    canvas.line("mw-err", low, middle, high, middle);
                    canvas.line("mw-err", low, middle - 4.0, low, middle + 4.0);
                    canvas.line("mw-err", high, middle - 4.0, high, middle + 4.0);
                }
            }
            y += THICK + BETWEEN_BARS;
        }
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        let bars = self.groups.iter().flat_map(|g| &g.bars);
        bars.flat_map(|b| b.value.into_iter().chain(b.interval.into_iter().flatten()))
            .chain(self.reference.iter().map(|r| r.value))
    }

    fn extent(&self) -> f64 {
        self.values().fold(0.0, f64::max)
    }

    fn low(&self) -> f64 {
        match self.axis.kind {
            super::Kind::Linear => self.values().fold(0.0, f64::min),
            super::Kind::Log => {
                self.values()
                    .filter(|v| *v > 0.0)
                    .fold(f64::INFINITY, f64::min)
                    / 2.0
            }
        }
    }
}

/// Draws the group's name and the texts of its bars, on top of everything else.
fn draw_words(canvas: &mut Canvas, group: &Group, scale: &Scale, y: f64, left: f64, beside: bool) {
    let mut y = y;
    if beside {
        let middle = y + (group.bars.len() as f64 * (THICK + BETWEEN_BARS) - BETWEEN_BARS) / 2.0;
        let label = fit(&group.label, left - 10.0);
        canvas.text("mw-ink", Anchor::End, left - 10.0, middle + 4.5, &label);
    } else {
        let label = fit(&group.label, canvas.width());
        canvas.text(
            "mw-ink mw-strong mw-halo",
            Anchor::Start,
            0.0,
            y + FONT - 3.0,
            &label,
        );
        y += FONT + 7.0;
    }
    for bar in &group.bars {
        let figures = bar
            .value
            .into_iter()
            .chain(bar.interval.into_iter().flatten());
        let end = figures.map(|v| scale.at(v)).fold(scale.origin(), f64::max);
        canvas.text(
            "mw-ink mw-halo",
            Anchor::Start,
            end + 7.0,
            y + THICK / 2.0 + 4.5,
            &bar.text,
        );
        y += THICK + BETWEEN_BARS;
    }
}

/// Centres a tick's number under the tick, unless it would leave the picture.
fn tick_anchor(x: f64, canvas: &Canvas) -> Anchor {
    if x < 12.0 {
        Anchor::Start
    } else if x > canvas.width() - 12.0 {
        Anchor::End
    } else {
        Anchor::Middle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_label_is_written_in_full_and_one_series_has_its_legend() {
        let label = "3 \u{d7} bandwidth:fresh-pages + 2 \u{d7} bandwidth:ntwrite + latency";
        let chart = BarChart {
            series: vec![("no guard".into(), Colour::nth(0))],
            groups: vec![Group {
                label: label.into(),
                bars: vec![Bar {
                    series: 0,
                    value: Some(2.0),
                    interval: None,
                    text: "2 ns".into(),
                }],
            }],
            ..BarChart::default()
        };
        let drawn = chart.draw(Layout::Wide).inline("wide");
        assert!(drawn.contains(&format!(">{label}<")), "{drawn}");
        assert!(drawn.contains(">no guard<"), "{drawn}");
    }
}
