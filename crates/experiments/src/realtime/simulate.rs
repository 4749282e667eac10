// SPDX-License-Identifier: MIT OR Apache-2.0
//! The deadline case on a simulated machine: the same cases and run folder, with the model's clock.

use std::path::PathBuf;

use memwarden_guard::Settings as GuardSettings;
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::units::Size;
use memwarden_run::studies::realtime::{NAME, Summary};
use memwarden_sim::Guard;
use memwarden_sim::cases::Task;
use memwarden_sim::dram::Activity;
use memwarden_sim::platform::PlatformError;
use memwarden_sim::workload::{Idle, Workload as Steps};
use memwarden_workloads::periodic::Job;

use super::load::{Achieved, Load};
use super::measure::{Measured, TaskRun};
use super::{Config, Plan, Running, figures, plans, remarks, samples};
use crate::request::finished;
use crate::simulated::{Simulated, share_of_regulated};
use crate::{Error, RunRequest, Settings};

/// Default buffer of a load: larger than any platform's cache.
const LOAD_BYTES: u64 = 64 << 20;

/// A case with its prepared workloads.
struct Prepared {
    plan: Plan,
    settings: Option<(String, GuardSettings)>,
    guard: Option<Guard>,
}

/// The result of one run of a case.
struct Ran {
    task: TaskRun,
    loads: Vec<Achieved>,
    throttled_ps: Vec<u64>,
    held_ps: Vec<u64>,
    time_ps: u64,
    /// Activity of the memory.
    activity: Activity,
}

/// Runs the experiment in the model and writes its run folder.
///
/// # Errors
/// When a setting is invalid on the platform, a load is not modelled, or the run is interrupted; what was simulated is
/// then in `DIR.partial`.
pub fn simulate(
    config: &Config,
    simulated: &Simulated,
    request: RunRequest,
) -> Result<(PathBuf, Summary), Error> {
    let config = fitted(config, simulated)?;
    let mut summary = Summary::new(NAME, simulated.target());
    let options = config.start_options()?;
    let mut cases = Vec::new();
    for plan in plans(&config) {
        let guard = plan.guard.as_ref();
        let guard = guard.map(|spec| simulated.guard(spec, &options));
        let (settings, guard) = guard.transpose()?.unzip();
        // Reject any invalid setting before the folder exists.
        simulated.platform.machine(
            workloads(&config, simulated, &plan, guard.as_ref(), 0)?,
            guard.as_ref(),
            0,
        )?;
        cases.push(Prepared {
            plan,
            settings,
            guard,
        });
    }
    let runs: Vec<(usize, u32)> = (0..cases.len())
        .flat_map(|case| (0..config.repeat).map(move |repeat| (case, repeat)))
        .collect();
    let mut folder = simulated.begin(NAME, &config, &request)?;
    let ran = Simulated::all(
        &runs,
        |(case, repeat)| run_once(&config, simulated, &cases[*case], *repeat),
        request,
    )?;

    let interrupted = ran.len() < runs.len();

    let mut running = Vec::new();
    let mut traffic = Vec::new();
    let mut ran = ran.into_iter();
    for case in cases {
        let name = case.plan.name();
        let mut measured = Measured {
            settings: case.settings,
            ..Measured::default()
        };
        let (mut activities, mut time_ps) = (Vec::new(), 0);
        for repeat in 0..config.repeat {
            let Some(one) = ran.next() else { break };
            activities.push(one.activity);
            time_ps += one.time_ps;
            if let Some((_, settings)) = &measured.settings {
                // Budgets per bank stop no core.
                let per_bank = case.guard.as_ref().is_some_and(|guard| guard.per_bank);
                let (stopped_ps, shares) = if per_bank {
                    (&one.held_ps, &mut measured.held_back_share)
                } else {
                    (&one.throttled_ps, &mut measured.throttled_share)
                };
                shares.push(share_of_regulated(settings, stopped_ps, one.time_ps));
            }
            measured.tasks.push(one.task);
            if case.plan.load.is_some() {
                measured.loads.push(one.loads);
            }
            folder.append_all(&samples(&config, &name, repeat, &measured))?;
        }
        traffic.push((activities.into_iter().sum(), time_ps));
        running.push(Running {
            plan: case.plan,
            measured,
        });
    }
    if interrupted {
        return Err(Error::Interrupted);
    }
    figures(&config, &running, &mut summary)?;
    for (case, (activity, time_ps)) in summary.cases.iter_mut().zip(traffic) {
        case.traffic = Some(simulated.traffic(&activity, time_ps)?);
    }
    summary.note(format!(
        "Simulated: {}, the regulator is the real policy over modelled cores. Nothing but memory delays the task: its \
         release jitter is 0.",
        simulated.platform.name
    ));
    remarks(&config, &running, &mut summary);
    finished(folder, summary)
}

/// Completes the configuration with facts of the platform.
fn fitted(config: &Config, simulated: &Simulated) -> Result<Config, Error> {
    let mut config = config.clone();
    config.check_cores(simulated)?;
    if config.cpus.is_empty() {
        config.cpus = simulated
            .cores()
            .iter()
            .find(|core| *core != config.victim_cpu)
            .into_iter()
            .collect::<CpuSet>();
    }
    config.check()?;
    if !config.on_miss.is_empty() {
        return Err(Error::BadInput(
            "--on-miss: a simulated machine does not run in real time".into(),
        ));
    }
    if config.frames != 1 {
        return Err(Error::BadInput(format!(
            "--frames {}: the simulated task has its own number of frames; leave the option out",
            config.frames
        )));
    }
    if config.victim.to_string() != "bandwidth:read" {
        return Err(Error::BadInput(format!(
            "--victim {}: the simulated task reads its frame (bandwidth:read)",
            config.victim
        )));
    }
    if let Some(load) = config
        .load
        .iter()
        .find(|load| matches!(load, Load::Command(_)))
    {
        return Err(Error::BadInput(format!(
            "load `{load}`: a command cannot be simulated; give screen, xserver, latency or bandwidth:KIND"
        )));
    }
    Ok(config)
}

