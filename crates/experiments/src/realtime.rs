// SPDX-License-Identifier: MIT OR Apache-2.0
//! The deadline case: a periodic real-time task alone and beside a load that moves memory, under each guard setting.

mod config;
mod load;
mod measure;
mod on_miss;
mod simulate;
mod xserver;

use std::path::PathBuf;

use memwarden_platform::cpus::{self, CpuSet};
use memwarden_platform::{Root, topology};
use memwarden_run::statistics::{ratio_of_medians, share_ci95};
use memwarden_run::studies::realtime::{Case, NAME, Summary, Whole};
use memwarden_run::{Aggressor, Metric, Sample, title};
use memwarden_workloads::periodic::Job;

use crate::guards::Guards;
use crate::program::Delimiter;
use crate::request::finished;
use crate::settings::{check_usable, usable};
use crate::{Backend, Error, GuardSpec, RunRequest, Settings, case_notes, guarding};

pub use config::{Config, Setting};
pub use load::Load;
use measure::{Around, Measured, TaskRun, measure};
pub use simulate::simulate;

/// File in the run folder with the loads' standard error.
const LOG: &str = "load.log";

/// One case to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    /// The load; `None` is the task alone.
    load: Option<Load>,
    guard: Option<GuardSpec>,
}

impl Plan {
    /// The case in the words of the report's tables, on a machine with `cores` cores; a workload runs on each of
    /// `loaded` of them.
    fn title(&self, cores: usize, loaded: usize) -> String {
        let loaded = match self.load {
            Some(Load::Workload(_)) => loaded,
            _ => 1,
        };
        let kind = self.load.as_ref().map(Load::to_string);
        let guard = self.guard.as_ref().map(|guard| guard.title(cores));
        title::of(
            &title::load(kind.as_deref(), loaded),
            guard.as_deref(),
            None,
        )
    }

    /// The key of its samples.
    fn name(&self) -> String {
        let mut name = match &self.load {
            None => "alone".to_owned(),
            Some(load) => load.to_string(),
        };
        if let Some(guard) = &self.guard {
            name += &format!(", guard {guard}");
        }
        name
    }
}

/// All cases, those without a guard first, so that no guard is loaded while they run.
fn plans(config: &Config) -> Vec<Plan> {
    let mut guards: Vec<_> = config.guard.iter().map(|setting| &setting.0).collect();
    guards.sort_by_key(|guard| guard.is_some());
    let with = |guard: &Option<GuardSpec>| {
        let loads = config.load.iter().cloned().map(Some);
        let cases = std::iter::once(None).chain(loads).map(|load| Plan {
            load,
            guard: guard.clone(),
        });
        cases.collect::<Vec<_>>()
    };
    guards.into_iter().flat_map(with).collect()
}

/// A case during the measurement.
struct Running {
    plan: Plan,
    measured: Measured,
}

