// SPDX-License-Identifier: MIT OR Apache-2.0
//! The size from which the engine wins: by the time of a copy, by the CPU time of the copying thread, and by the
//! slowdown of an application on another CPU.
//!
//! Each copy by the engine pins its user memory, as the copies do that the threshold decides on.

use std::path::{Path, PathBuf};

use memwarden_copies::cftu::{self, Copy, Session};
use memwarden_platform::names::unknown;
use memwarden_platform::{Root, affinity, clock, topology};
use memwarden_run::statistics::{Ratio, ratio_of_medians};
use memwarden_run::studies::copy_breakeven::{Case, NAME, Summary, Whole};
use memwarden_run::studies::is_the_engines;
use memwarden_run::{Metric, Sample, title};
use memwarden_workloads::automotive::Application;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantArray};

use super::copier::{Repeated, beside};
use super::victim::Victim;
use super::{Bench, Engine, Moved, Operation, Policies, bytes_text, copy, note_cpu_parts, powers};
use crate::pinned::Pinned;
use crate::request::finished;
use crate::settings::{
    check_sizes, check_within, not_empty, not_twice, two_cpus, usable, usable_or_first,
    usual_or_beside,
};
use crate::{Error, Interrupt, RunRequest, Settings};

/// The parameter with cftu's threshold.
pub const THRESHOLD: &str = "/sys/module/cftu/parameters/min_bytes";

/// Readings of the CPU clock for each size: enough for an interval, few enough for a coarse clock.
const ROUNDS: u32 = 10;

/// The criterion by which the engine is compared with the CPU.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    EnumString,
    VariantArray,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown::<Self>)]
pub enum Answer {
    /// A copy takes less time.
    Latency,
    /// A copy costs the copying thread less CPU time.
    CpuTime,
    /// An application on another CPU slows down less.
    Slowdown,
}

impl Answer {
    /// The metric that the criterion compares.
    fn metric(self) -> &'static str {
        match self {
            Self::Latency => "time_ns",
            Self::CpuTime => "cpu_time_ns",
            Self::Slowdown => "victim_ns",
        }
    }
}

/// The experiment's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The device, or `null`.
    pub device: PathBuf,
    /// The engine to compare with the CPU.
    pub engine: Engine,
    /// Directions of the copies; the engine must win in all of them.
    pub operation: Vec<Operation>,
    /// Sizes of a copy, bytes.
    pub sizes: Vec<u64>,
    /// Copies of each size.
    #[serde(alias = "count")]
    pub repeat: u32,
    /// The victim application.
    pub victim: String,
    /// Runs of the victim beside each size.
    #[serde(alias = "victim_runs")]
    pub victim_repeat: u32,
    /// The CPU on which the copies are made.
    pub cpu: usize,
    /// The application's CPU.
    pub victim_cpu: usize,
    /// Settings of the policies.
    pub policy: Policies,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device: cftu::DEVICE.into(),
            engine: Engine::DmaShared,
            operation: vec![Operation::From, Operation::To],
            sizes: powers(1, 1 << 25),
            repeat: 100,
            victim: "susan_corners_medium".into(),
            victim_repeat: 20,
            cpu: 0,
            victim_cpu: 1,
            policy: Policies::default(),
        }
    }
}

impl Settings for Config {
    type Whole = Whole;

    const COMMAND: &str = "copy breakeven";

    const RENAMED: &[(&str, &str)] = &[("count", "repeat"), ("victim_runs", "victim_repeat")];

    /// The CPUs are those of two cores, if this process may run on two.
    fn for_native() -> Result<Self, Error> {
        let config = Self::default();
        let usable = usable()?;
        let cpu = usable_or_first(config.cpu, &usable);
        let victim_cpu = usual_or_beside(&Root::system(), config.victim_cpu, cpu, &usable);
        Ok(Self {
            cpu,
            victim_cpu,
            ..config
        })
    }

