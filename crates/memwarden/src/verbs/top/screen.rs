// SPDX-License-Identifier: MIT OR Apache-2.0
//! Top on a terminal: reads the guard at each interval and keys in between, and restores the terminal.

use std::time::{Duration, Instant};

use anyhow::Context;
use memwarden_experiments::Interrupt;
use memwarden_guard::rates::{Sample, Sampler};
use memwarden_guard::{Error, Regulator};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use super::SLICE;
use super::state::{Command, State};
use super::view::{Theme, draw};

/// The terminal in raw mode; restored when dropped, and by ratatui's hook after a panic.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> anyhow::Result<Self> {
        ratatui::try_init()
            .map(Self)
            .context("opening the terminal: --once prints lines instead")
    }
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
    let mut next = Instant::now() + interval;
    let mut left = count;
    let mut stale = true;
    while left != Some(0) && !interrupt.came() {
        if stale {
            screen
                .0
                .draw(|frame| draw(&state, theme, frame))
                .context("drawing on the terminal")?;
            stale = false;
        }
        let now = Instant::now();
        if now >= next {
            measure(guard, &mut state, &mut sampler);
            left = left.map(|left| left - 1);
            // After a pause (a stopped process, a slow terminal), missed readings are skipped.
            next = if now > next + interval { now } else { next } + interval;
            stale = true;
            continue;
        }
        let wait = next.saturating_duration_since(now).min(SLICE);
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
