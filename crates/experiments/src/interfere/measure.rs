// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures one case: starts the aggressors, measures the victim, stops everything, and repeats.

use std::collections::BTreeMap;
use std::time::Duration;

use memwarden_guard::trace::Recording;
use memwarden_guard::{CoreStatistics, Recorder, Regulator, Settings};
use memwarden_platform::clock::monotonic_ns;
use memwarden_run::Metric;
use serde_json::Value;

use super::{Config, Plan};
use crate::workload::{Task, Until, on_its_cpu};
use crate::{Child, Error, Interrupt, Proof, Workload};

/// Spare records of a case beyond its planned duration: half a minute at a period of 1 ms.
const RECORD_PERIODS: u64 = 1 << 15;

/// Most spare records beyond these for a victim whose earlier runs were long: 32 MiB for each CPU.
const EXPECTED_PERIODS: u64 = 1 << 17;

/// The longest sleep between two checks for Ctrl-C.
const SLEEP: Duration = Duration::from_millis(200);

/// The result of a case.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// The victim's figures in each repeat: one figure, or one for each job of a program.
    pub victim: Vec<Vec<f64>>,
    pub aggressors: Vec<MeasuredAggressor>,
    /// Backend and settings of the case.
    pub settings: Option<(String, Settings)>,
    /// The guard's recording of each repeat.
    pub guarded: Vec<Guarded>,
    /// The longest run of the victim, here and in earlier cases.
    pub longest: Duration,
    /// The largest share of a buffer on other NUMA nodes than its CPU's: of the victim, and of the aggressors.
    pub remote_share: [Option<f64>; 2],
    /// Remarks of a program's run, in all repeats.
    pub notes: Vec<String>,
}

impl Measured {
    /// Takes the share of remote memory from the victim's result (0) or an aggressor's (1).
    fn note_remote(&mut self, whose: usize, result: &Value) {
        let share = result.get("remote_share").and_then(Value::as_f64);
        let largest = &mut self.remote_share[whose];
        *largest = (*largest).into_iter().chain(share).reduce(f64::max);
    }

    /// The median over the repeats of a share of the guard's, by core.
    pub fn share(
        &self,
        name: &str,
        of: impl Fn(&Guarded) -> &BTreeMap<usize, f64>,
    ) -> BTreeMap<usize, f64> {
        let mut shares: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for (core, share) in self.guarded.iter().flat_map(of) {
            shares.entry(*core).or_default().push(*share);
        }
        let medians = shares
            .iter()
            .filter_map(|(core, shares)| Some((*core, Metric::from_samples(name, shares).median?)));
        medians.collect()
    }
}