    /// The settings that suit the emulated machine.
    fn for_lab() -> Self {
        Self {
            sizes: powers(1 << 6, 1 << 20),
            repeat: 20,
            victim: "susan_corners_small".into(),
            victim_repeat: 6,
            ..Self::default()
        }
    }

    fn check(&self) -> Result<(), Error> {
        let bad = |text: String| Err(Error::BadInput(text));
        if !self.engine.is_dma() {
            return bad("--engine cpu: give a DMA engine, it is compared with the CPU".into());
        }
        check_sizes(&self.sizes, cftu::MAX_BYTES)?;
        not_empty(
            &self.operation,
            "no operation: give --operation from,to, for example",
        )?;
        not_twice("--operation", &self.operation)?;
        check_within("--repeat", self.repeat, ROUNDS..=1_000_000)?;
        // With fewer than 5 runs there is no confidence interval, so they give no answer; a single one is of no use.
        check_within("--victim-repeat", self.victim_repeat, 2..=10_000)?;
        two_cpus(("--cpu", self.cpu), ("--victim-cpu", self.victim_cpu))?;
        Application::named(&self.victim)?;
        self.policy.check()
    }
}

/// Runs the experiment and leaves its run folder.
///
/// # Errors
/// When a setting makes no sense here, the device is not there, refuses or gives other bytes back, or the run is
/// interrupted; what was measured is then in `DIR.partial`.
pub fn run(config: &Config, request: RunRequest) -> Result<(PathBuf, Summary), Error> {
    config.check()?;
    let interrupt = request.interrupt;
    let mut summary = Summary::new(NAME, "native");
    let bench = Bench::open(&config.device, &config.policy)?;
    bench.choose(config.engine)?;
    let mut sizes = config.sizes.clone();
    sizes.sort_unstable();
    let largest = sizes.last().copied().unwrap_or(1);
    let mut session = bench.session(largest, false)?;
    // With one CPU no other application can run beside the copies.
    let mut victim = match affinity::get()?.len() {
        1 => None,
        _ => Some(Victim::new(Application::named(&config.victim)?, 1)),
    };
    let mut folder = request.begin(NAME, config)?;

    let mut steps = request.steps(sizes.len() * config.operation.len());
    for &size in &sizes {
        for engine in [Engine::Cpu, config.engine] {
            bench.check(session.as_mut(), engine, size)?;
        }
        for &operation in &config.operation {
            let title = format!(
                "{}, {}",
                title::operation(&operation.to_string()),
                title::size(size)
            );
            steps.next(&title);
            let one = |engine| Repeated {
                operation,
                engine,
                bytes: size,
            };
            let both = [one(Engine::Cpu), one(config.engine)];
            let mut own = [Own::default(), Own::default()];
            let pinned = Pinned::to(config.cpu)?;
            let mut outcome = both.iter().zip(&mut own).try_for_each(|(one, own)| {
                own.measure(*one, config.repeat, session.as_mut(), interrupt)
            });
            drop(pinned);
            let [cpu, dma] = own;
            let share = dma.moved.engine_share();
            let mut found = vec![
                (Answer::Latency, [cpu.times, dma.times], share),
                (Answer::CpuTime, [cpu.cpu_times, dma.cpu_times], share),
            ];
            if let (Ok(()), Some(victim)) = (&outcome, &mut victim) {
                let mut beside = Beside::default();
                outcome = beside.measure(config, both, victim, session.as_mut(), interrupt);
                found.push((Answer::Slowdown, beside.times, beside.engine_share));
            }
            for (answer, times, share) in found {
                let name = format!("{answer}, {operation}, {}", bytes_text(size));
                folder.append_all(&samples(&name, answer, &times))?;
                summary.cases.push(Case {
                    engine_share: Some(share),
                    operation: operation.to_string(),
                    size_bytes: size,
                    ..case(name, answer, &times)
                });
            }
            folder.flush()?;
            // What was measured before an interrupt is written, too.
            outcome?;
        }
    }
    steps.end();
    for &answer in Answer::VARIANTS {
        let won = first_win(&summary, answer, &sizes);
        let (bytes, reason) = match answer {
            Answer::Latency => (
                &mut summary.whole.latency_bytes,
                &mut summary.whole.latency_reason,
            ),
            Answer::CpuTime => (
                &mut summary.whole.cpu_time_bytes,
                &mut summary.whole.cpu_time_reason,
            ),
            Answer::Slowdown => (
                &mut summary.whole.slowdown_bytes,
                &mut summary.whole.slowdown_reason,
            ),
        };
        *bytes = won.as_ref().ok().copied();
        *reason = won.as_ref().err().cloned();
        if let Err(reason) = won {
            summary.note(format!(
                "By {} there is no size from which the engine wins: {reason}.",
                title::criterion(&answer.to_string())
            ));
        }
    }
    summary.whole.engine = config.engine.to_string();
    summary.whole.device = bench.device();
    bench.tell(&mut summary)?;
    let cases = summary.cases.iter();
    let note = note_cpu_parts(cases.map(|case| (case.title(), case.engine_share)));
    note.into_iter().for_each(|note| summary.note(note));
    if victim.is_some() {
        let copying = [config.cpu].into_iter().collect();
        let remarks = topology::remarks(&Root::system(), "the victim", config.victim_cpu, &copying);
        remarks.into_iter().for_each(|remark| summary.note(remark));
    }
    summary.note(format!(
        "The engine wins from a size if, at that size and every larger measured one and in each direction, the 95 % \
         interval of its ratio to the CPU is below 1 and the engine made the copies. The engine's copies pinned their \
         user memory within the time, as the copies do that the threshold decides on; the CPU's copies do not pin. The \
         victim application is {}.",
        config.victim
    ));
    finished(folder, summary)
}