/// Runs the experiment and writes its run folder.
///
/// # Errors
/// When a setting makes no sense here, the task or a load fails, the guard refuses or all cases need one that cannot run
/// here, or the run is interrupted; what was measured is then in `DIR.partial`.
pub fn run(config: &Config, request: RunRequest) -> Result<(PathBuf, Summary), Error> {
    let mut config = fitted(config)?;
    let load_memory = config.usual_load_memory(&Root::system());
    config.record_load_memory(load_memory);
    let interrupt = request.interrupt;
    let others = others(&config)?;
    let all = plans(&config);
    let guarding = config.guarding()?;
    let guarded = all.iter().any(|plan| plan.guard.is_some());
    if guarded {
        guarding.check_event()?;
    }
    let mut folder = request.begin(NAME, &config)?;
    let log = folder.partial().join(LOG);
    let mut summary = Summary::new(NAME, "native");

    let mut guards = Guards::new(guarding, guarded, &mut summary)?;
    let mut cases: Vec<Running> = Vec::new();
    let mut steps = request.steps(all.len() * config.repeat as usize);
    let cores = cpus::online()?.len();
    for plans in all.chunk_by(|a, b| a.guard == b.guard) {
        if let Some(spec) = &plans[0].guard {
            if !guards.apply(spec, interrupt, &mut summary)? {
                steps.skip(plans.len() * config.repeat as usize);
                continue;
            }
        }
        let first = cases.len();
        cases.extend(plans.iter().map(|plan| Running {
            plan: plan.clone(),
            measured: Measured::default(),
        }));
        // Alternate between the task alone and each load, so that background activity affects all cases.
        for repeat in 0..config.repeat {
            for case in &mut cases[first..] {
                let name = case.plan.name();
                steps.next(&case.plan.title(cores, config.cpus.len()));
                let around = Around {
                    guard: guards.of(case.plan.guard.as_ref()),
                    others: &others,
                    load_memory,
                    log: &log,
                    interrupt,
                };
                let load = case.plan.load.as_ref();
                let outcome = measure(&config, &name, load, &around, &mut case.measured);
                let kept = matches!(outcome, Ok(()) | Err(Error::Interrupted))
                    && case.measured.tasks.len() > repeat as usize;
                if kept {
                    folder.append_all(&samples(&config, &name, repeat, &case.measured))?;
                    folder.flush()?;
                }
                outcome?;
            }
        }
    }
    if cases.is_empty() {
        guards.required()?;
    }
    steps.end();
    summary.whole.self_test = guards.end()?;

    // Remove an empty log.
    if std::fs::metadata(&log).is_ok_and(|file| file.len() == 0) {
        let _ = std::fs::remove_file(&log);
    }
    figures(&config, &cases, &mut summary)?;
    remarks(&config, &cases, &mut summary);
    for load in &config.load {
        let note = config.load_in_cache(load, load_memory, &Root::system());
        note.into_iter().for_each(|note| summary.note(note));
    }
    if !config.load.is_empty() {
        let remarks =
            topology::remarks(&Root::system(), "the task", config.victim_cpu, &config.cpus);
        remarks.into_iter().for_each(|remark| summary.note(remark));
    }
    finished(folder, summary)
}

/// Completes the configuration with facts of this machine.
fn fitted(config: &Config) -> Result<Config, Error> {
    config.check_real()?;
    let mut config = config.clone();
    let online = cpus::online()?;
    let usable = usable()?;
    let victim = [config.victim_cpu].into_iter().collect();
    check_usable("--victim-cpu", &victim, &usable)?;
    if config.cpus.is_empty() {
        let beside = topology::beside(&Root::system(), config.victim_cpu, &usable);
        config.cpus = beside.iter().take(1).collect();
    }
    if config.cpus.is_empty() && !config.load.is_empty() {
        return Err(Error::BadInput(format!(
            "this process may run on one CPU only ({usable}): the load needs a second one"
        )));
    }
    check_usable("--cpus", &config.cpus, &usable)?;
    config.check()?;
    let mut guards = config.guard.iter().filter_map(|one| one.0.as_ref());
    guards.try_for_each(|guard| guard.check_fits(&online))?;
    config.load.iter().try_for_each(Load::check)?;
    Ok(config)
}

/// All CPUs but the task's.
fn others(config: &Config) -> Result<CpuSet, Error> {
    let online = cpus::online()?;
    Ok(online
        .iter()
        .filter(|cpu| *cpu != config.victim_cpu)
        .collect())
}

/// A time of a job: a metric in samples.csv and, summarised, a figure of the case.
struct Time {
    metric: &'static str,
    of: fn(&Job) -> u64,
}

/// The time that the deadline limits.
const RESPONSE: Time = Time {
    metric: "response_ns",
    of: |job| job.response_ns,
};

const EXECUTION: Time = Time {
    metric: "execution_ns",
    of: |job| job.execution_ns,
};

const RELEASE_JITTER: Time = Time {
    metric: "release_jitter_ns",
    of: |job| job.release_jitter_ns,
};

impl Time {
    /// The time of one job. A run is far shorter than the 104 days after which a float rounds nanoseconds.
    fn ns(&self, job: &Job) -> f64 {
        (self.of)(job) as f64
    }

    /// The times of all jobs of all repeats.
    fn pooled(&self, tasks: &[TaskRun]) -> Vec<f64> {
        let jobs = tasks.iter().flat_map(|task| &task.jobs);
        jobs.map(|job| self.ns(job)).collect()
    }

