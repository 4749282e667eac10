// SPDX-License-Identifier: MIT OR Apache-2.0
//! Distributions, one below the other, over the same axis.

use memwarden_run::statistics::{median, nearest_rank};

use super::scale::{Kind, Scale, Way};
use super::svg::{Anchor, Canvas, FONT, Key, width_of, width_of_strong, wrapped};
use super::{Axis, Colour, Drawing, Layout, Reference};
use crate::number;

/// Histograms of several cases over the same axis.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// What it shows.
    pub title: String,
    /// The axis of the figures.
    pub axis: Axis,
    /// Names and colours of the bars, for the legend.
    pub series: Vec<(String, Colour)>,
    /// One panel for each case.
    pub panels: Vec<Panel>,
    /// A heavy line through all panels: a deadline, a limit.
    pub reference: Option<Reference>,
    /// The percentile that each panel marks with a dashed line: 99.9.
    pub tail: f64,
}

/// The samples of one case.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The case.
    pub label: String,
    /// The samples, in any order.
    pub samples: Vec<f64>,
    /// The colour of its bars.
    pub colour: Colour,
}

/// Places of the bars: the left end of one, and the width of all, in pixels.
#[derive(Clone, Copy)]
struct Bins {
    origin: f64,
    width: f64,
}

const PANEL: f64 = 74.0;
const HEAD: f64 = FONT + 10.0;
const AFTER: f64 = 14.0;

impl Histogram {
    pub(super) fn draw(&self, layout: Layout) -> Drawing {
        let mut canvas = Canvas::new(layout.width());
        let shown = |v: &f64| v.is_finite() && (self.axis.kind == Kind::Linear || *v > 0.0);
        let all = || {
            self.panels
                .iter()
                .flat_map(|p| p.samples.iter().copied())
                .filter(shown)
        };
        let with_reference = || all().chain(self.reference.iter().map(|r| r.value));
        let high = with_reference().fold(f64::NEG_INFINITY, f64::max);
        let low = with_reference().fold(f64::INFINITY, f64::min);
        if !high.is_finite() {
            canvas.text("mw-soft", Anchor::Start, 0.0, FONT, "no samples");
            return canvas.finish(2.0 * FONT, &self.title);
        }
        let low = if self.axis.kind == Kind::Linear && low > 0.0 && low < high / 3.0 {
            0.0
        } else {
            low
        };
        // A panel's scale goes up to 100 %.
        let (left, right) = (width_of("100\u{a0}%") + 8.0, canvas.width() - 20.0);
        // Counts of events: a bar is at least one event wide and centred on its number.
        let whole = all().all(|v| v.fract() == 0.0);
        let half = if whole && self.axis.kind == Kind::Linear {
            0.5
        } else {
            0.0
        };
        let first = low;
        let (low, high) = self.with_margin(low - half, high + half);
        let x = Scale::exact(&self.axis, Way::Across, low, high, left, right, 6);
        let mut top = canvas.legend(&self.keys(), 0.0);
        if self.reference.is_some() {
            top += FONT + 8.0;
        }
        let mut y = top;
        let one = if whole {
            self.one_event(&x, first)
        } else {
            0.0
        };
        let bins = if one >= 4.0 {
            Bins {
                origin: x.at(first) - one / 2.0,
                width: one,
            }
        } else {
            Bins {
                origin: left,
                width: 4.0,
            }
        };
        for panel in &self.panels {
            y = self.draw_panel(&mut canvas, panel, &x, y, (left, right), bins);
        }
        y -= AFTER;
        for tick in &x.ticks {
            let at = x.at(*tick);
            canvas.line("mw-axis", at, y, at, y + 5.0);
        }
        // Half an event below 0 is only there for the bar's width.
        let labelled = x.ticks.iter().filter(|tick| **tick >= 0.0 || low < -0.5);
        let labels = labelled.map(|tick| (x.at(*tick), self.axis.tick(*tick)));
        canvas.labels_below(labels, y + FONT + 9.0);
        let label = self.axis.text();
        canvas.text(
            "mw-soft",
            Anchor::Middle,
            left.midpoint(right),
            y + 2.0 * FONT + 16.0,
            &label,
        );
        if let Some(reference) = &self.reference {
            let at = x.at(reference.value);
            let half = width_of(&reference.label) / 2.0;
            let at = at.clamp(left + half, right - half);
            canvas.text("mw-ink", Anchor::Middle, at, top - 6.0, &reference.label);
        }
        canvas.finish(y + 2.0 * FONT + 24.0, &self.title)
    }

