// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes SVG; shapes have classes, and CSS styles them.

use std::fmt::{Display, Write};

use super::Colour;
use super::scale::Way;
use crate::number::printable;

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

/// Height of a line of text.
pub const LINE: f64 = FONT + 3.0;

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

/// Approximate width of `text` in bold letters.
pub fn width_of_strong(text: &str) -> f64 {
    width_of(text) * 1.12
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

/// A mark whose meaning a legend gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Key {
    /// A bar.
    Area(Colour),
    /// A point of a line.
    Mark(Colour),
    /// A vertical line of a class.
    Line(&'static str),
    /// An error bar.
    Whisker(Way),
    /// An arrow at the end of an axis.
    Beyond(Side),
}

/// The end of an axis beyond which something continues.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Side {
    /// The low end of a logarithmic axis across, which has no 0.
    Left,
    /// The low end of a logarithmic axis upward.
    Bottom,
    /// The high end of an axis upward.
    Top,
}

impl Side {
    /// The arrow's entry in the legend.
    pub fn key(self) -> (String, Key) {
        let name = match self {
            Self::Left | Self::Bottom => "continues beyond the axis, to 0 or less",
            Self::Top => "continues beyond the axis, without end",
        };
        (name.into(), Key::Beyond(self))
    }
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
            5 => around(&[
                (-2.0, -6.5),
                (2.0, -6.5),
                (2.0, -2.0),
                (6.5, -2.0),
                (6.5, 2.0),
                (2.0, 2.0),
                (2.0, 6.5),
                (-2.0, 6.5),
                (-2.0, 2.0),
                (-6.5, 2.0),
                (-6.5, -2.0),
                (-2.0, -2.0),
            ]),
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

    /// The meaning of marks, each with a sample, wrapped into lines from `y` down; returns the `y` of the end.
    pub fn legend(&mut self, entries: &[(String, Key)], y: f64) -> f64 {
        let (mut x, mut y) = (0.0, y + FONT);
        for (name, key) in entries {
            let width = 20.0 + width_of(name) + 18.0;
            if x > 0.0 && x + width - 18.0 > self.width {
                (x, y) = (0.0, y + 20.0);
            }
            self.sample(*key, x, y - 4.5);
            let lines = wrapped(name, self.width - 20.0, width_of);
            y = self.lines_of_text("mw-ink", x + 20.0, y, &lines);
            x += width;
        }
        if entries.is_empty() {
            y - FONT
        } else {
            y + 12.0
        }
    }

    /// Lines of text from the baseline `y` down; returns the baseline of the last.
    pub fn lines_of_text(&mut self, class: &str, x: f64, y: f64, lines: &[String]) -> f64 {
        let mut last = y;
        for (nth, line) in (0..).zip(lines) {
            last = y + f64::from(nth) * LINE;
            self.text(class, Anchor::Start, x, last, line);
        }
        last
    }

    /// A sample of a mark, 14 pixels wide, around the height `y`.
    fn sample(&mut self, key: Key, x: f64, y: f64) {
        let middle = x + 7.0;
        match key {
            Key::Area(colour) => self.rect(&colour.fill(), x, y - 6.5, 13.0, 13.0, ""),
            Key::Mark(colour) => self.marker(colour, middle, y, ""),
            Key::Line(class) => self.line(class, middle, y - 8.0, middle, y + 8.0),
            Key::Whisker(Way::Across) => self.whisker(Way::Across, y, [x, x + 14.0]),
            Key::Whisker(Way::Up) => self.whisker(Way::Up, middle, [y + 7.0, y - 7.0]),
            Key::Beyond(side) => self.beyond(side, middle, y),
        }
    }

    /// An error bar between the positions `ends`, in the middle of its place across.
    pub fn whisker(&mut self, way: Way, place: f64, [low, high]: [f64; 2]) {
        match way {
            Way::Across => {
                self.line("mw-err", low, place, high, place);
                self.line("mw-err", low, place - 4.0, low, place + 4.0);
                self.line("mw-err", high, place - 4.0, high, place + 4.0);
            }
            Way::Up => {
                self.line("mw-err", place, low, place, high);
                self.line("mw-err", place - 4.0, low, place + 4.0, low);
                self.line("mw-err", place - 4.0, high, place + 4.0, high);
            }
        }
    }

