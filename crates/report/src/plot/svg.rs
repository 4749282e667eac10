// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes SVG; shapes have classes, and CSS styles them.

use std::fmt::{Display, Write};

use super::Colour;

/// Style of a chart; the colours are custom properties, see [`LIGHT`] and [`DARK`].
pub const CHART_CSS: &str = include_str!("chart.css");

/// Custom properties for a light background and for paper. The series use the palette of Okabe and Ito (Color Universal
/// Design, 2008), which readers with any colour vision can distinguish.
pub const LIGHT: [(&str, &str); 11] = [
    ("--mw-paper", "#ffffff"),
    ("--mw-ink", "#1c2430"),
    ("--mw-soft", "#5a6675"),
    ("--mw-grid", "#e3e7ec"),
    ("--mw-axis", "#97a1ae"),
    ("--mw-c0", "#d55e00"),
    ("--mw-c1", "#009e73"),
    ("--mw-c2", "#0072b2"),
    ("--mw-c3", "#e69f00"),
    ("--mw-c4", "#cc79a7"),
    ("--mw-c5", "#56b4e9"),
];

/// For a dark background: the same hues, lighter where contrast requires it.
pub const DARK: [(&str, &str); 11] = [
    ("--mw-paper", "#161b22"),
    ("--mw-ink", "#e8edf3"),
    ("--mw-soft", "#a3afbd"),
    ("--mw-grid", "#2b333e"),
    ("--mw-axis", "#66717f"),
    ("--mw-c0", "#f0793a"),
    ("--mw-c1", "#2fc49b"),
    ("--mw-c2", "#4aa3df"),
    ("--mw-c3", "#f2b632"),
    ("--mw-c4", "#dd94ba"),
    ("--mw-c5", "#86cdf5"),
];

/// Width of a character relative to the font size: that of DejaVu Sans, the widest of the usual sans-serif fonts.
const CHARACTER: f64 = 0.63;
/// The same for a capital letter.
const CAPITAL: f64 = 0.75;

/// Font size of all text in a chart, as set in chart.css.
pub const FONT: f64 = 13.0;

/// Approximate width of `text`.
pub fn width_of(text: &str) -> f64 {
    text.chars()
        .map(|c| {
            if "il.,:;|'[]() \u{202f}\u{a0}".contains(c) {
                0.34
            } else if c.is_uppercase() {
                CAPITAL
            } else {
                CHARACTER
            }
        })
        .sum::<f64>()
        * FONT
}

/// Anchor of a text.
#[derive(Clone, Copy)]
pub enum Anchor {
    /// At its start.
    Start,
    /// In its middle.
    Middle,
    /// At its end.
    End,
}

/// A drawing under construction.
pub struct Canvas {
    width: f64,
    body: String,
}

/// One coordinate: a tenth of a pixel is enough, and keeps files small.
struct Px(f64);

impl Display for Px {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tenths = (self.0 * 10.0).round() / 10.0 + 0.0;
        write!(f, "{tenths}")
    }
}

impl Canvas {
    pub fn new(width: f64) -> Self {
        Self {
            width,
            body: String::new(),
        }
    }

    pub fn width(&self) -> f64 {
        self.width
    }

    pub fn line(&mut self, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
        let [x1, y1, x2, y2] = [x1, y1, x2, y2].map(Px);
        let _ = write!(
            self.body,
            r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#
        );
    }

    /// A rectangle with the tooltip `tip`.
    pub fn rect(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64, tip: &str) {
        let [x, y, width, height] = [x, y, width.max(0.0), height.max(0.0)].map(Px);
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}""#
        );
        self.close("rect", tip);
    }

    pub fn text(&mut self, class: &str, anchor: Anchor, x: f64, y: f64, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y) = (Px(x), Px(y));
        let text = escape(text);
        let _ = write!(
            self.body,
            r#"<text class="{class}" text-anchor="{anchor}" x="{x}" y="{y}">{text}</text>"#
        );
    }

    pub fn polyline(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<_> = points
            .iter()
            .map(|(x, y)| format!("{},{}", Px(*x), Px(*y)))
            .collect();
        let _ = write!(
            self.body,
            r#"<polyline class="{class}" points="{}"/>"#,
            points.join(" ")
        );
    }

    /// A point of a series; its shape identifies the series as its colour does.
    pub fn marker(&mut self, colour: Colour, x: f64, y: f64, tip: &str) {
        let class = format!("mw-mark mw-f{}", colour.0);
        let around = |points: &[(f64, f64)]| -> String {
            points
                .iter()
                .map(|(dx, dy)| format!("{},{} ", Px(x + dx), Px(y + dy)))
                .collect()
        };
        let shape = match colour.0 {
            0 => around(&[(-5.0, -5.0), (5.0, -5.0), (5.0, 5.0), (-5.0, 5.0)]),
            2 => around(&[(0.0, -6.5), (6.0, 4.5), (-6.0, 4.5)]),
            3 => around(&[(0.0, -6.5), (6.5, 0.0), (0.0, 6.5), (-6.5, 0.0)]),
            4 => around(&[(0.0, 6.5), (6.0, -4.5), (-6.0, -4.5)]),
            _ => {
                let _ = write!(
                    self.body,
                    r#"<circle class="{class}" cx="{}" cy="{}" r="5""#,
                    Px(x),
                    Px(y)
                );
                return self.close("circle", tip);
            }
        };
        let _ = write!(
            self.body,
            r#"<polygon class="{class}" points="{}""#,
            shape.trim_end()
        );
        self.close("polygon", tip);
    }

    fn close(&mut self, element: &str, tip: &str) {
        if tip.is_empty() {
            self.body.push_str("/>");
        } else {
            let _ = write!(self.body, "><title>{}</title></{element}>", escape(tip));
        }
    }

    /// Names of the series, each with a sample, wrapped into lines from `y` down; returns the `y` of the end.
    pub fn legend(&mut self, entries: &[(String, Colour)], marks: bool, y: f64) -> f64 {
        let (mut x, mut y) = (0.0, y + FONT);
        // A chart with one series needs no legend.
        let entries: Vec<_> = entries
            .iter()
            .filter(|(name, _)| !name.is_empty())
            .collect();
        for (name, colour) in &entries {
            let width = 20.0 + width_of(name) + 18.0;
            if x > 0.0 && x + width - 18.0 > self.width {
                (x, y) = (0.0, y + 20.0);
            }
            if marks {
                self.marker(*colour, x + 7.0, y - 4.5, "");
            } else {
                self.rect(&format!("mw-f{}", colour.0), x, y - 11.0, 13.0, 13.0, "");
            }
            self.text("mw-ink", Anchor::Start, x + 20.0, y, name);
            x += width;
        }
        if entries.is_empty() {
            y - FONT
        } else {
            y + 12.0
        }
    }

    pub fn finish(self, height: f64, title: &str) -> Drawing {
        Drawing {
            width: self.width,
            height,
            title: title.into(),
            body: self.body,
        }
    }
}

