// SPDX-License-Identifier: MIT OR Apache-2.0
//! Distributions, one below the other, over the same axis.

use memwarden_run::statistics::{median, nearest_rank};

use super::scale::{Kind, Scale};
use super::svg::{Anchor, Canvas, FONT, fit, width_of};
use super::{Axis, Colour, Drawing, Layout, Reference};
use crate::number;

/// Histograms of several cases over the same axis.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// What it shows.
    pub title: String,
    /// The axis of the figures.
    pub axis: Axis,
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
        let (left, right) = (46.0, canvas.width() - 20.0);
        // Counts of events: a bar is at least one event wide and centred on its number.
        let whole = all().all(|v| v.fract() == 0.0);
        let (low, high) = if whole && self.axis.kind == Kind::Linear {
            (low - 0.5, high + 0.5)
        } else {
            (low, high)
        };
        let x = Scale::exact(self.axis.kind, low, high, left, right, 6);
        let top = if self.reference.is_some() {
            FONT + 8.0
        } else {
            0.0
        };
        let mut y = top;
        let one = if whole { self.one_event(&x) } else { 0.0 };
        for panel in &self.panels {
            y = self.draw_panel(&mut canvas, panel, &x, y, (left, right), one);
        }
        y -= AFTER;
        for tick in &x.ticks {
            let at = x.at(*tick);
            canvas.line("mw-axis", at, y, at, y + 5.0);
            if *tick >= 0.0 || low < -0.5 {
                canvas.text(
                    "mw-soft",
                    Anchor::Middle,
                    at,
                    y + FONT + 9.0,
                    &self.axis.tick(*tick),
                );
            }
        }
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

    /// Draws name and figures, then bars of at least 4 pixels. A bar's height is its share of the samples; the highest
    /// fills the panel.
    fn draw_panel(
        &self,
        canvas: &mut Canvas,
        panel: &Panel,
        x: &Scale,
        y: f64,
        (left, right): (f64, f64),
        one: f64,
    ) -> f64 {
        let mut samples = panel.samples.clone();
        samples.retain(|v| v.is_finite());
        samples.sort_unstable_by(f64::total_cmp);
        let mut figures = figures(&samples, self.tail);
        if width_of(&figures) > canvas.width() {
            figures = figures.split(" of ").next().unwrap_or_default().to_owned();
        }
        let room = canvas.width() - width_of(&figures) - 14.0;
        // Beside the figures if there is room, otherwise above them.
        let beside = width_of(&panel.label) <= room;
        let label = fit(&panel.label, if beside { room } else { canvas.width() });
        canvas.text("mw-ink mw-strong", Anchor::Start, 0.0, y + FONT, &label);
        let mut top = y + HEAD;
        if beside {
            canvas.text("mw-soft", Anchor::End, right, y + FONT, &figures);
        } else {
            canvas.text(
                "mw-soft",
                Anchor::Start,
                0.0,
                y + 2.0 * FONT + 4.0,
                &figures,
            );
            top += FONT + 4.0;
        }
        let bottom = top + PANEL;
        canvas.line("mw-grid", left, top, right, top);
        canvas.line("mw-axis", left, bottom, right, bottom);
        if samples.is_empty() {
            return bottom + AFTER;
        }
        let width = one.max(4.0);
        let origin = if one >= 4.0 {
            x.at(0.0) - one / 2.0
        } else {
            left
        };
        let mut bins: Vec<(i64, usize)> = Vec::new();
        for value in &samples {
            // Keep the last bar within the axis.
            let place = x.at(*value).min(right - width / 2.0);
            #[allow(clippy::cast_possible_truncation)]
            let bin = ((place - origin) / width + 1e-9).floor() as i64;
            match bins.last_mut() {
                Some((last, count)) if *last == bin => *count += 1,
                _ => bins.push((bin, 1)),
            }
        }
        let n = samples.len() as f64;
        let most = bins.iter().map(|b| b.1).max().unwrap_or(1) as f64;
        let share = format!("{}%", number::figure((most / n * 100.0).round()));
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

    /// Width of one event, in pixels, on a linear axis.
    fn one_event(&self, x: &Scale) -> f64 {
        if self.axis.kind == Kind::Linear {
            x.at(1.0) - x.at(0.0)
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
