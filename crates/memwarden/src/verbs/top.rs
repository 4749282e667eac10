// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden top`: shows each core's use of its budget live.

mod lines;
#[cfg(all(test, feature = "terminal"))]
mod picture;
#[cfg(feature = "terminal")]
mod screen;
#[cfg(feature = "terminal")]
mod state;
#[cfg(feature = "terminal")]
mod view;

#[cfg(feature = "terminal")]
use std::io::IsTerminal;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use memwarden_experiments::Interrupt;
use memwarden_guard::{Null, Regulator, StartOptions};
use memwarden_platform::units::{Time, parse_seconds};

use memwarden_guard::running;

use crate::verbs::foreign;
use crate::verbs::numbers::{count_in, time_in};

/// With a shorter interval the view would mostly show its own traffic.
const INTERVAL_MIN: Time = Time::ms(20);

/// The longest useful interval.
const INTERVAL_MAX: Time = Time::ms(3_600_000);

/// Longest delay until a signal is noticed.
const SLICE: Duration = Duration::from_millis(50);

/// Watch each core's traffic against its budget, and change budgets interactively
#[derive(clap::Args)]
#[command(
    after_help = "Shows a screen on a terminal (? lists its keys), otherwise and with TERM=dumb a line for each core and interval:\n\
    - means unknown, max no budget. MB/s are 2^20 bytes a second. NO_COLOR is respected. Needs a running guard:\n\
    memwarden guard start.\n\
    Examples:\n  memwarden top\n  memwarden top --once --json"
)]
pub struct Args {
    /// Interval: seconds, or with a unit (500ms)
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time_in(parse_seconds, INTERVAL_MIN..=INTERVAL_MAX, "give 20 ms to 3600 s"))]
    interval: Time,
    /// Print the figures of one interval and exit
    #[arg(long)]
    once: bool,
    /// Exit after this number of intervals
    #[arg(
        long,
        value_name = "N",
        value_parser = count_in::<u64>(1..=u64::MAX),
        conflicts_with = "once",
        allow_negative_numbers = true
    )]
    count: Option<u64>,
    /// Print one JSON object a line: guard show --json, and rates
    #[arg(long)]
    json: bool,
    /// The guard to watch, for tests
    #[arg(long, value_enum, default_value = "running", hide = true)]
    backend: BackendName,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BackendName {
    /// The guard that is running
    Running,
    /// A guard that counts nothing, to try the screen
    Null,
}

/// What `--json` prints of each interval.
#[cfg(feature = "host")]
pub type Printed = lines::Line<'static>;

/// Runs `memwarden top`.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // Caught before anything is drawn, so that the terminal is restored after any signal.
    let interrupt = Interrupt::catch()?;
    let mut guard = match args.backend {
        BackendName::Running => running()?,
        BackendName::Null => null()?,
    };
    let count = if args.once { Some(1) } else { args.count };
    #[cfg(feature = "terminal")]
    if !args.once && !args.json && std::io::stdout().is_terminal() && !is_dumb() {
        screen::run(guard.as_mut(), args.interval.duration(), count, &interrupt)?;
        return Ok(foreign::after(&interrupt));
    }
    lines::run(guard.as_mut(), args, count, &interrupt)?;
    Ok(foreign::after(&interrupt))
}

/// Whether the terminal knows no escape sequences.
#[cfg(feature = "terminal")]
fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

fn null() -> anyhow::Result<Box<dyn Regulator>> {
    let mut guard = Null::new(memwarden_platform::cpus::online()?);
    guard.start(&StartOptions::default())?;
    Ok(Box::new(guard))
}

/// When the reading after one that was due at `due` and was taken at `at` is due. Readings are skipped after a late one (a
/// stopped process, a slow terminal or pipe): none follows sooner than half an interval.
fn next_due(due: Instant, at: Instant, interval: Duration) -> Instant {
    let late = at.saturating_duration_since(due) > interval / 2;
    (if late { at } else { due }) + interval
}

/// Sleeps until `then`; false if a signal came first.
fn wait_until(then: Instant, interrupt: &Interrupt) -> bool {
    loop {
        if interrupt.came() {
            return false;
        }
        let left = then.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(SLICE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_reading_is_not_followed_by_another_at_once() {
        let due = Instant::now();
        let next_ms = |late_ms| {
            let at = due + Duration::from_millis(late_ms);
            (next_due(due, at, Duration::from_millis(20)) - due).as_millis()
        };
        // A little late: the next is on time.
        assert_eq!([0, 1, 10].map(next_ms), [20, 20, 20]);
        assert_eq!([11, 19, 20, 1000].map(next_ms), [31, 39, 40, 1020]);
    }
}
