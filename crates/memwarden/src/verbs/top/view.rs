// SPDX-License-Identifier: MIT OR Apache-2.0
//! Draws top's screen from its state: the same state and size give the same screen.

use memwarden_guard::rates::{CoreRates, ResourceRates};
use memwarden_guard::{Resource, meaning};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::state::{Message, State};

/// Capabilities of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Theme {
    /// Colours: blue and yellow, which colour-blind users can distinguish. No information is in the colour only.
    pub colour: bool,
    /// Block characters; otherwise ASCII.
    pub unicode: bool,
}

impl Theme {
    /// From $NO_COLOR and the locale.
    pub fn from_environment() -> Self {
        let value = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(value);
        Self {
            colour: value("NO_COLOR").is_none(),
            unicode: locale.is_some_and(|locale| {
                let locale = locale.to_ascii_lowercase();
                locale.contains("utf-8") || locale.contains("utf8")
            }),
        }
    }

    fn coloured(self, colour: Color) -> Style {
        if self.colour {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }

    /// Style of what a core may use.
    fn calm(self) -> Style {
        self.coloured(Color::Blue)
    }

    /// Style of what limits a core.
    fn loud(self) -> Style {
        self.coloured(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    /// Eight heights, in ascending order.
    fn heights(self) -> [char; 8] {
        if self.unicode {
            ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
        } else {
            ['_', '.', '-', '=', 'o', 'O', '*', '#']
        }
    }

    /// Characters of a bar: full, empty.
    fn bar(self) -> (char, char) {
        if self.unicode {
            ('█', '░')
        } else {
            ('#', '.')
        }
    }
}

/// Widths of the mean in MB/s, of its share of the budget and of the worst period's share, since the last reset.
const WHOLE: [usize; 3] = [9, 7, 9];

/// A column; listed in the order of priority, drawn in the order of [`Column::DRAWN`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Core,
    Used,
    Budget,
    Share,
    Throttled,
    Worst,
    Whole,
    History,
    BestEffort,
    Overflows,
    Bar,
}

impl Column {
    const WANTED: [Self; 11] = [
        Self::Core,
        Self::Used,
        Self::Budget,
        Self::Share,
        Self::Throttled,
        Self::Worst,
        Self::Whole,
        Self::History,
        Self::BestEffort,
        Self::Overflows,
        Self::Bar,
    ];

    const DRAWN: [Self; 11] = [
        Self::Core,
        Self::Budget,
        Self::Used,
        Self::Share,
        Self::Bar,
        Self::Worst,
        Self::Throttled,
        Self::BestEffort,
        Self::Overflows,
        Self::Whole,
        Self::History,
    ];

    /// Width, including the space before it. The columns up to [`Column::Whole`] fill 80 columns, those up to
    /// [`Column::Share`] fit in 40.
    fn width(self) -> usize {
        match self {
            Self::Core => 11,
            Self::Budget | Self::Used => 9,
            Self::Share => 7,
            Self::Worst => 8,
            Self::Throttled | Self::Overflows => 11,
            Self::Whole => WHOLE.iter().sum(),
            Self::BestEffort => 13,
            Self::Bar => 12,
            // Minimum; it also gets the remaining width.
            Self::History => 14,
        }
    }

    fn heading(self, resource: Resource) -> &'static str {
        match (self, resource) {
            (Self::Core, _) => "core",
            (Self::Budget, Resource::Read) => "budget",
            (Self::Budget, Resource::Write) => "w budget",
            (Self::Used, Resource::Read) => "MB/s",
            (Self::Used, Resource::Write) => "w MB/s",
            (Self::Share, _) => "used",
            (Self::Bar, _) => "",
            (Self::Worst, _) => "worst",
            (Self::Throttled, _) => "throttled",
            (Self::BestEffort, _) => "best effort",
            (Self::Overflows, _) => "over/s",
            (Self::Whole, _) => "since reset: mean, worst",
            (Self::History, _) => "history",
        }
    }
}

/// The columns that fit, in the order of drawing, with their widths.
fn columns(width: usize) -> Vec<(Column, usize)> {
    let mut left = width;
    let mut taken = Vec::new();
    for column in Column::WANTED {
        if column.width() > left {
            break;
        }
        left -= column.width();
        taken.push(column);
    }
    Column::DRAWN
        .into_iter()
        .filter(|column| taken.contains(column))
        .map(|column| {
            let spare = if column == Column::History { left } else { 0 };
            (column, column.width() + spare)
        })
        .collect()
}

/// Rows of the table that must fit below the sentences about cores that were not held. A table of more cores may scroll
/// to make room for the sentences.
const ROWS_KEPT: usize = 8;

/// Draws the screen.
pub fn draw(state: &State, theme: Theme, frame: &mut Frame) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let mut failings = failings(state, theme, width);
    let facts = facts(state, theme, width);
    let mut below = vec![status(state, theme)];
    if !state.help {
        below.extend(keys(theme, width));
    }
    let table_height = 1 + state.cores.len().min(ROWS_KEPT);
    if failings.len() + facts.len() + table_height + below.len() > height {
        failings.truncate(1);
    }
    let mut above = failings;
    above.extend(facts);
    // A low screen keeps only the cores and the status line.
    if above.len() + below.len() + 3 > height {
        above.truncate(1);
        below.truncate(1);
    }
    let room = height.saturating_sub(above.len() + below.len());
    let mut lines = above;
    lines.extend(if state.help {
        help(room)
    } else {
        table(state, theme, width, room)
    });
    let end = height.saturating_sub(below.len());
    lines.resize(end, Line::default());
    lines.extend(below);
    for (line, y) in lines.iter().zip(0..area.height) {
        frame.render_widget(line, Rect::new(0, y, area.width, 1));
    }
}