/// The times of one engine's copies.
#[derive(Default)]
struct Own {
    /// Each copy's time, ns.
    times: Vec<f64>,
    /// CPU time of the calling thread for a copy, ns; one figure for each round.
    cpu_times: Vec<f64>,
    moved: Moved,
}

impl Own {
    /// Makes the copies; those before an error are kept.
    fn measure(
        &mut self,
        one: Repeated,
        count: u32,
        session: &mut dyn Session,
        interrupt: &Interrupt,
    ) -> Result<(), Error> {
        for round in 0..ROUNDS {
            // If the count does not divide evenly, the first rounds make one copy more.
            let in_a_round = count / ROUNDS + u32::from(round < count % ROUNDS);
            let in_a_round = usize::try_from(in_a_round).unwrap_or(1);
            let mut copies = one.operation.copies(one.engine, one.bytes, in_a_round);
            let before = clock::thread_cpu_ns();
            let outcome = copy(session, &mut copies, interrupt);
            let spent = clock::thread_cpu_ns() - before;
            copies.retain(Copy::is_made);
            let times = copies.iter().map(|copy: &Copy| copy.elapsed_ns() as f64);
            self.times.extend(times);
            self.moved.add(&copies);
            outcome?;
            self.cpu_times.push(spent as f64 / in_a_round as f64);
        }
        Ok(())
    }
}

/// The victim beside the copies.
#[derive(Default)]
struct Beside {
    /// Each run's time, ns, beside the CPU's copies and beside the engine's.
    times: [Vec<f64>; 2],
    /// The engine's share of the bytes that it was asked to copy.
    engine_share: f64,
}

impl Beside {
    /// Runs the victim beside both; the runs before an error are kept.
    fn measure(
        &mut self,
        config: &Config,
        both: [Repeated; 2],
        victim: &mut Victim,
        session: &mut dyn Session,
        interrupt: &Interrupt,
    ) -> Result<(), Error> {
        let _pinned = Pinned::to(config.victim_cpu)?;
        for (one, times) in both.into_iter().zip(&mut self.times) {
            let work = || victim_times(victim, config.victim_repeat, interrupt, times);
            let ((), made) = beside(one, config.cpu, session, interrupt, work)?;
            self.engine_share = made.moved.engine_share();
        }
        Ok(())
    }
}