#[derive(Debug)]
pub(super) struct MeasuredAggressor {
    pub cpu: usize,
    pub kind: Workload,
    pub mib_s: Vec<f64>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Guarded {
    pub throttled_share: BTreeMap<usize, f64>,
    /// With budgets per bank, by core.
    pub held_back_share: BTreeMap<usize, f64>,
    pub proof: Proof,
    /// The regulator's own statistics over the same time, by core.
    pub counted: BTreeMap<usize, CoreStatistics>,
    /// Reason why not every period is recorded.
    pub untraced: Option<String>,
}

/// Measures one case; `longest` is the victim's longest run in the cases before. `done` is called after each repeat, with
/// its number.
pub(super) fn measure(
    config: &Config,
    plan: &Plan,
    longest: Duration,
    guard: Option<&dyn Regulator>,
    interrupt: &Interrupt,
    mut done: impl FnMut(u32, &Measured) -> Result<(), Error>,
) -> Result<Measured, Error> {
    let mut measured = Measured {
        longest,
        ..Measured::default()
    };
    if let Some((kind, count)) = &plan.aggressors {
        measured.aggressors = config
            .busy(*count)
            .map(|cpu| MeasuredAggressor {
                cpu,
                kind: kind.clone(),
                mib_s: Vec::new(),
            })
            .collect();
    }
    if let Some(guard) = guard {
        measured.settings = Some((guard.name().to_owned(), guard.settings()?));
    }
    for number in 1..=config.repeat {
        interrupt.check()?;
        // Only in the last run, so that the others take no longer than the victim's work.
        let hold = if number == config.repeat {
            plan.long.unwrap_or(config.hold.duration())
        } else {
            Duration::ZERO
        };
        repeat(config, &mut measured, guard, hold, interrupt)?;
        done(number - 1, &measured)?;
    }
    Ok(measured)
}

fn repeat(
    config: &Config,
    measured: &mut Measured,
    guard: Option<&dyn Regulator>,
    hold: Duration,
    interrupt: &Interrupt,
) -> Result<(), Error> {
    let task = |aggressor: &MeasuredAggressor| Task {
        cpu: aggressor.cpu,
        memory: config.aggressor_memory,
        until: Until::Told,
    };
    let mut aggressors = match measured.aggressors.first() {
        Some(first) => {
            let tasks = measured.aggressors.iter().map(task);
            let settings = measured.settings.as_ref().map(|(_, settings)| settings);
            first.kind.start_all(tasks, settings, interrupt)?
        }
        None => Vec::new(),
    };
    interrupt.wait(config.settle.duration())?;

    // Before the victim starts, so that the cost of starting does not disturb it.
    let planned = hold + config.victim_time();
    // Of unknown length, and slower under a guard than in the cases before.
    let expected = if config.victim_time().is_zero() {
        measured.longest.saturating_mul(2)
    } else {
        Duration::ZERO
    };
    let watch = guard
        .map(|guard| Watch::begin(guard, planned, expected))
        .transpose()?;
    let started_ns = monotonic_ns();
    let mut victim = Child::start(&config.victim_arguments(), false)?;
    if matches!(config.victim, Workload::Program(_)) {
        victim = victim.driving();
    }
    let result = victim.wait(interrupt)?;
    let took = Duration::from_nanos(monotonic_ns().saturating_sub(started_ns));
    measured.longest = measured.longest.max(took);
    if let (Some(watch), Some(guard)) = (watch, guard) {
        // From now on, the victim's core is idle.
        let mut statistics = guard.statistics()?;
        statistics.retain(|core| core.cpu == config.victim_cpu);
        watch.go_on(hold, &mut aggressors, interrupt)?;
        measured.guarded.push(watch.end(guard, &statistics)?);
    }

    Child::end_all(&mut aggressors)?;
    for (number, child) in aggressors.into_iter().enumerate() {
        let result = child.collect()?;
        measured.note_remote(1, &result);
        let aggressor = &mut measured.aggressors[number];
        on_its_cpu(&aggressor.kind, aggressor.cpu, &result)?;
        aggressor
            .mib_s
            .push(figure(&aggressor.kind, "mib_s", &result)?);
    }
    on_its_cpu(&config.victim, config.victim_cpu, &result)?;
    measured.note_remote(0, &result);
    measured.victim.push(match config.victim {
        Workload::Program(_) => {
            measured.notes.extend(remarks(&result));
            job_times(&config.victim, &result)?
        }
        _ => vec![figure(&config.victim, config.victim.metric().0, &result)?],
    });
    Ok(())
}

/// Records what the guard does between two moments.
struct Watch {
    recorder: Result<Box<dyn Recorder>, String>,
    before: Vec<CoreStatistics>,
    begun_ns: u64,
}

impl Watch {
    fn begin(guard: &dyn Regulator, planned: Duration, expected: Duration) -> Result<Self, Error> {
        let room = room(planned, expected, guard.settings()?.control.period_us);
        // The recording is optional: if it fails, the case says so and goes on.
        Ok(Self {
            recorder: guard.record(room).map_err(|error| error.to_string()),
            before: guard.statistics()?,
            begun_ns: monotonic_ns(),
        })
    }

    /// Waits until the watch has lasted for `least`; fails if an aggressor ends early.
    fn go_on(
        &self,
        least: Duration,
        aggressors: &mut [Child],
        interrupt: &Interrupt,
    ) -> Result<(), Error> {
        loop {
            let so_far = Duration::from_nanos(monotonic_ns().saturating_sub(self.begun_ns));
            let Some(left) = least.checked_sub(so_far).filter(|left| !left.is_zero()) else {
                return Ok(());
            };
            interrupt.check()?;
            for aggressor in aggressors.iter_mut() {
                aggressor.check()?;
            }
            std::thread::sleep(left.min(SLEEP));
        }
    }

