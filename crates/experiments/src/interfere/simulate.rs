// SPDX-License-Identifier: MIT OR Apache-2.0
//! The experiment on a simulated machine: the same cases and run folder, with the model's clock.

use std::path::PathBuf;

use memwarden_guard::Settings as GuardSettings;
use memwarden_platform::units::{Size, Time};
use memwarden_run::studies::interfere::{NAME, Summary};
use memwarden_sim::dram::Activity;
use memwarden_sim::platform::PlatformError;
use memwarden_sim::workload::{Idle, Workload as Steps};
use memwarden_sim::{CoreCounts, Guard};

use super::measure::{Guarded, Measured, MeasuredAggressor};
use super::{Config, Plan, case, plans, remarks, samples};
use crate::request::finished;
use crate::simulated::{Simulated, proof, share_of_regulated};
use crate::workload::USUAL_BYTES;
use crate::{Error, RunRequest, Settings};

/// A case with its prepared workloads.
struct Prepared {
    plan: Plan,
    settings: Option<(String, GuardSettings)>,
    guard: Option<Guard>,
}

/// The result of one run of a case.
struct Ran {
    counts: Vec<CoreCounts>,
    guarded: Option<Guarded>,
    /// Activity of the memory.
    activity: Activity,
}

/// Runs the experiment in the model and writes its run folder.
///
/// # Errors
/// When a setting is invalid on the platform, a workload is not modelled, or the run is interrupted; what was simulated
/// is then in `DIR.partial`.
pub fn simulate(
    config: &Config,
    simulated: &Simulated,
    request: RunRequest,
) -> Result<(PathBuf, Summary), Error> {
    let config = fitted(config, simulated)?;
    let mut summary = Summary::new(NAME, simulated.target());
    let options = config.start_options()?;
    let mut cases = Vec::new();
    for plan in plans(&config)? {
        let guard = plan.guard.as_ref();
        let guard = guard.map(|spec| simulated.guard(spec, &options));
        let (settings, guard) = guard.transpose()?.unzip();
        cases.push(Prepared {
            plan,
            settings,
            guard,
        });
    }
    let runs: Vec<(usize, u32)> = (0..cases.len())
        .flat_map(|case| (0..config.repeat).map(move |repeat| (case, repeat)))
        .collect();
    let settle_ps = picoseconds(config.settle);
    let window_ps = picoseconds(config.window);
    // Reject any invalid case before the folder exists.
    for case in &cases {
        simulated.platform.machine(
            workloads(&config, simulated, &case.plan, 0)?,
            case.guard.as_ref(),
            0,
        )?;
    }
    let mut folder = simulated.begin(NAME, &config, &request)?;
    let ran = Simulated::all(
        &runs,
        |(case, repeat)| {
            run_once(
                &config,
                simulated,
                &cases[*case],
                *repeat,
                settle_ps,
                window_ps,
            )
        },
        request,
    )?;

    let mut results = std::collections::BTreeMap::new();
    let mut activities = Vec::new();
    for ((index, case), ran) in cases
        .iter_mut()
        .enumerate()
        .zip(ran.chunks(config.repeat as usize))
    {
        let measured = measured(
            &config,
            case,
            ran,
            simulated.platform.machine.line_bytes,
            window_ps,
        );
        for (repeat, _) in (0..).zip(ran) {
            folder.append_all(&samples(&config, &case.plan, repeat, &measured))?;
        }
        activities.push(ran.iter().map(|ran| ran.activity).sum());
        results.insert(index, measured);
    }
    if ran.len() < runs.len() {
        return Err(Error::Interrupted);
    }
    let solo: Vec<f64> = results[&0].victim.concat();
    for (index, measured) in &results {
        let mut case = case(&config, &cases[*index].plan, measured, &solo);
        let time_ps = window_ps * u64::from(config.repeat);
        case.traffic = Some(simulated.traffic(&activities[*index], time_ps)?);
        summary.cases.push(case);
    }
    summary.note(format!(
        "Simulated: {}, the regulator is the real policy over modelled cores. Each case ran {} of simulated time, \
         {} times with its pages elsewhere in memory.",
        simulated.platform.name, config.window, config.repeat
    ));
    remarks(&config, &results, &mut summary);
    finished(folder, summary)
}

fn picoseconds(time: Time) -> u64 {
    time.as_ns().saturating_mul(1000)
}

/// Completes the configuration with facts of the platform.
fn fitted(config: &Config, simulated: &Simulated) -> Result<Config, Error> {
    config.victim.check_modelled()?;
    let mut config = config.clone();
    // A model has no kernel with once-a-second work.
    config.long_case = Time::ZERO;
    config.check_cores(simulated)?;
    if config.cpus.is_empty() {
        config.cpus = simulated
            .cores()
            .iter()
            .filter(|core| *core != config.victim_cpu)
            .collect();
    }
    if config.cpus.is_empty() {
        return Err(Error::BadInput(format!(
            "{} has one core: interference needs a second one",
            simulated.platform.name
        )));
    }
    config.check()?;
    Ok(config)
}