impl Colour {
    pub(super) fn fill(self) -> String {
        format!("mw-f{}", self.0)
    }

    pub(super) fn stroke(self) -> String {
        format!("mw-s{}", self.0)
    }
}

/// A finished drawing.
#[derive(Clone, Debug)]
pub struct Drawing {
    width: f64,
    height: f64,
    title: String,
    body: String,
}

const MARGIN: f64 = 20.0;
const HEADING: f64 = 30.0;

impl Drawing {
    /// For a page that includes [`CHART_CSS`] and the colours, and shows the title itself.
    pub fn inline(&self, class: &str) -> String {
        let (w, h) = (Px(self.width), Px(self.height));
        format!(
            r#"<svg class="mw-chart {class}" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{}">{}</svg>"#,
            escape(&self.title),
            self.body
        )
    }

    /// A self-contained file; light or dark by the viewer's setting.
    pub fn standalone(&self) -> String {
        let properties = |set: &[(&str, &str)]| {
            set.iter()
                .map(|(k, v)| format!("{k}:{v};"))
                .collect::<String>()
        };
        let css = format!(
            ":root{{{}}}\n@media (prefers-color-scheme:dark){{:root{{{}}}}}\n{CHART_CSS}",
            properties(&LIGHT),
            properties(&DARK)
        );
        self.with_css(&css)
    }

    /// For programs that support neither custom properties nor media queries: light colours as plain values.
    pub fn plain(&self) -> String {
        let css = LIGHT
            .iter()
            .fold(CHART_CSS.to_owned(), |css, (name, value)| {
                css.replace(&format!("var({name})"), value)
            });
        self.with_css(&css)
    }

    fn with_css(&self, css: &str) -> String {
        let (width, height) = (
            Px(self.width + 2.0 * MARGIN),
            Px(self.height + 2.0 * MARGIN + HEADING),
        );
        let title = escape(&self.title);
        format!(
            concat!(
                r#"<svg xmlns="http://www.w3.org/2000/svg" class="mw-chart" viewBox="0 0 {width} {height}" "#,
                r#"width="{width}" height="{height}" role="img"><title>{title}</title><style>{css}</style>"#,
                r#"<rect class="mw-paper" width="{width}" height="{height}"/>"#,
                r#"<text class="mw-ink mw-title" x="{margin}" y="{y}">{title}</text>"#,
                r#"<g transform="translate({margin} {top})">{body}</g></svg>"#,
                "\n"
            ),
            width = width,
            height = height,
            title = title,
            css = css,
            margin = Px(MARGIN),
            y = Px(MARGIN + 12.0),
            top = Px(MARGIN + HEADING),
            body = self.body,
        )
    }
}

/// Escapes `text` for an element or a quoted attribute.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // Invalid in XML even when escaped.
            c if c.is_control() && !"\n\t".contains(c) => out.push('\u{fffd}'),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Shortens `text` to `width`, with an ellipsis.
pub fn fit(text: &str, width: f64) -> String {
    if width_of(text) <= width {
        return text.into();
    }
    let mut cut: String = text.into();
    while !cut.is_empty() && width_of(&cut) + FONT > width {
        cut.pop();
    }
    format!("{}\u{2026}", cut.trim_end())
}

#[cfg(test)]
mod tests {
    use super::width_of;

    /// Widths of DejaVu Sans at 13 pixels, as measured in a browser.
    #[test]
    fn words_are_not_taken_for_narrower_than_they_are() {
        for (text, pixels) in [
            ("PRIVATE|POPULATE|ANONYMOUS", 214.3),
            ("bandwidth:write x3", 125.7),
        ] {
            let guess = width_of(text);
            assert!((pixels..pixels * 1.3).contains(&guess), "{text}: {guess}");
        }
    }
}