    /// The cores in `ended` were throttled until these statistics only, and the others until now.
    fn end(self, guard: &dyn Regulator, ended: &[CoreStatistics]) -> Result<Guarded, Error> {
        let statistics = guard.statistics()?;
        let period_us = guard.settings()?.control.period_us;
        let (proof, untraced) = match self.recorder {
            Ok(recorder) => (
                Proof::of(&of_the_case(recorder.stop()?, self.begun_ns)),
                None,
            ),
            Err(reason) => (Proof::default(), Some(reason)),
        };
        let counted: BTreeMap<usize, CoreStatistics> = statistics
            .iter()
            .zip(&self.before)
            .map(|(core, before)| (core.cpu, core.since(before)))
            .collect();
        Ok(Guarded {
            throttled_share: throttled_shares(&self.before, &statistics, ended, period_us),
            held_back_share: BTreeMap::new(),
            proof,
            counted,
            untraced,
        })
    }
}

/// The throttled share of each core from `before` to `now`; of the cores in `ended`, until then.
fn throttled_shares(
    before: &[CoreStatistics],
    now: &[CoreStatistics],
    ended: &[CoreStatistics],
    period_us: u64,
) -> BTreeMap<usize, f64> {
    let shares = now.iter().zip(before).filter_map(|(core, before)| {
        let end = ended.iter().find(|end| end.cpu == core.cpu);
        let since = end.unwrap_or(core).since(before);
        Some((core.cpu, since.throttled_share(period_us)?))
    });
    shares.collect()
}

/// Records for a case of the time `planned`, which may become as long as `expected`.
fn room(planned: Duration, expected: Duration, period_us: u64) -> u64 {
    let periods = |time: Duration| {
        let periods = time.as_micros() / u128::from(period_us.max(1));
        u64::try_from(periods).unwrap_or(u64::MAX >> 1)
    };
    let expected = periods(expected).min(EXPECTED_PERIODS);
    RECORD_PERIODS.saturating_add(periods(planned).max(expected))
}

/// Keeps the periods of the case. A core without a timer records its periods only when it is read, and the reading at
/// the case's begin records earlier ones.
fn of_the_case(mut recording: Recording, begun_ns: u64) -> Recording {
    recording.events.retain(|event| event.t_ns >= begun_ns);
    recording
}

/// The remarks of a program's run: that it ended early, for example.
fn remarks(result: &Value) -> impl Iterator<Item = String> + '_ {
    let notes = result.get("notes").and_then(Value::as_array);
    let notes = notes.into_iter().flatten();
    notes.filter_map(|note| Some(note.as_str()?.to_owned()))
}

/// The times of a program's jobs.
fn job_times(workload: &Workload, result: &Value) -> Result<Vec<f64>, Error> {
    let jobs = result.get("jobs").and_then(Value::as_array);
    let times = jobs.into_iter().flatten();
    let times: Option<Vec<f64>> = times
        .map(|job| job.get("execution_ns").and_then(Value::as_f64))
        .collect();
    times
        .filter(|times| !times.is_empty())
        .ok_or_else(|| Error::workload(workload, "gave no times of its jobs"))
}

fn figure(workload: &Workload, key: &str, result: &Value) -> Result<f64, Error> {
    result
        .get(key)
        .and_then(Value::as_f64)
        .ok_or_else(|| Error::workload(workload, format!("gave no {key}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwarden_guard::trace::{TraceEvent, What};
    use memwarden_platform::units::Time;

    #[test]
    fn a_long_window_has_room_for_its_record() {
        let config = Config {
            window: Time::ms(60_000),
            ..Config::default()
        };
        let beyond = |config: &Config, expected_s| {
            room(config.victim_time(), Duration::from_secs(expected_s), 1000) - RECORD_PERIODS
        };
        assert_eq!(beyond(&config, 0), 60_000);
        let by_laps = Config {
            victim_iterations: 1,
            ..config.clone()
        };
        let program = Config {
            victim: "cmd: true".parse().unwrap(),
            ..config
        };
        for config in [by_laps, program] {
            assert_eq!(config.victim_time(), Duration::ZERO);
            assert_eq!(beyond(&config, 0), 0);
            assert_eq!(beyond(&config, 100), 100_000);
            assert_eq!(beyond(&config, 86_400), EXPECTED_PERIODS);
        }
        assert_eq!(room(Duration::ZERO, Duration::ZERO, 0), RECORD_PERIODS);
    }

    #[test]
    fn the_victims_throttled_share_is_that_of_its_run() {
        let at = |cpu, periods, throttled_ns| CoreStatistics {
            cpu,
            periods,
            throttled_ns,
            ..CoreStatistics::default()
        };
        let before = [at(0, 100, 0), at(1, 100, 0)];
        // 10 of 20 ms, then 980 ms without the victim.
        let ended = [at(0, 120, 10_000_000)];
        let now = [at(0, 1100, 10_000_000), at(1, 1100, 750_000_000)];
        let shares = throttled_shares(&before, &now, &ended, 1000);
        assert_eq!(shares, [(0, 0.5), (1, 0.75)].into());
    }

    #[test]
    fn periods_that_ended_before_the_case_are_not_its() {
        let idle_until = |t_ns, used_read| TraceEvent {
            cpu: 3,
            t_ns,
            what: What::Period {
                epoch: 0,
                periods: 58,
                late_ns: 0,
                used_read,
                assigned_read: 1638,
                used_write: 0,
                assigned_write: 0,
                throttled_ns: 0,
            },
        };
        let events = vec![idle_until(999, 1642), idle_until(1000, 5)];
        let recording = Recording { events, lost: 0 };
        let core = &Proof::of(&of_the_case(recording, 1000)).cores[&3];
        assert_eq!((core.periods, core.used.as_slice()), (58, &[5][..]));
    }
}