fn workloads(
    config: &Config,
    simulated: &Simulated,
    plan: &Plan,
    seed: u64,
) -> Result<Vec<Box<dyn Steps>>, PlatformError> {
    let bytes = |memory: Option<Size>| memory.map_or(USUAL_BYTES, Size::bytes);
    let aggressors = plan.aggressors.as_ref();
    let busy: Vec<usize> = config
        .busy(aggressors.map_or(0, |(_, count)| *count))
        .collect();
    (0..simulated.platform.machine.cores)
        .map(|core| -> Result<Box<dyn Steps>, PlatformError> {
            let seed = seed ^ ((core as u64) << 32);
            Ok(if core == config.victim_cpu {
                let name = config.victim.to_string();
                let memory = bytes(config.victim_memory);
                simulated.platform.workload(&name, memory, seed)?
            } else if let (true, Some((kind, _))) = (busy.contains(&core), aggressors) {
                let memory = bytes(config.aggressor_memory);
                simulated
                    .platform
                    .workload(&kind.to_string(), memory, seed)?
            } else {
                Box::new(Idle)
            })
        })
        .collect()
}

fn run_once(
    config: &Config,
    simulated: &Simulated,
    case: &Prepared,
    repeat: u32,
    settle_ps: u64,
    window_ps: u64,
) -> Result<Ran, PlatformError> {
    let seed = u64::from(repeat) + 1;
    let workloads = workloads(config, simulated, &case.plan, seed)?;
    let cores = workloads.len();
    let mut machine = simulated
        .platform
        .machine(workloads, case.guard.as_ref(), seed)?;
    machine.run_until(settle_ps);
    let before: Vec<CoreCounts> = (0..cores).map(|core| machine.counts(core)).collect();
    let activity = Activity::until(&machine.memory().statistics(), machine.now_ps());
    machine.ended_periods();
    machine.run_until(settle_ps + window_ps);
    let counts: Vec<CoreCounts> = (0..cores)
        .map(|core| machine.counts(core).since(&before[core]))
        .collect();
    let guarded = case.settings.as_ref().map(|(_, settings)| {
        let share = |of: fn(&CoreCounts) -> u64| {
            let stopped_ps: Vec<u64> = counts.iter().map(of).collect();
            share_of_regulated(settings, &stopped_ps, window_ps)
        };
        let per_bank = case.guard.as_ref().is_some_and(|guard| guard.per_bank);
        let (throttled_share, held_back_share) = if per_bank {
            (Default::default(), share(|counts| counts.held_ps))
        } else {
            (share(|counts| counts.throttled_ps), Default::default())
        };
        Guarded {
            throttled_share,
            held_back_share,
            proof: proof(&machine.ended_periods()),
            counted: std::collections::BTreeMap::new(),
            untraced: None,
        }
    });
    let end = Activity::until(&machine.memory().statistics(), machine.now_ps());
    Ok(Ran {
        counts,
        guarded,
        activity: end.since(&activity),
    })
}

fn measured(
    config: &Config,
    case: &mut Prepared,
    ran: &[Ran],
    line_bytes: u64,
    window_ps: u64,
) -> Measured {
    let mib_s = |touches: u64| {
        (touches * line_bytes) as f64 / f64::from(1 << 20) / (window_ps as f64 / 1e12)
    };
    let victim = |ran: &Ran| {
        let touches = ran.counts[config.victim_cpu].touches;
        if config.victim.more_is_worse() {
            // If the victim never ran, its time is at least the window.
            window_ps as f64 / 1e3 / touches.max(1) as f64
        } else {
            mib_s(touches)
        }
    };
    let aggressors = case.plan.aggressors.iter().flat_map(|(kind, count)| {
        config.busy(*count).map(|cpu| MeasuredAggressor {
            cpu,
            kind: kind.clone(),
            mib_s: ran
                .iter()
                .map(|ran| mib_s(ran.counts[cpu].touches))
                .collect(),
        })
    });
    Measured {
        victim: ran.iter().map(|ran| vec![victim(ran)]).collect(),
        aggressors: aggressors.collect(),
        settings: case.settings.take(),
        guarded: ran.iter().filter_map(|ran| ran.guarded.clone()).collect(),
        ..Measured::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Interrupt;

    #[test]
    fn an_interrupted_simulation_keeps_the_first_runs() {
        let scratch = tempfile::tempdir().unwrap();
        let out = scratch.path().join("run");
        let config = Config {
            window: "100us".parse().unwrap(),
            settle: "10us".parse().unwrap(),
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
        assert_eq!((rows[0].case.as_str(), rows[0].repeat), ("solo", 0));
    }
}