/// Lays out words in lines, as many in a line as fit.
fn flow<'a>(words: Vec<Span<'a>>, gap: &'static str, width: usize) -> Vec<Line<'a>> {
    let mut lines = vec![Line::default()];
    for word in words {
        let Some(line) = lines.last_mut() else { break };
        let used = line.width();
        if used > 0 && used + gap.len() + word.width() > width {
            lines.push(Line::from(word));
        } else {
            if used > 0 {
                line.push_span(gap);
            }
            line.push_span(word);
        }
    }
    lines
}

/// The failures to regulate a core. The first line names the cores, so that a low screen keeps their names.
fn failings<'a>(state: &State, theme: Theme, width: usize) -> Vec<Line<'a>> {
    let cores = &state.not_held;
    // The sentence about a single core begins with its name.
    let list = (cores.iter().count() > 1)
        .then(|| Line::styled(format!("! cores not held: {cores}"), theme.loud()));
    let sentences = state.failings.iter().flat_map(|sentence| {
        let words = ["!"].into_iter().chain(sentence.split(' '));
        let words = words.map(|word| Span::styled(word.to_owned(), theme.loud()));
        flow(words.collect(), " ", width)
    });
    list.into_iter().chain(sentences).collect()
}

fn facts<'a>(state: &State, theme: Theme, width: usize) -> Vec<Line<'a>> {
    let control = &state.settings.control;
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let (sum, most) = (control.guaranteed_mib_s, control.maxbw_mib_s);
    let budgets = match most {
        0 => Span::raw(format!("budgets {sum} MB/s")),
        _ if sum > most => Span::styled(
            format!("budgets {sum} MB/s: more than memory's {most}"),
            theme.loud(),
        ),
        _ => Span::raw(format!("budgets {sum} of {most} MB/s")),
    };
    let used = |core: &CoreRates| core.of(state.resource).and_then(|of| of.achieved_mib_s);
    // The sum over no cores would be a figure.
    let used: Option<f64> = if state.cores.is_empty() {
        None
    } else {
        state.cores.iter().map(used).sum()
    };
    let throttled = if state.lost.is_some() {
        "-".to_owned()
    } else if control.throttled.is_empty() {
        "none".to_owned()
    } else {
        control.throttled.to_string()
    };
    let mut words = vec![
        Span::styled("memwarden top", bold),
        Span::raw(format!(
            "{}: {}, {} B",
            state.backend, control.event, control.bytes_per_event
        )),
        Span::raw(format!("period {} us", control.period_us)),
        Span::raw(format!("every {} s", state.interval.as_secs_f64())),
        budgets,
        Span::raw(format!("used {} MB/s", figure(used))),
        Span::raw(format!("best effort {}", control.best_effort.word())),
        Span::raw(format!(
            "reclaim {}",
            if control.reclaim { "on" } else { "off" }
        )),
        Span::raw(format!("throttled now: {throttled}")),
    ];
    if control.user_only {
        words.insert(2, Span::raw("user space only"));
    }
    if control.combined {
        words.insert(2, Span::raw("reads and write-backs in one budget"));
    }
    if !meaning(control).memory_traffic {
        words.insert(2, Span::styled("not memory traffic", theme.loud()));
    }
    flow(words, "  ", width)
}

