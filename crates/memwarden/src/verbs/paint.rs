// SPDX-License-Identifier: MIT OR Apache-2.0
//! Colours of errors and verdicts: on a terminal that has colours, and not if NO_COLOR is set. Never in a pipe.

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

/// How good a verdict is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As it should be.
    Good,
    /// Works with limits, or is unknown.
    Fair,
    /// Does not work.
    Bad,
}

/// Colours words, or leaves them as they are.
#[derive(Debug, Clone, Copy)]
pub struct Paint {
    colours: bool,
}

impl Paint {
    /// For text that goes to `stream`.
    pub fn of(stream: &impl RawStream) -> Self {
        Self {
            colours: stream.is_terminal() && AutoStream::choice(stream) != ColorChoice::Never,
        }
    }

    /// The word in the colour of its tone.
    pub fn word(self, tone: Tone, word: &str) -> String {
        if !self.colours {
            return word.to_owned();
        }
        let colour = match tone {
            Tone::Good => AnsiColor::Green,
            Tone::Fair => AnsiColor::Yellow,
            Tone::Bad => AnsiColor::Red,
        };
        // As clap does, whose errors stand beside ours.
        let style = match tone {
            Tone::Bad => Style::new().bold(),
            Tone::Good | Tone::Fair => Style::new(),
        };
        let style = style.fg_color(Some(colour.into()));
        format!("{style}{word}{style:#}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_coloured_or_left_as_it_is() {
        let plain = Paint { colours: false };
        assert_eq!(plain.word(Tone::Bad, "missing"), "missing");
        let coloured = Paint { colours: true };
        assert_eq!(
            coloured.word(Tone::Bad, "missing"),
            "\u{1b}[1m\u{1b}[31mmissing\u{1b}[0m"
        );
        assert_eq!(coloured.word(Tone::Good, "ok"), "\u{1b}[32mok\u{1b}[0m");
    }
}