fn task(config: &Config) -> Task {
    Task {
        frame_bytes: config.frame.bytes(),
        period_us: config.period.as_us().max(1),
        deadline_us: config.deadline.as_us(),
        jobs: config.jobs,
    }
}

fn workloads(
    config: &Config,
    simulated: &Simulated,
    plan: &Plan,
    guard: Option<&Guard>,
    seed: u64,
) -> Result<Vec<Box<dyn Steps>>, PlatformError> {
    let bytes = config.load_memory.map_or(LOAD_BYTES, Size::bytes);
    (0..simulated.platform.machine.cores)
        .map(|core| -> Result<Box<dyn Steps>, PlatformError> {
            Ok(match &plan.load {
                _ if core == config.victim_cpu => simulated.platform.task(&task(config), guard),
                Some(load) if config.cpus.contains(core) => {
                    let name = match load {
                        Load::Workload(workload) => workload.to_string(),
                        other => other.to_string(),
                    };
                    simulated
                        .platform
                        .workload(&name, bytes, seed ^ ((core as u64) << 32))?
                }
                _ => Box::new(Idle),
            })
        })
        .collect()
}

fn run_once(
    config: &Config,
    simulated: &Simulated,
    case: &Prepared,
    repeat: u32,
) -> Result<Ran, PlatformError> {
    let seed = u64::from(repeat) + 1;
    let platform = &simulated.platform;
    let workloads = workloads(config, simulated, &case.plan, case.guard.as_ref(), seed)?;
    let cores = workloads.len();
    let mut machine = platform.machine(workloads, case.guard.as_ref(), seed)?;
    let task = task(config);
    while !machine.has_ended(config.victim_cpu) {
        machine.run_until(machine.now_ps() + task.period_ps());
    }
    let time_ps = machine.now_ps();
    let counts: Vec<_> = (0..cores).map(|core| machine.counts(core)).collect();
    let loads = config.cpus.iter().map(|cpu| {
        let counts = counts[cpu];
        let bytes = (counts.touches * platform.machine.line_bytes) as f64;
        let away_ps = counts.idle_ps + counts.throttled_ps;
        Achieved {
            cpu,
            mib_s: Some(bytes / f64::from(1 << 20) / (time_ps as f64 / 1e12)),
            cpu_share: Some(1.0 - away_ps as f64 / time_ps as f64),
        }
    });
    let deadline_ns = task.deadline_us * 1000;
    let jobs: Vec<Job> = machine
        .jobs(config.victim_cpu)
        .iter()
        .map(|job| {
            let response_ns = (job.done_ps - job.released_ps) / 1000;
            Job {
                number: job.number,
                release_jitter_ns: 0,
                response_ns,
                execution_ns: response_ns,
                missed: response_ns > deadline_ns,
            }
        })
        .collect();
    let activity = Activity::until(&machine.memory().statistics(), machine.now_ps());
    Ok(Ran {
        task: TaskRun::simulated(config.victim_cpu, task.frame_bytes, task.jobs, jobs),
        loads: loads.collect(),
        throttled_ps: counts.iter().map(|counts| counts.throttled_ps).collect(),
        held_ps: counts.iter().map(|counts| counts.held_ps).collect(),
        time_ps,
        activity,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Interrupt;

    /// Released when the guard's periods begin, every job would be in time.
    #[test]
    fn jobs_that_are_late_only_at_some_points_of_the_guard_s_period_are_found() {
        let scratch = tempfile::tempdir().unwrap();
        let config = Config {
            frame: Size::kib(256),
            period: "2ms".parse().unwrap(),
            deadline: "600us".parse().unwrap(),
            jobs: 20,
            load: vec!["bandwidth:write".parse().unwrap()],
            cpus: "1-3".parse().unwrap(),
            load_memory: Some(Size::kib(2048)),
            guard: vec!["459,175,175,175+spare".parse().unwrap()],
            ..Config::for_sim()
        };
        let (_, summary) = simulate(
            &config,
            &Simulated::find("raspberry-pi-3").unwrap(),
            RunRequest::to(&scratch.path().join("run"), &Interrupt::default(), &mut ()),
        )
        .unwrap();
        let loaded = summary
            .cases
            .iter()
            .find(|case| !case.aggressors.is_empty());
        let misses = loaded.and_then(|case| case.misses).unwrap();
        assert!((4..20).contains(&misses), "{misses} of 20");
    }

    #[test]
    fn an_interrupted_simulation_keeps_the_first_runs() {
        let scratch = tempfile::tempdir().unwrap();
        let out = scratch.path().join("run");
        let config = Config {
            frame: Size::kib(64),
            period: "1ms".parse().unwrap(),
            deadline: "1ms".parse().unwrap(),
            jobs: 2,
            load: vec!["screen".parse().unwrap()],
            repeat: 100,
            ..Config::for_sim()
        };
        let simulated = Simulated::find("raspberry-pi-3").unwrap();
        let interrupt = Interrupt::default();
        let ended = simulate(
            &config,
            &simulated,
            RunRequest::to(&out, &interrupt, &mut interrupt.after(1)),
        );
        assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
        assert!(!out.exists());
        let partial = out.with_extension("partial");
        let rows = memwarden_run::read_samples(&partial.join("samples.csv")).unwrap();
        assert_eq!((rows[0].case.as_str(), rows[0].repeat), ("alone", 0));
    }
}