    /// The legend: bars, median and tail. The reference is labelled in place.
    fn keys(&self) -> Vec<(String, Key)> {
        let used = |colour: &Colour| self.panels.iter().any(|panel| panel.colour == *colour);
        let series = self.series.iter().filter(|(_, colour)| used(colour));
        let mut keys: Vec<_> = series
            .map(|(name, colour)| (name.clone(), Key::Area(*colour)))
            .collect();
        keys.push(("median".into(), Key::Line("mw-err")));
        keys.push((
            format!("{}th percentile", number::figure(self.tail)),
            Key::Line("mw-ref"),
        ));
        keys
    }

    /// Draws name and figures, then bars of at least 4 pixels. A bar's height is its share of the samples; the highest
    /// fills the panel.
    fn draw_panel(
        &self,
        canvas: &mut Canvas,
        panel: &Panel,
        x: &Scale,
        y: f64,
        (left, right): (f64, f64),
        Bins { origin, width }: Bins,
    ) -> f64 {
        let mut samples = panel.samples.clone();
        samples.retain(|v| v.is_finite());
        samples.sort_unstable_by(f64::total_cmp);
        let figures = figures(&samples, self.tail);
        let room = canvas.width() - width_of(&figures) - 14.0;
        // Beside the figures if there is room, otherwise above them.
        let beside = width_of_strong(&panel.label) <= room;
        let lines = wrapped(&panel.label, canvas.width(), width_of_strong);
        let last = canvas.lines_of_text("mw-ink mw-strong", 0.0, y + FONT, &lines);
        let mut top = last + HEAD - FONT;
        if beside {
            canvas.text("mw-soft", Anchor::End, right, y + FONT, &figures);
        } else {
            let lines = wrapped(&figures, canvas.width(), width_of);
            top = canvas.lines_of_text("mw-soft", 0.0, last + FONT + 4.0, &lines) + HEAD - FONT;
        }
        let bottom = top + PANEL;
        canvas.line("mw-grid", left, top, right, top);
        canvas.line("mw-axis", left, bottom, right, bottom);
        if samples.is_empty() {
            return bottom + AFTER;
        }
        let mut bins: Vec<(i64, usize)> = Vec::new();
        for value in &samples {
            // Keep the last bar within the axis.
            let place = x.at(*value).min(right - width / 2.0);
            let bin = ((place - origin) / width + 1e-9).floor() as i64;
            match bins.last_mut() {
                Some((last, count)) if *last == bin => *count += 1,
                _ => bins.push((bin, 1)),
            }
        }
        let n = samples.len() as f64;
        let most = bins.iter().map(|b| b.1).max().unwrap_or(1) as f64;
        let share = format!("{}\u{a0}%", number::figure((most / n * 100.0).round()));
        canvas.text("mw-soft", Anchor::End, left - 6.0, top + 4.5, &share);
        let gap = if width > 8.0 { 2.0 } else { 0.6 };
        for (bin, count) in &bins {
            let height = (*count as f64 / most * PANEL).max(1.0);
            let at = origin + *bin as f64 * width + gap / 2.0;
            let tip = format!("{count} of {} samples", samples.len());
            canvas.rect(
                &panel.colour.fill(),
                at,
                bottom - height,
                width - gap,
                height,
                &tip,
            );
        }
        let middle = x.at(median(&samples));
        canvas.line("mw-err", middle, top, middle, bottom);
        let high = x.at(nearest_rank(&samples, self.tail));
        canvas.line("mw-ref", high, top, high, bottom);
        if let Some(reference) = &self.reference {
            let at = x.at(reference.value);
            canvas.line("mw-limit", at, top, at, bottom);
        }
        bottom + AFTER
    }

    /// The ends of the axis, a little apart from the first and the last sample, so that their bars and lines are clear
    /// of its ends.
    fn with_margin(&self, low: f64, high: f64) -> (f64, f64) {
        const SHARE: f64 = 0.015;
        match self.axis.kind {
            Kind::Linear => {
                let margin = (high - low) * SHARE;
                let low = if low > 0.0 {
                    (low - margin).max(0.0)
                } else {
                    low
                };
                (low, high + margin)
            }
            Kind::Log => {
                let margin = (high / low).powf(SHARE);
                (low / margin, high * margin)
            }
        }
    }

    /// Width of one event, in pixels, on a linear axis; `first` is the first figure.
    fn one_event(&self, x: &Scale, first: f64) -> f64 {
        if self.axis.kind == Kind::Linear {
            2.0 * (x.at(first + 0.5) - x.at(first))
        } else {
            0.0
        }
    }
}

fn figures(sorted: &[f64], tail: f64) -> String {
    if sorted.is_empty() {
        return "no samples".into();
    }
    format!(
        "median {}, {} % {}, max {} of {}",
        number::figure(median(sorted)),
        number::figure(tail),
        number::figure(nearest_rank(sorted, tail)),
        number::figure(nearest_rank(sorted, 100.0)),
        number::counted(sorted.len(), "sample"),
    )
}
