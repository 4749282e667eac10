// SPDX-License-Identifier: MIT OR Apache-2.0
//! Top in a pipe: a line for each core and interval, or a JSON object for each interval.

use std::time::{Duration, SystemTime};

use memwarden_experiments::Interrupt;
use memwarden_guard::rates::{CoreRates, Rates, ResourceRates, Sample, Sampler};
use memwarden_guard::{Regulator, meaning};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Args, next_due, wait_until};
use crate::verbs::guard::show;
use crate::verbs::output::{self, errln};

/// Names of the columns; [`WIDTHS`] has their widths.
const COLUMNS: [&str; 19] = [
    "t_s",
    "core",
    "rt",
    "budget_MB/s",
    "used_MB/s",
    "of_budget_%",
    "throttled_%",
    "best_effort_%",
    "overflows/s",
    "write_budget_MB/s",
    "write_used_MB/s",
    "worst_MB/s",
    "worst_%",
    "over_periods",
    "unregulated",
    "whole_MB/s",
    "whole_%",
    "whole_worst_MB/s",
    "whole_worst_%",
];

const WIDTHS: [usize; 19] = [
    10, 6, 3, 12, 12, 12, 12, 14, 12, 18, 16, 12, 9, 13, 12, 12, 9, 17, 14,
];

/// Prints until the count is reached or a signal comes. A closed pipe also ends it in order.
pub fn run(
    guard: &mut dyn Regulator,
    args: &Args,
    count: Option<u64>,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let mut sampler = Sampler::default();
    let mut told = Told::default();
    let first = Sample::take(guard)?;
    let started = first.at;
    errln!("memwarden: {}", meaning(&first.settings.control).text);
    let rates = sampler.next(first);
    if !args.json && !output::write(&(told.new_failings(&rates) + &header()))? {
        return Ok(());
    }
    let interval = args.interval.duration();
    let mut due = started + interval;
    let mut left = count;
    while left != Some(0) {
        if !wait_until(due, interrupt) {
            return Ok(());
        }
        let sample = Sample::take(guard)?;
        due = next_due(due, sample.at, interval);
        let kept = sample.clone();
        let rates = sampler.next(sample);
        let text = if args.json {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
            let object = object(guard.name(), now.as_secs_f64(), &kept, &rates);
            format!("{}\n", serde_json::to_string(&object)?)
        } else {
            let t_s = time(started.elapsed(), interval);
            told.new_failings(&rates) + &lines(&t_s, &rates)
        };
        if !output::write(&text)? {
            return Ok(());
        }
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// What `--json` prints of an interval, in one line.
#[derive(Serialize, JsonSchema)]
pub struct Line<'a> {
    #[serde(flatten)]
    shown: show::Shown<'a>,
    /// When the reading was taken.
    time_unix_s: f64,
    /// Time since the previous reading; null for the first.
    interval_s: Option<f64>,
    /// The rates of each core over the interval.
    rates: &'a [CoreRates],
}

fn object<'a>(
    backend: &'a str,
    time_unix_s: f64,
    sample: &'a Sample,
    rates: &'a Rates,
) -> Line<'a> {
    Line {
        shown: show::document(backend, sample),
        time_unix_s,
        interval_s: rates.interval_s,
        rates: &rates.cores,
    }
}

fn row<S: AsRef<str>>(words: &[S]) -> String {
    let cells = words.iter().zip(WIDTHS);
    let line: String = cells
        .map(|(word, width)| format!("{:>width$}", word.as_ref()))
        .collect();
    format!("{line}\n")
}

fn header() -> String {
    row(&COLUMNS)
}

/// The failings that the previous reading had, too: a count that stands still is told once.
#[derive(Default)]
struct Told(Vec<String>);

impl Told {
    /// A line for each failure to regulate a core that the previous reading did not have.
    fn new_failings(&mut self, rates: &Rates) -> String {
        let now: Vec<String> = rates.failings().map(str::to_owned).collect();
        let new = now.iter().filter(|failing| !self.0.contains(failing));
        let text = new.map(|failing| format!("! {failing}\n")).collect();
        self.0 = now;
        text
    }
}

/// Seconds since the start, with decimals that tell one interval from the next.
fn time(elapsed: Duration, interval: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    if interval < Duration::from_secs(1) {
        format!("{seconds:.3}")
    } else {
        format!("{seconds:.1}")
    }
}

/// One line for each online core.
fn lines(t_s: &str, rates: &Rates) -> String {
    let online = rates.cores.iter().filter(|core| core.online);
    online.map(|core| line(t_s, core)).collect()
}