fn status<'a>(state: &State, theme: Theme) -> Line<'a> {
    if let Some(typed) = &state.typed {
        let what = match state.resource {
            Resource::Read => "budget",
            Resource::Write => "write budget",
        };
        let cursor = if theme.unicode { '█' } else { '_' };
        return Line::from(format!(
            "CPU{}'s {what} in MB/s, or max: {typed}{cursor}  (Enter sets it, Esc doesn't)",
            state.selected
        ));
    }
    let wrong = |text: &str| Line::styled(format!("! {text}"), theme.loud());
    match (&state.message, &state.lost) {
        (Some(Message::Done(text)), _) => Line::from(text.clone()),
        (Some(Message::Refused(text)), _) | (None, Some(text)) => wrong(text),
        (None, None) => Line::default(),
    }
}

/// Keys with a short and a long description.
const KEYS: [(&str, &str, &str); 11] = [
    (
        "j k",
        "core",
        "the core below, above; arrows, PgUp, PgDn, Home and End too",
    ),
    ("+ -", "10 %", "a tenth more or less budget for it"),
    (
        "e",
        "type",
        "types its budget in MB/s (2^20 bytes a second), or max; so does Enter",
    ),
    ("u", "unlimited", "lifts its budget"),
    ("r", "rt", "never throttles it, or does again"),
    (
        "w",
        "writes",
        "shows and changes the budgets of writes, or those of reads again",
    ),
    ("m", "mode", "best effort: none, spare, proportional"),
    (
        "R",
        "reclaim",
        "cores donate what they don't need, or keep it",
    ),
    ("z", "zero", "resets the statistics"),
    ("?", "help", "this list; any key closes it"),
    ("q", "quit", "ends; the guard stays as it is"),
];

fn keys<'a>(theme: Theme, width: usize) -> Vec<Line<'a>> {
    let words = KEYS
        .iter()
        .map(|(key, what, _)| Span::styled(format!("{key} {what}"), theme.calm()))
        .collect();
    flow(words, "  ", width)
}

fn help<'a>(room: usize) -> Vec<Line<'a>> {
    let mut lines = vec![Line::default()];
    lines.extend(
        KEYS.iter()
            .map(|(key, _, what)| Line::from(format!("  {key:<5}{what}"))),
    );
    lines.extend(
        [
            "",
            "  budget, MB/s  what the core may move, and what it moved; used: the second in percent of the first",
            "  worst         the worst period of the last second in percent of the budget",
            "  since reset   mean MB/s since the statistics were reset, in percent of the budget, and the worst period",
            "  !             after a core's name: it was not held; the lines above the table say why",
            "  throttled     percent of the time that it waited; best effort: that it ran beyond its budget",
            "  over/s        times a second that its counter passed what it had; history: MB/s, full height is",
            "                the budget, or the most seen when that is more",
        ]
        .map(Line::from),
    );
    lines.truncate(room);
    lines
}

