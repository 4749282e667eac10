// SPDX-License-Identifier: MIT OR Apache-2.0
//! Horizontal bars in groups: names of cases are long and screens narrow.

use super::scale::{Kind, Scale, Way};
use super::svg::{Anchor, Canvas, FONT, Key, LINE, Side, width_of, width_of_strong, wrapped};
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
    /// Meaning of the error bars.
    pub whiskers: &'static str,
}

/// Bars to compare with each other.
#[derive(Clone, Debug)]
pub struct Group {
    /// Name of the group.
    pub label: String,
    /// The bars.
    pub bars: Vec<Bar>,
}

impl Group {
    /// Adds a bar to the group with that name, which is the last one if it is new.
    pub fn add(groups: &mut Vec<Self>, label: String, bar: Bar) {
        match groups.iter_mut().find(|group| group.label == label) {
            Some(group) => group.bars.push(bar),
            None => groups.push(Self {
                label,
                bars: vec![bar],
            }),
        }
    }
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
        let mut entries: Vec<(String, Key)> = self
            .series
            .iter()
            .enumerate()
            .filter(|(i, _)| used(*i))
            .map(|(_, (name, colour))| (name.clone(), Key::Area(*colour)))
            .collect();
        if self.intervals().next().is_some() {
            entries.push((self.whiskers.into(), Key::Whisker(Way::Across)));
        }
        let low_ends = self.intervals().map(|[low, _]| low);
        if self.axis.kind == Kind::Log && low_ends.chain(self.bare_values()).any(|v| v <= 0.0) {
            entries.push(Side::Left.key());
        }
        let mut top = canvas.legend(&entries, 0.0);

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
        let scale = Scale::exact(
            &self.axis,
            Way::Across,
            self.low(),
            high,
            left,
            right,
            ticks,
        );

        if self.reference.is_some() {
            top += FONT + 4.0;
        }
        let group_height = |g: &Group| {
            g.bars.len() as f64 * (THICK + BETWEEN_BARS) - BETWEEN_BARS
                + self.above(g, beside, layout)
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
        }
        let labels = scale.ticks.iter();
        let labels = labels.map(|tick| (scale.at(*tick), self.axis.tick(*tick)));
        canvas.labels_below(labels, bottom + FONT + 5.0);
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
                y + self.above(group, beside, layout),
            );
        }
        if let Some(reference) = &self.reference {
            let x = scale.at(reference.value);
            canvas.line("mw-ref", x, top - 2.0, x, bottom);
        }
        canvas.line("mw-axis", scale.origin(), top, scale.origin(), bottom);
        for (group, y) in &places {
            let left = beside.then_some(left);
            draw_words(&mut canvas, group, &scale, *y, left);
        }
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

    /// Height of the name above a group's bars.
    fn above(&self, group: &Group, beside: bool, layout: Layout) -> f64 {
        if beside {
            return 0.0;
        }
        let lines = wrapped(&group.label, layout.width(), width_of_strong);
        let lines = lines.len() as f64;
        lines * LINE + 4.0
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
                let middle = y + THICK / 2.0;
                if let Some(ends) = bar.interval {
                    canvas.whisker(Way::Across, middle, ends.map(|end| scale.at(end)));
                }
                if scale.lacks(bar.interval.map_or(value, |[low, _]| low)) {
                    canvas.beyond(Side::Left, scale.origin() + 5.0, middle);
                }
            }
            y += THICK + BETWEEN_BARS;
        }
    }

    fn bars(&self) -> impl Iterator<Item = &Bar> {
        self.groups.iter().flat_map(|g| &g.bars)
    }

    /// The intervals that are drawn.
    fn intervals(&self) -> impl Iterator<Item = [f64; 2]> {
        self.bars()
            .filter(|b| b.value.is_some())
            .filter_map(|b| b.interval)
    }

    fn bare_values(&self) -> impl Iterator<Item = f64> {
        self.bars().filter_map(|b| b.value)
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        self.bare_values()
            .chain(self.intervals().flatten())
            .chain(self.reference.iter().map(|r| r.value))
    }

    fn extent(&self) -> f64 {
        self.values().fold(0.0, f64::max)
    }

    fn low(&self) -> f64 {
        match self.axis.kind {
            Kind::Linear => self.values().fold(0.0, f64::min),
            Kind::Log => {
                self.values()
                    .filter(|v| *v > 0.0)
                    .fold(f64::INFINITY, f64::min)
                    / 2.0
            }
        }
    }
}

/// Draws the group's name, beside the bars up to `left` or above them, and the texts of its bars, on top of everything
/// else.
fn draw_words(canvas: &mut Canvas, group: &Group, scale: &Scale, y: f64, left: Option<f64>) {
    let mut y = y;
    if let Some(left) = left {
        let middle = y + (group.bars.len() as f64 * (THICK + BETWEEN_BARS) - BETWEEN_BARS) / 2.0;
        let (x, y) = (left - 10.0, middle + 4.5);
        canvas.text("mw-ink", Anchor::End, x, y, &group.label);
    } else {
        let lines = wrapped(&group.label, canvas.width(), width_of_strong);
        let class = "mw-ink mw-strong mw-halo";
        y = canvas.lines_of_text(class, 0.0, y + FONT - 3.0, &lines) + LINE - FONT + 7.0;
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