    /// An arrow at the end of an axis, around (`x`, `y`): something continues beyond it.
    pub fn beyond(&mut self, side: Side, x: f64, y: f64) {
        let points = match side {
            Side::Left => [(3.5, -4.5), (3.5, 4.5), (-4.5, 0.0)],
            Side::Bottom => [(-4.5, -3.5), (4.5, -3.5), (0.0, 4.5)],
            Side::Top => [(-4.5, 3.5), (4.5, 3.5), (0.0, -4.5)],
        };
        let points = points.map(|(dx, dy)| format!("{},{}", Px(x + dx), Px(y + dy)));
        let _ = write!(
            self.body,
            r#"<polygon class="mw-ink" points="{}"/>"#,
            points.join(" ")
        );
    }

    /// Labels below an axis: each under its tick unless it would leave the picture, and none over another.
    pub fn labels_below(&mut self, labels: impl Iterator<Item = (f64, String)>, y: f64) {
        let mut last_end = f64::NEG_INFINITY;
        for (at, text) in labels {
            let half = width_of(&text) / 2.0;
            let middle = at.min(self.width - half).max(half);
            if middle - half > last_end + 4.0 {
                self.text("mw-soft", Anchor::Middle, middle, y, &text);
                last_end = middle + half;
            }
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
/// Height of a title in one line, with the space below it.
const HEADING: f64 = 30.0;
/// Font size of the title, as set in chart.css.
const TITLE: f64 = 16.0;

impl Drawing {
    /// For a page that includes [`CHART_CSS`] and the colours, and shows the title itself.
    pub fn inline(&self, class: &str) -> String {
        let (w, h) = (Px(self.width), Px(self.height));
        format!(
            r#"<svg class="mw-chart {class}" viewBox="0 0 {w} {h}" preserveAspectRatio="xMinYMin" width="{w}" height="{h}" role="img" aria-label="{}">{}</svg>"#,
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
            ":root{{{}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{}}}}}\n{CHART_CSS}",
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
        let title = escape(&self.title);
        let lines = wrapped(&self.title, self.width, |text| {
            width_of_strong(text) * TITLE / FONT
        });
        let mut heading = String::new();
        let mut y = MARGIN + 12.0;
        for line in &lines {
            let _ = write!(
                heading,
                r#"<text class="mw-ink mw-title" x="{}" y="{}">{}</text>"#,
                Px(MARGIN),
                Px(y),
                escape(line)
            );
            y += TITLE + 4.0;
        }
        let top = y - TITLE - 4.0 + HEADING - 12.0;
        let (width, height) = (
            Px(self.width + 2.0 * MARGIN),
            Px(self.height + top + MARGIN),
        );
        format!(
            concat!(
                r#"<svg xmlns="http://www.w3.org/2000/svg" class="mw-chart" viewBox="0 0 {width} {height}" "#,
                r#"width="{width}" height="{height}" role="img"><title>{title}</title><style>{css}</style>"#,
                r#"<rect class="mw-paper" width="{width}" height="{height}"/>{heading}"#,
                r#"<g transform="translate({margin} {top})">{body}</g></svg>"#,
                "\n"
            ),
            width = width,
            height = height,
            title = title,
            css = css,
            heading = heading,
            margin = Px(MARGIN),
            top = Px(top),
            body = self.body,
        )
    }
}

/// Escapes `text` for an element or a quoted attribute.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Control characters are invalid in XML even when escaped.
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Breaks `text` into lines of at most `width` by `width_of`, between words where there are any.
pub fn wrapped(text: &str, width: f64, width_of: fn(&str) -> f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && width_of(&format!("{line} {word}")) > width {
            lines.push(std::mem::take(&mut line));
        } else if !line.is_empty() {
            line.push(' ');
        }
        for letter in word.chars() {
            if !line.is_empty() && width_of(&format!("{line}{letter}")) > width {
                lines.push(std::mem::take(&mut line));
            }
            line.push(letter);
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::{width_of, width_of_strong, wrapped};

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
        let text = "screen, guard 600,300, proportional sharing: 100 % missed";
        let (pixels, guess) = (436.4, width_of_strong(text));
        assert!((pixels..pixels * 1.3).contains(&guess), "{text}: {guess}");
    }

    #[test]
    fn a_text_that_is_too_long_goes_on_in_the_next_line_and_loses_nothing() {
        for (text, width) in [
            (
                "alone, guard 600,300, proportional sharing: 0 % missed",
                150.0,
            ),
            (
                "/a/path/without/any/space/that/is/longer/than/a/line",
                100.0,
            ),
            ("short", 100.0),
        ] {
            let lines = wrapped(text, width, width_of);
            assert!(
                lines.iter().all(|line| width_of(line) <= width),
                "{lines:?}"
            );
            let letters = |text: &str| text.replace(' ', "");
            assert_eq!(letters(&lines.concat()), letters(text));
            assert_eq!(lines.len() == 1, text == "short", "{lines:?}");
        }
    }
}