fn table<'a>(state: &State, theme: Theme, width: usize, room: usize) -> Vec<Line<'a>> {
    let columns = columns(width);
    let heading: String = columns
        .iter()
        .map(|(column, width)| {
            let heading = column.heading(state.resource);
            match column {
                Column::Core => format!(" {heading:<0$}", width - 1),
                Column::Bar | Column::History => format!("  {heading:<0$}", width - 2),
                _ => format!("{heading:>width$}"),
            }
        })
        .collect();
    let bold = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    let mut lines = vec![Line::styled(heading, bold)];
    let rows = room.saturating_sub(1);
    let total = state.cores.len();
    // If the table is cut off, one row says so.
    let shown = if total > rows {
        rows.saturating_sub(1)
    } else {
        total
    };
    let at = state
        .cores
        .iter()
        .position(|core| core.cpu == state.selected)
        .unwrap_or(0);
    let first = at
        .saturating_sub(shown / 2)
        .min(total.saturating_sub(shown));
    for core in state.cores.iter().skip(first).take(shown) {
        let mut spans = Vec::new();
        for (column, width) in &columns {
            spans.extend(cell(state, theme, core, *column, *width));
        }
        lines.push(Line::from(spans));
    }
    if shown < total {
        lines.push(Line::from(format!(
            " cores {} to {} of {total}",
            first + 1,
            first + shown
        )));
    }
    lines.truncate(room);
    lines
}

fn figure(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.1}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

/// In percent without decimals.
fn rounded_percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

fn cell<'a>(
    state: &State,
    theme: Theme,
    core: &CoreRates,
    column: Column,
    width: usize,
) -> Vec<Span<'a>> {
    let none = ResourceRates::default();
    let rates = core.of(state.resource).unwrap_or(&none);
    let right = |text: String| format!("{text:>width$}");
    let above = |share: Option<f64>| share.is_some_and(|share| share >= 0.0005);
    match column {
        Column::Core => {
            let mark = if core.cpu == state.selected { '>' } else { ' ' };
            let rt = if core.rt { " rt" } else { "" };
            let (failing, mut style) = if core.failings.is_empty() {
                ("", Style::new())
            } else {
                ("!", theme.loud())
            };
            let name = format!("CPU{}{rt}{failing}", core.cpu);
            // The mark repeats the selection for terminals without reverse video.
            if core.cpu == state.selected {
                style = style.add_modifier(Modifier::REVERSED);
            }
            vec![Span::styled(format!("{mark}{name:<0$}", width - 1), style)]
        }
        Column::Budget => {
            let budget = rates.budget_mib_s;
            vec![Span::raw(right(
                budget.map_or("max".into(), |mib_s| format!("{mib_s:.1}")),
            ))]
        }
        Column::Used => vec![Span::raw(right(figure(rates.achieved_mib_s)))],
        Column::Share => vec![Span::raw(right(rounded_percent(rates.budget_ratio)))],
        Column::Bar => bar(theme, rates.budget_ratio, width),
        Column::Worst => vec![Span::raw(right(rounded_percent(rates.worst_ratio)))],
        Column::Whole => {
            let whole = &rates.whole;
            let texts = [
                figure(whole.achieved_mib_s),
                rounded_percent(whole.budget_ratio),
                rounded_percent(whole.worst_ratio),
            ];
            let cells = texts.iter().zip(WHOLE);
            let cells = cells.map(|(text, width)| Span::raw(format!("{text:>width$}")));
            cells.collect()
        }
        Column::Throttled => {
            let style = if above(core.throttled_ratio) {
                theme.loud()
            } else {
                Style::new()
            };
            vec![Span::styled(right(percent(core.throttled_ratio)), style)]
        }
        Column::BestEffort => vec![Span::raw(right(percent(core.best_effort_ratio)))],
        Column::Overflows => {
            let overflows = core.overflows_per_s.map(|rate| format!("{rate:.0}"));
            vec![Span::raw(right(overflows.unwrap_or("-".into())))]
        }
        Column::History => {
            let line = history(state, theme, core.cpu, rates.budget_mib_s, width - 2);
            vec![Span::raw("  "), Span::styled(line, theme.calm())]
        }
    }
}