    /// True if the time was measured: without marked releases a program has no jitter.
    fn is_known(&self, config: &Config, tasks: &[TaskRun]) -> bool {
        let by_program = matches!(config.victim, crate::Workload::Program(_));
        !by_program || self.pooled(tasks).iter().any(|ns| *ns > 0.0)
    }

    /// The summary of all jobs' times.
    fn summed_up(&self, tasks: &[TaskRun]) -> Option<Metric> {
        Some(Metric::from_samples(self.metric, &self.pooled(tasks)))
    }
}

/// Raw samples of a case's latest repeat.
fn samples(config: &Config, name: &str, repeat: u32, measured: &Measured) -> Vec<Sample> {
    let cpu = |cpu: usize| u32::try_from(cpu).unwrap_or(u32::MAX);
    let mut rows = Vec::new();
    let times = [RESPONSE, EXECUTION, RELEASE_JITTER];
    if let Some(task) = measured.tasks.last() {
        let period_ns = config.period.as_ns();
        for job in &task.jobs {
            for time in times
                .iter()
                .filter(|time| time.is_known(config, &measured.tasks))
            {
                rows.push(
                    Sample::new(name, repeat, "victim", time.metric, "ns", time.ns(job))
                        .on_cpu(cpu(config.victim_cpu))
                        .at_ns(job.number.saturating_mul(period_ns)),
                );
            }
        }
    }
    // The task alone has no load.
    for load in measured.loads.last().into_iter().flatten() {
        for (metric, unit, value) in [
            ("mib_s", "MiB/s", load.mib_s),
            ("cpu_share", "1", load.cpu_share),
        ] {
            rows.push(
                Sample::new(name, repeat, "aggressor", metric, unit, value).on_cpu(cpu(load.cpu)),
            );
        }
    }
    for (&core, &share) in measured.throttled_share.last().into_iter().flatten() {
        rows.push(
            Sample::new(name, repeat, "guard", "throttled_share", "1", share).on_cpu(cpu(core)),
        );
    }
    rows
}

/// Computes the figures of the cases and of the whole run.
fn figures(config: &Config, cases: &[Running], summary: &mut Summary) -> Result<(), Error> {
    let frame = cases.iter().find_map(|case| case.measured.tasks.first());
    summary.whole = Whole {
        self_test: summary.whole.self_test.take(),
        frame_bytes: frame.and_then(|task| task.frame_bytes),
        period_ns: Some(config.period.as_ns()),
        deadline_ns: Some(config.deadline.as_ns()),
        access: config.victim.to_string(),
        real_time: config.rt,
    };
    let alone = cases
        .iter()
        .find(|case| case.plan.load.is_none())
        .map(|case| RESPONSE.pooled(&case.measured.tasks))
        .unwrap_or_default();
    summary.cases = cases
        .iter()
        .map(|Running { plan, measured }| case(config, plan, measured, &alone))
        .collect();
    Ok(())
}

/// The figures of one case.
fn case(config: &Config, plan: &Plan, measured: &Measured, alone: &[f64]) -> Case {
    let tasks = &measured.tasks;
    let sum = |count: fn(&TaskRun) -> u64| tasks.iter().map(count).sum::<u64>();
    let (releases, misses) = (sum(|task| task.releases), sum(|task| task.misses));
    let missed: Vec<bool> = tasks.iter().flat_map(TaskRun::missed).collect();
    let slowdown = ratio_of_medians(&RESPONSE.pooled(tasks), alone);
    let throttled = |cpu: usize| {
        let shares = measured
            .throttled_share
            .iter()
            .filter_map(|cores| cores.get(&cpu).copied());
        middle(shares.collect())
    };
    let held_back = |cpu: usize| {
        let shares = measured.held_back_share.iter();
        middle(
            shares
                .filter_map(|cores| cores.get(&cpu).copied())
                .collect(),
        )
    };
    let load = plan.load.as_ref();
    let settings = measured.settings.as_ref().zip(plan.guard.as_ref());
    Case {
        name: plan.name(),
        guard: settings
            .map(|((backend, settings), spec)| guarding::describe(backend, settings, spec)),
        victim: RESPONSE.summed_up(tasks),
        execution: EXECUTION.summed_up(tasks),
        release_jitter: RELEASE_JITTER
            .summed_up(tasks)
            .filter(|_| RELEASE_JITTER.is_known(config, tasks)),
        releases: Some(releases),
        skipped: Some(sum(|task| task.skipped)),
        misses: Some(misses),
        miss_share: (releases > 0).then(|| misses as f64 / releases as f64),
        miss_share_ci95: share_ci95(&missed),
        throttled_share: plan.guard.as_ref().map(|_| throttled(config.victim_cpu)),
        on_miss: measured.on_miss.clone(),
        traffic: None,
        slowdown: slowdown.ratio,
        slowdown_ci95: slowdown.ci95,
        aggressors: load.map_or_else(Vec::new, |load| {
            aggressors(load, measured, throttled, held_back)
        }),
    }
}