fn line(t_s: &str, core: &CoreRates) -> String {
    let figure = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
    let percent = |share: Option<f64>| figure(share.map(|share| share * 100.0));
    let budget = |of: &ResourceRates| {
        of.budget_mib_s
            .map_or("max".to_owned(), |mib_s| format!("{mib_s:.1}"))
    };
    let (write_budget, write_used) = core.write.as_ref().map_or_else(
        || ("-".to_owned(), "-".to_owned()),
        |write| (budget(write), figure(write.achieved_mib_s)),
    );
    row(&[
        t_s.to_owned(),
        format!("CPU{}", core.cpu),
        if core.rt { "rt" } else { "-" }.to_owned(),
        budget(&core.read),
        figure(core.read.achieved_mib_s),
        percent(core.read.budget_ratio),
        percent(core.throttled_ratio),
        percent(core.best_effort_ratio),
        figure(core.overflows_per_s),
        write_budget,
        write_used,
        figure(core.read.worst_mib_s),
        percent(core.read.worst_ratio),
        core.read.over_periods.to_string(),
        core.unregulated_periods.to_string(),
        figure(core.read.whole.achieved_mib_s),
        percent(core.read.whole.budget_ratio),
        figure(core.read.whole.worst_mib_s),
        percent(core.read.whole.worst_ratio),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwarden_guard::rates::{ResourceRates, WholeRates};

    #[test]
    fn columns_are_the_same_in_every_line() {
        let busy = CoreRates {
            cpu: 12,
            online: true,
            rt: true,
            read: ResourceRates {
                budget_mib_s: Some(100_000.0),
                achieved_mib_s: Some(99_999.96),
                budget_ratio: Some(0.999),
                worst_mib_s: Some(1_000_000.0),
                worst_ratio: Some(10.0),
                over_periods: 24,
                whole: WholeRates {
                    achieved_mib_s: Some(98_765.4),
                    budget_ratio: Some(0.9877),
                    worst_mib_s: Some(2_000_000.0),
                    worst_ratio: Some(20.0),
                },
            },
            write: Some(ResourceRates::default()),
            throttled_ratio: Some(1.0),
            best_effort_ratio: Some(0.125),
            overflows_per_s: Some(1000.0),
            ..CoreRates::default()
        };
        let fresh = CoreRates {
            cpu: 3,
            online: true,
            ..CoreRates::default()
        };
        let gone = CoreRates::default();
        let rates = Rates {
            interval_s: Some(1.0),
            cores: vec![fresh, busy, gone],
        };
        let text = header() + &lines("12.0", &rates);
        let words: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(words.len(), 3);
        assert!(words.iter().all(|words| words.len() == COLUMNS.len()));
        let length = text.lines().next().unwrap().len();
        assert!(text.lines().all(|line| line.len() == length), "{text}");
        assert_eq!(
            words[1],
            [
                "12.0", "CPU3", "-", "max", "-", "-", "-", "-", "-", "-", "-", "-", "-", "0", "0",
                "-", "-", "-", "-"
            ]
        );
        assert_eq!(
            words[2],
            [
                "12.0",
                "CPU12",
                "rt",
                "100000.0",
                "100000.0",
                "99.9",
                "100.0",
                "12.5",
                "1000.0",
                "max",
                "-",
                "1000000.0",
                "1000.0",
                "24",
                "0",
                "98765.4",
                "98.8",
                "2000000.0",
                "2000.0"
            ]
        );
    }

    #[test]
    fn each_interval_has_its_own_time() {
        let at = |ms, interval_ms| {
            time(
                Duration::from_millis(ms),
                Duration::from_millis(interval_ms),
            )
        };
        assert_eq!([at(20, 20), at(40, 20)], ["0.020", "0.040"]);
        assert_eq!(at(1998, 999), "1.998");
        assert_eq!(at(3_600_012, 1000), "3600.0");
    }

    #[test]
    fn a_core_that_was_not_held_is_told_once_for_each_figure() {
        let rates = |failing: &str| Rates {
            interval_s: None,
            cores: vec![CoreRates {
                failings: vec![failing.into()],
                ..CoreRates::default()
            }],
        };
        let mut told = Told::default();
        assert_eq!(told.new_failings(&rates("CPU0: 7")), "! CPU0: 7\n");
        assert_eq!(told.new_failings(&rates("CPU0: 7")), "");
        assert_eq!(told.new_failings(&rates("CPU0: 8")), "! CPU0: 8\n");
        assert_eq!(told.new_failings(&Rates::default()), "");
        assert_eq!(told.new_failings(&rates("CPU0: 8")), "! CPU0: 8\n");
    }

    #[test]
    fn the_object_is_that_of_show_and_rates() {
        let mut guard = memwarden_guard::Null::new((0..2).collect());
        guard
            .start(&memwarden_guard::StartOptions::default())
            .unwrap();
        let sample = Sample::take(&guard).unwrap();
        let rates = Sampler::default().next(sample.clone());
        let text = serde_json::to_string(&object("null", 5.5, &sample, &rates)).unwrap();
        assert!(!text.contains('\n'));
        let object: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(object["backend"], "null");
        assert_eq!(object["settings"]["control"]["period_us"], 1000);
        assert_eq!(object["cores"][1]["cpu"], 1);
        assert_eq!(object["rates"][1]["cpu"], 1);
        assert!(object["rates"][1]["throttled_ratio"].is_null());
        assert_eq!(object["time_unix_s"], 5.5);
    }
}