/// A bar of the share of a budget; full if exceeded.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
fn bar<'a>(theme: Theme, share: Option<f64>, width: usize) -> Vec<Span<'a>> {
    let Some(share) = share else {
        return vec![Span::raw(" ".repeat(width))];
    };
    let length = width - 2;
    let full = ((share.clamp(0.0, 1.0) * length as f64).round() as usize).min(length);
    let (on, off) = theme.bar();
    let part = |char: char, count: usize| char.to_string().repeat(count);
    vec![
        Span::raw("  "),
        Span::styled(part(on, full), theme.calm()),
        Span::raw(part(off, length - full)),
    ]
}

/// MB/s over time. The full height is the budget, or the maximum if that is more.
fn history(state: &State, theme: Theme, cpu: usize, budget: Option<f64>, width: usize) -> String {
    let Some(history) = state.history.get(&cpu) else {
        return " ".repeat(width);
    };
    let values: Vec<_> = history.last(state.resource, width).collect();
    let top = values
        .iter()
        .flatten()
        .copied()
        .chain(budget)
        .fold(0.0, f64::max);
    let heights = theme.heights();
    let line: String = values
        .iter()
        .map(|value| match value {
            None => ' ',
            Some(_) if top <= 0.0 => heights[0],
            Some(value) => heights[((value / top * 8.0).ceil() as usize).clamp(1, 8) - 1],
        })
        .collect();
    format!("{line:>width$}")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use memwarden_guard::metrics;
    use memwarden_guard::rates::{Rates, Sample, Sampler, WholeRates};
    use memwarden_platform::cpus::CpuSet;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Buffer;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use ratatui::{Terminal, style};

    use super::super::picture::svg;
    use super::*;

    const PLAIN: Theme = Theme {
        colour: false,
        unicode: true,
    };

    const COLOURED: Theme = Theme {
        colour: true,
        ..PLAIN
    };

    /// The recorded output of `memwarden top --json` in the lab (tests/data/top/README.md describes it).
    fn recorded_lines() -> Vec<serde_json::Value> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/top/recorded.jsonl");
        let text = fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn sample_of(line: &serde_json::Value, at: Instant) -> Sample {
        Sample {
            settings: serde_json::from_value(line["settings"].clone()).unwrap(),
            cores: serde_json::from_value(line["cores"].clone()).unwrap(),
            at,
            online: CpuSet::default(),
        }
    }

    fn recorded() -> State {
        let begin = Instant::now();
        let mut sampler = Sampler::default();
        let mut state: Option<State> = None;
        let mut first = None;
        for line in recorded_lines() {
            let time = line["time_unix_s"].as_f64().unwrap();
            let since = time - *first.get_or_insert(time);
            let sample = sample_of(&line, begin + Duration::from_secs_f64(since));
            let settings = sample.settings.clone();
            let state = state.get_or_insert_with(|| {
                let interval = Duration::from_secs_f64(line["interval_s"].as_f64().unwrap());
                let interval = Duration::from_millis((interval.as_secs_f64() * 1e3).round() as u64);
                State::new(
                    line["backend"].as_str().unwrap(),
                    interval,
                    settings.clone(),
                )
            });
            state.measured(settings, sampler.next(sample));
        }
        state.unwrap()
    }

    /// The recorded cores, repeated to get many.
    fn many(count: usize) -> State {
        let mut state = recorded();
        let few = state.cores.clone();
        let budgets = state.settings.read_budget_events.clone();
        state.cores = few
            .iter()
            .cycle()
            .take(count)
            .enumerate()
            .map(|(cpu, core)| CoreRates {
                cpu,
                ..core.clone()
            })
            .collect();
        for core in &state.cores {
            let like = core.cpu % few.len();
            state
                .settings
                .read_budget_events
                .insert(core.cpu, budgets[&like]);
            let history = state.history[&like].clone();
            state.history.insert(core.cpu, history);
        }
        state
    }

    fn drawn(state: &State, theme: Theme, width: u16, height: u16) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(state, theme, frame)).unwrap();
        terminal.backend().buffer().clone()
    }

    fn text(buffer: &Buffer) -> String {
        let width = usize::from(buffer.area.width);
        let rows = buffer.content.chunks(width);
        rows.map(|row| {
            let line: String = row.iter().map(|cell| cell.symbol()).collect();
            format!("{}\n", line.trim_end())
        })
        .collect()
    }

    /// Compares with a file.
    fn expect(path: &Path, found: &str) {
        snapbox::assert_data_eq!(found, snapbox::Data::read_from(path, None).raw());
    }

    fn golden(name: &str, state: &State, theme: Theme, width: u16, height: u16) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/top");
        let screen = text(&drawn(state, theme, width, height));
        expect(&folder.join(format!("{name}.txt")), &screen);
    }

    fn press(state: &mut State, code: KeyCode) {
        state.key(KeyEvent::new(code, KeyModifiers::NONE));
    }

    #[test]
    fn screens_are_as_they_were() {
        golden("ordinary", &recorded(), PLAIN, 80, 24);
        golden("wide", &recorded(), PLAIN, 140, 16);
        golden("narrow", &recorded(), PLAIN, 40, 16);
        let ascii = Theme {
            unicode: false,
            ..PLAIN
        };
        golden("ascii", &recorded(), ascii, 120, 12);
        let mut state = many(64);
        (0..30).for_each(|_| press(&mut state, KeyCode::Down));
        golden("many-cores", &state, PLAIN, 80, 20);
        press(&mut state, KeyCode::End);
        golden("many-cores-end", &state, PLAIN, 80, 20);
        let mut state = recorded();
        press(&mut state, KeyCode::Char('?'));
        golden("help", &state, PLAIN, 110, 24);
        let mut state = recorded();
        press(&mut state, KeyCode::Char('e'));
        press(&mut state, KeyCode::Char('6'));
        golden("typing", &state, PLAIN, 80, 14);
        press(&mut state, KeyCode::Backspace);
        press(&mut state, KeyCode::Char('0'));
        press(&mut state, KeyCode::Enter);
        golden("refused", &state, PLAIN, 80, 14);
    }

    #[test]
    fn the_picture_in_the_docs_is_the_screen() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures/top.svg");
        let screen = drawn(&recorded(), COLOURED, 110, 12);
        expect(&docs, &svg("memwarden top", &screen));
    }

    /// The metrics of `memwarden guard serve` for the same cores at the last recorded moment, which docs/serve.md
    /// shows.
    #[test]
    fn the_picture_of_the_metrics_page_is_the_page() {
        const SHOWN: [&str; 6] = [
            "memwarden_guard_info",
            "memwarden_period_seconds",
            "memwarden_core_budget_bytes_per_second",
            "memwarden_core_used_bytes_total",
            "memwarden_core_throttled_ratio",
            "memwarden_core_throttled_seconds_total",
        ];
        let line = recorded_lines().pop().unwrap();
        let sample = sample_of(&line, Instant::now());
        let mut page = metrics::Page::default();
        let backend = line["backend"].as_str().unwrap();
        metrics::guard(&mut page, backend, &sample.settings, &sample.cores);
        let page = page.into_text();
        let lines: Vec<&str> = page
            .lines()
            .filter(|line| {
                let name = line.trim_start_matches("# HELP ");
                let name = name.trim_start_matches("# TYPE ");
                SHOWN.contains(&name.split([' ', '{']).next().unwrap())
            })
            .collect();
        let width = lines.iter().map(|line| line.chars().count()).max().unwrap();
        let area = Rect::new(
            0,
            0,
            width.try_into().unwrap(),
            lines.len().try_into().unwrap(),
        );
        let mut screen = Buffer::empty(area);
        for (row, line) in lines.iter().enumerate() {
            let comment = line.starts_with('#');
            let ink = if comment { Color::Blue } else { Color::Reset };
            screen.set_string(0, row.try_into().unwrap(), line, Style::new().fg(ink));
        }
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures/metrics.svg");
        expect(&docs, &svg("memwarden guard serve: /metrics", &screen));
    }

    #[test]
    fn without_colour_there_is_none_and_with_it_the_text_is_the_same() {
        let buffer = drawn(&recorded(), PLAIN, 100, 20);
        for cell in &buffer.content {
            assert_eq!(
                (cell.fg, cell.bg),
                (style::Color::Reset, style::Color::Reset)
            );
        }
        let coloured = drawn(&recorded(), COLOURED, 100, 20);
        assert_eq!(text(&coloured), text(&buffer));
        assert!(coloured.content.iter().any(|cell| cell.fg == Color::Yellow));
        for cell in &coloured.content {
            assert!([Color::Reset, Color::Yellow, Color::Blue].contains(&cell.fg));
        }
    }

    #[test]
    fn any_size_is_drawn_with_the_selected_core() {
        let mut state = many(40);
        for size in [(1, 1), (5, 3), (20, 4), (10, 200), (400, 5), (79, 23)] {
            for _ in 0..3 {
                drawn(&state, PLAIN, size.0, size.1);
                press(&mut state, KeyCode::PageDown);
            }
            press(&mut state, KeyCode::Home);
        }
        for height in 6..30 {
            for selected in 0..40 {
                state.selected = selected;
                let screen = text(&drawn(&state, PLAIN, 60, height));
                assert!(
                    screen.contains(&format!(">CPU{selected} ")),
                    "{height}: {screen}"
                );
            }
        }
        state.cores.clear();
        drawn(&state, PLAIN, 80, 24);
    }

    #[test]
    fn a_core_that_was_not_held_is_told_on_any_screen() {
        let mut state = recorded();
        let failing = "CPU2 was not held: 44160 events used of 20620 assigned in the last second";
        let figures = ", 247 of them in one period";
        fail(&mut state, 2, &format!("{failing}{figures}"));
        state.cores[2].read.worst_ratio = Some(12.5);
        for (width, height, all) in [(140, 16, true), (80, 24, true), (80, 8, false)] {
            let screen = text(&drawn(&state, PLAIN, width, height));
            assert!(screen.starts_with(&format!("! {failing}")), "{screen}");
            assert_eq!(screen.contains("in one period"), all, "{screen}");
            assert!(screen.contains("1250 %"), "{screen}");
        }
        for (width, height) in [(40, 16), (40, 6), (20, 24)] {
            let screen = text(&drawn(&state, PLAIN, width, height));
            assert!(screen.starts_with("! CPU2 was not"), "{screen}");
        }
    }

    /// Marks a core as not held.
    fn fail(state: &mut State, cpu: usize, failing: &str) {
        state.cores[cpu].failings = vec![failing.into()];
        state.failings.push(failing.into());
        state.not_held = state.not_held.iter().chain([cpu]).collect();
    }

    #[test]
    fn of_a_guard_that_has_ended_nothing_is_shown_but_the_reason() {
        let mut state = recorded();
        state.settings.control.throttled = (1..4).collect();
        state.lost("no guard is running".into());
        let screen = |state: &State| text(&drawn(state, PLAIN, 140, 24));
        for code in [KeyCode::Down, KeyCode::Char('e'), KeyCode::Char('?')] {
            let shown = screen(&state);
            assert!(shown.contains("used - MB/s"), "{shown}");
            assert!(shown.contains("throttled now: -"), "{shown}");
            assert!(shown.contains("\n! no guard is running\n"), "{shown}");
            press(&mut state, code);
        }
        assert!(screen(&state).ends_with("! no guard is running\n"));
        // The outcome of a command hides the reason until the next key.
        state.done(Err("no such file".into()));
        assert!(screen(&state).ends_with("! no such file\n"));
        press(&mut state, KeyCode::Down);
        assert!(screen(&state).contains("\n! no guard is running\n"));
        // The loss of the guard hides an older outcome, and a reading of another guard removes the reason.
        state.done(Ok("set: cpu0 max".into()));
        state.lost("it has ended".into());
        assert!(screen(&state).contains("\n! it has ended\n"));
        let settings = state.settings.clone();
        state.measured(settings, Rates::default());
        let shown = screen(&state);
        assert!(!shown.contains("it has ended"), "{shown}");
        assert!(shown.contains("throttled now: 1-3"), "{shown}");
    }

    #[test]
    fn every_core_that_was_not_held_is_named_and_marked() {
        let mut state = many(64);
        let failing = |cpu: usize| (cpu < 40 && cpu != 7) || cpu == 63;
        for cpu in (0..64).filter(|&cpu| failing(cpu)) {
            fail(&mut state, cpu, &format!("CPU{cpu} was not held: figures"));
        }
        for (width, height) in [(140, 100), (80, 24), (40, 30), (40, 8)] {
            for selected in [0, 7, 31, 63] {
                state.selected = selected;
                let screen = text(&drawn(&state, PLAIN, width, height));
                assert!(
                    screen.starts_with("! cores not held: 0-6,8-39,63\n"),
                    "{screen}"
                );
                let all = screen.contains("! CPU63 was not held: figures");
                assert_eq!(all, height == 100, "{screen}");
                let mut rows = 0;
                for row in screen.lines().filter_map(|line| line.get(1..)) {
                    let Some(name) = row.strip_prefix("CPU") else {
                        continue;
                    };
                    let cpu: String = name.chars().take_while(char::is_ascii_digit).collect();
                    let marked = name[..8].contains('!');
                    assert_eq!(marked, failing(cpu.parse().unwrap()), "{screen}");
                    rows += 1;
                }
                assert!(rows >= 2, "{screen}");
            }
        }
    }

    #[test]
    fn the_whole_is_beside_the_last_second_on_80_columns() {
        let mut state = recorded();
        let read = &mut state.cores[1].read;
        read.worst_ratio = Some(1.01);
        read.whole = WholeRates {
            achieved_mib_s: Some(96.1),
            budget_ratio: Some(0.984),
            worst_mib_s: Some(1221.0),
            worst_ratio: Some(12.5),
        };
        let row = |state: &State, width| {
            let screen = text(&drawn(state, PLAIN, width, 24));
            let mut lines = screen.lines();
            let heading = lines.find(|line| line.starts_with(" core")).unwrap();
            let row = lines.find(|line| line.starts_with(" CPU1")).unwrap();
            (heading.to_owned(), row.to_owned())
        };
        let (heading, line) = row(&state, 80);
        assert!(heading.ends_with("since reset: mean, worst"), "{heading}");
        assert!(line.ends_with("96.1   98 %   1250 %"), "{line}");
        assert_eq!((heading.len(), line.len()), (80, 80));
        assert!(!row(&state, 79).0.contains("since reset"));
        // Without a budget there are no shares.
        let none = ResourceRates::default();
        state.cores[1].read.budget_mib_s = None;
        state.cores[1].read.whole = WholeRates {
            achieved_mib_s: Some(96.1),
            ..none.whole
        };
        let line = row(&state, 80).1;
        assert!(line.ends_with("96.1      -        -"), "{line}");
        // Of the traffic that is shown.
        let mut write = state.cores[1].read.clone();
        write.whole.achieved_mib_s = Some(7.5);
        state.cores[1].write = Some(write);
        state.resource = Resource::Write;
        let line = row(&state, 80).1;
        assert!(line.ends_with("7.5      -        -"), "{line}");
    }

    #[test]
    fn columns_never_exceed_the_width() {
        for width in 0..300 {
            let sum: usize = columns(width).iter().map(|(_, width)| width).sum();
            assert!(sum <= width);
        }
        assert_eq!(columns(40).last().unwrap().0, Column::Share);
        assert_eq!(columns(80).last().unwrap().0, Column::Whole);
        assert_eq!(columns(94).last().unwrap().0, Column::History);
    }
}
