// SPDX-License-Identifier: MIT OR Apache-2.0
//! Live view of a trace: a table on a terminal, nothing in a pipe.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use memwarden_experiments::copy::trace::{CLASSES, Live, Watch};
use memwarden_platform::units::size_text;

use crate::verbs::terminal;

/// A table on stderr that is redrawn; removed when dropped.
pub(super) struct Screen(Option<ProgressBar>);

impl Screen {
    /// A table only on a terminal, and not beside a command, whose output would mix with it.
    pub(super) fn new(beside_command: bool) -> Self {
        let shown = std::io::stderr().is_terminal() && !beside_command;
        Self(shown.then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{msg}") {
                bar.set_style(style);
            }
            bar
        }))
    }
}

impl Watch for Screen {
    fn is_looked_at(&self) -> bool {
        self.0.is_some()
    }

    fn look(&mut self, elapsed: Duration, live: &[Live]) {
        if let Some(bar) = &self.0 {
            bar.set_message(text(elapsed, live));
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Calls of each function by size.
fn text(elapsed: Duration, live: &[Live]) -> String {
    let mut headings = vec!["calls of".to_owned()];
    headings.extend(CLASSES.map(|most| format!("to {}", size_text(most))));
    headings.extend(["larger".into(), "dropped".into()]);
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut table = terminal::table(&headings);
    for one in live {
        let mut row = vec![one.function.to_string()];
        row.extend(one.calls.map(|calls| calls.to_string()));
        row.push(one.dropped.to_string());
        table.add_row(row);
    }
    format!(
        "traced for {} s; Ctrl-C ends the trace\n{table}",
        elapsed.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use memwarden_copies::trace::Function;

    use super::*;

    #[test]
    fn a_function_is_a_line() {
        let live = [Live {
            function: Function::UnderscoreTo,
            calls: [5, 4, 3, 2, 1, 0],
            dropped: 9,
        }];
        let text = text(Duration::from_millis(2500), &live);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[0][..4], ["traced", "for", "2", "s;"]);
        assert_eq!(lines[1][..5], ["calls", "of", "to", "64", "B"]);
        assert_eq!(lines[2], ["__to", "5", "4", "3", "2", "1", "0", "9"]);
    }
}