fn victim_times(
    victim: &mut Victim,
    runs: u32,
    interrupt: &Interrupt,
    times: &mut Vec<f64>,
) -> Result<(), Error> {
    for _ in 0..runs {
        interrupt.check()?;
        let [begin_ns, end_ns] = victim.run()?;
        times.push(end_ns.saturating_sub(begin_ns) as f64);
    }
    Ok(())
}

/// Raw samples of one case; the role is the engine that copied.
fn samples(case: &str, answer: Answer, times: &[Vec<f64>; 2]) -> Vec<Sample> {
    let metric = answer.metric();
    let of = |role: &'static str, times: &[f64]| -> Vec<Sample> {
        (0..)
            .zip(times)
            .map(|(number, ns)| Sample::new(case, number, role, metric, "ns", *ns))
            .collect()
    };
    let mut samples = of("cpu", &times[0]);
    samples.extend(of("dma", &times[1]));
    samples
}

/// The figures of one case: the CPU's and the engine's times, and their ratio.
fn case(name: String, answer: Answer, times: &[Vec<f64>; 2]) -> Case {
    let metric = |times: &[f64]| Some(Metric::from_samples(answer.metric(), times));
    let Ratio { ratio, ci95 } = ratio_of_medians(&times[1], &times[0]);
    Case {
        name,
        answer: answer.to_string(),
        cpu: metric(&times[0]),
        dma: metric(&times[1]),
        ratio,
        ratio_ci95: ci95,
        ..Case::default()
    }
}

/// The smallest size from which the engine wins at every measured size, or the reason why there is none.
fn first_win(summary: &Summary, answer: Answer, sizes: &[u64]) -> Result<u64, String> {
    let of_size = |size: u64| {
        let mine = summary
            .cases
            .iter()
            .filter(move |case| case.answer == answer.to_string() && case.size_bytes == size);
        mine.collect::<Vec<&Case>>()
    };
    let is_the_engines = |case: &Case| is_the_engines(case.engine_share);
    let wins = |size: &&u64| {
        let cases = of_size(**size);
        !cases.is_empty()
            && cases.iter().all(|case| {
                is_the_engines(case) && case.ratio_ci95.is_some_and(|[_, high]| high < 1.0)
            })
    };
    if let Some(size) = sizes.iter().rev().take_while(wins).last() {
        return Ok(*size);
    }
    let last = sizes.last().copied().unwrap_or(0);
    let worst = of_size(last)
        .into_iter()
        .filter_map(|case| case.ratio)
        .fold(None, |worst: Option<f64>, ratio| {
            Some(worst.map_or(ratio, |worst| worst.max(ratio)))
        });
    Err(match worst {
        None if answer == Answer::Slowdown => {
            "the machine has one CPU, or the clock did not advance".into()
        }
        None => "the clock did not advance".into(),
        Some(ratio) => {
            let why = if !of_size(last).into_iter().all(is_the_engines) {
                ", and the CPU made some of its copies"
            } else if ratio < 1.0 && of_size(last).iter().any(|case| case.ratio_ci95.is_none()) {
                ", of too few runs for an interval"
            } else if ratio < 1.0 {
                ", which is within the spread"
            } else {
                ""
            };
            format!(
                "at {}, the largest that was measured, the engine's figure is {ratio:.2} of the CPU's{why}",
                title::size(last)
            )
        }
    })
}

/// The answer of a run.
#[must_use]
pub fn answer(whole: &Whole, answer: Answer) -> Option<u64> {
    match answer {
        Answer::Latency => whole.latency_bytes,
        Answer::CpuTime => whole.cpu_time_bytes,
        Answer::Slowdown => whole.slowdown_bytes,
    }
}

/// The line for a file in /etc/modprobe.d.
#[must_use]
pub fn modprobe_line(bytes: u64) -> String {
    format!("options cftu min_bytes={bytes}")
}