/// What a load achieved on each of its CPUs, as the median over the repeats.
fn aggressors(
    load: &Load,
    measured: &Measured,
    throttled: impl Fn(usize) -> Option<f64>,
    held_back: impl Fn(usize) -> Option<f64>,
) -> Vec<Aggressor> {
    let first = measured.loads.first().into_iter().flatten();
    let each = first.enumerate().map(|(index, of_first)| {
        let of_all = || {
            measured
                .loads
                .iter()
                .filter_map(move |loads| loads.get(index))
        };
        Aggressor {
            cpu: u32::try_from(of_first.cpu).unwrap_or(u32::MAX),
            kind: load.to_string(),
            mib_s: middle(of_all().filter_map(|load| load.mib_s).collect()),
            throttled_share: throttled(of_first.cpu),
            held_back_share: held_back(of_first.cpu),
            cpu_share: Some(middle(of_all().filter_map(|load| load.cpu_share).collect())),
            ..Aggressor::default()
        }
    });
    each.collect()
}

/// The median; `None` without values.
fn middle(values: Vec<f64>) -> Option<f64> {
    Metric::from_samples("", &values).median
}

/// Adds the notes that a reader needs.
fn remarks(config: &Config, cases: &[Running], summary: &mut Summary) {
    let subject = match config.victim {
        crate::Workload::Program(_) => "The task",
        _ => "The task's frame",
    };
    let titled = summary.cases.iter().map(Case::title).zip(cases);
    let notes = case_notes::by_case(
        subject,
        titled.map(|(title, case)| {
            let tasks = &case.measured.tasks;
            (title, tasks.iter().flat_map(|task| &task.notes))
        }),
    );
    notes.into_iter().for_each(|note| summary.note(note));
    let without_release = |case: &Running| !RELEASE_JITTER.is_known(config, &case.measured.tasks);
    if cases.iter().any(without_release) {
        summary.note(
            "The task marks no planned release: its times count from the begin of each job, and its release jitter is \
             unknown.",
        );
    }
    if !config.rt {
        summary.note(
            "Without real-time privileges (--no-rt): the task ran under the normal policy and its memory was not \
             locked, so other tasks on its CPU delayed it, too.",
        );
    }
    let skipped: u64 = cases
        .iter()
        .flat_map(|case| &case.measured.tasks)
        .map(|task| task.skipped)
        .sum();
    if skipped > 0 {
        // A program may also have no job in a period because of its own timer, or of the clean-up behind a run.
        let has_cause = !matches!(config.victim, crate::Workload::Program(_))
            || config.jobs_by == Delimiter::Line;
        summary.note(if has_cause {
            format!(
                "{skipped} jobs were skipped because the previous job was still running at their release: they count \
                 as misses, and have no time in the distributions."
            )
        } else {
            format!(
                "In {skipped} periods no job of the task began: they count as skipped and as misses, and have no time in \
                 the distributions."
            )
        });
    }
    let silent = |case: &Running| {
        let mut loads = case.measured.loads.iter().flatten();
        matches!(
            case.plan.load,
            Some(Load::Xserver | Load::Command(_) | Load::Workload(crate::Workload::Latency))
        ) && loads.any(|load| load.mib_s.is_none())
    };
    if cases.iter().any(silent) {
        summary.note(
            "Without counters the memory traffic of an X server or a command is unknown: its CPU share is given \
             instead.",
        );
    }
    if config.guard.iter().all(|setting| setting.0.is_none()) {
        summary.note(
            "No guard was requested (--guard): the cases show the load's effect on the task.",
        );
    }
    if config.backend == Backend::Null {
        summary.note(
            "The null regulator regulates nothing: the cases with a guard show the cost of the experiment itself.",
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cases_without_a_guard_come_first_and_alone_before_loads() {
        let config = Config {
            guard: ["600,200+ps", "none"].map(|s| s.parse().unwrap()).into(),
            load: ["screen", "cmd: true"].map(|s| s.parse().unwrap()).into(),
            ..Config::default()
        };
        let names: Vec<String> = plans(&config).iter().map(Plan::name).collect();
        assert_eq!(
            names,
            [
                "alone",
                "screen",
                "cmd: true",
                "alone, guard 600,200+ps",
                "screen, guard 600,200+ps",
                "cmd: true, guard 600,200+ps",
            ]
        );
        let titles: Vec<String> = plans(&config).iter().map(|plan| plan.title(3, 2)).collect();
        assert_eq!(
            titles[1..4],
            [
                "screen on 2 CPUs",
                "cmd: true",
                "alone, guard 600,200,max, proportional sharing",
            ]
        );
    }

    fn task(responses_ns: &[u64], skipped: u64, deadline_ns: u64) -> TaskRun {
        let jobs: Vec<_> = (0..)
            .zip(responses_ns)
            .map(|(number, &response_ns): (u64, _)| {
                json!({"number": number, "release_jitter_ns": 10, "response_ns": response_ns,
                       "execution_ns": response_ns - 10, "missed": response_ns > deadline_ns})
            })
            .collect();
        let late = responses_ns.iter().filter(|ns| **ns > deadline_ns).count() as u64;
        serde_json::from_value(json!({
            "cpu": 0, "frame_bytes": 4096, "releases": responses_ns.len() as u64 + skipped, "skipped": skipped,
            "misses": late + skipped, "jobs": jobs, "notes": [],
        }))
        .unwrap()
    }

    #[test]
    fn a_case_counts_skipped_jobs_as_misses_and_pools_its_repeats() {
        let config = Config::default();
        let plan = Plan {
            load: Some(Load::screen()),
            guard: None,
        };
        let measured = Measured {
            tasks: vec![task(&[100, 200, 300], 1, 250), task(&[400, 500], 0, 250)],
            loads: vec![vec![measure_achieved(10.0)], vec![measure_achieved(30.0)]],
            ..Measured::default()
        };
        let case = case(&config, &plan, &measured, &[100.0, 100.0, 100.0]);
        assert_eq!(case.releases, Some(6));
        assert_eq!(case.misses, Some(4));
        assert_eq!(case.skipped, Some(1));
        let victim = case.victim.unwrap();
        assert_eq!((victim.samples, victim.max), (5, Some(500.0)));
        assert_eq!(case.execution.unwrap().min, Some(90.0));
        assert_eq!(case.slowdown, Some(3.0));
        assert_eq!(case.aggressors[0].mib_s, Some(20.0));
        assert_eq!(case.aggressors[0].cpu_share, Some(Some(0.5)));
        let rows = samples(&config, "screen", 1, &measured);
        assert_eq!(rows.len(), 2 * 3 + 2);
        assert_eq!(rows[3].t_ns, Some(20_000_000));
    }

    #[test]
    fn a_skipped_release_is_a_miss_at_its_place() {
        let mut run = task(&[100, 300, 100], 2, 250);
        // Release 1 was skipped, and the last one.
        for (job, number) in run.jobs.iter_mut().zip([0, 2, 3]) {
            job.number = number;
        }
        assert_eq!(run.missed(), [false, true, true, false, true]);
    }

    /// Misses in a row say less about the share than as many that are spread.
    #[test]
    fn misses_in_a_row_widen_the_interval_of_their_share() {
        let width = |responses_ns: &[u64]| {
            let measured = Measured {
                tasks: vec![task(responses_ns, 0, 250)],
                ..Measured::default()
            };
            let plan = Plan {
                load: None,
                guard: None,
            };
            let case = case(&Config::default(), &plan, &measured, &[100.0]);
            assert_eq!(case.miss_share, Some(0.1));
            let [low, high] = case.miss_share_ci95.unwrap();
            high - low
        };
        let spread: Vec<u64> = (0..1000)
            .map(|job| if job % 10 == 3 { 300 } else { 100 })
            .collect();
        let in_rows: Vec<u64> = (0..1000)
            .map(|job| if job / 25 % 10 == 3 { 300 } else { 100 })
            .collect();
        assert!(width(&in_rows) > 2.0 * width(&spread));
    }

    #[test]
    fn a_remark_on_a_later_repeat_is_told_with_its_case() {
        let config = Config {
            victim: "cmd: true".parse().unwrap(),
            ..Config::default()
        };
        let running = |load: Option<Load>, ended: &str| {
            let mut second = task(&[100], 0, 250);
            second.notes = vec!["true is fast".into(), ended.into()];
            Running {
                plan: Plan { load, guard: None },
                measured: Measured {
                    tasks: vec![task(&[100], 0, 250), second],
                    loads: vec![vec![measure_achieved(10.0)]],
                    ..Measured::default()
                },
            }
        };
        let cases = [
            running(None, "true ended after 4 of 5 jobs"),
            running(Some(Load::screen()), "true ended after 3 of 5 jobs"),
        ];
        let mut summary = Summary::new("realtime", "native");
        figures(&config, &cases, &mut summary).unwrap();
        remarks(&config, &cases, &mut summary);
        assert_eq!(
            summary.notes[..3],
            [
                "The task: true is fast.",
                "alone: true ended after 4 of 5 jobs.",
                "screen: true ended after 3 of 5 jobs.",
            ]
        );
    }

    #[test]
    fn only_a_task_that_memwarden_releases_has_the_cause_of_its_skipped_jobs() {
        let cause = "because the previous job was still running";
        let none = "In 2 periods no job of the task began";
        for (victim, jobs_by, said) in [
            ("bandwidth:read", Delimiter::Mark, cause),
            ("cmd: true", Delimiter::Line, cause),
            ("cmd: true", Delimiter::Mark, none),
            ("cmd: true", Delimiter::Exit, none),
        ] {
            let config = Config {
                victim: victim.parse().unwrap(),
                jobs_by,
                ..Config::default()
            };
            let running = Running {
                plan: Plan {
                    load: None,
                    guard: None,
                },
                measured: Measured {
                    tasks: vec![task(&[100], 2, 250)],
                    ..Measured::default()
                },
            };
            let mut summary = Summary::new("realtime", "native");
            remarks(&config, &[running], &mut summary);
            let notes = &summary.notes;
            let found = |text| notes.iter().any(|note| note.contains(text));
            assert!(found(said), "{victim}, {jobs_by:?}: {notes:?}");
            assert!(found(cause) != found(none), "{notes:?}");
        }
    }

    #[test]
    fn traffic_that_was_measured_is_not_called_unknown() {
        for (load, mib_s, unknown) in [
            ("xserver", None, true),
            ("xserver", Some(800.0), false),
            ("cmd: true", None, true),
            ("screen", None, false),
        ] {
            let running = Running {
                plan: Plan {
                    load: Some(load.parse().unwrap()),
                    guard: None,
                },
                measured: Measured {
                    loads: vec![vec![load::Achieved {
                        mib_s,
                        ..measure_achieved(0.0)
                    }]],
                    ..Measured::default()
                },
            };
            let mut summary = Summary::new("realtime", "native");
            remarks(&Config::default(), &[running], &mut summary);
            let said = summary.notes.iter().any(|note| note.contains("unknown"));
            assert_eq!(said, unknown, "{load}: {:?}", summary.notes);
        }
    }

    fn measure_achieved(mib_s: f64) -> load::Achieved {
        load::Achieved {
            cpu: 1,
            mib_s: Some(mib_s),
            cpu_share: Some(0.5),
        }
    }
}
