// SPDX-License-Identifier: MIT OR Apache-2.0
//! Top on a terminal: reads the guard at each interval and keys in between, and restores the terminal.

use std::io;
use std::time::{Duration, Instant};

use anyhow::Context;
use memwarden_experiments::Interrupt;
use memwarden_guard::rates::{Sample, Sampler};
use memwarden_guard::{Error, Regulator};
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::EnterAlternateScreen;
use ratatui::layout::{Position, Rect, Size};
use ratatui::{DefaultTerminal, TerminalOptions, Viewport};

use super::state::{Command, State};
use super::view::{Theme, draw};
use super::{SLICE, next_due};

/// The size of a terminal that doesn't know its own, such as a serial console.
const USUAL: Size = Size {
    width: 80,
    height: 24,
};

/// The terminal in raw mode; restored when dropped, and by ratatui's hook after a panic.
struct Screen {
    terminal: DefaultTerminal,
    area: Rect,
}

impl Screen {
    fn open() -> anyhow::Result<Self> {
        // ratatui's own full screen would be empty on a terminal without a size.
        let area = Rect::default();
        let options = TerminalOptions {
            viewport: Viewport::Fixed(area),
        };
        let open = || {
            let terminal = ratatui::try_init_with_options(options)?;
            let screen = Self { terminal, area };
            execute!(io::stdout(), EnterAlternateScreen)?;
            Ok::<_, io::Error>(screen)
        };
        open().context("opening the terminal: --once prints lines instead")
    }

    fn draw(&mut self, state: &State, theme: Theme) -> io::Result<()> {
        let area = area(self.terminal.size()?);
        if area != self.area {
            self.terminal.resize(area)?;
            self.area = area;
        }
        self.terminal.draw(|frame| draw(state, theme, frame))?;
        Ok(())
    }
}

/// The area of a screen for a terminal of this size; 0 is unknown.
fn area(size: Size) -> Rect {
    let known = |size, usual| if size == 0 { usual } else { size };
    let size = Size {
        width: known(size.width, USUAL.width),
        height: known(size.height, USUAL.height),
    };
    Rect::from((Position::ORIGIN, size))
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone cannot be restored.
        let _ = ratatui::try_restore();
    }
}

/// Shows the screen until a key, the count or a signal ends it.
pub fn run(
    guard: &mut dyn Regulator,
    interval: Duration,
    count: Option<u64>,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let theme = Theme::from_environment();
    let first = Sample::take(guard)?;
    let mut state = State::new(guard.name(), interval, first.settings.clone());
    let mut sampler = Sampler::default();
    state.measured(first.settings.clone(), sampler.next(first));

    let mut screen = Screen::open()?;
    let mut due = Instant::now() + interval;
    let mut left = count;
    let mut stale = true;
    while left != Some(0) && !interrupt.came() {
        if stale {
            screen
                .draw(&state, theme)
                .context("drawing on the terminal")?;
            stale = false;
        }
        let now = Instant::now();
        if now >= due {
            measure(guard, &mut state, &mut sampler);
            left = left.map(|left| left - 1);
            due = next_due(due, now, interval);
            stale = true;
            continue;
        }
        let wait = due.saturating_duration_since(now).min(SLICE);
        if !event::poll(wait).context("waiting for keys")? {
            continue;
        }
        stale = true;
        if let Event::Key(key) = event::read().context("reading keys")? {
            match state.key(key) {
                Some(Command::Quit) => break,
                Some(command) => carry_out(guard, &mut state, &mut sampler, &command),
                None => {}
            }
        }
    }
    Ok(())
}

/// Reads the guard. If it has ended, the screen says so and waits for another one.
fn measure(guard: &dyn Regulator, state: &mut State, sampler: &mut Sampler) {
    match Sample::take(guard) {
        Ok(sample) => {
            let settings = sample.settings.clone();
            state.measured(settings, sampler.next(sample));
        }
        Err(error) => {
            sampler.forget();
            state.lost(error.to_string());
        }
    }
}

fn carry_out(
    guard: &mut dyn Regulator,
    state: &mut State,
    sampler: &mut Sampler,
    command: &Command,
) {
    let outcome = told(guard, command);
    if matches!((command, &outcome), (Command::Reset, Ok(_))) {
        sampler.forget();
        if let Ok(sample) = Sample::take(guard) {
            sampler.next(sample);
        }
    }
    if let Ok(settings) = guard.settings() {
        state.set(settings);
    }
    state.done(outcome.map_err(|error| error.to_string()));
}

/// Sends the command to the guard; returns a description for the screen.
fn told(guard: &mut dyn Regulator, command: &Command) -> Result<String, Error> {
    match command {
        Command::Quit => Ok(String::new()),
        Command::Budget(resource, request) => {
            guard.set_budgets(*resource, request)?;
            Ok(format!("set: {}", request.to_line()))
        }
        Command::Rt(cpu, rt) => {
            guard.set_rt(*cpu, *rt)?;
            let now = if *rt {
                "never throttled"
            } else {
                "throttled as others"
            };
            Ok(format!("CPU{cpu} is {now}"))
        }
        Command::BestEffort(mode) => {
            guard.set_mode(Some(*mode), None)?;
            Ok(format!("best effort {}", mode.word()))
        }
        Command::Reclaim(reclaim) => {
            guard.set_mode(None, Some(*reclaim))?;
            Ok(format!("reclaim {}", if *reclaim { "on" } else { "off" }))
        }
        Command::Reset => {
            guard.reset_statistics()?;
            Ok("statistics reset".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_size_is_the_usual_one() {
        let size = |width, height| {
            let area = area(Size { width, height });
            (area.x, area.y, area.width, area.height)
        };
        assert_eq!(size(0, 0), (0, 0, 80, 24));
        assert_eq!(size(132, 0), (0, 0, 132, 24));
        assert_eq!(size(1, 1), (0, 0, 1, 1));
        assert_eq!(size(200, 50), (0, 0, 200, 50));
    }
}