/// Checks, before anything is measured, that the threshold can be written.
///
/// # Errors
/// When cftu is not loaded.
pub fn can_apply(threshold: &Path) -> Result<(), Error> {
    if threshold.exists() {
        return Ok(());
    }
    Err(Error::BadInput(format!(
        "--apply: {} does not exist, as cftu is not loaded, and the measurement unloads it again (modprobe cftu first, \
         or put the printed line in /etc/modprobe.d)",
        threshold.display()
    )))
}

/// Writes the threshold to the loaded cftu.
///
/// # Errors
/// When cftu is not loaded, or the user is not root.
pub fn apply(bytes: u64, threshold: &Path) -> Result<(), Error> {
    can_apply(threshold)?;
    std::fs::write(threshold, format!("{bytes}\n")).map_err(|error| {
        Error::BadInput(format!("--apply: writing {}: {error}", threshold.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;

    /// A summary with the given ratios of the engine's figure to the CPU's, by size.
    fn summary(answer: Answer, ratios: &[(u64, f64)]) -> Summary {
        let mut summary = Summary::new(NAME, "native");
        for (size, ratio) in ratios {
            for operation in ["from", "to"] {
                let cpu = vec![100.0, 101.0, 102.0, 100.0, 101.0, 102.0];
                let dma = cpu.iter().map(|ns| ns * ratio).collect();
                summary.cases.push(Case {
                    size_bytes: *size,
                    ..case(format!("{operation} {size}"), answer, &[cpu, dma])
                });
            }
        }
        summary
    }

    #[test]
    fn the_engine_wins_from_where_it_never_loses_again() {
        let sizes = [1, 64, 4096, 65_536];
        let won = |ratios: [f64; 4]| {
            let all: Vec<_> = sizes.into_iter().zip(ratios).collect();
            first_win(&summary(Answer::Latency, &all), Answer::Latency, &sizes)
        };
        assert_eq!(won([9.0, 3.0, 0.8, 0.4]), Ok(4096));
        assert_eq!(won([0.5, 3.0, 0.8, 0.4]), Ok(4096));
        assert_eq!(won([0.5, 0.5, 0.8, 0.4]), Ok(1));
        // A ratio with 1 inside its interval is not a win.
        assert_eq!(won([9.0, 3.0, 0.995, 0.4]), Ok(65_536));
        assert_eq!(
            won([0.5, 0.5, 0.8, 1.8]).unwrap_err(),
            "at 64\u{a0}KiB, the largest that was measured, the engine's figure is 1.80 of the CPU's"
        );
        let near = won([0.5, 0.5, 0.8, 0.995]).unwrap_err();
        assert!(
            near.ends_with("0.99 of the CPU's, which is within the spread"),
            "{near}"
        );
    }

    #[test]
    fn what_the_cpu_did_is_no_win_of_the_engine() {
        let sizes = [64, 4096];
        let mut run = summary(Answer::Latency, &[(64, 0.5), (4096, 0.4)]);
        assert_eq!(first_win(&run, Answer::Latency, &sizes), Ok(64));
        run.cases[0].engine_share = Some(0.9);
        assert_eq!(first_win(&run, Answer::Latency, &sizes), Ok(4096));
        run.cases[3].engine_share = Some(0.0);
        let why = first_win(&run, Answer::Latency, &sizes).unwrap_err();
        assert!(
            why.ends_with("and the CPU made some of its copies"),
            "{why}"
        );
    }

    #[test]
    fn no_copy_is_left_out_of_the_rounds() {
        let bench = Bench::open(Path::new("null"), &Policies::default()).unwrap();
        let mut session = bench.session(64, false).unwrap();
        let one = Repeated {
            operation: Operation::From,
            engine: Engine::DmaShared,
            bytes: 64,
        };
        let mut own = Own::default();
        own.measure(one, 19, session.as_mut(), &Interrupt::default())
            .unwrap();
        assert_eq!((own.times.len(), own.cpu_times.len()), (19, 10));
        assert!((own.moved.engine_share() - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn an_interrupt_keeps_what_was_measured_before_it() {
        let cpus: Vec<usize> = affinity::get().unwrap().iter().collect();
        let [cpu, victim_cpu, ..] = cpus[..] else {
            eprintln!("skipped: one CPU runs no two things at once");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        let config = Config {
            device: cftu::NULL.into(),
            sizes: vec![64],
            operation: vec![Operation::To],
            repeat: 10,
            victim: "susan_corners_small".into(),
            victim_repeat: 2,
            cpu,
            victim_cpu,
            ..Config::default()
        };
        // Each copy of its own round has two checks: the CPU's third copy is the last.
        let interrupt = Interrupt::after_checks(5);
        let ended = run(&config, RunRequest::to(&out, &interrupt, &mut ()));
        assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
        let samples = out.with_extension("partial").join("samples.csv");
        let rows = memwarden_run::read_samples(&samples).unwrap();
        let of = |metric: &str| rows.iter().filter(|row| row.metric == metric).count();
        assert_eq!((of("time_ns"), of("cpu_time_ns")), (3, 2));
        assert!(rows.iter().all(|row| row.role == "cpu"));
    }

    #[test]
    fn an_answer_without_a_case_is_no_answer() {
        let empty = Summary::new(NAME, "native");
        assert!(
            first_win(&empty, Answer::Slowdown, &[1])
                .unwrap_err()
                .contains("one CPU")
        );
        assert_eq!(answer(&empty.whole, Answer::Latency), None);
    }

    #[test]
    fn a_run_gives_three_answers_or_their_reasons() {
        let cpus: Vec<usize> = affinity::get().unwrap().iter().collect();
        let [cpu, victim_cpu, ..] = cpus[..] else {
            return; // one CPU has two answers
        };
        let folder = tempfile::tempdir().unwrap();
        let config = Config {
            device: cftu::NULL.into(),
            sizes: vec![4096, 1],
            repeat: 10,
            victim: "susan_corners_small".into(),
            victim_repeat: 2,
            cpu,
            victim_cpu,
            ..Config::default()
        };
        let (_, summary) = run(
            &config,
            RunRequest::to(&folder.path().join("run"), &Interrupt::default(), &mut ()),
        )
        .unwrap();
        // 2 sizes, 2 operations, 3 answers.
        assert_eq!(summary.cases.len(), 12);
        assert_eq!(summary.cases[0].name, "latency, from, 1 byte");
        let whole = summary.whole;
        for (bytes, reason) in [
            (whole.latency_bytes, whole.latency_reason),
            (whole.cpu_time_bytes, whole.cpu_time_reason),
            (whole.slowdown_bytes, whole.slowdown_reason),
        ] {
            assert!(bytes.is_none() != reason.is_none());
        }
    }

    #[test]
    fn the_threshold_is_written_where_it_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        apply(4096, file.path()).unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "4096\n");
        let message = apply(1, Path::new("/nonexistent/min_bytes"))
            .unwrap_err()
            .to_string();
        assert!(message.contains("/etc/modprobe.d"), "{message}");
        assert_eq!(modprobe_line(512), "options cftu min_bytes=512");
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(with(|c| c.engine = Engine::Cpu).contains("give a DMA engine"));
        assert!(with(|c| c.repeat = 9).contains("--repeat 9: give 10 to"));
        assert!(with(|c| c.victim = "doom".into()).contains("doom"));
        assert!(with(|c| c.victim_repeat = 1).contains("--victim-repeat 1: give 2 to"));
        assert!(with(|c| c.victim_cpu = 0).contains("give two CPUs"));
        let config = Config::for_lab();
        config.check().unwrap();
        let back = settings::tests::read(&config.to_toml().unwrap(), &Config::default()).unwrap();
        assert_eq!(back, config);
    }
}
